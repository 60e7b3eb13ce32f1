//! The semaphore: never more permits than it has, all of a request at once, none lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, ErrorKind, Semaphore};

use super::{LEASE, place};
use crate::support::{HOUR, Place, all_refuse_a_hash, drop_after, eventually};

/// Makes a semaphore with `permits` permits. Its poll interval is long enough that no poll replaces
/// a wake-up.
async fn semaphore(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    semaphore.try_set_permits(permits).await.unwrap();
    semaphore
}

async fn free(semaphore: &Semaphore) -> i64 {
    semaphore.available_permits().await.unwrap()
}

async fn waits(client: &Client) {
    eventually("somebody waits", async || client.activity().channels == 1).await;
}

async fn soon<T>(task: tokio::task::JoinHandle<T>) -> T {
    let woken = tokio::time::timeout(Duration::from_secs(20), task).await;
    woken.expect("woken").unwrap()
}

#[tokio::test]
async fn permits_are_granted_all_or_none() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = semaphore(&ours, 5).await;
    let three = semaphore.acquire_many(3).await.unwrap();
    assert_eq!((three.permits(), free(&semaphore).await), (3, 2));
    assert!(semaphore.try_acquire_many(3).await.unwrap().is_none());
    assert_eq!(free(&semaphore).await, 2, "nothing was taken");
    let other = theirs.semaphore("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { other.acquire_many(4).await.unwrap() });
    waits(&theirs).await;
    let mut three = three;
    let one = three.split(1).unwrap();
    one.release().await.unwrap();
    assert_eq!(free(&semaphore).await, 3, "too few for the waiter");
    three.release().await.unwrap();
    let four = soon(waiter).await;
    assert_eq!(free(&semaphore).await, 1);
    four.release().await.unwrap();
    assert_eq!(free(&semaphore).await, 5);
    place.is_clean_but_for(&["x"], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn semaphore_counts_as_in_redisson() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x");
    assert_eq!(free(&semaphore).await, 0);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert!(!semaphore.release_if_exists(2).await.unwrap());
    assert_eq!(semaphore.drain().await.unwrap(), 0);
    assert!(semaphore.try_set_permits(10).await.unwrap());
    assert!(!semaphore.try_set_permits(15).await.unwrap());
    semaphore.acquire_many(10).await.unwrap().forget();
    semaphore.add_permits(4).await.unwrap();
    assert_eq!(free(&semaphore).await, 4);
    semaphore.release(10).await.unwrap();
    assert_eq!(free(&semaphore).await, 14, "over the number that was set");
    assert!(semaphore.release_if_exists(1).await.unwrap());
    assert_eq!(semaphore.drain().await.unwrap(), 15);
    semaphore.add_permits(-3).await.unwrap();
    assert_eq!(free(&semaphore).await, -3);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(semaphore.drain().await.unwrap(), -3);
    assert_eq!(free(&semaphore).await, 0);
    assert!(semaphore.delete().await.unwrap());
    assert!(!semaphore.delete().await.unwrap());
    semaphore.release(1).await.unwrap();
    assert_eq!(free(&semaphore).await, 1, "made by a release");
}

#[tokio::test]
async fn acquiring_zero_permits_changes_nothing() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x");
    let none = semaphore.acquire_many(0).await.unwrap();
    assert_eq!(none.permits(), 0);
    none.release().await.unwrap();
    semaphore.release(0).await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn using_permits_keeps_the_semaphores_expiry() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x");
    assert!(semaphore.try_set_permits_for(3, LEASE).await.unwrap());
    semaphore.add_permits(2).await.unwrap();
    semaphore.drain().await.unwrap();
    semaphore.release(1).await.unwrap();
    eventually("it is gone", async || !place.keys().contains(&"x".into())).await;
}

#[tokio::test]
async fn dropped_permits_return_and_forgotten_ones_stay() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 6).await;
    let mut permit = semaphore.acquire_many(5).await.unwrap();
    let two = permit.split(2).unwrap();
    assert!(permit.split(4).is_none());
    let nothing = permit.split(0).unwrap();
    assert_eq!((permit.permits(), two.permits()), (3, 2));
    permit.merge(nothing);
    drop(two);
    eventually("two are back", async || free(&semaphore).await == 3).await;
    permit.forget();
    let mut one = semaphore.acquire().await.unwrap();
    one.merge(semaphore.acquire_many(2).await.unwrap());
    assert_eq!((one.permits(), free(&semaphore).await), (3, 0));
    drop(one);
    eventually("three are back", async || free(&semaphore).await == 3).await;
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn overflowing_merge_returns_the_permits() {
    const MOST: u32 = i32::MAX as u32;
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x");
    assert!(semaphore.try_set_permits(MOST).await.unwrap());
    let mut permit = semaphore.acquire_many(MOST).await.unwrap();
    for more in [MOST, 2] {
        semaphore.release(more).await.unwrap();
        let other = semaphore.acquire_many(more).await.unwrap();
        let merge = std::panic::AssertUnwindSafe(|| permit.merge(other));
        assert_eq!(std::panic::catch_unwind(merge).is_err(), more == 2);
    }
    assert_eq!(permit.permits(), 2 * MOST, "nothing was added");
    eventually("two are back", async || free(&semaphore).await == 2).await;
    permit.forget();
    assert!(semaphore.delete().await.unwrap());
    place.is_clean_but_for(&[], &[&client]).await;
}

