//! Leader election: terms, the entry of the leader, and observers.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Election, ErrorKind, Leader, Term, Terms};

use super::{LEASE, place};
use crate::support::eventually;

const POLL: Duration = Duration::from_millis(20);

pub(super) fn election(client: &Client, payload: &str) -> Election {
    let election = client.election("x").payload(payload);
    election.lease(LEASE).poll_interval(POLL)
}

pub(super) async fn next(terms: &mut Terms) -> Option<Leader> {
    let next = tokio::time::timeout(Duration::from_secs(20), terms.next());
    next.await.expect("a change").expect("it is open").unwrap()
}

#[tokio::test]
async fn leader_is_described_while_it_leads() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let observer = theirs.election("x");
    assert_eq!(observer.leader().await.unwrap(), None);
    let term = election(&ours, "here").stand().await.unwrap();
    let leader = observer.leader().await.unwrap().unwrap();
    assert_eq!(leader.id, term.holder_id());
    assert_eq!(leader.token, Some(term.token()));
    assert_eq!(leader.payload.as_deref(), Some("here"));
    assert!(leader.since.is_some());
    term.resign().await.unwrap();
    assert_eq!(observer.leader().await.unwrap(), None);
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

/// After a minimum hold time, for example, no process acts as the holder.
#[tokio::test]
async fn lock_that_is_left_to_the_server_has_no_leader() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.election("x").leader().await.unwrap().is_some());
    guard.keep_for(LEASE).await.unwrap();
    assert_eq!(client.election("x").leader().await.unwrap(), None);
    assert!(client.lock("x").force_unlock().await.unwrap());
}

#[tokio::test]
async fn tokens_rise_from_term_to_term() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let candidates = clients.each_ref().map(|client| election(client, ""));
    let mut last = 0;
    for n in [0, 1, 1, 0] {
        let term = candidates[n].stand().await.unwrap();
        assert!(term.token() > last);
        last = term.token();
        let other = candidates[1 - n].try_stand().await.unwrap();
        assert!(other.is_none(), "one leads");
        term.resign().await.unwrap();
    }
}

#[tokio::test]
async fn candidate_never_leads_twice_at_a_time() {
    let place = place();
    let client = place.client().await;
    let candidate = election(&client, "one");
    let other = election(&client, "two");
    let term = candidate.stand().await.unwrap();
    assert!(candidate.try_stand().await.unwrap().is_none());
    assert!(other.try_stand().await.unwrap().is_none());
    // A waiter of the same client gets a term of its own, with its payload.
    let waits = tokio::spawn(async move { other.stand().await.unwrap() });
    eventually("it waits", async || client.activity().lines > 0).await;
    let (id, token) = (term.holder_id().to_owned(), term.token());
    term.resign().await.unwrap();
    let next = waits.await.unwrap();
    assert!(next.token() > token);
    assert_ne!(next.holder_id(), id);
    let leader = candidate.leader().await.unwrap().unwrap();
    assert_eq!(leader.payload.as_deref(), Some("two"));
    assert_eq!(leader.token, Some(next.token()));
    next.resign().await.unwrap();
}

#[tokio::test]
async fn observer_sees_each_term_once_and_in_order() {
    let place = place();
    let clients = [
        place.client().await,
        place.client().await,
        place.client().await,
    ];
    let mut terms = clients[2].election("x").poll_interval(POLL).observe();
    assert_eq!(next(&mut terms).await, None, "the present state is first");
    let mut last = 0;
    for n in 0..6 {
        let payload = format!("term {n}");
        let term = election(&clients[n % 2], &payload).stand().await.unwrap();
        let mut seen = next(&mut terms).await;
        if seen.is_none() {
            // The end of the last term was seen, too.
            seen = next(&mut terms).await;
        }
        let seen = seen.unwrap();
        assert_eq!(seen.payload, Some(payload));
        assert_eq!(seen.token, Some(term.token()));
        assert!(term.token() > last);
        last = term.token();
        let again = tokio::time::timeout(5 * POLL, terms.next()).await;
        assert!(again.is_err(), "nothing has changed: {again:?}");
        term.resign().await.unwrap();
    }
    assert_eq!(next(&mut terms).await, None);
    drop(terms);
    place
        .is_clean_but_for_counters(&[&clients[0], &clients[1], &clients[2]])
        .await;
}

#[tokio::test]
async fn lost_term_is_replaced_and_its_payload_is_gone() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let term = election(&ours, "dead").stand().await.unwrap();
    let mut terms = election(&theirs, "").observe();
    assert_eq!(
        next(&mut terms).await.unwrap().payload.as_deref(),
        Some("dead")
    );
    // Its renewals end, as for the term of a killed process.
    let token = term.token();
    leasehold::LockGuard::from(term).forget();
    assert_eq!(next(&mut terms).await, None, "its lease has ended");
    let next_term = election(&theirs, "alive").stand().await.unwrap();
    let leader = next(&mut terms).await.unwrap();
    assert_eq!(leader.payload.as_deref(), Some("alive"));
    assert!(next_term.token() > token);
    next_term.resign().await.unwrap();
}

