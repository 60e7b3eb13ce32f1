//! The recorder, which notes the holds of locks while a test runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::{Interval, Point, Report, check};
use crate::primitives::guards::Guard;
use crate::sync::Mutex;

/// A recorder of the holds of one process, on tokio's clock. Clones share the history.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<RecorderShared>,
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
            // 0 is reserved for deadlines: a hold that ends at its deadline ends before every event
            // that is recorded at that instant.
            order: AtomicU64::new(1),
        }
    }

    pub(super) fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn point(&self) -> Point {
        // On a paused clock many events have the same time. This number keeps them in the order in
        // which they were recorded.
        let order = self.order.fetch_add(1, Ordering::SeqCst);
        (self.at(Instant::now()), order)
    }
}

#[derive(Debug)]
struct RecorderShared {
    time: Time,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    ended: Vec<Interval>,
    /// The holds that have not ended, each with its own id.
    inside: BTreeMap<u64, UnfinishedHold>,
    faults: BTreeMap<String, u64>,
    /// The time at which a condition of the promise was last broken.
    broken: Option<Point>,
}

/// A hold that has not ended.
#[derive(Debug)]
struct UnfinishedHold {
    hold: Interval,
    /// Whether [`promise_ends_here`](Recorder::promise_ends_here) has already fixed the end of the
    /// interval. If so, the guard's deadline no longer extends it.
    void: bool,
}

impl Recorder {
    /// Returns a recorder with an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(RecorderShared {
                time: Time::starts(),
                history: Mutex::default(),
            }),
        }
    }

    /// Records that `who` is about to call an acquire of `name`.
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

    /// Adds an expected fault. If it never [happens](Self::fault_happened), the history proves
    /// nothing.
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

    /// Records that a condition of the promise has just been broken: the server has lost data, its
    /// clock was set ahead, or a lock was unlocked by force. Holds that the server granted or
    /// renewed earlier count only up to this time. Later holds must exclude each other again.
    pub fn promise_ends_here(&self) {
        let now = self.shared.time.point();
        let mut history = self.shared.history.lock();
        history.broken = Some(now);
        for open in history.inside.values_mut() {
            open.hold.until = open.hold.until.min(now);
            open.void = true;
        }
    }

    /// Returns the holds that have been recorded so far. A hold that has not ended yet counts until
    /// now.
    #[must_use]
    pub fn intervals(&self) -> Vec<Interval> {
        let now = self.shared.time.point();
        // A hold that is recorded between these two lines ends before it begins, and the sweep
        // skips it.
        let history = self.shared.history.lock();
        let unfinished = history.inside.values().map(|open| Interval {
            until: open.hold.until.min(now),
            ..open.hold.clone()
        });
        history.ended.iter().cloned().chain(unfinished).collect()
    }

    /// Checks the holds so far.
    #[must_use]
    pub fn report(&self) -> Report {
        // This is a separate statement, so that the mutex is unlocked: `intervals` locks it again.
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

/// An acquire that has been called and has not returned.
#[derive(Debug)]
pub struct Asked {
    shared: Arc<RecorderShared>,
    name: String,
    who: String,
    sharing: bool,
    at: Point,
}

impl Asked {
    /// Makes this a request for a [shared](Interval::shared) hold.
    #[must_use = "the setting is only in the returned value"]
    pub fn sharing(mut self) -> Self {
        self.sharing = true;
        self
    }

    /// Records that the acquire has returned a guard.
    #[must_use]
    pub fn acquired(self, guard: &impl Guard) -> Inside {
        // `from` is later than the real start of the hold, and `until` will be earlier than its
        // real end. So each overlap that the checker finds has really happened.
        let from = self.shared.time.point();
        let id = from.1;
        let confirmed = (self.shared.time.at(guard.confirmed_at()), 0);
        let mut history = self.shared.history.lock();
        // What counts is when the confirmed request was sent, and not when its reply arrived.
        let void = history.broken.is_some_and(|broken| confirmed < broken);
        let hold = Interval {
            name: self.name,
            holder: format!("{} (hold {})", self.who, guard.number()),
            shared: self.sharing,
            asked: self.at,
            from,
            // Until the holder records its release, it may rely on its deadline.
            until: if void {
                from
            } else {
                (self.shared.time.at(guard.valid_until()), 0)
            },
        };
        history.inside.insert(id, UnfinishedHold { hold, void });
        drop(history);
        Inside {
            shared: self.shared,
            id,
        }
    }
}

/// A hold in progress. If this value is dropped and `releasing` was not called, the hold counts
/// until the deadline that it had at the start, because a killed holder may have relied on that
/// deadline.
#[derive(Debug)]
pub struct Inside {
    shared: Arc<RecorderShared>,
    id: u64,
}

impl Inside {
    /// Records that the release is about to be called.
    pub fn releasing(self, guard: &impl Guard) {
        let now = self.shared.time.point();
        let deadline = (self.shared.time.at(guard.valid_until()), 0);
        let mut history = self.shared.history.lock();
        if let Some(UnfinishedHold { mut hold, void }) = history.inside.remove(&self.id) {
            // Use the current deadline, which renewals have moved since the grant. If a holder
            // releases after its deadline, its hold has ended at the deadline.
            hold.until = now.min(if void { hold.until } else { deadline });
            history.ended.push(hold);
        }
    }
}
