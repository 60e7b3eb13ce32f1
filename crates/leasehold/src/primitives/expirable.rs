//! The semaphore whose permits have leases, so that the permits of a killed process become free
//! again.

mod acquire;
mod permit;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::NameKind;
use crate::backend::step::{Operation, Value};
use crate::config::{Settings, Terms, WaitStrategy, check_lease, check_number, check_wait};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::enlistment::own_channel;
use crate::primitives::lock::Ttl;
use crate::primitives::semaphore::MOST_PERMITS;
use crate::primitives::semaphore::steps as plain;
use crate::primitives::setters::{lease_setters, must_exist_setter, wait_setters};
use crate::primitives::{absence, request, shared_keys};
use crate::wait::Deadline;
pub use permit::{ExpirablePermit, PermitId};
use steps::ExpirableNames;

/// The most permits that one call acquires or releases. The limit exists because the server does
/// nothing else while it runs the step of that call.
// This is also far below the limit of about 8000 for Lua's `unpack`: the step that gives permits
// back passes all of them to one command.
const MOST_AT_ONCE: u64 = 1000;

/// A semaphore with a name, whose permits have ids and leases. An acquire waits until enough
/// permits are free, and takes them. The permits of a process that was killed are free again when
/// their leases end. Redisson's `RPermitExpirableSemaphore` of the same name is the same semaphore.
///
/// This value is only a handle: it is cheap to make and to clone, and has its own settings. The
/// client renews permits in the background until they are released, unless the handle has a
/// [`fixed_lease`](Self::fixed_lease). A semaphore does not exist, and has no permits, until
/// [`try_set_permits`](Self::try_set_permits) creates it. An acquire waits until then, unless its
/// handle says that the semaphore [must exist](Self::must_exist).
///
/// For up to 10 ms after a grant, the request that releases permits also passes them to the next
/// waiter of the same client, if that waiter wants the same number. The permits get new ids. After
/// that, other processes can acquire them ([`local_hand_over`](Self::local_hand_over)).
///
/// **The promise.** For one name, the number of permits in use never exceeds the number that was
/// set, under the conditions that are listed at [`Lock`](crate::Lock). A permit is in use from the
/// return of its acquire until the call to `release`, or until
/// [`valid_until`](ExpirablePermit::valid_until) if that is earlier.
///
/// In this library, the server's clock decides when a lease ends, but Redisson's clients use their
/// own clocks. A Redisson client whose clock is ahead takes back the permits of all clients too
/// early. A Redisson client whose clock is behind loses its own permits earlier than it expects.
///
/// A semaphore limits how many holders work at a time. It is not a rate limiter, which limits how
/// many calls begin per second.
///
/// Permits that Redisson acquires without a lease never end by themselves.
/// [`remaining_ttl`](Self::remaining_ttl) reports this, and [`release`](Self::release) gives such
/// permits back.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let semaphore = client.expirable_semaphore("supplier:calls");
/// semaphore.try_set_permits(10).await?; // only the first call sets them
///
/// let permit = semaphore.acquire().await?; // then renewed until it is released
/// assert_eq!(semaphore.available_permits().await?, 9);
/// permit.release().await?; // fails if it was lost
///
/// if let Some(permits) = semaphore.try_acquire_many(4).await? {
///     // Four permits, or none. Dropping the guard releases them in the background.
///     assert_eq!(permits.ids().len(), 4);
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RPermitExpirableSemaphore")]
#[doc(alias = "getPermitExpirableSemaphore")]
#[doc(alias = "RRateLimiter")]
#[doc(alias = "getRateLimiter")]
#[derive(Clone)]
pub struct ExpirableSemaphore {
    context: Arc<Context>,
    /// The key and channels of the semaphore's name. An invalid name is reported when the handle is
    /// used, so that making a handle can't fail.
    names: Result<ExpirableNames>,
    settings: Settings,
    must_exist: bool,
}

