//! [`FairLock`]: forwards to the async one.

use std::time::Duration;

use super::lock::{Lock, Ownership, PerThread};
use crate::error::Result;
use crate::primitives::fair::Fair;

/// A lock that its waiters get in the order in which they came, for threads; see
/// [`leasehold::FairLock`](crate::FairLock).
pub type FairLock<O = PerThread> = Lock<O, Fair>;

impl<O: Ownership> Lock<O, Fair> {
    /// Sets how long a killed process is in the way; see
    /// [`FairLock::waiter_timeout`](crate::FairLock::waiter_timeout).
    #[must_use]
    pub fn waiter_timeout(self, timeout: Duration) -> Self {
        self.with(|lock| lock.waiter_timeout(timeout))
    }

    /// The waiters in their order; see [`FairLock::waiters`](crate::FairLock::waiters).
    ///
    /// # Errors
    ///
    /// As the async method.
    pub fn waiters(&self) -> Result<Vec<String>> {
        self.runtime()
            .block_on("FairLock::waiters", self.as_async().waiters())
    }
}
