//! The process to which a client belongs. A fork copies a client with its connections and the ids
//! of its holds, and the copy must not act for the client.

use crate::sync::{Mutex, MutexGuard};

/// The process in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn own() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this code runs in another process: in a child after a fork. A child with the
    /// same process id as its parent, which is possible in a new PID namespace, is not recognised.
    // This needs a system call each time: a fork leaves no trace in memory that safe code could
    // read.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::own()
    }

    /// Locks a mutex of this process. `None` in a child if another thread of the parent had the
    /// mutex locked at the fork: that thread does not exist in the child, which would wait forever.
    /// This is cheap enough for frequent drops: it makes a system call only if the mutex is locked.
    pub(crate) fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        let free = mutex.try_lock();
        free.or_else(|| (!self.is_forked()).then(|| mutex.lock()))
    }
}
