//! Calls into code that is not ours: hooks, the recorder of the `metrics` facade, and the
//! subscriber of `tracing`.
//!
//! These calls run in the tasks that renew holds and grant them to waiters. A panic there would
//! also lose other holds. The client holds no mutex during a call, because the code may do
//! anything.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// The panics of one hook, or of the recorder or the subscriber.
#[derive(Debug)]
pub(super) struct Panics {
    what: &'static str,
    count: AtomicU64,
}

impl Panics {
    pub(super) const fn of(what: &'static str) -> Self {
        Self {
            what,
            count: AtomicU64::new(0),
        }
    }

    /// Runs `code`; `None` if it panics. Panics are logged the first, second, fourth, eighth time
    /// and so on: code that always panics must not fill a disk.
    pub(super) fn catch<T>(&self, code: impl FnOnce() -> T) -> Option<T> {
        let panic = match catch_unwind(AssertUnwindSafe(code)) {
            Ok(output) => return Some(output),
            Err(panic) => panic,
        };
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            // The log itself may panic.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let (what, panic) = (self.what, text(&*panic));
                tracing::error!(what, panic, count, "a callback panicked");
            }));
        }
        // Dropping the payload of the panic may panic, too, and nothing would catch that panic.
        std::mem::forget(panic);
        None
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_the_next_call_runs() {
        let panics = Panics::of("a test");
        assert_eq!(panics.catch(|| -> u8 { panic!("on purpose") }), None);
        assert_eq!(panics.catch(|| 7), Some(7));
        assert_eq!(panics.count.load(Ordering::Relaxed), 1);
    }
}
