//! The faults that can happen in a history, and the outcomes that each of them excuses.

use clap::ValueEnum;

/// A kind of fault. `value_variants()` lists them.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "matched by this workspace only")]
pub enum Kind {
    /// The server never sees a request.
    RequestLost,
    /// A reply never arrives.
    ReplyLost,
    /// A reply takes almost as long as any client waits for it.
    ReplyLate,
    /// The server sees a request twice.
    RequestDoubled,
    /// A request reaches the server after its caller has given up.
    RequestLate,
    /// The connections are cut, and all requests and replies in flight are lost.
    Cut,
    /// The connections are cut, and requests on the old connection arrive after requests on the new
    /// one.
    CutReordered,
    /// The connection for messages is cut.
    MessagesCut,
    /// A wake-up never arrives.
    MessageLost,
    /// A wake-up or a subscription is slow.
    MessageLate,
    /// The network passes nothing on for a while, and neither side notices.
    Frozen,
    /// No connection can be opened for a while.
    Refused,
    /// The server restarts and keeps its data.
    RestartWithData,
    /// The server restarts and loses its data.
    RestartEmpty,
    /// Like [`RestartEmpty`](Self::RestartEmpty), but the server does not report that it has just
    /// restarted.
    RestartUntold,
    /// The server's last writes are lost, as in a failover.
    RolledBack,
    /// Replicas do not confirm anything for a while.
    Unconfirmed,
    /// Like [`Unconfirmed`](Self::Unconfirmed), but then a replica takes over. Writes that the
    /// replicas have not confirmed are lost.
    FailedOver,
    /// The server's clock is set ahead.
    ClockAhead,
    /// The server's clock is set back.
    ClockBack,
    /// A process is suspended for longer than its leases.
    Paused,
    /// A process dies.
    Killed,
    /// A client is closed while its tasks continue.
    Closed,
    /// A lock is force-unlocked.
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
    /// `keep_for()` keeps a lock for a duration.
    Kept,
    /// A holder holds the lock for longer than its fixed lease.
    Overstayed,
    /// A holder's work reports no progress in time.
    Stalled,
    /// A hold becomes a ticket. It is resumed, released or lost.
    Ticketed,
}

use Kind::*;

impl Kind {
    /// Returns the name of the fault in reports.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Returns whether the users of a lock cause this fault themselves. All other faults happen to
    /// the users.
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
                | Stalled
                | Ticketed
        )
    }

    /// Returns whether the fault can be drawn for every kind of history.
    #[must_use]
    pub fn is_drawn(self) -> bool {
        !self.is_of_replicas() && !matches!(self, Unpolled | Kept | Stalled | Ticketed)
    }

    /// Returns whether the fault concerns replicas. It is drawn only for histories in which
    /// replicas confirm holds.
    #[must_use]
    pub fn is_of_replicas(self) -> bool {
        matches!(self, Unconfirmed | FailedOver)
    }

    /// Returns whether a request can reach the server after requests that were sent later, or the
    /// server can return to an earlier state.
    #[must_use]
    pub fn repeats(self) -> bool {
        !self.is_conduct()
            && !matches!(
                self,
                RequestLost | ReplyLost | MessagesCut | MessageLost | MessageLate
            )
    }

    /// Returns whether the fault breaks an assumption of the promise, so that holds from before the
    /// fault may overlap with holds from after the fault.
    #[must_use]
    pub fn ends_the_promise(self) -> bool {
        matches!(
            self,
            RestartEmpty | RestartUntold | RolledBack | ClockAhead | Forced | Removed
        )
    }

    /// Returns whether the server loses writes that it has answered.
    #[must_use]
    pub fn loses_data(self) -> bool {
        self.is_empty_restart() || self == RolledBack
    }

    /// Returns whether a server is restarted and forgets its grants.
    #[must_use]
    pub fn is_empty_restart(self) -> bool {
        matches!(self, RestartEmpty | RestartUntold)
    }

    /// Returns whether the fault can leave a lock in place until its lease ends.
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
                | Stalled
                | Ticketed
                | Paused
        )
    }

    /// Returns whether a wake-up can be lost without any client noticing.
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

    /// Returns whether the network or the server makes calls fail.
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

    /// Returns whether the fault ends at once, so that the next attempt can succeed.
    #[must_use]
    pub fn is_brief(self) -> bool {
        matches!(
            self,
            RequestLost | ReplyLost | ReplyLate | Cut | CutReordered | ClockBack
        )
    }

    /// Returns whether a holder with this lease may lose its lock because of the fault.
    /// `acknowledged` says whether replicas must confirm the hold.
    #[must_use]
    pub fn loses_holds(self, lease_ms: u64, acknowledged: bool) -> bool {
        /// A lease of this length is enough for two renewals that fail and one that succeeds.
        const ENOUGH_MS: u64 = 2500;
        let rides_over = self.is_brief() && lease_ms >= ENOUGH_MS;
        let spares = rides_over || self.is_of_replicas() && !acknowledged;
        self.ends_the_promise() || (self.disturbs_calls() && !spares) || self == Overstayed
    }
}
