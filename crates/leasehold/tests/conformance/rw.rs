//! The read-write lock: which side excludes which, each hold's own end, changes from one side to
//! the other, and which side is served first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::inspect::Ttl;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{ErrorKind, LossReason, Owner, RwLock};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{LEASE, place};
use crate::support::{HOUR, Place, eventually};

/// Returns the key that a read hold of `x` has in Redis in addition to its field.
fn own_key(holder: &str) -> String {
    format!("{{x}}:{holder}:rwlock_timeout:1")
}

/// Awaits a task that a message wakes. It must end long before a lease of 30 s.
async fn soon<T>(task: tokio::task::JoinHandle<T>) -> T {
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, task)
        .await
        .expect("woken")
        .unwrap()
}

/// Makes a lock whose waiters are woken by messages alone.
fn patient(lock: &RwLock) -> RwLock {
    lock.clone().prefer_writers(false).poll_interval(HOUR)
}

#[tokio::test]
async fn expired_readers_do_not_delay_a_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = ours.rw_lock("x");
    // With this number of readers, one release in a few checks all of them anyway.
    for many in [150, 177, 211, 258, 300] {
        let last = lock.clone().fixed_lease(HOUR).read().await.unwrap();
        let short = lock.clone().fixed_lease(LEASE);
        for dead in join_all((0..many).map(|_| short.read())).await {
            dead.unwrap().forget();
        }
        eventually("their leases are over", async || {
            let info = lock.read_lock().inspect().await.unwrap();
            info.holders.len() == 1
        })
        .await;
        let other = patient(&theirs.rw_lock("x"));
        let writer = tokio::spawn(async move { other.write().await.unwrap() });
        eventually("it listens", async || theirs.activity().channels == 1).await;
        last.release().await.unwrap();
        soon(writer).await.release().await.unwrap();
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn readers_share_and_writers_exclude() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let (lock, other) = (ours.rw_lock("x"), theirs.rw_lock("x"));
    let reading = [
        lock.read().await.unwrap(),
        lock.read().await.unwrap(),
        other.try_read().await.unwrap().expect("readers share"),
    ];
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(other.try_write().await.unwrap().is_none());
    for guard in reading {
        assert!(lock.try_write().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
    let writing = other.try_write().await.unwrap().expect("free");
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(lock.try_read().await.unwrap().is_none());
    let wait = LEASE / 2;
    assert!(lock.try_read_for(wait).await.unwrap().is_none());
    assert!(lock.try_write_for(wait).await.unwrap().is_none());
    writing.release().await.unwrap();
    drop(lock.write().await.unwrap());
    drop(lock.read().await.unwrap());
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn last_release_wakes_the_other_side() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let (lock, other) = (patient(&ours.rw_lock("x")), patient(&theirs.rw_lock("x")));
    let (first, last) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let writer = tokio::spawn(async move { other.write().await.unwrap() });
    eventually("it listens", async || theirs.activity().channels == 1).await;
    first.release().await.unwrap();
    assert!(!writer.is_finished());
    drop(last);
    let writing = soon(writer).await;

    let clients = [ours, theirs, place.client().await];
    let readers: Vec<_> = (0..30)
        .map(|n| {
            let lock = patient(&clients[n % 3].rw_lock("x"));
            tokio::spawn(async move { lock.read().await.unwrap() })
        })
        .collect();
    eventually("all listen", async || {
        clients.iter().all(|client| client.activity().channels == 1)
    })
    .await;
    writing.release().await.unwrap();
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(soon(reader).await);
    }
    // No reader had to leave before another could enter.
    assert!(guards.iter().all(|guard| guard.is_held()));
    drop(guards);
    place
        .is_clean(&[&clients[0], &clients[1], &clients[2]])
        .await;
}

#[tokio::test]
async fn expired_read_hold_spares_the_others() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = client.rw_lock("x");
    let short = lock.clone().fixed_lease(LEASE / 3).read().await.unwrap();
    let renewed = lock.read().await.unwrap();
    assert_eq!(short.lost().await, LossReason::Expired);
    let id = short.holder_id().to_owned();
    // Redisson would report both as holders, and let the dead one be released.
    eventually("the server has ended it", async || {
        place.ttl_ms(&own_key(&id)) == -2
    })
    .await;
    let info = lock.read_lock().inspect().await.unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].id, renewed.holder_id());
    let error = short.release().await.unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Expired));
    assert!(renewed.is_held());
    assert!(lock.try_write().await.unwrap().is_none());
    renewed.release().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_some());
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn longest_read_hold_sets_the_expiry() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let lease = |secs| lock.clone().fixed_lease(Duration::from_secs(secs));
    let long = lease(60).read().await.unwrap();
    let longest = lease(90).read().await.unwrap();
    let short = lease(10).read().await.unwrap();
    assert!(place.ttl_ms("x") > 80_000, "a shorter one changes nothing");
    short.extend(Duration::from_secs(20)).await.unwrap();
    assert!(place.ttl_ms("x") > 80_000);
    longest.release().await.unwrap();
    let ttl = place.ttl_ms("x");
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    short.release().await.unwrap();
    assert!(place.ttl_ms("x") > 50_000);
    long.extend(Duration::from_secs(200)).await.unwrap();
    assert!(place.ttl_ms("x") > 190_000);
    long.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn reader_without_its_key_blocks_nobody() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let other = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = client.rw_lock("x");
    let dead = lock.clone().fixed_lease(HOUR).read().await.unwrap();
    let reader = lock.read().await.unwrap();
    // Two readers of one client could share a hold.
    let told = other.rw_lock("x").read().await.unwrap();
    place.remove(&own_key(dead.holder_id()));
    place.remove(&own_key(told.holder_id()));
    let lost = tokio::time::timeout(LEASE * 10, told.lost()).await;
    assert_eq!(lost.expect("told"), LossReason::Deleted);
    assert!(reader.is_held());
    drop(told);
    // The field of the dead reader is removed with the last living reader.
    reader.release().await.unwrap();
    let writing = lock.try_write().await.unwrap().expect("nobody reads");
    assert!(dead.release().await.is_err());
    writing.release().await.unwrap();
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn dead_readers_fields_are_swept_while_read() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let always = lock.read().await.unwrap();
    // Readers of one client could share a hold.
    let others = [place.client().await, place.client().await];
    for other in &others {
        let killed = other.rw_lock("x").read().await.unwrap();
        place.remove(&own_key(killed.holder_id()));
        killed.forget();
    }
    let last = lock.clone().fixed_lease(LEASE).read().await.unwrap();
    last.release().await.unwrap();
    // Redisson knows a holder by its field.
    let info = lock.read_lock().inspect().await.unwrap();
    assert_eq!(info.holders.len(), 1);
    let upgraded = always.try_upgrade().await.unwrap();
    upgraded.release().await.unwrap();
    place.is_clean(&[&client, &others[0], &others[1]]).await;
}

