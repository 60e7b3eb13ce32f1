//! A worker: sells until nothing is left. The same code in a task and in a process.

use std::time::Duration;

use leasehold::testing::history::monotonic_ns;
use leasehold::{ErrorKind, Lock, LockGuard};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::event::Event;
use super::stock::Stock;
use crate::failure::Failure;

/// How often a holder says that its hold was renewed.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// How long a victim waits for its end.
const LINGER: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    /// From 1.
    pub(super) number: usize,
    pub(super) stock: Stock,
    pub(super) lock: Option<Lock>,
    pub(super) pause: Duration,
    /// How much is left when a worker waits to be killed.
    pub(super) victim_at: Option<u64>,
    /// How much it sells at most.
    pub(super) limit: u64,
    /// Kills a worker that is no process. It resolves when the worker must leave
    /// everything as it is.
    pub(super) killed: Option<oneshot::Receiver<()>>,
}

/// How a worker's work has ended.
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

    /// The time until the next customer. Without it whoever releases is the first to
    /// ask again, and the picture would show one worker after the other.
    fn rest(&self) -> Duration {
        self.pause.mul_f64(0.5 + fastrand::f64())
    }

    /// The time between reading and writing, in which others would read the same.
    async fn work(
        &mut self,
        hold: &mut Hold,
        left: u64,
        report: &mut impl FnMut(Event) -> Result<(), Failure>,
    ) -> Result<Finish, Failure> {
        let mut end = Instant::now() + self.pause;
        // Lingering makes sure that the kill comes in the middle of a sale.
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
            // Read off two clocks one after the other: a little later is no renewal.
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
        // A sender that is gone kills nobody.
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
    /// The deadline that was read last.
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

    /// Until when it is good, on the clock of the events; of one that is lost, until
    /// when it was.
    fn valid_until(&mut self) -> u64 {
        self.valid_until = match &self.guard {
            None => u64::MAX,
            Some(guard) => {
                let now = monotonic_ns();
                let left = guard
                    .valid_until()
                    .saturating_duration_since(Instant::now());
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                // Asked after the reading: a deadline in the past reads as the
                // present.
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
                // The sale was written while it was held.
                Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
                result => Ok(result?),
            },
            None => Ok(()),
        }
    }

    /// What a killed process does: neither release nor renew.
    fn leave_behind(self) {
        if let Some(guard) = self.guard {
            guard.forget();
        }
    }
}
