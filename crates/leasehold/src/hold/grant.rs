//! One grant of the server: how long it is valid, and whether it has been lost.

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
    /// That of its first hold: its order in the watchdog.
    pub(super) number: u64,
    pub(crate) steps: Box<dyn HoldSteps>,
    /// The way of its release and of its undo: the one on which it was asked for.
    way_back: Route,
    clock: Clock,
    margin: SafetyMargin,
    state: Mutex<State>,
    /// When the watchdog looks at it next, in nanoseconds; [`NEVER`] when it does not. Written
    /// with the watchdog's table locked.
    due: AtomicU64,
    /// Its place among those that are due then. Read and written with that table locked.
    place: AtomicUsize,
    /// Notified when the hold is lost or its deadline has moved.
    changed: Notify,
    /// Who waits for a word of the server since it was handed over.
    pub(super) acks: Acks,
    pub(crate) observed: Observed,
    /// Its loss was told.
    loss_is_told: AtomicBool,
}

/// No time: the watchdog does not look at such a grant.
const NEVER: u64 = u64::MAX;

/// What the watchdog has to do about a hold.
#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing any more: it was released, or the server has ended it as well.
    Nothing,
    /// Nothing yet.
    Later,
    /// To ask the server for this lease.
    Renew {
        lease: Duration,
        /// It is the first renewal since one was confirmed.
        first: bool,
    },
    /// To give it back: its guards have lost it for this reason, and the server keeps it still.
    End(LossReason),
}

