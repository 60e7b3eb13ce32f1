//! The clock on which validity is measured, and sleeping on that clock.

mod alarms;
mod timers;

use std::ops::{Add, Sub};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use timers::Timers;

/// A point on a [`Clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
// Nanoseconds since the clock began. This is half as large as a `Duration`, and a hold has several
// moments. The range is 584 years; any later point becomes the last one of the range.
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn saturating_sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    pub(crate) const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

/// A point on tokio's clock and on the real clock. A test can pause tokio's clock, which then runs
/// ahead of every server.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockPair {
    tokio_time: Instant,
    real: std::time::Instant,
}

#[cfg(feature = "redis")]
impl ClockPair {
    #[expect(clippy::disallowed_methods, reason = "it is compared with tokio's")]
    pub(crate) fn now() -> Self {
        Self {
            tokio_time: Instant::now(),
            real: std::time::Instant::now(),
        }
    }

    /// Returns a hint for the error after a timeout of `limit`, if most of that time passed only on
    /// tokio's clock.
    pub(crate) fn paused_hint(self, limit: Duration) -> &'static str {
        let now = Self::now();
        let tokio_time = now.tokio_time.saturating_duration_since(self.tokio_time);
        let real = now.real.saturating_duration_since(self.real);
        match tokio_time.saturating_sub(real) > limit / 2 {
            true => {
                " (tokio's clock is paused and runs ahead of the server: use Client::embedded() in such a test)"
            }
            false => "",
        }
    }
}

/// The source of `now`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// A clock that continues while the machine sleeps, like the server's leases. The runtime's
    /// clock stops during sleep: a holder that used it would wake up and rely on a lease that ended
    /// an hour ago.
    Boot,
    /// The runtime's clock, which a test can pause. This is right for the embedded backend: a pause
    /// stops the leases and their holders alike.
    Runtime(Instant),
    /// The clock of a machine that a test puts to sleep.
    #[cfg(feature = "testing")]
    Machine(&'static MachineClock),
}

/// The runtime's clock, plus the time for which the machine has slept.
#[cfg(feature = "testing")]
#[derive(Debug)]
pub(crate) struct MachineClock {
    start: Instant,
    slept_ns: std::sync::atomic::AtomicU64,
}

#[cfg(feature = "testing")]
impl MachineClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            slept_ns: std::sync::atomic::AtomicU64::new(0),
        }
    }

    pub(crate) fn sleep_for(&self, span: Duration) {
        let slept = &self.slept_ns;
        slept.fetch_add(nanos(span), std::sync::atomic::Ordering::SeqCst);
    }

    fn now(&self) -> Moment {
        let slept = self.slept_ns.load(std::sync::atomic::Ordering::SeqCst);
        Clock::Runtime(self.start).now() + Duration::from_nanos(slept)
    }
}

impl Clock {
    pub(crate) fn runtime() -> Self {
        Self::Runtime(Instant::now())
    }

    pub(crate) fn now(self) -> Moment {
        match self {
            Self::Boot => since_boot(),
            Self::Runtime(start) => Moment(nanos(Instant::now().saturating_duration_since(start))),
            #[cfg(feature = "testing")]
            Self::Machine(machine) => machine.now(),
        }
    }

    /// Returns whether the clock continues while the runtime's timers stop.
    fn can_jump(self) -> bool {
        !matches!(self, Self::Runtime(_))
    }

    /// Returns the same point in time on the runtime's clock, for `timeout_at` and similar
    /// functions.
    pub(crate) fn to_instant(self, moment: Moment) -> Instant {
        // Read the runtime's clock first: if the thread is stopped between the two reads, a
        // deadline is early, never late.
        let (now, here) = (Instant::now(), self.now());
        if moment < here {
            // A moment in the past must stay in the past, and not become `now`.
            return now.checked_sub(here.saturating_sub(moment)).unwrap_or(now);
        }
        // Tokio also takes 30 years for its far future. On some systems, an instant a hundred years
        // ahead can't be represented.
        now.checked_add(moment.saturating_sub(here))
            .unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 3600))
    }

    pub(crate) fn moment_of(self, instant: Instant) -> Moment {
        // Read this clock first, unlike in `to_instant`: if the thread is stopped between the two
        // reads, this deadline is early, too. An instant in the past becomes `now`, and so counts
        // as passed.
        self.now() + instant.saturating_duration_since(Instant::now())
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Moment {
    moment_of(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

// On Apple's systems this clock continues during sleep, and the runtime's clock does not. On other
// systems both are the same clock, and the system decides what happens to it during sleep.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn since_boot() -> Moment {
    moment_of(rustix::time::clock_gettime(
        rustix::time::ClockId::Monotonic,
    ))
}

// On Windows this is the performance counter, which continues during sleep. The clock begins at one
// year, because the server may have been started before the process.
#[cfg(not(unix))]
fn since_boot() -> Moment {
    use std::sync::LazyLock;
    use std::time::Instant;

    const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment::from_millis(YEAR_MS) + START.elapsed()
}

#[cfg(unix)]
fn moment_of(time: rustix::time::Timespec) -> Moment {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_millis(seconds.saturating_mul(1000)) + Duration::from_nanos(nanos)
}
