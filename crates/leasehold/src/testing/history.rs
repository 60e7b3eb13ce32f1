//! The history checker: did two holders of one name ever overlap?
//!
//! Tests and demos record their holds, and the checker judges them by the promise of
//! [`Lock`](crate::Lock): the intervals of two holders don't overlap. An interval lasts from the
//! return of an acquire to the call of the release, or to
//! [`valid_until`](crate::LockGuard::valid_until) if that comes first. A history in which nobody
//! ever had to wait, or whose fault never happened, shows nothing. It is refused as vacuous.
//!
//! The checker knows a hold by its own number, never by its id on the wire: two guards that share
//! an id by mistake are exactly what it has to see.
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

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::primitives::lock::LockGuard;
use crate::sync::Mutex;

/// Nanoseconds on the machine's monotonic clock, which all its processes share
/// (`CLOCK_MONOTONIC`; in Java it is `System.nanoTime()`).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// A point in a history: a time, and an order among the events of that time.
type Point = (u64, u64);

/// One hold, from the return of the acquire to the call of the release or to the
/// holder's deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    name: String,
    holder: String,
    /// It may overlap with other shared holds.
    shared: bool,
    asked: Point,
    from: Point,
    until: Point,
}

impl Interval {
    /// A hold of `name` by `holder`, which must be different for each hold (the process and
    /// [`LockGuard::number`](crate::LockGuard::number), for example). The times are nanoseconds on
    /// one clock: when the hold was asked for, when the acquire returned, and when the hold ended.
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

    /// A shared hold, such as that of a read lock: it excludes only holds that are not shared.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The holder.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// When the acquire returned, in ns.
    #[must_use]
    pub fn from_ns(&self) -> u64 {
        self.from.0
    }

    /// When the hold ended, in ns.
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
            "`{}`: {} came in {} us before {} was out",
            self.first.name,
            self.second.holder,
            self.first
                .until
                .0
                .min(self.second.until.0)
                .saturating_sub(self.second.from.0)
                / 1000,
            self.first.holder,
        )
    }
}

/// What a history shows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many holds there were.
    pub holds: usize,
    /// How many of them were asked for while somebody else held the name.
    pub contended: usize,
    /// Holds that overlapped; a lock that works has none.
    pub overlaps: Vec<Overlap>,
    /// Faults that were meant to happen, and how often each of them did.
    pub faults: Vec<(String, u64)>,
}

impl Report {
    /// Judges the history. `Err` says what is wrong with it, or that it shows nothing.
    ///
    /// # Errors
    ///
    /// When holds overlapped, nobody had to wait, or a fault never happened.
    pub fn judge(&self) -> Result<(), String> {
        if let Some(overlap) = self.overlaps.first() {
            return Err(format!(
                "{} overlaps in {} holds, the first: {overlap}",
                self.overlaps.len(),
                self.holds
            ));
        }
        if self.contended == 0 {
            return Err(format!(
                "vacuous: in {} holds nobody asked for a name that was held",
                self.holds
            ));
        }
        if let Some((fault, _)) = self.faults.iter().find(|(_, fired)| *fired == 0) {
            return Err(format!("vacuous: the fault `{fault}` never happened"));
        }
        Ok(())
    }
}

/// Judges intervals that were recorded elsewhere, by other processes for example.
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
    for holds in names.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        // Of the exclusive holds that have begun, and of the shared ones, the hold that lasts
        // longest: a hold that begins before its end overlaps with it.
        let mut longest: [Option<&Interval>; 2] = [None; 2];
        // A hold that was over before it began overlaps with nothing.
        for hold in holds.iter().filter(|hold| hold.from < hold.until) {
            let excluded_by = if hold.shared { &longest[..1] } else { &longest };
            let others = excluded_by.iter().flatten();
            let others = others.filter(|before| before.holder != hold.holder);
            let mut waited = false;
            for before in others {
                if hold.from < before.until {
                    report.overlaps.push(Overlap {
                        first: (*before).clone(),
                        second: (*hold).clone(),
                    });
                }
                waited |= hold.asked < before.until;
            }
            report.contended += usize::from(waited);
            let longest = &mut longest[usize::from(hold.shared)];
            if longest.is_none_or(|before| hold.until > before.until) {
                *longest = Some(hold);
            }
        }
    }
    report
}

/// Records the holds of one process, on tokio's clock. Clones share the history.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

/// The instants of one history, in the order in which they are taken.
#[derive(Debug)]
struct Time {
    start: Instant,
    order: AtomicU64,
}

impl Time {
    fn starts() -> Self {
        Self {
            start: Instant::now(),
            order: AtomicU64::new(1),
        }
    }

    fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn point(&self) -> Point {
        let order = self.order.fetch_add(1, Ordering::SeqCst);
        (self.at(Instant::now()), order)
    }
}

#[derive(Debug)]
struct Shared {
    time: Time,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    ended: Vec<Interval>,
    /// Holds that have not ended, each by an id of its own.
    inside: BTreeMap<u64, Open>,
    faults: BTreeMap<String, u64>,
    /// When a condition of the promise was last broken.
    broken: Option<Point>,
}

