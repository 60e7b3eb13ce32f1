//! The holds that a client's guards stand for, also guards that were leaked: what closing the
//! client leaves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::lease::Hold;
use crate::sync::Mutex;

#[derive(Default)]
pub(crate) struct Standing {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    holds: BTreeMap<u64, Weak<Hold>>,
    closed: bool,
}

impl Standing {
    /// A guard stands for it. After the close it is not renewed either.
    pub(crate) fn enter(&self, hold: &Arc<Hold>) {
        let mut table = self.table.lock();
        table.holds.insert(hold.number, Arc::downgrade(hold));
        if table.closed {
            hold.stop_renewing();
        }
    }

    /// No guard stands for it any more.
    pub(crate) fn leave(&self, hold: &Hold) {
        self.table.lock().holds.remove(&hold.number);
    }

    /// From here on none is renewed. Returns those that there are.
    pub(crate) fn close(&self) -> Vec<Arc<Hold>> {
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

    /// How many of them are good.
    pub(crate) fn good(&self) -> usize {
        let table = self.table.lock();
        let holds: Vec<_> = table.holds.values().filter_map(Weak::upgrade).collect();
        drop(table);
        let good = |hold: &&Arc<Hold>| !hold.is_over() && hold.loss().is_none();
        holds.iter().filter(good).count()
    }
}
