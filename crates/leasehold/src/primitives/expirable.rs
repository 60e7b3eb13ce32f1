//! The semaphore whose permits have leases: what a killed process had comes back.

mod ask;
mod permit;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::step::{Operation, Value};
use crate::config::{Settings, WaitStrategy, check_lease, check_number, check_wait};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::lock::Ttl;
use crate::primitives::semaphore::MOST_PERMITS;
use crate::primitives::semaphore::steps as plain;
use crate::primitives::setters::{lease_setters, must_exist_setter, wait_setters};
use crate::primitives::{absence, namesake, request};
use crate::wait::Deadline;
pub use permit::{ExpirablePermit, PermitId};
use steps::Names;

/// Permits that are acquired or released with one call, at most: it is one step of the
/// server, which does nothing else meanwhile.
const MOST_AT_ONCE: u64 = 1000;

/// A semaphore by name whose permits have ids and leases: the permits of a process that
/// was killed come back when their leases end. Shared with Redisson's
/// `RPermitExpirableSemaphore` of the same name.
///
/// A handle is cheap to make and to clone; its settings are its own. Permits are renewed
/// in the background until they are released, unless [`lease`](Self::lease) sets a fixed
/// one. A semaphore that nobody has made has no permits:
/// [`try_set_permits`](Self::try_set_permits) makes one, and whoever waits goes on waiting until
/// then, unless the handle says that it [must exist](Self::must_exist).
///
/// **What it promises.** Of one name, no more permits are in use at once than were set, each
/// from the return of the acquire to the call of the release, or to
/// [`valid_until`](ExpirablePermit::valid_until) if that comes first; under the conditions
/// that [`Lock`](crate::Lock) names. Leases end by the server's clock. Redisson's clients go
/// by their own: one whose clock is ahead takes permits back early, for everybody, and one
/// whose clock is behind has its own taken back before it believes that they end.
///
/// Permits that Redisson acquires without a lease never end by themselves; here
/// [`remaining_ttl`](Self::remaining_ttl) says so, and [`release`](Self::release) gives them back.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let semaphore = client.expirable_semaphore("supplier:calls");
/// semaphore.try_set_permits(10).await?; // only the first one does
///
/// let permit = semaphore.acquire().await?; // renewed until it is released
/// assert_eq!(semaphore.available_permits().await?, 9);
/// permit.release().await?; // an error if it had been lost
///
/// if let Some(permits) = semaphore.try_acquire_many(4).await? {
///     // four, or none; dropping them gives them back in the background
///     assert_eq!(permits.ids().len(), 4);
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RPermitExpirableSemaphore")]
#[doc(alias = "getPermitExpirableSemaphore")]
#[derive(Clone)]
pub struct ExpirableSemaphore {
    context: Arc<Context>,
    /// A name is checked when it is used, so that making a handle can't fail.
    names: Result<Names>,
    settings: Settings,
    must_exist: bool,
}

/// Settings. Each changes this handle only; what is acquired already keeps its terms.
impl ExpirableSemaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let names = Key::parse(name).map(|key| Names {
            channel: key.semaphore_channel().into(),
            key,
        });
        Self {
            settings: context.settings(),
            context,
            names,
            must_exist: false,
        }
    }

    lease_setters! {}
    must_exist_setter! {}
    wait_setters! {
        /// The end of the next lease wakes it, too.
    }
}

