//! Growing delays between attempts to connect.

use std::time::Duration;

/// A connection that lasted longer than this counts as stable, so the delay after it is short.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(1);

/// A delay of 10 ms, which doubles up to 1 s. A random part, up to half, is subtracted, so that the
/// clients of a restarted server don't all reconnect at once.
#[derive(Debug)]
pub(crate) struct ReconnectDelay(u32);

impl ReconnectDelay {
    pub(crate) fn new() -> Self {
        Self(0)
    }

    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Makes the next delay the longest one, for failures that do not end by themselves.
    pub(crate) fn use_longest(&mut self) {
        self.0 = 7;
    }

    pub(crate) fn next(&mut self) -> Duration {
        // The seventh doubling is the first above the limit. Without a bound, the shift would lose
        // all its bits after a minute without a server.
        let ms = (10u64 << self.0.min(7)).min(1000);
        self.0 += 1;
        Duration::from_millis(fastrand::u64(ms / 2..=ms))
    }
}
