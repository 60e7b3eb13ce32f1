//! The differences between the kinds of locks. [`Lock`] is the handle for all of them.

use std::fmt;

use super::Lock;
use super::acquire;
use super::guard::LockGuard;
use super::steps::{self, LockHold};
use crate::backend::step::Operation;
use crate::config::Terms;
use crate::error::Result;
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::local::line::LineMode;
use crate::observe;
use crate::owner::Role;
use crate::wait::Deadline;

/// A kind of lock: the type parameter of [`Lock`]. Only this library can define kinds.
#[allow(
    private_bounds,
    reason = "sealed: nobody outside can name or call what a kind is made of"
)]
pub trait Kind: Acquire {
    /// The guard that an acquire returns: [`LockGuard`], or a guard that can do more and
    /// dereferences to one.
    type Guard: FromLockGuard + AsRef<LockGuard> + Into<LockGuard> + fmt::Debug + Send + Sync;
}

/// The conversion into the guard of one kind from the guard that all kinds share. This is not
/// `From`, because any caller could use `From` with the guard of another kind.
pub(crate) trait FromLockGuard {
    fn from_lock_guard(guard: LockGuard) -> Self;
}

impl FromLockGuard for LockGuard {
    fn from_lock_guard(guard: LockGuard) -> Self {
        guard
    }
}

/// A kind of lock that has one name on one server. Such a lock can be inspected and unlocked by
/// force.
#[allow(private_bounds, reason = "as of `Kind`")]
pub trait OneKey: Kind + Named {}

impl<K: Kind + Named> OneKey for K {}

/// The way in which a kind is acquired.
pub(crate) trait Acquire: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// The role in which an owner holds a name of this kind.
    // Each side of a read-write lock has its own role, so that an owner can hold both at the same
    // time. The other kinds can be held in one way only.
    const ROLE: Role = Role::Exclusive;

    // This is not an `async fn`: in a trait, the future of an `async fn` is not known to be `Send`,
    // so a caller could not spawn a task that acquires a lock of a generic kind.
    fn acquire_by(
        lock: &Lock<Self>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<LockGuard>>> + Send;
}

/// The parts that a kind with one name adds to the common acquire.
pub(crate) trait Named: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// The kind under which logs, events and metrics report this lock.
    const OBSERVED: observe::ObservedKind = observe::ObservedKind::Lock;
    /// Whether the waiters of a process hand such a lock over to each other, for a short time after
    /// each grant (a slice).
    const HAS_SLICE: bool = false;
    /// Whether the server can keep such a lock locked after its holder has left.
    const CAN_BE_KEPT: bool = false;
    /// Returns whether the tasks of a process that acquire this lock share one hold. Such tasks
    /// also share the answer that another client holds the lock.
    fn is_shared(_lock: &Lock<Self>) -> bool {
        false
    }

    /// Returns the channel on which releases are published.
    fn channel(&self, key: &Key) -> String;
    /// Returns the key of the line in which the waiters of this process wait. Only one waiter of a
    /// line sends requests at a time, and an owner that holds this key can re-enter.
    fn line_key(&self, key: &Key) -> Key {
        key.clone()
    }
    /// Returns whether a holder keeps every other client out.
    // A wrong `false` costs one request that is refused. With a wrong `true`, a `RedLock` would not
    // request a member that would have been granted.
    fn is_exclusive(&self) -> bool {
        false
    }
    /// Returns whether a server has already reported to the same caller that the lock is held.
    fn was_held(&self) -> bool {
        false
    }
    /// Returns the operations on one hold, whose id on the wire is `id`.
    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps>;
    /// Like [`hold`](Self::hold), for a waiter that keeps its place in line.
    fn waiter(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        Self::hold(lock, key, id)
    }
    /// Returns how waiters form a line.
    fn line(_lock: &Lock<Self>) -> LineMode {
        LineMode::HeadAsks
    }
    /// Builds the request for the holders and the TTL. Its reply is `{ ttl, holder, count, ... }`.
    fn inspect(&self, key: &Key) -> Operation;
    /// Returns the terms of a hold, given the terms of the handle.
    fn terms(&self, terms: Terms) -> Terms {
        terms
    }
    /// Builds the request that ends every hold, for a client with the label `by`. Its reply is 1,
    /// or 0 if there was no hold.
    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation;
}

/// The plain lock: one holder at a time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Plain;

impl Kind for Plain {
    type Guard = LockGuard;
}

impl Acquire for Plain {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        acquire::acquire_by(lock, deadline).await
    }
}

impl Named for Plain {
    const HAS_SLICE: bool = true;
    const CAN_BE_KEPT: bool = true;

    fn is_exclusive(&self) -> bool {
        true
    }

    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        Box::new(LockHold::new(key.clone(), lock.channel(), id))
    }

    fn inspect(&self, key: &Key) -> Operation {
        steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        steps::force_unlock(key, channel, by)
    }
}
