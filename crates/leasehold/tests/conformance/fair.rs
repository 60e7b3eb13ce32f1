//! The fair lock: the order in which waiters are served, and the effect of waiters that leave the
//! line.

use std::pin::Pin;
use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Client, ErrorKind, FairLock, LockGuard};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{LEASE, place};
use crate::support::{HOUR, eventually};

/// Makes a lock whose waiters are woken by messages, because no poll is due during the test.
fn lock_of(client: &Client) -> FairLock {
    client
        .fair_lock("x")
        .poll_interval(HOUR)
        .waiter_timeout(HOUR)
}

/// Waits until `lock` has `waiters` waiters.
async fn waiting(lock: &FairLock, waiters: usize) {
    eventually(&format!("{waiters} wait"), async || {
        lock.waiters().await.unwrap().len() == waiters
    })
    .await;
}

/// Starts a task that waits for the lock. Returns when the task has its place.
async fn waiter(lock: &FairLock) -> JoinHandle<LockGuard> {
    let before = lock.waiters().await.unwrap().len();
    let task = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    waiting(lock, before + 1).await;
    task
}

/// Returns the waiter's guard, which it must get long before any lease or timeout of 30 s.
async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let guard = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    guard.expect("served in time").unwrap()
}

/// A wait that has its place, and that only proceeds when the test polls it.
type Held = Pin<Box<dyn Future<Output = LockGuard>>>;

async fn standing_still(lock: FairLock) -> Held {
    let seen = lock.clone();
    let before = seen.waiters().await.unwrap().len();
    let mut wait: Held = Box::pin(async move { lock.acquire().await.unwrap() });
    while seen.waiters().await.unwrap().len() == before {
        let polled = tokio::time::timeout(Duration::from_millis(5), &mut wait);
        assert!(polled.await.is_err(), "the lock is held");
    }
    wait
}

#[tokio::test]
async fn fair_waiters_of_four_clients_keep_order() {
    let place = place();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(place.client().await);
    }
    let first = lock_of(&clients[0]);
    let guard = first.acquire().await.unwrap();
    let (sender, mut served) = mpsc::unbounded_channel();
    for number in 0..16 {
        let (lock, sender) = (lock_of(&clients[number % 4]), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send(number).unwrap();
            guard.release().await.unwrap();
        });
        waiting(&first, number + 1).await;
    }
    guard.release().await.unwrap();
    for number in 0..16 {
        // Each waiter is woken by its message: the lease of the previous holder ends much later.
        let next = tokio::time::timeout(Duration::from_secs(10), served.recv());
        assert_eq!(next.await.expect("called in time"), Some(number));
    }
    place.is_clean(&clients.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn waiters_are_listed_in_line_order() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours).acquire().await.unwrap();
    assert!(lock_of(&ours).waiters().await.unwrap().is_empty());
    let one = waiter(&lock_of(&theirs)).await;
    let two = waiter(&lock_of(&ours)).await;
    let line = lock_of(&ours).waiters().await.unwrap();
    assert!(line[0].starts_with(theirs.id()), "{line:?}");
    assert!(line[1].starts_with(ours.id()), "{line:?}");
    guard.release().await.unwrap();
    let one = served(one).await;
    assert_eq!(one.holder_id(), line[0]);
    assert_eq!(lock_of(&ours).waiters().await.unwrap(), line[1..]);
    one.release().await.unwrap();
    assert_eq!(served(two).await.holder_id(), line[1]);
}

