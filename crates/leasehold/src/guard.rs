//! The common part of all guards: a share in a hold, and the ways to give it up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::Reply;
use crate::backend::failure::{Cause, Failure, Outcome, accept_refusal};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::config::{Terms, check_lease};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::cleanup::was_ours;
use crate::hold::confirm::{Confirmation, ConfirmationMark, ask_for_confirmation};
use crate::hold::watchdog::{Renewed, try_renew, why_lost};
use crate::hold::{ClaimId, Grant, GuardExit, Hold, Joined, Limit, Undo, next_number};
use crate::key::Key;
use crate::local::RecordRef;
use crate::local::reentry::Held;
use crate::loss::LossReason;
use crate::observe::{Ended, Entry};
use crate::owner::Owner;
use crate::permit_swap::{NotSwapped, PermitSwap};

/// One guard's share in a hold. If it is dropped, it is given up in the background.
pub(crate) struct Share {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The claim of this guard on the hold.
    claim: ClaimId,
    given_up: bool,
    /// The number of its holder. Readers that share a hold have different numbers.
    number: u64,
    /// Whether the server granted the hold to this guard's own request.
    has_own_grant: bool,
    /// Whether the guard belongs to one of several readers that share the hold. Each reader learns
    /// from the server whether it had the lock.
    shares_read_hold: bool,
    /// Whether the hold is being converted into another one, as in a downgrade: no guard may join
    /// it, and it is not renewed.
    is_converting: bool,
    /// The duration of its acquire.
    waited: Duration,
}

impl Share {
    /// Returns the first share in a new hold.
    pub(crate) fn new(context: Arc<Context>, held: Arc<Held>) -> Self {
        Self::with_claim(context, held, ClaimId::FIRST)
    }

    /// Returns the share of the next holder, to whom the hold was handed over.
    pub(crate) fn handed_over(context: Arc<Context>, held: Arc<Held>) -> Self {
        let mut share = Self::new(context, held);
        share.has_own_grant = false;
        share
    }

    /// Returns the share of a reader in a hold that other readers may join. The reader is the first
    /// one, or has joined.
    pub(crate) fn of_reader(
        context: Arc<Context>,
        held: Arc<Held>,
        joined: Option<Joined>,
    ) -> Self {
        let claim = joined.map_or(ClaimId::FIRST, |joined| joined.claim);
        let mut share = Self::with_claim(context, held, claim);
        share.shares_read_hold = true;
        if joined.is_some() {
            share.number = next_number();
        }
        share
    }

    /// Returns another share in a hold, for a guard that has joined it.
    pub(crate) fn joined(context: Arc<Context>, held: Arc<Held>, joined: Joined) -> Self {
        Self::with_claim(context, held, joined.claim)
    }

    fn with_claim(context: Arc<Context>, held: Arc<Held>, claim: ClaimId) -> Self {
        Self {
            number: held.hold().number,
            context,
            held,
            claim,
            given_up: false,
            has_own_grant: claim == ClaimId::FIRST,
            shares_read_hold: false,
            is_converting: false,
            waited: Duration::ZERO,
        }
    }

