//! Processes that fork with a client: a child must not act for its parent.

use std::io::Read;
use std::mem::forget;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{abort, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use leasehold::inspect::Found;
use leasehold::slot::Begin;
use leasehold::{Acknowledgement, Client, Embedded, ErrorKind, Owner, Result, blocking};
use leasehold_testkit::{ForkShim, RedisServer, Replicas, fork};
use tokio::runtime::{Builder, Runtime};

use crate::support::child::{Child, job};
use crate::support::company::Company;
use crate::support::executor::block_on;
use crate::support::{HOUR, eventually};

const TEST: &str = "server::forks::a_process_that_forks";
/// The number of forks for each guard. It is large enough that another thread has a mutex locked
/// during at least one fork.
const FORKS: usize = 20;
/// The time after which a child that hangs is ended.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs this case in a process. Returns the output lines of the process and of its child.
fn said(flavor: &str, case: &str) -> Vec<String> {
    said_beside(&RedisServer::start().unwrap(), flavor, case)
}

/// Like [`said`], with an existing server.
fn said_beside(server: &RedisServer, flavor: &str, case: &str) -> Vec<String> {
    let shim = ForkShim::new().unwrap();
    let job = format!("{flavor} {case} {}", server.url());
    let lines = Child::forking(&shim, TEST, &job).finished();
    assert!(
        lines.iter().any(|line| line == "child ends"),
        "{flavor}: {lines:#?}"
    );
    lines
}

fn has(lines: &[String], wanted: &str) {
    assert!(lines.iter().any(|line| line == wanted), "{lines:#?}");
}

#[test]
fn child_that_ends_gives_back_nothing_of_its_parent() {
    for flavor in ["current", "several", "blocking"] {
        let lines = said(flavor, "ends");
        has(&lines, "another is refused");
        has(&lines, "parent extends: fine");
        has(&lines, "parent releases: fine");
    }
}

#[test]
fn every_call_in_a_child_is_misuse_and_the_parent_goes_on() {
    for flavor in ["current", "several", "blocking"] {
        let lines = said(flavor, "calls");
        let calls = lines.iter().filter_map(|line| line.strip_prefix("child "));
        let calls: Vec<_> = calls.filter(|line| *line != "ends").collect();
        assert!(calls.len() > 4, "{lines:#?}");
        for call in calls {
            assert!(call.ends_with(": misuse"), "{flavor}: {call}");
        }
        has(&lines, "parent acquires: fine");
        has(&lines, "parent releases: fine");
    }
}

#[test]
fn every_feature_of_the_parent_outlasts_a_child() {
    for flavor in ["current", "several"] {
        goes_on(&said(flavor, "company"));
    }
}

fn goes_on(lines: &[String]) {
    has(lines, "child acquires: misuse");
    has(lines, "parent goes on");
}

/// The child does not send anything on the connection for confirmations, either.
#[test]
fn every_confirmed_feature_of_the_parent_outlasts_a_child() {
    let servers = Replicas::start(1);
    for flavor in ["current", "several"] {
        goes_on(&said_beside(servers.master(), flavor, "confirmed"));
        servers.master().command(&["FLUSHALL"]).unwrap();
    }
}

#[test]
fn every_feature_of_an_embedded_keyspace_outlasts_a_child() {
    for flavor in ["current", "several"] {
        goes_on(&said(flavor, "embedded"));
    }
}

/// The child runs the tasks of its parent's client for longer than a client waits before it
/// announces itself.
#[test]
fn child_does_not_announce_its_parents_client() {
    let lines = said("current", "announces");
    has(&lines, "child announces nothing");
    has(&lines, "parent announces itself");
}

#[test]
fn child_whose_parent_has_ended_is_told_and_connects_anew() {
    for flavor in ["current", "several"] {
        has(&said(flavor, "outlives"), "child has it");
    }
}

#[test]
fn child_that_watches_a_hold_is_told_by_the_clock() {
    for flavor in ["current", "several", "blocking"] {
        let lines = said(flavor, "watches");
        assert_eq!(
            lines.iter().filter(|line| *line == "child is told").count(),
            2,
            "{flavor}: {lines:#?}"
        );
    }
}

#[test]
fn child_sends_no_request_that_its_parent_has_not_sent_yet() {
    let server = RedisServer::start().unwrap();
    let shim = ForkShim::new().unwrap();
    let job = format!("current sends {}", server.url());
    has(&Child::forking(&shim, TEST, &job).finished(), "child ends");
    assert_eq!(server.scripts(), 1);
}

#[test]
fn child_does_not_wait_for_the_threads_of_its_parents_client() {
    has(&said("blocking", "drops"), "child waited 0 times");
}

#[test]
fn child_waits_for_no_lock_that_another_thread_had_at_the_fork() {
    let lines = said("several", "contended");
    let ended = lines.iter().filter(|line| *line == "child ends");
    assert_eq!(ended.count(), 2 * FORKS, "{lines:#?}");
    has(&lines, "parent extends: fine");
}

/// The job of a process. When run as a test, this does nothing.
#[test]
fn a_process_that_forks() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    match words[..] {
        ["blocking", "ends", url] => blocking_child_ends(url),
        ["blocking", "calls", url] => blocking_child_calls(url),
        [flavor, "ends", url] => child_ends(flavor, url),
        [flavor, "calls", url] => child_calls(&runtime(flavor), url),
        [flavor, what @ ("company" | "confirmed" | "embedded"), url] => {
            company_beside_a_child(&runtime(flavor), what, url);
        }
        [flavor, "announces", url] => child_announces_nothing(&runtime(flavor), url),
        ["blocking", "watches", url] => blocking_child_watches(url),
        ["blocking", "drops", url] => blocking_child_drops(url),
        [flavor, "contended", url] => child_beside_busy_threads(&runtime(flavor), url),
        [flavor, "watches", url] => child_watches(&runtime(flavor), url),
        [_, "sends", url] => child_sends_nothing(&runtime("current"), url),
        [flavor, "outlives", url] => child_outlives(&runtime(flavor), url),
        _ => panic!("no such job: {job:?}"),
    }
}

