//! [`CountDownLatch`], which forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::forward::{calls, reads, wait_setters, waits};
use super::runtime::Runtime;

/// A latch for threads; see [`leasehold::CountDownLatch`](crate::CountDownLatch).
#[doc(alias = "RCountDownLatch")]
#[derive(Clone)]
pub struct CountDownLatch {
    inner: crate::CountDownLatch,
    runtime: Runtime,
}

impl CountDownLatch {
    pub(crate) fn new(inner: crate::CountDownLatch, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    fn with(mut self, change: impl FnOnce(crate::CountDownLatch) -> crate::CountDownLatch) -> Self {
        self.inner = change(self.inner);
        self
    }

    fn twin(&self) -> &crate::CountDownLatch {
        &self.inner
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    waits! { CountDownLatch:
        "Waits until the latch is open" wait() -> ();
        "Waits at most `wait` until the latch is open" wait_for(wait: Duration) -> bool;
        "Waits until the latch is open, but at most until `deadline`" wait_until(deadline: Instant) -> bool;
    }
    calls! { CountDownLatch:
        "Sets the latch to a count" try_set_count(count: u64) -> bool;
        "Counts down by one" count_down() -> u64;
        "Counts down by several steps at once" count_down_by(steps: u64) -> u64;
        "Returns the remaining count" count() -> u64;
        "Removes the latch" delete() -> bool;
    }
    wait_setters! { CountDownLatch }
    reads! { CountDownLatch:
        "Returns the latch's name as it was given" name() -> &str;
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
