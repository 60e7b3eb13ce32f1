//! A fair lock among the waiters of one process: a release grants it to the next waiter, and the
//! hold is handed over to the waiters that follow.

use std::pin::Pin;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{FairLock, LockGuard};
use tokio::task::JoinHandle;

use super::hand_over::{Sent, at, busy, near, others_go_on};
use super::*;

fn waits(lock: &FairLock) -> JoinHandle<LockGuard> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Returns a holder, and waiters of its process that each have a place in line.
async fn held<const N: usize>(client: &Client) -> (LockGuard, [JoinHandle<LockGuard>; N]) {
    let lock = client.fair_lock("x");
    let first = lock.acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..N {
        waiters.push(waits(&lock));
        sleep(3 * MS).await;
    }
    (first, waiters.try_into().ok().unwrap())
}

fn asked(sent: &Sent) -> (usize, usize) {
    let steps = [Step::FairAcquire, Step::FairRelease];
    (sent.count(steps[0]), sent.count(steps[1]))
}

#[tokio::test(start_paused = true)]
async fn release_grants_the_lock_to_the_next_of_the_process() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (first, [second, third]) = held(&client).await;
    assert_eq!(client.activity().channels, 1, "only the next one listens");
    let ((asks, _), start) = (asked(&sent), Instant::now());
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), MS, "with the answer to the release");
    let number = second.number();
    let (released, third) = tokio::join!(second.release(), async {
        let third = third.await.unwrap();
        assert_eq!(start.elapsed(), MS, "without a request");
        third
    });
    released.unwrap();
    assert_ne!(third.number(), number);
    third.release().await.unwrap();
    assert_eq!(asked(&sent), (asks, 2));
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn lock_that_was_granted_by_a_release_is_renewed() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third]) = held(&client).await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    // This is three leases.
    sleep(3000 * MS).await;
    assert_eq!(second.loss(), None);
    second.release().await.unwrap();
    let third = third.await.unwrap();
    sleep(3000 * MS).await;
    assert_eq!(third.loss(), None);
    let elsewhere = server.client().fair_lock("x");
    assert!(elsewhere.try_acquire().await.unwrap().is_none());
    third.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_of_another_process_is_not_overtaken() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.fair_lock("x");
    let (first, [second]) = held(&client).await;
    let far = waits(&server.client().fair_lock("x"));
    others_go_on().await;
    let mut third = waits(&lock);
    sleep(3 * MS).await;
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    let far = tokio::time::timeout(100 * MS, far).await;
    let far = far.expect("it is its turn").unwrap();
    assert!((&mut third).now_or_never().is_none());
    far.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_that_has_gone_is_passed_over() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third, fourth]) = held(&client).await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    third.abort();
    others_go_on().await;
    let start = Instant::now();
    let (released, fourth) = tokio::join!(second.release(), fourth);
    released.unwrap();
    assert!(start.elapsed() <= 2 * MS, "{:?}", start.elapsed());
    fourth.unwrap().release().await.unwrap();
    sleep(3 * MS).await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn waiter_that_goes_with_the_lock_keeps_it_from_nobody() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.fair_lock("x");
    let first = lock.acquire().await.unwrap();
    let mut second = Box::pin(lock.acquire());
    for _ in 0..5 {
        assert!(second.as_mut().now_or_never().is_none());
        sleep(MS).await;
    }
    let third = waits(&lock);
    sleep(3 * MS).await;
    // The lock is granted to the second waiter, which is no longer polled.
    first.release().await.unwrap();
    drop(second);
    let start = Instant::now();
    let third = third.await.unwrap();
    assert!(start.elapsed() <= 4 * MS, "{:?}", start.elapsed());
    sleep(2000 * MS).await;
    assert_eq!(third.loss(), None, "nothing gives its hold back");
    third.release().await.unwrap();
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn unpolled_waiter_keeps_the_lock_from_nobody() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.fair_lock("x");
    let first = lock.acquire().await.unwrap();
    let mut second = Box::pin({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    for _ in 0..5 {
        assert!(second.as_mut().now_or_never().is_none());
        sleep(MS).await;
    }
    let third = waits(&lock);
    sleep(3 * MS).await;
    let start = Instant::now();
    first.release().await.unwrap();
    let third = third.await.unwrap();
    assert!(start.elapsed() <= 300 * MS, "{:?}", start.elapsed());
    let mut second = tokio::spawn(async move { second.await.unwrap().number() });
    sleep(5000 * MS).await;
    assert!((&mut second).now_or_never().is_none(), "beside the third");
    assert_eq!(third.loss(), None);
    third.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_on_other_terms_asks_itself() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (first, []) = held(&client).await;
    let second = waits(&client.fair_lock("x").lease(800 * MS));
    sleep(3 * MS).await;
    let (asks, _) = asked(&sent);
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(asked(&sent), (asks + 1, 1));
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hand_over_of_a_fair_lock_can_be_turned_off() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.fair_lock("x").local_hand_over(Duration::ZERO);
    let first = lock.acquire().await.unwrap();
    let second = waits(&lock);
    sleep(3 * MS).await;
    let (asks, _) = asked(&sent);
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(asked(&sent), (asks + 1, 1));
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_fault_of_a_release_hides_who_has_the_lock() {
    let near = Fate::delivered(MS, MS);
    for (what, fate) in [
        ("lost", near.request_lost()),
        ("unanswered", near.reply_lost()),
        ("late", Fate::delivered(300 * MS, MS)),
        ("later than any answer", Fate::delivered(600 * MS, MS)),
        ("answered late", Fate::delivered(MS, 300 * MS)),
        ("doubled", near.duplicated_after(50 * MS)),
    ] {
        for dropped in [false, true] {
            let server = Embedded::new();
            let (client, network) = over_network(&server);
            let (first, [second, third]) = held(&client).await;
            let mut faults = 1;
            network.on_request(move |asked| match asked.step {
                Step::FairRelease if faults > 0 => {
                    faults -= 1;
                    fate
                }
                _ => Fate::delivered(MS, Duration::ZERO),
            });
            if dropped {
                let mut release = Box::pin(first.release());
                assert!(release.as_mut().now_or_never().is_none(), "{what}");
            } else {
                match first.release().await {
                    Ok(()) => assert_ne!(what, "unanswered"),
                    // A retry finds that the next holder has the lock, or that it is free.
                    Err(error) => {
                        assert_eq!(what, "unanswered", "{error}");
                        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
                    }
                }
            }
            let start = Instant::now();
            let second = second.await.unwrap();
            assert!(
                start.elapsed() <= 1500 * MS,
                "{what}, {dropped}: {:?}",
                start.elapsed()
            );
            second.release().await.expect(what);
            third.await.unwrap().release().await.expect(what);
            client.close().await;
            assert_eq!(server.keys().len(), 0, "{what}, {dropped}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn places_of_those_that_were_served_go_with_a_lost_hold() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third, fourth]) = held(&client).await;
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    let third = third.await.unwrap();
    let elsewhere = server.client().fair_lock("x");
    assert_eq!(elsewhere.waiters().await.unwrap().len(), 2);
    assert!(elsewhere.force_unlock().await.unwrap());
    let lost = third.lost().await;
    assert_eq!(lost, crate::support::forced());
    let start = Instant::now();
    third.release().await.unwrap_err();
    let fourth = fourth.await.unwrap();
    assert!(start.elapsed() <= 4 * MS, "{:?}", start.elapsed());
    fourth.release().await.unwrap();
    assert_eq!(server.keys(), ["leasehold:{x}:forced"]);
}

/// Lets three holders have the lock one after the other. Returns the last holder, which has taken
/// over the hold of the second.
async fn passed_on(client: &Client) -> LockGuard {
    let (first, [second, third]) = held(client).await;
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    third.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn places_of_those_that_were_served_go_with_a_forgotten_hold() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    passed_on(&client).await.forget();
    others_go_on().await;
    sleep(3 * MS).await;
    let elsewhere = server.client().fair_lock("x");
    assert_eq!(elsewhere.waiters().await.unwrap(), [""; 0]);
    // The lease of the forgotten hold ends.
    let guard = elsewhere.try_acquire_for(1100 * MS).await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn places_of_those_that_were_served_go_with_a_closed_client() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let guard = passed_on(&client).await;
    client.close().await;
    let elsewhere = server.client().fair_lock("x");
    assert_eq!(elsewhere.waiters().await.unwrap(), [""; 0]);
    let next = elsewhere.try_acquire_for(1100 * MS).await.unwrap();
    next.expect("it is free").release().await.unwrap();
    guard.release().await.unwrap_err();
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// Returns the number of requests that keep one place, and the number of requests that keep
/// several.
fn places_kept(sent: &Sent) -> (usize, usize) {
    (
        sent.count(Step::FairAcquire),
        sent.count(Step::FairKeepPlaces),
    )
}

/// Checks that these waiters get the lock in this order, one after the other.
async fn all_get_it(first: LockGuard, waiters: impl IntoIterator<Item = JoinHandle<LockGuard>>) {
    let mut guard = first;
    for waiter in waiters {
        guard.release().await.unwrap();
        let next = tokio::time::timeout(5 * MS, waiter).await;
        guard = next.expect("it is next in line").unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_keep_their_places_together() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (first, waiters) = held::<100>(&client).await;
    let before = places_kept(&sent);
    sleep(60_000 * MS).await;
    let after = places_kept(&sent);
    // A waiter sends a request each time the holder's lease of a second may have ended. Only the
    // first waiter sends a request for itself alone. Two requests, for up to 64 places each, keep
    // the places of the others.
    let (alone, together) = (after.0 - before.0, after.1 - before.1);
    assert!(alone <= 80, "{alone} requests of single waiters");
    assert!((100..=200).contains(&together), "{together} requests");
    all_get_it(first, waiters).await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn places_that_were_kept_together_are_taken_again_after_an_outage() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let elsewhere = server.client().fair_lock("x").poll_interval(100 * MS);
    let holder = elsewhere.acquire().await.unwrap();
    let lock = client.fair_lock("x");
    let mut waiters = Vec::new();
    for _ in 0..10 {
        waiters.push(waits(&lock));
        sleep(3 * MS).await;
    }
    network.on_request(|_| Fate::default().request_lost());
    // A waiter's request removes the places that have lapsed.
    let tried = elsewhere.try_acquire_for(8000 * MS).await.unwrap();
    assert!(tried.is_none(), "it is held");
    assert_eq!(elsewhere.waiters().await.unwrap(), [""; 0]);
    network.on_request(|_| Fate::delivered(MS, Duration::ZERO));
    let start = Instant::now();
    while elsewhere.waiters().await.unwrap().len() < 10 {
        assert!(
            start.elapsed() < 5000 * MS,
            "places that nothing takes again"
        );
        sleep(10 * MS).await;
    }
    holder.release().await.unwrap();
    // Any of these waiters may be the head now.
    let got = waiters.into_iter().map(|waiter| async {
        waiter.await.unwrap().release().await.unwrap();
    });
    join_all(got).await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_while_its_place_is_kept_leaves_no_place() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let (first, waiters) = held::<10>(&client).await;
    let mut waiters = Vec::from(waiters);
    let late = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&late);
    // A duplicate of each request for the places arrives after the waiters have left the line.
    network.on_request(move |asked| match asked.step {
        Step::FairKeepPlaces => {
            *seen.lock().unwrap() += 1;
            Fate::delivered(MS, Duration::ZERO).duplicated_after(300 * MS)
        }
        _ => Fate::delivered(MS, Duration::ZERO),
    });
    let start = Instant::now();
    while *late.lock().unwrap() == 0 {
        assert!(start.elapsed() < 3000 * MS, "no request for several places");
        sleep(MS).await;
    }
    for waiter in waiters.split_off(2) {
        waiter.abort();
    }
    sleep(1000 * MS).await;
    assert_eq!(client.fair_lock("x").waiters().await.unwrap().len(), 2);
    all_get_it(first, waiters).await;
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// A lost request may not have joined the line, so its waiter does not wait for others.
#[tokio::test(start_paused = true)]
async fn waiter_whose_request_for_a_place_was_lost_asks_again_soon() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let (first, waiters) = held::<1>(&client).await;
    // From now on, the first waiter sends a request once a second.
    sleep(20 * MS).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    network.on_request(move |request| {
        let mut asked = seen.lock().unwrap();
        let near = Fate::delivered(MS, Duration::ZERO);
        if request.step != Step::FairAcquire {
            return near;
        }
        asked.push(Instant::now());
        match asked.len() {
            1 => near.request_lost(),
            _ => near,
        }
    });
    let lock = client.fair_lock("x");
    let last = waits(&lock);
    while lock.waiters().await.unwrap().len() < 2 {
        sleep(MS).await;
    }
    let asked = asked.lock().unwrap().clone();
    // The client abandons a reply after 400 ms, and retries after 20 ms.
    let pause = asked[1] - asked[0];
    assert!(pause < 450 * MS, "asked again after {pause:?}");
    all_get_it(first, waiters.into_iter().chain([last])).await;
}

/// Returns a wait that only proceeds while it is polled.
fn waits_by_hand(lock: &FairLock) -> Pin<Box<dyn Future<Output = LockGuard> + Send>> {
    let lock = lock.clone();
    Box::pin(async move { lock.acquire().await.unwrap() })
}

/// Polls a wait each millisecond.
async fn polled(wait: &mut Pin<Box<dyn Future<Output = LockGuard> + Send>>, times: u32) {
    for _ in 0..times {
        assert!(wait.as_mut().now_or_never().is_none());
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_a_message_wakes_asks_at_once_behind_another() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let holder = server.client().fair_lock("x").acquire().await.unwrap();
    let lock = client.fair_lock("x");
    let mut first = waits_by_hand(&lock);
    polled(&mut first, 10).await;
    let second = waits(&lock);
    // The first waiter is skipped, because it is not polled when its poll interval ends.
    sleep(1500 * MS).await;
    polled(&mut first, 20).await;
    let first = tokio::spawn(first);
    holder.release().await.unwrap();
    let guard = tokio::time::timeout(10 * MS, first).await;
    all_get_it(guard.expect("it was notified").unwrap(), [second]).await;
}

#[tokio::test(start_paused = true)]
async fn place_of_an_unpolled_waiter_is_not_kept_with_others() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.fair_lock("x");
    let (first, [second]) = held(&client).await;
    let start = Instant::now();
    let mut unpolled = waits_by_hand(&lock);
    polled(&mut unpolled, 10).await;
    // The unpolled waiter's poll interval ends. At the next poll, this waiter begins to share
    // requests that keep places.
    sleep(1040 * MS).await;
    polled(&mut unpolled, 1).await;
    sleep(1000 * MS).await;
    let last = waits(&lock);
    sleep(5200 * MS - start.elapsed()).await;
    assert_eq!(
        lock.waiters().await.unwrap().len(),
        2,
        "its place has lapsed"
    );
    drop(unpolled);
    all_get_it(first, [second, last]).await;
}

/// A request that keeps several places waits for more of them, up to a tenth of a second.
#[tokio::test(start_paused = true)]
async fn hold_is_handed_over_to_a_waiter_whose_place_is_being_kept() {
    for after in 0..30 {
        let server = Embedded::new();
        let (client, _network, _) = near(&server);
        let (first, waiters) = held::<4>(&client).await;
        sleep(after * 50 * MS).await;
        all_get_it(first, waiters).await;
        assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
    }
}

#[tokio::test(start_paused = true)]
async fn each_task_of_two_processes_has_the_lock_as_often() {
    let server = Embedded::new();
    let (ours, _network, sent) = at(&server, MS, MS);
    let (theirs, _its_network, _) = at(&server, MS, MS);
    let recorder = Recorder::new();
    let many = busy(ours.fair_lock("x"), "ours", 16).start(&recorder);
    let few = busy(theirs.fair_lock("x"), "theirs", 4).start(&recorder);
    let held = join_all(many.into_iter().chain(few)).await;
    let held: Vec<usize> = held.into_iter().map(Result::unwrap).collect();
    recorder.report().judge().unwrap();
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(most - least <= 2, "{held:?}");
    let (asks, releases) = asked(&sent);
    let all: usize = held[..16].iter().sum();
    assert!(
        asks < all * 3 / 2 && releases < all / 2,
        "{asks}, {releases} for {all}"
    );
}
