//! [`FencedLock`]: forwards to the async one.

use super::lock::{Lock, LockGuard, Ownership, PerThread};
use crate::error::Result;
use crate::primitives::fenced::{Fenced, FencedGuard};

/// A lock with fencing tokens, for threads; see
/// [`leasehold::FencedLock`](crate::FencedLock).
pub type FencedLock<O = PerThread> = Lock<O, Fenced>;

impl<O: Ownership> Lock<O, Fenced> {
    /// The last token that was given; see
    /// [`FencedLock::last_token`](crate::FencedLock::last_token).
    ///
    /// # Errors
    ///
    /// As the async method.
    pub fn last_token(&self) -> Result<Option<u64>> {
        self.runtime()
            .block_on("FencedLock::last_token", self.as_async().last_token())
    }
}

impl<O: Ownership> LockGuard<O, FencedGuard> {
    /// The token of this hold; see [`FencedGuard::token`](crate::FencedGuard::token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.as_async().token()
    }
}
