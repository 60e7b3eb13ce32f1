//! Tickets: a hold passes from one client to another, and the lock is never free in between.

use std::time::Duration;

use leasehold::ticket::{Ticket, TicketKind};
use leasehold::{Client, Error, ErrorKind, LockGuard, LossReason, MultiLock, Owner};

use super::{LEASE, place};
use crate::support::eventually;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const KINDS: [TicketKind; 5] = [
    TicketKind::Plain,
    TicketKind::Fenced,
    TicketKind::Fair,
    TicketKind::Read,
    TicketKind::Write,
];

pub(super) async fn acquired(client: &Client, kind: TicketKind) -> LockGuard {
    try_acquired(client, kind).await.expect("it is free")
}

async fn try_acquired(client: &Client, kind: TicketKind) -> Option<LockGuard> {
    let (plain, fenced) = (client.lock("x"), client.fenced_lock("x"));
    let (fair, rw) = (client.fair_lock("x"), client.rw_lock("x"));
    match kind {
        TicketKind::Plain => plain.try_acquire().await.unwrap(),
        TicketKind::Fenced => fenced.try_acquire().await.unwrap().map(Into::into),
        TicketKind::Fair => fair.try_acquire().await.unwrap(),
        // A hold of its own: readers of one process may share one.
        TicketKind::Read => {
            let lock = rw.read_lock().local_hand_over(Duration::ZERO);
            lock.try_acquire().await.unwrap().map(Into::into)
        }
        TicketKind::Write => rw.try_write().await.unwrap().map(Into::into),
        other => panic!("{other}"),
    }
}

/// Returns a kind of hold that this kind keeps out.
fn kept_out_by(kind: TicketKind) -> TicketKind {
    match kind {
        TicketKind::Read => TicketKind::Write,
        other => other,
    }
}

fn loss(error: &Error) -> LossReason {
    error.loss().cloned().unwrap_or_else(|| panic!("{error}"))
}

/// A ticket that has been a line of text.
fn sent(ticket: &Ticket) -> Ticket {
    let line = ticket.to_string();
    assert_eq!(line.lines().count(), 1);
    line.parse().unwrap()
}

