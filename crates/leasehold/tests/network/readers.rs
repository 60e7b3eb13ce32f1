//! Readers of one process: one of them asks the server, and the others share its hold.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{Owner, ReadGuard, RwLock, WriteGuard};
use tokio::sync::Barrier;

use super::hand_over::{Sent, at, busy, near};
use super::*;
use crate::support::busy::Busy;

fn asked(sent: &Sent) -> (usize, usize) {
    let steps = [Step::RwAcquireRead, Step::RwReleaseRead];
    (sent.count(steps[0]), sent.count(steps[1]))
}

/// Makes `count` readers acquire the lock at the same time.
async fn readers(lock: &RwLock, count: usize) -> Vec<ReadGuard> {
    let all = join_all((0..count).map(|_| lock.read())).await;
    all.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn one_request_lets_all_readers_in() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let start = Instant::now();
    let guards = readers(&lock, 16).await;
    assert_eq!(start.elapsed(), MS);
    let mut numbers: Vec<_> = guards.iter().map(|guard| guard.number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 16);
    // A reader that tries within the same slice does not wait.
    let late = lock.try_read().await.unwrap().unwrap();
    assert_eq!(start.elapsed(), MS);
    late.release().await.unwrap();
    let released = join_all(guards.into_iter().map(ReadGuard::release)).await;
    released.into_iter().for_each(Result::unwrap);
    assert_eq!(asked(&sent), (1, 1));
    assert_eq!(server.keys().len(), 0);
}

/// Even if the process keeps the lock for a long time, readers can join a hold only in its first
/// second. So an operator who ends the hold knows how many readers lose it.
#[tokio::test(start_paused = true)]
async fn hold_is_shared_by_nobody_more_after_a_second() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x").local_hand_over(3_600_000 * MS);
    let first = lock.read().await.unwrap();
    sleep(900 * MS).await;
    let second = lock.read().await.unwrap();
    assert_eq!(second.holder_id(), first.holder_id());
    sleep(200 * MS).await;
    let third = lock.read().await.unwrap();
    assert_ne!(third.holder_id(), first.holder_id());
    for guard in [first, second, third] {
        guard.release().await.unwrap();
    }
    assert_eq!(asked(&sent), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn readers_that_share_a_hold_are_told_together() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let mut guards = readers(&client.rw_lock("x"), 3).await;
    for left in (1..=3).rev() {
        let holds = client.holds();
        let [hold] = &holds[..] else {
            panic!("one is held: {holds:?}")
        };
        assert_eq!((hold.kind, hold.guards), ("read", left));
        guards.pop().unwrap().release().await.unwrap();
    }
    assert_eq!(client.holds().len(), 0);
}

/// The first reader releases the lock before the other readers have been woken.
#[tokio::test(start_paused = true)]
async fn readers_that_have_waited_enter_behind_one_that_is_quick() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let quick = async || lock.read().await.unwrap().release().await.unwrap();
    join_all((0..8).map(|_| quick())).await;
    assert_eq!(asked(&sent), (1, 1));
    assert_eq!(server.keys().len(), 0);
}

