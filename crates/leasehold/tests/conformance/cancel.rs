//! Cancellation: each public future is dropped at each of its await points, and nothing is left: no
//! key, channel, subscription, line, owner or renewal.

use std::time::Duration;

use leasehold::Client;
use tokio::task::JoinHandle;

use super::{lock_of, place};
pub(super) use crate::support::drop_after;
use crate::support::{Place, eventually};

/// Drops the future of `make` at each await point until it runs to its end, and checks each time
/// that nothing is left. Returns the number of points.
pub(super) async fn at_each_point<T>(
    place: &Place,
    client: &Client,
    mut make: impl AsyncFnMut(usize) -> Option<T>,
) -> usize {
    for polls in 0..1000 {
        let output = make(polls).await;
        let done = output.is_some();
        drop(output);
        place.is_clean_but_for_counters(&[client]).await;
        if done {
            return polls;
        }
    }
    panic!("it never ended");
}

/// Like [`at_each_point`], for a future that needs no preparation.
pub(super) async fn when_dropped<F: Future>(
    place: &Place,
    client: &Client,
    make: impl Fn() -> F,
) -> usize {
    at_each_point(place, client, async |n| drop_after(n, make()).await).await
}

#[tokio::test]
async fn acquires_of_a_free_lock() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x");
    when_dropped(&place, &client, || lock.acquire()).await;
    when_dropped(&place, &client, || lock.try_acquire()).await;
    let wait = Duration::from_secs(60);
    when_dropped(&place, &client, || lock.try_acquire_for(wait)).await;
    let deadline = tokio::time::Instant::now() + wait;
    when_dropped(&place, &client, || lock.try_acquire_until(deadline)).await;
    when_dropped(&place, &client, || {
        lock.run(async |_| tokio::task::yield_now().await)
    })
    .await;
}

#[tokio::test]
async fn acquires_of_a_held_lock() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let wait = Duration::from_secs(60);
    let mut points = 0;
    points += at_each_point(&place, &client, async |n| {
        let release = held_for_a_moment(&other, &client).await;
        let dropped = drop_after(n, lock_of(&client, "x").acquire()).await;
        release.await.unwrap();
        dropped
    })
    .await;
    points += at_each_point(&place, &client, async |n| {
        let release = held_for_a_moment(&other, &client).await;
        let dropped = drop_after(n, lock_of(&client, "x").try_acquire_for(wait)).await;
        release.await.unwrap();
        dropped
    })
    .await;
    let owner = leasehold::Owner::new();
    points += at_each_point(&place, &client, async |n| {
        let release = held_for_a_moment(&other, &client).await;
        let lock = lock_of(&client, "x").owned_by(&owner);
        let dropped = drop_after(n, lock.acquire()).await;
        release.await.unwrap();
        dropped
    })
    .await;
    assert!(points >= 6, "a wait has more await points than {points}");
}

/// Lets another client hold the lock, and release it when `waiter` is in line.
async fn held_for_a_moment(other: &Client, waiter: &Client) -> JoinHandle<()> {
    let guard = lock_of(other, "x").acquire().await.unwrap();
    once_it_waits(waiter, async move { guard.release().await.unwrap() })
}

/// Does the work when `waiter` is in line or a moment has passed.
pub(super) fn once_it_waits(
    waiter: &Client,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let waiter = waiter.clone();
    tokio::spawn(async move {
        for _ in 0..10 {
            if waiter.activity().channels > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        work.await;
    })
}

#[tokio::test]
async fn an_acquire_behind_another_of_the_same_client() {
    let place = place();
    let client = place.client().await;
    at_each_point(&place, &client, async |n| {
        let guard = lock_of(&client, "x").acquire().await.unwrap();
        let first = tokio::spawn({
            let lock = lock_of(&client, "x");
            async move { lock.acquire().await.unwrap().release().await.unwrap() }
        });
        eventually("the first one is in line", async || {
            client.activity().lines == 1
        })
        .await;
        let lock = lock_of(&client, "x");
        let second = drop_after(n, lock.acquire());
        let release = async {
            tokio::task::yield_now().await;
            guard.release().await.unwrap();
        };
        let (dropped, ()) = tokio::join!(second, release);
        first.await.unwrap();
        dropped
    })
    .await;
}

#[tokio::test]
async fn a_release_happens_all_the_same() {
    let place = place();
    let client = place.client().await;
    at_each_point(&place, &client, async |n| {
        let guard = lock_of(&client, "x").acquire().await.unwrap();
        drop_after(n, guard.release()).await
    })
    .await;
    let owner = leasehold::Owner::new();
    at_each_point(&place, &client, async |n| {
        let lock = lock_of(&client, "x").owned_by(&owner);
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        drop(outer);
        drop_after(n, inner.release()).await
    })
    .await;
}

#[tokio::test]
async fn calls_on_a_guard() {
    let place = place();
    let client = place.client().await;
    let lease = Duration::from_secs(60);
    at_each_point(&place, &client, async |n| {
        let guard = lock_of(&client, "x").acquire().await.unwrap();
        let dropped = drop_after(n, guard.extend(lease)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock_of(&client, "x").acquire().await.unwrap();
        let dropped = drop_after(n, guard.fencing_token()).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock_of(&client, "x").acquire().await.unwrap();
        let work = guard.protect(tokio::task::yield_now());
        let dropped = drop_after(n, work).await;
        guard.release().await.unwrap();
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let lock = lock_of(&client, "x").fixed_lease(Duration::from_millis(100));
        let guard = lock.acquire().await.unwrap();
        let dropped = drop_after(n, guard.lost()).await;
        drop(guard);
        dropped
    })
    .await;
}

#[tokio::test]
async fn connecting() {
    let place = place();
    let client = place.client().await;
    when_dropped(&place, &client, || place.client()).await;
}

#[tokio::test]
async fn questions_and_force() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x");
    let owner = leasehold::Owner::new();
    let owned = lock_of(&client, "y").owned_by(&owner);
    when_dropped(&place, &client, || lock.inspect()).await;
    when_dropped(&place, &client, || lock.is_locked()).await;
    when_dropped(&place, &client, || lock.remaining_ttl()).await;
    when_dropped(&place, &client, || lock.force_unlock()).await;
    at_each_point(&place, &client, async |n| {
        let guard = owned.acquire().await.unwrap();
        let dropped = drop_after(n, owned.is_held_by(&owner)).await;
        drop(guard);
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let client = place.client().await;
        drop_after(n, client.close()).await
    })
    .await;
}
