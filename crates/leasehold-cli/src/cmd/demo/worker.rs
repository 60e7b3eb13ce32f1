//! A worker: sells until nothing is left. A task and a process run the same code.

use std::time::Duration;

use leasehold::testing::history::monotonic_ns;
use leasehold::{ErrorKind, Lock, LockGuard};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::event::Event;
use super::stock::Stock;
use crate::failure::Failure;

/// The interval at which a holder reports renewals.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// The longest time that a victim waits to be killed.
const LINGER: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    /// The number of the worker, from 1.
    pub(super) number: usize,
    pub(super) stock: Stock,
    pub(super) lock: Option<Lock>,
    pub(super) pause: Duration,
    /// Number of items that are left when a worker stops and waits to be killed.
    pub(super) victim_at: Option<u64>,
    /// Maximum number of items that the worker sells.
    pub(super) limit: u64,
    /// The channel that kills a worker that is a task. When it resolves, the worker must stop
    /// without cleaning up.
    pub(super) killed: Option<oneshot::Receiver<()>>,
}

/// The way in which a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Done,
    Killed,
}

impl Worker {
    /// Sells until nothing is left, and reports each step.
    pub(super) async fn sell(
        mut self,
        mut report: impl FnMut(Event) -> Result<(), Failure>,
    ) -> Result<Finish, Failure> {
        let mut serial = 0;
        loop {
            report(Event::Asked { at: monotonic_ns() })?;
            let mut hold = Hold::new(match &self.lock {
                Some(lock) => Some(lock.acquire().await?),
                None => None,
            });
            report(Event::Acquired {
                at: monotonic_ns(),
                valid_until: hold.valid_until(),
            })?;
            let mut shelf = self.stock.read()?;
            let done = shelf.left == 0 || serial == self.limit;
            if !done {
                if self.work(&mut hold, shelf.left, &mut report).await? == Finish::Killed {
                    hold.leave_behind();
                    return Ok(Finish::Killed);
                }
                if hold.is_lost() {
                    report(Event::Lost { at: monotonic_ns() })?;
                    continue;
                }
                serial += 1;
                shelf.left -= 1;
                shelf.ledger.push((self.number, serial));
                self.stock.write(self.number, &shelf)?;
                report(Event::Sold { serial })?;
            }
            report(Event::Releasing {
                at: monotonic_ns(),
                valid_until: hold.valid_until(),
            })?;
            hold.release().await?;
            if done {
                return Ok(Finish::Done);
            }
            if self.lock.is_some() {
                sleep(self.rest()).await;
            }
        }
    }

    /// Returns the time until the next customer. Without this pause, the worker that releases the
    /// lock would be the first to request it again, and each worker would sell many items in a row.
    fn rest(&self) -> Duration {
        self.pause.mul_f64(0.5 + fastrand::f64())
    }

    /// Waits between reading and writing the stock. Without a lock, other workers read the same
    /// stock during this time.
    async fn work(
        &mut self,
        hold: &mut Hold,
        left: u64,
        report: &mut impl FnMut(Event) -> Result<(), Failure>,
    ) -> Result<Finish, Failure> {
        let mut end = Instant::now() + self.pause;
        // Lingering makes sure that the kill happens in the middle of a sale.
        if self.victim_at == Some(left) && self.stock.become_victim() {
            report(Event::Lingering { at: monotonic_ns() })?;
            end += LINGER;
        }
        let mut told = hold.valid_until();
        while Instant::now() < end {
            let next = end.min(Instant::now() + TELL_EVERY);
            tokio::select! {
                biased;
                () = killed(&mut self.killed) => return Ok(Finish::Killed),
                () = sleep_until(next) => {}
            }
            let valid_until = hold.valid_until();
            // The deadline is computed from two clocks that are read one after the other. So a
            // slightly later deadline does not mean that the hold was renewed.
            if valid_until > told.saturating_add(1_000_000) {
                told = valid_until;
                report(Event::Renewed { valid_until })?;
            }
        }
        Ok(Finish::Done)
    }
}

async fn killed(killed: &mut Option<oneshot::Receiver<()>>) {
    match killed {
        // A dropped sender does not kill the worker.
        Some(receiver) => match receiver.await {
            Ok(()) => {}
            Err(_) => {
                *killed = None;
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

/// A hold, or the lack of one with `--no-lock`.
struct Hold {
    guard: Option<LockGuard>,
    /// The deadline at the last reading.
    valid_until: u64,
}

impl Hold {
    fn new(guard: Option<LockGuard>) -> Self {
        let mut hold = Self {
            guard,
            valid_until: 0,
        };
        hold.valid_until();
        hold
    }

    /// Returns the deadline of the hold, on the clock that events use. After a loss, this is the
    /// deadline at the last reading.
    fn valid_until(&mut self) -> u64 {
        self.valid_until = match &self.guard {
            None => u64::MAX,
            Some(guard) => {
                let now = monotonic_ns();
                let left = guard
                    .valid_until()
                    .saturating_duration_since(Instant::now());
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                // Check this after `left` was computed: once the deadline has passed, `left` is zero,
                // and the sum would be the present time.
                if guard.is_held() {
                    now.saturating_add(left)
                } else {
                    self.valid_until
                }
            }
        };
        self.valid_until
    }

    fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| !guard.is_held())
    }

    async fn release(self) -> Result<(), Failure> {
        match self.guard {
            Some(guard) => match guard.release().await {
                // The sale was written while the lock was held.
                Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
                result => Ok(result?),
            },
            None => Ok(()),
        }
    }

    /// Abandons the hold as a killed process would: neither releases nor renews it.
    fn leave_behind(self) {
        if let Some(guard) = self.guard {
            guard.forget();
        }
    }
}
