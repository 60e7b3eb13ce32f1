//! Records the holds of locks as they happen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::{Interval, Point, Report, check};
use crate::primitives::guards::Guard;
use crate::sync::Mutex;

/// Records the holds of one process, on tokio's clock. Clones share the history.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

/// The instants of one history, in the order in which they are taken.
#[derive(Debug)]
pub(super) struct Time {
    start: Instant,
    order: AtomicU64,
}

impl Time {
    pub(super) fn starts() -> Self {
        Self {
            start: Instant::now(),
            // 0 is left to deadlines: at its deadline a hold is over for all who come at that
            // instant.
            order: AtomicU64::new(1),
        }
    }

    pub(super) fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn point(&self) -> Point {
        // On a paused clock many events have the same time. This number has them in the order in
        // which they were recorded.
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
        // A hold that is recorded between the two lines ends here before it begins, and the sweep
        // leaves it out.
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
        // A statement of its own, which lets go of the lock: `intervals` takes it again.
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
    pub fn acquired(self, guard: &impl Guard) -> Inside {
        // Later than the hold really began, as its end is recorded before it really ends. So each
        // overlap that is found has happened.
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
    pub fn releasing(self, guard: &impl Guard) {
        let now = self.shared.time.point();
        let deadline = (self.shared.time.at(guard.valid_until()), 0);
        let mut history = self.shared.history.lock();
        if let Some(Open { mut hold, void }) = history.inside.remove(&self.id) {
            // The deadline of now, which renewals have moved since the grant. A holder that
            // releases behind it had nothing any more since then.
            hold.until = now.min(if void { hold.until } else { deadline });
            history.ended.push(hold);
        }
    }
}
