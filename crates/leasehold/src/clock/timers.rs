//! Sleeps until a time on the clock that measures the validity of holds. They work with any
//! executor.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::alarms::Nap;
use super::{Clock, Moment};
use crate::process::Process;

/// The interval at which the client's clock is compared with the runtime's clock. After the machine
/// has slept, a sleep ends late by at most this interval.
const NAP: Duration = Duration::from_millis(200);
/// The minimum difference between these two clocks that counts as a sleep of the machine.
const MIN_JUMP: Duration = Duration::from_millis(1);
/// The longest timer. A timer that ends far in the future overflows in the runtime.
const MAX_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// The timers of one client. Clones share them.
///
/// A timer of the runtime stops while the machine sleeps, so it is only a hint to check the
/// client's clock. While there are long sleeps, a task of the client naps, compares the two clocks,
/// and wakes all sleepers when the machine has slept. One task does this for all: naps for each
/// hold and each waiter would cause thousands of wake-ups a second.
#[derive(Clone, Debug)]
pub(crate) struct Timers(Arc<TimersShared>);

#[derive(Debug)]
struct TimersShared {
    clock: Clock,
    runtime: Handle,
    /// The process of the runtime. A forked child has none of the threads that drive the runtime.
    process: Process,
    /// The instant on the runtime's clock at which the comparison starts.
    start: Instant,
    /// The number of sleeps that are longer than a nap.
    sleepers: AtomicUsize,
    /// Whether a task compares the clocks.
    watched: AtomicBool,
    /// Notified when the machine has slept.
    slept: Notify,
}

impl Timers {
    /// Returns the timers of a client whose tasks run on `runtime`.
    pub(crate) fn new(clock: Clock, runtime: Handle) -> Self {
        Self(Arc::new(TimersShared {
            clock,
            runtime,
            process: Process::own(),
            start: Instant::now(),
            sleepers: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
            slept: Notify::new(),
        }))
    }

    pub(crate) fn now(&self) -> Moment {
        self.0.clock.now()
    }

    pub(crate) async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// Sleeps until the clock has reached `moment`.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        let mut has_napped = false;
        loop {
            let remaining = moment.saturating_sub(self.now());
            if remaining.is_zero() {
                return;
            }
            if !self.are_here() {
                // Boxed, so that all other futures stay small.
                Box::pin(self.sleep_elsewhere(remaining)).await;
            } else if !self.0.clock.can_jump() {
                tokio::time::sleep(remaining.min(MAX_SLEEP)).await;
            } else if !has_napped {
                // Most sleeps end within a nap, and need no other wake-up.
                has_napped = true;
                tokio::time::sleep(remaining.min(NAP)).await;
            } else {
                // Boxed: a few bytes for each sleep add up in a future that contains many waits.
                Box::pin(self.sleep_long(moment)).await;
            }
        }
    }

    /// Returns the output of `work`, or `None` if the work takes longer than `limit`.
    pub(crate) async fn timeout<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            output = work => Some(output),
            () = self.sleep(limit) => None,
        }
    }

    /// Sleeps until `moment`, or until the machine has slept.
    async fn sleep_long(&self, moment: Moment) {
        let mut slept = pin!(self.0.slept.notified());
        // Register before the clock is read. Otherwise a sleep of the machine between the two would
        // be missed.
        slept.as_mut().enable();
        let _sleeper = Sleeper::new(&self.0);
        let remaining = moment.saturating_sub(self.now());
        tokio::select! {
            biased;
            () = slept => {}
            () = tokio::time::sleep(remaining.min(MAX_SLEEP)) => {}
        }
    }

    /// Returns whether the caller is polled by the client's runtime, whose timers work. Another
    /// runtime may not have timers, and a forked child has none of the threads that drive them.
    pub(crate) fn are_here(&self) -> bool {
        let is_own = |here: Handle| here.id() == self.0.runtime.id();
        Handle::try_current().is_ok_and(is_own) && !self.0.process.is_forked()
    }

    /// Sleeps for at most `remaining`, outside of the client's runtime.
    async fn sleep_elsewhere(&self, remaining: Duration) {
        match self.0.clock {
            Clock::Boot => Nap::new(remaining).await,
            // A paused clock only moves when all tasks of its runtime wait for timers of that
            // runtime. A runtime whose clock can be paused has timers.
            _ if is_paused() => tokio::time::sleep(remaining.min(MAX_SLEEP)).await,
            _ => Nap::new(remaining.min(NAP)).await,
        }
    }
}

/// Returns whether a test has paused the clock of the runtime that polls the caller.
#[expect(clippy::disallowed_methods, reason = "it is compared with tokio's")]
fn is_paused() -> bool {
    let (tokio_time, real) = (Instant::now(), std::time::Instant::now());
    while real.elapsed() < Duration::from_micros(1) {}
    Instant::now() == tokio_time
}