/// When the watchdog looks at a hold, and by how much earlier a renewal may travel with others.
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

    /// Whether the next holder gets another one in its place, and can't have this one.
    pub(crate) fn is_exchanged(&self) -> bool {
        self.steps.exchanged().is_some()
    }

    /// How many permits it is; 1 for a lock.
    pub(crate) fn permits(&self) -> u32 {
        let exchanged = self.steps.exchanged();
        exchanged.map_or(1, |exchanged| exchanged.permits())
    }

    /// That of its present hold.
    pub(crate) fn hold_number(&self) -> u64 {
        self.state.lock().stay.number
    }

    /// Terms that are good enough for all its guards.
    pub(crate) fn terms(&self) -> Terms {
        self.state.lock().stay.claims.terms()
    }

    /// What one guard asked for.
    pub(crate) fn terms_of(&self, claim: ClaimId) -> Terms {
        self.state.lock().stay.claims.terms_of(claim)
    }

    /// The way of what gives it back: behind the request for it.
    pub(crate) fn way_back(&self) -> Route {
        self.way_back
    }

    /// The way of what gives its guards something more. It has to be confirmed for the guard that
    /// wants most.
    pub(crate) fn route(&self) -> Route {
        let mut state = self.state.lock();
        let wanted = state.stay.claims.terms().acknowledged;
        // Noted before it leaves: a guard that enters meanwhile must not take what it wants itself
        // for what was confirmed.
        state.confirmed_by = state.confirmed_by.least(wanted);
        drop(state);
        match Route::of(wanted) {
            Route::Plain => self.way_back,
            confirmed => confirmed,
        }
    }

    /// The longest lease that was asked for: the server may keep the hold that long.
    pub(crate) fn longest_asked(&self) -> Duration {
        self.state.lock().longest_asked
    }

    /// What the watchdog has to do about it now. A renewal counts as sent.
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

    /// When the watchdog looks at it next: one renewal period after it was confirmed last, by
    /// `part` of the period earlier, or when it has to end. `None`: never.
    pub(crate) fn next_look(&self, part: f64) -> Option<Look> {
        let state = self.state.lock();
        let renewal = state.watch_every();
        let renewal = renewal.map(|period| state.confirmed_at + period.mul_f64(1.0 - part));
        let at = renewal.into_iter().chain(state.must_end_at()).min()?;
        state.look_at(at)
    }

    /// The same, if it looks at `at` whatever the terms are.
    pub(crate) fn look_at(&self, at: Moment) -> Option<Look> {
        self.state.lock().look_at(at)
    }

    /// From here on its lease is a fixed one, whatever its terms are.
    pub(crate) fn stop_renewing(&self) {
        self.state.lock().closed = true;
    }

    /// Renews it for a wait, or no longer.
    pub(crate) fn keep(&self, keep: bool) {
        let mut state = self.state.lock();
        state.kept = if keep { state.kept + 1 } else { state.kept - 1 };
    }

    /// One more request for it leaves: a grant counts from here. (Until then nobody has the hold,
    /// so a grant that came too late for the request before is no loss.)
    pub(crate) fn asked_again(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        (state.valid_until, state.kept_until) = (now, now);
        state.confirmed_at = now;
        state.stay.claims.start_again(now);
        state.lost = None;
    }

    /// The server has answered "yours" to the request for it. `false` if the answer
    /// took longer than the lease.
    pub(crate) fn granted(&self, token: Option<u64>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.stay.token = token;
        state.granted_at = state.confirmed_at;
        // Counted from before the request left, never from the reply: the server's lease began
        // at some time between the two.
        let end = self.margin.end(state.confirmed_at, state.longest_asked);
        (state.valid_until, state.kept_until) = (end, end);
        state.check(now).is_none()
    }

    /// The fencing token that came with the grant, or was drawn later.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().stay.token
    }

    /// A token was drawn for it. Returns its token: the first one that was drawn.
    pub(crate) fn set_token(&self, token: u64) -> u64 {
        // Guards may draw at the same time, and a hold has one token, whoever asks.
        *self.state.lock().stay.token.get_or_insert(token)
    }

    /// Its lock gives no token below this one any more.
    pub(crate) fn raised(&self, token: u64) {
        let mut state = self.state.lock();
        state.stay.raised_to = state.stay.raised_to.max(Some(token));
    }

    /// The greatest token that its lock was raised to for it.
    pub(crate) fn raised_to(&self) -> Option<u64> {
        self.state.lock().stay.raised_to
    }

    /// The lease to ask for now: what its guards want, all of it or what is left of a
    /// fixed one.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Duration {
        self.state.lock().wants(now)
    }

    /// When the request left to which the server granted it.
    pub(crate) fn granted_at(&self) -> Moment {
        self.state.lock().granted_at
    }

    /// Begins the next holder's hold, on the same terms. `false`, and nothing has changed, if the
    /// grant is no good for another holder: it may be lost soon or unnoticed, or somebody has a
    /// claim on it still. Called when no guard has it.
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

    /// An acquire has got it: their spans are linked.
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

    /// It is what the next waiter of the process gets in the place of `other`.
    pub(crate) fn follows(&self, other: &Self) {
        let told = other.told();
        if told.is_heard() {
            let none = self.state.lock().before.replace(told);
            drop(none);
        }
    }

    /// The span of its present hold.
    fn told(&self) -> Told {
        self.state.lock().stay.told.clone()
    }

    /// A request leaves that renews it.
    pub(crate) fn renews(&self) -> Told {
        self.observed.renews(&self.key, || self.told())
    }

    /// A guard gives it back.
    pub(crate) fn releases(&self) -> Told {
        self.observed.releases(&self.key, || self.told())
    }

    /// When its present hold began.
    pub(crate) fn since(&self) -> Moment {
        self.state.lock().stay.since
    }

    /// How long it is since `since`.
    pub(crate) fn age(&self, since: Moment) -> Duration {
        self.clock.now().saturating_sub(since)
    }

    /// How often the server has renewed it, and how many guards have it.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let state = self.state.lock();
        (
            state.confirmations.saturating_sub(1),
            state.stay.claims.len(),
        )
    }

    /// The time from which its present lease counts.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.state.lock().confirmed_at
    }

    /// The server has confirmed `lease` from a request that left at `sent`. A hold
    /// that is lost stays lost, whatever comes later. Returns the longest lease that was asked
    /// for until now.
    pub(crate) fn confirmed(&self, sent: Moment, lease: Duration) -> Duration {
        let mut state = self.state.lock();
        let longest = state.longest_asked;
        // Lost is final: the holder has been told, and somebody else may have the lock by now.
        if state.check(self.clock.now()).is_some() {
            drop(state);
            self.is_found_lost();
            return longest;
        }
        let left = state.valid_until.saturating_sub(self.clock.now());
        // The latest end, whichever answer comes last: no request makes a hold shorter on the
        // server, so renewals may overlap.
        state.kept_until = state.kept_until.max(self.margin.end(sent, lease));
        // A guard that wanted more may have gone since.
        let wanted = lease.min(state.wants(sent));
        state.valid_until = state.valid_until.max(self.margin.end(sent, wanted));
        state.confirmed_at = state.confirmed_at.max(sent);
        state.confirmations = state.confirmations.saturating_add(1);
        state.failing = None;
        drop(state);
        self.changed.notify_waiters();
        // Behind the lock: the recorder is the user's.
        self.observed.renewed(left, lease);
        longest
    }

    /// A renewal leaves that the watchdog has not asked for. `true` for the first one after a
    /// confirmation.
    pub(crate) fn asked_to_renew(&self, sent: Moment) -> bool {
        self.state.lock().asked_to_renew(sent)
    }

    /// A renewal that left at `sent` has failed.
    pub(crate) fn failed_to_renew(&self, sent: Moment, failure: &Failure) {
        let cause = format!("{}: {}", failure.address, failure.cause);
        let mut state = self.state.lock();
        if state.reasserts_fixed_lease() {
            return;
        }
        let since = state.failing.take().map_or(sent, |(since, _)| since);
        state.failing = Some((since, cause.into()));
    }

    /// Lost for good, unless it was lost or released before.
    pub(crate) fn lose(&self, reason: LossReason) {
        let mut state = self.state.lock();
        if state.over || state.check(self.clock.now()).is_some() {
            return;
        }
        state.lost = Some(reason);
        drop(state);
        self.is_found_lost();
    }

    /// It is lost, and whoever waits for that learns it now.
    fn is_found_lost(&self) {
        self.changed.notify_waiters();
        self.tell_loss();
    }

    /// Its server has forgotten it, because it was started again, at `started` at the earliest.
    /// Whoever asks a majority does not count that server for a longest lease.
    pub(crate) fn forgotten(&self, started: Moment) {
        let until = self.no_vote_until(started);
        self.state.lock().no_vote_until = until;
    }

    /// Until when no majority counts a server that was started then. `None` if nobody relies on
    /// that.
    pub(crate) fn no_vote_until(&self, started: Moment) -> Option<Moment> {
        let longest = self.terms().longest_lease?;
        // Less the drift, as any lease.
        Some(self.margin.end(started, longest))
    }

    /// Until when it stands for a majority although its server has forgotten it: nobody else counts
    /// that server. `None` if that is not so.
    pub(crate) fn stands_until(&self) -> Option<Moment> {
        let state = self.state.lock();
        let until = state.no_vote_until.filter(|_| state.lost.is_some())?;
        Some(until.min(state.deadline()))
    }

    /// Why it is lost. Tells the log, monitoring and hooks of it, once: called with nothing locked,
    /// because a hook may ask for anything.
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

    /// Why it is lost; `None` while it is good.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.state.lock().check(self.clock.now()).cloned()
    }

    /// Whether nothing but its holder ends it, as far as this process knows.
    pub(crate) fn lasts(&self) -> bool {
        let mut state = self.state.lock();
        state.check(self.clock.now()).is_none() && state.lasts()
    }

    /// How it will be lost at its deadline unless a renewal gets through; `None` while
    /// they are answered soon.
    pub(crate) fn renewal_failure(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state.lock();
        // A renewal that has left just now is no failure yet.
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

    /// Until when its guards have it for sure.
    pub(crate) fn valid_until(&self) -> Moment {
        self.state.lock().valid_until
    }

    /// Returns whether the server may have ended it by itself.
    pub(crate) fn is_past_lease(&self) -> bool {
        self.clock.now() >= self.valid_until()
    }

    /// When the holder has to have stopped: then, or when its maximum hold time is over.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline()
    }

    /// Resolves when its hold of this number is lost: at its deadline at the latest, even if the
    /// server says nothing.
    /// With a claim, only while that is its guard's.
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
                // Handed over in time: whatever comes, the next holder has lost it.
                return std::future::pending().await;
            }
            if let Some(reason) = self.tell_loss() {
                return reason;
            }
            if self.is_over() {
                // Given back in time: it can't be lost any more.
                return std::future::pending().await;
            }
            // The deadline comes by our own clock: a holder whose network is gone has to stop
            // before anybody else can have the lock.
            tokio::select! {
                biased;
                () = changed => {}
                () = timers.sleep_until(self.deadline()) => {}
            }
        }
    }

    /// Whether the guard with this claim shares the hold still.
    fn has(&self, claim: ClaimId) -> bool {
        self.state.lock().stay.claims.has(claim)
    }

    /// One more guard shares the hold, on terms of its own. `None` if the hold is lost or ends;
    /// an error if the lease is longer than others count on.
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
            // Fewer have confirmed it than this guard wants. What the other guards want says nothing
            // of that: their own request may still be under way.
            _ if !state.confirmed_by.covers(terms.acknowledged) => true,
            // A fixed lease counts from this re-entry, as if its guard were alone.
            None => state.valid_until < self.margin.end(now, terms.lease),
            // The watchdog sees to a renewed lease, unless this one is longer than the others, or
            // less than a third of it is left.
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
            // With the guard's limit the deadline may come earlier.
            self.changed.notify_waiters();
        }
        Ok(Some(Joined {
            claim,
            must_confirm,
            moves_look,
        }))
    }

    /// One more guard shares the hold, on the terms on which it was acquired. `None` if it can't:
    /// the hold is lost or over, or its guards want something else by now.
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
        // As much as a hold that is handed over.
        if state.valid_until.saturating_sub(now) < terms.lease / 2 {
            return None;
        }
        Some(Joined {
            claim: state.stay.claims.add(terms, now),
            must_confirm: false,
            moves_look: false,
        })
    }

    /// Nobody shares it from now on. `false`, and nothing has changed, if somebody does.
    pub(crate) fn close_to_others(&self) -> bool {
        let mut state = self.state.lock();
        let is_alone = state.stay.claims.guards() <= 1;
        state.stay.closed |= is_alone;
        is_alone
    }

    /// One guard less, and with it its claim.
    pub(crate) fn leave(&self, claim: ClaimId) -> Leaving {
        self.leave_locked(claim, self.state.lock())
    }

    /// The same for a guard that is dropped. `None` in a child of this process that can't say.
    pub(crate) fn leave_in(&self, process: Process, claim: ClaimId) -> Option<Leaving> {
        Some(self.leave_locked(claim, process.lock(&self.state)?))
    }

    fn leave_locked(&self, claim: ClaimId, mut state: MutexGuard<'_, State>) -> Leaving {
        let now = self.clock.now();
        // Judged first: a hold whose time is over stays lost without the guard whose limit that
        // was.
        state.check(now);
        let before = state.course();
        if !state.stay.claims.remove(claim) {
            return state.nobody_left();
        }
        // What the guard added goes with it, although the server keeps the hold for longer. The
        // watchdog gives it back when the remaining claims are over (`is_cut`).
        let wanted = self.margin.end(now, state.wants(now));
        state.valid_until = state.valid_until.min(wanted);
        let moves_look = state.course() != before;
        drop(state);
        if moves_look {
            self.changed.notify_waiters();
        }
        Leaving::Shared { moves_look }
    }

    /// One guard less, for which the hold is left to its lease when the last one goes.
    pub(crate) fn forget(&self, claim: ClaimId) -> Leaving {
        let mut state = self.state.lock();
        if state.stay.claims.forget(claim) {
            // Its claim stays. A limit that has gone makes the next look come too early at most.
            return Leaving::Shared { moves_look: false };
        }
        state.nobody_left()
    }

    /// Ends the hold here if this is its last guard, which would have to give it back.
    pub(crate) fn end_with_last(&self) -> bool {
        // Ended under the lock under which guards are counted: nobody joins in between.
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

    /// Given back: nothing more to renew or to report.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// A guard wants it to last `lease` from now at least. An error, and nothing has changed,
    /// if that is longer than others count on.
    pub(crate) fn raise(&self, claim: ClaimId, lease: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.stay.claims.check(lease, None, &self.key)?;
        state.stay.claims.raise(claim, lease, now);
        // Before the request leaves: the server may grant it whether its answer comes or not.
        state.longest_asked = state.longest_asked.max(lease);
        Ok(())
    }

    /// When a guard's maximum hold time is over, and what that is.
    pub(crate) fn limit_of(&self, claim: ClaimId) -> Option<Limit> {
        self.state.lock().stay.claims.limit_of(claim)
    }

    /// A guard holds for no longer than `limit` from `since`.
    pub(crate) fn limit(&self, claim: ClaimId, limit: Duration, since: Moment) {
        self.state.lock().stay.claims.limit(claim, limit, since);
        self.changed.notify_waiters();
    }

    /// Whether the server still keeps it when its guards have lost it for this reason.
    pub(crate) fn outlasts(&self, reason: &LossReason) -> bool {
        self.state.lock().outlasts(reason)
    }

    /// Notes when the watchdog looks at it next, and returns what was noted. Called with the
    /// watchdog's table locked.
    pub(crate) fn set_due(&self, due: Option<Moment>) -> Option<Moment> {
        let nanos = due.map_or(NEVER, Moment::as_nanos);
        let before = self.due.swap(nanos, Ordering::Relaxed);
        (before != NEVER).then(|| Moment::from_nanos(before))
    }

    /// Where the watchdog finds it among those that are due at its time.
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
