//! Watches: the changes of a name, for code that does not hold it.

use std::time::Duration;

use leasehold::inspect::{Found, Wants};
use leasehold::watch::{Change, NamedChange, Watch, WatchAll};
use leasehold::{Client, ErrorKind};

use super::cancel::{at_each_point, drop_after};
use super::{LEASE, place};
use crate::support::{HOUR, eventually};

/// A time longer than any wait in these tests, and shorter than `HOUR`.
const LIMIT: Duration = Duration::from_secs(60);

async fn next(watch: &mut Watch) -> Change {
    let change = tokio::time::timeout(LIMIT, watch.next()).await;
    change.expect("in time").expect("it goes on").unwrap()
}

/// Reads changes until `is_it` accepts one.
async fn until(watch: &mut Watch, is_it: impl Fn(&Change) -> bool) -> Change {
    loop {
        let change = next(watch).await;
        if is_it(&change) {
            return change;
        }
    }
}

async fn until_held(watch: &mut Watch, id: &str) {
    until(
        watch,
        |change| matches!(change, Change::Held(holder) if holder.id == id),
    )
    .await;
}

async fn until_released(watch: &mut Watch, id: &str) {
    until(
        watch,
        |change| matches!(change, Change::Released(holder) if holder.id == id),
    )
    .await;
}

async fn until_free(watch: &mut Watch) {
    until(watch, |change| matches!(change, Change::Freed)).await;
}

async fn until_counted(watch: &mut Watch, count: i64) {
    until(
        watch,
        |change| matches!(change, Change::Counted(now) if *now == count),
    )
    .await;
}

/// Returns a watch that never polls.
fn unpolled(client: &Client, name: &str) -> Watch {
    client.watch(name).poll_interval(HOUR)
}

#[tokio::test]
async fn a_lock_is_watched_from_grant_to_release() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let mut watch = other.watch("x");
    assert!(watch.state().is_none());
    until_free(&mut watch).await;
    for _ in 0..3 {
        let guard = client.lock("x").acquire().await.unwrap();
        until_held(&mut watch, guard.holder_id()).await;
        assert!(matches!(watch.state().unwrap().found, Found::Lock(_)));
        let id = guard.holder_id().to_owned();
        guard.release().await.unwrap();
        until_released(&mut watch, &id).await;
        until_free(&mut watch).await;
    }
    drop(watch);
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn release_is_reported_by_its_message() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    // Without the message, the watch would ask at the end of the lease.
    let guard = client.lock("x").lease(HOUR).acquire().await.unwrap();
    let mut watch = unpolled(&other, "x");
    until_held(&mut watch, guard.holder_id()).await;
    // Free and held again: the watch has listened since it saw the first hold.
    guard.release().await.unwrap();
    until_free(&mut watch).await;
    drop(watch);
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn sides_of_a_read_write_lock_are_watched() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let lock = client.rw_lock("x");
    let reads = lock.read().await.unwrap();
    let mut watch = other.watch("x");
    until_held(&mut watch, reads.holder_id()).await;
    let writer = tokio::spawn({
        let lock = other.rw_lock("x");
        async move { lock.write().await.unwrap() }
    });
    until(
        &mut watch,
        |change| matches!(change, Change::Waits(waiter) if waiter.wants == Some(Wants::ToWrite)),
    )
    .await;
    reads.release().await.unwrap();
    let writes = writer.await.unwrap();
    until_held(&mut watch, writes.holder_id()).await;
    writes.release().await.unwrap();
    until_free(&mut watch).await;
    drop(watch);
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn waiters_of_a_fair_lock_are_watched() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let guard = client.fair_lock("x").acquire().await.unwrap();
    let mut watch = client.watch("x");
    until_held(&mut watch, guard.holder_id()).await;
    let lock = other.fair_lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let waits = until(&mut watch, |change| matches!(change, Change::Waits(_))).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    until_held(&mut watch, guard.holder_id()).await;
    let Change::Waits(waits) = waits else {
        panic!("{waits:?}");
    };
    assert!(waits.id.starts_with(other.id()), "{waits:?}");
    guard.release().await.unwrap();
    until_free(&mut watch).await;
    drop(watch);
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn values_of_a_group_are_watched() {
    let place = place();
    let client = place.client().await;
    let both = client.group_lock("x", ["a", "b"]).acquire().await.unwrap();
    let mut watch = unpolled(&client, "x");
    let mut values = Vec::new();
    while values.len() < 2 {
        if let Change::Held(holder) = next(&mut watch).await {
            values.push(holder.value.expect("a value"));
        }
    }
    assert_ne!(values[0], values[1]);
    both.release().await.unwrap();
    until_free(&mut watch).await;
}

