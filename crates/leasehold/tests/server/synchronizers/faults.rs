//! Tests in which one request or reply fails, on the embedded keyspace behind a network, with a
//! paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::testing::{Fate, Network, Step};
use leasehold::{Client, Embedded, ErrorKind};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns the possible fates of a request, each with its name.
pub(crate) fn fates() -> Vec<(&'static str, Fate)> {
    let soon = Fate::delivered(MS, MS);
    vec![
        ("lost", soon.request_lost()),
        ("reply lost", soon.reply_lost()),
        ("twice", soon.duplicated_after(5 * MS)),
        ("twice, late", soon.duplicated_after(SECOND)),
        (
            "twice, reply lost",
            soon.reply_lost().duplicated_after(SECOND),
        ),
        ("late", soon.request_lost().duplicated_after(SECOND)),
        ("later", soon.request_lost().duplicated_after(9 * SECOND)),
        ("slow", Fate::delivered(1500 * MS, MS)),
        ("slow reply", Fate::delivered(MS, 1900 * MS)),
        ("too slow", Fate::delivered(3 * SECOND, MS)),
    ]
}

/// Applies `fate` to the nth request for a step. Returns a counter of how often that has happened.
pub(crate) fn strike(network: &Network, step: Step, nth: usize, fate: Fate) -> Arc<AtomicUsize> {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    network.on_request(move |request| {
        if request.step == step && count.fetch_add(1, Ordering::SeqCst) == nth {
            fate
        } else {
            Fate::delivered(MS, MS)
        }
    });
    seen
}

struct Place {
    server: Embedded,
    client: Client,
    network: Network,
    /// A client whose network works.
    witness: Client,
}

fn place() -> Place {
    let server = Embedded::new();
    let (client, network) = server.client_over_network(&Client::builder()).unwrap();
    let witness = server.client();
    Place {
        server,
        client,
        network,
        witness,
    }
}

impl Place {
    /// Waits until all requests that are under way have arrived, and all possible grants have been
    /// undone.
    async fn settles(&self) {
        self.client.close().await;
        tokio::time::sleep(30 * SECOND).await;
    }

    /// Creates the semaphore.
    async fn set_permits(&self, permits: u32) {
        let semaphore = self.witness.semaphore("x");
        semaphore.try_set_permits(permits).await.unwrap();
    }

