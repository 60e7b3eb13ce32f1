//! The state of a grant. The code is pure: it does not lock, sleep or read the clock.

use std::borrow::Cow;
use std::time::Duration;

use super::grant::Look;
use super::stay::Stay;
use super::{Leaving, SafetyMargin};
use crate::acknowledgement::Acknowledgement;
use crate::clock::Moment;
use crate::config::Terms;
use crate::loss::LossReason;
use crate::observe::Told;

/// The longest time since the last confirmation at which a hold may still be handed over.
const UNCONFIRMED: Duration = Duration::from_millis(5);
/// The time after its grant in which a hold may pass to another holder of the process or be shared
/// by another reader. Later, the id that operators see belongs to one holder, or to these readers.
const PASSES_FOR: Duration = Duration::from_secs(1);
/// The cause of a renewal that is in progress.
pub(super) const NO_REPLY_YET: &str = "no reply yet";
/// The latest time that can be noted, 584 years after the clock began.
const LATEST: Moment = Moment::from_nanos(u64::MAX - 1);

pub(super) struct State {
    /// The present hold of the grant.
    pub(super) stay: Stay,
    /// The span of the previous hold in this process, until the span of its holder's acquire is
    /// linked to it.
    pub(super) before: Told,
    /// The longest lease that was requested: the server may keep the hold for this duration.
    pub(super) longest_asked: Duration,
    /// The end of the guards' hold: not later than they want, nor later than the server certainly
    /// keeps it.
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
    /// Number of confirmations by the server, including the grant.
    pub(super) confirmations: u32,
    /// Number of waits that need the hold to last: it is renewed for them, whatever its terms are.
    pub(super) kept: usize,
    /// Whether the hold was released, or left to its lease: nothing is reported any more.
    pub(super) over: bool,
    /// Whether the client was closed: the hold is no longer renewed.
    pub(super) closed: bool,
    pub(super) lost: Option<LossReason>,
    /// Set if the server has forgotten the hold in a restart: no majority counts that server before
    /// this time.
    pub(super) no_vote_until: Option<Moment>,
    pub(super) failing: Option<(Moment, Cow<'static, str>)>,
}

/// The times at which a hold is looked at, and its end.
#[derive(PartialEq, Eq)]
pub(super) struct Course {
    watch_every: Option<Duration>,
    must_end_at: Option<Moment>,
    valid_until: Moment,
}

impl State {
    /// Returns the state of a hold that one guard asked for at `asked_at`.
    pub(super) fn new(terms: Terms, asked_at: Moment) -> Self {
        Self {
            stay: Stay::new(terms, asked_at),
            before: Told::default(),
            longest_asked: terms.lease,
            valid_until: asked_at,
            kept_until: asked_at,
            confirmed_at: asked_at,
            granted_at: asked_at,
            confirmed_by: terms.acknowledged,
            confirmations: 0,
            kept: 0,
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
        let claims = &self.stay.claims;
        if self.closed {
            return claims.terms().remind_every;
        }
        let kept = (self.kept > 0).then(|| claims.terms().lease / 3);
        claims.watch_every().into_iter().chain(kept).min()
    }

    /// Returns the values that the holder and the watchdog depend on. While they do not change,
    /// neither must be notified of guards that join or leave.
    pub(super) fn course(&self) -> Course {
        Course {
            watch_every: self.watch_every(),
            must_end_at: self.must_end_at(),
            valid_until: self.valid_until,
        }
    }

    /// Returns whether another holder of the process can have the hold, on these terms.
    pub(super) fn can_be_handed_over(&mut self, terms: Terms, now: Moment) -> bool {
        let is_free = !self.over && !self.closed && self.kept == 0;
        // A token belongs to one hold, and only the server draws the next one.
        let has_token = self.stay.token.is_some() || self.stay.raised_to.is_some();
        if !is_free || has_token || !self.stay.claims.are_only(terms) || !self.passes(now) {
            return false;
        }
        // The next holder relies on the last word of the server. It must be recent, because another
        // client may have ended the hold by force since.
        let unconfirmed = now.saturating_sub(self.confirmed_at);
        self.check(now).is_none()
            && unconfirmed <= UNCONFIRMED.min(terms.lease / 20)
            && self.valid_until.saturating_sub(now) >= terms.lease / 2
    }

    /// Returns whether another holder may still have it under the same id.
    pub(super) fn passes(&self, now: Moment) -> bool {
        now.saturating_sub(self.granted_at) <= PASSES_FOR
    }

    pub(super) fn look_at(&self, at: Moment) -> Option<Look> {
        if self.over {
            return None;
        }
        let end = self.must_end_at().unwrap_or(LATEST);
        let earlier = match end <= at {
            true => Duration::ZERO,
            false => self.watch_every().unwrap_or_default() / 20,
        };
        let at = at.min(end).min(LATEST);
        Some(Look { at, earlier })
    }

    /// Returns when the hold must be released although the server would keep it: its maximum hold
    /// time is over, or the claims of the remaining guards are.
    pub(super) fn must_end_at(&self) -> Option<Moment> {
        let limit = self.stay.claims.first_limit().map(|(end, _)| end);
        let cut = self.is_cut().then_some(self.valid_until);
        limit.into_iter().chain(cut).min()
    }

    /// Returns whether the server still keeps the hold when its guards have lost it for this
    /// reason.
    pub(super) fn outlasts(&self, reason: &LossReason) -> bool {
        matches!(reason, LossReason::MaxHold { .. }) || self.is_cut()
    }

    /// Returns the lease that the watchdog asks for: the whole lease that its guards want, or the
    /// rest of a fixed one. After the client was closed, the request only reminds the server of the
    /// rest.
    pub(super) fn lease_to_keep(&self, now: Moment) -> Duration {
        let wanted = self.wants(now);
        match self.closed {
            true => wanted.min(self.kept_until.saturating_sub(now)),
            false => wanted,
        }
    }

    /// Notes that a renewal is sent. It counts as failing until it is confirmed. This does not
    /// apply to a reminder of a fixed lease, whose end does not move. Returns `true` for the first
    /// renewal since one was confirmed.
    pub(super) fn asked_to_renew(&mut self, sent: Moment) -> bool {
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
        let terms = self.stay.claims.terms();
        terms.remind_every.is_some()
            && (self.closed || terms.reasserts_fixed_lease() && self.kept == 0)
    }

    /// Returns whether the hold is renewed without an end.
    pub(super) fn lasts(&self) -> bool {
        let claims = &self.stay.claims;
        let is_renewed = self.kept > 0 || claims.terms().renew_every.is_some();
        is_renewed && !self.over && !self.closed && claims.first_limit().is_none()
    }

    /// Returns how long the hold must last if a request for it is sent now.
    pub(super) fn wants(&self, now: Moment) -> Duration {
        match self.kept {
            0 => self.stay.claims.want(now),
            _ => self.stay.claims.terms().lease,
        }
    }

    /// Returns whether a guard that wanted more than the others has left: the server keeps the hold
    /// for longer than they want.
    pub(super) fn is_cut(&self) -> bool {
        // With a margin: when a request for a fixed lease is sent, slightly less is left than when
        // the lease was computed.
        self.valid_until + SafetyMargin::ROUNDING < self.kept_until
    }

    /// Ends the hold when its last guard has left.
    pub(super) fn nobody_left(&mut self) -> Leaving {
        let leaving = self.stay.nobody_left();
        self.over |= leaving == Leaving::LeftToLease;
        leaving
    }

    /// Judges by the clock, so that a late timer can't keep a dead hold alive.
    pub(super) fn check(&mut self, now: Moment) -> Option<&LossReason> {
        if self.lost.is_none() && !self.over && now >= self.deadline() {
            self.lost = Some(match self.stay.claims.first_limit() {
                Some((end, limit)) if end <= self.valid_until => LossReason::MaxHold { limit },
                _ if self.closed && self.stay.claims.terms().renew_every.is_some() => {
                    LossReason::Closed
                }
                _ => self.renewal_failure(now).unwrap_or(LossReason::Expired),
            });
        }
        self.lost.as_ref()
    }

    pub(super) fn deadline(&self) -> Moment {
        self.stay
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
            longest_lease: None,
            acknowledged: Acknowledgement::master(),
        }
    }

