//! A hold: what the guards of one acquire share. It stands under a grant of the server, of which it
//! is one stay: the grant says until when the server keeps the lock (`grant.rs`), the stay what its
//! guards want and what they were given (`stay.rs`).
//!
//! What watches grants, gives them back and ends them is here as well: nothing above decides when
//! a lock is lost.

pub(crate) mod acks;
mod claims;
pub(crate) mod cleanup;
pub(crate) mod grant;
pub(crate) mod standing;
mod state;
mod stay;
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
pub(crate) use stay::next_number;
pub(crate) use undo::Undo;

/// How much earlier the holder's deadline is than the server's: clocks drift, and servers count
/// in whole milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SafetyMargin {
    pub(crate) drift: f64,
}

impl SafetyMargin {
    /// A server counts in whole milliseconds, when it sets the end of a lease and when it looks
    /// whether that has come.
    // Up to 1 ms each time. The drift is a fraction of the lease that the client's builder sets
    // (`drift_fraction` in `client.rs`).
    const ROUNDING: Duration = Duration::from_millis(2);

    /// The end of a hold whose confirmed request was sent at `sent`.
    fn end(self, sent: Moment, lease: Duration) -> Moment {
        let drift = lease.mul_f64(self.drift);
        sent + lease.saturating_sub(drift).saturating_sub(Self::ROUNDING)
    }
}

/// A hold that one request renews together with others.
pub(crate) struct Together<'a> {
    /// The step of many that does it. Its argument for all is the lease in ms. It replies a list
    /// with the numbers, from 1, of those that have to be renewed alone.
    pub(crate) step: &'static Step,
    pub(crate) key: &'a [u8],
    pub(crate) hold: &'a [u8],
}

/// The operations on one hold: what a primitive adds to the mechanism.
pub(crate) trait HoldSteps: Any + Send + Sync {
    /// Asks for the hold. Asked again for a hold that is there, it takes nothing more.
    fn acquire(&self, lease: Duration) -> Operation;
    /// Asks for the hold, and for a call to this client by the release of whoever has it. `None` for
    /// a kind whose releases call nobody.
    fn acquire_in_turn(&self, _lease: Duration, _client: Caller) -> Option<Operation> {
        None
    }
    /// Says that this client waits no longer for what it has asked for so.
    fn leave_turn(&self, _client: Caller) -> Option<Operation> {
        None
    }
    /// Reads the reply to either; `None` when it makes no sense.
    fn read_acquire(&self, reply: Value) -> Option<Asked>;
    /// Extends the hold to at least `lease` from now; if more than `most` is left, shortens it to
    /// `lease`. Replies the time left in ms, or 0 when the hold is not there.
    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation;
    /// Leaves the hold to a lease of `span` from now on, even if that is shorter, and wakes those who
    /// wait for its end. Replies 1, 0 when the hold is not there, or -1 when its owner has more beside
    /// it that goes on: then it was ended. `None` for a kind that several can hold at a time.
    fn keep_for(&self, _span: Duration) -> Option<Operation> {
        None
    }
    /// What it is renewed by together with others; `None` if it is renewed alone.
    fn renewed_together(&self) -> Option<Together<'_>> {
        None
    }
    /// For a kind whose holders know the ids of what they hold; `None` for others.
    fn exchanged(&self) -> Option<&dyn Exchanged> {
        None
    }
    /// For a kind whose waiters stand in a line on the server; `None` for others.
    fn queued(&self) -> Option<&dyn Queued> {
        None
    }
    /// Gives the hold back. Replies 1 or more, or 0 when it is not there.
    fn release(&self) -> Operation;
    /// Gives it back in the same way, and calls one of the clients that have asked for it; `None` for
    /// a kind whose releases call nobody.
    fn release_and_call(&self) -> Option<Operation> {
        None
    }
    /// The channel of its releases, if the reply to one is 1 and how many connections were told on
    /// it.
    fn counted_channel(&self) -> Option<&str> {
        None
    }
    /// Reads from such a reply why the hold, or a part of it, is not there. `None`: it does not
    /// say.
    fn read_release(&self, _reply: &Value) -> Option<LossReason> {
        None
    }

    /// The longest time until nothing of the hold keeps anybody out, if it is neither renewed nor
    /// given back.
    fn gone_within(&self, lease: Duration) -> Duration {
        lease
    }
    /// Asks why the hold is not there.
    fn why_lost(&self) -> Operation;
    /// The id of the hold on the wire.
    fn wire_id(&self) -> &str;
    /// An unused wire id that belongs to this hold. Returned once.
    fn take_read_id(&self) -> Option<String> {
        None
    }
    /// Reads that reply. `None`: nothing says why.
    fn read_why_lost(&self, reply: Value) -> Option<LossReason>;
    /// Why such a hold has no fencing token, and what to do. `None` when it can have one: it
    /// keeps everybody else out, and is one field of the hash that has the lock's name.
    fn unfenced(&self) -> Option<&'static str> {
        None
    }
}

