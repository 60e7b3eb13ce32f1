//! A lock that stays locked for some time after its holder has left, or until its lease ends. The
//! tests concern the clients that wait for the lock, and the earlier holders of the same process.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use leasehold::{AnyLock, LockGuard, Owner};
use tokio::task::JoinHandle;

use super::hand_over::near;
use super::*;

/// A duration longer than any poll that might wake a waiter.
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a client whose leases are longer than any duration here.
fn long_leases(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder()
        .reply_timeout(400 * MS)
        .lease(30_000 * MS)
        .presence(false);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(takes(MS));
    (client, network)
}

/// Returns a lock of each kind that can be kept.
fn kinds(client: &Client) -> [AnyLock; 4] {
    [
        client.lock("x").into(),
        client.fenced_lock("x").into(),
        // Its waiters rarely send a request, even if no message wakes them.
        client.fair_lock("x").waiter_timeout(HOUR).into(),
        client.rw_lock("x").write_lock().into(),
    ]
}

fn waits(lock: AnyLock) -> JoinHandle<LockGuard> {
    let lock = lock.poll_interval(HOUR);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Records the steps of the requests that are sent from now on. The reply to a `slow` step takes
/// `delay`, any other reply a millisecond.
fn notes_requests(network: &Network, slow: Step, delay: Duration) -> Arc<Mutex<Vec<Step>>> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&sent);
    network.on_request(move |asked| {
        // This must not panic after a failed assertion: a second panic would end the process
        // without a report.
        if let Ok(mut noted) = noted.lock() {
            noted.push(asked.step);
        }
        let reply = if asked.step == slow { delay } else { MS };
        Fate::delivered(MS, reply)
    });
    sent
}

/// A waiter is woken by messages, and at the end of the hold that the server has reported.
#[tokio::test(start_paused = true)]
async fn waiters_learn_the_end_of_a_kept_lock() {
    for own in [false, true] {
        for kind in 0..4 {
            let server = Embedded::new();
            let (client, _network) = long_leases(&server);
            let (theirs, _theirs_network) = long_leases(&server);
            let guard = kinds(&client)[kind].acquire().await.unwrap();
            let from = if own { &client } else { &theirs };
            let waiters: Vec<_> = (0..3).map(|_| waits(kinds(from)[kind].clone())).collect();
            sleep(500 * MS).await;
            let start = Instant::now();
            guard.keep_for(1000 * MS).await.unwrap();
            for waiter in waiters {
                waiter.await.unwrap().release().await.unwrap();
            }
            let waited = start.elapsed();
            let case = format!("{:?}, own {own}: {waited:?}", kinds(&client)[kind]);
            assert!(waited >= 1000 * MS && waited < 1200 * MS, "{case}");
        }
    }
}

/// The reader sent its request before the lock was kept. In spite of its long poll interval, the
/// reader asks again at the new end of the hold.
#[tokio::test(start_paused = true)]
async fn a_reader_learns_the_end_of_a_kept_write_lock() {
    let server = Embedded::new();
    let (client, _network) = long_leases(&server);
    let (theirs, _theirs_network) = long_leases(&server);
    let guard = client.rw_lock("x").write().await.unwrap();
    let lock = theirs.rw_lock("x").poll_interval(HOUR);
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    sleep(500 * MS).await;
    let start = Instant::now();
    guard.keep_for(1000 * MS).await.unwrap();
    reader.await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < 1200 * MS, "{:?}", start.elapsed());
}

