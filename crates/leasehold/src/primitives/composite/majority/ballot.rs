//! One ballot: it asks all servers at once, and a majority must grant.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::longest::LongestLease;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::{Moment, Timers};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::any::AnyLock;
use crate::primitives::composite::member::{MemberReply, MemberTerms, same_server_error};
use crate::primitives::lock::LockGuard;
use crate::sync::Mutex;
use crate::wait::{Answer, Ask, Deadline};

/// The ballots of one acquire, which asks again and again.
pub(super) struct Ballot<'a> {
    pub(super) key: &'a Key,
    pub(super) members: &'a [AnyLock],
    pub(super) quorum: usize,
    pub(super) terms: MemberTerms<'a>,
    /// Time to wait for a server.
    pub(super) limit: Duration,
    /// Time for which a server has no vote after its start; `None`: it votes at once.
    pub(super) longest: Option<&'a Arc<LongestLease>>,
    /// Whether another ballot may follow.
    pub(super) waits: bool,
    /// Number of rounds in which some members were granted, but no majority.
    pub(super) split_votes: AtomicU32,
    pub(super) pacing: Pacing,
    pub(super) timers: &'a Timers,
    /// The error to report when too many members refuse whatever their servers say.
    pub(super) misuse: OnceLock<Error>,
}

/// The number of times that a waiter has asked, and the last time. A client that floods a channel must not
/// make its waiters flood the servers. (A single lock recognises useless wake-ups by how long it is
/// held. Here that is not one number.)
#[derive(Default)]
pub(super) struct Pacing(Mutex<(u32, Moment)>);

impl Pacing {
    /// Waits, if necessary, until the next ask may be sent.
    async fn next(&self, timers: &Timers) {
        const BURST: u32 = 20;
        const LEAST: Duration = Duration::from_millis(20);
        let not_before = {
            let mut state = self.0.lock();
            let not_before = state.1 + LEAST;
            *state = (state.0.saturating_add(1), timers.now().max(not_before));
            (state.0 > BURST).then_some(not_before)
        };
        if let Some(not_before) = not_before {
            timers.sleep_until(not_before).await;
        }
    }
}

/// The servers' answers so far.
struct Votes<'a, T> {
    granted: Vec<(&'a AnyLock, T)>,
    /// Number of members that were granted without result, and given back.
    given_back: usize,
    /// Time that the holders of other members have left, as far as the servers report it.
    busy: Vec<Option<Duration>>,
    errors: Vec<Error>,
    /// Number of errors from servers that were started a moment ago.
    no_vote_yet: usize,
}

impl<T> Default for Votes<'_, T> {
    fn default() -> Self {
        Self {
            granted: Vec::new(),
            given_back: 0,
            busy: Vec::new(),
            errors: Vec::new(),
            no_vote_yet: 0,
        }
    }
}

/// Returns the next answer. `None` if none is left, or if `cutoff` ends first.
async fn next_before<F: Future>(
    cutoff: Option<Moment>,
    timers: &Timers,
    asked: &mut FuturesUnordered<F>,
) -> Option<F::Output> {
    let over = async {
        match cutoff {
            Some(moment) => timers.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An answer that has arrived counts, even if the cutoff is over.
        biased;
        next = asked.next() => next,
        () = over => None,
    }
}

impl<T> Votes<'_, T> {
    /// Returns how many members have granted or refused.
    fn answered(&self) -> usize {
        self.granted.len() + self.given_back + self.busy.len()
    }

    /// Returns when `quorum` of `members` members can be free; `None` if that is not known.
    fn free_in(&self, quorum: usize, members: usize) -> Option<Duration> {
        // A member whose answer the ballot did not wait for may be free. If it counted as held, the
        // waiter would go on sleeping when the others are free.
        let unheard = members - self.answered() - self.errors.len();
        let free = std::iter::repeat_n(Duration::ZERO, self.given_back + unheard);
        // Members that were granted without result are free once they are back. A member whose
        // holder has no expiry is left out, because the time of its release is unknown.
        let mut left: Vec<_> = free.chain(self.busy.iter().flatten().copied()).collect();
        left.sort_unstable();
        left.get(quorum - 1).copied()
    }
}

impl<'a> Ballot<'a> {
    /// Asks for one server's vote. If this future is dropped or takes too long, the vote is undone
    /// on that server.
    async fn vote(&self, member: &'a AnyLock) -> Result<MemberReply<LockGuard>> {
        self.trust(member)?;
        let vote = member.acquire_as_member(&self.terms, Deadline::Now, false);
        // Sent after the vote, so that it reads a longer lease that was noted before the grant.
        let noted = async {
            match self.longest {
                Some(longest) => longest.exchange_notes(member).await,
                None => Ok(()),
            }
        };
        let both = futures_util::future::try_join(vote, noted);
        let (granted, ()) = member.with_timeout(self.limit, both).await?;
        // The server may have been restarted meanwhile.
        self.trust(member)?;
        Ok(granted)
    }

