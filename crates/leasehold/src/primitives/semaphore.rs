//! The semaphore: a number of permits that all processes share.

mod acquire;
mod permit;
mod returns;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::NameKind;
use crate::backend::step::Value;
use crate::config::{Settings, WaitStrategy, check_life, check_number, check_wait};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::primitives::enlistment::own_channel;
use crate::primitives::setters::{must_exist_setter, wait_setters};
use crate::primitives::{absence, request, shared_keys};
use crate::wait::Deadline;
pub use permit::SemaphorePermit;
use returns::SemaphoreNames;

/// Redisson's limit: it counts permits with 31 bits.
pub(crate) const MOST_PERMITS: u64 = i32::MAX as u64;

/// A semaphore with a name: a number of permits that all processes on the same server share. An
/// acquire waits until enough permits are free, and takes them. Redisson's `RSemaphore` of the same
/// name is the same semaphore.
///
/// **The permits of a killed process are lost.** In Redisson's format a permit has no owner and no
/// lease: an acquire counts down a number on the server, and nothing records which client did so.
/// An operator can restore lost permits with [`add_permits`](Self::add_permits). If processes may
/// be killed, use [`ExpirableSemaphore`](crate::ExpirableSemaphore), whose permits are free again
/// when their leases end.
///
/// This value is only a handle: it is cheap to make and to clone, and has its own settings. A
/// semaphore does not exist, and has no permits, until [`try_set_permits`](Self::try_set_permits)
/// creates it. An acquire waits until then, unless its handle says that the semaphore [must
/// exist](Self::must_exist).
///
/// **The promise.** An acquire gets all the permits that it asks for, or none. A request counts
/// once, even if the network delivers it several times, and the client undoes a request that was
/// not answered. So the permits in use and the free permits add up to the number that was set, as
/// long as no process is killed, the server does not lose data and no outage lasts a minute or
/// more. The waiters of one process get their permits in the order of their arrival, whatever
/// number they ask for.
///
/// **Between processes** there is no order, but a busy process regularly lets other processes
/// acquire permits. A grant from the server starts a time slice of 10 ms. During its slice, a
/// process passes released permits directly to its own waiters, without a request. The first
/// release after the slice is sent to the server. If another client waits, the process then
/// requests no permits for 2 ms, or occasionally for 16 ms if no other client takes them. If
/// several processes are busy, a process that has had its slice lets each of the others have one
/// before its own next slice, and waits 2 ms each time. A [`drain`](Self::drain), a
/// [`delete`](Self::delete) or a negative [`add_permits`](Self::add_permits) takes effect for the
/// waiters of another client when that client's slice ends.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let semaphore = client.semaphore("supplier:calls");
/// semaphore.try_set_permits(10).await?; // only the first call sets them
///
/// let permit = semaphore.acquire_many(3).await?; // waits for all three at the same time
/// assert_eq!(semaphore.available_permits().await?, 7);
/// permit.release().await?; // dropping the guard also releases them
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RSemaphore")]
#[doc(alias = "getSemaphore")]
#[derive(Clone)]
pub struct Semaphore {
    context: Arc<Context>,
    /// The key of the semaphore's name. An invalid name is reported when the handle is used, so
    /// that making a handle can't fail.
    key: Result<Key>,
    channel: Arc<str>,
    /// The channel on which a release notifies this client; `None` if no release does.
    own_channel: Option<Arc<str>>,
    settings: Settings,
    must_exist: bool,
}

