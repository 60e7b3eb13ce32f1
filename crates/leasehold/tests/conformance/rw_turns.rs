//! The read-write lock: which waiter is served next, and dead waiters that are skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::inspect::Ttl;
use tokio::task::JoinSet;

use super::{LEASE, place};
use crate::support::{HOUR, eventually};

/// A limit that is not longer than the reservation of a dead client would last.
const LIMIT: Duration = Duration::from_secs(4);

#[tokio::test]
async fn dead_readers_block_until_their_leases_end() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = ours.rw_lock("x");
    // With this number of readers, few releases check all of them.
    for many in [65, 700, 900, 1100] {
        let long = lock.clone().fixed_lease(HOUR).read().await.unwrap();
        let short = lock.clone().fixed_lease(LEASE);
        for dead in join_all((0..many).map(|_| short.read())).await {
            dead.unwrap().forget();
        }
        long.release().await.unwrap();
        // No message wakes this waiter. It asks again at the time that the server has reported.
        let patient = theirs
            .rw_lock("x")
            .prefer_writers(false)
            .poll_interval(HOUR);
        let writing = patient.try_write_for(LEASE * 20).await.unwrap();
        let writing = writing.expect("free when the last of them is over");
        writing.release().await.unwrap();
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_stream_of_writers_does_not_starve_readers() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let (done, writes) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let mut writers = JoinSet::new();
    for n in 0..6 {
        let lock = clients[n % 2].rw_lock("x");
        let (done, writes) = (Arc::clone(&done), Arc::clone(&writes));
        writers.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let guard = lock.write().await.unwrap();
                let writes: &AtomicUsize = &writes;
                writes.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                guard.release().await.unwrap();
            }
        });
    }
    let theirs = place.client().await;
    // First the reader's process has no writers; then it has some.
    for client in [&theirs, &clients[0]] {
        let lock = client.rw_lock("x");
        let read = lock.try_read_for(Duration::from_secs(20)).await.unwrap();
        let before = writes.load(Ordering::SeqCst);
        read.expect("its turn comes").release().await.unwrap();
        eventually("writers have theirs again", async || {
            writes.load(Ordering::SeqCst) > before
        })
        .await;
    }
    done.store(true, Ordering::SeqCst);
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    place.is_clean(&[&clients[0], &clients[1], &theirs]).await;
}

/// The writer ahead of the reader may itself wait for long if another process writes all the time.
#[tokio::test]
async fn reader_passes_a_local_waiting_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let writing = theirs.rw_lock("x").write().await.unwrap();
    let lock = ours.rw_lock("x");
    let next = tokio::spawn(async move { lock.write().await.unwrap() });
    eventually("the writer waits", async || ours.activity().channels == 1).await;
    let lock = ours.rw_lock("x");
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    eventually("the reader has left its mark", async || {
        place.keys().contains(&"leasehold:{x}:readers".to_owned())
    })
    .await;
    writing.release().await.unwrap();
    let read = tokio::time::timeout(LIMIT, reader).await;
    let read = read.expect("its turn comes first").unwrap();
    assert!(!next.is_finished());
    read.release().await.unwrap();
    let next = tokio::time::timeout(LIMIT, next).await;
    next.expect("woken").unwrap().release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn overtaken_readers_precede_the_next_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let (third, late) = (place.client().await, place.client().await);
    let writing = ours.rw_lock("x").write().await.unwrap();
    let mut readers = JoinSet::new();
    for client in [&theirs, &third] {
        let lock = client.rw_lock("x");
        readers.spawn(async move { lock.read().await.unwrap() });
    }
    eventually("both wait", async || {
        theirs.activity().channels == 1 && third.activity().channels == 1
    })
    .await;
    let lock = ours.rw_lock("x");
    let next = tokio::spawn(async move { lock.write().await.unwrap() });
    // This is long enough for the readers to count as patient, and to ask once more after
    // that.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    writing.release().await.unwrap();
    // The late writer is refused, whether or not the readers have the lock yet.
    let too_early = late.rw_lock("x").try_write().await.unwrap();
    assert!(too_early.is_none());
    let first = readers.join_next().await.unwrap().unwrap();
    let second = readers.join_next().await.unwrap().unwrap();
    assert!(!next.is_finished());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let next = tokio::time::timeout(LIMIT, next).await;
    next.expect("woken").unwrap().release().await.unwrap();
    place.is_clean(&[&ours, &theirs, &third, &late]).await;
}

#[tokio::test]
async fn overdue_reader_stays_behind_the_writer() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let reading = ours.rw_lock("x").read().await.unwrap();
    let lock = theirs.rw_lock("x");
    let writer = tokio::spawn(async move { lock.write().await.unwrap() });
    let lock = ours.rw_lock("x");
    eventually("readers stay out", async || {
        lock.try_read().await.unwrap().is_none()
    })
    .await;
    // No writer has held the lock since the reader asked.
    let late = lock.try_read_for(Duration::from_millis(3500)).await;
    assert!(late.unwrap().is_none());
    reading.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn timed_out_reader_lets_writers_in() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let writing = ours.rw_lock("x").write().await.unwrap();
    let lock = theirs.rw_lock("x");
    let late = lock.try_read_for(Duration::from_millis(2500)).await;
    assert!(late.unwrap().is_none());
    writing.release().await.unwrap();
    // The reservation of the writer is removed in the background.
    theirs.close().await;
    let lock = ours.rw_lock("x");
    let writing = lock.try_write().await.unwrap().expect("nobody waits");
    writing.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn write_renewal_never_shortens_a_nested_read() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = client.rw_lock("x").owned_by(&leasehold::Owner::new());
    let writing = lock.write().await.unwrap();
    let reading = lock.clone().fixed_lease(HOUR).read().await.unwrap();
    let first = writing.valid_until();
    eventually("it is renewed", async || {
        writing.valid_until() > first + LEASE
    })
    .await;
    // The first query reads the lease of the lock, on which Redisson relies; the second reads the
    // lease of the read hold.
    let is_long = async |ttl| match ttl {
        Ttl::Left(left) => assert!(left > HOUR / 2, "{left:?}"),
        other => panic!("{other:?}"),
    };
    is_long(lock.write_lock().remaining_ttl().await.unwrap()).await;
    writing.release().await.unwrap();
    is_long(lock.read_lock().remaining_ttl().await.unwrap()).await;
    reading.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