    /// Finds out how one server would vote, without taking anything.
    async fn probe(&self, member: &'a AnyLock) -> Result<MemberReply<()>> {
        self.trust(member)?;
        member.context().check_open(self.key)?;
        if self
            .terms
            .owner
            .is_some_and(|owner| member.is_held_by(owner))
        {
            // The owner's own hold is not in its way: the vote would enter it again.
            return Ok(MemberReply::Granted(()));
        }
        member.with_timeout(self.limit, member.probe()).await
    }

    fn trust(&self, member: &AnyLock) -> Result<()> {
        let longest = self.longest.map(|longest| longest.of_all_clients());
        let restarted = longest.and_then(|longest| self.restarted(member, longest));
        restarted.map_or(Ok(()), Err)
    }

    /// Returns an error if the server may have forgotten a hold that is not over.
    fn restarted(&self, member: &AnyLock, longest: Duration) -> Option<Error> {
        let (backend, clock) = (&member.context().backend, member.context().clock);
        let now = clock.now();
        let started = backend.started_after(member.key().ok()?, now - longest)?;
        let left = (started + longest).saturating_sub(now);
        let what = format!(
            "it was started a moment ago and may have lost locks; it can vote again in {left:.1?}"
        );
        let failure = backend.failure(Outcome::DidNotRun, Cause::NoVoteYet(what));
        Some(failure.into_error(self.key))
    }

    /// Asks all members. Returns when all have answered. Once there is a majority, or none is
    /// possible any longer, the remaining members get as much time again as has passed.
    async fn votes<T, F: Future<Output = Result<MemberReply<T>>>>(
        &self,
        ask: impl Fn(&'a AnyLock) -> F,
    ) -> Votes<'a, T> {
        let began = self.timers.now();
        let mut asked: FuturesUnordered<_> = self
            .members
            .iter()
            .map(|member| {
                let vote = ask(member);
                async move { (member, vote.await) }
            })
            .collect();
        let mut votes = Votes::default();
        let mut cutoff = None;
        while let Some((member, reply)) = next_before(cutoff, self.timers, &mut asked).await {
            self.count(&mut votes, member, reply);
            let majority = votes.granted.len() >= self.quorum;
            let none = votes.granted.len() + asked.len() < self.quorum;
            if none {
                // First, because other clients can use these members.
                votes.given_back += votes.granted.drain(..).count();
            }
            if none && !self.waits {
                // Only a wait needs to know how long the others are held. Asks that are still under
                // way are dropped and so undone.
                break;
            }
            if majority || none {
                // One more server makes the hold stronger, or reports how long to wait. That is
                // worth some time.
                const LEAST: Duration = Duration::from_millis(5);
                let now = self.timers.now();
                cutoff.get_or_insert_with(|| now + now.saturating_sub(began).max(LEAST));
            }
        }
        votes
    }

    fn count<T>(
        &self,
        votes: &mut Votes<'a, T>,
        member: &'a AnyLock,
        reply: Result<MemberReply<T>>,
    ) {
        match reply {
            Ok(MemberReply::Granted(granted)) => votes.granted.push((member, granted)),
            Ok(MemberReply::Busy(left)) => votes.busy.push(left),
            Err(error) => {
                // Judged by the server, because the error does not say: a server that has no vote
                // yet and one that does not answer give errors of the same kind.
                votes.no_vote_yet += usize::from(self.trust(member).is_err());
                votes.errors.push(error);
            }
        }
    }

    /// Returns the answer when there is no majority: answers are missing, or the lock is held.
    fn refused<T>(&self, votes: &Votes<'_, T>) -> Result<Answer<LockGuard>, Failure> {
        let spare = self.members.len() - self.quorum;
        if votes.errors.len() > spare {
            let mut failure = self.failure(&votes.errors, spare);
            // If enough servers answer, this is not an outage, which could end the wait: the
            // servers that were started a moment ago vote again at a known time.
            let enough_answer = self.silent(votes) <= spare;
            if let (Cause::NoAnswer(reasons), true) = (&mut failure.cause, enough_answer) {
                failure.cause = Cause::NoVoteYet(std::mem::take(reasons));
            }
            return Err(failure);
        }
        // A hold without expiry on some members is not a reason to end the wait.
        let cap = self.terms.settings.poll_interval();
        let free_in = votes.free_in(self.quorum, self.members.len());
        let ttl = free_in.unwrap_or(cap);
        Ok(Answer::Busy { ttl: Some(ttl) })
    }

    /// Returns how many servers have not answered, except those that were started a moment ago.
    fn silent<T>(&self, votes: &Votes<'_, T>) -> usize {
        self.members.len() - votes.answered() - votes.no_vote_yet
    }

