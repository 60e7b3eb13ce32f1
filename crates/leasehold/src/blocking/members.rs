//! Locks over several others, for threads, which forward to the async ones.

use std::time::Duration;

use super::any::AnyLock;
use super::forward::setters;
use super::lock::{Lock, Ownership, PerThread, this_thread};
use super::runtime::Runtime;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::Owner;
use crate::primitives::composite::{Majority, Multi};
use crate::primitives::group::{FieldNames, Group};

/// Several locks, all of them or none; see [`leasehold::MultiLock`](crate::MultiLock).
///
/// ```
/// use leasehold::blocking::{Client, MultiLock};
///
/// # fn main() -> leasehold::Result<()> {
/// let client = Client::embedded();
/// let both = MultiLock::new([client.lock("ann"), client.lock("bob")])?;
/// let guard = both.acquire()?;
/// assert!(client.lock("bob").is_locked()?);
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type MultiLock<O = PerThread> = Lock<O, Multi>;

/// A majority of several locks; see [`leasehold::RedLock`](crate::RedLock).
pub type RedLock<O = PerThread> = Lock<O, Majority>;

/// Several values of one group; see [`leasehold::GroupLock`](crate::GroupLock).
pub type GroupLock<O = PerThread> = Lock<O, Group>;

/// Returns the async members, and the runtime to wait on. A thread that waits for several clients
/// waits on the runtime of one of them, but needs the threads of all clients. The other threads
/// renew the holds of their clients and send the requests to their servers.
fn parts<O: Ownership, M: Into<AnyLock<O>>>(
    members: impl IntoIterator<Item = M>,
) -> Result<(Vec<crate::AnyLock>, Runtime)> {
    let members = members.into_iter().map(Into::into);
    let (members, runtimes): (Vec<_>, Vec<_>) = members
        // The owner of the member's own handle is ignored: the owner that acquires the whole lock
        // is also the owner of each member.
        .map(|member: AnyLock<O>| (member.as_async().clone(), member.runtime().clone()))
        .unzip();
    // Refuse an empty list here. The async lock would refuse it too, but a wait needs the runtime of
    // a member.
    let runtime = Runtime::first_of(runtimes).ok_or_else(|| {
        let what = "a lock of several that has no members; give it some";
        Error::new(ErrorKind::Misuse, what)
    })?;
    Ok((members, runtime))
}

impl Lock<PerThread, Multi> {
    /// Returns the lock on all of these members; see [`MultiLock::new`](crate::MultiLock::new).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn new<O: Ownership, M: Into<AnyLock<O>>>(
        members: impl IntoIterator<Item = M>,
    ) -> Result<Self> {
        let (members, runtime) = parts(members)?;
        Ok(Self::per_thread(crate::MultiLock::new(members)?, runtime))
    }

    /// Returns whether the calling thread holds all members; see
    /// [`MultiLock::is_held_by`](crate::MultiLock::is_held_by).
    #[doc(alias = "isHeldByCurrentThread")]
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.is_held_by(&this_thread())
    }
}

impl<O: Ownership> Lock<O, Multi> {
    /// Returns the members; see [`MultiLock::members`](crate::MultiLock::members).
    #[must_use]
    pub fn members(&self) -> &[crate::AnyLock] {
        self.as_async().members()
    }

    /// Returns whether `owner` holds all members; see
    /// [`MultiLock::is_held_by`](crate::MultiLock::is_held_by).
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        self.as_async().is_held_by(owner)
    }
}

impl Lock<PerThread, Majority> {
    /// Returns a lock on a majority of these members; see [`RedLock::new`](crate::RedLock::new).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn new<O: Ownership, M: Into<AnyLock<O>>>(
        members: impl IntoIterator<Item = M>,
    ) -> Result<Self> {
        let (members, runtime) = parts(members)?;
        Ok(Self::per_thread(crate::RedLock::new(members)?, runtime))
    }

    /// Returns whether the calling thread holds a majority of the members; see
    /// [`RedLock::is_held_by`](crate::RedLock::is_held_by).
    #[doc(alias = "isHeldByCurrentThread")]
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.is_held_by(&this_thread())
    }
}

impl<O: Ownership> Lock<O, Majority> {
    setters! { RedLock:
        "Sets how long to wait for each server" member_timeout(limit: Duration);
        "Sets the longest lease that any hold of the lock may have" longest_lease(longest: Duration);
        "Sets whether clients distrust restarted servers" distrust_restarted(distrust: bool);
    }

    /// Returns the members; see [`RedLock::members`](crate::RedLock::members).
    #[must_use]
    pub fn members(&self) -> &[crate::AnyLock] {
        self.as_async().members()
    }

    /// Returns whether `owner` holds a majority of the members; see
    /// [`RedLock::is_held_by`](crate::RedLock::is_held_by).
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        self.as_async().is_held_by(owner)
    }
}

impl<O: Ownership> Lock<O, Group> {
    setters! { GroupLock:
        "Sets how values are encoded before they are hashed to names on the server" field_names(names: FieldNames);
    }
}
