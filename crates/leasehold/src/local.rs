//! This process's knowledge of each name: one table per client, with one record per name.
//!
//! Waiters, guards with an owner, and pending requests use a record. When its last user is dropped,
//! the record is removed, unless it stores something that the next user needs: the state of the
//! process's slice (the time for which the process may keep the lock for its own waiters), or
//! markers on the server that a later request removes. Such records are removed in a sweep once
//! there are many of them.

mod arrivals;
mod deadlock;
pub(crate) mod hand_over;
mod idempotency;
pub(crate) mod line;
mod order;
pub(crate) mod permits;
pub(crate) mod place_renewals;
pub(crate) mod reentry;
pub(crate) mod returns;
mod server_view;
pub(crate) mod shared_hold;
mod single_flight;
pub(crate) mod slice;
mod slot;
mod stalls;
mod succession;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::key::Key;
use crate::owner::Owner;
use crate::process::Process;
use crate::shrink::ShrinkIfIdle;
use crate::sync::Mutex;
use arrivals::Arrivals;
use deadlock::WaitGraph;
pub(crate) use deadlock::waits_for_itself;
pub(crate) use idempotency::{IdempotencyKeys, Marked, repeatable_for};
use line::{LineSlot, WaiterWaker};
use place_renewals::PlaceRenewals;
use reentry::{Held, Reentry};
use returns::Returns;
pub(crate) use server_view::Outage;
use shared_hold::SharedHold;
use single_flight::SingleFlight;
use slice::Slice;
use stalls::StallCheck;

/// Largest number of records that may be retained without a user between two sweeps. In a large
/// table, the limit is half of its records.
const MAX_UNUSED_RECORDS: usize = 1024;

/// The records of a client, by name.
pub(crate) struct LocalRecords {
    table: Mutex<RecordTable>,
    wait_graph: WaitGraph,
    stall_check: Arc<StallCheck>,
    clock: Clock,
    /// The process that created the records. A forked child must not wait for the records' locks.
    process: Process,
    /// Notified when a wait that was reported to operators has ended.
    pub(crate) reported_wait_over: Arc<Notify>,
}

#[derive(Default)]
struct RecordTable {
    records: HashMap<Key, Arc<Record>>,
    /// Number of records retained without a user since the last sweep, each counted once.
    newly_retained: usize,
}

/// This process's knowledge of one name. Each part has its own lock. Code that needs the table and
/// a part locks the table first.
#[derive(Default)]
pub(crate) struct Record {
    /// Number of users. Rises from 0, and falls to 0, only with the table locked.
    users: AtomicUsize,
    /// Whether the record was ever retained without a user.
    was_retained: AtomicBool,
    line: LineSlot,
    arrivals: Arrivals,
    /// The waiter that arrived first, while it asks the server without a place in a line.
    sole_waiter: Mutex<Option<Arc<WaiterWaker>>>,
    /// The slice during which this process keeps the name to itself.
    pub(crate) slice: Mutex<Slice>,
    pub(crate) owners: Reentry,
    shared_hold: SharedHold,
    pub(crate) markers: IdempotencyKeys,
    pub(crate) returns: Returns,
    pub(crate) flight: SingleFlight,
    pub(crate) place_renewals: PlaceRenewals,
}

/// A record in use.
pub(crate) struct RecordRef {
    locals: Arc<LocalRecords>,
    key: Key,
    record: Arc<Record>,
}

impl LocalRecords {
    pub(crate) fn new(clock: Clock, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            wait_graph: WaitGraph::default(),
            stall_check: StallCheck::new(runtime, clock),
            clock,
            process: Process::own(),
            reported_wait_over: Arc::default(),
        })
    }

    /// Returns the record of this name. Creates it if it does not exist.
    pub(crate) fn of(self: &Arc<Self>, key: &Key) -> RecordRef {
        let mut table = self.table.lock();
        // Clone the name for a single look-up: hashing a name twice costs more than cloning it.
        let record = Arc::clone(table.records.entry(key.clone()).or_default());
        self.add_user(key, record)
    }

    /// Returns the record of this name, if it exists.
    pub(crate) fn find(self: &Arc<Self>, key: &Key) -> Option<RecordRef> {
        let table = self.table.lock();
        let record = Arc::clone(table.records.get(key)?);
        // Add the user while the table is still locked, so that the record is not removed first.
        Some(self.add_user(key, record))
    }

    /// Returns the hold that the owner has under this name in the owner's role, if the owner can
    /// enter the hold again.
    pub(crate) fn held_by(&self, key: &Key, owner: &Owner) -> Option<Arc<Held>> {
        let record = self.table.lock().records.get(key).cloned()?;
        record.owners.held(owner)
    }

    /// Returns everything that this owner holds under a name, in its role.
    pub(crate) fn all_held_by(&self, key: &Key, owner: &Owner) -> Vec<Arc<Held>> {
        let record = self.table.lock().records.get(key).cloned();
        record.map_or_else(Vec::new, |record| record.owners.all_held(owner))
    }

    fn add_user(self: &Arc<Self>, key: &Key, record: Arc<Record>) -> RecordRef {
        record.users.fetch_add(1, Ordering::Relaxed);
        RecordRef {
            locals: Arc::clone(self),
            key: key.clone(),
            record,
        }
    }

    /// Returns the number of names that have waiters, and the total number of holds and acquires of
    /// all owners.
    pub(crate) fn activity(&self) -> (usize, usize) {
        let table = self.table.lock();
        let records: Vec<_> = table.records.values().map(Arc::clone).collect();
        drop(table);
        let lines = records.iter().filter(|record| record.line.has_line());
        let owners = records.iter().map(|record| record.owners.len());
        (lines.count(), owners.sum())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.table.lock().records.len()
    }
}