#[tokio::test]
async fn a_downgrade_lets_readers_in_and_no_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = patient(&ours.rw_lock("x"));
    let writing = lock.write().await.unwrap();
    let other = patient(&theirs.rw_lock("x"));
    let (reader, writer) = (other.clone(), other.clone());
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    let reader = tokio::spawn(async move { reader.read().await.unwrap() });
    eventually("both wait", async || {
        theirs.activity().channels == 1 && theirs.activity().lines == 1
    })
    .await;
    let reading = writing.downgrade().await.unwrap();
    let beside = soon(reader).await;
    assert!(reading.is_held() && beside.is_held());
    assert!(!writer.is_finished());
    assert!(!lock.write_lock().is_locked().await.unwrap());
    let info = lock.read_lock().inspect().await.unwrap();
    assert_eq!(info.holders.len(), 2);
    reading.release().await.unwrap();
    beside.release().await.unwrap();
    soon(writer).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn downgraded_hold_keeps_its_lease_terms() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = client.rw_lock("x");
    let reading = lock.write().await.unwrap().downgrade().await.unwrap();
    let lost = tokio::time::timeout(LEASE * 3, reading.lost()).await;
    assert!(lost.is_err(), "renewed: {lost:?}");
    reading.release().await.unwrap();
    let short = lock.fixed_lease(LEASE);
    let reading = short.write().await.unwrap().downgrade().await.unwrap();
    assert_eq!(reading.lost().await, LossReason::Expired);
    drop(reading);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn lost_write_hold_is_not_downgraded() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let writing = lock.write().await.unwrap();
    place.remove("x");
    let other = lock.write().await.unwrap();
    let error = writing.downgrade().await.unwrap_err();
    let by = other.holder_id().to_owned();
    assert_eq!(error.loss(), Some(&LossReason::Taken { by }));
    other.release().await.expect("it was left alone");
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn only_the_sole_reader_is_upgraded() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let (lock, other) = (ours.rw_lock("x"), theirs.rw_lock("x"));
    let reading = lock.read().await.unwrap();
    let beside = other.read().await.unwrap();
    let refused = reading.try_upgrade().await.unwrap_err();
    assert!(refused.error().is_none());
    assert!(
        refused
            .to_string()
            .contains(&format!("`{}`", place.key("x"))),
        "{refused}"
    );
    let reading = refused.into_guard();
    assert!(reading.is_held());
    beside.release().await.unwrap();
    let writing = reading.try_upgrade().await.unwrap();
    assert!(other.try_read().await.unwrap().is_none());
    let left = lock.read_lock();
    eventually("the read hold goes", async || {
        !left.is_locked().await.unwrap()
    })
    .await;
    assert!(writing.is_held());
    let reading = writing.downgrade().await.unwrap();
    assert!(other.try_read().await.unwrap().is_some());
    reading.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn two_upgrades_never_wait_for_each_other() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let (a, b) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let (a, b) = tokio::join!(a.try_upgrade(), b.try_upgrade());
    let a = a.unwrap_err().into_guard();
    b.unwrap_err().into_guard().release().await.unwrap();
    a.try_upgrade().await.unwrap().release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn lost_read_hold_is_not_upgraded() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let reading = lock.read().await.unwrap();
    place.remove(&own_key(reading.holder_id()));
    let refused = reading.try_upgrade().await.unwrap_err();
    assert_eq!(refused.error().unwrap().kind(), ErrorKind::Lost);
    assert!(refused.into_guard().release().await.is_err());
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn upgrading_a_forced_read_hold_reports_loss() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x");
    let reading = lock.read().await.unwrap();
    let forced = lock.read_lock().force_unlock().await;
    assert!(forced.unwrap());
    let refused = reading.try_upgrade().await.unwrap_err();
    let error = refused.error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let reason = refused.into_guard().loss();
    assert_eq!(reason, Some(crate::support::forced()));
}

