//! A minimum time beside the other conditions of a hold: progress of its work, and replicas that
//! acknowledge it.

use std::time::Duration;

use leasehold::inspect::{Found, Ttl};
use leasehold::{Acknowledgement, AnyLock, Client, Embedded, ErrorKind, LockGuard, Owner};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::{Fate, LossReason, MS, Network};
use super::{
    ENDS, LEASE, LEAST, SLACK, client, end, expect_no_longer_than_the_server, kinds, plain,
};

const WITHIN: Duration = Duration::from_secs(2);

/// Returns a lock of each kind whose work must report progress.
fn kinds_with_progress(client: &Client, least: Duration) -> [AnyLock; 4] {
    kinds(client, least).map(|lock| lock.progress_within(WITHIN))
}

/// Returns a client whose holds a replica must acknowledge.
fn client_with_replica(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder()
        .reply_timeout(400 * MS)
        .lease(LEASE)
        .presence(false)
        .acknowledged_by(Acknowledgement::replicas(1).within(100 * MS));
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    network.confirm_by(1);
    (client, network)
}

/// Starts a client that waits for the lock. Returns the time that it got it.
fn next(client: Client, kind: usize) -> JoinHandle<Instant> {
    tokio::spawn(async move {
        let guard = plain(&client, kind).acquire().await.unwrap();
        let entered = Instant::now();
        guard.release().await.unwrap();
        entered
    })
}

/// Returns the rest of the time for which the server keeps the lock.
async fn left(client: &Client) -> Duration {
    let hold = match client.inspect("x").await.unwrap().found {
        Found::Lock(hold) => hold.ttl,
        Found::ReadWrite { writer, .. } => writer.unwrap().ttl,
        other => panic!("{other:?}"),
    };
    match hold {
        Ttl::Left(left) => left,
        other => panic!("{other:?}"),
    }
}

