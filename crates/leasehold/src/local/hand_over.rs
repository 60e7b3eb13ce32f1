//! The hand-over of a hold to the next waiter of the process, which gets the hold without a
//! request. `slice.rs` decides how long a hold stays in the process. The release that hands the
//! hold over waits for the server's confirmation (`hold/confirm.rs`).
//!
//! The hold is *moved*, with its armed undo: it is either with its holder, or in the slot of one
//! waiter. Each hand-over gives the hold a new number (`Grant::hand_over`), so that two holders are
//! never confused.

use std::sync::Arc;
use std::time::Duration;

use super::Record;
use super::line::Place;
use super::slice::Slice;
use super::slot::WaiterSlot;
use super::succession::drop_unreleased;
use crate::clock::Moment;
use crate::config::Terms;
use crate::hold::{ClaimId, Grant, Undo};
use crate::sync::Mutex;

/// A waiter to which a hold can be handed over.
pub(crate) struct HoldWaiter {
    /// The terms that the waiter wants. A hold with other terms or another number of permits is not
    /// handed over to this waiter.
    pub(super) terms: Terms,
    pub(super) permits: u32,
    /// The id of the waiter's place, if the line is on the server.
    pub(super) place_id: Option<String>,
    pub(super) slot: WaiterSlot<Undo>,
    /// The length of the process's slice, counted from the server's grant.
    pub(super) slice: Duration,
}

impl HoldWaiter {
    /// Creates a waiter that wants `permits` permits; 1 for a lock.
    pub(crate) fn new(terms: Terms, permits: u32, slice: Duration) -> Self {
        Self {
            terms,
            permits,
            place_id: None,
            slot: WaiterSlot::new(),
            slice,
        }
    }

    /// Sets the id of the waiter's place in a line on the server.
    pub(crate) fn with_place(self, id: Option<String>) -> Self {
        Self {
            place_id: id,
            ..self
        }
    }
}

impl Record {
    /// Returns whether a returned hold stays in this process, because the process's slice
    /// continues.
    pub(super) fn hold_stays_local(&self, hold: &Grant, now: Moment, slice: Duration) -> bool {
        let granted = (hold.granted_at(), hold.permits());
        self.slice.lock().hold_stays_local(granted, now, slice)
    }

    /// Returns the terms of the first waiter in line, if it wants this number of permits.
    pub(crate) fn next_wants(&self, permits: u32) -> Option<Terms> {
        let (_, hold_waiter) = self.line.line()?.first_hold_waiter()?;
        (hold_waiter.permits == permits).then_some(hold_waiter.terms)
    }

    /// Hands a hold over to the first waiter in line. Returns the hold if it must be given back to
    /// the server: there is no waiter, or the first waiter can't have this hold.
    pub(super) fn hand_over(&self, undo: Undo, now: Moment) -> Result<(), Undo> {
        self.give(undo, now, |hold, terms| hold.hand_over(terms, now))
    }

    /// Like [`hand_over`](Self::hand_over), for a hold that has had no holder yet.
    pub(crate) fn give_new(&self, undo: Undo, now: Moment) -> Result<(), Undo> {
        // Compare the terms of the first claim, because `Grant::terms` leaves out the maximum hold
        // time.
        let fits = |hold: &Grant, terms| hold.terms_of(ClaimId::FIRST) == terms;
        self.give(undo, now, fits)
    }

    fn give(
        &self,
        undo: Undo,
        now: Moment,
        fits: impl Fn(&Grant, Terms) -> bool,
    ) -> Result<(), Undo> {
        let Some(line) = self.line.line() else {
            return Err(undo);
        };
        let mut undo = undo;
        loop {
            let hold = undo.hold();
            let next = match hold.steps.queue_steps() {
                Some(_) => line.next_in_succession(hold),
                None => line.first_hold_waiter(),
            };
            let Some((waker, hold_waiter)) = next else {
                break;
            };
            if hold.permits() != hold_waiter.permits || !fits(hold, hold_waiter.terms) {
                break;
            }
            if hold.steps.queue_steps().is_some() {
                self.slice.lock().begin(now);
            }
            // The other waiters now know that the name is held, without asking the server.
            line.answered(hold.confirmed_at(), now);
            match line.give(&waker, &hold_waiter, undo) {
                Ok(()) => return Ok(()),
                // The waiter has just left, or was passed over.
                Err(returned) => undo = returned,
            }
        }
        Err(undo)
    }

    /// Notes that the release of a hold has been queued, and wakes the head of the line: the head's
    /// request runs after the release.
    pub(crate) fn hold_returned(&self, now: Moment) {
        self.slice.lock().hold_returned(now);
        if let Some(line) = self.line.line() {
            line.wake_head();
        }
    }
}

impl Place {
    /// Returns the state of the process's slice for this name.
    pub(crate) fn slice(&self) -> &Mutex<Slice> {
        &self.local().slice
    }

