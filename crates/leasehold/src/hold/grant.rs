//! A grant by the server: how long it is valid, and whether it has been lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::claims::Limit;
use super::confirm::PendingConfirmations;
use super::holding::Holding;
use super::progress::{LastReport, Stalling};
use super::state::{Asked, DueTime, Ending, GrantState, NO_REPLY_YET};
use super::{ClaimId, GuardExit, HoldSteps, Joined, SafetyMargin};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::clock::{Clock, Moment, Timers};
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::LossReason;
use crate::observe::{Ended, Entry, MaybeSpan, Observed, log};
use crate::process::Process;
use crate::sync::{Mutex, MutexGuard};

/// One grant by the server.
pub(crate) struct Grant {
    pub(crate) key: Key,
    /// The number of the grant's first hold, which identifies the grant in debug output.
    pub(super) number: u64,
    pub(crate) steps: Box<dyn HoldSteps>,
    /// The route of its release and its undo: the connection of its acquire, so that both run after
    /// the acquire.
    undo_route: Route,
    clock: Clock,
    margin: SafetyMargin,
    state: Mutex<GrantState>,
    /// The time at which the grant is due in the watchdog, in nanoseconds, or [`NEVER`]. Written
    /// with the watchdog's table locked.
    due: AtomicU64,
    /// The grant's index in one of the lists of the watchdog's table. Read and written with that
    /// table locked.
    wheel_index: AtomicUsize,
    /// Notified when the hold is lost or its deadline has moved.
    changed: Notify,
    /// The earlier holders that have handed the hold over and wait for the server's confirmation.
    pub(super) pending_confirmations: PendingConfirmations,
    pub(crate) observed: Observed,
    /// Whether the loss was reported.
    loss_is_reported: AtomicBool,
}

/// The due time of a grant that is not in the watchdog's table.
const NEVER: u64 = u64::MAX;

/// The next action of the watchdog for a hold.
#[derive(Debug)]
pub(crate) enum WatchdogAction {
    /// Nothing: the hold was released, or has ended here and on the server.
    Nothing,
    /// Nothing yet.
    Later,
    /// Look again soon: the work under the hold has stalled, so the hold is not renewed.
    Stalled,
    /// Ask the server for this lease.
    Renew {
        lease: Duration,
        /// Whether this is the first renewal since the last confirmed one.
        first: bool,
    },
    /// End the hold: its guards have lost it for this reason, but the server still keeps it.
    End(LossReason),
}

impl Grant {
    pub(crate) fn new(
        key: Key,
        steps: Box<dyn HoldSteps>,
        terms: Terms,
        clock: Clock,
        margin: SafetyMargin,
        asked: Asked,
        observed: Observed,
    ) -> Arc<Self> {
        let state = GrantState::new(terms, clock, asked);
        Arc::new(Self {
            key,
            number: state.holding.number,
            steps,
            undo_route: Route::of(terms.acknowledged).same_connection(),
            clock,
            margin,
            state: Mutex::new(state),
            due: AtomicU64::new(NEVER),
            wheel_index: AtomicUsize::new(0),
            changed: Notify::new(),
            pending_confirmations: PendingConfirmations::default(),
            observed,
            loss_is_reported: AtomicBool::new(false),
        })
    }

    /// Returns whether the next holder gets another grant, because its permits need new ids.
    pub(crate) fn is_swapped(&self) -> bool {
        self.steps.swap_steps().is_some()
    }

    /// Returns the number of permits; 1 for a lock.
    pub(crate) fn permits(&self) -> u32 {
        let swap_steps = self.steps.swap_steps();
        swap_steps.map_or(1, |swap_steps| swap_steps.permits())
    }

    /// Returns the number of the current hold.
    pub(crate) fn hold_number(&self) -> u64 {
        self.state.lock().holding.number
    }

    /// Returns terms that satisfy all its guards.
    pub(crate) fn terms(&self) -> Terms {
        self.state.lock().holding.claims.terms()
    }

    /// Returns the terms that one guard asked for.
    pub(crate) fn terms_of(&self, claim: ClaimId) -> Terms {
        self.state.lock().holding.claims.terms_of(claim)
    }

    /// Returns the route for operations that release the grant. On this route, they run after its
    /// acquire.
    pub(crate) fn undo_route(&self) -> Route {
        self.undo_route
    }