/// Watches a hold until it is lost. The server never keeps it longer than for the rest of its
/// minimum time or one lease, and the holder never relies on more than that.
async fn lost(guard: &LockGuard, client: &Client, least: Duration, case: &str) -> LossReason {
    let begun = Instant::now();
    let mut lost = std::pin::pin!(guard.lost());
    loop {
        tokio::select! {
            biased;
            reason = &mut lost => return reason,
            () = sleep(250 * MS) => {}
        }
        assert!(begun.elapsed() < 10 * LEASE, "{case}: it never ends");
        let most = least.saturating_sub(begun.elapsed()).max(LEASE);
        let left = left(client).await;
        assert!(left <= most + 10 * MS, "{case}: {left:?} and not {most:?}");
        expect_no_longer_than_the_server(client, guard.valid_until(), case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_hold_ends_after_its_minimum_time_and_within_one_lease() {
    for least in LEAST {
        for kind in 0..4 {
            let case = format!("kind {kind}, at least {least:?}");
            let server = Embedded::new();
            let (client, _network) = client(&server);
            let (theirs, _theirs) = self::client(&server);
            let lock = &kinds_with_progress(&client, least)[kind];
            let guard = lock.acquire().await.unwrap();
            let begun = Instant::now();
            let next = next(theirs.clone(), kind);
            let reason = lost(&guard, &theirs, least, &case).await;
            let told = Instant::now();
            assert!(
                matches!(reason, LossReason::Stalled { since } if since >= WITHIN),
                "{case}: {reason}"
            );
            let error = guard.release().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{case}");
            let entered = next.await.unwrap();
            assert!(entered >= told, "{case}");
            let held = entered - begun;
            let most = least.max(WITHIN + LEASE) + SLACK;
            assert!(held + SLACK >= least && held < most, "{case}: {held:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_hold_that_ends_early_stays_locked_for_its_minimum_time() {
    for least in LEAST {
        for how in ENDS {
            for kind in 0..4 {
                let case = format!("kind {kind}, {how}, at least {least:?}");
                let server = Embedded::new();
                let (client, network) = client(&server);
                let (theirs, _theirs) = self::client(&server);
                let lock = &kinds_with_progress(&client, least)[kind];
                let guard = lock.acquire().await.unwrap();
                let begun = Instant::now();
                assert!(guard.stalled().await >= WITHIN, "{case}");
                end(how, guard, &network).await;
                let held = next(theirs, kind).await.unwrap() - begun;
                let most = match how {
                    "killed" => least.max(WITHIN + LEASE),
                    _ => least,
                };
                assert!(held >= least && held < most + SLACK, "{case}: {held:?}");
            }
        }
    }
}

/// A report in the minimum time, long after the stall, starts the renewals again.
#[tokio::test(start_paused = true)]
async fn work_that_stalls_and_goes_on_in_its_minimum_time_keeps_its_hold() {
    let least = LEAST[1];
    for kind in 0..4 {
        let server = Embedded::new();
        let (client, _network) = client(&server);
        let (theirs, _theirs) = self::client(&server);
        let lock = &kinds_with_progress(&client, least)[kind];
        let guard = lock.acquire().await.unwrap();
        let begun = Instant::now();
        sleep(least / 2).await;
        assert!(guard.is_held(), "kind {kind}: the server still keeps it");
        while begun.elapsed() < least + LEASE {
            guard.progress();
            sleep(WITHIN / 2).await;
        }
        assert!(guard.is_held(), "kind {kind}");
        assert!(left(&theirs).await <= LEASE, "kind {kind}");
        guard.release().await.unwrap();
        let free = plain(&theirs, kind).try_acquire().await.unwrap();
        free.expect("it is free").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_too_few_replicas_confirm_keeps_nothing() {
    for kind in 0..4 {
        let server = Embedded::new();
        let (client, network) = client_with_replica(&server);
        let (theirs, _theirs) = self::client(&server);
        network.confirm_by(0);
        let lock = &kinds(&client, LEAST[1])[kind];
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "kind {kind}: {error}");
        let asked = Instant::now();
        let waited = next(theirs, kind).await.unwrap() - asked;
        assert!(waited < SLACK, "kind {kind}: {waited:?}");
    }
}

/// The replicas have confirmed the minimum time with the grant, so its rest needs none.
#[tokio::test(start_paused = true)]
async fn a_lock_stays_locked_for_its_minimum_time_without_the_replicas() {
    for least in LEAST {
        for how in ENDS {
            for kind in 0..4 {
                let case = format!("kind {kind}, {how}, at least {least:?}");
                let server = Embedded::new();
                let (client, network) = client_with_replica(&server);
                let (theirs, _theirs) = self::client(&server);
                let lock = &kinds(&client, least)[kind];
                let guard = lock.acquire().await.unwrap();
                let begun = Instant::now();
                network.confirm_by(0);
                sleep(SLACK).await;
                end(how, guard, &network).await;
                let held = next(theirs, kind).await.unwrap() - begun;
                let most = match how {
                    "killed" => least.max(LEASE),
                    _ => least,
                };
                assert!(held >= least && held < most + SLACK, "{case}: {held:?}");
            }
        }
    }
}

/// Renewals reach the server, but no replica, so the holder relies on the grant alone.
#[tokio::test(start_paused = true)]
async fn a_hold_without_its_replicas_ends_after_its_minimum_time() {
    for least in LEAST {
        for kind in 0..4 {
            let case = format!("kind {kind}, at least {least:?}");
            let server = Embedded::new();
            let (client, network) = client_with_replica(&server);
            let (theirs, _theirs) = self::client(&server);
            let lock = &kinds(&client, least)[kind];
            let guard = lock.acquire().await.unwrap();
            let (begun, until) = (Instant::now(), guard.valid_until());
            assert!(until + SLACK >= begun + least, "{case}");
            network.confirm_by(0);
            let reason = lost(&guard, &theirs, least, &case).await;
            assert!(
                matches!(reason, LossReason::RenewalFailed { .. }),
                "{case}: {reason}"
            );
            assert_eq!(guard.valid_until(), until, "{case}: the promise has moved");
            assert!(begun.elapsed() + SLACK >= least, "{case}");
            drop(guard);
            let held = next(theirs, kind).await.unwrap() - begun;
            assert!(held < least.max(LEASE) + LEASE + SLACK, "{case}: {held:?}");
        }
    }
}

/// A re-entry that fails, or is dropped, has no guard that could have a minimum time.
#[tokio::test(start_paused = true)]
async fn a_reentry_that_fails_keeps_nothing() {
    for how in ["unconfirmed", "dropped"] {
        let server = Embedded::new();
        let (client, network) = client_with_replica(&server);
        let (theirs, _theirs) = self::client(&server);
        let lock = client.lock("x").owned_by(&Owner::new());
        let guard = lock.acquire().await.unwrap();
        network.confirm_by(0);
        let inner = lock.min_hold(LEAST[1]);
        if how == "unconfirmed" {
            let error = inner.acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        } else {
            network.on_request(|_| Fate::delivered(MS, 50 * MS));
            let dropped = tokio::time::timeout(10 * MS, inner.acquire()).await;
            assert!(dropped.is_err());
        }
        network.confirm_by(1);
        guard.release().await.unwrap();
        let asked = Instant::now();
        let waited = next(theirs, 0).await.unwrap() - asked;
        assert!(waited < SLACK, "{how}: {waited:?}");
    }
}
