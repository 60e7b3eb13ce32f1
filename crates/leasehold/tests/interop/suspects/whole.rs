//! Multi-locks.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn new_java_multi_lease_grows_each_round() {
    let place = place().await;
    place.stranger_holds("b", LONG);
    let java = place.thread(LockKind::Multi);
    let before = place.published();
    let waiting = java.start_on::<()>("lock_lease_s", "a,b", json!({"lease_s": 4}));
    // The thread has released `a`, so the first round has ended.
    eventually("a round has failed", async || place.published() > before).await;
    place.stranger_releases("b");
    waiting.wait(SOON).unwrap();
    for name in ["a", "b"] {
        let left = place.ttl_ms(name);
        assert_eq!(left <= 4000, IS_OLD, "{left}");
    }
    java.unlock("a,b").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn new_java_multi_unlock_stops_at_error() {
    let place = place_with(json!({"watchdog_ms": 3000})).await;
    let java = place.thread(LockKind::Multi);
    java.lock("a,b").unwrap();
    place.int(&["DEL", "a"]);
    assert!(java.unlock("a,b").is_err());
    if IS_OLD {
        // All members are unlocked at once. The error arrives first.
        place.has_ended("b").await;
    } else {
        place.is_renewed("b", 2).await;
    }
}

/// Java claims the member, although another client holds it by then.
#[tokio::test(flavor = "multi_thread")]
async fn java_multi_lock_claims_lost_member() {
    let place = place().await;
    place.stranger_holds("b", LONG);
    let java = place.thread(LockKind::Multi);
    let waiting = java.start_try_lock_wait("a,b", LONG, Some(SHORT));
    eventually("it has the first one", async || place.exists("a")).await;
    place.listen(1, "redisson_lock__channel:{b}").await;
    place.int(&["DEL", "a"]);
    let ours = place
        .rust
        .lock("a")
        .fixed_lease(LONG)
        .acquire()
        .await
        .unwrap();
    place.stranger_releases("b");
    assert!(
        waiting.wait(SOON).unwrap().value,
        "it says that it has both"
    );
    assert!(ours.is_held());
    assert!(place.ttl_ms("a") <= SHORT_MS, "ours, now of its lease");
    ours.release().await.unwrap();
}
