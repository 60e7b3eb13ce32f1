//! Permits with leases that are swapped within a process: one request releases a holder's permits
//! and acquires new permits for the next waiter of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use leasehold::testing::history::limits::Recorder;
use leasehold::{ExpirablePermit, ExpirableSemaphore};
use tokio::task::JoinHandle;

use super::hand_over::{Sent, at, near, others_go_on};
use super::*;

/// Makes a semaphore with `permits` permits.
async fn semaphore(client: &Client, permits: u32) -> ExpirableSemaphore {
    let semaphore = client.expirable_semaphore("x");
    semaphore.try_set_permits(permits).await.unwrap();
    semaphore
}

fn waits(semaphore: &ExpirableSemaphore, permits: u32) -> JoinHandle<ExpirablePermit> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire_many(permits).await.unwrap() })
}

/// Returns a holder of the only permit, and waiters of its process in line. No request of the
/// waiters is under way.
async fn held<const N: usize>(
    semaphore: &ExpirableSemaphore,
) -> (ExpirablePermit, [JoinHandle<ExpirablePermit>; N]) {
    let first = semaphore.acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..N {
        waiters.push(waits(semaphore, 1));
        tokio::task::yield_now().await;
    }
    sleep(6 * MS).await;
    (first, waiters.try_into().ok().unwrap())
}

/// Returns how many permits are free and how many are held, as another client sees it.
async fn counts(server: &Embedded) -> (i64, u64) {
    let seen = server.client().expirable_semaphore("x");
    let free = seen.available_permits().await.unwrap();
    (free, seen.acquired_permits().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn one_request_serves_the_holder_and_the_next_waiter() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    let (id, number, start) = (first.id(), first.number(), Instant::now());
    let asked = sent.count(Step::ExpirableAcquire);
    first.release().await.unwrap();
    assert_eq!(start.elapsed(), MS);
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), MS);
    assert!(second.id() != id && second.number() != number);
    assert_eq!(sent.count(Step::ExpirableAcquire), asked);
    assert_eq!(counts(&server).await, (0, 1));
    second.release().await.unwrap();
    let gone = (Step::ExpirableExchange, Step::ExpirableRelease);
    assert_eq!((sent.count(gone.0), sent.count(gone.1)), (1, 1));
    assert_eq!(counts(&server).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn exchange_can_be_turned_off() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore.local_hand_over(Duration::ZERO)).await;
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    assert_eq!(sent.count(Step::ExpirableExchange), 0);
    assert_eq!(counts(&server).await, (1, 0));
}

/// A caller that has kept a permit's id can't end the next holder's hold with it.
#[tokio::test(start_paused = true)]
async fn an_id_of_an_earlier_holder_frees_nothing() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    let id = first.id();
    drop(first);
    let second = second.await.unwrap();
    assert!(!semaphore.release(id).await.unwrap());
    assert_eq!(counts(&server).await, (0, 1));
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_serves_the_next_waiter() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    let start = Instant::now();
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), MS);
    assert_eq!(sent.count(Step::ExpirableRelease), 0);
    drop(second);
    client.close().await;
    assert_eq!(counts(&server).await, (1, 0));
}

/// If the release did not serve it, the next waiter and all other processes would wait until a
/// lease ends.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_polled_serves_the_next_waiter() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    let mut release = Box::pin(first.release());
    assert!(release.as_mut().now_or_never().is_none());
    let start = Instant::now();
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), MS);
    assert_eq!(sent.count(Step::ExpirableExchange), 1);
    second.release().await.unwrap();
    release.await.unwrap();
    assert_eq!(counts(&server).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_exchanged_permit_is_renewed() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    // This is three leases.
    sleep(3000 * MS).await;
    assert_eq!(second.loss(), None);
    assert_eq!(counts(&server).await, (0, 1));
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exchanged_permit_has_its_maximum_hold_time() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let semaphore = semaphore.max_hold(700 * MS);
    let (first, [second, third]) = held(&semaphore).await;
    let asked = sent.count(Step::ExpirableAcquire);
    let start = Instant::now();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), MS, "nothing has gone back to the server");
    assert_eq!(second.lost().await, LossReason::MaxHold { limit: 700 * MS });
    assert_eq!(start.elapsed(), 700 * MS);
    // A lost permit is released.
    drop(second);
    let third = third.await.unwrap();
    assert!(third.is_held());
    third.release().await.unwrap();
    assert_eq!(sent.count(Step::ExpirableExchange), 1);
    assert!(sent.count(Step::ExpirableAcquire) <= asked + 2);
    assert_eq!(counts(&server).await, (1, 0));
}

