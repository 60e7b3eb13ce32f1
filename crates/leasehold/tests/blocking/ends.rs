//! Threads and programs that end while they hold something through the blocking facade.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{Client, ExpirablePermit, LockGuard, MultiLock, SemaphorePermit};
use leasehold_testkit::{RedisServer, eventually};

use crate::support::HOUR;
use crate::support::child::{Child, job};

const SOON: Duration = Duration::from_secs(20);

fn connect(url: &str) -> Client {
    Client::connect_with(&leasehold::Client::builder().lease(HOUR), url).unwrap()
}

/// A guard that a thread keeps until it ends.
enum Kept {
    Dropped(#[allow(dead_code, reason = "it is dropped")] Box<dyn std::any::Any>),
    /// A guard that the destructor of this value releases.
    Lock(Option<LockGuard>),
    Permit(Option<SemaphorePermit>),
    Expirable(Option<ExpirablePermit>),
}

impl Drop for Kept {
    fn drop(&mut self) {
        match self {
            Self::Dropped(_) => {}
            Self::Lock(guard) => guard.take().unwrap().release().unwrap(),
            Self::Permit(permit) => permit.take().unwrap().release().unwrap(),
            Self::Expirable(permit) => permit.take().unwrap().release().unwrap(),
        }
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

fn keep(kept: Kept) {
    KEPT.with_borrow_mut(|all| all.push(kept));
}

fn keep_some_of_each(client: &Client) {
    // The thread-local is initialised before any of tokio's, so it is dropped after them.
    KEPT.with_borrow_mut(|all| all.clear());
    let dropped = |guard: Box<dyn std::any::Any>| keep(Kept::Dropped(guard));
    dropped(Box::new(client.lock("a").acquire().unwrap()));
    dropped(Box::new(client.rw_lock("b").read().unwrap()));
    dropped(Box::new(client.fair_lock("c").acquire().unwrap()));
    let both = MultiLock::new([client.lock("d"), client.lock("e")]).unwrap();
    dropped(Box::new(both.acquire().unwrap()));
    dropped(Box::new(client.semaphore("s").acquire().unwrap()));
    dropped(Box::new(client.expirable_semaphore("p").acquire().unwrap()));
    keep(Kept::Lock(Some(client.lock("f").acquire().unwrap())));
    keep(Kept::Permit(Some(client.semaphore("s").acquire().unwrap())));
    let permit = client.expirable_semaphore("p").acquire().unwrap();
    keep(Kept::Expirable(Some(permit)));
}

/// A program that ends. It runs in a process of its own, because a panic in a destructor would
/// abort it. When run as a test, this does nothing.
#[test]
fn a_program_that_ends() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    match words[..] {
        ["thread-local", url] => {
            let url = url.to_owned();
            // The last clone of the client is dropped with the thread, too.
            let ends = thread::spawn(move || {
                KEPT.with_borrow_mut(Vec::clear);
                keep_some_of_each(&connect(&url));
            });
            ends.join().unwrap();
            println!("ended");
        }
        ["early", url] => {
            let failed = || -> Result<(), &str> {
                let client = connect(url);
                let _guard = client.lock("a").acquire().unwrap();
                let _permit = client.semaphore("s").acquire().unwrap();
                Err("the work failed")
            };
            println!("ended {:?}", failed());
        }
        ["task", url] => {
            let client = connect(url);
            let owner = leasehold::Owner::new();
            // With this number of guards, the client's thread is still busy with them when the
            // client is dropped.
            let guards: Vec<_> = (0..300)
                .map(|number| {
                    let lock = client.lock(format!("a{number}"));
                    lock.owned_by(&owner).acquire().unwrap()
                })
                .collect();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            // A drop in an async task does not wait.
            let task = async move { drop(guards) };
            runtime.block_on(runtime.spawn(task)).unwrap();
            let start = Instant::now();
            drop(client);
            // `SHUTDOWN_TIMEOUT` in `blocking/runtime.rs`: after that time the remaining releases
            // may be lost.
            let in_time = start.elapsed() < Duration::from_millis(300);
            println!("ended {}", if in_time { "in time" } else { "late" });
        }
        _ => panic!("no such job: {job:?}"),
    }
    std::process::exit(0);
}

/// Runs a program that ends, and waits until everything is released. Returns `false`, without that
/// wait, if the program says that it had no time.
fn run(job: &str) -> bool {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    client.semaphore("s").try_set_permits(2).unwrap();
    client.expirable_semaphore("p").set_permits(2).unwrap();
    let child = Child::start(
        "ends::a_program_that_ends",
        &format!("{job} {}", server.url()),
    );
    let lines = child.finished();
    assert!(
        lines.iter().any(|line| line.starts_with("ended")),
        "{lines:?}"
    );
    if lines.iter().any(|line| line == "ended late") {
        return false;
    }
    eventually("all is given back", SOON, || {
        let is_lock = |key: &String| key.starts_with(['a', 'b', 'c', 'd', 'e', 'f']);
        !server.keys().iter().any(is_lock)
            && client.semaphore("s").available_permits().unwrap() == 2
            && client.expirable_semaphore("p").available_permits().unwrap() == 2
    });
    true
}

#[test]
fn thread_exit_releases_a_thread_local_guard() {
    assert!(run("thread-local"));
}

#[test]
fn a_program_that_returns_early_leaves_nothing() {
    assert!(run("early"));
}

#[test]
fn task_dropping_a_guard_leaves_nothing() {
    // On a busy machine the drop of the last clone sometimes times out, but not always.
    let in_time = (0..20).filter(|_| run("task"));
    assert_eq!(in_time.take(3).count(), 3);
}

#[test]
fn closed_blocking_client_stops_renewing_guards() {
    let client = Client::embedded();
    std::mem::forget(client.lock("a").acquire().unwrap());
    let guard = client.lock("b").acquire().unwrap();
    assert_eq!(client.close().holds_left, 2);
    assert_eq!(client.activity().renewed_holds, 0);
    guard.release().unwrap();
    assert_eq!(client.close().holds_left, 1);
}

#[test]
fn async_clients_report_the_ended_runtime() {
    let server = RedisServer::start().unwrap();
    let client = connect(&server.url());
    let orphan = client.as_async().clone();
    drop(client);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = orphan.lock("a").outage_timeout(HOUR);
    let error = runtime.block_on(lock.acquire()).unwrap_err();
    assert!(error.to_string().contains("runtime has ended"), "{error}");
}
