//! The pauses between requests while no wake-up arrives.

use std::time::Duration;

use crate::config::Backoff;

/// The pauses of one waiter.
pub(crate) struct BackoffPauses {
    back_off: Backoff,
    next: Duration,
}

impl BackoffPauses {
    pub(crate) fn new(back_off: Backoff) -> Self {
        Self {
            next: back_off.first,
            back_off,
        }
    }

    /// Returns the pauses after failed requests: 20 ms, doubled up to half a second. The client
    /// soon notices that a server has recovered, but does not hammer a dead server.
    pub(crate) fn after_failures() -> Self {
        Self::new(Backoff {
            first: Duration::from_millis(20),
            factor: 2,
            cap: Duration::from_millis(500),
        })
    }

    pub(crate) fn restart(&mut self) {
        self.next = self.back_off.first;
    }

    /// Returns the next pause. A growing pause has a random part, so that waiters that started at
    /// the same time drift apart. A constant pause has none.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        if self.back_off.factor > 1 {
            let jitter = pause.mul_f64(fastrand::f64() * 0.3);
            self.next = (pause * self.back_off.factor + jitter).min(self.back_off.cap);
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_pauses_double_up_to_the_cap() {
        let mut pauses = BackoffPauses::new(Backoff::exponential());
        let first: Vec<_> = (0..12).map(|_| pauses.next()).collect();
        assert_eq!(first[0], Duration::from_millis(1));
        assert!(first.windows(2).all(|pair| pair[0] <= pair[1]), "{first:?}");
        assert_eq!(first[11], Duration::from_millis(128));
    }

    #[test]
    fn constant_pauses_stay_the_same() {
        let mut pauses = BackoffPauses::new(Backoff::constant(Duration::from_millis(30)));
        assert!((0..10).all(|_| pauses.next() == Duration::from_millis(30)));
    }
}