/// After a swap, neither the old permit nor the new one remains in any list.
#[tokio::test(start_paused = true)]
async fn an_exchange_leaves_nothing_watched_or_reported() {
    let server = Embedded::new();
    let (lost, acquired) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let builder = Client::builder().reply_timeout(400 * MS).lease(1000 * MS);
    let builder = builder
        .on_lost({
            let lost = Arc::clone(&lost);
            move |_| {
                lost.fetch_add(1, Ordering::SeqCst);
            }
        })
        .on_acquired({
            let acquired = Arc::clone(&acquired);
            move |_| {
                acquired.fetch_add(1, Ordering::SeqCst);
            }
        });
    let (client, network) = server.client_over_network(&builder).unwrap();
    let sent = Sent::default();
    let noted = sent.clone();
    network.on_request(move |asked| {
        noted.note(asked.step);
        Fate::delivered(MS, Duration::ZERO)
    });
    let semaphore = semaphore(&client, 1).await;
    let (first, [second, third]) = held(&semaphore).await;
    // There is one hold at a time: the current holder's.
    let told = |permit: &ExpirablePermit| {
        assert_eq!(client.activity().renewed_holds, 1);
        let holds = client.holds();
        let numbers: Vec<_> = holds.iter().map(|hold| hold.number).collect();
        assert_eq!(numbers, [permit.number()], "{holds:?}");
        assert_eq!(holds[0].id, permit.id().to_string());
    };
    told(&first);
    first.release().await.unwrap();
    let second = second.await.unwrap();
    told(&second);
    drop(second);
    let third = third.await.unwrap();
    told(&third);
    assert_eq!(sent.count(Step::ExpirableExchange), 2);
    third.release().await.unwrap();
    assert_eq!(client.holds().len(), 0);
    let renewals = sent.count(Step::ExpirableRenew);
    // Ten leases later, no permit has been renewed or lost, and no other has been released.
    sleep(10_000 * MS).await;
    assert_eq!(sent.count(Step::ExpirableRenew), renewals);
    assert_eq!(sent.count(Step::ExpirableRelease), 1);
    assert_eq!(acquired.load(Ordering::SeqCst), 3);
    assert_eq!(lost.load(Ordering::SeqCst), 0);
    let activity = client.activity();
    assert_eq!((activity.renewed_holds, activity.releases), (0, 0));
    assert_eq!(counts(&server).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_exchanged_lease_counts_from_before_the_request() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    network.on_request(takes(100 * MS));
    let start = Instant::now();
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), 200 * MS);
    assert!(second.valid_until() < start + 1000 * MS);
}

#[tokio::test(start_paused = true)]
async fn release_of_a_lost_permit_says_so() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    let elsewhere = server.client().expirable_semaphore("x");
    assert!(elsewhere.release(first.id()).await.unwrap());
    let lost = first.release().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
    let second = second.await.unwrap();
    assert_eq!(second.loss(), None);
    second.release().await.unwrap();
    assert_eq!(counts(&server).await, (1, 0));
}

/// If more permits are in use than the semaphore has, the surplus must be released before a permit
/// can be swapped.
#[tokio::test(start_paused = true)]
async fn no_permit_is_exchanged_while_too_many_are_in_use() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 4).await;
    let semaphore = semaphore.local_hand_over(3600 * 1000 * MS);
    let (first, mut waiters) = held::<4>(&semaphore).await;
    let others = [
        (&mut waiters[0]).await.unwrap(),
        (&mut waiters[1]).await.unwrap(),
        (&mut waiters[2]).await.unwrap(),
    ];
    let [_, _, _, mut last] = waiters;
    semaphore.set_permits(2).await.unwrap();
    assert_eq!(counts(&server).await, (-2, 4));
    let mut free = -2;
    for (permit, held) in [first].into_iter().chain(others).zip([3, 2, 2, 1]) {
        permit.release().await.unwrap();
        others_go_on().await;
        sleep(20 * MS).await;
        free += 1;
        // The third release leaves one permit free, which the waiter takes.
        assert_eq!(last.is_finished(), free > 0, "{free} are free");
        assert_eq!(counts(&server).await.1, held, "{free} are free");
    }
    assert_eq!(sent.count(Step::ExpirableExchange), 3);
    (&mut last).await.unwrap().release().await.unwrap();
    assert_eq!(counts(&server).await, (2, 0));
}

