//! How the kinds of locks differ. [`Lock`] is the same handle for all of them.

use std::fmt;

use super::Lock;
use super::ask;
use super::guard::LockGuard;
use super::steps::{self, LockHold};
use crate::backend::step::Operation;
use crate::config::Terms;
use crate::error::Result;
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::local::line::Line;
use crate::observe;
use crate::owner::Role;
use crate::wait::Deadline;

/// A kind of lock: what [`Lock`] is generic over. This library has all kinds; no others can be
/// added.
#[allow(
    private_bounds,
    reason = "sealed: nobody outside can name or call what a kind is made of"
)]
pub trait Kind: Acquire {
    /// What an acquire returns: [`LockGuard`], or a guard that can do more and dereferences to one.
    type Guard: Made + AsRef<LockGuard> + Into<LockGuard> + fmt::Debug + Send + Sync;
}

/// A guard of a kind, made from the guard that all kinds share. Not `From`, which anybody could
/// call with the guard of another kind.
pub(crate) trait Made {
    fn made(guard: LockGuard) -> Self;
}

impl Made for LockGuard {
    fn made(guard: LockGuard) -> Self {
        guard
    }
}

/// A kind whose whole state has one name on one server, so that it can be inspected, and be ended
/// by force.
#[allow(private_bounds, reason = "as of `Kind`")]
pub trait OneKey: Kind + Named {}

impl<K: Kind + Named> OneKey for K {}

/// How a kind is acquired.
pub(crate) trait Acquire: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// The role in which its owners hold a name.
    // The sides of a read-write lock are held in roles of their own, so that an owner can have both
    // at the same time. No other kind has a second way to be held.
    const ROLE: Role = Role::Whole;

    // Not an `async fn`: in a trait that promises no `Send`, and a caller could not spawn a task
    // that acquires a lock whose kind is generic.
    fn acquire_by(
        lock: &Lock<Self>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<LockGuard>>> + Send;
}

/// What a kind with one name adds to the common way of acquiring.
pub(crate) trait Named: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// What is told of it as.
    const OBSERVED: observe::Kind = observe::Kind::Lock;
    /// Whether a process keeps such a lock for a turn, in which its waiters hand it over.
    const TAKES_TURNS: bool = false;
    /// Whether those of a process that acquire this lock share a hold, and the answer that others
    /// have it.
    fn is_shared(_lock: &Lock<Self>) -> bool {
        false
    }

    /// The channel on which its releases are published.
    fn channel(&self, key: &Key) -> String;
    /// The key that all waiters for the same thing share: one of them asks at a time, and an owner
    /// that holds it can enter again.
    fn line_key(&self, key: &Key) -> Key {
        key.clone()
    }
    /// Whether nobody can acquire it while somebody holds it.
    // A wrong `false` costs one request that is refused. A wrong `true` would keep a majority from
    // asking a member that would have granted.
    fn is_exclusive(&self) -> bool {
        false
    }
    /// The operations on one hold, whose id on the wire is `id`.
    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps>;
    /// The same for a waiter that keeps its place in line.
    fn waiter(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        Self::hold(lock, key, id)
    }
    /// How its waiters stand in line.
    fn line(_lock: &Lock<Self>) -> Line {
        Line::OneAsks
    }
    /// Asks who holds it, and for how long. Replies `{ ttl, holder, count, ... }`.
    fn inspect(&self, key: &Key) -> Operation;
    /// The terms of a hold, where this kind needs others than the handle's.
    fn terms(&self, terms: Terms) -> Terms {
        terms
    }
    /// Ends every hold. Replies 1, or 0 when there was none.
    fn force_unlock(&self, key: &Key, channel: &str) -> Operation;
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
        ask::acquire_by(lock, deadline).await
    }
}

impl Named for Plain {
    const TAKES_TURNS: bool = true;

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

    fn force_unlock(&self, key: &Key, channel: &str) -> Operation {
        steps::force_unlock(key, channel)
    }
}