    async fn free(&self) -> i64 {
        let semaphore = self.witness.semaphore("x");
        semaphore.available_permits().await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn faulty_acquire_loses_or_doubles_no_permit() {
    for (what, fate) in fates() {
        for held in [true, false] {
            let place = place();
            place.set_permits(5).await;
            let seen = strike(&place.network, Step::SemaphoreAcquire, 0, fate);
            let semaphore = place.client.semaphore("x");
            let limit = 20 * SECOND;
            let got = semaphore.try_acquire_many_for(3, limit).await.unwrap();
            assert!(seen.load(Ordering::SeqCst) > 0);
            let permit = got.unwrap_or_else(|| panic!("{what}: five are free"));
            if held {
                tokio::time::sleep(30 * SECOND).await;
                assert_eq!(place.free().await, 2, "{what}: three are in use");
            }
            permit.release().await.unwrap();
            place.settles().await;
            assert_eq!(place.free().await, 5, "{what}, held: {held}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_acquire_takes_nothing_whenever_delivered() {
    for (what, fate) in fates() {
        for ms in [0, 1, 2, 3, 100, 999, 1001, 1600, 2001] {
            let place = place();
            place.set_permits(5).await;
            strike(&place.network, Step::SemaphoreAcquire, 0, fate);
            let semaphore = place.client.semaphore("x");
            let acquire = async { semaphore.acquire_many(3).await.unwrap() };
            let permit = tokio::time::timeout(ms * MS, acquire).await;
            drop(permit);
            place.settles().await;
            assert_eq!(place.free().await, 5, "{what}, dropped after {ms} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faulty_undo_still_returns_all_permits() {
    for (what, fate) in fates() {
        let place = place();
        place.set_permits(5).await;
        let count = AtomicUsize::new(0);
        place.network.on_request(move |request| match request.step {
            Step::SemaphoreAcquire => Fate::delivered(MS, 50 * MS),
            Step::SemaphoreUndo if count.fetch_add(1, Ordering::SeqCst) == 0 => fate,
            _ => Fate::delivered(MS, MS),
        });
        let semaphore = place.client.semaphore("x");
        let acquire = tokio::time::timeout(10 * MS, semaphore.acquire_many(3)).await;
        assert!(acquire.is_err(), "its answer takes longer");
        place.settles().await;
        assert_eq!(place.free().await, 5, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_to_a_release_it_counts_once() {
    for (what, fate) in fates() {
        for dropped in [true, false] {
            let place = place();
            place.set_permits(5).await;
            let seen = strike(&place.network, Step::SemaphoreAdd, 0, fate);
            let semaphore = place.client.semaphore("x");
            let permit = semaphore.acquire_many(3).await.unwrap();
            if dropped {
                drop(permit);
            } else {
                permit.release().await.unwrap();
            }
            place.settles().await;
            assert!(seen.load(Ordering::SeqCst) > 0);
            assert_eq!(place.free().await, 5, "{what}, dropped: {dropped}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn add_and_drain_count_once_after_faults() {
    for (what, fate) in fates() {
        let place = place();
        let semaphore = place.client.semaphore("x");
        strike(&place.network, Step::SemaphoreSet, 0, fate);
        assert!(semaphore.try_set_permits(5).await.unwrap(), "{what}");
        strike(&place.network, Step::SemaphoreAdd, 0, fate);
        semaphore.add_permits(-2).await.unwrap();
        assert_eq!(place.free().await, 3, "{what}");
        strike(&place.network, Step::SemaphoreAdd, 0, fate);
        assert!(semaphore.release_if_exists(4).await.unwrap());
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(place.free().await, 7, "{what}");
        strike(&place.network, Step::SemaphoreDrain, 0, fate);
        assert_eq!(semaphore.drain().await.unwrap(), 7, "{what}");
        strike(&place.network, Step::SemaphoreDelete, 0, fate);
        assert!(semaphore.delete().await.unwrap(), "{what}");
        place.set_permits(2).await;
        place.settles().await;
        assert_eq!(place.free().await, 2, "{what}: the next one stays");
    }
}

#[tokio::test(start_paused = true)]
async fn leased_permits_return_after_any_fault() {
    for step in [
        Step::ExpirableAcquire,
        Step::ExpirableRelease,
        Step::ExpirableRenew,
    ] {
        for (what, fate) in fates() {
            let place = place();
            let semaphore = place.client.expirable_semaphore("x");
            semaphore.try_set_permits(5).await.unwrap();
            strike(&place.network, step, 0, fate);
            let permits = semaphore.acquire_many(3).await.unwrap();
            tokio::time::sleep(60 * SECOND).await;
            assert!(permits.is_held(), "{step} {what}: {:?}", permits.loss());
            if let Err(error) = permits.release().await {
                // The retry found nothing: either the first request has run, or another client has
                // ended the hold.
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
                assert_eq!(step, Step::ExpirableRelease, "{what}: {error}");
            }
            place.settles().await;
            // Permits that a duplicate acquired return at the end of their lease.
            tokio::time::sleep(31 * SECOND).await;
            let witness = place.witness.expirable_semaphore("x");
            let free = witness.available_permits().await.unwrap();
            assert_eq!(free, 5, "{step} {what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn count_down_counts_once_after_any_fault() {
    for (what, fate) in fates() {
        let place = place();
        let latch = place.client.count_down_latch("x");
        strike(&place.network, Step::LatchSet, 0, fate);
        assert!(latch.try_set_count(3).await.unwrap(), "{what}");
        for left in [2, 1, 0] {
            strike(&place.network, Step::LatchCountDown, 0, fate);
            assert_eq!(latch.count_down().await.unwrap(), left, "{what}");
        }
        // A late request must not count down the latch after it was set again.
        place
            .witness
            .count_down_latch("x")
            .try_set_count(2)
            .await
            .unwrap();
        place.settles().await;
        let count = place.witness.count_down_latch("x").count().await.unwrap();
        assert_eq!(count, 2, "{what}");
        let keys = place.server.keys();
        assert!(keys.len() < 20, "{what}: {keys:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn polls_serve_waiters_without_any_message() {
    let place = place();
    place.network.on_message(|_| None);
    let semaphore = place.client.semaphore("s");
    let waiter = tokio::spawn(async move { semaphore.acquire_many(2).await.unwrap().forget() });
    let latch = place.client.count_down_latch("l");
    let opens = place.witness.count_down_latch("l");
    opens.try_set_count(1).await.unwrap();
    let waits = tokio::spawn(async move { latch.wait().await.unwrap() });
    tokio::time::sleep(10 * SECOND).await;
    place.witness.semaphore("s").release(2).await.unwrap();
    opens.count_down().await.unwrap();
    opens.try_set_count(1).await.unwrap();
    let both = async { (waiter.await.unwrap(), waits.await.unwrap()) };
    let served = tokio::time::timeout(3 * SECOND, both).await;
    served.expect("the poll interval is a second");
}

#[tokio::test(start_paused = true)]
async fn latch_waiter_sees_zero_despite_clock_setback() {
    let place = place();
    place.network.on_message(|_| None);
    let opens = place.witness.count_down_latch("l");
    opens.try_set_count(1).await.unwrap();
    for _ in 0..2 {
        let latch = place.client.count_down_latch("l");
        let waits = tokio::spawn(async move { latch.wait().await.unwrap() });
        tokio::time::sleep(SECOND).await;
        place.server.step_clock_back(600 * SECOND);
        opens.count_down().await.unwrap();
        opens.try_set_count(1).await.unwrap();
        let served = tokio::time::timeout(3 * SECOND, waits).await;
        served.expect("the poll interval is a second").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_about_an_earlier_zero_opens_nothing() {
    let place = place();
    // Messages take longer than everything else.
    place.network.on_message(|_| Some(SECOND));
    let opens = place.witness.count_down_latch("x");
    let latch = place
        .client
        .count_down_latch("x")
        .poll_interval(600 * SECOND);
    opens.try_set_count(1).await.unwrap();
    // This wait keeps the subscription open for the next one.
    let early = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await.unwrap() }
    });
    tokio::time::sleep(10 * SECOND).await;
    opens.count_down().await.unwrap();
    opens.try_set_count(1).await.unwrap();
    let late = latch.wait_for(5 * SECOND).await.unwrap();
    assert!(!late, "it was not open since this wait began");
    early.await.unwrap();
    let late = tokio::spawn(async move { latch.wait().await.unwrap() });
    tokio::time::sleep(10 * SECOND).await;
    opens.count_down().await.unwrap();
    opens.try_set_count(1).await.unwrap();
    let opened = tokio::time::timeout(5 * SECOND, late).await;
    opened.expect("and now it was").unwrap();
}

/// The message of the latch is published before the waiter subscribes.
#[tokio::test(start_paused = true)]
async fn latch_opened_before_subscription_wakes_waiters() {
    for set_again in [false, true] {
        let place = place();
        place.network.on_subscription(|_| 500 * MS);
        let opens = place.witness.count_down_latch("x");
        opens.try_set_count(1).await.unwrap();
        let latch = place
            .client
            .count_down_latch("x")
            .poll_interval(600 * SECOND);
        let waits = tokio::spawn(async move { latch.wait().await.unwrap() });
        tokio::time::sleep(200 * MS).await;
        opens.count_down().await.unwrap();
        if set_again {
            opens.try_set_count(1).await.unwrap();
        }
        let opened = tokio::time::timeout(SECOND, waits).await;
        opened.expect("it asks when it listens").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_delivered_after_its_undos_takes_nothing() {
    let place = place();
    place.set_permits(5).await;
    let late = Fate::default().request_lost().duplicated_after(20 * SECOND);
    strike(&place.network, Step::SemaphoreAcquire, 0, late);
    let semaphore = place.client.semaphore("x");
    let acquire = tokio::time::timeout(100 * MS, semaphore.acquire_many(3)).await;
    assert!(acquire.is_err(), "it is on its way");
    // By the server's clock, the request no longer arrives too late.
    place.server.step_clock_back(3600 * SECOND);
    place.settles().await;
    assert_eq!(place.free().await, 5);
}

#[tokio::test(start_paused = true)]
async fn release_without_its_marker_counts_once() {
    for dropped in [true, false] {
        let place = place();
        let admin = place.witness.semaphore("x");
        admin.try_set_permits(5).await.unwrap();
        let permit = place.client.semaphore("x").acquire_many(3).await.unwrap();
        strike(
            &place.network,
            Step::SemaphoreAdd,
            0,
            Fate::delivered(MS, SECOND),
        );
        let releasing = tokio::spawn(permit.release());
        tokio::time::sleep(20 * MS).await;
        place.network.refuse(true);
        if dropped {
            tokio::time::sleep(50 * MS).await;
            releasing.abort();
            let _ = releasing.await;
        } else {
            let error = releasing.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
            let goes_on = "the release is sent again in the background";
            assert!(error.to_string().contains(goes_on), "{error}");
        }
        assert_eq!(place.free().await, 5, "it has run");
        // This is longer than a marker lasts.
        tokio::time::sleep(65 * SECOND).await;
        place.network.refuse(false);
        place.settles().await;
        assert_eq!(place.free().await, 5, "dropped: {dropped}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_delayed_duplicate_counts_once() {
    let place = place();
    let latch = place.client.count_down_latch("x");
    latch.try_set_count(10).await.unwrap();
    let late = Fate::default().request_lost().duplicated_after(20 * SECOND);
    strike(&place.network, Step::LatchCountDown, 0, late);
    // The first count-down is answered only when it is retried. The other count-downs remove the
    // markers of requests that were answered before them.
    for left in (5..10).rev() {
        assert_eq!(latch.count_down().await.unwrap(), left);
        tokio::time::sleep(6 * SECOND).await;
    }
    place.settles().await;
    let count = place.witness.count_down_latch("x").count().await;
    assert_eq!(count.unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn request_is_not_repeated_beyond_its_marker() {
    let server = Embedded::new();
    let builder = Client::builder().reply_timeout(30 * SECOND);
    let (client, network) = server.client_over_network(&builder).unwrap();
    let semaphore = client.semaphore("x");
    let mut asked = 0;
    network.on_request(move |_| {
        asked += 1;
        match asked {
            1 => Fate::delivered(MS, MS).reply_lost(),
            2 => Fate::delivered(MS, MS).request_lost(),
            _ => Fate::delivered(MS, MS),
        }
    });
    let result = semaphore.release(3).await;
    let witness = server.client().semaphore("x");
    assert_eq!(witness.available_permits().await.unwrap(), 3, "{result:?}");
}

/// An error says whether something may have changed, and what happens next.
#[tokio::test(start_paused = true)]
async fn error_tells_outcome_of_unanswered_request() {
    let place = place();
    place
        .network
        .on_request(|_| Fate::delivered(MS, MS).reply_lost());

    let latch = place.client.count_down_latch("l");
    let error = latch.try_set_count(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("nothing undoes it"), "{error}");
    let asked = place.witness.count_down_latch("l").count().await.unwrap();
    assert_eq!(asked, 2, "it has run");

    let lock = place.client.lock("k");
    let error = lock.force_unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("nothing undoes it"), "{error}");

    let leases = place.client.expirable_semaphore("e");
    let theirs = place.witness.expirable_semaphore("e");
    theirs.set_permits(2).await.unwrap();
    let permit = theirs.acquire().await.unwrap();
    let id = permit.id();
    for error in [
        leases.update_lease(id, 60 * SECOND).await.unwrap_err(),
        leases.release(id).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(error.to_string().contains("nothing undoes it"), "{error}");
    }

    let error = lock.try_acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(
        error.to_string().contains("undone in the background"),
        "{error}"
    );

    // A query changes nothing, whether or not the server has read it.
    for error in [
        latch.count().await.unwrap_err(),
        latch.wait_for(SECOND).await.unwrap_err(),
        lock.inspect().await.unwrap_err(),
        leases.remaining_ttl(id).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
    }
}