/// Returns the release of a holder that has handed the lock over and waits for the server's
/// confirmation, and the second holder. The first renewal, which should bring the confirmation, is
/// lost.
async fn handed_over(
    client: &Client,
    network: &Network,
) -> (JoinHandle<leasehold::Result<()>>, LockGuard) {
    let lock = client.lock("x");
    let first = lock.acquire().await.unwrap();
    let second = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    sleep(3 * MS).await;
    let mut renewals = 0;
    network.on_request(move |asked| {
        renewals += u32::from(asked.step == Step::LockRenew);
        match asked.step == Step::LockRenew && renewals == 1 {
            true => Fate::delivered(MS, MS).request_lost(),
            false => Fate::delivered(MS, MS),
        }
    });
    let released = tokio::spawn(first.release());
    let second = second.await.unwrap();
    sleep(MS).await;
    (released, second)
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_kept_lock_is_the_word_for_those_before() {
    let server = Embedded::new();
    let (client, network) = long_leases(&server);
    let (released, second) = handed_over(&client, &network).await;
    let start = Instant::now();
    second.keep_for(100 * MS).await.unwrap();
    released.await.unwrap().unwrap();
    assert!(start.elapsed() < 20 * MS, "{:?}", start.elapsed());
}

/// A renewal that will confirm the first release is under way, and the second release also waits
/// for a confirmation. No later request is sent to get that confirmation, even if the future of
/// `keep_for` is dropped.
#[tokio::test(start_paused = true)]
async fn nothing_renews_a_lock_behind_the_request_that_keeps_it() {
    for dropped in [false, true] {
        let server = Embedded::new();
        let (client, network) = long_leases(&server);
        network.on_request(|_| Fate::delivered(MS, Duration::ZERO));
        let lock = client.lock("x");
        let first = lock.acquire().await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..2 {
            let lock = lock.clone();
            waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
            tokio::task::yield_now().await;
        }
        sleep(3 * MS).await;
        let sent = notes_requests(&network, Step::LockKeepFor, 5 * MS);
        let mut released = vec![tokio::spawn(first.release())];
        let third = waiters.pop().unwrap();
        let second = waiters.pop().unwrap().await.unwrap();
        released.push(tokio::spawn(second.release()));
        let third = third.await.unwrap();
        let start = Instant::now();
        let mut keep = Box::pin(third.keep_for(1000 * MS));
        if dropped {
            assert!(keep.as_mut().now_or_never().is_none());
            drop(keep);
        } else {
            keep.await.unwrap();
        }
        for released in released {
            released.await.unwrap().unwrap();
        }
        let next = waits(server.client().lock("x").into()).await.unwrap();
        assert!(start.elapsed() < 1100 * MS, "{:?}", start.elapsed());
        let mut sent = sent.lock().unwrap().clone();
        // The next waiter of the process had asked to be notified.
        sent.retain(|step| *step != Step::LockDelist);
        let asked = [Step::LockRenew, Step::LockKeepFor];
        assert_eq!(sent, asked, "dropped {dropped}");
        next.release().await.unwrap();
    }
}

/// A renewal of several holds finds that one of them has more than a lease left, so the next
/// renewal of this hold would be sent for it alone. Before that reply arrives, `keep_for` keeps the
/// hold.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_odd_among_many_is_not_renewed_once_it_is_kept() {
    let server = Embedded::new();
    let (client, network) = long_leases(&server);
    let lock = client.lock("x").owned_by(&Owner::new());
    let guard = lock.acquire().await.unwrap();
    let longer = lock.clone().lease(60_000 * MS).acquire().await.unwrap();
    // Both holds draw the same random time for their renewal, so that one request renews both.
    fastrand::seed(1);
    longer.release().await.unwrap();
    fastrand::seed(1);
    let other = client.lock("y").acquire().await.unwrap();
    let sent = notes_requests(&network, Step::LockRenewMany, 50 * MS);
    while sent.lock().unwrap().is_empty() {
        sleep(MS).await;
    }
    sleep(5 * MS).await;
    let start = Instant::now();
    guard.keep_for(5000 * MS).await.unwrap();
    let next = waits(server.client().lock("x").into()).await.unwrap();
    assert!(start.elapsed() < 5100 * MS, "{:?}", start.elapsed());
    let asked = [Step::LockRenewMany, Step::LockKeepFor];
    assert_eq!(*sent.lock().unwrap(), asked);
    next.release().await.unwrap();
    other.release().await.unwrap();
}

/// The late request was sent before `keep_for`.
#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_late_does_not_lengthen_a_kept_lock() {
    for kind in 0..4 {
        let server = Embedded::new();
        let (client, network) = long_leases(&server);
        let late = Arc::new(Mutex::new(0));
        let noted = Arc::clone(&late);
        network.on_request(move |asked| match asked.step {
            Step::LockRenew | Step::LockRenewMany | Step::RwRenewWrite | Step::FairAcquire => {
                *noted.lock().unwrap() += 1;
                Fate::delivered(MS, MS).duplicated_after(100 * MS)
            }
            _ => Fate::delivered(MS, MS),
        });
        let case = format!("{:?}", kinds(&client)[kind]);
        // The request is sent first right after the acquire, and then right after an extension.
        for extended in [false, true] {
            let guard = kinds(&client)[kind].acquire().await.unwrap();
            if extended {
                guard.extend(30_000 * MS).await.unwrap();
                assert!(*late.lock().unwrap() > 0, "{case}");
            }
            let start = Instant::now();
            guard.keep_for(1000 * MS).await.unwrap();
            let next = waits(kinds(&server.client())[kind].clone()).await.unwrap();
            let waited = start.elapsed();
            assert!(
                waited < 1200 * MS,
                "{case}, extended {extended}: {waited:?}"
            );
            next.release().await.unwrap();
        }
    }
}

