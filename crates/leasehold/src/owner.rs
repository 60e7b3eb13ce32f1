//! Re-entrance: who may enter again, and the table of what each owner holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::config::Terms;
use crate::error::Result;
use crate::guard::Held;
use crate::key::Key;
use crate::lease::Joined;
use crate::room::Room;
use crate::sync::Mutex;

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
        Self(self.0, role)
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

/// One small state machine for each name and owner: free (no slot), acquiring, held. Releasing
/// is no state of its own: the release is queued before the slot is cleared, so the owner's next
/// request runs behind it.
#[derive(Default)]
pub(crate) struct Owners {
    slots: Mutex<HashMap<(Key, Owner), Slot>>,
    changed: Notify,
}

enum Slot {
    Acquiring,
    Held(Arc<Held>),
}

/// What an owner finds that wants a name.
pub(crate) enum Entry {
    /// Nothing: it has to ask the server.
    Ask(Asking),
    /// A hold that it has joined.
    Joined(Arc<Held>, Joined),
    /// Another acquire of the same owner is on its way.
    Acquiring,
}

impl Owners {
    pub(crate) fn enter(self: &Arc<Self>, key: &Key, owner: &Owner, terms: Terms) -> Result<Entry> {
        let id = (key.clone(), owner.clone());
        let mut slots = self.slots.lock();
        match slots.get(&id) {
            Some(Slot::Acquiring) => return Ok(Entry::Acquiring),
            // The owner can't join a hold that is lost. It asks anew, while the guards of the lost
            // hold say that it is lost.
            Some(Slot::Held(held)) => {
                if let Some(joined) = held.hold().join(terms)? {
                    return Ok(Entry::Joined(Arc::clone(held), joined));
                }
            }
            None => {}
        }
        // Under the same lock as the look: of two branches of one owner one asks, and the other
        // waits for what becomes of that.
        slots.insert(id.clone(), Slot::Acquiring);
        Ok(Entry::Ask(Asking {
            owners: Arc::clone(self),
            id,
            has_it: false,
        }))
    }

    /// What the owner holds under this name, in its role.
    pub(crate) fn held(&self, key: &Key, owner: &Owner) -> Option<Arc<Held>> {
        match self.slots.lock().get(&(key.clone(), owner.clone())) {
            Some(Slot::Held(held)) => Some(Arc::clone(held)),
            _ => None,
        }
    }

    /// The last guard of `held` goes.
    pub(crate) fn clear(&self, key: &Key, owner: &Owner, held: &Arc<Held>) {
        let id = (key.clone(), owner.clone());
        let mut slots = self.slots.lock();
        // After a loss the slot may be that of the owner's next hold, or of its next acquire.
        if matches!(slots.get(&id), Some(Slot::Held(there)) if Arc::ptr_eq(there, held)) {
            slots.remove(&id);
            slots.give_back();
        }
    }

    /// Resolves when no other acquire of this owner is on its way.
    pub(crate) async fn settled(&self, key: &Key, owner: &Owner) {
        let id = (key.clone(), owner.clone());
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, or a change between the two would be missed.
            changed.as_mut().enable();
            if !matches!(self.slots.lock().get(&id), Some(Slot::Acquiring)) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

/// An owner's right to ask the server. Dropped without a hold, it leaves the name to the owner's
/// other branches.
pub(crate) struct Asking {
    owners: Arc<Owners>,
    id: (Key, Owner),
    has_it: bool,
}

impl Asking {
    pub(crate) fn holds(mut self, held: &Arc<Held>) {
        self.has_it = true;
        self.owners
            .slots
            .lock()
            .insert(self.id.clone(), Slot::Held(Arc::clone(held)));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.has_it {
            let mut slots = self.owners.slots.lock();
            slots.remove(&self.id);
            slots.give_back();
        }
        // In both cases: the owner's other branches join the hold, or one of them asks.
        self.owners.changed.notify_waiters();
    }
}
