//! Handles whose owner does not enter its own holds again.

use std::time::Duration;

use leasehold::kind::Kind;
use leasehold::{Client, ErrorKind, Lock, LockGuard, MultiLock, Owner, RedLock};
use tokio::time::timeout;

use super::{LEASE, place};
use crate::support::{HOUR, Place, eventually};

/// A limit longer than any wait in these tests.
const LIMIT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("not at once")
}

/// Checks that an owner gets the same answers from `lock` as another owner, while it holds the
/// lock, and that no acquire waits for its own owner.
async fn is_kept_out<K: Kind>(lock: &Lock<K>) {
    assert!(lock.try_acquire().await.unwrap().is_none(), "{lock:?}");
    match in_time(lock.try_acquire_for(SHORT)).await {
        Ok(limited) => assert!(limited.is_none(), "{lock:?}"),
        // On a busy machine there may be no reply in so little time.
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
    let error = in_time(lock.acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("would never end: this owner holds it"),
        "{text}"
    );
}

async fn does_not_enter_again<K: Kind>(lock: Lock<K>) {
    let lock = lock.owned_by(&Owner::new()).non_reentrant();
    for _ in 0..2 {
        let guard = in_time(lock.acquire()).await.unwrap();
        assert_eq!(guard.as_ref().hold_count(), 1);
        is_kept_out(&lock).await;
        assert!(guard.as_ref().is_held());
        guard.into().release().await.unwrap();
    }
}

/// Returns a majority lock on three servers.
async fn majority(places: &[Place]) -> (RedLock, Vec<Client>) {
    let mut clients = Vec::new();
    for place in places {
        clients.push(place.client().await);
    }
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let lock = lock.distrust_restarted(false).member_timeout(LIMIT / 3);
    (lock, clients)
}

#[tokio::test]
async fn owner_of_each_kind_is_kept_out_by_its_own_hold() {
    let place = place();
    let client = place.client().await;
    let rw = client.rw_lock("rw");
    let several = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    tokio::join!(
        does_not_enter_again(client.lock("plain")),
        does_not_enter_again(client.fair_lock("fair")),
        does_not_enter_again(rw.write_lock()),
        does_not_enter_again(client.group_lock("group", ["a", "b"])),
        does_not_enter_again(several),
        does_not_enter_again(leasehold::AnyLock::from(client.lock("any"))),
    );
    does_not_enter_again(client.fenced_lock("fenced")).await;
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn owner_of_a_majority_is_kept_out_by_its_own_hold() {
    let first = place();
    let places = [first.beside(), first.beside(), first];
    let (lock, clients) = majority(&places).await;
    let owner = Owner::new();
    let once = lock.clone().owned_by(&owner).non_reentrant();
    let guard = in_time(once.acquire()).await.unwrap();
    assert!(lock.is_held_by(&owner));
    is_kept_out(&once).await;
    // A handle that re-enters is kept out too, as the hold can't be entered.
    is_kept_out(&lock.owned_by(&owner)).await;
    guard.release().await.unwrap();
    in_time(once.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for (place, client) in places.iter().zip(&clients) {
        place.is_clean(&[client]).await;
    }
}

#[tokio::test]
async fn handles_of_one_owner_enter_only_if_both_do() {
    let place = place();
    let client = place.client().await;
    let owner = Owner::new();
    let enters = client.lock("x").owned_by(&owner);
    let once = enters.clone().non_reentrant();
    let guard = once.acquire().await.unwrap();
    assert!(enters.is_held_by(&owner).await.unwrap());
    is_kept_out(&enters).await;
    guard.release().await.unwrap();
    assert!(!enters.is_held_by(&owner).await.unwrap());
    let guards = (
        enters.acquire().await.unwrap(),
        enters.acquire().await.unwrap(),
    );
    assert_eq!(guards.0.hold_count(), 2);
    is_kept_out(&once).await;
    drop(guards);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn read_holds_of_one_owner_are_independent() {
    let place = place();
    let client = place.client().await;
    let owner = Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner).non_reentrant();
    let first = lock.read().await.unwrap();
    let second = in_time(lock.read()).await.unwrap();
    assert_ne!(first.number(), second.number());
    assert_eq!((first.hold_count(), second.hold_count()), (1, 1));
    is_kept_out(&lock.write_lock()).await;
    first.release().await.unwrap();
    assert!(second.is_held());
    assert!(lock.read_lock().is_held_by(&owner).await.unwrap());
    second.release().await.unwrap();
    // A writer that does not re-enter can't read inside its hold, but can downgrade it.
    let writing = in_time(lock.write()).await.unwrap();
    is_kept_out(&lock.read_lock()).await;
    let reading = writing.downgrade().await.unwrap();
    is_kept_out(&lock.write_lock()).await;
    let writing = reading.try_upgrade().await.unwrap();
    writing.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn reader_without_reentry_stays_outside_its_owners_write_hold() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x").owned_by(&Owner::new());
    let once = lock.clone().non_reentrant();
    let writing = lock.write().await.unwrap();
    is_kept_out(&once.read_lock()).await;
    is_kept_out(&once.write_lock()).await;
    let inside = lock.read().await.unwrap();
    writing.release().await.unwrap();
    // The owner reads now, and so may its other handle.
    let beside = in_time(once.read()).await.unwrap();
    is_kept_out(&once.write_lock()).await;
    inside.release().await.unwrap();
    beside.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn own_hold_that_ends_by_itself_is_waited_for() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x").owned_by(&Owner::new()).non_reentrant();
    let guard = lock.clone().fixed_lease(LEASE).acquire().await.unwrap();
    let next = in_time(lock.acquire()).await.unwrap();
    assert!(!guard.is_held());
    next.release().await.unwrap();
    drop(guard);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn circle_through_a_hold_that_is_not_entered_again_is_found() {
    let place = place();
    let client = place.client().await;
    let owners = [Owner::new(), Owner::new()];
    let lock = |name: &str, owner: usize| -> Lock {
        let lock = client.lock(name).owned_by(&owners[owner]);
        lock.non_reentrant().poll_interval(HOUR)
    };
    let (a, b) = (lock("a", 0).acquire().await, lock("b", 1).acquire().await);
    let (a, b): (LockGuard, LockGuard) = (a.unwrap(), b.unwrap());
    let waits = lock("a", 1);
    let waiter = tokio::spawn(async move { waits.acquire().await.unwrap() });
    eventually("it waits", async || client.activity().lines == 1).await;
    let error = in_time(lock("b", 0).acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(error.to_string().contains("waits for `a`"), "{error}");
    a.release().await.unwrap();
    in_time(waiter).await.unwrap().release().await.unwrap();
    b.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn dropped_acquires_that_do_not_enter_again_leave_nothing() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x").owned_by(&Owner::new()).non_reentrant();
    let guard = client.lock("x").acquire().await.unwrap();
    for wait in [Duration::ZERO, SHORT / 10, SHORT] {
        timeout(wait, lock.acquire()).await.unwrap_err();
    }
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
