//! A hold that is made of several: it is valid while enough of its members are.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::AnyLock;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::hold::{Hold, next_number};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;

/// The guards of the members, and what is known of all members together.
pub(in crate::primitives) struct Quorum {
    pub(in crate::primitives) guards: Vec<LockGuard>,
    pub(in crate::primitives) members: Arc<Members>,
}

/// What is known of the members.
pub(in crate::primitives) struct Members {
    members: Vec<MemberHold>,
    /// How many members have to be valid.
    quorum: usize,
    pub(in crate::primitives) key: Key,
    pub(in crate::primitives) number: u64,
    /// The loss that was one too many, and until when the whole was held then. Set once, so that
    /// everybody who asks is told the same.
    broken: OnceLock<(LossReason, Instant)>,
    /// The fencing token of this guard.
    token: OnceLock<u64>,
}

struct MemberHold {
    hold: Hold,
    clock: Clock,
    member: String,
}

impl Quorum {
    pub(in crate::primitives) fn new(
        key: &Key,
        held: Vec<(&AnyLock, LockGuard)>,
        quorum: usize,
    ) -> Self {
        let members = held.iter().flat_map(|(member, guard)| {
            // Each guard has one share, because no member is made of several locks itself.
            let shares = guard.one().into_iter();
            shares.map(|share| MemberHold {
                hold: share.hold().clone(),
                clock: share.context().clock,
                member: member.shown(),
            })
        });
        let members = Arc::new(Members {
            members: members.collect(),
            quorum,
            key: key.clone(),
            number: next_number(),
            broken: OnceLock::new(),
            token: OnceLock::new(),
        });
        Self {
            guards: held.into_iter().map(|(_, guard)| guard).collect(),
            members,
        }
    }

    /// Gives all members back at once. A release that fails stops no other.
    pub(in crate::primitives) async fn release(self) -> Result<()> {
        // Asked before the guards leave: a hold that was given back notices no loss any more.
        let loss = self.members.loss();
        let releases = self.guards.into_iter().map(LockGuard::release);
        let results = join_all(releases.map(Box::pin)).await;
        let results = self.members.members.iter().zip(results);
        self.members.judge("releasing", loss, results).map(drop)
    }

    pub(in crate::primitives) async fn extend(&self, lease: Duration) -> Result<()> {
        let extensions = self.guards.iter().map(|guard| guard.extend(lease));
        let results = join_all(extensions.map(Box::pin)).await;
        let results = self.members.members.iter().zip(results);
        // Asked behind the answers: they may have come when the whole was lost already.
        let loss = self.members.loss();
        self.members.judge("extending", loss, results).map(drop)
    }

    /// One number for all members. Each member draws a token, and the number is the greatest of
    /// them. So it is above the number of every earlier holder, because that holder had raised
    /// enough of the members. The members are raised to the number while they are held, so it is
    /// below every later number.
    ///
    /// Enough members have to do each of the two. All members that are held are asked, because the
    /// one that the next holder has in common with this one may lose its counter.
    pub(in crate::primitives) async fn fencing_token(&self) -> Result<u64> {
        let shares = || self.guards.iter().map(LockGuard::share);
        // Before the first draw: for a whole that can have no token, no server is asked.
        for share in shares() {
            draw::check_kind(share.hold())?;
        }
        self.members.check()?;
        if let Some(token) = self.members.token() {
            return Ok(token);
        }
        // Members that have a token need no request, if they are enough.
        let mut drawn = self.members.drawn();
        if drawn.len() < self.members.quorum {
            drawn = self.enough(shares().map(draw::token_of)).await?;
        }
        // Numbers that the owner was given for these members before, by another guard of the whole.
        let raised = self.members.members.iter();
        let raised = raised.filter_map(|part| part.hold.raised_to());
        let token = drawn.into_iter().chain(raised).max().unwrap_or_default();
        self.enough(shares().map(|share| draw::raise(share, token)))
            .await?;
        // Two tasks may have drawn by this guard at the same time, and a guard has one token.
        Ok(*self.members.token.get_or_init(|| token))
    }

