//! Releases that wait for a confirmation by the server. A holder that hands its hold to another
//! waiter of its process learns from the next reply whether it still held the lock at that moment.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Grant;
use crate::backend::failure::Failure;
use crate::error::Error;
use crate::loss::LossReason;
use crate::sync::Mutex;

/// The server's confirmation to the earlier holders of a grant.
#[derive(Clone, Debug)]
pub(crate) enum Confirmation {
    /// The hold lasted until now.
    Held,
    Lost(LossReason),
    /// The outcome can't be known: the hold no longer exists, and either its lease has expired, or
    /// a request without a reply may have ended it.
    Unknown,
    /// The server refuses to answer.
    Failed(Failure),
}

impl Confirmation {
    /// Converts a loss into the confirmation for holders that gave the hold up before the loss. If
    /// the lease ran out later, that says nothing about the time when they had the hold.
    pub(super) fn of_loss(reason: &LossReason) -> Self {
        match reason {
            LossReason::Expired | LossReason::RenewalFailed { .. } | LossReason::Closed => {
                Self::Unknown
            }
            reason => Self::Lost(reason.clone()),
        }
    }
}

/// A receiver for a confirmation. If the flag is `true`, the caller must run
/// [`ask_for_confirmation`](super::confirm_task::ask_for_confirmation).
pub(crate) type PendingConfirmation = (oneshot::Receiver<Confirmation>, bool);

/// The waiting holders. Each waits for the reply to a request that is sent after the holder's
/// release.
#[derive(Default)]
pub(super) struct PendingConfirmations(Mutex<Option<Box<ConfirmationWaiters>>>);

#[derive(Default)]
struct ConfirmationWaiters {
    /// The number of holders that have ever waited.
    last_number: u64,
    senders: VecDeque<(u64, oneshot::Sender<Confirmation>)>,
    /// Whether a task asks the server for their confirmations.
    has_task: bool,
    /// Whether a release was sent. Its reply is for all waiting holders.
    released: bool,
    /// Whether a request that ends the hold or replaces it was sent. Its reply may be missed.
    may_have_ended: bool,
}

/// The last holder that waited when a request was sent. Holders that begin to wait after that need
/// the reply to another request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfirmationMark(u64);

impl PendingConfirmations {
    /// Adds a waiting holder.
    fn wait(&self) -> PendingConfirmation {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        let waiting = waiting.get_or_insert_default();
        waiting.last_number += 1;
        waiting.senders.push_back((waiting.last_number, sender));
        let starts_task = !std::mem::replace(&mut waiting.has_task, true);
        (receiver, starts_task)
    }

    /// Marks a release that is about to be sent. Its reply is for all waiting holders, because no
    /// holder begins to wait after the release.
    pub(super) fn mark_release(&self) -> ConfirmationMark {
        let mut waiting = self.0.lock();
        ConfirmationMark(waiting.as_mut().map_or(0, |waiting| {
            waiting.released = true;
            waiting.last_number
        }))
    }

    /// Like [`mark_release`](Self::mark_release), for a request whose reply may be missed.
    fn mark_end(&self) -> ConfirmationMark {
        let mut waiting = self.0.lock();
        ConfirmationMark(waiting.as_mut().map_or(0, |waiting| {
            (waiting.released, waiting.may_have_ended) = (true, true);
            waiting.last_number
        }))
    }

    fn may_have_ended(&self) -> bool {
        let waiting = self.0.lock();
        waiting
            .as_ref()
            .is_some_and(|waiting| waiting.may_have_ended)
    }

    pub(super) fn is_released(&self) -> bool {
        let waiting = self.0.lock();
        waiting.as_ref().is_some_and(|waiting| waiting.released)
    }

    /// Returns the mark for the next request to the server. Returns `None` if no holder needs a
    /// request; the task then ends.
    pub(super) fn next_to_confirm(&self) -> Option<ConfirmationMark> {
        let mut waiting = self.0.lock();
        let waiting = waiting.as_mut()?;
        // A holder that no longer waits needs no request.
        waiting.senders.retain(|(_, sender)| !sender.is_closed());
        // Decide under the lock whether the task continues: the next holder that waits finds this
        // task running, or starts another.
        waiting.has_task = !waiting.released && !waiting.senders.is_empty();
        waiting
            .has_task
            .then_some(ConfirmationMark(waiting.last_number))
    }

    /// Delivers the server's reply to a request to the holders that waited when `mark` was taken.
    pub(super) fn deliver(&self, mark: ConfirmationMark, confirmation: &Confirmation) {
        let mut ready = Vec::new();
        if let Some(waiting) = self.0.lock().as_mut() {
            let before = |(number, _): &(u64, _)| *number <= mark.0;
            let count = waiting.senders.iter().take_while(|one| before(one)).count();
            ready.extend(waiting.senders.drain(..count));
        }
        // Send the confirmations after unlocking: a woken holder may hand over the next hold at
        // once.
        for (_, sender) in ready {
            // If this fails, the holder no longer waits.
            let _ = sender.send(confirmation.clone());
        }
    }
}

impl Grant {
    /// Returns a receiver for the server's next confirmation.
    pub(crate) fn await_confirmation(&self) -> PendingConfirmation {
        self.pending_confirmations.wait()
    }

    /// Returns whether any holder waits.
    pub(crate) fn has_confirmation_waiters(&self) -> bool {
        let waiting = self.pending_confirmations.0.lock();
        let mut senders = waiting.iter().flat_map(|waiting| &waiting.senders);
        senders.any(|(_, sender)| !sender.is_closed())
    }

    /// Notes that a release is sent.
    pub(crate) fn mark_release(&self) -> ConfirmationMark {
        self.pending_confirmations.mark_release()
    }

    /// Notes that a request that ends or replaces this hold is sent. The future of that request may
    /// be dropped before the reply arrives. So from now on, the absence of the hold does not mean
    /// that it was lost.
    pub(crate) fn mark_end(&self) -> ConfirmationMark {
        self.pending_confirmations.mark_end()
    }

    /// Returns whether a request was sent that may have ended the hold or replaced it.
    pub(super) fn may_have_ended(&self) -> bool {
        self.pending_confirmations.may_have_ended()
    }

    /// Gives the server's reply to a release request to the holders that wait for it.
    pub(crate) fn deliver(&self, mark: ConfirmationMark, confirmation: &Confirmation) {
        self.pending_confirmations.deliver(mark, confirmation);
    }

    /// Notes that the server found the hold lost when it answered a request that ends it. Notifies
    /// all waiting holders.
    pub(crate) fn was_lost(&self, mark: ConfirmationMark, reason: LossReason) -> Error {
        self.deliver(mark, &Confirmation::of_loss(&reason));
        self.ended_lost(&reason);
        Error::lost(&self.key, reason)
    }
}