/// The unpolled reader is one of the readers for which the hold is kept.
#[tokio::test(start_paused = true)]
async fn no_hold_is_kept_for_a_reader_that_is_not_polled() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap().release().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let mut unpolled = Box::pin(lock.read());
    assert!(unpolled.as_mut().now_or_never().is_none());
    first.await.unwrap();
    sleep(15 * MS).await;
    assert_eq!(server.keys().len(), 0);
    unpolled.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_later_readers_ask_anew() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.read().await.unwrap();
    sleep(9 * MS).await;
    let second = lock.read().await.unwrap();
    assert_eq!(asked(&sent).0, 1);
    sleep(2 * MS).await;
    let third = lock.read().await.unwrap();
    assert_eq!(asked(&sent).0, 2);
    for guard in [first, second, third] {
        guard.release().await.unwrap();
    }
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_waiting_writer_enter_no_hold() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.read().await.unwrap();
    let writer = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let mut behind = Box::pin(lock.read());
    assert!(behind.as_mut().now_or_never().is_none());
    first.release().await.unwrap();
    let writing = writer.await.unwrap();
    assert!(behind.as_mut().now_or_never().is_none());
    writing.release().await.unwrap();
    behind.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_readers_release_is_answered_by_the_server() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let mut guards = readers(&lock, 3).await;
    let (first, start) = (guards.remove(0), Instant::now());
    first.release().await.unwrap();
    // Other readers still hold the lock, so the reply to a renewal that was sent after the release
    // confirms it.
    assert_eq!(start.elapsed(), MS);
    assert!(
        server
            .client()
            .rw_lock("x")
            .read_lock()
            .force_unlock()
            .await
            .unwrap()
    );
    for guard in guards {
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn all_readers_of_a_lost_hold_are_told_but_not_those_that_have_left() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let mut guards = readers(&lock, 3).await;
    let first = guards.remove(0);
    let mut left = Box::pin(first.lost());
    first.release().await.unwrap();
    assert!(
        server
            .client()
            .rw_lock("x")
            .read_lock()
            .force_unlock()
            .await
            .unwrap()
    );
    for guard in &guards {
        guard.lost().await;
    }
    sleep(3000 * MS).await;
    assert!(left.as_mut().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reader_beside_others_of_its_process_is_not_upgraded() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let mut guards = readers(&lock, 2).await;
    let refused = guards.remove(0).try_upgrade().await.unwrap_err();
    assert!(refused.error().is_none());
    assert_eq!(sent.count(Step::RwAcquireWrite), 0);
    refused.into_guard().release().await.unwrap();
    let alone = guards.remove(0);
    let (upgraded, beside) = tokio::join!(alone.try_upgrade(), lock.try_read());
    assert!(beside.unwrap().is_none(), "it is alone");
    upgraded.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_on_other_terms_ask_for_themselves() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.read().await.unwrap();
    let owner = Owner::new();
    for other in [
        lock.clone().owned_by(&owner),
        lock.clone().fixed_lease(1000 * MS),
        lock.clone().lease(900 * MS),
        lock.clone().max_hold(500 * MS),
    ] {
        let before = asked(&sent).0;
        other.read().await.unwrap().release().await.unwrap();
        assert_eq!(asked(&sent).0, before + 1);
    }
    first.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_not_polled_keeps_nobody_out() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let mut unpolled = Box::pin(lock.read());
    assert!(unpolled.as_mut().now_or_never().is_none());
    let others = tokio::time::timeout(60 * MS, readers(&lock, 4)).await;
    others.expect("they ask themselves");
    unpolled.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_go_on_without_the_one_that_asked() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.rw_lock("x");
    let mut first = Box::pin(lock.read());
    assert!(first.as_mut().now_or_never().is_none());
    let others = tokio::spawn({
        let lock = lock.clone();
        async move { readers(&lock, 4).await }
    });
    tokio::task::yield_now().await;
    drop(first);
    let start = Instant::now();
    drop(others.await.unwrap());
    assert!(start.elapsed() <= 3 * MS, "{:?}", start.elapsed());
    client.close().await;
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn refused_readers_share_the_answer() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let writing = server.client().rw_lock("x").write().await.unwrap();
    let lock = client.rw_lock("x").poll_interval(3600 * 1000 * MS);
    let all = tokio::spawn({
        let lock = lock.clone();
        async move { readers(&lock, 64).await }
    });
    sleep(500 * MS).await;
    let before = asked(&sent).0;
    assert!(before < 8, "{before} asks for 64 readers");
    writing.release().await.unwrap();
    all.await.unwrap();
    let more = asked(&sent).0 - before;
    assert!(more < 8, "{more} asks for 64 readers");
}

/// The lock is released after the server has refused an earlier reader, and before the refusal
/// arrives.
#[tokio::test(start_paused = true)]
async fn a_reader_takes_no_answer_from_before_it_came() {
    let server = Embedded::new();
    let (client, network, _) = at(&server, MS, 3 * MS);
    network.on_message(|_| Some(50 * MS));
    let writing = server.client().rw_lock("x").write().await.unwrap();
    // This waiter makes the client subscribe. Otherwise the readers would subscribe, and ask once
    // more after that.
    let owned = client.rw_lock("x").owned_by(&Owner::new());
    let waits = tokio::spawn(async move { owned.read().await.unwrap() });
    sleep(20 * MS).await;
    let lock = client.rw_lock("x");
    let earlier = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap() }
    });
    sleep(2 * MS).await;
    writing.release().await.unwrap();
    let reading = tokio::time::timeout(20 * MS, lock.read()).await;
    let reading = reading.expect("it asks").unwrap();
    reading.release().await.unwrap();
    earlier.await.unwrap().release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
}

