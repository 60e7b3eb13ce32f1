//! The semaphore whose permits have leases, so that the permits of a killed process come back.

mod ask;
mod permit;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::NameOf;
use crate::backend::step::{Operation, Value};
use crate::config::{Settings, WaitStrategy, check_lease, check_number, check_wait};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::calls::own_channel;
use crate::primitives::lock::Ttl;
use crate::primitives::semaphore::MOST_PERMITS;
use crate::primitives::semaphore::steps as plain;
use crate::primitives::setters::{lease_setters, must_exist_setter, wait_setters};
use crate::primitives::{absence, namesake, request};
use crate::wait::Deadline;
pub use permit::{ExpirablePermit, PermitId};
use steps::Names;

/// The most permits that one call acquires or releases. A call is one step of the server, which
/// does nothing else meanwhile.
// This is also far below the limit of about 8000 for Lua's `unpack`: the step that gives permits
// back passes all of them to one command.
const MOST_AT_ONCE: u64 = 1000;

/// A semaphore by name whose permits have ids and leases. Acquiring takes permits, and waits until
/// enough are free. The permits of a process that was killed come back when their leases end.
/// Shared with Redisson's `RPermitExpirableSemaphore` of the same name.
///
/// A handle is cheap to make and to clone, and each has its own settings. Permits are renewed in
/// the background until they are released, unless [`fixed_lease`](Self::fixed_lease) is set. A
/// semaphore does not exist until [`try_set_permits`](Self::try_set_permits) makes it, and has no
/// permits until then. A waiter waits until the semaphore is made, unless its handle says that the
/// semaphore [must exist](Self::must_exist).
///
/// Permits that a guard gives back pass to the next waiter of this process with the same request,
/// if that waiter wants the same number. They get new ids. After 10 ms of this, other processes
/// have their turn ([`local_hand_over`](Self::local_hand_over)).
///
/// **The promise.** For one name, no more permits are in use at once than were set, under the
/// conditions that [`Lock`](crate::Lock) names. A permit is in use from the return of its acquire
/// to the call of its release, or to [`valid_until`](ExpirablePermit::valid_until) if that is
/// earlier.
///
/// Leases end by the server's clock, but Redisson's clients use their own clocks. A Redisson client
/// whose clock is ahead takes back all clients' permits early. A Redisson client whose clock is
/// slow loses its own permits before it expects them to end.
///
/// Permits that Redisson acquires without a lease never end by themselves.
/// [`remaining_ttl`](Self::remaining_ttl) shows this, and [`release`](Self::release) gives such
/// permits back.
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
///     // four, or none; dropping them releases them in the background
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
    /// The name is checked when it is used, so that making a handle can't fail.
    names: Result<Names>,
    settings: Settings,
    must_exist: bool,
}

/// Settings. Each setter changes only this handle. Permits that are already held keep their terms.
impl ExpirableSemaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let names = context.key(name, NameOf::Other).map(|key| {
            let channel = key.semaphore_channel();
            Names {
                own_channel: own_channel(&context, &channel),
                channel: channel.into(),
                key,
            }
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
        /// The end of the next lease also wakes a waiter.
    }

    /// Sets how long this process may pass permits on among its own waiters, counted from a grant
    /// of the server. During that time a release passes permits to the next waiter of the same
    /// client with the same request, if that waiter wants the same number on the same terms. After
    /// that, the waiters of other processes have their turn. 10 ms by default; zero turns it off.
    /// Any duration is allowed.
    #[must_use]
    pub fn local_hand_over(mut self, turn: Duration) -> Self {
        self.settings.local_hand_over = turn;
        self
    }
}