    /// Resolves when a hold is handed over to this waiter.
    pub(crate) async fn handed_over(&self) -> Undo {
        let Some(hold_waiter) = self.hold_waiter() else {
            return std::future::pending().await;
        };
        // No waker is registered here: code that fills the slot wakes the `WaiterWaker`, with which
        // the entire wait is polled.
        std::future::poll_fn(|_| match hold_waiter.claim() {
            Some(undo) => {
                undo.hold().observed.handed_over();
                std::task::Poll::Ready(undo)
            }
            None => std::task::Poll::Pending,
        })
        .await
    }

    /// Resolves when the hold that was granted to this waiter's place on the server has been given
    /// back. The id of the place belongs only to that hold.
    pub(crate) async fn was_given_back(&self) {
        std::future::poll_fn(|_| match self.wants_more() {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        })
        .await;
    }

    fn wants_more(&self) -> bool {
        self.hold_waiter()
            .is_none_or(|hold_waiter| !hold_waiter.slot.is_closed())
    }

    /// Returns whether a request for the place on the server may be sent. If not, the waiter has a
    /// hold, or has had one.
    pub(crate) fn may_ask_in_line(&self) -> bool {
        self.hold_waiter()
            .is_none_or(|hold_waiter| hold_waiter.slot.is_empty())
    }

    /// Notes that the server has granted the lock to the request for the place. Returns `false` if
    /// that hold has already been given back.
    pub(crate) fn accept_own_grant(&self) -> bool {
        self.hold_waiter()
            .is_none_or(|hold_waiter| hold_waiter.accept_own_grant())
    }

    /// Returns whether a hold that was handed over is the hold of this waiter's own place.
    pub(crate) fn owns(&self, hold: &Undo) -> bool {
        self.hold_waiter()
            .is_some_and(|hold_waiter| hold_waiter.owns(hold.hold()))
    }

    /// Notes that the request for the place was given up. The request's undo also gives back
    /// `hold`, which was granted to the place.
    pub(crate) fn gave_up(&self, hold: Undo) {
        drop_unreleased(hold);
        self.local().hold_returned(self.local().now());
    }

    /// Ties a waiter's place to the hold that was handed over to the waiter, so that the place ends
    /// with the hold. `own` is the undo of the place.
    pub(crate) fn tie_place_to(&self, hold: &mut Undo, own: Undo) {
        let Some(place) = self.hold_waiter().and_then(|one| one.place_id.as_deref()) else {
            return;
        };
        let queued = hold.hold().steps.queue_steps();
        match queued {
            Some(_) if place == hold.hold().steps.wire_id() => hold.take_over(own),
            // If the request for the place may arrive late, its undo must run. Otherwise the
            // request would take a place that no waiter uses.
            Some(queued) if !own.has_late_request() => {
                queued.note_handed_to(place);
                let mut own = own;
                own.disarm();
            }
            _ => drop(own),
        }
    }
}

impl HoldWaiter {
    /// Takes a hold that was handed over, unless it is lost.
    fn claim(&self) -> Option<Undo> {
        let undo = self.slot.claim()?;
        if undo.hold().loss().is_none() {
            return Some(undo);
        }
        let is_own = self.owns(undo.hold());
        // The hold was lost while it was in the slot. The server may still have it, so its undo
        // runs.
        give_back(undo);
        // The slot stays closed after a hold of the waiter's own place: the release that was just
        // queued may end any later hold with the same id.
        if !is_own {
            self.slot.reopen();
        }
        None
    }
}

/// Releases a hold that has no holder.
pub(crate) fn give_back(undo: Undo) {
    // End the hold first, so that the watchdog, which still has the hold, does not renew it.
    undo.hold().end();
    drop(undo);
}

/// Passes on the hold in the slot of a waiter that has left.
pub(super) fn waiter_left(record: &Arc<Record>, hold_waiter: &HoldWaiter, now: Moment) {
    if let Some(undo) = hold_waiter.slot.close() {
        pass_on(record, hold_waiter, undo, drop_unreleased, now);
    }
}

/// Passes on the hold in the slot of a waiter that is not polled. Otherwise the watchdog would
/// renew a hold without a holder until the waiter is polled.
pub(super) fn waiter_stalled(record: &Arc<Record>, hold_waiter: &HoldWaiter, now: Moment) {
    let is_own = |undo: &Undo| hold_waiter.owns(undo.hold());
    if let Some(undo) = hold_waiter.slot.take_back(is_own) {
        pass_on(record, hold_waiter, undo, give_back, now);
    }
}

/// Passes a hold without a holder on to the next waiter, or releases it on the server. A hold that
/// was granted to the waiter's own place is not passed on, because the undo of the place also
/// releases it: `end_own` ends that hold.
fn pass_on(
    record: &Arc<Record>,
    hold_waiter: &HoldWaiter,
    undo: Undo,
    end_own: fn(Undo),
    now: Moment,
) {
    if hold_waiter.owns(undo.hold()) {
        end_own(undo);
        return record.hold_returned(now);
    }
    let stays = undo.hold().steps.queue_steps().is_some()
        || record.hold_stays_local(undo.hold(), now, hold_waiter.slice);
    let returned = match stays {
        true => record.hand_over(undo, now),
        false => Err(undo),
    };
    if let Err(undo) = returned {
        give_back(undo);
        record.hold_returned(now);
    }
}
