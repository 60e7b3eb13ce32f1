//! Processes that are stopped and killed while they hold a lock, wait for it or send a request.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, Result, Term};

use super::elections::candidate;
use super::nemesis::worker;
use super::scene::{NAME, builder};
use crate::support::HOUR;
use crate::support::child::{Child, job};

const TEST: &str = "server::child::a_process_of_its_own";

/// Starts a process that uses the lock until it learns of its loss, or until it is killed.
pub(crate) fn hold(url: &str, lease: Duration) -> Child {
    Child::start(TEST, &format!("hold {url} {}", lease.as_millis()))
}

/// Starts a process that leads whenever it can. Returns the process with its number, which is also
/// its payload.
pub(crate) fn lead(url: &str, lease: Duration, number: u32) -> (u32, Child) {
    let job = format!("lead {url} {} {number}", lease.as_millis());
    (number, Child::start(TEST, &job))
}

/// Starts a process that waits for the fair lock until it is killed.
pub(crate) fn stand_in_line(url: &str) -> Child {
    Child::start(TEST, &format!("stand {url}"))
}

/// Starts a process that tries once to acquire the lock with a fixed lease, with a very long limit
/// for the reply.
pub(crate) fn ask(url: &str, lease: Duration) -> Child {
    Child::start(TEST, &format!("ask {url} {}", lease.as_millis()))
}

/// Starts a process that holds the lock, and has no free file descriptor for a while.
pub(crate) fn run_out_of_files(url: &str) -> Child {
    Child::start(TEST, &format!("files {url}"))
}

/// Starts a process that hammers the locks at `url` and the counters at `resource`.
pub(crate) fn work(url: &str, resource: &str, tasks: usize, seed: u64) -> Child {
    Child::start(TEST, &format!("work {url} {resource} {tasks} {seed}"))
}

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_process_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match words[..] {
        ["hold", url, lease] => runtime.block_on(use_until_told(url, ms(lease))).unwrap(),
        ["lead", url, lease, number] => {
            runtime
                .block_on(lead_until_killed(url, ms(lease), number))
                .unwrap();
        }
        ["stand", url] => runtime.block_on(async {
            let client = builder().connect(url).await.unwrap();
            let _guard = client.fair_lock(NAME).acquire().await.unwrap();
            std::future::pending().await
        }),
        ["ask", url, lease] => runtime.block_on(ask_once(url, ms(lease))).unwrap(),
        ["files", url] => runtime.block_on(take_all_files(url)),
        ["work", url, resource, tasks, seed] => {
            let (tasks, seed) = (tasks.parse().unwrap(), seed.parse().unwrap());
            runtime.block_on(worker::work(url, resource, tasks, seed));
        }
        _ => panic!("no such job: {job:?}"),
    }
}

/// Prints `held` with the time, `uses` at each use, and at the loss `told` with the time of the
/// last use and the reason.
async fn use_until_told(url: &str, lease: Duration) -> Result<()> {
    let client = builder().lease(lease).connect(url).await?;
    println!("asks");
    let guard = client.lock(NAME).acquire().await?;
    println!("held {}", monotonic_ns());
    let mut used = 0;
    loop {
        // The time is read before the guard. If the process is stopped between the two readings, it
        // has not used the lock since then.
        let now = monotonic_ns();
        if let Some(reason) = guard.loss() {
            println!("told {used} {reason:?}");
            break;
        }
        used = now;
        println!("uses");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("released {:?}", guard.release().await.map_err(|e| e.kind()));
    Ok(())
}

/// Prints `leads` with the token of each term, `works` at each use, and `dropped` with the time of
/// the last use when the work ends.
async fn lead_until_killed(url: &str, lease: Duration, payload: &str) -> Result<()> {
    struct Used(u64);
    impl Drop for Used {
        fn drop(&mut self) {
            println!("dropped {}", self.0);
        }
    }
    let client = builder().connect(url).await?;
    let candidate = candidate(&client, payload, lease);
    let work = async |term: &Term| {
        println!("leads {}", term.token());
        let mut used = Used(0);
        loop {
            // The time is read before the guard, as in `use_until_told`.
            let now = monotonic_ns();
            if !term.is_held() {
                std::future::pending::<()>().await;
            }
            used.0 = now;
            println!("works");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    candidate
        .lead_until(std::future::pending::<()>(), work)
        .await
}

async fn ask_once(url: &str, lease: Duration) -> Result<()> {
    let limit = Duration::from_secs(600);
    let client = Client::builder().reply_timeout(limit).connect(url).await?;
    match client.lock(NAME).fixed_lease(lease).try_acquire().await {
        Ok(guard) => println!("outcome {guard:?}"),
        Err(error) => println!("outcome {:?}: {error}", error.kind()),
    }
    // This releases a grant that the client does not know of.
    client.close().await;
    println!("closed");
    Ok(())
}

/// Prints `taken` when no file can be opened any more, then `refused` with the error of an acquire,
/// and `over` when the process has recovered and its hold has survived.
async fn take_all_files(url: &str) {
    let client = builder().lease(HOUR).connect(url).await.unwrap();
    let guard = client.lock(NAME).acquire().await.unwrap();
    // From now on, the process may have only this number of files open at a time.
    let limit = ["--pid", &std::process::id().to_string(), "--nofile=64:"].map(str::to_owned);
    let limited = Command::new("prlimit").args(limit).status().unwrap();
    assert!(limited.success());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let taker = std::thread::spawn(move || take_files_until(&stopped));
    let lock = client.lock("another");
    let error = loop {
        // Either call may find that the connection has ended. A release that fails continues in the
        // background.
        let used = match lock.try_acquire().await {
            Ok(Some(guard)) => guard.release().await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match used {
            Err(error) if error.to_string().contains("os error 24") => break error,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    println!("refused {:?} {error}", error.kind());
    stop.store(true, Ordering::SeqCst);
    taker.join().unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    guard.extend(HOUR * 2).await.unwrap();
    guard.release().await.unwrap();
    println!("over");
}

/// Prints `taken` when no file descriptor is free. Until `stop`, this also takes descriptors that
/// are closed later.
fn take_files_until(stop: &AtomicBool) {
    let (mut taken, mut told) = (Vec::new(), false);
    while !stop.load(Ordering::SeqCst) {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(_) if !std::mem::replace(&mut told, true) => println!("taken"),
            Err(_) => std::thread::yield_now(),
        }
    }
}
