//! A hold: the state that the guards of one acquire share. One grant by the server may serve
//! several holds, one after the other. `Grant` knows how long the server keeps the lock
//! (`grant.rs`). `Holding` knows what the guards of the current hold want and have received
//! (`holding.rs`).
//!
//! This module also watches, releases and ends grants. No other module decides when a lock is lost.

mod claims;
pub(crate) mod cleanup;
pub(crate) mod confirm;
pub(crate) mod confirm_task;
pub(crate) mod grant;
mod holding;
pub(crate) mod live_holds;
pub(crate) mod progress;
mod state;
mod undo;
pub(crate) mod watchdog;
mod wheel;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::step::{Operation, Step, Value};
use crate::clock::{Moment, Timers};
use crate::loss::LossReason;
pub(crate) use claims::{ClaimId, Limit};
pub(crate) use grant::Grant;
pub(crate) use holding::next_number;
pub(crate) use progress::LastReport;
pub(crate) use state::Asked;
pub(crate) use undo::Undo;

/// The margin between the holder's deadline and the server's: clocks drift, and servers count in
/// whole milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SafetyMargin {
    pub(crate) drift: f64,
}

impl SafetyMargin {
    /// The rounding error of a server. A server counts in whole milliseconds when it sets the end
    /// of a lease, and when it checks whether the lease has ended.
    // Each rounding is up to 1 ms. The drift is a fraction of the lease that the client's builder
    // sets (`drift_fraction` in `client.rs`).
    const ROUNDING: Duration = Duration::from_millis(2);

    /// Returns the end of a hold whose confirmed request was sent at `sent`.
    fn end(self, sent: Moment, lease: Duration) -> Moment {
        let drift = lease.mul_f64(self.drift);
        sent + lease.saturating_sub(drift).saturating_sub(Self::ROUNDING)
    }
}

/// A hold that one request renews together with other holds.
pub(crate) struct BatchRenewal<'a> {
    /// The step that renews many holds. Its only common argument is the lease in ms. It replies
    /// with the numbers, from 1, of the holds that must be renewed alone.
    pub(crate) step: &'static Step,
    pub(crate) key: &'a [u8],
    pub(crate) hold: &'a [u8],
}

