//! Requests and replies that are lost, late, duplicated or cut into two parts.

use std::time::Duration;

use leasehold::{Client, ErrorKind, LockGuard};
use leasehold_testkit::{Reply, Strike};
use tokio::task::JoinSet;

use super::scene::{
    ACQUIRE, NAME, RELEASE, RENEW, Scene, builder, given_back, replay, steady, struck,
};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn an_acquire_that_vanishes_is_asked_again() {
    for strike in [
        Strike::CutBefore,
        Strike::CutInRequest,
        Strike::CutAfter,
        Strike::CutInReply,
        Strike::LoseRequest,
        Strike::LoseReply,
    ] {
        let mut scene = Scene::new();
        let ours = scene.client(builder()).await;
        let fault = scene.proxy.strike_next(ACQUIRE, strike);
        let hold = scene.hold(&ours.lock(NAME), "ours").await;
        struck(&fault).await;
        assert!(hold.is_held(), "{strike:?}");
        hold.release().await.unwrap();
        scene.end().await;
    }
}

#[tokio::test]
async fn a_doubled_acquire_is_one_hold() {
    let mut scene = Scene::new();
    let ours = scene.client(builder()).await;
    let fault = scene.proxy.strike_next(ACQUIRE, Strike::Double);
    let hold = scene.hold(&ours.lock(NAME), "ours").await;
    struck(&fault).await;
    let count = scene.server.command(&["HVALS", NAME]).unwrap();
    assert_eq!(count, Reply::Array(vec![Reply::Text("1".into())]));
    hold.release().await.unwrap();
    assert!(scene.server.keys().is_empty(), "one release frees it");
    scene.end().await;
}

#[tokio::test]
async fn old_duplicate_requests_touch_no_later_hold() {
    let mut scene = Scene::new();
    let ours = scene.client(builder()).await;
    let theirs = scene.beside(builder()).await;
    let strike = |needle| scene.proxy.strike_next(needle, Strike::Double);
    let (acquire, renew, release) = (strike(ACQUIRE), strike(RENEW), strike(RELEASE));
    let hold = scene.hold(&steady(&ours), "ours").await;
    struck(&renew).await;
    hold.release().await.unwrap();
    let successor = scene.hold(&theirs.lock(NAME), "theirs").await;
    for fault in [&release, &renew] {
        struck(fault).await;
        let reply = replay(&scene.server, &fault.request());
        assert!(!reply.contains(":1\r\n"), "{reply}");
        let holder = scene.server.command(&["HKEYS", NAME]).unwrap();
        let expected = Reply::Text(successor.holder_id().to_owned());
        assert_eq!(holder, Reply::Array(vec![expected]));
    }
    let left = scene.server.command(&["PTTL", NAME]).unwrap();
    assert!(left.as_int().unwrap() > 10_000, "cut short: {left:?}");
    // The server could grant the acquire for as long as its client waited for the reply.
    eventually("it comes too late", async || {
        replay(&scene.server, &acquire.request()).contains("late")
    })
    .await;
    successor.release().await.unwrap();
    assert!(replay(&scene.server, &acquire.request()).contains("late"));
    assert!(scene.server.keys().is_empty(), "a lock for nobody");
    scene.end().await;
}

