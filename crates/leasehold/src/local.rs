//! What this process knows of one name: one table for a client, one record for each name.
//!
//! Waiters, guards with an owner and requests under way use a record. When the last of them goes,
//! the record goes as well, unless it remembers something that the next user needs: whose turn it
//! is among processes, or markers on the server that a later request removes. Those records are
//! swept out when there are many of them.

mod arrivals;
pub(crate) mod crowd;
mod deadlock;
pub(crate) mod hand_over;
mod idempotency;
pub(crate) mod line;
mod looks;
mod order;
mod outage;
pub(crate) mod permits;
pub(crate) mod reentry;
pub(crate) mod returns;
mod run;
mod single_flight;
mod slot;
pub(crate) mod turn;

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
use crate::room::Room;
use crate::sync::Mutex;
use arrivals::Arrivals;
use crowd::Crowd;
use deadlock::Waits;
pub(crate) use idempotency::{IdempotencyKeys, Marked, repeatable_for};
use line::{Seat, Standing};
use looks::Looks;
pub(crate) use outage::Down;
use reentry::{Held, Reentry};
use returns::Returns;
use single_flight::SingleFlight;
use turn::Turn;

/// The most records that stay without a user.
const MOST_REMEMBERED: usize = 1024;

/// The records of a client, by name.
pub(crate) struct Locals {
    table: Mutex<Table>,
    waits: Waits,
    looks: Arc<Looks>,
    clock: Clock,
    /// In a child of it nobody waits.
    process: Process,
    /// Notified when a wait has ended that operators were told of.
    pub(crate) told_wait_over: Arc<Notify>,
}

#[derive(Default)]
struct Table {
    records: HashMap<Key, Arc<Record>>,
    /// Records that have stayed without a user since the table was swept, each counted once.
    new: usize,
}

/// All that is known of one name. Each part has a lock of its own. The table may be locked before
/// one of them, never behind it.
#[derive(Default)]
pub(crate) struct Record {
    /// How many use it. Rises from 0, and falls to it, with the table locked.
    users: AtomicUsize,
    /// It has stayed without a user.
    has_stayed: AtomicBool,
    line: Standing,
    arrivals: Arrivals,
    /// The waiter that came first, while it asks alone.
    first: Mutex<Option<Arc<Seat>>>,
    /// Whose turn it is to get permits, of this process and others.
    pub(crate) turn: Mutex<Turn>,
    pub(crate) owners: Reentry,
    crowd: Crowd,
    pub(crate) markers: IdempotencyKeys,
    pub(crate) returns: Returns,
    pub(crate) flight: SingleFlight,
}

/// A record in use.
pub(crate) struct Local {
    locals: Arc<Locals>,
    key: Key,
    record: Arc<Record>,
}

impl Locals {
    pub(crate) fn new(clock: Clock, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            waits: Waits::default(),
            looks: Looks::new(runtime, clock),
            clock,
            process: Process::own(),
            told_wait_over: Arc::default(),
        })
    }

    /// The record of this name, which is made if there is none.
    pub(crate) fn of(self: &Arc<Self>, key: &Key) -> Local {
        let mut table = self.table.lock();
        // By one look: to hash a name costs more than to clone it.
        let record = Arc::clone(table.records.entry(key.clone()).or_default());
        self.used(key, record)
    }

    /// The record of this name, if there is one.
    pub(crate) fn known(self: &Arc<Self>, key: &Key) -> Option<Local> {
        let table = self.table.lock();
        let record = Arc::clone(table.records.get(key)?);
        // With the table locked: the record must not go meanwhile.
        Some(self.used(key, record))
    }

    /// What this owner holds under a name, in its role.
    pub(crate) fn held_by(&self, key: &Key, owner: &Owner) -> Option<Arc<Held>> {
        let record = self.table.lock().records.get(key).cloned()?;
        record.owners.held(owner)
    }

    fn used(self: &Arc<Self>, key: &Key, record: Arc<Record>) -> Local {
        record.users.fetch_add(1, Ordering::Relaxed);
        Local {
            locals: Arc::clone(self),
            key: key.clone(),
            record,
        }
    }

    /// How many names have waiters, and how often an owner holds or asks for a name.
    pub(crate) fn activity(&self) -> (usize, usize) {
        let table = self.table.lock();
        let records: Vec<_> = table.records.values().map(Arc::clone).collect();
        drop(table);
        let lines = records.iter().filter(|record| record.line.is_there());
        let owners = records.iter().map(|record| record.owners.len());
        (lines.count(), owners.sum())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.table.lock().records.len()
    }
}

