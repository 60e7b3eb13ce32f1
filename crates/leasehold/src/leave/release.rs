//! The request that releases a hold on the server.

use std::sync::Arc;
use std::time::Duration;

use super::unknown_outcome;
use crate::backend::Reply;
use crate::backend::failure::Outcome;
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::Value;
use crate::clock::Moment;
use crate::context::Context;
use crate::error::Result;
use crate::hold::cleanup::was_ours;
use crate::hold::confirm::{Confirmation, ConfirmationMark};
use crate::hold::watchdog::why_lost;
use crate::hold::{Asked, Grant, Undo};
use crate::local::RecordRef;
use crate::local::reentry::Held;

/// A release that was sent. The undo of its hold stays armed until the reply arrives. So if the
/// future is dropped or the reply is lost, the hold is released in the background.
pub(super) struct ReleaseRequest {
    context: Arc<Context>,
    held: Arc<Held>,
    local: Option<RecordRef>,
    /// The last of the earlier holders in this process, which also wait for the reply.
    mark: ConfirmationMark,
    /// The number of this client's own connections that the release notifies.
    own_connections: Option<i64>,
    /// Whether the server grants the lock to the next waiter, if that waiter belongs to this
    /// process.
    pub(super) grants_next: bool,
    /// Whether an earlier request may have released the hold.
    sent_before: bool,
}