    /// Notes the acquire that has led to this share.
    pub(crate) fn after(mut self, ended: Ended) -> Self {
        self.waited = ended.waited;
        if ended.is_enabled() {
            self.hold().acquired(&ended, self.entry());
        }
        self
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how the acquire has obtained the hold.
    pub(crate) fn entry(&self) -> Entry {
        match self.claim == ClaimId::FIRST {
            true => Entry::Granted,
            false => Entry::Joined,
        }
    }

    /// Returns the terms that this guard asked for.
    pub(crate) fn terms(&self) -> Terms {
        self.hold().terms_of(self.claim)
    }

    /// Resolves with the reason when this guard's hold is lost. The future does not borrow the
    /// share: if it lives on in another task, the guard's drop must still release the lock.
    pub(crate) fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let (hold, claim) = (
            self.hold().clone(),
            self.shares_read_hold.then_some(self.claim),
        );
        let timers = self.context.timers.clone();
        async move {
            match claim {
                Some(claim) => hold.lost_by(claim, &timers).await,
                None => hold.lost(&timers).await,
            }
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn has_own_grant(&self) -> bool {
        self.has_own_grant
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    pub(crate) fn hold(&self) -> &Hold {
        self.held.hold()
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.held.owner()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Gives the share up, and reports whether the lock was held until now.
    pub(crate) async fn release(self) -> Result<()> {
        let span = self.hold().release_span();
        let held = span.is_enabled().then(|| Arc::clone(&self.held));
        let result = self.give_up().await;
        if let Some(held) = held {
            span.released(&result, held.was_handed_over());
        }
        result
    }

    async fn give_up(mut self) -> Result<()> {
        // Set first: if this future is dropped, the share must not leave the hold a second time.
        // The undo, which is still armed, then sends the release.
        self.given_up = true;
        let hold = Arc::clone(self.hold());
        // Checked before the guard leaves: its own limit may be the one that is over.
        let loss = hold.loss();
        // Registered before the share leaves: the last share may be given up at any time, and the
        // server's reply to that release also applies to this share.
        let confirmation =
            (self.shares_read_hold && loss.is_none()).then(|| hold.await_confirmation());
        match hold.leave(self.claim) {
            GuardExit::Shared { moves_due } => {
                self.reschedule(moves_due);
                if let Some((confirmation, starts_task)) = confirmation {
                    return self.confirmed(confirmation, starts_task).await;
                }
            }
            GuardExit::LeftToLease => self.leave_to_lease(),
            GuardExit::Last => {
                drop(confirmation);
                return self.leave_last(loss).await;
            }
        }
        match loss {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&hold.key, reason)),
        }
    }

    /// Ends a hold that no guard shares any longer: hands it over to the next waiter of the
    /// process, or releases it on the server.
    async fn leave_last(&self, loss: Option<LossReason>) -> Result<()> {
        let hold = self.hold();
        // Checked only here, so that the end of a re-entry costs no system call.
        self.context.check_process(&hold.key)?;
        let local = self.held.local(&self.context.locals);
        let now = self.context.clock.now();
        if loss.is_none()
            && let Some(local) = &local
            && self.held.stays_local(local, now)
        {
            if hold.is_swapped() {
                if let Some(swap) = self.swap(local) {
                    // The next waiter needs the reply, whether this future is polled or not.
                    return self.in_background(swap).await;
                }
            } else {
                // Registered before the hold is handed over: the next holder may release it at
                // once, and the server's reply to that also applies to this share.
                let (confirmation, starts_task) = hold.await_confirmation();
                if self.held.hand_over(local, now) {
                    return self.confirmed(confirmation, starts_task).await;
                }
            }
        }
        // Ended before it is removed: a renewal in progress does not put a hold that is over back
        // into the watchdog's table.
        hold.end();
        self.context.watchdog.remove(hold);
        match loss {
            None => self.release_on_server(local).await,
            Some(reason) => {
                // Lost here, but the server may still have the hold. The undo releases it.
                self.clear_owner();
                Err(Error::lost(&hold.key, reason))
            }
        }
    }

    /// Asks the server to end the hold, and waits for its reply.
    async fn release_on_server(&self, local: Option<RecordRef>) -> Result<()> {
        let (release, first) = ReleaseRequest::send(&self.context, &self.held, local, false);
        // Cleared after the release was sent: the owner's next request must run after it.
        self.clear_owner();
        if !self.hold().has_confirmation_waiters() && !release.grants_next {
            return release.answered(first).await;
        }
        // Earlier holders wait for the same reply, or the next holder does.
        self.in_background(release.answered(first)).await
    }

    /// Swaps the permits for new ones of the next waiter of the process. The request has been sent
    /// when this returns. `None` if no waiter wants the same number of permits.
    fn swap(&self, local: &RecordRef) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let swap = PermitSwap::send(&self.context, &self.held, local)?;
        let (context, held) = (Arc::clone(&self.context), Arc::clone(&self.held));
        let local = local.clone();
        Some(async move {
            let sent_before = match swap.answered().await {
                Ok(()) => return Ok(()),
                Err(NotSwapped::GiveBack { sent_before }) => sent_before,
                Err(NotSwapped::Unanswered(failure)) => {
                    return Err(failure.into_error(&held.hold().key));
                }
            };
            let (release, first) = ReleaseRequest::send(&context, &held, Some(local), sent_before);
            release.answered(first).await
        })
    }

    /// Completes the end of a hold in the background, because this future may be dropped or never
    /// polled.
    async fn in_background(
        &self,
        ends: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let (sender, ended) = oneshot::channel();
        self.context.cleanup.spawn(async move {
            // If this fails, the releasing future has been dropped.
            let _ = sender.send(ends.await);
        });
        ended.await.unwrap_or_else(|_| {
            let address = self.context.backend.address();
            let ended = Failure::runtime_ended(Outcome::MayHaveRun, address);
            Err(ended.into_error(&self.hold().key))
        })
    }

    /// Waits for the server's confirmation that the hold, which now belongs to other guards, was
    /// held until it passed to them.
    async fn confirmed(
        &self,
        confirmation: oneshot::Receiver<Confirmation>,
        starts_task: bool,
    ) -> Result<()> {
        let Context {
            backend,
            timers,
            cleanup,
            ..
        } = &*self.context;
        let hold = self.hold();
        if starts_task {
            // A task asks for all holders that wait, because this future may be dropped.
            cleanup.spawn_detached(ask_for_confirmation(
                backend.clone(),
                timers.clone(),
                Arc::clone(hold),
            ));
        }
        // The same limit as for a release that is not answered.
        let limit = backend.reply_timeout() * 2;
        let failure = match timers.timeout(limit, confirmation).await {
            Some(Ok(Confirmation::Held)) => return Ok(()),
            Some(Ok(Confirmation::Lost(reason))) => return Err(Error::lost(&hold.key, reason)),
            Some(Ok(Confirmation::Unknown)) => return Err(unknown_outcome(&self.context, hold)),
            Some(Ok(Confirmation::Failed(failure))) => failure,
            Some(Err(_)) => Failure::runtime_ended(Outcome::MayHaveRun, backend.address()),
            None => {
                let what = format!("no answer within {limit:?}");
                backend.failure(Outcome::MayHaveRun, Cause::NoAnswer(what))
            }
        };
        Err(failure.into_error(&hold.key))
    }

    /// Prepares the hold for its conversion into another one: no guard can join it, and it is not
    /// renewed. Returns `false` and changes nothing if other guards share it.
    pub(crate) fn begin_conversion(&mut self) -> bool {
        self.is_converting = self.hold().end_if_last_guard();
        if self.is_converting {
            self.context.watchdog.remove(self.hold());
        }
        self.is_converting
    }

    /// Notes that the hold was converted into another one. If the share is dropped without this,
    /// the hold is released.
    pub(crate) fn finish_conversion(mut self) {
        self.given_up = true;
        self.held.disarm();
        self.clear_owner();
    }

    /// Leaves the hold to its lease: nothing is sent, nothing is renewed.
    pub(crate) fn forget(mut self) {
        self.given_up = true;
        if self.hold().forget(self.claim) == GuardExit::LeftToLease {
            self.leave_to_lease();
        }
    }

    /// Sets the lease to `span` from now, even if that is shorter, and leaves the hold to it.
    pub(crate) async fn keep_for(mut self, span: Duration) -> Result<()> {
        let (context, hold) = (Arc::clone(&self.context), Arc::clone(self.hold()));
        check_lease(span, &hold.key)?;
        context.check_lease(span, &hold.key)?;
        hold.check()?;
        let Some(operation) = hold.steps.keep_for(span) else {
            return Err(cannot_keep(
                &hold.key,
                "several clients can hold a lock of its kind at a time",
            ));
        };
        // Ended before the request is sent: no renewal begins later. If a renewal is about to be
        // sent or in flight, and arrives after the request, the server refuses it.
        if !self.begin_conversion() {
            return Err(cannot_keep(&hold.key, self.sharing_reason()));
        }
        let (keeping, first) = KeepForRequest::send(&context, &self.held, operation);
        // Done after the request, because the owner's next request must run later. Done before its
        // reply, because an unknown outcome leaves the hold to its lease, old or new.
        self.given_up = true;
        self.leave_to_lease();
        if !hold.has_confirmation_waiters() {
            return keeping.answered(first).await;
        }
        // Earlier holders wait for the same reply.
        self.in_background(keeping.answered(first)).await
    }

    /// Returns why the hold can't end with this guard.
    fn sharing_reason(&self) -> &'static str {
        match self.hold().guards() {
            0 | 1 => "another guard of its owner has left it to its lease",
            _ => "other guards of its owner share it",
        }
    }

