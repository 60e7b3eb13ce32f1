//! One ballot: it asks all servers at once, and a majority has to grant.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::longest::Longest;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::{Moment, Timers};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::any::AnyLock;
use crate::primitives::composite::member::{Said, Terms, one_server};
use crate::primitives::lock::LockGuard;
use crate::sync::Mutex;
use crate::wait::{Answer, Ask, Deadline};

/// How one acquire asks, again and again.
pub(super) struct Ballot<'a> {
    pub(super) key: &'a Key,
    pub(super) members: &'a [AnyLock],
    pub(super) quorum: usize,
    pub(super) terms: Terms<'a>,
    /// How long to wait for a server.
    pub(super) limit: Duration,
    /// How long a server has no vote after its start; `None`: it votes at once.
    pub(super) longest: Option<&'a Arc<Longest>>,
    /// Whether there will be another ballot.
    pub(super) waits: bool,
    /// Rounds in which some members were granted, but no majority.
    pub(super) split_votes: AtomicU32,
    pub(super) pacing: Pacing,
    pub(super) timers: &'a Timers,
    /// The error, when too many members refuse whatever their servers say.
    pub(super) misuse: OnceLock<Error>,
}

/// How often a waiter has asked, and when it last did: somebody who floods a channel must not make
/// its waiters flood the servers. (A single lock tells wake-ups in vain by how long it is held.
/// Here that is not one number.)
#[derive(Default)]
pub(super) struct Pacing(Mutex<(u32, Moment)>);

