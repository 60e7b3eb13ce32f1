//! The write side of a lock that is handed over within a process: a release passes it to the next
//! writer there.

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{RwLock, WriteGuard};
use tokio::task::JoinHandle;

use super::hand_over::{Sent, at, busy, near};
use super::*;
use crate::support::busy::Busy;

fn released(sent: &Sent) -> usize {
    sent.count(Step::RwReleaseWrite)
}

fn writes(lock: &RwLock) -> JoinHandle<WriteGuard> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.write().await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn release_hands_the_write_lock_over() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.write().await.unwrap();
    let second = writes(&lock);
    sleep(3 * MS).await;
    let (number, start) = (first.number(), Instant::now());
    let (done, second) = tokio::join!(first.release(), async {
        let second = second.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        second
    });
    done.unwrap();
    assert_eq!(start.elapsed(), MS, "answered by a renewal behind it");
    assert_ne!(second.number(), number);
    // This is three leases.
    sleep(3000 * MS).await;
    assert!(
        server
            .client()
            .rw_lock("x")
            .try_read()
            .await
            .unwrap()
            .is_none()
    );
    second.release().await.unwrap();
    assert_eq!(released(&sent), 1);
    sleep(6000 * MS).await;
    assert_eq!(server.keys().len(), 0);
}

/// The second writer's reservation has kept readers out. The server did not remove the reservation,
/// because it did not grant a lock.
#[tokio::test(start_paused = true)]
async fn the_mark_of_a_writer_that_was_handed_the_lock_is_withdrawn() {
    let marks = "leasehold:{x}:writers".to_owned();
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.write().await.unwrap();
    let second = writes(&lock);
    sleep(3 * MS).await;
    assert!(server.keys().contains(&marks), "it has asked");
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(released(&sent), 0);
    sleep(3 * MS).await;
    assert!(!server.keys().contains(&marks));
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_write_hold_becomes_a_read_hold() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.write().await.unwrap();
    let second = writes(&lock);
    sleep(3 * MS).await;
    // Either the reply to the downgrade or the reply to an earlier renewal confirms the first
    // release.
    let (released, reading) = tokio::join!(first.release(), async {
        second.await.unwrap().downgrade().await.unwrap()
    });
    released.unwrap();
    let elsewhere = server.client().rw_lock("x");
    assert!(elsewhere.try_read().await.unwrap().is_some());
    assert!(elsewhere.try_write().await.unwrap().is_none());
    reading.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_before_the_next_writer_is_not_overtaken() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.write().await.unwrap();
    let reader = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let mut writer = writes(&lock);
    sleep(3 * MS).await;
    first.release().await.unwrap();
    assert_eq!(released(&sent), 1);
    let reading = reader.await.unwrap();
    assert!((&mut writer).now_or_never().is_none());
    reading.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
}

/// The write hold no longer exists, because it was downgraded to a read hold. No other client ever
/// had the lock.
#[tokio::test(start_paused = true)]
async fn a_dropped_downgrade_is_no_loss_to_the_writer_before_it() {
    for turned in [true, false] {
        let server = Embedded::new();
        let (client, network, _) = near(&server);
        let lock = client.rw_lock("x");
        let first = lock.write().await.unwrap();
        let second = writes(&lock);
        sleep(3 * MS).await;
        // The renewal whose reply would confirm the first release is lost.
        network.on_request(move |asked| match asked.step {
            Step::RwRenewWrite => Fate::delivered(MS, MS).request_lost(),
            Step::RwDowngrade if !turned => Fate::delivered(MS, MS).request_lost(),
            _ => Fate::delivered(MS, 5 * MS),
        });
        let first = tokio::spawn(first.release());
        let second = second.await.unwrap();
        let mut downgrade = Box::pin(second.downgrade());
        assert!(downgrade.as_mut().now_or_never().is_none());
        sleep(2 * MS).await;
        assert!(downgrade.as_mut().now_or_never().is_none());
        drop(downgrade);
        let released = first.await.unwrap();
        match released {
            // The undo of the write hold found that hold.
            Ok(()) => assert!(!turned),
            Err(error) => {
                assert!(turned, "{error}");
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
            }
        }
        client.close().await;
        assert_eq!(server.keys().len(), 0);
    }
}

