//! The choice of the wake-ups that a waiter follows at once. Anyone can send messages, and a waiter
//! that followed each of them would turn a flood of messages into a flood of requests.
//!
//! A waiter must follow a real release at once, whether or not it then wins the race for the lock.
//! It distinguishes a release from a flood by the instant at which the current hold will expire. As
//! long as that instant is the same, no hold was released or renewed. The waiter knows the instant
//! only as an interval, because a reply takes time. The hold is a different one only if the
//! intervals of all answers have no instant in common, so a slow network can't make one hold look
//! like two. (Answers without an expiry all look alike. A primitive whose answers never have an
//! expiry returns a fingerprint, which differs when something has changed on the server.)

use std::time::Duration;

use crate::clock::Moment;

/// The number of requests that may find the same hold before later requests are postponed. It is
/// large because many short holds within a millisecond or two look like one.
const BURST: u32 = 20;
/// The longest time after the last request for which a wake-up is postponed.
const LONGEST: Duration = Duration::from_millis(100);
/// The unit of a TTL: the server reports whole milliseconds.
const UNIT: Duration = Duration::from_millis(1);

/// The interval in which a hold expires; `None` if it never does.
type Expiry = Option<(Moment, Moment)>;

/// A fingerprint of the server's state in an answer without an expiry. For permits, it contains how
/// many are free, and which request was the last to give some back. For permits with leases, it
/// contains the ids of the permits in use.
pub(crate) type Fingerprint = (i64, Vec<u8>);

/// The results of the wake-ups that one waiter has followed.
#[derive(Debug, Default)]
pub(crate) struct WakeUpThrottle {
    expiry: Expiry,
    fingerprint: Option<Fingerprint>,
    asked_at: Option<Moment>,
    /// The number of requests in a row that found the same hold as the request before.
    unchanged: u32,
}

impl WakeUpThrottle {
    /// Notes a request that was sent at `sent`, and its reply, read at `now`: the lock is held for
    /// another `ttl`.
    pub(crate) fn busy(&mut self, sent: Moment, now: Moment, ttl: Option<Duration>) {
        // The server read its clock at some time between the request and the reply.
        let seen = ttl.map(|ttl| (sent + ttl - UNIT, now + ttl + UNIT));
        // The first answer is not compared, because `expiry` is still `None`, as for a lock without
        // an expiry.
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

    /// Notes that the server has refused a request that was sent at `sent`, with this fingerprint.
    /// Returns `true` if something has changed on the server since the last answer.
    pub(crate) fn refused(&mut self, sent: Moment, fingerprint: Fingerprint) -> bool {
        let before = self.fingerprint.replace(fingerprint);
        let changed = before.is_some() && before != self.fingerprint;
        self.unchanged = match before.is_some() && !changed {
            true => self.unchanged.saturating_add(1),
            false => 0,
        };
        self.asked_at = Some(sent);
        changed
    }

    /// Returns the moment before which the waiter follows no wake-up. Returns `None` if it follows
    /// the next one at once.
    pub(crate) fn not_before(&self) -> Option<Moment> {
        let over = self.unchanged.checked_sub(BURST)?;
        // The pause counts from the last request, not from the last wake-up: a flood must not
        // postpone the next request forever.
        let pause = UNIT.saturating_mul(1 << over.min(10)).min(LONGEST);
        Some(self.asked_at? + pause)
    }
}

/// Returns the overlap of two intervals. Returns `None` if they do not overlap: then the hold is a
/// different one.
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

    /// Sends as many requests as the throttle allows within a second, for a hold with this TTL.
    /// Returns their number.
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
    fn wake_up_flood_during_hold_is_throttled() {
        let burst = BURST as usize + 7;
        let remaining = |ms| Some(LEASE - Duration::from_millis(ms));
        assert!(asks_in_a_second(remaining) <= burst + 10);
        assert!(asks_in_a_second(|_| None) <= burst + 10, "without expiry");
    }

    #[test]
    fn changing_holds_are_not_throttled() {
        // There is a new hold each millisecond, always with the same lease. A renewed hold looks
        // like a new one.
        assert_eq!(asks_in_a_second(|_| Some(LEASE)), 1000);
        // There is a new hold each millisecond, with one of two leases in turn.
        let alternating = |ms| Some(LEASE - Duration::from_secs(ms % 2));
        assert_eq!(asks_in_a_second(alternating), 1000);
    }

    #[test]
    fn changing_evidence_without_expiry_is_not_throttled() {
        let asks = |fingerprint: fn(u64) -> Fingerprint| {
            let mut throttle = WakeUpThrottle::default();
            let mut asks = 0;
            for ms in 1000..2000 {
                if throttle.not_before().is_none_or(|moment| at(ms) >= moment) {
                    asks += 1;
                    throttle.refused(at(ms), fingerprint(ms));
                }
            }
            asks
        };
        assert_eq!(asks(|ms| (0, ms.to_be_bytes().into())), 1000);
        assert!(asks(|_| (0, vec![7])) <= BURST as usize + 17);
    }

    #[test]
    fn slow_replies_still_show_one_hold() {
        let mut throttle = WakeUpThrottle::default();
        for ms in (0..2000).step_by(50) {
            // The server may see the request at any time between its start and its end.
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
