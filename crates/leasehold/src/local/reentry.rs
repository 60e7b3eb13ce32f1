//! Holds, each with the undo that releases it, and re-entry: the holds that each owner has under
//! one name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{LocalRecords, RecordRef};
use crate::clock::Moment;
use crate::config::Terms;
use crate::error::Result;
use crate::hold::Undo;
use crate::hold::live_holds::LiveHolds;
use crate::hold::{Hold, Joined, next_number};
use crate::owner::Owner;
use crate::shrink::ShrinkIfIdle;
use crate::sync::Mutex;

/// A hold together with its undo. The guards of one owner share it. Without an owner, it has one
/// guard.
pub(crate) struct Held {
    hold: Hold,
    /// The time at which the hold began.
    since: Moment,
    live_holds: Arc<LiveHolds>,
    undo: Mutex<Undo>,
    /// The name and the owner by which the hold can be re-entered. Boxed, because few holds have an
    /// owner.
    owner: Option<Box<(RecordRef, Owner)>>,
    /// The length of the process's slice, if waiters for the lock use slices.
    slice: Option<Duration>,
    /// Whether the hold was granted to a waiter in line, so that others may still be waiting.
    was_contended: AtomicBool,
    /// The record in which other readers of the process find the hold, if they may share it. Boxed,
    /// because few holds are shared.
    _shared_hold: Option<Box<RecordRef>>,
}

