//! The hold of a composite lock, which is valid while enough of its members are held.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{join, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::AnyLock;
use super::member_hold::MemberHold;
use super::rejoined::{CurrentGuard, Rejoined, RejoinedGuards};
use crate::clock::Timers;
use crate::error::{Error, Result};
use crate::hold::{Hold, LastReport, next_number};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;
use crate::sync::Mutex;

/// The guards of the members, and the state that all members share.
pub(in crate::primitives) struct Quorum {
    pub(in crate::primitives) guards: Vec<LockGuard>,
    pub(in crate::primitives) members: Arc<Members>,
    /// Gives back the guards of rejoined members when this value is dropped.
    rejoined: Rejoined,
}

/// The state of the members.
pub(in crate::primitives) struct Members {
    pub(super) holds: Vec<MemberHold>,
    /// The number of members that must be valid.
    quorum: usize,
    pub(in crate::primitives) key: Key,
    pub(in crate::primitives) number: u64,
    /// The loss that ended this hold, with the name of the lost member, and the instant until which
    /// this hold was valid. Set once, so that every caller gets the same answer.
    broken: OnceLock<(LossReason, Instant)>,
    /// The fencing token of this guard.
    pub(super) token: OnceLock<u64>,
    /// The guards of members that have rejoined.
    pub(super) rejoined: Mutex<RejoinedGuards>,
    /// Notified when a member has rejoined, or when the guard is released or dropped.
    pub(super) changed: Notify,
}

impl Quorum {
    /// Creates the hold. With `distrusts_restarted`, all clients reject the vote of a server that
    /// started less than one longest lease ago.
    pub(in crate::primitives) fn new(
        key: &Key,
        held: Vec<(&AnyLock, LockGuard)>,
        quorum: usize,
        distrusts_restarted: bool,
    ) -> Self {
        let members = held.iter().flat_map(|(member, guard)| {
            // Each guard has one share, because no member is itself a composite lock.
            let shares = guard.one().into_iter();
            shares.map(|share| {
                MemberHold::new(
                    share.hold(),
                    share.context(),
                    member.shown(),
                    distrusts_restarted,
                )
            })
        });
        let members = Arc::new(Members {
            holds: members.collect(),
            quorum,
            key: key.clone(),
            number: next_number(),
            broken: OnceLock::new(),
            token: OnceLock::new(),
            rejoined: Mutex::default(),
            changed: Notify::new(),
        });
        Self {
            guards: held.into_iter().map(|(_, guard)| guard).collect(),
            rejoined: Rejoined::of(&members),
            members,
        }
    }

