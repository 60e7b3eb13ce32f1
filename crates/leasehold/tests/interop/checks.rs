//! The checks of every exclusive lock, for any cast of clients. Each side is tried against each
//! other side, in both orders.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{Redisson, RedissonVersion};

use crate::child;
use crate::javas::{JavaClient, asleep, java_that_holds};
use crate::scene::Scene;
use crate::sides::SOON;
use crate::support::{HOUR, eventually};
use crate::topology::Site;
use crate::what::What;

const SHORT: Duration = Duration::from_millis(400);
/// The lease of the watchdogs, which renew every third of it.
const WATCHDOG: Duration = Duration::from_millis(2400);

pub(crate) async fn a_try_is_refused_while_another_side_holds(
    cast: &[RedissonVersion],
    what: What,
) {
    let mut scene = Scene::new(cast, what).await;
    for holder in 0..scene.sides.len() {
        let others = scene.others(holder);
        assert!(scene.sides[holder].try_lock(Duration::ZERO).await);
        for other in others {
            let who = scene.sides[other].who.clone();
            assert!(!scene.sides[other].try_lock(Duration::ZERO).await, "{who}");
        }
        assert!(scene.sides[holder].unlock().await);
    }
    scene.is_free().await;
}

pub(crate) async fn a_timed_try_is_refused_in_its_time_or_served(
    cast: &[RedissonVersion],
    what: What,
) {
    let mut scene = Scene::new(cast, what).await;
    for holder in 0..scene.sides.len() {
        for other in scene.others(holder) {
            scene.sides[holder].lock().await;
            assert!(!scene.sides[other].try_lock(SHORT).await);
            // This library's waiter leaves the line in the background.
            eventually("nobody is in line", async || scene.queue().await == 0).await;
            let waiting = scene.waits(other, Some(SOON)).await;
            assert!(scene.sides[holder].unlock().await);
            scene.got(other, waiting).await;
            assert!(!scene.sides[holder].try_lock(Duration::ZERO).await);
            assert!(scene.sides[other].unlock().await);
            scene.is_free().await;
        }
    }
}

pub(crate) async fn all_waiters_are_woken_in_turn(cast: &[RedissonVersion], what: What) {
    let mut scene = Scene::new(cast, what).await;
    for holder in 0..scene.sides.len() {
        scene.sides[holder].lock().await;
        let mut waiting = Vec::new();
        for other in scene.others(holder) {
            waiting.push((other, scene.waits(other, None).await));
        }
        assert!(scene.sides[holder].unlock().await);
        let order = scene.serve(waiting).await;
        if what == What::Fair {
            assert_eq!(order, scene.others(holder), "first come, first served");
        }
        scene.is_free().await;
    }
}

pub(crate) async fn a_forced_unlock_wakes_who_waits_and_is_told_the_holder(
    cast: &[RedissonVersion],
    what: What,
) {
    let mut scene = Scene::new(cast, what).await;
    for holder in 0..scene.sides.len() {
        for other in scene.others(holder) {
            scene.sides[holder].lock().await;
            let waiting = scene.waits(other, None).await;
            scene.sides[other].force_unlock().await;
            scene.got(other, waiting).await;
            let late = scene.sides[holder].unlock().await;
            assert!(!late, "{} did not notice", scene.sides[holder].who);
            assert!(!scene.sides[holder].try_lock(Duration::ZERO).await);
            assert!(scene.sides[other].unlock().await);
            scene.is_free().await;
        }
    }
}

pub(crate) async fn a_lease_that_ends_lets_the_other_side_in(cast: &[RedissonVersion], what: What) {
    let mut scene = Scene::new(cast, what).await;
    for holder in 0..scene.sides.len() {
        for other in scene.others(holder) {
            let lease = Duration::from_millis(1500);
            scene.sides[holder].lock_leased(lease).await;
            let waiting = scene.waits(other, None).await;
            let behind = scene.ours_behind().await;
            scene.got(other, waiting).await;
            let late = scene.sides[holder].unlock().await;
            // Redisson's unlock of a majority reports nothing.
            let silent = what == What::Red && scene.sides[holder].who != "ours";
            assert!(!late || silent, "a late unlock succeeded");
            assert!(!scene.sides[holder].try_lock(Duration::ZERO).await);
            assert!(scene.sides[other].unlock().await);
            if let Some(behind) = behind {
                let ours = scene.sides.len() - 1;
                scene.serve(vec![(ours, behind)]).await;
            }
            scene.is_free().await;
        }
    }
}

pub(crate) async fn a_killed_process_holds_up_the_others_for_its_lease_only(
    cast: &[RedissonVersion],
    what: What,
) {
    let mut scene = Scene::new(cast, what).await;
    let all: Vec<_> = (0..scene.sides.len()).collect();
    let url = scene.site.url();
    for version in cast {
        let victim = java_that_holds(*version, what, &url, WATCHDOG);
        let mut waiting = Vec::new();
        for side in &all {
            waiting.push((*side, scene.waits(*side, None).await));
        }
        victim.kill();
        scene.serve(waiting).await;
    }
    let mut victim = child::hold_any(what, &url, WATCHDOG);
    let mut waiting = Vec::new();
    for side in &all {
        waiting.push((*side, scene.waits(*side, None).await));
    }
    victim.kill();
    scene.serve(waiting).await;
}

