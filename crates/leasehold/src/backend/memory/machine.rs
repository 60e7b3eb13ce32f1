//! A machine that tests put to sleep.

use std::fmt;
use std::time::Duration;

use super::{Embedded, Memory};
use crate::clock::{Clock, MachineClock};

/// A machine that a test puts to sleep, for tests of what a holder does when it wakes up.
///
/// While a machine sleeps, the timers of its programs stand still, and the leases of its locks do
/// not. [`sleep`](Self::sleep) does the same to the keyspaces and clients of this machine: their
/// clock jumps, and tokio's clock stays where it is.
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
/// // Told by the first look at the clock, not when the timers have reached the end of the lease.
/// let told = tokio::time::timeout(Duration::from_millis(500), guard.lost()).await;
/// assert!(told.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Machine(&'static MachineClock);

impl Machine {
    /// A machine that is awake.
    #[must_use]
    pub fn new() -> Self {
        // Never freed, because a clock is copied into each hold. A test has few machines.
        Self(Box::leak(Box::new(MachineClock::new())))
    }

    /// Makes an empty keyspace whose leases, and clients, go by this machine's clock.
    #[must_use]
    pub fn embedded(self) -> Embedded {
        Embedded {
            memory: Memory::on(Clock::Machine(self.0)),
        }
    }

    /// Lets the machine sleep for `span`. When this returns, it is awake again.
    pub fn sleep(self, span: Duration) {
        self.0.sleeps(span);
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