/// Acquiring.
impl ExpirableSemaphore {
    /// Waits for a permit, without a limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has answered for
    /// the [`outage_timeout`](Self::outage_timeout), `OutcomeUnknown` when it has not and a request
    /// may have run, `WrongKind` when the key holds something else, `Denied` when the server
    /// refuses, `Misuse` for a bad name, setting or number, `NotFound` when there is no
    /// semaphore and there [must](Self::must_exist) be one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line. What
    /// was granted while the answer was on its way is given back in the background; at the
    /// latest it comes back one lease after the grant.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<ExpirablePermit> {
        self.acquire_many(1).await
    }

    /// Acquires a permit if one is free. `Ok(None)` means that none is, or that others of
    /// this process wait for permits.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); a server that does not answer is an error at once.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many(1).await
    }

    /// Waits at most `wait` for a permit. `Ok(None)` means that none was free.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). `OutcomeUnknown` when the server has not answered at
    /// all within `wait`. A wait of zero or of more than 2^53 ms is `Misuse`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits until `deadline` at the latest for a permit; a deadline in the past asks once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_until(
        &self,
        deadline: impl Into<Instant>,
    ) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many_until(1, deadline).await
    }

    /// Waits for `permits` permits, all at once and without a limit: 1 to 1000. They are one
    /// guard with many ids.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<ExpirablePermit> {
        loop {
            // Without a deadline there is no other end than permits or an error.
            if let Some(permit) = self.acquire_by(permits, Deadline::Never).await? {
                return Ok(permit);
            }
        }
    }

    /// Acquires `permits` permits if so many are free, 1 to 1000.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<ExpirablePermit>> {
        self.acquire_by(permits, Deadline::Now).await
    }

    /// Waits at most `wait` for `permits` permits, 1 to 1000.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<ExpirablePermit>> {
        check_wait(wait, &self.names()?.key)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(permits, Deadline::At(deadline)).await
    }

    /// Waits until `deadline` at the latest for `permits` permits, 1 to 1000.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: impl Into<Instant>,
    ) -> Result<Option<ExpirablePermit>> {
        let deadline = Deadline::at_instant(deadline.into(), self.context.clock);
        self.acquire_by(permits, deadline).await
    }

    async fn acquire_by(
        &self,
        permits: u32,
        deadline: Deadline,
    ) -> Result<Option<ExpirablePermit>> {
        let names = self.names()?;
        let terms = self.settings.terms(&names.key)?;
        check_several(permits.into(), &names.key)?;
        self.context.check_open(&names.key)?;
        namesake::look(&self.context, &names.key);
        if self.must_exist {
            let is_there = async { Ok(self.counts().await?.there) };
            absence::check_behind_others(&self.context, &names.key, deadline, is_there).await?;
        }
        ask::acquire(self, names, terms, permits, deadline).await
    }
}

/// Permits by their ids, from whichever process or language.
impl ExpirableSemaphore {
    /// Gives a permit back by its id. `false` when its lease was over, or there is no such
    /// permit; one whose lease is over but that nobody has taken back yet is given back all
    /// the same.
    ///
    /// A guard of that permit learns at its next renewal that it is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered,
    /// `OutcomeUnknown` when it may have been given back; `WrongKind`, `Denied` and `Misuse`
    /// as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once polled, it may happen whether the future is dropped or not.
    #[doc(alias = "tryRelease")]
    pub async fn release(&self, id: PermitId) -> Result<bool> {
        let names = self.names()?;
        Ok(self.change(names.release(&[id], false)).await? == 1)
    }

    /// Gives permits back by their ids, all of them or none. `false`, and nothing is
    /// changed, when the lease of one is over or there is no such permit. An id that stands
    /// there twice counts once. 1 to 1000.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "tryRelease")]
    pub async fn release_many(&self, ids: &[PermitId]) -> Result<bool> {
        let names = self.names()?;
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        check_several(ids.len() as u64, &names.key)?;
        Ok(self.change(names.release(&ids, true)).await? == 1)
    }

    /// Sets the lease of a permit anew, to more or to less than it has: it ends `lease` from
    /// now. `false` when it was over, or there is no such permit. A guard's own lease is
    /// made longer with [`ExpirablePermit::extend`], of which the guard knows; of a shorter one
    /// it learns at its next renewal, and of one that is fixed not before its end.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "updateLeaseTime")]
    pub async fn update_lease(&self, id: PermitId, lease: Duration) -> Result<bool> {
        let names = self.names()?;
        check_lease(lease, &names.key)?;
        Ok(self.change(names.update(id, lease)).await? == 1)
    }

    /// What is left of a permit's lease.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "getLeaseTime")]
    pub async fn remaining_ttl(&self, id: PermitId) -> Result<Ttl> {
        let names = self.names()?;
        let left = request::query(&self.context, &names.key, names.left(id)).await?;
        let left = request::integer(&self.context, &names.key, &left)?;
        Ok(Ttl::of_key(left))
    }
}

