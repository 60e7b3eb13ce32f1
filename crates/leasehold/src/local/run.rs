//! Waiters whose line is on the server, and which of them gets a hold next.
//!
//! A release can grant the lock in the same request to the first in line, if that is a waiter of
//! the same client. The server names the waiters behind it, as long as they are of this client too.
//! The hold is handed along this run, in order, like any other hold (`hand_over.rs`): no waiter is
//! overtaken. The places of the waiters that were served are removed when the hold is given back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Wake as _;

use super::Record;
use super::hand_over::{Candidate, give_back};
use super::line::{Seat, WaitLine};
use super::order::Number;
use crate::clock::Moment;
use crate::config::Terms;
use crate::hold::{Grant, Undo};

/// The next waiters for a hold.
pub(super) struct Run {
    /// The id of that hold. If another hold has replaced it, the order may have changed.
    hold: Box<str>,
    next: VecDeque<Number>,
}

impl WaitLine {
    /// Returns whether there is a waiter, and each waiter would take a hold on these terms.
    fn all_want(&self, terms: Terms) -> bool {
        let state = self.state.lock();
        let all = state.candidates.len() == state.seats.len() && !state.seats.is_empty();
        // A waiter that was passed over still has its place on the server, and would be granted the
        // lock there.
        let all = all && state.order.len() == state.seats.len();
        all && (state.candidates.values()).all(|candidate| candidate.terms == terms)
    }

    /// Starts a run: the server has granted this hold to the first of these waiters, and the others
    /// are behind it.
    fn begin_run(&self, hold: Undo, ids: &[String]) -> First {
        let mut state = self.state.lock();
        let candidates = state.candidates.iter();
        let numbers: HashMap<_, _> = candidates
            .filter_map(|(number, candidate)| Some((candidate.place.as_deref()?, *number)))
            .collect();
        let next = ids.iter().map_while(|id| numbers.get(id.as_str()));
        let next: VecDeque<_> = next.copied().collect();
        let first = next.front().copied();
        state.run = ids.first().map(|hold| Run {
            hold: hold.as_str().into(),
            next,
        });
        let Some(first) = first else {
            return First::HasGone(hold);
        };
        let (seat, candidate) = (state.seats.get(&first), state.candidates.get(&first));
        let (Some(seat), Some(candidate)) = (seat, candidate) else {
            return First::HasGone(hold);
        };
        // The order is locked, so the waiter is not passed over between the check and the gift.
        if state.order.stands(first) && candidate.terms == hold.hold().terms() {
            return match candidate.slot.give(hold) {
                Ok(()) => First::Has(Arc::clone(seat)),
                Err(hold) => First::HasGone(hold),
            };
        }
        match candidate.slot.close_empty() {
            true => First::IsPassedOver(hold),
            false => First::HasGone(hold),
        }
    }

    /// Returns the waiter that gets this hold next.
    pub(super) fn next_in_run(&self, hold: &Grant) -> Option<(Arc<Seat>, Arc<Candidate>)> {
        let mut state = self.state.lock();
        let mut run = state
            .run
            .take_if(|run| *run.hold == *hold.steps.wire_id())?;
        while let Some(number) = run.next.front() {
            let waits = state.candidates.get(number);
            let waits = waits.filter(|candidate| candidate.slot.is_empty());
            let waits = waits.filter(|_| state.order.stands(*number));
            if let (Some(candidate), Some(seat)) = (waits, state.seats.get(number)) {
                let found = (Arc::clone(seat), Arc::clone(candidate));
                state.run = Some(run);
                return Some(found);
            }
            // The waiter has had the hold, has left, or was passed over.
            run.next.pop_front();
        }
        None
    }
}

impl Record {
    /// Returns whether the server may grant the lock, on these terms, to any waiter of this process
    /// that is first in line.
    pub(crate) fn next_is_known(&self, terms: Terms) -> bool {
        let line = self.line.line();
        line.is_some_and(|line| line.all_want(terms))
    }

    /// Gives the hold to the first of these waiters: the server has granted it, and the others are
    /// behind it. Returns `false` if none of them gets it from here.
    pub(crate) fn give_first(&self, hold: Undo, ids: &[String], now: Moment) -> bool {
        let Some(line) = self.line.line() else {
            is_with_its_place(hold);
            return false;
        };
        let confirmed_at = hold.hold().confirmed_at();
        match line.begin_run(hold, ids) {
            First::Has(seat) => {
                line.answered(confirmed_at, now);
                self.turn.lock().holds(now);
                seat.wake();
                return true;
            }
            First::HasGone(hold) => is_with_its_place(hold),
            First::IsPassedOver(hold) => give_back(hold),
        }
        false
    }
}

/// The outcome for a hold that the server has granted to the place of a waiter.
enum First {
    /// The waiter has the hold, and must be woken.
    Has(Arc<Seat>),
    /// The waiter has left with its place, or has the hold by the reply to its own request.
    HasGone(Undo),
    /// The waiter is not polled. It gets nothing more in this place.
    IsPassedOver(Undo),
}

/// Drops a hold without a release: the undo of a waiter's place gives the same hold back, or the
/// waiter's guard has that undo.
pub(super) fn is_with_its_place(mut hold: Undo) {
    hold.hold().end();
    hold.disarm();
}

impl Candidate {
    fn has_place(&self, id: &str) -> bool {
        self.place.as_deref() == Some(id)
    }

    /// Returns whether the hold was granted to this waiter's own place.
    pub(super) fn owns(&self, hold: &Grant) -> bool {
        self.has_place(hold.steps.wire_id())
    }

    /// Notes that the waiter's own request was granted the hold of its place. Returns `false` if
    /// that hold, which a release had granted too, has been given back meanwhile.
    pub(super) fn takes_its_own(&self) -> bool {
        if self.slot.close_empty() {
            return true;
        }
        match self.slot.take_back(|_| true) {
            Some(hold) if self.owns(hold.hold()) => is_with_its_place(hold),
            // The server has granted the lock to this waiter, so the other hold is lost.
            Some(other) => give_back(other),
            None => return false,
        }
        true
    }
}
