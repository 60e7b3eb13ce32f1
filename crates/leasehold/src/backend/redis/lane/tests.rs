use std::thread;
use std::time::Duration;

use leasehold_testkit::{Cluster, RedisServer};

use super::*;
use crate::backend::redis::queue::{MAX_BYTES, MAX_OPERATIONS};
use crate::backend::redis::script::{Form, Script};
use crate::backend::redis::{Endpoint, Redis};
use crate::backend::step::Value;
use crate::clock::Clock;
use crate::primitives::lock::steps;

fn operation(name: &str, hold: &str, releases: bool) -> Operation {
    // The lease is far longer than any hold here lasts: a hold that expired would look like a hold
    // whose release ran before its acquire.
    let parts = [name, hold, if releases { "channel" } else { "60000" }];
    let step = if releases {
        &steps::RELEASE
    } else {
        &steps::ACQUIRE
    };
    Operation::new(step, parts)
}

async fn connect(server: &RedisServer) -> Redis {
    connect_to(server.url()).await
}

async fn connect_to(url: String) -> Redis {
    let endpoint = Endpoint {
        url,
        label: String::new(),
        credentials: None,
        credentials_every: Duration::from_secs(10),
        addresses: crate::address_map::AddressMap::default(),
        connect_timeout: Duration::from_secs(10),
        // The timeout is long, so that no connection is lost on a busy machine: the tests are about
        // order.
        reply_timeout: Duration::from_secs(60),
        peers: crate::config::Peers::All,
        declare_keys: false,
        failover_guard: None,
        #[cfg(feature = "tls")]
        tls: crate::tls::TlsSettings::default(),
    };
    let connecting = Redis::connect(endpoint, &steps::ALL, Clock::Boot);
    connecting.await.expect("connects")
}

/// Submits each release before its acquire is answered, while `threads` threads run `disturb` again
/// and again. Checks that no release overtakes its acquire.
fn nothing_is_overtaken(url: String, threads: usize, disturb: impl Fn() + Sync) {
    let overtaken = overtaken(url, threads, disturb, in_order);
    assert_eq!(overtaken, 0, "releases that came before their acquires");
}

/// Counts the operations that ran before an operation that was submitted earlier.
fn overtaken<W: Future<Output = usize> + Send + 'static>(
    url: String,
    threads: usize,
    disturb: impl Fn() + Sync,
    work: fn(Arc<Redis>, String) -> W,
) -> usize {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let redis = Arc::new(runtime.block_on(connect_to(url)));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    disturb();
                }
            });
        }
        let tasks: Vec<_> = (0..6)
            .map(|task| runtime.spawn(work(Arc::clone(&redis), format!("{{order}} {task}"))))
            .collect();
        let overtaken = tasks
            .into_iter()
            // A task that panics is counted. A panic here would leave the other threads running,
            // and the scope would wait for them forever.
            .map(|task| runtime.block_on(task).unwrap_or(1))
            .sum();
        over.store(true, Ordering::Relaxed);
        overtaken
    })
}

/// Threads that only spin take processor time away from the client.
#[test]
fn what_was_submitted_first_runs_first() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    nothing_is_overtaken(server.url(), 12, std::hint::spin_loop);
}

/// Several calls are on their way when the server forgets the script.
#[test]
fn what_goes_again_keeps_its_order() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    nothing_is_overtaken(server.url(), 1, || {
        server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
    });
}

/// Calls are on their way to a node whose slots move to another node. All names have one tag.
#[test]
fn release_is_not_overtaken_by_an_acquire_that_was_given_up() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of("{order}");
    let disturb = || {
        cluster.migrate(slot, 1 - cluster.owner(slot));
        thread::sleep(Duration::from_millis(50));
    };
    let left_held = overtaken(cluster.url(), 1, disturb, given_up);
    assert_eq!(
        left_held, 0,
        "locks that an acquire took behind its release"
    );
}

