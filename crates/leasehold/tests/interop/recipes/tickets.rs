//! Tickets: a hold that passes from one of our processes to another keeps Java out all the time.

use std::time::Duration;

use leasehold::ticket::Ticket;
use leasehold::{AnyLock, Client, ErrorKind, LossReason};
use leasehold_testkit::redisson::LockKind;

use super::{Place, is_refused, threads};
use crate::sides::SOON;
use crate::support::eventually;
use crate::what::What;

const MINUTE: Duration = Duration::from_secs(60);
/// A lease that ends during a test, unless it is renewed.
const SHORT: Duration = Duration::from_millis(1200);
const KINDS: [What; 4] = [What::Plain, What::Fenced, What::Fair, What::Write];

async fn ticket(client: &Client, what: What) -> Ticket {
    let lock: AnyLock = what.ours(client);
    let guard = lock.try_acquire().await.unwrap().expect("it is free");
    guard.into_ticket(MINUTE).await.unwrap()
}

/// Starts a thread of Java that waits for the lock, and returns when a message can wake it.
macro_rules! waits {
    ($java:expr) => {{
        let waiting = $java.start_lock("x");
        eventually("it sleeps", async || $java.sleeps()).await;
        assert!(!waiting.is_done());
        waiting
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_ticket_keeps_java_out_until_its_release() {
    let place = &Place::new().await;
    let builder = Client::builder().lease(SHORT);
    let theirs = builder.connect(&place.server.url()).await.unwrap();
    for what in KINDS {
        let [java, other_java] = threads(place, what);
        let case = format!("{what:?}");
        let ticket = ticket(&place.rust, what).await;
        is_refused(&java, "x", &case);
        let ttl = java.ttl("x").unwrap().value;
        assert!((50_000..=60_000).contains(&ttl), "{case}: {ttl}");
        let waiting = waits!(other_java);
        let guard = theirs.resume(&ticket).await.unwrap();
        is_refused(&java, "x", &case);
        // The hold is renewed, and lasts longer than the lease of its new client.
        let first = guard.valid_until();
        eventually("it is renewed three times", async || {
            guard.valid_until() > first + 3 * SHORT / 2
        })
        .await;
        assert!(guard.is_held() && !waiting.is_done(), "{case}");
        is_refused(&java, "x", &case);
        guard.release().await.unwrap();
        waiting.wait(SOON).expect("woken");
        other_java.unlock("x").unwrap();
        assert!(java.try_lock("x").unwrap().value, "{case}");
        java.unlock("x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn released_ticket_lets_java_in() {
    let place = &Place::new().await;
    let theirs = place.another_rust().await;
    for what in KINDS {
        let [_, java] = threads(place, what);
        let ticket = ticket(&place.rust, what).await;
        let waiting = waits!(java);
        theirs.release_ticket(&ticket).await.unwrap();
        waiting.wait(SOON).expect("woken");
        // The ticket is used up, and takes nothing from Java.
        for error in [
            theirs.release_ticket(&ticket).await.unwrap_err(),
            theirs.resume(&ticket).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        assert!(
            java.is_held_by_current_thread("x").unwrap().value,
            "{what:?}"
        );
        java.unlock("x").unwrap();
    }
}

/// Java leaves no note of a forced unlock, so the reason is the one of an ended lease, or names the
/// hold that has the lock now.
#[tokio::test(flavor = "multi_thread")]
async fn ticket_that_java_ends_by_force_is_refused() {
    let place = &Place::new().await;
    let theirs = place.another_rust().await;
    for what in KINDS {
        let [java, other_java] = threads(place, what);
        for javas_turn in [false, true] {
            let case = format!("{what:?}, Java has it: {javas_turn}");
            let ticket = ticket(&place.rust, what).await;
            assert!(java.force_unlock("x").unwrap().value, "{case}");
            if javas_turn {
                other_java.lock("x").unwrap();
            }
            for error in [
                theirs.resume(&ticket).await.map(drop).unwrap_err(),
                theirs.release_ticket(&ticket).await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
                match error.loss().expect("a reason") {
                    LossReason::Expired => assert!(!javas_turn, "{case}"),
                    LossReason::Taken { by } => {
                        let thread = other_java.thread_id().unwrap().value;
                        assert!(
                            javas_turn && by.contains(&format!(":{thread}")),
                            "{case}: {by}"
                        );
                    }
                    other => panic!("{case}: {other}"),
                }
            }
            if javas_turn {
                assert!(
                    other_java.is_held_by_current_thread("x").unwrap().value,
                    "{case}"
                );
                other_java.unlock("x").unwrap();
            }
            assert!(!java.is_locked("x").unwrap().value, "{case}");
        }
    }
}

/// A thread of Java that asks all the time never finds the lock free between two holds.
#[tokio::test(flavor = "multi_thread")]
async fn hold_that_passes_on_is_never_free_for_java() {
    const HOPS: usize = 40;
    let place = &Place::new().await;
    let clients = [&place.rust, &place.another_rust().await];
    let spin = place.java.kind(LockKind::Spin);
    let waiting_java = &place.other_java;
    let guard = place.rust.lock("x").acquire().await.unwrap();
    let (spinning, waiting) = (spin.start_lock("x"), waits!(waiting_java));
    let mut ticket = guard.into_ticket(MINUTE).await.unwrap();
    for hop in 0..HOPS {
        let guard = clients[hop % 2].resume(&ticket).await.unwrap();
        ticket = guard.into_ticket(MINUTE).await.unwrap();
        assert!(
            !spinning.is_done() && !waiting.is_done(),
            "after {hop} hops"
        );
    }
    clients[0].release_ticket(&ticket).await.unwrap();
    // Each gets it once, in any order.
    eventually("one gets it", async || {
        spinning.is_done() || waiting.is_done()
    })
    .await;
    if spinning.is_done() {
        spin.unlock("x").unwrap();
        waiting.wait(MINUTE).expect("served");
        waiting_java.unlock("x").unwrap();
    } else {
        waiting_java.unlock("x").unwrap();
        spinning.wait(SOON).expect("served");
        spin.unlock("x").unwrap();
    }
}

/// The line of a fair lock stays as it is while the hold passes on.
#[tokio::test(flavor = "multi_thread")]
async fn line_of_a_fair_lock_waits_for_the_last_process_of_a_ticket() {
    let place = &Place::new().await;
    let theirs = place.another_rust().await;
    let [java, _] = threads(place, What::Fair);
    let ticket = ticket(&place.rust, What::Fair).await;
    let line = theirs.fair_lock("x");
    let first = waits!(java);
    let second = place.rust.fair_lock("x");
    let second = tokio::spawn(async move { second.acquire().await.unwrap() });
    eventually("both wait", async || {
        line.waiters().await.unwrap().len() == 2
    })
    .await;
    let before = line.waiters().await.unwrap();
    let guard = theirs.resume(&ticket).await.unwrap();
    assert_eq!(line.waiters().await.unwrap(), before);
    guard.release().await.unwrap();
    first.wait(SOON).expect("the first in line");
    assert!(!second.is_finished());
    java.unlock("x").unwrap();
    let second = tokio::time::timeout(SOON, second).await.expect("the next");
    second.unwrap().release().await.unwrap();
}
