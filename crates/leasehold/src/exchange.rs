//! Giving permits up for those of the next waiter of the process, in one request. Their ids are known
//! to their holder, so they can't be handed over as a lock is (`local/hand_over.rs`): the request puts
//! permits with new ids into their place.

use std::sync::Arc;

use crate::backend::Reply;
use crate::backend::failure::Outcome;
use crate::backend::step::Value;
use crate::clock::Clock;
use crate::context::Context;
use crate::hold::{Grant, Undo};
use crate::local::Local;
use crate::local::hand_over::give_back;
use crate::local::reentry::Held;

/// A request that is on its way. What it takes out has its undo still, and so has what it puts in:
/// if this is dropped, both go back.
pub(crate) struct Exchange {
    /// What it takes out.
    held: Arc<Held>,
    /// What it puts in.
    next: Undo,
    reply: Reply,
    back: Back,
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
    pub(crate) fn leaves(context: &Context, held: &Arc<Held>, local: &Local) -> Option<Self> {
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
        let reply = context.backend.submit(operation);
        next.watch(&reply);
        let back = Back {
            local: local.clone(),
            clock,
            done: false,
        };
        Some(Self {
            held: Arc::clone(held),
            next,
            reply,
            back,
        })
    }

    /// Waits for the answer, and gives the new permits to the next waiter. In an error's place: whether
    /// the old ones may have been taken out. They have to be given back then.
    pub(crate) async fn answered(self) -> Result<(), Outcome> {
        let Self {
            held,
            mut next,
            reply,
            mut back,
        } = self;
        let outcome = match reply.await {
            Ok(Value::Int(1)) => {
                held.disarm();
                next.granted();
                back.deliver(next);
                return Ok(());
            }
            Ok(Value::Int(0)) => {
                next.disarm();
                Outcome::DidNotRun
            }
            // Both undos stay armed: the reply makes no sense.
            Ok(_) => Outcome::MayHaveRun,
            Err(failure) => {
                next.failed(failure.outcome);
                failure.outcome
            }
        };
        // Whoever gives them back tells the waiters of the process.
        back.done = true;
        Err(outcome)
    }

    /// The same when the guard was dropped.
    pub(crate) async fn in_background(self) {
        let (held, local, clock) = (
            Arc::clone(&self.held),
            self.back.local.clone(),
            self.back.clock,
        );
        if self.answered().await.is_err() {
            held.give_back_now();
            local.hold_leaves(clock.now());
        }
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
