//! Semaphores and latches.

use super::*;
use crate::support::HOUR;
use leasehold_testkit::Proxy;

const SEMAPHORE: &str = "redisson_sc:{x}";
const LATCH: &str = "redisson_countdownlatch__channel__{x}";

#[tokio::test(flavor = "multi_thread")]
async fn java_add_and_drain_drop_semaphore_expiry() {
    let place = place().await;
    let semaphore = place.rust.semaphore("x");
    let java = place.thread(LockKind::Plain);
    for ours in [true, false] {
        for drain in [true, false] {
            place.text(&["SET", "x", "3", "PX", "100000"]);
            match (ours, drain) {
                (true, true) => assert_eq!(semaphore.drain().await.unwrap(), 3),
                (true, false) => semaphore.add_permits(1).await.unwrap(),
                (false, true) => {
                    assert_eq!(call(&java, "semaphore_drain", json!({})), 3);
                }
                (false, false) => {
                    call(&java, "semaphore_add", json!({"permits": 1}));
                }
            }
            assert_eq!(place.ttl_ms("x") > 0, ours);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_release_creates_missing_semaphore() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    call(&java, "semaphore_release", json!({"permits": 2}));
    assert_eq!(
        place.rust.semaphore("x").available_permits().await.unwrap(),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_message_leaves_java_waiters_asleep() {
    let server = topology::start();
    let proxy = Proxy::to(server.port());
    let place = Place {
        java: JavaClient::with(VERSION, &proxy.url(), json!({})),
        rust: Client::connect(&server.url()).await.unwrap(),
        server,
    };
    let latch = place.rust.count_down_latch("latch");
    assert!(latch.try_set_count(1).await.unwrap());
    let semaphore = place.rust.semaphore("x");
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permit = semaphore.acquire().await.unwrap();
    let gets = || place.server.calls("get");
    let before = gets();
    let [takes, awaits] = ["takes", "awaits"].map(|name| place.java.thread(name));
    let takes = start(&takes, "semaphore_acquire", json!({"permits": 1}));
    let awaits = awaits.start_call::<Value>("latch_await", json!({"name": "latch"}));
    place.listen(1, SEMAPHORE).await;
    place
        .listen(1, "redisson_countdownlatch__channel__{latch}")
        .await;
    // Each waiter asks once more when its subscription is confirmed.
    eventually("they sleep", async || gets() >= before + 4).await;
    proxy.swallow_messages(true);
    permit.release().await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    eventually("the messages are lost", async || proxy.swallowed() == 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!takes.is_done() && !awaits.is_done());
    proxy.swallow_messages(false);
    place.int(&["PUBLISH", SEMAPHORE, "1"]);
    place.int(&["PUBLISH", "redisson_countdownlatch__channel__{latch}", "0"]);
    takes.wait(SOON).unwrap();
    awaits.wait(SOON).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_serves_one_asynchronous_waiter_of_javas() {
    const WAITERS: usize = 5;
    let place = place().await;
    let gets = || place.server.calls("get");
    let before = gets();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|n| {
            let thread = place.java.thread(&format!("waiter{n}"));
            start(&thread, "semaphore_acquire_async", json!({"permits": 1}))
        })
        .collect();
    // Each waiter asks once more when its subscription is confirmed.
    eventually("they wait", async || gets() >= before + 2 * WAITERS as u64).await;
    let served = || waiters.iter().filter(|waiter| waiter.is_done()).count();
    place.int(&["INCRBY", "x", &WAITERS.to_string()]);
    let mut messages = 0;
    while served() < WAITERS {
        assert!(served() <= messages, "{} for {messages}", served());
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The message wakes no thread.
        place.int(&["PUBLISH", SEMAPHORE, "0"]);
        messages += 1;
    }
    assert!(messages >= WAITERS, "{messages} messages");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_java_latch_wakes_no_java_waiter() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    assert_eq!(call(&java, "latch_set", json!({"count": 1})), true);
    let waiter = place.other("waiter", LockKind::Plain);
    let gets = || place.server.calls("get");
    let before = gets();
    let waiting = start(&waiter, "latch_await", json!({}));
    place.listen(1, LATCH).await;
    // The waiter reads the count once more when its subscription is confirmed. It would find the
    // latch deleted.
    eventually("it sleeps", async || gets() >= before + 2).await;
    let mut ear = Ear::new(&place, LATCH);
    assert_eq!(call(&java, "latch_delete", json!({})), true);
    assert_eq!(ear.message(), "1", "the one of a latch that is set");
    assert!(!waiting.is_done());
    place.int(&["PUBLISH", LATCH, "0"]);
    waiting.wait(SOON).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_waiter_misses_latch_reset_after_zero() {
    let server = topology::start();
    let proxy = Proxy::to(server.port());
    let place = Place {
        java: JavaClient::with(VERSION, &proxy.url(), json!({})),
        rust: Client::connect(&server.url()).await.unwrap(),
        server,
    };
    let latch = place.rust.count_down_latch("x").poll_interval(HOUR);
    assert!(latch.try_set_count(1).await.unwrap());
    let gets = || place.server.calls("get");
    let before = gets();
    let waiting = start(&place.thread(LockKind::Plain), "latch_await", json!({}));
    place.listen(1, LATCH).await;
    // The waiter asks once more when its subscription is confirmed.
    eventually("it sleeps", async || gets() >= before + 2).await;
    let waits = latch.clone();
    let ours = tokio::spawn(async move { waits.wait().await.unwrap() });
    place.listen(2, LATCH).await;
    // The message arrives after both calls.
    proxy.hold_replies(true);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(latch.try_set_count(1).await.unwrap());
    proxy.hold_replies(false);
    tokio::time::timeout(SOON, ours).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_done());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    waiting.wait(SOON).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_expired_leases_break_java_permits() {
    let place = place().await;
    place.text(&["SET", "x", "0"]);
    let fill = "for n = 1, 9000 do redis.call('ZADD', KEYS[1], n, n) end return 'OK'";
    place.text(&["EVAL", fill, "1", "{x}:timeout"]);
    let java = place.thread(LockKind::Plain);
    let asked = start(&java, "expirable_available", json!({})).wait(SOON);
    assert!(asked.unwrap_err().message.contains("unpack"));
    let semaphore = place.rust.expirable_semaphore("x");
    assert_eq!(semaphore.available_permits().await.unwrap(), 9000);
}
