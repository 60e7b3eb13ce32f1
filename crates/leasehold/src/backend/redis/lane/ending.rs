//! What the lane does when its runtime ends: nothing polls its calls any more. What gives
//! something back still leaves, as far as the socket takes it at once; nobody hears the reply.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Lane, Link, fail};
use crate::backend::step::{Failure, Outcome};

/// Ends the lane when it is dropped: with the runtime of the task that has it, also of one
/// that never began.
pub(crate) struct Ending(Arc<Lane>);

impl Deref for Ending {
    type Target = Arc<Lane>;

    fn deref(&self) -> &Arc<Lane> {
        &self.0
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Lane {
    pub(crate) fn ending(self: &Arc<Self>) -> Ending {
        Ending(Arc::clone(self))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn runtime_ended(&self, outcome: Outcome) -> Failure {
        Failure::runtime_ended(outcome, Arc::clone(&self.address))
    }

    /// The runtime ends: what waits leaves now or never.
    fn end(self: &Arc<Self>) {
        self.ended.store(true, Ordering::SeqCst);
        self.send_the_last();
    }

    /// Also what other tasks give back as they are dropped with the runtime.
    pub(super) fn send_the_last(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.put_back();
        let can_leave = self.is_here() && matches!(state.link, Link::Up(_));
        let (leaves, stays) = std::mem::take(&mut state.queue)
            .into_iter()
            .partition(|waiting| can_leave && !waiting.operation.step.grants);
        state.queue = leaves;
        let most_calls = state.queue.len();
        drop(state);
        fail(stays, &self.runtime_ended(Outcome::DidNotRun));
        for _ in 0..most_calls {
            let departure = self.departures.lock();
            // It is over when it is on the connection.
            drop(self.depart(self.state.lock(), departure));
        }
        self.driver.flush();
    }

    /// A call has left, and nobody will read its reply. Before it is dropped: the driver
    /// leaves out what nobody waits for.
    pub(crate) fn ends_unheard(&self) {
        self.left_unheard.store(true, Ordering::SeqCst);
        self.driver.flush();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.left_unheard.load(Ordering::SeqCst) {
            self.driver.close_after_the_last(self.clock);
        }
    }
}
