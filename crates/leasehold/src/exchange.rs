//! The exchange: gives permits up for permits of the next waiter of the process, in one request.
//! Permits can't be handed over like a lock (`local/hand_over.rs`), because their holder knows
//! their ids. So the request replaces them with permits that have new ids.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Reply;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::retry::{Failed, Pauses, until_answered};
use crate::backend::step::{Operation, Value};
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::hold::{Grant, Undo};
use crate::local::Local;
use crate::local::hand_over::give_back;
use crate::local::reentry::Held;

/// A request in progress. The old permits keep their undo, and the new permits have one, too. If
/// the exchange is dropped, both are released.
pub(crate) struct Exchange {
    context: Arc<Context>,
    /// The permits that the request removes.
    held: Arc<Held>,
    /// The permits that the request adds.
    next: Undo,
    /// The operation, which changes nothing when it is repeated.
    operation: Operation,
    first: (Reply, Moment),
    back: Back,
}

/// The reason why the permits did not pass to the next waiter.
pub(crate) enum NotExchanged {
    /// The permits must be released. An earlier request may have removed them.
    GiveBack { asked_before: bool },
    /// No reply arrived. The permits are released in the background.
    Unanswered(Failure),
}

/// The return of the permits to the server unless the next waiter gets them. After it, waiters of
/// the process may ask again.
struct Back {
    local: Local,
    clock: Clock,
    done: bool,
}

impl Drop for Back {
    fn drop(&mut self) {
        if !self.done {
            self.local.hold_leaves(self.clock.now());
        }
    }
}

impl Exchange {
    /// Sends the request if the next waiter in the queue wants the same number of permits.
    pub(crate) fn leaves(context: &Arc<Context>, held: &Arc<Held>, local: &Local) -> Option<Self> {
        let hold = held.hold();
        let exchanged = hold.steps.exchanged()?;
        let terms = local.next_wants(exchanged.permits())?;
        let (steps, operation) = exchanged.next(terms.lease);
        let (clock, margin) = (context.clock, context.margin);
        // The validity counts from before the request is sent, as for any other request.
        let now = clock.now();
        let next = Grant::new(
            hold.key.clone(),
            steps,
            terms,
            clock,
            margin,
            now,
            hold.observed.clone(),
        );
        next.follows(hold);
        let mut next = Undo::arm(&context.cleanup, next);
        // A renewal that ran after the request would not find the permits.
        hold.end();
        context.watchdog.remove(hold);
        let reply = context.backend.submit(operation.clone());
        next.watch(&reply);
        let back = Back {
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
            back,
        })
    }

    /// Waits for the answer, and gives the new permits to the next waiter.
    pub(crate) async fn answered(self) -> Result<(), NotExchanged> {
        let Self {
            context,
            held,
            mut next,
            operation,
            first,
            mut back,
        } = self;
        let (backend, clock) = (&context.backend, context.clock);
        let (mut limit, mut asked_before) = (None, false);
        let goes_on = |failed: Failed<'_>| {
            // Sent again for as long as a release. The server's reply to a repeated request still
            // says whether the permits were held until now, even if only the first reply was lost.
            let limit = *limit.get_or_insert(clock.now() + backend.reply_timeout());
            let goes_on = failed.failure.may_heal() && clock.now() < limit;
            asked_before |= failed.failure.outcome == Outcome::MayHaveRun;
            goes_on
        };
        let pauses = Pauses::from(Duration::from_millis(10));
        let again = || backend.submit(operation.clone());
        let failure = match until_answered(&context.timers, first, pauses, again, goes_on).await {
            Ok(Value::Int(1)) => {
                held.disarm();
                next.granted();
                back.deliver(next);
                return Ok(());
            }
            Ok(Value::Int(0)) => {
                // Otherwise an earlier request may have added the new permits, and another client
                // has ended them.
                if !asked_before {
                    next.disarm();
                }
                // The release that follows notifies the waiters of the process.
                back.done = true;
                return Err(NotExchanged::GiveBack { asked_before });
            }
            // Both undos stay armed: the reply makes no sense.
            Ok(_) => backend.malformed(),
            Err(failure) => failure,
        };
        let outcome = match asked_before {
            true => Outcome::MayHaveRun,
            false => failure.outcome,
        };
        next.failed(outcome);
        // Both releases are queued before the waiters of the process are notified.
        drop(next);
        held.give_back_now();
        Err(NotExchanged::Unanswered(Failure { outcome, ..failure }))
    }
}

impl Back {
    fn deliver(&mut self, next: Undo) {
        let now = self.clock.now();
        // If not granted, the reply arrived after the lease was over.
        if next.hold().granted(None) {
            match self.local.give_new(next, now) {
                Ok(()) => self.done = true,
                // The first waiter in the queue now wants another number, or no waiter is left.
                Err(next) => give_back(next),
            }
        }
    }
}
