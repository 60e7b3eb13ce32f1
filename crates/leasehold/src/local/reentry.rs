//! Re-entrance: the holds of each owner under one name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Local, Locals};
use crate::clock::Moment;
use crate::config::Terms;
use crate::error::Result;
use crate::hold::Undo;
use crate::hold::standing::Standing;
use crate::hold::{Hold, Joined, next_number};
use crate::owner::Owner;
use crate::room::Room;
use crate::sync::Mutex;

/// A hold together with its undo, shared by the guards of one owner.
pub(crate) struct Held {
    hold: Hold,
    /// The time at which the hold began.
    since: Moment,
    standing: Arc<Standing>,
    undo: Mutex<Undo>,
    /// The name and the owner by which the hold can be entered again. Boxed, because few holds have
    /// an owner.
    owner: Option<Box<(Local, Owner)>>,
    /// The time for which the process keeps the lock after its grant, if its waiters take turns.
    turn: Option<Duration>,
    /// Whether a waiter in line got the hold, so that others may still be waiting.
    waited_for: AtomicBool,
    /// The record in which other readers of the process find the hold, if they may share it. Boxed
    /// too.
    _crowd: Option<Box<Local>>,
}

impl Held {
    pub(crate) fn new(
        standing: &Arc<Standing>,
        undo: Undo,
        owner: Option<(Local, Owner)>,
        turn: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self::made(standing, undo, owner, turn))
    }

    /// Creates a hold that other readers of the process may share.
    pub(crate) fn of_crowd(standing: &Arc<Standing>, undo: Undo, local: Local) -> Arc<Self> {
        let mut held = Self::made(standing, undo, None, None);
        held._crowd = Some(Box::new(local));
        Arc::new(held)
    }

    fn made(
        standing: &Arc<Standing>,
        undo: Undo,
        owner: Option<(Local, Owner)>,
        turn: Option<Duration>,
    ) -> Self {
        let hold = Hold::of(undo.hold());
        standing.enter(&hold);
        hold.observed.begins();
        Self {
            since: hold.since(),
            hold,
            standing: Arc::clone(standing),
            undo: Mutex::new(undo),
            owner: owner.map(Box::new),
            turn,
            waited_for: AtomicBool::new(false),
            _crowd: None,
        }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref().map(|entered_as| &entered_as.1)
    }

    /// Notes that the server has taken the hold back.
    pub(crate) fn given_back(&self) {
        self.take_undo().given_back();
    }

    /// Gives the hold back in the background. The request is queued when this returns.
    pub(crate) fn give_back_now(&self) {
        self.take_undo().give_back_now();
    }

    /// Moves the undo out, because nothing may be spawned with it locked.
    fn take_undo(&self) -> Undo {
        self.undo.lock().take()
    }

    /// Returns the record of the hold's name, if a waiter is there or was there just now.
    pub(crate) fn local(&self, locals: &Arc<Locals>) -> Option<Local> {
        self.turn.and_then(|_| locals.known(&self.hold.key))
    }

    /// Returns whether the hold stays in this process, for its next waiter. Called once, after the
    /// hold's last guard was dropped: a hold that is given back to the server may end the turn.
    pub(crate) fn stays(&self, local: &Local, now: Moment) -> bool {
        let turn = self.turn;
        // A line on the server decides who is next, so no process must stand down.
        let is_queued = self.hold.steps.queued().is_some();
        let stays = turn.is_some_and(|turn| is_queued || local.hold_stays(&self.hold, now, turn));
        // An owner enters its hold through its own slot. Another holder must not be found there.
        stays && self.owner.is_none()
    }

    /// Hands the hold over to the next waiter of this process. Returns `false` if the hold must be
    /// given back to the server.
    pub(crate) fn hand_over(&self, local: &Local, now: Moment) -> bool {
        let undo = self.take_undo();
        match local.hand_over(undo, now) {
            Ok(()) => true,
            Err(undo) => {
                *self.undo.lock() = undo;
                false
            }
        }
    }

    /// Returns whether the hold already belongs to the next holder.
    pub(crate) fn was_handed_over(&self) -> bool {
        self.hold.number != self.hold.hold_number()
    }

    /// Notes that the hold was granted to a waiter in line.
    pub(crate) fn was_waited_for(&self) {
        self.waited_for.store(true, Ordering::Relaxed);
    }

    /// Returns whether other waiters may want the hold.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed)
    }

    /// Returns whether its process keeps the lock for a turn.
    pub(crate) fn takes_turns(&self) -> bool {
        self.turn.is_some()
    }

    /// Notes that there is nothing left to give back.
    pub(crate) fn disarm(&self) {
        self.undo.lock().disarm();
    }

    /// Clears the owner's slot when the hold's last guard is dropped: the owner can't enter it any
    /// more.
    pub(crate) fn clear_owner(self: &Arc<Self>) {
        if let Some((local, owner)) = self.owner.as_deref() {
            local.owners.clear(owner, self);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.undo.get_mut().is_of_a_parent() {
            return;
        }
        self.standing.leave(&self.hold);
        if !self.was_handed_over() {
            // A fixed lease may have run out, and nothing else checks that.
            self.hold.tell_loss();
        }
        self.hold.observed.ends(self.hold.age(self.since));
    }
}

/// The owners of a name, each a small state machine: free (no slot), acquiring, held. Releasing is
/// not a state: the release is queued before the slot is cleared, so the owner's next request runs
/// after it.
#[derive(Default)]
pub(crate) struct Reentry {
    slots: Mutex<HashMap<Owner, Slot>>,
    changed: Notify,
}