fn runtime(flavor: &str) -> Runtime {
    match flavor {
        "current" => Builder::new_current_thread().enable_all().build().unwrap(),
        _ => Runtime::new().unwrap(),
    }
}

/// Runs `work` in a forked child. In the parent, returns when the child has ended.
fn in_child(work: impl FnOnce()) {
    // The child keeps one end open until it ends.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    if fork() {
        drop(ours);
        thread::spawn(|| {
            thread::sleep(LIMIT);
            abort();
        });
        let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
        println!("child {}", if done { "ends" } else { "panics" });
        exit(0);
    }
    drop(theirs);
    ours.read_to_end(&mut Vec::new()).unwrap();
}

fn tell<T>(call: &str, result: Result<T>) {
    let told = match result {
        Ok(_) => "fine".to_owned(),
        Err(error) if error.kind() == ErrorKind::Misuse && error.to_string().contains("fork") => {
            "misuse".to_owned()
        }
        Err(error) => format!("{:?} {error}", error.kind()),
    };
    println!("{call}: {told}");
}

/// Checks whether a client that did not exist at the fork is refused the lock.
fn another_is_refused(url: &str) {
    let refused = runtime("current").block_on(async {
        let another = Client::connect(url).await.unwrap();
        another.lock("x").try_acquire().await.unwrap().is_none()
    });
    println!("another is {}", if refused { "refused" } else { "granted" });
}

fn child_ends(flavor: &str, url: &str) {
    let runtime = runtime(flavor);
    let (client, guard) = runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        (client, guard)
    });
    let mut kept = Some((guard, client, runtime));
    in_child(|| {
        let (guard, client, runtime) = kept.take().unwrap();
        drop((guard, client));
        match flavor {
            "current" => drop(runtime),
            // When this runtime ends, it would wait for threads that only the parent has.
            _ => forget(runtime),
        }
    });
    another_is_refused(url);
    let (guard, client, runtime) = kept.unwrap();
    runtime.block_on(async {
        tell("parent extends", guard.extend(HOUR).await);
        tell("parent releases", guard.release().await);
        drop(client);
    });
}