impl ReleaseRequest {
    pub(super) fn send(
        context: &Arc<Context>,
        held: &Arc<Held>,
        local: Option<RecordRef>,
        sent_before: bool,
    ) -> (Self, (Reply, Moment)) {
        let (backend, steps) = (&context.backend, &held.hold().steps);
        let counts = local.is_some() && backend.counts_listeners();
        let channel = counts.then(|| steps.counted_channel()).flatten();
        let own_connections = channel.map(|channel| i64::from(backend.channels().is_live(channel)));
        let mark = held.hold().mark_end();
        let now = context.clock.now();
        let terms = held.hold().terms();
        let is_known = |local: &RecordRef| local.all_waiters_want_this(terms);
        // Replicas do not confirm a hold that a release grants.
        let is_confirmed = terms.acknowledged.is_needed();
        let next = (steps.queue_steps().filter(|_| !is_confirmed))
            .filter(|_| local.as_ref().is_some_and(is_known));
        let notifies = match &local {
            // If no other client is subscribed, there is no client to notify.
            Some(local) => !local.slice.lock().no_other_listener(),
            None => held.was_contended(),
        };
        let notifies = notifies && held.has_slice() && backend.counts_listeners();
        let release = match next {
            Some(queued) => queued.release_to_next(terms.first_lease()),
            None => {
                // Build the notifying release only if it is needed: most releases notify no client.
                let notify = notifies.then(|| steps.release_and_notify()).flatten();
                notify.unwrap_or_else(|| steps.release())
            }
        };
        let first = (backend.submit_by(release, held.hold().undo_route()), now);
        if let Some(local) = local.as_ref().filter(|_| next.is_none()) {
            local.hold_returned(now);
        }
        let release = Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            local,
            mark,
            own_connections,
            grants_next: next.is_some(),
            sent_before,
        };
        (release, first)
    }

    /// Gives the lock to the waiter to which the server has granted it.
    fn grant_next(&self, sent: Moment, reply: Value) {
        let (Some(local), true) = (&self.local, self.grants_next) else {
            return;
        };
        let Context {
            watchdog,
            cleanup,
            clock,
            margin,
            ..
        } = &*self.context;
        let (hold, now) = (self.held.hold(), clock.now());
        let queued = hold.steps.queue_steps();
        let next = queued.and_then(|queued| Some((queued, queued.read_next(reply)?)));
        let is_given = next.is_some_and(|(queued, ids)| {
            let Some(id) = ids.first() else { return false };
            let steps = queued.of_waiter(id.clone());
            let terms = hold.terms();
            // The lease of the new hold counts from the release of `hold`, which was sent before
            // the server granted the new hold.
            let asked = Asked {
                lease: terms.first_lease(),
                at: sent,
            };
            let grant = Grant::new(
                hold.key.clone(),
                steps,
                terms,
                *clock,
                *margin,
                asked,
                hold.observed.clone(),
            );
            grant.follows(hold);
            let mut undo = Undo::arm(cleanup, grant);
            undo.granted();
            let grant = Arc::clone(undo.hold());
            grant.granted(None);
            let is_given = local.grant_first(undo, &ids, now);
            if is_given {
                watchdog.watch(&grant);
            }
            is_given
        });
        if !is_given {
            local.hold_returned(now);
        }
    }

    /// Notes how many other clients the release has notified. `receivers_plus_one` is 1 plus the
    /// number of connections.
    fn published(&self, receivers_plus_one: i64, sent: Moment) {
        if let (Some(local), Some(own_connections)) = (&self.local, self.own_connections) {
            let others = u32::try_from(receivers_plus_one - 1 - own_connections).ok();
            local.slice.lock().published(others);
        }
        if self.local.is_some() || receivers_plus_one <= 1 || !self.held.has_slice() {
            return;
        }
        // A task that is alone in its process does not need a slice as long as no other client
        // wants the lock. So the process does not have to remember anything about most names.
        let (backend, hold) = (&self.context.backend, self.held.hold());
        let is_subscribed = (hold.steps.counted_channel())
            .is_some_and(|channel| backend.channels().is_live(channel));
        if backend.counts_listeners() && receivers_plus_one > 1 + i64::from(is_subscribed) {
            let local = self.context.locals.of(&hold.key);
            local.slice.lock().others_wait(hold.granted_at(), sent);
        }
    }

    /// Sends the release again until it is answered, or until the time limit has passed.
    pub(super) async fn answered(self, first: (Reply, Moment)) -> Result<()> {
        let (backend, timers) = (&self.context.backend, &self.context.timers);
        let hold = self.held.hold();
        let sent = first.1;
        let (mut limit, mut sent_before) = (None, self.sent_before);
        let should_retry = |failed: FailedAttempt<'_>| {
            // Retry for as long as one more reply may take. After that, the caller gets the error,
            // and the undo continues in the background.
            let limit = *limit.get_or_insert(timers.now() + backend.reply_timeout());
            let should_retry = failed.failure.may_heal() && timers.now() < limit;
            sent_before |= should_retry && failed.failure.outcome == Outcome::MayHaveRun;
            should_retry
        };
        let pauses = RetryDelays::from(Duration::from_millis(10));
        let release = || backend.submit_by(hold.steps.release(), hold.undo_route());
        let reply = until_answered(timers, first, pauses, release, should_retry).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                self.grant_next(sent, Value::Nil);
                return Err(failure.into_error(&hold.key));
            }
        };
        self.held.given_back();
        // If the reply is a list, it contains the id of the new holder.
        let is_granted = self.grants_next && matches!(reply, Value::List(_));
        if was_ours(&reply) || is_granted {
            hold.deliver(self.mark, &Confirmation::Held);
            if let Value::Int(receivers_plus_one) = reply {
                self.published(receivers_plus_one, sent);
            }
            self.grant_next(sent, reply);
            return Ok(());
        }
        self.grant_next(sent, Value::Nil);
        let reason = match hold.steps.read_release(&reply) {
            Some(reason) => reason,
            None => why_lost(backend, hold, timers).await,
        };
        // An earlier request that was not answered may have released the hold, which was then held
        // until that request. Only the reason `Forced` is certain, because the server records which
        // holds were ended by force.
        if sent_before && !reason.is_forced() {
            hold.deliver(self.mark, &Confirmation::Unknown);
            return Err(unknown_outcome(&self.context, hold));
        }
        Err(hold.was_lost(self.mark, reason))
    }
}
