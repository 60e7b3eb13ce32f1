//! What the whole process shows: panics in any task, and its memory.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The memory of this process, in bytes.
pub(crate) fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kb = line.unwrap().split_whitespace().nth(1).unwrap();
    kb.parse::<usize>().unwrap() * 1024
}
