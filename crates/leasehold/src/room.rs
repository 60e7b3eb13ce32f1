//! Memory that a table needed in a burst: given back when few entries are left.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The capacity that a table keeps in any case.
const KEPT: usize = 1024;

pub(crate) trait Room {
    /// To be called when an entry was taken out. It costs next to nothing: it acts only when most
    /// entries have gone since it acted last.
    fn give_back(&mut self);
}

impl<K: Eq + Hash, V> Room for HashMap<K, V> {
    fn give_back(&mut self) {
        // Only at an eighth, and then to twice the entries: shrinking copies the table, and a table
        // whose size goes up and down must not pay for that each time.
        if self.capacity() > KEPT && self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}

impl<T> Room for VecDeque<T> {
    fn give_back(&mut self) {
        if self.capacity() > KEPT && self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}
