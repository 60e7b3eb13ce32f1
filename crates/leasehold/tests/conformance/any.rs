//! A lock whose kind is chosen at run time behaves like the lock that it was made of.

use std::time::Duration;

use leasehold::{AnyLock, Client, ErrorKind, LossReason, MultiLock, Owner, RedLock};

use super::{LEASE, place};
use crate::support::eventually;

/// Makes one lock of each kind, on names of their own.
fn of_each_kind(client: &Client) -> Vec<AnyLock> {
    let locks = ["m1", "m2"].map(|name| client.lock(name));
    let majority = RedLock::new([client.lock("r")]).unwrap();
    let majority = majority.member_timeout(Duration::from_secs(10));
    vec![
        client.lock("plain").into(),
        client.fair_lock("fair").into(),
        client.fenced_lock("fenced").into(),
        client.rw_lock("write").write_lock().into(),
        client.rw_lock("read").read_lock().into(),
        client.group_lock("group", ["a", "b"]).into(),
        MultiLock::new(locks).unwrap().into(),
        majority.distrust_restarted(false).into(),
    ]
}

const COUNTER: &str = "redisson_lock_token:{fenced}";

#[tokio::test]
async fn each_kind_is_acquired_seen_and_released() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    for (lock, same) in of_each_kind(&client).into_iter().zip(of_each_kind(&other)) {
        let name = lock.name().to_owned();
        assert!(!lock.is_locked().await.unwrap(), "{name}");
        let owner = Owner::new();
        let owned = lock.clone().owned_by(&owner);
        let guard = owned.acquire().await.unwrap();
        assert_eq!(guard.name(), name);
        assert!(same.is_locked().await.unwrap(), "{name}");
        assert!(owned.is_held_by(&owner) && !owned.is_held_by(&Owner::new()));
        let again = owned.try_acquire().await.unwrap().expect("a re-entry");
        again.release().await.unwrap();
        // Many clients may read.
        if name != "read" {
            assert!(same.try_acquire().await.unwrap().is_none(), "{name}");
            // A deadline in the past asks once.
            let now = tokio::time::Instant::now();
            assert!(same.try_acquire_until(now).await.unwrap().is_none());
        }
        guard.release().await.unwrap();
        assert!(!owned.is_held_by(&owner));
        let free = same.try_acquire_for(Duration::from_secs(60)).await;
        free.unwrap().expect("it is free").release().await.unwrap();
        assert_eq!(same.run(async |_| 42).await.unwrap(), 42);
    }
    place.is_clean_but_for(&[COUNTER], &[&client, &other]).await;
}

#[tokio::test]
async fn inspect_names_the_holder_of_each_member() {
    let place = place();
    let client = place.client().await;
    for lock in of_each_kind(&client) {
        let guard = lock.acquire().await.unwrap();
        if lock.members().is_empty() {
            let info = lock.inspect().await.unwrap();
            assert_eq!(info.holders[0].id, guard.holder_id());
        } else {
            let error = lock.inspect().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            for (member, held) in lock.members().iter().zip(guard.members()) {
                let info = member.inspect().await.unwrap();
                assert_eq!(info.holders[0].id, held.holder_id());
                assert_eq!(member.address(), client.address());
            }
        }
        guard.release().await.unwrap();
    }
    place.is_clean_but_for(&[COUNTER], &[&client]).await;
}

#[tokio::test]
async fn settings_of_before_and_after_count() {
    let place = place();
    let client = place.client().await;
    let limited = client.lock("x").max_hold(LEASE);
    let lock = AnyLock::from(&limited).fixed_lease(Duration::from_secs(3600));
    let guard = lock.acquire().await.unwrap();
    assert!(matches!(guard.lost().await, LossReason::MaxHold { .. }));
    eventually("it is free", async || !lock.is_locked().await.unwrap()).await;
    drop(guard);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn only_two_held_members_lock_a_majority() {
    let place = place();
    let client = place.client().await;
    let names = ["a", "b", "c"];
    let majority = RedLock::new(names.map(|name| client.lock(name))).unwrap();
    let majority = AnyLock::from(majority);
    let all = AnyLock::from(MultiLock::new(names.map(|name| client.lock(name))).unwrap());
    let first = client.lock("a").acquire().await.unwrap();
    assert!(all.is_locked().await.unwrap());
    assert!(!majority.is_locked().await.unwrap());
    let second = client.lock("b").acquire().await.unwrap();
    assert!(majority.is_locked().await.unwrap());
    first.release().await.unwrap();
    second.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn invalid_name_fails_at_first_use() {
    let place = place();
    let lock = AnyLock::from(place.client().await.lock(""));
    assert_eq!(lock.name(), "");
    assert!(!lock.is_held_by(&Owner::new()));
    for error in [
        lock.acquire().await.map(drop).unwrap_err(),
        lock.is_locked().await.unwrap_err(),
        lock.inspect().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misuse);
    }
}