    /// Returns the current guard of each member: its guard from the last rejoin, or its first
    /// guard.
    fn current(&self) -> Vec<CurrentGuard<'_>> {
        let rejoined = self.members.rejoined.lock();
        let guards = self.guards.iter().enumerate();
        let current = guards.map(|(place, first)| rejoined.current(place, first));
        current.collect()
    }

    /// Gives each member its maximum hold time, counted from now.
    pub(in crate::primitives) fn limit(&self, limit: Duration) {
        for (member, guard) in self.members.holds.iter().zip(&self.guards) {
            guard.share().limit(limit, member.start_limit(limit));
        }
    }

    /// Makes each member's hold depend on reports of progress from now on.
    pub(in crate::primitives) fn want_progress(&mut self, within: Duration) {
        for (member, guard) in self.members.holds.iter().zip(&mut self.guards) {
            let share = guard.share_mut();
            share.want_progress(within, None);
            if let Some(reports) = share.reports() {
                member.set_progress(within, Arc::clone(reports));
            }
        }
    }

    pub(in crate::primitives) fn forget(self) {
        // Take the guards of rejoined members first, so that no member rejoins after the guard has
        // ended.
        let rejoined = self.rejoined.take();
        let all = self
            .guards
            .into_iter()
            .chain(rejoined.into_iter().flatten());
        all.for_each(LockGuard::forget);
    }

    /// Releases all members at the same time. A release that fails does not stop the others.
    pub(in crate::primitives) async fn release(self) -> Result<()> {
        // Read the loss before the guards are released: a released hold no longer notices a loss.
        let loss = self.members.loss();
        // Take the guards of rejoined members before any release, so that no member rejoins after
        // its release.
        let mut rejoined = self.rejoined.take();
        rejoined.resize_with(self.guards.len(), || None);
        let holds = self.members.holds.iter();
        let releases = holds.zip(self.guards.into_iter().zip(rejoined));
        let releases = releases.map(|(member, both)| Box::pin(give_back(member, both)));
        let results = join_all(releases).await;
        let results = self.members.holds.iter().zip(results);
        self.members.judge("releasing", loss, results).map(drop)
    }

    pub(in crate::primitives) async fn extend(&self, lease: Duration) -> Result<()> {
        let current = self.current();
        let extensions = current.iter().map(|guard| guard.extend(lease));
        let results = join_all(extensions.map(Box::pin)).await;
        let results = self.members.holds.iter().zip(results);
        // Read the loss after the answers: the hold may already have been lost when they arrived.
        let loss = self.members.loss();
        self.members.judge("extending", loss, results).map(drop)
    }

    /// Returns the fencing token of this hold. Each member draws a token from its own server, and
    /// the greatest of them becomes the token of the hold. Every earlier holder raised the counters
    /// of a quorum to its token, so the new token is greater. This function also raises the
    /// counters to the new token while the members are held, so every later token is greater.
    ///
    /// A quorum must succeed in each of the two steps. The requests are sent to all held members,
    /// not only to a quorum: the next holder may have only one member in common with a quorum, and
    /// that member may lose its counter.
    pub(in crate::primitives) async fn fencing_token(&self) -> Result<u64> {
        let current = self.current();
        let shares = || current.iter().map(|guard| guard.share());
        // Check this before the first draw: if one of the members can't have a token, no request is
        // sent.
        for share in shares() {
            draw::check_kind(share.hold())?;
        }
        self.members.check()?;
        if let Some(token) = self.members.token() {
            return Ok(token);
        }
        // No request is needed if enough members have a token already.
        let mut drawn = self.members.drawn();
        if drawn.len() < self.members.quorum {
            drawn = self.ask_quorum(shares().map(draw::token_of)).await?;
        }
        // The tokens to which the owner has already raised these members through another guard.
        let raised = self.members.holds.iter();
        let raised = raised.filter_map(|member| member.hold().raised_to());
        let token = drawn.into_iter().chain(raised).max().unwrap_or_default();
        self.ask_quorum(shares().map(|share| draw::raise(share, token)))
            .await?;
        // Two tasks may have drawn with this guard at the same time, and a guard has one token.
        let token = self.members.set_token_once(token);
        // A member that has rejoined since then has not been raised to the token. The other members
        // need no request.
        let current = self.current();
        let shares = current.iter().map(|guard| guard.share());
        self.ask_quorum(shares.map(|share| draw::raise(share, token)))
            .await?;
        Ok(token)
    }

    /// Sends a request to each member, and waits until a quorum has succeeded or too many have
    /// failed. When this function returns, all requests have been sent.
    async fn ask_quorum<T>(
        &self,
        requests: impl Iterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<Vec<T>> {
        let members = self.members.holds.iter();
        let mut asked: FuturesUnordered<_> = members
            .zip(requests)
            .map(|(member, request)| async move { (member, request.await) })
            .collect();
        let (mut results, mut failed) = (Vec::new(), 0);
        while failed <= self.members.spare() {
            let is_enough = results.len() - failed >= self.members.quorum;
            let next = match is_enough {
                // Each of these futures was polled, so its request has been sent.
                true => asked.next().now_or_never().flatten(),
                false => asked.next().await,
            };
            let Some((member, result)) = next else {
                break;
            };
            failed += usize::from(result.is_err());
            results.push((member, result));
        }
        let loss = self.members.loss();
        self.members
            .judge("drawing a fencing token of", loss, results)
    }
}

impl Members {
    /// Returns where each member reports progress.
    pub(in crate::primitives) fn reports(&self) -> impl Iterator<Item = &Arc<LastReport>> {
        let each = self.holds.iter().filter_map(MemberHold::progress);
        each.map(|(_, reports)| reports)
    }

