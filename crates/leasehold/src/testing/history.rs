//! The history checker, which finds out whether two holders of one name ever overlapped.
//!
//! A test records its holds. The checker checks the promise of [`Lock`](crate::Lock): the intervals
//! of two holders don't overlap. An interval lasts from the return of an acquire to the call to
//! `release`, or to [`valid_until`](crate::LockGuard::valid_until) if that is earlier. A history
//! proves nothing if no holder ever had to wait, or if an expected fault never happened. The
//! checker refuses such a history.
//!
//! The checker identifies a hold by its [number](crate::LockGuard::number), never by its id on the
//! server: two guards that have the same id by mistake are exactly the fault that it must find.
//!
//! ```
//! use leasehold::testing::history::Recorder;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let client = leasehold::Client::embedded();
//! let recorder = Recorder::new();
//! let worker = async |name: &str| -> leasehold::Result<()> {
//!     let asked = recorder.ask("orders:42", name);
//!     let guard = client.lock("orders:42").acquire().await?;
//!     let inside = asked.acquired(&guard);
//!     tokio::task::yield_now().await; // the work
//!     inside.releasing(&guard);
//!     guard.release().await
//! };
//! let (a, b) = tokio::join!(worker("a"), worker("b"));
//! (a?, b?);
//! recorder.report().judge().expect("no two holds overlapped");
//! # Ok(())
//! # }
//! ```

pub mod limits;
mod recorder;
mod sweep;

use std::collections::BTreeMap;
use std::fmt;

pub use recorder::{Asked, Inside, Recorder};
use sweep::{Occupancy, Point, sweep};

/// Returns the time in nanoseconds on the machine's monotonic clock, which all its processes share
/// (`CLOCK_MONOTONIC`; in Java it is `System.nanoTime()`).
///
/// On Windows it is the time of day at the first call in the process, plus the time since then. So
/// the times of several processes agree, unless the clock is changed between their first calls.
#[must_use]
pub fn monotonic_ns() -> u64 {
    now_ns()
}

#[cfg(unix)]
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

// Safe code can't read the performance counter itself, only the difference between two readings.
#[cfg(not(unix))]
fn now_ns() -> u64 {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    static START: LazyLock<(Duration, Instant)> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        (since.unwrap_or_default(), Instant::now())
    });
    let (since, start) = &*START;
    u64::try_from((*since + start.elapsed()).as_nanos()).unwrap_or(u64::MAX)
}

/// A hold: from the return of the acquire to the call to `release`, or to the holder's deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    name: String,
    holder: String,
    /// Whether the hold may overlap with other shared holds.
    shared: bool,
    asked: Point,
    from: Point,
    until: Point,
}

impl Interval {
    /// Returns a hold of `name` by `holder`, which must be different for each hold (for example the
    /// process and [`LockGuard::number`](crate::LockGuard::number)). The times are nanoseconds on
    /// one clock: `asked` is when the acquire was called, `from` when it returned, and `until` when
    /// the hold ended.
    #[must_use]
    pub fn new(name: &str, holder: &str, asked: u64, from: u64, until: u64) -> Self {
        Self {
            name: name.into(),
            holder: holder.into(),
            shared: false,
            asked: (asked, 0),
            from: (from, 0),
            until: (until, 0),
        }
    }

    /// Makes the hold shared, like the hold of a reader: it may overlap with other shared holds.
    #[must_use = "the setting is only in the returned value"]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Returns the holder.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Returns the time at which the acquire returned, in nanoseconds.
    #[must_use]
    pub fn from_ns(&self) -> u64 {
        self.from.0
    }

    /// Returns the time at which the hold ended, in nanoseconds.
    #[must_use]
    pub fn until_ns(&self) -> u64 {
        self.until.0
    }
}