/// Each side in turn has the lock when the master behind sentinels is replaced, and the others
/// wait.
pub(crate) async fn holds_and_waiters_outlive_a_failover(cast: &[RedissonVersion], what: What) {
    let mut scene = Scene::at(Site::behind_sentinels(), cast, what, None).await;
    for holder in 0..scene.sides.len() {
        scene.sides[holder].lock().await;
        let mut waiting = Vec::new();
        for other in scene.others(holder) {
            waiting.push((other, scene.waits(other, None).await));
        }
        scene.fails_over().await;
        let early = waiting.iter().find(|(_, waiting)| waiting.is_done());
        assert!(early.is_none(), "it was held");
        assert!(scene.sides[holder].unlock().await);
        // Redisson may not be listening again yet. In that case, it asks at the end of the lease
        // that its refusal reported.
        scene.serve_in_the_end(waiting).await;
        scene.is_free().await;
    }
}

pub(crate) async fn each_watchdog_keeps_a_hold_that_is_still_refused_to_the_others(
    cast: &[RedissonVersion],
    what: What,
) {
    let mut scene = Scene::with_watchdog(cast, what, Some(WATCHDOG)).await;
    for holder in 0..scene.sides.len() {
        scene.sides[holder].lock().await;
        let mut kept = 0;
        for key in what.keys() {
            // In total, this is longer than its lease.
            let (mut last, mut renewals) = (0, 0);
            eventually("it is renewed four times, or was not held", async || {
                let ttl = scene.site.server_of(key).command(&["PTTL", key]).unwrap();
                let ttl = ttl.as_int().unwrap();
                // The first check counts as a renewal too. A member whose grant is late is given
                // back at once.
                let came_late = what == What::Red && renewals < 2;
                let who = &scene.sides[holder].who;
                assert!(ttl > 0 || came_late, "{key} of {who} ended");
                renewals += u32::from(ttl > last + 100);
                last = ttl;
                ttl <= 0 || renewals > 4
            })
            .await;
            kept += usize::from(last > 0);
        }
        // Two of its three members are enough for a RedLock.
        let enough = if what == What::Red {
            2
        } else {
            what.keys().len()
        };
        let who = &scene.sides[holder].who;
        assert!(kept >= enough, "{kept} of {who} were kept");
        for other in scene.others(holder) {
            assert!(!scene.sides[other].try_lock(Duration::ZERO).await);
        }
        assert!(scene.sides[holder].unlock().await);
        scene.is_free().await;
    }
}

/// A waiter for a fair lock that gives up leaves the queue.
pub(crate) async fn fair_waiter_that_gives_up_leaves_queue(cast: &[RedissonVersion]) {
    let mut scene = Scene::new(cast, What::Fair).await;
    for holder in 0..scene.sides.len() {
        for impatient in scene.others(holder) {
            scene.sides[holder].lock().await;
            let limit = Duration::from_secs(3);
            let gives_up = scene.waits(impatient, Some(limit)).await;
            let mut behind = Vec::new();
            let rest = scene.others(holder).into_iter();
            let rest: Vec<_> = rest.filter(|side| *side != impatient).collect();
            for side in &rest {
                behind.push((*side, scene.waits(*side, None).await));
            }
            assert!(!gives_up.granted().await, "it was held");
            eventually("it has left", async || scene.queue().await == rest.len()).await;
            assert!(scene.sides[holder].unlock().await);
            assert_eq!(scene.serve(behind).await, rest);
            scene.is_free().await;
        }
    }
}

/// A killed waiter for a fair lock is skipped. Redisson's entry is valid for its wait limit,
/// counted from the end of the lease. An entry of this library is valid for its waiter timeout.
pub(crate) async fn killed_fair_waiter_is_skipped_after_timeout(cast: &[RedissonVersion]) {
    let mut scene = Scene::with_watchdog(cast, What::Fair, Some(WATCHDOG)).await;
    let url = scene.site.url();
    let ours = cast.len();
    for version in cast {
        scene.sides[ours].lock().await;
        let redisson = Redisson::start(*version, &url);
        redisson.client("c", Some(WATCHDOG)).unwrap();
        let thread = redisson.thread("c", "t").kind(LockKind::Fair);
        let _dead = thread.start_try_lock_wait("x", Duration::from_secs(5), Some(WATCHDOG));
        eventually("it waits", async || scene.queue().await == 1).await;
        let behind = scene.all_but_ours_wait().await;
        let last = scene.ours_behind().await.unwrap();
        redisson.kill();
        assert!(scene.sides[ours].unlock().await);
        let order = scene
            .serve(behind.into_iter().chain([(ours, last)]).collect())
            .await;
        assert_eq!(order.last(), Some(&ours));
    }
    scene.sides[ours].lock().await;
    let mut dead = child::wait(LockKind::Fair, &url, "x", WATCHDOG);
    eventually("it waits", async || scene.queue().await == 1).await;
    let behind = scene.all_but_ours_wait().await;
    let last = scene.ours_behind().await.unwrap();
    dead.kill();
    assert!(scene.sides[ours].unlock().await);
    scene
        .serve(behind.into_iter().chain([(ours, last)]).collect())
        .await;
    scene.is_free().await;
}

