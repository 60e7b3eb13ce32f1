//! The semaphore: so many permits, over all processes.

mod ask;
mod permit;
mod returns;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::step::Value;
use crate::config::{Settings, WaitStrategy, check_life, check_number, check_wait};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::primitives::setters::{must_exist_setter, wait_setters};
use crate::primitives::{absence, namesake, request};
use crate::wait::Deadline;
pub use permit::SemaphorePermit;
use returns::Names;

/// Redisson counts permits with 31 bits.
pub(crate) const MOST_PERMITS: u64 = i32::MAX as u64;

/// A semaphore by name: a number of permits that all processes on the same server share.
/// Shared with Redisson's `RSemaphore` of the same name.
///
/// **A process that is killed takes its permits with it.** In Redisson's format a permit
/// has no owner and no lease: it is a number in Redis that somebody has counted down, and
/// nobody can tell who. [`add_permits`](Self::add_permits) puts back by hand what was lost.
/// Where processes may die, use [`ExpirableSemaphore`](crate::ExpirableSemaphore): its
/// permits come back by themselves.
///
/// A handle is cheap to make and to clone; its settings are its own. A semaphore that
/// nobody has made has no permits: [`try_set_permits`](Self::try_set_permits) makes one, and
/// whoever waits goes on waiting until then, unless the handle says that it
/// [must exist](Self::must_exist).
///
/// **What it promises.** An acquire gets all the permits that it asks for, or none. A
/// request counts once, however often the network delivers it, and one whose answer never
/// came is undone; so while no process is killed, the server loses no data and an outage
/// is shorter than a minute, permits in use and free permits add up to those that were
/// set. Those of this process who wait get theirs in the order they came, whatever number
/// they ask for.
///
/// **Among processes** there is no order, but a busy one leaves another its turn. For 10 ms
/// after the server has granted it something, what a process gives back passes on to those of
/// it who wait, without a request. The first that is given back after that goes to the server,
/// and unless nobody else listens, the process leaves it to others for 2 ms, or for 16 ms now
/// and then when nobody takes it. Beside several busy processes, who is slower than they are
/// can wait for long. What [`drain`](Self::drain), [`delete`](Self::delete) and a negative
/// [`add_permits`](Self::add_permits) change binds the process's waiters when its turn is over.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let semaphore = client.semaphore("supplier:calls");
/// semaphore.try_set_permits(10).await?; // only the first one does
///
/// let permit = semaphore.acquire_many(3).await?; // three, or none: waits for all of them
/// assert_eq!(semaphore.available_permits().await?, 7);
/// permit.release().await?; // dropping it gives them back, too
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RSemaphore")]
#[doc(alias = "getSemaphore")]
#[derive(Clone)]
pub struct Semaphore {
    context: Arc<Context>,
    /// A name is checked when it is used, so that making a handle can't fail.
    key: Result<Key>,
    channel: Arc<str>,
    settings: Settings,
    must_exist: bool,
}

/// Settings. Each changes this handle only.
impl Semaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let key = Key::parse(name);
        let channel = key
            .as_ref()
            .map_or_else(|_| String::new(), Key::semaphore_channel);
        Self {
            settings: context.settings(),
            context,
            key,
            channel: channel.into(),
            must_exist: false,
        }
    }

    wait_setters! {}
    must_exist_setter! {}
}

/// Acquiring.
impl Semaphore {
    /// Waits for a permit, without a limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has answered for
    /// the [`outage_timeout`](Self::outage_timeout), `OutcomeUnknown` when it has not and a request
    /// may have run, `WrongKind` when the key holds something else, `Denied` when the server
    /// refuses, `Misuse` for a bad name or setting, `NotFound` when there is no semaphore and
    /// there [must](Self::must_exist) be one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line. Permits
    /// that were granted, or are while the answer is on its way, are given back in the
    /// background.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<SemaphorePermit> {
        self.acquire_many(1).await
    }

    /// Acquires a permit if one is free. `Ok(None)` means that none is, or that others of
    /// this process wait for permits.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); a server that does not answer is an error at once,
    /// `Unavailable` or `OutcomeUnknown`, and never `Ok(None)`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(&self) -> Result<Option<SemaphorePermit>> {
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
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits until `deadline` at the latest for a permit; a deadline in the past asks once.
    /// Takes tokio's or the standard library's instant.
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
    ) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_until(1, deadline).await
    }

    /// Waits for `permits` permits, all at once and without a limit. Acquiring zero permits
    /// succeeds at once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and `Misuse` for more than 2^31 - 1 permits.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit> {
        loop {
            // Without a deadline there is no other end than permits or an error.
            if let Some(permit) = self.acquire_by(permits, Deadline::Never).await? {
                return Ok(permit);
            }
        }
    }

    /// Acquires `permits` permits if so many are free.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and `Misuse` for more than 2^31 - 1 permits.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<SemaphorePermit>> {
        self.acquire_by(permits, Deadline::Now).await
    }

    /// Waits at most `wait` for `permits` permits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for), and `Misuse` for more than 2^31 - 1
    /// permits.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<SemaphorePermit>> {
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(permits, Deadline::At(deadline)).await
    }

    /// Waits until `deadline` at the latest for `permits` permits.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
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
        namesake::look(&self.context, key);
        if permits == 0 {
            return Ok(Some(SemaphorePermit::new(
                &self.context,
                self.names(key),
                0,
            )));
        }
        if self.must_exist {
            let is_there = async { Ok(self.counts().await?.1) };
            absence::check_behind_others(&self.context, key, deadline, is_there).await?;
        }
        ask::acquire(self, self.names(key), permits, deadline).await
    }
}