/// Acquiring.
impl Semaphore {
    /// Waits until a permit is free, without a time limit, and takes it. The returned value keeps
    /// the permit in use until it is released or dropped.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server has answered for
    ///   the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have
    ///   run anyway.
    /// - `WrongKind` if the name is in use as something else.
    /// - `Denied` if the server refuses the credentials, or the client's user lacks a permission.
    /// - `Misuse` for a bad name or setting, or a client that was closed.
    /// - `NotFound` if the semaphore does not exist and the handle requires it to exist
    ///   ([`must_exist`](Self::must_exist)).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and gives up the place among the waiters of this process.
    /// If the server has granted permits, or still grants them, the client gives them back in the
    /// background.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<SemaphorePermit> {
        self.acquire_many(1).await
    }

    /// Takes a permit if one is free now, without waiting. `Ok(None)` means that none is free, or
    /// that other tasks of this process already wait for permits.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server does not answer within the client's [reply
    /// timeout](crate::ClientBuilder::reply_timeout), the call fails with `Unavailable` or
    /// `OutcomeUnknown`, and never returns `Ok(None)`.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(&self) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many(1).await
    }

    /// Waits until a permit is free, but at most for `wait`, and takes it. `Ok(None)` means that
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
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits until a permit is free, but at most until `deadline`, and takes it. `Ok(None)` means
    /// that none was free. If the deadline has already passed, the call tries once, like
    /// [`try_acquire`](Self::try_acquire). `deadline` is an `Instant` of tokio or of the standard
    /// library.
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
    ) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_until(1, deadline).await
    }

    /// Waits until `permits` permits are free at the same time, without a time limit, and takes
    /// them. With zero permits, the call succeeds immediately.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire), and `Misuse` for more than 2^31 - 1 permits.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit> {
        loop {
            // Without a deadline a wait ends only with permits or an error.
            if let Some(permit) = self.acquire_by(permits, Deadline::Never).await? {
                return Ok(permit);
            }
        }
    }

    /// Takes `permits` permits if this number is free now, without waiting.
    ///
    /// # Errors
    ///
    /// Same as [`try_acquire`](Self::try_acquire), and `Misuse` for more than 2^31 - 1 permits.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<SemaphorePermit>> {
        self.acquire_by(permits, Deadline::Now).await
    }

    /// Waits until `permits` permits are free at the same time, but at most for `wait`, and takes
    /// them.
    ///
    /// # Errors
    ///
    /// Same as [`try_acquire_for`](Self::try_acquire_for), and `Misuse` for more than 2^31 - 1
    /// permits.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<SemaphorePermit>> {
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(permits, Deadline::At(deadline)).await
    }

    /// Waits until `permits` permits are free at the same time, but at most until `deadline`, and
    /// takes them.
    ///
    /// # Errors
    ///
    /// Same as [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: impl Into<Instant>,
    ) -> Result<Option<SemaphorePermit>> {
        let deadline = Deadline::at_instant(deadline.into(), self.context.clock);
        self.acquire_by(permits, deadline).await
    }

    async fn acquire_by(
        &self,
        permits: u32,
        deadline: Deadline,
    ) -> Result<Option<SemaphorePermit>> {
        let key = self.key()?;
        self.settings.check_waiting(key)?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        self.context.check_open(key)?;
        shared_keys::check(&self.context, key);
        // A call for zero permits is answered here, as in Redisson: its request would queue for
        // nothing, and the step would refuse it while the number of free permits is negative.
        if permits == 0 {
            return Ok(Some(SemaphorePermit::new(
                &self.context,
                self.names(key),
                0,
            )));
        }
        if self.must_exist {
            // This does not send the request yet. The check polls the future only if other waiters
            // of this process wait already: an acquire that sends its own request at once learns
            // from the reply that the semaphore does not exist.
            let exists = async { Ok(self.counts().await?.1) };
            absence::check_while_others_wait(&self.context, key, deadline, exists).await?;
        }
        acquire::acquire(self, self.names(key), permits, deadline).await
    }
}

/// Settings. Each setter changes only this handle.
impl Semaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let key = context.key(name, NameKind::Other);
        // A bad name has no channel and does not need one: every call checks `key` first, and
        // fails.
        let channel = key
            .as_ref()
            .map_or_else(|_| String::new(), Key::semaphore_channel);
        Self {
            settings: context.settings(),
            own_channel: own_channel(&context, &channel),
            context,
            key,
            channel: channel.into(),
            must_exist: false,
        }
    }

    wait_setters! {}
    must_exist_setter! {}
}

/// Giving permits back, and changing their number.
impl Semaphore {
    /// Adds `permits` free permits, without a guard. Use this for permits that another process has
    /// taken, or that were [forgotten](SemaphorePermit::forget).
    ///
    /// As in Redisson, nothing checks that the permits were ever acquired. If you release more
    /// permits than were taken, there are more permits than were set. If the semaphore does not
    /// exist, the call creates it. [`release_if_exists`](Self::release_if_exists) does not create
    /// it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the number may have been changed. `WrongKind`, `Denied` and
    /// `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the request may take effect even if the future is dropped.
    pub async fn release(&self, permits: u32) -> Result<()> {
        check_number("permits", permits.into(), MOST_PERMITS, self.key()?)?;
        self.add(permits.into(), false).await.map(drop)
    }

    /// Like [`release`](Self::release), but only if the semaphore exists. Otherwise the call
    /// changes nothing and returns `false`.
    ///
    /// # Errors
    ///
    /// Same as [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "releaseIfExists")]
    pub async fn release_if_exists(&self, permits: u32) -> Result<bool> {
        check_number("permits", permits.into(), MOST_PERMITS, self.key()?)?;
        self.add(permits.into(), true).await
    }

