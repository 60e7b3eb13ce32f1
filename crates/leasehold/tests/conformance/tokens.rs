//! Fencing tokens of holds that are granted without a token, and that draw one later.

use std::time::Duration;

use leasehold::settings::Peers;
use leasehold::{AnyLock, Client, ErrorKind, LockGuard, LossReason, MultiLock, RedLock};

use super::{LEASE, place};
use crate::support::Place;

const COUNTER: &str = "redisson_lock_token:{x}";

fn both(client: &Client) -> MultiLock {
    MultiLock::new([client.lock("x"), client.lock("y")]).unwrap()
}

/// Acquires `x`, alone or among others.
async fn hold(client: &Client, kind: &str) -> LockGuard {
    match kind {
        "plain" => client.lock("x").acquire().await.unwrap(),
        "fenced" => client.fenced_lock("x").acquire().await.unwrap().into(),
        "fair" => client.fair_lock("x").acquire().await.unwrap(),
        "write" => client.rw_lock("x").write().await.unwrap().into(),
        _ => both(client).acquire().await.unwrap(),
    }
}

/// Draws the token of a hold, and ends the hold.
async fn token(guard: LockGuard) -> u64 {
    let token = guard.fencing_token().await.unwrap();
    guard.release().await.unwrap();
    token
}

/// Draws 20 tokens, so that the counter of `name` is ahead of the others until the clock catches
/// up.
async fn count_ahead(client: &Client, name: &str) -> u64 {
    let mut last = 0;
    for _ in 0..20 {
        last = token(client.lock(name).acquire().await.unwrap()).await;
    }
    last
}

#[tokio::test]
async fn tokens_rise_across_all_lock_kinds() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let kinds = ["plain", "fenced", "fair", "write", "multi"];
    let mut last = 0;
    for (one, other) in kinds.iter().flat_map(|one| kinds.map(|other| (one, other))) {
        for (client, kind) in [(&ours, *one), (&theirs, other)] {
            let token = token(hold(client, kind).await).await;
            assert!(token > last, "{kind}: {token} after {last}");
            assert!(token < 1 << 53);
            last = token;
        }
    }
    let counted = ours.fenced_lock("x").last_token().await.unwrap();
    assert_eq!(counted, Some(last));
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn hold_draws_its_token_once() {
    let place = place();
    let client = place.client().await;
    for kind in ["plain", "fair", "write", "multi"] {
        let guard = hold(&client, kind).await;
        assert_eq!(guard.token(), None, "{kind}");
        let token = guard.fencing_token().await.unwrap();
        assert_eq!(guard.token(), Some(token), "{kind}");
        let counted = client.fenced_lock("x").last_token().await.unwrap();
        assert_eq!(guard.fencing_token().await.unwrap(), token, "{kind}");
        let again = client.fenced_lock("x").last_token().await.unwrap();
        assert_eq!(again, counted, "it is asked for once");
        guard.release().await.unwrap();
    }
    let fenced = client.fenced_lock("x").acquire().await.unwrap();
    assert_eq!(fenced.fencing_token().await.unwrap(), fenced.token());
}

