//! Features that only newer versions of Redisson have: fenced locks, groups, lists of permits.

use std::time::Duration;

use leasehold_testkit::redisson::LockKind;
use serde_json::json;

use super::suspects::{Place, call, place, place_with, start};
use crate::javas::asleep;
use crate::sides::SOON;
use crate::support::eventually;

const LONG: Duration = Duration::from_secs(120);
const COUNTER: &str = "redisson_lock_token:{x}";

fn values(place: &Place) -> usize {
    usize::try_from(place.int(&["HLEN", "G"])).unwrap() / 3
}

#[tokio::test(flavor = "multi_thread")]
async fn java_reentry_spends_fencing_tokens() {
    let place = place().await;
    let java = place.thread(LockKind::Fenced);
    let lease = json!({"lease_ms": 5000});
    let token = java.start_on::<i64>("lock_lease_and_get_token", "x", lease);
    assert_eq!(token.wait(SOON).unwrap().value, 1);
    assert!(place.ttl_ms("x") > 5000, "that of the watchdog");
    assert_eq!(java.lock_and_get_token("x").unwrap().value, 2);
    java.unlock("x").unwrap();
    java.unlock("x").unwrap();
    // After a deletion, the tokens begin again.
    let deleted = java.start_on::<bool>("delete", "x", json!({}));
    assert!(deleted.wait(SOON).unwrap().value);
    assert_eq!(java.lock_and_get_token("x").unwrap().value, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn java_fenced_try_claims_hold_without_expiry() {
    let place = place().await;
    place.int(&["HSET", "x", "stranger", "1"]);
    let java = place.thread(LockKind::Fenced);
    let request = json!({"wait_ms": 0});
    let token = java.start_on::<i64>("try_lock_wait_and_get_token", "x", request);
    assert_eq!(token.wait(SOON).unwrap().value, -1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_for_a_token_in_java_waits() {
    let place = place().await;
    place.stranger_holds("x", LONG);
    let java = place.thread(LockKind::Fenced);
    let tried = java.start_on::<i64>("try_lock_and_get_token", "x", json!({}));
    place.listen(1, "redisson_lock__channel:{x}").await;
    assert!(!tried.is_done());
    place.stranger_releases("x");
    tried.wait(SOON).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_multi_lock_expires_fencing_counter() {
    let place = place().await;
    let java = place.thread(LockKind::Multi);
    let lease = Some(Duration::from_secs(20));
    assert!(java.try_lock_wait("fenced:x,b", LONG, lease).unwrap().value);
    let left = place.ttl_ms(COUNTER);
    assert!((1..=20_000).contains(&left), "{left}");
    java.unlock("fenced:x,b").unwrap();
    assert!(place.ttl_ms(COUNTER) > 0, "and starts again at 1 then");
    let guard = place.rust.fenced_lock("x").acquire().await.unwrap();
    assert_eq!(place.ttl_ms(COUNTER), -1, "ours takes the expiry away");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn async_java_group_lock_never_holds() {
    let place = place().await;
    let java = place.thread(LockKind::Group);
    let taken = java.start_on::<()>("lock_async", "G/a,b", json!({}));
    let error = taken.wait(SOON).unwrap_err();
    assert_eq!(error.class, "NullPointerException", "{error}");
    let watched = json!({"lease_ms": -1});
    let taken = java.start_on::<()>("lock_lease_async", "G/a,b", watched);
    taken.wait(SOON).expect("it says that it has it");
    assert!(!place.exists("G"));
}

#[tokio::test(flavor = "multi_thread")]
async fn java_group_unlock_with_lost_value_fails() {
    let place = place().await;
    let java = place.thread(LockKind::Group);
    for lost in ["a", "b"] {
        java.lock("G/a,b").unwrap();
        let lost = place.rust.group_lock("G", [lost]);
        assert!(lost.force_unlock().await.unwrap());
        assert_eq!(values(&place), 1);
        assert!(java.unlock("G/a,b").is_err());
        assert!(!place.exists("G"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_group_hold_inherits_expired_count() {
    let place = place().await;
    let java = place.thread(LockKind::Group);
    java.lock_lease("G/b", LONG).unwrap();
    java.lock_lease("G/a", Duration::from_secs(1)).unwrap();
    let lock = place.rust.group_lock("G", ["a"]);
    eventually("it has ended", async || !lock.is_locked().await.unwrap()).await;
    assert_eq!(values(&place), 2, "its fields are still there");
    java.lock_lease("G/a", LONG).unwrap();
    java.unlock("G/a").unwrap();
    assert!(lock.is_locked().await.unwrap(), "held once, unlocked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn java_group_unlock_wakes_wrong_waiter() {
    let place = place().await;
    let [holder, a, b] = ["holder", "a", "b"].map(|name| place.other(name, LockKind::Group));
    holder.lock("G/a").unwrap();
    holder.lock("G/b").unwrap();
    let before = place.asks();
    let wait_a = a.start_lock("G/a");
    place.asked(before, 2).await;
    asleep(&[&a]).await;
    let wait_b = b.start_lock("G/b");
    place.asked(before, 4).await;
    asleep(&[&b]).await;
    holder.unlock("G/b").unwrap();
    // These are the unlock and the request of the woken thread.
    place.asked(before, 6).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!wait_a.is_done() && !wait_b.is_done(), "nobody holds b");
    // Our release wakes all threads.
    let guard = place.rust.group_lock("G", ["c"]).acquire().await.unwrap();
    guard.release().await.unwrap();
    wait_b.wait(SOON).unwrap();
    b.unlock("G/b").unwrap();
    holder.unlock("G/a").unwrap();
    wait_a.wait(SOON).unwrap();
    a.unlock("G/a").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn second_java_group_lock_is_not_renewed() {
    let place = place_with(json!({"watchdog_ms": 3000})).await;
    let java = place.thread(LockKind::Group);
    java.lock("G/a").unwrap();
    java.lock("G/b").unwrap();
    let b = place.rust.group_lock("G", ["b"]);
    eventually("it has ended", async || !b.is_locked().await.unwrap()).await;
    let a = place.rust.group_lock("G", ["a"]);
    assert!(a.is_locked().await.unwrap());
    let taken = b.try_acquire().await.unwrap();
    taken
        .expect("although Java holds it")
        .release()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_group_misreports_forced_unlock_and_ownership() {
    let place = place().await;
    let java = place.thread(LockKind::Group);
    java.lock("G/a,b").unwrap();
    assert!(!java.force_unlock("G/a,b").unwrap().value);
    assert!(!place.exists("G"));
    let guard = place.rust.group_lock("G", ["a"]).acquire().await.unwrap();
    assert!(java.is_held_by_current_thread("G/a").unwrap().value);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_release_of_ids_publishes_their_count() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    assert_eq!(call(&java, "expirable_set", json!({"permits": 5})), true);
    let lease = || json!({"lease_ms": 60_000});
    let ids = [(); 2].map(|()| call(&java, "expirable_acquire_lease", lease()));
    let ids = ids.map(|id| id.as_str().unwrap().to_owned());
    let mut ear = super::suspects::Ear::new(&place, "redisson_sc:{x}");
    let permits = json!({"permits": ids.join(",")});
    start(&java, "expirable_release_many", permits)
        .wait(SOON)
        .unwrap();
    assert_eq!(ear.message(), "2", "there are five");
    assert_eq!(call(&java, "expirable_available", json!({})), 5);
}