enum Slot {
    /// These branches of the owner are acquiring.
    Acquiring(Vec<u64>),
    Held(Arc<Held>),
}

impl Slot {
    /// Returns the slot's hold, if it is not lost.
    fn good(&self) -> Option<&Arc<Held>> {
        match self {
            Self::Held(held) if held.hold().loss().is_none() => Some(held),
            _ => None,
        }
    }
}

/// The result of an owner's attempt to enter a name.
pub(crate) enum Entry {
    /// The owner has no hold, and must ask the server.
    Ask(Asking),
    /// The owner has joined this hold.
    Joined(Arc<Held>, Joined),
    /// Another acquire of the same owner is on its way.
    Acquiring,
}

impl Local {
    /// Enters a hold of this owner, or gets the right to ask the server for one.
    pub(crate) fn enter(&self, owner: &Owner, terms: Terms) -> Result<Entry> {
        self.enter_or_ask(owner, terms, false)
    }

    /// Like [`enter`](Self::enter), for a branch that asks beside the other branches of its owner.
    pub(crate) fn enter_beside(&self, owner: &Owner, terms: Terms) -> Result<Entry> {
        self.enter_or_ask(owner, terms, true)
    }

    fn enter_or_ask(&self, owner: &Owner, terms: Terms, beside: bool) -> Result<Entry> {
        let mut slots = self.owners.slots.lock();
        let mut branches = Vec::new();
        match slots.get_mut(owner) {
            Some(Slot::Acquiring(others)) if beside => branches = std::mem::take(others),
            Some(Slot::Acquiring(_)) => return Ok(Entry::Acquiring),
            // The owner can't join a lost hold. It asks anew, while the guards of the lost hold
            // report the loss.
            Some(Slot::Held(held)) => {
                if let Some(joined) = held.hold().join(terms)? {
                    return Ok(Entry::Joined(Arc::clone(held), joined));
                }
            }
            None => {}
        }
        // Under the same lock as the check: of two branches of one owner one asks, and the other
        // waits for the result, unless that takes too long.
        let number = next_number();
        branches.push(number);
        let lost = slots.insert(owner.clone(), Slot::Acquiring(branches));
        drop(slots);
        // Dropped after unlocking: dropping a hold drops its reference to this record.
        drop(lost);
        Ok(Entry::Ask(Asking {
            local: self.clone(),
            owner: owner.clone(),
            number,
            has_it: false,
        }))
    }
}

impl Reentry {
    /// Returns what the owner holds under this name, in its role.
    pub(crate) fn held(&self, owner: &Owner) -> Option<Arc<Held>> {
        match self.slots.lock().get(owner) {
            Some(Slot::Held(held)) => Some(Arc::clone(held)),
            _ => None,
        }
    }

    /// Removes `held` from the owner's slot when its last guard is dropped.
    fn clear(&self, owner: &Owner, held: &Arc<Held>) {
        let mut slots = self.slots.lock();
        // After a loss the slot may contain the owner's next hold, or its next acquire.
        if matches!(slots.get(owner), Some(Slot::Held(there)) if Arc::ptr_eq(there, held)) {
            slots.remove(owner);
            slots.give_back();
        }
    }

    /// Resolves when no other acquire of this owner is on its way.
    pub(crate) async fn settled(&self, owner: &Owner) {
        let is_settled = |slot: Option<&Slot>| !matches!(slot, Some(Slot::Acquiring(_)));
        self.until(owner, is_settled).await;
    }

    /// Resolves when another branch of this owner has a hold.
    pub(crate) async fn held_by_another(&self, owner: &Owner) {
        let is_held = |slot: Option<&Slot>| slot.and_then(Slot::good).is_some();
        self.until(owner, is_held).await;
    }

    async fn until(&self, owner: &Owner, is_so: impl Fn(Option<&Slot>) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, or a change between the two would be missed.
            changed.as_mut().enable();
            if is_so(self.slots.lock().get(owner)) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the owners whose holds last until they are given back.
    pub(super) fn lasting(&self) -> Vec<Owner> {
        let slots = self.slots.lock();
        let lasting = slots.iter().filter_map(|(owner, slot)| match slot {
            Slot::Held(held) if held.hold().lasts() => Some(owner.clone()),
            _ => None,
        });
        lasting.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

/// The right of an owner's branch to ask the server. If it is dropped without a hold, it leaves the
/// name to the owner's other branches.
pub(crate) struct Asking {
    local: Local,
    owner: Owner,
    /// The number of the branch.
    number: u64,
    has_it: bool,
}

impl Asking {
    /// Notes that the branch was granted a hold. Returns `false` if another branch has a hold that
    /// this branch can enter.
    pub(crate) fn holds(mut self, held: &Arc<Held>) -> bool {
        let mut slots = self.local.owners.slots.lock();
        let slot = slots.get(&self.owner);
        if slot.and_then(Slot::good).is_some() {
            return false;
        }
        let before = slots.insert(self.owner.clone(), Slot::Held(Arc::clone(held)));
        drop(slots);
        // Dropped after unlocking: dropping a hold drops its reference to this record.
        drop(before);
        self.has_it = true;
        true
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.has_it {
            let mut slots = self.local.owners.slots.lock();
            if let Some(Slot::Acquiring(branches)) = slots.get_mut(&self.owner) {
                branches.retain(|branch| *branch != self.number);
                if branches.is_empty() {
                    slots.remove(&self.owner);
                    slots.give_back();
                }
            }
        }
        // In both cases the owner's other branches join the hold, or one of them asks.
        self.local.owners.changed.notify_waiters();
    }
}
