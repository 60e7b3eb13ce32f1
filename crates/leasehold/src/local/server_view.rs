//! The server as the waiters of a line see it: whether it answers, and whether the lock has an
//! expiry.

use std::time::Duration;

use crate::backend::failure::Failure;
use crate::clock::Moment;

/// The state of the server as the line knows it. Without this, each waiter would have to find out
/// the state again when it becomes the head.
#[derive(Default)]
pub(crate) struct ServerView {
    /// The time at which the last answered request was sent.
    answered: Option<Moment>,
    outage: Option<Outage>,
    without_expiry: Option<Moment>,
}

/// An outage: no server answers.
#[derive(Clone)]
pub(crate) struct Outage {
    /// The time at which the first unanswered request was sent.
    pub(crate) since: Moment,
    /// The last failure, noticed at `seen`. The latest unanswered request was sent at `sent`.
    pub(crate) failure: Failure,
    sent: Moment,
    seen: Moment,
}

impl Outage {
    /// Returns whether the outage continues: the last failure was noticed at most `gap` ago. If the
    /// last failure was earlier, no waiter has asked the server since then, because none was
    /// polled, or because the machine slept.
    fn continues(&self, now: Moment, gap: Duration) -> bool {
        self.failure.is_outage() && now.saturating_sub(self.seen) <= gap
    }
}

impl ServerView {
    /// Notes that the server has replied to a request that was sent at `sent`: the name is held for
    /// another `ttl`. A waiter has read the reply at `now`.
    pub(crate) fn held(&mut self, sent: Moment, now: Moment, ttl: Option<Duration>) {
        // All events are ordered by the times at which their requests were sent. A waiter that is
        // polled late reads an old answer. That answer does not end an outage that began later.
        self.answered = self.answered.max(Some(sent));
        self.outage.take_if(|outage| outage.sent <= sent);
        self.without_expiry = match ttl {
            Some(_) => None,
            None => self.without_expiry.or(Some(now)),
        };
    }

    /// Notes that the server has granted a request that was sent at `sent`, so that the next waiter
    /// in line knows that the server answers.
    pub(crate) fn granted(&mut self, sent: Moment) {
        self.held(sent, sent, Some(Duration::ZERO));
    }

    /// Notes at `now` that a request that was sent at `sent` has failed. Returns `true` for the
    /// first failure in a row. A failure that follows more than `gap` after the previous one begins
    /// a new row.
    pub(crate) fn unanswered(
        &mut self,
        sent: Moment,
        now: Moment,
        gap: Duration,
        failure: &Failure,
    ) -> bool {
        // The server has answered a later request: whatever happened to this one, there is no
        // outage now.
        if self.answered.is_some_and(|answered| sent <= answered) {
            return false;
        }
        // An earlier outage that does not continue is ignored: no waiter has asked the server since
        // then, so the server may have been up.
        let before = self.outage.take_if(|outage| outage.continues(now, gap));
        self.outage = Some(Outage {
            since: before.as_ref().map_or(sent, |outage| outage.since),
            failure: failure.clone(),
            sent: before.as_ref().map_or(sent, |outage| outage.sent.max(sent)),
            seen: now,
        });
        before.is_none() && failure.is_outage()
    }

    /// Returns whether the server has answered a waiter of this line.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// Returns whether the server has answered a request that was sent after this moment.
    pub(crate) fn has_answered_after(&self, sent: Moment) -> bool {
        self.answered.is_some_and(|answered| answered > sent)
    }

    pub(crate) fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// Returns the time since which no server has answered, if the last failure was noticed within
    /// `gap`.
    pub(crate) fn outage_since(&self, now: Moment, gap: Duration) -> Option<Moment> {
        let outage = self
            .outage
            .as_ref()
            .filter(|outage| outage.continues(now, gap));
        outage.map(|outage| outage.since)
    }

    /// Returns the time since which the name has been held without expiry.
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

    fn since(view: &ServerView) -> Option<Moment> {
        view.outage().map(|outage| outage.since)
    }

    #[test]
    fn failure_older_than_last_answer_is_ignored() {
        let mut view = ServerView::default();
        view.held(at(40), at(40), Some(GAP));
        assert!(!view.unanswered(at(10), at(55), GAP, &no_answer()));
        assert_eq!(since(&view), None);
        assert!(view.unanswered(at(56), at(57), GAP, &no_answer()));
        assert_eq!(since(&view), Some(at(56)));
    }

    #[test]
    fn answer_older_than_last_failure_is_ignored() {
        let mut view = ServerView::default();
        view.unanswered(at(10), at(12), GAP, &no_answer());
        view.held(at(9), at(13), Some(GAP));
        assert_eq!(since(&view), Some(at(10)));
        view.granted(at(13));
        assert_eq!(since(&view), None);
    }

    #[test]
    fn an_outage_counts_while_failures_follow_each_other() {
        let mut view = ServerView::default();
        assert!(view.unanswered(at(10), at(12), GAP, &no_answer()));
        assert!(!view.unanswered(at(13), at(15), GAP, &no_answer()));
        assert_eq!(since(&view), Some(at(10)));
        // No waiter was polled from 15 to 50.
        assert!(view.unanswered(at(50), at(52), GAP, &no_answer()));
        assert_eq!(since(&view), Some(at(50)));
    }
}
