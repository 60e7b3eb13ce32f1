//! The fair lock.

use super::*;

const QUEUE: &str = "redisson_lock_queue:{x}";
const SCORES: &str = "redisson_lock_timeout:{x}";

impl Place {
    fn queue(&self) -> Vec<String> {
        let reply = self.server.command(&["LRANGE", QUEUE, "0", "-1"]).unwrap();
        let members = reply.as_array().unwrap().iter();
        members.map(|m| m.as_text().unwrap().to_owned()).collect()
    }

    pub(super) async fn queued(&self, waiters: usize) -> Vec<String> {
        eventually("they are in line", async || self.queue().len() == waiters).await;
        self.queue()
    }

    pub(super) fn score_ms(&self, member: &str) -> i64 {
        self.text(&["ZSCORE", SCORES, member]).parse().unwrap()
    }

    pub(super) fn now_ms(&self) -> i64 {
        let time = self.server.command(&["TIME"]).unwrap();
        let part = |n: usize| -> i64 {
            let part = time.as_array().unwrap()[n].as_text();
            part.unwrap().parse().unwrap()
        };
        part(0) * 1000 + part(1) / 1000
    }

    fn set_score(&self, member: &str, score_ms: i64) {
        self.int(&["ZADD", SCORES, &score_ms.to_string(), member]);
    }

