//! The identity of an acquirer, which allows re-entrant acquires.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of an acquirer: the value that makes acquires re-entrant.
///
/// An async acquire without an owner does not belong to a task or a thread. So no lock is
/// re-entrant by accident, and two branches of a `join!` exclude each other. Code that must be able
/// to acquire a lock that it already holds passes an owner to [`owned_by`](crate::Lock::owned_by):
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let owner = leasehold::Owner::new();
/// let lock = client.lock("orders:42").owned_by(&owner);
/// let outer = lock.acquire().await?;
/// let inner = lock.acquire().await?; // sends no request
/// assert_eq!(inner.hold_count(), 2);
/// inner.release().await?;
/// outer.release().await?; // the last guard releases the lock
/// # Ok(())
/// # }
/// ```
///
/// All guards of an owner for one lock share one hold. If a guard was acquired with a fixed lease,
/// the hold lasts for at least this lease from the acquire of that guard. The client asks the
/// server to extend the hold only if the hold would end earlier. When that guard is released or
/// dropped, its lease no longer counts. If the leases of all remaining guards have expired at that
/// time, the hold ends.
///
/// An owner does one thing at a time, like a thread: concurrent branches need an owner each. If
/// owners waited for each other in a circle, without a time limit, their waits would never end. So
/// the acquire that would close the circle fails at once with
/// [`Deadlock`](crate::ErrorKind::Deadlock), and the error names the locks of the circle. The
/// client finds such circles only among its own owners, and only among holds that are renewed.
///
/// A handle with [`non_reentrant`](crate::Lock::non_reentrant) does not re-enter: a second acquire
/// by its owner fails, or waits, as if it were another owner's.
///
/// A clone is the same owner. An owner is never sent to the server, where each hold has its own id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    number: u64,
    role: Role,
    /// The number of the only acquire that uses this identity. Zero for an identity that re-enters
    /// its holds.
    acquire: u64,
}

/// The role of an owner under a name. An owner can hold a name in each role at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The only side of an exclusive lock.
    Exclusive,
    /// The read side of a read-write lock.
    Reader,
    /// The write side of a read-write lock.
    Writer,
}

impl Owner {
    pub(crate) fn in_role(&self, role: Role) -> Self {
        // The role is compared, too: an owner that writes and reads under one name has two holds,
        // and finds each of them by its role.
        Self {
            role,
            ..self.clone()
        }
    }

    /// Returns the owner's number, which is the same in all roles.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns an identity of this owner for one acquire, which does not re-enter the owner's
    /// holds. `None` if this is already such an identity.
    pub(crate) fn for_one_acquire(&self) -> Option<Self> {
        static ACQUIRES: AtomicU64 = AtomicU64::new(1);
        self.reenters().then(|| Self {
            acquire: ACQUIRES.fetch_add(1, Ordering::Relaxed),
            ..self.clone()
        })
    }

    /// Returns whether this identity re-enters its holds.
    pub(crate) fn reenters(&self) -> bool {
        self.acquire == 0
    }

    /// Returns whether this is the same owner as `other`, in the same role. The acquires of the two
    /// identities may differ.
    pub(crate) fn is_owner_of(&self, other: &Self) -> bool {
        (self.number, self.role) == (other.number, other.role)
    }

    /// Returns whether a hold of this owner, in its role, keeps `waiter` from acquiring the same
    /// name.
    pub(crate) fn excludes(&self, waiter: &Self) -> bool {
        let is_other = (self.number, self.acquire) != (waiter.number, waiter.acquire);
        is_other && (self.role, waiter.role) != (Role::Reader, Role::Reader)
    }

    /// Returns a new owner, different from all other owners of this process.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default that differs each time would mislead"
    )]
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            role: Role::Exclusive,
            acquire: 0,
        }
    }
}
