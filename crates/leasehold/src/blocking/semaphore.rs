//! [`Semaphore`]: forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::runtime::Runtime;
use super::setters::{must_exist_setter, wait_setters};
use crate::error::Result;

/// A semaphore for threads; see [`leasehold::Semaphore`](crate::Semaphore), which says what
/// a killed process does to its permits.
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    runtime: Runtime,
}

/// Settings; see the async twins.
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

/// Acquiring and the number of permits; errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl Semaphore {
    /// Waits for permits, all at once; see
    /// [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self, permits: u32) -> Result<SemaphorePermit> {
        let permit = self
            .runtime
            .block_on("Semaphore::acquire", self.inner.acquire(permits));
        permit.map(|permit| self.permit(permit))
    }

    /// Acquires permits if they are free; see
    /// [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<Option<SemaphorePermit>> {
        let permit = self
            .runtime
            .block_on("Semaphore::try_acquire", self.inner.try_acquire(permits))?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits at most `wait`; see
    /// [`Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for).
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<SemaphorePermit>> {
        let permit = self.runtime.block_on(
            "Semaphore::try_acquire_for",
            self.inner.try_acquire_for(permits, wait),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits until `deadline`; see
    /// [`Semaphore::try_acquire_until`](crate::Semaphore::try_acquire_until).
    pub fn try_acquire_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<SemaphorePermit>> {
        let permit = self.runtime.block_on(
            "Semaphore::try_acquire_until",
            self.inner.try_acquire_until(permits, deadline),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Adds free permits; see
    /// [`Semaphore::release`](crate::Semaphore::release).
    pub fn release(&self, permits: u32) -> Result<()> {
        self.runtime
            .block_on("Semaphore::release", self.inner.release(permits))
    }

    /// Adds free permits to a semaphore that exists; see
    /// [`Semaphore::release_if_exists`](crate::Semaphore::release_if_exists).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool> {
        self.runtime.block_on(
            "Semaphore::release_if_exists",
            self.inner.release_if_exists(permits),
        )
    }

    /// Changes the number of permits; see
    /// [`Semaphore::add_permits`](crate::Semaphore::add_permits).
    pub fn add_permits(&self, permits: i32) -> Result<()> {
        self.runtime
            .block_on("Semaphore::add_permits", self.inner.add_permits(permits))
    }

    /// Takes all free permits; see
    /// [`Semaphore::drain`](crate::Semaphore::drain).
    pub fn drain(&self) -> Result<i64> {
        self.runtime
            .block_on("Semaphore::drain", self.inner.drain())
    }

    /// How many are free; see
    /// [`Semaphore::available_permits`](crate::Semaphore::available_permits).
    pub fn available_permits(&self) -> Result<i64> {
        self.runtime.block_on(
            "Semaphore::available_permits",
            self.inner.available_permits(),
        )
    }

    /// Makes the semaphore; see
    /// [`Semaphore::try_set_permits`](crate::Semaphore::try_set_permits).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
        self.runtime.block_on(
            "Semaphore::try_set_permits",
            self.inner.try_set_permits(permits),
        )
    }

    /// Makes the semaphore for a while; see
    /// [`Semaphore::try_set_permits_for`](crate::Semaphore::try_set_permits_for).
    pub fn try_set_permits_for(&self, permits: u32, life: Duration) -> Result<bool> {
        self.runtime.block_on(
            "Semaphore::try_set_permits_for",
            self.inner.try_set_permits_for(permits, life),
        )
    }

    /// Removes the semaphore; see
    /// [`Semaphore::delete`](crate::Semaphore::delete).
    pub fn delete(&self) -> Result<bool> {
        self.runtime
            .block_on("Semaphore::delete", self.inner.delete())
    }

    fn permit(&self, inner: crate::SemaphorePermit) -> SemaphorePermit {
        SemaphorePermit {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Permits in use; see [`leasehold::SemaphorePermit`](crate::SemaphorePermit).
///
/// Dropping them gives them back before the drop returns, or after the client's reply limit
/// in the background; inside a tokio runtime always in the background. A thread of this
/// process that waits may have them then: one that waits still when the program ends takes
/// them with it.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    /// `None` only once they have been given up.
    inner: Option<crate::SemaphorePermit>,
    runtime: Runtime,
}

impl SemaphorePermit {
    /// Gives the permits back; see
    /// [`SemaphorePermit::release`](crate::SemaphorePermit::release).
    ///
    /// # Errors
    ///
    /// As its async twin.
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(permit) => self
                .runtime
                .finish("SemaphorePermit::release", permit.release()),
            None => Ok(()),
        }
    }

    /// Keeps them in use; see [`SemaphorePermit::forget`](crate::SemaphorePermit::forget).
    pub fn forget(mut self) {
        if let Some(permit) = self.inner.take() {
            permit.forget();
        }
    }

    /// Takes some out; see [`SemaphorePermit::split`](crate::SemaphorePermit::split).
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        let inner = self.inner.as_mut()?.split(permits)?;
        Some(Self {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        })
    }

    /// Adds others; see [`SemaphorePermit::merge`](crate::SemaphorePermit::merge).
    ///
    /// # Panics
    ///
    /// When `other` is of another semaphore or client, or they are too many.
    pub fn merge(&mut self, mut other: Self) {
        if let (Some(inner), Some(other)) = (&mut self.inner, other.inner.take()) {
            inner.merge(other);
        }
    }

    /// How many these are; see
    /// [`SemaphorePermit::permits`](crate::SemaphorePermit::permits).
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.inner
            .as_ref()
            .map_or(0, crate::SemaphorePermit::permits)
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
