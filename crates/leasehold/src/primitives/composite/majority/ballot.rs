//! The ballots of a `RedLock`: each asks all servers for the lock at the same time, and a majority
//! of the servers must grant it.

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

/// The ballots of one acquire, which runs them until a majority of the servers grants the lock.
pub(super) struct Ballot<'a> {
    pub(super) key: &'a Key,
    pub(super) members: &'a [AnyLock],
    pub(super) quorum: usize,
    pub(super) terms: MemberTerms<'a>,
    /// The time to wait for each server's answer.
    pub(super) limit: Duration,
    /// The time for which a server has no vote after its start; `None` if it has a vote at once.
    pub(super) longest: Option<&'a Arc<LongestLease>>,
    /// Whether another ballot may follow.
    pub(super) waits: bool,
    /// The number of ballots in which some members were granted, but fewer than a majority.
    pub(super) split_votes: AtomicU32,
    pub(super) pacing: Pacing,
    pub(super) timers: &'a Timers,
    /// The error to report if misuse of the members alone prevents a majority: waiting would not
    /// help.
    pub(super) misuse: OnceLock<Error>,
}

/// A limit on the ballots of one waiter: their number, and the start of the last one. A client that
/// floods a channel with messages must not make the waiters flood the servers with requests. (A
/// waiter for a single lock recognises a flood because the answers always report the same end of
/// the hold. Here there are several holds.)
#[derive(Default)]
pub(super) struct Pacing(Mutex<(u32, Moment)>);

impl Pacing {
    /// Waits, if necessary, until the next ballot may start.
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

/// The answers of the servers so far.
struct Votes<'a, T> {
    granted: Vec<(&'a AnyLock, T)>,
    /// The number of members whose grants the client gave back, because it has no majority.
    given_back: usize,
    /// For each member that another owner holds: the remaining time of that hold, if its server
    /// reports it.
    busy: Vec<Option<Duration>>,
    errors: Vec<Error>,
    /// The number of errors from servers that have no vote yet, because they started too recently.
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

/// Returns the next answer; `None` if all have arrived, or if `cutoff` passes first.
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
        // An answer that has already arrived counts, even if the cutoff has passed.
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

    /// Returns the time until `quorum` of the `members` members can be free; `None` if that is
    /// unknown.
    fn free_in(&self, quorum: usize, members: usize) -> Option<Duration> {
        // If the ballot did not wait for a member's answer, that member may be free. If it counted
        // as held, the waiter would sleep although a quorum may be free.
        let unheard = members - self.answered() - self.errors.len();
        let free = std::iter::repeat_n(Duration::ZERO, self.given_back + unheard);
        // Members that were given back are free. A member whose holder has no expiry is not
        // counted, because the time of its release is unknown.
        let mut left: Vec<_> = free.chain(self.busy.iter().flatten().copied()).collect();
        left.sort_unstable();
        left.get(quorum - 1).copied()
    }
}

impl<'a> Ballot<'a> {
    /// Requests one server's vote. If this future is dropped or takes too long, the vote is undone
    /// on that server.
    async fn vote(&self, member: &'a AnyLock) -> Result<MemberReply<LockGuard>> {
        self.trust(member)?;
        let vote = member.acquire_as_member(&self.terms, Deadline::Now, false);
        // Send the request for the note after the vote, so that it also reads a longer lease that
        // was noted shortly before the grant.
        let noted = async {
            match self.longest {
                Some(longest) => longest.exchange_notes(member).await,
                None => Ok(()),
            }
        };
        let both = futures_util::future::try_join(vote, noted);
        let (granted, ()) = member.with_timeout(self.limit, both).await?;
        // The server may have been restarted since the first check.
        self.trust(member)?;
        Ok(granted)
    }

    /// Finds out how one server would vote, without taking anything.
    async fn probe(&self, member: &'a AnyLock) -> Result<MemberReply<()>> {
        self.trust(member)?;
        member.context().check_open(self.key)?;
        let enters = |owner| !self.terms.settings.non_reentrant && member.is_held_by(owner);
        if self.terms.owner.is_some_and(enters) {
            // The owner's own hold does not prevent a vote: the vote would re-enter that hold.
            return Ok(MemberReply::Granted(()));
        }
        member.with_timeout(self.limit, member.probe()).await
    }

    fn trust(&self, member: &AnyLock) -> Result<()> {
        let longest = self.longest.map(|longest| longest.of_all_clients());
        let restarted = longest.and_then(|longest| self.restarted(member, longest));
        restarted.map_or(Ok(()), Err)
    }

    /// Returns an error if the server may have forgotten a hold that is still valid.
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

