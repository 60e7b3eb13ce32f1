//! The common part of all guards: a share in a hold, and the ways to give it up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::Reply;
use crate::backend::failure::{Cause, Failure, Outcome, refusal_counts};
use crate::backend::retry::{Failed, Pauses, until_answered};
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::config::{Terms, check_lease};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::exchange::{Exchange, NotExchanged};
use crate::hold::acks::{Mark, Word, ask_for_word};
use crate::hold::cleanup::was_ours;
use crate::hold::watchdog::{Renewed, try_renew, why_lost};
use crate::hold::{ClaimId, Grant, Hold, Joined, Leaving, Limit, Undo, next_number};
use crate::key::Key;
use crate::local::Local;
use crate::local::reentry::Held;
use crate::loss::LossReason;
use crate::observe::{Ended, Way};
use crate::owner::Owner;

/// One guard's share in a hold. If it is dropped, it is given up in the background.
pub(crate) struct Share {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The claim of this guard on the hold.
    claim: ClaimId,
    left: bool,
    /// The number of its holder. Readers that share a hold have one number each.
    number: u64,
    /// Whether the server granted the hold to this guard's own request.
    was_asked_for: bool,
    /// Whether the guard belongs to one of several readers that share the hold. Each reader learns
    /// from the server whether it had the lock.
    of_crowd: bool,
    /// Whether the hold is becoming another one, as in a downgrade: no guard may join it, and it is
    /// not renewed.
    turns: bool,
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
        share.was_asked_for = false;
        share
    }

    /// Returns the share of a reader in a hold that other readers may join. The reader is the first
    /// one, or has joined.
    pub(crate) fn of_crowd(context: Arc<Context>, held: Arc<Held>, joined: Option<Joined>) -> Self {
        let claim = joined.map_or(ClaimId::FIRST, |joined| joined.claim);
        let mut share = Self::with_claim(context, held, claim);
        share.of_crowd = true;
        if joined.is_some() {
            share.number = next_number();
        }
        share
    }

    /// Returns another share in a hold that [`Hold::join`] has counted.
    pub(crate) fn joined(context: Arc<Context>, held: Arc<Held>, joined: Joined) -> Self {
        Self::with_claim(context, held, joined.claim)
    }

    fn with_claim(context: Arc<Context>, held: Arc<Held>, claim: ClaimId) -> Self {
        Self {
            number: held.hold().number,
            context,
            held,
            claim,
            left: false,
            was_asked_for: claim == ClaimId::FIRST,
            of_crowd: false,
            turns: false,
            waited: Duration::ZERO,
        }
    }

    /// Notes the acquire that has led to this share.
    pub(crate) fn after(mut self, ended: Ended) -> Self {
        self.waited = ended.waited;
        if ended.is_heard() {
            self.hold().acquired(&ended, self.way());
        }
        self
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how the acquire has obtained the hold.
    pub(crate) fn way(&self) -> Way {
        match self.claim == ClaimId::FIRST {
            true => Way::Granted,
            false => Way::Entered,
        }
    }

    /// Returns the terms that this guard asked for.
    pub(crate) fn terms(&self) -> Terms {
        self.hold().terms_of(self.claim)
    }

    /// Resolves with the reason when this guard's hold is lost. The future does not borrow the
    /// share: if it lives on in another task, the guard's drop must still release the lock.
    pub(crate) fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let (hold, claim) = (self.hold().clone(), self.of_crowd.then_some(self.claim));
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

    pub(crate) fn was_asked_for(&self) -> bool {
        self.was_asked_for
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
        let told = self.hold().releases();
        let held = told.is_heard().then(|| Arc::clone(&self.held));
        let result = self.give_up().await;
        if let Some(held) = held {
            told.released(&result, held.was_handed_over());
        }
        result
    }

    async fn give_up(mut self) -> Result<()> {
        // First: if this future is dropped, the share must not leave the hold a second time. The
        // undo, which is still armed, then sends the release.
        self.left = true;
        let hold = Arc::clone(self.hold());
        // Asked before the guard leaves: its own limit may be the one that is over.
        let loss = hold.loss();
        // Registered before the share leaves: the last share may be given up at any time, and the
        // server's reply to that release also applies to this share.
        let word = (self.of_crowd && loss.is_none()).then(|| hold.await_word());
        match hold.leave(self.claim) {
            Leaving::Shared { moves_look } => {
                self.look_again(moves_look);
                if let Some((word, begins)) = word {
                    return self.confirmed(word, begins).await;
                }
            }
            Leaving::LeftToLease => self.leave_to_lease(),
            Leaving::Last => {
                drop(word);
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
        // Not at each guard's end: the end of a re-entry costs no system call.
        self.context.check_process(&hold.key)?;
        let local = self.held.local(&self.context.locals);
        let now = self.context.clock.now();
        if loss.is_none()
            && let Some(local) = &local
            && self.held.stays(local, now)
        {
            if hold.is_exchanged() {
                if let Some(exchange) = self.exchange(local) {
                    // The next waiter needs the reply, whether this future is polled or not.
                    return self.in_background(exchange).await;
                }
            } else {
                // Registered before the hold is handed over: the next holder may release it at
                // once, and the server's reply to that also applies to this share.
                let (word, begins) = hold.await_word();
                if self.held.hand_over(local, now) {
                    return self.confirmed(word, begins).await;
                }
            }
        }
        // Ended before it is removed: a renewal in progress does not put back a hold that is over.
        hold.end();
        self.context.watchdog.remove(hold);
        match loss {
            None => self.give_back(local).await,
            Some(reason) => {
                // Lost here, but the server may still have the hold. The undo releases it.
                self.clear_owner();
                Err(Error::lost(&hold.key, reason))
            }
        }
    }

    /// Asks the server to end the hold, and waits for its reply.
    async fn give_back(&self, local: Option<Local>) -> Result<()> {
        let (release, first) = Release::leaves(&self.context, &self.held, local, false);
        // After the release was sent: the owner's next request must run after it.
        self.clear_owner();
        if !self.hold().has_waiting() && !release.grants {
            return release.answered(first).await;
        }
        // Earlier holders wait for the same reply, or the next holder does.
        self.in_background(release.answered(first)).await
    }

    /// Exchanges the permits for new ones of the next waiter of the process. The request has been
    /// sent when this returns. `None` if no waiter wants the same number of permits.
    fn exchange(&self, local: &Local) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let exchange = Exchange::leaves(&self.context, &self.held, local)?;
        let (context, held) = (Arc::clone(&self.context), Arc::clone(&self.held));
        let local = local.clone();
        Some(async move {
            let asked_before = match exchange.answered().await {
                Ok(()) => return Ok(()),
                Err(NotExchanged::GiveBack { asked_before }) => asked_before,
                Err(NotExchanged::Unanswered(failure)) => {
                    return Err(failure.into_error(&held.hold().key));
                }
            };
            let (release, first) = Release::leaves(&context, &held, Some(local), asked_before);
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

    /// Waits for the server's word that the hold, which now belongs to other guards, was held until
    /// it passed to them.
    async fn confirmed(&self, word: oneshot::Receiver<Word>, begins: bool) -> Result<()> {
        let Context {
            backend,
            timers,
            cleanup,
            ..
        } = &*self.context;
        let hold = self.hold();
        if begins {
            // A task, not this future: the task asks for all that wait, and this future may be
            // dropped.
            cleanup.carry(ask_for_word(
                backend.clone(),
                timers.clone(),
                Arc::clone(hold),
            ));
        }
        // The same limit as for a release that is not answered.
        let limit = backend.reply_timeout() * 2;
        let failure = match timers.timeout(limit, word).await {
            Some(Ok(Word::Held)) => return Ok(()),
            Some(Ok(Word::Lost(reason))) => return Err(Error::lost(&hold.key, reason)),
            Some(Ok(Word::Unknown)) => return Err(nobody_knows(&self.context, hold)),
            Some(Ok(Word::Failed(failure))) => failure,
            Some(Err(_)) => Failure::runtime_ended(Outcome::MayHaveRun, backend.address()),
            None => {
                let what = format!("no answer within {limit:?}");
                backend.failure(Outcome::MayHaveRun, Cause::NoAnswer(what))
            }
        };
        Err(failure.into_error(&hold.key))
    }

    /// Prepares the hold to become another one in one step: no guard can join it, and it is not
    /// renewed. Returns `false` and changes nothing if other guards share it.
    pub(crate) fn begin_to_turn(&mut self) -> bool {
        self.turns = self.hold().end_with_last();
        if self.turns {
            self.context.watchdog.remove(self.hold());
        }
        self.turns
    }

    /// Notes that the hold has become another one. If the share is dropped without this call, the
    /// hold is released.
    pub(crate) fn has_turned(mut self) {
        self.left = true;
        self.held.disarm();
        self.clear_owner();
    }

    /// Leaves the hold to its lease: nothing is sent, nothing is renewed.
    pub(crate) fn forget(mut self) {
        self.left = true;
        if self.hold().forget(self.claim) == Leaving::LeftToLease {
            self.leave_to_lease();
        }
    }

    /// Leaves the hold to its lease, which is `span` from now on, even if that is shorter.
    pub(crate) async fn keep_for(mut self, span: Duration) -> Result<()> {
        let (context, hold) = (Arc::clone(&self.context), Arc::clone(self.hold()));
        check_lease(span, &hold.key)?;
        context.check_lease(span, &hold.key)?;
        hold.check()?;
        let Some(operation) = hold.steps.keep_for(span) else {
            return Err(not_kept(
                &hold.key,
                "several clients can hold a lock of its kind at a time",
            ));
        };
        // Ended before the request is sent: no renewal begins later. If a renewal is about to be
        // sent or on its way, and arrives after the request, the server refuses it.
        if !self.begin_to_turn() {
            return Err(not_kept(&hold.key, self.who_shares()));
        }
        let (keeping, first) = Keeping::leaves(&context, &self.held, operation);
        // After the request, because the owner's next request must run later. Before its reply,
        // because an unknown outcome leaves the hold to its lease, old or new.
        self.left = true;
        self.leave_to_lease();
        if !hold.has_waiting() {
            return keeping.answered(first).await;
        }
        // Earlier holders wait for the same reply.
        self.in_background(keeping.answered(first)).await
    }

    /// Returns why the hold can't end with this guard.
    fn who_shares(&self) -> &'static str {
        match self.hold().guards() {
            0 | 1 => "another guard of its owner has left it to its lease",
            _ => "other guards of its owner share it",
        }
    }

    fn leave_to_lease(&self) {
        self.held.disarm();
        self.context.watchdog.remove(self.hold());
        self.clear_owner();
        self.context.leave_line(self.hold());
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
    pub(crate) async fn enter_again(&self, joined: Joined) -> Result<()> {
        if joined.must_confirm {
            return self.confirm().await;
        }
        self.look_again(joined.moves_look);
        Ok(())
    }

    /// Updates the watchdog if a guard that has joined or left has moved the time of its next look.
    /// Most guards move nothing, so a re-entry usually costs nothing.
    pub(crate) fn look_again(&self, moves_look: bool) {
        if moves_look {
            self.context.watchdog.keep(self.hold());
        }
    }

    /// Ends the hold `limit` from `since` at the latest.
    pub(crate) fn limit(&self, limit: Duration, since: Moment) {
        self.hold().limit(self.claim, limit, since);
        self.context.watchdog.keep(self.hold());
    }

    /// Returns when this guard's maximum hold time is over, and how long it is.
    pub(crate) fn limited(&self) -> Option<Limit> {
        self.hold().limit_of(self.claim)
    }

    /// Limits the hold to the time at which its predecessor would have ended.
    pub(crate) fn limit_as(&self, before: Option<Limit>) {
        if let Some((end, limit)) = before {
            self.limit(limit, end - limit);
        }
    }

    /// Asks the server for the lease that the guards want. Fails if the hold is lost, or no server
    /// answers.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let hold = self.hold();
        // All that the guards want, not what the watchdog may ask for: an extension works even
        // after the client was closed.
        let lease = hold.lease_to_ask(self.context.clock.now());
        match try_renew(&self.context.backend, &self.context.timers, hold, lease).await {
            Ok(Renewed::Yes) => {
                self.context.watchdog.keep(hold);
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
    pub(crate) fn keep(&self) -> Kept {
        let hold = Arc::clone(self.hold());
        hold.keep(true);
        self.context.watchdog.keep(&hold);
        Kept(hold)
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

pub(crate) fn not_kept(key: &Key, why: &str) -> Error {
    let message = format!(
        "the hold of `{key}` can't be kept for a fixed time: {why}; release it, or use a plain, \
         fenced or fair lock without an owner"
    );
    Error::new(ErrorKind::Misuse, message).with_key(key)
}

/// A request that leaves a hold to a span, and that was sent. The hold is over here: no guard
/// relies on it. No renewal begins later, and the server refuses a renewal that arrives later.
struct Keeping {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The only operation that makes a hold shorter.
    operation: Operation,
    /// The earlier holders of the hold in this process.
    mark: Mark,
}

impl Keeping {
    fn leaves(
        context: &Arc<Context>,
        held: &Arc<Held>,
        operation: Operation,
    ) -> (Self, (Reply, Moment)) {
        let keeping = Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            operation,
            // Taken before the request is sent: a task that renews the hold to get a word of the
            // server stops, because the reply to this request is that word.
            mark: held.hold().ends_or_turns(),
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
        let (mut limit, mut unheard) = (None, None);
        let goes_on = |failed: Failed<'_>| {
            let now = context.clock.now();
            let limit = *limit.get_or_insert(now + context.backend.reply_timeout());
            if failed.failure.outcome == Outcome::MayHaveRun {
                unheard = Some(failed.failure.clone());
            }
            failed.failure.may_heal() && now < limit
        };
        let pauses = Pauses::from(Duration::from_millis(10));
        let again = || self.ask();
        let reply = until_answered(&context.timers, first, pauses, again, goes_on).await;
        let is_there = |reply: &Value| matches!(reply, Value::Int(1..));
        match refusal_counts(reply, is_there) {
            Ok(Value::Int(1..)) => {
                hold.tell(self.mark, &Word::Held);
                Ok(())
            }
            Ok(Value::Int(..=-1)) => {
                hold.tell(self.mark, &Word::Held);
                Err(not_kept(&hold.key, "its owner also holds the read lock"))
            }
            Ok(_) => Err(self.is_gone(unheard).await),
            Err(failure) => {
                // Earlier holders only need the server's own reply, without confirmations of
                // replicas.
                let word = match failure.cause {
                    Cause::Unconfirmed(_) => Word::Held,
                    _ => Word::Failed(failure.clone()),
                };
                hold.tell(self.mark, &word);
                Err(failure.into_error_of_renewal(&hold.key))
            }
        }
    }

    /// Returns the error for a hold that no longer exists. `unheard` is the failure of an earlier
    /// request. That request may have kept the hold for a span that is over.
    async fn is_gone(&self, unheard: Option<Failure>) -> Error {
        let (context, hold) = (&self.context, self.held.hold());
        if let Some(failure) = unheard {
            hold.tell(self.mark, &Word::Unknown);
            return failure.into_error_of_renewal(&hold.key);
        }
        let reason = why_lost(&context.backend, hold, &context.timers).await;
        hold.was_lost(self.mark, reason)
    }
}

/// A release that was sent. The undo of its hold stays armed until the reply arrives. So a dropped
/// call and a lost reply end in the same way: in the background.
struct Release {
    context: Arc<Context>,
    held: Arc<Held>,
    local: Option<Local>,
    /// The earlier holders of the hold in this process.
    mark: Mark,
    /// Number of connections of this client among those that the release notifies.
    ours: Option<i64>,
    /// Whether the server grants the lock to the next waiter, if that waiter belongs to this
    /// process.
    grants: bool,
    /// Whether an earlier request may have released the hold.
    asked_before: bool,
}

impl Release {
    fn leaves(
        context: &Arc<Context>,
        held: &Arc<Held>,
        local: Option<Local>,
        asked_before: bool,
    ) -> (Self, (Reply, Moment)) {
        let (backend, steps) = (&context.backend, &held.hold().steps);
        let counts = local.is_some() && backend.counts_listeners();
        let channel = counts.then(|| steps.counted_channel()).flatten();
        let ours = channel.map(|channel| i64::from(backend.channels().is_live(channel)));
        let mark = held.hold().ends_or_turns();
        let now = context.clock.now();
        let terms = held.hold().terms();
        let is_known = |local: &Local| local.next_is_known(terms);
        // Replicas do not confirm a hold that a release grants.
        let is_confirmed = terms.acknowledged.is_needed();
        let next = (steps.queued().filter(|_| !is_confirmed))
            .filter(|_| local.as_ref().is_some_and(is_known));
        let calls = match &local {
            // If no other client is subscribed, there is no client to call.
            Some(local) => !local.turn.lock().is_alone(),
            None => held.is_wanted(),
        };
        let calls = calls && held.takes_turns() && backend.counts_listeners();
        let release = match next {
            Some(queued) => queued.release_to_next(terms.lease),
            None => {
                // Made only if it is sent: most releases call no client.
                let call = calls.then(|| steps.release_and_call()).flatten();
                call.unwrap_or_else(|| steps.release())
            }
        };
        let first = (backend.submit_by(release, held.hold().way_back()), now);
        if let Some(local) = local.as_ref().filter(|_| next.is_none()) {
            local.hold_leaves(now);
        }
        let release = Self {
            context: Arc::clone(context),
            held: Arc::clone(held),
            local,
            mark,
            ours,
            grants: next.is_some(),
            asked_before,
        };
        (release, first)
    }

    /// Gives the lock to the waiter to which the server has granted it.
    fn grant_next(&self, sent: Moment, reply: Value) {
        let (Some(local), true) = (&self.local, self.grants) else {
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
        let queued = hold.steps.queued();
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
            let is_given = local.give_first(undo, &ids, now);
            if is_given {
                watchdog.keep(&grant);
            }
            is_given
        });
        if !is_given {
            local.hold_leaves(now);
        }
    }

    /// Notes how many other clients the release has notified. `told` is 1 plus the number of
    /// connections.
    fn published(&self, told: i64, sent: Moment) {
        if let (Some(local), Some(ours)) = (&self.local, self.ours) {
            let others = u32::try_from(told - 1 - ours).ok();
            local.turn.lock().published(others);
        }
        if self.local.is_some() || told <= 1 || !self.held.takes_turns() {
            return;
        }
        // A task that is alone in its process needs no turn as long as no other client wants the
        // lock. So for most names nothing is remembered.
        let (backend, hold) = (&self.context.backend, self.held.hold());
        let ours = (hold.steps.counted_channel())
            .is_some_and(|channel| backend.channels().is_live(channel));
        if backend.counts_listeners() && told > 1 + i64::from(ours) {
            let local = self.context.locals.of(&hold.key);
            local.turn.lock().others_wait(hold.granted_at(), sent);
        }
    }

    /// Sends the release again until it is answered, or the time limit is over.
    async fn answered(self, first: (Reply, Moment)) -> Result<()> {
        let (backend, timers) = (&self.context.backend, &self.context.timers);
        let hold = self.held.hold();
        let sent = first.1;
        let (mut limit, mut asked_before) = (None, self.asked_before);
        let goes_on = |failed: Failed<'_>| {
            // For as long as one more reply may take. Then the caller gets the error, and the undo
            // continues in the background.
            let limit = *limit.get_or_insert(timers.now() + backend.reply_timeout());
            let goes_on = failed.failure.may_heal() && timers.now() < limit;
            asked_before |= goes_on && failed.failure.outcome == Outcome::MayHaveRun;
            goes_on
        };
        let pauses = Pauses::from(Duration::from_millis(10));
        let release = || backend.submit_by(hold.steps.release(), hold.way_back());
        let reply = until_answered(timers, first, pauses, release, goes_on).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                self.grant_next(sent, Value::Nil);
                return Err(failure.into_error(&hold.key));
            }
        };
        self.held.given_back();
        // A list contains the id of the new holder.
        let is_granted = self.grants && matches!(reply, Value::List(_));
        if was_ours(&reply) || is_granted {
            hold.tell(self.mark, &Word::Held);
            if let Value::Int(told) = reply {
                self.published(told, sent);
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
        // until that request. The server only notes whose hold was ended by force.
        if asked_before && reason != LossReason::Forced {
            hold.tell(self.mark, &Word::Unknown);
            return Err(nobody_knows(&self.context, hold));
        }
        Err(hold.was_lost(self.mark, reason))
    }
}

/// Returns the error for a hold that no longer exists, if a request without a reply may have ended
/// it, or its lease is over.
fn nobody_knows(context: &Context, hold: &Grant) -> Error {
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
pub(crate) struct Kept(Arc<Grant>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.keep(false);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let leaving = match self.turns {
            true => Some(Leaving::Last),
            false => self.hold().leave_in(self.context.process(), self.claim),
        };
        match leaving {
            // Most re-entries end here. Their end costs no system call.
            Some(Leaving::Shared { moves_look: false }) => {}
            // The parent process still has the hold.
            _ if self.context.is_forked() => {}
            None => {}
            Some(Leaving::Shared { moves_look }) => self.look_again(moves_look),
            Some(Leaving::LeftToLease) => self.leave_to_lease(),
            Some(Leaving::Last) => {
                let local = self.held.local(&self.context.locals);
                let now = self.context.clock.now();
                if let Some(local) = &local
                    && !self.turns
                    && self.held.stays(local, now)
                {
                    if self.hold().is_exchanged() {
                        if let Some(exchange) = self.exchange(local) {
                            self.context.cleanup.spawn(async move {
                                // If the exchange fails, the undo continues, and no caller waits
                                // for it.
                                drop(exchange.await);
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
                    local.hold_leaves(now);
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