    /// Returns why there can be no majority, with the error of each server that gave no answer.
    /// `spare` such errors would not matter.
    fn failure(&self, errors: &[Error], spare: usize) -> Failure {
        let reasons: Vec<_> = errors.iter().map(Error::brief).collect();
        let reasons = reasons.join("; ");
        // A kind of error is the cause only if it prevents a majority by itself: if more members
        // report it than can be spared.
        let most = |kinds: &[ErrorKind]| {
            let those = errors.iter().filter(|error| kinds.contains(&error.kind()));
            those.count() > spare
        };
        let mut misused = errors.iter().filter(|e| e.kind() == ErrorKind::Misuse);
        if let Some(error) = misused.next().filter(|_| most(&[ErrorKind::Misuse])) {
            let _ = self.misuse.set(error.clone());
        }
        let heals = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
        let hopeless = errors.iter().filter(|error| !heals.contains(&error.kind()));
        let cause = if most(&[ErrorKind::Denied]) {
            Cause::Denied(reasons)
        } else if most(&[ErrorKind::WrongKind]) {
            Cause::WrongKind(reasons)
        } else if hopeless.count() > spare {
            Cause::Other(reasons)
        } else {
            Cause::NoAnswer(reasons)
        };
        let unknown = |error: &Error| error.kind() == ErrorKind::OutcomeUnknown;
        let outcome = match errors.iter().any(unknown) {
            // One server that may have run its request is enough: the outcome is then unknown.
            true => Outcome::MayHaveRun,
            false => Outcome::DidNotRun,
        };
        Failure::new(outcome, cause, self.masters(errors.len()))
    }

    pub(super) fn masters(&self, count: usize) -> String {
        format!("{count} of {} masters", self.members.len())
    }

    /// Makes sure that all members know the longest lease before the first hold. Otherwise another
    /// client might count a server too early after that server has forgotten the hold.
    async fn ensure_longest_noted(&self) -> Result<(), Failure> {
        let Some(longest) = self.longest else {
            return Ok(());
        };
        let missing = longest.note_on_all(self.members, self.limit).await;
        if missing.is_empty() {
            return Ok(());
        }
        // All members must note it, so none can be spared.
        let mut failure = self.failure(&missing, 0);
        if let Cause::NoAnswer(reasons) = &mut failure.cause {
            *reasons = format!(
                "each of them must first store the longest lease, {:?}: {reasons}",
                longest.own()
            );
        }
        Err(failure)
    }

    /// Returns a failure if a server is given twice, because it would have two votes.
    fn check_distinct_servers(&self) -> Result<(), Failure> {
        match same_server_error(self.members, |_| ()) {
            None => Ok(()),
            // The acquire reports this error again, as a misuse.
            Some(error) => Err(Failure::new(
                Outcome::DidNotRun,
                Cause::Other(error.to_string()),
                self.masters(2),
            )),
        }
    }

    /// Pauses at random. Two waiters that have each got some of the servers would otherwise collide
    /// again and again.
    async fn back_off(&self, took: Duration) {
        const LONGEST: Duration = Duration::from_millis(200);
        // Six doublings reach an eighth of a second even from the shortest round. A shift without a
        // bound would overflow.
        let split_votes = self.split_votes.fetch_add(1, Ordering::Relaxed).min(6);
        let most = (took.max(Duration::from_millis(1)) * (2 << split_votes)).min(LONGEST);
        // At random: two waiters that pause equally long collide again.
        let pause = most.mul_f64(fastrand::f64());
        self.timers.sleep(pause).await;
    }
}

impl Ask for Ballot<'_> {
    type Grant = LockGuard;

    async fn ask(&self) -> Result<Answer<LockGuard>, Failure> {
        self.pacing.next(self.timers).await;
        // Votes that are not a majority are given back, which wakes all waiters. So after a split
        // vote, a majority must look free before anything is taken.
        if self.split_votes.load(Ordering::Relaxed) > 0 {
            let probes = self.votes(|member| self.probe(member)).await;
            if probes.granted.len() < self.quorum {
                return self.refused(&probes);
            }
        }
        self.ensure_longest_noted().await?;
        let began = Instant::now();
        let votes = loop {
            let asked = self.timers.now();
            let mut votes = self.votes(|member| self.vote(member)).await;
            // Checked only now, because a server identifies itself when it is connected to, and the
            // votes may have been the first to need the connection. The error drops the votes,
            // which undoes them.
            self.check_distinct_servers()?;
            if votes.granted.len() < self.quorum {
                break votes;
            }
            // A note on the last server applies to the first one, too. If that leaves no majority,
            // other servers may still give one: now that the note is known, these servers are not
            // asked.
            votes
                .granted
                .retain(|(member, _)| self.trust(member).is_ok());
            if votes.granted.len() >= self.quorum {
                return self.hold(votes.granted, asked).map(Answer::Granted);
            }
        };
        if votes.given_back > 0 && self.waits {
            self.back_off(began.elapsed()).await;
        }
        self.refused(&votes)
    }
}