/// The waiter for two permits keeps its place. So the released permit returns to the server, and
/// the waiter asks for two.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_more_permits_is_not_overtaken() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 2).await;
    let (one, another) = tokio::join!(semaphore.acquire(), semaphore.acquire());
    let (one, another) = (one.unwrap(), another.unwrap());
    let both = waits(&semaphore, 2);
    tokio::task::yield_now().await;
    let mut behind = waits(&semaphore, 1);
    sleep(6 * MS).await;
    one.release().await.unwrap();
    assert_eq!(sent.count(Step::ExpirableExchange), 0);
    assert!((&mut behind).now_or_never().is_none());
    another.release().await.unwrap();
    let both = both.await.unwrap();
    assert!((&mut behind).now_or_never().is_none());
    both.release().await.unwrap();
    behind.await.unwrap().release().await.unwrap();
}

/// The reply to a swap serves the waiter that is the head when the reply arrives.
#[tokio::test(start_paused = true)]
async fn what_a_waiter_leaves_goes_to_the_next() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second, third]) = held(&semaphore).await;
    let start = Instant::now();
    drop(first);
    others_go_on().await;
    second.abort();
    let third = third.await.unwrap();
    assert_eq!(start.elapsed(), MS);
    assert_eq!(sent.count(Step::ExpirableRelease), 0);
    third.release().await.unwrap();
    assert_eq!(counts(&server).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_no_waiter_takes_goes_back() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let (first, [second]) = held(&semaphore).await;
    drop(first);
    others_go_on().await;
    second.abort();
    let start = Instant::now();
    let elsewhere = server.client().expirable_semaphore("x");
    let permit = elsewhere.try_acquire_for(500 * MS).await.unwrap();
    assert!(permit.is_some(), "it is free");
    assert!(start.elapsed() <= 10 * MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_waiter_keeps_no_permit() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let first = semaphore.acquire().await.unwrap();
    let mut unpolled = Box::pin(semaphore.acquire());
    for _ in 0..6 {
        assert!(unpolled.as_mut().now_or_never().is_none());
        sleep(MS).await;
    }
    first.release().await.unwrap();
    assert_eq!(sent.count(Step::ExpirableExchange), 1);
    let start = Instant::now();
    let elsewhere = server.client().expirable_semaphore("x");
    let permit = elsewhere.try_acquire_for(500 * MS).await.unwrap();
    let permit = permit.expect("the waiter that nobody polls has given it back");
    assert!(start.elapsed() <= 200 * MS, "{:?}", start.elapsed());
    permit.release().await.unwrap();
    unpolled.await.unwrap().release().await.unwrap();
}

/// The fate of a release while its request is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    Awaited,
    Dropped,
    NotPolled,
}

/// The first request that swaps permits, or each such request, ends in one of these ways.
#[tokio::test(start_paused = true)]
async fn no_fault_of_an_exchange_loses_or_doubles_a_permit() {
    let near = Fate::delivered(MS, MS);
    for (what, fate) in [
        ("lost", near.request_lost()),
        ("unanswered", near.reply_lost()),
        ("late", Fate::delivered(300 * MS, MS)),
        ("later than any answer", Fate::delivered(600 * MS, MS)),
        ("answered late", Fate::delivered(MS, 300 * MS)),
        ("doubled", near.duplicated_after(50 * MS)),
    ] {
        use Released::{Awaited, Dropped, NotPolled};
        for (released, most) in [Awaited, Dropped, NotPolled]
            .into_iter()
            .flat_map(|released| [(released, 1), (released, 100)])
        {
            let server = Embedded::new();
            let (client, network) = over_network(&server);
            let semaphore = semaphore(&client, 1).await.lease(60_000 * MS);
            let (first, [second]) = held(&semaphore).await;
            let mut faults = most;
            network.on_request(move |asked| match asked.step {
                Step::ExpirableExchange if faults > 0 => {
                    faults -= 1;
                    fate
                }
                _ => Fate::delivered(MS, Duration::ZERO),
            });
            let case = format!("{what} {most}, {released:?}");
            let mut release = Box::pin(first.release());
            let start = Instant::now();
            match released {
                Released::Awaited => match release.await {
                    Ok(()) => {}
                    // No request was answered.
                    Err(error) => {
                        assert_eq!(
                            (error.kind(), most),
                            (ErrorKind::OutcomeUnknown, 100),
                            "{case}"
                        );
                    }
                },
                Released::Dropped => assert!(release.now_or_never().is_none(), "{case}"),
                Released::NotPolled => {
                    assert!(release.as_mut().now_or_never().is_none(), "{case}");
                    std::mem::forget(release);
                }
            }
            let second = second.await.unwrap();
            // No waiter had to wait until a lease ended. A duplicate that is later than any reply
            // arrives after 1010 ms.
            assert!(start.elapsed() < 1100 * MS, "{case}: {:?}", start.elapsed());
            assert_eq!(counts(&server).await, (0, 1), "{case}");
            second.release().await.unwrap();
            client.close().await;
            assert_eq!(counts(&server).await, (1, 0), "{case}");
        }
    }
}

