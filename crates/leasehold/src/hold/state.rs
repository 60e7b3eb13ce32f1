//! The state of a grant. The code is pure: it does not lock, sleep or read the clock.

use std::borrow::Cow;
use std::time::Duration;

use super::holding::Holding;
use super::progress::Stalling;
use super::{GuardExit, SafetyMargin};
use crate::acknowledgement::Acknowledgement;
use crate::clock::{Clock, Moment};
use crate::config::Terms;
use crate::loss::LossReason;
use crate::observe::MaybeSpan;

/// The longest time since the last confirmation at which a hold may still be handed over.
const MAX_UNCONFIRMED: Duration = Duration::from_millis(5);
/// The time after its grant in which a hold may pass to another holder of the process or be shared
/// by another reader. Later, the id that operators see belongs to one holder, or to these readers.
const TRANSFERABLE_FOR: Duration = Duration::from_secs(1);
/// The failure that is shown for a renewal in progress.
pub(super) const NO_REPLY_YET: &str = "no reply yet";
/// The latest time that can be stored, 584 years after the clock began.
const LATEST: Moment = Moment::from_nanos(u64::MAX - 1);

/// The first request for a hold. The deadline of the hold follows from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The lease that the request asks for.
    pub(crate) lease: Duration,
    /// The time before the request is sent. The lease on the server begins later, so a deadline
    /// counted from here is earlier than the server's.
    pub(crate) at: Moment,
}

/// The time at which a hold is due in the watchdog, and by how much earlier it may be renewed
/// together with other holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueTime {
    pub(crate) at: Moment,
    pub(crate) slack: Duration,
}

pub(super) struct GrantState {
    /// The current hold of the grant.
    pub(super) holding: Holding,
    /// The span of the previous hold in this process, until the span of its holder's acquire is
    /// linked to it.
    pub(super) previous_span: MaybeSpan,
    /// The longest lease that was requested: the server may keep the hold for this duration.
    pub(super) longest_requested: Duration,
    /// The end of the hold for its guards: no later than they want, and never after `kept_until`.
    pub(super) valid_until: Moment,
    /// The time until which the server certainly keeps the hold.
    pub(super) kept_until: Moment,
    /// The time at which the last confirmed request was sent, or the first request, if none was
    /// confirmed.
    pub(super) confirmed_at: Moment,
    /// The time at which the granted request was sent.
    pub(super) granted_at: Moment,
    /// The weakest confirmation that any of its requests asked for.
    pub(super) confirmed_by: Acknowledgement,
    /// The number of confirmations by the server, including the grant.
    pub(super) confirmations: u32,
    /// The number of waits that need the hold to last: it is renewed for them, whatever its terms
    /// are.
    pub(super) renewing_waits: usize,
    /// Whether the hold was released, or left to expire. If so, nothing is reported any more.
    pub(super) over: bool,
    /// Whether the client was closed: the hold is no longer renewed.
    pub(super) closed: bool,
    pub(super) lost: Option<LossReason>,
    /// Set if the server has forgotten the hold in a restart: no `RedLock` counts that server
    /// before this time.
    pub(super) no_vote_until: Option<Moment>,
    pub(super) failing: Option<(Moment, Cow<'static, str>)>,
}

/// A maximum hold time that is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) left: Duration,
    pub(super) limit: Duration,
}

/// The values that decide when a hold is due in the watchdog, and when it ends.
#[derive(PartialEq, Eq)]
pub(super) struct Schedule {
    watch_every: Option<Duration>,
    must_end_at: Option<Moment>,
    progress_within: Option<Duration>,
    valid_until: Moment,
}

impl GrantState {
    /// Returns the state of a hold that one guard asked for.
    pub(super) fn new(terms: Terms, clock: Clock, asked: Asked) -> Self {
        let asked_at = asked.at;
        Self {
            holding: Holding::new(terms, clock, asked_at),
            previous_span: MaybeSpan::default(),
            longest_requested: asked.lease,
            valid_until: asked_at,
            kept_until: asked_at,
            confirmed_at: asked_at,
            granted_at: asked_at,
            confirmed_by: terms.acknowledged,
            confirmations: 0,
            renewing_waits: 0,
            over: false,
            closed: false,
            lost: None,
            no_vote_until: None,
            failing: None,
        }
    }