fn child_calls(runtime: &Runtime, url: &str) {
    let (client, owner) = (
        runtime.block_on(Client::connect(url)).unwrap(),
        Owner::new(),
    );
    let lock = client.lock("x").owned_by(&owner);
    let seats = client.semaphore("seats");
    let election = client.election("election");
    let (guard, reader, permit, term) = runtime.block_on(async {
        seats.try_set_permits(2).await.unwrap();
        (
            lock.acquire().await.unwrap(),
            client.rw_lock("rw").read().await.unwrap(),
            seats.acquire().await.unwrap(),
            election.stand().await.unwrap(),
        )
    });
    let turns = client.lock("turn").once_for("today");
    let Ok(Begin::Run(turn)) = runtime.block_on(turns.try_begin()) else {
        panic!("the turn is open");
    };
    let mut kept = Some((guard, reader, permit, turn, term));
    in_child(|| {
        let (guard, reader, permit, turn, term) = kept.take().unwrap();
        let calls = async {
            tell("child acquires", client.lock("y").try_acquire().await);
            tell("child waits", client.lock("y").acquire().await);
            tell("child enters again", lock.try_acquire().await);
            tell("child looks", lock.is_locked().await);
            tell("child inspects", client.inspect("x").await);
            tell("child examines", client.examine("x").await);
            tell("child breaks", lock.force_unlock().await);
            tell("child extends", guard.extend(HOUR).await);
            tell("child releases", guard.release().await);
            tell("child reads no more", reader.release().await);
            tell("child takes a seat", seats.try_acquire().await);
            tell("child gives a seat back", permit.release().await);
            tell("child adds seats", seats.add_permits(1).await);
            tell("child stands", election.stand().await);
            tell("child stands once", election.try_stand().await);
            tell("child asks for the leader", election.leader().await);
            let seen = election.observe().next().await;
            tell("child observes", seen.expect("it is told"));
            tell("child resigns", term.resign().await);
            tell("child counts", client.count_down_latch("l").count().await);
            tell("child begins a turn", turns.try_begin().await);
            tell(
                "child asks for the last turn",
                client.lock("turn").last_turn().await,
            );
            tell("child ends a turn", turn.done().await);
            tell("child watches", client.watch("x").next().await.unwrap());
            tell(
                "child watches all",
                client.watch_all("*").next().await.unwrap(),
            );
            assert_eq!(client.close().await.holds_left, 0);
        };
        runtime.block_on(calls);
    });
    let (guard, reader, permit, turn, term) = kept.unwrap();
    another_is_refused(url);
    runtime.block_on(async {
        tell("parent acquires", client.lock("y").acquire().await);
        tell("parent releases", guard.release().await);
        reader.release().await.unwrap();
        term.resign().await.unwrap();
        permit.release().await.unwrap();
        turn.done().await.unwrap();
    });
}

/// A child begins and ends while the parent holds locks and waits for locks.
fn company_beside_a_child(runtime: &Runtime, what: &str, url: &str) {
    let builder = Client::builder().lease(Duration::from_secs(20));
    let embedded = || {
        let keyspace = Embedded::new();
        let [ours, theirs] = [(); 2].map(|()| builder.embedded(&keyspace).unwrap());
        Company::new(&ours, &theirs)
    };
    runtime.block_on(async {
        let company = match what {
            "embedded" => embedded(),
            "confirmed" => {
                let confirmed = Acknowledgement::replicas(1);
                Company::connect(&builder.clone().acknowledged_by(confirmed), url).await
            }
            _ => Company::connect(&builder, url).await,
        };
        let ours = company.ours.clone();
        let company = company.goes_through(async || {
            in_child(|| {
                let asked = ours.lock("y").try_acquire().now_or_never();
                tell("child acquires", asked.expect("at once"));
            });
        });
        company.await;
    });
    println!("parent goes on");
}

fn child_announces_nothing(runtime: &Runtime, url: &str) {
    let (client, guard) = runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        (client, guard)
    });
    in_child(|| {
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1500)).await });
    });
    let other = self::runtime("current");
    let operator = other.block_on(Client::connect(url)).unwrap();
    let is_known = async || {
        let Found::Lock(hold) = operator.inspect("x").await.unwrap().found else {
            panic!("it is held");
        };
        hold.client.is_some()
    };
    if !other.block_on(is_known()) {
        println!("child announces nothing");
    }
    thread::scope(|scope| {
        scope.spawn(|| runtime.block_on(guard.lost()));
        other.block_on(eventually("the parent announces itself", is_known));
        println!("parent announces itself");
        drop(client);
        exit(0);
    });
}

/// The parent ends, and the child continues with its copy of the client.
fn child_outlives(runtime: &Runtime, url: &str) {
    let lease = Duration::from_secs(2);
    let (client, guard) = runtime.block_on(async {
        let client = Client::builder().lease(lease).connect(url).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        (client, guard)
    });
    if !fork() {
        exit(0);
    }
    while guard.is_held() {
        thread::sleep(Duration::from_millis(10));
    }
    drop((guard, client));
    let own = self::runtime("current");
    own.block_on(async {
        let client = Client::connect(url).await.unwrap();
        drop(client.lock("x").acquire().await.unwrap());
    });
    println!("child has it");
    println!("child ends");
    exit(0);
}

