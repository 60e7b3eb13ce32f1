//! A member whose server was restarted without data, or replaced, is set again while the whole is
//! held. So servers can be restarted one after the other, and no hold ends.
//!
//! **Why no two holders come of it.** Two holds that are valid at the same time were so when the
//! younger one, Y, was granted its majority. Then both counted one server. Without a restart it kept
//! them apart: it grants its key to one of them. So it was restarted.
//!
//! - The restart came before Y's vote. Y did not count the server for a longest lease
//!   (`Ballot::trust`). By then what the older one, X, held there before the restart is over. If X
//!   was set again meanwhile, its key kept Y out. That is also why X may count the server for as
//!   long as its old lease lasts, although the server says that it does not have X's key any more
//!   (`Part::stands`).
//! - The restart came behind Y's vote, which was lost with it, and X was set again before Y had its
//!   majority. So **X waits**: it asks a server that has been up for half a longest lease
//!   (`Longest::rejoin_after`). A ballot takes two fifths of one at most, or comes to nothing
//!   (`Ballot::is_too_late`). What is between the two is for clocks that drift. So each ballot in
//!   which the server had voted before its restart is over: Y had its majority, and X had lost its
//!   own by then, or Y never has it. What an owner holds there from before the ballot is a vote like
//!   any other: its server has to answer during the ballot, and to have been up for long.
//!
//! This rests on a start of the server, so **without one no member is set again**. A server whose
//! data was flushed, or whose key was removed, has a vote at once, and somebody may have got it in
//! between. A forced unlock of a member has to last, too. For the same reason a member whose lease
//! ran out is out until its server is started again; and a server that denies `INFO`, a master that
//! another one may follow and a node of a cluster are never set again.
//!
//! Whoever holds the lock there meanwhile, alone or as a part of a ballot that comes to nothing, is
//! waited for. A member that is set again is a hold of its own, with an id of its own: the one
//! before stays lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::longest::Longest;
use crate::config::{self, Settings};
use crate::hold::Hold;
use crate::loss::LossReason;
use crate::observe::log;
use crate::owner::Owner;
use crate::primitives::any::AnyLock;
use crate::primitives::composite::member::{Said, Terms};
use crate::primitives::composite::quorum::Members;
use crate::wait::Deadline;

/// How the members of a hold are set again.
pub(super) struct Rejoin {
    /// Those that the hold has, in its order.
    pub(super) members: Vec<AnyLock>,
    pub(super) settings: Settings,
    pub(super) owner: Option<Owner>,
    /// How long to wait for a server.
    pub(super) limit: Duration,
    pub(super) longest: Arc<Longest>,
}

/// What can be done about a member that is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chance {
    /// Nothing any more.
    None,
    /// Nothing before its server is started again.
    Later,
    Now,
}

impl Rejoin {
    /// Sets members again until the whole is over.
    pub(super) fn begin(self, whole: Arc<Members>) {
        let context = Arc::clone(self.members[0].context());
        let this = Arc::new(self);
        context.cleanup.carry(async move {
            tokio::select! {
                biased;
                () = whole.over() => {}
                () = this.watch(&whole) => {}
            }
        });
    }

    async fn watch(self: &Arc<Self>, whole: &Arc<Members>) {
        const SHORTEST: Duration = Duration::from_millis(5);
        const LONGEST: Duration = Duration::from_secs(1);
        let pause = (self.settings.lease() / 20).clamp(SHORTEST, LONGEST);
        let timers = &self.members[0].context().timers;
        let mut out = vec![false; self.members.len()];
        loop {
            let lost = whole.lost_among(|place| !out[place]).await;
            let mut attempts = Vec::new();
            for place in lost {
                match self.chance(place, &whole.hold(place)) {
                    Chance::None => out[place] = true,
                    Chance::Later => {}
                    Chance::Now => attempts.push(self.attempt(whole, place)),
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
                // As it was when the server said so: a restart that comes later has forgotten
                // nothing.
                match hold.stands_until() {
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
            // It counts again by now.
            None => Chance::Later,
        }
    }

    /// One attempt. A close of the member's client waits for it: dropped, it leaves something to
    /// give back.
    fn attempt(self: &Arc<Self>, whole: &Arc<Members>, place: usize) -> impl Future<Output = ()> {
        let (this, whole) = (Arc::clone(self), Arc::clone(whole));
        let (done, finished) = oneshot::channel::<()>();
        self.members[place].context().cleanup.spawn(async move {
            let _done = done;
            tokio::select! {
                // First: nothing leaves for a guard that has gone.
                biased;
                () = whole.over() => {}
                () = this.set_again(&whole, place) => {}
            }
        });
        async {
            // It never says anything: it has ended.
            let _ = finished.await;
        }
    }

    async fn set_again(&self, whole: &Arc<Members>, place: usize) {
        let member = &self.members[place];
        // At once, not when it is old enough: others may go by a shorter bound until they read this.
        if self.longest.of_all() > config::DEFAULT_LONGEST_LEASE {
            let noted = member.within(self.limit, self.longest.ask(member)).await;
            if noted.is_err() {
                return;
            }
        }
        if self.is_young(member) {
            return;
        }
        // The guard's present terms: it may have been extended.
        let mut settings = self.settings.clone();
        settings.take(config::Terms {
            max_hold: None,
            ..whole.hold(place).terms()
        });
        let terms = Terms {
            settings: &settings,
            owner: self.owner.as_ref(),
        };
        let asked = member.ask(&terms, Deadline::Now, false);
        let Ok(Said::Granted(guard)) = member.within(self.limit, asked).await else {
            return;
        };
        // The server may have been restarted once more meanwhile.
        if !self.is_young(member) {
            log(
                || tracing::info!(key = %guard.name(), server = member.address(), "a restarted server has the lock again"),
            );
            whole.adopt(place, guard).await;
        }
    }

    /// Whether a ballot may still be under way in which the server voted before its start.
    fn is_young(&self, member: &AnyLock) -> bool {
        let context = member.context();
        let since = context.clock.now() - self.longest.rejoin_after();
        let young = |key| context.backend.started_after(key, since).is_some();
        member.key().map_or(true, young)
    }
}