    /// Returns how often the watchdog acts on the hold; `None` for a fixed lease that no wait
    /// needs.
    pub(super) fn watch_every(&self) -> Option<Duration> {
        let claims = &self.holding.claims;
        if self.closed {
            return claims.terms().remind_every;
        }
        let renewing_waits = (self.renewing_waits > 0).then(|| claims.terms().lease / 3);
        claims.watch_every().into_iter().chain(renewing_waits).min()
    }

    /// Returns the values that the holder and the watchdog depend on. While they do not change,
    /// neither needs to learn of guards that join or leave.
    pub(super) fn schedule(&self) -> Schedule {
        Schedule {
            watch_every: self.watch_every(),
            must_end_at: self.must_end_at(),
            progress_within: self.holding.claims.progress_within(),
            valid_until: self.valid_until,
        }
    }

    /// Returns whether another holder of the process can have the hold, on these terms.
    pub(super) fn can_be_handed_over(&mut self, terms: Terms, now: Moment) -> bool {
        let is_free = !self.over && !self.closed && self.renewing_waits == 0;
        // A token belongs to one hold, and only the server draws the next one.
        let has_token = self.holding.token.is_some() || self.holding.raised_to.is_some();
        if !is_free
            || has_token
            || self.is_vetoed()
            || !self.holding.claims.is_only_claim(terms)
            || !self.is_transferable(now)
        {
            return false;
        }
        // The next holder relies on the server's last confirmation. The confirmation must be
        // recent, because another client may have ended the hold by force since then.
        let unconfirmed = now.saturating_sub(self.confirmed_at);
        self.check(now).is_none()
            && unconfirmed <= MAX_UNCONFIRMED.min(terms.lease / 20)
            && self.valid_until.saturating_sub(now) >= terms.lease / 2
    }

    /// Returns whether the hold may still pass to another holder under the same id.
    pub(super) fn is_transferable(&self, now: Moment) -> bool {
        now.saturating_sub(self.granted_at) <= TRANSFERABLE_FOR
    }

    /// Returns the due time for a hold that is due at `at`. With `is_exact`, the hold must not be
    /// due earlier.
    pub(super) fn due_at(&self, at: Moment, is_exact: bool) -> Option<DueTime> {
        if self.over {
            return None;
        }
        let end = self.must_end_at().unwrap_or(LATEST);
        let slack = match is_exact || end <= at {
            true => Duration::ZERO,
            false => self.watch_every().unwrap_or_default() / 20,
        };
        let at = at.min(end).min(LATEST);
        Some(DueTime { at, slack })
    }

    /// Returns the time at which the hold must be released although the server would keep it: the
    /// end of its maximum hold time, or of the claims of the remaining guards, or of its last lease
    /// if its work has stalled.
    pub(super) fn must_end_at(&self) -> Option<Moment> {
        let limit = self.holding.claims.first_limit().map(|(end, _)| end);
        let is_cut = self.is_shortened() || self.is_vetoed();
        let cut = is_cut.then_some(self.valid_until);
        limit.into_iter().chain(cut).min()
    }

    /// Returns whether the server still keeps the hold after its guards have lost it for this
    /// reason.
    pub(super) fn outlasts(&self, reason: &LossReason) -> bool {
        let is_ended_here = matches!(
            reason,
            LossReason::MaxHold { .. } | LossReason::Stalled { .. }
        );
        is_ended_here || self.is_shortened()
    }

    /// Returns the time at which the work counts as stalled. Returns `None` while nothing depends
    /// on progress, or while a wait needs the hold, because the work has not begun.
    pub(super) fn stalls_at(&self) -> Option<Moment> {
        let watch = self.holding.progress.as_ref()?;
        let within = self.holding.claims.progress_within()?;
        (self.renewing_waits == 0).then(|| watch.last() + within)
    }

    /// Returns the time at which the progress must be checked.
    pub(super) fn progress_check_at(&self) -> Option<Moment> {
        let watch = self.holding.progress.as_ref()?;
        let within = self.holding.claims.progress_within()?;
        (self.renewing_waits == 0).then(|| watch.next_check(within))
    }

