//! Machines that sleep while their clients are connected to real servers.

/// Puts the machine of this runtime's clients to sleep until `meanwhile` returns. As in a sleep, no
/// task runs and the runtime's clock stops, but the servers and the boot clock continue. The
/// runtime must have only one thread.
pub(crate) fn asleep<T>(meanwhile: impl FnOnce() -> T) -> T {
    tokio::time::pause();
    let done = meanwhile();
    tokio::time::resume();
    done
}
