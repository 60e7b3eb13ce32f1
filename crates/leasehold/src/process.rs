//! The process that something belongs to. A fork copies a client with its connections and the ids of
//! its holds, and the copy must not speak for it.

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn own() -> Self {
        Self(std::process::id())
    }

    /// Whether this code runs in another one: in a child after a fork. A child with the number of its
    /// parent, which it can have in a new PID namespace, goes unnoticed.
    // A system call each time, because a fork leaves no trace in memory that safe code could read.
    pub(crate) fn is_gone(self) -> bool {
        self != Self::own()
    }
}
