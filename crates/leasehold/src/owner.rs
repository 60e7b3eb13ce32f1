//! The identity of an acquirer, which allows re-entrant acquires.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of an acquirer: the value that makes acquires re-entrant.
///
/// Async acquires are anonymous, so nothing is re-entrant by accident and two branches of a `join!`
/// exclude each other. Code that must be able to acquire a lock that it already holds passes an
/// owner:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let owner = leasehold::Owner::new();
/// let lock = client.lock("orders:42").owned_by(&owner);
/// let outer = lock.acquire().await?;
/// let inner = lock.acquire().await?; // no call to the server
/// assert_eq!(inner.hold_count(), 2);
/// inner.release().await?;
/// outer.release().await?; // the last one frees the lock
/// # Ok(())
/// # }
/// ```
///
/// Each guard adds its own claim to the hold. With a fixed lease, the hold lasts at least that long
/// from the guard's own acquire. The server is asked to extend the hold only if it does not last
/// that long already. When a guard is released or dropped, its claim ends, and the hold may be over
/// at once for the remaining guards.
///
/// An owner does one thing at a time, like a thread. If owners wait for each other in a circle,
/// without a limit, no message would ever end their waits. The acquire that closes the circle fails
/// at once with [`Deadlock`](crate::ErrorKind::Deadlock), and the error names the circle. This
/// works for the owners of one client, and for holds that are renewed. Concurrent branches need one
/// owner each.
///
/// A clone is the same owner. An owner is never sent over the wire: in Redis each hold has its own
/// id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64, Role);

/// The role of an owner under a name. An owner can hold a name in each role at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The whole lock.
    Whole,
    /// The read side of a read-write lock.
    Reader,
    /// The write side of a read-write lock.
    Writer,
}

impl Owner {
    pub(crate) fn in_role(&self, role: Role) -> Self {
        // The role is compared, too: an owner that writes and reads under one name has two holds,
        // and finds each of them by its role.
        Self(self.0, role)
    }

    /// Returns the owner's number, which is the same in all roles.
    pub(crate) fn number(&self) -> u64 {
        self.0
    }

    /// Returns whether `waiter` can't acquire a name while this owner holds it in its role.
    pub(crate) fn excludes(&self, waiter: &Self) -> bool {
        self.0 != waiter.0 && (self.1, waiter.1) != (Role::Reader, Role::Reader)
    }

    /// Returns a new owner, different from all others of this process.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default that differs each time would mislead"
    )]
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self(NUMBERS.fetch_add(1, Ordering::Relaxed), Role::Whole)
    }
}
