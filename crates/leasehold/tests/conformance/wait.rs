//! Waiting: which waiters are woken, by what, and when a wait ends without a lock.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::settings::{Backoff, WaitStrategy};
use tokio::time::Instant;

use super::{LEASE, lock_of, place};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn a_release_wakes_the_waiter_of_another_client() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x").acquire().await.unwrap();
    // No poll could wake it: the poll interval is an hour.
    let lock = lock_of(&theirs, "x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || theirs.activity().channels == 1).await;
    guard.release().await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), waiter)
        .await
        .expect("woken by the release, long before the lease's end")
        .unwrap()
        .release()
        .await
        .unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_forced_unlock_wakes_the_waiter() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x").acquire().await.unwrap();
    let lock = lock_of(&theirs, "x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || theirs.activity().channels == 1).await;
    lock_of(&ours, "x").force_unlock().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(5), waiter).await;
    drop(woken.expect("woken"));
    drop(guard);
}

#[tokio::test]
async fn waiters_get_an_expired_lock_without_message() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    lock_of(&ours, "x")
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap()
        .forget();
    let lock = lock_of(&theirs, "x").poll_interval(HOUR);
    let guard = lock.try_acquire_for(LEASE * 4).await.unwrap();
    assert!(guard.is_some());
}

#[tokio::test]
async fn timed_out_wait_leaves_nothing() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x").acquire().await.unwrap();
    for strategy in [
        WaitStrategy::PubSub,
        WaitStrategy::Backoff(Backoff::constant(Duration::from_millis(20))),
    ] {
        let lock = lock_of(&theirs, "x")
            .poll_interval(HOUR)
            .wait_strategy(strategy);
        let started = Instant::now();
        assert!(lock.try_acquire_for(LEASE / 2).await.unwrap().is_none());
        assert!(started.elapsed() >= LEASE / 2);
        let deadline = Instant::now() + LEASE / 2;
        assert!(lock.try_acquire_until(deadline).await.unwrap().is_none());
        let past = Instant::now();
        assert!(lock.try_acquire_until(past).await.unwrap().is_none());
    }
    assert_eq!(theirs.activity().lines, 0);
    guard.release().await.unwrap();
    let past = Instant::now();
    let guard = lock_of(&theirs, "x").try_acquire_until(past).await.unwrap();
    assert!(guard.is_some(), "a deadline in the past asks once");
    drop(guard);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn one_clients_waiters_are_served_in_order() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..8 {
        let (lock, sender) = (lock_of(&client, "x").poll_interval(HOUR), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send(number).unwrap();
            guard.release().await.unwrap();
        });
        // Each waiter has its place before the next one asks.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    eventually("they wait", async || client.activity().lines == 1).await;
    assert!(
        lock_of(&client, "x").try_acquire().await.unwrap().is_none(),
        "a try does not overtake them"
    );
    guard.release().await.unwrap();
    for number in 0..8 {
        assert_eq!(served.recv().await, Some(number));
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn try_never_overtakes_a_local_waiter() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    let lock = lock_of(&client, "x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || client.activity().channels == 1).await;
    guard.release().await.unwrap();
    // The lock may be free on the server, but the waiter has not had time to ask.
    assert!(lock_of(&client, "x").try_acquire().await.unwrap().is_none());
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn aborted_waiter_passes_its_turn_on() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x").acquire().await.unwrap();
    let lock = lock_of(&theirs, "x").poll_interval(HOUR);
    let head = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.map(drop) }
    });
    eventually("the first one listens", async || {
        theirs.activity().channels == 1
    })
    .await;
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::task::yield_now().await;
    // The head is aborted together with the release: the wake-up may be for the aborted waiter.
    head.abort();
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(5), next).await;
    guard.expect("served").unwrap().release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_closed_client_refuses_to_acquire_and_drains() {
    let place = place();
    let client = place.client().await;
    drop(lock_of(&client, "x").acquire().await.unwrap());
    client.close().await;
    assert_eq!(client.activity().releases, 0);
    let error = lock_of(&client, "x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.to_string().contains(&format!("`{}`", place.key("x"))));
}
