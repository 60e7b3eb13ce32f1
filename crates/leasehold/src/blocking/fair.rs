//! [`FairLock`]: forwards to the async one.

use std::time::Duration;

use super::lock::{Lock, Ownership, PerThread};
use crate::error::Result;
use crate::primitives::fair::Fair;

/// A lock that is given to its waiters in the order in which they came, for threads;
/// see [`leasehold::FairLock`](crate::FairLock).
pub type FairLock<O = PerThread> = Lock<O, Fair>;

impl<O: Ownership> Lock<O, Fair> {
    /// Sets how long a killed process stands in the way; see
    /// [`FairLock::waiter_timeout`](crate::FairLock::waiter_timeout).
    #[must_use]
    pub fn waiter_timeout(self, timeout: Duration) -> Self {
        self.with(|lock| lock.waiter_timeout(timeout))
    }

    /// Who waits, first come first; see [`FairLock::waiters`](crate::FairLock::waiters).
    ///
    /// # Errors
    ///
    /// As its async twin.
    pub fn waiters(&self) -> Result<Vec<String>> {
        self.runtime()
            .block_on("FairLock::waiters", self.as_async().waiters())
    }
}
