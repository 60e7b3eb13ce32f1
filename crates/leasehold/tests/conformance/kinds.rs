//! One name used as several kinds. Each kind reports what it expected and what it found, in every
//! way to acquire it, and changes nothing.

use leasehold::{Client, Error, ErrorKind, Guard, MultiLock};

use super::{LEASE, place};
use crate::support::Place;

/// Returns the error of a kind when it is acquired.
async fn told(client: &Client, kind: &str) -> Option<Error> {
    match kind {
        "a plain lock" => client.lock("x").try_acquire().await.err(),
        "a fenced lock" => client.fenced_lock("x").try_acquire().await.err(),
        "a fair lock" => client.fair_lock("x").try_acquire().await.err(),
        "a read-write lock" => client.rw_lock("x").try_read().await.err(),
        "a group lock" => client.group_lock("x", ["a"]).try_acquire().await.err(),
        "a semaphore" => client.semaphore("x").try_acquire().await.err(),
        "a semaphore with leases" => client.expirable_semaphore("x").try_acquire().await.err(),
        _ => client.count_down_latch("x").count().await.err(),
    }
}

const KINDS: [&str; 8] = [
    "a plain lock",
    "a fenced lock",
    "a fair lock",
    "a read-write lock",
    "a group lock",
    "a semaphore",
    "a semaphore with leases",
    "a latch",
];

async fn all_but(client: &Client, fitting: &[&str], there: &str) {
    for kind in KINDS.iter().filter(|kind| !fitting.contains(kind)) {
        let error = told(client, kind).await;
        let error = error.unwrap_or_else(|| panic!("{kind} says nothing of {there}"));
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{kind}: {text}");
        assert!(text.contains(&format!("not {kind}")), "{kind}: {text}");
        assert!(text.contains(there), "{kind}: {text}");
    }
}

#[tokio::test]
async fn wrong_kind_errors_name_found_and_expected() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);

    let plain = holder.lock("x").acquire().await.unwrap();
    let locks = ["a plain lock", "a fenced lock", "a fair lock"];
    for kind in ["a read-write lock", "a group lock"] {
        let text = told(&client, kind).await.unwrap().to_string();
        assert!(
            text.contains("lock, not ") || text.contains("locks, not "),
            "{text}"
        );
    }
    all_but(&client, &locks, "").await;
    plain.release().await.unwrap();

    let reading = holder.rw_lock("x").read().await.unwrap();
    all_but(&client, &["a read-write lock"], "").await;
    for kind in locks {
        let text = told(&client, kind).await.unwrap().to_string();
        assert!(
            text.contains(&format!("a read-write lock, not {kind}")),
            "{text}"
        );
    }
    reading.release().await.unwrap();

    let group = holder.group_lock("x", ["a", "b"]).acquire().await.unwrap();
    all_but(&client, &["a group lock"], "").await;
    group.release().await.unwrap();
    place.is_clean(&[&holder, &client]).await;

    holder.semaphore("x").try_set_permits(2).await.unwrap();
    // A latch is a number too: Redisson's formats can't be distinguished.
    let numbers = ["a semaphore", "a semaphore with leases", "a latch"];
    all_but(&client, &numbers, "").await;
    assert!(holder.semaphore("x").delete().await.unwrap());
}

/// Asserts that a guard is valid, can be extended, learns of the loss of its key, and can't be
/// released then.
async fn guards(place: &Place, guard: impl Guard, key: &str) {
    let (name, number) = (guard.name().to_owned(), guard.number());
    assert!(guard.is_held() && number > 0, "{name}");
    let before = guard.valid_until();
    guard.extend(LEASE * 3).await.unwrap();
    assert!(guard.valid_until() > before + LEASE, "{name}");
    assert_eq!(guard.renewal_failure(), None, "{name}");

    let lost = guard.lost();
    place.remove(key);
    guard.extend(LEASE * 6).await.unwrap_err();
    let reason = guard.loss().expect("it is lost");
    assert_eq!(lost.await, reason, "{name}");
    assert!(!guard.is_held(), "{name}");
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{name}");
    assert_eq!(error.loss(), Some(&reason), "{name}");
}

#[tokio::test]
async fn every_guard_is_worked_with_as_a_guard() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let plain = client.lock("plain").acquire().await.unwrap();
    guards(&place, plain, "plain").await;
    let fenced = client.fenced_lock("fenced").acquire().await.unwrap();
    guards(&place, fenced, "fenced").await;
    let writing = client.rw_lock("rw").write().await.unwrap();
    guards(&place, writing, "rw").await;
    let both = MultiLock::new(["m1", "m2"].map(|name| client.lock(name))).unwrap();
    guards(&place, both.acquire().await.unwrap(), "m2").await;

    let seats = client.expirable_semaphore("seats").lease(LEASE);
    assert!(seats.try_set_permits(2).await.unwrap());
    let permit = seats.acquire().await.unwrap();
    guards(&place, permit, "{seats}:timeout").await;

    let lock = client.lock("left");
    Guard::forget(lock.acquire().await.unwrap());
    assert!(lock.is_locked().await.unwrap());
}