#[tokio::test]
async fn a_release_whose_reply_vanishes_happens_once() {
    for strike in [
        Strike::CutAfter,
        Strike::CutInReply,
        Strike::CutBefore,
        Strike::LoseReply,
        Strike::LoseRequest,
    ] {
        let (mut scene, ours, theirs) = Scene::of_two().await;
        let hold = scene.hold(&ours.lock(NAME), "ours").await;
        scene.waiter(theirs.lock(NAME), "theirs");
        let fault = scene.proxy.strike_next(RELEASE, strike);
        // A request that may have run was not answered, so the client can't know whether it held
        // the lock until then. The reported result must be true, and the lock must become free.
        let released = hold.release().await;
        struck(&fault).await;
        match released {
            Ok(()) => assert!(
                matches!(strike, Strike::CutBefore | Strike::LoseRequest),
                "{strike:?}"
            ),
            Err(error) => {
                assert_eq!(
                    error.kind(),
                    ErrorKind::OutcomeUnknown,
                    "{strike:?}: {error}"
                );
                assert!(!matches!(strike, Strike::CutBefore), "{strike:?}: {error}");
            }
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn hold_survives_loss_of_every_second_renewal() {
    for strike in [Strike::CutAfter, Strike::LoseReply] {
        let mut scene = Scene::new();
        let ours = scene.client(builder()).await;
        let theirs = scene.beside(builder()).await;
        let hold = scene.hold(&steady(&ours), "ours").await;
        scene.waiter(theirs.lock(NAME), "theirs");
        for _ in 0..3 {
            hold.is_renewed().await;
            let fault = scene.proxy.strike_next(RENEW, strike);
            struck(&fault).await;
            assert_eq!(hold.loss(), None, "{strike:?}");
        }
        hold.is_renewed().await;
        hold.release().await.unwrap();
        scene.end().await;
    }
}

#[tokio::test]
async fn an_acquire_that_comes_too_late_grants_nothing() {
    let mut scene = Scene::new();
    let ours = scene.client(builder()).await;
    let fault = scene.proxy.strike_next(ACQUIRE, Strike::HoldRequest);
    let error = ours.lock(NAME).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    struck(&fault).await;
    let before = scene.server.calls("hdel");
    scene.proxy.let_go(&fault);
    // Once the undo has arrived, the request has arrived too, because the undo follows it.
    eventually("it has come", async || scene.server.calls("hdel") > before).await;
    assert_eq!(scene.server.calls("hset"), 0, "a lock for nobody");
    scene.end().await;
}

#[tokio::test]
async fn stuck_request_is_resent_on_new_connection() {
    let mut scene = Scene::new();
    let ours = scene.client(builder()).await;
    let fault = scene.proxy.strike_next(ACQUIRE, Strike::HoldRequest);
    let hold = scene.hold(&ours.lock(NAME), "ours").await;
    assert!(fault.fired());
    hold.release().await.unwrap();
    assert_eq!(scene.server.calls("hset"), 1);
    let before = scene.server.calls("hdel");
    // Now the stuck request arrives, and then its undo.
    scene.proxy.let_go(&fault);
    eventually("it has come", async || scene.server.calls("hdel") > before).await;
    assert_eq!(scene.server.calls("hset"), 1, "a lock for nobody");
    scene.end().await;
}

/// The number of names in a batch.
const NAMES: usize = 120;

/// Tries to acquire all names at once, so that the requests share calls. Returns the outcome for
/// each name.
async fn ask_for_all(ours: &Client) -> Vec<(String, leasehold::Result<LockGuard>)> {
    let mut asking = JoinSet::new();
    for number in 0..NAMES {
        let lock = ours.lock(format!("name {number}"));
        asking.spawn(async move {
            let guard = lock.try_acquire().await;
            let guard = guard.map(|guard| guard.expect("nobody else asks"));
            (lock.name().to_owned(), guard)
        });
    }
    asking.join_all().await
}

/// Returns the guard if the client believes that it holds `name`. Asserts that the server agrees.
fn believed(scene: &Scene, name: &str, outcome: leasehold::Result<LockGuard>) -> Option<LockGuard> {
    match outcome {
        Ok(guard) => {
            let there = scene.server.command(&["HGET", name, guard.holder_id()]);
            assert_eq!(there.unwrap(), Reply::Text("1".into()), "{name}");
            Some(guard)
        }
        Err(error) => {
            let kinds = [ErrorKind::OutcomeUnknown, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{name}: {error}");
            None
        }
    }
}

#[tokio::test]
async fn cut_batch_leaves_no_false_hold() {
    for (spare, strike) in [
        (1, Strike::CutBefore),
        (1, Strike::CutInRequest),
        (1, Strike::CutAfter),
        (1, Strike::CutInReply),
        (0, Strike::CutBehindReply),
        (1, Strike::LoseRequest),
        (1, Strike::LoseReply),
        (1, Strike::Double),
    ] {
        let mut scene = Scene::new();
        let ours = scene.client(builder()).await;
        // The first request is sent alone, and the others are collected for the next call.
        let fault = scene.proxy.strike_after(spare, ACQUIRE, strike);
        let outcomes = ask_for_all(&ours).await;
        struck(&fault).await;
        let words = String::from_utf8_lossy(&fault.request()).into_owned();
        let asked = words.matches("lock.acquire").count();
        assert!(spare == 0 || asked > 1, "{strike:?} hit {asked}");
        let mut held = Vec::new();
        for (name, outcome) in outcomes {
            held.extend(believed(&scene, &name, outcome));
        }
        let failed = NAMES - held.len();
        // If the fault follows the reply, or doubles a request, no acquire fails.
        let hurts = !matches!(strike, Strike::CutBehindReply | Strike::Double);
        assert!(!hurts || failed > 0, "{strike:?}: nobody noticed");
        assert!(strike != Strike::Double || failed == 0, "{failed} failed");
        // All other names become free long before the leases end.
        let mut names: Vec<_> = held.iter().map(|guard| guard.name().to_owned()).collect();
        names.sort();
        eventually("the rest is undone", async || scene.server.keys() == names).await;
        for guard in held {
            given_back(guard.release().await);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn waiters_of_cut_batch_are_served() {
    for strike in [Strike::CutInRequest, Strike::CutAfter, Strike::LoseReply] {
        let mut scene = Scene::new();
        let ours = scene.client(builder()).await;
        let fault = scene.proxy.strike_after(1, ACQUIRE, strike);
        for number in 0..NAMES {
            let lock = ours.lock(format!("name {number}")).poll_interval(HOUR);
            scene.waiter(lock, "ours");
        }
        scene.all_served().await;
        struck(&fault).await;
        scene.end().await;
    }
}

#[tokio::test]
async fn releases_whose_batch_was_cut_all_happen() {
    for strike in [Strike::CutInRequest, Strike::CutAfter, Strike::CutInReply] {
        let mut scene = Scene::new();
        let ours = scene.client(builder()).await;
        let guards: Vec<_> = ask_for_all(&ours)
            .await
            .into_iter()
            .map(|(_, guard)| guard.unwrap())
            .collect();
        let fault = scene.proxy.strike_after(1, RELEASE, strike);
        let mut releasing = JoinSet::new();
        for guard in guards {
            releasing.spawn(guard.release());
        }
        for released in releasing.join_all().await {
            given_back(released);
        }
        struck(&fault).await;
        assert!(scene.server.keys().is_empty());
        scene.end().await;
    }
}

#[tokio::test]
async fn client_hearing_no_replies_recovers() {
    let mut scene = Scene::new();
    let ours = scene.client(builder()).await;
    // Only one direction is blocked: the requests arrive, but the replies wait.
    scene.proxy.hold_replies(true);
    let wait = Duration::from_millis(1000);
    let error = ours.lock(NAME).try_acquire_for(wait).await.unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::OutcomeUnknown | ErrorKind::Unavailable
        ),
        "{error}"
    );
    assert!(scene.server.calls("hset") > 0, "the server has granted");
    scene.proxy.hold_replies(false);
    scene.end().await;
}