    /// Returns the stall if the work has made no progress for half of the permitted time. Returns
    /// each stall only once.
    pub(super) fn newly_stalling(&mut self, now: Moment) -> Option<Stalling> {
        self.stalls_at()?;
        let within = self.holding.claims.progress_within()?;
        self.holding.progress.as_mut()?.check(within, now)
    }

    /// Returns the time at which the end of the maximum hold time must be announced, `before` that
    /// end.
    pub(super) fn announces_at(&self, before: Duration) -> Option<Moment> {
        let (end, limit) = self.holding.claims.unannounced_limit()?;
        Some(end - before.min(limit))
    }

    /// Returns the maximum hold time whose end is at most `before` away, and the time that is left.
    /// Returns each maximum only once.
    pub(super) fn newly_ending(&mut self, before: Duration, now: Moment) -> Option<Ending> {
        self.announces_at(before).filter(|at| *at <= now)?;
        let (end, limit) = self.holding.claims.unannounced_limit()?;
        self.holding.claims.announced((end, limit));
        let left = end.saturating_sub(now);
        Some(Ending { left, limit })
    }

    /// Returns whether the last confirmation is too recent for a renewal to be due.
    pub(super) fn was_just_confirmed(&self, now: Moment) -> bool {
        let period = self.watch_every().unwrap_or_default();
        now.saturating_sub(self.confirmed_at) < period.mul_f64(0.75)
    }

    /// Notes when the next renewal is due. A hold that depends on progress is also due for checks.
    pub(super) fn set_renewal_due(&mut self, due: Moment) {
        if let Some(watch) = &mut self.holding.progress {
            watch.renewal_due = due;
        }
    }

    /// Returns whether a renewal is due, and not only a check of the progress.
    pub(super) fn is_renewal_due(&self, now: Moment) -> bool {
        let watch = self.holding.progress.as_ref();
        let slack = || self.watch_every().unwrap_or_default() / 20;
        watch.is_none_or(|watch| now + slack() >= watch.renewal_due)
    }

    /// Refuses renewals if the work has stalled, and allows them again after a report.
    pub(super) fn veto_renewal(&mut self, now: Moment) -> bool {
        // A closed client does not renew the hold, and only reminds the server of it.
        let is_stalled = !self.closed && self.stalls_at().is_some_and(|at| at <= now);
        if let Some(watch) = &mut self.holding.progress
            && !self.closed
        {
            // Forget the stall as soon as a renewal is allowed: if that renewal fails, the hold is
            // lost because of the failure, and not because of the work, which has reported in time.
            watch.vetoed_of = is_stalled.then(|| watch.last());
        }
        is_stalled
    }

    /// Returns whether the last renewal that was due was refused because the work had stalled.
    pub(super) fn is_vetoed(&self) -> bool {
        let watch = self.holding.progress.as_ref();
        watch.is_some_and(|watch| watch.vetoed_of.is_some()) && self.stalls_at().is_some()
    }

    /// Returns the loss of a hold that was not renewed because its work had stalled.
    fn stall(&self, now: Moment) -> Option<LossReason> {
        let stalls_at = self.stalls_at()?;
        let watch = self.holding.progress.as_ref()?;
        // If renewals had failed before the stall, the hold would have been lost anyway.
        let failed_before = (self.failing.as_ref()).is_some_and(|(since, _)| *since < stalls_at);
        let has_stalled = match watch.vetoed_of {
            // A report after the renewal was refused does not help: it is too late.
            Some(_) => true,
            None => stalls_at <= self.valid_until && !failed_before,
        };
        has_stalled.then(|| LossReason::Stalled {
            since: now.saturating_sub(watch.vetoed_of.unwrap_or_else(|| watch.last())),
        })
    }

    /// Returns the lease that the watchdog requests: the full lease that the guards want, or the
    /// rest of a fixed one. After the client was closed, the request only reminds the server of the
    /// rest.
    pub(super) fn lease_to_renew(&self, now: Moment) -> Duration {
        let wanted = self.wanted_lease(now);
        match self.closed {
            true => wanted.min(self.kept_until.saturating_sub(now)),
            false => wanted,
        }
    }

