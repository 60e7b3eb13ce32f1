//! One thread of the process wakes the sleepers that their client's runtime does not poll. For
//! these sleepers, a timer of tokio may not exist, may stop while its runtime is blocked, or may
//! end with the runtime.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::{Clock, Moment};
use crate::process::Process;
use crate::sync::Mutex;

/// The longest sleep of the thread while there are sleepers. The thread's timer stops while the
/// machine sleeps, but the clock of the sleepers continues.
const NAP: Duration = Duration::from_millis(200);
const CLOCK: Clock = Clock::Boot;

/// The alarms of the first process that needs any. A forked child of that process has its own
/// alarms, in `of_child`.
static FIRST: OnceLock<Alarms> = OnceLock::new();

/// The sleepers that the thread of one process wakes.
struct Alarms {
    /// The process in which the thread runs. A forked child does not have the thread, and may find
    /// the mutex locked forever.
    process: Process,
    sleepers: Mutex<Sleepers>,
    /// The function that starts the thread.
    start: fn(&'static Alarms) -> io::Result<Thread>,
    /// The alarms of a child of the process.
    of_child: OnceLock<Box<Alarms>>,
}

#[derive(Default)]
struct Sleepers {
    wakers: BTreeMap<(Moment, u64), Waker>,
    number: u64,
    thread: Option<Thread>,
}

impl Alarms {
    fn new(start: fn(&'static Self) -> io::Result<Thread>) -> Self {
        Self {
            process: Process::own(),
            sleepers: Mutex::default(),
            start,
            of_child: OnceLock::new(),
        }
    }

    /// Returns the alarms of this process.
    fn own() -> &'static Self {
        let mut alarms = FIRST.get_or_init(|| Self::new(Self::start_thread));
        while alarms.process.is_forked() {
            alarms = (alarms.of_child).get_or_init(|| Box::new(Self::new(Self::start_thread)));
        }
        alarms
    }

    fn start_thread(&'static self) -> io::Result<Thread> {
        let thread = thread::Builder::new().name("leasehold-timer".into());
        let started = thread.spawn(|| self.run())?;
        Ok(started.thread().clone())
    }

    /// Wakes each sleeper when it is due, for as long as the process lives.
    fn run(&self) {
        loop {
            let now = CLOCK.now();
            let (due, next) = self.sleepers.lock().take_due(now);
            for waker in due {
                // The waker is code of the executor. A panic there must not end this thread, which
                // wakes all other sleepers.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
            match next {
                Some(next) => thread::park_timeout(next.saturating_sub(CLOCK.now()).min(NAP)),
                None => thread::park(),
            }
        }
    }

    /// Adds a sleeper. Returns `None` if there is no thread that could wake it.
    fn add(&'static self, at: Moment, waker: &Waker) -> Option<(Moment, u64)> {
        // Clone the waker while nothing is locked: its clone and its drop are code of the executor.
        let waker = waker.clone();
        let mut sleepers = self.sleepers.lock();
        let thread = match &sleepers.thread {
            Some(thread) => thread.clone(),
            // Start the thread under the lock, so that only one is started. The new thread waits
            // for the lock.
            None => sleepers.thread.insert((self.start)(self).ok()?).clone(),
        };
        sleepers.number += 1;
        let key = (at, sleepers.number);
        let is_first = (sleepers.wakers.first_key_value()).is_none_or(|(first, _)| key < *first);
        sleepers.wakers.insert(key, waker);
        drop(sleepers);
        if is_first {
            thread.unpark();
        }
        Some(key)
    }

    /// Returns whether this sleeper still sleeps. If so, the thread will wake `waker`.
    fn still_sleeps(&self, key: (Moment, u64), waker: &Waker) -> bool {
        let mut waker = waker.clone();
        let mut sleepers = self.sleepers.lock();
        let present = sleepers.wakers.get_mut(&key);
        let still_sleeps = present.is_some();
        if let Some(present) = present {
            std::mem::swap(present, &mut waker);
        }
        drop(sleepers);
        drop(waker);
        still_sleeps
    }

    fn remove(&self, key: (Moment, u64)) {
        let waker = self.sleepers.lock().wakers.remove(&key);
        drop(waker);
    }
}

impl Sleepers {
    /// Removes the wakers that are due. Returns them and the time at which the next one is due.
    fn take_due(&mut self, now: Moment) -> (Vec<Waker>, Option<Moment>) {
        let later = self.wakers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut self.wakers, later);
        let next = self.wakers.first_key_value().map(|((at, _), _)| *at);
        (due.into_values().collect(), next)
    }
}

/// A sleep of fixed length. It is ended by the alarm thread of the process that polls it.
pub(super) struct Nap {
    at: Moment,
    registration: Option<(&'static Alarms, (Moment, u64))>,
}

impl Nap {
    pub(super) fn new(span: Duration) -> Self {
        Self {
            at: CLOCK.now() + span,
            registration: None,
        }
    }

    fn poll_by(
        &mut self,
        own: impl Fn() -> &'static Alarms,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        // A sleep that was registered before a fork is registered with the parent's thread.
        self.registration
            .take_if(|(alarms, _)| alarms.process.is_forked());
        let still_sleeps = match self.registration {
            Some((alarms, key)) => alarms.still_sleeps(key, context.waker()),
            None => CLOCK.now() < self.at,
        };
        if !still_sleeps {
            self.registration = None;
            return Poll::Ready(());
        }
        if self.registration.is_none() {
            let alarms = own();
            let key = alarms.add(self.at, context.waker());
            self.registration = key.map(|key| (alarms, key));
        }
        if self.registration.is_none() {
            // The thread can't be started now. Make the executor poll this sleep again and again:
            // that keeps the executor busy, but it can run its other tasks.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.poll_by(Alarms::own, context)
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        if let Some((alarms, key)) = self.registration.take()
            && !alarms.process.is_forked()
        {
            alarms.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    /// Counts the threads of this process that wake sleepers.
    #[cfg(target_os = "linux")]
    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").expect("there are some");
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let names = tasks.filter_map(|task| name(task.ok()?).ok());
        names
            .filter(|name| name.trim() == "leasehold-timer")
            .count()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_thread_wakes_all_sleepers() {
        let naps = (0..2000).map(|n| Nap::new(Duration::from_millis(n % 50)));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("one").block_on(join_all(naps));
        assert_eq!(threads(), 1);
    }

    #[test]
    fn executor_is_not_blocked_when_no_thread_can_be_started() {
        let none = Alarms::new(|_| Err(io::Error::other("none")));
        let none: &'static Alarms = Box::leak(Box::new(none));
        let mut nap = Nap::new(Duration::from_millis(20));
        let first = poll_fn(|context| nap.poll_by(|| none, context)).now_or_never();
        assert!(first.is_none(), "it did not wait here");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let nap = poll_fn(|context| nap.poll_by(|| none, context));
        runtime.expect("one").block_on(nap);
    }
}