/// What is held by ids that its holders know, and may tell others. The next holder can't have the
/// same ids, so one request takes them out and puts new ones into their place.
pub(crate) trait Exchanged {
    /// How many permits are held.
    fn permits(&self) -> u32;
    /// As many permits with new ids, for this lease, and the operation that puts them into the place
    /// of these. It replies 1, or 0 when one of these is not held any more.
    fn next(&self, lease: Duration) -> (Box<dyn HoldSteps>, Operation);
}

/// What the server gives to the first in its line.
pub(crate) trait Queued {
    /// Gives the hold back, and grants one for `lease` to the first in line, if that is a waiter of
    /// this client. Replies as [`HoldSteps::release`], or who has it now.
    fn release_to_next(&self, lease: Duration) -> Operation;
    /// Reads who has it now, and behind it those of this client that are next in line. `None` if
    /// nobody was granted anything.
    fn read_next(&self, reply: Value) -> Option<Vec<String>>;
    /// The operations on the hold of the waiter with this id.
    fn of_waiter(&self, id: String) -> Box<dyn HoldSteps>;
    /// The hold was handed over to the waiter with this id, whose place goes when the hold is given
    /// back.
    fn serves(&self, id: &str);
    /// Takes the places of those waiters out of the line: the hold is left to its lease, and not given
    /// back. `None` if there are none.
    fn leave_line(&self) -> Option<Operation>;
}

/// The server's answer to a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// With the fencing token, where one was asked for.
    Granted { token: Option<u64> },
    /// Somebody is in the way for `ttl_ms`; negative when that never expires. So many clients are
    /// called before this one, if it is called at all.
    Busy { ttl_ms: i64, before: Option<u32> },
}

/// A client that a release may call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// By this number.
    pub(crate) number: u64,
    /// It was called, and somebody else was quicker: it comes first now.
    pub(crate) was_called: bool,
}

impl Caller {
    /// Returns its item in the list of the clients that wait. A lock is one permit.
    pub(crate) fn waits_for(self, permits: u32) -> String {
        format!("{}:{permits}", self.number)
    }

    /// The same; empty without a client.
    pub(crate) fn waits_or_not(client: Option<Self>, permits: u32) -> String {
        client.map_or_else(String::new, |client| client.waits_for(permits))
    }
}

/// A hold of a grant. All that is asked of it, its grant answers.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    grant: Arc<Grant>,
    /// Counts the holds of this process. Drawn here, so that two holds of one grant would differ.
    pub(crate) number: u64,
}

impl Hold {
    /// Resolves with the reason when it is lost. Never once it was given back in time, or handed
    /// over.
    pub(crate) async fn lost(&self, timers: &Timers) -> LossReason {
        self.grant.lost(self.number, None, timers).await
    }

    /// The same for one of several guards that have nothing to do with each other: never once it has
    /// left.
    pub(crate) async fn lost_by(&self, claim: ClaimId, timers: &Timers) -> LossReason {
        self.grant.lost(self.number, Some(claim), timers).await
    }

    /// The present hold of `grant`.
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

/// A guard that shares a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) claim: ClaimId,
    /// It wants more than the server has confirmed.
    pub(crate) must_confirm: bool,
    /// The watchdog has to look at the hold at another time than before.
    pub(crate) moves_look: bool,
}

/// What a guard that leaves has to do about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Others still share the hold. The watchdog may have to look at it at another time than
    /// before.
    Shared { moves_look: bool },
    /// The last one: give it back.
    Last,
    /// The last one, but it stays until its lease ends.
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
