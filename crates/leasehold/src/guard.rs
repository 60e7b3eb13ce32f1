//! What every guard is made of: a share in a hold, and the ways to give it up.

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

/// One guard's share in a hold. Dropped, it is given up in the background.
pub(crate) struct Share {
    context: Arc<Context>,
    held: Arc<Held>,
    /// What it wants of the hold.
    claim: ClaimId,
    left: bool,
    /// That of its holder: of several readers that share a hold, each has one.
    number: u64,
    /// The server has granted the hold to a request of this one's.
    was_asked_for: bool,
    /// It is one of several readers', each of which hears from the server whether it had the lock.
    of_crowd: bool,
    /// A downgrade is in progress: nobody may join the hold, and it is not renewed.
    turns: bool,
    /// How long its acquire took.
    waited: Duration,
}

impl Share {
    /// The first share in a new hold.
    pub(crate) fn new(context: Arc<Context>, held: Arc<Held>) -> Self {
        Self::with_claim(context, held, ClaimId::FIRST)
    }

    /// That of the next holder, to whom the hold was handed over.
    pub(crate) fn handed_over(context: Arc<Context>, held: Arc<Held>) -> Self {
        let mut share = Self::new(context, held);
        share.was_asked_for = false;
        share
    }

    /// That of a reader, in a hold that others may enter: the first one's, or one that has entered.
    pub(crate) fn of_crowd(context: Arc<Context>, held: Arc<Held>, joined: Option<Joined>) -> Self {
        let claim = joined.map_or(ClaimId::FIRST, |joined| joined.claim);
        let mut share = Self::with_claim(context, held, claim);
        share.of_crowd = true;
        if joined.is_some() {
            share.number = next_number();
        }
        share
    }

    /// One more share in a hold that [`Hold::join`] has counted.
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

    /// The same, after that acquire.
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

    /// How its acquire came by the hold.
    pub(crate) fn way(&self) -> Way {
        match self.claim == ClaimId::FIRST {
            true => Way::Granted,
            false => Way::Entered,
        }
    }

    /// What this guard asked for.
    pub(crate) fn terms(&self) -> Terms {
        self.hold().terms_of(self.claim)
    }

    /// Resolves with the reason when this guard's hold is lost. It does not borrow the share: a future
    /// that lives on in another task must not keep the guard's drop from giving the lock back.
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

    /// Gives the share up and says whether the lock was held until now.
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
        // undo, which is armed still, gives back what has to be.
        self.left = true;
        let hold = Arc::clone(self.hold());
        // Asked before the guard leaves, whose limit may be the one that is over.
        let loss = hold.loss();
        // Before it leaves: the last one may be gone at once, and the server's answer to its release
        // counts for this one, too.
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

    /// Nobody has a share any more: the next waiter of the process gets the hold, or the server.
    async fn leave_last(&self, loss: Option<LossReason>) -> Result<()> {
        let hold = self.hold();
        // Not at each guard's end: a re-entry that ends costs no system call.
        self.context.check_process(&hold.key)?;
        let local = self.held.local(&self.context.locals);
        let now = self.context.clock.now();
        if loss.is_none()
            && let Some(local) = &local
            && self.held.stays(local, now)
        {
            if hold.is_exchanged() {
                if let Some(exchange) = self.exchange(local) {
                    // The next waiter waits for the answer, whether this future is polled or not.
                    return self.in_background(exchange).await;
                }
            } else {
                // Taken before the hold goes: the next holder may give it back at once, and the
                // server's answer to that counts for this one, too.
                let (word, begins) = hold.await_word();
                if self.held.hand_over(local, now) {
                    return self.confirmed(word, begins).await;
                }
            }
        }
        // Ended before it is removed: a renewal that is under way puts back no hold that is over.
        hold.end();
        self.context.watchdog.remove(hold);
        match loss {
            None => self.give_back(local).await,
            Some(reason) => {
                // Lost here, but the server may still have it: the undo gives it back.
                self.clear_owner();
                Err(Error::lost(&hold.key, reason))
            }
        }
    }

    /// Asks the server to take the hold back, and waits for its answer.
    async fn give_back(&self, local: Option<Local>) -> Result<()> {
        let (release, first) = Release::leaves(&self.context, &self.held, local, false);
        // Behind the release: whatever the owner asks next has to run behind that.
        self.clear_owner();
        if !self.hold().has_waiting() && !release.grants {
            return release.answered(first).await;
        }
        // Those to whom the hold belonged before wait for the same answer, or the next holder does.
        self.in_background(release.answered(first)).await
    }

    /// Gives permits up for those of the next waiter of the process. The request has left when this
    /// returns. `None` if nobody wants as many.
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

