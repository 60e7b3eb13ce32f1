//! Cancellation of multi-locks and majority locks: dropped at each await point, they leave nothing
//! on any server.

use std::time::Duration;

use leasehold::{Client, LockGuard, MultiLock, RedLock};

use super::cancel::{at_each_point, drop_after, once_it_waits, when_dropped};
use super::place;

fn multi(client: &Client) -> MultiLock {
    MultiLock::new(["a", "b", "c"].map(|name| client.lock(name))).unwrap()
}

/// Releases `guard` when `waiter` is in line.
fn released_soon(guard: LockGuard, waiter: &Client) -> tokio::task::JoinHandle<()> {
    once_it_waits(waiter, async move { guard.release().await.unwrap() })
}

#[tokio::test]
async fn acquires_and_releases_of_free_members() {
    let place = place();
    let client = place.client().await;
    let lock = multi(&client);
    let owner = leasehold::Owner::new();
    let owned = multi(&client)
        .owned_by(&owner)
        .max_hold(Duration::from_secs(60));
    when_dropped(&place, &client, || lock.acquire()).await;
    when_dropped(&place, &client, || lock.try_acquire()).await;
    when_dropped(&place, &client, || owned.acquire()).await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.acquire().await.unwrap();
        drop_after(n, guard.release()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.acquire().await.unwrap();
        let dropped = drop_after(n, guard.extend(Duration::from_secs(60))).await;
        guard.release().await.unwrap();
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.acquire().await.unwrap();
        let dropped = drop_after(n, guard.fencing_token()).await;
        // The next request gets the token.
        guard.fencing_token().await.unwrap();
        guard.release().await.unwrap();
        dropped
    })
    .await;
}

#[tokio::test]
async fn acquires_while_a_member_is_held() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let mut points = 0;
    for name in ["a", "b", "c"] {
        let lock = multi(&client).fixed_lease(Duration::from_secs(30));
        points += at_each_point(&place, &client, async |n| {
            let guard = other.lock(name).acquire().await.unwrap();
            let release = released_soon(guard, &client);
            let dropped = drop_after(n, lock.acquire()).await;
            release.await.unwrap();
            dropped
        })
        .await;
    }
    assert!(points >= 6, "a wait has more await points than {points}");
}

#[tokio::test]
async fn acquires_of_a_group() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let lock = client.group_lock("g", ["a", "b"]);
    when_dropped(&place, &client, || lock.acquire()).await;
    at_each_point(&place, &client, async |n| {
        let guard = lock.acquire().await.unwrap();
        drop_after(n, guard.release()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = other.group_lock("g", ["b"]).acquire().await.unwrap();
        let release = released_soon(guard, &client);
        let dropped = drop_after(n, lock.acquire()).await;
        release.await.unwrap();
        dropped
    })
    .await;
}

#[tokio::test]
async fn acquires_of_a_majority() {
    let places = [place()];
    let places = [&places[0], &places[0].beside(), &places[0].beside()];
    let mut clients = Vec::new();
    for place in places {
        clients.push(place.client().await);
    }
    let other = places[0].client().await;
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let lock = lock
        .distrust_restarted(false)
        .member_timeout(Duration::from_secs(10));
    let all_clean = async || {
        for (place, client) in places.iter().zip(&clients) {
            place.is_clean_but_for_counters(&[client]).await;
        }
    };
    for polls in 0.. {
        let done = drop_after(polls, lock.acquire()).await.is_some();
        all_clean().await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let taken = other.lock("x").acquire().await.unwrap();
        let more = clients[1].lock("x").acquire().await.unwrap();
        let release = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(more);
            drop(taken);
        });
        let dropped = drop_after(polls, lock.acquire()).await;
        release.await.unwrap();
        let done = dropped.is_some();
        drop(dropped);
        all_clean().await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let guard = lock.acquire().await.unwrap();
        let done = drop_after(polls, guard.release()).await.is_some();
        all_clean().await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let guard = lock.acquire().await.unwrap();
        let done = drop_after(polls, guard.fencing_token()).await.is_some();
        guard.fencing_token().await.unwrap();
        guard.release().await.unwrap();
        all_clean().await;
        if done {
            break;
        }
    }
}
