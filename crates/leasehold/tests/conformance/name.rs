//! A name is recognised by its keys, whatever kind of lock or synchronizer it is.

use std::time::Duration;

use leasehold::Client;
use leasehold::inspect::{Found, NameInfo, Ttl};

use super::place;
use crate::support::eventually;

async fn at(client: &Client, name: &str) -> NameInfo {
    client.inspect(name).await.unwrap()
}

#[track_caller]
fn renewed(ttl: Ttl) {
    let Ttl::Left(left) = ttl else {
        panic!("{ttl:?}");
    };
    let lease = Duration::from_secs(30);
    assert!(left > lease / 2 && left <= lease, "{left:?}");
}

#[tokio::test]
async fn a_free_name_is_nothing() {
    let place = place();
    let client = place.client().await;
    let free = at(&client, "x").await;
    assert_eq!(free.found, Found::Nothing);
    assert_eq!(
        (free.ttl, free.waiting, free.last_token),
        (Ttl::Free, None, None)
    );
}

#[tokio::test]
async fn lock_shows_holder_and_last_token() {
    let place = place();
    let client = place.client().await;
    let guard = client.fenced_lock("x").acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Lock(hold) = seen.found else {
        panic!("{seen:?}");
    };
    assert!(hold.id.starts_with(client.id()), "{hold:?}");
    assert_eq!(hold.count, 1);
    renewed(hold.ttl);
    renewed(seen.ttl);
    assert_eq!(seen.last_token, Some(guard.token()));
    assert_eq!(seen.waiting, None, "no key says who waits");
    guard.release().await.unwrap();
    let seen = at(&client, "x").await;
    assert_eq!(seen.found, Found::Nothing);
    assert!(seen.last_token.is_some());
}

#[tokio::test]
async fn fair_waiters_are_shown_in_line_order() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);
    let guard = holder.fair_lock("x").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for number in 1..=2 {
        let lock = client.fair_lock("x");
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        let line = client.fair_lock("x");
        eventually("it stands in line", async || {
            line.waiters().await.unwrap().len() == number
        })
        .await;
    }
    let seen = at(&client, "x").await;
    assert!(matches!(seen.found, Found::Lock(_)), "{seen:?}");
    let line = client.fair_lock("x").waiters().await.unwrap();
    assert_eq!(seen.waiting, Some(line));
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn readers_and_writer_are_shown_separately() {
    let place = place();
    // Readers of one client may share a hold.
    let (client, other) = (place.client().await, place.client().await);
    let (lock, elsewhere) = (client.rw_lock("x"), other.rw_lock("x"));
    let (first, second) = (lock.read().await.unwrap(), elsewhere.read().await.unwrap());
    let seen = at(&client, "x").await;
    let Found::ReadWrite { writer, readers } = seen.found else {
        panic!("{seen:?}");
    };
    assert_eq!(writer, None);
    assert_eq!(readers.len(), 2);
    readers.iter().for_each(|reader| renewed(reader.ttl));
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writing = lock.write().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::ReadWrite { writer, readers } = seen.found else {
        panic!("{seen:?}");
    };
    let writer = writer.expect("it writes");
    assert!(writer.id.ends_with(":write"), "{writer:?}");
    renewed(writer.ttl);
    assert_eq!(readers, []);
    writing.release().await.unwrap();
}

#[tokio::test]
async fn reader_without_its_key_is_unlisted() {
    let place = place();
    // Readers of one client may share a hold.
    let (client, other) = (place.client().await, place.client().await);
    let (lock, elsewhere) = (client.rw_lock("x"), other.rw_lock("x"));
    let (live, dead) = (lock.read().await.unwrap(), elsewhere.read().await.unwrap());
    let key = |hold: &str| format!("{{x}}:{hold}:rwlock_timeout:1");
    let Found::ReadWrite { readers, .. } = at(&client, "x").await.found else {
        panic!("it is read");
    };
    place.remove(&key(&readers[0].id));
    let Found::ReadWrite { readers: left, .. } = at(&client, "x").await.found else {
        panic!("it is read");
    };
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].id, readers[1].id);
    drop((live, dead));
}

#[tokio::test]
async fn a_group_has_its_values_with_their_holders() {
    let place = place();
    let client = place.client().await;
    let fixed = client.group_lock("x", ["a", "b"]).acquire().await.unwrap();
    let other = client.group_lock("x", ["c"]).acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Group(mut values) = seen.found else {
        panic!("{seen:?}");
    };
    assert_eq!(values.len(), 3);
    values.iter().for_each(|value| renewed(value.hold.ttl));
    // Those of one hold have one holder.
    values.sort_by(|a, b| a.hold.id.cmp(&b.hold.id));
    values.dedup_by(|a, b| a.hold.id == b.hold.id);
    assert_eq!(values.len(), 2);
    other.release().await.unwrap();
    fixed.release().await.unwrap();
    assert_eq!(at(&client, "x").await.found, Found::Nothing);
}

#[tokio::test]
async fn expired_group_value_is_unlisted() {
    let place = place();
    let client = place.client().await;
    let kept = client.group_lock("x", ["a"]).acquire().await.unwrap();
    let short = client
        .group_lock("x", ["b"])
        .fixed_lease(Duration::from_millis(50));
    std::mem::forget(short.acquire().await.unwrap());
    eventually("the lease is over", async || {
        let found = at(&client, "x").await.found;
        matches!(found, Found::Group(ref values) if values.len() == 1)
    })
    .await;
    kept.release().await.unwrap();
}

#[tokio::test]
async fn leased_permits_are_listed_with_expiry() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    // Nobody has any: a semaphore without leases and a latch look the same.
    assert_eq!(at(&client, "x").await.found, Found::Count(3));
    let permit = semaphore.acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Leases {
        free,
        held,
        permits,
    } = seen.found
    else {
        panic!("{seen:?}");
    };
    assert_eq!((free, held, permits.len()), (Some(2), 1, 1));
    assert_eq!(permits[0].id, permit.ids()[0].to_string());
    let Ttl::Left(left) = permits[0].ttl else {
        panic!("{permits:?}");
    };
    renewed(Ttl::Left(left));
    // Somebody removes the key by hand: the permits are still in use.
    place.remove("x");
    let seen = at(&client, "x").await;
    assert!(
        matches!(
            seen.found,
            Found::Leases {
                free: None,
                held: 1,
                ..
            }
        ),
        "{seen:?}"
    );
    drop(permit);
}

#[tokio::test]
async fn a_permit_whose_lease_is_over_is_free() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let kept = semaphore.acquire().await.unwrap();
    let short = semaphore.clone().fixed_lease(Duration::from_millis(50));
    std::mem::forget(short.acquire().await.unwrap());
    eventually("the lease is over", async || {
        let found = at(&client, "x").await.found;
        matches!(found, Found::Leases { free: Some(1), held: 1, ref permits } if permits.len() == 1)
    })
    .await;
    drop(kept);
}

#[tokio::test]
async fn latches_and_semaphores_are_told_apart() {
    let place = place();
    let client = place.client().await;
    client.semaphore("x").try_set_permits(2).await.unwrap();
    assert_eq!(at(&client, "x").await.found, Found::Count(2));
    let latch = client.count_down_latch("y");
    assert_eq!(at(&client, "y").await.found, Found::Nothing);
    latch.try_set_count(2).await.unwrap();
    assert_eq!(at(&client, "y").await.found, Found::Latch { left: 2 });
    latch.count_down_by(2).await.unwrap();
    assert_eq!(at(&client, "y").await.found, Found::Latch { left: 0 });
}
