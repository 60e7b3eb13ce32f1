//! When a table is looked through for entries that are no longer needed.

/// Counts the names that come into a table, so that looking through it costs each of them next
/// to nothing, and the table stays bounded.
#[derive(Default)]
pub(crate) struct Sweep {
    new: usize,
}

impl Sweep {
    /// One more name has come into a table of `len`. `true` if it is time to look through it.
    pub(crate) fn is_due(&mut self, len: usize) -> bool {
        self.new += 1;
        let due = self.new > 1024.max(len / 2);
        if due {
            self.new = 0;
        }
        due
    }
}