#[tokio::test]
async fn hold_of_each_kind_passes_to_another_client() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in KINDS {
        let first = acquired(&ours, kind).await;
        let (id, lost, token) = (first.holder_id().to_owned(), first.lost(), first.token());
        let ticket = sent(&first.into_ticket(MINUTE).await.unwrap());
        assert_eq!(ticket.kind(), kind);
        assert_eq!((ticket.holder_id(), ticket.token()), (id.clone(), token));
        assert_eq!(ticket.lease(), MINUTE);
        assert_eq!(lost.await, LossReason::HandedOver, "{kind}");
        assert!(ours.holds().is_empty(), "{kind}: {:?}", ours.holds());
        let other = kept_out_by(kind);
        assert!(try_acquired(&theirs, other).await.is_none(), "{kind}");

        let second = theirs.resume(&ticket).await.unwrap();
        assert_ne!(second.holder_id(), id, "an id belongs to one hold");
        assert!(second.is_held());
        assert!(try_acquired(&ours, other).await.is_none(), "{kind}");
        assert_eq!(second.token().is_some(), kind == TicketKind::Fenced);
        assert!(second.token() > token || token.is_none(), "{kind}");
        second.release().await.unwrap();
        acquired(&ours, other).await.release().await.unwrap();
    }
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn handle_returns_the_guard_of_its_kind_with_its_settings() {
    let place = place();
    let client = place.client().await;
    let rw = client.rw_lock("x");
    let ticket = rw.write().await.unwrap().into_ticket(MINUTE).await.unwrap();
    let write = rw.write_lock().resume(&ticket).await.unwrap();
    let read = write.downgrade().await.unwrap();
    let ticket = read.into_ticket(MINUTE).await.unwrap();
    let read = rw.read_lock().resume(&ticket).await.unwrap();
    read.release().await.unwrap();

    // A plain lock and a fenced lock of one name are one lock.
    let fenced = client.fenced_lock("x").fixed_lease(LEASE);
    let plain = client.lock("x").acquire().await.unwrap();
    let ticket = plain.into_ticket(MINUTE).await.unwrap();
    let guard = fenced.resume(&ticket).await.unwrap();
    let token = guard.token();
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    let guard = client.lock("x").resume(&ticket).await.unwrap();
    assert!(guard.token() > Some(token));
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    let short = fenced.resume(&ticket).await.unwrap();
    assert_eq!(short.lost().await, LossReason::Expired, "a fixed lease");
    drop(short);
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn drawn_token_passes_on_as_a_greater_one() {
    let place = place();
    let client = place.client().await;
    for kind in [TicketKind::Plain, TicketKind::Fair, TicketKind::Write] {
        let first = acquired(&client, kind).await;
        let token = first.fencing_token().await.unwrap();
        let ticket = sent(&first.into_ticket(MINUTE).await.unwrap());
        assert_eq!(ticket.token(), Some(token));
        let second = client.resume(&ticket).await.unwrap();
        assert!(second.token() > Some(token), "{kind}");
        second.release().await.unwrap();
    }
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn second_caller_learns_who_has_taken_the_ticket() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in KINDS {
        let ticket = acquired(&ours, kind).await.into_ticket(MINUTE).await;
        let ticket = ticket.unwrap();
        let (one, other) = tokio::join!(ours.resume(&ticket), theirs.resume(&ticket));
        let (guard, late) = match (one, other) {
            (Ok(guard), Err(late)) | (Err(late), Ok(guard)) => (guard, late),
            both => panic!("{kind}: {both:?}"),
        };
        let by = guard.holder_id().to_owned();
        assert_eq!(loss(&late), LossReason::Taken { by: by.clone() }, "{kind}");
        let late = theirs.release_ticket(&ticket).await.unwrap_err();
        assert_eq!(loss(&late), LossReason::Taken { by: by.clone() }, "{kind}");
        guard.release().await.unwrap();
        // The note is there even when the hold is over.
        let late = ours.resume(&ticket).await.unwrap_err();
        assert_eq!(loss(&late), LossReason::Taken { by }, "{kind}");
    }
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn late_caller_learns_who_has_the_lock_now() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in KINDS {
        let ticket = acquired(&ours, kind).await.into_ticket(MINUTE).await;
        let ticket = ticket.unwrap();
        ours.release_ticket(&ticket).await.unwrap();
        let guard = acquired(&theirs, kept_out_by(kind)).await;
        for late in [
            ours.resume(&ticket).await.map(drop).unwrap_err(),
            ours.release_ticket(&ticket).await.unwrap_err(),
        ] {
            let reason = loss(&late);
            let LossReason::Taken { by } = &reason else {
                panic!("{kind}: {reason}");
            };
            assert!(by.starts_with(guard.holder_id()), "{kind}: {by}");
        }
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn ticket_that_is_never_resumed_ends_with_its_lease() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in KINDS {
        let waiter = {
            let guard = acquired(&ours, kind).await;
            let client = theirs.clone();
            let other = kept_out_by(kind);
            let waiter = tokio::spawn(async move {
                loop {
                    if let Some(guard) = try_acquired(&client, other).await {
                        return guard;
                    }
                    tokio::time::sleep(LEASE / 20).await;
                }
            });
            (waiter, guard.into_ticket(LEASE).await.unwrap())
        };
        let (waiter, ticket) = waiter;
        let guard = waiter.await.unwrap();
        let by = guard.holder_id().to_owned();
        let reason = loss(&theirs.resume(&ticket).await.unwrap_err());
        // A reader's place is not one of the next writer.
        assert_eq!(reason, LossReason::Taken { by }, "{kind}");
        guard.release().await.unwrap();
        let reason = loss(&theirs.resume(&ticket).await.unwrap_err());
        assert_eq!(reason, LossReason::Expired, "{kind}");
    }
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn waiter_is_told_of_a_shorter_lease() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    // The waiter has learned that the lock is held for an hour, and does not poll before.
    let hour = MINUTE * 60;
    let guard = ours.lock("x").fixed_lease(hour).acquire().await.unwrap();
    let waiting = theirs.lock("x").poll_interval(hour);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    waits(&theirs).await;
    let ticket = guard.into_ticket(hour).await.unwrap();
    let short = ours.lock("x").fixed_lease(LEASE);
    short.resume(&ticket).await.unwrap().forget();
    let guard = tokio::time::timeout(MINUTE, waiter).await;
    guard.unwrap().unwrap().unwrap().release().await.unwrap();
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

/// Waits until a task of this client waits for a lock, and has asked for it.
async fn waits(client: &Client) {
    eventually("a task waits", async || client.activity().channels > 0).await;
}

#[tokio::test]
async fn released_ticket_wakes_a_waiter() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for kind in KINDS {
        let guard = acquired(&ours, kind).await;
        let ticket = guard.into_ticket(MINUTE * 60).await.unwrap();
        let rw = theirs.rw_lock("x");
        let lock: leasehold::AnyLock = match kind {
            TicketKind::Fair => theirs.fair_lock("x").into(),
            TicketKind::Read | TicketKind::Write => rw.write_lock().into(),
            _ => theirs.lock("x").into(),
        };
        let waiter = tokio::spawn(async move { lock.acquire().await });
        waits(&theirs).await;
        ours.release_ticket(&ticket).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        for again in [
            ours.release_ticket(&ticket).await.unwrap_err(),
            ours.resume(&ticket).await.unwrap_err(),
        ] {
            assert_eq!(loss(&again), LossReason::Expired, "{kind}");
            assert!(again.to_string().contains("or it was released"), "{again}");
        }
    }
    place.is_clean_but_for_counters(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn forced_unlock_ends_a_ticket() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    assert!(client.lock("x").force_unlock().await.unwrap());
    let refused = client.resume(&ticket).await.unwrap_err();
    assert_eq!(loss(&refused), crate::support::forced());
    let refused = client.release_ticket(&ticket).await.unwrap_err();
    assert_eq!(loss(&refused), crate::support::forced());
    // A hold that was ended before becomes no ticket.
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.lock("x").force_unlock().await.unwrap());
    let refused = guard.into_ticket(MINUTE).await.unwrap_err();
    assert_eq!(loss(&refused), crate::support::forced());
    place.remove("leasehold:{x}:forced");
    place.is_clean_but_for_counters(&[&client]).await;
}

#[tokio::test]
async fn hold_passes_on_again_and_again() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let mut guard = clients[0].fenced_lock("x").acquire().await.unwrap();
    for n in 0..70 {
        let (id, token) = (guard.holder_id().to_owned(), guard.token());
        let ticket = sent(&guard.into_ticket(MINUTE).await.unwrap());
        let lock = clients[(n + 1) % 2].fenced_lock("x").lease(LEASE);
        guard = lock.resume(&ticket).await.unwrap();
        assert!(guard.token() > token);
        assert_ne!(guard.holder_id(), id);
    }
    // The last one renews it.
    tokio::time::sleep(LEASE * 2).await;
    guard.release().await.unwrap();
    place
        .is_clean_but_for_counters(&[&clients[0], &clients[1]])
        .await;
}

#[tokio::test]
async fn permits_pass_on_with_new_ids() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let semaphore = ours.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    let permits = semaphore.acquire_many(2).await.unwrap();
    let (ids, lost) = (permits.ids().to_vec(), permits.lost());
    let ticket = sent(&permits.into_ticket(MINUTE).await.unwrap());
    assert_eq!(ticket.kind(), TicketKind::Permits);
    assert_eq!(lost.await, LossReason::HandedOver);
    let there = theirs.expirable_semaphore("x");
    let permits = there.resume(&ticket).await.unwrap();
    assert_eq!(permits.ids().len(), 2);
    assert!(permits.ids().iter().all(|id| !ids.contains(id)));
    assert_eq!(there.available_permits().await.unwrap(), 1);
    let late = semaphore.resume(&ticket).await.unwrap_err();
    let by = permits.id().to_string();
    assert_eq!(loss(&late), LossReason::Taken { by: by.clone() });
    let late = ours.release_ticket(&ticket).await.unwrap_err();
    assert_eq!(loss(&late), LossReason::Taken { by });
    permits.release().await.unwrap();

    let permit = semaphore.acquire().await.unwrap();
    let ticket = permit.into_ticket(MINUTE).await.unwrap();
    assert_eq!(there.available_permits().await.unwrap(), 2);
    theirs.release_ticket(&ticket).await.unwrap();
    assert_eq!(there.available_permits().await.unwrap(), 3);
    let permit = semaphore.acquire().await.unwrap();
    let ticket = permit.into_ticket(LEASE).await.unwrap();
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(there.available_permits().await.unwrap(), 3);
    let late = there.resume(&ticket).await.unwrap_err();
    assert_eq!(loss(&late), LossReason::Expired);
    there.delete().await.unwrap();
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}

