//! What the whole process shows: panics in any task, and its memory.

use std::alloc::System;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Mutex;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics from here on, also those of background tasks, which nobody joins.
pub(crate) fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(panic);
        }));
    });
}

pub(crate) fn assert_no_panics() {
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a task panicked");
}

/// Whoever measures the process's memory is the only one who uses much of it.
pub(crate) static MEASURING: Mutex<()> = Mutex::const_new(());

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The bytes that this process has allocated and not freed. What the allocator keeps for later
/// is not counted: it depends on the machine's cores.
pub(crate) fn memory() -> usize {
    let stats = COUNTED.stats();
    stats
        .bytes_allocated
        .saturating_sub(stats.bytes_deallocated)
}
