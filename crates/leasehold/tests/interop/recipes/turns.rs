//! Turns: Java's lock keeps a turn from beginning, and a turn keeps Java out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::slot::{Begin, Turn, TurnState, Turns};
use leasehold::testing::history::{Interval, check, monotonic_ns};
use leasehold::{Client, ErrorKind, LossReason};
use leasehold_testkit::redisson::LockKind;
use tokio::task::JoinSet;

use super::{Place, is_refused};
use crate::sides::SOON;
use crate::support::HOUR;

/// A slot that lasts longer than a test, and whose boundary is far away.
const SLOT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the turns of both plans, each with the name of its lock. Only a message or the end of a
/// lease wakes their waits.
fn plans(client: &Client) -> [(&'static str, Turns); 2] {
    let lock = |name| client.lock(name).poll_interval(HOUR);
    [
        ("slots", lock("slots").once_per(SLOT).by("us")),
        ("ids", lock("ids").once_for("monday").by("us")),
    ]
}

#[track_caller]
fn run(begin: Begin) -> Turn {
    match begin {
        Begin::Run(turn) => turn,
        other => panic!("{other:?}"),
    }
}

/// Returns how the turn has ended.
#[track_caller]
fn ended(begin: Begin) -> TurnState {
    match begin {
        Begin::Done(info) => {
            assert_eq!(info.by, "us");
            info.state
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_does_not_begin_while_java_has_the_lock() {
    let place = &Place::new().await;
    for (name, turns) in plans(&place.rust) {
        for kind in [LockKind::Plain, LockKind::Spin] {
            place.java.kind(kind).lock(name).unwrap();
            let java = place.holder(name).await;
            let asked = turns.try_begin().await.unwrap();
            let waited = turns.begin_for(Duration::from_millis(300)).await.unwrap();
            for begin in [asked, waited] {
                let Begin::Elsewhere(info) = begin else {
                    panic!("{name}, {kind:?}: {begin:?}");
                };
                // Java's hold is no turn.
                assert_eq!((info.state, info.began), (TurnState::Running, None));
                assert_eq!((&info.by, &info.hold), (&java, &java));
            }
            // The slots may not be changed and repeated beside Java either.
            let again = turns.clone().again(true).try_begin().await.unwrap();
            assert!(matches!(again, Begin::Elsewhere(_)), "{again:?}");
            assert!(place.java.is_held_by_current_thread(name).unwrap().value);
            place.java.kind(kind).unlock(name).unwrap();
        }
        assert!(place.rust.lock(name).last_turn().await.unwrap().is_none());
        run(turns.try_begin().await.unwrap()).done().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_that_waits_begins_when_java_unlocks() {
    let place = &Place::new().await;
    for (name, turns) in plans(&place.rust) {
        place.java.lock(name).unwrap();
        let waiting = turns.clone();
        let waiting = tokio::spawn(async move { waiting.begin().await.unwrap() });
        place.is_listened_to(name).await;
        assert!(!waiting.is_finished());
        place.java.unlock(name).unwrap();
        let begun = tokio::time::timeout(SOON, waiting).await.expect("woken");
        let turn = run(begun.unwrap());
        is_refused(&place.java, name, "it runs");
        turn.done().await.unwrap();
        // The turn is over, whether or not Java has the lock.
        assert_eq!(ended(turns.begin().await.unwrap()), TurnState::Done);
        place.java.lock(name).unwrap();
        assert_eq!(ended(turns.begin().await.unwrap()), TurnState::Done);
        place.java.unlock(name).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_gets_in_when_a_turn_ends() {
    let place = &Place::new().await;
    for end in ["done", "failed", "declined", "dropped"] {
        let turns = place.rust.lock(end).once_per(SLOT).by("us");
        let turn = run(turns.try_begin().await.unwrap());
        is_refused(&place.java, end, "it runs");
        assert!(!place.java.is_held_by_current_thread(end).unwrap().value);
        let waiting = place.other_java.start_lock(end);
        place.is_listened_to(end).await;
        assert!(!waiting.is_done());
        match end {
            "done" => turn.done().await.unwrap(),
            "failed" => turn.failed().await.unwrap(),
            "declined" => turn.decline().await.unwrap(),
            _ => drop(turn),
        }
        waiting.wait(SOON).expect("woken");
        place.other_java.unlock(end).unwrap();
        assert!(place.java.try_lock(end).unwrap().value);
        place.java.unlock(end).unwrap();
        match (end, turns.try_begin().await.unwrap()) {
            ("declined", begin) => run(begin).done().await.unwrap(),
            ("done", begin) => assert_eq!(ended(begin), TurnState::Done),
            (_, begin) => assert_eq!(ended(begin), TurnState::Failed),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_that_java_ends_by_force_has_failed() {
    let place = &Place::new().await;
    for (name, turns) in plans(&place.rust) {
        let turn = run(turns.try_begin().await.unwrap());
        let waiting = place.other_java.start_lock(name);
        place.is_listened_to(name).await;
        assert!(place.java.force_unlock(name).unwrap().value);
        waiting.wait(SOON).expect("woken");
        let error = turn.done().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        let java = place.holder(name).await;
        assert_eq!(error.loss(), Some(&LossReason::Taken { by: java }));
        let held = place.other_java.is_held_by_current_thread(name);
        assert!(held.unwrap().value, "the end of the turn took it away");
        assert_eq!(ended(turns.try_begin().await.unwrap()), TurnState::Failed);
        place.other_java.unlock(name).unwrap();
        assert_eq!(ended(turns.try_begin().await.unwrap()), TurnState::Failed);
        let retried = turns.clone().retry_failed(true);
        run(retried.begin().await.unwrap()).done().await.unwrap();
    }
}

/// Each id runs once, although threads of Java take the lock between the requests.
#[tokio::test(flavor = "multi_thread")]
async fn id_runs_once_beside_threads_of_java() {
    const IDS: usize = 15;
    let place = &Place::new().await;
    let (ours, theirs) = (place.rust.clone(), place.another_rust().await);
    let runs: &[AtomicUsize; IDS] = Box::leak(Box::default());
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let client = if task % 2 == 0 { &ours } else { &theirs };
        let lock = client.lock("x");
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for (id, runs) in runs.iter().enumerate() {
                let asked = monotonic_ns();
                if let Begin::Run(turn) = lock.once_for(id.to_string()).begin().await.unwrap() {
                    let from = monotonic_ns();
                    runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    holds.push(Interval::new("x", "rust", asked, from, monotonic_ns()));
                    turn.done().await.unwrap();
                }
            }
            holds
        });
    }
    for (kind, java) in [
        (LockKind::Plain, &place.java),
        (LockKind::Spin, &place.other_java),
    ] {
        let java = java.kind(kind);
        tasks.spawn_blocking(move || {
            let mut holds = Vec::new();
            for _ in 0..IDS {
                let asked = monotonic_ns();
                assert!(java.try_lock_wait("x", SOON, None).unwrap().value);
                let from = monotonic_ns();
                std::thread::sleep(Duration::from_millis(2));
                holds.push(Interval::new("x", "java", asked, from, monotonic_ns()));
                java.unlock("x").unwrap();
            }
            holds
        });
    }
    let holds = tasks.join_all().await.concat();
    for (id, runs) in runs.iter().enumerate() {
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{id}");
    }
    assert_eq!(holds.len(), IDS * 3);
    check(&holds).judge().unwrap();
}