#[track_caller]
fn misuse<T: std::fmt::Debug>(refused: leasehold::Result<T>, says: &str) {
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test]
async fn ticket_of_another_name_kind_or_prefix_is_refused() {
    let place = place();
    let client = place.client().await;
    let other = place.client_with(|builder| builder.prefix("other:")).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    misuse(other.resume(&ticket).await, "prefix");
    misuse(other.release_ticket(&ticket).await, "prefix");
    misuse(client.lock("y").resume(&ticket).await, "the ticket is for");
    misuse(client.fair_lock("x").resume(&ticket).await, "`plain`");
    let write = client.rw_lock("x").write_lock();
    misuse(write.resume(&ticket).await, "`plain`");
    misuse(
        client.group_lock("x", ["a"]).resume(&ticket).await,
        "no tickets",
    );
    let semaphore = client.expirable_semaphore("x");
    misuse(semaphore.resume(&ticket).await, "permits");
    let owned = client.lock("x").owned_by(&Owner::new());
    misuse(owned.resume(&ticket).await, "owner");
    // Nothing of this has changed the hold.
    client
        .resume(&ticket)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let ticket = permit.into_ticket(MINUTE).await.unwrap();
    misuse(client.resume(&ticket).await, "permits");
    misuse(client.lock("x").resume(&ticket).await, "permits");
    semaphore
        .resume(&ticket)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    semaphore.delete().await.unwrap();
    place.is_clean_but_for(&[], &[&client, &other]).await;
}

