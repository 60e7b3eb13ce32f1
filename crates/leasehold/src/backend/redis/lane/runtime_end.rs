//! The end of the lane's runtime. Nothing polls the lane's calls any more. Operations that don't
//! grant anything, like releases, are still sent, even from the queue, as far as the socket takes
//! them at once. Operations that would grant something are not sent. The replies are never read.
//!
//! The lane learns of the end when one of its tasks is dropped ([`LaneDropGuard`]). A runtime drops
//! its tasks in any order, and each may still release something. So each thread that submits an
//! operation also sends it, and the last task that has the lane closes the connection.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use redis::Cmd;
use tokio::task::unconstrained;

use super::{Lane, LinkState};
use crate::backend::failure::{Failure, Outcome};
use crate::backend::redis::driver::FinalPing;
use crate::backend::redis::queue::fail;

/// A guard that ends the lane when it is dropped with its task. A runtime that ends drops even a
/// task that never began.
pub(crate) struct LaneDropGuard(Arc<Lane>);

impl Deref for LaneDropGuard {
    type Target = Arc<Lane>;

    fn deref(&self) -> &Arc<Lane> {
        &self.0
    }
}

impl Drop for LaneDropGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Lane {
    pub(crate) fn drop_guard(self: &Arc<Self>) -> LaneDropGuard {
        LaneDropGuard(Arc::clone(self))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn runtime_ended(&self, outcome: Outcome) -> Failure {
        Failure::runtime_ended(outcome, self.node.address())
    }

    /// Ends the lane with its runtime: a waiting operation is sent now or never.
    fn end(self: &Arc<Self>) {
        if self.process.is_forked() {
            return;
        }
        // Set `ended` before the queue is emptied: an operation that arrives later finds that the
        // lane has ended, and its own thread sends it.
        self.ended.store(true, Ordering::SeqCst);
        self.send_remaining();
    }

    /// Sends the queued operations. This may run more than once, because other tasks may release
    /// something as they are dropped.
    pub(super) fn send_remaining(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // Operations that are to be sent again wait for calls that never return. They are sent now,
        // too.
        state.queue.put_back();
        // Outside the runtime the driver finds no timer for the time limit of a request.
        let can_leave = self.in_own_runtime() && matches!(state.link, LinkState::Up(_));
        // An operation that would grant something is not sent: its grant would never be received.
        let unsent = state
            .queue
            .take_unless(|operation| can_leave && !operation.step.grants);
        // Each operation may need its own call, if the server refused it before. Operations that
        // arrive during this loop are sent by their own threads.
        let max_calls = state.queue.len();
        drop(state);
        fail(unsent, &self.runtime_ended(Outcome::DidNotRun));
        for _ in 0..max_calls {
            let departure = self.departures.lock();
            // Drop the call at once: the call is over as soon as it is on the connection
            // (`send_without_reply`).
            drop(self.depart(self.state.lock(), departure));
        }
        // This also sends the bytes of calls from before the end, because nothing else does so any
        // more.
        self.driver.flush();
    }

    /// Notes that a call was sent whose reply will never be read, and flushes its bytes. Must run
    /// before the request is dropped: the driver skips a request whose reply is no longer awaited.
    pub(super) fn flush_unanswered(&self) {
        self.sent_unanswered.store(true, Ordering::SeqCst);
        self.driver.flush();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // No task has the lane any more, so nothing more is sent. A client whose calls were all
        // answered need not wait here.
        if self.sent_unanswered.load(Ordering::SeqCst) && !self.process.is_forked() {
            let final_ping = self
                .wait_support
                .is_some()
                .then(|| self.final_ping())
                .flatten();
            self.driver.close_when_drained(self.node.clock, final_ping);
        }
    }
}

impl Lane {
    /// Sends a ping whose reply arrives after all others. While a server waits for confirmations,
    /// it does not read requests. If the connection ended during that wait, the server would never
    /// run the requests that it has not read: the last releases.
    fn final_ping(&self) -> Option<FinalPing> {
        // Outside the runtime there is no timer for the request.
        let mut connection = self.in_own_runtime().then(|| self.connection()).flatten()?;
        let mut request = Box::pin(unconstrained(async move {
            let mut ping = Cmd::new();
            ping.arg("PING").arg(FINAL_PING);
            let _ = connection.send_packed_command(&ping).await;
        }));
        // The first poll gives the request to the driver.
        let _ = request.as_mut().now_or_never();
        let reply = format!("{FINAL_PING}\r\n").into_bytes();
        Some(FinalPing { reply, request })
    }
}

/// The end of the last reply. No reply to an operation ends like this.
const FINAL_PING: &str = "leasehold:last-word";
