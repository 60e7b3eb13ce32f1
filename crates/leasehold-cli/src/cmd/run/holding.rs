//! What keeps others out while the command runs.

use std::pin::Pin;

use leasehold::{ExpirablePermit, LockGuard, LossReason, Result};
use tokio::time::Instant;

/// The guard of a lock, or a permit.
pub(super) enum Holding {
    Lock(LockGuard),
    Permit(ExpirablePermit),
}

impl Holding {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Lock(guard) => guard.name(),
            Self::Permit(permit) => permit.name(),
        }
    }

    /// The same with a fencing token, which a fenced lock has from the start; or an error,
    /// and it is given back.
    pub(super) async fn with_token(self) -> Result<Self> {
        let Self::Lock(guard) = &self else {
            return Ok(self);
        };
        match guard.fencing_token().await {
            Ok(_) => Ok(self),
            Err(error) => {
                // The program ends with this, and then nobody is left to do it.
                let _ = self.release().await;
                Err(error)
            }
        }
    }

    /// The fencing token, where one was taken.
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.token(),
            Self::Permit(_) => None,
        }
    }

    pub(super) fn valid_until(&self) -> Instant {
        match self {
            Self::Lock(guard) => guard.valid_until(),
            Self::Permit(permit) => permit.valid_until(),
        }
    }

    pub(super) fn loss(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.loss(),
            Self::Permit(permit) => permit.loss(),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    pub(super) fn renewal_failure(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.renewal_failure(),
            Self::Permit(permit) => permit.renewal_failure(),
        }
    }

    /// Resolves when it is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = LossReason> + Send>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.lost()),
            Self::Permit(permit) => Box::pin(permit.lost()),
        }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}
