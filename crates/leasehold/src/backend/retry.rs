//! Sending a request again until it is answered.

use std::time::Duration;

use super::Reply;
use super::failure::Failure;
use super::step::Value;
use crate::clock::{Moment, Timers};

/// The pauses between two requests: each is twice the one before.
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(crate) const fn from(first: Duration) -> Self {
        Self {
            next: first,
            longest: Duration::MAX,
        }
    }

    pub(crate) const fn up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.next.saturating_mul(2).min(self.longest);
        pause
    }
}

/// A request that has failed.
pub(crate) struct Failed<'a> {
    pub(crate) failure: &'a Failure,
    /// When it left.
    pub(crate) sent: Moment,
    /// How long the next one would wait.
    pub(crate) pause: Duration,
}

/// Waits for `first`, which left at `sent`, and sends again until a request is answered, or
/// `goes_on` says that there is no use. Then the last failure is returned.
pub(crate) async fn until_answered(
    timers: &Timers,
    (first, mut sent): (Reply, Moment),
    mut pauses: Pauses,
    mut send: impl FnMut() -> Reply,
    mut goes_on: impl FnMut(Failed<'_>) -> bool,
) -> Result<Value, Failure> {
    let mut reply = first;
    loop {
        let failure = match reply.await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let pause = pauses.take();
        let failed = Failed {
            failure: &failure,
            sent,
            pause,
        };
        if !goes_on(failed) {
            return Err(failure);
        }
        timers.sleep(pause).await;
        // Before the request leaves: a marker that it makes on the server is younger, so a limit
        // that counts from here never outlives that.
        sent = timers.now();
        reply = send();
    }
}
