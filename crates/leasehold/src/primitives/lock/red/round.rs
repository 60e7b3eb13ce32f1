//! One round: all servers are asked at once, and a majority has to grant.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::backend::step::{Cause, Failure, Outcome};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::lock::LockGuard;
use crate::primitives::lock::member::{Member, Said, Terms, Until};
use crate::primitives::lock::whole::Whole;
use crate::wait::{Answer, Ask};

/// How one acquire asks, again and again.
pub(super) struct Round<'a> {
    pub(super) key: &'a Key,
    pub(super) members: &'a [Member],
    pub(super) quorum: usize,
    pub(super) terms: Terms<'a>,
    /// How long a server is waited for.
    pub(super) limit: Duration,
    pub(super) distrust_restarted: bool,
    /// Whether there will be another round.
    pub(super) waits: bool,
    /// Rounds in which some were granted, but no majority.
    pub(super) vain: AtomicU32,
    pub(super) pace: Pace,
    pub(super) clock: Clock,
}

/// How often a waiter has asked, and when last: whoever floods a channel must not make its
/// waiters flood the servers. (How long the lock is held, by which others tell wake-ups in
/// vain, is not one number here.)
#[derive(Default)]
pub(super) struct Pace(Mutex<(u32, Moment)>);

impl Pace {
    /// Waits, if need be, until the next ask may leave.
    async fn next(&self, clock: Clock) {
        const BURST: u32 = 20;
        const LEAST: Duration = Duration::from_millis(20);
        let not_before = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let not_before = state.1 + LEAST;
            *state = (state.0.saturating_add(1), clock.now().max(not_before));
            (state.0 > BURST).then_some(not_before)
        };
        if let Some(not_before) = not_before {
            clock.sleep_until(not_before).await;
        }
    }
}

/// What the servers have said so far.
struct Votes<'a, T> {
    granted: Vec<(&'a Member, T)>,
    /// How many were granted in vain, and given back.
    given_back: usize,
    /// What is left to those who hold the others, as far as the servers say.
    busy: Vec<Option<Duration>>,
    errors: Vec<Error>,
}

impl<T> Votes<'_, T> {
    /// When so many of them can be free; `None` if that is not known.
    fn free_in(&self, quorum: usize) -> Option<Duration> {
        let free = std::iter::repeat_n(Duration::ZERO, self.given_back);
        let mut left: Vec<_> = free.chain(self.busy.iter().flatten().copied()).collect();
        left.sort_unstable();
        left.get(quorum - 1).copied()
    }
}

impl<'a> Round<'a> {
    /// One server's vote. Dropped, or past its time, it is undone there.
    async fn vote(&self, member: &'a Member) -> Result<Said<LockGuard>> {
        self.trust(member)?;
        let vote = member.acquire(&self.terms, Until::Now);
        let granted = self.in_time(member, vote).await?;
        // It may have been restarted meanwhile.
        self.trust(member)?;
        Ok(granted)
    }

    /// What one server's vote would be, without taking anything.
    async fn look(&self, member: &'a Member) -> Result<Said<()>> {
        self.trust(member)?;
        member.context().check_open(self.key)?;
        if self
            .terms
            .owner
            .is_some_and(|owner| member.is_held_by(owner))
        {
            return Ok(Said::Granted(()));
        }
        self.in_time(member, member.look()).await
    }

    async fn in_time<T>(
        &self,
        member: &Member,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::time::timeout(self.limit, asking)
            .await
            .unwrap_or_else(|_| Err(self.too_slow(member)))
    }

    fn trust(&self, member: &Member) -> Result<()> {
        let restarted = self.distrust_restarted.then(|| self.restarted(member));
        restarted.flatten().map_or(Ok(()), Err)
    }

    /// The server may have forgotten a hold that is not over.
    fn restarted(&self, member: &Member) -> Option<Error> {
        let (backend, clock) = (&member.context().backend, member.context().clock);
        let (lease, now) = (self.terms.settings.lease(), clock.now());
        let started = backend.started_after(now - lease)?;
        let left = (started + lease).saturating_sub(now);
        let what = format!(
            "it was started a moment ago and may have lost locks; it counts again in {left:.1?}"
        );
        let failure = backend.failure(Outcome::DidNotRun, Cause::NotNow(what));
        Some(failure.into_error(self.key))
    }

    fn too_slow(&self, member: &Member) -> Error {
        let what = format!("no answer within {:?}", self.limit);
        let cause = Cause::NoAnswer(what);
        let failure = member.context().backend.failure(Outcome::MayHaveRun, cause);
        failure.into_error(self.key)
    }