#[tokio::test]
async fn owners_read_and_write_end_independently() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let other = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner);
    for read_first in [true, false] {
        let writing = lock.write().await.unwrap();
        assert_eq!(lock.write().await.unwrap().hold_count(), 2);
        let reading = lock.read().await.unwrap();
        assert_eq!(
            writing.holder_id(),
            format!("{}:write", reading.holder_id()),
            "as one thread of Redisson"
        );
        assert!(lock.read_lock().is_held_by(&owner).await.unwrap());
        assert!(lock.write_lock().is_held_by(&owner).await.unwrap());
        assert!(other.rw_lock("x").try_read().await.unwrap().is_none());
        // The end of one side does not end the other side's renewal.
        if read_first {
            reading.release().await.unwrap();
            let lost = tokio::time::timeout(LEASE * 2, writing.lost()).await;
            assert!(lost.is_err(), "{lost:?}");
            let again = lock.read().await.unwrap();
            assert_ne!(
                writing.holder_id(),
                format!("{}:write", again.holder_id()),
                "an id belongs to one hold"
            );
            again.release().await.unwrap();
            writing.release().await.unwrap();
        } else {
            writing.release().await.unwrap();
            let beside = other.rw_lock("x").try_read().await.unwrap();
            assert!(beside.is_some(), "it has been downgraded");
            let lost = tokio::time::timeout(LEASE * 2, reading.lost()).await;
            assert!(lost.is_err(), "{lost:?}");
            reading.release().await.unwrap();
        }
        place.is_clean(&[&client]).await;
    }
}

