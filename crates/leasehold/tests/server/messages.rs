//! Wake-ups that are late, lost or never confirmed. Waiters do not depend on polls, except in tests
//! of polls.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{RedisServer, Strike};

use super::scene::{NAME, SUBSCRIBE, Scene, struck};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn release_during_subscribe_wakes_waiter() {
    // The server receives the subscription after the release, or just before it.
    for strike in [Strike::HoldRequest, Strike::HoldReply] {
        let (mut scene, ours, theirs) = Scene::of_two().await;
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
        let (mut scene, ours, theirs) = Scene::of_two().await;
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
    let (mut scene, ours, theirs) = Scene::of_two().await;
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    let fault = scene.proxy.strike_next(SUBSCRIBE, Strike::CutBehindReply);
    scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
    struck(&fault).await;
    // The message is lost, or the next connection receives it.
    hold.release().await.unwrap();
    scene.all_served().await;
    scene.end().await;
}

#[tokio::test]
async fn waiters_poll_when_messages_are_lost() {
    let (mut scene, ours, theirs) = Scene::of_two().await;
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
    let (mut scene, ours, theirs) = Scene::of_two().await;
    let hold = scene.hold(&theirs.lock(NAME), "theirs").await;
    scene.waiter(ours.lock(NAME).poll_interval(HOUR), "ours");
    for _ in 0..3 {
        eventually("it listens", async || !scene.server.channels().is_empty()).await;
        assert_eq!(scene.proxy.cut_messages(), 1);
    }
    // The message does not reach any client.
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
    let (mut scene, ours, theirs) = Scene::of_two().await;
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

/// The release skips the killed clients, even if they fill the list.
#[tokio::test]
async fn release_calls_no_client_that_is_gone() {
    const ASKING: &str = "leasehold:{x}:asking";
    for gone in [30, 1000] {
        let server = RedisServer::start().unwrap();
        let url = server.url();
        let connect = async || Client::connect(&url).await.unwrap();
        let waits =
            |client: Client| tokio::spawn(async move { client.lock("x").acquire().await.unwrap() });
        let first = connect().await.lock("x").acquire().await.unwrap();
        let second = waits(connect().await);
        let length = || server.command(&["LLEN", ASKING]).unwrap().as_int().unwrap();
        eventually("it waits", async || length() == 1).await;
        first.release().await.unwrap();
        let second = second.await.unwrap();

        let dead = (0..gone).map(|number| format!("{}:1", 100_000_000_000_000_u64 + number));
        let dead: Vec<_> = dead.collect();
        let items = dead.iter().map(String::as_str);
        let push: Vec<_> = ["RPUSH", ASKING].into_iter().chain(items).collect();
        server.command(&push).unwrap();
        let listened = server.channels();
        let mut last = Vec::new();
        for more in 1..=2 {
            let waiter = waits(connect().await);
            // There is no particular order in which clients outside the list acquire the lock.
            last.push(async move { waiter.await.unwrap().release().await.unwrap() });
            eventually("it waits", async || {
                let channels = server.channels().into_iter();
                let own = channels.filter(|channel| !listened.contains(channel));
                own.count() == more && (gone == 1000 || length() == (gone as usize + more) as i64)
            })
            .await;
        }
        assert!(length() <= 1000);
        let start = Instant::now();
        second.release().await.unwrap();
        futures_util::future::join_all(last).await;
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "{:?}",
            start.elapsed()
        );
        eventually("nobody waits", async || length() == 0).await;
    }
}
