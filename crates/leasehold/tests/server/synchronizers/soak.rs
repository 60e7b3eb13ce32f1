//! Several processes on one real server for some time. Their connections are cut at random.
//! Processes whose permits have leases are killed. So are Java processes that use the same permits
//! with both Redisson versions. A run takes some seconds by default; `LEASEHOLD_SOAK_SECONDS=300`
//! makes it five minutes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::history::limits::{Use, check};
use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, ExpirablePermit};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::redisson::RedissonThread;
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
use serde_json::json;

use crate::support::child::{Child, job};
use crate::support::eventually;

const TEST: &str = "server::synchronizers::soak::a_process_of_its_own";
const CAPACITY: u32 = 5;
const LEASE: Duration = Duration::from_millis(1500);

fn duration() -> Duration {
    let seconds = std::env::var("LEASEHOLD_SOAK_SECONDS");
    Duration::from_secs(seconds.map_or(4, |seconds| seconds.parse().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_stay_within_limit_through_soak() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let direct = Client::connect(&server.url()).await.unwrap();
    let (plain, leases) = (
        direct.semaphore("plain"),
        direct.expirable_semaphore("leases"),
    );
    plain.try_set_permits(CAPACITY).await.unwrap();
    leases.try_set_permits(CAPACITY).await.unwrap();
    let run = duration();
    let start =
        |kind: &str| Child::start(TEST, &format!("{kind} {} {}", proxy.url(), run.as_millis()));
    let steady: Vec<_> = (0..3).map(|_| start("plain")).collect();
    let mut mortal: Vec<_> = (0..3).map(|_| start("leases")).collect();
    let (begun, mut uses, mut killed) = (Instant::now(), Vec::new(), 0);
    let java: Vec<_> = RedissonVersion::ALL
        .into_iter()
        .map(|version| {
            let url = server.url();
            thread::spawn(move || java_uses(version, &url, begun, run))
        })
        .collect();
    // Even in a short run, at least one process is killed.
    while begun.elapsed() < run || killed == 0 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..400))).await;
        match fastrand::u8(0..4) {
            0 => drop(proxy.cut()),
            1 => drop(proxy.cut_calls()),
            2 => drop(proxy.cut_messages()),
            _ => {
                let at = fastrand::usize(..mortal.len());
                let mut child = std::mem::replace(&mut mortal[at], start("leases"));
                child.kill();
                uses.extend(uses_of(&child.lines(), monotonic_ns()));
                killed += 1;
            }
        }
    }
    let mut deaths = Vec::new();
    for java in java {
        let (theirs, killed) = java.join().unwrap();
        deaths.push((theirs.len(), killed));
        uses.extend(theirs);
    }
    for mut child in mortal {
        child.kill();
        uses.extend(uses_of(&child.lines(), monotonic_ns()));
    }
    assert!(killed > 0 && proxy.connections() > 10, "nothing went wrong");
    let report = check(&uses, CAPACITY.into());
    println!("leases: {report:?}, {killed} processes killed; Java's uses and deaths: {deaths:?}");
    assert!(
        deaths.iter().all(|(uses, killed)| *uses > 0 && *killed > 0),
        "{deaths:?}"
    );
    report.judge().unwrap();
    eventually(
        "all come back one lease after the last was killed",
        async || leases.available_permits().await.unwrap() == i64::from(CAPACITY),
    )
    .await;
    let mut uses = Vec::new();
    for child in steady {
        uses.extend(uses_of(&child.finished(), u64::MAX));
    }
    let report = check(&uses, CAPACITY.into());
    println!("plain: {report:?}");
    report.judge().unwrap();
    eventually("all have been given back", async || {
        plain.available_permits().await.unwrap() == i64::from(CAPACITY)
    })
    .await;
}

/// Starts Java processes, one after the other, that use permits and are killed. Returns their uses,
/// and the number of processes.
fn java_uses(
    version: RedissonVersion,
    url: &str,
    begun: Instant,
    run: Duration,
) -> (Vec<Use>, usize) {
    let (mut uses, mut killed) = (Vec::new(), 0);
    // Even in a short run, at least one process is killed, although a JVM takes time to start.
    while killed == 0 || begun.elapsed() < run {
        let redisson = Redisson::start(version, url);
        redisson.client("c", None).unwrap();
        let threads = ["a", "b"].map(|name| redisson.thread("c", name));
        let lives = Duration::from_millis(fastrand::u64(1000..5000));
        let used = AtomicBool::new(false);
        thread::scope(|scope| {
            let used = &used;
            let working = threads.map(|thread| scope.spawn(move || java_thread(&thread, used)));
            thread::sleep(lives);
            // On a slow machine, the process gets its first permit later.
            while !used.load(Ordering::SeqCst) && working.iter().any(|one| !one.is_finished()) {
                thread::sleep(Duration::from_millis(5));
            }
            redisson.kill();
            for thread in working {
                uses.extend(thread.join().unwrap());
            }
        });
        killed += 1;
    }
    (uses, killed)
}