    fn leave_to_lease(&self) {
        self.held.disarm();
        self.context.watchdog.remove(self.hold());
        self.clear_owner();
        self.context.leave_queue(self.hold());
    }

    fn clear_owner(&self) {
        self.held.clear_owner();
    }

    /// Extends the hold to at least `lease` from now.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<()> {
        let hold = self.hold();
        self.context.check_process(&hold.key)?;
        check_lease(lease, &hold.key)?;
        self.context.check_lease(lease, &hold.key)?;
        hold.check()?;
        // Only the claim is raised. The deadline moves when the server has confirmed it.
        hold.raise(self.claim, lease)?;
        self.confirm().await
    }

    /// Makes sure that the hold lasts as long as a re-entry wants. Costs no round trip unless the
    /// re-entry wants more time than the server has confirmed.
    pub(crate) async fn confirm_reentry(&self, joined: Joined) -> Result<()> {
        if joined.must_confirm {
            return self.confirm().await;
        }
        self.reschedule(joined.moves_due);
        Ok(())
    }

    /// Updates the watchdog if a guard that has joined or left has moved the time at which the hold
    /// is due. Most guards move nothing, so a re-entry usually costs nothing.
    pub(crate) fn reschedule(&self, moves_due: bool) {
        if moves_due {
            self.context.watchdog.watch(self.hold());
        }
    }

    /// Ends the hold `limit` from `since` at the latest.
    pub(crate) fn limit(&self, limit: Duration, since: Moment) {
        self.hold().limit(self.claim, limit, since);
        self.context.watchdog.watch(self.hold());
    }

    /// Returns when this guard's maximum hold time is over, and how long it is.
    pub(crate) fn max_hold_limit(&self) -> Option<Limit> {
        self.hold().limit_of(self.claim)
    }

    /// Limits the hold to the time at which its predecessor would have ended.
    pub(crate) fn inherit_limit(&self, before: Option<Limit>) {
        if let Some((end, limit)) = before {
            self.limit(limit, end - limit);
        }
    }

    /// Asks the server for the lease that the guards want. Fails if the hold is lost, or no server
    /// answers.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let hold = self.hold();
        // The full lease that the guards want, although the watchdog may ask for less: an extension
        // works even after the client was closed.
        let lease = hold.lease_to_request(self.context.clock.now());
        match try_renew(&self.context.backend, &self.context.timers, hold, lease).await {
            Ok(Renewed::Yes) => {
                self.context.watchdog.watch(hold);
                // The reply may have arrived after the hold was lost.
                hold.check()
            }
            Ok(Renewed::Lost) => Err(Error::lost(
                &hold.key,
                hold.loss().unwrap_or(LossReason::Deleted),
            )),
            Err(failure) => Err(failure.into_error_of_renewal(&hold.key)),
        }
    }

    /// Renews the hold, even one with a fixed lease, until the returned value is dropped. Used for
    /// a wait during which the hold must last.
    pub(crate) fn renew_for_wait(&self) -> RenewForWait {
        let hold = Arc::clone(self.hold());
        hold.renew_for_wait(true);
        self.context.watchdog.watch(&hold);
        RenewForWait(hold)
    }

    /// Runs `work` until it is done or the lock is lost.
    pub(crate) async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // Polled first: after a loss the work must not continue for another step.
            biased;
            reason = self.lost() => Err(Error::lost(&self.hold().key, reason)),
            output = work => Ok(output),
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.hold().deadline()
    }
}

