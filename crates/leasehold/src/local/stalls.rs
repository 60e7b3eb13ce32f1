//! The stall checks, which search for waiters that were woken but are not polled.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::line::WaitLine;
use crate::clock::Clock;
use crate::sync::Mutex;

/// The interval at which lines with a woken waiter are checked. A waiter that two checks in a row
/// find woken but not polled is passed over. One check would not be enough: after a pause of the
/// whole runtime, the first check may run before the waiter's poll.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The lines of a client in which a waiter was woken.
pub(super) struct StallCheck {
    due: Mutex<LinesToCheck>,
    runtime: Handle,
    clock: Clock,
}

#[derive(Default)]
struct LinesToCheck {
    lines: Vec<Arc<WaitLine>>,
    /// Whether a task checks them.
    running: bool,
}

impl StallCheck {
    pub(super) fn new(runtime: Handle, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            due: Mutex::default(),
            runtime,
            clock,
        })
    }

    /// Starts checks of this line, until each woken waiter was polled or passed over.
    pub(super) fn add(self: &Arc<Self>, line: &Arc<WaitLine>) {
        let mut due = self.due.lock();
        due.lines.push(Arc::clone(line));
        let starts = !std::mem::replace(&mut due.running, true);
        // Unlock first: a runtime that has ended drops the task at once, and `StallCheckTask::drop`
        // takes this lock.
        drop(due);
        if starts {
            let task = StallCheckTask(Some(Arc::clone(self)));
            self.runtime.spawn(task.run());
        }
    }

    /// Checks each line once. Returns `false` if no line must be checked again.
    fn check(&self) -> bool {
        // Check the lines without this lock: a check wakes waiters, and their wakers take the lock
        // (`add`).
        let mut lines = std::mem::take(&mut self.due.lock().lines);
        let now = self.clock.now();
        lines.retain(|line| line.check_stalls(now));
        // Decide under the lock whether the task continues: a thread that adds a line finds this
        // task running, or starts one.
        let mut due = self.due.lock();
        due.lines.append(&mut lines);
        due.running = !due.lines.is_empty();
        due.running
    }
}

/// The task that checks the lines.
struct StallCheckTask(Option<Arc<StallCheck>>);

impl StallCheckTask {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if !self
                .0
                .as_ref()
                .is_some_and(|stall_check| stall_check.check())
            {
                // From now on, another task may run. `drop` must not clear the lines of that task.
                self.0 = None;
                return;
            }
        }
    }
}

impl Drop for StallCheckTask {
    fn drop(&mut self) {
        // The task was dropped with its runtime, so no waiter is passed over any more.
        if let Some(stall_check) = self.0.take() {
            // Drop the lines after unlocking: what is dropped with a line may take this lock.
            let remaining = std::mem::take(&mut *stall_check.due.lock());
            drop(remaining);
        }
    }
}
