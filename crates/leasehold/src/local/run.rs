//! Waiters whose line is on the server: which of them has a hold next.
//!
//! A release can grant the lock to the first in line in the same request, if that is a waiter of the
//! same client. The server names those behind it, as long as they are of this client, too. The hold
//! is handed along this run, in its order, as any other is handed over (`hand_over.rs`): nobody is
//! overtaken. The places of those that were served go when the hold is given back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Wake as _;

use super::Record;
use super::hand_over::Candidate;
use super::line::{Seat, WaitLine};
use super::order::Number;
use crate::clock::Moment;
use crate::config::Terms;
use crate::hold::{Grant, Undo};

/// The next waiters for a hold.
pub(super) struct Run {
    /// The id of that hold. With another one, the order may have changed.
    hold: Box<str>,
    next: VecDeque<Number>,
}

impl WaitLine {
    /// Whether each waiter would have a hold on these terms, and there is one.
    fn all_want(&self, terms: Terms) -> bool {
        let state = self.state.lock();
        let all = state.candidates.len() == state.seats.len() && !state.seats.is_empty();
        all && (state.candidates.values()).all(|candidate| candidate.terms == terms)
    }

    /// The server has granted a hold to the first of these waiters, and the others are behind it.
    fn runs(&self, ids: &[String]) {
        let mut state = self.state.lock();
        let candidates = state.candidates.iter();
        let numbers: HashMap<_, _> = candidates
            .filter_map(|(number, candidate)| Some((candidate.place.as_deref()?, *number)))
            .collect();
        let next = ids.iter().map_while(|id| numbers.get(id.as_str()));
        let next = next.copied().collect();
        state.run = ids.first().map(|hold| Run {
            hold: hold.as_str().into(),
            next,
        });
    }

    /// Who has this hold next.
    pub(super) fn next_in_run(&self, hold: &Grant) -> Option<(Arc<Seat>, Arc<Candidate>)> {
        let mut state = self.state.lock();
        let mut run = state
            .run
            .take_if(|run| *run.hold == *hold.steps.wire_id())?;
        while let Some(number) = run.next.front() {
            let waits = state.candidates.get(number);
            let waits = waits.filter(|candidate| candidate.slot.is_empty());
            if let (Some(candidate), Some(seat)) = (waits, state.seats.get(number)) {
                let found = (Arc::clone(seat), Arc::clone(candidate));
                state.run = Some(run);
                return Some(found);
            }
            // It has had the hold, or has gone.
            run.next.pop_front();
        }
        None
    }
}

impl Record {
    /// Whether the server may grant the lock to whoever of this process is first in line, on these
    /// terms.
    pub(crate) fn next_is_known(&self, terms: Terms) -> bool {
        let line = self.line.line();
        line.is_some_and(|line| line.all_want(terms))
    }

    /// The server has granted the hold to the first of these waiters, and the others are behind it.
    /// `false` if it goes to nobody of them from here: the undo of that waiter's place gives it back,
    /// or its next request finds it.
    pub(crate) fn give_first(&self, mut undo: Undo, ids: &[String], now: Moment) -> bool {
        if let (Some(line), Some(first)) = (self.line.line(), ids.first()) {
            line.runs(ids);
            let next = line.next_in_run(undo.hold());
            if let Some((seat, candidate)) = next.filter(|(_, next)| next.has_place(first)) {
                line.answered(undo.hold().confirmed_at(), now);
                match candidate.give_own(undo) {
                    Ok(()) => {
                        self.turn.lock().holds(now);
                        seat.wake();
                        return true;
                    }
                    Err(returned) => undo = returned,
                }
            }
        }
        undo.hold().end();
        undo.disarm();
        false
    }
}

/// Whether the waiter has a request on its way.
#[derive(Default)]
pub(super) struct Asking {
    asks: bool,
    /// It was granted the lock meanwhile.
    missed: bool,
}

impl Candidate {
    fn has_place(&self, id: &str) -> bool {
        self.place.as_deref() == Some(id)
    }

    /// Whether the hold was granted to this waiter's own place.
    pub(super) fn owns(&self, hold: &Grant) -> bool {
        self.has_place(hold.steps.wire_id())
    }

    /// Gives it the hold of its own place. Not while it asks: the answer to that may be the same
    /// hold, which would be given back by the one and kept by the other.
    fn give_own(&self, undo: Undo) -> Result<(), Undo> {
        let mut asking = self.asking.lock();
        if asking.asks {
            asking.missed = true;
            return Err(undo);
        }
        self.slot.give(undo)
    }

    /// A request for its place leaves. `false` if it was given the lock just now.
    pub(super) fn asks(&self) -> bool {
        let mut asking = self.asking.lock();
        asking.asks = !self.slot.is_full();
        asking.missed = false;
        asking.asks
    }

    /// It was answered. `true` if the lock was granted to it behind that answer, perhaps.
    pub(super) fn was_answered(&self) -> bool {
        let mut asking = self.asking.lock();
        asking.asks = false;
        std::mem::take(&mut asking.missed)
    }
}
