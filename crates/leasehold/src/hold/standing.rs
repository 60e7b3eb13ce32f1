//! The holds of a client's guards, leaked guards included. Closing the client leaves them to
//! their leases.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::{Grant, Hold};
use crate::sync::Mutex;

#[derive(Default)]
pub(crate) struct Standing {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    holds: BTreeMap<u64, Weak<Grant>>,
    closed: bool,
}

impl Standing {
    /// A guard has this hold from now on.
    pub(crate) fn enter(&self, hold: &Hold) {
        // Under the lock under which the client is closed: a hold that is granted meanwhile is
        // in the table by then, or finds the client closed. Else it would be renewed on.
        let mut table = self.table.lock();
        table.holds.insert(hold.number, Arc::downgrade(hold));
        if table.closed {
            hold.stop_renewing();
        }
    }

    /// No guard has it any more.
    pub(crate) fn leave(&self, hold: &Hold) {
        self.table.lock().holds.remove(&hold.number);
    }

    /// From here on no hold is renewed. Returns those that guards have.
    pub(crate) fn close(&self) -> Vec<Arc<Grant>> {
        let mut table = self.table.lock();
        table.closed = true;
        let holds: Vec<_> = table.holds.values().filter_map(Weak::upgrade).collect();
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

    /// How many of them are valid.
    pub(crate) fn good(&self) -> usize {
        let table = self.table.lock();
        let holds: Vec<_> = table.holds.values().filter_map(Weak::upgrade).collect();
        drop(table);
        let good = |hold: &&Arc<Grant>| !hold.is_over() && hold.loss().is_none();
        holds.iter().filter(good).count()
    }
}