impl Held {
    pub(crate) fn new(
        live_holds: &Arc<LiveHolds>,
        undo: Undo,
        owner: Option<(RecordRef, Owner)>,
        slice: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self::build(live_holds, undo, owner, slice))
    }

    /// Creates a hold that other readers of the process may share.
    pub(crate) fn shared(live_holds: &Arc<LiveHolds>, undo: Undo, local: RecordRef) -> Arc<Self> {
        let mut held = Self::build(live_holds, undo, None, None);
        held._shared_hold = Some(Box::new(local));
        Arc::new(held)
    }

    fn build(
        live_holds: &Arc<LiveHolds>,
        undo: Undo,
        owner: Option<(RecordRef, Owner)>,
        slice: Option<Duration>,
    ) -> Self {
        let hold = Hold::of(undo.hold());
        live_holds.insert(&hold);
        hold.observed.hold_began();
        Self {
            since: hold.since(),
            hold,
            live_holds: Arc::clone(live_holds),
            undo: Mutex::new(undo),
            owner: owner.map(Box::new),
            slice,
            was_contended: AtomicBool::new(false),
            _shared_hold: None,
        }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref().map(|entered_as| &entered_as.1)
    }

    /// Notes that the server has released the hold.
    pub(crate) fn given_back(&self) {
        self.take_undo().given_back();
    }

    /// Releases the hold in the background. When this returns, the request is in the queue.
    pub(crate) fn give_back_now(&self) {
        self.take_undo().give_back_now();
    }

    /// Moves the undo out of its mutex, because no task may be spawned while that is locked.
    fn take_undo(&self) -> Undo {
        self.undo.lock().take()
    }

    /// Returns the record of the hold's name, if it exists and the hold has a slice. The record
    /// exists if a waiter is in line, or was a moment ago.
    pub(crate) fn local(&self, locals: &Arc<LocalRecords>) -> Option<RecordRef> {
        self.slice.and_then(|_| locals.find(&self.hold.key))
    }

    /// Returns whether the hold stays in this process, for its next waiter. Call this only once,
    /// after the hold's last guard was dropped: a hold that is given back to the server may end the
    /// slice.
    pub(crate) fn stays_local(&self, local: &RecordRef, now: Moment) -> bool {
        let slice = self.slice;
        // If the line is on the server, the server decides which waiter is next, so this process
        // need not yield.
        let is_queued = self.hold.steps.queue_steps().is_some();
        let stays =
            slice.is_some_and(|slice| is_queued || local.hold_stays_local(&self.hold, now, slice));
        // An owner re-enters its hold through its `OwnerSlot`, which must never lead to another
        // holder's hold.
        stays && self.owner.is_none()
    }

    /// Hands the hold over to the next waiter of this process. Returns `false` if the hold must be
    /// given back to the server.
    pub(crate) fn hand_over(&self, local: &RecordRef, now: Moment) -> bool {
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
    pub(crate) fn set_contended(&self) {
        self.was_contended.store(true, Ordering::Relaxed);
    }

    /// Returns whether other waiters may want the hold.
    pub(crate) fn was_contended(&self) -> bool {
        self.was_contended.load(Ordering::Relaxed)
    }

    /// Returns whether the process may keep the lock for a slice.
    pub(crate) fn has_slice(&self) -> bool {
        self.slice.is_some()
    }

    /// Disarms the undo, because nothing remains to be released.
    pub(crate) fn disarm(&self) {
        self.undo.lock().disarm();
    }

    /// Clears the owner's slot when the hold's last guard is dropped: the owner can't re-enter the
    /// hold any more.
    pub(crate) fn clear_owner(self: &Arc<Self>) {
        if let Some((local, owner)) = self.owner.as_deref() {
            local.owners.clear(owner, self);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.undo.get_mut().is_forked() {
            return;
        }
        self.live_holds.remove(&self.hold);
        if !self.was_handed_over() {
            // A fixed lease may have run out, and nothing else checks that.
            self.hold.report_loss();
        }
        self.hold.observed.hold_ended(self.hold.age(self.since));
    }
}

/// The owners of a name. Each is a small state machine with the states free (no slot), acquiring
/// and held. There is no state for releasing: the release is queued before the slot is cleared, so
/// the owner's next request runs after the release.
#[derive(Default)]
pub(crate) struct Reentry {
    slots: Mutex<HashMap<Owner, OwnerSlot>>,
    changed: Notify,
}

enum OwnerSlot {
    /// The branches of the owner that are acquiring.
    Acquiring(Vec<u64>),
    Held(Arc<Held>),
}

impl OwnerSlot {
    /// Returns the slot's hold, if it is not lost.
    fn valid_hold(&self) -> Option<&Arc<Held>> {
        match self {
            Self::Held(held) if held.hold().loss().is_none() => Some(held),
            _ => None,
        }
    }
}

/// The result of an owner's attempt to enter a name.
pub(crate) enum OwnerEntry {
    /// The owner has no hold, and must ask the server.
    Ask(BranchAcquire),
    /// The owner has joined this hold.
    Joined(Arc<Held>, Joined),
    /// Another acquire of the same owner is in progress.
    Acquiring,
}

impl RecordRef {
    /// Enters a hold of this owner, or gets the right to ask the server for one.
    pub(crate) fn enter(&self, owner: &Owner, terms: Terms) -> Result<OwnerEntry> {
        self.enter_or_ask(owner, terms, false)
    }

    /// Like [`enter`](Self::enter), for a branch that asks the server at the same time as other
    /// branches of its owner.
    pub(crate) fn enter_concurrently(&self, owner: &Owner, terms: Terms) -> Result<OwnerEntry> {
        self.enter_or_ask(owner, terms, true)
    }

    fn enter_or_ask(&self, owner: &Owner, terms: Terms, concurrently: bool) -> Result<OwnerEntry> {
        let mut slots = self.owners.slots.lock();
        let mut branches = Vec::new();
        match slots.get_mut(owner) {
            Some(OwnerSlot::Acquiring(others)) if concurrently => branches = std::mem::take(others),
            Some(OwnerSlot::Acquiring(_)) => return Ok(OwnerEntry::Acquiring),
            // The owner can't join a lost hold. It asks the server anew, while the guards of the
            // lost hold report the loss.
            Some(OwnerSlot::Held(held)) => {
                if let Some(joined) = held.hold().join(terms)? {
                    return Ok(OwnerEntry::Joined(Arc::clone(held), joined));
                }
            }
            None => {}
        }
        // The slot is added under the lock under which it was checked, so that only one of two
        // branches of an owner asks the server. The other branch waits for the result, unless that
        // takes too long.
        let number = next_number();
        branches.push(number);
        let lost = slots.insert(owner.clone(), OwnerSlot::Acquiring(branches));
        drop(slots);
        // Drop `lost` after unlocking: dropping a hold drops its reference to this record.
        drop(lost);
        Ok(OwnerEntry::Ask(BranchAcquire {
            local: self.clone(),
            owner: owner.clone(),
            number,
            has_hold: false,
        }))
    }
}

impl Reentry {
    /// Returns the hold that the owner has under this name in the owner's role, if the owner can
    /// enter the hold again.
    pub(crate) fn held(&self, owner: &Owner) -> Option<Arc<Held>> {
        match self.slots.lock().get(owner) {
            Some(OwnerSlot::Held(held)) => Some(Arc::clone(held)),
            _ => None,
        }
    }

    /// Returns everything that the owner holds under this name, in its role: the hold that it can
    /// enter again, and the holds of handles that do not re-enter.
    pub(crate) fn all_held(&self, owner: &Owner) -> Vec<Arc<Held>> {
        let slots = self.slots.lock();
        let held = slots.iter().filter_map(|(holder, slot)| match slot {
            OwnerSlot::Held(held) if holder.is_owner_of(owner) => Some(Arc::clone(held)),
            _ => None,
        });
        held.collect()
    }

    /// Removes `held` from the owner's slot when its last guard is dropped.
    fn clear(&self, owner: &Owner, held: &Arc<Held>) {
        let mut slots = self.slots.lock();
        // After a loss, the slot may already contain the owner's next hold, or its next acquire.
        if matches!(slots.get(owner), Some(OwnerSlot::Held(there)) if Arc::ptr_eq(there, held)) {
            slots.remove(owner);
            slots.shrink_if_idle();
        }
    }

    /// Resolves when no other acquire of this owner is in progress.
    pub(crate) async fn settled(&self, owner: &Owner) {
        let is_settled = |slot: Option<&OwnerSlot>| !matches!(slot, Some(OwnerSlot::Acquiring(_)));
        self.wait_until(owner, is_settled).await;
    }

    /// Resolves when another branch of this owner has a hold.
    pub(crate) async fn held_by_another(&self, owner: &Owner) {
        let is_held = |slot: Option<&OwnerSlot>| slot.and_then(OwnerSlot::valid_hold).is_some();
        self.wait_until(owner, is_held).await;
    }

    async fn wait_until(&self, owner: &Owner, condition: impl Fn(Option<&OwnerSlot>) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check. Otherwise a change between the two would be missed.
            changed.as_mut().enable();
            if condition(self.slots.lock().get(owner)) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the owners whose holds last until the owners release them.
    pub(super) fn lasting(&self) -> Vec<Owner> {
        let slots = self.slots.lock();
        let lasting = slots.iter().filter_map(|(owner, slot)| match slot {
            OwnerSlot::Held(held) if held.hold().lasts_until_release() => Some(owner.clone()),
            _ => None,
        });
        lasting.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

/// The right of an owner's branch to ask the server. If this is dropped before the branch has a
/// hold, the owner's other branches may ask.
pub(crate) struct BranchAcquire {
    local: RecordRef,
    owner: Owner,
    /// The number of the branch.
    number: u64,
    has_hold: bool,
}

impl BranchAcquire {
    /// Notes that the branch was granted a hold. Returns `false` if another branch has a hold that
    /// this branch can enter.
    pub(crate) fn granted(mut self, held: &Arc<Held>) -> bool {
        let mut slots = self.local.owners.slots.lock();
        let slot = slots.get(&self.owner);
        if slot.and_then(OwnerSlot::valid_hold).is_some() {
            return false;
        }
        let before = slots.insert(self.owner.clone(), OwnerSlot::Held(Arc::clone(held)));
        drop(slots);
        // Drop `before` after unlocking: dropping a hold drops its reference to this record.
        drop(before);
        self.has_hold = true;
        true
    }
}

impl Drop for BranchAcquire {
    fn drop(&mut self) {
        if !self.has_hold {
            let mut slots = self.local.owners.slots.lock();
            if let Some(OwnerSlot::Acquiring(branches)) = slots.get_mut(&self.owner) {
                branches.retain(|branch| *branch != self.number);
                if branches.is_empty() {
                    slots.remove(&self.owner);
                    slots.shrink_if_idle();
                }
            }
        }
        // The owner's other branches now join this branch's hold, or one of them asks the server.
        self.local.owners.changed.notify_waiters();
    }
}