    /// Asks all, until all have answered; or there is a majority, or none can be had any
    /// more, and the others have had as long again.
    async fn votes<T, F: Future<Output = Result<Said<T>>>>(
        &self,
        ask: impl Fn(&'a Member) -> F,
    ) -> Votes<'a, T> {
        let began = Instant::now();
        let mut asked: FuturesUnordered<_> = self
            .members
            .iter()
            .map(|member| {
                let vote = ask(member);
                async move { (member, vote.await) }
            })
            .collect();
        let mut votes = Votes {
            granted: Vec::new(),
            given_back: 0,
            busy: Vec::new(),
            errors: Vec::new(),
        };
        let mut patience = None;
        loop {
            let over = async {
                match patience {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                biased;
                next = asked.next() => next,
                () = over => None,
            };
            match next {
                None => return votes,
                Some((member, Ok(Said::Granted(granted)))) => votes.granted.push((member, granted)),
                Some((_, Ok(Said::Busy(left)))) => votes.busy.push(left),
                Some((_, Err(error))) => votes.errors.push(error),
            }
            let majority = votes.granted.len() >= self.quorum;
            let none = votes.granted.len() + asked.len() < self.quorum;
            if none {
                // Before anything else: others can use them.
                votes.given_back += votes.granted.drain(..).count();
            }
            if none && !self.waits {
                return votes;
            }
            if majority || none {
                // A server more makes the hold stronger, or says how long to wait: worth
                // some of the time.
                const LEAST: Duration = Duration::from_millis(5);
                patience.get_or_insert_with(|| Instant::now() + began.elapsed().max(LEAST));
            }
        }
    }

    /// The hold, if it is good for long enough to be of use.
    fn hold(&self, granted: Vec<(&Member, LockGuard)>) -> Result<LockGuard, Failure> {
        let guard = LockGuard::of_whole(Whole::new(self.key, granted, self.quorum));
        let left = guard
            .valid_until()
            .saturating_duration_since(Instant::now());
        // What its owner has already is good for as long as it is.
        let is_new = guard.hold_count() == 1;
        if guard.is_held() && (left >= self.terms.settings.lease() / 3 || !is_new) {
            return Ok(guard);
        }
        Err(Failure::no_answer(
            Outcome::MayHaveRun,
            "a majority granted it, but so late that little of the lease is left; set a longer lease",
            self.masters(self.quorum),
        ))
    }

    /// There is no majority: for want of answers, or because it is held.
    fn refused<T>(&self, votes: &Votes<'_, T>) -> Result<Answer<LockGuard>, Failure> {
        if votes.errors.len() > self.members.len() - self.quorum {
            return Err(self.failure(&votes.errors));
        }
        // A hold without expiry on some of them is no reason to end the wait.
        let cap = self.terms.settings.poll_cap;
        let ttl = votes.free_in(self.quorum).unwrap_or(cap);
        Ok(Answer::Busy { ttl: Some(ttl) })
    }

    /// Why there can be no majority: what each of those servers says that did not answer.
    fn failure(&self, errors: &[Error]) -> Failure {
        let said: Vec<_> = errors.iter().map(Error::brief).collect();
        let said = said.join("; ");
        let most = |kinds: &[ErrorKind]| {
            let those = errors.iter().filter(|error| kinds.contains(&error.kind()));
            those.count() > self.members.len() - self.quorum
        };
        let heals = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
        let hopeless = errors.iter().filter(|error| !heals.contains(&error.kind()));
        let cause = if most(&[ErrorKind::Denied]) {
            Cause::Denied(said)
        } else if most(&[ErrorKind::WrongKind]) {
            Cause::WrongKind(said)
        } else if hopeless.count() > self.members.len() - self.quorum {
            Cause::Other(said)
        } else {
            Cause::NoAnswer(said)
        };
        let unknown = |error: &Error| error.kind() == ErrorKind::OutcomeUnknown;
        let outcome = match errors.iter().any(unknown) {
            true => Outcome::MayHaveRun,
            false => Outcome::DidNotRun,
        };
        Failure::new(outcome, cause, self.masters(errors.len()))
    }

    fn masters(&self, count: usize) -> String {
        format!("{count} of {} masters", self.members.len())
    }

    /// Two who have each got some of the servers would meet again and again.
    async fn step_back(&self, took: Duration) {
        const LONGEST: Duration = Duration::from_millis(200);
        let vain = self.vain.fetch_add(1, Ordering::Relaxed).min(6);
        let most = (took.max(Duration::from_millis(1)) * (2 << vain)).min(LONGEST);
        let pause = most.mul_f64(fastrand::f64());
        self.clock.sleep_until(self.clock.now() + pause).await;
    }
}

impl Ask for Round<'_> {
    type Grant = LockGuard;

    async fn ask(&self) -> Result<Answer<LockGuard>, Failure> {
        self.pace.next(self.clock).await;
        // Votes that are no majority are given back, which wakes everybody who waits: once
        // it was in vain, a majority has to look free before anything is taken.
        if self.vain.load(Ordering::Relaxed) > 0 {
            let looks = self.votes(|member| self.look(member)).await;
            if looks.granted.len() < self.quorum {
                return self.refused(&looks);
            }
        }
        let began = Instant::now();
        let votes = self.votes(|member| self.vote(member)).await;
        if votes.granted.len() >= self.quorum {
            return self.hold(votes.granted).map(Answer::Granted);
        }
        if votes.given_back > 0 && self.waits {
            self.step_back(began.elapsed()).await;
        }
        self.refused(&votes)
    }
}
