//! The interface that all guards with a lease have in common.

use std::time::Duration;

use tokio::time::Instant;

use super::expirable::ExpirablePermit;
use super::lock::LockGuard;
use crate::error::Result;
use crate::loss::LossReason;

/// A guard of something that has a lease, for code that works with every kind of such guard. The
/// guards of all locks implement this trait, and so does [`ExpirablePermit`]. The trait is sealed:
/// only this library can implement it.
///
/// Each method does what the method of the same name does on [`LockGuard`] and on
/// [`ExpirablePermit`], with the same errors and the same cancel safety.
///
/// ```
/// use leasehold::{Guard, Result};
///
/// /// Works in steps, and makes sure before each that the lease outlasts the longest step.
/// async fn work(guard: impl Guard) -> Result<()> {
///     let longest = std::time::Duration::from_millis(50);
///     for step in 0..3 {
///         if guard.valid_until() < tokio::time::Instant::now() + longest {
///             guard.extend(longest * 2).await?;
///         }
///         println!("step {step} under {}", guard.name());
///     }
///     guard.release().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let client = leasehold::Client::embedded();
/// work(client.lock("orders").acquire().await?).await?;
/// let seats = client.expirable_semaphore("seats");
/// seats.try_set_permits(2).await?;
/// work(seats.acquire().await?).await
/// # }
/// ```
#[must_use = "the lock or the permits are released as soon as the guard is dropped"]
#[allow(
    private_bounds,
    reason = "sealed: nobody outside can name what a guard is made of"
)]
pub trait Guard: ConfirmedAt + Send + Sync {
    /// Returns the name of the lock or semaphore.
    fn name(&self) -> &str;
    /// Returns the number of this hold, which is unique within this process.
    fn number(&self) -> u64;
    /// Returns whether the hold still exists, as far as this process knows. Sends no request to the
    /// server.
    fn is_held(&self) -> bool {
        self.loss().is_none()
    }
    /// Returns why the hold was lost; `None` while it is held.
    fn loss(&self) -> Option<LossReason>;
    /// Resolves with the reason when the hold is lost. The future does not borrow the guard.
    fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static;
    /// Returns the instant until which the hold certainly lasts.
    fn valid_until(&self) -> Instant;
    /// Returns why renewals have been failing since the last one that succeeded; `None` if they
    /// succeed.
    fn renewal_failure(&self) -> Option<LossReason>;
    /// Extends the hold to at least `lease` from now. Never shortens it.
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::extend`].
    fn extend(&self, lease: Duration) -> impl Future<Output = Result<()>> + Send;
    /// Releases the hold.
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::release`].
    fn release(self) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized;
    /// Ends the guard without releasing the hold. The hold is no longer renewed, and ends with its
    /// lease.
    fn forget(self)
    where
        Self: Sized;
}

/// The trait that seals [`Guard`]. It also provides the instant that the history checker needs.
pub(crate) trait ConfirmedAt {
    /// Returns the time at which the last confirmed request was sent.
    #[cfg(feature = "testing")]
    fn confirmed_at(&self) -> Instant;
}

impl<G: AsRef<LockGuard>> ConfirmedAt for G {
    #[cfg(feature = "testing")]
    fn confirmed_at(&self) -> Instant {
        LockGuard::confirmed_at(self.as_ref())
    }
}

impl ConfirmedAt for ExpirablePermit {
    #[cfg(feature = "testing")]
    fn confirmed_at(&self) -> Instant {
        Self::confirmed_at(self)
    }
}

impl<G: AsRef<LockGuard> + Into<LockGuard> + Send + Sync> Guard for G {
    fn name(&self) -> &str {
        LockGuard::name(self.as_ref())
    }

    fn number(&self) -> u64 {
        LockGuard::number(self.as_ref())
    }

    fn loss(&self) -> Option<LossReason> {
        LockGuard::loss(self.as_ref())
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        LockGuard::lost(self.as_ref())
    }

    fn valid_until(&self) -> Instant {
        LockGuard::valid_until(self.as_ref())
    }

    fn renewal_failure(&self) -> Option<LossReason> {
        LockGuard::renewal_failure(self.as_ref())
    }

    fn extend(&self, lease: Duration) -> impl Future<Output = Result<()>> + Send {
        LockGuard::extend(self.as_ref(), lease)
    }

    fn release(self) -> impl Future<Output = Result<()>> + Send {
        LockGuard::release(self.into())
    }

    fn forget(self) {
        LockGuard::forget(self.into());
    }
}

impl Guard for ExpirablePermit {
    fn name(&self) -> &str {
        Self::name(self)
    }

    fn number(&self) -> u64 {
        Self::number(self)
    }

    fn loss(&self) -> Option<LossReason> {
        Self::loss(self)
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        Self::lost(self)
    }

    fn valid_until(&self) -> Instant {
        Self::valid_until(self)
    }

    fn renewal_failure(&self) -> Option<LossReason> {
        Self::renewal_failure(self)
    }

    fn extend(&self, lease: Duration) -> impl Future<Output = Result<()>> + Send {
        Self::extend(self, lease)
    }

    fn release(self) -> impl Future<Output = Result<()>> + Send {
        Self::release(self)
    }

    fn forget(self) {
        Self::forget(self);
    }
}
