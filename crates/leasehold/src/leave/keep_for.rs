//! The request that keeps a lock locked for a fixed time after its holder has left.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Reply;
use crate::backend::failure::{Cause, Failure, Outcome, accept_refusal};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::route::Route;
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::confirm::{Confirmation, ConfirmationMark};
use crate::hold::watchdog::why_lost;
use crate::key::Key;
use crate::local::reentry::Held;

/// The reason why locks of some kinds can't be kept.
pub(crate) const SEVERAL_HOLDERS: &str =
    "several clients can hold a lock of this kind at the same time";

pub(crate) fn cannot_keep(key: &Key, why: &str) -> Error {
    let message = format!(
        "the hold of `{key}` can't be kept for a fixed time: {why}; release it, or use a plain, \
         fenced or fair lock without an owner"
    );
    Error::new(ErrorKind::Misuse, message).with_key(key)
}

/// A request that was sent to keep a hold for a fixed time. For this process, the hold has ended:
/// no guard relies on it. No renewal begins after this request, and the server refuses a renewal
/// that arrives after it.
pub(crate) struct KeepForRequest {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The operation that sets the lease. It may shorten the hold.
    operation: Operation,
    route: Route,
    /// The last of the earlier holders in this process, which also wait for the reply.
    mark: ConfirmationMark,
}

impl KeepForRequest {
    pub(crate) fn send(
        context: &Arc<Context>,
        held: &Arc<Held>,
        operation: Operation,
        route: Route,
    ) -> (Self, (Reply, Moment)) {
        let keeping = Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            operation,
            route,
            // Take the mark before the request is sent, so that the task that asks for
            // confirmations ends: the reply to this request is a confirmation, too.
            mark: held.hold().mark_end(),
        };
        let first = (keeping.ask(), context.clock.now());
        (keeping, first)
    }

    /// Sends the request. A copy that arrives late prolongs the hold by its delay.
    fn ask(&self) -> Reply {
        let backend = &self.context.backend;
        backend.submit_by(self.operation.clone(), self.route)
    }

    /// Sends the request again until it is answered, or until the time limit has passed.
    pub(crate) async fn answered(self, first: (Reply, Moment)) -> Result<()> {
        let (context, hold) = (&self.context, self.held.hold());
        let (mut limit, mut unanswered) = (None, None);
        let should_retry = |failed: FailedAttempt<'_>| {
            let now = context.clock.now();
            let limit = *limit.get_or_insert(now + context.backend.reply_timeout());
            if failed.failure.outcome == Outcome::MayHaveRun {
                unanswered = Some(failed.failure.clone());
            }
            failed.failure.may_heal() && now < limit
        };
        let pauses = RetryDelays::from(Duration::from_millis(10));
        let again = || self.ask();
        let reply = until_answered(&context.timers, first, pauses, again, should_retry).await;
        let is_there = |reply: &Value| matches!(reply, Value::Int(1..));
        match accept_refusal(reply, is_there) {
            Ok(Value::Int(1..)) => {
                hold.deliver(self.mark, &Confirmation::Held);
                Ok(())
            }
            Ok(Value::Int(..=-1)) => {
                hold.deliver(self.mark, &Confirmation::Held);
                Err(cannot_keep(&hold.key, "its owner also holds the read lock"))
            }
            Ok(_) => Err(self.gone_error(unanswered).await),
            Err(failure) => {
                // Earlier holders only need the server's own reply, without confirmations of
                // replicas.
                let confirmation = match failure.cause {
                    Cause::Unconfirmed(_) => Confirmation::Held,
                    _ => Confirmation::Failed(failure.clone()),
                };
                hold.deliver(self.mark, &confirmation);
                Err(failure.into_error_of_renewal(&hold.key))
            }
        }
    }

    /// Returns the error for a hold that no longer exists. `unanswered` is the failure of an
    /// earlier request, which may have kept the hold for a time that has already passed.
    async fn gone_error(&self, unanswered: Option<Failure>) -> Error {
        let (context, hold) = (&self.context, self.held.hold());
        if let Some(failure) = unanswered {
            hold.deliver(self.mark, &Confirmation::Unknown);
            return failure.into_error_of_renewal(&hold.key);
        }
        let reason = why_lost(&context.backend, hold, &context.timers).await;
        hold.was_lost(self.mark, reason)
    }
}