    /// Asks each member, and waits until enough have done what they were asked, or too many have
    /// failed. By then the requests to the other members are on their way.
    async fn enough<T>(
        &self,
        asks: impl Iterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<Vec<T>> {
        let members = self.members.members.iter();
        let mut asked: FuturesUnordered<_> = members
            .zip(asks)
            .map(|(part, ask)| async move { (part, ask.await) })
            .collect();
        let (mut results, mut failed) = (Vec::new(), 0);
        while failed <= self.members.spare() {
            let is_enough = results.len() - failed >= self.members.quorum;
            let next = match is_enough {
                // Each of these futures was polled, so its request has been sent.
                true => asked.next().now_or_never().flatten(),
                false => asked.next().await,
            };
            let Some((part, result)) = next else {
                break;
            };
            failed += usize::from(result.is_err());
            results.push((part, result));
        }
        let loss = self.members.loss();
        self.members
            .judge("drawing a fencing token of", loss, results)
    }
}

impl Members {
    /// The results, if enough members succeeded; otherwise the errors of the others.
    fn judge<'a, T>(
        &self,
        what: &str,
        loss: Option<LossReason>,
        results: impl IntoIterator<Item = (&'a MemberHold, Result<T>)>,
    ) -> Result<Vec<T>> {
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        // Losses that have come to light just now.
        let mut lost = Vec::new();
        for (part, result) in results {
            match result {
                Ok(output) => done.push(output),
                Err(error) => {
                    lost.extend(error.loss().map(|reason| part.lost(reason.clone())));
                    errors.push(error);
                }
            }
        }
        if loss.is_none() && done.len() >= self.quorum {
            return Ok(done);
        }
        // The whole bears as many losses as it has members to spare. The next one ends it.
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

    /// The tokens of those members that have one. If the owner was given a number for these members
    /// before, no more tokens than needed, and the smallest, so that a token that comes late
    /// changes nothing.
    fn drawn(&self) -> Vec<u64> {
        let held = self
            .members
            .iter()
            .filter(|part| part.hold.loss().is_none());
        let mut drawn: Vec<_> = held.filter_map(|part| part.hold.token()).collect();
        if self
            .members
            .iter()
            .any(|part| part.hold.raised_to().is_some())
        {
            drawn.sort_unstable();
            drawn.truncate(self.quorum);
        }
        drawn
    }

    /// How many members may be lost.
    fn spare(&self) -> usize {
        self.members.len() - self.quorum
    }

    /// Why the whole is lost; `None` while enough members are held.
    pub(in crate::primitives) fn loss(&self) -> Option<LossReason> {
        if let Some((reason, _)) = self.broken.get() {
            return Some(reason.clone());
        }
        let lost = self.members.iter().filter_map(|part| {
            let reason = part.hold.loss()?;
            Some((part.deadline(), part.lost(reason)))
        });
        let mut lost: Vec<_> = lost.collect();
        // The loss that was one too many, as far as the deadlines tell.
        lost.sort_by_key(|(deadline, _)| *deadline);
        let (_, reason) = lost.into_iter().nth(self.spare())?;
        // Not later than now: a server can say that a member is lost long before its deadline, and
        // the whole is over then.
        let until = || self.enough(MemberHold::deadline).min(Instant::now());
        let (reason, _) = self.broken.get_or_init(|| (reason, until()));
        Some(reason.clone())
    }

    /// Resolves with the reason when too many members are lost.
    pub(in crate::primitives) async fn lost(self: Arc<Self>) -> LossReason {
        let mut losses: FuturesUnordered<_> = self
            .members
            .iter()
            .map(|part| {
                let hold = part.hold.clone();
                async move { hold.lost().await }
            })
            .collect();
        loop {
            // Looked at before each wait: too many may be lost from the start.
            if let Some(reason) = self.loss() {
                return reason;
            }
            if losses.next().await.is_none() {
                // It does not come to this: with the last member the whole is lost, which the look
                // above tells.
                return std::future::pending().await;
            }
        }
    }

    /// The loss that comes unless renewal gets through, if renewal fails for too many members.
    pub(in crate::primitives) fn renewal_failure(&self) -> Option<LossReason> {
        let failing = self.members.iter().filter_map(|part| {
            let reason = part.hold.loss().or_else(|| part.hold.renewal_failure())?;
            Some(part.lost(reason))
        });
        failing.skip(self.spare()).last()
    }

    /// Until when enough members are held for sure. A lost member may have a later end, so this no
    /// longer moves on once the whole is lost.
    pub(in crate::primitives) fn valid_until(&self) -> Instant {
        // Called for what it notes: if the whole is lost by now, the end that no longer moves.
        self.loss();
        match self.broken.get() {
            Some((_, until)) => *until,
            None => self.enough(MemberHold::deadline),
        }
    }

    #[cfg(feature = "testing")]
    pub(in crate::primitives) fn confirmed_at(&self) -> Instant {
        self.enough(|part| part.clock.to_instant(part.hold.confirmed_at()))
    }

    /// The latest instant that enough members have reached, of those that are still valid.
    fn enough(&self, instant: impl Fn(&MemberHold) -> Instant) -> Instant {
        let good = |part: &&MemberHold| part.hold.loss().is_none();
        let mut instants: Vec<_> = self.members.iter().filter(good).map(&instant).collect();
        if instants.len() < self.quorum {
            instants = self.members.iter().map(&instant).collect();
        }
        // The latest first: at the place of the quorum, so many members are still held.
        instants.sort_by(|one, other| other.cmp(one));
        instants[self.quorum - 1]
    }

    pub(in crate::primitives) fn guards(&self) -> usize {
        let guards = self.members.iter().map(|part| part.hold.guards());
        guards.min().unwrap_or(0)
    }

    pub(in crate::primitives) fn holder_id(&self) -> &str {
        self.members
            .first()
            .map_or("", |part| part.hold.steps.wire_id())
    }
}

impl MemberHold {
    fn lost(&self, reason: LossReason) -> LossReason {
        LossReason::Member {
            member: self.member.clone(),
            reason: Box::new(reason),
        }
    }

    fn deadline(&self) -> Instant {
        self.clock.to_instant(self.hold.deadline())
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
