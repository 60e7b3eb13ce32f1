//! Giving permits up for those of the next waiter of the process, in one request. Their ids are known
//! to their holder, so they can't be handed over as a lock is (`local/hand_over.rs`): the request puts
//! permits with new ids into their place.

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

/// A request that is on its way. What it takes out has its undo still, and so has what it puts in:
/// if this is dropped, both go back.
pub(crate) struct Exchange {
    context: Arc<Context>,
    /// What it takes out.
    held: Arc<Held>,
    /// What it puts in.
    next: Undo,
    /// A second time it changes nothing.
    operation: Operation,
    first: (Reply, Moment),
    back: Back,
}

/// The permits did not go to the next waiter.
pub(crate) enum NotExchanged {
    /// They have to be given back; an earlier request may have taken them out.
    GiveBack { asked_before: bool },
    /// Nobody answers. They are given back in the background.
    Unanswered(Failure),
}

/// Unless the next waiter gets them, permits go back to the server, and the waiters of the process
/// may ask behind that.
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
    /// Sends the request if the next waiter in line wants as many permits as nobody has a share in
    /// any more.
    pub(crate) fn leaves(context: &Arc<Context>, held: &Arc<Held>, local: &Local) -> Option<Self> {
        let hold = held.hold();
        let exchanged = hold.steps.exchanged()?;
        let terms = local.next_wants(exchanged.permits())?;
        let (steps, operation) = exchanged.next(terms.lease);
        let (clock, margin) = (context.clock, context.margin);
        // The validity counts from before the request leaves, as that of any other.
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
        // A renewal behind the request would find the permits gone.
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
            // As long as a release is sent again. Asked again, the server says whether the permits
            // were held until now, also if only its answer was lost.
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
                // Otherwise an earlier request may have put them in, and somebody has ended them.
                if !asked_before {
                    next.disarm();
                }
                // Whoever gives them back tells the waiters of the process.
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
        // Both are queued before the waiters of the process hear of it.
        drop(next);
        held.give_back_now();
        Err(NotExchanged::Unanswered(Failure { outcome, ..failure }))
    }
}

impl Back {
    fn deliver(&mut self, next: Undo) {
        let now = self.clock.now();
        // Otherwise the answer came when the lease was over.
        if next.hold().granted(None) {
            match self.local.give_new(next, now) {
                Ok(()) => self.done = true,
                // The first in line wants other ones by now, or nobody waits any more.
                Err(next) => give_back(next),
            }
        }
    }
}