    /// Notes that a renewal is sent. The renewal counts as failing until it is confirmed. This does
    /// not apply to a reminder of a fixed lease, because its end does not move. Returns `true` for
    /// the first renewal since the last confirmed one.
    pub(super) fn renewal_sent(&mut self, sent: Moment) -> bool {
        if self.reasserts_fixed_lease() {
            return false;
        }
        let first = self.failing.is_none();
        self.failing
            .get_or_insert_with(|| (sent, NO_REPLY_YET.into()));
        first
    }

    /// Returns whether the watchdog only reminds the server of the hold.
    pub(super) fn reasserts_fixed_lease(&self) -> bool {
        let terms = self.holding.claims.terms();
        terms.remind_every.is_some()
            && (self.closed || terms.reasserts_fixed_lease() && self.renewing_waits == 0)
    }

    /// Returns whether the hold is renewed until it is released.
    pub(super) fn lasts_until_release(&self) -> bool {
        let claims = &self.holding.claims;
        let is_renewed = self.renewing_waits > 0 || claims.terms().renew_every.is_some();
        let is_free = claims.first_limit().is_none() && claims.progress_within().is_none();
        is_renewed && !self.over && !self.closed && is_free
    }

    /// Returns the time for which the lock stays locked after its last guard has left.
    pub(super) fn rest_of_min_hold(&mut self, now: Moment) -> Option<Duration> {
        let rest = self.holding.claims.rest(now)?;
        // If the hold is lost, the server has ended it, or another client may already have the
        // lock.
        self.check(now).is_none().then_some(rest)
    }

    /// Returns how long the hold must last if a request for it is sent now.
    pub(super) fn wanted_lease(&self, now: Moment) -> Duration {
        match self.renewing_waits {
            0 => self.holding.claims.wanted_lease(now),
            _ => self.holding.claims.terms().lease,
        }
    }

    /// Returns whether a guard that wanted a longer lease than the others has left, so that the
    /// server keeps the hold for longer than they want.
    pub(super) fn is_shortened(&self) -> bool {
        // The margin is needed because slightly less of a fixed lease remains when its request is
        // sent than when the lease was computed.
        self.valid_until + SafetyMargin::ROUNDING < self.kept_until
    }

    /// Ends the hold when its last guard has left.
    pub(super) fn last_guard_left(&mut self) -> GuardExit {
        let exit = self.holding.last_guard_left();
        self.over |= exit == GuardExit::LeftToLease;
        exit
    }

    /// Records a loss if the deadline has passed, and returns the reason. Compares the deadline
    /// with the clock, so that a late timer can't keep a dead hold alive.
    pub(super) fn check(&mut self, now: Moment) -> Option<&LossReason> {
        if self.lost.is_none() && !self.over && now >= self.deadline() {
            self.lost = Some(match self.holding.claims.first_limit() {
                Some((end, limit)) if end <= self.valid_until => LossReason::MaxHold { limit },
                _ if self.closed && self.holding.claims.terms().renew_every.is_some() => {
                    LossReason::Closed
                }
                _ => self
                    .stall(now)
                    .or_else(|| self.renewal_failure(now))
                    .unwrap_or(LossReason::Expired),
            });
        }
        self.lost.as_ref()
    }

    pub(super) fn deadline(&self) -> Moment {
        self.holding
            .claims
            .first_limit()
            .map_or(self.valid_until, |(end, _)| end.min(self.valid_until))
    }

