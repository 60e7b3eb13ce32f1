//! Handing a hold over to the next waiter of the process. A release costs a round trip, and the
//! next acquire another one; a hold that stays in the process costs neither. For how long that
//! goes on, `turn.rs` says.
//!
//! The hold is *moved*, with its armed undo: it is either with its holder, or in the slot of one
//! waiter. That waiter is given a number of its own (`Grant::hand_over`), so that no two holders are
//! ever taken for one.

use std::sync::Arc;
use std::time::Duration;

use super::Record;
use super::line::Place;
use super::run::is_with_its_place;
use super::slot::Slot;
use super::turn::Turn;
use crate::clock::Moment;
use crate::config::Terms;
use crate::hold::{ClaimId, Grant, Undo};
use crate::sync::Mutex;

/// A waiter to which a hold can be handed over.
pub(crate) struct Candidate {
    /// What it wants. A hold on other terms, or of another number of permits, is not handed over to
    /// it.
    pub(super) terms: Terms,
    pub(super) permits: u32,
    /// The id of its place, if the line is on the server.
    pub(super) place: Option<String>,
    pub(super) slot: Slot<Undo>,
    /// How long the process keeps what it has, from the server's grant on.
    pub(super) turn: Duration,
}

impl Candidate {
    /// A waiter for so many permits; for 1 if it wants a lock.
    pub(crate) fn new(terms: Terms, permits: u32, turn: Duration) -> Self {
        Self {
            terms,
            permits,
            place: None,
            slot: Slot::new(),
            turn,
        }
    }

    /// The same with a place in a line on the server.
    pub(crate) fn in_place(self, id: Option<String>) -> Self {
        Self { place: id, ..self }
    }
}

impl Record {
    /// Whether a hold that comes back is for this process: its turn goes on.
    pub(super) fn hold_stays(&self, hold: &Grant, now: Moment, turn: Duration) -> bool {
        let granted = (hold.granted_at(), hold.permits());
        self.turn.lock().hold_stays(granted, now, turn)
    }

    /// What the first waiter in line wants, if it wants so many permits.
    pub(crate) fn next_wants(&self, permits: u32) -> Option<Terms> {
        let (_, candidate) = self.line.line()?.first_candidate()?;
        (candidate.permits == permits).then_some(candidate.terms)
    }

    /// Hands a hold over to the first waiter in line. Returned if it has to go back to the server:
    /// nobody waits, or the first waiter can't have this one.
    pub(super) fn hand_over(&self, undo: Undo, now: Moment) -> Result<(), Undo> {
        self.give(undo, now, |hold, terms| hold.hand_over(terms, now))
    }

    /// Gives a hold that nobody has had to the first waiter in line, in the same way.
    pub(crate) fn give_new(&self, undo: Undo, now: Moment) -> Result<(), Undo> {
        // The terms of its claim: those of all its guards have no maximum hold time.
        let fits = |hold: &Grant, terms| hold.terms_of(ClaimId::FIRST) == terms;
        self.give(undo, now, fits)
    }

    fn give(
        &self,
        undo: Undo,
        now: Moment,
        fits: impl Fn(&Grant, Terms) -> bool,
    ) -> Result<(), Undo> {
        let Some(line) = self.line.line() else {
            return Err(undo);
        };
        let mut undo = undo;
        loop {
            let hold = undo.hold();
            let next = match hold.steps.queued() {
                Some(_) => line.next_in_run(hold),
                None => line.first_candidate(),
            };
            let Some((seat, candidate)) = next else {
                break;
            };
            if hold.permits() != candidate.permits || !fits(hold, candidate.terms) {
                break;
            }
            if hold.steps.queued().is_some() {
                self.turn.lock().holds(now);
            }
            // The waiters behind need not ask in order to know that the name is held.
            line.answered(hold.confirmed_at(), now);
            match line.give(&seat, &candidate, undo) {
                Ok(()) => return Ok(()),
                // It has gone just now, or was passed over.
                Err(returned) => undo = returned,
            }
        }
        Err(undo)
    }

    /// A hold goes back to the server: the request has been queued, and the next in line may ask
    /// behind it.
    pub(crate) fn hold_leaves(&self, now: Moment) {
        self.turn.lock().hold_leaves(now);
        if let Some(line) = self.line.line() {
            line.wake_asker();
        }
    }
}

impl Place {
    /// What its process knows of the turns for the name.
    pub(crate) fn turns(&self) -> &Mutex<Turn> {
        &self.local().turn
    }