#[tokio::test]
async fn every_new_permit_wakes_another_clients_waiter() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = ours.semaphore("x");
    for how in ["set", "release", "add", "drop", "if there"] {
        let permit = match how {
            "drop" => {
                semaphore.release(1).await.unwrap();
                Some(semaphore.acquire().await.unwrap())
            }
            _ => None,
        };
        let other = theirs.semaphore("x").poll_interval(HOUR);
        let waiter = tokio::spawn(async move { other.acquire().await.unwrap() });
        waits(&theirs).await;
        match how {
            "set" => assert!(semaphore.try_set_permits(1).await.unwrap()),
            "release" => semaphore.release(1).await.unwrap(),
            "add" => semaphore.add_permits(1).await.unwrap(),
            "if there" => assert!(semaphore.release_if_exists(1).await.unwrap()),
            _ => drop(permit),
        }
        soon(waiter).await.forget();
        eventually("nobody listens", async || theirs.activity().channels == 0).await;
    }
}

#[tokio::test]
async fn missing_semaphore_fails_if_required() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    let strict = semaphore.clone().must_exist(true);
    let assert_missing = async || {
        let all = async {
            [
                strict.try_acquire().await.map(drop),
                strict.try_acquire_for(HOUR).await.map(drop),
                strict.acquire().await.map(drop),
            ]
        };
        let all = tokio::time::timeout(Duration::from_secs(20), all).await;
        for missing in all.expect("nobody waits") {
            let error = missing.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(
                error.to_string().contains(&format!("`{}`", place.key("x"))),
                "{error}"
            );
            assert!(error.to_string().contains("try_set_permits"), "{error}");
        }
    };
    assert_missing().await;
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    // Another waiter of this process waits for the semaphore to be made.
    let patient = semaphore.clone();
    let patient = tokio::spawn(async move { patient.acquire().await });
    eventually("one waits", async || client.activity().channels == 1).await;
    assert_missing().await;
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permit = patient.await.unwrap().unwrap();
    // A semaphore without free permits exists.
    assert!(strict.try_acquire().await.unwrap().is_none());
    let waits = strict.clone();
    let waits = tokio::spawn(async move { waits.acquire().await });
    eventually("one waits", async || client.activity().channels == 1).await;
    permit.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn small_requests_never_overtake_a_large_one() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 4).await;
    let mut held = semaphore.acquire_many(4).await.unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for permits in [3, 1, 2, 1] {
        let (semaphore, sender) = (semaphore.clone(), sender.clone());
        tokio::spawn(async move {
            let permit = semaphore.acquire_many(permits).await.unwrap();
            sender.send(permits).unwrap();
            permit.forget();
        });
        // Each waiter has its place before the next one asks.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    waits(&client).await;
    assert!(semaphore.try_acquire().await.unwrap().is_none(), "in line");
    for _ in 0..2 {
        held.split(1).unwrap().release().await.unwrap();
    }
    assert_eq!(free(&semaphore).await, 2, "kept for the first one");
    assert!(served.try_recv().is_err());
    held.release().await.unwrap();
    assert_eq!(
        (served.recv().await, served.recv().await),
        (Some(3), Some(1))
    );
    semaphore.release(3).await.unwrap();
    assert_eq!(
        (served.recv().await, served.recv().await),
        (Some(2), Some(1))
    );
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn aborted_waiter_costs_no_permit() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = semaphore(&ours, 2).await;
    let held = semaphore.acquire_many(2).await.unwrap();
    let other = theirs.semaphore("x").poll_interval(HOUR);
    let waiter = |permits| {
        let other = other.clone();
        tokio::spawn(async move { other.acquire_many(permits).await.unwrap() })
    };
    let head = waiter(2);
    waits(&theirs).await;
    let (second, third) = (waiter(1), waiter(1));
    tokio::task::yield_now().await;
    // The waiters are aborted together with the release: the permits may be granted to them first.
    head.abort();
    second.abort();
    held.release().await.unwrap();
    drop(soon(third).await);
    eventually("both are back", async || free(&semaphore).await == 2).await;
    assert!(
        semaphore
            .try_acquire_many_for(3, LEASE / 2)
            .await
            .unwrap()
            .is_none()
    );
    place.is_clean_but_for(&["x"], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn contended_permits_are_neither_exceeded_nor_lost() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let first = semaphore(&clients[0], 5).await;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut running = tokio::task::JoinSet::new();
    for task in 0..24_u32 {
        let semaphore = clients[task as usize % 2].semaphore("x");
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        running.spawn(async move {
            for round in 0..20 {
                let permits = (task + round) % 4 + 1;
                let permit = semaphore.acquire_many(permits).await.unwrap();
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(permits, Ordering::SeqCst);
                match round % 2 {
                    0 => permit.release().await.unwrap(),
                    _ => drop(permit),
                }
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 5, "all of them, and no more");
    eventually("all are back", async || free(&first).await == 5).await;
    place
        .is_clean_but_for(&["x"], &[&clients[0], &clients[1]])
        .await;
}

/// Drops the future of `make` at each await point until it runs to its end. Each time, all
/// `permits` must return.
async fn at_each_point<T>(
    place: &Place,
    client: &Client,
    permits: i64,
    mut make: impl AsyncFnMut(usize) -> Option<T>,
) -> usize {
    let semaphore = client.semaphore("x");
    for polls in 0..1000 {
        let output = make(polls).await;
        let done = output.is_some();
        drop(output);
        place.is_clean_but_for(&["x"], &[client]).await;
        assert_eq!(free(&semaphore).await, permits, "dropped at point {polls}");
        if done {
            return polls;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn dropped_semaphore_acquire_leaks_no_permit() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let semaphore = semaphore(&client, 3).await;
    let wait = Duration::from_secs(60);
    at_each_point(&place, &client, 3, async |n| {
        drop_after(n, semaphore.acquire_many(2)).await
    })
    .await;
    at_each_point(&place, &client, 3, async |n| {
        drop_after(n, semaphore.try_acquire_many(2)).await
    })
    .await;
    let points = at_each_point(&place, &client, 3, async |n| {
        let held = other.semaphore("x").acquire_many(2).await.unwrap();
        let acquire = drop_after(n, semaphore.try_acquire_many_for(2, wait));
        let release = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if client.activity().channels > 0 {
                    break;
                }
            }
            held.release().await.unwrap();
        };
        tokio::join!(acquire, release).0
    })
    .await;
    assert!(points >= 2, "a wait has more await points than {points}");
}

#[tokio::test]
async fn dropped_head_leaves_others_their_permits() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let semaphore = semaphore(&client, 3).await;
    at_each_point(&place, &client, 3, async |n| {
        let held = other.semaphore("x").acquire_many(3).await.unwrap();
        let head = drop_after(n, semaphore.acquire());
        let behind = async {
            tokio::task::yield_now().await;
            semaphore.acquire_many(2).await.unwrap()
        };
        let release = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            held.release().await.unwrap();
        };
        let (head, behind, ()) = tokio::join!(head, behind, release);
        drop(behind);
        head
    })
    .await;
}

#[tokio::test]
async fn dropped_permit_release_happens_once() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 3).await;
    at_each_point(&place, &client, 3, async |n| {
        let permit = semaphore.acquire_many(2).await.unwrap();
        drop_after(n, permit.release()).await
    })
    .await;
}

