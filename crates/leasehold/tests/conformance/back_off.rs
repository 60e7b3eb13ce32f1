//! Waiting with a back-off: a waiter of each kind is served, and subscribes to nothing.

use std::time::Duration;

use leasehold::kind::Kind;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, Lock, LockGuard, MultiLock, RedLock};

use super::place;
use crate::support::eventually;

const PAUSE: Duration = Duration::from_millis(20);

fn strategy() -> WaitStrategy {
    WaitStrategy::Backoff(Backoff::constant(PAUSE))
}

/// Asserts that `wait` waits while the lock is held, and gets it after the release.
async fn is_served(
    clients: &[&Client],
    wait: impl Future<Output = ()> + Send + 'static,
    release: impl Future<Output = ()>,
) {
    let waiter = tokio::spawn(wait);
    let waits = |client: &&Client| client.activity().lines > 0;
    let listens = |client: &&Client| client.activity().channels > 0;
    eventually("it waits", async || clients.iter().any(waits)).await;
    for _ in 0..10 {
        tokio::time::sleep(PAUSE).await;
        assert!(!clients.iter().any(listens));
    }
    assert!(!waiter.is_finished());
    release.await;
    eventually("it is served", async || {
        assert!(!clients.iter().any(listens));
        waiter.is_finished()
    })
    .await;
    waiter.await.unwrap();
}

async fn lock_is_served<A: Kind, B: Kind>(clients: &[&Client], held: Lock<A>, wanted: Lock<B>) {
    let guard: LockGuard = held.acquire().await.unwrap().into();
    let wait = async move {
        let waiter = wanted.wait_strategy(strategy()).acquire().await;
        let guard: LockGuard = waiter.unwrap().into();
        guard.release().await.unwrap();
    };
    is_served(clients, wait, async { guard.release().await.unwrap() }).await;
}

/// Asserts that a client that waits for the lock `wanted` is served after another client has held
/// `held`.
async fn serves<A: Kind, B: Kind>(
    held: impl Fn(&Client) -> Lock<A>,
    wanted: impl Fn(&Client) -> Lock<B>,
) {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    lock_is_served(&[&theirs], held(&ours), wanted(&theirs)).await;
    place
        .is_clean_but_for(&["redisson_lock_token:{x}"], &[&ours, &theirs])
        .await;
}

#[tokio::test]
async fn a_plain_lock() {
    let lock = |client: &Client| client.lock("x");
    Box::pin(serves(lock, lock)).await;
}

#[tokio::test]
async fn a_fair_lock() {
    let lock = |client: &Client| client.fair_lock("x");
    Box::pin(serves(lock, lock)).await;
}

#[tokio::test]
async fn a_fenced_lock() {
    let lock = |client: &Client| client.fenced_lock("x");
    Box::pin(serves(lock, lock)).await;
}

#[tokio::test]
async fn a_reader() {
    let write = |client: &Client| client.rw_lock("x").write_lock();
    Box::pin(serves(write, |client| client.rw_lock("x").read_lock())).await;
}

#[tokio::test]
async fn a_writer() {
    let read = |client: &Client| client.rw_lock("x").read_lock();
    Box::pin(serves(read, |client| client.rw_lock("x").write_lock())).await;
}

#[tokio::test]
async fn a_group() {
    let lock = |client: &Client| client.group_lock("x", ["a", "b"]);
    Box::pin(serves(lock, lock)).await;
}

#[tokio::test]
async fn several_locks_as_one() {
    let both = |client: &Client| MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    Box::pin(serves(|client| client.lock("y"), both)).await;
}

#[tokio::test]
async fn a_majority() {
    let first = place();
    let places = [first.beside(), first.beside(), first];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for place in &places {
        ours.push(place.client().await);
        theirs.push(place.client().await);
    }
    let lock = |clients: &[Client]| {
        let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
        lock.distrust_restarted(false)
            .member_timeout(Duration::from_secs(10))
    };
    let waiting: Vec<_> = theirs.iter().collect();
    lock_is_served(&waiting, lock(&ours), lock(&theirs)).await;
    for (place, (ours, theirs)) in places.iter().zip(ours.iter().zip(&theirs)) {
        place.is_clean(&[ours, theirs]).await;
    }
}

#[tokio::test]
async fn a_semaphore() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = ours.semaphore("x");
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permit = semaphore.acquire().await.unwrap();
    let wanted = theirs.semaphore("x").wait_strategy(strategy());
    let wait = async move { wanted.acquire().await.unwrap().release().await.unwrap() };
    is_served(&[&theirs], wait, async { permit.release().await.unwrap() }).await;
    place.is_clean_but_for(&["x"], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_semaphore_with_leases() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = ours.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permit = semaphore.acquire().await.unwrap();
    let wanted = theirs.expirable_semaphore("x").wait_strategy(strategy());
    let wait = async move { wanted.acquire().await.unwrap().release().await.unwrap() };
    is_served(&[&theirs], wait, async { permit.release().await.unwrap() }).await;
    assert!(semaphore.delete().await.unwrap());
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_latch() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let latch = ours.count_down_latch("x");
    assert!(latch.try_set_count(1).await.unwrap());
    let wanted = theirs.count_down_latch("x").wait_strategy(strategy());
    let wait = async move { wanted.wait().await.unwrap() };
    let open = async { assert_eq!(latch.count_down().await.unwrap(), 0) };
    is_served(&[&theirs], wait, open).await;
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}
