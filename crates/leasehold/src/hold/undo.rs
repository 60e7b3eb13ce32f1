//! The undo of a request: what gives back what the server has granted, or may have granted.

use std::sync::Arc;

use super::Grant;
use super::cleanup::{Cleanup, Return};
use crate::backend::failure::Outcome;
use crate::backend::{Reply, Ticket};
use crate::clock::Moment;

/// The undo of a hold. Armed before the request for it leaves, it travels into the guard; dropped
/// while armed it gives the hold back. A request that has not left is taken out of the queue; one
/// that has is followed by its release on the same connection.
///
/// If it were armed later, a future that is dropped while the reply travels would leave the lock
/// held for a whole lease.
///
/// A waiter that has a place in a line on the server asks again and again with one id, and keeps
/// one undo from its first request on: the release gives back the lock or the place, whichever
/// there is.
pub(crate) struct Undo<H: Return = Grant> {
    cleanup: Arc<Cleanup>,
    hold: Arc<H>,
    state: Armed,
    /// An earlier request for the same hold has taken a place in line, or may have.
    in_line: bool,
    /// Until when the server could still run an earlier request that it never answered.
    late_until: Option<Moment>,
}

enum Armed {
    No,
    /// Nobody knows yet what became of the request; with its ticket once it is queued.
    Asking(Option<Ticket>),
    /// Refused for now, with a place in line.
    Waiting,
    Held,
}

impl<H: Return> Undo<H> {
    pub(crate) fn arm(cleanup: &Arc<Cleanup>, hold: Arc<H>) -> Self {
        Self {
            cleanup: Arc::clone(cleanup),
            hold,
            state: Armed::Asking(None),
            in_line: false,
            late_until: None,
        }
    }

    /// The request is in the queue, or on its way, as `reply`.
    pub(crate) fn watch(&mut self, reply: &Reply) {
        self.state = Armed::Asking(Some(reply.ticket()));
    }

    /// The server has granted it.
    pub(crate) fn granted(&mut self) {
        self.state = Armed::Held;
    }

    /// The server has not granted it, and keeps its place in line.
    pub(crate) fn in_line(&mut self) {
        self.in_line = true;
        self.state = Armed::Waiting;
    }

    /// There is nothing to undo.
    pub(crate) fn disarm(&mut self) {
        self.state = Armed::No;
    }

    /// The server has taken the hold back.
    pub(crate) fn given_back(&mut self) {
        self.disarm();
        // An earlier request may arrive behind the release, and take the lock for nobody.
        if self.may_come_late() {
            self.cleanup.give_back_again(Arc::clone(&self.hold));
        }
    }

    /// The request has failed: armed only if it, or one before it, may have run.
    pub(crate) fn failed(&mut self, outcome: Outcome) {
        match outcome {
            // Still armed: an earlier request has a place in line.
            Outcome::DidNotRun if self.in_line => self.state = Armed::Waiting,
            Outcome::DidNotRun => self.disarm(),
            Outcome::MayHaveRun => {
                // It may have taken one, which the next request has to know.
                self.in_line = true;
                let limit = self.cleanup.backend.reply_timeout();
                self.late_until = Some(self.cleanup.timers.now() + limit);
            }
        }
    }

    /// Whoever drops this gives back what `other` would have given back, too: the same hold, or a
    /// place that goes with this one's.
    pub(crate) fn takes_over(&mut self, mut other: Self) {
        self.late_until = self.late_until.max(other.late_until);
        other.disarm();
    }

    /// An earlier request may take what it asks for when nobody wants it any more.
    pub(crate) fn comes_late(&self) -> bool {
        self.may_come_late()
    }

    /// Moves it out; what is left has nothing to undo.
    pub(crate) fn take(&mut self) -> Self {
        let rest = Self {
            cleanup: Arc::clone(&self.cleanup),
            hold: Arc::clone(&self.hold),
            state: Armed::No,
            in_line: false,
            late_until: None,
        };
        std::mem::replace(self, rest)
    }

    fn may_come_late(&self) -> bool {
        let now = self.cleanup.timers.now();
        self.late_until.is_some_and(|moment| now < moment)
    }

    pub(crate) fn hold(&self) -> &Arc<H> {
        &self.hold
    }

    /// Whether this process is a child of the one that has armed it.
    pub(crate) fn is_of_a_parent(&self) -> bool {
        self.cleanup.is_of_a_parent()
    }

    /// Does now what dropping it would do; afterwards it is disarmed.
    pub(crate) fn give_back_now(&mut self) {
        let state = std::mem::replace(&mut self.state, Armed::No);
        if matches!(state, Armed::No) || self.is_of_a_parent() {
            return;
        }
        let unanswered = match state {
            // It may arrive behind its release, so that goes twice.
            Armed::Asking(Some(ticket)) if ticket.may_have_run() => true,
            // It never left, and no earlier request has left anything.
            Armed::Asking(_) if !self.in_line => return,
            _ => self.may_come_late(),
        };
        self.cleanup.give_back(Arc::clone(&self.hold), unanswered);
    }
}

impl<H: Return> Drop for Undo<H> {
    fn drop(&mut self) {
        self.give_back_now();
    }
}
