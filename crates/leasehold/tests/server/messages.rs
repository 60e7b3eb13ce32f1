//! Wake-ups that are late, lost or never confirmed. No waiter depends on a poll, except where the
//! test is about polls.

use std::time::Duration;

use leasehold_testkit::Strike;

use super::scene::{NAME, SUBSCRIBE, Scene, builder, struck};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn release_during_subscribe_wakes_waiter() {
    // The server receives the subscription after the release, or just before it.
    for strike in [Strike::HoldRequest, Strike::HoldReply] {
        let mut scene = Scene::new();
        let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
        let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
        let fault = scene.proxy.strike_next(SUBSCRIBE, strike);
        scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
        struck(&fault).await;
        hold.release().await.unwrap();
        scene.proxy.let_go(&fault);
        scene.all_served().await;
        scene.end().await;
    }
}

#[tokio::test]
async fn unconfirmed_subscription_is_made_again() {
    for strike in [
        Strike::CutBefore,
        Strike::CutInRequest,
        Strike::CutAfter,
        Strike::CutInReply,
        Strike::LoseRequest,
        Strike::LoseReply,
    ] {
        let mut scene = Scene::new();
        let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
        let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
        let fault = scene.proxy.strike_next(SUBSCRIBE, strike);
        scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
        struck(&fault).await;
        hold.release().await.unwrap();
        scene.all_served().await;
        scene.end().await;
    }
}

#[tokio::test]
async fn cut_after_subscribe_reply_loses_no_wakeup() {
    let mut scene = Scene::new();
    let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    let fault = scene.proxy.strike_next(SUBSCRIBE, Strike::CutBehindReply);
    scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
    struck(&fault).await;
    // The message reaches no connection, or the next one.
    hold.release().await.unwrap();
    scene.all_served().await;
    scene.end().await;
}

#[tokio::test]
async fn waiters_poll_when_messages_are_lost() {
    let mut scene = Scene::new();
    let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
    scene.proxy.swallow_messages(true);
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    for _ in 0..3 {
        let lock = ours.lock(NAME).poll_interval(Duration::from_millis(100));
        scene.waiter(lock, "ours");
    }
    eventually("they listen", async || !scene.server.channels().is_empty()).await;
    hold.release().await.unwrap();
    scene.all_served().await;
    eventually("a message was swallowed", async || {
        scene.proxy.swallowed() > 0
    })
    .await;
    scene.proxy.swallow_messages(false);
    scene.end().await;
}

#[tokio::test]
async fn waiter_survives_cut_message_connections() {
    let mut scene = Scene::new();
    let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
    for _ in 0..3 {
        eventually("it listens", async || !scene.server.channels().is_empty()).await;
        assert_eq!(scene.proxy.cut_messages(), 1);
    }
    // The message reaches no client.
    scene.proxy.refuse(true);
    eventually("it listens again", async || {
        scene.proxy.cut_messages();
        scene.server.channels().is_empty()
    })
    .await;
    hold.release().await.unwrap();
    scene.proxy.refuse(false);
    scene.all_served().await;
    scene.end().await;
}

#[tokio::test]
async fn waiter_survives_cut_call_connection() {
    let mut scene = Scene::new();
    let (ours, theirs) = (scene.client(builder()).await, scene.beside(builder()).await);
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
    eventually("it listens", async || !scene.server.channels().is_empty()).await;
    scene.proxy.refuse(true);
    assert_eq!(scene.proxy.cut_calls(), 1);
    // The message arrives, but the request that it causes can't be sent.
    hold.release().await.unwrap();
    let refused = scene.proxy.connections();
    eventually("a call was refused", async || {
        scene.proxy.connections() > refused + 1
    })
    .await;
    scene.proxy.refuse(false);
    scene.all_served().await;
    scene.end().await;
}