/// Starts `tasks` tasks that each use one permit all the time, for `hold` each time. Every use is
/// recorded and checked.
fn busy(
    client: &Client,
    tasks: usize,
    hold: Duration,
    recorder: &Recorder,
) -> Vec<JoinHandle<usize>> {
    let end = Instant::now() + 1000 * MS;
    let task = || {
        let (semaphore, recorder) = (client.expirable_semaphore("x"), recorder.clone());
        async move {
            let mut held = 0;
            while Instant::now() < end {
                let asked = recorder.ask(1);
                let permit = semaphore.acquire().await.unwrap();
                let inside = asked.inside(Some(permit.valid_until()));
                sleep(hold).await;
                inside.leaving(Some(permit.valid_until()));
                permit.release().await.unwrap();
                held += 1;
            }
            held
        }
    };
    (0..tasks).map(|_| tokio::spawn(task())).collect()
}

async fn used_by(tasks: Vec<JoinHandle<usize>>) -> Vec<usize> {
    let used = futures_util::future::join_all(tasks).await;
    used.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn a_busy_process_leaves_others_some_permits() {
    for (permits, hold) in [(1, MS), (4, 5 * MS)] {
        let server = Embedded::new();
        let (ours, _network, _) = at(&server, MS, MS);
        let (theirs, _its_network, _) = at(&server, MS, MS);
        semaphore(&ours, permits).await;
        let recorder = Recorder::new();
        let many = busy(&ours, 16, hold, &recorder);
        let one = busy(&theirs, 1, hold, &recorder);
        let (many, one) = (used_by(many).await, used_by(one).await);
        recorder.report(permits.into()).judge().unwrap();
        // The other client is served after each of our slices, which last 10 ms.
        assert!(one[0] >= 20, "{one:?} beside {many:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_seldom_ask() {
    for (permits, hold) in [(1, MS), (4, 5 * MS)] {
        let server = Embedded::new();
        let (client, _network, sent) = near(&server);
        semaphore(&client, permits).await;
        let recorder = Recorder::new();
        let used = used_by(busy(&client, 16, hold, &recorder)).await;
        recorder.report(permits.into()).judge().unwrap();
        let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
        assert!(most - least <= 2, "{used:?}");
        let all: usize = used.iter().sum();
        let asked = sent.count(Step::ExpirableAcquire);
        assert!(asked * 2 < all, "{asked} asks for {all} permits");
    }
}

/// The reply to a swap arrives after the lease of the new permit has ended.
#[tokio::test(start_paused = true)]
async fn no_waiter_gets_a_permit_whose_lease_is_over() {
    let server = Embedded::new();
    let (client, network, sent) = near(&server);
    let semaphore = semaphore(&client, 1).await;
    let first = semaphore.fixed_lease(100 * MS).acquire().await.unwrap();
    let leased = client.expirable_semaphore("x").fixed_lease(100 * MS);
    let [second] = [waits(&leased, 1)];
    sleep(6 * MS).await;
    let noted = sent.clone();
    network.on_request(move |asked| {
        noted.note(asked.step);
        match asked.step {
            Step::ExpirableExchange => Fate::delivered(MS, 150 * MS),
            _ => Fate::delivered(MS, MS),
        }
    });
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(sent.count(Step::ExpirableExchange), 1);
    assert_eq!(second.loss(), None);
    second.release().await.unwrap();
    assert_eq!(counts(&server).await, (1, 0));
}