/// The tokens of a fenced lock grow over the holds of all clients. A hold of 3.16.8 draws no token.
pub(crate) async fn tokens_grow_over_the_holds_of_all(cast: &[RedissonVersion]) {
    let site = Site::start();
    let clients: Vec<_> = cast
        .iter()
        .map(|version| (*version, JavaClient::new(*version, &site.url(), None)))
        .collect();
    let client = Client::connect(&site.url()).await.unwrap();
    let lock = client.fenced_lock("x");
    let mut last = 0;
    for _ in 0..3 {
        for (version, java) in &clients {
            let thread = java.thread("t").kind(What::Fenced.java(*version));
            if *version == RedissonVersion::V3_16_8 {
                thread.lock("x").unwrap();
            } else {
                let token = thread.lock_and_get_token("x").unwrap().value;
                assert_eq!(token, last + 1);
                last = token;
            }
            assert!(lock.try_acquire().await.unwrap().is_none());
            thread.unlock("x").unwrap();
        }
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
    assert_eq!(lock.last_token().await.unwrap(), Some(last));
}

/// The last reader of a read-write lock lets a writer in.
pub(crate) async fn last_shared_reader_lets_writer_in(cast: &[RedissonVersion]) {
    let site = Site::start();
    let clients: Vec<_> = cast
        .iter()
        .map(|version| JavaClient::new(*version, &site.url(), None))
        .collect();
    let client = Client::connect(&site.url()).await.unwrap();
    let lock = client
        .rw_lock("x")
        .poll_interval(HOUR)
        .prefer_writers(false);
    let readers: Vec<_> = clients
        .iter()
        .map(|java| java.thread("r").kind(LockKind::Read))
        .collect();
    for last in 0..=cast.len() {
        for reader in &readers {
            assert!(reader.try_lock("x").unwrap().value);
        }
        let ours = lock.try_read().await.unwrap().expect("readers share");
        let writers = clients
            .iter()
            .map(|java| java.thread("w").kind(LockKind::Write));
        let waiting: Vec<_> = writers
            .map(|writer| (writer.start_lock("x"), writer))
            .collect();
        asleep(&waiting.iter().map(|(_, writer)| writer).collect::<Vec<_>>()).await;
        let writing = lock.clone();
        let we_write = tokio::spawn(async move { writing.write().await.unwrap() });
        eventually("ours waits", async || client.activity().channels > 0).await;
        // All readers except `last` release the lock.
        let mut ours = Some(ours);
        for (at, reader) in readers.iter().enumerate().filter(|(at, _)| *at != last) {
            reader.unlock("x").unwrap();
            let done = waiting.iter().any(|(waiting, _)| waiting.is_done());
            assert!(!done && !we_write.is_finished(), "after {at} left");
        }
        if last < cast.len() {
            ours.take().unwrap().release().await.unwrap();
            assert!(!we_write.is_finished() && lock.try_write().await.unwrap().is_none());
            readers[last].unlock("x").unwrap();
        } else {
            ours.take().unwrap().release().await.unwrap();
        }
        // One writer follows the other, in any order. Redisson loses a "wake all" message that
        // arrives between a waiter's request and its sleep. Its waiter then sleeps for the lease
        // that its refusal reported.
        let at_the_latest = SOON + Duration::from_secs(30);
        let ours = tokio::spawn(async move { we_write.await.unwrap().release().await.unwrap() });
        let all = waiting.into_iter().map(|(waiting, writer)| {
            tokio::task::spawn_blocking(move || {
                waiting.wait(at_the_latest).expect("woken");
                writer.unlock("x").unwrap();
            })
        });
        for done in futures_util::future::join_all(all.chain([ours])).await {
            done.unwrap();
        }
    }
}

/// A downgrade by this library wakes the readers of all sides.
pub(crate) async fn our_downgrade_wakes_the_readers_of_all(cast: &[RedissonVersion]) {
    let site = Site::start();
    let clients: Vec<_> = cast
        .iter()
        .map(|version| JavaClient::new(*version, &site.url(), None))
        .collect();
    let client = Client::connect(&site.url()).await.unwrap();
    let writing = client.rw_lock("x").write().await.unwrap();
    let readers: Vec<_> = clients
        .iter()
        .map(|java| java.thread("r").kind(LockKind::Read))
        .collect();
    let mut waiting = Vec::new();
    for reader in &readers {
        let before = site.scripts();
        waiting.push(reader.start_lock("x"));
        let asked = async || site.scripts() >= before + 2;
        eventually("it waits", asked).await;
        asleep(&[reader]).await;
    }
    let reading = writing.downgrade().await.unwrap();
    for (waiting, reader) in waiting.iter().zip(&readers) {
        waiting.wait(SOON).expect("woken");
        reader.unlock("x").unwrap();
    }
    reading.release().await.unwrap();
}
