//! A grant of the server: how long it is valid, and whether it has been lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::acks::Acks;
use super::claims::Limit;
use super::state::{NO_REPLY_YET, State};
use super::stay::Stay;
use super::{ClaimId, HoldSteps, Joined, Leaving, SafetyMargin};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::clock::{Clock, Moment, Timers};
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::LossReason;
use crate::observe::{Ended, Observed, Told, Way, log};
use crate::process::Process;
use crate::sync::{Mutex, MutexGuard};

/// One grant of the server.
pub(crate) struct Grant {
    pub(crate) key: Key,
    /// The number of its first hold, which orders grants in the watchdog.
    pub(super) number: u64,
    pub(crate) steps: Box<dyn HoldSteps>,
    /// The route for its release and its undo, which keeps them after the request for it.
    way_back: Route,
    clock: Clock,
    margin: SafetyMargin,
    state: Mutex<State>,
    /// The time of the watchdog's next look, in nanoseconds; [`NEVER`] if there is none. Written
    /// with the watchdog's table locked.
    due: AtomicU64,
    /// Its index among the grants that are due at that time. Read and written with that table
    /// locked.
    place: AtomicUsize,
    /// Notified when the hold is lost or its deadline has moved.
    changed: Notify,
    /// The earlier holders that wait for a word of the server since the hold was handed over.
    pub(super) acks: Acks,
    pub(crate) observed: Observed,
    /// Whether the loss was reported.
    loss_is_told: AtomicBool,
}

/// The due time of a grant at which the watchdog does not look.
const NEVER: u64 = u64::MAX;

/// The task of the watchdog for a hold.
#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing: the hold was released, or the server has ended it, too.
    Nothing,
    /// Nothing yet.
    Later,
    /// Ask the server for this lease.
    Renew {
        lease: Duration,
        /// Whether it is the first renewal since one was confirmed.
        first: bool,
    },
    /// End the hold: its guards have lost it for this reason, and the server still keeps it.
    End(LossReason),
}

/// The time at which the watchdog looks at a hold, and by how much earlier its renewal may travel
/// with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) at: Moment,
    pub(crate) earlier: Duration,
}

impl Grant {
    pub(crate) fn new(
        key: Key,
        steps: Box<dyn HoldSteps>,
        terms: Terms,
        clock: Clock,
        margin: SafetyMargin,
        asked_at: Moment,
        observed: Observed,
    ) -> Arc<Self> {
        let state = State::new(terms, asked_at);
        Arc::new(Self {
            key,
            number: state.stay.number,
            steps,
            way_back: Route::of(terms.acknowledged).behind(),
            clock,
            margin,
            state: Mutex::new(state),
            due: AtomicU64::new(NEVER),
            place: AtomicUsize::new(0),
            changed: Notify::new(),
            acks: Acks::default(),
            observed,
            loss_is_told: AtomicBool::new(false),
        })
    }

    /// Returns whether the next holder gets another grant instead, because it can't have this one.
    pub(crate) fn is_exchanged(&self) -> bool {
        self.steps.exchanged().is_some()
    }

    /// Returns the number of permits; 1 for a lock.
    pub(crate) fn permits(&self) -> u32 {
        let exchanged = self.steps.exchanged();
        exchanged.map_or(1, |exchanged| exchanged.permits())
    }

    /// Returns the number of its present hold.
    pub(crate) fn hold_number(&self) -> u64 {
        self.state.lock().stay.number
    }

    /// Returns terms that are good enough for all its guards.
    pub(crate) fn terms(&self) -> Terms {
        self.state.lock().stay.claims.terms()
    }

    /// Returns the terms that one guard asked for.
    pub(crate) fn terms_of(&self, claim: ClaimId) -> Terms {
        self.state.lock().stay.claims.terms_of(claim)
    }

    /// Returns the route of operations that release it: after the request for it.
    pub(crate) fn way_back(&self) -> Route {
        self.way_back
    }

