//! The semaphore whose permits have leases: permits that are not released return by themselves.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::{Client, ErrorKind, ExpirableSemaphore, LossReason};

use super::{LEASE, place};
use crate::support::{HOUR, all_refuse_a_hash, drop_after, eventually};

async fn semaphore(client: &Client, permits: u32) -> ExpirableSemaphore {
    let semaphore = client.expirable_semaphore("x").poll_interval(HOUR);
    semaphore.try_set_permits(permits).await.unwrap();
    semaphore
}

/// Returns the capacity, the number of free permits, and the number of permits in use.
async fn counts(semaphore: &ExpirableSemaphore) -> (i64, i64, u64) {
    (
        semaphore.permits().await.unwrap(),
        semaphore.available_permits().await.unwrap(),
        semaphore.acquired_permits().await.unwrap(),
    )
}

async fn waits(client: &Client) {
    eventually("somebody waits", async || client.activity().channels == 1).await;
}

async fn soon<T>(task: tokio::task::JoinHandle<T>) -> T {
    let woken = tokio::time::timeout(Duration::from_secs(20), task).await;
    woken.expect("woken").unwrap()
}

#[tokio::test]
async fn expirable_permits_are_granted_all_or_none() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 10).await;
    let four = semaphore.try_acquire_many(4).await.unwrap().unwrap();
    let five = semaphore.acquire_many(5).await.unwrap();
    assert_eq!((four.ids().len(), five.ids().len()), (4, 5));
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    assert_eq!(counts(&semaphore).await, (10, 1, 9));
    let one = semaphore.acquire().await.unwrap();
    assert_eq!(one.id().to_string().len(), 32);
    one.release().await.unwrap();
    drop(five);
    eventually("five are back", async || {
        counts(&semaphore).await == (10, 6, 4)
    })
    .await;
    four.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (10, 10, 0));
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn only_the_first_client_sets_the_total() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let (first, second) = (
        ours.expirable_semaphore("x"),
        theirs.expirable_semaphore("x"),
    );
    assert_eq!(first.capacity().await.unwrap(), None);
    assert!(first.try_set_permits(2).await.unwrap());
    // Permits in use count too, whether some or all of them are in use.
    for held in 0..=2 {
        let permit = match held {
            0 => None,
            _ => Some(first.acquire_many(held).await.unwrap()),
        };
        assert!(!second.try_set_permits(5).await.unwrap());
        assert_eq!(second.capacity().await.unwrap(), Some(2), "{held} in use");
        if let Some(permit) = permit {
            permit.release().await.unwrap();
        }
    }
    // A total of zero is a number too.
    first.set_permits(0).await.unwrap();
    assert_eq!(second.capacity().await.unwrap(), Some(0));
    assert!(first.delete().await.unwrap());
    assert_eq!(second.capacity().await.unwrap(), None);
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn expirable_semaphore_must_exist_if_required() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x").poll_interval(HOUR);
    let strict = semaphore.clone().must_exist(true);
    let assert_missing = async || {
        let all = async {
            [
                strict.try_acquire().await.map(drop),
                strict.try_acquire_many_for(2, HOUR).await.map(drop),
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
        }
    };
    assert_missing().await;
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    // Another waiter of this process waits for the semaphore to be made.
    let patient = semaphore.clone();
    let patient = tokio::spawn(async move { patient.acquire().await });
    waits(&client).await;
    assert_missing().await;
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permit = soon(patient).await.unwrap();
    // A semaphore without free permits exists.
    assert!(strict.try_acquire().await.unwrap().is_none());
    permit.release().await.unwrap();
    strict.acquire().await.unwrap().release().await.unwrap();
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn permit_leases_end_with_their_semaphore() {
    let place = place();
    let client = place.client().await;
    let (plain, leased) = (client.semaphore("x"), client.expirable_semaphore("x"));
    let life = LEASE * 3;
    assert!(plain.try_set_permits_for(2, life).await.unwrap());
    for lease in [LEASE * 2, HOUR] {
        leased
            .clone()
            .fixed_lease(lease)
            .acquire()
            .await
            .unwrap()
            .forget();
    }
    assert_eq!(counts(&leased).await, (2, 0, 2));
    eventually("it has ended", async || {
        leased.capacity().await.unwrap().is_none()
    })
    .await;
    place.is_clean_but_for(&[], &[&client]).await;
    // The next semaphore of that name has all its permits.
    assert!(leased.try_set_permits(2).await.unwrap());
    assert_eq!(counts(&leased).await, (2, 2, 0));
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn the_total_is_set_whatever_is_in_use() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 10).await;
    assert!(!semaphore.try_set_permits(15).await.unwrap());
    for (total, expected) in [(15, (15, 15, 0)), (15, (15, 15, 0)), (5, (5, 5, 0))] {
        semaphore.set_permits(total).await.unwrap();
        assert_eq!(counts(&semaphore).await, expected);
    }
    let three = semaphore.acquire_many(3).await.unwrap();
    for (total, expected) in [(5, (5, 2, 3)), (3, (3, 0, 3)), (2, (2, -1, 3))] {
        semaphore.set_permits(total).await.unwrap();
        assert_eq!(counts(&semaphore).await, expected);
    }
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    three.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (2, 2, 0));
    semaphore.add_permits(3).await.unwrap();
    assert_eq!(counts(&semaphore).await, (5, 5, 0));
    assert!(semaphore.delete().await.unwrap());
    assert!(!semaphore.delete().await.unwrap());
    semaphore.set_permits(4).await.unwrap();
    assert_eq!(counts(&semaphore).await, (4, 4, 0));
}

