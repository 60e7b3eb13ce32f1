//! The fenced lock: its tokens.

use leasehold::ErrorKind;
use leasehold::settings::Peers;

use super::{LEASE, place};

const COUNTER: &str = "redisson_lock_token:{x}";

#[tokio::test]
async fn fenced_tokens_rise_across_clients() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let mut last = 0;
    for client in [&ours, &theirs, &theirs, &ours, &theirs] {
        let guard = client.fenced_lock("x").acquire().await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        assert!(last < 1 << 53);
        guard.release().await.unwrap();
    }
    assert_eq!(
        ours.fenced_lock("x").last_token().await.unwrap(),
        Some(last)
    );
    assert_eq!(ours.fenced_lock("y").last_token().await.unwrap(), None);
    place.remove(COUNTER);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn tokens_rise_after_the_counter_was_lost() {
    let place = place();
    let client = place.client().await;
    let lock = client.fenced_lock("x");
    let first = lock.acquire().await.unwrap();
    place.remove(COUNTER);
    let token = first.token();
    first.release().await.unwrap();
    // The counter continues from the server's clock, which has moved by then.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let second = lock.acquire().await.unwrap();
    assert!(second.token() > token);
    second.release().await.unwrap();
}

#[tokio::test]
async fn fenced_reentry_shares_the_holds_token() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.fenced_lock("x").owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!((inner.token(), inner.hold_count()), (outer.token(), 2));
    // The plain lock re-enters the same hold, and has its token too.
    let plain = client.lock("x").owned_by(&owner).acquire().await.unwrap();
    assert_eq!(plain.token(), Some(outer.token()));
    for guard in [plain, inner.into(), outer.into()] {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn fenced_reentry_gives_plain_holds_a_token() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let plain = client.lock("x").owned_by(&owner).acquire().await.unwrap();
    assert_eq!(plain.token(), None);
    let lock = client.fenced_lock("x").owned_by(&owner);
    let fenced = lock.acquire().await.unwrap();
    assert_eq!(plain.token(), Some(fenced.token()), "it is one hold");
    for guard in [fenced.into(), plain] {
        guard.release().await.unwrap();
    }
    // A re-entry that can't be given a token fails.
    place.remove(COUNTER);
    let stranger = client.lock(COUNTER).acquire().await.unwrap();
    let plain = client.lock("x").owned_by(&owner).acquire().await.unwrap();
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    assert_eq!(plain.hold_count(), 1, "the refused re-entry has left");
    for guard in [plain, stranger] {
        guard.release().await.unwrap();
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn it_excludes_the_plain_lock_of_its_name() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = ours.fenced_lock("x").acquire().await.unwrap();
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = theirs.lock("x").acquire().await.unwrap();
    let fenced = ours.fenced_lock("x");
    assert!(fenced.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn next_holder_gets_a_greater_token() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let first = ours
        .fenced_lock("x")
        .fixed_lease(LEASE / 4)
        .acquire()
        .await
        .unwrap();
    let token = first.token();
    first.lost().await;
    let second = theirs.fenced_lock("x").acquire().await.unwrap();
    assert!(second.token() > token);
    assert_eq!(first.token(), token);
    assert_eq!(first.release().await.unwrap_err().kind(), ErrorKind::Lost);
    second.release().await.unwrap();
}

#[tokio::test]
async fn the_counter_stays_unless_only_rust_uses_it() {
    let place = place();
    let shared = place.client().await;
    let rust = place
        .client_with(|builder| builder.peers(Peers::RustOnly))
        .await;
    for (client, stays) in [(&shared, true), (&rust, false), (&shared, true)] {
        let guard = client.fenced_lock("x").acquire().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(place.ttl_ms(COUNTER) == -1, stays);
        assert!(place.ttl_ms(COUNTER) <= 24 * 3600 * 1000);
    }
}

#[tokio::test]
async fn invalid_counter_fails_the_fenced_acquire() {
    let place = place();
    let client = place.client().await;
    // A lock is held where the counter should be.
    let stranger = client.lock(COUNTER).acquire().await.unwrap();
    let error = client.fenced_lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    assert!(error.to_string().contains("`x`"), "{error}");
    assert_eq!(place.keys(), [COUNTER]);
    assert!(client.fenced_lock("x").last_token().await.is_err());
    stranger.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
