//! Permits in use.

use std::fmt;
use std::sync::Arc;

use super::returns::{self, Names};
use crate::context::Context;
use crate::error::Result;

/// Permits in use: what [`Semaphore::acquire`](crate::Semaphore::acquire) gives.
///
/// [`release`](Self::release) gives them back and reports what stood in the way; dropping
/// them gives them back in the background, before whatever this client asks of the same
/// semaphore next. (What it asks of other names may come first.) Before the program ends,
/// call [`Client::close`](crate::Client::close)`().await`, which waits for it;
/// [`Client`](crate::Client#when-the-program-ends) says what happens without. Nothing gives
/// them back when the client's runtime has ended, or the process is killed or ends while
/// others of it wait for permits: see [`Semaphore`](crate::Semaphore).
///
/// While others of this process wait, what is given back passes on to them at once if it is
/// the process's turn; otherwise what is given back at the same time travels as one request.
/// A waiter gets what is passed on to it whether it is polled or not: a future that waits and
/// is not polled keeps permits from others.
#[must_use = "the permits are given back as soon as this is dropped"]
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

    /// Gives the permits back: to the server, or to those of this process who wait.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `OutcomeUnknown` when no server answered: it is tried again in the
    /// background, for most of a minute if a request may have run, and for ten minutes if
    /// none did; not if the client's runtime has ended. `Denied` or `Unsupported` when the
    /// server refuses; it is tried again in the same way, as the permits have no lease that
    /// ends. `WrongKind` when something else stands there now: then it is not.
    ///
    /// # Cancel safety
    ///
    /// Once called, the permits are given back whether the future is dropped or not.
    pub async fn release(mut self) -> Result<()> {
        match std::mem::take(&mut self.permits) {
            0 => Ok(()),
            permits => returns::release(&self.context, &self.names, permits)
                .await
                .map_err(|failure| failure.into_error_of_return(&self.names.key)),
        }
    }

    /// Keeps the permits from being given back: they stay in use until somebody calls
    /// [`Semaphore::release`](crate::Semaphore::release).
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Takes `permits` of these permits out, as a value of their own. `None` when there
    /// are fewer; then nothing changes.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self::new(&self.context, self.names.clone(), permits))
    }

    /// Adds the permits of `other` to these.
    ///
    /// # Panics
    ///
    /// When `other` is of another semaphore or client, or both together are 2^32 permits or
    /// more. Then nothing changes here, and `other` is given back.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            self.names.key == other.names.key && Arc::ptr_eq(&self.context, &other.context),
            "permits of `{}` can't be merged with those of `{}`",
            self.names.key,
            other.names.key
        );
        let both = self.permits.checked_add(other.permits);
        self.permits = both.expect("both together are fewer than 2^32 permits");
        other.permits = 0;
    }

    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.key.as_str()
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        match self.permits {
            0 => {}
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