#[tokio::test]
async fn concurrent_draws_of_a_hold_agree() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.lock("x").owned_by(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let (one, other) = tokio::join!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(one.unwrap(), other.unwrap());
    for guard in [inner, outer] {
        guard.release().await.unwrap();
    }
    // Members have tokens of their own, and all of them together have one.
    let lock = both(&client).owned_by(&owner);
    count_ahead(&client, "y").await;
    let outer = lock.acquire().await.unwrap();
    let token = outer.fencing_token().await.unwrap();
    let members = outer.members().iter().map(|member| member.token().unwrap());
    assert_eq!(members.max(), Some(token));
    let inner = lock.acquire().await.unwrap();
    assert_eq!(inner.fencing_token().await.unwrap(), token);
    for guard in [inner, outer] {
        guard.release().await.unwrap();
    }
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn multi_and_member_tokens_rise_together() {
    let place = place();
    let client = place.client().await;
    for ahead in ["x", "y"] {
        let before = count_ahead(&client, ahead).await;
        let both = token(both(&client).acquire().await.unwrap()).await;
        assert!(both > before);
        for name in ["x", "y"] {
            let after = token(client.lock(name).acquire().await.unwrap()).await;
            assert!(after > both, "{name}: {after} after {both}");
        }
    }
}

#[tokio::test]
async fn force_unlocked_hold_draws_no_token() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in ["plain", "fair", "write"] {
        let guard = hold(&ours, kind).await;
        let forced = match kind {
            "plain" => theirs.lock("x").force_unlock().await,
            "fair" => theirs.fair_lock("x").force_unlock().await,
            _ => theirs.rw_lock("x").write_lock().force_unlock().await,
        };
        assert!(forced.unwrap());
        let next = hold(&theirs, kind).await;
        let error = guard.fencing_token().await.unwrap_err();
        assert_eq!(
            error.loss(),
            Some(&crate::support::forced()),
            "{kind}: {error}"
        );
        assert_eq!(guard.loss(), Some(crate::support::forced()), "{kind}");
        let counted = ours.fenced_lock("x").last_token().await.unwrap();
        assert_eq!(counted, None, "{kind}");
        next.release().await.unwrap();
        let released = guard.release().await.unwrap_err();
        assert_eq!(released.kind(), ErrorKind::Lost);
    }
    let guard = hold(&ours, "multi").await;
    assert!(theirs.lock("y").force_unlock().await.unwrap());
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("`y`"), "{error}");
    assert!(!guard.is_held());
    drop(guard);
    let left = [COUNTER, "leasehold:{x}:forced", "leasehold:{y}:forced"];
    place.is_clean_but_for(&left, &[&ours, &theirs]).await;
}

