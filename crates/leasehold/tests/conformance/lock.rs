//! The lock: exclusion, leases, renewal, loss, re-entrance.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::testing::history::Recorder;
use leasehold::{ErrorKind, LossReason};

use super::{LEASE, lock_of, place};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn held_lock_excludes_others_until_released() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x").acquire().await.unwrap();
    assert!(lock_of(&theirs, "x").try_acquire().await.unwrap().is_none());
    assert!(lock_of(&ours, "x").try_acquire().await.unwrap().is_none());
    assert!(lock_of(&theirs, "y").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
    let guard = lock_of(&theirs, "x").try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_dropped_guard_releases() {
    let place = place();
    let client = place.client().await;
    drop(lock_of(&client, "x").acquire().await.unwrap());
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    drop(guard);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn late_release_harms_no_later_holder() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = lock_of(&ours, "x")
        .fixed_lease(LEASE / 4)
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert!(!guard.is_held());
    let next = lock_of(&theirs, "x").acquire().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss(), Some(&LossReason::Expired));
    assert!(
        error.to_string().contains(&format!("`{}`", place.key("x"))),
        "{error}"
    );
    next.release()
        .await
        .expect("a late release of another hold changed nothing");
    place.is_clean(&[&ours, &theirs]).await;
}

/// There are more holds than one operation can renew.
#[tokio::test]
async fn many_holds_are_renewed_and_each_loss_has_its_reason() {
    let place = place();
    let ours = place.client_with(|builder| builder.lease(LEASE)).await;
    let theirs = place.client_with(|builder| builder.lease(LEASE)).await;
    let mut guards = Vec::new();
    for number in 0..150 {
        let lock = lock_of(&ours, &number.to_string());
        guards.push(lock.acquire().await.unwrap());
    }
    tokio::time::sleep(LEASE * 2).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!(lock_of(&theirs, "3").force_unlock().await.unwrap());
    place.remove("5");
    place.remove("7");
    let taken = lock_of(&theirs, "7").acquire().await.unwrap();
    let by = taken.holder_id().to_owned();
    let losses = [
        (3, crate::support::forced()),
        (5, LossReason::Deleted),
        (7, LossReason::Taken { by }),
    ];
    for (number, reason) in &losses {
        let lost = tokio::time::timeout(LEASE * 20, guards[*number].lost()).await;
        assert_eq!(lost.expect("its holder is told"), *reason, "{number}");
    }
    tokio::time::sleep(LEASE * 2).await;
    taken.release().await.unwrap();
    for (number, guard) in guards.into_iter().enumerate() {
        let is_lost = losses.iter().any(|(lost, _)| *lost == number);
        assert_eq!(guard.release().await.is_err(), is_lost, "{number}");
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn a_renewed_hold_outlives_many_leases() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let other = place.client().await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    let first = guard.valid_until();
    assert!(
        tokio::time::timeout(LEASE * 4, guard.lost()).await.is_err(),
        "lost: {:?}",
        guard.loss()
    );
    assert!(guard.valid_until() > first);
    assert!(lock_of(&other, "x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn force_unlocked_holder_learns_the_reason() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let operator = place.client().await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    assert!(lock_of(&operator, "x").force_unlock().await.unwrap());
    assert!(!lock_of(&operator, "x").force_unlock().await.unwrap());
    assert_eq!(guard.lost().await, crate::support::forced());
    assert_eq!(
        guard.release().await.unwrap_err().loss(),
        Some(&crate::support::forced())
    );
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn lost_holder_learns_the_takers_id() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let operator = place.client_with(|builder| builder.lease(LEASE)).await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    place.remove("x");
    let taker = lock_of(&operator, "x").acquire().await.unwrap();
    let by = taker.holder_id().to_owned();
    assert_eq!(guard.lost().await, LossReason::Taken { by });
    drop(guard);
    taker
        .release()
        .await
        .expect("nobody else's release touched it");
    place.is_clean(&[&client, &operator]).await;
}

#[tokio::test]
async fn protect_cancels_the_work_on_loss() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x")
        .fixed_lease(LEASE / 4)
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.protect(async { 7 }).await.unwrap(), 7);
    let error = guard
        .protect(std::future::pending::<()>())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let error = guard.protect(async { 7 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "lost is final");
}

#[tokio::test]
async fn timely_release_reports_no_loss() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x")
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap();
    let lost = guard.lost();
    guard.release().await.unwrap();
    let lost = tokio::time::timeout(LEASE * 2, lost).await;
    assert!(lost.is_err(), "{lost:?}");
}

#[tokio::test]
async fn run_holds_the_lock_for_the_closure_only() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x");
    let inside = lock.run(async |guard| {
        assert!(guard.is_held());
        lock.is_locked().await.unwrap()
    });
    assert!(inside.await.unwrap());
    assert!(!lock.is_locked().await.unwrap());
    let error = lock
        .clone()
        .fixed_lease(LEASE / 4)
        .run(async |_| std::future::pending::<()>().await)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn only_the_owners_last_release_frees() {
    let place = place();
    let client = place.client().await;
    let other = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    assert_eq!(outer.number(), inner.number(), "one hold, two guards");
    // The guard that was acquired first may be released first.
    outer.release().await.unwrap();
    assert_eq!(inner.hold_count(), 1);
    assert!(lock_of(&other, "x").try_acquire().await.unwrap().is_none());
    assert!(lock.is_held_by(&owner).await.unwrap());
    assert!(!lock.is_held_by(&leasehold::Owner::new()).await.unwrap());
    inner.release().await.unwrap();
    assert!(!lock.is_held_by(&owner).await.unwrap());
    assert!(lock_of(&other, "x").try_acquire().await.unwrap().is_some());
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn only_the_same_owner_is_reentrant() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    assert!(lock_of(&client, "x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let (one, other) = (leasehold::Owner::new(), leasehold::Owner::new());
    let guard = lock_of(&client, "x")
        .owned_by(&one)
        .acquire()
        .await
        .unwrap();
    let lock = lock_of(&client, "x").owned_by(&other);
    assert!(lock.try_acquire().await.unwrap().is_none());
    drop(guard);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn owners_waiting_tasks_share_one_hold() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let stranger = lock_of(&other, "x").acquire().await.unwrap();
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let branch = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let branches = [branch(), branch(), branch()];
    eventually("they wait", async || client.activity().lines == 1).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    stranger.release().await.unwrap();
    let mut guards = Vec::new();
    for branch in branches {
        guards.push(branch.await.unwrap());
    }
    assert!(
        guards
            .iter()
            .all(|guard| guard.number() == guards[0].number())
    );
    assert_eq!(guards[0].hold_count(), 3);
    drop(guards);
    place.is_clean(&[&client, &other]).await;
}

#[tokio::test]
async fn only_a_longer_reentry_extends_the_lease() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let outer = lock.clone().fixed_lease(LEASE).acquire().await.unwrap();
    let before = outer.valid_until();
    let shorter = lock.clone().fixed_lease(LEASE / 2).acquire().await.unwrap();
    let moved = outer.valid_until().max(before) - outer.valid_until().min(before);
    assert!(moved < LEASE / 4, "moved by {moved:?}");
    let longer = lock
        .clone()
        .fixed_lease(LEASE * 100)
        .acquire()
        .await
        .unwrap();
    assert!(outer.valid_until() > before + LEASE * 50);
    let Ttl::Left(left) = lock.remaining_ttl().await.unwrap() else {
        panic!("held");
    };
    assert!(left > LEASE * 50);
    drop((outer, shorter, longer));
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn owner_acquires_again_after_a_loss() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let old = lock.clone().fixed_lease(LEASE / 4).acquire().await.unwrap();
    old.lost().await;
    let new = lock.acquire().await.unwrap();
    assert!(new.is_held() && !old.is_held(), "lost is final");
    assert_ne!(new.holder_id(), old.holder_id());
    drop(old);
    assert!(
        lock.is_locked().await.unwrap(),
        "the lost guard's drop took nothing"
    );
    new.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn extend_never_shortens_a_fixed_lease() {
    let place = place();
    let client = place.client().await;
    let guard = lock_of(&client, "x")
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap();
    let before = guard.valid_until();
    guard.extend(LEASE * 10).await.unwrap();
    assert!(guard.valid_until() > before + LEASE * 5);
    let before = guard.valid_until();
    guard.extend(LEASE / 10).await.unwrap();
    assert!(guard.valid_until() >= before);
    guard.release().await.unwrap();
    let guard = lock_of(&client, "x")
        .fixed_lease(LEASE / 4)
        .acquire()
        .await
        .unwrap();
    guard.lost().await;
    assert_eq!(
        guard.extend(LEASE).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
}

#[tokio::test]
async fn a_forgotten_lock_stays_until_its_lease_ends() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x").fixed_lease(LEASE);
    lock.acquire().await.unwrap().forget();
    assert!(lock.is_locked().await.unwrap());
    assert_eq!(client.activity().renewed_holds, 0);
    lock.acquire().await.unwrap().release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn a_kept_lock_ends_after_its_span_and_not_its_lease() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(HOUR)).await;
    let lock = lock_of(&client, "x");
    lock.acquire().await.unwrap().keep_for(LEASE).await.unwrap();
    assert!(lock.is_locked().await.unwrap());
    assert_eq!(client.activity().renewed_holds, 0);
    // The hold is kept for a shorter time than its lease, and then for a longer one.
    let guard = lock.fixed_lease(LEASE).acquire().await.unwrap();
    guard.keep_for(LEASE * 3).await.unwrap();
    let left = lock_of(&client, "x").inspect().await.unwrap().ttl;
    assert!(matches!(left, Ttl::Left(left) if left > LEASE), "{left:?}");
    let next = lock_of(&client, "x").acquire().await.unwrap();
    next.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn a_lock_that_is_shared_or_lost_is_not_kept() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let refused = second.keep_for(HOUR).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse);
    first.release().await.unwrap();
    let fixed = lock_of(&client, "x").fixed_lease(LEASE);
    let lost = fixed.acquire().await.unwrap();
    lost.lost().await;
    let lost = lost.keep_for(HOUR).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    let read = client.rw_lock("y").read().await.unwrap();
    let refused = leasehold::LockGuard::from(read).keep_for(HOUR).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Misuse);
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn the_maximum_hold_time_ends_a_renewed_hold() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let lock = lock_of(&client, "x").max_hold(LEASE * 2);
    let guard = lock.acquire().await.unwrap();
    let limit = LEASE * 2;
    assert_eq!(guard.lost().await, LossReason::MaxHold { limit });
    let next = lock.acquire().await.unwrap();
    assert!(guard.release().await.is_err());
    next.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn inspect_says_who_holds_and_for_how_long() {
    let place = place();
    let client = place.client().await;
    let lock = lock_of(&client, "x");
    let info = lock.inspect().await.unwrap();
    assert!(!info.is_locked());
    assert_eq!(info.ttl, Ttl::Free);
    let guard = lock.acquire().await.unwrap();
    let info = lock.inspect().await.unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].id, guard.holder_id());
    assert!(info.holders[0].id.starts_with(client.id()));
    assert_eq!(info.holders[0].count, 1);
    let Ttl::Left(left) = info.ttl else {
        panic!("{info:?}");
    };
    assert!(left > Duration::from_secs(25) && left <= Duration::from_secs(30));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn no_two_holds_overlap_under_contention() {
    let place = place();
    let recorder = Recorder::new();
    let mut clients = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for c in 0..4 {
        let client = place.client().await;
        for t in 0..4 {
            let (recorder, client) = (recorder.clone(), client.clone());
            tasks.spawn(async move {
                let mut lock = lock_of(&client, "hot").poll_interval(HOUR);
                if t == 3 {
                    lock = lock.wait_strategy(WaitStrategy::Backoff(Backoff::exponential()));
                }
                for _ in 0..25 {
                    let asked = recorder.ask("hot", &format!("client {c} task {t}"));
                    let guard = lock.acquire().await.unwrap();
                    let inside = asked.acquired(&guard);
                    tokio::task::yield_now().await;
                    inside.releasing(&guard);
                    if t == 2 {
                        drop(guard);
                    } else {
                        guard.release().await.unwrap();
                    }
                }
            });
        }
        clients.push(client);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let report = recorder.report();
    assert_eq!(report.holds, 4 * 4 * 25);
    report.judge().unwrap();
    place.is_clean(&clients.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn owner_reenters_beside_a_forgotten_guard() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    second.forget();
    let third = lock
        .try_acquire()
        .await
        .unwrap()
        .expect("it is the owner's own");
    drop(third);
    first.release().await.unwrap();
    assert!(lock.is_locked().await.unwrap(), "left to its lease");
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn reentry_keeps_its_maximum_hold_time() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let owner = leasehold::Owner::new();
    let lock = lock_of(&client, "x").owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    let limit = LEASE * 2;
    let inner = lock.max_hold(limit).acquire().await.unwrap();
    assert_eq!(inner.lost().await, LossReason::MaxHold { limit });
    assert!(!outer.is_held(), "one hold, two guards");
}

#[tokio::test]
async fn closed_clients_guard_expires_unrenewed() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let guard = lock_of(&client, "x").acquire().await.unwrap();
    let until = guard.valid_until();
    assert_eq!(client.close().await.holds_left, 1);
    assert!(guard.is_held());
    // One more renewal may already have been under way.
    assert!(guard.valid_until() < until + LEASE / 2);
    let told = tokio::time::timeout(LEASE * 4, guard.lost()).await;
    assert_eq!(told, Ok(LossReason::Closed));
    assert_eq!(
        guard.release().await.unwrap_err().loss(),
        Some(&LossReason::Closed)
    );
    assert_eq!(client.close().await.holds_left, 0, "its lease is over");
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn guard_is_extended_after_the_close() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(HOUR)).await;
    let (kept, ended) = (lock_of(&client, "x"), lock_of(&client, "y"));
    let guard = kept.acquire().await.unwrap();
    let ended = ended.max_hold(LEASE / 4).acquire().await.unwrap();
    assert_eq!(client.close().await.holds_left, 2);
    // The watchdog releases the lock, long before its lease ends.
    let is_over = matches!(ended.lost().await, LossReason::MaxHold { .. });
    assert!(is_over, "{:?}", ended.loss());
    eventually("it is free", async || {
        !place.keys().contains(&"y".to_owned())
    })
    .await;
    let before = guard.valid_until();
    guard.extend(HOUR * 2).await.unwrap();
    assert!(guard.valid_until() > before + HOUR / 2);
    assert_eq!(client.activity().renewed_holds, 0);
    guard.release().await.unwrap();
    drop(ended);
    place.is_clean(&[&client]).await;
}