/// Acquiring.
impl ExpirableSemaphore {
    /// Waits until a permit is free, without a time limit, and acquires it. The returned guard
    /// holds the permit until it is released or dropped. Meanwhile, the client renews the permit's
    /// lease, unless the handle has a [`fixed_lease`](Self::fixed_lease).
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server has answered for
    ///   the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have
    ///   run anyway.
    /// - `WrongKind` if the name is in use as something else.
    /// - `Denied` if the server refuses the credentials, or the client's user lacks a permission.
    /// - `Misuse` for a bad name, setting or number, or a client that was closed.
    /// - `NotFound` if the semaphore does not exist and the handle requires it to exist
    ///   ([`must_exist`](Self::must_exist)).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and gives up the place among the waiters of this process.
    /// If the server has granted permits, or still grants them, the client gives them back in the
    /// background. They are free no later than one lease after that grant.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<ExpirablePermit> {
        self.acquire_many(1).await
    }

    /// Acquires a permit if one is free now, without waiting. `Ok(None)` means that none is free,
    /// or that other tasks of this process already wait for permits.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server does not answer within the client's [reply
    /// timeout](crate::ClientBuilder::reply_timeout), the call fails.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many(1).await
    }

    /// Waits until a permit is free, but at most for `wait`, and acquires it. `Ok(None)` means that
    /// none was free within `wait`, which must be more than zero and at most 2^53 ms.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server has not answered any request within
    /// `wait`, the call fails with `OutcomeUnknown`, or with `Unavailable` if no request was sent.
    /// `Misuse` for a `wait` out of its range.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits until a permit is free, but at most until `deadline`, and acquires it. `Ok(None)`
    /// means that none was free. If the deadline has already passed, the call tries once, like
    /// [`try_acquire`](Self::try_acquire).
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

    /// Waits until `permits` permits (1 to 1000) are free at the same time, without a time limit,
    /// and acquires them. One guard holds all of them, and has an id for each permit.
    ///
    /// Zero permits are [`Misuse`](crate::ErrorKind::Misuse) here, while a
    /// [`Semaphore`](crate::Semaphore::acquire_many) grants them immediately. A guard without
    /// permits would have no lease to renew or to lose, no id and no deadline.
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

    /// Acquires `permits` permits (1 to 1000) if this number is free now, without waiting.
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

    /// Waits until `permits` permits (1 to 1000) are free at the same time, but at most for `wait`,
    /// and acquires them.
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

    /// Waits until `permits` permits (1 to 1000) are free at the same time, but at most until
    /// `deadline`, and acquires them.
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
        shared_keys::check(&self.context, &names.key);
        if self.must_exist {
            // This does not send the request yet. The check polls the future only if other waiters
            // of this process wait already: an acquire that sends its own request at once learns
            // from the reply that the semaphore does not exist.
            let exists = async { Ok(self.counts().await?.exists) };
            absence::check_while_others_wait(&self.context, &names.key, deadline, exists).await?;
        }
        acquire::acquire(self, names, terms, permits, deadline).await
    }
}

/// Settings. Each setter changes only this handle. Permits that are already held keep their
/// settings.
impl ExpirableSemaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let names = context.key(name, NameKind::Other).map(|key| {
            let channel = key.semaphore_channel();
            ExpirableNames {
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
        /// A waiter also sends a request when the next lease of a permit ends.
    }

    /// Sets how long the waiters of one client may hand permits over to each other, counted from
    /// the server's grant. During this time, the request that releases permits also passes them to
    /// the next waiter of the same client, if that waiter wants the same number with the same
    /// settings. After this time, waiters of other processes can acquire the permits. 10 ms by
    /// default. Zero turns hand-over off. Any duration is allowed.
    #[must_use = "the setting is only in the returned value"]
    pub fn local_hand_over(mut self, slice: Duration) -> Self {
        self.settings.local_hand_over = slice;
        self
    }
}

/// Calls on a permit by its id, no matter which process acquired the permit, in Rust or Java.
impl ExpirableSemaphore {
    /// Releases a permit by its id. Returns `true` if the permit's lease was still running.
    ///
    /// Returns `false` if its lease had expired or the permit does not exist. If the lease had
    /// expired but the permit had not been taken back yet, the call gives it back, and still
    /// returns `false`.
    ///
    /// If a guard holds that permit, the guard learns of the loss at its next renewal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the permit may have been released. `WrongKind`, `Denied`
    /// and `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the request may take effect even if the future is dropped.
    #[doc(alias = "tryRelease")]
    pub async fn release(&self, id: PermitId) -> Result<bool> {
        let names = self.names()?;
        Ok(self.change(names.release(&[id], false)).await? > 0)
    }

    /// Releases 1 to 1000 permits by their ids, all of them or none. If the lease of one of them
    /// has expired, or one does not exist, nothing is changed and the result is `false`. An id that
    /// is given twice counts once.
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
        // Remove duplicates before counting: the limit is on permits, and an id that is given twice
        // is one permit.
        ids.sort_unstable();
        ids.dedup();
        check_several(ids.len() as u64, &names.key)?;
        Ok(self.change(names.release(&ids, true)).await? > 0)
    }

    /// Sets a new lease for a permit, longer or shorter than before: the lease ends `lease` from
    /// now. Returns `false` if the old lease had expired, or if the permit does not exist.
    ///
    /// To make the lease of a guard longer, use [`ExpirablePermit::extend`], so that the guard
    /// knows the new lease. If this call makes the lease of a guard shorter, the guard learns this
    /// at its next renewal. A guard with a fixed lease does not learn it before the fixed lease
    /// ends. If this call makes the lease of a guard longer, the guard continues to renew with the
    /// lease of its acquire, and each renewal halves the extra time.
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

    /// Returns how much time is left of a permit's lease.
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
        let left = request::query(&self.context, &names.key, names.remaining(id)).await?;
        let left = request::integer(&self.context, &names.key, &left)?;
        Ok(Ttl::of_key(left))
    }
}

