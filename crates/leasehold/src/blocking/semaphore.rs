//! [`Semaphore`], which forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::forward::{calls, must_exist_setter, reads, wait_setters, waits};
use super::runtime::Runtime;
use crate::error::Result;

/// A semaphore for threads; see [`leasehold::Semaphore`](crate::Semaphore), which describes what
/// happens to the permits of a killed process.
#[doc(alias = "RSemaphore")]
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    runtime: Runtime,
}

/// Acquiring, and the number of permits.
impl Semaphore {
    waits! { Semaphore:
        "Waits for a permit" acquire() -> SemaphorePermit => wrap;
        "Acquires a permit if one is free" try_acquire() -> Option<SemaphorePermit> => wrap_some;
        "Waits at most `wait` for a permit" try_acquire_for(wait: Duration) -> Option<SemaphorePermit> => wrap_some;
        "Waits for a permit, but at most until `deadline`" try_acquire_until(deadline: Instant) -> Option<SemaphorePermit> => wrap_some;
        "Waits for `permits` permits, all at the same time" acquire_many(permits: u32) -> SemaphorePermit => wrap;
        "Acquires `permits` permits if that many are free" try_acquire_many(permits: u32) -> Option<SemaphorePermit> => wrap_some;
        "Waits at most `wait` for `permits` permits" try_acquire_many_for(permits: u32, wait: Duration) -> Option<SemaphorePermit> => wrap_some;
        "Waits for `permits` permits, but at most until `deadline`" try_acquire_many_until(permits: u32, deadline: Instant) -> Option<SemaphorePermit> => wrap_some;
    }
    calls! { Semaphore:
        "Adds `permits` free permits" release(permits: u32) -> ();
        "Adds `permits` free permits if the semaphore exists" release_if_exists(permits: u32) -> bool;
        "Changes the number of permits by `permits`, up or down" add_permits(permits: i32) -> ();
        "Takes all free permits and returns how many there were" drain() -> i64;
        "Returns how many permits are free" available_permits() -> i64;
        "Creates the semaphore with `permits` permits" try_set_permits(permits: u32) -> bool;
        "Creates the semaphore, which the server removes after `life`" try_set_permits_for(permits: u32, life: Duration) -> bool;
        "Removes the semaphore" delete() -> bool;
    }
    reads! { Semaphore:
        "Returns the semaphore's name as it was given" name() -> &str;
    }

    fn twin(&self) -> &crate::Semaphore {
        &self.inner
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn wrap(&self, permit: Result<crate::SemaphorePermit>) -> Result<SemaphorePermit> {
        permit.map(|permit| self.permit(permit))
    }

    fn wrap_some(
        &self,
        permit: Result<Option<crate::SemaphorePermit>>,
    ) -> Result<Option<SemaphorePermit>> {
        Ok(permit?.map(|permit| self.permit(permit)))
    }

    fn permit(&self, inner: crate::SemaphorePermit) -> SemaphorePermit {
        SemaphorePermit {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        }
    }
}

/// Settings: see the async methods of the same names.
impl Semaphore {
    pub(crate) fn new(inner: crate::Semaphore, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    fn with(mut self, change: impl FnOnce(crate::Semaphore) -> crate::Semaphore) -> Self {
        self.inner = change(self.inner);
        self
    }

    wait_setters! { Semaphore }
    must_exist_setter! { Semaphore }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Permits in use; see [`leasehold::SemaphorePermit`](crate::SemaphorePermit).
///
/// Dropping this value waits until the permits have been released. If the server does not answer
/// within the client's reply timeout, the release continues in the background. Inside a tokio
/// runtime, a drop does not wait, and the permits are released in the background. Released permits
/// may pass directly to a thread of this process that waits for permits. If the program ends before
/// the acquire of that thread has returned, the permits are lost.
#[must_use = "the permits are released as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    /// `None` only after the permits have been given up.
    inner: Option<crate::SemaphorePermit>,
    runtime: Runtime,
}

impl SemaphorePermit {
    /// Releases the permits; see [`SemaphorePermit::release`](crate::SemaphorePermit::release).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(permit) => self
                .runtime
                .finish("SemaphorePermit::release", permit.release()),
            None => Ok(()),
        }
    }

    /// Drops this value without releasing the permits; see
    /// [`SemaphorePermit::forget`](crate::SemaphorePermit::forget).
    pub fn forget(mut self) {
        if let Some(permit) = self.inner.take() {
            permit.forget();
        }
    }

    /// Moves some of the permits into a new value; see
    /// [`SemaphorePermit::split`](crate::SemaphorePermit::split).
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        // Both parts keep the client's thread alive, because either may be dropped last.
        let inner = self.inner.as_mut()?.split(permits)?;
        Some(Self {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        })
    }

    /// Adds the permits of `other` to these; see
    /// [`SemaphorePermit::merge`](crate::SemaphorePermit::merge).
    ///
    /// # Panics
    ///
    /// Panics if `other` belongs to another semaphore or client, or if the sum is too large.
    pub fn merge(&mut self, mut other: Self) {
        // Take the permits out of `other`, because its drop would otherwise release permits that
        // are already in `self`.
        if let (Some(inner), Some(other)) = (&mut self.inner, other.inner.take()) {
            inner.merge(other);
        }
    }

    reads! { SemaphorePermit:
        "Returns the number of permits" permits() -> u32;
        "Returns the name of the semaphore" name() -> &str;
    }

    fn twin(&self) -> &crate::SemaphorePermit {
        self.inner
            .as_ref()
            .expect("permits that have been given up are gone")
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        if let Some(permit) = self.inner.take() {
            self.runtime
                .release_dropped(permit, crate::SemaphorePermit::release);
        }
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