fn child_watches(runtime: &Runtime, url: &str) {
    let builder = Client::builder().lease(Duration::from_secs(2));
    let (client, guards) = runtime.block_on(async {
        let client = builder.connect(url).await.unwrap();
        let guards = [client.lock("x"), client.lock("y")]
            .map(|lock| async move { lock.acquire().await.unwrap() });
        (client, futures_util::future::join_all(guards).await)
    });
    in_child(|| {
        block_on(guards[0].lost());
        println!("child is told");
        self::runtime("current").block_on(guards[1].lost());
        println!("child is told");
    });
    drop((client, guards));
}

fn blocking_child_watches(url: &str) {
    let client = blocking::Client::connect(url).unwrap();
    let guard = client.lock("x").acquire().unwrap();
    let permits = client.expirable_semaphore("seats");
    permits.try_set_permits(1).unwrap();
    let permit = permits.acquire().unwrap();
    let short = Duration::from_millis(50);
    in_child(|| {
        assert_eq!(guard.lost_within(short), None);
        println!("child is told");
        assert_eq!(permit.lost_within(short), None);
        println!("child is told");
    });
}

/// The parent forks with a request that its runtime has not written yet.
fn child_sends_nothing(runtime: &Runtime, url: &str) {
    let client = runtime.block_on(Client::connect(url)).unwrap();
    let lock = client.lock("x");
    let mut acquire = Box::pin(lock.acquire());
    let first = runtime.block_on(async { (&mut acquire).now_or_never() });
    assert!(first.is_none());
    in_child(|| {
        // Run the tasks that existed in the runtime at the fork.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
    });
    forget(runtime.block_on(acquire).unwrap());
    exit(0);
}

/// Drops guards in children while other threads of the parent check the holds all the time. One
/// hold has two guards, the other hold has one.
fn child_beside_busy_threads(runtime: &Runtime, url: &str) {
    let owner = Owner::new();
    let (client, shared, other, alone) = runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let lock = client.lock("x").owned_by(&owner);
        let [one, other] = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
        let alone = client.lock("y").acquire().await.unwrap();
        (client, Some(one), other, Some(alone))
    });
    let lost = alone.as_ref().unwrap().lost();
    let stop = AtomicBool::new(false);
    let mut kept = [shared, alone];
    thread::scope(|scope| {
        let _looks = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(other.is_held());
            }
        });
        let _waits = scope.spawn(|| {
            let mut lost = Box::pin(lost);
            while !stop.load(Ordering::Relaxed) {
                assert!((&mut lost).now_or_never().is_none());
            }
        });
        for _ in 0..FORKS {
            for guard in &mut kept {
                let began = Instant::now();
                in_child(|| drop(guard.take()));
                if began.elapsed() >= LIMIT {
                    println!("a child hangs");
                    exit(1);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for guard in kept.into_iter().flatten() {
        runtime.block_on(async { tell("parent extends", guard.extend(HOUR).await) });
    }
    drop(client);
}

/// Counts how often this thread has blocked.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn blocking_child_drops(url: &str) {
    let client = blocking::Client::connect(url).unwrap();
    let mut kept = Some((client.lock("x").acquire().unwrap(), client));
    in_child(|| {
        let before = waits();
        drop(kept.take());
        println!("child waited {} times", waits() - before);
    });
}

fn blocking_child_ends(url: &str) {
    let client = blocking::Client::connect(url).unwrap();
    let guard = client.lock("x").acquire().unwrap();
    let mut kept = Some((client, guard));
    in_child(|| drop(kept.take()));
    another_is_refused(url);
    let (client, guard) = kept.unwrap();
    tell("parent extends", guard.extend(HOUR));
    tell("parent releases", guard.release());
    drop(client);
}

fn blocking_child_calls(url: &str) {
    let client = blocking::Client::connect(url).unwrap();
    let lock = client.lock("x");
    let mut kept = Some(lock.acquire().unwrap());
    let second = Duration::from_secs(1);
    in_child(|| {
        let guard = kept.take().unwrap();
        tell("child acquires", client.lock("y").try_acquire());
        tell("child waits", client.lock("y").try_acquire_for(second));
        tell("child looks", lock.is_locked());
        tell("child extends", guard.extend(HOUR));
        tell("child releases", guard.release());
        tell("child inspects", client.inspect("x"));
        client.close();
    });
    another_is_refused(url);
    tell("parent acquires", client.lock("y").acquire());
    tell("parent releases", kept.unwrap().release());
}