    /// Sees the end of a hold through, although this future may be dropped, or polled by nobody.
    async fn in_background(
        &self,
        ends: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let (sender, ended) = oneshot::channel();
        self.context.cleanup.spawn(async move {
            // If this fails, the releaser has gone.
            let _ = sender.send(ends.await);
        });
        ended.await.unwrap_or_else(|_| {
            let address = self.context.backend.address();
            let ended = Failure::runtime_ended(Outcome::MayHaveRun, address);
            Err(ended.into_error(&self.hold().key))
        })
    }

    /// Others have the hold now. Waits for the server's word that it was held until then.
    async fn confirmed(&self, word: oneshot::Receiver<Word>, begins: bool) -> Result<()> {
        let Context {
            backend,
            timers,
            cleanup,
            ..
        } = &*self.context;
        let hold = self.hold();
        if begins {
            // A task, not this future: it asks for all who wait, and this one may be dropped.
            cleanup.carry(ask_for_word(
                backend.clone(),
                timers.clone(),
                Arc::clone(hold),
            ));
        }
        // As long as a release that nobody answers.
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

    /// The hold is about to become another one in one step: nobody joins it any more and
    /// it is not renewed. `false`, and nothing has changed, while others share it.
    pub(crate) fn begin_to_turn(&mut self) -> bool {
        self.turns = self.hold().end_with_last();
        if self.turns {
            self.context.watchdog.remove(self.hold());
        }
        self.turns
    }

    /// It has become another one. Dropped without this, it is given back.
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
                "several can have a lock of its kind at a time",
            ));
        };
        // Ended before the request leaves: nothing renews it from here on. A renewal that is about to
        // leave, or is on its way, is refused by the server when it arrives later.
        if !self.begin_to_turn() {
            return Err(not_kept(&hold.key, self.who_shares()));
        }
        let (keeping, first) = Keeping::leaves(&context, &self.held, operation);
        // After the request, because whatever the owner asks next has to run later. And before its
        // answer, because an unknown outcome leaves the hold to its lease, old or new.
        self.left = true;
        self.leave_to_lease();
        if !hold.has_waiting() {
            return keeping.answered(first).await;
        }
        // Those to whom the hold belonged before wait for the same answer.
        self.in_background(keeping.answered(first)).await
    }

    /// Why the hold can't end with this guard.
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
        // The claim alone: the deadline moves when the server has confirmed it.
        hold.raise(self.claim, lease)?;
        self.confirm().await
    }

    /// Makes sure that the hold lasts as long as a re-entry wants. Costs no round trip unless
    /// that is longer than the server has confirmed.
    pub(crate) async fn enter_again(&self, joined: Joined) -> Result<()> {
        if joined.must_confirm {
            return self.confirm().await;
        }
        self.look_again(joined.moves_look);
        Ok(())
    }

    /// A guard that came or went may have moved the watchdog's next look. Most move nothing, and a
    /// re-entry costs nothing then.
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

    /// When its maximum hold time is over, and what that is.
    pub(crate) fn limited(&self) -> Option<Limit> {
        self.hold().limit_of(self.claim)
    }

    /// Ends the hold when the one before in its place would have ended.
    pub(crate) fn limit_as(&self, before: Option<Limit>) {
        if let Some((end, limit)) = before {
            self.limit(limit, end - limit);
        }
    }

    /// Asks the server for what the guards want. An error if the hold is lost, or no server says.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let hold = self.hold();
        // All that the guards want, not what the watchdog may ask for: an extension extends even
        // after the client was closed.
        let lease = hold.lease_to_ask(self.context.clock.now());
        match try_renew(&self.context.backend, &self.context.timers, hold, lease).await {
            Ok(Renewed::Yes) => {
                self.context.watchdog.keep(hold);
                // The answer may have come when the hold was lost already.
                hold.check()
            }
            Ok(Renewed::Lost) => Err(Error::lost(
                &hold.key,
                hold.loss().unwrap_or(LossReason::Deleted),
            )),
            Err(failure) => Err(failure.into_error_of_renewal(&hold.key)),
        }
    }

    /// Renews the hold, even one with a fixed lease, until the returned value is dropped: for a
    /// wait that goes on while it is held.
    pub(crate) fn keep(&self) -> Kept {
        let hold = Arc::clone(self.hold());
        hold.keep(true);
        self.context.watchdog.keep(&hold);
        Kept(hold)
    }

    /// Runs `work` until it is done or the lock is lost.
    pub(crate) async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // Polled first: after a loss the work must not go on for one step more.
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
        "the hold of `{key}` can't be kept for a span: {why}; give it back, or take a plain, fenced \
         or fair lock without an owner"
    );
    Error::new(ErrorKind::Misuse, message).with_key(key)
}