#[tokio::test]
async fn permits_and_their_number_are_watched() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.semaphore("x");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    let permit = semaphore.acquire().await.unwrap();
    let mut watch = unpolled(&client, "x");
    until_counted(&mut watch, 2).await;
    permit.release().await.unwrap();
    until_counted(&mut watch, 3).await;

    let semaphore = client.expirable_semaphore("y");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let permit = semaphore.acquire().await.unwrap();
    let mut watch = unpolled(&client, "y");
    let held = until(&mut watch, |change| matches!(change, Change::Held(_))).await;
    until_counted(&mut watch, 1).await;
    permit.release().await.unwrap();
    let Change::Held(held) = held else {
        panic!("{held:?}");
    };
    until_released(&mut watch, &held.id).await;
    until_counted(&mut watch, 2).await;
}

#[tokio::test]
async fn a_latch_is_watched_until_it_opens() {
    let place = place();
    let client = place.client().await;
    let latch = client.count_down_latch("x");
    latch.try_set_count(2).await.unwrap();
    let mut watch = client.watch("x");
    until_counted(&mut watch, 2).await;
    latch.count_down().await.unwrap();
    until_counted(&mut watch, 1).await;
    latch.count_down().await.unwrap();
    until_counted(&mut watch, 0).await;
}

/// No message reports the end of a lease.
#[tokio::test]
async fn end_of_a_lease_is_reported() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x").fixed_lease(LEASE);
    let guard = lock.acquire().await.unwrap();
    let id = guard.holder_id().to_owned();
    std::mem::forget(guard);
    let mut watch = unpolled(&client, "x");
    until_held(&mut watch, &id).await;
    until_released(&mut watch, &id).await;
    until_free(&mut watch).await;
}

#[tokio::test]
async fn new_watch_begins_with_the_present_state() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let mut earlier = unpolled(&other, "x");
    until_free(&mut earlier).await;
    // The earlier watch does not see the grant, which publishes no message.
    let guard = client.lock("x").acquire().await.unwrap();
    let mut watch = unpolled(&other, "x");
    let first = next(&mut watch).await;
    assert!(
        matches!(&first, Change::Held(holder) if holder.id == guard.holder_id()),
        "{first:?}"
    );
    // It gets the same news.
    until_held(&mut earlier, guard.holder_id()).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn slow_reader_gets_the_last_state() {
    let place = place();
    let client = place.client().await;
    let latch = client.count_down_latch("x");
    latch.try_set_count(50).await.unwrap();
    let (mut slow, mut quick) = (client.watch("x"), client.watch("x"));
    until_counted(&mut slow, 50).await;
    for left in (0..50).rev() {
        latch.count_down().await.unwrap();
        if left % 25 == 0 {
            until_counted(&mut quick, left).await;
        }
    }
    let Change::Counted(first) = next(&mut slow).await else {
        panic!("the count has changed");
    };
    assert_eq!(first, 0, "the states in between are not kept");
}