#[tokio::test]
async fn hold_that_is_shared_or_not_one_becomes_no_ticket() {
    let place = place();
    let client = place.client().await;
    let owner = Owner::new();
    let lock = client.lock("x").owned_by(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    misuse(inner.into_ticket(MINUTE).await, "other guards");
    // The other guard still has the lock.
    let ticket = outer.into_ticket(MINUTE).await.unwrap();
    client.release_ticket(&ticket).await.unwrap();

    let rw = client.rw_lock("x").owned_by(&owner);
    let (write, read) = (rw.write().await.unwrap(), rw.read().await.unwrap());
    misuse(write.into_ticket(MINUTE).await, "both sides");
    read.release().await.unwrap();

    let group = client.group_lock("x", ["a"]).acquire().await.unwrap();
    misuse(group.into_ticket(MINUTE).await, "this kind");
    let both = MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    let both = both.acquire().await.unwrap();
    misuse(both.into_ticket(MINUTE).await, "several locks");
    let guard = client.lock("x").acquire().await.unwrap();
    misuse(guard.into_ticket(Duration::ZERO).await, "lease");
    place.is_clean_but_for_counters(&[&client]).await;

    let guard = client.lock("x").acquire().await.unwrap();
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    let closed = place.client().await;
    closed.close().await;
    misuse(closed.resume(&ticket).await, "closed");
    client.release_ticket(&ticket).await.unwrap();
}

#[tokio::test]
async fn ticket_of_another_kind_of_data_is_refused() {
    let place = place();
    let client = place.client().await;
    let ticket = acquired(&client, TicketKind::Plain).await;
    let ticket = ticket.into_ticket(MINUTE).await.unwrap();
    // As if a caller had changed its text.
    let text = ticket.to_string().replace(":plain:", ":write:");
    let wrong: Ticket = text.parse().unwrap();
    let refused = client.resume(&wrong).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongKind, "{refused}");
    client.release_ticket(&ticket).await.unwrap();
    place.is_clean_but_for_counters(&[&client]).await;
}
