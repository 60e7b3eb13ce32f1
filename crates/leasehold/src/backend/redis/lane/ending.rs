//! The end of the lane's runtime: nothing polls its calls any more. Operations that give
//! something back still leave, from the queue as well, as far as the socket takes them at once;
//! operations that ask for something do not. Nobody hears the replies.
//!
//! The lane learns of the end when one of its tasks is dropped ([`Ending`]). A runtime drops its
//! tasks in any order, and each may still give something back; so whoever submits sends, and the
//! last task that has the lane closes the connection.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use redis::Cmd;
use tokio::task::unconstrained;

use super::exchange::fail;
use super::{Lane, Link};
use crate::backend::failure::{Failure, Outcome};
use crate::backend::redis::driver::LastWord;

/// Ends the lane when it is dropped with the task that has it. A runtime that ends drops a task
/// even if it never began.
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

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn runtime_ended(&self, outcome: Outcome) -> Failure {
        Failure::runtime_ended(outcome, self.node.address())
    }

    /// The runtime ends: a waiting operation leaves now or never.
    fn end(self: &Arc<Self>) {
        if self.process.is_gone() {
            return;
        }
        // Before the queue is emptied: an operation that comes behind that finds the end, and is
        // sent by its own thread.
        self.ended.store(true, Ordering::SeqCst);
        self.send_the_last();
    }

    /// Sends what is queued. Not once: other tasks give something back as they are dropped.
    pub(super) fn send_the_last(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // The calls on their way never come back, so these operations leave now as well.
        state.queue.put_back();
        // Outside of the runtime the driver finds no timer for the limit that each request has.
        let can_leave = self.is_here() && matches!(state.link, Link::Up(_));
        // An operation that asks for something stays: nobody would hear of the grant.
        let stays = state
            .queue
            .take_unless(|operation| can_leave && !operation.step.grants);
        // Operations that were refused before travel alone, so each may need a call. Operations
        // that come meanwhile are sent by their own threads.
        let most_calls = state.queue.len();
        drop(state);
        fail(stays, &self.runtime_ended(Outcome::DidNotRun));
        for _ in 0..most_calls {
            let departure = self.departures.lock();
            // Dropped at once: this call is over when it is on the connection (`send_unheard`).
            drop(self.depart(self.state.lock(), departure));
        }
        // For the calls that left before the end as well: nobody else moves their bytes any more.
        self.driver.flush();
    }

    /// A call has left, and nobody will read its reply. To be called before its request is
    /// dropped: the driver skips a request whose reply nobody waits for.
    pub(super) fn ends_unheard(&self) {
        self.left_unheard.store(true, Ordering::SeqCst);
        self.driver.flush();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // No task has the lane any more, so nothing more is sent. A client whose calls were all
        // answered need not wait here.
        if self.left_unheard.load(Ordering::SeqCst) && !self.process.is_gone() {
            let last_word = self.acks.is_some().then(|| self.last_word()).flatten();
            self.driver.close_after_the_last(self.node.clock, last_word);
        }
    }
}

impl Lane {
    /// Asks for a reply behind all others. A server that waits for confirmations reads nothing
    /// meanwhile, and forgets what it has not read when the connection ends: the last releases.
    fn last_word(&self) -> Option<LastWord> {
        // Outside of the runtime there is no timer for the request.
        let mut connection = self.is_here().then(|| self.connection()).flatten()?;
        let mut request = Box::pin(unconstrained(async move {
            let mut ping = Cmd::new();
            ping.arg("PING").arg(LAST_WORD);
            let _ = connection.send_packed_command(&ping).await;
        }));
        // The first poll hands it to the driver.
        let _ = request.as_mut().now_or_never();
        let reply = format!("{LAST_WORD}\r\n").into_bytes();
        Some(LastWord { reply, request })
    }
}

/// No reply to an operation ends like it.
const LAST_WORD: &str = "leasehold:last-word";
