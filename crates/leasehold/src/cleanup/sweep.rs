//! When a table is looked through for what is not needed any more.

/// Counts what comes into a table by name, so that looking through it costs each of them
/// next to nothing, and what stays is bounded.
#[derive(Default)]
pub(crate) struct Sweep {
    new: usize,
}

impl Sweep {
    /// One more has come into a table of so many. `true` if it is time to look through it.
    pub(crate) fn is_due(&mut self, len: usize) -> bool {
        self.new += 1;
        let due = self.new > 1024.max(len / 2);
        if due {
            self.new = 0;
        }
        due
    }
}
