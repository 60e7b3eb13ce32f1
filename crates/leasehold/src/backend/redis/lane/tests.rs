use std::thread;
use std::time::Duration;

use leasehold_testkit::RedisServer;

use super::*;
use crate::backend::redis::queue::{MAX_BYTES, MAX_OPERATIONS};
use crate::backend::redis::{Endpoint, Redis};
use crate::backend::step::Value;
use crate::clock::Clock;
use crate::primitives::lock::steps;

fn operation(name: &str, hold: &str, releases: bool) -> Operation {
    // A lease far longer than a hold lasts here: a hold that ended by itself would look like one
    // whose release came before its acquire.
    let parts = [name, hold, if releases { "channel" } else { "60000" }];
    let parts = parts.map(|part| part.as_bytes().to_vec()).to_vec();
    let step = if releases {
        &steps::RELEASE
    } else {
        &steps::ACQUIRE
    };
    Operation::new(step, parts)
}

async fn connect(server: &RedisServer) -> Redis {
    let endpoint = Endpoint {
        url: server.url(),
        credentials: None,
        connect_timeout: Duration::from_secs(10),
        // So long that a busy machine loses no connection: the tests are about order.
        reply_timeout: Duration::from_secs(60),
        #[cfg(feature = "tls")]
        authorities: Vec::new(),
    };
    let connecting = Redis::connect(endpoint, &steps::ALL, Clock::Boot);
    connecting.await.expect("connects")
}

/// Each acquire is followed by its release before it was answered, as a dropped wait
/// does; in order, whatever so many threads do again and again in between.
fn nothing_is_overtaken(server: &RedisServer, threads: usize, disturb: impl Fn() + Sync) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let redis = Arc::new(runtime.block_on(connect(server)));
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
            .map(|task| runtime.spawn(in_order(Arc::clone(&redis), format!("name {task}"))))
            .collect();
        let overtaken: usize = tasks
            .into_iter()
            // A task that panics is counted: a panic here would leave the other threads running,
            // and the scope would wait for them for ever.
            .map(|task| runtime.block_on(task).unwrap_or(1))
            .sum();
        over.store(true, Ordering::Relaxed);
        assert_eq!(overtaken, 0, "releases that came before their acquires");
    });
}

/// Threads that do nothing else take the processor away.
#[test]
fn what_was_submitted_first_runs_first() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    nothing_is_overtaken(&server, 12, std::hint::spin_loop);
}

/// Several calls are on their way when the server forgets the script.
#[test]
fn what_goes_again_keeps_its_order() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    nothing_is_overtaken(&server, 1, || {
        server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
    });
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
        // From outside of the runtime it leaves with a task, which has not begun yet.
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

/// A connection on which one operation is carried by a future that nobody polls.
async fn beside_an_unpolled_call(server: &RedisServer) -> (Redis, Queued) {
    let redis = connect(server).await;
    let first = redis.submit(operation("first", "ours", false)).await;
    assert!(first.is_ok(), "the connection stands: {first:?}");
    let unpolled = redis.submit(operation("unpolled", "ours", false));
    (redis, unpolled)
}

async fn all_answered(replies: Vec<Queued>) {
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
    // Two such names are too long for one call.
    let long = "x".repeat(MAX_BYTES / 2);
    let submit = |n: usize| redis.submit(operation(&format!("{long}{n}"), "ours", false));
    all_answered((0..8).map(submit).collect()).await;
    assert!(matches!(unpolled.await, Ok(Value::Nil)));
}

#[tokio::test]
async fn unpolled_call_does_not_block_isolated_operations() {
    let server = RedisServer::start().expect("redis-server starts; install it");
    let (redis, unpolled) = beside_an_unpolled_call(&server).await;
    // Refused names in the middle of the others: each ends one call and begins another.
    unpolled.lane.remember_refused(b"x3");
    unpolled.lane.remember_refused(b"x5");
    let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
    all_answered((0..8).map(submit).collect()).await;
    assert!(matches!(unpolled.await, Ok(Value::Nil)));
}

/// No reply comes that would make room.
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
    // One operation alone, and two calls that are full.
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
    // It has left when it is dropped, and the server refuses it for want of the script.
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
    // It is refused, because the server has forgotten the script. Not sent again, it would leave
    // the lock held for its lease.
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
    // It leaves at once and alone. Only the three behind it gather, and so share the call that is
    // refused.
    let carried = redis.submit(operation("ours:first", "ours", false));
    let given_up = redis.submit(operation("ours:given up", "ours", false));
    let denied = redis.submit(operation("theirs", "ours", false));
    let kept = redis.submit(operation("ours:kept", "ours", false));
    let lane = Arc::clone(&carried.lane);
    while !lane.state.lock().queue.is_empty() {
        tokio::task::yield_now().await;
    }
    // On its way, and not answered yet.
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
        let holds = (0..8).map(|number| format!("{round} {number}"));
        let replies: Vec<_> = holds
            .map(|hold| {
                let acquire = redis.submit(operation(&name, &hold, false));
                let release = redis.submit(operation(&name, &hold, true));
                (acquire, release)
            })
            .collect();
        for (acquire, release) in replies {
            let (acquired, released) = (acquire.await, release.await);
            let right = matches!(acquired, Ok(Value::Nil)) && released.is_ok_and(was_ours);
            overtaken += usize::from(!right);
        }
    }
    overtaken
}

fn was_ours(reply: Value) -> bool {
    reply == Value::Int(1)
}