impl RecordTable {
    /// Notes that a record is retained without a user.
    fn retain(&mut self, record: &Record, clock: Clock) {
        if record.was_retained.swap(true, Ordering::Relaxed) {
            return;
        }
        self.newly_retained += 1;
        // The larger the table, the less often it is swept. So the cost for each name is
        // negligible, and a record that is unused for a moment keeps its state.
        if self.newly_retained > MAX_UNUSED_RECORDS.max(self.records.len() / 2) {
            self.sweep(clock.now());
        }
    }

    /// Removes unused records, except some whose last marker is recent.
    fn sweep(&mut self, now: Moment) {
        self.newly_retained = 0;
        // Retain only half of the limit, so that the next few records do not cause another sweep.
        let mut capacity = MAX_UNUSED_RECORDS / 2;
        self.records.retain(|_, record| {
            if record.users.load(Ordering::Relaxed) > 0 {
                return true;
            }
            // A slice's state matters only for a moment, and a forgotten marker expires by itself.
            let retain = capacity > 0 && record.markers.are_fresh(now);
            capacity -= usize::from(retain);
            retain
        });
        self.records.shrink_if_idle();
    }
}

impl Record {
    /// Returns whether the record remembers anything that its next user needs.
    fn remembers(&self) -> bool {
        !self.markers.is_empty() || !self.slice.lock().remembers_nothing()
    }
}

impl RecordRef {
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    fn now(&self) -> Moment {
        self.locals.clock.now()
    }
}

impl Deref for RecordRef {
    type Target = Arc<Record>;

    fn deref(&self) -> &Arc<Record> {
        &self.record
    }
}

impl Clone for RecordRef {
    fn clone(&self) -> Self {
        // This needs no lock of the table: `self` is a user, so the count does not rise from 0.
        self.locals.add_user(&self.key, Arc::clone(&self.record))
    }
}

impl Drop for RecordRef {
    fn drop(&mut self) {
        let Some(mut table) = self.locals.process.lock(&self.locals.table) else {
            return;
        };
        let was_last = self.record.users.fetch_sub(1, Ordering::Relaxed) == 1;
        if !was_last {
            return;
        }
        if self.record.remembers() {
            table.retain(&self.record, self.locals.clock);
        } else {
            // This does not drop the record: `self` still has it, and drops it after unlocking.
            table.records.remove(&self.key);
            table.records.shrink_if_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::parse(name).expect("a name")
    }

    fn locals() -> Arc<LocalRecords> {
        LocalRecords::new(Clock::runtime(), Handle::current())
    }

    #[tokio::test]
    async fn a_record_goes_with_its_last_user() {
        let locals = locals();
        let one = locals.of(&key("x"));
        let other = locals.find(&key("x")).expect("one uses it");
        assert!(Arc::ptr_eq(&one, &other));
        drop(one);
        assert_eq!(locals.len(), 1);
        drop(other);
        assert_eq!(locals.len(), 0);
        assert!(locals.find(&key("x")).is_none());
    }

    #[tokio::test]
    async fn record_with_memory_outlives_its_user() {
        let locals = locals();
        remember(&locals, "x");
        assert!(
            locals
                .find(&key("x"))
                .is_some_and(|local| local.remembers())
        );
    }

    #[tokio::test]
    async fn no_more_than_so_many_are_remembered() {
        let locals = locals();
        let used = locals.of(&key("used"));
        for n in 0..5000 {
            remember(&locals, &n.to_string());
        }
        assert!(locals.len() <= 2 * MAX_UNUSED_RECORDS);
        let found = locals.find(&key("used")).expect("it is in use");
        assert!(Arc::ptr_eq(&used, &found));
    }

    fn remember(locals: &Arc<LocalRecords>, name: &str) {
        let local = locals.of(&key(name));
        let now = locals.clock.now();
        let marked = local.markers.mark(local.key(), "1", now);
        local.markers.answered(marked, now);
    }
}