/// Giving back, and the number of permits.
impl Semaphore {
    /// Adds `permits` free permits, as a release without a guard does: for those that
    /// another process or a [forgotten](SemaphorePermit::forget) permit has taken.
    ///
    /// Nothing checks that they were ever acquired. More than were taken raise the number
    /// above what was set, and a semaphore that does not exist is made: both are
    /// Redisson's rule, and [`release_if_exists`](Self::release_if_exists) keeps from the
    /// second.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered
    /// and nothing was changed, `OutcomeUnknown` when it may have been; `WrongKind`,
    /// `Denied` and `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once polled, it may happen whether the future is dropped or not.
    pub async fn release(&self, permits: u32) -> Result<()> {
        check_number("permits", permits.into(), MOST_PERMITS, self.key()?)?;
        self.add(permits.into(), false).await.map(drop)
    }

    /// As [`release`](Self::release), but only to a semaphore that exists. `false` when it
    /// does not.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "releaseIfExists")]
    pub async fn release_if_exists(&self, permits: u32) -> Result<bool> {
        check_number("permits", permits.into(), MOST_PERMITS, self.key()?)?;
        self.add(permits.into(), true).await
    }

    /// Changes the number of permits by `permits`. Fewer than are in use is possible: then
    /// the number of free ones is negative until enough have come back.
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
        self.add(permits.into(), false).await.map(drop)
    }

    /// Takes all free permits and says how many there were; a negative number of them
    /// becomes zero. Nothing gives them back by itself.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "drainPermits")]
    pub async fn drain(&self) -> Result<i64> {
        let key = self.next()?;
        let context = &self.context;
        let reply = request::idempotent(context, key, |marked| steps::drain(key, marked)).await?;
        request::integer(context, key, &reply)
    }

    /// How many permits are free; negative when some were taken away while they were in
    /// use. By the time the answer is here it may have changed.
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
        Ok(self.counts().await?.0)
    }

    /// How many permits are free, and whether there is a semaphore.
    async fn counts(&self) -> Result<(i64, bool)> {
        let key = self.next()?;
        let reply = request::query(&self.context, key, steps::available(key)).await?;
        if let Value::List(items) = reply
            && let [Value::Int(free), Value::Int(there)] = items[..]
        {
            return Ok((free, there == 1));
        }
        Err(request::malformed(&self.context, key))
    }

    /// Makes the semaphore, with `permits` permits. `false` when there is one already; it
    /// stays as it is.
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
        self.set(permits, None).await
    }

    /// As [`try_set_permits`](Self::try_set_permits), and the semaphore ends by itself after
    /// `life`: at least 1 ms, at most 2^53 ms.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[doc(alias = "trySetPermits")]
    pub async fn try_set_permits_for(&self, permits: u32, life: Duration) -> Result<bool> {
        check_life(life, self.key()?)?;
        self.set(permits, Some(life)).await
    }

    /// Removes the semaphore. `false` when there was none. Permits that are in use stay so,
    /// and releasing them makes a new one.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn delete(&self) -> Result<bool> {
        let key = self.next()?;
        let context = &self.context;
        let reply = request::idempotent(context, key, |marked| steps::delete(key, marked)).await?;
        Ok(request::integer(context, key, &reply)? == 1)
    }

    async fn add(&self, permits: i64, only_if_there: bool) -> Result<bool> {
        let key = self.next()?;
        if permits == 0 && !only_if_there {
            return Ok(true);
        }
        let make = |marked: &_| steps::add(key, marked, permits, only_if_there, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        match reply {
            Value::List(items) => match items[..] {
                [Value::Int(done), Value::Int(_)] => Ok(done == 1),
                _ => Err(request::malformed(&self.context, key)),
            },
            _ => Err(request::malformed(&self.context, key)),
        }
    }

    async fn set(&self, permits: u32, life: Option<Duration>) -> Result<bool> {
        let key = self.next()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        let make = |marked: &_| steps::set(key, marked, permits, life, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// The name, for a request that runs behind what was given back before.
    fn next(&self) -> Result<&Key> {
        let key = self.key()?;
        returns::send(&self.context, &self.names(key));
        Ok(key)
    }

    fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    fn names(&self, key: &Key) -> Names {
        Names {
            key: key.clone(),
            channel: Arc::clone(&self.channel),
        }
    }

    /// The name, as it was given; empty if it could not be one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", Key::as_str)
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