/// A duplicate of a renewal of several holds arrives after `keep_for` for one of them.
#[tokio::test(start_paused = true)]
async fn a_late_renewal_of_many_does_not_lengthen_a_kept_lock() {
    let server = Embedded::new();
    let (client, network) = long_leases(&server);
    let mut guards = Vec::new();
    for name in ["x", "y"] {
        fastrand::seed(1);
        guards.push(client.lock(name).acquire().await.unwrap());
    }
    let renewed = Arc::new(Mutex::new(false));
    let noted = Arc::clone(&renewed);
    network.on_request(move |asked| match asked.step {
        Step::LockRenewMany => {
            *noted.lock().unwrap() = true;
            Fate::delivered(MS, MS).duplicated_after(100 * MS)
        }
        _ => Fate::delivered(MS, MS),
    });
    while !*renewed.lock().unwrap() {
        sleep(MS).await;
    }
    sleep(5 * MS).await;
    let start = Instant::now();
    let kept = guards.remove(0);
    kept.keep_for(1000 * MS).await.unwrap();
    let next = waits(server.client().lock("x").into()).await.unwrap();
    assert!(start.elapsed() < 1200 * MS, "{:?}", start.elapsed());
    next.release().await.unwrap();
}

/// The first `keep_for` request has run. Its retry finds that the lock has ended.
#[tokio::test(start_paused = true)]
async fn a_kept_lock_that_is_over_is_no_loss() {
    let server = Embedded::new();
    let (client, network) = long_leases(&server);
    let (released, second) = handed_over(&client, &network).await;
    let mut kept = 0;
    network.on_request(move |asked| {
        kept += u32::from(asked.step == Step::LockKeepFor);
        match asked.step == Step::LockKeepFor && kept == 1 {
            true => Fate::delivered(MS, MS).reply_lost(),
            false => Fate::delivered(MS, MS),
        }
    });
    let unknown = second.keep_for(10 * MS).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
    let unknown = released.await.unwrap().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
}

/// The lease of the forgotten lock ends before the server answers again. That does not show that
/// the earlier hold was lost.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_forgotten_lock_is_no_loss_to_the_one_before() {
    let server = Embedded::new();
    let builder = Client::builder().reply_timeout(2000 * MS).lease(1000 * MS);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(takes(MS));
    let (released, second) = handed_over(&client, &network).await;
    let left = second.valid_until();
    second.forget();
    let unknown = released.await.unwrap().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
    assert!(Instant::now() > left);
}