#[tokio::test]
async fn nested_read_never_shortens_the_write() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner);
    let long = lock.clone().fixed_lease(Duration::from_secs(120));
    let writing = long.write().await.unwrap();
    let short = lock
        .fixed_lease(Duration::from_secs(10))
        .read()
        .await
        .unwrap();
    short.release().await.unwrap();
    // Redisson would shorten it to the lease that remains to the read holds: to nothing, here.
    assert!(place.ttl_ms("x") > 110_000);
    assert!(writing.is_held());
    writing.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn owners_reads_pass_a_waiting_writer() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner);
    let writing = lock.write().await.unwrap();
    let stranger = client.rw_lock("x");
    let waiting = tokio::spawn(async move { stranger.write().await.unwrap() });
    eventually("it waits", async || client.activity().channels == 1).await;
    // The owner's reads do not wait for the writer that is in line.
    let reads = async move { (lock.read().await.unwrap(), lock.read().await.unwrap()) };
    let (reading, again) = soon(tokio::spawn(reads)).await;
    writing.release().await.unwrap();
    assert!(!waiting.is_finished());
    drop(again);
    reading.release().await.unwrap();
    soon(waiting).await.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn owner_that_reads_is_refused_writing() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner);
    let reading = lock.read().await.unwrap();
    let error = lock.write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(
        error.to_string().contains(&format!("`{}`", place.key("x"))),
        "{error}"
    );
    assert!(error.to_string().contains("try_upgrade"), "{error}");
    let error = lock.try_write_for(HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(lock.try_write().await.unwrap().is_none(), "it only asks");
    let writing = reading.try_upgrade().await.unwrap();
    let inside = lock.write().await.unwrap();
    assert_eq!(inside.hold_count(), 2);
    // Another guard still writes, so this guard now reads inside that write hold.
    let reading = inside.downgrade().await.unwrap();
    assert!(client.rw_lock("x").try_read().await.unwrap().is_none());
    writing.release().await.unwrap();
    assert!(client.rw_lock("x").try_read().await.unwrap().is_some());
    reading.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn a_writer_that_waits_keeps_new_readers_out() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let reading = ours.rw_lock("x").read().await.unwrap();
    let lock = theirs.rw_lock("x");
    let writer = tokio::spawn(async move { lock.write().await.unwrap() });
    for client in [&ours, &theirs] {
        let lock = client.rw_lock("x");
        eventually("readers stay out", async || {
            lock.try_read().await.unwrap().is_none()
        })
        .await;
        let rude = lock.prefer_writers(false);
        if client.id() == ours.id() {
            assert!(rude.try_read().await.unwrap().is_some());
        }
    }
    let lock = ours.rw_lock("x");
    let behind = tokio::spawn(async move { lock.read().await.unwrap() });
    reading.release().await.unwrap();
    let writing = soon(writer).await;
    assert!(!behind.is_finished());
    writing.release().await.unwrap();
    soon(behind).await.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn cancelled_writer_lets_readers_in() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let reading = ours.rw_lock("x").read().await.unwrap();
    let lock = theirs.rw_lock("x");
    let writer = tokio::spawn(async move { lock.write().await.unwrap() });
    let lock = ours.rw_lock("x").poll_interval(HOUR);
    eventually("readers stay out", async || {
        lock.try_read().await.unwrap().is_none()
    })
    .await;
    let behind = tokio::spawn(async move { lock.read().await.unwrap() });
    eventually("it listens", async || ours.activity().channels == 1).await;
    writer.abort();
    let limit = Duration::from_secs(4);
    let behind = tokio::time::timeout(limit, behind).await;
    behind
        .expect("woken, long before the mark ends")
        .unwrap()
        .release()
        .await
        .unwrap();
    reading.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn dead_writers_mark_expires() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let reading = ours.rw_lock("x").read().await.unwrap();
    let lock = theirs.rw_lock("x");
    // The writer is neither polled nor dropped any more.
    let mut writer = Box::pin(async move { lock.write().await });
    let lock = ours.rw_lock("x");
    loop {
        let polled = tokio::time::timeout(Duration::from_millis(100), &mut writer).await;
        assert!(polled.is_err());
        // Poll until the writer's request has reached the server.
        match lock.try_read().await.unwrap() {
            Some(beside) => beside.release().await.unwrap(),
            None => break,
        }
    }
    std::mem::forget(writer);
    let wait = Duration::from_secs(20);
    let beside = lock.try_read_for(wait).await.unwrap();
    assert!(beside.is_some(), "after 5 s");
    drop(reading);
}

