//! A lock of any kind, for threads. It forwards to the async one.

use super::forward::{calls, reads};
use super::lock::{Lock, Ownership, PerThread, this_thread};
use crate::owner::Owner;
use crate::primitives::any::Any;
use crate::primitives::composite::{Majority, Multi};
use crate::primitives::lock::{LockInfo, OneKey};

/// A lock of any kind, for code that chooses the kind at run time; see
/// [`leasehold::AnyLock`](crate::AnyLock).
///
/// ```
/// use leasehold::blocking::{AnyLock, Client};
///
/// # fn main() -> leasehold::Result<()> {
/// let client = Client::embedded();
/// let fair = std::env::args().any(|arg| arg == "--fair");
/// let lock: AnyLock = if fair {
///     client.fair_lock("orders:42").into()
/// } else {
///     client.lock("orders:42").into()
/// };
/// let guard = lock.acquire()?;
/// assert!(lock.is_held_by_current_thread());
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type AnyLock<O = PerThread> = Lock<O, Any>;

impl<O: Ownership, K: OneKey> From<Lock<O, K>> for AnyLock<O> {
    fn from(lock: Lock<O, K>) -> Self {
        lock.of_kind(Into::into)
    }
}

impl<O: Ownership, K: OneKey> From<&Lock<O, K>> for AnyLock<O> {
    fn from(lock: &Lock<O, K>) -> Self {
        lock.clone().into()
    }
}

impl<O: Ownership> From<&Self> for AnyLock<O> {
    fn from(lock: &Self) -> Self {
        lock.clone()
    }
}

macro_rules! any_of_several {
    // Implement this for each kind, and not for all kinds at once: `Any` is a kind, too, and its
    // impl would collide with the standard library's `impl From<T> for T`.
    ($($kind:ty)+) => {
        $(
            impl<O: Ownership> From<Lock<O, $kind>> for AnyLock<O> {
                fn from(lock: Lock<O, $kind>) -> Self {
                    lock.of_kind(Into::into)
                }
            }

            impl<O: Ownership> From<&Lock<O, $kind>> for AnyLock<O> {
                fn from(lock: &Lock<O, $kind>) -> Self {
                    lock.clone().into()
                }
            }
        )+
    };
}

any_of_several! { Multi Majority }

impl AnyLock {
    /// Returns whether the calling thread holds the lock; see
    /// [`AnyLock::is_held_by`](crate::AnyLock::is_held_by).
    #[doc(alias = "isHeldByCurrentThread")]
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.is_held_by(&this_thread())
    }
}

impl<O: Ownership> AnyLock<O> {
    reads! { AnyLock by as_async:
        "Returns the members of a lock that is made of several" members() -> &[crate::AnyLock];
        "Returns the address of the lock's server" address() -> &str;
    }
    calls! { AnyLock by as_async:
        "Returns whether any client holds the lock" is_locked() -> bool;
        "Returns the lock's holders" inspect() -> LockInfo;
    }

    /// Returns whether `owner` holds the lock; see
    /// [`AnyLock::is_held_by`](crate::AnyLock::is_held_by).
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        self.as_async().is_held_by(owner)
    }
}
