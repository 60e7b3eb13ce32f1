//! The limit of a caller's wait.

use crate::clock::{Clock, Moment, Timers};

/// The limit of a caller's wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// The caller asks the server once and never sleeps.
    Now,
    At(Moment),
    Never,
}

impl Deadline {
    /// Returns the deadline at this instant, or [`Now`](Self::Now) if the instant has already
    /// passed: the caller then asks the server once.
    pub(crate) fn at_instant(instant: tokio::time::Instant, clock: Clock) -> Self {
        let moment = clock.moment_of(instant);
        if moment <= clock.now() {
            Self::Now
        } else {
            Self::At(moment)
        }
    }

    pub(crate) fn has_passed(self, clock: Clock) -> bool {
        self.is_before(clock.now())
    }

    pub(crate) fn is_before(self, other: Moment) -> bool {
        match self {
            Self::Now => true,
            Self::At(moment) => moment <= other,
            Self::Never => false,
        }
    }

    pub(crate) async fn passed(self, timers: &Timers) {
        match self {
            Self::Now => {}
            Self::At(moment) => timers.sleep_until(moment).await,
            Self::Never => std::future::pending().await,
        }
    }

    /// Returns this deadline or `moment`, whichever is earlier.
    pub(super) fn or_earlier(self, moment: Moment) -> Self {
        match self {
            Self::Never => Self::At(moment),
            _ if self.is_before(moment) => self,
            _ => Self::At(moment),
        }
    }
}