    /// Returns the route of operations that give its guards more. They must be confirmed for the
    /// guard with the strictest setting.
    pub(crate) fn route(&self) -> Route {
        let mut state = self.state.lock();
        let wanted = state.stay.claims.terms().acknowledged;
        // Noted before the operation is sent: a guard that joins meanwhile must not mistake what it
        // wants itself for what was confirmed.
        state.confirmed_by = state.confirmed_by.least(wanted);
        drop(state);
        match Route::of(wanted) {
            Route::Plain => self.way_back,
            confirmed => confirmed,
        }
    }

    /// Returns the longest lease that was requested: the server may keep the hold for this
    /// duration.
    pub(crate) fn longest_asked(&self) -> Duration {
        self.state.lock().longest_asked
    }

    /// Returns what the watchdog must do about the hold now. A renewal counts as sent.
    pub(crate) fn due(&self, now: Moment) -> Due {
        let mut state = self.state.lock();
        if state.over {
            return Due::Nothing;
        }
        if let Some(reason) = state.check(now).cloned() {
            let outlasts = state.outlasts(&reason);
            drop(state);
            self.is_found_lost();
            return match outlasts {
                true => Due::End(reason),
                false => Due::Nothing,
            };
        }
        match state.watch_every() {
            Some(_) => Due::Renew {
                lease: state.lease_to_keep(now),
                first: state.asked_to_renew(now),
            },
            None => Due::Later,
        }
    }

    /// Returns when the watchdog looks at the hold next. That is one renewal period after the last
    /// confirmation, earlier by `part` of the period, or when the hold must end. `None` for never.
    pub(crate) fn next_look(&self, part: f64) -> Option<Look> {
        let state = self.state.lock();
        let renewal = state.watch_every();
        let renewal = renewal.map(|period| state.confirmed_at + period.mul_f64(1.0 - part));
        let at = renewal.into_iter().chain(state.must_end_at()).min()?;
        state.look_at(at)
    }

    /// Returns the next look if the watchdog looks at `at`, whatever the terms are.
    pub(crate) fn look_at(&self, at: Moment) -> Option<Look> {
        self.state.lock().look_at(at)
    }

    /// Makes the lease a fixed one from here on, whatever the terms are.
    pub(crate) fn stop_renewing(&self) {
        self.state.lock().closed = true;
    }

    /// Begins or ends the renewal of the hold for a wait.
    pub(crate) fn keep(&self, keep: bool) {
        let mut state = self.state.lock();
        state.kept = if keep { state.kept + 1 } else { state.kept - 1 };
    }

    /// Notes another request for the grant: its lease counts from here. Until then no guard has the
    /// hold, so a grant that arrived too late for the earlier request is not a loss.
    pub(crate) fn asked_again(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        (state.valid_until, state.kept_until) = (now, now);
        state.confirmed_at = now;
        state.stay.claims.start_again(now);
        state.lost = None;
    }

    /// Notes that the server has granted the request. Returns `false` if the reply took longer than
    /// the lease.
    pub(crate) fn granted(&self, token: Option<u64>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.stay.token = token;
        state.granted_at = state.confirmed_at;
        // Counted from before the request was sent, never from the reply: the server's lease began
        // at some time between the two.
        let end = self.margin.end(state.confirmed_at, state.longest_asked);
        (state.valid_until, state.kept_until) = (end, end);
        state.check(now).is_none()
    }

