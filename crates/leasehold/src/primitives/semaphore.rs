//! The semaphore: a number of permits that all processes share.

mod ask;
mod permit;
mod returns;
pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::NameOf;
use crate::backend::step::Value;
use crate::config::{Settings, WaitStrategy, check_life, check_number, check_wait};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::primitives::calls::own_channel;
use crate::primitives::setters::{must_exist_setter, wait_setters};
use crate::primitives::{absence, namesake, request};
use crate::wait::Deadline;
pub use permit::SemaphorePermit;
use returns::Names;

/// Redisson counts permits with 31 bits.
pub(crate) const MOST_PERMITS: u64 = i32::MAX as u64;

/// A semaphore by name: a number of permits that all processes on the same server share. Acquiring
/// takes permits, and waits until enough are free. Shared with Redisson's `RSemaphore` of the same
/// name.
///
/// **A process that is killed takes its permits with it.** In Redisson's format a permit has no
/// owner and no lease: an acquire counts down a number in Redis, and nothing there says who did so.
/// [`add_permits`](Self::add_permits) puts lost permits back by hand. Where processes may die, use
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore): its permits come back by themselves.
///
/// A handle is cheap to make and to clone, and each has its own settings. A semaphore that nobody
/// has made has no permits. [`try_set_permits`](Self::try_set_permits) makes it; until then a
/// waiter keeps waiting, unless its handle says that the semaphore [must exist](Self::must_exist).
///
/// **What it promises.** An acquire gets all the permits that it asks for, or none. A request
/// counts once, however often the network delivers it, and a request whose answer never came is
/// undone. So the permits in use and the free permits add up to the number that was set, as long as
/// no process is killed, the server loses no data and an outage is shorter than a minute. The
/// waiters of one process get their permits in the order they came, whatever number they ask for.
///
/// **Between processes** there is no order, but a busy process leaves others a turn. A grant from
/// the server starts a turn of 10 ms, during which permits that the process gives back go to its
/// own waiters, without a request. The first release after that goes to the server. Unless nobody
/// else listens, the process then leaves the permits to others for 2 ms, or now and then for 16 ms
/// if nobody takes them. Beside several busy processes it lets those go first that have had no turn
/// since its own, for 2 ms each time.
/// Changes by [`drain`](Self::drain), [`delete`](Self::delete) and a negative
/// [`add_permits`](Self::add_permits) bind the waiters of other clients when their turn is over.
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
    /// The channel on which a release calls this client, if it is called.
    own_channel: Option<Arc<str>>,
    settings: Settings,
    must_exist: bool,
}

/// Settings. Each changes this handle only.
impl Semaphore {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let key = context.key(name, NameOf::Other);
        // A bad name has no channel and needs none: every call looks at `key` first, and fails.
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

/// Acquiring.
impl Semaphore {
    /// Waits for a permit, without a time limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has answered for
    /// the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have run
    /// all the same; `WrongKind` when the key holds something else; `Denied` when the server
    /// refuses; `Misuse` for a bad name or setting; `NotFound` when there is no semaphore and there
    /// [must](Self::must_exist) be one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line. Permits that the
    /// server has granted, or grants while the answer is on its way, are given back in the
    /// background.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<SemaphorePermit> {
        self.acquire_many(1).await
    }

    /// Acquires a permit if one is free. `Ok(None)` means that none is free, or that other waiters
    /// of this process come first.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). If the server does not answer, that is an error at once,
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
    /// As [`acquire`](Self::acquire). `OutcomeUnknown` when the server has given no answer at all
    /// within `wait`. A wait of zero or of more than 2^53 ms is `Misuse`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Waits for a permit until `deadline` at the latest. A deadline in the past asks once. Takes
    /// an instant of tokio or of the standard library.
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

