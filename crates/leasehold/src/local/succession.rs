//! Waiters whose line is on the server, and which of them gets a hold next.
//!
//! A release can grant the lock, in the same request, to the first waiter in line, if that waiter
//! belongs to the same client. The reply also lists the waiters directly behind it that belong to
//! this client. The hold is handed over to them in this order, like any other hold
//! (`hand_over.rs`), so no waiter is overtaken. When the hold is released, the places of all
//! waiters that have had it are removed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Wake as _;

use super::Record;
use super::hand_over::{HoldWaiter, give_back};
use super::line::{WaitLine, WaiterWaker};
use super::order::Number;
use crate::clock::Moment;
use crate::config::Terms;
use crate::hold::{Grant, Undo};

/// The next waiters for a hold.
pub(super) struct Succession {
    /// The id of that hold. If another hold has replaced this one, the order may have changed.
    hold: Box<str>,
    next: VecDeque<Number>,
}

impl WaitLine {
    /// Returns whether there is a waiter, and every waiter would take a hold on these terms.
    fn all_want(&self, terms: Terms) -> bool {
        let state = self.state.lock();
        let all = state.hold_waiters.len() == state.wakers.len() && !state.wakers.is_empty();
        // A waiter that was passed over still has its place on the server, which would grant the
        // lock to it.
        let all = all && state.order.len() == state.wakers.len();
        all && (state.hold_waiters.values()).all(|hold_waiter| hold_waiter.terms == terms)
    }

    /// Starts a succession. The server has granted this hold to the first of these waiters; the
    /// other waiters follow it in the queue.
    fn begin_succession(&self, hold: Undo, ids: &[String]) -> PlaceGrant {
        let mut state = self.state.lock();
        let hold_waiters = state.hold_waiters.iter();
        let numbers: HashMap<_, _> = hold_waiters
            .filter_map(|(number, hold_waiter)| Some((hold_waiter.place_id.as_deref()?, *number)))
            .collect();
        let next = ids.iter().map_while(|id| numbers.get(id.as_str()));
        let next: VecDeque<_> = next.copied().collect();
        let first = next.front().copied();
        state.succession = ids.first().map(|hold| Succession {
            hold: hold.as_str().into(),
            next,
        });
        let Some(first) = first else {
            return PlaceGrant::WaiterGone(hold);
        };
        let (waker, hold_waiter) = (state.wakers.get(&first), state.hold_waiters.get(&first));
        let (Some(waker), Some(hold_waiter)) = (waker, hold_waiter) else {
            return PlaceGrant::WaiterGone(hold);
        };
        // The order is locked, so the waiter can't be passed over between this check and `give`.
        if state.order.contains(first) && hold_waiter.terms == hold.hold().terms() {
            return match hold_waiter.slot.give(hold) {
                Ok(()) => PlaceGrant::Given(Arc::clone(waker)),
                Err(hold) => PlaceGrant::WaiterGone(hold),
            };
        }
        match hold_waiter.slot.close_empty() {
            true => PlaceGrant::WaiterStalled(hold),
            false => PlaceGrant::WaiterGone(hold),
        }
    }

    /// Returns the waiter that gets this hold next.
    pub(super) fn next_in_succession(
        &self,
        hold: &Grant,
    ) -> Option<(Arc<WaiterWaker>, Arc<HoldWaiter>)> {
        let mut state = self.state.lock();
        let mut succession = state
            .succession
            .take_if(|succession| *succession.hold == *hold.steps.wire_id())?;
        while let Some(number) = succession.next.front() {
            let waits = state.hold_waiters.get(number);
            let waits = waits.filter(|hold_waiter| hold_waiter.slot.is_empty());
            let waits = waits.filter(|_| state.order.contains(*number));
            if let (Some(hold_waiter), Some(waker)) = (waits, state.wakers.get(number)) {
                let found = (Arc::clone(waker), Arc::clone(hold_waiter));
                state.succession = Some(succession);
                return Some(found);
            }
            // This waiter has had the hold, has left, or was passed over.
            succession.next.pop_front();
        }
        None
    }
}

impl Record {
    /// Returns whether the server may grant the lock, on these terms, to whichever waiter of this
    /// process is first in line.
    pub(crate) fn all_waiters_want_this(&self, terms: Terms) -> bool {
        let line = self.line.line();
        line.is_some_and(|line| line.all_want(terms))
    }

    /// Gives the hold to the first of these waiters, to which the server has granted it. The other
    /// waiters follow it in the queue. Returns `false` if the first waiter did not get the hold.
    pub(crate) fn grant_first(&self, hold: Undo, ids: &[String], now: Moment) -> bool {
        let Some(line) = self.line.line() else {
            drop_unreleased(hold);
            return false;
        };
        let confirmed_at = hold.hold().confirmed_at();
        match line.begin_succession(hold, ids) {
            PlaceGrant::Given(waker) => {
                line.answered(confirmed_at, now);
                self.slice.lock().begin(now);
                waker.wake();
                return true;
            }
            PlaceGrant::WaiterGone(hold) => drop_unreleased(hold),
            PlaceGrant::WaiterStalled(hold) => give_back(hold),
        }
        false
    }
}

/// The outcome for a hold that the server has granted to the place of a waiter.
enum PlaceGrant {
    /// The waiter has the hold, and must be woken.
    Given(Arc<WaiterWaker>),
    /// The waiter has left, and its place was removed. Or the waiter already has the hold, from the
    /// reply to its own request.
    WaiterGone(Undo),
    /// The waiter is not polled. Nothing more is given to it in this place.
    WaiterStalled(Undo),
}

/// Drops a hold without a release, because the undo of a waiter's place gives the same hold back,
/// or because the waiter's guard has that undo.
pub(super) fn drop_unreleased(mut hold: Undo) {
    hold.hold().end();
    hold.disarm();
}

impl HoldWaiter {
    fn has_place_id(&self, id: &str) -> bool {
        self.place_id.as_deref() == Some(id)
    }

    /// Returns whether the hold was granted to this waiter's own place.
    pub(super) fn owns(&self, hold: &Grant) -> bool {
        self.has_place_id(hold.steps.wire_id())
    }

    /// Notes that the server has granted the waiter's own request, with the hold for its place.
    /// Returns `false` if a release had already granted that hold, and it has been given back.
    pub(super) fn accept_own_grant(&self) -> bool {
        if self.slot.close_empty() {
            return true;
        }
        match self.slot.take_back(|_| true) {
            Some(hold) if self.owns(hold.hold()) => drop_unreleased(hold),
            // The server has granted the lock to this waiter, so the hold that was handed over is
            // lost.
            Some(other) => give_back(other),
            None => return false,
        }
        true
    }
}
