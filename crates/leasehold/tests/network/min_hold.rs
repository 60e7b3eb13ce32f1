//! Locks that stay locked for a minimum time after they were acquired.

use std::time::Duration;

#[path = "min_hold/crossings.rs"]
mod crossings;

use leasehold::inspect::{Found, Ttl};
use leasehold::{AnyLock, Client, Embedded, ErrorKind, LockGuard, Owner};
use tokio::time::{Instant, sleep};

use super::{Fate, MS, Network};
use crate::support::acquire_and_release;

/// The lease of the clients.
const LEASE: Duration = Duration::from_secs(10);
/// A minimum that is shorter than the lease, and a minimum that is longer.
const LEAST: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];
/// The longest time that a request, a message and a poll take.
const SLACK: Duration = Duration::from_millis(1200);

fn client(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder()
        .reply_timeout(400 * MS)
        .lease(LEASE)
        .presence(false);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    (client, network)
}

/// Returns a lock of each kind that can have a minimum.
fn kinds(client: &Client, least: Duration) -> [AnyLock; 4] {
    [
        client.lock("x").min_hold(least).into(),
        client.fenced_lock("x").min_hold(least).into(),
        client.fair_lock("x").min_hold(least).into(),
        client.rw_lock("x").write_lock().min_hold(least).into(),
    ]
}

/// Returns a lock of the same kind without a minimum.
fn plain(client: &Client, kind: usize) -> AnyLock {
    match kind {
        1 => client.fenced_lock("x").into(),
        2 => client.fair_lock("x").into(),
        3 => client.rw_lock("x").write_lock().into(),
        _ => client.lock("x").into(),
    }
}

/// The ways in which a guard can end before the minimum time has passed.
const ENDS: [&str; 3] = ["released", "dropped", "killed"];

