//! A hold that is made of several: it is good while enough of its members are.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::{LockGuard, Member};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease::{Hold, next_number};
use crate::loss::LossReason;
use crate::primitives::fenced::draw;

/// The guards of the members, and what they are together.
pub(super) struct Quorum {
    pub(super) guards: Vec<LockGuard>,
    pub(super) members: Arc<Members>,
}

/// What is known of the members.
pub(super) struct Members {
    members: Vec<MemberHold>,
    /// So many have to be good.
    quorum: usize,
    pub(super) key: Key,
    pub(super) number: u64,
    /// Which loss was too much, and until when it was held then. Set once, so that whoever asks
    /// is told the same.
    broken: OnceLock<(LossReason, Instant)>,
    /// The fencing token of this guard.
    token: OnceLock<u64>,
}

struct MemberHold {
    hold: Arc<Hold>,
    clock: Clock,
    member: String,
}

impl Quorum {
    pub(super) fn new(key: &Key, held: Vec<(&Member, LockGuard)>, quorum: usize) -> Self {
        let members = held.iter().flat_map(|(member, guard)| {
            let shares = guard.one().into_iter();
            shares.map(|share| MemberHold {
                hold: Arc::clone(share.hold()),
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

    /// Gives all of them back at once; one that fails stops no other.
    pub(super) async fn release(self) -> Result<()> {
        let loss = self.members.loss();
        let releases = self.guards.into_iter().map(LockGuard::release);
        let results = join_all(releases.map(Box::pin)).await;
        let results = self.members.members.iter().zip(results);
        self.members.judge("releasing", loss, results).map(drop)
    }

    pub(super) async fn extend(&self, lease: Duration) -> Result<()> {
        let extensions = self.guards.iter().map(|guard| guard.extend(lease));
        let results = join_all(extensions.map(Box::pin)).await;
        let results = self.members.members.iter().zip(results);
        let loss = self.members.loss();
        self.members.judge("extending", loss, results).map(drop)
    }

    /// One number for all. The members draw, and it is the greatest of what they have: so it is
    /// above what any holder before has had, who had raised enough of them. And they are raised
    /// to it while they are held: so it is below what comes next.
    ///
    /// Enough of them have to do either. All that are held are asked, because one that whoever
    /// comes next has in common with this holder may lose its counter.
    pub(super) async fn fencing_token(&self) -> Result<u64> {
        let shares = || self.guards.iter().map(LockGuard::share);
        for share in shares() {
            draw::check_kind(share.hold())?;
        }
        self.members.check()?;
        if let Some(token) = self.members.token() {
            return Ok(token);
        }
        let mut drawn = self.members.drawn();
        if drawn.len() < self.members.quorum {
            drawn = self.enough(shares().map(draw::token_of)).await?;
        }
        // What its owner has had for these before, by another guard of the whole.
        let raised = self.members.members.iter();
        let raised = raised.filter_map(|part| part.hold.raised_to());
        let token = drawn.into_iter().chain(raised).max().unwrap_or_default();
        self.enough(shares().map(|share| draw::raise(share, token)))
            .await?;
        Ok(*self.members.token.get_or_init(|| token))
    }

    /// Asks each member, and waits until enough have done what they are asked for, or too many
    /// have failed. What the others are asked for is on its way then.
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
                // Polled, each of them has been sent.
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
    /// What enough have done, or what the others say.
    fn judge<'a, T>(
        &self,
        what: &str,
        loss: Option<LossReason>,
        results: impl IntoIterator<Item = (&'a MemberHold, Result<T>)>,
    ) -> Result<Vec<T>> {
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        // A loss may have come to light just now.
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
        let loss = loss.or_else(|| lost.into_iter().nth(self.spare()));
        Err(Error::of_members(&self.key, what, loss, errors))
    }

    fn check(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&self.key, reason)),
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.token.get().copied()
    }

    /// The members' tokens, as far as there are any. Once their owner has had one for these, no
    /// more than are needed, and the smallest, so that one that comes late changes nothing.
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

    /// So many may be lost.
    fn spare(&self) -> usize {
        self.members.len() - self.quorum
    }

    /// Why it is lost; `None` while enough members are held.
    pub(super) fn loss(&self) -> Option<LossReason> {
        if let Some((reason, _)) = self.broken.get() {
            return Some(reason.clone());
        }
        let lost = self.members.iter().filter_map(|part| {
            let reason = part.hold.loss()?;
            Some((part.deadline(), part.lost(reason)))
        });
        let mut lost: Vec<_> = lost.collect();
        // The one that was too much, as far as their deadlines tell.
        lost.sort_by_key(|(deadline, _)| *deadline);
        let (_, reason) = lost.into_iter().nth(self.spare())?;
        let until = || self.enough(MemberHold::deadline).min(Instant::now());
        let (reason, _) = self.broken.get_or_init(|| (reason, until()));
        Some(reason.clone())
    }

    /// Resolves with the reason when too many are lost.
    pub(super) async fn lost(self: Arc<Self>) -> LossReason {
        let mut losses: FuturesUnordered<_> = self
            .members
            .iter()
            .map(|part| {
                let hold = Arc::clone(&part.hold);
                async move { hold.lost().await }
            })
            .collect();
        loop {
            if let Some(reason) = self.loss() {
                return reason;
            }
            if losses.next().await.is_none() {
                return std::future::pending().await;
            }
        }
    }

    /// How renewing will end unless it gets through, if too many members fail to.
    pub(super) fn renewal_failure(&self) -> Option<LossReason> {
        let failing = self.members.iter().filter_map(|part| {
            let reason = part.hold.loss().or_else(|| part.hold.renewal_failure())?;
            Some(part.lost(reason))
        });
        failing.skip(self.spare()).last()
    }

    /// Until when enough of them are held for sure. Those that are lost may have a later end, so
    /// it does not go on when it is lost.
    pub(super) fn valid_until(&self) -> Instant {
        self.loss();
        match self.broken.get() {
            Some((_, until)) => *until,
            None => self.enough(MemberHold::deadline),
        }
    }

    pub(super) fn confirmed_at(&self) -> Instant {
        self.enough(|part| part.clock.to_instant(part.hold.confirmed_at()))
    }

    /// The latest instant that enough of those have reached which are still good.
    fn enough(&self, instant: impl Fn(&MemberHold) -> Instant) -> Instant {
        let good = |part: &&MemberHold| part.hold.loss().is_none();
        let mut instants: Vec<_> = self.members.iter().filter(good).map(&instant).collect();
        if instants.len() < self.quorum {
            instants = self.members.iter().map(&instant).collect();
        }
        instants.sort_by(|one, other| other.cmp(one));
        instants[self.quorum - 1]
    }

    pub(super) fn guards(&self) -> usize {
        let guards = self.members.iter().map(|part| part.hold.guards());
        guards.min().unwrap_or(0)
    }

    pub(super) fn holder_id(&self) -> &str {
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