#[tokio::test]
async fn semaphore_rejects_a_foreign_key() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let semaphore = client.semaphore("x");
    let errors = [
        semaphore.acquire().await.map(drop).unwrap_err(),
        semaphore.try_acquire().await.map(drop).unwrap_err(),
        semaphore.release(1).await.unwrap_err(),
        semaphore.release_if_exists(1).await.map(drop).unwrap_err(),
        semaphore.add_permits(-1).await.unwrap_err(),
        semaphore.drain().await.map(drop).unwrap_err(),
        semaphore.available_permits().await.map(drop).unwrap_err(),
        semaphore.try_set_permits(1).await.map(drop).unwrap_err(),
        semaphore.delete().await.map(drop).unwrap_err(),
    ];
    all_refuse_a_hash(errors);
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn invalid_semaphore_requests_are_refused_unsent() {
    let place = place();
    let client = place.client().await;
    let too_many = 1 << 31;
    for result in [
        client.semaphore("").acquire().await.map(drop),
        client.semaphore("x").acquire_many(too_many).await.map(drop),
        client.semaphore("x").release(too_many).await,
        client
            .semaphore("x")
            .try_set_permits(too_many)
            .await
            .map(drop),
        client
            .semaphore("x")
            .poll_interval(Duration::ZERO)
            .acquire()
            .await
            .map(drop),
        client
            .semaphore("x")
            .try_acquire_for(Duration::ZERO)
            .await
            .map(drop),
        client
            .semaphore("x")
            .try_set_permits_for(1, Duration::ZERO)
            .await
            .map(drop),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Misuse);
    }
    client.close().await;
    let error = client.semaphore("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    place.is_clean(&[&client]).await;
}
