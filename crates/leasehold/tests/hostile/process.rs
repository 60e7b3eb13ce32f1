//! The state of the whole process: panics in any task, and its memory.

use std::alloc::System;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Mutex;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics from here on, including panics in background tasks that are never joined.
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

/// The lock of tests that measure the process's memory. No other test may use much of it at that
/// time.
pub(crate) static MEASURING: Mutex<()> = Mutex::const_new(());

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the bytes that this process has allocated and not freed. Memory that the allocator keeps
/// for later is not counted: it depends on the machine's cores.
pub(crate) fn memory() -> usize {
    let stats = COUNTED.stats();
    stats
        .bytes_allocated
        .saturating_sub(stats.bytes_deallocated)
}