#[tokio::test]
async fn constant_readers_do_not_starve_a_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let done = Arc::new(AtomicUsize::new(0));
    let reads = Arc::new(AtomicUsize::new(0));
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let (lock, done) = (theirs.rw_lock("x"), Arc::clone(&done));
        let reads = Arc::clone(&reads);
        readers.spawn(async move {
            while done.load(Ordering::SeqCst) < 10 {
                let guard = lock.read().await.unwrap();
                reads.fetch_add(1, Ordering::SeqCst);
                // The reads overlap: at each moment a reader is inside.
                tokio::time::sleep(Duration::from_millis(10)).await;
                guard.release().await.unwrap();
            }
        });
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let lock = ours.rw_lock("x");
    for _ in 0..10 {
        let writing = lock.try_write_for(Duration::from_secs(20)).await.unwrap();
        writing.expect("its turn comes").release().await.unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    }
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    assert!(
        reads.load(Ordering::SeqCst) >= 10,
        "readers have their turn"
    );
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn force_unlock_ends_only_one_side() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let operator = place.client().await.rw_lock("x");
    let lock = client.rw_lock("x");
    assert!(!operator.read_lock().force_unlock().await.unwrap());
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(lock.read().await.unwrap());
    }
    assert!(!operator.write_lock().force_unlock().await.unwrap());
    assert!(operator.read_lock().force_unlock().await.unwrap());
    for reader in readers {
        assert_eq!(reader.lost().await, crate::support::forced());
    }
    let writing = lock.write().await.unwrap();
    assert!(!operator.read_lock().force_unlock().await.unwrap());
    assert!(operator.write_lock().force_unlock().await.unwrap());
    assert_eq!(writing.lost().await, crate::support::forced());
    drop(writing);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn lost_writer_learns_the_takers_id() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = client.rw_lock("x");
    let writing = lock.write().await.unwrap();
    place.remove("x");
    let taker = lock.write().await.unwrap();
    let by = taker.holder_id().to_owned();
    assert_eq!(writing.lost().await, LossReason::Taken { by });
    drop(writing);
    taker.release().await.expect("nobody else's release");
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn each_side_says_who_holds_it() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.rw_lock("x").owned_by(&owner);
    let (read, write) = (lock.read_lock(), lock.write_lock());
    assert_eq!(read.remaining_ttl().await.unwrap(), Ttl::Free);
    let writing = lock.write().await.unwrap();
    assert!(!read.is_locked().await.unwrap(), "a bare write hold");
    assert!(write.is_locked().await.unwrap());
    assert!(!read.is_held_by(&owner).await.unwrap());
    let reading = lock.read().await.unwrap();
    assert!(read.is_locked().await.unwrap(), "it reads as well");
    writing.release().await.unwrap();
    assert!(read.is_locked().await.unwrap());
    assert!(!write.is_locked().await.unwrap());
    assert!(!write.is_held_by(&owner).await.unwrap());
    assert!(matches!(read.remaining_ttl().await.unwrap(), Ttl::Left(_)));
    let info = read.inspect().await.unwrap();
    assert_eq!(info.holders[0].id, reading.holder_id());
    assert_eq!(info.holders[0].count, 1);
    reading.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn a_name_of_another_kind_is_left_alone() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let lock = client.rw_lock("x");
    let wrong = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        assert!(error.to_string().contains("a plain lock"), "{error}");
    };
    wrong(lock.read().await.unwrap_err());
    wrong(lock.write().await.unwrap_err());
    wrong(lock.read_lock().inspect().await.unwrap_err());
    wrong(lock.write_lock().force_unlock().await.unwrap_err());
    guard.release().await.unwrap();
    let guard = lock.read().await.unwrap();
    let error = client.lock("x").acquire().await.unwrap_err();
    assert!(error.to_string().contains("read-write"), "{error}");
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn reasserted_fixed_lease_still_ends() {
    let place = place();
    let client = place.client().await;
    let lock = client
        .rw_lock("x")
        .fixed_lease(LEASE)
        .redisson_watchdog(LEASE / 4);
    let (reading, start) = (lock.read().await.unwrap(), tokio::time::Instant::now());
    let promised = reading.valid_until();
    assert_eq!(reading.lost().await, LossReason::Expired);
    assert!(reading.valid_until() >= promised);
    assert!(start.elapsed() < LEASE * 2);
    drop(reading);
    let writing = lock.write().await.unwrap();
    assert_eq!(writing.lost().await, LossReason::Expired);
    eventually("it is over on the server", async || place.ttl_ms("x") == -2).await;
    drop(writing);
    place.is_clean(&[&client]).await;
}

/// Counts those inside: many readers or one writer.
#[derive(Default)]
struct Gauge {
    readers: AtomicUsize,
    writers: AtomicUsize,
    together: AtomicUsize,
}