/// The reader has waited for a writer for a long time, and has set a reservation.
#[tokio::test(start_paused = true)]
async fn the_mark_of_a_reader_that_entered_is_withdrawn() {
    let marks = "leasehold:{x}:readers".to_owned();
    let server = Embedded::new();
    let (client, network, sent) = near(&server);
    network.on_message(|_| Some(5 * MS));
    let writing = server.client().rw_lock("x").write().await.unwrap();
    let lock = client.rw_lock("x");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap() }
    });
    sleep(2500 * MS).await;
    assert!(server.keys().contains(&marks));
    writing.release().await.unwrap();
    let second = lock.try_read().await.unwrap().unwrap();
    let before = asked(&sent).0;
    // The message arrives, which wakes the first reader.
    let first = first.await.unwrap();
    sleep(3 * MS).await;
    assert_eq!(
        asked(&sent).0,
        before,
        "it has entered the other one's hold"
    );
    assert!(!server.keys().contains(&marks));
    first.release().await.unwrap();
    second.release().await.unwrap();
}

/// Counts how often the futures of `count` readers are polled, from the release of the writer that
/// excludes the readers until all of them have read. Each reader has a task of its own. With
/// `at_once`, all readers hold the lock at the same time.
async fn polls_of_readers(
    lock: &RwLock,
    writing: WriteGuard,
    count: usize,
    at_once: bool,
) -> usize {
    let (polls, together) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(count)));
    let task = |_| {
        let (lock, polls, together) = (lock.clone(), Arc::clone(&polls), Arc::clone(&together));
        tokio::spawn(async move {
            let mut reads = std::pin::pin!(lock.read());
            let reading = poll_fn(|context| {
                polls.fetch_add(1, Ordering::Relaxed);
                reads.as_mut().poll(context)
            });
            let reading = reading.await.unwrap();
            if at_once {
                together.wait().await;
            }
            reading.release().await.unwrap();
        })
    };
    let tasks: Vec<_> = (0..count).map(task).collect();
    sleep(20 * MS).await;
    polls.store(0, Ordering::Relaxed);
    writing.release().await.unwrap();
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
    polls.load(Ordering::Relaxed)
}

/// Each reader is woken only a few times: by the writer's release, and by the reply to one request.
#[tokio::test(start_paused = true)]
async fn each_reader_behind_a_writer_is_woken_a_few_times() {
    const READERS: usize = 1024;
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (rival, _its_network, _) = near(&server);
    let lock = client.rw_lock("x").poll_interval(3600 * 1000 * MS);
    for writer in [&lock, &rival.rw_lock("x")] {
        for at_once in [true, false] {
            let writing = writer.write().await.unwrap();
            let before = asked(&sent).0;
            let polls = polls_of_readers(&lock, writing, READERS, at_once).await;
            assert!(polls <= 3 * READERS, "{polls} polls of {READERS} readers");
            // Up to 128 readers share one hold. While another client holds the lock, the readers
            // ask in vain when they begin to wait, and once more when their subscription is
            // confirmed.
            let asks = asked(&sent).0 - before;
            assert!(
                asks <= 3 * READERS / 128 + 2,
                "{asks} asks for {READERS} readers"
            );
        }
    }
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_elsewhere_has_its_turn_beside_busy_readers() {
    let server = Embedded::new();
    let (ours, _network, sent) = at(&server, MS, MS);
    let (theirs, _its_network, _) = at(&server, MS, MS);
    let recorder = Recorder::new();
    let readers = Busy {
        holds_for: |n| MS * (1 + u32::try_from(n % 3).unwrap()),
        is_shared: true,
        ..busy(ours.rw_lock("x").read_lock(), "reader", 32)
    };
    let many = readers.start(&recorder);
    let (lock, end) = (theirs.rw_lock("x"), Instant::now() + 1000 * MS);
    let (mut longest, written) = (Duration::ZERO, Arc::new(AtomicUsize::new(0)));
    while Instant::now() < end {
        let asked = recorder.ask("x", "writer");
        let start = Instant::now();
        let guard = lock.write().await.unwrap();
        longest = longest.max(start.elapsed());
        written.fetch_add(1, Ordering::Relaxed);
        let inside = asked.acquired(&guard);
        sleep(MS).await;
        inside.releasing(&guard);
        guard.release().await.unwrap();
        sleep(5 * MS).await;
    }
    let read: usize = join_all(many).await.into_iter().map(Result::unwrap).sum();
    recorder.report().judge().unwrap();
    assert!(longest <= 60 * MS, "{longest:?}");
    let asks = asked(&sent).0;
    assert!(asks * 4 < read, "{asks} asks for {read} reads");
}