    /// Sends a request to all members, and returns when all have answered. Once a majority is
    /// reached or has become impossible, the remaining members get as much time as the ballot has
    /// taken so far, and at least 5 ms.
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
                // Give these members back at once, because other clients can use them.
                votes.given_back += votes.granted.drain(..).count();
            }
            if none && !self.waits {
                // Only a wait needs to know how long the other members are held. Requests that are
                // still in flight are dropped, which undoes them.
                break;
            }
            if majority || none {
                // One more server makes the hold stronger, or reports how long to wait. That is
                // worth a short delay.
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
                // Check the server's start time, because the kind of error is the same for a server
                // that has no vote yet and for a server that does not answer.
                votes.no_vote_yet += usize::from(self.trust(member).is_err());
                votes.errors.push(error);
            }
        }
    }

    /// Returns the answer of a ballot that reached no majority: a failure if too many members
    /// failed, otherwise busy.
    fn refused<T>(&self, votes: &Votes<'_, T>) -> Result<Answer<LockGuard>, Failure> {
        let spare = self.members.len() - self.quorum;
        if votes.errors.len() > spare {
            let mut failure = self.failure(&votes.errors, spare);
            // If enough servers answer, including the servers that have no vote yet, this does not
            // count as an outage, which could end the wait: it is known when those servers can
            // vote.
            let enough_answer = self.silent(votes) <= spare;
            if let (Cause::NoAnswer(reasons), true) = (&mut failure.cause, enough_answer) {
                failure.cause = Cause::NoVoteYet(std::mem::take(reasons));
            }
            return Err(failure);
        }
        // If members are held without expiry, it is unknown when a majority will be free. That does
        // not end the wait: the waiter polls.
        let cap = self.terms.settings.poll_interval();
        let free_in = votes.free_in(self.quorum, self.members.len());
        let ttl = free_in.unwrap_or(cap);
        Ok(Answer::Busy { ttl: Some(ttl) })
    }

    /// Returns how many servers have not answered. Servers that have no vote yet do not count.
    fn silent<T>(&self, votes: &Votes<'_, T>) -> usize {
        self.members.len() - votes.answered() - votes.no_vote_yet
    }

    /// Returns why no majority was reached, with each member's error. With up to `spare` errors, a
    /// majority would be possible.
    fn failure(&self, errors: &[Error], spare: usize) -> Failure {
        let reasons: Vec<_> = errors.iter().map(Error::brief).collect();
        let reasons = reasons.join("; ");
        // A kind of error counts as the cause only if it prevents a majority by itself: if more
        // members report this kind than can be spared.
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
            // If even one server may have run its request, the outcome is unknown.
            true => Outcome::MayHaveRun,
            false => Outcome::DidNotRun,
        };
        Failure::new(outcome, cause, self.masters(errors.len()))
    }

    pub(super) fn masters(&self, count: usize) -> String {
        format!("{count} of {} masters", self.members.len())
    }

    /// Makes sure that all members know the longest lease before the first hold. Otherwise another
    /// client might trust a server too early after that server has forgotten the hold.
    async fn ensure_longest_noted(&self) -> Result<(), Failure> {
        let Some(longest) = self.longest else {
            return Ok(());
        };
        let missing = longest.note_on_all(self.members, self.limit).await;
        if missing.is_empty() {
            return Ok(());
        }
        // All members must note the longest lease, so none can be spared.
        let mut failure = self.failure(&missing, 0);
        if let Cause::NoAnswer(reasons) = &mut failure.cause {
            *reasons = format!(
                "each of them must first store the longest lease, {:?}: {reasons}",
                longest.own()
            );
        }
        Err(failure)
    }

    /// Returns a failure if a server is given twice, because this server would have two votes.
    fn check_distinct_servers(&self) -> Result<(), Failure> {
        match same_server_error(self.members, |_| ()) {
            None => Ok(()),
            // The acquire reports this error as a misuse.
            Some(error) => Err(Failure::new(
                Outcome::DidNotRun,
                Cause::Other(error.to_string()),
                self.masters(2),
            )),
        }
    }

    /// Pauses for a random time. Without this pause, two waiters that were each granted some of the
    /// members would collide again and again.
    async fn back_off(&self, took: Duration) {
        const LONGEST: Duration = Duration::from_millis(200);
        // Six doublings reach an eighth of a second even from the shortest ballot. A shift without
        // a bound would overflow.
        let split_votes = self.split_votes.fetch_add(1, Ordering::Relaxed).min(6);
        let most = (took.max(Duration::from_millis(1)) * (2 << split_votes)).min(LONGEST);
        let pause = most.mul_f64(fastrand::f64());
        self.timers.sleep(pause).await;
    }
}

impl Ask for Ballot<'_> {
    type Grant = LockGuard;

    async fn ask(&self) -> Result<Answer<LockGuard>, Failure> {
        self.pacing.next(self.timers).await;
        // Votes that do not reach a majority are given back, which wakes all waiters. So after a
        // split vote, probes must find a majority of the members free before anything is taken.
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
            // Check this after the votes, because a server identifies itself on its connection, and
            // the votes may have opened the connection. The error drops the votes, which undoes
            // them.
            self.check_distinct_servers()?;
            if votes.granted.len() < self.quorum {
                break votes;
            }
            // A longer lease that was read from one server applies to all servers, also to those
            // whose votes arrived earlier. If too few votes remain, the next round asks only
            // servers that have been up for that long.
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