impl Pacing {
    /// Waits, if need be, until the next ask may leave.
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

/// What the servers have said so far.
struct Votes<'a, T> {
    granted: Vec<(&'a AnyLock, T)>,
    /// How many members were granted in vain, and given back.
    given_back: usize,
    /// How much time the holders of other members have left, as far as the servers say.
    busy: Vec<Option<Duration>>,
    errors: Vec<Error>,
    /// How many of the errors are from servers that were started a moment ago.
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

/// The next answer; `None` when there is none left, or when `patience` is over before it comes.
async fn next_before<F: Future>(
    patience: Option<Moment>,
    timers: &Timers,
    asked: &mut FuturesUnordered<F>,
) -> Option<F::Output> {
    let over = async {
        match patience {
            Some(moment) => timers.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An answer that is there counts, even when the patience is over.
        biased;
        next = asked.next() => next,
        () = over => None,
    }
}

impl<T> Votes<'_, T> {
    /// How many members have granted or refused.
    fn answered(&self) -> usize {
        self.granted.len() + self.given_back + self.busy.len()
    }

    /// When `quorum` of so many members can be free; `None` if that is not known.
    fn free_in(&self, quorum: usize, members: usize) -> Option<Duration> {
        // A member whose answer nobody waited for may be free. If it counted as held, the waiter would
        // go on sleeping when the others are free.
        let unheard = members - self.answered() - self.errors.len();
        let free = std::iter::repeat_n(Duration::ZERO, self.given_back + unheard);
        // Members that were granted in vain are free once they are back. A member without an expiry
        // is left out: nobody knows when it will be free.
        let mut left: Vec<_> = free.chain(self.busy.iter().flatten().copied()).collect();
        left.sort_unstable();
        left.get(quorum - 1).copied()
    }
}

impl<'a> Ballot<'a> {
    /// One server's vote. If this is dropped or takes too long, the vote is undone on that server.
    async fn vote(&self, member: &'a AnyLock) -> Result<Said<LockGuard>> {
        self.trust(member)?;
        let vote = member.ask(&self.terms, Deadline::Now, false);
        // Sent behind the vote, so that this hears of a longer lease that was noted before the
        // grant.
        let noted = async {
            match self.longest {
                Some(longest) => longest.ask(member).await,
                None => Ok(()),
            }
        };
        let both = futures_util::future::try_join(vote, noted);
        let (granted, ()) = member.within(self.limit, both).await?;
        // The server may have been restarted meanwhile.
        self.trust(member)?;
        Ok(granted)
    }

    /// What one server's vote would be, without taking anything.
    async fn look(&self, member: &'a AnyLock) -> Result<Said<()>> {
        self.trust(member)?;
        member.context().check_open(self.key)?;
        if self
            .terms
            .owner
            .is_some_and(|owner| member.is_held_by(owner))
        {
            // What the owner holds itself is not in its way: the vote would enter it again.
            return Ok(Said::Granted(()));
        }
        member.within(self.limit, member.look()).await
    }

    fn trust(&self, member: &AnyLock) -> Result<()> {
        let longest = self.longest.map(|longest| longest.of_all());
        let restarted = longest.and_then(|longest| self.restarted(member, longest));
        restarted.map_or(Ok(()), Err)
    }

    /// The error, if the server may have forgotten a hold that is not over.
    fn restarted(&self, member: &AnyLock, longest: Duration) -> Option<Error> {
        let (backend, clock) = (&member.context().backend, member.context().clock);
        let now = clock.now();
        let started = backend.started_after(member.key().ok()?, now - longest)?;
        let left = (started + longest).saturating_sub(now);
        let what = format!(
            "it was started a moment ago and may have lost locks; it counts again in {left:.1?}"
        );
        let failure = backend.failure(Outcome::DidNotRun, Cause::NoVoteYet(what));
        Some(failure.into_error(self.key))
    }

    /// Asks all members. Returns when all have answered. When there is a majority, or none is
    /// possible any more, the others get as much time again as has passed.
    async fn votes<T, F: Future<Output = Result<Said<T>>>>(
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
        let mut patience = None;
        while let Some((member, said)) = next_before(patience, self.timers, &mut asked).await {
            self.count(&mut votes, member, said);
            let majority = votes.granted.len() >= self.quorum;
            let none = votes.granted.len() + asked.len() < self.quorum;
            if none {
                // Before anything else, because others can use them.
                votes.given_back += votes.granted.drain(..).count();
            }
            if none && !self.waits {
                // How long the others are held is of use only to a wait. What is still asked is
                // dropped, and undone.
                break;
            }
            if majority || none {
                // One more server makes the hold stronger, or says how long to wait. That is worth
                // some of the time.
                const LEAST: Duration = Duration::from_millis(5);
                let now = self.timers.now();
                patience.get_or_insert_with(|| now + now.saturating_sub(began).max(LEAST));
            }
        }
        votes
    }

    fn count<T>(&self, votes: &mut Votes<'a, T>, member: &'a AnyLock, said: Result<Said<T>>) {
        match said {
            Ok(Said::Granted(granted)) => votes.granted.push((member, granted)),
            Ok(Said::Busy(left)) => votes.busy.push(left),
            Err(error) => {
                // Judged by the server, because the error does not tell: a server that has no vote
                // yet and one that does not answer give errors of the same kind.
                votes.no_vote_yet += usize::from(self.trust(member).is_err());
                votes.errors.push(error);
            }
        }
    }

    /// There is no majority: answers are missing, or the lock is held.
    fn refused<T>(&self, votes: &Votes<'_, T>) -> Result<Answer<LockGuard>, Failure> {
        let spare = self.members.len() - self.quorum;
        if votes.errors.len() > spare {
            let mut failure = self.failure(&votes.errors, spare);
            // With enough servers that answer it is no outage, which may end the wait: the servers
            // that were started a moment ago vote again at a known time.
            let enough_answer = self.silent(votes) <= spare;
            if let (Cause::NoAnswer(said), true) = (&mut failure.cause, enough_answer) {
                failure.cause = Cause::NoVoteYet(std::mem::take(said));
            }
            return Err(failure);
        }
        // A hold without expiry on some members is no reason to end the wait.
        let cap = self.terms.settings.poll_interval();
        let free_in = votes.free_in(self.quorum, self.members.len());
        let ttl = free_in.unwrap_or(cap);
        Ok(Answer::Busy { ttl: Some(ttl) })
    }

    /// How many servers have not answered, without those that were started a moment ago.
    fn silent<T>(&self, votes: &Votes<'_, T>) -> usize {
        self.members.len() - votes.answered() - votes.no_vote_yet
    }

    /// Why there can be no majority: what each server says that gave no answer. `spare` such
    /// servers would not matter.
    fn failure(&self, errors: &[Error], spare: usize) -> Failure {
        let said: Vec<_> = errors.iter().map(Error::brief).collect();
        let said = said.join("; ");
        // A kind of error is the cause only if it prevents a majority by itself: if more members
        // have it than can be spared.
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
            Cause::Denied(said)
        } else if most(&[ErrorKind::WrongKind]) {
            Cause::WrongKind(said)
        } else if hopeless.count() > spare {
            Cause::Other(said)
        } else {
            Cause::NoAnswer(said)
        };
        let unknown = |error: &Error| error.kind() == ErrorKind::OutcomeUnknown;
        let outcome = match errors.iter().any(unknown) {
            // One server that may have run its request is enough: nobody can say that nothing was
            // taken.
            true => Outcome::MayHaveRun,
            false => Outcome::DidNotRun,
        };
        Failure::new(outcome, cause, self.masters(errors.len()))
    }

    pub(super) fn masters(&self, count: usize) -> String {
        format!("{count} of {} masters", self.members.len())
    }

    /// No hold before the longest lease is known to all. Otherwise a server that forgets the hold
    /// may be asked too early.
    async fn longest_is_known(&self) -> Result<(), Failure> {
        let Some(longest) = self.longest else {
            return Ok(());
        };
        let missing = longest.note_on_all(self.members, self.limit).await;
        if missing.is_empty() {
            return Ok(());
        }
        // All members have to note it, so none can be spared.
        let mut failure = self.failure(&missing, 0);
        if let Cause::NoAnswer(said) = &mut failure.cause {
            *said = format!(
                "a longest lease of {:?} has to be noted on each of them first: {said}",
                longest.own()
            );
        }
        Err(failure)
    }

    /// A server that is given twice would have two votes.
    fn each_is_one_server(&self) -> Result<(), Failure> {
        match one_server(self.members, |_| ()) {
            None => Ok(()),
            // The acquire reports it anew, as the misuse that it is.
            Some(error) => Err(Failure::new(
                Outcome::DidNotRun,
                Cause::Other(error.to_string()),
                self.masters(2),
            )),
        }
    }

    /// Two waiters that have each got some of the servers would meet again and again.
    async fn back_off(&self, took: Duration) {
        const LONGEST: Duration = Duration::from_millis(200);
        // Six doublings reach an eighth of a second even from the shortest round. A shift without a
        // bound would overflow.
        let split_votes = self.split_votes.fetch_add(1, Ordering::Relaxed).min(6);
        let most = (took.max(Duration::from_millis(1)) * (2 << split_votes)).min(LONGEST);
        // At random: two waiters that pause for equally long meet again.
        let pause = most.mul_f64(fastrand::f64());
        self.timers.sleep(pause).await;
    }
}

impl Ask for Ballot<'_> {
    type Grant = LockGuard;

    async fn ask(&self) -> Result<Answer<LockGuard>, Failure> {
        self.pacing.next(self.timers).await;
        // Votes that are no majority are given back, which wakes all waiters. So once a vote was
        // split, a majority has to look free before anything is taken.
        if self.split_votes.load(Ordering::Relaxed) > 0 {
            let looks = self.votes(|member| self.look(member)).await;
            if looks.granted.len() < self.quorum {
                return self.refused(&looks);
            }
        }
        self.longest_is_known().await?;
        let began = Instant::now();
        let votes = loop {
            let asked = self.timers.now();
            let mut votes = self.votes(|member| self.vote(member)).await;
            // Only here: a server says which one it is when it is connected to, and the votes may
            // have been the first to need the connection. They are dropped with the error, and so
            // undone.
            self.each_is_one_server()?;
            if votes.granted.len() < self.quorum {
                break votes;
            }
            // A note that the last server had counts for the first one as well. If that leaves no
            // majority, other servers may still give one: now that the note is known, these are not
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
