//! [`ExpirableSemaphore`], which forwards to the async one.

use std::fmt;
use std::time::{Duration, Instant};

use super::forward::{
    calls, lease_setters, limited, must_exist_setter, reads, setters, wait_setters, waits,
};
use super::runtime::Runtime;
use crate::error::Result;
use crate::loss::LossReason;
use crate::primitives::expirable::PermitId;
use crate::primitives::lock::Ttl;
use crate::recipes::ticket::Ticket;

/// A semaphore with leases for threads; see
/// [`leasehold::ExpirableSemaphore`](crate::ExpirableSemaphore).
#[doc(alias = "RPermitExpirableSemaphore")]
#[derive(Clone)]
pub struct ExpirableSemaphore {
    inner: crate::ExpirableSemaphore,
    runtime: Runtime,
}

/// Acquiring, permits by id, and the number of permits.
impl ExpirableSemaphore {
    waits! { ExpirableSemaphore:
        "Waits for a permit" acquire() -> ExpirablePermit => wrap;
        "Acquires a permit if one is free" try_acquire() -> Option<ExpirablePermit> => wrap_some;
        "Waits at most `wait` for a permit" try_acquire_for(wait: Duration) -> Option<ExpirablePermit> => wrap_some;
        "Waits for a permit, but at most until `deadline`" try_acquire_until(deadline: Instant) -> Option<ExpirablePermit> => wrap_some;
        "Waits for `permits` permits, all at the same time" acquire_many(permits: u32) -> ExpirablePermit => wrap;
        "Acquires `permits` permits if that many are free" try_acquire_many(permits: u32) -> Option<ExpirablePermit> => wrap_some;
        "Waits at most `wait` for `permits` permits" try_acquire_many_for(permits: u32, wait: Duration) -> Option<ExpirablePermit> => wrap_some;
        "Waits for `permits` permits, but at most until `deadline`" try_acquire_many_until(permits: u32, deadline: Instant) -> Option<ExpirablePermit> => wrap_some;
    }
    calls! { ExpirableSemaphore:
        "Gives a permit back by its id" release(id: PermitId) -> bool;
        "Gives permits back by their ids, all of them or none" release_many(ids: &[PermitId]) -> bool;
        "Sets a new lease for a permit" update_lease(id: PermitId, lease: Duration) -> bool;
        "Returns how much of a permit's lease is left" remaining_ttl(id: PermitId) -> Ttl;
        "Returns how many permits are free" available_permits() -> i64;
        "Returns how many permits are in use" acquired_permits() -> u64;
        "Returns how many permits there are in total" permits() -> i64;
        "Returns how many permits there are in total, or `None` if the semaphore does not exist" capacity() -> Option<i64>;
        "Creates the semaphore with `permits` permits" try_set_permits(permits: u32) -> bool;
        "Sets how many permits there are in total" set_permits(permits: u32) -> ();
        "Changes the number of permits by `permits`, up or down" add_permits(permits: i32) -> ();
        "Removes the semaphore, including the permits in use" delete() -> bool;
        "Takes over a ticket's permits" resume(ticket: &Ticket) -> ExpirablePermit => wrap;
    }
    reads! { ExpirableSemaphore:
        "Returns the semaphore's name as it was given" name() -> &str;
    }

    fn twin(&self) -> &crate::ExpirableSemaphore {
        &self.inner
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn wrap(&self, permit: Result<crate::ExpirablePermit>) -> Result<ExpirablePermit> {
        permit.map(|permit| self.permit(permit))
    }

    fn wrap_some(
        &self,
        permit: Result<Option<crate::ExpirablePermit>>,
    ) -> Result<Option<ExpirablePermit>> {
        Ok(permit?.map(|permit| self.permit(permit)))
    }

    fn permit(&self, inner: crate::ExpirablePermit) -> ExpirablePermit {
        ExpirablePermit {
            inner: Some(inner),
            runtime: self.runtime.clone(),
        }
    }
}

/// Settings: see the async methods of the same names.
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
    setters! { ExpirableSemaphore:
        "Sets how long this process may pass permits on among its own waiters" local_hand_over(slice: Duration);
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The guard of one or more permits; see [`leasehold::ExpirablePermit`](crate::ExpirablePermit).
///
/// Dropping the guard waits until the permits are released. If the server does not answer within
/// the client's reply timeout, the release continues in the background. Inside a tokio runtime, a
/// drop does not wait, and the permits are released in the background.
#[must_use = "the permits are released as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct ExpirablePermit {
    /// `None` only after the permits have been given up.
    inner: Option<crate::ExpirablePermit>,
    runtime: Runtime,
}

impl ExpirablePermit {
    /// Releases the permits; see [`ExpirablePermit::release`](crate::ExpirablePermit::release).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(permit) => self
                .runtime
                .finish("ExpirablePermit::release", permit.release()),
            None => Ok(()),
        }
    }

    reads! { ExpirablePermit:
        "Returns the id of the permit, or of the first one" id() -> PermitId;
        "Returns the ids of all permits" ids() -> &[PermitId];
        "Returns why a permit was lost" loss() -> Option<LossReason>;
        "Returns whether the permits are held" is_held() -> bool;
        "Returns why renewals have been failing since the last one that succeeded" renewal_failure() -> Option<LossReason>;
        "Returns the number of this hold" number() -> u64;
        "Returns how long the acquire took" waited() -> Duration;
        "Returns the name of the semaphore" name() -> &str;
    }
    calls! { ExpirablePermit:
        "Extends the lease of the permits" extend(lease: Duration) -> ();
    }

    /// Reports that the work has made progress; see
    /// [`ExpirablePermit::progress`](crate::ExpirablePermit::progress).
    pub fn progress(&self) {
        self.twin().progress();
    }

    reads! { ExpirablePermit:
        "Returns a handle that reports progress" progress_handle() -> crate::Progress;
    }
    limited! { ExpirablePermit:
        "Returns the time since the last report when the work has stalled" stalled_within(wait: Duration) -> Option<Duration> by stalled;
        "Returns the reason when a permit is lost" lost_within(wait: Duration) -> Option<LossReason> by lost;
    }

    /// Returns the instant until which the permits are certainly held; see
    /// [`ExpirablePermit::valid_until`](crate::ExpirablePermit::valid_until).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.twin().valid_until().into_std()
    }

    /// Ends the guard without releasing the permits, which are free when their lease ends; see
    /// [`ExpirablePermit::forget`](crate::ExpirablePermit::forget).
    pub fn forget(mut self) {
        if let Some(permit) = self.inner.take() {
            permit.forget();
        }
    }

    /// Turns the permits into a ticket, with which another process can resume them; see
    /// [`ExpirablePermit::into_ticket`](crate::ExpirablePermit::into_ticket).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn into_ticket(mut self, lease: Duration) -> Result<Ticket> {
        let permits = self
            .inner
            .take()
            .expect("permits that have been given up are gone");
        let hand_out = permits.into_ticket(lease);
        self.runtime
            .block_on("ExpirablePermit::into_ticket", hand_out)
    }

    /// Returns the async guard, for its methods that take `&self`.
    pub fn as_async(&self) -> &crate::ExpirablePermit {
        self.twin()
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn twin(&self) -> &crate::ExpirablePermit {
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