    /// Resolves when the work has stalled, with the time since the last report of progress.
    pub(in crate::primitives) async fn stalled(self: Arc<Self>) -> Duration {
        // Each report reaches all members. The future of a member that is lost earlier does not
        // resolve.
        let holds: Vec<_> = self.holds.iter().map(MemberHold::hold).collect();
        let members = self.holds.iter().zip(&holds);
        let stalls = members.map(|(member, hold)| hold.stalled(member.timers()));
        let mut stalls: FuturesUnordered<_> = stalls.collect();
        match stalls.next().await {
            Some(since) => since,
            None => std::future::pending().await,
        }
    }

    /// Returns the results if a quorum succeeded and there is no `loss`; otherwise one error with
    /// the errors of all members.
    fn judge<'a, T>(
        &self,
        what: &str,
        loss: Option<LossReason>,
        results: impl IntoIterator<Item = (&'a MemberHold, Result<T>)>,
    ) -> Result<Vec<T>> {
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        // The losses that this request has found.
        let mut lost = Vec::new();
        for (member, result) in results {
            match result {
                Ok(output) => done.push(output),
                Err(error) => {
                    let loss = error.loss().filter(|_| !member.still_counts());
                    lost.extend(loss.map(|reason| member.lost(reason.clone())));
                    errors.push(error);
                }
            }
        }
        if loss.is_none() && done.len() >= self.quorum {
            return Ok(done);
        }
        // The hold survives the loss of its spare members. The next loss ends it.
        let loss = loss.or_else(|| lost.into_iter().nth(self.spare()));
        Err(Error::of_members(&self.key, what, loss, errors))
    }