/// Returns a client whose holds outlast every delay.
fn patient(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder().reply_timeout(400 * MS).lease(60_000 * MS);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(takes(MS));
    (client, network)
}

/// Returns a handle whose delays are longer than a reservation lasts.
fn backs_off(lock: &RwLock) -> RwLock {
    lock.clone()
        .wait_strategy(WaitStrategy::Backoff(Backoff::constant(8000 * MS)))
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_backs_off_is_not_starved_by_readers() {
    let server = Embedded::new();
    let (client, _network) = patient(&server);
    let (theirs, _its_network) = patient(&server);
    let reading = client.rw_lock("x").read().await.unwrap();
    // At each moment, one of the four readers holds the lock, unless a writer excludes them.
    let readers: Vec<_> = (0..4)
        .map(|n| {
            // The lease is fixed, so that each reader has a hold of its own.
            let lock = client.rw_lock("x").fixed_lease(60_000 * MS);
            tokio::spawn(async move {
                sleep(n * 75 * MS).await;
                loop {
                    let reading = lock.read().await.unwrap();
                    sleep(300 * MS).await;
                    reading.release().await.unwrap();
                }
            })
        })
        .collect();
    sleep(100 * MS).await;
    reading.release().await.unwrap();
    let lock = backs_off(&theirs.rw_lock("x"));
    let writing = lock.try_write_for(60_000 * MS).await.unwrap();
    writing
        .expect("its mark keeps readers out")
        .release()
        .await
        .unwrap();
    readers.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_backs_off_is_not_starved_by_writers() {
    let server = Embedded::new();
    let (client, _network) = patient(&server);
    let (others, _other_network) = patient(&server);
    let (theirs, _its_network) = patient(&server);
    let recorder = Recorder::new();
    let writers: Vec<_> = [(&client, "ours"), (&others, "others")]
        .into_iter()
        .flat_map(|(client, who)| {
            let writers = Busy {
                lasts: 60_000 * MS,
                ..busy(client.rw_lock("x").write_lock(), who, 2)
            };
            writers.start(&recorder)
        })
        .collect();
    sleep(100 * MS).await;
    let lock = backs_off(&theirs.rw_lock("x"));
    let reading = lock.try_read_for(30_000 * MS).await.unwrap();
    reading
        .expect("its mark keeps writers out")
        .release()
        .await
        .unwrap();
    writers.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn others_have_their_turn_beside_busy_writers() {
    let server = Embedded::new();
    let (ours, _network, sent) = at(&server, MS, MS);
    let (theirs, _its_network, _) = at(&server, MS, MS);
    let recorder = Recorder::new();
    let busy = |client: &Client, who, tasks| {
        let lock = client.rw_lock("x").write_lock();
        busy(lock, who, tasks).start(&recorder)
    };
    let (many, one) = (busy(&ours, "ours", 16), busy(&theirs, "theirs", 1));
    let (reader, end) = (theirs.rw_lock("x"), Instant::now() + 1000 * MS);
    let near_reader = tokio::spawn({
        let lock = ours.rw_lock("x");
        async move { read_often(&lock, end).await }
    });
    let longest = read_often(&reader, end).await;
    let near = near_reader.await.unwrap();
    let written = join_all(many.into_iter().chain(one)).await;
    let written: Vec<usize> = written.into_iter().map(Result::unwrap).collect();
    recorder.report().judge().unwrap();
    // A reader lets writers pass for at most a second.
    assert!(
        longest <= 1500 * MS && near <= 1500 * MS,
        "{longest:?} {near:?}"
    );
    assert!(written[16] >= 15, "{written:?}");
    let asks = sent.count(Step::RwAcquireWrite);
    let all: usize = written[..16].iter().sum();
    assert!(asks < all, "{asks} asks for {all} holds");
}

/// Reads in a loop until `end`. Returns the longest wait.
async fn read_often(lock: &RwLock, end: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let start = Instant::now();
        let reading = lock.read().await.unwrap();
        longest = longest.max(start.elapsed());
        sleep(MS).await;
        reading.release().await.unwrap();
    }
    longest
}
