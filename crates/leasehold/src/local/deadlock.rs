//! Owners of this process that wait for each other for ever, which the last of them is told.
//!
//! An owner waits as a whole: it does one thing at a time, as a thread does. An edge of the graph
//! leads from an owner that waits without a limit to each owner that has the name in a way that
//! keeps it out. Whoever adds the edge that closes a circle looks for it, so no circle is missed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Locals;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::owner::Owner;
use crate::room::Room;
use crate::sync::Mutex;

/// Who waits without a limit, and for what.
#[derive(Default)]
pub(super) struct Waits {
    by_owner: Mutex<Table>,
}

/// By the owner's number. Of one owner several acquires may wait, in branches.
type Table = HashMap<u64, Vec<(Key, Owner)>>;

/// An owner waits for as long as this lives.
pub(crate) struct Waiting {
    locals: Arc<Locals>,
    key: Key,
    owner: Owner,
}

impl Locals {
    /// The owner begins to wait for a name without a limit. An error if it would wait for ever,
    /// because all of a circle of owners would.
    pub(crate) fn waits_for_ever(
        self: &Arc<Self>,
        key: &Key,
        owner: &Owner,
    ) -> Result<Waiting, Error> {
        let mut table = self.waits.by_owner.lock();
        let mut circle = Vec::new();
        let mut seen = HashSet::new();
        if self.leads_to(owner.number(), (key, owner), &table, &mut seen, &mut circle) {
            drop(table);
            circle.reverse();
            return Err(told(key, &circle));
        }
        let waits = table.entry(owner.number()).or_default();
        waits.push((key.clone(), owner.clone()));
        drop(table);
        Ok(Waiting {
            locals: Arc::clone(self),
            key: key.clone(),
            owner: owner.clone(),
        })
    }

    /// Whether those who have a name wait, in the end, for `first`. `circle` becomes the names on the
    /// way there, the last one first.
    fn leads_to(
        &self,
        first: u64,
        (key, waiter): (&Key, &Owner),
        table: &Table,
        seen: &mut HashSet<u64>,
        circle: &mut Vec<Key>,
    ) -> bool {
        for holder in self.who_keeps_out(key, waiter) {
            if holder == first {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            for (next, waiter) in table.get(&holder).into_iter().flatten() {
                if self.leads_to(first, (next, waiter), table, seen, circle) {
                    circle.push(next.clone());
                    return true;
                }
            }
        }
        false
    }

    /// The owners that have this name until they give it back, and keep the waiter out.
    fn who_keeps_out(&self, key: &Key, waiter: &Owner) -> Vec<u64> {
        let record = self.table.lock().records.get(key).cloned();
        let holders = record.map(|record| record.owners.lasting());
        let holders = holders.into_iter().flatten();
        // What a waiter has itself never keeps it out: it enters again, or reads inside its write
        // hold. An owner that reads and wants to write is refused before it waits.
        let others = holders.filter(|holder| holder.excludes(waiter));
        others.map(|holder| holder.number()).collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = self.locals.waits.by_owner.lock();
        let Some(waits) = table.get_mut(&self.owner.number()) else {
            return;
        };
        let mine = |(key, owner): &(Key, Owner)| *key == self.key && *owner == self.owner;
        if let Some(at) = waits.iter().position(mine) {
            waits.swap_remove(at);
        }
        if waits.is_empty() {
            table.remove(&self.owner.number());
            table.give_back();
        }
    }
}

/// `circle` has what the others wait for, one after the other.
fn told(key: &Key, circle: &[Key]) -> Error {
    let mut message = format!("waiting for `{key}` would never end: it is held by an owner");
    for (n, next) in circle.iter().enumerate() {
        let by = if n == 0 { "" } else { " held by one" };
        message += &format!("{by} that waits for `{next}`,");
    }
    message += " which this owner holds; acquire them in the same order everywhere, or wait with a \
                limit";
    Error::new(ErrorKind::Deadlock, message).with_key(key)
}