#[tokio::test]
async fn waiters_get_an_expired_permit_without_message() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = semaphore(&ours, 2).await;
    semaphore
        .fixed_lease(LEASE)
        .acquire_many(2)
        .await
        .unwrap()
        .forget();
    let other = theirs.expirable_semaphore("x").poll_interval(HOUR);
    let permit = other.try_acquire_for(LEASE * 8).await.unwrap();
    assert!(permit.is_some());
    assert_eq!(counts(&other).await, (2, 1, 1));
}

#[tokio::test]
async fn released_permit_wakes_another_clients_waiter() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = semaphore(&ours, 1).await;
    for by_id in [false, true] {
        let permit = semaphore.acquire().await.unwrap();
        let other = theirs.expirable_semaphore("x").poll_interval(HOUR);
        let waiter = tokio::spawn(async move { other.acquire().await.unwrap() });
        waits(&theirs).await;
        if by_id {
            assert!(
                theirs
                    .expirable_semaphore("x")
                    .release(permit.id())
                    .await
                    .unwrap()
            );
            permit.forget();
        } else {
            permit.release().await.unwrap();
        }
        soon(waiter).await.release().await.unwrap();
        eventually("nobody listens", async || theirs.activity().channels == 0).await;
    }
    place.is_clean_but_for(&["x"], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn renewed_permit_is_held_until_deleted() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let semaphore = semaphore(&client, 3).await;
    let permits = semaphore.acquire_many(3).await.unwrap();
    let kept = tokio::time::timeout(LEASE * 4, permits.lost()).await;
    assert!(kept.is_err(), "lost: {:?}", permits.loss());
    assert_eq!(counts(&semaphore).await, (3, 0, 3));
    // The loss of one permit of three is enough.
    assert!(semaphore.release(permits.ids()[1]).await.unwrap());
    assert_eq!(permits.lost().await, LossReason::Deleted);
    assert!(!permits.is_held());
    let error = permits.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    eventually("the others are back", async || {
        counts(&semaphore).await == (3, 3, 0)
    })
    .await;
    place.is_clean_but_for(&["x"], &[&client]).await;
}

#[tokio::test]
async fn extend_never_shortens_a_permits_lease() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 1).await;
    let permit = semaphore
        .clone()
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap();
    permit.extend(LEASE * 3).await.unwrap();
    let before = permit.valid_until();
    permit.extend(LEASE).await.unwrap();
    assert!(permit.valid_until() >= before, "never shorter");
    assert!(
        semaphore
            .clone()
            .try_acquire_for(LEASE)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(permit.lost().await, LossReason::Expired);
    let next = semaphore.try_acquire_for(LEASE * 8).await.unwrap().unwrap();
    assert_eq!(permit.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (1, 1, 0));
}

#[tokio::test]
async fn permit_is_managed_by_its_id() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 4).await;
    let permits = semaphore
        .clone()
        .fixed_lease(HOUR)
        .acquire_many(3)
        .await
        .unwrap();
    let ids = permits.ids().to_vec();
    permits.forget();
    let Ttl::Left(left) = semaphore.remaining_ttl(ids[0]).await.unwrap() else {
        panic!("it has a lease");
    };
    assert!(left <= HOUR && left > HOUR / 2);
    assert!(semaphore.update_lease(ids[0], LEASE).await.unwrap());
    eventually("its lease is over", async || {
        semaphore.remaining_ttl(ids[0]).await.unwrap() == Ttl::Free
    })
    .await;
    assert!(!semaphore.update_lease(ids[0], HOUR).await.unwrap());
    assert!(!semaphore.release_many(&ids).await.unwrap(), "all or none");
    assert_eq!(counts(&semaphore).await, (4, 2, 2));
    assert!(!semaphore.release(ids[0]).await.unwrap());
    assert!(
        semaphore
            .release_many(&[ids[1], ids[2], ids[1]])
            .await
            .unwrap()
    );
    assert!(!semaphore.release_many(&ids[1..]).await.unwrap(), "once");
    assert_eq!(counts(&semaphore).await, (4, 4, 0));
}