    /// Returns the route of operations that extend the hold. They need the confirmations that the
    /// guard with the strictest setting wants.
    pub(crate) fn route(&self) -> Route {
        let mut state = self.state.lock();
        let wanted = state.holding.claims.terms().acknowledged;
        // Note the setting before the operation is sent: a guard that joins before the reply must
        // not believe that its own setting was confirmed.
        state.confirmed_by = state.confirmed_by.common(wanted);
        drop(state);
        match Route::of(wanted) {
            Route::Plain => self.undo_route,
            confirmed => confirmed,
        }
    }

    /// Returns the longest lease that was requested: the server may keep the hold for this
    /// duration.
    pub(crate) fn longest_requested(&self) -> Duration {
        self.state.lock().longest_requested
    }

    /// Returns what the watchdog must do about the hold now. If that is a renewal, it counts as
    /// sent.
    pub(crate) fn next_action(&self, now: Moment) -> WatchdogAction {
        let mut state = self.state.lock();
        if state.over {
            return WatchdogAction::Nothing;
        }
        if let Some(reason) = state.check(now).cloned() {
            let outlasts = state.outlasts(&reason);
            drop(state);
            self.report_found_loss();
            return match outlasts {
                true => WatchdogAction::End(reason),
                false => WatchdogAction::Nothing,
            };
        }
        let stalling = state.newly_stalling(now);
        let announces_before = self.observed.max_hold_warning();
        let ending = announces_before.and_then(|before| state.newly_ending(before, now));
        // A hold that is due only because of the announcement is not renewed.
        let is_early = ending.is_some() && state.was_just_confirmed(now);
        let action = match state.watch_every() {
            Some(_) if is_early || !state.is_renewal_due(now) => WatchdogAction::Later,
            Some(_) if state.veto_renewal(now) => WatchdogAction::Stalled,
            Some(_) => WatchdogAction::Renew {
                lease: state.lease_to_renew(now),
                first: state.renewal_sent(now),
            },
            None => WatchdogAction::Later,
        };
        drop(state);
        if let Some(Stalling { since, within }) = stalling {
            // This event has a target of its own, so that the command `leasehold` can leave it out:
            // the work may still report in time.
            log(|| {
                tracing::warn!(
                    target: "leasehold::progress",
                    key = %self.key,
                    ?since,
                    "the work makes no progress"
                );
            });
            self.observed.stalling(&self.key, since, within);
        }
        if let Some(Ending { left, limit }) = ending {
            log(|| tracing::warn!(key = %self.key, ?left, "the maximum hold time is almost over"));
            self.observed.ending(&self.key, left, limit);
        }
        action
    }