/// Acquiring.
impl ExpirableSemaphore {
    /// Waits for a permit, without a time limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has answered for
    /// the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have run
    /// nevertheless; `WrongKind` when the key holds something else; `Denied` when the server
    /// refuses; `Misuse` for a bad name, setting or number; `NotFound` when the semaphore does not
    /// exist but [must](Self::must_exist).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line. Permits that the
    /// server has granted, or grants while the answer is on its way, are given back in the
    /// background, at the latest one lease after the grant.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<ExpirablePermit> {
        self.acquire_many(1).await
    }

    /// Acquires a permit if one is free. `Ok(None)` means that none is free, or that other waiters
    /// of this process are first.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server does not answer, the call fails at once.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many(1).await
    }

    /// Waits at most `wait` for a permit. `Ok(None)` means that none was free.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). `OutcomeUnknown` when the server has given no answer at
    /// all within `wait`. A wait of zero or of more than 2^53 ms is `Misuse`.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits for a permit until `deadline` at the latest. A deadline in the past asks once.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_until(
        &self,
        deadline: impl Into<Instant>,
    ) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many_until(1, deadline).await
    }

    /// Waits for `permits` permits, 1 to 1000, all at once and without a time limit. They share one
    /// guard, which has an id for each.
    ///
    /// Zero permits are [`Misuse`](crate::ErrorKind::Misuse) here, while a
    /// [`Semaphore`](crate::Semaphore::acquire_many) grants them at once. This guard represents a
    /// lease. Without permits it would have no lease to renew or lose, no id and no deadline.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<ExpirablePermit> {
        loop {
            // Without a deadline a wait ends only with permits or an error.
            if let Some(permit) = self.acquire_by(permits, Deadline::Never).await? {
                return Ok(permit);
            }
        }
    }

    /// Acquires `permits` permits, 1 to 1000, if that many are free.
    ///
    /// # Errors
    ///
    /// Same as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<ExpirablePermit>> {
        self.acquire_by(permits, Deadline::Now).await
    }

    /// Waits at most `wait` for `permits` permits, 1 to 1000.
    ///
    /// # Errors
    ///
    /// Same as [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<ExpirablePermit>> {
        check_wait(wait, &self.names()?.key)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(permits, Deadline::At(deadline)).await
    }

    /// Waits for `permits` permits, 1 to 1000, until `deadline` at the latest.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
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
        self.context.check_lease(terms.lease, &names.key)?;
        check_several(permits.into(), &names.key)?;
        self.context.check_open(&names.key)?;
        namesake::look(&self.context, &names.key);
        if self.must_exist {
            // Not sent yet. The check polls this future only if other waiters are first: an acquire
            // that asks for itself learns of the absence from its own request.
            let is_there = async { Ok(self.counts().await?.there) };
            absence::check_behind_others(&self.context, &names.key, deadline, is_there).await?;
        }
        ask::acquire(self, names, terms, permits, deadline).await
    }
}

/// Permits by their ids, whichever process or language acquired them.
impl ExpirableSemaphore {
    /// Releases a permit by its id. `false` when its lease was over, or when the permit does not
    /// exist. A permit whose lease is over, but that has not been taken back yet, is released
    /// anyway.
    ///
    /// If a guard holds that permit, the guard learns of the loss at its next renewal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered;
    /// `OutcomeUnknown` when the permit may have been released; `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the request may take effect even if the future is dropped.
    #[doc(alias = "tryRelease")]
    pub async fn release(&self, id: PermitId) -> Result<bool> {
        let names = self.names()?;
        Ok(self.change(names.release(&[id], false)).await? > 0)
    }

    /// Releases permits by their ids, 1 to 1000, all of them or none. `false`, and no change,
    /// when the lease of one of them is over or one does not exist. An id that is given twice
    /// counts once.
    ///
    /// # Errors
    ///
    /// Same as [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "tryRelease")]
    pub async fn release_many(&self, ids: &[PermitId]) -> Result<bool> {
        let names = self.names()?;
        let mut ids = ids.to_vec();
        // Removed before counting: the limit is on permits, and an id that is given twice is one
        // permit.
        ids.sort_unstable();
        ids.dedup();
        check_several(ids.len() as u64, &names.key)?;
        Ok(self.change(names.release(&ids, true)).await? > 0)
    }

    /// Sets a new lease for a permit, longer or shorter than before: it ends `lease` from now.
    /// `false` when the lease was over, or when the permit does not exist.
    ///
    /// To make the lease of a guard longer, use [`ExpirablePermit::extend`], so that the guard
    /// knows of it. A guard whose lease was made shorter here learns of it at its next renewal. A
    /// guard with a fixed lease does not learn of it before that lease ends. A guard whose lease
    /// was made longer here keeps renewing for the lease that it asked for, and each renewal halves
    /// the surplus.
    ///
    /// # Errors
    ///
    /// Same as [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "updateLeaseTime")]
    pub async fn update_lease(&self, id: PermitId, lease: Duration) -> Result<bool> {
        let names = self.names()?;
        check_lease(lease, &names.key)?;
        self.context.check_lease(lease, &names.key)?;
        Ok(self.change(names.update(id, lease)).await? == 1)
    }

    /// Returns how much of a permit's lease is left.
    ///
    /// # Errors
    ///
    /// Same as [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "getLeaseTime")]
    pub async fn remaining_ttl(&self, id: PermitId) -> Result<Ttl> {
        let names = self.names()?;
        let left = request::query(&self.context, &names.key, names.left(id)).await?;
        let left = request::integer(&self.context, &names.key, &left)?;
        Ok(Ttl::of_key(left))
    }
}

