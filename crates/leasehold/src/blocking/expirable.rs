//! [`ExpirableSemaphore`]: forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::runtime::Runtime;
use super::setters::{lease_setters, must_exist_setter, wait_setters};
use crate::error::Result;
use crate::loss::LossReason;
use crate::primitives::expirable::{LeaseLeft, PermitId};

/// A semaphore with leases for threads; see
/// [`leasehold::ExpirableSemaphore`](crate::ExpirableSemaphore).
#[derive(Clone)]
pub struct ExpirableSemaphore {
    inner: crate::ExpirableSemaphore,
    runtime: Runtime,
}

/// Settings; see the async twins.
impl ExpirableSemaphore {
    pub(crate) fn new(inner: crate::ExpirableSemaphore, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    fn with(
        mut self,
        change: impl FnOnce(crate::ExpirableSemaphore) -> crate::ExpirableSemaphore,
    ) -> Self {
        self.inner = change(self.inner);
        self
    }

    lease_setters! { ExpirableSemaphore }
    wait_setters! { ExpirableSemaphore }
    must_exist_setter! { ExpirableSemaphore }
}

/// Acquiring, permits by id, and their number; errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl ExpirableSemaphore {
    /// Waits for a permit; see
    /// [`ExpirableSemaphore::acquire`](crate::ExpirableSemaphore::acquire).
    pub fn acquire(&self) -> Result<ExpirablePermit> {
        let permit = self
            .runtime
            .block_on("ExpirableSemaphore::acquire", self.inner.acquire());
        permit.map(|permit| self.permit(permit))
    }

    /// Acquires a permit if one is free; see
    /// [`ExpirableSemaphore::try_acquire`](crate::ExpirableSemaphore::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        let permit = self
            .runtime
            .block_on("ExpirableSemaphore::try_acquire", self.inner.try_acquire())?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits at most `wait`; see
    /// [`ExpirableSemaphore::try_acquire_for`](crate::ExpirableSemaphore::try_acquire_for).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::try_acquire_for",
            self.inner.try_acquire_for(wait),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits until `deadline`; see
    /// [`ExpirableSemaphore::try_acquire_until`](crate::ExpirableSemaphore::try_acquire_until).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<ExpirablePermit>> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::try_acquire_until",
            self.inner.try_acquire_until(deadline),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits for several, all at once; see
    /// [`ExpirableSemaphore::acquire_many`](crate::ExpirableSemaphore::acquire_many).
    pub fn acquire_many(&self, permits: u32) -> Result<ExpirablePermit> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::acquire_many",
            self.inner.acquire_many(permits),
        );
        permit.map(|permit| self.permit(permit))
    }

    /// Acquires several if they are free; see
    /// [`ExpirableSemaphore::try_acquire_many`](crate::ExpirableSemaphore::try_acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<ExpirablePermit>> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::try_acquire_many",
            self.inner.try_acquire_many(permits),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits at most `wait` for several; see
    /// [`ExpirableSemaphore::try_acquire_many_for`](crate::ExpirableSemaphore::try_acquire_many_for).
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<ExpirablePermit>> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::try_acquire_many_for",
            self.inner.try_acquire_many_for(permits, wait),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Waits until `deadline` for several; see
    /// [`ExpirableSemaphore::try_acquire_many_until`](crate::ExpirableSemaphore::try_acquire_many_until).
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<ExpirablePermit>> {
        let permit = self.runtime.block_on(
            "ExpirableSemaphore::try_acquire_many_until",
            self.inner.try_acquire_many_until(permits, deadline),
        )?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// Gives a permit back by its id; see
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release).
    pub fn release(&self, id: PermitId) -> Result<bool> {
        self.runtime
            .block_on("ExpirableSemaphore::release", self.inner.release(id))
    }

    /// Gives all of them back, or none; see
    /// [`ExpirableSemaphore::release_many`](crate::ExpirableSemaphore::release_many).
    pub fn release_many(&self, ids: &[PermitId]) -> Result<bool> {
        self.runtime.block_on(
            "ExpirableSemaphore::release_many",
            self.inner.release_many(ids),
        )
    }

    /// Sets a lease anew; see
    /// [`ExpirableSemaphore::update_lease`](crate::ExpirableSemaphore::update_lease).
    pub fn update_lease(&self, id: PermitId, lease: Duration) -> Result<bool> {
        self.runtime.block_on(
            "ExpirableSemaphore::update_lease",
            self.inner.update_lease(id, lease),
        )
    }

    /// What is left of a lease; see
    /// [`ExpirableSemaphore::lease_left`](crate::ExpirableSemaphore::lease_left).
    pub fn lease_left(&self, id: PermitId) -> Result<LeaseLeft> {
        self.runtime
            .block_on("ExpirableSemaphore::lease_left", self.inner.lease_left(id))
    }

    /// How many are free; see
    /// [`ExpirableSemaphore::available_permits`](crate::ExpirableSemaphore::available_permits).
    pub fn available_permits(&self) -> Result<i64> {
        self.runtime.block_on(
            "ExpirableSemaphore::available_permits",
            self.inner.available_permits(),
        )
    }

    /// How many are in use; see
    /// [`ExpirableSemaphore::acquired_permits`](crate::ExpirableSemaphore::acquired_permits).
    pub fn acquired_permits(&self) -> Result<u64> {
        self.runtime.block_on(
            "ExpirableSemaphore::acquired_permits",
            self.inner.acquired_permits(),
        )
    }

    /// How many there are in all; see
    /// [`ExpirableSemaphore::permits`](crate::ExpirableSemaphore::permits).
    pub fn permits(&self) -> Result<i64> {
        self.runtime
            .block_on("ExpirableSemaphore::permits", self.inner.permits())
    }

    /// How many there are in all, if there is a semaphore; see
    /// [`ExpirableSemaphore::capacity`](crate::ExpirableSemaphore::capacity).
    pub fn capacity(&self) -> Result<Option<i64>> {
        self.runtime
            .block_on("ExpirableSemaphore::capacity", self.inner.capacity())
    }

    /// Makes the semaphore; see
    /// [`ExpirableSemaphore::try_set_permits`](crate::ExpirableSemaphore::try_set_permits).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
        self.runtime.block_on(
            "ExpirableSemaphore::try_set_permits",
            self.inner.try_set_permits(permits),
        )
    }

    /// Sets how many there are in all; see
    /// [`ExpirableSemaphore::set_permits`](crate::ExpirableSemaphore::set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        self.runtime.block_on(
            "ExpirableSemaphore::set_permits",
            self.inner.set_permits(permits),
        )
    }

    /// Changes the number of permits; see
    /// [`ExpirableSemaphore::add_permits`](crate::ExpirableSemaphore::add_permits).
    pub fn add_permits(&self, permits: i32) -> Result<()> {
        self.runtime.block_on(
            "ExpirableSemaphore::add_permits",
            self.inner.add_permits(permits),
        )
    }

    /// Removes the semaphore; see
    /// [`ExpirableSemaphore::delete`](crate::ExpirableSemaphore::delete).
    pub fn delete(&self) -> Result<bool> {
        self.runtime
            .block_on("ExpirableSemaphore::delete", self.inner.delete())
    }

    fn permit(&self, inner: crate::ExpirablePermit) -> ExpirablePermit {
        ExpirablePermit {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        }
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Permits in use; see [`leasehold::ExpirablePermit`](crate::ExpirablePermit).
///
/// Dropping them gives them back before the drop returns, or after the client's reply limit
/// in the background; inside a tokio runtime always in the background.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct ExpirablePermit {
    /// `None` only once they have been given up.
    inner: Option<crate::ExpirablePermit>,
    runtime: Runtime,
}

/// Errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl ExpirablePermit {
    /// Gives the permits back; see
    /// [`ExpirablePermit::release`](crate::ExpirablePermit::release).
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(permit) => self
                .runtime
                .finish("ExpirablePermit::release", permit.release()),
            None => Ok(()),
        }
    }

    /// The ids of all permits; see [`ExpirablePermit::ids`](crate::ExpirablePermit::ids).
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        self.inner().ids()
    }

    /// Why a permit is lost; see [`ExpirablePermit::loss`](crate::ExpirablePermit::loss).
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.inner().loss()
    }

    /// Waits at most `wait` for a permit to be lost; see
    /// [`ExpirablePermit::lost`](crate::ExpirablePermit::lost).
    #[must_use]
    pub fn lost_within(&self, wait: Duration) -> Option<LossReason> {
        let lost = self.inner().lost();
        self.runtime.block_on("ExpirablePermit::lost", async {
            tokio::time::timeout(wait, lost).await.ok()
        })
    }

    /// Whether they are held; see
    /// [`ExpirablePermit::is_held`](crate::ExpirablePermit::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner().is_held()
    }

    /// Until when; see
    /// [`ExpirablePermit::valid_until`](crate::ExpirablePermit::valid_until).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.inner().valid_until().into_std()
    }

    /// Makes them last longer; see
    /// [`ExpirablePermit::extend`](crate::ExpirablePermit::extend).
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.runtime
            .block_on("ExpirablePermit::extend", self.inner().extend(lease))
    }

    /// Leaves them to their lease; see
    /// [`ExpirablePermit::forget`](crate::ExpirablePermit::forget).
    pub fn forget(mut self) {
        if let Some(permit) = self.inner.take() {
            permit.forget();
        }
    }

    /// The async guard, for what reads it only.
    pub fn as_async(&self) -> &crate::ExpirablePermit {
        self.inner()
    }

    fn inner(&self) -> &crate::ExpirablePermit {
        self.inner
            .as_ref()
            .expect("permits that have been given up are gone")
    }
}

impl Drop for ExpirablePermit {
    fn drop(&mut self) {
        if let Some(permit) = self.inner.take() {
            self.runtime
                .release_dropped(permit, crate::ExpirablePermit::release);
        }
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
