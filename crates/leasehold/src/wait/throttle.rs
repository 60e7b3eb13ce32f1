//! Which wake-ups to follow at once. A message can be sent by anybody, and following
//! each one would let whoever floods a channel make its waiters flood the server.
//!
//! A release that did happen must be followed at once, whether this waiter then wins
//! the race for the lock or not. The two are told apart by the instant at which the
//! hold in the way will expire: as long as that stands still, nothing was released
//! and nothing renewed. It is known only to lie between two instants, because a reply
//! takes its time; a hold is taken for another one when no instant fits all that was
//! said, so a slow network can't make one hold look like two. (Answers without an
//! expiry can't be told apart at all: a primitive that has only such gives
//! evidence of its own, which differs when something has changed on the server.)

use std::time::Duration;

use crate::clock::Moment;

/// Asks that found the same hold before the next ones are put off: many short holds
/// within a millisecond or two look like one.
const BURST: u32 = 20;
/// The longest that a wake-up is put off after the last ask.
const LONGEST: Duration = Duration::from_millis(100);
/// The server tells a TTL in whole milliseconds.
const UNIT: Duration = Duration::from_millis(1);

/// Between which instants a hold expires; `None` when it never does.
type Expiry = Option<(Moment, Moment)>;

/// What an answer that knows no expiry shows of how things stand.
pub(crate) type Evidence = (i64, Vec<u8>);

/// What one waiter has learned from the wake-ups it followed.
#[derive(Debug, Default)]
pub(crate) struct WakeUpThrottle {
    expiry: Expiry,
    evidence: Option<Evidence>,
    asked_at: Option<Moment>,
    /// Asks that found the hold which the ask before had found.
    unchanged: u32,
}

impl WakeUpThrottle {
    /// The server was asked at `sent` and has said at `now` that the lock is held for
    /// `ttl` more.
    pub(crate) fn busy(&mut self, sent: Moment, now: Moment, ttl: Option<Duration>) {
        let seen = ttl.map(|ttl| (sent + ttl - UNIT, now + ttl + UNIT));
        match self.asked_at.and_then(|_| both(self.expiry, seen)) {
            Some(expiry) => {
                self.expiry = expiry;
                self.unchanged = self.unchanged.saturating_add(1);
            }
            None => {
                self.expiry = seen;
                self.unchanged = 0;
            }
        }
        self.asked_at = Some(sent);
    }

    /// The server was asked at `sent` and has refused, with this evidence.
    pub(crate) fn refused(&mut self, sent: Moment, evidence: Evidence) {
        self.unchanged = match &self.evidence {
            Some(known) if *known == evidence => self.unchanged.saturating_add(1),
            _ => 0,
        };
        self.evidence = Some(evidence);
        self.asked_at = Some(sent);
    }

    /// Before when no wake-up is followed; `None` when the next one is, at once.
    pub(crate) fn not_before(&self) -> Option<Moment> {
        let over = self.unchanged.checked_sub(BURST)?;
        let pause = UNIT.saturating_mul(1 << over.min(10)).min(LONGEST);
        Some(self.asked_at? + pause)
    }
}

/// What is known when both are true; `None` when no one hold can be so.
fn both(known: Expiry, seen: Expiry) -> Option<Expiry> {
    match (known, seen) {
        (None, None) => Some(None),
        (Some(known), Some(seen)) => {
            let (from, to) = (known.0.max(seen.0), known.1.min(seen.1));
            (from <= to).then_some(Some((from, to)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    /// Asks as often as it may for a second, of a hold whose TTL is as given.
    fn asks_in_a_second(ttl: impl Fn(u64) -> Option<Duration>) -> usize {
        let mut throttle = WakeUpThrottle::default();
        let mut asks = 0;
        for ms in 1000..2000 {
            if throttle.not_before().is_none_or(|moment| at(ms) >= moment) {
                asks += 1;
                throttle.busy(at(ms), at(ms), ttl(ms));
            }
        }
        asks
    }

    #[test]
    fn a_flood_during_one_hold_is_followed_ten_times_a_second() {
        let burst = BURST as usize + 7;
        let left = |ms| Some(LEASE - Duration::from_millis(ms));
        assert!(asks_in_a_second(left) <= burst + 10);
        assert!(asks_in_a_second(|_| None) <= burst + 10, "without expiry");
    }

    #[test]
    fn wake_ups_of_holds_that_change_are_followed_each() {
        // A new hold each millisecond, all of one lease: so is a renewed one.
        assert_eq!(asks_in_a_second(|_| Some(LEASE)), 1000);
        // Leases that differ.
        let odd = |ms| Some(LEASE - Duration::from_secs(ms % 2));
        assert_eq!(asks_in_a_second(odd), 1000);
    }

    #[test]
    fn wake_ups_without_an_expiry_are_followed_while_their_sign_changes() {
        let asks = |evidence: fn(u64) -> Evidence| {
            let mut throttle = WakeUpThrottle::default();
            let mut asks = 0;
            for ms in 1000..2000 {
                if throttle.not_before().is_none_or(|moment| at(ms) >= moment) {
                    asks += 1;
                    throttle.refused(at(ms), evidence(ms));
                }
            }
            asks
        };
        assert_eq!(asks(|ms| (0, ms.to_be_bytes().into())), 1000);
        assert!(asks(|_| (0, vec![7])) <= BURST as usize + 17);
    }

    #[test]
    fn a_slow_network_does_not_make_one_hold_look_like_two() {
        let mut throttle = WakeUpThrottle::default();
        for ms in (0..2000).step_by(50) {
            // The server sees the request anywhere between its start and its end.
            let seen = ms + ms % 40;
            throttle.busy(
                at(ms),
                at(ms + 40),
                Some(LEASE - Duration::from_millis(seen)),
            );
        }
        assert_eq!(throttle.unchanged, 39);
    }
}