    #[test]
    fn reentry_on_the_same_terms_keeps_the_course() {
        let now = Moment::from_millis(1000);
        let mut state = State::new(terms(), now);
        let alone = state.course();
        let claim = state.stay.claims.add(terms(), now);
        assert!(state.course() == alone);
        assert!(state.stay.claims.remove(claim));
        assert!(state.course() == alone);

        let sooner = Terms {
            renew_every: Some(LEASE / 6),
            ..terms()
        };
        let ends = Terms {
            max_hold: Some(LEASE),
            ..terms()
        };
        for other in [sooner, ends] {
            let claim = state.stay.claims.add(other, now);
            assert!(state.course() != alone);
            assert!(state.stay.claims.remove(claim));
            assert!(state.course() == alone);
        }
    }

    /// Returns a state that was confirmed by a request sent one second after the clock began.
    fn confirmed() -> (State, Moment) {
        let now = Moment::from_millis(1000);
        let mut state = State::new(terms(), now);
        state.valid_until = now + LEASE;
        state.kept_until = now + LEASE;
        (state, now)
    }

    #[test]
    fn only_what_was_confirmed_lately_is_handed_over() {
        let (mut state, now) = confirmed();
        assert!(state.can_be_handed_over(terms(), now + UNCONFIRMED));
        let late = now + UNCONFIRMED + Duration::from_millis(1);
        assert!(!state.can_be_handed_over(terms(), late));
        // With a short lease, a twentieth of the lease is the limit.
        let short = Terms {
            lease: Duration::from_millis(60),
            ..terms()
        };
        state.stay = Stay::new(short, now);
        assert!(state.can_be_handed_over(short, now + short.lease / 20));
        assert!(!state.can_be_handed_over(short, now + UNCONFIRMED));
    }

    /// Checks that even a recent confirmation does not help.
    #[test]
    fn only_what_was_granted_within_a_second_is_handed_over() {
        let (mut state, granted) = confirmed();
        state.confirmed_at = granted + PASSES_FOR;
        assert!(state.can_be_handed_over(terms(), granted + PASSES_FOR));
        let late = granted + PASSES_FOR + Duration::from_millis(1);
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
        type Change = fn(&mut State);
        let changes: [Change; 6] = [
            |state| state.lost = Some(LossReason::Forced),
            |state| state.over = true,
            |state| state.closed = true,
            |state| state.kept = 1,
            |state| state.stay.token = Some(7),
            |state| state.stay.raised_to = Some(7),
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
            own.stay = Stay::new(other, now);
            let plain = other.renew_every.is_some() && other.max_hold.is_none();
            assert_eq!(own.can_be_handed_over(other, now), plain, "{other:?}");
        }
        // A hold that several guards share is handed over only when the last of them leaves.
        state.stay.claims.add(terms(), now);
        assert!(!state.can_be_handed_over(terms(), now));
    }
}
