//! Servers whose wall clock is wrong, jumps, or runs too fast or too slow.

use std::time::Duration;

use leasehold_testkit::{ClockShim, RedisServer};

use super::scene::{LEASE, NAME, Scene, builder, steady};
use crate::support::{HOUR, eventually};

fn scene_with(clock: &ClockShim) -> Scene {
    Scene::with(RedisServer::builder().clock(clock).start().unwrap())
}

#[tokio::test]
async fn server_an_hour_ahead_serves_normally() {
    let clock = ClockShim::new().unwrap();
    clock.step_ahead(HOUR);
    let mut scene = scene_with(&clock);
    let ours = scene.client(builder()).await;
    let theirs = scene.beside(builder()).await;
    let hold = scene.hold(&steady(&ours), "ours").await;
    scene.waiter(theirs.lock(NAME).poll_interval(HOUR), "theirs");
    hold.is_renewed().await;
    hold.is_renewed().await;
    hold.release().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn holder_learns_of_loss_after_clock_jump() {
    let clock = ClockShim::new().unwrap();
    let scene = scene_with(&clock);
    scene
        .take_away("an hour ahead", |_| clock.step_ahead(HOUR))
        .await;
}

#[tokio::test]
async fn single_try_survives_server_clock_jump() {
    let clock = ClockShim::new().unwrap();
    let mut scene = scene_with(&clock);
    let ours = scene.client(builder()).await;
    clock.step_ahead(HOUR);
    // By the client's estimate of the server's time, each request arrives an hour too late.
    let guard = ours.lock(NAME).try_acquire().await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn hold_outlives_server_clock_stepping_back() {
    let clock = ClockShim::new().unwrap();
    let mut scene = scene_with(&clock);
    let ours = scene.client(builder()).await;
    let theirs = scene.beside(builder()).await;
    let hold = scene.hold(&steady(&ours), "ours").await;
    scene.waiter(theirs.lock(NAME).poll_interval(HOUR), "theirs");
    clock.step_back(HOUR);
    // The server's lease is an hour too long at first, and a normal lease after a renewal.
    eventually("the lease is right again", async || {
        let left = scene.server.command(&["PTTL", NAME]).unwrap();
        left.as_int().unwrap() < 60_000
    })
    .await;
    hold.is_renewed().await;
    assert_eq!(hold.loss(), None);
    hold.release().await.unwrap();
    scene.end().await;
}

/// Lets two tasks use the lock alternately: a holder that stops at its deadline, and a waiter that
/// tries to acquire the lock all the time. Returns the number of holds after which two holds have
/// overlapped, if that happens within `rounds` holds.
async fn overlap_within(scene: &mut Scene, rounds: usize, lease: Duration) -> Option<usize> {
    let ours = scene.client(builder()).await;
    let theirs = scene.beside(builder()).await;
    for round in 1..=rounds {
        let hold = scene
            .hold(&ours.lock(NAME).fixed_lease(lease), "ours")
            .await;
        let lock = theirs.lock(NAME).poll_interval(Duration::from_millis(5));
        scene.waiter(lock, "theirs");
        let (_, guard) = hold.until_lost().await;
        scene.all_served().await;
        // The guard is not dropped earlier, because its release would let the waiter in.
        drop(guard);
        if !scene.recorder.report().overlaps.is_empty() {
            return Some(round);
        }
    }
    None
}

#[tokio::test]
async fn clock_within_allowed_drift_causes_no_overlap() {
    let clock = ClockShim::running_fast(10_000).unwrap();
    let mut scene = scene_with(&clock);
    let overlap = overlap_within(&mut scene, 5, LEASE).await;
    assert_eq!(overlap, None);
    scene.end().await;
}

/// The promise does not cover a drift larger than the clients allow for. A test that could not show
/// an overlap with such a clock would prove nothing about a clock within the drift.
#[tokio::test]
async fn clock_beyond_allowed_drift_causes_overlap() {
    let clock = ClockShim::running_fast(80_000).unwrap();
    let mut scene = scene_with(&clock);
    let overlap = overlap_within(&mut scene, 20, LEASE * 2).await;
    assert!(overlap.is_some(), "nobody came in early");
}
