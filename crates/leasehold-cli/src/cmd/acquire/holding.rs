//! The hold that excludes other clients while the command runs.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{ExpirablePermit, LockGuard, LossReason, Result};
use tokio::time::Instant;

/// The guard of a lock, or a permit.
pub(in crate::cmd) enum Holding {
    Lock(LockGuard),
    Permit(ExpirablePermit),
}

impl Holding {
    pub(in crate::cmd) fn name(&self) -> &str {
        match self {
            Self::Lock(guard) => guard.name(),
            Self::Permit(permit) => permit.name(),
        }
    }

    /// Returns the id of the hold on the server. For several locks together, this is the id of one
    /// of their holds.
    pub(in crate::cmd) fn id(&self) -> String {
        match self {
            Self::Lock(guard) => guard.holder_id().to_owned(),
            Self::Permit(permit) => permit.ids()[0].to_string(),
        }
    }

    /// Draws a fencing token, unless the lock got one with its grant. Releases the hold on an
    /// error.
    pub(in crate::cmd) async fn with_token(self) -> Result<Self> {
        let Self::Lock(guard) = &self else {
            return Ok(self);
        };
        match guard.fencing_token().await {
            Ok(_) => Ok(self),
            Err(error) => {
                // The program ends with this error, so nothing would release the hold later.
                let _ = self.release().await;
                Err(error)
            }
        }
    }

    /// Returns the fencing token, if the hold has one.
    pub(in crate::cmd) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.token(),
            Self::Permit(_) => None,
        }
    }

    /// Returns the fields of a `held` event after a wait of this length.
    pub(in crate::cmd) fn told(&self, waited: Duration) -> Vec<(&'static str, serde_json::Value)> {
        vec![
            ("id", self.id().into()),
            ("token", self.token().into()),
            ("waited_ms", as_ms(waited)),
        ]
    }

    pub(in crate::cmd) fn valid_until(&self) -> Instant {
        match self {
            Self::Lock(guard) => guard.valid_until(),
            Self::Permit(permit) => permit.valid_until(),
        }
    }

    pub(in crate::cmd) fn loss(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.loss(),
            Self::Permit(permit) => permit.loss(),
        }
    }

    pub(in crate::cmd) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    pub(in crate::cmd) fn renewal_failure(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.renewal_failure(),
            Self::Permit(permit) => permit.renewal_failure(),
        }
    }

    /// Resolves when the hold is lost.
    pub(in crate::cmd) fn lost(&self) -> Pin<Box<dyn Future<Output = LossReason> + Send>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.lost()),
            Self::Permit(permit) => Box::pin(permit.lost()),
        }
    }

    /// Releases the hold, or leaves it to the server for `keep_for`.
    pub(in crate::cmd) async fn end(self, keep_for: Option<Duration>) -> Result<()> {
        match (self, keep_for) {
            (Self::Lock(guard), Some(span)) => guard.keep_for(span).await,
            // `--min-hold` is refused with `--limit`, so a permit is never kept.
            (Self::Permit(permit), _) => permit.release().await,
            (Self::Lock(guard), None) => guard.release().await,
        }
    }

    pub(in crate::cmd) async fn release(self) -> Result<()> {
        self.end(None).await
    }
}

/// Returns a time span in milliseconds, for JSON.
pub(in crate::cmd) fn as_ms(span: Duration) -> serde_json::Value {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).into()
}
