//! Sets a member again, while the whole is held, after its server was restarted without data or
//! replaced. So servers can be restarted one after the other, and no hold ends.
//!
//! **Why this never leads to two holders.** If two holds are valid at the same time, both were
//! valid when the younger one, Y, was granted its majority. At that time both counted one common
//! server. Without a restart that server kept them apart, because it grants its key to only one of
//! them. So it was restarted.
//!
//! - The restart was before Y's vote. Y did not count the server for a longest lease
//!   (`Ballot::trust`). After that time, everything that the older hold, X, had there before the
//!   restart is over. If X was set again meanwhile, its key kept Y out. This is also why X may
//!   count the server until its old lease ends, although the server says that it no longer has X's
//!   key (`MemberHold::still_counts`).
//! - The restart was after Y's vote, which was lost with it, and X was set again before Y had its
//!   majority. To prevent this, **X waits**: it asks only a server that has been up for half a
//!   longest lease (`LongestLease::rejoin_after`). A ballot takes at most two fifths of a longest lease,
//!   or it is void (`Ballot::is_too_late`). The difference is a margin for clocks that drift. So
//!   each ballot in which the server voted before its restart is over. Either Y had its majority,
//!   and X had lost its own by then, or Y never gets one. A hold that an owner has there from
//!   before the ballot is a vote like any other: its server must answer during the ballot, and must
//!   have been up for a longest lease.
//!
//! This depends on a restart of the server, so **without a restart no member is set again**. A
//! server whose data was flushed, or whose key was removed, has a vote at once, and another client
//! may have got that vote in between. A forced unlock of a member must last, too. For the same
//! reason, a member whose lease ran out is set again only after its server was restarted. Three
//! kinds of members are never set again: one on a server that denies `INFO`, on a master behind
//! sentinels, or on a node of a cluster.
//!
//! If another client holds the lock on that server meanwhile, alone or as a part of a ballot that
//! fails, X waits for it. A member that is set again is a new hold with a new id. The previous hold
//! stays lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::longest::LongestLease;
use crate::config::{self, Settings};
use crate::hold::Hold;
use crate::loss::LossReason;
use crate::observe::log;
use crate::owner::Owner;
use crate::primitives::any::AnyLock;
use crate::primitives::composite::member::{MemberReply, MemberTerms};
use crate::primitives::composite::quorum::Members;
use crate::wait::Deadline;

/// The task that sets the members of a hold again.
pub(super) struct Rejoin {
    /// The members of the hold, in its order.
    pub(super) members: Vec<AnyLock>,
    pub(super) settings: Settings,
    pub(super) owner: Option<Owner>,
    /// Time to wait for a server.
    pub(super) limit: Duration,
    pub(super) longest: Arc<LongestLease>,
}

/// The chance to set a lost member again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chance {
    /// No chance any more.
    None,
    /// A chance only after its server is restarted.
    Later,
    Now,
}

impl Rejoin {
    /// Sets members again until the whole is over.
    pub(super) fn begin(self, quorum: Arc<Members>) {
        let context = Arc::clone(self.members[0].context());
        let this = Arc::new(self);
        context.cleanup.spawn_detached(async move {
            tokio::select! {
                biased;
                () = quorum.ended() => {}
                () = this.watch(&quorum) => {}
            }
        });
    }

    async fn watch(self: &Arc<Self>, quorum: &Arc<Members>) {
        const SHORTEST: Duration = Duration::from_millis(5);
        const LONGEST: Duration = Duration::from_secs(1);
        let pause = (self.settings.lease() / 20).clamp(SHORTEST, LONGEST);
        let timers = &self.members[0].context().timers;
        let mut out = vec![false; self.members.len()];
        loop {
            let lost = quorum.lost_among(|place| !out[place]).await;
            let mut attempts = Vec::new();
            for place in lost {
                match self.chance(place, &quorum.hold(place)) {
                    Chance::None => out[place] = true,
                    Chance::Later => {}
                    Chance::Now => attempts.push(self.attempt(quorum, place)),
                }
            }
            join_all(attempts).await;
            timers.sleep(pause).await;
        }
    }

    fn chance(&self, place: usize, hold: &Hold) -> Chance {
        let context = self.members[place].context();
        if context.check_open(&hold.key).is_err() {
            return Chance::None;
        }
        match hold.loss() {
            Some(LossReason::Deleted | LossReason::Taken { .. }) => {
                // The state when the server reported the loss counts: a later restart has not
                // forgotten this hold.
                match hold.counts_until() {
                    Some(_) => Chance::Now,
                    None => Chance::None,
                }
            }
            Some(LossReason::RenewalFailed { .. } | LossReason::Expired) => {
                match context.backend.replaced_since(hold.confirmed_at()) {
                    Some(_) => Chance::Now,
                    None => Chance::Later,
                }
            }
            Some(_) => Chance::None,
            // The member counts again already.
            None => Chance::Later,
        }
    }

    /// Makes one attempt. A close of the member's client waits for the attempt, because an attempt
    /// that is dropped leaves something to give back.
    fn attempt(self: &Arc<Self>, quorum: &Arc<Members>, place: usize) -> impl Future<Output = ()> {
        let (this, quorum) = (Arc::clone(self), Arc::clone(quorum));
        let (done, finished) = oneshot::channel::<()>();
        self.members[place].context().cleanup.spawn(async move {
            let _done = done;
            tokio::select! {
                // Checked first: no request is sent for a guard that has ended.
                biased;
                () = quorum.ended() => {}
                () = this.rejoin(&quorum, place) => {}
            }
        });
        async {
            // Nothing is ever sent: an error means that the attempt has ended.
            let _ = finished.await;
        }
    }

    async fn rejoin(&self, quorum: &Arc<Members>, place: usize) {
        let member = &self.members[place];
        // Noted at once, not when the server is old enough: other clients may apply a shorter bound
        // until they read this.
        if self.longest.of_all_clients() > config::DEFAULT_LONGEST_LEASE {
            let noted = member
                .with_timeout(self.limit, self.longest.exchange_notes(member))
                .await;
            if noted.is_err() {
                return;
            }
        }
        if self.restarted_recently(member) {
            return;
        }
        // The guard's present terms: it may have been extended.
        let mut settings = self.settings.clone();
        settings.take(config::Terms {
            max_hold: None,
            ..quorum.hold(place).terms()
        });
        let terms = MemberTerms {
            settings: &settings,
            owner: self.owner.as_ref(),
        };
        let asked = member.acquire_as_member(&terms, Deadline::Now, false);
        let Ok(MemberReply::Granted(guard)) = member.with_timeout(self.limit, asked).await else {
            return;
        };
        // The server may have been restarted again meanwhile.
        if !self.restarted_recently(member) {
            log(
                || tracing::info!(key = %guard.name(), server = member.address(), "a restarted server has the lock again"),
            );
            quorum.adopt(place, guard).await;
        }
    }

    /// Returns whether a ballot may still be under way in which the server voted before its start.
    fn restarted_recently(&self, member: &AnyLock) -> bool {
        let context = member.context();
        let since = context.clock.now() - self.longest.rejoin_after();
        let recent = |key| context.backend.started_after(key, since).is_some();
        member.key().map_or(true, recent)
    }
}