    fn check(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&self.key, reason)),
        }
    }

    pub(in crate::primitives) fn token(&self) -> Option<u64> {
        self.token.get().copied()
    }

    /// Returns the tokens that the members already have. If the owner has raised these members to a
    /// token before, this returns only the smallest tokens, one for each member of a quorum. So a
    /// token that arrives late changes nothing.
    fn drawn(&self) -> Vec<u64> {
        let holds = || self.holds.iter().map(MemberHold::hold);
        let held = holds().filter(|hold| hold.loss().is_none());
        let mut drawn: Vec<_> = held.filter_map(|hold| hold.token()).collect();
        if holds().any(|hold| hold.raised_to().is_some()) {
            drawn.sort_unstable();
            drawn.truncate(self.quorum);
        }
        drawn
    }

    /// Returns how many members may be lost before the hold is lost.
    fn spare(&self) -> usize {
        self.holds.len() - self.quorum
    }

    /// Returns the timers of the first member's client.
    pub(in crate::primitives) fn timers(&self) -> &Timers {
        self.holds[0].timers()
    }

    /// Reports each member that is lost.
    pub(in crate::primitives) fn report_losses(&self) {
        for member in &self.holds {
            member.hold().report_loss();
        }
    }

    /// Returns why this hold is lost; `None` while enough members are held.
    pub(in crate::primitives) fn loss(&self) -> Option<LossReason> {
        if let Some((reason, _)) = self.broken.get() {
            return Some(reason.clone());
        }
        let lost = self.holds.iter().filter_map(|member| {
            let reason = member.loss()?;
            Some((member.deadline(), member.lost(reason)))
        });
        let mut lost: Vec<_> = lost.collect();
        // The losses are sorted by deadline. The first one that exceeds the spare members ended the
        // hold.
        lost.sort_by_key(|(deadline, _)| *deadline);
        let (_, reason) = lost.into_iter().nth(self.spare())?;
        // The instant is not later than now: a server can report a member as lost long before its
        // deadline, and that ends this hold at once.
        let until = || {
            self.latest_of_quorum(MemberHold::deadline)
                .min(Instant::now())
        };
        let (reason, _) = self.broken.get_or_init(|| (reason, until()));
        Some(reason.clone())
    }

    /// Returns the current hold of the member at index `place`.
    pub(super) fn hold(&self, place: usize) -> Hold {
        self.holds[place].hold()
    }

    /// Resolves with the indexes of the lost members among `these`, as soon as there are any.
    pub(super) async fn lost_among(&self, these: impl Fn(usize) -> bool) -> Vec<usize> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check, or a change between the two would be missed.
            changed.as_mut().enable();
            let holds = self.holds.iter().map(MemberHold::hold).enumerate();
            let holds: Vec<_> = holds.filter(|(place, _)| these(*place)).collect();
            let lost = holds.iter().filter(|(_, hold)| hold.loss().is_some());
            let lost: Vec<_> = lost.map(|(place, _)| *place).collect();
            if !lost.is_empty() {
                return lost;
            }
            let mut losses: FuturesUnordered<_> = (holds.iter())
                .map(|(place, hold)| hold.lost(self.holds[*place].timers()))
                .collect();
            tokio::select! {
                biased;
                Some(_) = losses.next() => {}
                () = changed => {}
            }
        }
    }

    /// Resolves with the reason when too many members are lost.
    pub(in crate::primitives) async fn lost(self: Arc<Self>) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check, or a change between the two would be missed.
            changed.as_mut().enable();
            // Create these before the check. Otherwise a member that is lost between the two counts
            // as held in the check, and its future, which never resolves, as lost before.
            let mut changes: FuturesUnordered<_> =
                self.holds.iter().map(MemberHold::wait_for_change).collect();
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::select! {
                biased;
                _ = changes.next() => {}
                () = changed => {}
            }
        }
    }

    /// If renewals fail for too many members, returns the reason for which the hold will be lost
    /// unless a renewal succeeds.
    pub(in crate::primitives) fn renewal_failure(&self) -> Option<LossReason> {
        let failing = self.holds.iter().filter_map(|member| {
            let hold = member.hold();
            let reason = hold.loss().or_else(|| hold.renewal_failure())?;
            Some(member.lost(reason))
        });
        failing.skip(self.spare()).last()
    }

    /// Returns the instant until which enough members are certainly held. A lost member may have a
    /// later deadline, so the instant is fixed once this hold is lost.
    pub(in crate::primitives) fn valid_until(&self) -> Instant {
        // Call this for its side effect: if this hold is already lost, the call fixes the instant.
        self.loss();
        match self.broken.get() {
            Some((_, until)) => *until,
            None => self.latest_of_quorum(MemberHold::deadline),
        }
    }

    #[cfg(feature = "testing")]
    pub(in crate::primitives) fn confirmed_at(&self) -> Instant {
        self.latest_of_quorum(MemberHold::confirmed_at)
    }

    /// Returns the latest instant that `quorum` members reach. Lost members count only if fewer
    /// than `quorum` members are held.
    fn latest_of_quorum(&self, instant: impl Fn(&MemberHold) -> Instant) -> Instant {
        let good = |member: &&MemberHold| member.loss().is_none();
        let mut instants: Vec<_> = self.holds.iter().filter(good).map(&instant).collect();
        if instants.len() < self.quorum {
            instants = self.holds.iter().map(&instant).collect();
        }
        // Latest first: `quorum` members reach the instant at index `quorum - 1`.
        instants.sort_by(|one, other| other.cmp(one));
        instants[self.quorum - 1]
    }

    pub(in crate::primitives) fn guards(&self) -> usize {
        let guards = self.holds.iter().map(|member| member.hold().guards());
        guards.min().unwrap_or(0)
    }

    pub(in crate::primitives) fn holder_id(&self) -> &str {
        let first = self.holds.first();
        first.map_or("", |member| member.first().steps.wire_id())
    }
}

/// Releases a member's first guard, and its guard from the last rejoin.
async fn give_back(member: &MemberHold, both: (LockGuard, Option<LockGuard>)) -> Result<()> {
    // Even if the server has lost the key, the member may have counted as held until now.
    let (still_counted, counted) = (member.still_counts(), member.loss().is_none());
    let hold = member.hold();
    let context = Arc::clone(both.0.share().context());
    let result = match both {
        (first, None) => first.release().await,
        (first, Some(rejoined)) => join(first.release(), rejoined.release()).await.1,
    };
    let forgot = |error: &Error| {
        let is_gone = matches!(
            error.loss(),
            Some(LossReason::Deleted | LossReason::Taken { .. })
        );
        let started = context.backend.replaced_since(hold.confirmed_at());
        is_gone
            && member.would_have_counted(started.and_then(|started| hold.no_vote_until(started)))
    };
    match result {
        Err(error) if still_counted || counted && forgot(&error) => Ok(()),
        result => result,
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("members", &self.guards)
            .field("quorum", &self.members.quorum)
            .field("loss", &self.members.loss())
            .finish_non_exhaustive()
    }
}
