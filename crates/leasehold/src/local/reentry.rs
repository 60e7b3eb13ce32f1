//! Re-entrance: what each owner holds under one name.

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

/// A hold together with its undo; shared by the guards of one owner.
pub(crate) struct Held {
    hold: Hold,
    /// When it began.
    since: Moment,
    standing: Arc<Standing>,
    undo: Mutex<Undo>,
    /// The name and the owner by which it can be entered again. In a box: few holds have an owner.
    owner: Option<Box<(Local, Owner)>>,
    /// For how long the process keeps the lock from its grant on, if its waiters take turns.
    turn: Option<Duration>,
    /// Whether it was waited for: then others may wait still.
    waited_for: AtomicBool,
    /// The name under which others of the process find it, if they may share it. In a box as well.
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

    /// A hold that others of the process may share.
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

    /// The server has taken it back.
    pub(crate) fn given_back(&self) {
        self.take_undo().given_back();
    }

    /// Gives it back in the background. The request is queued when this returns.
    pub(crate) fn give_back_now(&self) {
        self.take_undo().give_back_now();
    }

    /// Moved out, because nothing is spawned with it locked.
    fn take_undo(&self) -> Undo {
        self.undo.lock().take()
    }

    /// What this process knows of its name, if somebody waits there, or has done so just now.
    pub(crate) fn local(&self, locals: &Arc<Locals>) -> Option<Local> {
        self.turn.and_then(|_| locals.known(&self.hold.key))
    }

    /// Whether the hold is for the next waiter of this process. Called once, when its last guard
    /// has gone: what goes back to the server may end the turn.
    pub(crate) fn stays(&self, local: &Local, now: Moment) -> bool {
        let turn = self.turn;
        // A line on the server says who is next: nobody has to stand down.
        let is_queued = self.hold.steps.queued().is_some();
        let stays = turn.is_some_and(|turn| is_queued || local.hold_stays(&self.hold, now, turn));
        // An owner enters its hold by its own slot, which another holder must not be found in.
        stays && self.owner.is_none()
    }

    /// Hands the hold over to the next waiter of this process. `false` if it has to go back to the
    /// server.
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

    /// It is the next holder's by now.
    pub(crate) fn was_handed_over(&self) -> bool {
        self.hold.number != self.hold.hold_number()
    }

    /// It was granted to a waiter in line.
    pub(crate) fn was_waited_for(&self) {
        self.waited_for.store(true, Ordering::Relaxed);
    }

    /// Whether others may wait for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed)
    }

    /// Whether its process keeps the lock for a turn.
    pub(crate) fn takes_turns(&self) -> bool {
        self.turn.is_some()
    }

    /// There is nothing to give back any more.
    pub(crate) fn disarm(&self) {
        self.undo.lock().disarm();
    }

    /// The last guard of it goes: its owner can't enter it any more.
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
            // A fixed lease that ran out, perhaps: nobody else looks whether it has.
            self.hold.tell_loss();
        }
        self.hold.observed.ends(self.hold.age(self.since));
    }
}

/// One small state machine for each owner of a name: free (no slot), acquiring, held. Releasing
/// is no state of its own: the release is queued before the slot is cleared, so the owner's next
/// request runs behind it.
#[derive(Default)]
pub(crate) struct Reentry {
    slots: Mutex<HashMap<Owner, Slot>>,
    changed: Notify,
}

enum Slot {
    /// By these branches of the owner.
    Acquiring(Vec<u64>),
    Held(Arc<Held>),
}

impl Slot {
    /// The hold that is there, if it is not lost.
    fn good(&self) -> Option<&Arc<Held>> {
        match self {
            Self::Held(held) if held.hold().loss().is_none() => Some(held),
            _ => None,
        }
    }
}

/// What an owner finds that wants a name.
pub(crate) enum Entry {
    /// Nothing: it has to ask the server.
    Ask(Asking),
    /// A hold that it has joined.
    Joined(Arc<Held>, Joined),
    /// Another acquire of the same owner is on its way.
    Acquiring,
}

impl Local {
    /// Enters a hold of this owner, or gets the right to ask the server for one.
    pub(crate) fn enter(&self, owner: &Owner, terms: Terms) -> Result<Entry> {
        self.enter_or_ask(owner, terms, false)
    }

    /// The same for a branch that asks beside the others of its owner.
    pub(crate) fn enter_beside(&self, owner: &Owner, terms: Terms) -> Result<Entry> {
        self.enter_or_ask(owner, terms, true)
    }

    fn enter_or_ask(&self, owner: &Owner, terms: Terms, beside: bool) -> Result<Entry> {
        let mut slots = self.owners.slots.lock();
        let mut branches = Vec::new();
        match slots.get_mut(owner) {
            Some(Slot::Acquiring(others)) if beside => branches = std::mem::take(others),
            Some(Slot::Acquiring(_)) => return Ok(Entry::Acquiring),
            // The owner can't join a hold that is lost. It asks anew, while the guards of the lost
            // hold say that it is lost.
            Some(Slot::Held(held)) => {
                if let Some(joined) = held.hold().join(terms)? {
                    return Ok(Entry::Joined(Arc::clone(held), joined));
                }
            }
            None => {}
        }
        // Under the same lock as the look: of two branches of one owner one asks, and the other
        // waits for what becomes of that, unless that takes too long.
        let number = next_number();
        branches.push(number);
        let lost = slots.insert(owner.clone(), Slot::Acquiring(branches));
        drop(slots);
        // Dropped behind the lock: a hold lets go of the record that it is in.
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
    /// What the owner holds under this name, in its role.
    pub(crate) fn held(&self, owner: &Owner) -> Option<Arc<Held>> {
        match self.slots.lock().get(owner) {
            Some(Slot::Held(held)) => Some(Arc::clone(held)),
            _ => None,
        }
    }

    /// The last guard of `held` goes.
    fn clear(&self, owner: &Owner, held: &Arc<Held>) {
        let mut slots = self.slots.lock();
        // After a loss the slot may be that of the owner's next hold, or of its next acquire.
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
            // Registered before the look, or a change between the two would be missed.
            changed.as_mut().enable();
            if is_so(self.slots.lock().get(owner)) {
                return;
            }
            changed.await;
        }
    }

    /// Those whose holds last until they give them back.
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

/// The right of an owner's branch to ask the server. Dropped without a hold, it leaves the name to
/// the owner's other branches.
pub(crate) struct Asking {
    local: Local,
    owner: Owner,
    /// Of the branch.
    number: u64,
    has_it: bool,
}

impl Asking {
    /// It was granted a hold. `false` if another branch has one that this one can enter.
    pub(crate) fn holds(mut self, held: &Arc<Held>) -> bool {
        let mut slots = self.local.owners.slots.lock();
        let slot = slots.get(&self.owner);
        if slot.and_then(Slot::good).is_some() {
            return false;
        }
        let before = slots.insert(self.owner.clone(), Slot::Held(Arc::clone(held)));
        drop(slots);
        // Dropped behind the lock: a hold lets go of the record that it is in.
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
        // In both cases: the owner's other branches join the hold, or one of them asks.
        self.local.owners.changed.notify_waiters();
    }
}
