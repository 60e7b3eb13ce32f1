//! Waiters that are not polled for a while. They do not keep other waiters from the lock, and never
//! get a lock that is lost.

use std::pin::Pin;

use futures_util::FutureExt as _;
use leasehold::{AnyLock, LockGuard, Owner};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::hand_over::near;
use super::*;

type Waiter = Pin<Box<dyn Future<Output = LockGuard> + Send>>;

fn waiter(lock: impl Into<AnyLock>) -> Waiter {
    let lock = lock.into();
    Box::pin(async move { lock.acquire().await.unwrap() })
}

fn waits(lock: impl Into<AnyLock>) -> JoinHandle<LockGuard> {
    tokio::spawn(waiter(lock))
}

/// Polls a waiter until it has sent its request and sleeps.
async fn until_it_sleeps(waiter: &mut Waiter) {
    for _ in 0..5 {
        assert!(waiter.as_mut().now_or_never().is_none());
        sleep(MS).await;
    }
}

/// The name of a kind of lock, and a function that makes such a lock.
type Kind = (&'static str, fn(&Client) -> AnyLock);

/// When the first waiter is polled again, its reply has arrived, and a second waiter has begun to
/// wait.
#[tokio::test(start_paused = true)]
async fn waiter_that_is_polled_late_has_what_it_was_granted() {
    let kinds: [Kind; 4] = [
        ("plain", |client| client.lock("x").into()),
        ("fenced", |client| client.fenced_lock("x").into()),
        ("write", |client| client.rw_lock("x").write_lock().into()),
        ("group", |client| client.group_lock("x", ["a"]).into()),
    ];
    for (kind, lock) in kinds {
        let server = Embedded::new();
        let (client, _network, _) = near(&server);
        let mut first = waiter(lock(&client));
        assert!(first.as_mut().now_or_never().is_none());
        sleep(3 * MS).await;
        let second = waits(lock(&client));
        // By this time, the second waiter is the head.
        sleep(300 * MS).await;
        let first = timeout(10 * MS, first).await;
        let first = first.unwrap_or_else(|_| panic!("{kind}: waits for a turn"));
        assert!(first.is_held(), "{kind}: {:?}", first.loss());
        first.release().await.unwrap();
        let second = timeout(100 * MS, second).await.expect(kind).unwrap();
        second.release().await.unwrap();
        client.close().await;
        let left = server.keys();
        let left = left.iter().filter(|key| !key.contains("token"));
        assert_eq!(left.count(), 0, "{kind}");
    }
}

/// Returns a holder of a fair lock, a waiter that is no longer polled, and the next waiter in line.
async fn behind_an_unpolled_one(client: &Client) -> (LockGuard, Waiter, JoinHandle<LockGuard>) {
    // The waiter sleeps for a third of the waiter timeout, until it must confirm its place.
    let lock = client.fair_lock("x").lease(10_000 * MS);
    let lock = lock.poll_interval(10_000 * MS);
    let first = lock.acquire().await.unwrap();
    let mut unpolled = waiter(lock.clone());
    until_it_sleeps(&mut unpolled).await;
    let third = waits(lock);
    sleep(3 * MS).await;
    (first, unpolled, third)
}

/// The waiter timeout, plus the time until its end is noticed.
const PLACE_IS_KEPT: Duration = Duration::from_millis(7000);

#[tokio::test(start_paused = true)]
async fn waiter_that_was_passed_over_parks_no_fair_lock() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, unpolled, third) = behind_an_unpolled_one(&client).await;
    // The unpolled waiter has not sent its next request, and was skipped.
    sleep(2000 * MS).await;
    first.release().await.unwrap();
    let third = timeout(PLACE_IS_KEPT, third).await;
    third.expect("it is free").unwrap().release().await.unwrap();
    let elsewhere = server.client().fair_lock("x");
    let guard = timeout(PLACE_IS_KEPT, elsewhere.acquire()).await;
    guard.expect("it is free").unwrap().release().await.unwrap();
    unpolled.await.release().await.unwrap();
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// The server grants the unpolled waiter the lock. The waiter is skipped before the reply with the
/// grant arrives.
#[tokio::test(start_paused = true)]
async fn waiter_that_is_passed_over_meanwhile_parks_no_fair_lock() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let (first, mut unpolled, third) = behind_an_unpolled_one(&client).await;
    sleep(1500 * MS).await;
    // The waiter is in line when the release is sent.
    assert!(unpolled.as_mut().now_or_never().is_none());
    let mut late = true;
    network.on_request(move |asked| match asked.step {
        Step::FairRelease if std::mem::take(&mut late) => Fate::delivered(MS, 350 * MS),
        _ => Fate::delivered(MS, Duration::ZERO),
    });
    let start = Instant::now();
    first.release().await.unwrap();
    let third = timeout(500 * MS, third).await;
    let third = third.expect("it went on to the third").unwrap();
    assert!(start.elapsed() < 400 * MS, "{:?}", start.elapsed());
    let unpolled = tokio::spawn(unpolled);
    sleep(1500 * MS).await;
    assert!(third.is_held());
    third.release().await.unwrap();
    let unpolled = timeout(100 * MS, unpolled).await.expect("its turn");
    unpolled.unwrap().release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// The unpolled waiter sends a request while the server grants the lock to it, and is not polled