/// The operations on one hold, which each primitive adds to the common mechanism.
pub(crate) trait HoldSteps: Any + Send + Sync {
    /// Requests the hold. If the hold already exists, the request takes nothing more.
    fn acquire(&self, lease: Duration) -> Operation;
    /// Requests the hold. If it is not granted, puts this client into the list of waiting clients,
    /// so that a release will notify the client. `None` for a kind without such a list.
    fn acquire_and_enlist(&self, _lease: Duration, _client: WaitingClient) -> Option<Operation> {
        None
    }
    /// Removes this client from the list of waiting clients.
    fn delist(&self, _client: WaitingClient) -> Option<Operation> {
        None
    }
    /// Reads the reply to `acquire` or `acquire_and_enlist`; `None` if the reply makes no sense.
    fn read_acquire(&self, reply: Value) -> Option<AcquireReply>;
    /// Extends the hold to at least `lease` from now. If more than `most` remains, shortens the
    /// remaining time to `lease`. Replies with the remaining time in ms, or with 0 if the hold does
    /// not exist.
    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation;
    /// Sets the lease of the hold to `span` from now, even if that shortens it. No later renewal
    /// changes it. If the hold ends earlier than before, wakes the waiters so that they learn the
    /// new end. Replies 1, or 0 if the hold does not exist. Replies -1 if it has ended this hold
    /// instead, because the owner has another, nested hold that continues. `None` for a kind that
    /// several clients can hold at a time.
    fn keep_for(&self, _span: Duration) -> Option<Operation> {
        None
    }
    /// Returns how one request renews this hold and others; `None` if the hold is renewed alone.
    fn batch_renewal(&self) -> Option<BatchRenewal<'_>> {
        None
    }
    /// Returns the swap operations of a kind whose holders know the ids of their permits; `None`
    /// for other kinds.
    fn swap_steps(&self) -> Option<&dyn SwapSteps> {
        None
    }
    /// Returns the queue operations of a kind whose waiters are in a queue on the server; `None`
    /// for other kinds.
    fn queue_steps(&self) -> Option<&dyn QueueSteps> {
        None
    }
    /// Releases the hold. Replies 1 or more, or 0 if the hold does not exist.
    fn release(&self) -> Operation;
    /// Releases the hold like [`release`](Self::release), and notifies the first client in the list
    /// of waiting clients. `None` for a kind without such a list.
    fn release_and_notify(&self) -> Option<Operation> {
        None
    }
    /// Returns the channel on which releases are published, if a release replies 1 plus the number
    /// of connections that received its message.
    fn counted_channel(&self) -> Option<&str> {
        None
    }
    /// Reads from a reply to a release why the hold, or a part of it, does not exist. `None` if the
    /// reply does not say.
    fn read_release(&self, _reply: &Value) -> Option<LossReason> {
        None
    }

    /// Returns the longest time for which the hold excludes other clients, if it is neither renewed
    /// nor released.
    fn ends_within(&self, lease: Duration) -> Duration {
        lease
    }
    /// Asks the server why the hold does not exist.
    fn why_lost(&self) -> Operation;
    /// Returns the id of the hold on the wire.
    fn wire_id(&self) -> &str;
    /// Returns an unused wire id that belongs to this hold. Each id is returned once.
    fn take_read_id(&self) -> Option<String> {
        None
    }
    /// Reads the reply to `why_lost`. `None` if nothing gives a reason.
    fn read_why_lost(&self, reply: Value) -> Option<LossReason>;
    /// Returns why a hold of this kind has no fencing token, and what the user can do. `None` if it
    /// can have a token: such a hold excludes every other client, and is one field of the hash that
    /// has the lock's name.
    fn unfenced(&self) -> Option<&'static str> {
        None
    }
}

/// The swap of permits that are held by ids. The holder knows the ids and may pass them on, so the
/// next holder must not get the same ids: one request replaces them with new ids.
pub(crate) trait SwapSteps {
    /// Returns the number of permits.
    fn permits(&self) -> u32;
    /// Returns the same number of permits with new ids, for this lease, and the operation that
    /// replaces these permits with them. The operation replies 1, or 0 if one of these permits is
    /// no longer held.
    fn swap(&self, lease: Duration) -> (Box<dyn HoldSteps>, Operation);
}

/// The further operations on a hold whose waiters are in a queue on the server.
pub(crate) trait QueueSteps {
    /// Returns how long a waiter's place is kept after each of its requests.
    fn waiter_timeout(&self) -> Duration;
    /// Renews the places of the waiters with these ids, each after a space. Replies with a list. It
    /// starts with the `ttl_ms` of [`AcquireReply::Busy`]. Then it has the numbers, from 1, of the
    /// waiters that must each send their own request.
    fn keep_places(&self, ids: &str) -> Operation;
    /// Releases the hold, and grants a hold for `lease` to the first waiter in the queue, if that
    /// waiter belongs to this client. Replies like [`HoldSteps::release`], or with the id of the
    /// new holder.
    fn release_to_next(&self, lease: Duration) -> Operation;
    /// Reads the id of the new holder, followed by the ids of this client's next waiters in the
    /// queue. `None` if nothing was granted.
    fn read_next(&self, reply: Value) -> Option<Vec<String>>;
    /// Returns the operations on the hold of the waiter with this id.
    fn of_waiter(&self, id: String) -> Box<dyn HoldSteps>;
    /// Notes that the hold was handed over to the waiter with this id. Its place in the queue is
    /// removed when the hold is released.
    fn note_handed_to(&self, id: &str);
    /// Removes the places of the waiters to which the hold was handed over, for a hold that is left
    /// to expire instead of released. `None` if there are no places.
    fn leave_queue(&self) -> Option<Operation>;
}