#[tokio::test]
async fn lost_hold_refuses_its_token() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let lock = ours.lock("x").fixed_lease(LEASE);
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token().await.unwrap();
    guard.lost().await;
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Expired), "{error}");
    assert_eq!(
        guard.token(),
        Some(token),
        "it was this hold's and no other's"
    );
    let guard = lock.acquire().await.unwrap();
    guard.lost().await;
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(guard.token(), None);
    let next = theirs.lock("x").acquire().await.unwrap();
    assert!(next.fencing_token().await.unwrap() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn foreign_counter_fails_only_the_token() {
    let place = place();
    let client = place.client().await;
    // A lock is held where the counter should be.
    let stranger = client.lock(COUNTER).acquire().await.unwrap();
    for kind in ["plain", "fair", "write", "multi"] {
        let guard = hold(&client, kind).await;
        let error = guard.fencing_token().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{kind}: {error}");
        for name in ["`x`", COUNTER] {
            assert!(error.to_string().contains(name), "{kind}: {error}");
        }
        assert!(guard.is_held(), "{kind}");
        guard.release().await.unwrap();
    }
    stranger.release().await.unwrap();
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn shared_holds_have_no_token() {
    let place = place();
    let client = place.client().await;
    let refused = async |guard: LockGuard| {
        let error = guard.fencing_token().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("`x`") && text.contains("; acquire "),
            "{text}"
        );
        assert_eq!(guard.token(), None);
        guard.release().await.unwrap();
    };
    let (read, group) = (
        client.rw_lock("x").read_lock(),
        client.group_lock("x", ["a"]),
    );
    refused(read.acquire().await.unwrap().into()).await;
    refused(group.acquire().await.unwrap()).await;
    for member in [AnyLock::from(read), AnyLock::from(group)] {
        let members = [member, client.lock("y").into()];
        let all = MultiLock::new(&members).unwrap();
        refused(all.acquire().await.unwrap()).await;
        let majority = RedLock::new(&members).unwrap().distrust_restarted(false);
        let majority = majority.member_timeout(Duration::from_secs(10));
        refused(majority.acquire().await.unwrap()).await;
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn the_counter_stays_unless_only_rust_uses_it() {
    let place = place();
    let shared = place.client().await;
    let rust = place
        .client_with(|builder| builder.peers(Peers::RustOnly))
        .await;
    for kind in ["plain", "multi"] {
        for (client, stays) in [(&shared, true), (&rust, false), (&shared, true)] {
            token(hold(client, kind).await).await;
            assert_eq!(place.ttl_ms(COUNTER) == -1, stays, "{kind}");
            assert!(place.ttl_ms(COUNTER) <= 24 * 3600 * 1000);
        }
    }
}

/// Starts three servers, and a client of each.
async fn masters() -> ([Place; 3], Vec<Client>) {
    let first = place();
    let places = [first.beside(), first.beside(), first];
    let mut clients = Vec::new();
    for place in &places {
        clients.push(place.client().await);
    }
    (places, clients)
}

/// Makes a lock that trusts the servers, although they have just been started, and that allows for
/// a slow machine.
fn majority(clients: &[Client]) -> RedLock {
    RedLock::new(clients.iter().map(|client| client.lock("x")))
        .unwrap()
        .distrust_restarted(false)
        .member_timeout(Duration::from_secs(10))
}

/// Acquires the lock on all three servers: on a busy machine one may answer too late.
pub(super) async fn of_all(lock: &RedLock) -> LockGuard {
    loop {
        let guard = lock.acquire().await.unwrap();
        if guard.members().len() == 3 {
            return guard;
        }
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn tokens_rise_from_majority_to_majority() {
    let (_places, clients) = masters().await;
    let lock = majority(&clients);
    let mut last = count_ahead(&clients[1], "x").await;
    // Any two majorities have a server in common, and maybe only one.
    for out in [0, 1, 2, 0, 2, 1] {
        let one = clients[out].lock("x").acquire().await.unwrap();
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.members().len(), 2);
        let token = guard.fencing_token().await.unwrap();
        assert!(token > last, "{token} after {last}");
        assert_eq!(guard.fencing_token().await.unwrap(), token);
        last = token;
        guard.release().await.unwrap();
        one.release().await.unwrap();
    }
}

#[tokio::test]
async fn every_held_server_knows_a_majority_token() {
    let (places, clients) = masters().await;
    let lock = majority(&clients);
    for ahead in 0..3 {
        let before = count_ahead(&clients[ahead], "x").await;
        let guard = of_all(&lock).await;
        let last = guard.fencing_token().await.unwrap();
        assert!(last > before);
        guard.release().await.unwrap();
        for client in &clients {
            let known = client.fenced_lock("x").last_token().await.unwrap();
            assert!(known >= Some(last), "{known:?} after {last}");
        }
        // The next majority has one server of the three that has not lost its counter.
        let (lost, out) = ((ahead + 1) % 3, (ahead + 2) % 3);
        places[lost].remove(COUNTER);
        let one = clients[out].lock("x").acquire().await.unwrap();
        let guard = lock.acquire().await.unwrap();
        let token = guard.fencing_token().await.unwrap();
        assert!(token > last, "{token} after {last}");
        guard.release().await.unwrap();
        one.release().await.unwrap();
    }
}

#[tokio::test]
async fn owners_overlapping_multi_locks_raise_tokens() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let of = |names: [&str; 2]| {
        let lock = MultiLock::new(names.map(|name| client.lock(name))).unwrap();
        lock.owned_by(&owner)
    };
    for ahead in ["x", "y", "z"] {
        let before = count_ahead(&client, ahead).await;
        let first = of(["x", "y"]).acquire().await.unwrap();
        let first_token = first.fencing_token().await.unwrap();
        // The second lock shares `y`, which already has a token, and whose counter was raised to
        // the token of both.
        let second = of(["y", "z"]).acquire().await.unwrap();
        let second_token = second.fencing_token().await.unwrap();
        assert!(
            second_token >= first_token,
            "{second_token} after {first_token}"
        );
        assert!(first_token.max(second_token) > before);
        assert_eq!(first.fencing_token().await.unwrap(), first_token);
        let again = of(["x", "y"]).acquire().await.unwrap();
        let again_token = again.fencing_token().await.unwrap();
        assert!(again_token >= first_token.max(second_token));
        for guard in [again, second, first] {
            guard.release().await.unwrap();
        }
        for name in ["x", "y", "z"] {
            let after = token(client.lock(name).acquire().await.unwrap()).await;
            let last = match name {
                "z" => second_token,
                _ => again_token,
            };
            assert!(after > last, "{name}: {after} after {last}");
        }
    }
}

#[tokio::test]
async fn only_a_majority_draws_a_token() {
    let (_places, clients) = masters().await;
    let owner = leasehold::Owner::new();
    let lock = majority(&clients).owned_by(&owner);
    let guard = of_all(&lock).await;
    assert!(clients[2].lock("x").force_unlock().await.unwrap());
    let token = guard.fencing_token().await.unwrap();
    // The re-entry has a new hold in place of the lost one, which changes nothing.
    let again = lock.acquire().await.unwrap();
    assert_eq!(again.fencing_token().await.unwrap(), token);
    drop(again);
    guard.release().await.unwrap();

    let guard = of_all(&lock).await;
    for client in &clients[1..] {
        assert!(client.lock("x").force_unlock().await.unwrap());
    }
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(guard.token(), None);
}
