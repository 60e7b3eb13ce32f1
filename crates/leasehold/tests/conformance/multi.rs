//! The multi-lock: all members or none, for members of any kind.

use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{AnyLock, Client, ErrorKind, LossReason, MultiLock};

use super::{LEASE, place};
use crate::support::{HOUR, eventually};

fn both(client: &Client) -> MultiLock {
    MultiLock::new([client.lock("b"), client.lock("a")]).unwrap()
}

async fn is_locked(client: &Client, name: &str) -> bool {
    client.lock(name).is_locked().await.unwrap()
}

#[tokio::test]
async fn it_holds_every_member_until_its_release() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = both(&ours).acquire().await.unwrap();
    assert_eq!(guard.name(), "a + b");
    for (name, member) in ["a", "b"].into_iter().zip(guard.members()) {
        assert_eq!(member.name(), name);
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none());
    }
    assert!(both(&theirs).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = both(&theirs).try_acquire().await.unwrap().unwrap();
    drop(guard);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn with_one_member_held_it_holds_none() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for name in ["a", "b"] {
        let guard = theirs.lock(name).acquire().await.unwrap();
        assert!(both(&ours).try_acquire().await.unwrap().is_none());
        let short = LEASE / 2;
        let waited = both(&ours).try_acquire_for(short).await.unwrap();
        assert!(waited.is_none());
        eventually("the other one is free", async || {
            place.keys() == [name.to_owned()]
        })
        .await;
        guard.release().await.unwrap();
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn multi_waiter_keeps_only_earlier_members() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let busy = theirs.lock("b").acquire().await.unwrap();
    let three = MultiLock::new(["c", "b", "a"].map(|name| ours.lock(name))).unwrap();
    let waiter = tokio::spawn(async move { three.poll_interval(HOUR).acquire().await.unwrap() });
    eventually("it waits for b", async || ours.activity().channels == 1).await;
    eventually("it holds a and not c", async || {
        is_locked(&theirs, "a").await && !is_locked(&theirs, "c").await
    })
    .await;
    busy.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(is_locked(&theirs, "c").await);
    guard.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn kept_members_are_renewed_during_the_wait() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let busy = theirs.lock("b").acquire().await.unwrap();
    let lock = both(&ours).fixed_lease(LEASE).max_hold(LEASE * 4);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it holds a", async || is_locked(&theirs, "a").await).await;
    for _ in 0..8 {
        tokio::time::sleep(LEASE / 2).await;
        assert!(is_locked(&theirs, "a").await, "kept while it waits");
    }
    busy.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let left = guard.valid_until() - tokio::time::Instant::now();
    assert!(left > LEASE / 3, "only {left:?} are left");
    assert_eq!(
        ours.activity().renewed_holds,
        2,
        "for the maximum hold only"
    );
    let lost = guard.lost().await;
    assert!(
        matches!(&lost, LossReason::Member { reason, .. } if **reason == LossReason::Expired),
        "a fixed lease is not renewed: {lost:?}"
    );
    drop(guard);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn multi_max_hold_starts_after_the_wait() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let busy = theirs.lock("b").acquire().await.unwrap();
    let lock = both(&ours).max_hold(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it holds a", async || is_locked(&theirs, "a").await).await;
    tokio::time::sleep(LEASE * 2).await;
    busy.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    let lost = guard.lost().await;
    let LossReason::Member { reason, .. } = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(*reason, LossReason::MaxHold { limit: LEASE });
    drop(guard);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn multi_locks_in_opposite_orders_never_dead_lock() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let recorder = Recorder::new();
    let orders = [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ];
    let worker = async |n: usize| {
        let client = &clients[n % 2];
        let lock = MultiLock::new(orders[n % 4].map(|name| client.lock(name))).unwrap();
        for _ in 0..10 {
            let asked = recorder.ask("all", &n.to_string());
            let guard = lock.acquire().await.unwrap();
            let inside = asked.acquired(&guard);
            tokio::task::yield_now().await;
            inside.releasing(&guard);
            guard.release().await.unwrap();
        }
    };
    let all = futures_util::future::join_all((0..8).map(worker));
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, all)
        .await
        .expect("no dead-lock");
    recorder.report().judge().unwrap();
    assert_eq!(recorder.report().holds, 80);
    place.is_clean(&[&clients[0], &clients[1]]).await;
}

#[tokio::test]
async fn members_are_of_several_clients_servers_and_kinds() {
    let place = place();
    let other_place = place.beside();
    let (one, other) = (place.client().await, other_place.client().await);
    let lock = MultiLock::new([
        AnyLock::from(one.lock("x")),
        other.lock("x").into(),
        other.group_lock("g", ["v", "w"]).into(),
    ])
    .unwrap();
    assert_eq!(lock.members().len(), 3);
    let guard = lock.acquire().await.unwrap();
    assert!(is_locked(&one, "x").await && is_locked(&other, "x").await);
    let overlapping = other.group_lock("g", ["w"]);
    assert!(overlapping.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();

    let rw = [one.rw_lock("r"), one.rw_lock("w")];
    let lock = MultiLock::new([
        AnyLock::from(rw[1].write_lock()),
        rw[0].read_lock().into(),
        one.fair_lock("fair").into(),
        one.fenced_lock("fenced").into(),
    ])
    .unwrap();
    let owner = leasehold::Owner::new();
    let lock = lock.owned_by(&owner);
    let guard = lock.acquire().await.unwrap();
    let again = lock.try_acquire().await.unwrap().unwrap();
    assert!(lock.is_held_by(&owner));
    assert_eq!(again.hold_count(), 2);
    again.release().await.unwrap();
    let reader = rw[0].try_read().await.unwrap().expect("beside a reader");
    assert!(rw[1].try_read().await.unwrap().is_none());
    assert!(one.fair_lock("fair").try_acquire().await.unwrap().is_none());
    let tokens: Vec<_> = guard
        .members()
        .iter()
        .map(|member| member.token())
        .collect();
    assert!(
        matches!(tokens[..], [None, Some(_), None, None]),
        "{tokens:?}"
    );
    drop(reader);
    guard.release().await.unwrap();
    place.remove("redisson_lock_token:{fenced}");
    place.is_clean(&[&one]).await;
    other_place.is_clean(&[&other]).await;
}

#[tokio::test]
async fn losing_one_member_loses_the_multi_lock() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let guard = both(&client).acquire().await.unwrap();
    place.remove("b");
    let lost = tokio::time::timeout(LEASE * 10, guard.lost());
    let reason = lost.await.expect("told");
    assert!(
        matches!(&reason, LossReason::Member { member, reason }
            if member.contains("`b`") && **reason == LossReason::Deleted),
        "{reason:?}"
    );
    assert_eq!(guard.loss(), Some(reason.clone()), "lost is final");
    assert!(guard.members()[0].is_held(), "the other one is still held");
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss(), Some(&reason));
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn multi_release_names_the_failed_member() {
    let place = place();
    let client = place.client().await;
    let guard = both(&client).acquire().await.unwrap();
    place.remove("a");
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.members().len(), 1, "{error}");
    assert_eq!(error.members()[0].key(), Some("a"));
    assert!(
        error.to_string().contains(&format!("`{}`", place.key("a"))),
        "{error}"
    );
    assert!(!is_locked(&client, "b").await);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn an_owner_enters_again_without_a_round_trip() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = both(&client).owned_by(&owner);
    assert!(!lock.is_held_by(&owner));
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(inner.hold_count(), 2);
    assert_ne!(inner.number(), outer.number());
    outer.release().await.unwrap();
    assert!(lock.is_held_by(&owner));
    assert!(is_locked(&client, "a").await);
    inner.release().await.unwrap();
    assert!(!lock.is_held_by(&owner));
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn duplicate_member_counts_once() {
    let place = place();
    let (client, same_server) = (place.client().await, place.client().await);
    let lock = MultiLock::new([client.lock("a"), same_server.lock("a")]).unwrap();
    assert_eq!(lock.members().len(), 1);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let clash = MultiLock::new([
        AnyLock::from(client.lock("a")),
        client.group_lock("a", ["v"]).into(),
    ]);
    assert_eq!(clash.unwrap_err().kind(), ErrorKind::Misuse);
    let whole = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let nested = MultiLock::new([AnyLock::from(whole), client.lock("c").into()]).unwrap_err();
    assert_eq!(nested.kind(), ErrorKind::Misuse);
    assert!(nested.to_string().contains("`a + b`"), "{nested}");
    let none = MultiLock::new(Vec::<leasehold::Lock>::new());
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(
        MultiLock::new([client.lock("")]).unwrap_err().kind(),
        ErrorKind::Misuse
    );
    place.is_clean(&[&client, &same_server]).await;
}

#[tokio::test]
async fn wrong_kind_member_fails_the_acquire() {
    let place = place();
    let client = place.client().await;
    let group = client.group_lock("b", ["v"]).acquire().await.unwrap();
    let error = both(&client).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    let error = both(&client).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    assert_eq!(error.key(), Some("b"));
    eventually("a is given back", async || place.keys() == ["b"]).await;
    group.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn it_is_extended_left_and_protects_as_one() {
    let place = place();
    let client = place.client().await;
    let lock = both(&client).fixed_lease(LEASE);
    let guard = lock.acquire().await.unwrap();
    guard.extend(LEASE * 50).await.unwrap();
    assert!(guard.valid_until() - tokio::time::Instant::now() > LEASE * 40);
    assert_eq!(guard.protect(async { 7 }).await.unwrap(), 7);
    place.remove("a");
    let error = guard.extend(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(guard);
    let guard = lock.acquire().await.unwrap();
    guard.forget();
    assert!(is_locked(&client, "a").await && is_locked(&client, "b").await);
    place.is_clean(&[&client]).await;
}
