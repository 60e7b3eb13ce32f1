//! The undo of a request, which releases what the server has granted or may have granted.

use std::sync::Arc;

use super::Grant;
use super::cleanup::{Cleanup, Releasable};
use crate::backend::failure::Outcome;
use crate::backend::{Reply, Ticket};
use crate::clock::Moment;

/// The undo of a hold. It is armed before the request for the hold is sent, and then moves into the
/// guard. If it is dropped while armed, it releases the hold: it removes the request from the
/// connection's queue if the request was not sent yet, or else sends the release after the request
/// on the same connection.
///
/// If it were armed later, a future that is dropped before the reply arrives would leave the lock
/// held for a whole lease.
///
/// A waiter with a place in a queue on the server repeats its request with one id. It keeps one
/// undo from its first request on: the release gives back the lock or the place, whichever exists.
pub(crate) struct Undo<H: Releasable = Grant> {
    cleanup: Arc<Cleanup>,
    hold: Arc<H>,
    state: UndoState,
    /// Whether an earlier request for the same hold has taken a place in the queue, or may have
    /// taken one.
    may_be_queued: bool,
    /// The time until which the server could still run an earlier request that was never answered.
    late_until: Option<Moment>,
}

enum UndoState {
    Disarmed,
    /// The outcome of the request is not known yet. The ticket is set once the request is queued.
    InFlight(Option<Ticket>),
    /// The request was not granted yet, but has a place in the queue.
    Queued,
    Held,
}

impl<H: Releasable> Undo<H> {
    pub(crate) fn arm(cleanup: &Arc<Cleanup>, hold: Arc<H>) -> Self {
        Self {
            cleanup: Arc::clone(cleanup),
            hold,
            state: UndoState::InFlight(None),
            may_be_queued: false,
            late_until: None,
        }
    }

    /// Notes that the request is in the connection's queue or was sent; `reply` will be its answer.
    pub(crate) fn watch(&mut self, reply: &Reply) {
        self.state = UndoState::InFlight(Some(reply.ticket()));
    }

    /// Notes that the server has granted the request.
    pub(crate) fn granted(&mut self) {
        self.state = UndoState::Held;
    }

    /// Notes that the server has not granted the request, and keeps its place in the queue.
    pub(crate) fn mark_queued(&mut self) {
        self.may_be_queued = true;
        self.state = UndoState::Queued;
    }

    /// Returns whether the hold has a place in the queue, as far as the client knows: the last
    /// request was answered with a place, or it did not run, but an earlier one had taken a place.
    pub(crate) fn has_place(&self) -> bool {
        matches!(self.state, UndoState::Queued)
    }

    /// Disarms the undo, because nothing must be undone.
    pub(crate) fn disarm(&mut self) {
        self.state = UndoState::Disarmed;
    }

    /// Notes that the server has released the hold.
    pub(crate) fn given_back(&mut self) {
        self.disarm();
        // An earlier request may arrive after the release, and take the lock although no holder
        // wants it.
        if self.may_arrive_late() {
            self.cleanup.give_back_again(Arc::clone(&self.hold));
        }
    }

    /// Notes that the request has failed. The undo stays armed only if this request or an earlier
    /// one may have run.
    pub(crate) fn failed(&mut self, outcome: Outcome) {
        match outcome {
            // The undo stays armed, because an earlier request has a place in the queue.
            Outcome::DidNotRun if self.may_be_queued => self.state = UndoState::Queued,
            Outcome::DidNotRun => self.disarm(),
            Outcome::MayHaveRun => {
                // The request may have taken a place, so the undo stays armed even if the next
                // request does not run.
                self.may_be_queued = true;
                let limit = self.cleanup.backend.reply_timeout();
                self.late_until = Some(self.cleanup.timers.now() + limit);
            }
        }
    }

    /// Takes over the duty of `other`: this undo also releases what `other` would have released:
    /// the same hold, or a place that is removed with this undo's place.
    pub(crate) fn take_over(&mut self, mut other: Self) {
        self.late_until = self.late_until.max(other.late_until);
        other.disarm();
    }

    /// Returns whether an earlier request may still be granted after its waiter has stopped
    /// waiting.
    pub(crate) fn has_late_request(&self) -> bool {
        self.may_arrive_late()
    }

    /// Moves the undo out, and leaves a disarmed one.
    pub(crate) fn take(&mut self) -> Self {
        let rest = Self {
            cleanup: Arc::clone(&self.cleanup),
            hold: Arc::clone(&self.hold),
            state: UndoState::Disarmed,
            may_be_queued: false,
            late_until: None,
        };
        std::mem::replace(self, rest)
    }

    fn may_arrive_late(&self) -> bool {
        let now = self.cleanup.timers.now();
        self.late_until.is_some_and(|moment| now < moment)
    }

    pub(crate) fn hold(&self) -> &Arc<H> {
        &self.hold
    }

    /// Returns whether this process is a child of the process that armed the undo.
    pub(crate) fn is_forked(&self) -> bool {
        self.cleanup.is_forked()
    }

    /// Does now what dropping the undo would do, and disarms the undo.
    pub(crate) fn give_back_now(&mut self) {
        let state = std::mem::replace(&mut self.state, UndoState::Disarmed);
        if matches!(state, UndoState::Disarmed) || self.is_forked() {
            return;
        }
        let unanswered = match state {
            // The request may arrive after its release, so the release is sent twice.
            UndoState::InFlight(Some(ticket)) if ticket.may_have_run() => true,
            // The request was never sent, and no earlier request has left anything.
            UndoState::InFlight(_) if !self.may_be_queued => return,
            _ => self.may_arrive_late(),
        };
        self.cleanup.give_back(Arc::clone(&self.hold), unanswered);
    }
}

impl<H: Releasable> Drop for Undo<H> {
    fn drop(&mut self) {
        self.give_back_now();
    }
}
