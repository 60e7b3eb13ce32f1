//! The holds of a client's guards, including leaked guards. When the client is closed, they are
//! left to expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use super::{Grant, Hold};
use crate::sync::Mutex;

#[derive(Default)]
pub(crate) struct LiveHolds {
    table: Mutex<LiveHoldsTable>,
}

#[derive(Default)]
struct LiveHoldsTable {
    holds: BTreeMap<u64, Weak<Grant>>,
    closed: bool,
    /// Notified of the next hold.
    awaited: Option<oneshot::Sender<()>>,
}

impl LiveHoldsTable {
    /// Returns the grants whose hold is in the table, and the other grants, which the caller must
    /// drop after unlocking: one of them may be the last reference.
    fn all(&self) -> (Vec<Arc<Grant>>, Vec<Arc<Grant>>) {
        let (mut current, mut others) = (Vec::new(), Vec::new());
        for (number, grant) in &self.holds {
            let Some(grant) = grant.upgrade() else {
                continue;
            };
            // A guard that has handed its hold over may still wait for the server's confirmation.
            // The hold belongs to the next guard.
            match grant.hold_number() == *number {
                true => current.push(grant),
                false => others.push(grant),
            }
        }
        (current, others)
    }
}

impl LiveHolds {
    /// Adds a hold that a guard now has.
    pub(crate) fn insert(&self, hold: &Hold) {
        // Closing the client takes the same lock: a hold that is granted at the same time is
        // already in the table, or finds the client closed. Otherwise its renewal would continue.
        let mut table = self.table.lock();
        table.holds.insert(hold.number, Arc::downgrade(hold));
        if table.closed {
            hold.stop_renewing();
        }
        let awaited = table.awaited.take();
        drop(table);
        if let Some(awaited) = awaited {
            // If this fails, the waiter no longer exists.
            let _ = awaited.send(());
        }
    }

    /// Resolves when a guard has a hold.
    pub(crate) fn wait_for_any(&self) -> oneshot::Receiver<()> {
        let (sender, received) = oneshot::channel();
        let mut table = self.table.lock();
        if table.holds.is_empty() {
            table.awaited = Some(sender);
        } else {
            let _ = sender.send(());
        }
        received
    }

    /// Removes a hold that no guard has any longer.
    pub(crate) fn remove(&self, hold: &Hold) {
        self.table.lock().holds.remove(&hold.number);
    }

    /// Stops the renewal of all holds, and returns the holds that guards have.
    pub(crate) fn close(&self) -> Vec<Arc<Grant>> {
        let mut table = self.table.lock();
        table.closed = true;
        let (holds, _handed_over) = table.all();
        for hold in &holds {
            hold.stop_renewing();
        }
        drop(table);
        holds
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().holds.len()
    }

    /// Returns all holds that were neither released nor left to expire.
    pub(crate) fn all(&self) -> Vec<Arc<Grant>> {
        let (mut holds, _handed_over) = self.table.lock().all();
        holds.retain(|hold| !hold.is_over());
        holds
    }

    /// Returns the number of valid holds.
    pub(crate) fn count_valid(&self) -> usize {
        let holds = self.all();
        holds.iter().filter(|hold| hold.loss().is_none()).count()
    }
}
