//! What the waiters of a line have met: a server that does not answer, a lock without an end.

use std::time::Duration;

use crate::backend::failure::Failure;
use crate::clock::Moment;

/// Belongs to the line: the waiters behind the first one need not find out again, one after
/// the other.
#[derive(Default)]
pub(crate) struct Outage {
    /// When the last request left that was answered.
    answered: Option<Moment>,
    down: Option<Down>,
    without_expiry: Option<Moment>,
}

/// No server answers.
#[derive(Clone)]
pub(crate) struct Down {
    /// When the first request left that was not answered.
    pub(crate) since: Moment,
    /// The last failure, when its request left, and when it was seen.
    pub(crate) failure: Failure,
    sent: Moment,
    seen: Moment,
}

impl Down {
    /// Whether the outage goes on: the last failure is no longer ago than `gap`. If it is, no
    /// waiter has asked since: none was polled, or the machine slept.
    fn goes_on(&self, now: Moment, gap: Duration) -> bool {
        self.failure.is_outage() && now.saturating_sub(self.seen) <= gap
    }
}

impl Outage {
    /// The server has said, to a request that left at `sent`, that the name is held for `ttl`
    /// more; a waiter has read that at `now`.
    pub(crate) fn held(&mut self, sent: Moment, now: Moment, ttl: Option<Duration>) {
        // All is told apart by when the requests left: a waiter that is polled late reads an old
        // answer, which ends no outage that began behind it.
        self.answered = self.answered.max(Some(sent));
        self.down.take_if(|down| down.sent <= sent);
        self.without_expiry = match ttl {
            Some(_) => None,
            None => self.without_expiry.or(Some(now)),
        };
    }

    /// The server has granted something to a request that left at `sent`, so the next in line
    /// knows that it answers.
    pub(crate) fn over(&mut self, sent: Moment) {
        self.held(sent, sent, Some(Duration::ZERO));
    }

    /// A request that left at `sent` was seen to fail at `now`. `true` for the first failure in
    /// a row; one that comes more than `gap` after the one before is the first of another row.
    pub(crate) fn unanswered(
        &mut self,
        sent: Moment,
        now: Moment,
        gap: Duration,
        failure: &Failure,
    ) -> bool {
        // The server has answered a later request: whatever became of this one, it is no outage
        // of now.
        if self.answered.is_some_and(|answered| sent <= answered) {
            return false;
        }
        // For a time in which nobody asked, nobody knows whether the server answered.
        let before = self.down.take_if(|down| down.goes_on(now, gap));
        self.down = Some(Down {
            since: before.as_ref().map_or(sent, |down| down.since),
            failure: failure.clone(),
            sent: before.as_ref().map_or(sent, |down| down.sent.max(sent)),
            seen: now,
        });
        before.is_none() && failure.is_outage()
    }

    /// The server has answered somebody of this line.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    pub(crate) fn down(&self) -> Option<&Down> {
        self.down.as_ref()
    }

    /// Since when no server answers, if a waiter has met that within `gap`.
    pub(crate) fn down_since(&self, now: Moment, gap: Duration) -> Option<Moment> {
        let down = self.down.as_ref().filter(|down| down.goes_on(now, gap));
        down.map(|down| down.since)
    }

    /// Since when the name is held without an end.
    pub(crate) fn without_expiry(&self) -> Option<Moment> {
        self.without_expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::failure::{Cause, Outcome};

    const GAP: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn no_answer() -> Failure {
        Failure {
            outcome: Outcome::MayHaveRun,
            cause: Cause::NoAnswer("cut".into()),
            address: "redis://h".into(),
            source: None,
        }
    }

    fn since(outage: &Outage) -> Option<Moment> {
        outage.down().map(|down| down.since)
    }

    #[test]
    fn failure_older_than_last_answer_is_ignored() {
        let mut outage = Outage::default();
        outage.held(at(40), at(40), Some(GAP));
        assert!(!outage.unanswered(at(10), at(55), GAP, &no_answer()));
        assert_eq!(since(&outage), None);
        assert!(outage.unanswered(at(56), at(57), GAP, &no_answer()));
        assert_eq!(since(&outage), Some(at(56)));
    }

    #[test]
    fn answer_older_than_last_failure_is_ignored() {
        let mut outage = Outage::default();
        outage.unanswered(at(10), at(12), GAP, &no_answer());
        outage.held(at(9), at(13), Some(GAP));
        assert_eq!(since(&outage), Some(at(10)));
        outage.over(at(13));
        assert_eq!(since(&outage), None);
    }

    #[test]
    fn an_outage_counts_while_failures_follow_each_other() {
        let mut outage = Outage::default();
        assert!(outage.unanswered(at(10), at(12), GAP, &no_answer()));
        assert!(!outage.unanswered(at(13), at(15), GAP, &no_answer()));
        assert_eq!(since(&outage), Some(at(10)));
        // Nobody was polled meanwhile.
        assert!(outage.unanswered(at(50), at(52), GAP, &no_answer()));
        assert_eq!(since(&outage), Some(at(50)));
    }
}