/// The number of permits.
impl ExpirableSemaphore {
    /// How many permits are free; negative when some were taken away while they were in
    /// use. Permits whose leases are over are taken back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered,
    /// `WrongKind` when the key holds something else, `Denied` when the server refuses.
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "availablePermits")]
    pub async fn available_permits(&self) -> Result<i64> {
        Ok(self.counts().await?.free)
    }

    /// How many permits are in use.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "acquiredPermits")]
    pub async fn acquired_permits(&self) -> Result<u64> {
        Ok(self.counts().await?.held)
    }

    /// How many permits there are in all, free or in use; 0 when there is no semaphore.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "getPermits")]
    pub async fn permits(&self) -> Result<i64> {
        Ok(self.counts().await?.total())
    }

    /// How many permits there are in all, free or in use. `None` when there is no semaphore:
    /// nobody has set a number, or it was deleted.
    ///
    /// With [`try_set_permits`](Self::try_set_permits) it lets the first caller decide, and
    /// tells each other one what stands:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::embedded();
    /// # client.expirable_semaphore("supplier:calls").try_set_permits(2).await?;
    /// let semaphore = client.expirable_semaphore("supplier:calls");
    /// if !semaphore.try_set_permits(5).await? {
    ///     let stands = semaphore.capacity().await?;
    ///     assert_eq!(stands, Some(2), "somebody has set another number");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    pub async fn capacity(&self) -> Result<Option<i64>> {
        let counts = self.counts().await?;
        Ok(counts.there.then(|| counts.total()))
    }

    /// Makes the semaphore, with `permits` permits. `false` when there is one already; it
    /// stays as it is, and [`capacity`](Self::capacity) tells its number.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "trySetPermits")]
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool> {
        let Names { key, channel } = self.names()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        let make = |marked: &_| plain::set(key, marked, permits, None, channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// Sets how many permits there are in all, whether there is a semaphore or not. Fewer
    /// than are in use is possible: then the number of free ones is negative until enough
    /// have come back.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "setPermits")]
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        let names = self.names()?;
        check_number("permits", permits.into(), MOST_PERMITS, &names.key)?;
        let make = |marked: &_| names.set(marked, permits);
        request::idempotent(&self.context, &names.key, make)
            .await
            .map(drop)
    }

    /// Changes the number of permits by `permits`. Makes the semaphore if there is none.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "addPermits")]
    pub async fn add_permits(&self, permits: i32) -> Result<()> {
        let Names { key, channel } = self.names()?;
        let make = |marked: &_| plain::add(key, marked, permits.into(), false, channel);
        request::idempotent(&self.context, key, make)
            .await
            .map(drop)
    }

    /// Removes the semaphore, and with it the permits in use: their guards learn it at
    /// their next renewal. `false` when there was none.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn delete(&self) -> Result<bool> {
        let names = self.names()?;
        let reply =
            request::idempotent(&self.context, &names.key, |marked| names.delete(marked)).await?;
        Ok(request::integer(&self.context, &names.key, &reply)? == 1)
    }

    async fn counts(&self) -> Result<Counts> {
        let names = self.names()?;
        let reply = request::query(&self.context, &names.key, names.counts()).await?;
        Counts::read(&reply).ok_or_else(|| request::malformed(&self.context, &names.key))
    }

    async fn change(&self, operation: Operation) -> Result<i64> {
        let key = &self.names()?.key;
        let reply = request::change(&self.context, key, operation).await?;
        request::integer(&self.context, key, &reply)
    }

    fn names(&self) -> Result<&Names> {
        self.names.as_ref().map_err(Clone::clone)
    }

    /// The name, as it was given; empty if it could not be one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.as_ref().map_or("", |names| names.key.as_str())
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirableSemaphore")
            .field("name", &self.name())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What there is of a semaphore.
struct Counts {
    /// Negative when some are missing.
    free: i64,
    held: u64,
    /// Whether there is a semaphore.
    there: bool,
}

impl Counts {
    fn read(reply: &Value) -> Option<Self> {
        let Value::List(items) = reply else {
            return None;
        };
        let [Value::Int(free), Value::Int(held), Value::Int(there)] = items[..] else {
            return None;
        };
        Some(Self {
            free,
            held: u64::try_from(held).ok()?,
            there: there == 1,
        })
    }

    fn total(&self) -> i64 {
        self.free.saturating_add_unsigned(self.held)
    }
}

fn check_several(number: u64, key: &Key) -> Result<()> {
    if number == 0 {
        let message = format!("no permits for `{key}`; ask for 1 to {MOST_AT_ONCE}");
        return Err(Error::new(ErrorKind::Misuse, message).with_key(key));
    }
    check_number("permits at once", number, MOST_AT_ONCE, key)
}
