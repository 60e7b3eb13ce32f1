//! The lock's rows: each side excludes the other, wakes it, and notices what happens to it. Calls
//! to Java block their thread, so our side has other threads to run on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::testing::history::{Interval, check, monotonic_ns};
use leasehold::{AnyLock, Client, LossReason};
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson};
use tokio::task::JoinSet;

use super::VERSION;
use crate::child;
use crate::support::{HOUR, eventually};

/// A limit that ends long before any lease of 30 s.
const SOON: Duration = Duration::from_secs(10);
const WATCHDOG: Duration = Duration::from_millis(2400);

struct Place {
    server: RedisServer,
    redisson: Redisson,
    java: RedissonThread,
    rust: Client,
}

/// Starts a server, a Redisson client and a client of this library.
async fn place() -> Place {
    place_with(None, Client::builder()).await
}

async fn place_with(watchdog: Option<Duration>, builder: leasehold::ClientBuilder) -> Place {
    let server = crate::topology::start();
    let redisson = Redisson::start(VERSION, &server.url());
    redisson.client("c", watchdog).unwrap();
    Place {
        java: redisson.thread("c", "t"),
        rust: builder.connect(&server.url()).await.unwrap(),
        server,
        redisson,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_java_holds_is_refused_to_us() {
    let Place { java, rust, .. } = &place().await;
    for kind in [LockKind::Plain, LockKind::Spin] {
        let java = java.kind(kind);
        java.lock("x").unwrap();
        let lock = rust.lock("x");
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert!(
            lock.try_acquire_for(Duration::from_secs(2))
                .await
                .unwrap()
                .is_none()
        );
        let info = lock.inspect().await.unwrap();
        assert_eq!((info.holders.len(), info.holders[0].count), (1, 1));
        java.lock("x").unwrap();
        assert_eq!(lock.inspect().await.unwrap().holders[0].count, 2);
        java.unlock("x").unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        java.unlock("x").unwrap();
        lock.try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_we_hold_is_refused_to_java() {
    let Place {
        server, java, rust, ..
    } = &place().await;
    for kind in [LockKind::Plain, LockKind::Spin] {
        let java = java.kind(kind);
        let owner = leasehold::Owner::new();
        let lock = rust.lock("x").owned_by(&owner);
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        assert!(!java.try_lock("x").unwrap().value);
        assert!(
            !java
                .try_lock_wait("x", Duration::from_millis(150), None)
                .unwrap()
                .value
        );
        assert!(java.is_locked("x").unwrap().value);
        assert!(!java.is_held_by_current_thread("x").unwrap().value);
        assert_eq!(java.hold_count("x").unwrap().value, 0);
        let ttl = java.ttl("x").unwrap().value;
        assert!((25_000..=30_000).contains(&ttl), "{ttl}");
        let error = java.unlock("x").unwrap_err();
        assert!(error.class.contains("IllegalMonitorState"), "{error:?}");
        outer.release().await.unwrap();
        assert!(!java.try_lock("x").unwrap().value, "held once more");
        inner.release().await.unwrap();
        assert!(java.try_lock("x").unwrap().value);
        java.unlock("x").unwrap();
        crate::topology::is_empty(server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_waiter_is_woken_by_javas_release() {
    let Place { java, rust, .. } = &place().await;
    java.lock("x").unwrap();
    let lock = rust.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || rust.activity().channels == 1).await;
    // After this time, the subscription is confirmed, and the waiter has asked once more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    java.unlock("x").unwrap();
    let guard = tokio::time::timeout(SOON, waiter)
        .await
        .expect("woken")
        .unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn javas_waiter_is_woken_by_our_release() {
    let Place {
        server, java, rust, ..
    } = &place().await;
    for drop_it in [false, true] {
        let guard = rust.lock("x").acquire().await.unwrap();
        let waiting = java.start_lock("x");
        eventually("it listens", async || !server.channels().is_empty()).await;
        assert!(!waiting.is_done());
        if drop_it {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        waiting.wait(SOON).expect("woken");
        java.unlock("x").unwrap();
    }
}

/// Java's waiter sleeps until the lease end that its refusal reported, unless a message wakes it.
#[tokio::test(flavor = "multi_thread")]
async fn javas_waiter_learns_when_a_lock_ends_that_we_keep() {
    let Place {
        server, java, rust, ..
    } = &place().await;
    // A fair lock is left out: a waiter of Redisson's in line is always given the lease end that it
    // was given when it joined, even if the expiry has changed.
    let locks: [(_, AnyLock); 2] = [
        (LockKind::Plain, rust.lock("plain").into()),
        (LockKind::Write, rust.rw_lock("write").write_lock().into()),
    ];
    for (kind, lock) in locks {
        let (name, java) = (lock.name(), java.kind(kind));
        let guard = lock.acquire().await.unwrap();
        let waiting = java.start_lock(name);
        eventually("it listens", async || {
            let channels = server.channels();
            channels.iter().any(|channel| channel.contains(name))
        })
        .await;
        guard.keep_for(Duration::from_secs(1)).await.unwrap();
        assert!(!waiting.is_done());
        waiting.wait(SOON).expect("woken");
        java.unlock(name).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spin_waiters_get_lock_across_sides() {
    let Place { java, rust, .. } = &place().await;
    let spin = java.kind(LockKind::Spin);
    let guard = rust.lock("x").acquire().await.unwrap();
    let waiting = spin.start_lock("x");
    assert!(!waiting.is_done());
    guard.release().await.unwrap();
    waiting.wait(SOON).unwrap();
    // A spin unlock of Redisson publishes nothing.
    let back_off = WaitStrategy::Backoff(Backoff::exponential());
    let lock = rust.lock("x").wait_strategy(back_off);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || rust.activity().lines == 1).await;
    spin.unlock("x").unwrap();
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_forced_unlock_is_seen_by_rust() {
    let Place {
        java, rust, server, ..
    } = &place_with(None, Client::builder().lease(WATCHDOG)).await;
    let guard = rust.lock("x").acquire().await.unwrap();
    let lock = rust.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    assert!(java.force_unlock("x").unwrap().value);
    let next = tokio::time::timeout(SOON, waiter)
        .await
        .expect("woken")
        .unwrap();
    let reason = guard.lost().await;
    assert!(
        matches!(&reason, LossReason::Taken { by } if by == next.holder_id())
            || reason == LossReason::Deleted,
        "{reason:?}"
    );
    assert!(guard.release().await.is_err());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn our_forced_unlock_is_seen_by_java() {
    let Place {
        server,
        redisson,
        java,
        rust,
    } = &place().await;
    java.lock("x").unwrap();
    let other = redisson.thread("c", "other");
    let waiting = other.start_lock("x");
    eventually("it listens", async || !server.channels().is_empty()).await;
    assert!(rust.lock("x").force_unlock().await.unwrap());
    waiting.wait(SOON).expect("woken");
    assert!(!java.is_held_by_current_thread("x").unwrap().value);
    let error = java.unlock("x").unwrap_err();
    assert!(error.class.contains("IllegalMonitorState"), "{error:?}");
    other.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_lease_frees_lock_for_other_side() {
    let Place { java, rust, .. } = &place().await;
    java.lock_lease("x", Duration::from_millis(400)).unwrap();
    let lock = rust.lock("x").poll_interval(HOUR);
    let guard = lock.try_acquire_for(SOON).await.unwrap().unwrap();
    assert!(
        java.unlock("x").is_err(),
        "its late unlock takes nothing from us"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let lock = lock.fixed_lease(Duration::from_millis(400));
    let guard = lock.acquire().await.unwrap();
    let got = java.try_lock_wait("x", SOON, None).unwrap();
    assert!(got.value);
    assert_eq!(guard.loss(), Some(LossReason::Expired));
    assert!(guard.release().await.is_err());
    assert!(java.is_held_by_current_thread("x").unwrap().value);
    java.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_work_of_ours_lets_javas_waiter_in_once_we_know() {
    let Place {
        server, java, rust, ..
    } = &place_with(None, Client::builder().lease(WATCHDOG)).await;
    let within = Duration::from_secs(1);
    let locks: [(_, AnyLock); 3] = [
        (LockKind::Plain, rust.lock("plain").into()),
        (LockKind::Fair, rust.fair_lock("fair").into()),
        (LockKind::Write, rust.rw_lock("write").write_lock().into()),
    ];
    for (kind, lock) in locks {
        let (name, java) = (lock.name().to_owned(), java.kind(kind));
        let guard = lock.progress_within(within).acquire().await.unwrap();
        let waiting = java.start_lock(&name);
        eventually("it listens", async || {
            let channels = server.channels();
            channels.iter().any(|channel| channel.contains(&name))
        })
        .await;
        // Longer than the lease.
        for _ in 0..28 {
            tokio::time::sleep(within / 10).await;
            guard.progress();
            assert!(guard.is_held() && !waiting.is_done());
        }
        waiting.wait(SOON).expect("the stalled hold ends");
        let loss = guard.loss();
        assert!(matches!(loss, Some(LossReason::Stalled { .. })), "{loss:?}");
        assert!(guard.release().await.is_err());
        assert!(java.is_held_by_current_thread(&name).unwrap().value);
        java.unlock(&name).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_holder_frees_lock_for_other_side() {
    let Place {
        server,
        redisson,
        java,
        rust,
    } = &place_with(Some(WATCHDOG), Client::builder()).await;
    java.lock("x").unwrap();
    redisson.kill();
    let guard = rust.lock("x").poll_interval(HOUR).acquire().await.unwrap();
    guard.release().await.unwrap();

    let other = Redisson::start(VERSION, &server.url());
    other.client("c", None).unwrap();
    let mut child = child::hold(LockKind::Plain, &server.url(), "x", WATCHDOG);
    let thread = other.thread("c", "t");
    assert!(!thread.try_lock("x").unwrap().value);
    child.kill();
    let waiting = thread.start_lock("x");
    waiting
        .wait(SOON)
        .expect("free after one lease of the killed process");
    thread.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_watchdog_renews_only_its_own_hold() {
    let Place {
        redisson,
        java,
        rust,
        ..
    } = &place_with(Some(WATCHDOG), Client::builder().lease(WATCHDOG)).await;
    // Both watchdogs are at work, each on its own name.
    java.lock("java").unwrap();
    let ours = rust.lock("rust").acquire().await.unwrap();
    // There are also holds that are not renewed.
    redisson
        .thread("c", "other")
        .lock_lease("java leased", WATCHDOG)
        .unwrap();
    rust.lock("rust left")
        .fixed_lease(WATCHDOG)
        .acquire()
        .await
        .unwrap()
        .forget();
    for name in ["java leased", "rust left"] {
        let lock = rust.lock(name);
        eventually("it ends although both watchdogs run", async || {
            !lock.is_locked().await.unwrap()
        })
        .await;
    }
    let lost = tokio::time::timeout(WATCHDOG * 3, ours.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(java.is_held_by_current_thread("java").unwrap().value);
    assert!(matches!(
        rust.lock("java").remaining_ttl().await.unwrap(),
        Ttl::Left(_)
    ));
    // Each side still refuses the other's lock.
    assert!(!java.try_lock("rust").unwrap().value);
    assert!(rust.lock("java").try_acquire().await.unwrap().is_none());
    java.unlock("java").unwrap();
    ours.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_thread_gets_turn_beside_busy_tasks() {
    let Place { java, rust, .. } = &place().await;
    let mut tasks = JoinSet::new();
    let ends = Arc::new(AtomicBool::new(false));
    for task in 0..64 {
        let (lock, ends) = (rust.lock("x"), Arc::clone(&ends));
        tasks.spawn(async move {
            let mut holds = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                // On the clock that Java's holds are recorded on.
                let asked = monotonic_ns();
                let guard = lock.acquire().await.unwrap();
                let from = monotonic_ns();
                let who = format!("task {task}");
                holds.push(Interval::new("x", &who, asked, from, monotonic_ns()));
                guard.release().await.unwrap();
            }
            holds
        });
    }
    let mut javas = Vec::new();
    for kind in [LockKind::Plain, LockKind::Spin] {
        let java = java.kind(kind);
        for round in 0..25 {
            let asked = monotonic_ns();
            let got = java.try_lock_wait("x", SOON, None).unwrap();
            assert!(got.value, "{kind:?} is not served in round {round}");
            let from = monotonic_ns();
            javas.push(Interval::new("x", "java", asked, from, monotonic_ns()));
            java.unlock("x").unwrap();
        }
    }
    ends.store(true, Ordering::Relaxed);
    let ours = tasks.join_all().await.concat();
    check(&[ours, javas].concat()).judge().unwrap();
}
