//! Growing pauses between attempts to connect.

use std::time::Duration;

/// A connection that lasted this long was good: the next pause is a short one.
pub(crate) const LASTING: Duration = Duration::from_secs(1);

/// 10 ms, doubled to 1 s, a random half of each taken off so that the clients of
/// a server that comes back don't arrive together.
#[derive(Debug)]
pub(crate) struct Pause(u32);

impl Pause {
    pub(crate) fn new() -> Self {
        Self(0)
    }

    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }

    /// The longest pause at once: for what does not heal by itself.
    pub(crate) fn longest(&mut self) {
        self.0 = 7;
    }

    pub(crate) fn next(&mut self) -> Duration {
        // The seventh doubling is the first over the limit. Unbounded, the shift would lose all its
        // bits after a minute without a server.
        let ms = (10u64 << self.0.min(7)).min(1000);
        self.0 += 1;
        Duration::from_millis(fastrand::u64(ms / 2..=ms))
    }
}