#[tokio::test]
async fn own_connection_is_not_counted() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let guard = client.lock("x").acquire().await.unwrap();
    let mut watch = other.watch("x");
    until_held(&mut watch, guard.holder_id()).await;
    eventually("it listens", async || other.activity().channels == 1).await;
    // Some polls later, no listener was reported.
    let quiet = tokio::time::timeout(3 * Duration::from_secs(1), watch.next());
    let change = quiet.await;
    assert!(change.is_err(), "{change:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn dropped_watch_unsubscribes() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let mut watches = [client.watch("x"), client.watch("x")];
    for watch in &mut watches {
        until_held(watch, guard.holder_id()).await;
    }
    let [first, mut second] = watches;
    drop(first);
    eventually("it listens", async || client.activity().channels == 1).await;
    guard.release().await.unwrap();
    until_free(&mut second).await;
    drop(second);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn reads_are_dropped_at_each_point() {
    let place = place();
    let client = place.client().await;
    at_each_point(&place, &client, async |n| {
        let mut watch = client.watch("x");
        drop_after(n, watch.next()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = client.lock("x").acquire().await.unwrap();
        let mut watch = unpolled(&client, "x");
        until_held(&mut watch, guard.holder_id()).await;
        guard.release().await.unwrap();
        let dropped = drop_after(n, watch.next()).await;
        // The dropped call has lost nothing.
        if dropped.is_none() {
            until_free(&mut watch).await;
        }
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let guard = client.lock("x").acquire().await.unwrap();
        let mut watch = client.watch_all("*");
        let dropped = drop_after(n, watch.next()).await;
        guard.release().await.unwrap();
        dropped
    })
    .await;
}

#[tokio::test]
async fn closed_client_ends_its_watches() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let _guard = other.lock("x").acquire().await.unwrap();
    let (mut watch, mut all) = (unpolled(&client, "x"), client.watch_all("*"));
    until(&mut watch, |change| matches!(change, Change::Held(_))).await;
    all.next().await.expect("a name").unwrap();
    client.close().await;
    assert!(watch.next().await.is_none());
    assert!(watch.next().await.is_none());
    while let Some(change) = all.next().await {
        change.unwrap();
    }
    assert!(client.watch("x").next().await.is_none());
}

#[tokio::test]
async fn bad_settings_are_an_error_and_the_end() {
    let place = place();
    let client = place.client().await;
    for mut watch in [
        client.watch(""),
        client.watch("x").poll_interval(Duration::ZERO),
    ] {
        let error = watch.next().await.expect("an error").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(watch.next().await.is_none());
    }
    for mut watch in [
        client.watch_all("[a"),
        client.watch_all("*").rescan_every(Duration::ZERO),
    ] {
        let error = watch.next().await.expect("an error").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(watch.next().await.is_none());
    }
}

async fn of_all(watch: &mut WatchAll, is_it: impl Fn(&NamedChange) -> bool) -> NamedChange {
    loop {
        let change = tokio::time::timeout(LIMIT, watch.next()).await;
        let change = change.expect("in time").expect("it goes on").unwrap();
        if is_it(&change) {
            return change;
        }
    }
}

#[tokio::test]
async fn all_names_of_a_pattern_are_watched() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let first = client.lock("job:1").acquire().await.unwrap();
    let outside = client.lock("other").acquire().await.unwrap();
    let often = Duration::from_millis(20);
    let mut watch = other.watch_all("job:*").rescan_every(often);
    let is_held = |name: &'static str| {
        move |one: &NamedChange| one.name == name && matches!(one.change, Change::Held(_))
    };
    of_all(&mut watch, is_held("job:1")).await;
    // A later listing finds it.
    let second = client.lock("job:2").acquire().await.unwrap();
    let held = of_all(&mut watch, |one| matches!(one.change, Change::Held(_))).await;
    assert_eq!(held.name, "job:2", "only what matches");
    first.release().await.unwrap();
    let free = of_all(&mut watch, |one| matches!(one.change, Change::Freed)).await;
    assert_eq!(free.name, "job:1");
    second.release().await.unwrap();
    outside.release().await.unwrap();
    of_all(&mut watch, |one| matches!(one.change, Change::Freed)).await;
    assert_eq!(watch.left_out(), 0);
    // Free names are forgotten while it is read.
    eventually("no name is watched", async || {
        let _ = tokio::time::timeout(often, watch.next()).await;
        other.activity().channels == 0
    })
    .await;
    // They are found again.
    let third = client.lock("job:1").acquire().await.unwrap();
    of_all(&mut watch, is_held("job:1")).await;
    third.release().await.unwrap();
    drop(watch);
    place.is_clean(&[&client, &other]).await;
}