    /// Resolves when a hold is handed over to this waiter.
    pub(crate) async fn handed(&self) -> Undo {
        let Some(candidate) = self.candidate() else {
            return std::future::pending().await;
        };
        // No waker is registered here: who fills the slot wakes the seat, which is the waker of the
        // whole wait.
        std::future::poll_fn(|_| match candidate.claim() {
            Some(undo) => {
                undo.hold().observed.handed_over();
                std::task::Poll::Ready(undo)
            }
            None => std::task::Poll::Pending,
        })
        .await
    }

    /// Resolves when the hold of the place on the server was given to this waiter, and has gone back
    /// since. Its id is that hold's, and no other's.
    pub(crate) async fn has_gone_back(&self) {
        std::future::poll_fn(|_| match self.wants_more() {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        })
        .await;
    }

    fn wants_more(&self) -> bool {
        self.candidate()
            .is_none_or(|candidate| !candidate.slot.is_closed())
    }

    /// Whether a request for the place on the server may leave. Otherwise the waiter has been given a
    /// hold, or has had one.
    pub(crate) fn may_ask_in_line(&self) -> bool {
        self.candidate()
            .is_none_or(|candidate| candidate.slot.is_empty())
    }

    /// The server has granted the lock to that request. `false` if the hold has gone back
    /// meanwhile.
    pub(crate) fn takes_its_own(&self) -> bool {
        self.candidate()
            .is_none_or(|candidate| candidate.takes_its_own())
    }

    /// Whether a hold that was handed over is that of this waiter's own place.
    pub(crate) fn owns(&self, hold: &Undo) -> bool {
        self.candidate()
            .is_some_and(|candidate| candidate.owns(hold.hold()))
    }

    /// The request for the place was given up, so the hold of the place goes back with that.
    pub(crate) fn gave_up(&self, hold: Undo) {
        is_with_its_place(hold);
        self.local().hold_leaves(self.local().now());
    }

    /// The place of a waiter to which a hold was handed over goes with that hold. `own` is the undo
    /// of the place.
    pub(crate) fn goes_with(&self, hold: &mut Undo, own: Undo) {
        let Some(place) = self.candidate().and_then(|one| one.place.as_deref()) else {
            return;
        };
        let queued = hold.hold().steps.queued();
        match queued {
            Some(_) if place == hold.hold().steps.wire_id() => hold.takes_over(own),
            // A request that comes late would take a place for nobody: its undo sees to that.
            Some(queued) if !own.comes_late() => {
                queued.serves(place);
                let mut own = own;
                own.disarm();
            }
            _ => drop(own),
        }
    }
}

impl Candidate {
    /// Takes a hold that was handed over, if it is good still.
    fn claim(&self) -> Option<Undo> {
        let undo = self.slot.claim()?;
        if undo.hold().loss().is_none() {
            return Some(undo);
        }
        let is_own = self.owns(undo.hold());
        // Lost while it was in the slot. The server may have it still: its undo gives it back.
        give_back(undo);
        // What goes back under the id of its place may end a later hold of that id.
        if !is_own {
            self.slot.reopen();
        }
        None
    }
}

/// Gives back a hold that nobody has.
pub(crate) fn give_back(undo: Undo) {
    // Ended first: the watchdog, which still has it, renews nothing that is over.
    undo.hold().end();
    drop(undo);
}

/// What a waiter leaves that has gone: the hold in its slot goes to the next one.
pub(super) fn leave(record: &Arc<Record>, candidate: &Candidate, now: Moment) {
    let Some(undo) = candidate.slot.close() else {
        return;
    };
    if candidate.owns(undo.hold()) {
        // Nobody else may have it.
        is_with_its_place(undo);
        return record.hold_leaves(now);
    }
    pass_on(record, candidate, undo, now);
}

/// What a waiter leaves that is not polled. Otherwise the watchdog would renew a hold that nobody has,
/// for as long as nobody polls its waiter.
pub(super) fn pass_over(record: &Arc<Record>, candidate: &Candidate, now: Moment) {
    let is_own = |undo: &Undo| candidate.owns(undo.hold());
    let Some(undo) = candidate.slot.take_back(is_own) else {
        return;
    };
    if is_own(&undo) {
        // The undo of its place would give it back once more, so nobody else may have it.
        give_back(undo);
        return record.hold_leaves(now);
    }
    pass_on(record, candidate, undo, now);
}

fn pass_on(record: &Arc<Record>, candidate: &Candidate, undo: Undo, now: Moment) {
    let stays =
        undo.hold().steps.queued().is_some() || record.hold_stays(undo.hold(), now, candidate.turn);
    let returned = match stays {
        true => record.hand_over(undo, now),
        false => Err(undo),
    };
    if let Err(undo) = returned {
        give_back(undo);
        record.hold_leaves(now);
    }
}
