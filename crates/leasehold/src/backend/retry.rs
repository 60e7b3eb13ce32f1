//! Retries of a request until it is answered.

use std::time::Duration;

use super::Reply;
use super::failure::Failure;
use super::step::Value;
use crate::clock::{Moment, Timers};

/// The delays between two attempts. Each delay is twice the one before it, up to a limit.
pub(crate) struct RetryDelays {
    next: Duration,
    longest: Duration,
}

impl RetryDelays {
    pub(crate) const fn from(first: Duration) -> Self {
        Self {
            next: first,
            longest: Duration::MAX,
        }
    }

    pub(crate) const fn up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn next_delay(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.next.saturating_mul(2).min(self.longest);
        pause
    }
}

/// A request that has failed.
pub(crate) struct FailedAttempt<'a> {
    pub(crate) failure: &'a Failure,
    /// The time at which the request was sent.
    pub(crate) sent: Moment,
    /// The delay before the next attempt, if there is one.
    pub(crate) pause: Duration,
}

/// Waits for `first`, the pending reply to a request that was sent at `sent`. Sends the request
/// again until it is answered. If `keep_trying` returns `false`, returns the last failure instead.
pub(crate) async fn until_answered(
    timers: &Timers,
    (first, mut sent): (Reply, Moment),
    mut pauses: RetryDelays,
    mut send: impl FnMut() -> Reply,
    mut keep_trying: impl FnMut(FailedAttempt<'_>) -> bool,
) -> Result<Value, Failure> {
    let mut reply = first;
    loop {
        let failure = match reply.await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let pause = pauses.next_delay();
        let failed = FailedAttempt {
            failure: &failure,
            sent,
            pause,
        };
        if !keep_trying(failed) {
            return Err(failure);
        }
        timers.sleep(pause).await;
        // Read the clock before the request is sent. The request may set a marker on the server.
        // The marker begins later, so a limit counted from here never outlives the marker.
        sent = timers.now();
        reply = send();
    }
}
