//! Bad input: a clear error that names the key, nothing sent, nothing left behind.

use std::time::Duration;

use leasehold::{BackOff, ErrorKind, WaitStrategy};

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
        let guard = client.lock(name).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} shares a key with another")));
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn spans_out_of_range_are_refused_before_anything_is_sent() {
    let place = place();
    let client = place.client().await;
    let lock = || client.lock("orders:42");
    let (ms, too_long) = (Duration::from_millis, Duration::from_millis((1 << 53) + 1));
    for (bad, says) in [
        (lock().lease(Duration::ZERO), "lease of 0ns"),
        (lock().lease(ms(9)), "minimum of 10ms"),
        (lock().lease(ms(99)).renewed(true), "minimum of 100ms"),
        (lock().lease(too_long), "2^53"),
        (lock().lease(Duration::MAX), "2^53"),
        (lock().renew_every(Duration::ZERO), "renewal period"),
        (lock().renew_every(ms(20_000)), "half"),
        (lock().max_hold(Duration::ZERO), "maximum hold"),
        (lock().poll_cap(Duration::ZERO), "poll cap"),
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
async fn back_offs_of_any_size_are_brought_into_range() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    for back_off in [
        BackOff::exponential().first(Duration::MAX),
        BackOff::exponential().cap(Duration::ZERO),
        BackOff::constant(Duration::MAX),
    ] {
        let lock = client
            .lock("x")
            .wait_strategy(WaitStrategy::BackOff(back_off));
        let wait = Duration::from_millis(50);
        assert!(lock.try_acquire_for(wait).await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_longest_lease_works() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x").lease(Duration::from_millis(1 << 53));
    let guard = lock.acquire().await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