/// A request for the server's confirmation does not renew a hold that was forgotten.
#[tokio::test(start_paused = true)]
async fn a_forgotten_lock_is_not_renewed_for_the_one_before() {
    let server = Embedded::new();
    let (client, network) = long_leases(&server);
    let (released, second) = handed_over(&client, &network).await;
    second.forget();
    let before = server.client().lock("x").remaining_ttl().await.unwrap();
    released.await.unwrap().unwrap();
    let after = server.client().lock("x").remaining_ttl().await.unwrap();
    let (leasehold::inspect::Ttl::Left(before), leasehold::inspect::Ttl::Left(after)) =
        (before, after)
    else {
        panic!("{before:?}, {after:?}");
    };
    assert!(after < before, "{before:?}, {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_lock_is_not_kept_beside_its_owners_read() {
    let server = Embedded::new();
    let (client, _network) = long_leases(&server);
    let lock = client.rw_lock("x").owned_by(&Owner::new());
    let (writing, reading) = (lock.write().await.unwrap(), lock.read().await.unwrap());
    let refused = writing.keep_for(1000 * MS).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
    let others = server.client().rw_lock("x");
    assert!(
        others.try_read().await.unwrap().is_some(),
        "it was given back"
    );
    assert!(others.try_write().await.unwrap().is_none());
    reading.release().await.unwrap();
    // A read hold that has ended does not prevent this.
    let writing = lock.write().await.unwrap();
    let reading = lock.read().await.unwrap();
    reading.release().await.unwrap();
    writing.keep_for(1000 * MS).await.unwrap();
    assert!(others.try_read().await.unwrap().is_none());
    sleep(1000 * MS).await;
    assert!(others.try_write().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_another_guard_has_forgotten_is_not_kept() {
    let server = Embedded::new();
    let (client, _network) = long_leases(&server);
    let lock = client.lock("x").owned_by(&Owner::new());
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    first.forget();
    let refused = second.keep_for(100 * MS).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse);
    assert!(refused.to_string().contains("was forgotten"), "{refused}");
    assert_eq!(client.activity().renewed_holds, 0);
    sleep(29_000 * MS).await;
    assert!(server.client().lock("x").is_locked().await.unwrap());
    sleep(1000 * MS).await;
    assert!(!server.client().lock("x").is_locked().await.unwrap());
}

/// The request that ends a hold discovers its loss.
#[tokio::test(start_paused = true)]
async fn a_loss_that_is_found_at_the_end_is_told_to_the_hook() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let server = Embedded::new();
    let noted = Arc::clone(&told);
    let client = Client::builder()
        .on_lost(move |lost| noted.lock().unwrap().push(lost.name.to_owned()))
        .embedded(&server)
        .unwrap();
    let lost = |result: leasehold::Result<()>, name: &str| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!(told, [name]);
    };
    let guard = client.lock("released").acquire().await.unwrap();
    client.lock("released").force_unlock().await.unwrap();
    lost(guard.release().await, "released");
    let guard = client.lock("kept").acquire().await.unwrap();
    client.lock("kept").force_unlock().await.unwrap();
    lost(guard.keep_for(1000 * MS).await, "kept");
    let guard = client.rw_lock("turned").write().await.unwrap();
    let forced = client.force_release("turned", guard.holder_id()).await;
    assert!(forced.unwrap());
    lost(guard.downgrade().await.map(drop), "turned");
    // The hook is called only once, although a later request also discovers the loss.
    let guard = client.lock("extended").acquire().await.unwrap();
    client.lock("extended").force_unlock().await.unwrap();
    lost(guard.extend(30_000 * MS).await, "extended");
    guard.release().await.unwrap_err();
    assert_eq!(told.lock().unwrap().len(), 0);
}

/// The downgrade has run but its reply was lost, and then the read hold was force-unlocked.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_may_have_run_is_no_loss_to_the_writer_before_it() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let lock = client.rw_lock("x");
    let first = lock.write().await.unwrap();
    let second = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    sleep(3 * MS).await;
    let mut turned = 0;
    network.on_request(move |asked| match asked.step {
        Step::RwRenewWrite => Fate::delivered(MS, MS).request_lost(),
        Step::RwDowngrade => {
            turned += 1;
            let first = turned == 1;
            Fate::delivered(MS, if first { 300 * MS } else { MS })
        }
        _ => Fate::delivered(MS, MS),
    });
    let first = tokio::spawn(first.release());
    let second = second.await.unwrap();
    let downgrade = tokio::spawn(second.downgrade());
    sleep(5 * MS).await;
    server.remove("x");
    network.cut();
    let lost = downgrade.await.unwrap().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
    let unknown = first.await.unwrap().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
}

/// The swap has run but was not answered, and then the new permit was removed.
#[tokio::test(start_paused = true)]
async fn an_exchange_that_may_have_run_is_no_loss() {
    let server = Embedded::new();
    let (client, network, _) = near(&server);
    let semaphore = client.expirable_semaphore("x");
    semaphore.try_set_permits(1).await.unwrap();
    let first = semaphore.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.unwrap() }
    });
    sleep(6 * MS).await;
    let mut exchanges = 0;
    network.on_request(move |asked| {
        exchanges += u32::from(asked.step == Step::ExpirableExchange);
        match asked.step == Step::ExpirableExchange && exchanges == 1 {
            true => Fate::delivered(MS, MS).reply_lost(),
            false => Fate::delivered(MS, MS),
        }
    });
    let released = tokio::spawn(first.release());
    sleep(50 * MS).await;
    server.clear();
    let unknown = released.await.unwrap().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
    waiter.abort();
}
