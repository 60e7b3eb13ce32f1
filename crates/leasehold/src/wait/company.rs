//! Those who stand behind the head of a line, for whom the head asks as well: what a
//! release makes free goes to as many of them as it is enough for, with one request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;

/// Who stands in line for what, by name.
#[derive(Default)]
pub(crate) struct Companies {
    lines: Mutex<HashMap<Key, Company>>,
    /// Releases of this client so far.
    releases: AtomicU64,
}

#[derive(Default)]
struct Company {
    /// In the order they came.
    standing: VecDeque<Arc<Slot>>,
    /// Nobody else listened when a release was published last.
    alone: bool,
}

/// What one of them asks for.
pub(crate) struct Slot {
    pub(crate) permits: u32,
    state: Mutex<State>,
    granted: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// By the head of the line.
    Granted,
    /// Has what it asked for, or has given up.
    Gone,
}

impl Companies {
    fn lines(&self) -> MutexGuard<'_, HashMap<Key, Company>> {
        // No code that can panic runs under this lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(self: &Arc<Self>, key: &Key, permits: u32) -> Standing {
        let slot = Arc::new(Slot {
            permits,
            state: Mutex::new(State::Waiting),
            granted: Notify::new(),
        });
        let mut lines = self.lines();
        let company = lines.entry(key.clone()).or_default();
        company.standing.push_back(Arc::clone(&slot));
        drop(lines);
        Standing {
            companies: Arc::clone(self),
            key: key.clone(),
            slot,
        }
    }

    /// Whether anybody of ours stands in line.
    pub(crate) fn anyone_stands(&self, key: &Key) -> bool {
        self.lines().contains_key(key)
    }

    /// Those who stand in line beside `head`, in their order, and no more than `most`.
    pub(crate) fn behind(&self, head: &Standing, most: usize) -> Vec<Arc<Slot>> {
        let lines = self.lines();
        let standing = lines.get(&head.key).map(|company| company.standing.iter());
        let others = standing.into_iter().flatten();
        others
            .filter(|slot| !Arc::ptr_eq(slot, &head.slot) && *slot.state() == State::Waiting)
            .take(most)
            .map(Arc::clone)
            .collect()
    }

    /// A release of this client, of which nobody knows who else was told.
    pub(crate) fn released(&self, key: &Key) {
        self.told(key, 0);
    }

    /// A release of this client was published to so many connections.
    pub(crate) fn told(&self, key: &Key, listeners: i64) {
        self.releases.fetch_add(1, Ordering::Relaxed);
        if let Some(company) = self.lines().get_mut(key) {
            // One is our own.
            company.alone = listeners == 1;
        }
    }

    /// Whether our own waiters need not leave the first ask to others: nobody else
    /// listens.
    pub(crate) fn alone(&self, key: &Key) -> bool {
        self.lines().get(key).is_some_and(|company| company.alone)
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false` when it has gone meanwhile.
    pub(crate) fn grant(&self) -> bool {
        let mut state = self.state();
        let waits = *state == State::Waiting;
        if waits {
            *state = State::Granted;
            self.granted.notify_one();
        }
        waits
    }
}

/// A place among them.
pub(crate) struct Standing {
    companies: Arc<Companies>,
    key: Key,
    slot: Arc<Slot>,
}

impl Standing {
    /// Takes what the head was granted for it; `false` when there is nothing.
    pub(crate) fn claim(&self) -> bool {
        let mut state = self.slot.state();
        let granted = *state == State::Granted;
        if granted {
            *state = State::Gone;
        }
        granted
    }

    /// Resolves when there is something to claim, and claims it.
    pub(crate) async fn granted(&self) {
        while !self.claim() {
            self.slot.granted.notified().await;
        }
    }

    /// Leaves. `true` when something was granted that nobody has claimed.
    pub(crate) fn leave(&self) -> bool {
        let before = std::mem::replace(&mut *self.slot.state(), State::Gone);
        let mut lines = self.companies.lines();
        if let Some(company) = lines.get_mut(&self.key) {
            company
                .standing
                .retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if company.standing.is_empty() {
                lines.remove(&self.key);
            }
        }
        before == State::Granted
    }
}
