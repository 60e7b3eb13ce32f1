//! The faults a history can have, and what each of them excuses.

use clap::ValueEnum;

/// A kind of fault. `value_variants()` lists them.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "matched by this workspace only")]
pub enum Kind {
    /// The server never sees a request.
    RequestLost,
    /// A reply never comes.
    ReplyLost,
    /// A reply takes almost as long as anybody waits for it.
    ReplyLate,
    /// The server sees a request twice.
    RequestDoubled,
    /// A request reaches the server after its caller has given it up.
    RequestLate,
    /// The connections are cut, and what is on its way is lost.
    Cut,
    /// The connections are cut, and requests on the old one arrive behind later ones.
    CutReordered,
    /// The connection for messages is cut.
    MessagesCut,
    /// A wake-up never comes.
    MessageLost,
    /// A wake-up or a subscription takes long.
    MessageLate,
    /// Nothing gets through for a while, and nobody is told.
    Frozen,
    /// No connection is to be had for a while.
    Refused,
    /// The server restarts and has its data.
    RestartWithData,
    /// The server restarts and has lost its data.
    RestartEmpty,
    /// The same, and it does not say that it has just started.
    RestartUntold,
    /// The server's last writes are lost, as in a failover.
    RolledBack,
    /// Replicas confirm nothing for a while.
    Unconfirmed,
    /// The same, and then one of them takes over: what they have not confirmed is lost.
    FailedOver,
    /// The server's clock is set ahead.
    ClockAhead,
    /// The server's clock is set back.
    ClockBack,
    /// A process stands still for longer than its leases.
    Paused,
    /// A process dies.
    Killed,
    /// A client is closed while its tasks go on.
    Closed,
    /// A lock is unlocked by force.
    Forced,
    /// A lock's key is removed.
    Removed,
    /// The future of an acquire is not polled for a while.
    Unpolled,
    /// The future of an acquire is dropped.
    AcquireDropped,
    /// A guard is dropped.
    GuardDropped,
    /// The future of a release is dropped.
    ReleaseDropped,
    /// A guard is forgotten.
    Forgotten,
    /// A lock is kept for a span.
    Kept,
    /// A holder stays for longer than its fixed lease.
    Overstayed,
}

use Kind::*;

impl Kind {
    /// Its name, as the report shows it.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// What the users of a lock do themselves; the others happen to them.
    #[must_use]
    pub fn is_conduct(self) -> bool {
        matches!(
            self,
            Unpolled
                | AcquireDropped
                | GuardDropped
                | ReleaseDropped
                | Forgotten
                | Kept
                | Overstayed
        )
    }

    /// Whether it is drawn for histories of any sort.
    #[must_use]
    pub fn is_drawn(self) -> bool {
        !self.is_of_replicas() && !matches!(self, Unpolled | Kept)
    }

    /// Whether it is of replicas, which confirm the holds of some histories. It is drawn for those.
    #[must_use]
    pub fn is_of_replicas(self) -> bool {
        matches!(self, Unconfirmed | FailedOver)
    }

    /// Whether a request of an earlier time can reach the server behind later ones, or the server goes
    /// back to an earlier time.
    #[must_use]
    pub fn repeats(self) -> bool {
        !self.is_conduct()
            && !matches!(
                self,
                RequestLost | ReplyLost | MessagesCut | MessageLost | MessageLate
            )
    }

    /// Whether it breaks what the promise rests on: holds from before may overlap
    /// with holds from after.
    #[must_use]
    pub fn ends_the_promise(self) -> bool {
        matches!(
            self,
            RestartEmpty | RestartUntold | RolledBack | ClockAhead | Forced | Removed
        )
    }

    /// Whether a server is started again and has forgotten what it granted.
    #[must_use]
    pub fn is_empty_restart(self) -> bool {
        matches!(self, RestartEmpty | RestartUntold)
    }

    /// Whether it can leave a lock in place until its lease is over.
    #[must_use]
    pub fn needs_leases_to_end(self) -> bool {
        matches!(
            self,
            RequestDoubled
                | RolledBack
                | FailedOver
                | ClockBack
                | Killed
                | Forgotten
                | Overstayed
                | Paused
        )
    }

    /// Whether a wake-up can be lost without anybody being told.
    #[must_use]
    pub fn needs_polling(self) -> bool {
        matches!(
            self,
            MessageLost
                | RestartEmpty
                | RestartUntold
                | RolledBack
                | FailedOver
                | Removed
                | ClockAhead
        )
    }

    /// Whether the network or the server makes calls fail.
    #[must_use]
    pub fn disturbs_calls(self) -> bool {
        matches!(
            self,
            RequestLost
                | ReplyLost
                | ReplyLate
                | RequestLate
                | Cut
                | CutReordered
                | Frozen
                | Refused
                | RestartWithData
                | RestartEmpty
                | RestartUntold
                | Unconfirmed
                | FailedOver
                | Paused
                | Killed
                | ClockAhead
                | ClockBack
        )
    }

    /// Whether it is over at once, and the next attempt can succeed.
    #[must_use]
    pub fn is_brief(self) -> bool {
        matches!(
            self,
            RequestLost | ReplyLost | ReplyLate | Cut | CutReordered | ClockBack
        )
    }

    /// Whether a holder may lose its lock because of it, with this lease. `acknowledged`: whether
    /// replicas have to confirm its hold.
    #[must_use]
    pub fn loses_holds(self, lease_ms: u64, acknowledged: bool) -> bool {
        /// Enough for two attempts that fail and one that does not.
        const ENOUGH_MS: u64 = 2500;
        let rides_over = self.is_brief() && lease_ms >= ENOUGH_MS;
        let spares = rides_over || self.is_of_replicas() && !acknowledged;
        self.ends_the_promise() || (self.disturbs_calls() && !spares) || self == Overstayed
    }
}