/// The number of permits.
impl ExpirableSemaphore {
    /// Returns how many permits are free. Permits with expired leases are taken back first. The
    /// number is negative if the total was reduced below the number of permits in use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered, `WrongKind`
    /// if the name is in use as something else, `Denied` if the server refuses the request,
    /// `Misuse` for a bad name.
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

    /// Returns how many permits there are in total, free or in use. 0 if the semaphore does not
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

    /// Returns how many permits there are in total, free or in use. `None` if the semaphore does
    /// not exist: its number was never set, or it was deleted.
    ///
    /// With [`try_set_permits`](Self::try_set_permits), the first caller sets the number. With this
    /// method, the other callers find out which number was set:
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
        Ok(counts.exists.then(|| counts.total()))
    }

    /// Creates the semaphore with `permits` permits. If it exists already, the call changes nothing
    /// and returns `false`. [`capacity`](Self::capacity) then returns the number that was set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the number may have been set. `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "trySetPermits")]
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool> {
        let ExpirableNames { key, channel, .. } = self.names()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        // This is the step of the plain semaphore: both kinds keep the number of free permits under
        // the name itself.
        let make = |marked: &_| plain::set(key, marked, permits, None, channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// Sets how many permits there are in total. Creates the semaphore if it does not exist. If the
    /// new number is lower than the number of permits in use, the number of free permits is
    /// negative until enough permits have been given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the number may have been set. `WrongKind`, `Denied` and
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

    /// Adds `permits` to the number of permits, or reduces it if `permits` is negative. Creates the
    /// semaphore if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the number may have been changed. `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "addPermits")]
    pub async fn add_permits(&self, permits: i32) -> Result<()> {
        let ExpirableNames { key, channel, .. } = self.names()?;
        // This is the step of the plain semaphore, as in `try_set_permits`.
        let make = |marked: &_| plain::add(key, marked, permits.into(), false, channel);
        request::idempotent(&self.context, key, make)
            .await
            .map(drop)
    }

    /// Removes the semaphore, including the permits in use. The guards of these permits learn of
    /// the loss at their next renewal. Returns `false` if the semaphore did not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the semaphore may have been removed. `WrongKind`, `Denied`
    /// and `Misuse` as for [`acquire`](Self::acquire).
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
        // This is a query, although the step takes back permits with expired leases. Those permits
        // are free anyway, so it makes no difference whether the step ran.
        let reply = request::query(&self.context, &names.key, names.counts()).await?;
        Counts::read(&reply).ok_or_else(|| request::malformed(&self.context, &names.key))
    }

    async fn change(&self, operation: Operation) -> Result<i64> {
        let key = &self.names()?.key;
        // A release needs no marker: even if several copies of the request arrive, a permit is
        // given back only once, because its id is never used again.
        let reply = request::change(&self.context, key, operation).await?;
        request::integer(&self.context, key, &reply)
    }

    pub(crate) fn names(&self) -> Result<&ExpirableNames> {
        self.names.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn terms(&self, key: &Key) -> Result<Terms> {
        self.settings.terms(key)
    }

    /// Returns the name that this handle was given. Empty if that name is not valid.
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
    /// The number of free permits. Negative if the total was reduced below the number of permits in
    /// use.
    free: i64,
    held: u64,
    /// Whether the semaphore exists.
    exists: bool,
}

impl Counts {
    fn read(reply: &Value) -> Option<Self> {
        let Value::List(items) = reply else {
            return None;
        };
        let [Value::Int(free), Value::Int(held), Value::Int(exists)] = items[..] else {
            return None;
        };
        Some(Self {
            free,
            held: u64::try_from(held).ok()?,
            exists: exists == 1,
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