    /// Returns the fencing token that arrived with the grant, or was drawn later.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().stay.token
    }

    /// Notes a token that was drawn for the hold. Returns the hold's token: the first one that was
    /// drawn.
    pub(crate) fn set_token(&self, token: u64) -> u64 {
        // Guards may draw tokens at the same time, but a hold has only one token.
        *self.state.lock().stay.token.get_or_insert(token)
    }

    /// Notes that the lock no longer gives a token below this one.
    pub(crate) fn raised(&self, token: u64) {
        let mut state = self.state.lock();
        state.stay.raised_to = state.stay.raised_to.max(Some(token));
    }

    /// Returns the greatest token to which the lock was raised for this hold.
    pub(crate) fn raised_to(&self) -> Option<u64> {
        self.state.lock().stay.raised_to
    }

    /// Returns the lease to ask for now: the whole lease that its guards want, or the rest of a
    /// fixed one.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Duration {
        self.state.lock().wants(now)
    }

    /// Returns when the request was sent that the server granted.
    pub(crate) fn granted_at(&self) -> Moment {
        self.state.lock().granted_at
    }

    /// Begins the next holder's hold, on the same terms. Returns `false` and changes nothing if the
    /// grant is not good for another holder: it may be lost soon or unnoticed, or another claim on
    /// it remains. Called when no guard has it.
    pub(crate) fn hand_over(&self, terms: Terms, now: Moment) -> bool {
        let mut state = self.state.lock();
        let may = state.can_be_handed_over(terms, now);
        if may {
            let ended = std::mem::replace(&mut state.stay, Stay::new(terms, now));
            let before = state.before.replace(ended.told);
            // A span ends with nothing locked: its subscriber may do anything.
            drop(state);
            drop(before);
        }
        may
    }

    /// Links the span of an acquire that got this grant with the span of its hold.
    pub(crate) fn acquired(&self, ended: &Ended, way: Way) {
        let mut state = self.state.lock();
        let before = state.before.replace(Told::default());
        let (hold, token) = (state.stay.told.clone(), state.stay.token);
        drop(state);
        ended.follows(&before);
        match way {
            Way::Entered => ended.follows(&hold),
            Way::Granted => {
                let hold = ended.begins(&self.observed, &self.key, self.steps.wire_id(), token);
                let none = self.state.lock().stay.told.replace(hold);
                drop(none);
            }
        }
    }

    /// Notes that the next waiter of the process gets this grant in the place of `other`.
    pub(crate) fn follows(&self, other: &Self) {
        let told = other.told();
        if told.is_heard() {
            let none = self.state.lock().before.replace(told);
            drop(none);
        }
    }

    /// Returns the span of its present hold.
    fn told(&self) -> Told {
        self.state.lock().stay.told.clone()
    }

    /// Returns the span of a renewal that is sent now.
    pub(crate) fn renews(&self) -> Told {
        self.observed.renews(&self.key, || self.told())
    }

    /// Returns the span of a release by a guard.
    pub(crate) fn releases(&self) -> Told {
        self.observed.releases(&self.key, || self.told())
    }

    /// Returns when its present hold began.
    pub(crate) fn since(&self) -> Moment {
        self.state.lock().stay.since
    }

    /// Returns the time since `since`.
    pub(crate) fn age(&self, since: Moment) -> Duration {
        self.clock.now().saturating_sub(since)
    }

    /// Returns how often the server has renewed it, and how many guards have it.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let state = self.state.lock();
        (
            state.confirmations.saturating_sub(1),
            state.stay.claims.len(),
        )
    }

    /// Returns the time from which its present lease counts.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.state.lock().confirmed_at
    }

    /// Notes that the server has confirmed `lease` for a request that was sent at `sent`. A hold
    /// that is lost stays lost, whatever arrives later. Returns the longest lease that was
    /// requested until now.
    pub(crate) fn confirmed(&self, sent: Moment, lease: Duration) -> Duration {
        let mut state = self.state.lock();
        let longest = state.longest_asked;
        // Lost is final: the holder was notified, and another client may already have the lock.
        if state.check(self.clock.now()).is_some() {
            drop(state);
            self.is_found_lost();
            return longest;
        }
        let left = state.valid_until.saturating_sub(self.clock.now());
        // The latest end, whichever reply arrives last: no request makes a hold shorter on the
        // server, so renewals may overlap.
        state.kept_until = state.kept_until.max(self.margin.end(sent, lease));
        // A guard that wanted more may have left since.
        let wanted = lease.min(state.wants(sent));
        state.valid_until = state.valid_until.max(self.margin.end(sent, wanted));
        state.confirmed_at = state.confirmed_at.max(sent);
        state.confirmations = state.confirmations.saturating_add(1);
        state.failing = None;
        drop(state);
        self.changed.notify_waiters();
        // After unlocking: the recorder is code of the user.
        self.observed.renewed(left, lease);
        longest
    }

    /// Notes that a renewal is sent without a request of the watchdog. Returns `true` for the first
    /// renewal since one was confirmed.
    pub(crate) fn asked_to_renew(&self, sent: Moment) -> bool {
        self.state.lock().asked_to_renew(sent)
    }

    /// Notes that a renewal that was sent at `sent` has failed.
    pub(crate) fn failed_to_renew(&self, sent: Moment, failure: &Failure) {
        let cause = format!("{}: {}", failure.address, failure.cause);
        let mut state = self.state.lock();
        if state.reasserts_fixed_lease() {
            return;
        }
        let since = state.failing.take().map_or(sent, |(since, _)| since);
        state.failing = Some((since, cause.into()));
    }

    /// Marks the hold as lost, unless it was lost or released before.
    pub(crate) fn lose(&self, reason: LossReason) {
        let mut state = self.state.lock();
        if state.over || state.check(self.clock.now()).is_some() {
            return;
        }
        state.lost = Some(reason);
        drop(state);
        self.is_found_lost();
    }

    /// Reports the loss, and wakes the tasks that wait for it.
    fn is_found_lost(&self) {
        self.changed.notify_waiters();
        self.tell_loss();
    }

    /// Notes that the server has forgotten the hold in a restart, at `started` at the earliest. A
    /// client that asks a majority does not count that server for the longest lease.
    pub(crate) fn forgotten(&self, started: Moment) {
        let until = self.no_vote_until(started);
        self.state.lock().no_vote_until = until;
    }

    /// Returns until when no majority counts a server that was started at `started`. `None` if no
    /// client relies on that.
    pub(crate) fn no_vote_until(&self, started: Moment) -> Option<Moment> {
        let longest = self.terms().longest_lease?;
        // Minus the drift, as for any lease.
        Some(self.margin.end(started, longest))
    }

    /// Returns until when the hold counts for a majority although its server has forgotten it:
    /// until then no other client counts that server. `None` if the hold does not count.
    pub(crate) fn stands_until(&self) -> Option<Moment> {
        let state = self.state.lock();
        let until = state.no_vote_until.filter(|_| state.lost.is_some())?;
        Some(until.min(state.deadline()))
    }

    /// Returns why the hold is lost. Reports the loss once, to the log, metrics and hooks. Called
    /// with nothing locked, because a hook may do anything.
    pub(crate) fn tell_loss(&self) -> Option<LossReason> {
        let reason = self.loss()?;
        self.ended_lost(&reason);
        Some(reason)
    }

    /// Reports a loss that the server found after the hold had ended here.
    pub(crate) fn ended_lost(&self, reason: &LossReason) {
        if !self.loss_is_told.swap(true, Ordering::Relaxed) {
            log(|| tracing::error!(key = %self.key, %reason, "lock lost"));
            self.observed.lost(&self.key, reason);
            self.told().lost(reason);
        }
    }

    /// Returns why the hold is lost; `None` while it is good.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.state.lock().check(self.clock.now()).cloned()
    }

    /// Returns whether only its holder can end it, as far as this process knows.
    pub(crate) fn lasts(&self) -> bool {
        let mut state = self.state.lock();
        state.check(self.clock.now()).is_none() && state.lasts()
    }

    /// Returns the loss that will occur at the deadline unless a renewal succeeds. `None` while
    /// renewals are answered soon.
    pub(crate) fn renewal_failure(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state.lock();
        // A renewal that was sent just now is not a failure yet.
        let soon = state.stay.claims.terms().lease / 20;
        let (since, cause) = state.failing.as_ref()?;
        let on_its_way = cause == NO_REPLY_YET && now.saturating_sub(*since) < soon;
        (!on_its_way).then(|| state.renewal_failure(now)).flatten()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.tell_loss() {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&self.key, reason)),
        }
    }

    /// Returns until when its guards certainly have it.
    pub(crate) fn valid_until(&self) -> Moment {
        self.state.lock().valid_until
    }

    /// Returns whether the server may have ended it by itself.
    pub(crate) fn is_past_lease(&self) -> bool {
        self.clock.now() >= self.valid_until()
    }

    /// Returns when the holder must have stopped: at the end of its validity, or of its maximum
    /// hold time.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline()
    }

    /// Resolves when the hold with this number is lost: at its deadline at the latest, even if the
    /// server says nothing. With a claim, it resolves only while the guard of that claim shares the
    /// hold.
    pub(super) async fn lost(
        &self,
        number: u64,
        claim: Option<ClaimId>,
        timers: &Timers,
    ) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read, or a loss between the two
            // would be missed.
            changed.as_mut().enable();
            let has_left = claim.is_some_and(|claim| !self.has(claim));
            if has_left || self.hold_number() != number {
                // Handed over in time: from then on only the next holder can lose it.
                return std::future::pending().await;
            }
            if let Some(reason) = self.tell_loss() {
                return reason;
            }
            if self.is_over() {
                // Released in time: it can no longer be lost.
                return std::future::pending().await;
            }
            // The deadline is judged by our own clock: a holder without a network must stop before
            // another client can have the lock.
            tokio::select! {
                biased;
                () = changed => {}
                () = timers.sleep_until(self.deadline()) => {}
            }
        }
    }

    /// Returns whether the guard with this claim still shares the hold.
    fn has(&self, claim: ClaimId) -> bool {
        self.state.lock().stay.claims.has(claim)
    }

    /// Adds a guard to the hold, on its own terms. `None` if the hold is lost or ends. Fails if the
    /// lease is longer than other clients rely on.
    pub(crate) fn join(&self, terms: Terms) -> Result<Option<Joined>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.stay.left || state.over || state.check(now).is_some() {
            return Ok(None);
        }
        state
            .stay
            .claims
            .check(terms.lease, terms.longest_lease, &self.key)?;
        let must_confirm = match terms.renew_every {
            // The hold has fewer confirmations than this guard wants. It does not help if other
            // guards want as many: their request may still be in progress.
            _ if !state.confirmed_by.covers(terms.acknowledged) => true,
            // A fixed lease counts from this re-entry, as if its guard were alone.
            None => state.valid_until < self.margin.end(now, terms.lease),
            // The watchdog takes care of a renewed lease, unless this one is longer than the
            // others, or less than a third of it is left.
            Some(_) => {
                let left = state.valid_until.saturating_sub(now);
                state.stay.claims.renewed_lease() < Some(terms.lease) || left < terms.lease / 3
            }
        };
        let before = state.course();
        let claim = state.stay.claims.add(terms, now);
        state.longest_asked = state.longest_asked.max(terms.lease);
        let moves_look = state.course() != before;
        drop(state);
        if moves_look {
            // The guard's limit may make the deadline earlier.
            self.changed.notify_waiters();
        }
        Ok(Some(Joined {
            claim,
            must_confirm,
            moves_look,
        }))
    }

    /// Adds a guard to the hold, on the terms on which it was acquired. `None` if that is not
    /// possible: the hold is lost or over, or its guards want something else now.
    pub(crate) fn share(&self, terms: Terms) -> Option<Joined> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_good = !state.stay.left && !state.stay.closed && !state.over && !state.closed;
        if !is_good || state.check(now).is_some() || !state.stay.claims.are_all(terms) {
            return None;
        }
        if !state.passes(now) {
            return None;
        }
        // The same limit as for a hold that is handed over.
        if state.valid_until.saturating_sub(now) < terms.lease / 2 {
            return None;
        }
        Some(Joined {
            claim: state.stay.claims.add(terms, now),
            must_confirm: false,
            moves_look: false,
        })
    }

    /// Lets no other guard share the hold from now on. Returns `false` and changes nothing if
    /// another guard shares it.
    pub(crate) fn close_to_others(&self) -> bool {
        let mut state = self.state.lock();
        let is_alone = state.stay.claims.guards() <= 1;
        state.stay.closed |= is_alone;
        is_alone
    }

    /// Removes a guard with its claim.
    pub(crate) fn leave(&self, claim: ClaimId) -> Leaving {
        self.leave_locked(claim, self.state.lock())
    }

    /// Like [`leave`](Self::leave), for a guard that is dropped. `None` in a child after a fork, if
    /// another thread of the parent had the state locked.
    pub(crate) fn leave_in(&self, process: Process, claim: ClaimId) -> Option<Leaving> {
        Some(self.leave_locked(claim, process.lock(&self.state)?))
    }

    fn leave_locked(&self, claim: ClaimId, mut state: MutexGuard<'_, State>) -> Leaving {
        let now = self.clock.now();
        // Checked first: a hold whose time is over stays lost after the guard with that limit has
        // left.
        state.check(now);
        let before = state.course();
        if !state.stay.claims.remove(claim) {
            return state.nobody_left();
        }
        // The guard's claim ends with it, although the server keeps the hold for longer. The
        // watchdog releases the hold when the remaining claims are over (`is_cut`).
        let wanted = self.margin.end(now, state.wants(now));
        state.valid_until = state.valid_until.min(wanted);
        let moves_look = state.course() != before;
        drop(state);
        if moves_look {
            self.changed.notify_waiters();
        }
        Leaving::Shared { moves_look }
    }

    /// Removes a guard whose claim remains: the hold is left to its lease when the last guard
    /// leaves.
    pub(crate) fn forget(&self, claim: ClaimId) -> Leaving {
        let mut state = self.state.lock();
        if state.stay.claims.forget(claim) {
            // The claim remains. Without the guard's limit, the next look is too early at worst.
            return Leaving::Shared { moves_look: false };
        }
        state.nobody_left()
    }

    /// Ends the hold here if this is its last guard, which would have to release it.
    pub(crate) fn end_with_last(&self) -> bool {
        // Ended under the lock that protects the number of guards: no guard joins in between.
        let mut state = self.state.lock();
        let last = state.stay.claims.guards() == 1 && !state.stay.claims.any_forgotten();
        if last {
            (state.stay.left, state.over) = (true, true);
        }
        last
    }

    pub(crate) fn guards(&self) -> usize {
        self.state.lock().stay.claims.guards()
    }

    /// Ends the hold: nothing is left to renew or to report.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Raises a guard's claim to at least `lease` from now. Fails and changes nothing if that is
    /// longer than other clients rely on.
    pub(crate) fn raise(&self, claim: ClaimId, lease: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.stay.claims.check(lease, None, &self.key)?;
        state.stay.claims.raise(claim, lease, now);
        // Before the request is sent: the server may grant it even if its reply is lost.
        state.longest_asked = state.longest_asked.max(lease);
        Ok(())
    }

    /// Returns when a guard's maximum hold time is over, and how long it is.
    pub(crate) fn limit_of(&self, claim: ClaimId) -> Option<Limit> {
        self.state.lock().stay.claims.limit_of(claim)
    }

    /// Limits a guard's hold to `limit` from `since`.
    pub(crate) fn limit(&self, claim: ClaimId, limit: Duration, since: Moment) {
        self.state.lock().stay.claims.limit(claim, limit, since);
        self.changed.notify_waiters();
    }

    /// Returns whether the server still keeps the hold when its guards have lost it for this
    /// reason.
    pub(crate) fn outlasts(&self, reason: &LossReason) -> bool {
        self.state.lock().outlasts(reason)
    }

    /// Notes when the watchdog looks at the hold next, and returns what was noted before. Called
    /// with the watchdog's table locked.
    pub(crate) fn set_due(&self, due: Option<Moment>) -> Option<Moment> {
        let nanos = due.map_or(NEVER, Moment::as_nanos);
        let before = self.due.swap(nanos, Ordering::Relaxed);
        (before != NEVER).then(|| Moment::from_nanos(before))
    }

    /// Returns its index among the grants that are due at its time.
    pub(super) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    pub(super) fn set_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("key", &self.key)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