/// A long sleep that is counted in `sleepers`.
struct Sleeper<'a>(&'a TimersShared);

impl<'a> Sleeper<'a> {
    fn new(shared: &'a Arc<TimersShared>) -> Self {
        shared.sleepers.fetch_add(1, Ordering::SeqCst);
        if !shared.watched.swap(true, Ordering::SeqCst) {
            // Read the clocks here before the sleeper reads them, so that no sleep of the machine
            // is missed.
            let watch = ClockWatch {
                ahead: shared.ahead(),
                shared: Arc::clone(shared),
                is_needed: true,
            };
            shared.runtime.spawn(watch.run());
        }
        Self(shared)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The task that compares the clocks while there are long sleeps.
struct ClockWatch {
    shared: Arc<TimersShared>,
    /// The client's clock, as last compared, minus the time since [`TimersShared::start`] on the
    /// runtime's clock. This difference grows when the machine has slept, because the runtime's
    /// clock stops meanwhile.
    ahead: Moment,
    is_needed: bool,
}

impl ClockWatch {
    async fn run(mut self) {
        while self.is_needed {
            tokio::time::sleep(NAP).await;
            let ahead = self.shared.ahead();
            if ahead > self.ahead + MIN_JUMP {
                self.shared.slept.notify_waiters();
                self.ahead = ahead;
            }
            // A test that pauses the runtime's clock moves that clock ahead.
            self.ahead = self.ahead.min(ahead);
            self.is_needed = self.shared.is_still_watched();
        }
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        // The task is dropped when its runtime ends. A sleeper that another runtime polls must not
        // poll its timer of the ended runtime again, so it is woken here.
        if self.is_needed {
            self.shared.slept.notify_waiters();
        }
    }
}

impl TimersShared {
    fn ahead(&self) -> Moment {
        loop {
            let before = Instant::now();
            let now = self.clock.now();
            // A thread that is stopped between the two reads looks like a machine that slept.
            if before.elapsed() < MIN_JUMP {
                return now - before.saturating_duration_since(self.start);
            }
        }
    }

    /// Returns whether the task that compares the clocks continues.
    fn is_still_watched(&self) -> bool {
        let is_needed = || self.sleepers.load(Ordering::SeqCst) > 0;
        if is_needed() {
            return true;
        }
        self.watched.store(false, Ordering::SeqCst);
        // A sleeper that was counted before this store has seen `true`, and has not started a task.
        is_needed() && !self.watched.swap(true, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(1);

    /// Returns whether a sleep ends before a timer of the same length when the runtime's clock
    /// stops for that duration.
    async fn ends_before_its_timer(timers: &Timers) -> bool {
        let (mut sleep, mut timer) = (pin!(timers.sleep(SPAN)), pin!(tokio::time::sleep(SPAN)));
        // Wait until `sleep` has begun a long sleep.
        while timers.0.sleepers.load(Ordering::SeqCst) == 0 {
            tokio::select! {
                biased;
                () = &mut sleep => return false,
                () = tokio::time::sleep(NAP / 20) => {}
            }
        }
        tokio::time::pause();
        std::thread::sleep(SPAN);
        tokio::time::resume();
        tokio::select! {
            biased;
            () = sleep => true,
            () = &mut timer => false,
        }
    }

    #[tokio::test]
    async fn a_sleep_by_the_boot_clock_ends_behind_a_sleep_of_the_machine() {
        let timers = Timers::new(Clock::Boot, Handle::current());
        // On a busy machine this thread may run late, and then the timer has ended, too.
        for _ in 0..5 {
            if ends_before_its_timer(&timers).await {
                return;
            }
        }
        panic!("a sleep took as long as its timer each time");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_naps_where_the_clock_can_not_jump() {
        let timers = Timers::new(Clock::runtime(), Handle::current());
        timers.sleep(Duration::from_secs(3600)).await;
        assert!(!timers.0.watched.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn the_clocks_are_compared_no_longer_than_somebody_sleeps() {
        let timers = Timers::new(Clock::Boot, Handle::current());
        let sleep = timers.sleep(Duration::from_secs(3600));
        assert!(tokio::time::timeout(NAP * 2, sleep).await.is_err());
        while timers.0.watched.load(Ordering::SeqCst) {
            tokio::time::sleep(NAP / 20).await;
        }
    }

    #[test]
    fn a_sleeper_of_another_runtime_goes_on_when_the_clients_ends() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().expect("one")
        };
        let (clients, callers) = (runtime(), runtime());
        let timers = Timers::new(Clock::Boot, clients.handle().clone());
        let sleeper = {
            let timers = timers.clone();
            callers.spawn(async move { timers.sleep(NAP * 4).await })
        };
        drop(clients);
        callers.block_on(sleeper).expect("it sleeps on");
    }
}
