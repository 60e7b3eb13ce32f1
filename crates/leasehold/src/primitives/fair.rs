//! The fair lock: first come, first served.

pub(crate) mod steps;
mod twins;

use std::time::Duration;

use super::lock::kind::{Acquire, Named};
use super::lock::steps as lock_steps;
use super::lock::{Kind, Lock, LockGuard, acquire};
use crate::backend::step::{Operation, Value};
use crate::config::{Peers, check_waiter_timeout};
use crate::error::Result;
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::local::line::LineMode;
use crate::observe;
use crate::primitives::request;
use crate::wait::Deadline;
use steps::{FairHold, WaiterSettings};

/// A lock that waiters acquire in the order of their arrival, across all processes. Redisson's
/// `getFairLock` and `getNonReentrantFairLock` of the same name are the same lock: the waiters of
/// both libraries are in one queue.
///
/// The queue is on the server. A waiter keeps its place by sending another request within the
/// [`waiter_timeout`](Self::waiter_timeout). This happens automatically, even after a lost
/// connection. If the wait ends without the lock, the waiter leaves the queue at once. A process
/// that is killed while it waits delays the other waiters for at most the waiter timeout, as long
/// as another process with this library waits for the lock, holds it or tries to acquire it. (If
/// only Redisson's clients use the lock, the delay is minutes.)
///
/// [`try_acquire`](Self::try_acquire) does not take a place in the queue, and gets the lock only
/// when there are no waiters.
///
/// The promise is the same as for [`Lock`]. A fair lock is slower: a waiter joins the queue on the
/// server before it sleeps, and when the lock passes to another client, the next waiter needs a
/// round trip. If the next waiter belongs to the same client, no round trip is needed
/// ([`local_hand_over`](Self::local_hand_over)). While Redisson's waiters are in the queue, each
/// grant costs the server work for every waiter in the queue, as with Redisson alone. All users of
/// a name must use the fair lock: a plain [`Lock`] of the same name and the fair lock exclude each
/// other, but the waiters of the plain lock do not join the queue.
///
/// The order is lost if the server loses data, or if its clock jumps forward by more than the
/// waiter timeout. The waiters then join the queue again in any order, and continue to wait.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let lock = client.fair_lock("orders:42");
/// let guard = lock.acquire().await?;
/// let next = tokio::spawn({
///     let lock = lock.clone();
///     async move { lock.acquire().await }
/// });
/// while lock.waiters().await?.is_empty() {
///     tokio::task::yield_now().await;
/// }
/// guard.release().await?;
/// assert!(lock.try_acquire().await?.is_none()); // the other task is next
/// next.await.unwrap()?.release().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getFairLock")]
#[doc(alias = "getNonReentrantFairLock")]
#[doc(alias = "RedissonFairLock")]
pub type FairLock = Lock<Fair>;

/// The kind of [`FairLock`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Fair {
    waiter_timeout: Duration,
}

impl Fair {
    /// The number of requests that a waiter sends within its timeout. The waiter loses its place if
    /// none of them arrives in time.
    const ASKS_PER_TIMEOUT: u32 = 3;

    pub(crate) fn new() -> Self {
        Self {
            waiter_timeout: Duration::from_secs(5),
        }
    }
}

impl Kind for Fair {
    type Guard = LockGuard;
}

impl Acquire for Fair {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        check_waiter_timeout(lock.kind().waiter_timeout, lock.key()?)?;
        acquire::acquire_by(lock, deadline).await
    }
}

impl Named for Fair {
    const OBSERVED: observe::ObservedKind = observe::ObservedKind::Fair;
    const HAS_SLICE: bool = true;
    const CAN_BE_KEPT: bool = true;

    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        // This hold takes no place on the server: only a try uses a new hold for each request, and
        // a try must not leave a place that no waiter keeps.
        Box::new(FairHold::new(
            key,
            lock.channel(),
            id,
            waiter_settings(lock, Duration::ZERO),
        ))
    }

    fn waiter(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let place_time = lock.kind().waiter_timeout;
        Box::new(FairHold::new(
            key,
            lock.channel(),
            id,
            waiter_settings(lock, place_time),
        ))
    }

    fn line(lock: &Lock<Self>) -> LineMode {
        LineMode::OnServer {
            ask_every: lock.kind().waiter_timeout / Self::ASKS_PER_TIMEOUT,
        }
    }

    fn inspect(&self, key: &Key) -> Operation {
        lock_steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        steps::force_unlock(key, channel, by)
    }
}

impl FairLock {
    /// Sets how long a waiter keeps its place in the queue after its last request, and so how long
    /// a killed process delays the other waiters: 100 ms to an hour, 5 s by default. A waiter sends
    /// three requests within this time, whatever its [`poll_interval`](Self::poll_interval). Each
    /// waiter uses the timeout of its own handle.
    #[doc(alias = "fairLockWaitTimeout")]
    #[must_use = "the setting is only in the returned value"]
    pub fn waiter_timeout(mut self, timeout: Duration) -> Self {
        self.kind_mut().waiter_timeout = timeout;
        self
    }

    /// Returns the ids of the waiters for the lock, in queue order. In an id `uuid:n`, `uuid` is
    /// the client, and `n` the wait (this library) or the thread (Redisson). This is for operators:
    /// the answer may be out of date when it arrives.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    pub async fn waiters(&self) -> Result<Vec<String>> {
        let key = self.key()?;
        let ids = match request::query(self.context(), key, steps::list_waiters(key)).await? {
            Value::List(items) => items.into_iter().map(id).collect(),
            _ => None,
        };
        ids.ok_or_else(|| request::malformed(self.context(), key))
    }
}

fn waiter_settings(lock: &FairLock, place_time: Duration) -> WaiterSettings {
    WaiterSettings {
        place_time,
        // Redisson's waiters rely on a queue without an expiry. If there can be no such waiters,
        // the queue gets an expiry: otherwise it would remain forever after the processes of all
        // its waiters are killed.
        with_redisson: lock.context().peers != Peers::RustOnly,
    }
}

fn id(item: Value) -> Option<String> {
    match item {
        Value::Text(id) => Some(String::from_utf8_lossy(&id).into_owned()),
        _ => None,
    }
}