/// Acquires and releases permits until its process is killed. Sets `used` after the first acquire.
fn java_thread(thread: &RedissonThread, used: &AtomicBool) -> Vec<Use> {
    let lease_ns = u64::try_from(LEASE.as_nanos()).unwrap();
    let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
    let ask = json!({"name": "leases", "wait_ms": 100, "lease_ms": lease_ms});
    let mut uses = Vec::new();
    loop {
        let acquire = thread.start_call::<Option<String>>("expirable_try", ask.clone());
        let Ok(acquired) = acquire.wait(LEASE * 20) else {
            return uses;
        };
        let Some(permit) = acquired.value else {
            continue;
        };
        let deadline = acquired.from_ns + lease_ns;
        thread::sleep(Duration::from_millis(fastrand::u64(..40)));
        let back = json!({"name": "leases", "permit": permit});
        // The process may die before it reports the time of its call.
        let until = monotonic_ns();
        let released = thread.start_call::<bool>("expirable_release", back);
        let released = released.wait(LEASE * 20);
        uses.push(Use::new(
            1,
            acquired.from_ns,
            acquired.until_ns,
            until.min(deadline),
        ));
        used.store(true, Ordering::SeqCst);
        if released.is_err() {
            return uses;
        }
    }
}

/// Parses the uses of permits that a child has printed. Permits that the child had at its end were
/// in use until `end`.
fn uses_of(lines: &[String], end: u64) -> Vec<Use> {
    let mut begun = HashMap::new();
    let mut uses = Vec::new();
    for line in lines {
        let mut words = line.split(' ');
        let word = words.next();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        match (word, &numbers[..]) {
            (Some("in"), [number, permits, asked, from, deadline]) => {
                begun.insert(*number, (*permits, *asked, *from, *deadline));
            }
            (Some("out"), [number, until]) => {
                if let Some((permits, asked, from, _)) = begun.remove(number) {
                    uses.push(Use::new(permits.try_into().unwrap(), asked, from, *until));
                }
            }
            _ => {}
        }
    }
    uses.extend(begun.into_values().map(|(permits, asked, from, deadline)| {
        Use::new(permits.try_into().unwrap(), asked, from, deadline.min(end))
    }));
    uses
}

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_process_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let [kind, url, run] = &job[..] else {
        panic!("no such job: {job:?}");
    };
    let run = Duration::from_millis(run.parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(use_permits(kind == "plain", url, run));
}

async fn use_permits(plain: bool, url: &str, run: Duration) {
    let builder = Client::builder().lease(LEASE).reply_timeout(LEASE / 3);
    let client = loop {
        // The proxy may just have cut the connection.
        match builder.connect(url).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4_u64 {
        let client = client.clone();
        tasks.spawn(async move {
            let mut number = task << 32;
            while begun.elapsed() < run {
                number += 1;
                let permits = fastrand::u32(1..=3);
                let wait = Duration::from_millis(fastrand::u64(1..300));
                if plain {
                    once(&client, number, permits, wait).await;
                } else {
                    once_with_a_lease(&client, number, permits, wait).await;
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    client.close().await;
}

async fn once(client: &Client, number: u64, permits: u32, wait: Duration) {
    let asked = monotonic_ns();
    let acquired = client
        .semaphore("plain")
        .try_acquire_many_for(permits, wait)
        .await;
    let Ok(Some(permit)) = acquired else {
        return;
    };
    let from = monotonic_ns();
    println!("in {number} {permits} {asked} {from} {}", u64::MAX);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
    println!("out {number} {}", monotonic_ns());
    if fastrand::bool() {
        drop(permit.release().await);
    }
}

async fn once_with_a_lease(client: &Client, number: u64, permits: u32, wait: Duration) {
    let asked = monotonic_ns();
    let semaphore = client.expirable_semaphore("leases");
    let acquired = semaphore.try_acquire_many_for(permits, wait).await;
    let Ok(Some(permit)) = acquired else {
        return;
    };
    let from = monotonic_ns();
    println!("in {number} {permits} {asked} {from} {}", deadline(&permit));
    let work = tokio::time::sleep(Duration::from_millis(fastrand::u64(..40)));
    drop(permit.protect(work).await);
    let until = deadline(&permit).min(monotonic_ns());
    println!("out {number} {until}");
    if fastrand::bool() {
        drop(permit.release().await);
    }
}

/// Returns the end of `permit`. The checker's clock is read first: if the process stalls between
/// the two readings, the result is too early, and no use seems longer than it was.
fn deadline(permit: &ExpirablePermit) -> u64 {
    let (now_ns, now) = (monotonic_ns(), tokio::time::Instant::now());
    let until = permit.valid_until();
    let left = until.saturating_duration_since(now);
    let over = now.saturating_duration_since(until);
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap();
    now_ns + ns(left) - ns(over)
}
