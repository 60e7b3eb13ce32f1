//! The futures of the read-write lock, dropped at each of their await points.

use std::time::Duration;

use leasehold::{Client, RwLock};

use super::cancel::{at_each_point, drop_after, once_it_waits, when_dropped};
use super::place;

const WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn acquires_of_a_free_side() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    at_each_point(&place, &client, async |n| drop_after(n, lock.read()).await).await;
    at_each_point(&place, &client, async |n| drop_after(n, lock.write()).await).await;
    when_dropped(&place, &client, || lock.try_read()).await;
    when_dropped(&place, &client, || lock.try_write()).await;
}

/// Lets another client hold `guard`, and drop it when `waiter` listens.
fn gives_up<G: Send + 'static>(guard: G, waiter: &Client) -> tokio::task::JoinHandle<()> {
    once_it_waits(waiter, async move { drop(guard) })
}

#[tokio::test]
async fn acquires_of_a_held_side() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let (lock, theirs) = (client.rw_lock("x"), other.rw_lock("x"));
    let mut points = 0;
    points += at_each_point(&place, &client, async |n| {
        let release = gives_up(theirs.write().await.unwrap(), &client);
        let dropped = drop_after(n, lock.read()).await;
        release.await.unwrap();
        dropped
    })
    .await;
    points += at_each_point(&place, &client, async |n| {
        let release = gives_up(theirs.read().await.unwrap(), &client);
        let dropped = drop_after(n, lock.write()).await;
        release.await.unwrap();
        dropped
    })
    .await;
    points += at_each_point(&place, &client, async |n| {
        let release = gives_up(theirs.read().await.unwrap(), &client);
        let dropped = drop_after(n, lock.try_write_for(WAIT)).await;
        release.await.unwrap();
        dropped
    })
    .await;
    assert!(points >= 6, "a wait has more await points than {points}");
}

#[tokio::test]
async fn acquires_behind_others_of_the_same_client() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let (lock, theirs) = (client.rw_lock("x"), other.rw_lock("x"));
    at_each_point(&place, &client, async |n| {
        let release = gives_up(theirs.write().await.unwrap(), &client);
        let work = async |lock: RwLock| {
            let guard = lock.write().await.unwrap();
            guard.release().await.unwrap();
        };
        let before = tokio::spawn(work(lock.clone()));
        let reads: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { drop(lock.read().await.unwrap()) })
            })
            .collect();
        tokio::task::yield_now().await;
        let dropped = drop_after(n, lock.read()).await;
        release.await.unwrap();
        before.await.unwrap();
        for read in reads {
            read.await.unwrap();
        }
        dropped
    })
    .await;
}

#[tokio::test]
async fn the_ways_from_one_side_to_the_other() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    at_each_point(&place, &client, async |n| {
        let guard = lock.write().await.unwrap();
        drop_after(n, guard.downgrade()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.read().await.unwrap();
        drop_after(n, guard.try_upgrade()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let beside = lock.read().await.unwrap();
        let guard = lock.read().await.unwrap();
        let refused = drop_after(n, guard.try_upgrade()).await;
        drop(beside);
        refused
    })
    .await;
    let owner = leasehold::Owner::new();
    let lock = lock.owned_by(&owner);
    at_each_point(&place, &client, async |n| {
        let guard = lock.write().await.unwrap();
        drop_after(n, guard.downgrade()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let (outer, inner) = (lock.write().await.unwrap(), lock.write().await.unwrap());
        let reading = drop_after(n, inner.downgrade()).await;
        drop(outer);
        reading
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let writing = lock.write().await.unwrap();
        let reading = drop_after(n, lock.read()).await;
        drop(writing);
        reading
    })
    .await;
}

#[tokio::test]
async fn releases_happen_all_the_same() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    at_each_point(&place, &client, async |n| {
        let guard = lock.write().await.unwrap();
        drop_after(n, guard.release()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.read().await.unwrap();
        drop_after(n, guard.release()).await
    })
    .await;
}
