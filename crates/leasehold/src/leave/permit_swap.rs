//! The permit swap: one request that replaces the permits of a holder with permits for the next
//! waiter of the process. Permits can't be handed over like a lock (`local/hand_over.rs`), because
//! their holder knows their ids. So the next waiter's permits have new ids.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Reply;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::hold::{Asked, Grant, Undo};
use crate::local::RecordRef;
use crate::local::hand_over::give_back;
use crate::local::reentry::Held;

/// A swap in progress. The old permits keep their undo, and the new permits have one, too. If the
/// swap is dropped, both are released.
pub(super) struct PermitSwap {
    context: Arc<Context>,
    /// The permits that the request removes.
    held: Arc<Held>,
    /// The permits that the request adds.
    next: Undo,
    /// The operation. Repeating it changes nothing.
    operation: Operation,
    first: (Reply, Moment),
    undelivered: UndeliveredPermits,
}

/// The reason why the permits did not pass to the next waiter.
pub(super) enum NotSwapped {
    /// The permits must be released. An earlier request may have removed them.
    GiveBack { sent_before: bool },
    /// No reply arrived. The permits are released in the background.
    Unanswered(Failure),
}

/// A guard for permits that the next waiter might not get. If they return to the server instead,
/// its drop wakes the waiters of the process, so that they ask the server again.
struct UndeliveredPermits {
    local: RecordRef,
    clock: Clock,
    done: bool,
}

impl Drop for UndeliveredPermits {
    fn drop(&mut self) {
        if !self.done {
            self.local.hold_returned(self.clock.now());
        }
    }
}

impl PermitSwap {
    /// Sends the request if the next waiter in the queue wants the same number of permits.
    pub(super) fn send(
        context: &Arc<Context>,
        held: &Arc<Held>,
        local: &RecordRef,
    ) -> Option<Self> {
        let hold = held.hold();
        let swap_steps = hold.steps.swap_steps()?;
        let terms = local.next_wants(swap_steps.permits())?;
        let (steps, operation) = swap_steps.swap(terms.lease);
        let (clock, margin) = (context.clock, context.margin);
        // The validity counts from before the request is sent, as for any other request.
        let now = clock.now();
        let next = Grant::new(
            hold.key.clone(),
            steps,
            terms,
            clock,
            margin,
            Asked {
                lease: terms.lease,
                at: now,
            },
            hold.observed.clone(),
        );
        next.follows(hold);
        let mut next = Undo::arm(&context.cleanup, next);
        // A renewal after this request would not find the permits.
        hold.end();
        context.watchdog.remove(hold);
        let reply = context.backend.submit(operation.clone());
        next.watch(&reply);
        let undelivered = UndeliveredPermits {
            local: local.clone(),
            clock,
            done: false,
        };
        Some(Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            next,
            operation,
            first: (reply, now),
            undelivered,
        })
    }

    /// Waits for the answer, and gives the new permits to the next waiter.
    pub(super) async fn answered(self) -> Result<(), NotSwapped> {
        let Self {
            context,
            held,
            mut next,
            operation,
            first,
            mut undelivered,
        } = self;
        let (backend, clock) = (&context.backend, context.clock);
        let (mut limit, mut sent_before) = (None, false);
        let should_retry = |failed: FailedAttempt<'_>| {
            // The request is repeated for as long as a release would be. Even if the reply to the
            // first request was lost, the reply to a repeated one still says whether the permits
            // were held until now.
            let limit = *limit.get_or_insert(clock.now() + backend.reply_timeout());
            let should_retry = failed.failure.may_heal() && clock.now() < limit;
            sent_before |= failed.failure.outcome == Outcome::MayHaveRun;
            should_retry
        };
        let pauses = RetryDelays::from(Duration::from_millis(10));
        let again = || backend.submit(operation.clone());
        let failure =
            match until_answered(&context.timers, first, pauses, again, should_retry).await {
                Ok(Value::Int(1)) => {
                    held.disarm();
                    next.granted();
                    undelivered.deliver(next);
                    return Ok(());
                }
                Ok(Value::Int(0)) => {
                    // If a request was sent before, the undo stays armed: that request may have
                    // added the new permits, and another client may have ended them since then.
                    if !sent_before {
                        next.disarm();
                    }
                    // The release that follows notifies the waiters of the process.
                    undelivered.done = true;
                    return Err(NotSwapped::GiveBack { sent_before });
                }
                // The undos of the old and the new permits stay armed, because the reply makes no
                // sense.
                Ok(_) => backend.malformed(),
                Err(failure) => failure,
            };
        let outcome = match sent_before {
            true => Outcome::MayHaveRun,
            false => failure.outcome,
        };
        next.failed(outcome);
        // The releases of the new and the old permits are queued before the waiters of the process
        // are notified.
        drop(next);
        held.give_back_now();
        Err(NotSwapped::Unanswered(Failure { outcome, ..failure }))
    }
}

impl UndeliveredPermits {
    fn deliver(&mut self, next: Undo) {
        let now = self.clock.now();
        // `false` means that the reply arrived after the lease had ended.
        if next.hold().granted(None) {
            match self.local.give_new(next, now) {
                Ok(()) => self.done = true,
                // The first waiter in line now wants another number of permits, or no waiter
                // remains.
                Err(next) => give_back(next),
            }
        }
    }
}
