//! Room that a burst needed: given back when few are left.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// So much room is kept, whatever it is for.
const KEPT: usize = 1024;

pub(crate) trait Room {
    /// To be called when something was taken out. Costs next to nothing each time: it acts
    /// when most of what was there has gone since it did so last.
    fn give_back(&mut self);
}

impl<K: Eq + Hash, V> Room for HashMap<K, V> {
    fn give_back(&mut self) {
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
