//! What a client is asked to do, here or in another process, and what it says when it has.

use serde::{Deserialize, Serialize};

use crate::delays::Delays;

/// One thing to do. Redisson's driver has the same operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Task {
    /// Acquire and release, for a while.
    Pairs(Pairs),
    /// Take a lock again and again, with a pause in which somebody else takes it.
    HandOver {
        name: String,
        run_ms: u64,
        hold_ms: u64,
        pause_ms: u64,
    },
    /// So many wait for one latch, which is then counted down.
    Latch { name: String, tasks: usize },
    /// Acquire so many locks and keep them.
    Hold { name: String, locks: usize },
    /// Look after the locks that are kept.
    Watch { run_ms: u64 },
    /// Release the locks that are kept.
    LetGo { name: String, locks: usize },
    /// So many wait for one lock, which is then released.
    Line { name: String, tasks: usize },
}

/// Pairs of acquire and release by so many tasks or threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pairs {
    pub(crate) what: What,
    pub(crate) name: String,
    /// Each task has a name of its own.
    pub(crate) own_names: bool,
    pub(crate) tasks: usize,
    pub(crate) run_ms: u64,
    /// With a read-write lock: one of so many is a write, by chance.
    pub(crate) writes_every: u64,
    /// Of a semaphore.
    pub(crate) permits: u32,
}

/// What is acquired and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Lock,
    /// A lock that its owner holds already.
    Reentrant,
    /// A lock of the embedded backend.
    Embedded,
    Fair,
    Rw,
    Semaphore,
    Expirable,
    /// A lock, by a client that is connected for it.
    Connect,
}

/// What was done. A task fills what it has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Done {
    /// Pairs of each task.
    pub(crate) pairs: Vec<u64>,
    /// How long a pair took.
    pub(crate) delays: Delays,
    /// How long all of it took.
    pub(crate) took_ns: u64,
    /// When a lock was asked for, granted and given back.
    pub(crate) holds: Vec<[u64; 3]>,
    /// By how much the memory of the process grew, and the heap in it.
    pub(crate) rss: i64,
    pub(crate) heap: i64,
    /// Locks that were gone when they were released.
    pub(crate) lost: u64,
    /// The least part of its lease that a lock had left, in percent.
    pub(crate) least_validity: Option<f64>,
    /// CPU time that looking took, which is not the locks'.
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