pub(crate) fn cannot_keep(key: &Key, why: &str) -> Error {
    let message = format!(
        "the hold of `{key}` can't be kept for a fixed time: {why}; release it, or use a plain, \
         fenced or fair lock without an owner"
    );
    Error::new(ErrorKind::Misuse, message).with_key(key)
}

/// A request that was sent to keep a hold for a fixed time. The hold is over here: no guard relies
/// on it. No renewal begins later, and the server refuses a renewal that arrives later.
struct KeepForRequest {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The only operation that makes a hold shorter.
    operation: Operation,
    /// The earlier holders of the hold in this process.
    mark: ConfirmationMark,
}

impl KeepForRequest {
    fn send(
        context: &Arc<Context>,
        held: &Arc<Held>,
        operation: Operation,
    ) -> (Self, (Reply, Moment)) {
        let keeping = Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            operation,
            // Taken before the request is sent, so that the task that asks for confirmations ends:
            // the reply to this request is a confirmation, too.
            mark: held.hold().mark_end(),
        };
        let first = (keeping.ask(), context.clock.now());
        (keeping, first)
    }

    /// Sends the request. A copy that arrives late prolongs the hold by its delay.
    fn ask(&self) -> Reply {
        let (backend, route) = (&self.context.backend, self.held.hold().route());
        backend.submit_by(self.operation.clone(), route)
    }

    /// Sends the request again until it is answered, or the time limit is over.
    async fn answered(self, first: (Reply, Moment)) -> Result<()> {
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
    /// earlier request, which may have kept the hold for a time that is over.
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

/// A release that was sent. The undo of its hold stays armed until the reply arrives. So if the
/// future is dropped or the reply is lost, the hold is released in the background.
struct ReleaseRequest {
    context: Arc<Context>,
    held: Arc<Held>,
    local: Option<RecordRef>,
    /// The earlier holders of the hold in this process.
    mark: ConfirmationMark,
    /// Number of connections of this client among those that the release notifies.
    own_connections: Option<i64>,
    /// Whether the server grants the lock to the next waiter, if that waiter belongs to this
    /// process.
    grants_next: bool,
    /// Whether an earlier request may have released the hold.
    sent_before: bool,
}

impl ReleaseRequest {
    fn send(
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
            Some(queued) => queued.release_to_next(terms.lease),
            None => {
                // Created only if it is sent: most releases notify no client.
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
            // Its lease counts from the release, which was sent before the grant.
            let grant = Grant::new(
                hold.key.clone(),
                steps,
                hold.terms(),
                *clock,
                *margin,
                sent,
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
        // A task that is alone in its process needs no slice as long as no other client wants the
        // lock. So for most names nothing is remembered.
        let (backend, hold) = (&self.context.backend, self.held.hold());
        let is_subscribed = (hold.steps.counted_channel())
            .is_some_and(|channel| backend.channels().is_live(channel));
        if backend.counts_listeners() && receivers_plus_one > 1 + i64::from(is_subscribed) {
            let local = self.context.locals.of(&hold.key);
            local.slice.lock().others_wait(hold.granted_at(), sent);
        }
    }

    /// Sends the release again until it is answered, or the time limit is over.
    async fn answered(self, first: (Reply, Moment)) -> Result<()> {
        let (backend, timers) = (&self.context.backend, &self.context.timers);
        let hold = self.held.hold();
        let sent = first.1;
        let (mut limit, mut sent_before) = (None, self.sent_before);
        let should_retry = |failed: FailedAttempt<'_>| {
            // Retried for as long as one more reply may take. Then the caller gets the error, and
            // the undo continues in the background.
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
        // A list contains the id of the new holder.
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
        // until that request. Only the reason `Forced` is certain, because the server notes which
        // holds were ended by force.
        if sent_before && reason != LossReason::Forced {
            hold.deliver(self.mark, &Confirmation::Unknown);
            return Err(unknown_outcome(&self.context, hold));
        }
        Err(hold.was_lost(self.mark, reason))
    }
}

/// Returns the error for a hold that no longer exists, if a request without a reply may have ended
/// it, or its lease is over.
fn unknown_outcome(context: &Context, hold: &Grant) -> Error {
    let what =
        "the hold no longer exists, and an earlier request about it was not answered in time";
    let cause = Cause::NoAnswer(what.into());
    let failure = context.backend.failure(Outcome::MayHaveRun, cause);
    failure.into_error_with(
        &hold.key,
        "nothing is held now; if the request did not run, the hold had ended before it",
    )
}

/// A hold that is renewed during a wait.
pub(crate) struct RenewForWait(Arc<Grant>);

impl Drop for RenewForWait {
    fn drop(&mut self) {
        self.0.renew_for_wait(false);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.given_up {
            return;
        }
        let exit = match self.is_converting {
            true => Some(GuardExit::Last),
            false => self.hold().leave_in(self.context.process(), self.claim),
        };
        match exit {
            // Most re-entries end here. Their end costs no system call.
            Some(GuardExit::Shared { moves_due: false }) => {}
            // The parent process still has the hold.
            _ if self.context.is_forked() => {}
            None => {}
            Some(GuardExit::Shared { moves_due }) => self.reschedule(moves_due),
            Some(GuardExit::LeftToLease) => self.leave_to_lease(),
            Some(GuardExit::Last) => {
                let local = self.held.local(&self.context.locals);
                let now = self.context.clock.now();
                if let Some(local) = &local
                    && !self.is_converting
                    && self.held.stays_local(local, now)
                {
                    if self.hold().is_swapped() {
                        if let Some(swap) = self.swap(local) {
                            self.context.cleanup.spawn(async move {
                                // If the swap fails, the undo continues, and no caller waits for
                                // it.
                                drop(swap.await);
                            });
                            return;
                        }
                    } else if self.held.hand_over(local, now) {
                        return;
                    }
                }
                self.hold().end();
                self.context.watchdog.remove(self.hold());
                // The release is queued before the owner's slot is cleared: the owner's next
                // request runs after it.
                self.held.give_back_now();
                self.clear_owner();
                if let Some(local) = &local {
                    local.hold_returned(now);
                }
            }
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.hold();
        f.debug_struct("Guard")
            .field("name", &hold.key)
            .field("hold", &self.number)
            .field("loss", &hold.loss())
            .finish_non_exhaustive()
    }
}
