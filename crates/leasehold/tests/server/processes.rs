//! Holders that are killed, stopped and continued, or blocked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::testing::history::{Interval, Recorder, check, monotonic_ns};
use leasehold::{ErrorKind, LossReason};
use leasehold_testkit::{RedisServer, Strike};

use super::child;
use super::scene::{ACQUIRE, LEASE, NAME, Scene, builder, struck};
use crate::support::child::Child;
use crate::support::{HOUR, eventually};

/// Waits until a child has printed `word`, and lets the runtime run while it waits.
async fn said(child: &Child, word: &str) -> String {
    eventually(word, async || child.said(word).is_some()).await;
    child.said(word).unwrap()
}

/// Checks that the child's hold, up to a point in time, and the parent's hold do not overlap.
fn judge(child: (u64, u64), parent: (u64, u64, u64)) {
    let (asked, from, until) = parent;
    check(&[
        Interval::new(NAME, "child", child.0, child.0, child.1),
        Interval::new(NAME, "parent", asked, from, until),
    ])
    .judge()
    .unwrap();
}

#[tokio::test]
async fn killed_holders_lock_is_free_after_lease() {
    let mut scene = Scene::new();
    let theirs = scene.beside(builder()).await;
    let mut holder = child::hold(&scene.server.url(), LEASE * 3);
    let held: u64 = said(&holder, "held").await.parse().unwrap();
    let expiries = scene.server.calls("pexpire");
    eventually("a renewal", async || {
        scene.server.calls("pexpire") > expiries
    })
    .await;
    let asked = monotonic_ns();
    let lock = theirs.lock(NAME).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { (lock.acquire().await.unwrap(), monotonic_ns()) });
    eventually("it waits", async || theirs.activity().channels == 1).await;
    let killed = monotonic_ns();
    holder.kill();
    let seen = monotonic_ns();
    let left = scene.server.command(&["PTTL", NAME]).unwrap();
    let left_ms = u64::try_from(left.as_int().unwrap()).expect("it is still held");
    let (guard, from) = waiter.await.unwrap();
    // The server counts whole milliseconds.
    assert!(
        from + 2_000_000 > seen + left_ms * 1_000_000,
        "before the lease was over"
    );
    judge((held, killed), (asked, from, monotonic_ns()));
    guard.release().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn a_killed_waiter_leaves_nothing() {
    let mut scene = Scene::new();
    let ours = scene.beside(builder()).await;
    let hold = scene.hold(&ours.lock(NAME), "ours").await;
    let mut waiter = child::hold(&scene.server.url(), HOUR);
    eventually("it listens", async || !scene.server.channels().is_empty()).await;
    waiter.kill();
    hold.release().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn resumed_holder_stops_using_expired_lock() {
    let mut scene = Scene::new();
    let theirs = scene.beside(builder()).await;
    let holder = child::hold(&scene.server.url(), LEASE * 3);
    let held: u64 = said(&holder, "held").await.parse().unwrap();
    let asked = monotonic_ns();
    let lock = theirs.lock(NAME).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { (lock.acquire().await.unwrap(), monotonic_ns()) });
    eventually("it waits", async || theirs.activity().channels == 1).await;
    // The history needs a use after the waiter's request.
    let uses = holder.count("uses");
    eventually("a use", async || holder.count("uses") > uses).await;
    holder.pause();
    let stopped = monotonic_ns();
    let (guard, from) = waiter.await.unwrap();
    holder.resume();
    let told = said(&holder, "told").await;
    let used: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!(used <= stopped, "it used the lock after it had gone on");
    assert!(
        told.contains("Expired") || told.contains("RenewalFailed"),
        "{told}"
    );
    assert_eq!(said(&holder, "released").await, "Err(Lost)");
    judge((held, used), (asked, from, monotonic_ns()));
    guard
        .release()
        .await
        .expect("nobody took it from the successor");
    holder.finished();
    scene.end().await;
}

#[tokio::test]
async fn reply_read_after_its_lease_grants_nothing() {
    let mut scene = Scene::new();
    let theirs = scene.beside(builder()).await;
    let fault = scene.proxy.strike_next(ACQUIRE, Strike::HoldReply);
    let asker = child::ask(&scene.proxy.url(), LEASE);
    struck(&fault).await;
    let granted = scene.server.keys();
    assert_eq!(granted, [NAME]);
    asker.pause();
    // The reply arrives in the child's socket.
    scene.proxy.let_go(&fault);
    let successor = scene.hold(&theirs.lock(NAME), "theirs").await;
    asker.resume();
    let outcome = said(&asker, "outcome").await;
    assert!(outcome.starts_with("OutcomeUnknown"), "{outcome}");
    said(&asker, "closed").await;
    asker.finished();
    successor
        .release()
        .await
        .expect("its undo took nothing from the successor");
    scene.end().await;
}

#[test]
fn blocked_holder_learns_of_loss_before_working() {
    let server = RedisServer::start().unwrap();
    let recorder = Recorder::new();
    let (held, is_held) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel();
    let (url, history) = (server.url(), recorder.clone());
    let holder = std::thread::spawn(move || {
        one_thread().block_on(async {
            let client = builder().lease(LEASE).connect(&url).await.unwrap();
            let asked = history.ask(NAME, "blocked");
            let guard = client.lock(NAME).acquire().await.unwrap();
            let inside = asked.acquired(&guard);
            held.send(()).unwrap();
            // This runtime does not run any task until another client has the lock.
            blocked.recv().unwrap();
            assert!(!guard.is_held());
            let worked = AtomicBool::new(false);
            let work = guard.protect(async { worked.store(true, Ordering::SeqCst) });
            assert_eq!(work.await.unwrap_err().kind(), ErrorKind::Lost);
            assert!(!worked.load(Ordering::SeqCst), "it worked on");
            inside.releasing(&guard);
            assert_eq!(guard.loss(), Some(LossReason::Expired));
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
            client.close().await;
        });
    });
    is_held.recv().unwrap();
    one_thread().block_on(async {
        let client = builder().connect(&server.url()).await.unwrap();
        let asked = recorder.ask(NAME, "successor");
        let guard = client.lock(NAME).acquire().await.unwrap();
        let inside = asked.acquired(&guard);
        unblock.send(()).unwrap();
        let done = tokio::task::spawn_blocking(|| holder.join());
        done.await.unwrap().expect("the holder's checks hold");
        inside.releasing(&guard);
        guard.release().await.unwrap();
    });
    recorder.report().judge().unwrap();
    assert!(server.keys().is_empty());
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Two processes can only agree about the time on a clock that they share. All of these tests rely
/// on it.
#[test]
fn children_and_parents_tell_the_same_time() {
    let before = monotonic_ns();
    let server = RedisServer::start().unwrap();
    let mut holder = child::hold(&server.url(), Duration::from_secs(3));
    let held: u64 = holder.wait_for("held").parse().unwrap();
    assert!((before..monotonic_ns()).contains(&held));
    holder.kill();
}

#[tokio::test]
async fn process_without_file_descriptors_recovers() {
    let server = RedisServer::start().unwrap();
    let child = child::run_out_of_files(&server.url());
    said(&child, "taken").await;
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    eventually("it can't connect", async || {
        // The next connection may be opened before anything else takes its descriptor.
        server.command(&kill).unwrap();
        child.said("refused").is_some()
    })
    .await;
    let refused = said(&child, "refused").await;
    assert!(refused.starts_with("Unavailable "), "{refused}");
    said(&child, "over").await;
    child.finished();
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}