    /// Waits for `permits` permits, all at once, without a time limit. Acquiring zero permits
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
            // Without a deadline a wait ends only with permits or an error.
            if let Some(permit) = self.acquire_by(permits, Deadline::Never).await? {
                return Ok(permit);
            }
        }
    }

    /// Acquires `permits` permits if that many are free.
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

    /// Waits for `permits` permits until `deadline` at the latest.
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
        // Answered here, as in Redisson: an ask for no permits would stand in line for nothing, and
        // the step refuses it while the number of free permits is negative.
        if permits == 0 {
            return Ok(Some(SemaphorePermit::new(
                &self.context,
                self.names(key),
                0,
            )));
        }
        if self.must_exist {
            // Not sent yet. The check polls it only behind other waiters: an acquire that asks for
            // itself hears of the absence from its own request.
            let is_there = async { Ok(self.counts().await?.1) };
            absence::check_behind_others(&self.context, key, deadline, is_there).await?;
        }
        ask::acquire(self, self.names(key), permits, deadline).await
    }
}

/// Giving permits back, and changing their number.
impl Semaphore {
    /// Adds `permits` free permits, without a guard. For permits that another process has taken, or
    /// that were [forgotten](SemaphorePermit::forget).
    ///
    /// Nothing checks that the permits were ever acquired. Releasing more permits than were taken
    /// raises their number above what was set. Releasing to a semaphore that does not exist makes
    /// one. Both are Redisson's rules; [`release_if_exists`](Self::release_if_exists) avoids the
    /// second.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server answered and
    /// nothing was changed; `OutcomeUnknown` when something may have been changed; `WrongKind`,
    /// `Denied` and `Misuse` as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the request may take effect even if the future is dropped.
    pub async fn release(&self, permits: u32) -> Result<()> {
        check_number("permits", permits.into(), MOST_PERMITS, self.key()?)?;
        self.add(permits.into(), false).await.map(drop)
    }

    /// As [`release`](Self::release), but only to a semaphore that exists. `false` when there is
    /// none.
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

    /// Changes the number of permits by `permits`, up or down. If fewer remain than are in use, the
    /// number of free permits is negative until enough have come back. From then on the waiters of
    /// this client get nothing until the server has granted something again.
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

    /// Takes all free permits and returns how many there were. A negative number of free permits
    /// becomes zero. Nothing gives the drained permits back by itself.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable)
    /// while a [failover guard](crate::ClientBuilder::failover_guard) grants nothing.
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

    /// How many permits are free. The number is negative when permits were taken away while they
    /// were in use. The answer may be out of date when it arrives.
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

    /// Makes the semaphore, with `permits` permits. `false` when there is one already, which stays
    /// as it is.
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

    /// Removes the semaphore. `false` when there was none. Permits that are in use stay in use, and
    /// releasing them makes a new semaphore.
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
        // Zero permits must not make a semaphore where there is none. With `only_if_there` the
        // caller wants to know whether there is one, so that request goes.
        if permits == 0 && !only_if_there {
            return Ok(true);
        }
        let ends_turn = || match self.context.locals.known(key) {
            // More may be in use than there are: then none of them is for a waiter of this process.
            Some(local) if permits < 0 => local.turn.lock().ends(),
            _ => {}
        };
        let make = |marked: &_| steps::add(key, marked, permits, only_if_there, &self.channel);
        // Before the request, because this future may be dropped, and behind it, because a request
        // before it may be granted meanwhile.
        ends_turn();
        let reply = request::idempotent(&self.context, key, make).await;
        ends_turn();
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
        let key = self.next()?;
        check_number("permits", permits.into(), MOST_PERMITS, key)?;
        let make = |marked: &_| steps::set(key, marked, permits, life, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// The name, for a request that must run after the permits that were given back before it.
    fn next(&self) -> Result<&Key> {
        let key = self.key()?;
        // Without a record there is no open batch: the task that carries a batch keeps the record.
        if let Some(local) = self.context.locals.known(key) {
            returns::send(&self.context, &self.names(key), &local);
        }
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

    /// The name as it was given; empty if it is not a valid name.
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
