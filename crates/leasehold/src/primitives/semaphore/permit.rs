//! Permits in use.

use std::fmt;
use std::sync::Arc;

use super::returns::{self, SemaphoreNames};
use crate::context::Context;
use crate::error::Result;

/// Permits in use, returned by [`Semaphore::acquire`](crate::Semaphore::acquire) and its variants.
///
/// [`release`](Self::release) releases the permits and reports failures. Dropping this value also
/// releases them, in the background. The release is sent before the client's next request for the
/// same semaphore, but perhaps after requests for other names. Before the program ends, call
/// [`Client::close`](crate::Client::close)`().await`, which waits for such releases.
/// [`Client`](crate::Client#when-the-program-ends) describes what happens without that call.
///
/// The permits are lost in three cases: the client's runtime has ended, the process is killed, or
/// the process ends while other tasks in it wait for permits. See [`Semaphore`](crate::Semaphore).
///
/// If other tasks of this process wait, released permits pass to them at once during the [time
/// slice](crate::Semaphore) of the process. After the slice, permits that are released at the same
/// time are sent to the server in one request. A waiter receives permits even while it is not
/// polled, so don't leave a waiting future unpolled: it would keep permits from other waiters.
#[must_use = "the permits are released as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    context: Arc<Context>,
    names: SemaphoreNames,
    permits: u32,
}

impl SemaphorePermit {
    pub(super) fn new(context: &Arc<Context>, names: SemaphoreNames, permits: u32) -> Self {
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
    /// `Unavailable` or `OutcomeUnknown` if no server answered. `Denied` or `Unsupported` if the
    /// server refuses the request. The permits have no lease that would free them. So in these
    /// cases the client sends the release again in the background, unless its runtime has ended.
    /// The client tries for most of a minute if a request may have run, and for ten minutes if no
    /// request has run. `WrongKind` if the name is now in use as something else. In that case the
    /// client does not try again.
    ///
    /// # Cancel safety
    ///
    /// Once `release` has been called, the permits are released even if the future is dropped.
    pub async fn release(mut self) -> Result<()> {
        self.context.check_process(&self.names.key)?;
        // Set the number to zero, because `returns::release` completes the return even if this
        // future is dropped: `drop` must not give the permits back a second time.
        match std::mem::take(&mut self.permits) {
            0 => Ok(()),
            permits => returns::release(&self.context, &self.names, permits)
                .await
                .map_err(|failure| failure.into_error_of_release(&self.names.key)),
        }
    }

    /// Drops this value without releasing the permits. They stay in use until a client calls
    /// [`Semaphore::release`](crate::Semaphore::release).
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Moves `permits` of these permits into a new value, and returns it. If there are fewer than
    /// `permits`, nothing changes and the result is `None`.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self::new(&self.context, self.names.clone(), permits))
    }

    /// Adds the permits of `other` to these.
    ///
    /// # Panics
    ///
    /// Panics if `other` belongs to another semaphore or client, or if the sum is 2^32 permits or
    /// more. In that case this value does not change, and the permits of `other` are released.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            self.names.key == other.names.key && Arc::ptr_eq(&self.context, &other.context),
            "permits of `{}` can't be merged with those of `{}`",
            self.names.key,
            other.names.key
        );
        let both = self.permits.checked_add(other.permits);
        self.permits = both.expect("both together are fewer than 2^32 permits");
        // Do this after everything that can panic: until here, a drop of `other` gives back its
        // permits, and from here on it must not.
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