/// The server's answer to a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// The hold was granted, with its fencing token if one was requested.
    Granted { token: Option<u64> },
    /// Another client's hold lasts for `ttl_ms` more; negative if that hold never expires. `before`
    /// is the number of clients before this one in the list of waiting clients; `None` if this
    /// client is not in the list.
    Busy { ttl_ms: i64, before: Option<u32> },
}

/// A client that a release may notify.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingClient {
    /// The number by which the client is notified.
    pub(crate) number: u64,
    /// Whether the client was notified before, but another client was quicker. Such a client is the
    /// next to be notified.
    pub(crate) was_notified: bool,
}

impl WaitingClient {
    /// Returns the client's item in the list of waiting clients. A lock counts as one permit.
    pub(crate) fn list_item(self, permits: u32) -> String {
        format!("{}:{permits}", self.number)
    }

    /// Like [`list_item`](Self::list_item), but empty without a client.
    pub(crate) fn list_item_or_empty(client: Option<Self>, permits: u32) -> String {
        client.map_or_else(String::new, |client| client.list_item(permits))
    }
}

/// One hold of a grant. The grant knows its state.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    grant: Arc<Grant>,
    /// The number of this hold in this process. Two holds of one grant have different numbers.
    pub(crate) number: u64,
}

impl Hold {
    /// Resolves with the reason when the hold is lost. Never resolves once the hold was released
    /// before it was lost, or was handed over.
    pub(crate) async fn lost(&self, timers: &Timers) -> LossReason {
        self.grant.lost(self.number, None, timers).await
    }

    /// Like [`lost`](Self::lost), for one of several independent guards. Never resolves once that
    /// guard has left the hold.
    pub(crate) async fn lost_by(&self, claim: ClaimId, timers: &Timers) -> LossReason {
        self.grant.lost(self.number, Some(claim), timers).await
    }

    /// Returns where the guards of the hold report progress.
    pub(crate) fn reports(&self) -> Arc<LastReport> {
        self.grant.reports()
    }

    /// Resolves with the time since the last report of progress when the work has stalled. Never
    /// resolves once the hold was released, or lost for another reason.
    pub(crate) async fn stalled(&self, timers: &Timers) -> Duration {
        self.grant.stalled(self.number, timers).await
    }

    /// Returns the current hold of `grant`.
    pub(crate) fn of(grant: &Arc<Grant>) -> Self {
        Self {
            grant: Arc::clone(grant),
            number: grant.hold_number(),
        }
    }
}

impl Deref for Hold {
    type Target = Arc<Grant>;

    fn deref(&self) -> &Arc<Grant> {
        &self.grant
    }
}

/// A guard that has joined a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) claim: ClaimId,
    /// Whether the guard wants a longer lease than the server has confirmed.
    pub(crate) must_confirm: bool,
    /// Whether the time at which the hold is due in the watchdog has moved.
    pub(crate) moves_due: bool,
}

/// The action that a guard's exit requires on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardExit {
    /// Nothing, because other guards still share the hold. `moves_due`: whether the time at which
    /// the hold is due in the watchdog has moved.
    Shared { moves_due: bool },
    /// Release the hold: the guard was the last one.
    Last,
    /// Nothing: the guard was the last one, but the hold remains until its lease ends.
    LeftToLease,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_before_lease_by_safety_margin() {
        let margin = SafetyMargin { drift: 0.01 };
        let sent = Moment::from_millis(1_000);
        let end = |lease| margin.end(sent, Duration::from_millis(lease));
        assert_eq!(end(10_000), Moment::from_millis(1_000 + 9_898));
        assert_eq!(end(1), sent, "and not before it was asked for");
        let exact = SafetyMargin { drift: 0.0 };
        let lease = Duration::from_millis(10);
        assert_eq!(exact.end(sent, lease), Moment::from_millis(1_008));
    }
}