/// Like the test above, but all operations are waited for. Two of them may swap: the old node
/// refuses the first, and the second is sent to the new node before the client knows of the
/// refusal.
#[test]
fn what_follows_its_slot_keeps_its_order_as_a_rule() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of("{order}");
    let disturb = || {
        cluster.migrate(slot, 1 - cluster.owner(slot));
        thread::sleep(Duration::from_millis(50));
    };
    let overtaken = overtaken(cluster.url(), 1, disturb, in_order);
    assert!(
        overtaken <= 2,
        "{overtaken} releases came before their acquires"
    );
}

/// A waiter for an operation may stop polling it, as a loop around `select!` does.
#[test]
fn what_nobody_polls_keeps_no_reply_from_others() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let redis = connect(&server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        // This operation is submitted outside the runtime, so a task that has not begun yet will
        // send it.
        let other = thread::scope(|scope| {
            let submit = || redis.submit(operation("x", "theirs", false));
            scope.spawn(submit).join().expect("it is queued")
        });
        let unpolled = redis.submit(operation("y", "ours", false));
        let reply = tokio::time::timeout(Duration::from_secs(10), other).await;
        assert!(matches!(reply, Ok(Ok(Value::Nil))), "{reply:?}");
        assert!(matches!(unpolled.await, Ok(Value::Nil)));
    });
}

#[test]
fn what_nobody_polls_keeps_nothing_from_going_again() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let redis = connect(&server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
        let unpolled = redis.submit(operation("x", "ours", false));
        let release = redis.submit(operation("x", "ours", true));
        let reply = tokio::time::timeout(Duration::from_secs(10), release).await;
        assert!(matches!(reply, Ok(Ok(Value::Int(1)))), "{reply:?}");
        assert!(matches!(unpolled.await, Ok(Value::Nil)));
    });
}

/// Connects, and submits one operation whose call is carried by a future that is not polled.
async fn beside_an_unpolled_call(server: &RedisServer) -> (Redis, QueuedReply) {
    let redis = connect(server).await;
    let first = redis.submit(operation("first", "ours", false)).await;
    assert!(first.is_ok(), "the connection stands: {first:?}");
    let unpolled = redis.submit(operation("unpolled", "ours", false));
    (redis, unpolled)
}

async fn all_answered(replies: Vec<QueuedReply>) {
    let replies = futures_util::future::join_all(replies);
    let replies = tokio::time::timeout(Duration::from_secs(20), replies).await;
    let replies = replies.expect("each is answered");
    let granted = replies
        .iter()
        .filter(|reply| matches!(reply, Ok(Value::Nil)));
    assert_eq!(granted.count(), replies.len());
}

#[tokio::test]
async fn unpolled_call_does_not_block_excess_operations() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let (redis, unpolled) = beside_an_unpolled_call(&server).await;
    let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
    all_answered((0..4 * MAX_OPERATIONS).map(submit).collect()).await;
    assert!(matches!(unpolled.await, Ok(Value::Nil)));
}

#[tokio::test]
async fn unpolled_call_does_not_block_large_operations() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let (redis, unpolled) = beside_an_unpolled_call(&server).await;
    // Two names of this length are too long for one call.
    let long = "x".repeat(MAX_BYTES / 2);
    let submit = |n: usize| redis.submit(operation(&format!("{long}{n}"), "ours", false));
    all_answered((0..8).map(submit).collect()).await;
    assert!(matches!(unpolled.await, Ok(Value::Nil)));
}

#[tokio::test]
async fn unpolled_call_does_not_block_isolated_operations() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let (redis, unpolled) = beside_an_unpolled_call(&server).await;
    // These two names among the others count as refused. Each of them ends one call and begins
    // another.
    unpolled.lane.remember_refused(b"x3");
    unpolled.lane.remember_refused(b"x5");
    let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
    all_answered((0..8).map(submit).collect()).await;
    assert!(matches!(unpolled.await, Ok(Value::Nil)));
}