#[tokio::test]
async fn entry_of_another_hold_is_not_believed() {
    let place = place();
    let client = place.client().await;
    let term = election(&client, "mine").stand().await.unwrap();
    // An operator ends the term, and the entry stays for the rest of the lease.
    assert!(client.lock("x").force_unlock().await.unwrap());
    let observer = client.election("x");
    assert_eq!(observer.leader().await.unwrap(), None);
    // A Java client has a hold without an entry.
    let guard = client.fenced_lock("x").acquire().await.unwrap();
    let leader = observer.leader().await.unwrap().unwrap();
    assert_eq!(leader.id, guard.holder_id());
    assert_eq!(
        (leader.payload, leader.token, leader.since),
        (None, None, None)
    );
    let reason = term.lost().await;
    assert_eq!(reason, crate::support::forced());
    assert_eq!(term.resign().await.unwrap_err().kind(), ErrorKind::Lost);
    let leader = observer.leader().await.unwrap().unwrap();
    assert_eq!(
        leader.id,
        guard.holder_id(),
        "the former leader ended nothing"
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn renewals_keep_the_entry() {
    let place = place();
    let client = place.client().await;
    let term = election(&client, "mine").stand().await.unwrap();
    tokio::time::sleep(LEASE * 2).await;
    let leader = client.election("x").leader().await.unwrap().unwrap();
    assert_eq!(leader.payload.as_deref(), Some("mine"));
    term.resign().await.unwrap();
}

#[tokio::test]
async fn candidate_waits_a_poll_after_its_term() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let candidate = ours.election("x").lease(LEASE);
    let pause = Duration::from_millis(300);
    let candidate = candidate.poll_interval(pause);
    candidate.stand().await.unwrap().resign().await.unwrap();
    let resigned = tokio::time::Instant::now();
    let again = tokio::spawn({
        let candidate = candidate.clone();
        async move { candidate.stand().await.unwrap() }
    });
    let other = election(&theirs, "").stand().await.unwrap();
    assert!(!again.is_finished());
    other.resign().await.unwrap();
    let again = again.await.unwrap();
    assert!(resigned.elapsed() > pause * 4 / 5);
    again.resign().await.unwrap();
}

#[tokio::test]
async fn it_leads_until_it_is_told_to_stop() {
    let place = place();
    let client = place.client().await;
    let candidate = election(&client, "").restart_delay(Duration::from_millis(5));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (mut stop, mut tokens) = (Some(stop), Vec::new());
    let led = candidate.lead_until(stopped, async |term: &Term| {
        tokens.push(term.token());
        if tokens.len() == 3 {
            stop.take().unwrap().send(()).unwrap();
            std::future::pending::<()>().await;
        }
    });
    led.await.unwrap();
    assert_eq!(tokens.len(), 3);
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!(candidate.leader().await.unwrap(), None);
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn work_of_a_lost_term_is_dropped_and_it_stands_again() {
    let place = place();
    let client = place.client().await;
    let candidate = election(&client, "").restart_delay(Duration::from_millis(5));
    let terms = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let leads = tokio::spawn({
        let terms = Arc::clone(&terms);
        // A task can lead, too.
        async move {
            let work = move |_: &Term| {
                terms.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                std::future::pending::<()>()
            };
            candidate.lead_until(stopped, work).await
        }
    });
    let count = || terms.load(std::sync::atomic::Ordering::SeqCst);
    eventually("it leads", async || count() == 1).await;
    client.lock("x").force_unlock().await.unwrap();
    eventually("it leads again", async || count() == 2).await;
    stop.send(()).unwrap();
    leads.await.unwrap().unwrap();
}

#[tokio::test]
async fn bad_input_is_reported() {
    let place = place();
    let client = place.client().await;
    let long = election(&client, &"x".repeat(16 * 1024 + 1));
    assert_eq!(long.stand().await.unwrap_err().kind(), ErrorKind::Misuse);
    let nameless = client.election("");
    assert_eq!(
        nameless.leader().await.unwrap_err().kind(),
        ErrorKind::Misuse
    );
    let mut terms = nameless.observe();
    let error = terms.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    let hasty = client.election("x").poll_interval(Duration::ZERO);
    assert_eq!(
        hasty.try_stand().await.unwrap_err().kind(),
        ErrorKind::Misuse
    );
    client
        .count_down_latch("latch")
        .try_set_count(1)
        .await
        .unwrap();
    let latch = client.election("latch");
    assert_eq!(
        latch.stand().await.unwrap_err().kind(),
        ErrorKind::WrongKind
    );
    assert_eq!(
        latch.leader().await.unwrap_err().kind(),
        ErrorKind::WrongKind
    );
    client.count_down_latch("latch").delete().await.unwrap();
}

#[tokio::test]
async fn closed_client_ends_its_observers() {
    let place = place();
    let client = place.client().await;
    let mut terms = client.election("x").observe();
    assert_eq!(next(&mut terms).await, None);
    client.close().await;
    assert!(terms.next().await.is_none());
}