    /// Adds `permits` to the number of permits, or reduces it if `permits` is negative. If fewer
    /// permits remain than are in use, the number of free permits is negative until enough permits
    /// have been given back. After a reduction, the waiters of this client get no permit until the
    /// server has granted one again.
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
        self.add(permits.into(), false).await.map(drop)
    }

    /// Takes all free permits and returns how many there were. If the number of free permits is
    /// negative, it becomes zero. Drained permits stay taken until
    /// [`add_permits`](Self::add_permits) or [`release`](Self::release) adds permits.
    ///
    /// # Errors
    ///
    /// Same as [`release`](Self::release), and
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) while a [failover
    /// guard](crate::ClientBuilder::failover_guard) grants nothing.
    ///
    /// # Cancel safety
    ///
    /// Same as [`release`](Self::release).
    #[doc(alias = "drainPermits")]
    pub async fn drain(&self) -> Result<i64> {
        let key = self.key_after_returns()?;
        let context = &self.context;
        let reply = request::idempotent(context, key, |marked| steps::drain(key, marked)).await?;
        request::integer(context, key, &reply)
    }

    /// Returns how many permits are free. The number is negative if the total was reduced below the
    /// number of permits in use. The answer may be out of date when it arrives.
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
        Ok(self.counts().await?.0)
    }

    /// Returns how many permits are free, and whether the semaphore exists.
    async fn counts(&self) -> Result<(i64, bool)> {
        let key = self.key_after_returns()?;
        let reply = request::query(&self.context, key, steps::available(key)).await?;
        if let Value::List(items) = reply
            && let [Value::Int(free), Value::Int(exists)] = items[..]
        {
            return Ok((free, exists == 1));
        }
        Err(request::malformed(&self.context, key))
    }

    /// Creates the semaphore with `permits` permits. If it exists already, the call changes nothing
    /// and returns `false`.
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
        self.set(permits, None).await
    }

    /// Like [`try_set_permits`](Self::try_set_permits), but the server removes the semaphore after
    /// `life`, which is at least 1 ms and at most 2^53 ms.
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
    pub async fn try_set_permits_for(&self, permits: u32, life: Duration) -> Result<bool> {
        check_life(life, self.key()?)?;
        self.set(permits, Some(life)).await
    }

    /// Removes the semaphore. Returns `false` if it did not exist. Permits that are in use stay in
    /// use, and the release of such a permit creates a new semaphore.
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
        let key = self.key_after_returns()?;
        let context = &self.context;
        let reply = request::idempotent(context, key, |marked| steps::delete(key, marked)).await?;
        Ok(request::integer(context, key, &reply)? == 1)
    }

    async fn add(&self, permits: i64, only_if_exists: bool) -> Result<bool> {
        let key = self.key_after_returns()?;
        // A release of zero permits must not create a semaphore. With `only_if_exists`, the caller
        // wants to know whether the semaphore exists, so the request is sent even for zero permits.
        if permits == 0 && !only_if_exists {
            return Ok(true);
        }
        let end_slice = || match self.context.locals.find(key) {
            // After a reduction, more permits may be in use than exist. In that case a returned
            // permit must not be passed to a waiter of this process.
            Some(local) if permits < 0 => local.slice.lock().end(),
            _ => {}
        };
        let make = |marked: &_| steps::add(key, marked, permits, only_if_exists, &self.channel);
        // End the slice before the request, because this future may be dropped during the request.
        // End it again after the request, because an earlier request may be granted in between.
        end_slice();
        let reply = request::idempotent(&self.context, key, make).await;
        end_slice();
        let reply = reply?;
        match reply {
            Value::List(items) => match items[..] {
                [Value::Int(done), Value::Int(_)] => Ok(done == 1),
                _ => Err(request::malformed(&self.context, key)),
            },
            _ => Err(request::malformed(&self.context, key)),
        }
    }

    async fn set(&self, permits: u32, life: Option<Duration>) -> Result<bool> {
        let key = self.key_after_returns()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        let make = |marked: &_| steps::set(key, marked, permits, life, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// Sends the release of all permits that have been given back so far, and returns the key for a
    /// request that must run after this release.
    fn key_after_returns(&self) -> Result<&Key> {
        let key = self.key()?;
        // Without a record there are no unsent permits: the task that sends them keeps the record.
        if let Some(local) = self.context.locals.find(key) {
            returns::send(&self.context, &self.names(key), &local);
        }
        Ok(key)
    }

    fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    fn names(&self, key: &Key) -> SemaphoreNames {
        SemaphoreNames {
            key: key.clone(),
            channel: Arc::clone(&self.channel),
        }
    }

    /// Returns the name that this handle was given. Empty if that name is not valid.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", Key::given)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
