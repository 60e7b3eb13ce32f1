//! Shrinks tables: frees memory that was needed for a burst of entries, once few entries remain.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The capacity that a table always keeps.
const MIN_CAPACITY: usize = 1024;

pub(crate) trait ShrinkIfIdle {
    /// Frees unused memory. Must be called after an entry was removed. The call is cheap: it acts
    /// only when most entries have been removed since it last acted.
    fn shrink_if_idle(&mut self);
}

impl<K: Eq + Hash, V> ShrinkIfIdle for HashMap<K, V> {
    fn shrink_if_idle(&mut self) {
        // Shrink only below an eighth, and then to twice the number of entries. Shrinking copies
        // the table, and a table whose size varies must not be copied each time.
        if self.capacity() > MIN_CAPACITY && self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}

impl<T> ShrinkIfIdle for VecDeque<T> {
    fn shrink_if_idle(&mut self) {
        if self.capacity() > MIN_CAPACITY && self.len() < self.capacity() / 8 {
            self.shrink_to(self.len() * 2);
        }
    }
}