async fn end(how: &str, guard: LockGuard, network: &Network) {
    match how {
        "released" => guard.release().await.unwrap(),
        "dropped" => drop(guard),
        _ => {
            // From now on, the process does not send anything, not even a release.
            network.on_request(|_| Fate::delivered(MS, MS).request_lost());
            drop(guard);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_stays_locked_for_its_minimum_time_however_its_guard_ends() {
    for least in LEAST {
        for how in ENDS {
            for kind in 0..4 {
                let server = Embedded::new();
                let (client, network) = client(&server);
                let (theirs, _network) = self::client(&server);
                let guard = kinds(&client, least)[kind].acquire().await.unwrap();
                let begun = Instant::now();
                sleep(SLACK).await;
                end(how, guard, &network).await;
                let case = format!("kind {kind}, {how}, at least {least:?}");
                let next = plain(&theirs, kind);
                assert!(next.try_acquire().await.unwrap().is_none(), "{case}");
                next.acquire().await.unwrap().release().await.unwrap();
                let held = begun.elapsed();
                // After a killed holder, the lock also stays locked for the rest of the lease.
                let most = match how {
                    "killed" => least.max(LEASE),
                    _ => least,
                };
                assert!(held >= least && held < most + SLACK, "{case}: {held:?}");
            }
        }
    }
}

/// A renewal keeps the lock for one lease, and not for the minimum time once more.
#[tokio::test(start_paused = true)]
async fn a_hold_that_outlasts_its_minimum_time_is_like_any_other() {
    let least = LEAST[1];
    for how in ENDS {
        let server = Embedded::new();
        let (client, network) = client(&server);
        let (theirs, _network) = self::client(&server);
        let guard = kinds(&client, least)[0].acquire().await.unwrap();
        sleep(least + LEASE).await;
        assert!(guard.is_held());
        let ended = Instant::now();
        end(how, guard, &network).await;
        acquire_and_release(&theirs.lock("x")).await;
        let most = if how == "killed" {
            LEASE
        } else {
            Duration::ZERO
        };
        assert!(
            ended.elapsed() < most + SLACK,
            "{how}: {:?}",
            ended.elapsed()
        );
    }
}

/// A waiter in the same process does not get the lock earlier than others. Later waiters hand the
/// lock over again.
#[tokio::test(start_paused = true)]
async fn a_lock_is_not_handed_over_before_its_minimum_time() {
    let least = LEAST[0];
    let server = Embedded::new();
    let (client, _network) = client(&server);
    for kind in 0..4 {
        let lock = kinds(&client, least)[kind].clone();
        let guard = lock.acquire().await.unwrap();
        let begun = Instant::now();
        let waiter = tokio::spawn({
            let lock = plain(&client, kind);
            async move { lock.acquire().await.unwrap() }
        });
        let alike = tokio::spawn(async move { lock.acquire().await.unwrap() });
        sleep(100 * MS).await;
        guard.release().await.unwrap();
        let mut guards = Vec::new();
        for waiting in [waiter, alike] {
            let guard = waiting.await.unwrap();
            assert!(
                begun.elapsed() >= least,
                "kind {kind}: {:?}",
                begun.elapsed()
            );
            guard.release().await.unwrap();
            guards.push(begun.elapsed());
        }
        assert!(guards[0] < least + SLACK, "kind {kind}: {guards:?}");
        sleep(least + SLACK).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_keeps_nothing() {
    let server = Embedded::new();
    let (client, network) = client(&server);
    // The reply arrives after the acquire is no longer polled.
    network.on_request(|_| Fate::delivered(MS, 50 * MS));
    let lock = client.lock("x").min_hold(LEAST[1]);
    assert!(tokio::time::timeout(10 * MS, lock.acquire()).await.is_err());
    let (theirs, _network) = self::client(&server);
    let begun = Instant::now();
    acquire_and_release(&theirs.lock("x")).await;
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_did_not_begin_waives_the_minimum_time() {
    let server = Embedded::new();
    let (client, _network) = client(&server);
    for lock in kinds(&client, LEAST[1]) {
        let guard = lock.acquire().await.unwrap();
        guard.waive_min_hold();
        guard.release().await.unwrap();
        let next = lock.try_acquire().await.unwrap().expect("it is free");
        next.waive_min_hold();
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reentry_can_add_a_minimum_time() {
    let least = LEAST[1];
    let server = Embedded::new();
    let (client, network) = client(&server);
    let (theirs, _network) = self::client(&server);
    let owner = Owner::new();
    let outer = client.lock("x").owned_by(&owner);
    let guard = outer.acquire().await.unwrap();
    sleep(SLACK).await;
    let inner = outer.min_hold(least).acquire().await.unwrap();
    let begun = Instant::now();
    inner.release().await.unwrap();
    // The server already has the minimum time, although the process sends nothing any more.
    end("killed", guard, &network).await;
    acquire_and_release(&theirs.lock("x")).await;
    let held = begun.elapsed();
    assert!(held >= least && held < least + SLACK, "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_broken_by_force_is_not_kept() {
    let server = Embedded::new();
    let (client, _network) = client(&server);
    let lock = client.lock("x").min_hold(LEAST[1]);
    let guard = lock.acquire().await.unwrap();
    assert!(client.lock("x").force_unlock().await.unwrap());
    let next = client.lock("x").acquire().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.loss(), Some(&crate::support::forced()));
    next.release().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_some());
}

/// A ticket never makes the minimum time shorter.
#[tokio::test(start_paused = true)]
async fn a_ticket_lasts_for_the_minimum_time() {
    let least = LEAST[1];
    let server = Embedded::new();
    let (client, _network) = client(&server);
    let guard = client.lock("x").min_hold(least).acquire().await.unwrap();
    let begun = Instant::now();
    let _ticket = guard.into_ticket(LEAST[0]).await.unwrap();
    acquire_and_release(&client.lock("x")).await;
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

/// Checks that the holder believes in its hold no longer than the server keeps it.
async fn expect_no_longer_than_the_server(client: &Client, valid_until: Instant, case: &str) {
    let left = match client.inspect("x").await.unwrap().found {
        Found::Lock(hold) => hold.ttl,
        Found::ReadWrite { writer, readers } => writer.or(readers.into_iter().next()).unwrap().ttl,
        other => panic!("{case}: {other:?}"),
    };
    let Ttl::Left(left) = left else {
        panic!("{case}: {left:?}");
    };
    assert!(valid_until <= Instant::now() + left, "{case}: {left:?}");
}

/// A hold that was not granted to an acquire either has no minimum, or also has this minimum on the
/// server.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_passed_on_lasts_no_longer_than_on_the_server() {
    let least = LEAST[1];
    let server = Embedded::new();
    let (client, _network) = client(&server);
    for kind in 0..4 {
        let ticket = plain(&client, kind).acquire().await.unwrap();
        let ticket = ticket.into_ticket(LEASE).await.unwrap();
        let guard: LockGuard = match kind {
            1 => client
                .fenced_lock("x")
                .min_hold(least)
                .resume(&ticket)
                .await
                .unwrap()
                .into(),
            2 => client
                .fair_lock("x")
                .min_hold(least)
                .resume(&ticket)
                .await
                .unwrap(),
            3 => {
                let write = client.rw_lock("x").write_lock().min_hold(least);
                write.resume(&ticket).await.unwrap().into()
            }
            _ => client
                .lock("x")
                .min_hold(least)
                .resume(&ticket)
                .await
                .unwrap(),
        };
        let case = format!("resumed, kind {kind}");
        expect_no_longer_than_the_server(&client, guard.valid_until(), &case).await;
        guard.release().await.unwrap();
        assert!(
            plain(&client, kind).try_acquire().await.unwrap().is_some(),
            "{case}"
        );
        sleep(100 * MS).await;
    }
    let write = client.rw_lock("x").write_lock().min_hold(least);
    let read = write.acquire().await.unwrap().downgrade().await.unwrap();
    expect_no_longer_than_the_server(&client, read.valid_until(), "downgraded").await;
    read.release().await.unwrap();
    assert!(client.rw_lock("x").try_write().await.unwrap().is_some());
}

/// The server grants a fair lock to the next waiter of the same process inside the release.
#[tokio::test(start_paused = true)]
async fn the_next_holder_of_a_fair_lock_has_its_minimum_time_too() {
    for least in LEAST {
        let server = Embedded::new();
        let (client, network) = client(&server);
        let (theirs, _network) = self::client(&server);
        let lock = client.fair_lock("x").min_hold(least);
        let first = lock.acquire().await.unwrap();
        let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
        sleep(least + SLACK).await;
        first.release().await.unwrap();
        let next = next.await.unwrap();
        let begun = Instant::now();
        let case = format!("at least {least:?}");
        expect_no_longer_than_the_server(&theirs, next.valid_until(), &case).await;
        end("killed", next, &network).await;
        let after = theirs.fair_lock("x").acquire().await.unwrap();
        assert!(
            begun.elapsed() + SLACK >= least,
            "{case}: {:?}",
            begun.elapsed()
        );
        after.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_time_that_is_not_possible_is_refused() {
    let server = Embedded::new();
    let (client, _network) = client(&server);
    let least = LEAST[1];
    let lock = client.lock("x").min_hold(least);
    let guarded = Client::builder()
        .failover_guard(LEASE)
        .peers(leasehold::settings::Peers::RustOnly)
        .lease(LEASE);
    let (guarded, _network) = server.client_over_network(&guarded).unwrap();
    let refused = [
        lock.clone().min_hold(MS).try_acquire().await.err(),
        lock.clone()
            .fixed_lease(least - MS)
            .try_acquire()
            .await
            .err(),
        lock.clone().max_hold(least - MS).try_acquire().await.err(),
        guarded.lock("x").min_hold(least).try_acquire().await.err(),
        client
            .rw_lock("y")
            .read_lock()
            .min_hold(least)
            .try_acquire()
            .await
            .err(),
        client
            .group_lock("z", ["a"])
            .min_hold(least)
            .try_acquire()
            .await
            .err(),
        lock.clone().once_per(least).try_begin().await.err(),
    ];
    for (number, error) in refused.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("{number} is taken"));
        assert_eq!(error.kind(), ErrorKind::Misuse, "{number}: {error}");
    }
    assert!(
        lock.fixed_lease(least)
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
}
