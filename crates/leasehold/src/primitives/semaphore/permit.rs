//! Permits in use.

use std::fmt;
use std::sync::Arc;

use super::returns::{self, Names};
use crate::context::Context;
use crate::error::Result;

/// Permits in use, returned by [`Semaphore::acquire`](crate::Semaphore::acquire) and its variants.
///
/// [`release`](Self::release) releases the permits and reports failures. Dropping them gives them
/// back in the background, before the client's next request for the same semaphore. (Requests for
/// other names may be sent earlier.) Before the program ends, call
/// [`Client::close`](crate::Client::close)`().await`, which waits for this;
/// [`Client`](crate::Client#when-the-program-ends) describes what happens without that call.
///
/// The permits are not released in three cases: the client's runtime has ended, the process is
/// killed, or the process ends while other tasks in it wait for permits. See
/// [`Semaphore`](crate::Semaphore).
///
/// While other waiters of this process wait, permits that are given back pass to them at once if it
/// is the process's turn. Otherwise permits that are given back at the same time travel as one
/// request. A waiter gets the permits that are passed to it whether it is polled or not: a waiting
/// future that is not polled keeps permits from other waiters.
#[must_use = "the permits are released as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    context: Arc<Context>,
    names: Names,
    permits: u32,
}

impl SemaphorePermit {
    pub(super) fn new(context: &Arc<Context>, names: Names, permits: u32) -> Self {
        Self {
            context: Arc::clone(context),
            names,
            permits,
        }
    }

    /// Gives the permits back: to the server, or to other waiters of this process.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `OutcomeUnknown` when no server answered. In that case the release is tried
    /// again in the background, unless the client's runtime has ended: for most of a minute if a
    /// request may have run, and for ten minutes if none did. `Denied` or `Unsupported` when the
    /// server refuses. The release is then tried again in the same way, because the permits have no
    /// lease that ends. `WrongKind` when the key now holds something else; the release is not tried
    /// again.
    ///
    /// # Cancel safety
    ///
    /// Once this has been called, the permits are released even if the future is dropped.
    pub async fn release(mut self) -> Result<()> {
        self.context.check_process(&self.names.key)?;
        // Taken out, because `returns::release` completes the return even if this future is
        // dropped: `drop` must not give the permits back a second time.
        match std::mem::take(&mut self.permits) {
            0 => Ok(()),
            permits => returns::release(&self.context, &self.names, permits)
                .await
                .map_err(|failure| failure.into_error_of_return(&self.names.key)),
        }
    }

    /// Keeps the permits in use until a client calls
    /// [`Semaphore::release`](crate::Semaphore::release).
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Takes `permits` of these permits out, as a separate value. `None`, and no change, when there
    /// are fewer.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self::new(&self.context, self.names.clone(), permits))
    }

    /// Adds the permits of `other` to these.
    ///
    /// # Panics
    ///
    /// Panics when `other` is of another semaphore or client, or when both together are 2^32
    /// permits or more. Then nothing changes here, and `other` is given back.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            self.names.key == other.names.key && Arc::ptr_eq(&self.context, &other.context),
            "permits of `{}` can't be merged with those of `{}`",
            self.names.key,
            other.names.key
        );
        let both = self.permits.checked_add(other.permits);
        self.permits = both.expect("both together are fewer than 2^32 permits");
        // After everything that can panic: until here `other` gives back its own permits, and from
        // here on it must not.
        other.permits = 0;
    }

    /// Returns the number of permits.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.key.given()
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        match self.permits {
            0 => {}
            _ if self.context.is_forked() => {}
            permits => returns::give_back(&self.context, &self.names, permits),
        }
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