impl Gauge {
    async fn read(&self) {
        let inside = self.readers.fetch_add(1, Ordering::SeqCst) + 1;
        self.together.fetch_max(inside, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer is inside");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer came in");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    async fn write(&self) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0);
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "somebody reads");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "somebody came in");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn work(lock: RwLock, gauge: Arc<Gauge>, choices: u64) {
    let mut choices = fastrand::Rng::with_seed(choices);
    for _ in 0..25 {
        match choices.u32(..10) {
            0..6 => {
                let guard = lock.read().await.unwrap();
                gauge.read().await;
                guard.release().await.unwrap();
            }
            6..8 => {
                let guard = lock.write().await.unwrap();
                gauge.write().await;
                drop(guard);
            }
            8 => {
                let guard = lock.write().await.unwrap();
                gauge.write().await;
                let guard = guard.downgrade().await.unwrap();
                gauge.read().await;
                guard.release().await.unwrap();
            }
            _ => {
                let guard = lock.read().await.unwrap();
                gauge.read().await;
                match guard.try_upgrade().await {
                    Ok(guard) => {
                        gauge.write().await;
                        guard.release().await.unwrap();
                    }
                    Err(refused) => drop(refused.into_guard()),
                }
            }
        }
    }
}

async fn many_at_once(place: &Place, change: impl Fn(RwLock) -> RwLock) {
    let gauge = Arc::<Gauge>::default();
    let mut clients = Vec::new();
    let mut tasks = JoinSet::new();
    for c in 0..4 {
        let client = place.client().await;
        for t in 0..4 {
            let mut lock = change(client.rw_lock("x"));
            if c == 3 {
                lock = lock.wait_strategy(WaitStrategy::Backoff(Backoff::exponential()));
            }
            tasks.spawn(work(lock, Arc::clone(&gauge), c * 4 + t));
        }
        clients.push(client);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(
        gauge.together.load(Ordering::SeqCst) > 1,
        "nobody read together"
    );
    place.is_clean(&clients.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn many_readers_or_one_writer_at_any_moment() {
    many_at_once(&place(), |lock| lock).await;
}

#[tokio::test]
async fn readers_and_writers_exclude_without_preference() {
    many_at_once(&place(), |lock| {
        lock.prefer_writers(false).poll_interval(HOUR)
    })
    .await;
}

#[tokio::test]
async fn maximum_hold_time_goes_on_when_a_holder_changes_sides() {
    let place = place();
    let client = place.client().await;
    let lock = client.rw_lock("x").lease(HOUR * 2).max_hold(HOUR);
    let start = Instant::now();
    let write = lock.write().await.unwrap();
    let end = write.valid_until();
    assert!(end > start + HOUR / 2, "the maximum is what ends it");
    tokio::time::sleep(LEASE).await;
    let passed = start.elapsed();
    let read = write.downgrade().await.unwrap();
    assert!(read.valid_until() < end + passed);
    let write = read.try_upgrade().await.unwrap();
    assert!(write.valid_until() < end + passed);
    write.release().await.unwrap();

    // An owner that already reads keeps its read hold.
    let owner = Owner::new();
    let owned = lock.owned_by(&owner);
    let write = owned.write().await.unwrap();
    let end = write.valid_until();
    let inner = owned.read().await.unwrap();
    tokio::time::sleep(LEASE).await;
    let read = write.downgrade().await.unwrap();
    assert!(read.valid_until() < end + LEASE);
    drop(inner);
    read.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn maximum_hold_time_ends_a_hold_that_has_changed_sides() {
    let place = place();
    let client = place.client().await;
    let limit = LEASE * 2;
    let lock = client.rw_lock("x").max_hold(limit);
    let start = Instant::now();
    let mut write = lock.write().await.unwrap();
    let reason = loop {
        let read = match write.downgrade().await {
            Ok(read) => read,
            Err(error) => break error.loss().cloned(),
        };
        tokio::time::sleep(LEASE / 8).await;
        write = match read.try_upgrade().await {
            Ok(write) => write,
            Err(error) => break error.into_guard().loss(),
        };
        assert!(start.elapsed() < limit * 20, "it is held for ever");
    };
    assert_eq!(reason, Some(LossReason::MaxHold { limit }));
    place.is_clean(&[&client]).await;
}