/// The server is paused, so no reply frees a call.
#[tokio::test]
async fn excess_operations_do_not_wait_for_replies() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let redis = connect(&server).await;
    let first = redis.submit(operation("first", "ours", false)).await;
    assert!(first.is_ok(), "the connection stands: {first:?}");
    server.pause().expect("it stops");
    let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
    let replies: Vec<_> = (0..3 * MAX_OPERATIONS).map(submit).collect();
    let lane = Arc::clone(&replies[0].lane);
    let departures = async {
        while lane.state.lock().queue.calls() < MAX_CALLS {
            tokio::task::yield_now().await;
        }
    };
    let departures = tokio::time::timeout(Duration::from_secs(20), departures);
    departures.await.expect("nothing holds them back");
    // One call with a single operation, and two full calls.
    assert_eq!(lane.state.lock().queue.len(), MAX_OPERATIONS - 1);
    server.resume().expect("it goes on");
    all_answered(replies).await;
}

#[tokio::test]
async fn abandoned_acquire_is_not_resent() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let redis = connect(&server).await;
    let first = redis.submit(operation("first", "ours", false)).await;
    assert!(first.is_ok(), "the connection stands: {first:?}");
    server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
    // The acquire has been sent when it is dropped. The server refuses it because the script is
    // missing.
    drop(redis.submit(operation("given up", "ours", false)));
    let kept = redis.submit(operation("kept", "ours", false)).await;
    assert!(matches!(kept, Ok(Value::Nil)), "{kept:?}");
    let keys = server.keys();
    assert!(keys.iter().all(|key| key != "given up"), "{keys:?}");
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_goes_again() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let redis = connect(&server).await;
    let held = redis.submit(operation("x", "ours", false)).await;
    assert!(matches!(held, Ok(Value::Nil)), "{held:?}");
    server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
    // The server has forgotten the script and refuses this release. If it were not sent again, the
    // lock would stay held for its lease.
    drop(redis.submit(operation("x", "ours", true)));
    let behind = redis.submit(operation("x", "next", false)).await;
    assert!(matches!(behind, Ok(Value::Nil)), "released: {behind:?}");
}

/// The refused operation is in the same call as the others.
#[tokio::test]
async fn refused_call_is_resent_without_abandoned_operations() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let redis = connect(&server).await;
    let first = redis.submit(operation("first", "ours", false)).await;
    assert!(first.is_ok(), "the connection stands: {first:?}");
    let rules = ["ACL", "SETUSER", "default", "resetkeys", "~ours:*"];
    server.command(&rules).expect("it runs");
    // This operation is sent at once and alone. Only the three after it gather in the queue and
    // share the call that is refused.
    let carried = redis.submit(operation("ours:first", "ours", false));
    let given_up = redis.submit(operation("ours:given up", "ours", false));
    let denied = redis.submit(operation("theirs", "ours", false));
    let kept = redis.submit(operation("ours:kept", "ours", false));
    let lane = Arc::clone(&carried.lane);
    while !lane.state.lock().queue.is_empty() {
        tokio::task::yield_now().await;
    }
    // The operation is on its way, and not answered yet.
    drop(given_up);
    assert!(carried.await.is_ok());
    assert!(denied.await.is_err());
    let kept = kept.await;
    assert!(matches!(kept, Ok(Value::Nil)), "{kept:?}");
    let keys = server.keys();
    assert!(keys.contains(&"ours:kept".into()), "{keys:?}");
    assert!(keys.iter().all(|key| !key.contains("given")), "{keys:?}");
}