/// A hold that has not ended.
#[derive(Debug)]
struct Open {
    hold: Interval,
    /// The promise for this hold has ended, and so has its interval.
    void: bool,
}

impl Recorder {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                time: Time::starts(),
                history: Mutex::default(),
            }),
        }
    }

    /// Records that `who` asks for `name` now.
    #[must_use]
    pub fn ask(&self, name: &str, who: &str) -> Asked {
        Asked {
            shared: Arc::clone(&self.shared),
            name: name.into(),
            who: who.into(),
            sharing: false,
            at: self.shared.time.point(),
        }
    }

    /// Notes that a fault is meant to happen in this history.
    pub fn expect_fault(&self, fault: &str) {
        self.shared
            .history
            .lock()
            .faults
            .entry(fault.into())
            .or_default();
    }

    /// Records that a fault has happened.
    pub fn fault_happened(&self, fault: &str) {
        *self
            .shared
            .history
            .lock()
            .faults
            .entry(fault.into())
            .or_default() += 1;
    }

    /// Records that a condition of the promise is broken now: the server has lost data, its clock
    /// was stepped ahead, or a lock was unlocked by force. Holds that were confirmed before count
    /// up to this point, for good. Later holds must exclude each other again.
    pub fn promise_ends_here(&self) {
        let now = self.shared.time.point();
        let mut history = self.shared.history.lock();
        history.broken = Some(now);
        for open in history.inside.values_mut() {
            open.hold.until = open.hold.until.min(now);
            open.void = true;
        }
    }

    /// The holds so far. A hold that has not ended yet counts up to now.
    #[must_use]
    pub fn intervals(&self) -> Vec<Interval> {
        let now = self.shared.time.point();
        let history = self.shared.history.lock();
        let unfinished = history.inside.values().map(|open| Interval {
            until: open.hold.until.min(now),
            ..open.hold.clone()
        });
        history.ended.iter().cloned().chain(unfinished).collect()
    }

    /// Judges the holds so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let faults = self.shared.history.lock().faults.clone();
        Report {
            faults: faults.into_iter().collect(),
            ..check(&self.intervals())
        }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

/// Somebody who has asked and has no answer yet.
#[derive(Debug)]
pub struct Asked {
    shared: Arc<Shared>,
    name: String,
    who: String,
    sharing: bool,
    at: Point,
}

impl Asked {
    /// Makes it an ask for a [shared](Interval::shared) hold.
    #[must_use]
    pub fn sharing(mut self) -> Self {
        self.sharing = true;
        self
    }

    /// Records that the acquire has returned a guard.
    #[must_use]
    pub fn acquired(self, guard: &LockGuard) -> Inside {
        let from = self.shared.time.point();
        let id = from.1;
        let confirmed = (self.shared.time.at(guard.confirmed_at()), 0);
        let mut history = self.shared.history.lock();
        // The lock was granted before the promise ended, whenever the answer came.
        let void = history.broken.is_some_and(|broken| confirmed < broken);
        let hold = Interval {
            name: self.name,
            holder: format!("{} (hold {})", self.who, guard.number()),
            shared: self.sharing,
            asked: self.at,
            from,
            // Until the holder says more, it may believe in its deadline.
            until: if void {
                from
            } else {
                (self.shared.time.at(guard.valid_until()), 0)
            },
        };
        history.inside.insert(id, Open { hold, void });
        drop(history);
        Inside {
            shared: self.shared,
            id,
        }
    }
}

/// Somebody who holds. If this is dropped without a word, the hold counts up to the deadline that
/// it had at the start: a killed holder may have believed in that.
#[derive(Debug)]
pub struct Inside {
    shared: Arc<Shared>,
    id: u64,
}

impl Inside {
    /// Records that the release is about to be called.
    pub fn releasing(self, guard: &LockGuard) {
        let now = self.shared.time.point();
        let deadline = (self.shared.time.at(guard.valid_until()), 0);
        let mut history = self.shared.history.lock();
        if let Some(Open { mut hold, void }) = history.inside.remove(&self.id) {
            hold.until = now.min(if void { hold.until } else { deadline });
            history.ended.push(hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holds_at_once_are_found() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 20),
            Interval::new("x", "b", 5, 19, 30),
            Interval::new("y", "c", 0, 10, 30),
        ]);
        assert_eq!(report.overlaps.len(), 1);
        assert!(report.judge().unwrap_err().contains("b came in"));
    }

    #[test]
    fn a_long_hold_covers_more_than_its_neighbour() {
        let report = check(&[
            Interval::new("x", "a", 0, 10, 100),
            Interval::new("x", "b", 0, 20, 30),
            Interval::new("x", "c", 0, 40, 50),
        ]);
        assert_eq!(report.overlaps.len(), 2);
    }

    #[test]
    fn shared_holds_exclude_only_those_that_are_not() {
        let report = check(&[
            Interval::new("x", "reader a", 0, 10, 50).shared(),
            Interval::new("x", "reader b", 5, 15, 20).shared(),
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
            Interval::new("x", "a", 12, 15, 20),
            Interval::new("x", "b", 15, 30, 40),
        ]);
        assert!(report.judge().is_ok(), "{report:?}");
    }

    #[test]
    fn a_history_without_contention_or_without_its_fault_is_vacuous() {
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