/// Two holds of one name that overlapped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overlap {
    /// The hold that began first.
    pub first: Interval,
    /// The hold that began although the first one had not ended.
    pub second: Interval,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}`: {} began {} us before {} ended",
            self.first.name,
            self.second.holder,
            self.first
                .until
                .0
                // A short hold inside a long hold overlapped only for its own duration.
                .min(self.second.until.0)
                .saturating_sub(self.second.from.0)
                / 1000,
            self.first.holder,
        )
    }
}

/// The result of checking a history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Number of holds.
    pub holds: usize,
    /// Number of holds whose acquire had to wait, because another holder had the name between its
    /// call and its return.
    pub contended: usize,
    /// The pairs of holds that overlapped. If the lock works, there are none.
    pub overlaps: Vec<Overlap>,
    /// The expected faults, and how often each of them happened.
    pub faults: Vec<(String, u64)>,
}

impl Report {
    /// Checks the result. The error says what is wrong, or why the history proves nothing.
    ///
    /// # Errors
    ///
    /// Fails if holds overlapped, if no holder had to wait, or if an expected fault never happened.
    pub fn judge(&self) -> Result<(), String> {
        // Check this before the history can be refused as proving nothing: an overlap proves
        // something, whatever else is missing.
        if let Some(overlap) = self.overlaps.first() {
            return Err(format!(
                "{} overlaps in {} holds, the first: {overlap}",
                self.overlaps.len(),
                self.holds
            ));
        }
        if self.contended == 0 {
            return Err(format!(
                "vacuous: in {} holds no client asked for a name that was held",
                self.holds
            ));
        }
        if let Some((fault, _)) = self.faults.iter().find(|(_, fired)| *fired == 0) {
            return Err(format!("vacuous: the fault `{fault}` never happened"));
        }
        Ok(())
    }
}

/// Checks intervals that were recorded elsewhere, for example by other processes.
#[must_use]
pub fn check(intervals: &[Interval]) -> Report {
    let mut names: BTreeMap<&str, Vec<&Interval>> = BTreeMap::new();
    for interval in intervals {
        names.entry(&interval.name).or_default().push(interval);
    }
    let mut report = Report {
        holds: intervals.len(),
        ..Report::default()
    };
    for holds in names.values() {
        // The lock has as many places as its history has holds. A shared hold takes one of them,
        // any other hold takes all.
        let places = holds.len() as u64;
        let occupancies = holds.iter().map(|hold| Occupancy {
            holder: &*hold.holder,
            places: if hold.shared { 1 } else { places },
            asked: hold.asked,
            from: hold.from,
            until: hold.until,
        });
        let result = sweep(&occupancies.collect::<Vec<_>>(), places);
        report.contended += result.waited;
        let overlaps = result.overlapping.into_iter();
        report
            .overlaps
            .extend(overlaps.map(|(first, second)| Overlap {
                first: holds[first].clone(),
                second: holds[second].clone(),
            }));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holds_at_once_are_found() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 20),
            // This hold begins in the last nanosecond of `a`.
            Interval::new("x", "b", 5, 19, 30),
            Interval::new("y", "c", 0, 10, 30),
        ]);
        assert_eq!(report.overlaps.len(), 1);
        assert!(report.judge().unwrap_err().contains("b began"));
    }

    #[test]
    fn a_long_hold_covers_more_than_its_neighbour() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 100),
            Interval::new("x", "b", 0, 20, 30),
            // `b` began between `a` and `c`: a check against only the previous hold would miss the
            // overlap of `a` and `c`.
            Interval::new("x", "c", 0, 40, 50),
        ]);
        assert_eq!(report.overlaps.len(), 2);
    }

    #[test]
    fn shared_holds_exclude_only_those_that_are_not() {
        let report = check(&[
            Interval::new("x", "reader a", 0, 10, 50).shared(),
            Interval::new("x", "reader b", 5, 15, 20).shared(),
            // This hold begins at the very point at which the last reader ends: a hand-over is not
            // an overlap.
            Interval::new("x", "writer", 18, 50, 60),
            Interval::new("x", "reader c", 55, 60, 70).shared(),
        ]);
        assert!(report.judge().is_ok(), "{report:?}");
        assert_eq!(report.contended, 2);
        let report = check(&[
            Interval::new("x", "reader a", 0, 10, 50).shared(),
            Interval::new("x", "reader b", 5, 15, 20).shared(),
            Interval::new("x", "writer", 18, 30, 60),
            Interval::new("x", "reader c", 55, 59, 70).shared(),
        ]);
        assert_eq!(report.overlaps.len(), 2, "{report:?}");
    }

    #[test]
    fn guards_that_share_a_hold_may_overlap() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 30),
            // A re-entry: it begins while `a` has the lock, and is not an overlap.
            Interval::new("x", "a", 12, 15, 20),
            Interval::new("x", "b", 15, 30, 40),
        ]);
        assert!(report.judge().is_ok(), "{report:?}");
    }

    #[test]
    fn overlap_within_a_longer_hold_is_found() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 100),
            Interval::new("x", "b", 0, 20, 50).shared(),
            // `a` already holds the lock when this hold begins, at the same time as `b`. That `a`
            // may re-enter its own hold must not hide the overlap with `b`.
            Interval::new("x", "a", 0, 30, 40),
        ]);
        let seconds = report
            .overlaps
            .iter()
            .map(|overlap| &*overlap.second.holder);
        assert_eq!(seconds.collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn history_without_contention_or_fault_is_vacuous() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 20),
            Interval::new("x", "b", 25, 30, 40),
        ]);
        assert!(report.judge().unwrap_err().starts_with("vacuous"));
        let mut report = check(&[
            Interval::new("x", "a", 0, 10, 20),
            Interval::new("x", "b", 15, 30, 40),
        ]);
        assert!(report.judge().is_ok());
        report.faults.push(("cut".into(), 0));
        assert!(report.judge().unwrap_err().contains("cut"));
    }
}
