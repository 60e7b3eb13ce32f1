//! The waiter's side of an operation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Lane;
use super::carry::Carried;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::redis::queue::{QueueTicket, QueuedOperation};
use crate::backend::route::Route;
use crate::backend::step::{Operation, Value};

/// A future that resolves to the reply to an operation in the queue.
pub(crate) struct QueuedReply {
    ticket: QueueTicket,
    receiver: oneshot::Receiver<Result<Value, Failure>>,
    grants: bool,
    pub(super) lane: Arc<Lane>,
    /// The operation's call, if this future carries it.
    pub(super) carried: Option<Arc<Carried>>,
}

impl QueuedReply {
    /// Creates an operation for the queue, and the future for its reply.
    pub(crate) fn new(
        operation: Operation,
        route: Route,
        arrival: u64,
        lane: Arc<Lane>,
    ) -> (QueuedOperation, Self) {
        let grants = operation.step.grants;
        let (waiting, ticket, receiver) = QueuedOperation::new(operation, route, arrival);
        let queued = Self {
            ticket,
            receiver,
            grants,
            lane,
            carried: None,
        };
        (waiting, queued)
    }

    pub(crate) fn ticket(&self) -> QueueTicket {
        self.ticket.clone()
    }

    fn poll_carried(&mut self, context: &mut Context<'_>) {
        if let Some(carried) = &self.carried
            && carried.poll(&self.lane.runtime, context).is_ready()
        {
            self.carried = None;
        }
    }
}

impl Future for QueuedReply {
    type Output = Result<Value, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_carried(context);
        if self.carried.is_some() {
            // The receiver must not have this task's waker yet. The poll of the call delivers the
            // reply, so the task would wake itself, and another thread with it.
            return Poll::Pending;
        }
        Pin::new(&mut self.receiver).poll(context).map(|reply| {
            reply.unwrap_or_else(|_| {
                // The task that carried the call ended with its runtime.
                Err(self.lane.runtime_ended(Outcome::MayHaveRun))
            })
        })
    }
}

impl Drop for QueuedReply {
    fn drop(&mut self) {
        // An operation that does not grant anything, like a release, runs even without a waiter.
        if self.grants {
            self.ticket.give_up();
        }
        // A task reads the reply instead. If the operation took something, its undo runs after the
        // operation.
        if let Some(carried) = self.carried.take() {
            carried.take_over(&self.lane.runtime);
        }
    }
}
