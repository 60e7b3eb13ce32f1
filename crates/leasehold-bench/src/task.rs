//! The tasks that a client performs, in this process or in another, and its reports.

use serde::{Deserialize, Serialize};

use crate::delays::Delays;

/// One task. Redisson's driver has the same operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Task {
    /// Acquires and releases for a while.
    Pairs(Pairs),
    /// Acquires a lock in a loop, with pauses in which another client acquires the lock.
    HandOver {
        name: String,
        run_ms: u64,
        hold_ms: u64,
        pause_ms: u64,
    },
    /// `tasks` tasks wait for one latch, which is then counted down.
    Latch { name: String, tasks: usize },
    /// Acquires `locks` locks and holds them.
    Hold { name: String, locks: usize },
    /// Watches the locks that are held.
    Watch { run_ms: u64 },
    /// Releases the locks that are held.
    LetGo { name: String, locks: usize },
    /// `tasks` tasks wait for one lock, which is then released.
    Line { name: String, tasks: usize },
}

/// Pairs of acquire and release by `tasks` tasks or threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pairs {
    pub(crate) what: What,
    pub(crate) name: String,
    /// Whether each task has its own name.
    pub(crate) own_names: bool,
    pub(crate) tasks: usize,
    pub(crate) run_ms: u64,
    /// For a read-write lock: on average, one pair in this number is a write, chosen at random.
    pub(crate) writes_every: u64,
    /// Number of permits that a semaphore has.
    pub(crate) permits: u32,
}

/// The thing that is acquired and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Lock,
    /// A lock that its owner already holds.
    Reentrant,
    /// A lock on the embedded backend.
    Embedded,
    Fair,
    Rw,
    Semaphore,
    Expirable,
    /// A lock, with a client that connects anew for each pair.
    Connect,
}

/// The report of a task. Each task fills the fields that apply to it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Done {
    /// Number of pairs of each task.
    pub(crate) pairs: Vec<u64>,
    /// The durations of the pairs.
    pub(crate) delays: Delays,
    /// The duration of the whole task.
    pub(crate) took_ns: u64,
    /// The times at which a lock was requested, granted and released.
    pub(crate) holds: Vec<[u64; 3]>,
    /// The growth of the process's memory, and of its heap, in bytes.
    pub(crate) rss: i64,
    pub(crate) heap: i64,
    /// Number of locks that were lost before they were released.
    pub(crate) lost: u64,
    /// The smallest share of its lease that any lock had left, in percent.
    pub(crate) least_validity: Option<f64>,
    /// CPU time that was spent on watching the locks, not on the locks.
    pub(crate) looking_ns: u64,
}

impl Done {
    pub(crate) fn all_pairs(&self) -> u64 {
        self.pairs.iter().sum()
    }

    pub(crate) fn pairs_per_s(&self) -> f64 {
        self.all_pairs() as f64 * 1e9 / (self.took_ns.max(1) as f64)
    }
}
