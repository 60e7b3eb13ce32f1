//! The progress of the work under one hold. The code is pure, like the state that contains it.

use std::time::Duration;

use crate::clock::Moment;

/// The last report of progress, and what followed from it.
pub(super) struct ProgressClock {
    pub(super) reported_at: Moment,
    /// Whether the half time without a report was reported to the user.
    pub(super) is_warned: bool,
    /// Whether a renewal was refused since the last report.
    pub(super) is_vetoed: bool,
    /// The time at which the hold is due in the watchdog only because of its progress.
    pub(super) check_at: Option<Moment>,
}

/// A hold whose work has made no progress for half of the time that it may take.
pub(super) struct Stalling {
    pub(super) since: Duration,
    pub(super) within: Duration,
}

impl ProgressClock {
    /// Returns the clock of work that begins at `now`.
    pub(super) fn new(now: Moment) -> Self {
        Self {
            reported_at: now,
            is_warned: false,
            is_vetoed: false,
            check_at: None,
        }
    }

    /// Notes that the work has made progress.
    pub(super) fn report(&mut self, now: Moment) {
        // Two tasks may report at the same time, and the later one may be quicker.
        self.reported_at = self.reported_at.max(now);
        (self.is_warned, self.is_vetoed) = (false, false);
    }

    /// Returns the time since the last report.
    pub(super) fn since(&self, now: Moment) -> Duration {
        now.saturating_sub(self.reported_at)
    }
}