#[tokio::test]
async fn thousands_of_expired_permits_all_come_back() {
    let place = place();
    let client = place.client().await;
    let semaphore = semaphore(&client, 4000).await;
    for _ in 0..4 {
        let thousand = semaphore
            .clone()
            .fixed_lease(LEASE)
            .acquire_many(1000)
            .await;
        thousand.unwrap().forget();
    }
    eventually("all are back", async || {
        counts(&semaphore).await == (4000, 4000, 0)
    })
    .await;
    let last = semaphore.acquire_many(1000).await.unwrap();
    last.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (4000, 4000, 0));
}

#[tokio::test]
async fn dropped_expirable_acquire_leaks_no_permit() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let semaphore = semaphore(&client, 2).await;
    for contended in [false, true] {
        for polls in 0..1000 {
            let theirs = other.expirable_semaphore("x");
            let held = match contended {
                true => Some(theirs.acquire_many(2).await.unwrap()),
                false => None,
            };
            let acquire = drop_after(polls, semaphore.acquire_many(2));
            let release = async {
                for _ in 0..10 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    if client.activity().channels > 0 {
                        break;
                    }
                }
                drop(held);
            };
            let (got, ()) = tokio::join!(acquire, release);
            let done = got.is_some();
            if let Some(got) = got {
                drop_after(1, got.unwrap().release()).await;
            }
            eventually("all are back", async || {
                counts(&semaphore).await == (2, 2, 0)
            })
            .await;
            place.is_clean_but_for(&["x"], &[&client, &other]).await;
            if done {
                break;
            }
            assert!(polls < 999, "it was never acquired");
        }
    }
}

#[tokio::test]
async fn expirable_semaphore_rejects_a_foreign_key() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let semaphore = client.expirable_semaphore("x");
    let id = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
    let errors = [
        semaphore.acquire().await.map(drop).unwrap_err(),
        semaphore.release(id).await.map(drop).unwrap_err(),
        semaphore.release_many(&[id]).await.map(drop).unwrap_err(),
        semaphore
            .update_lease(id, LEASE)
            .await
            .map(drop)
            .unwrap_err(),
        semaphore.remaining_ttl(id).await.map(drop).unwrap_err(),
        semaphore.permits().await.map(drop).unwrap_err(),
        semaphore.set_permits(1).await.unwrap_err(),
        semaphore.try_set_permits(1).await.map(drop).unwrap_err(),
        semaphore.add_permits(1).await.unwrap_err(),
        semaphore.delete().await.map(drop).unwrap_err(),
    ];
    all_refuse_a_hash(errors);
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn invalid_permit_requests_are_refused_unsent() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    for result in [
        client.expirable_semaphore("").acquire().await.map(drop),
        semaphore.acquire_many(0).await.map(drop),
        semaphore.acquire_many(1001).await.map(drop),
        semaphore.release_many(&[]).await.map(drop),
        semaphore.set_permits(1 << 31).await,
        semaphore
            .clone()
            .fixed_lease(Duration::ZERO)
            .acquire()
            .await
            .map(drop),
        "xyz".parse::<leasehold::PermitId>().map(drop),
        "+00102030405060708090a0b0c0d0e0f"
            .parse::<leasehold::PermitId>()
            .map(drop),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Misuse);
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn only_a_plain_semaphore_grants_zero_permits() {
    let place = place();
    let client = place.client().await;
    let (leased, plain) = (client.expirable_semaphore("x"), client.semaphore("x"));
    let wait = Duration::from_secs(10);
    let deadline = tokio::time::Instant::now() + wait;
    for refused in [
        leased.acquire_many(0).await.map(drop),
        leased.try_acquire_many(0).await.map(drop),
        leased.try_acquire_many_for(0, wait).await.map(drop),
        leased.try_acquire_many_until(0, deadline).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.to_string().contains("ask for 1 to 1000"), "{error}");
    }
    for given in [
        Some(plain.acquire_many(0).await.unwrap()),
        plain.try_acquire_many(0).await.unwrap(),
        plain.try_acquire_many_for(0, wait).await.unwrap(),
        plain.try_acquire_many_until(0, deadline).await.unwrap(),
    ] {
        assert_eq!(given.expect("at once").permits(), 0);
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn recreated_total_counts_permits_in_use() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    semaphore.set_permits(3).await.unwrap();
    let permits = semaphore.acquire_many(2).await.unwrap();
    place.remove("x");
    semaphore.set_permits(3).await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
    assert_eq!(semaphore.permits().await.unwrap(), 3);
    permits.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
}