#[tokio::test]
async fn fair_try_never_overtakes_or_queues() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours).acquire().await.unwrap();
    assert!(lock_of(&theirs).try_acquire().await.unwrap().is_none());
    assert!(lock_of(&ours).waiters().await.unwrap().is_empty());
    // The head belongs to another client. If it belonged to this client, the release would hand the
    // lock over at once.
    let head = standing_still(lock_of(&theirs)).await;
    guard.release().await.unwrap();
    assert!(lock_of(&ours).try_acquire().await.unwrap().is_none());
    assert!(
        !lock_of(&ours).is_locked().await.unwrap(),
        "its turn, and free"
    );
    drop(head);
    waiting(&lock_of(&ours), 0).await;
    let guard = lock_of(&theirs).try_acquire().await.unwrap();
    guard
        .expect("free, and nobody waits")
        .release()
        .await
        .unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn stopped_waiter_leaves_the_fair_line() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = lock_of(&ours);
    let guard = lock.acquire().await.unwrap();
    let one = waiter(&lock).await;
    let two = tokio::spawn({
        let lock = lock_of(&theirs);
        async move { lock.try_acquire_for(LEASE * 3).await.unwrap() }
    });
    waiting(&lock, 2).await;
    let three = waiter(&lock_of(&theirs)).await;
    assert!(two.await.unwrap().is_none(), "its time was over");
    waiting(&lock, 2).await;
    one.abort();
    waiting(&lock, 1).await;
    guard.release().await.unwrap();
    served(three).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn dropped_fair_head_wakes_the_next() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours).acquire().await.unwrap();
    let head = standing_still(lock_of(&theirs)).await;
    let lock = lock_of(&ours);
    let next = waiter(&lock).await;
    guard.release().await.unwrap();
    drop(head);
    served(next).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn silent_fair_waiter_is_timed_out() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = lock_of(&ours);
    let guard = lock.acquire().await.unwrap();
    let timeout = LEASE;
    let dead = standing_still(lock_of(&theirs).waiter_timeout(timeout)).await;
    let next = waiter(&lock.clone().waiter_timeout(timeout * 3)).await;
    guard.release().await.unwrap();
    // `dead` is not polled, so it never asks again.
    served(next).await.release().await.unwrap();
    drop(dead);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_waiter_keeps_its_place_beyond_many_timeouts() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours).acquire().await.unwrap();
    let timeout = LEASE * 2;
    let first = waiter(&lock_of(&theirs).waiter_timeout(timeout)).await;
    let line = lock_of(&ours).waiters().await.unwrap();
    let second = waiter(&lock_of(&ours).waiter_timeout(timeout)).await;
    // This is longer than a waiter that does not ask counts as alive.
    tokio::time::sleep(timeout * 4).await;
    assert_eq!(lock_of(&ours).waiters().await.unwrap().len(), 2);
    guard.release().await.unwrap();
    let guard = served(first).await;
    assert_eq!(guard.holder_id(), line[0]);
    guard.release().await.unwrap();
    served(second).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn an_owner_enters_again_although_others_wait() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let owner = leasehold::Owner::new();
    let lock = lock_of(&ours).owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    let next = waiter(&lock_of(&theirs)).await;
    let inner = lock.acquire().await.unwrap();
    assert_eq!(inner.hold_count(), 2);
    drop(outer);
    inner.release().await.unwrap();
    served(next).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn head_gets_an_expired_fair_lock() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    // No message announces the end of a lease. A waiter that is not the head, and found the lock
    // free, asks again after its poll interval.
    let lock_at = |client| lock_of(client).fixed_lease(LEASE).poll_interval(LEASE);
    let lock = lock_at(&ours);
    // This is long enough for three waiters to join, also on a busy machine.
    let first = lock.clone().fixed_lease(LEASE * 4);
    first.acquire().await.unwrap().forget();
    let tasks = [
        waiter(&lock).await,
        waiter(&lock_at(&theirs)).await,
        waiter(&lock).await,
    ];
    let line = lock.waiters().await.unwrap();
    for (task, id) in tasks.into_iter().zip(line) {
        let guard = served(task).await;
        assert_eq!(guard.holder_id(), id);
        guard.forget();
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn timed_and_untimed_fair_waits_keep_order() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client);
    let guard = lock.acquire().await.unwrap();
    let (sender, mut order) = mpsc::unbounded_channel();
    for number in 0..6 {
        let (lock, sender) = (lock.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = match number % 2 {
                0 => lock.acquire().await.unwrap(),
                _ => {
                    let wait = Duration::from_secs(20 + 10 * number);
                    lock.try_acquire_for(wait).await.unwrap().unwrap()
                }
            };
            sender.send(number).unwrap();
            guard.release().await.unwrap();
        });
        waiting(&client.fair_lock("x"), number as usize + 1).await;
    }
    guard.release().await.unwrap();
    for number in 0..6 {
        assert_eq!(order.recv().await, Some(number));
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn fair_holds_never_overlap_or_overtake() {
    let place = place();
    let recorder = Recorder::new();
    let mut clients = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for c in 0..4 {
        let client = place.client().await;
        for t in 0..4 {
            let (recorder, client) = (recorder.clone(), client.clone());
            tasks.spawn(async move {
                let lock = client
                    .fair_lock("hot")
                    .poll_interval(HOUR)
                    .waiter_timeout(HOUR);
                for _ in 0..20 {
                    let asked = recorder.ask("hot", &format!("client {c} task {t}"));
                    let guard = lock.acquire().await.unwrap();
                    let inside = asked.acquired(&guard);
                    tokio::task::yield_now().await;
                    inside.releasing(&guard);
                    guard.release().await.unwrap();
                }
            });
        }
        clients.push(client);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let report = recorder.report();
    assert_eq!(report.holds, 4 * 4 * 20);
    report.judge().unwrap();
    place.is_clean(&clients.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn fair_and_plain_locks_exclude_each_other() {
    let place = place();
    let client = place.client().await;
    let guard = client.fair_lock("x").acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.fair_lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn invalid_waiter_timeout_is_refused() {
    let place = place();
    let client = place.client().await;
    for timeout in [Duration::from_millis(99), HOUR + Duration::from_millis(1)] {
        let lock = client.fair_lock("x").waiter_timeout(timeout);
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.to_string().contains("waiter timeout"), "{error}");
    }
}