    pub(super) fn renewal_failure(&self, now: Moment) -> Option<LossReason> {
        let (since, cause) = self.failing.as_ref()?;
        Some(LossReason::RenewalFailed {
            since: now.saturating_sub(*since),
            cause: cause.clone().into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acknowledgement::Acknowledgement;

    const LEASE: Duration = Duration::from_secs(30);

    fn terms() -> Terms {
        Terms {
            lease: LEASE,
            renew_every: Some(LEASE / 3),
            remind_every: None,
            max_hold: None,
            min_hold: None,
            progress_within: None,
            longest_lease: None,
            acknowledged: Acknowledgement::master(),
        }
    }

    fn asked_at(at: Moment) -> GrantState {
        GrantState::new(terms(), Clock::Boot, Asked { lease: LEASE, at })
    }

    #[test]
    fn reentry_on_the_same_terms_keeps_the_course() {
        let now = Moment::from_millis(1000);
        let mut state = asked_at(now);
        let alone = state.schedule();
        let claim = state.holding.claims.add(terms(), now);
        assert!(state.schedule() == alone);
        assert!(state.holding.claims.remove(claim));
        assert!(state.schedule() == alone);

        let sooner = Terms {
            renew_every: Some(LEASE / 6),
            ..terms()
        };
        let ends = Terms {
            max_hold: Some(LEASE),
            ..terms()
        };
        for other in [sooner, ends] {
            let claim = state.holding.claims.add(other, now);
            assert!(state.schedule() != alone);
            assert!(state.holding.claims.remove(claim));
            assert!(state.schedule() == alone);
        }
    }

    /// Returns a state that was confirmed by a request sent one second after the clock began.
    fn confirmed() -> (GrantState, Moment) {
        let now = Moment::from_millis(1000);
        let mut state = asked_at(now);
        state.valid_until = now + LEASE;
        state.kept_until = now + LEASE;
        (state, now)
    }

    #[test]
    fn only_what_was_confirmed_lately_is_handed_over() {
        let (mut state, now) = confirmed();
        assert!(state.can_be_handed_over(terms(), now + MAX_UNCONFIRMED));
        let late = now + MAX_UNCONFIRMED + Duration::from_millis(1);
        assert!(!state.can_be_handed_over(terms(), late));
        // With a short lease, a twentieth of the lease is the limit.
        let short = Terms {
            lease: Duration::from_millis(60),
            ..terms()
        };
        state.holding = Holding::new(short, Clock::Boot, now);
        assert!(state.can_be_handed_over(short, now + short.lease / 20));
        assert!(!state.can_be_handed_over(short, now + MAX_UNCONFIRMED));
    }

    /// Checks that a hold of this age is not handed over, even if it was confirmed recently.
    #[test]
    fn only_what_was_granted_within_a_second_is_handed_over() {
        let (mut state, granted) = confirmed();
        state.confirmed_at = granted + TRANSFERABLE_FOR;
        assert!(state.can_be_handed_over(terms(), granted + TRANSFERABLE_FOR));
        let late = granted + TRANSFERABLE_FOR + Duration::from_millis(1);
        assert!(!state.can_be_handed_over(terms(), late));
    }

    #[test]
    fn only_what_is_valid_for_long_is_handed_over() {
        let (mut state, now) = confirmed();
        state.valid_until = now + LEASE / 2;
        assert!(state.can_be_handed_over(terms(), now));
        state.valid_until = now + LEASE / 2 - Duration::from_millis(1);
        assert!(!state.can_be_handed_over(terms(), now));
    }

    #[test]
    fn what_is_lost_over_closed_or_kept_is_not_handed_over() {
        type Change = fn(&mut GrantState);
        let changes: [Change; 6] = [
            |state| state.lost = Some(LossReason::forced(b"it")),
            |state| state.over = true,
            |state| state.closed = true,
            |state| state.renewing_waits = 1,
            |state| state.holding.token = Some(7),
            |state| state.holding.raised_to = Some(7),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut state, now) = confirmed();
            assert!(state.can_be_handed_over(terms(), now));
            change(&mut state);
            assert!(!state.can_be_handed_over(terms(), now), "change {number}");
        }
    }

    #[test]
    fn terms_that_differ_are_not_handed_over() {
        let (mut state, now) = confirmed();
        let others = [
            Terms {
                min_hold: Some(Duration::from_millis(10)),
                ..terms()
            },
            Terms {
                lease: LEASE * 2,
                ..terms()
            },
            Terms {
                renew_every: None,
                ..terms()
            },
            Terms {
                max_hold: Some(LEASE),
                ..terms()
            },
        ];
        for other in others {
            assert!(!state.can_be_handed_over(other, now), "{other:?}");
            let (mut own, now) = confirmed();
            own.holding = Holding::new(other, Clock::Boot, now);
            let limits = other.max_hold.or(other.min_hold);
            let plain = other.renew_every.is_some() && limits.is_none();
            assert_eq!(own.can_be_handed_over(other, now), plain, "{other:?}");
        }
        // A hold that several guards share is handed over only when the last of them leaves.
        state.holding.claims.add(terms(), now);
        assert!(!state.can_be_handed_over(terms(), now));
    }
}