/// A request that leaves a hold to a span has left. Its hold is over here: nobody counts on it any
/// more. No renewal leaves later, and the server refuses one that arrives later.
struct Keeping {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The one request that makes a hold shorter.
    operation: Operation,
    /// All to whom the hold belonged in this process before.
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
            // Before the request leaves: whoever renews the hold for a word of the server stops, and
            // this answer is that word.
            mark: held.hold().ends_or_turns(),
        };
        let first = (keeping.ask(), context.clock.now());
        (keeping, first)
    }

    /// Sends it. A copy that arrives late adds as much time as it is late.
    fn ask(&self) -> Reply {
        let (backend, route) = (&self.context.backend, self.held.hold().route());
        backend.submit_by(self.operation.clone(), route)
    }

    /// Sends it again until it is answered, or the time for that is over.
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
                Err(not_kept(&hold.key, "its owner reads inside it"))
            }
            Ok(_) => Err(self.is_gone(unheard).await),
            Err(failure) => {
                // Earlier holders only need the server's own answer.
                let word = match failure.cause {
                    Cause::Unconfirmed(_) => Word::Held,
                    _ => Word::Failed(failure.clone()),
                };
                hold.tell(self.mark, &word);
                Err(failure.into_error_of_renewal(&hold.key))
            }
        }
    }

    /// The hold is not there. `unheard`: the failure of an earlier request that may have kept it, for
    /// a span that is over.
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

/// A release that has left. Its hold's undo stays armed until the answer is there, so that a dropped
/// call and a lost reply end the same way: in the background.
struct Release {
    context: Arc<Context>,
    held: Arc<Held>,
    local: Option<Local>,
    /// All to whom the hold belonged in this process before.
    mark: Mark,
    /// How many of the connections that are told of it are our own.
    ours: Option<i64>,
    /// The server gives the lock to the next waiter, if that is of this process.
    grants: bool,
    /// An earlier request may have released it.
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
        // Nobody confirms what a release grants on its way.
        let is_confirmed = terms.acknowledged.is_needed();
        let next = (steps.queued().filter(|_| !is_confirmed))
            .filter(|_| local.as_ref().is_some_and(is_known));
        let calls = match &local {
            // Where nobody else listens there is nobody to call.
            Some(local) => !local.turn.lock().is_alone(),
            None => held.is_wanted(),
        };
        let calls = calls && held.takes_turns() && backend.counts_listeners();
        let release = match next {
            Some(queued) => queued.release_to_next(terms.lease),
            None => {
                // Made only where it is sent: most releases call nobody.
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
            // Its lease counts from the release, which was asked for before.
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

    /// The release has told others, or nobody.
    fn published(&self, told: i64, sent: Moment) {
        if let (Some(local), Some(ours)) = (&self.local, self.ours) {
            let others = u32::try_from(told - 1 - ours).ok();
            local.turn.lock().published(others);
        }
        if self.local.is_some() || told <= 1 || !self.held.takes_turns() {
            return;
        }
        // A task that is alone in its process has no turn as long as nobody else wants the lock: of
        // most names nothing has to be remembered.
        let (backend, hold) = (&self.context.backend, self.held.hold());
        let ours = (hold.steps.counted_channel())
            .is_some_and(|channel| backend.channels().is_live(channel));
        if backend.counts_listeners() && told > 1 + i64::from(ours) {
            let local = self.context.locals.of(&hold.key);
            local.turn.lock().others_wait(hold.granted_at(), sent);
        }
    }

    /// Sends it again until it is answered, or the time for that is over.
    async fn answered(self, first: (Reply, Moment)) -> Result<()> {
        let (backend, timers) = (&self.context.backend, &self.context.timers);
        let hold = self.held.hold();
        let sent = first.1;
        let (mut limit, mut asked_before) = (None, self.asked_before);
        let goes_on = |failed: Failed<'_>| {
            // For as long as one more reply may take. Then the caller gets the error, and the
            // undo goes on in the background.
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
        // A list has the one that holds it now.
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
        // An earlier request that was not answered may have released it, and then it was held until
        // that. The server notes only whose hold was ended by force.
        if asked_before && reason != LossReason::Forced {
            hold.tell(self.mark, &Word::Unknown);
            return Err(nobody_knows(&self.context, hold));
        }
        Err(hold.was_lost(self.mark, reason))
    }
}

/// A hold is not there, and a request that was not answered may have ended it, or its lease is over.
fn nobody_knows(context: &Context, hold: &Grant) -> Error {
    let what =
        "the hold is not there any more, and an earlier request about it was not answered in time";
    let cause = Cause::NoAnswer(what.into());
    let failure = context.backend.failure(Outcome::MayHaveRun, cause);
    failure.into_error_with(
        &hold.key,
        "nothing is held now; if it did not, the hold had ended before",
    )
}

/// A hold that is renewed for a wait.
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
            // Of most re-entries: their end costs no system call.
            Some(Leaving::Shared { moves_look: false }) => {}
            // The parent has it.
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
                                // If it fails, the undo goes on, and nobody waits for that.
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
                // The release is queued before the owner's slot is cleared: whatever the owner
                // asks next runs behind it.
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
