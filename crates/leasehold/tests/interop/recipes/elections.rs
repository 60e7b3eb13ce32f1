//! Elections: a Java program that takes the lock of the election leads, too.

use std::time::Duration;

use leasehold::{Election, ErrorKind, Leader, LossReason, Term, Terms};
use tokio::task::JoinHandle;

use super::{Place, is_refused, threads};
use crate::sides::SOON;
use crate::support::{HOUR, eventually};
use crate::what::What;

const PAYLOAD: &str = "http://10.0.0.7:8080";

/// Returns a candidate that has not led yet. Only a message or the end of a lease wakes it.
fn candidate(place: &Place) -> Election {
    let election = place.rust.election("x").payload(PAYLOAD);
    election.poll_interval(HOUR)
}

/// Starts a candidate, and returns when a message can wake it.
async fn stands(place: &Place) -> JoinHandle<Term> {
    let election = candidate(place);
    let waiting = tokio::spawn(async move { election.stand().await.unwrap() });
    place.is_listened_to("x").await;
    assert!(!waiting.is_finished());
    waiting
}

async fn leads(waiting: JoinHandle<Term>) -> Term {
    let term = tokio::time::timeout(SOON, waiting).await.expect("woken");
    term.unwrap()
}

/// Returns the next leader that the observer reports.
async fn next_leader(terms: &mut Terms) -> Leader {
    loop {
        let next = tokio::time::timeout(SOON, terms.next()).await;
        let next = next.expect("a poll is enough").unwrap().unwrap();
        if let Some(leader) = next {
            return leader;
        }
    }
}

/// Checks that Java is reported by its id alone.
fn is_java(leader: &Leader, id: &str) {
    assert_eq!(leader.id, id);
    let Leader {
        label,
        host,
        payload,
        token,
        since,
        ..
    } = leader;
    assert_eq!((label, host, payload), (&None, &None, &None));
    assert_eq!((token, since), (&None, &None));
}

fn is_ours(leader: &Leader, term: &Term) {
    assert_eq!(
        (&*leader.id, leader.token),
        (term.holder_id(), Some(term.token()))
    );
    assert_eq!(leader.payload.as_deref(), Some(PAYLOAD));
    assert!(leader.since.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_and_java_lead_in_turn() {
    let place = &Place::new().await;
    let [java, other_java] = threads(place, What::Fenced);
    let election = place.rust.election("x");
    let (mut terms, mut last) = (election.observe(), 0);
    for round in 0..3 {
        java.lock("x").unwrap();
        let id = place.holder("x").await;
        assert!(election.try_stand().await.unwrap().is_none());
        is_java(&election.leader().await.unwrap().unwrap(), &id);
        is_java(&next_leader(&mut terms).await, &id);
        let waiting = stands(place).await;
        java.unlock("x").unwrap();
        let term = leads(waiting).await;
        assert!(
            term.token() > last,
            "round {round}: {} after {last}",
            term.token()
        );
        last = term.token();
        is_ours(&election.leader().await.unwrap().unwrap(), &term);
        is_ours(&next_leader(&mut terms).await, &term);
        is_refused(&java, "x", "it leads");
        let waiting = other_java.start_lock("x");
        // Our candidate has unsubscribed, so Java is the one that listens.
        eventually("it sleeps", async || other_java.sleeps()).await;
        assert!(!waiting.is_done());
        term.resign().await.unwrap();
        waiting.wait(SOON).expect("woken");
        let id = place.holder("x").await;
        is_java(&next_leader(&mut terms).await, &id);
        other_java.unlock("x").unwrap();
        let free = async || election.leader().await.unwrap().is_none();
        eventually("nothing of the last term is left", free).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_java_ends_by_force_is_told_and_its_token_is_not_used_again() {
    let place = &Place::new().await;
    let [java, other_java] = threads(place, What::Fenced);
    let election = place.rust.election("x");
    let mut terms = election.observe();
    // The first time, the lock is free afterwards. The second time, Java has it. The third time, a
    // candidate leads.
    let mut tokens = Vec::new();
    for next in ["none", "Java", "ours"] {
        let short = candidate(place).lease(Duration::from_millis(2400));
        let term = short.try_stand().await.unwrap().expect("it is free");
        tokens.push(term.token());
        is_ours(&next_leader(&mut terms).await, &term);
        let (mut candidate, mut thread) = (None, None);
        match next {
            "Java" => thread = Some(other_java.start_lock("x")),
            "ours" => candidate = Some(stands(place).await),
            _ => {}
        }
        if next == "Java" {
            eventually("it sleeps", async || other_java.sleeps()).await;
        }
        assert!(java.force_unlock("x").unwrap().value);
        let by = match (thread, candidate) {
            (Some(thread), _) => {
                thread.wait(SOON).expect("woken");
                let java = place.holder("x").await;
                is_java(&election.leader().await.unwrap().unwrap(), &java);
                is_java(&next_leader(&mut terms).await, &java);
                Some(java)
            }
            (_, Some(candidate)) => {
                let next = leads(candidate).await;
                tokens.push(next.token());
                is_ours(&next_leader(&mut terms).await, &next);
                let id = next.holder_id().to_owned();
                // It is kept until the former leader has been told.
                let reason = tokio::time::timeout(SOON, term.lost()).await.expect("told");
                assert_eq!(reason, LossReason::Taken { by: id.clone() });
                next.resign().await.unwrap();
                Some(id)
            }
            _ => {
                // The former leader is not reported, although it has not been told yet.
                assert!(election.leader().await.unwrap().is_none());
                None
            }
        };
        let reason = tokio::time::timeout(SOON, term.lost()).await.expect("told");
        assert_eq!(
            reason,
            by.map_or(LossReason::Deleted, |by| LossReason::Taken { by })
        );
        let error = term.resign().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        if next == "Java" {
            let held = other_java.is_held_by_current_thread("x").unwrap();
            assert!(held.value, "the late resignation took it away");
            other_java.unlock("x").unwrap();
        }
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// A candidate that leads again and again drops its work when Java breaks the lock, lets Java lead,
/// and leads again with a greater token.
#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_leader_ends_when_java_breaks_in() {
    let place = &Place::new().await;
    let [java, other_java] = threads(place, What::Fenced);
    let election = place.rust.election("x").lease(Duration::from_millis(2400));
    let (told, mut telling) = tokio::sync::mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let leader = tokio::spawn(async move {
        let work = move |term: &Term| {
            told.send(term.token()).unwrap();
            std::future::pending()
        };
        election.lead_until(stopped, work).await.unwrap();
    });
    let mut last = 0;
    for _ in 0..2 {
        let token = tokio::time::timeout(SOON, telling.recv()).await;
        let token = token.expect("it leads").unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        let waiting = other_java.start_lock("x");
        eventually("it sleeps", async || other_java.sleeps()).await;
        assert!(java.force_unlock("x").unwrap().value);
        waiting.wait(SOON).expect("woken");
        // The candidate has been told, and waits for Java.
        eventually("it waits", async || place.rust.activity().lines == 1).await;
        assert!(telling.try_recv().is_err(), "it leads beside Java");
        other_java.unlock("x").unwrap();
    }
    let token = tokio::time::timeout(SOON, telling.recv()).await;
    assert!(token.expect("it leads again").unwrap() > last);
    stop.send(()).unwrap();
    leader.await.unwrap();
    assert!(java.try_lock("x").unwrap().value);
    java.unlock("x").unwrap();
}
