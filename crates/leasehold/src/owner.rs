//! Who may enter again.

use std::sync::atomic::{AtomicU64, Ordering};

/// Who acquires: the value that makes acquires re-entrant.
///
/// Async acquires are anonymous, so nothing is re-entrant by accident and two
/// branches of a `join!` exclude each other. Code that must be able to acquire
/// what it already holds passes an owner along:
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
/// Each guard adds what it asked for: with a fixed lease so much from its own acquire, for
/// which the server is asked unless the hold is good for as long already. When the guard
/// goes, so does what it added; the others may be over at once then.
///
/// An owner does one thing at a time, as a thread does. If it waits without a limit for an owner
/// that waits, in the end, for it, no message would ever end that: the acquire that closes the circle
/// ends at once with [`Deadlock`](crate::ErrorKind::Deadlock), and the error names the circle. That is
/// known for the owners of one client, and for holds that are renewed. So branches that go on side by
/// side need an owner each.
///
/// A clone is the same owner. Nothing of it goes over the wire: in Redis each
/// hold has an id of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64, Role);

/// What an owner is to a name: it can hold it in each of these at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// All of it.
    Whole,
    /// To read, of a read-write lock.
    Reader,
    /// To write, of a read-write lock.
    Writer,
}

impl Owner {
    pub(crate) fn in_role(&self, role: Role) -> Self {
        // The role is compared, too: an owner that writes and reads under one name has two holds,
        // and finds each of them by its role.
        Self(self.0, role)
    }

    /// The same in all roles.
    pub(crate) fn number(&self) -> u64 {
        self.0
    }

    /// Whether `waiter` can't have a name while this one has it in its role.
    pub(crate) fn excludes(&self, waiter: &Self) -> bool {
        self.0 != waiter.0 && (self.1, waiter.1) != (Role::Reader, Role::Reader)
    }

    /// A new owner, different from all others of this process.
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
