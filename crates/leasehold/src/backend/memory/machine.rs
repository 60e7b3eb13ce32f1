//! A machine that tests put to sleep.

use std::fmt;
use std::time::Duration;

use super::{Embedded, Memory};
use crate::clock::{Clock, MachineClock};

/// A machine that a test can put to sleep, to find out what a holder does when the machine wakes
/// up.
///
/// While a real machine sleeps, the timers of its programs stop, but the leases of its locks
/// continue. [`sleep`](Self::sleep) has the same effect on the keyspaces and clients of this
/// machine: their clock jumps ahead, but tokio's clock does not move.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let machine = leasehold::testing::Machine::new();
/// let client = machine.embedded().client();
/// let guard = client.lock("orders:42").acquire().await?;
/// machine.sleep(Duration::from_secs(3600));
/// // The loss is reported long before tokio's timers reach the end of the lease.
/// let told = tokio::time::timeout(Duration::from_millis(500), guard.lost()).await;
/// assert!(told.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Machine(&'static MachineClock);

impl Machine {
    /// Makes a machine that is awake.
    #[must_use]
    pub fn new() -> Self {
        // The clock is never freed, because each hold has a reference to it. A test has few
        // machines.
        Self(Box::leak(Box::new(MachineClock::new())))
    }

    /// Makes an empty keyspace. Its leases and its clients use this machine's clock.
    #[must_use]
    pub fn embedded(self) -> Embedded {
        Embedded {
            memory: Memory::on(Clock::Machine(self.0)),
        }
    }

    /// Lets the machine sleep for `span`. When the call returns, the machine is awake again.
    pub fn sleep(self, span: Duration) {
        self.0.sleep_for(span);
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}
