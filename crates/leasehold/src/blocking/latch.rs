//! [`CountDownLatch`]: forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::runtime::Runtime;
use super::setters::wait_setters;
use crate::error::Result;

/// A latch for threads; see [`leasehold::CountDownLatch`](crate::CountDownLatch).
#[derive(Clone)]
pub struct CountDownLatch {
    inner: crate::CountDownLatch,
    runtime: Runtime,
}

/// Settings; see the async twins.
impl CountDownLatch {
    pub(crate) fn new(inner: crate::CountDownLatch, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    fn with(mut self, change: impl FnOnce(crate::CountDownLatch) -> crate::CountDownLatch) -> Self {
        self.inner = change(self.inner);
        self
    }

    wait_setters! { CountDownLatch }
}

/// Waiting and counting; errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl CountDownLatch {
    /// Waits until it is open; see
    /// [`CountDownLatch::wait`](crate::CountDownLatch::wait).
    pub fn wait(&self) -> Result<()> {
        self.runtime
            .block_on("CountDownLatch::wait", self.inner.wait())
    }

    /// Waits at most `wait`; see
    /// [`CountDownLatch::wait_for`](crate::CountDownLatch::wait_for).
    pub fn wait_for(&self, wait: Duration) -> Result<bool> {
        self.runtime
            .block_on("CountDownLatch::wait_for", self.inner.wait_for(wait))
    }

    /// Waits until `deadline`; see
    /// [`CountDownLatch::wait_until`](crate::CountDownLatch::wait_until).
    pub fn wait_until(&self, deadline: Instant) -> Result<bool> {
        self.runtime.block_on(
            "CountDownLatch::wait_until",
            self.inner.wait_until(deadline),
        )
    }

    /// Sets it to a count; see
    /// [`CountDownLatch::try_set_count`](crate::CountDownLatch::try_set_count).
    pub fn try_set_count(&self, count: u64) -> Result<bool> {
        self.runtime.block_on(
            "CountDownLatch::try_set_count",
            self.inner.try_set_count(count),
        )
    }

    /// Counts down by one; see
    /// [`CountDownLatch::count_down`](crate::CountDownLatch::count_down).
    pub fn count_down(&self) -> Result<u64> {
        self.runtime
            .block_on("CountDownLatch::count_down", self.inner.count_down())
    }

    /// Counts down by several; see
    /// [`CountDownLatch::count_down_by`](crate::CountDownLatch::count_down_by).
    pub fn count_down_by(&self, steps: u64) -> Result<u64> {
        self.runtime.block_on(
            "CountDownLatch::count_down_by",
            self.inner.count_down_by(steps),
        )
    }

    /// What is left; see
    /// [`CountDownLatch::count`](crate::CountDownLatch::count).
    pub fn count(&self) -> Result<u64> {
        self.runtime
            .block_on("CountDownLatch::count", self.inner.count())
    }

    /// Removes it; see
    /// [`CountDownLatch::delete`](crate::CountDownLatch::delete).
    pub fn delete(&self) -> Result<bool> {
        self.runtime
            .block_on("CountDownLatch::delete", self.inner.delete())
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