impl Table {
    /// A record stays without a user.
    fn stays(&mut self, record: &Record, clock: Clock) {
        if record.has_stayed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.new += 1;
        // Seldom, as the table grows: that costs each name next to nothing, and a record that is
        // unused for a moment keeps what it remembers.
        if self.new > MOST_REMEMBERED.max(self.records.len() / 2) {
            self.sweep(clock.now());
        }
    }

    /// Forgets what nobody uses and few will miss.
    fn sweep(&mut self, now: Moment) {
        self.new = 0;
        // Half, so that the next names don't make this necessary again.
        let mut room = MOST_REMEMBERED / 2;
        self.records.retain(|_, record| {
            if record.users.load(Ordering::Relaxed) > 0 {
                return true;
            }
            // Whose turn it is counts for a moment only. A marker that is forgotten here ends by
            // itself.
            let stays = room > 0 && record.markers.are_fresh(now);
            room -= usize::from(stays);
            stays
        });
        self.records.give_back();
    }
}

impl Record {
    /// Whether the next user needs it.
    fn remembers(&self) -> bool {
        !self.markers.is_empty() || !self.turn.lock().is_unknown()
    }
}

impl Local {
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    fn now(&self) -> Moment {
        self.locals.clock.now()
    }
}

impl Deref for Local {
    type Target = Arc<Record>;

    fn deref(&self) -> &Arc<Record> {
        &self.record
    }
}

impl Clone for Local {
    fn clone(&self) -> Self {
        // Not from 0: `self` uses it.
        self.locals.used(&self.key, Arc::clone(&self.record))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let Some(mut table) = self.locals.process.lock(&self.locals.table) else {
            return;
        };
        let was_last = self.record.users.fetch_sub(1, Ordering::Relaxed) == 1;
        if !was_last {
            return;
        }
        if self.record.remembers() {
            table.stays(&self.record, self.locals.clock);
        } else {
            // Not the record's end: `self` still has it, and it ends behind the lock.
            table.records.remove(&self.key);
            table.records.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::parse(name).expect("a name")
    }

    fn locals() -> Arc<Locals> {
        Locals::new(Clock::runtime(), Handle::current())
    }

    #[tokio::test]
    async fn a_record_goes_with_its_last_user() {
        let locals = locals();
        let one = locals.of(&key("x"));
        let other = locals.known(&key("x")).expect("one uses it");
        assert!(Arc::ptr_eq(&one, &other));
        drop(one);
        assert_eq!(locals.len(), 1);
        drop(other);
        assert_eq!(locals.len(), 0);
        assert!(locals.known(&key("x")).is_none());
    }

    #[tokio::test]
    async fn record_with_memory_outlives_its_user() {
        let locals = locals();
        remember(&locals, "x");
        assert!(
            locals
                .known(&key("x"))
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
        assert!(locals.len() <= 2 * MOST_REMEMBERED);
        let found = locals.known(&key("used")).expect("it is in use");
        assert!(Arc::ptr_eq(&used, &found));
    }

    fn remember(locals: &Arc<Locals>, name: &str) {
        let local = locals.of(&key(name));
        let now = locals.clock.now();
        let marked = local.markers.mark(local.key(), "1", now);
        local.markers.answered(marked, now);
    }
}