/// when the reply arrives.
#[tokio::test(start_paused = true)]
async fn waiter_that_was_granted_a_fair_lock_while_it_asked_parks_it_for_nobody() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let (first, mut unpolled, third) = behind_an_unpolled_one(&client).await;
    sleep(1670 * MS).await;
    // The waiter's request arrives before the release, and its reply arrives after the release.
    assert!(unpolled.as_mut().now_or_never().is_none());
    network.on_request(|_| Fate::delivered(MS, MS));
    first.release().await.unwrap();
    let third = timeout(500 * MS, third).await;
    let third = third.expect("it went on to the third").unwrap();
    let unpolled = tokio::spawn(unpolled);
    sleep(1500 * MS).await;
    assert!(third.is_held());
    third.release().await.unwrap();
    unpolled.await.unwrap().release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// The request that releases an unpolled waiter's hold is retried, because its reply is lost.
#[tokio::test(start_paused = true)]
async fn repeated_give_back_ends_no_later_hold_of_its_waiter() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let lock = client.fair_lock("x");
    let first = lock.acquire().await.unwrap();
    let mut unpolled = waiter(lock);
    until_it_sleeps(&mut unpolled).await;
    first.release().await.unwrap();
    let mut lost = 1;
    network.on_request(move |asked| match asked.step {
        Step::FairRelease if lost > 0 => {
            lost -= 1;
            Fate::delivered(MS, MS).reply_lost()
        }
        _ => Fate::delivered(MS, Duration::ZERO),
    });
    // By this time, the hold has been released.
    sleep(200 * MS).await;
    let guard = unpolled.await;
    let elsewhere = server.client().fair_lock("x");
    for _ in 0..20 {
        sleep(50 * MS).await;
        assert!(elsewhere.try_acquire().await.unwrap().is_none());
        assert!(guard.is_held(), "{:?}", guard.loss());
    }
    guard.release().await.unwrap();
}

/// The unpolled waiter was granted the lock, and loses it before it is polled.
#[tokio::test(start_paused = true)]
async fn repeated_give_back_of_a_lost_hold_ends_no_later_one() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let lock = client.fair_lock("x").lease(100 * MS);
    let first = lock.acquire().await.unwrap();
    let mut unpolled = waiter(lock.clone());
    until_it_sleeps(&mut unpolled).await;
    first.release().await.unwrap();
    let elsewhere = server.client().fair_lock("x");
    assert!(elsewhere.force_unlock().await.unwrap());
    // A renewal of the hold discovers the loss.
    sleep(45 * MS).await;
    let mut lost = 1;
    network.on_request(move |asked| match asked.step {
        Step::FairRelease if lost > 0 => {
            lost -= 1;
            Fate::delivered(MS, MS).reply_lost()
        }
        _ => Fate::delivered(MS, Duration::ZERO),
    });
    let guard = unpolled.await;
    for _ in 0..20 {
        sleep(50 * MS).await;
        assert!(guard.is_held(), "{:?}", guard.loss());
        assert!(elsewhere.try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

/// The slice ends with the hold, so no waiter waits for the rest of the slice.
#[tokio::test(start_paused = true)]
async fn hold_of_an_unpolled_waiter_ends_the_turn_of_its_process() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.lock("x").local_hand_over(10_000 * MS);
    let first = lock.acquire().await.unwrap();
    let mut unpolled = waiter(lock.clone());
    assert!(unpolled.as_mut().now_or_never().is_none());
    sleep(2 * MS).await;
    // In this poll, the waiter learns that it has to wait.
    assert!(unpolled.as_mut().now_or_never().is_none());
    let third = waits(lock);
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 0, "it was handed over");
    let third = timeout(300 * MS, third).await;
    third.expect("it is free").unwrap().release().await.unwrap();
    drop(unpolled);
}