/// Number of permits.
impl ExpirableSemaphore {
    /// Returns how many permits are free. The number is negative when permits were taken away while
    /// they were in use. Permits whose leases are over are taken back first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered,
    /// `WrongKind` when the key holds something else, `Denied` when the server refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "availablePermits")]
    pub async fn available_permits(&self) -> Result<i64> {
        Ok(self.counts().await?.free)
    }

    /// Returns how many permits are in use.
    ///
    /// # Errors
    ///
    /// Same as [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "acquiredPermits")]
    pub async fn acquired_permits(&self) -> Result<u64> {
        Ok(self.counts().await?.held)
    }

    /// Returns how many permits there are in total, free or in use; 0 when the semaphore does not
    /// exist.
    ///
    /// # Errors
    ///
    /// Same as [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "getPermits")]
    pub async fn permits(&self) -> Result<i64> {
        Ok(self.counts().await?.total())
    }

    /// Returns how many permits there are in total, free or in use. `None` when the semaphore does
    /// not exist: its number was never set, or it was deleted.
    ///
    /// Together with [`try_set_permits`](Self::try_set_permits), it lets the first caller decide,
    /// and lets every other caller find out which number was set:
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
    /// Same as [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn capacity(&self) -> Result<Option<i64>> {
        let counts = self.counts().await?;
        Ok(counts.there.then(|| counts.total()))
    }

    /// Makes the semaphore, with `permits` permits. `false` when it exists already. Then it stays
    /// as it is, and [`capacity`](Self::capacity) returns its number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered;
    /// `OutcomeUnknown` when the number may have been set; `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "trySetPermits")]
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool> {
        let Names { key, channel, .. } = self.names()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        // The step of the plain semaphore: both kinds keep the number of free permits under the
        // name itself.
        let make = |marked: &_| plain::set(key, marked, permits, None, channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// Sets how many permits there are in total, whether the semaphore exists or not. If fewer
    /// permits are set than are in use, the number of free permits is negative until enough have
    /// been given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered;
    /// `OutcomeUnknown` when the number may have been set; `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "setPermits")]
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        let names = self.names()?;
        check_number("permits", permits.into(), MOST_PERMITS, &names.key)?;
        let make = |marked: &_| names.set(marked, permits);
        request::idempotent(&self.context, &names.key, make)
            .await
            .map(drop)
    }

    /// Changes the number of permits by `permits`, up or down. Makes the semaphore if it does not
    /// exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered;
    /// `OutcomeUnknown` when the number may have been changed; `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "addPermits")]
    pub async fn add_permits(&self, permits: i32) -> Result<()> {
        let Names { key, channel, .. } = self.names()?;
        // The step of the plain semaphore, as in `try_set_permits`.
        let make = |marked: &_| plain::add(key, marked, permits.into(), false, channel);
        request::idempotent(&self.context, key, make)
            .await
            .map(drop)
    }

    /// Removes the semaphore together with the permits in use. Their guards learn of it at their
    /// next renewal. `false` when it did not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered;
    /// `OutcomeUnknown` when the semaphore may have been removed; `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    pub async fn delete(&self) -> Result<bool> {
        let names = self.names()?;
        let reply =
            request::idempotent(&self.context, &names.key, |marked| names.delete(marked)).await?;
        Ok(request::integer(&self.context, &names.key, &reply)? == 1)
    }

    async fn counts(&self) -> Result<Counts> {
        let names = self.names()?;
        // A query, although the step takes back permits whose leases are over. Those permits are
        // free anyway, so it makes no difference whether the step ran.
        let reply = request::query(&self.context, &names.key, names.counts()).await?;
        Counts::read(&reply).ok_or_else(|| request::malformed(&self.context, &names.key))
    }

    async fn change(&self, operation: Operation) -> Result<i64> {
        let key = &self.names()?.key;
        // A release needs no marker: a permit is given back once, whichever copy of the request
        // arrives first, because its id is never used again.
        let reply = request::change(&self.context, key, operation).await?;
        request::integer(&self.context, key, &reply)
    }

    fn names(&self) -> Result<&Names> {
        self.names.as_ref().map_err(Clone::clone)
    }

    /// Returns the name as it was given; empty if it is not a valid name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.as_ref().map_or("", |names| names.key.given())
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

/// A semaphore's counts, as the server reports them.
struct Counts {
    /// Negative when permits were taken away while they were in use.
    free: i64,
    held: u64,
    /// Whether the semaphore exists.
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
