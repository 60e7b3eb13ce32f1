//! A re-entry adds to a hold, and takes back what it added when it ends.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::kind::Kind;
use leasehold::{Lock, LossReason};
use tokio::time::{Instant, sleep_until, timeout};

use super::{LEASE, lock_of, place};
use crate::support::eventually;

/// A lease long enough for a busy machine: a quarter of it remains when the test checks the holds.
const LONG: Duration = LEASE.saturating_mul(3);

async fn is_good_for_what_it_asked_for<K: Kind>(lock: Lock<K>, rival: Lock<K>) {
    let outer = lock.acquire().await.unwrap();
    sleep_until(outer.as_ref().valid_until() - LONG / 2).await;
    let asked = Instant::now();
    let inner = lock.acquire().await.unwrap();
    // The drift and the rounding are deducted, as for a new hold.
    let least = asked + LONG - LONG / 100 - Duration::from_millis(3);
    let until = inner.as_ref().valid_until();
    assert!(until >= least, "{:?} too little, {lock:?}", least - until);
    sleep_until(asked + LONG * 3 / 4).await;
    assert!(inner.as_ref().is_held() && outer.as_ref().is_held());
    assert!(rival.try_acquire().await.unwrap().is_none(), "{lock:?}");
    inner.into().release().await.unwrap();
}

#[tokio::test]
async fn reentry_gets_its_whole_lease() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let owner = leasehold::Owner::new();
    let plain = lock_of(&ours, "x").owned_by(&owner).fixed_lease(LONG);
    let rw = ours.rw_lock("rw").owned_by(&owner).fixed_lease(LONG);
    let other = ours.rw_lock("other").owned_by(&owner).fixed_lease(LONG);
    let group = ours.group_lock("g", ["a", "b"]);
    let group = group.owned_by(&owner).fixed_lease(LONG);
    tokio::join!(
        is_good_for_what_it_asked_for(plain, lock_of(&theirs, "x")),
        is_good_for_what_it_asked_for(rw.write_lock(), theirs.rw_lock("rw").write_lock()),
        is_good_for_what_it_asked_for(group, theirs.group_lock("g", ["b"])),
        async {
            // Two owners read, so the rival is a writer.
            let lock = other.read_lock();
            let outer = lock.acquire().await.unwrap();
            sleep_until(outer.valid_until() - LONG / 2).await;
            let asked = Instant::now();
            let inner = lock.acquire().await.unwrap();
            assert!(inner.valid_until() >= asked + LONG * 19 / 20);
            sleep_until(asked + LONG * 3 / 4).await;
            let writer = theirs.rw_lock("other").write_lock();
            assert!(writer.try_acquire().await.unwrap().is_none());
            drop((outer, inner));
        }
    );
    place.is_clean(&[&ours, &theirs]).await;
}

/// Asserts that a re-entry's longer lease ends with the re-entry. `rival` is excluded by `lock`.
async fn takes_back_what_it_added<K: Kind, R: Kind>(lock: Lock<K>, rival: Lock<R>) {
    let outer = lock.clone().fixed_lease(LEASE);
    let start = Instant::now();
    let outer = outer.acquire().await.unwrap();
    let long = lock.clone().fixed_lease(LEASE * 100);
    let inner = long.acquire().await.unwrap();
    assert!(outer.as_ref().valid_until() > start + LEASE * 50);
    inner.into().release().await.unwrap();
    assert!(outer.as_ref().valid_until() <= Instant::now() + LEASE);

    // The rival does not wait for the lease that the re-entry asked for.
    let next = timeout(LEASE * 20, rival.acquire()).await;
    let next = next.expect("free when the first lease is over").unwrap();
    assert_eq!(outer.as_ref().loss(), Some(LossReason::Expired));
    next.into().release().await.unwrap();
}

#[tokio::test]
async fn releasing_a_reentry_drops_its_extra_lease() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let owner = leasehold::Owner::new();
    let plain = lock_of(&ours, "x").owned_by(&owner);
    let rw = ours.rw_lock("rw").owned_by(&owner);
    let written = ours.rw_lock("written").owned_by(&owner);
    tokio::join!(
        takes_back_what_it_added(plain, lock_of(&theirs, "x")),
        takes_back_what_it_added(rw.read_lock(), theirs.rw_lock("rw").write_lock()),
        takes_back_what_it_added(written.write_lock(), theirs.rw_lock("written").read_lock()),
    );
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn renewed_reentry_keeps_a_fixed_hold() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = lock_of(&ours, "x").owned_by(&leasehold::Owner::new());
    let outer = lock.clone().fixed_lease(LEASE).acquire().await.unwrap();
    let inner = lock.clone().lease(LEASE).acquire().await.unwrap();
    sleep_until(Instant::now() + LEASE * 2).await;
    assert!(outer.is_held() && inner.is_held());
    let rival = lock_of(&theirs, "x");
    assert!(rival.try_acquire().await.unwrap().is_none());

    // From here on the first lease applies, which has long ended.
    inner.release().await.unwrap();
    assert_eq!(outer.loss(), Some(LossReason::Expired));
    let next = timeout(LEASE * 20, rival.acquire()).await.expect("free");
    next.unwrap().release().await.unwrap();
    drop(outer);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn renewal_resumes_after_a_longer_reentry() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x").owned_by(&leasehold::Owner::new());
    let outer = lock.clone().lease(LEASE).acquire().await.unwrap();
    for long in [
        lock.clone().fixed_lease(LEASE * 50),
        lock.clone().lease(LEASE * 50),
    ] {
        let inner = long.acquire().await.unwrap();
        assert!(outer.valid_until() > Instant::now() + LEASE * 40);
        drop(inner);
        assert!(outer.valid_until() <= Instant::now() + LEASE);
    }
    sleep_until(Instant::now() + LEASE * 2).await;
    // No request is under way that could reach the server late and shorten a hold.
    let ttl = lock.remaining_ttl().await.unwrap();
    assert!(matches!(ttl, Ttl::Left(left) if left > LEASE * 40));
    outer.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn forgotten_reentry_leaves_its_lease() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x").owned_by(&leasehold::Owner::new());
    let outer = lock.clone().fixed_lease(LEASE);
    let outer = outer.acquire().await.unwrap();
    let long = lock.clone().fixed_lease(LEASE * 50);
    long.acquire().await.unwrap().forget();
    assert_eq!(outer.hold_count(), 1);
    sleep_until(Instant::now() + LEASE * 3 / 2).await;
    outer.release().await.unwrap();
    let Ttl::Left(left) = lock.remaining_ttl().await.unwrap() else {
        panic!("it was to last");
    };
    assert!(left > LEASE * 40, "{left:?}");
    assert!(lock.force_unlock().await.unwrap());
}

#[tokio::test]
async fn dropped_acquire_leaves_the_name_to_its_owner() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let held = lock_of(&theirs, "x").acquire().await.unwrap();
    let lock = lock_of(&ours, "x").owned_by(&leasehold::Owner::new());
    let branch = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    // The first request is for both of them.
    let (first, second) = (branch(), branch());
    eventually("it waits", async || ours.activity().lines == 1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    let guard = timeout(LEASE * 20, second).await.expect("it asks now");
    guard.unwrap().release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}