/// One member is lost while the others are confirmed.
#[tokio::test(start_paused = true)]
async fn several_locks_are_all_held_when_they_are_granted() {
    let server = Embedded::new();
    let (ours, _network, _) = near(&server);
    let (slow, network) = over_network(&server);
    let both = MultiLock::new([ours.lock("a"), slow.lock("b")]).unwrap();
    let holder = server.client().lock("b").acquire().await.unwrap();
    let waiter = waits(both);
    sleep(50 * MS).await;
    let mut late = true;
    network.on_request(move |asked| match asked.step {
        // This delay is longer than a renewal period.
        Step::LockRenew if std::mem::take(&mut late) => Fate::delivered(MS, 390 * MS),
        _ => Fate::delivered(MS, Duration::ZERO),
    });
    holder.release().await.unwrap();
    sleep(20 * MS).await;
    let elsewhere = server.client().lock("a");
    assert!(elsewhere.force_unlock().await.unwrap());
    let guard = waiter.await.unwrap();
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

/// One branch of an owner waits and is no longer polled.
#[tokio::test(start_paused = true)]
async fn unpolled_branch_of_an_owner_keeps_no_other_branch_out() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.lock("x").owned_by(&Owner::new());
    let holder = server.client().lock("x").acquire().await.unwrap();
    let mut unpolled = waiter(lock.clone());
    until_it_sleeps(&mut unpolled).await;
    let second = waits(lock.clone());
    sleep(300 * MS).await;
    holder.release().await.unwrap();
    let second = timeout(300 * MS, second).await;
    let second = second.expect("it is free").unwrap();
    // The unpolled branch re-enters the hold of its owner.
    let unpolled = timeout(300 * MS, unpolled).await.expect("it enters");
    assert_eq!(unpolled.number(), second.number());
    second.release().await.unwrap();
    assert!(unpolled.is_held());
    unpolled.release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
    assert_eq!(client.activity().owners, 0);
}

/// The branch that has sent the request is dropped, just after another branch has begun to wait for
/// it.
#[tokio::test(start_paused = true)]
async fn dropped_branch_of_an_owner_leaves_the_turn_at_once() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.lock("x").owned_by(&Owner::new());
    let holder = server.client().lock("x").acquire().await.unwrap();
    let mut first = waiter(lock.clone());
    until_it_sleeps(&mut first).await;
    let second = waits(lock.clone());
    sleep(MS).await;
    drop(first);
    holder.release().await.unwrap();
    let second = timeout(20 * MS, second).await.expect("it asks now");
    second.unwrap().release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// The server has granted the lock to a branch of the owner that is no longer polled.
#[tokio::test(start_paused = true)]
async fn owner_has_the_lock_again_when_an_unpolled_branch_has_lost_it() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.lock("x").owned_by(&Owner::new());
    let mut unpolled = waiter(lock.clone());
    assert!(unpolled.as_mut().now_or_never().is_none());
    sleep(3 * MS).await;
    let second = timeout(1500 * MS, lock.acquire()).await;
    let second = second.expect("the lease is over").unwrap();
    let unpolled = timeout(300 * MS, unpolled).await.expect("it enters");
    assert_eq!(unpolled.number(), second.number());
    unpolled.release().await.unwrap();
    second.release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}
