//! The fair lock: first come, first served.

pub(crate) mod steps;
mod twins;

use std::time::Duration;

use super::lock::kind::{Acquire, Named};
use super::lock::steps as lock_steps;
use super::lock::{Kind, Lock, LockGuard, ask};
use crate::backend::step::{Operation, Value};
use crate::config::{Peers, check_waiter_timeout};
use crate::error::Result;
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::local::line::Line;
use crate::observe;
use crate::primitives::request;
use crate::wait::Deadline;
use steps::{FairHold, Place};

/// A lock that its waiters get in the order in which they came, over all processes. Shared with
/// Redisson's `getFairLock` and `getNonReentrantFairLock` of the same name: the waiters of both are
/// in one queue.
///
/// A waiter's place is on the server. The waiter keeps it by asking again within the
/// [`waiter_timeout`](Self::waiter_timeout), which it does by itself, even after a lost connection.
/// If the wait ends in any other way than with the lock, the place is given up at once. A process
/// that is killed while it waits is in the way for the waiter timeout at most, as long as another
/// process with this library waits for the lock, holds it or tries it. (Redisson alone waits for
/// minutes.)
///
/// [`try_acquire`](Self::try_acquire) takes no place in the queue, and gets the lock only when
/// nobody waits.
///
/// It promises what [`Lock`] promises. It is slower: a waiter takes a place on the server before it
/// sleeps, and a hand-over to another client costs a round trip of the waiter whose turn it is. Among
/// waiters of one client that are next in line it costs none
/// ([`local_hand_over`](Self::local_hand_over)). While some of Redisson's waiters are in line, each grant costs the server work
/// for every waiter in it, as with Redisson. All users of a name have to use the fair lock: a plain
/// [`Lock`] of the same name excludes it, but is in no line.
///
/// The order is lost when the server loses data, or when its clock is set ahead by more than the
/// waiter timeout. The waiters then join again in any order, and each of them still waits.
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
/// assert!(lock.try_acquire().await?.is_none()); // somebody else's turn
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
    /// How often a waiter asks within its timeout. It may miss that many asks before it loses its
    /// place.
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
        ask::acquire_by(lock, deadline).await
    }
}

impl Named for Fair {
    const OBSERVED: observe::Kind = observe::Kind::Fair;
    const TAKES_TURNS: bool = true;

    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        // Without a stay: only a try asks with a new hold each time, and it must leave no place
        // behind that nobody would keep.
        Box::new(FairHold::new(
            key,
            lock.channel(),
            id,
            place(lock, Duration::ZERO),
        ))
    }

    fn waiter(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let stay = lock.kind().waiter_timeout;
        Box::new(FairHold::new(key, lock.channel(), id, place(lock, stay)))
    }

    fn line(lock: &Lock<Self>) -> Line {
        Line::OnServer {
            ask_every: lock.kind().waiter_timeout / Self::ASKS_PER_TIMEOUT,
        }
    }

    fn inspect(&self, key: &Key) -> Operation {
        lock_steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str) -> Operation {
        steps::force_unlock(key, channel)
    }
}

impl FairLock {
    /// Sets how long a waiter that does not ask keeps its place, and so how long a killed process
    /// is in the way. A waiter asks three times as often, whatever the
    /// [`poll_interval`](Self::poll_interval) is. 5 s by default, 100 ms to an hour. Each waiter
    /// has the timeout of its own handle.
    #[doc(alias = "fairLockWaitTimeout")]
    #[must_use]
    pub fn waiter_timeout(mut self, timeout: Duration) -> Self {
        self.kind_mut().waiter_timeout = timeout;
        self
    }

    /// The waiters for the lock in their order, as ids `uuid:n` of the client and the wait (here)
    /// or the thread (Redisson). For operators: the answer may be out of date when it arrives.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn waiters(&self) -> Result<Vec<String>> {
        let key = self.key()?;
        let ids = match request::query(self.context(), key, steps::line(key)).await? {
            Value::List(items) => items.into_iter().map(id).collect(),
            _ => None,
        };
        ids.ok_or_else(|| request::malformed(self.context(), key))
    }
}

fn place(lock: &FairLock, stay: Duration) -> Place {
    Place {
        stay,
        // Redisson's waiters count on a queue that has no expiry. Where none of them can come, the
        // queue gets one: otherwise it would stay for ever when the processes of all its waiters
        // are killed.
        with_redisson: lock.context().peers != Peers::RustOnly,
    }
}

fn id(item: Value) -> Option<String> {
    match item {
        Value::Text(id) => Some(String::from_utf8_lossy(&id).into_owned()),
        _ => None,
    }
}