    /// Makes the hold depend on one guard's reports of progress, and returns where that guard
    /// reports. `earlier` has the reports for an earlier hold: if it is given, time counts from the
    /// last of these reports, otherwise from now.
    pub(crate) fn want_progress(
        &self,
        claim: ClaimId,
        within: Duration,
        earlier: Option<Arc<LastReport>>,
    ) -> Arc<LastReport> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.holding.claims.want_progress(claim, within);
        let reports = match earlier {
            Some(earlier) => {
                let watch = state.holding.watch_progress(self.clock, earlier.at());
                watch.add(Arc::clone(&earlier));
                earlier
            }
            None => {
                let watch = state.holding.watch_progress(self.clock, now);
                watch.report_at(now);
                Arc::clone(watch.own())
            }
        };
        drop(state);
        self.changed.notify_waiters();
        reports
    }

    /// Returns where a guard of the current hold reports progress.
    pub(super) fn reports(&self) -> Arc<LastReport> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        Arc::clone(state.holding.watch_progress(self.clock, now).own())
    }

    /// Resolves with the time since the last report when the work has stalled. Never resolves if
    /// the hold ends before that.
    pub(super) async fn stalled(&self, number: u64, timers: &Timers) -> Duration {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the state is read. Otherwise a change in between would be missed.
            changed.as_mut().enable();
            let now = self.clock.now();
            let stalls_at = {
                let mut state = self.state.lock();
                let is_current = state.holding.number == number;
                match state.check(now).cloned() {
                    Some(LossReason::Stalled { since }) if is_current => return since,
                    None if is_current && !state.over => Some(state.stalls_at()),
                    _ => None,
                }
            };
            let Some(stalls_at) = stalls_at else {
                // The hold was released, handed over or lost for another reason.
                return std::future::pending().await;
            };
            match stalls_at {
                Some(at) if at <= now => return self.since_report(now),
                Some(at) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = timers.sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    fn since_report(&self, now: Moment) -> Duration {
        let state = self.state.lock();
        let watch = state.holding.progress.as_ref();
        watch.map_or(Duration::ZERO, |watch| now.saturating_sub(watch.last()))
    }

    /// Returns the time at which the hold is due in the watchdog: one renewal period after the last
    /// confirmation, but earlier by `part` of the period. If the hold must end before that time, or
    /// its progress must be checked, or its end announced, the hold is due at that earlier time.
    /// Returns `None` if the hold is never due.
    pub(crate) fn next_due(&self, part: f64) -> Option<DueTime> {
        let mut state = self.state.lock();
        let renewal = state.watch_every();
        let renewal = renewal.map(|period| state.confirmed_at + period.mul_f64(1.0 - part));
        if let Some(renewal) = renewal {
            state.set_renewal_due(renewal);
        }
        let announces_before = self.observed.max_hold_warning();
        let announcement = announces_before.and_then(|before| state.announces_at(before));
        let check = (state.progress_check_at().into_iter())
            .chain(announcement)
            .min();
        let ends = state.must_end_at().into_iter().chain(check);
        let at = renewal.into_iter().chain(ends).min()?;
        // A check that is early would be due again at once.
        state.due_at(at, check == Some(at))
    }

    /// Returns the due time of a hold whose next renewal is due at `at`, whatever its terms are.
    pub(crate) fn due_at(&self, at: Moment) -> Option<DueTime> {
        let mut state = self.state.lock();
        state.set_renewal_due(at);
        state.due_at(at, false)
    }

    /// Makes the lease a fixed one from now on, whatever the terms are.
    pub(crate) fn stop_renewing(&self) {
        self.state.lock().closed = true;
    }

    /// Notes the start (`begin`) or the end of a wait that needs the hold to last. The hold is
    /// renewed during such a wait, whatever its terms are.
    pub(crate) fn renew_for_wait(&self, begin: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.renewing_waits = if begin {
            state.renewing_waits + 1
        } else {
            state.renewing_waits - 1
        };
        // The work begins after the wait.
        state.holding.report_progress(now);
    }

    /// Notes another request for the grant, whose lease counts from now. No guard has the hold yet,
    /// so a grant that arrived too late for the earlier request is not a loss.
    pub(crate) fn requested_again(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        (state.valid_until, state.kept_until) = (now, now);
        state.confirmed_at = now;
        state.holding.claims.start_again(now);
        state.holding.report_progress(now);
        state.lost = None;
    }

    /// Notes that the server has granted the request. Returns `false` if the reply took longer than
    /// the lease.
    pub(crate) fn granted(&self, token: Option<u64>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.holding.token = token;
        state.granted_at = state.confirmed_at;
        // The end counts from a time before the request was sent, never from the reply: the
        // server's lease began after the request was sent and before the reply arrived.
        let end = self.margin.end(state.confirmed_at, state.longest_requested);
        (state.valid_until, state.kept_until) = (end, end);
        state.holding.claims.granted(now);
        state.holding.report_progress(now);
        state.check(now).is_none()
    }

    /// Returns the fencing token that arrived with the grant, or was drawn later.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().holding.token
    }

    /// Notes a token that was drawn for the hold. Returns the hold's token: the first one that was
    /// drawn.
    pub(crate) fn set_token(&self, token: u64) -> u64 {
        // Guards may draw tokens at the same time, but a hold has only one token.
        *self.state.lock().holding.token.get_or_insert(token)
    }

    /// Notes that from now on, the lock's tokens are not below this one.
    pub(crate) fn raised(&self, token: u64) {
        let mut state = self.state.lock();
        state.holding.raised_to = state.holding.raised_to.max(Some(token));
    }

    /// Returns the greatest token to which the lock was raised for this hold.
    pub(crate) fn raised_to(&self) -> Option<u64> {
        self.state.lock().holding.raised_to
    }

    /// Returns the lease to ask for now: the full lease that its guards want, or the rest of a
    /// fixed one.
    pub(crate) fn lease_to_request(&self, now: Moment) -> Duration {
        self.state.lock().wanted_lease(now)
    }

    /// Returns the time at which the granted request was sent.
    pub(crate) fn granted_at(&self) -> Moment {
        self.state.lock().granted_at
    }

    /// Begins the next holder's hold, on the same terms. Call this when no guard has the grant.
    /// Returns `false` and changes nothing if the grant can't be handed over: it may be lost soon,
    /// it may already be lost unnoticed, or another claim on it remains.
    pub(crate) fn hand_over(&self, terms: Terms, now: Moment) -> bool {
        let mut state = self.state.lock();
        let may = state.can_be_handed_over(terms, now);
        if may {
            let ended = std::mem::replace(&mut state.holding, Holding::new(terms, self.clock, now));
            let before = state.previous_span.replace(ended.span);
            // End the span while nothing is locked: its subscriber may do anything.
            drop(state);
            drop(before);
        }
        may
    }

    /// Links the span of an acquire that obtained this grant with the span of its hold.
    pub(crate) fn acquired(&self, ended: &Ended, entry: Entry) {
        let mut state = self.state.lock();
        let before = state.previous_span.replace(MaybeSpan::default());
        let (hold, token) = (state.holding.span.clone(), state.holding.token);
        drop(state);
        ended.follows(&before);
        match entry {
            Entry::Joined => ended.follows(&hold),
            Entry::Granted => {
                let hold = ended.hold_span(&self.observed, &self.key, self.steps.wire_id(), token);
                let none = self.state.lock().holding.span.replace(hold);
                drop(none);
            }
        }
    }

    /// Notes that the next waiter of the process gets this grant instead of `other`.
    pub(crate) fn follows(&self, other: &Self) {
        let span = other.span();
        if span.is_enabled() {
            let none = self.state.lock().previous_span.replace(span);
            drop(none);
        }
    }

    /// Returns the span of the current hold.
    fn span(&self) -> MaybeSpan {
        self.state.lock().holding.span.clone()
    }

    /// Returns the span of a renewal that is sent now.
    pub(crate) fn renewal_span(&self) -> MaybeSpan {
        self.observed.renewal_span(&self.key, || self.span())
    }

    /// Returns the span of a release by a guard.
    pub(crate) fn release_span(&self) -> MaybeSpan {
        self.observed.release_span(&self.key, || self.span())
    }

    /// Returns the time at which the current hold began.
    pub(crate) fn since(&self) -> Moment {
        self.state.lock().holding.since
    }

    /// Returns the time since `since`.
    pub(crate) fn age(&self, since: Moment) -> Duration {
        self.clock.now().saturating_sub(since)
    }

    /// Returns how often the server has renewed the hold, and how many guards have it.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let state = self.state.lock();
        (
            state.confirmations.saturating_sub(1),
            state.holding.claims.len(),
        )
    }

    /// Returns the time from which the current lease counts.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.state.lock().confirmed_at
    }

    /// Notes that the server has confirmed `lease` for a request that was sent at `sent`. A hold
    /// that is lost stays lost, whatever arrives later. Returns the longest lease that was
    /// requested so far.
    pub(crate) fn confirmed(&self, sent: Moment, lease: Duration) -> Duration {
        let mut state = self.state.lock();
        let longest = state.longest_requested;
        // A loss is final: the holder was notified, and another client may already have the lock.
        if state.check(self.clock.now()).is_some() {
            drop(state);
            self.report_found_loss();
            return longest;
        }
        let remaining = state.valid_until.saturating_sub(self.clock.now());
        // The latest end counts, whichever reply arrives last: no renewal makes a hold shorter than
        // an earlier one asked for, so renewals may overlap.
        state.kept_until = state.kept_until.max(self.margin.end(sent, lease));
        // A guard that wanted a longer lease may have left since then.
        let wanted = lease.min(state.wanted_lease(sent));
        state.valid_until = state.valid_until.max(self.margin.end(sent, wanted));
        state.confirmed_at = state.confirmed_at.max(sent);
        state.confirmations = state.confirmations.saturating_add(1);
        state.failing = None;
        if let Some(watch) = &mut state.holding.progress {
            watch.vetoed_of = None;
        }
        drop(state);
        self.changed.notify_waiters();
        // Call the recorder after unlocking, because it is code of the user.
        self.observed.renewed(remaining, lease);
        longest
    }

    /// Notes that a caller other than the watchdog sends a renewal. Returns `true` for the first
    /// renewal since the last confirmed one.
    pub(crate) fn renewal_sent(&self, sent: Moment) -> bool {
        self.state.lock().renewal_sent(sent)
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
        self.report_found_loss();
    }

    /// Reports the loss, and wakes the tasks that wait for it.
    fn report_found_loss(&self) {
        self.changed.notify_waiters();
        self.report_loss();
    }

    /// Notes that the server has forgotten the hold in a restart, which was not before `started`.
    /// Clients with a `RedLock` do not count that server until the longest lease has passed.
    pub(crate) fn forgotten(&self, started: Moment) {
        let until = self.no_vote_until(started);
        self.state.lock().no_vote_until = until;
    }

    /// Returns the time until which no `RedLock` counts a server that was started at `started`.
    /// Returns `None` if no client relies on that.
    pub(crate) fn no_vote_until(&self, started: Moment) -> Option<Moment> {
        let longest = self.terms().longest_lease?;
        // The drift is subtracted, as for any lease.
        Some(self.margin.end(started, longest))
    }

    /// Returns the time until which the hold counts for a `RedLock` although its server has
    /// forgotten it: until then, no other client counts that server. Returns `None` if the hold
    /// does not count.
    pub(crate) fn counts_until(&self) -> Option<Moment> {
        let state = self.state.lock();
        let until = state.no_vote_until.filter(|_| state.lost.is_some())?;
        Some(until.min(state.deadline()))
    }

    /// Returns why the hold is lost. Reports the loss once, to the log, metrics and hooks. Call
    /// this while nothing is locked, because a hook may do anything.
    pub(crate) fn report_loss(&self) -> Option<LossReason> {
        let reason = self.loss()?;
        self.ended_lost(&reason);
        Some(reason)
    }

    /// Reports a loss, but only once. The server may have found the loss after this process had
    /// ended the hold.
    pub(crate) fn ended_lost(&self, reason: &LossReason) {
        if !self.loss_is_reported.swap(true, Ordering::Relaxed) {
            log(|| tracing::error!(key = %self.key, %reason, "lock lost"));
            self.observed.lost(&self.key, reason);
            self.span().lost(reason);
        }
    }

    /// Returns why the hold is lost; `None` while it is valid.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.state.lock().check(self.clock.now()).cloned()
    }

    /// Returns whether only its holder can end the hold, as far as this process knows.
    pub(crate) fn lasts_until_release(&self) -> bool {
        let mut state = self.state.lock();
        state.check(self.clock.now()).is_none() && state.lasts_until_release()
    }

    /// Returns the loss that will occur at the deadline unless a renewal succeeds. Returns `None`
    /// while renewals are answered promptly.
    pub(crate) fn renewal_failure(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state.lock();
        // A renewal that was sent just now is not a failure yet.
        let soon = state.holding.claims.terms().lease / 20;
        let (since, cause) = state.failing.as_ref()?;
        let is_in_flight = cause == NO_REPLY_YET && now.saturating_sub(*since) < soon;
        (!is_in_flight)
            .then(|| state.renewal_failure(now))
            .flatten()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.report_loss() {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&self.key, reason)),
        }
    }

    /// Returns the time until which its guards certainly have the hold.
    pub(crate) fn valid_until(&self) -> Moment {
        self.state.lock().valid_until
    }

    /// Returns whether the server may have ended the hold by itself.
    pub(crate) fn is_past_lease(&self) -> bool {
        self.clock.now() >= self.valid_until()
    }

    /// Returns the time by which the holder must have stopped: the end of the hold's validity, or
    /// of its maximum hold time.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline()
    }

    /// Resolves when the hold with this number is lost: at its deadline at the latest, even without
    /// a reply from the server. With a claim, it never resolves once the guard of that claim no
    /// longer shares the hold.
    pub(super) async fn lost(
        &self,
        number: u64,
        claim: Option<ClaimId>,
        timers: &Timers,
    ) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the state is read. Otherwise a loss in between would be missed.
            changed.as_mut().enable();
            let has_left = claim.is_some_and(|claim| !self.has(claim));
            if has_left || self.hold_number() != number {
                // The guard has left the hold, or the hold was handed over, before a loss. From
                // then on, only another holder can lose it.
                return std::future::pending().await;
            }
            if let Some(reason) = self.report_loss() {
                return reason;
            }
            if self.is_over() {
                // The hold was released before a loss, so it can no longer be lost. But a ticket
                // may still take it over.
                changed.await;
                continue;
            }
            // Our own clock decides when the deadline has passed: a holder without a network must
            // stop before another client can have the lock.
            tokio::select! {
                biased;
                () = changed => {}
                () = timers.sleep_until(self.deadline()) => {}
            }
        }
    }

    /// Returns whether the guard with this claim still shares the hold.
    fn has(&self, claim: ClaimId) -> bool {
        self.state.lock().holding.claims.has(claim)
    }

    /// Adds a guard to the hold, on its own terms. Returns `None` if the hold is lost or has ended.
    /// Fails if the lease is longer than the longest one on which other clients rely.
    pub(crate) fn join(&self, terms: Terms) -> Result<Option<Joined>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.holding.guards_gone || state.over || state.check(now).is_some() {
            return Ok(None);
        }
        state
            .holding
            .claims
            .check(terms.first_lease(), terms.longest_lease, &self.key)?;
        let must_confirm = match terms.renew_every {
            // The hold has fewer confirmations than this guard wants. It does not help if other
            // guards want the same number: their request may still be in progress.
            _ if !state.confirmed_by.covers(terms.acknowledged) => true,
            // The server must know of the minimum time before the work begins.
            _ if (terms.min_hold).is_some_and(|least| state.kept_until < now + least) => true,
            // A fixed lease counts from this re-entry, as if its guard were alone.
            None => state.valid_until < self.margin.end(now, terms.lease),
            // The watchdog takes care of a renewed lease, unless this guard's lease is longer than
            // the other guards' leases, or less than a third of it remains.
            Some(_) => {
                let remaining = state.valid_until.saturating_sub(now);
                state.holding.claims.renewed_lease() < Some(terms.lease)
                    || remaining < terms.lease / 3
            }
        };
        let before = state.schedule();
        let claim = state.holding.claims.add(terms, now);
        if terms.progress_within.is_some() {
            // The work of this guard begins now.
            state.holding.watch_progress(self.clock, now).report_at(now);
        }
        state.longest_requested = state.longest_requested.max(terms.first_lease());
        let moves_due = state.schedule() != before;
        drop(state);
        if moves_due {
            // The guard's limit may make the deadline earlier.
            self.changed.notify_waiters();
        }
        Ok(Some(Joined {
            claim,
            must_confirm,
            moves_due,
        }))
    }

    /// Adds a guard to the hold, on the terms on which it was acquired. Returns `None` if that is
    /// not possible: the hold is lost or has ended, or its guards now want other terms.
    pub(crate) fn share(&self, terms: Terms) -> Option<Joined> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_good =
            !state.holding.guards_gone && !state.holding.closed && !state.over && !state.closed;
        if !is_good || state.check(now).is_some() || !state.holding.claims.all_have(terms) {
            return None;
        }
        if !state.is_transferable(now) {
            return None;
        }
        // The same limit applies to a hold that is handed over.
        if state.valid_until.saturating_sub(now) < terms.lease / 2 {
            return None;
        }
        Some(Joined {
            claim: state.holding.claims.add(terms, now),
            must_confirm: false,
            moves_due: false,
        })
    }

    /// Lets no other guard share the hold from now on. Returns `false` and changes nothing if
    /// another guard shares it.
    pub(crate) fn close_to_others(&self) -> bool {
        let mut state = self.state.lock();
        let is_alone = state.holding.claims.guards() <= 1;
        state.holding.closed |= is_alone;
        is_alone
    }

    /// Removes a guard with its claim.
    pub(crate) fn leave(&self, claim: ClaimId) -> GuardExit {
        self.leave_locked(claim, self.state.lock())
    }

    /// Like [`leave`](Self::leave), for a guard that is dropped. Returns `None` in a forked child
    /// if another thread of the parent had the state locked.
    pub(crate) fn leave_in(&self, process: Process, claim: ClaimId) -> Option<GuardExit> {
        Some(self.leave_locked(claim, process.lock(&self.state)?))
    }

    fn leave_locked(&self, claim: ClaimId, mut state: MutexGuard<'_, GrantState>) -> GuardExit {
        let now = self.clock.now();
        // Check for a loss first: a hold whose time has ended stays lost after the guard with that
        // limit has left.
        state.check(now);
        let before = state.schedule();
        if !state.holding.claims.remove(claim) {
            return state.last_guard_left();
        }
        // The guard's claim ends when the guard leaves, although the server keeps the hold for
        // longer. The watchdog releases the hold when the remaining claims have ended
        // (`is_shortened`).
        let wanted = self.margin.end(now, state.wanted_lease(now));
        state.valid_until = state.valid_until.min(wanted);
        let moves_due = state.schedule() != before;
        drop(state);
        if moves_due {
            self.changed.notify_waiters();
        }
        GuardExit::Shared { moves_due }
    }

    /// Removes a guard but keeps its claim: when the last guard leaves, the hold is left to expire.
    pub(crate) fn forget(&self, claim: ClaimId) -> GuardExit {
        let mut state = self.state.lock();
        if state.holding.claims.forget(claim) {
            // The claim remains, but the guard's limit does not: at worst, the hold is due too
            // early.
            return GuardExit::Shared { moves_due: false };
        }
        state.last_guard_left()
    }

    /// Ends the hold here if the caller is its last guard, which would have to release the hold.
    pub(crate) fn end_if_last_guard(&self) -> bool {
        // End the hold under the lock that protects the number of guards: no guard joins in
        // between.
        let mut state = self.state.lock();
        let last = state.holding.claims.guards() == 1 && !state.holding.claims.any_forgotten();
        if last {
            (state.holding.guards_gone, state.over) = (true, true);
        }
        last
    }

    /// Returns the time for which the lock stays locked after its last guard has left. Returns
    /// `None` if the lock is then free, or the hold is lost.
    pub(crate) fn rest_of_min_hold(&self) -> Option<Duration> {
        self.state.lock().rest_of_min_hold(self.clock.now())
    }

    /// Ends the minimum time of the hold now.
    pub(crate) fn end_min_hold(&self) {
        self.state.lock().holding.claims.end_min_hold();
    }

    /// Ends the minimum time of one guard.
    pub(crate) fn end_min_hold_of(&self, claim: ClaimId) {
        self.state.lock().holding.claims.end_min_hold_of(claim);
    }

    pub(crate) fn guards(&self) -> usize {
        self.state.lock().holding.claims.guards()
    }

    /// Ends the hold: from now on nothing is renewed or reported.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    /// Notes that a ticket has the hold from now on. The tasks that wait for a loss are notified,
    /// but no loss is reported.
    pub(crate) fn handed_out(&self) {
        let mut state = self.state.lock();
        state.over = true;
        state.lost.get_or_insert(LossReason::HandedOver);
        drop(state);
        self.loss_is_reported.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Raises a guard's claim to at least `lease` from now. Fails and changes nothing if that is
    /// longer than the longest lease on which other clients rely.
    pub(crate) fn raise(&self, claim: ClaimId, lease: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.holding.claims.check(lease, None, &self.key)?;
        state.holding.claims.raise(claim, lease, now);
        // Note the lease before the request is sent: the server may grant the lease even if its
        // reply is lost.
        state.longest_requested = state.longest_requested.max(lease);
        Ok(())
    }

    /// Returns the end and the length of a guard's maximum hold time.
    pub(crate) fn limit_of(&self, claim: ClaimId) -> Option<Limit> {
        self.state.lock().holding.claims.limit_of(claim)
    }

    /// Limits a guard's hold to `limit` from `since`.
    pub(crate) fn limit(&self, claim: ClaimId, limit: Duration, since: Moment) {
        self.state.lock().holding.claims.limit(claim, limit, since);
        self.changed.notify_waiters();
    }

    /// Returns whether the server still keeps the hold after its guards have lost it for this
    /// reason.
    pub(crate) fn outlasts(&self, reason: &LossReason) -> bool {
        self.state.lock().outlasts(reason)
    }

    /// Sets when the hold is due in the watchdog, and returns the time that was set before. Call
    /// this with the watchdog's table locked.
    pub(crate) fn set_due(&self, due: Option<Moment>) -> Option<Moment> {
        let nanos = due.map_or(NEVER, Moment::as_nanos);
        let before = self.due.swap(nanos, Ordering::Relaxed);
        (before != NEVER).then(|| Moment::from_nanos(before))
    }

    /// Returns the grant's index in its list in the watchdog's table.
    pub(super) fn wheel_index(&self) -> usize {
        self.wheel_index.load(Ordering::Relaxed)
    }

    pub(super) fn set_wheel_index(&self, index: usize) {
        self.wheel_index.store(index, Ordering::Relaxed);
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
