//! [`RwLock`] and its guards, which forward to the async ones.

use std::time::{Duration, Instant};

use super::forward::{lease_setters, reads, setters, wait_setters};
use super::interrupt::interruptible;
use super::lock::{Explicit, Lock, LockGuard, Ownership, PerThread};
use super::runtime::Runtime;
use crate::error::{Error, Result};
use crate::owner::Owner;
use crate::primitives::rw::{self, Read, Write};

/// A read-write lock for threads; see [`leasehold::RwLock`](crate::RwLock).
///
/// A thread that holds a side can acquire that side again, and a thread that holds the write side
/// can also acquire the read side.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::Client::embedded();
/// let lock = client.rw_lock("prices");
/// let writing = lock.write()?;
/// let reading = lock.read()?; // allowed, because the same thread writes
/// writing.release()?;
/// reading.release()?;
/// lock.write()?.downgrade()?.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "RReadWriteLock")]
pub struct RwLock<O: Ownership = PerThread> {
    inner: crate::RwLock,
    read: Lock<O, Read>,
    write: Lock<O, Write>,
    runtime: Runtime,
}

/// Acquiring. The errors are the same as for the async methods.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl<O: Ownership> RwLock<O> {
    /// Waits for the read side; see [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<Reading<O>> {
        self.read.acquire()
    }

    /// Acquires the read side if there is no writer; see
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    pub fn try_read(&self) -> Result<Option<Reading<O>>> {
        self.read.try_acquire()
    }

    /// Waits for the read side, but at most for `wait`; see
    /// [`RwLock::try_read_for`](crate::RwLock::try_read_for).
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<Reading<O>>> {
        self.read.try_acquire_for(wait)
    }

    /// Waits for the read side, but at most until `deadline`; see
    /// [`RwLock::try_read_until`](crate::RwLock::try_read_until).
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<Reading<O>>> {
        self.read.try_acquire_until(deadline)
    }

    /// Waits for the write side; see [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<Writing<O>> {
        self.write.acquire()
    }

    /// Acquires the write side if it is free; see
    /// [`RwLock::try_write`](crate::RwLock::try_write).
    pub fn try_write(&self) -> Result<Option<Writing<O>>> {
        self.write.try_acquire()
    }

    /// Waits for the write side, but at most for `wait`; see
    /// [`RwLock::try_write_for`](crate::RwLock::try_write_for).
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<Writing<O>>> {
        self.write.try_acquire_for(wait)
    }

    /// Waits for the write side, but at most until `deadline`; see
    /// [`RwLock::try_write_until`](crate::RwLock::try_write_until).
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<Writing<O>>> {
        self.write.try_acquire_until(deadline)
    }

    /// Returns the read side as a lock; see [`RwLock::read_lock`](crate::RwLock::read_lock).
    #[doc(alias = "readLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn read_lock(&self) -> Lock<O, Read> {
        self.read.clone()
    }

    /// Returns the write side as a lock; see [`RwLock::write_lock`](crate::RwLock::write_lock).
    #[doc(alias = "writeLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn write_lock(&self) -> Lock<O, Write> {
        self.write.clone()
    }
}

/// Settings: see the async methods of the same names.
impl<O: Ownership> RwLock<O> {
    fn with(self, change: impl FnOnce(crate::RwLock) -> crate::RwLock) -> Self {
        let inner = change(self.inner);
        Self {
            // Rebuild each side from the lock with the new setting. `with` keeps the owner of each
            // side's handle.
            read: self.read.with(|_| inner.read_lock()),
            write: self.write.with(|_| inner.write_lock()),
            inner,
            runtime: self.runtime,
        }
    }

    fn twin(&self) -> &crate::RwLock {
        &self.inner
    }

    lease_setters! { RwLock }
    wait_setters! { RwLock }
    setters! { RwLock:
        "Sets which servers must confirm a hold of either side" acknowledged_by(acknowledgement: crate::Acknowledgement);
        "Prevents a thread, or an owner, from re-entering its own hold" non_reentrant();
        "Sets whether a waiting writer keeps new readers out" prefer_writers(preferred: bool);
        "Sets the shortest `lockWatchdogTimeout` of the Redisson clients that share this lock" redisson_watchdog(timeout: Duration);
    }
    reads! { RwLock:
        "Returns the lock's name as it was given" name() -> &str;
    }
}

impl RwLock<PerThread> {
    pub(crate) fn per_thread(inner: crate::RwLock, runtime: Runtime) -> Self {
        Self {
            read: Lock::per_thread(inner.read_lock(), runtime.clone()),
            write: Lock::per_thread(inner.write_lock(), runtime.clone()),
            inner,
            runtime,
        }
    }

    /// Returns a lock that acquires both sides as `owner`; see
    /// [`RwLock::owned_by`](crate::RwLock::owned_by).
    #[must_use = "a handle does nothing until it is used"]
    pub fn owned_by(&self, owner: &Owner) -> RwLock<Explicit> {
        RwLock {
            inner: self.inner.clone(),
            read: self.read.owned_by(owner),
            write: self.write.owned_by(owner),
            runtime: self.runtime.clone(),
        }
    }
}

/// A guard of the read side.
type Reading<O> = LockGuard<O, rw::ReadGuard>;
/// A guard of the write side.
type Writing<O> = LockGuard<O, rw::WriteGuard>;

// Written by hand, as for the lock, because no `Ownership` is `Clone`.
impl<O: Ownership> Clone for RwLock<O> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            read: self.read.clone(),
            write: self.write.clone(),
            runtime: self.runtime.clone(),
        }
    }
}

impl<O: Ownership> LockGuard<O, rw::WriteGuard> {
    /// Turns the write hold into a read hold; see
    /// [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn downgrade(self) -> Result<Reading<O>> {
        self.converted("WriteGuard::downgrade", |guard| guard.downgrade())
    }
}

impl<O: Ownership> LockGuard<O, rw::ReadGuard> {
    /// Turns the read hold into a write hold if there is no other reader; see
    /// [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade).
    ///
    /// # Errors
    ///
    /// Returns [`NotUpgraded`], which contains this guard, also if an
    /// [`Interrupt`](super::Interrupt) ends the request.
    pub fn try_upgrade(self) -> Result<Writing<O>, NotUpgraded<O>> {
        // Clone the runtime before the guard is consumed: a refused guard is returned without a
        // runtime.
        let runtime = self.runtime().clone();
        let upgrade = |guard: rw::ReadGuard| async move {
            let upgraded = interruptible(guard.upgrade()).await;
            guard.upgraded(upgraded)
        };
        self.converted("ReadGuard::try_upgrade", upgrade)
            .map_err(|refused| {
                let (guard, error) = refused.into_parts();
                let guard = LockGuard::of(guard, runtime);
                NotUpgraded { guard, error }
            })
    }
}

/// The error of `try_upgrade`, which contains the guard of the read side; see
/// [`leasehold::NotUpgraded`](crate::NotUpgraded).
#[derive(Debug)]
#[must_use = "the read side is released as soon as this is dropped"]
pub struct NotUpgraded<O: Ownership = PerThread> {
    guard: Reading<O>,
    error: Option<Error>,
}

impl<O: Ownership> NotUpgraded<O> {
    /// Returns the guard, which still holds the read side.
    pub fn into_guard(self) -> Reading<O> {
        self.guard
    }

    /// Returns the error that prevented the upgrade; see
    /// [`NotUpgraded::error`](crate::NotUpgraded::error). `None` if other readers prevented it.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}
