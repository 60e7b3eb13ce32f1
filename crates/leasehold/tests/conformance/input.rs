//! Bad input: the error is clear and names the key, nothing is sent, and nothing is left behind.

use std::time::Duration;

use leasehold::kind::Kind;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{ErrorKind, Lock, MultiLock};

use super::place;

#[tokio::test]
async fn names_that_can_be_no_lock_are_refused() {
    let place = place();
    let client = place.client().await;
    for name in [String::new(), "x".repeat(64 * 1024 + 1)] {
        let lock = client.lock(&name);
        assert_eq!(
            lock.try_acquire().await.unwrap_err().kind(),
            ErrorKind::Misuse
        );
        assert_eq!(
            lock.force_unlock().await.unwrap_err().kind(),
            ErrorKind::Misuse
        );
        assert_eq!(
            lock.is_locked().await.unwrap_err().kind(),
            ErrorKind::Misuse
        );
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn odd_names_are_locks_of_their_own() {
    let place = place();
    let client = place.client().await;
    let names = [
        "{",
        "}",
        "{}",
        "{}a",
        "a}b{c}",
        "a{b",
        "a{b}c",
        "a b",
        "a\r\nb",
        "a\0b",
        "ä✓",
        "a",
        "A",
        "a:b",
        "{a}",
        "*",
        "redisson_lock__channel:{a}",
        &"x".repeat(64 * 1024),
    ];
    let mut guards = Vec::new();
    for name in names {
        let guard = match client.lock(name).try_acquire().await {
            Ok(guard) => guard,
            // The keys of the name would be on several nodes.
            Err(error) if place.is_cluster() => {
                assert!(
                    error.to_string().contains("in a cluster"),
                    "{name:?}: {error}"
                );
                continue;
            }
            Err(error) => panic!("{name:?}: {error}"),
        };
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} shares a key with another")));
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn durations_out_of_range_are_refused_unsent() {
    let place = place();
    let client = place.client().await;
    let lock = || client.lock("orders:42");
    let (ms, too_long) = (Duration::from_millis, Duration::from_millis((1 << 53) + 1));
    for (bad, says) in [
        (lock().fixed_lease(Duration::ZERO), "lease of 0ns"),
        (lock().fixed_lease(ms(9)), "minimum of 10ms"),
        (lock().lease(ms(99)), "minimum of 100ms"),
        (lock().fixed_lease(too_long), "2^53"),
        (lock().fixed_lease(Duration::MAX), "2^53"),
        (lock().renew_every(Duration::ZERO), "renewal period"),
        (lock().renew_every(ms(20_000)), "half"),
        (lock().max_hold(Duration::ZERO), "maximum hold"),
        (lock().poll_interval(Duration::ZERO), "poll interval"),
    ] {
        let error = bad.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert_eq!(error.key(), Some("orders:42"));
        let text = error.to_string();
        assert!(
            text.contains(says) && text.contains("`orders:42`"),
            "{text}"
        );
    }
    for wait in [Duration::ZERO, too_long] {
        let error = lock().try_acquire_for(wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
    }
    let guard = lock().acquire().await.unwrap();
    let error = guard.extend(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn the_order_of_the_setters_makes_no_difference() {
    let place = place();
    let client = place.client().await;
    let (lease, period) = (Duration::from_secs(5), Duration::from_secs(1));
    let lock = || client.lock("x");
    for (lock, is_renewed) in [
        (lock(), true),
        (lock().lease(lease), true),
        (lock().lease(lease).renew_every(period), true),
        (lock().renew_every(period).lease(lease), true),
        (lock().fixed_lease(lease), false),
    ] {
        let guard = lock.acquire().await.unwrap();
        let renewed_holds = client.activity().renewed_holds;
        assert_eq!(renewed_holds, usize::from(is_renewed), "{lock:?}");
        guard.release().await.unwrap();
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn renewal_settings_conflict_with_a_fixed_lease() {
    fn all_ways<K: Kind>(lock: &Lock<K>) -> [Lock<K>; 4] {
        let (secs, lock) = (Duration::from_secs, || lock.clone());
        [
            lock().fixed_lease(secs(5)).lease(secs(6)),
            lock().lease(secs(6)).fixed_lease(secs(5)),
            lock().fixed_lease(secs(5)).renew_every(secs(1)),
            lock().renew_every(secs(1)).fixed_lease(secs(5)),
        ]
    }
    async fn are_refused<K: Kind>(lock: Lock<K>) {
        for bad in all_ways(&lock) {
            let error = bad.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{bad:?}");
            assert!(error.to_string().contains("set one of them"), "{error}");
        }
    }
    let place = place();
    let client = place.client().await;
    let members = || ["a", "b", "c"].map(|name| client.lock(name));
    are_refused(client.lock("x")).await;
    are_refused(client.fair_lock("x")).await;
    are_refused(client.fenced_lock("x")).await;
    are_refused(client.group_lock("x", ["v"])).await;
    are_refused(client.rw_lock("x").read_lock()).await;
    are_refused(client.rw_lock("x").write_lock()).await;
    are_refused(MultiLock::new(members()).unwrap()).await;
    let secs = Duration::from_secs;
    let semaphore = client.expirable_semaphore("x").fixed_lease(secs(5));
    for bad in [
        semaphore.clone().lease(secs(6)),
        semaphore.renew_every(secs(1)),
    ] {
        let error = bad.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn back_offs_are_clamped_into_range() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    for back_off in [
        Backoff::exponential().first(Duration::MAX),
        Backoff::exponential().cap(Duration::ZERO),
        Backoff::constant(Duration::MAX),
    ] {
        let lock = client
            .lock("x")
            .wait_strategy(WaitStrategy::Backoff(back_off));
        let wait = super::LEASE / 2;
        assert!(lock.try_acquire_for(wait).await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_longest_lease_works() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x").fixed_lease(Duration::from_millis(1 << 53));
    let guard = lock.acquire().await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
