//! Rejoining: the holder of a `RedLock` acquires a lost member again after the member's server was
//! restarted without data or replaced. So servers can be restarted one after the other without
//! ending a hold.
//!
//! **Why this never leads to two holders.** Assume that two holds are valid at the same time. Both
//! were valid when the younger one, Y, got its majority, so at that time both counted a server that
//! they had in common. A server grants its key to only one hold, unless it is restarted in between.
//! So this server was restarted.
//!
//! - The restart was before Y's vote. Y did not trust the server until one longest lease after its
//!   start (`Ballot::trust`). By that time, each lease that the older hold, X, had there before the
//!   restart had expired. If X had rejoined, its key kept Y out. This is also why X may count the
//!   server until its old lease ends, although the server reports that it no longer has X's key
//!   (`MemberHold::still_counts`).
//! - The restart was after Y's vote, which the server then forgot, and X rejoined before Y had its
//!   majority. To prevent this, **X waits**: it rejoins only on a server that has been up for half
//!   a longest lease (`LongestLease::rejoin_after`). A ballot that takes more than two fifths of a
//!   longest lease is void (`Ballot::is_too_late`). The difference is a margin for clocks that
//!   drift. So when X rejoins, every ballot in which the server voted before its restart has ended.
//!   Either Y had got its majority, and X had already lost its own, or Y never gets one. If Y's
//!   owner already had a hold on the server, that counts like any other vote: the server must
//!   answer during the ballot, and must have been up for a longest lease.
//!
//! All this depends on the restart, so **without a restart no member rejoins**. A server whose data
//! was flushed, or whose key was removed, has a vote at once, and another client may have got that
//! vote in the meantime. A forced unlock of a member must also remain in effect. A member whose
//! lease has expired also rejoins only after its server was restarted, because another client may
//! have got the lock there. A member on a server that denies `INFO`, on a master behind sentinels,
//! or on a node of a cluster never rejoins.
//!
//! While another client holds the lock on that server, alone or in a ballot that fails, X waits. A
//! member that rejoins has a new hold with a new id. The previous hold stays lost.

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

/// The task through which lost members of a hold rejoin.
pub(super) struct Rejoin {
    /// The members, in the order of the hold's members.
    pub(super) members: Vec<AnyLock>,
    pub(super) settings: Settings,
    pub(super) owner: Option<Owner>,
    /// The time to wait for a server's answer.
    pub(super) limit: Duration,
    pub(super) longest: Arc<LongestLease>,
}

/// Whether, and when, a lost member can rejoin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chance {
    /// The member never rejoins.
    None,
    /// The member can rejoin after a restart of its server.
    Later,
    Now,
}

impl Rejoin {
    /// Starts the task, which runs until the hold has ended.
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
                // `counts_until` uses the start time that the server had when it reported the loss.
                // A later restart is not the reason for the loss, so it does not let the member
                // rejoin.
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
            // The member has rejoined already.
            None => Chance::Later,
        }
    }

    /// Starts one attempt. Closing the member's client waits for the attempt, because a dropped
    /// attempt may leave a grant that must be given back.
    fn attempt(self: &Arc<Self>, quorum: &Arc<Members>, place: usize) -> impl Future<Output = ()> {
        let (this, quorum) = (Arc::clone(self), Arc::clone(quorum));
        let (done, finished) = oneshot::channel::<()>();
        self.members[place].context().cleanup.spawn(async move {
            let _done = done;
            tokio::select! {
                // Check this first, so that no request is sent for a guard that has ended.
                biased;
                () = quorum.ended() => {}
                () = this.rejoin(&quorum, place) => {}
            }
        });
        async {
            // Nothing is ever sent on the channel: an error from it means that the attempt has
            // ended.
            let _ = finished.await;
        }
    }

    async fn rejoin(&self, quorum: &Arc<Members>, place: usize) {
        let member = &self.members[place];
        // Store the note at once, and not only when the server has been up for long enough: until
        // other clients read the note, they may apply a shorter limit.
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
        // Use the current terms of the hold, because it may have been extended.
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
        // The server may have been restarted again during the request.
        if !self.restarted_recently(member) {
            log(
                || tracing::info!(key = %guard.name(), server = member.address(), "a restarted server has the lock again"),
            );
            quorum.adopt(place, guard).await;
        }
    }

    /// Returns whether the server was started so recently that a ballot in which it voted before
    /// may still be in progress.
    fn restarted_recently(&self, member: &AnyLock) -> bool {
        let context = member.context();
        let since = context.clock.now() - self.longest.rejoin_after();
        let recent = |key| context.backend.started_after(key, since).is_some();
        member.key().map_or(true, recent)
    }
}