async fn in_order(redis: Arc<Redis>, name: String) -> usize {
    let mut overtaken = 0;
    for round in 0..300 {
        let mut replies = Vec::new();
        for number in 0..8 {
            let hold = format!("{round} {number}");
            // Each acquire and its release use their own lock: a lock that stays held would refuse
            // all later acquires.
            let name = format!("{name} {hold}");
            let acquire = redis.submit(operation(&name, &hold, false));
            let release = redis.submit(operation(&name, &hold, true));
            replies.push((acquire, release));
            // Some operations are on their way, or have been returned, when the next ones arrive.
            if fastrand::u8(..4) == 0 {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
        for (acquire, release) in replies {
            let (acquired, released) = (acquire.await, release.await);
            let right = matches!(acquired, Ok(Value::Nil)) && released.is_ok_and(was_ours);
            overtaken += usize::from(!right);
        }
    }
    overtaken
}

/// Like `in_order`, but each acquire is dropped before its release is sent, as when a wait is
/// dropped.
async fn given_up(redis: Arc<Redis>, name: String) -> usize {
    let mut left_held = 0;
    for round in 0..300 {
        let mut releases = Vec::new();
        for number in 0..8 {
            let hold = format!("{round} {number}");
            let acquire = redis.submit(operation(&name, &hold, false));
            // Some acquires are on their way, or have been returned, when they are given up.
            if fastrand::u8(..4) == 0 {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            drop(acquire);
            releases.push(redis.submit(operation(&name, &hold, true)));
        }
        for release in releases {
            left_held += usize::from(release.await.is_err());
        }
        let last = format!("{round} last");
        let is_free = redis.submit(operation(&name, &last, false)).await;
        left_held += usize::from(!matches!(is_free, Ok(Value::Nil)));
        let released = redis.submit(operation(&name, &last, true)).await;
        left_held += usize::from(released.is_err());
    }
    left_held
}

fn was_ours(reply: Value) -> bool {
    reply == Value::Int(1)
}

/// Counts how often the server was asked to run this script.
fn runs(server: &RedisServer, sha: &str) -> usize {
    let log = server.command(&["SLOWLOG", "GET", "-1"]).expect("it runs");
    let log = log.as_array().expect("a list").iter();
    let commands = log.filter_map(|entry| entry.as_array()?.get(3)?.as_array());
    commands
        .filter(|command| command.get(1).and_then(leasehold_testkit::Reply::as_text) == Some(sha))
        .count()
}

#[tokio::test]
async fn what_travels_alone_has_a_script_until_the_server_forgets_it() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let redis = connect(&server).await;
    let all = ["CONFIG", "SET", "slowlog-log-slower-than", "0"];
    server.command(&all).expect("it runs");
    let script = Script::of(&steps::ALL, Form::Server);
    let own = [&steps::ACQUIRE, &steps::RELEASE].map(|step| &script.own(step).expect("it has").sha);
    let pair = async || {
        for releases in [false, true] {
            let done = redis.submit(operation("x", "ours", releases)).await;
            assert!(done.is_ok(), "{done:?}");
        }
        (
            own.map(|sha| runs(&server, sha)),
            runs(&server, &script.any.sha),
        )
    };
    assert_eq!(pair().await, ([1, 1], 0));
    server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
    // The server refuses the first operation, which is sent again with the source of the script
    // that runs any step.
    assert_eq!(pair().await, ([2, 1], 1));
    assert_eq!(pair().await, ([2, 1], 3));
}

/// A server whose user is not allowed to load scripts.
#[tokio::test]
async fn scripts_that_were_not_loaded_are_not_named() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let may_not = ["ACL", "SETUSER", "default", "-script"];
    server.command(&may_not).expect("it runs");
    let redis = connect(&server).await;
    let all = ["CONFIG", "SET", "slowlog-log-slower-than", "0"];
    server.command(&all).expect("it runs");
    let done = redis.submit(operation("x", "ours", false)).await;
    assert!(done.is_ok(), "{done:?}");
    let script = Script::of(&steps::ALL, Form::Server);
    let own = &script.own(&steps::ACQUIRE).expect("it has").sha;
    assert_eq!(runs(&server, own), 0);
}