    /// Makes a waiter ask, as the end of its sleep would.
    fn call_waiter(&self, member: &str) {
        let channel = format!("redisson_lock__channel:{{x}}:{member}");
        self.int(&["PUBLISH", &channel, "0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_unlocks_free_fair_lock_without_error() {
    let place = place().await;
    let java = place.thread(LockKind::Fair);
    java.unlock("x").expect("although nobody holds it");
    // The unlock fails, because our client holds the fair lock.
    let guard = place.rust.fair_lock("x").acquire().await.unwrap();
    assert!(java.unlock("x").is_err());
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn new_java_waiters_spin_behind_dead_head() {
    let place = place().await;
    place.int(&["RPUSH", QUEUE, "dead"]);
    place.set_score("dead", place.now_ms() + 300_000);
    let java = place.thread(LockKind::Fair);
    let before = place.asks();
    let waiting = java.start_lock("x");
    let behind = place.queued(2).await.remove(1);
    if IS_OLD {
        place.asked(before, 2).await;
    } else {
        place.asked(before, 300).await;
    }
    assert!(!waiting.is_done(), "although nobody holds it");
    place.int(&["LREM", QUEUE, "0", "dead"]);
    place.int(&["ZREM", SCORES, "dead"]);
    place.call_waiter(&behind);
    waiting.wait(SOON).unwrap();
    java.unlock("x").unwrap();
    if IS_OLD {
        // These are its two requests, the request after the notification, and the unlock.
        assert!(place.asks() - before < 10, "it sleeps");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_java_waiter_outlasting_lease_never_wakes() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let java = place.thread(LockKind::Fair);
    let before = place.asks();
    let waiting = java.start_lock("x");
    let head = place.queued(1).await.remove(0);
    place.asked(before, 2).await;
    place
        .listen(1, &format!("redisson_lock__channel:{{x}}:{head}"))
        .await;
    // This is the state after the holder has renewed beyond the lease that the waiter saw.
    place.set_score(&head, place.now_ms() + 200_000);
    place.int(&["PEXPIRE", "x", "1500"]);
    place.call_waiter(&head);
    place.asked(before, 3).await;
    if IS_OLD {
        place.has_ended("x").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_done(), "nobody holds it, nobody calls");
        place.call_waiter(&head);
    }
    waiting.wait(SOON).unwrap();
    java.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_java_waiter_is_served_last() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let [a, b, c] = ["a", "b", "c"].map(|name| place.other(name, LockKind::Fair));
    let before = place.asks();
    let first = a.start_lock("x");
    let head = place.queued(1).await.remove(0);
    let second = b.start_lock("x");
    let next = place.queued(2).await.remove(1);
    // Each waiter asks once more when its subscription is confirmed.
    place.asked(before, 4).await;
    // This is the state after five minutes.
    place.set_score(&head, 1);
    assert!(!c.try_lock("x").unwrap().value);
    assert_eq!(place.queued(1).await, std::slice::from_ref(&next));
    place.call_waiter(&head);
    assert_eq!(place.queued(2).await, [next.clone(), head.clone()]);
    place.int(&["DEL", "x"]);
    place.call_waiter(&next);
    second.wait(SOON).unwrap();
    b.unlock("x").unwrap();
    first.wait(SOON).unwrap();
    a.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_wait_in_seconds_counts_as_milliseconds() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let java = place.thread(LockKind::Fair);
    let waiting = java.start_on::<bool>("try_lock_wait_s", "x", json!({"wait_s": 100}));
    let head = place.queued(1).await.remove(0);
    let lease_ends_ms = place.now_ms() + place.ttl_ms("x");
    assert!(place.score_ms(&head) < lease_ends_ms + 50_000);
    place
        .listen(1, &format!("redisson_lock__channel:{{x}}:{head}"))
        .await;
    place.int(&["DEL", "x"]);
    place.call_waiter(&head);
    assert!(waiting.wait(SOON).unwrap().value);
    java.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn async_java_timeout_costs_successors_five_minutes() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let [a, b] = ["a", "b"].map(|name| place.other(name, LockKind::Fair));
    let request = json!({"wait_ms": 5000, "lease_ms": 60_000});
    let gives_up = a.start_on::<bool>("try_lock_wait_async", "x", request);
    place.queued(1).await;
    let waiting = b.start_lock("x");
    let behind = place.queued(2).await.remove(1);
    let before_ms = place.score_ms(&behind);
    // One script lowers the timeouts of the later waiters one by one.
    for n in 0..50 {
        let member = format!("behind {n}");
        place.int(&["RPUSH", QUEUE, &member]);
        place.set_score(&member, before_ms + 300_000);
    }
    let steps = place.server.calls("zincrby");
    assert!(!gives_up.wait(SOON).unwrap().value);
    place.queued(51).await;
    assert_eq!(place.score_ms(&behind), before_ms - 300_000, "not 5000");
    assert_eq!(place.server.calls("zincrby") - steps, 51);
    // Its place may have expired already, and then it would not be served.
    place.set_score(&behind, place.now_ms() + 300_000);
    place.int(&["DEL", "x"]);
    place.call_waiter(&behind);
    waiting.wait(SOON).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn departing_java_head_wakes_no_successor() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let [a, b] = ["a", "b"].map(|name| place.other(name, LockKind::Fair));
    let before = place.asks();
    let leaves = a.start_try_lock_wait("x", Duration::from_secs(5), Some(LONG));
    place.queued(1).await;
    let waiting = b.start_lock("x");
    place.queued(2).await;
    // Each waiter asks once more when its subscription is confirmed.
    place.asked(before, 4).await;
    let published = place.published();
    // The lock ends without a message, as at the end of a lease.
    place.int(&["DEL", "x"]);
    assert!(!leaves.wait(SOON).unwrap().value);
    place.queued(1).await;
    assert_eq!(place.published(), published);
    assert!(
        !waiting.is_done(),
        "although it is the head and nobody holds"
    );
    let lock = place.rust.fair_lock("x");
    let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
    waiting.wait(SOON).expect("called by ours");
    b.unlock("x").unwrap();
    ours.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_java_waiter_stays_in_queue() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let java = place.thread(LockKind::Fair);
    let before = place.asks();
    let waiting = java.start_try_lock_wait("x", LONG, Some(LONG));
    let queue = place.queued(1).await;
    place.asked(before, 2).await;
    java.interrupt().unwrap();
    let error = waiting.wait(SOON).unwrap_err();
    // The thread is interrupted in its sleep, or in its second request, whose error wraps this one.
    assert!(error.to_string().contains("Interrupted"), "{error}");
    assert_eq!(place.queue(), queue);
    assert!(place.score_ms(&queue[0]) > place.now_ms() + SHORT_MS);
    for key in [QUEUE, SCORES] {
        assert_eq!(place.ttl_ms(key), -1, "{key} stays for ever by itself");
    }
}
