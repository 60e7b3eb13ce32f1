//! Renewal that depends on the progress of the holder's work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Embedded, ErrorKind, LossReason, MultiLock, Owner};
use tokio::time::{Instant, sleep, timeout};

use super::{MS, over_network};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const WITHIN: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn work_that_reports_in_time_is_renewed_for_hours() {
    let server = Embedded::new();
    let client = server.client();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    for _ in 0..200 {
        sleep(WITHIN.mul_f64(0.9)).await;
        guard.progress();
        assert!(guard.is_held());
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stalled_work_loses_its_hold_and_the_next_one_enters_at_once() {
    let server = Embedded::new();
    let client = server.client();
    let other = server.client();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    let began = Instant::now();
    let next = async {
        let guard = other.lock("x").acquire().await.unwrap();
        (guard, began.elapsed())
    };
    let work = guard.protect(std::future::pending::<()>());
    // Work that is renewed without progress would never end.
    let both = timeout(10 * WITHIN, async { tokio::join!(work, next) });
    let (worked, (next, entered)) = both.await.expect("it ends");
    let error = worked.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let Some(LossReason::Stalled { since }) = error.loss().cloned() else {
        panic!("{error}");
    };
    assert!(since >= WITHIN && since <= WITHIN + LEASE, "{since:?}");
    assert!(entered >= since && entered <= WITHIN + LEASE, "{entered:?}");
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_report_after_the_end_does_not_revive() {
    let server = Embedded::new();
    let client = server.client();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    let progress = guard.progress_handle();
    guard.lost().await;
    progress.report();
    guard.progress();
    sleep(LEASE).await;
    assert!(matches!(guard.loss(), Some(LossReason::Stalled { .. })));
    assert!(server.keys().is_empty());
    guard.release().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_report_before_the_end_starts_the_renewals_again() {
    let server = Embedded::new();
    let client = server.client();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.stalled().await >= WITHIN);
    // Wait until the next renewal is due, and refused.
    sleep(LEASE / 2).await;
    assert!(guard.is_held());
    guard.progress();
    sleep(LEASE).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// The server is away from the report on, so no renewal is confirmed.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_after_a_report_is_the_reason() {
    let server = Embedded::new();
    let builder = Client::builder().lease(LEASE).reply_timeout(SECOND);
    let (client, network) = server.client_over_network(&builder).unwrap();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    guard.stalled().await;
    // Until a renewal was due, and refused.
    sleep(LEASE / 2).await;
    assert!(guard.is_held());
    network.refuse(true);
    network.cut();
    guard.progress();
    let reason = guard.lost().await;
    assert!(
        matches!(reason, LossReason::RenewalFailed { .. }),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_hook_is_called_at_half_the_time_and_once_a_stall() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = Embedded::new();
    let client = Client::builder()
        .on_stalling(move |stalling| {
            assert_eq!((stalling.name, stalling.within), ("x", WITHIN));
            assert!(stalling.since >= WITHIN / 2);
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .embedded(&server)
        .unwrap();
    let lock = client.lock("x").progress_within(WITHIN);
    let guard = lock.acquire().await.unwrap();
    sleep(WITHIN / 2 - SECOND).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    sleep(2 * SECOND).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    sleep(WITHIN / 4).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    guard.progress();
    sleep(WITHIN / 2 + LEASE).await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_progress_of_any_guard_of_an_owner_counts() {
    let client = Client::embedded();
    let owner = Owner::new();
    let lock = client.lock("x").owned_by(&owner).progress_within(WITHIN);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    for _ in 0..10 {
        sleep(WITHIN.mul_f64(0.9)).await;
        inner.progress();
    }
    assert!(outer.is_held());
    inner.release().await.unwrap();
    outer.lost().await;
    // The hold without the setting is renewed again once the guard with it has left.
    let plain = client.lock("y").owned_by(&owner);
    let outer = plain.acquire().await.unwrap();
    let inner = plain.progress_within(WITHIN).acquire().await.unwrap();
    inner.stalled().await;
    drop(inner);
    sleep(4 * LEASE).await;
    assert!(outer.is_held());
    outer.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn several_locks_and_permits_depend_on_progress_too() {
    let client = Client::embedded();
    let members = ["a", "b"].map(|name| client.lock(name));
    let both = MultiLock::new(members).unwrap().progress_within(WITHIN);
    let guard = both.acquire().await.unwrap();
    for _ in 0..5 {
        sleep(WITHIN.mul_f64(0.9)).await;
        guard.progress();
    }
    assert!(guard.is_held());
    let LossReason::Member { reason, .. } = guard.lost().await else {
        panic!("a member was lost");
    };
    assert!(matches!(*reason, LossReason::Stalled { .. }));

    let seats = client.expirable_semaphore("seats").progress_within(WITHIN);
    seats.try_set_permits(1).await.unwrap();
    let permit = seats.acquire().await.unwrap();
    sleep(WITHIN.mul_f64(0.9)).await;
    permit.progress();
    sleep(WITHIN.mul_f64(0.9)).await;
    assert!(permit.is_held());
    assert!(matches!(permit.lost().await, LossReason::Stalled { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_short_time_costs_no_further_renewals() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let renewals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renewals);
    network.on_request(move |request| {
        counted.fetch_add(
            usize::from(request.step == super::Step::LockRenew),
            Ordering::SeqCst,
        );
        super::Fate::default()
    });
    let lock = client.lock("x").lease(LEASE).progress_within(200 * MS);
    let guard = lock.acquire().await.unwrap();
    for _ in 0..600 {
        sleep(100 * MS - MS).await;
        guard.progress();
    }
    assert!(guard.is_held());
    assert!(renewals.load(Ordering::SeqCst) <= 9);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_has_no_renewal_to_refuse() {
    let client = Client::embedded();
    let lock = client.lock("x").fixed_lease(LEASE).progress_within(WITHIN);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_maximum_is_announced_once_and_costs_no_request() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let builder = Client::builder().max_hold_warning(390 * SECOND, move |ending| {
        assert_eq!(ending.name, "x");
        telling.lock().unwrap().push((ending.left, ending.limit));
    });
    let server = Embedded::new();
    let (client, network) = server.client_over_network(&builder).unwrap();
    // No renewal is due in the first minute.
    let lock = client.lock("x").lease(300 * SECOND);
    let guard = lock.max_hold(400 * SECOND).acquire().await.unwrap();
    sleep(9 * SECOND).await;
    assert!(told.lock().unwrap().is_empty());
    sleep(2 * SECOND).await;
    let (left, limit) = told.lock().unwrap()[0];
    assert!(left <= 390 * SECOND && left > 389 * SECOND, "{left:?}");
    assert_eq!((limit, network.requests()), (400 * SECOND, 1));
    guard.lost().await;
    sleep(LEASE).await;
    assert_eq!(told.lock().unwrap().len(), 1);

    // The cases are a shorter maximum, a fixed lease, and a later re-entry that ends earlier.
    let (owner, fixed) = (Owner::new(), client.lock("x").fixed_lease(HOUR));
    let lock = fixed.owned_by(&owner);
    let outer = lock
        .clone()
        .max_hold(1000 * SECOND)
        .acquire()
        .await
        .unwrap();
    let inner = lock.max_hold(5 * SECOND).acquire().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(told.lock().unwrap()[1].1, 5 * SECOND);
    inner.release().await.unwrap();
    sleep(608 * SECOND).await;
    assert_eq!(told.lock().unwrap().len(), 2);
    sleep(2 * SECOND).await;
    assert_eq!(told.lock().unwrap()[2].1, 1000 * SECOND);
    outer.release().await.unwrap();
}
