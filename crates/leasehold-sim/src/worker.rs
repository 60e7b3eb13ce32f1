//! The actions of a task in a history, and the checks that the task makes.

mod election;
mod slot;
mod ticket;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use leasehold::testing::history::{Asked, Inside};
use leasehold::{Error, ErrorKind, LockGuard, LossReason, Owner};
use tokio::time::{Instant, sleep};

pub(crate) use self::election::{Terms, observe};
pub(crate) use self::slot::{Slots, dead_turns_are_open};
pub(crate) use self::ticket::Tickets;
use crate::faults::Kind;
use crate::scenario::{Ask, End, Turn, Worker};
use crate::stage::{Life, Living, Machine, REPLY_LIMIT, Stage};
use crate::subject::{Answer, Belief, Held, Subject, Wanted, Wish};
use crate::unpolled::now_and_then;

/// The combined rounding error of a timer and of the server's whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

pub(crate) async fn work(stage: Arc<Stage>, number: usize, worker: Worker) {
    let who = format!("worker {number}");
    for (turn, place) in worker.turns.iter().zip(0..) {
        sleep(Duration::from_millis(turn.think_ms)).await;
        let taking = Taking {
            stage: &stage,
            machine: &stage.machines[worker.machine],
            number,
            place,
            worker: &worker,
            who: &who,
            turn,
        };
        taking.take().await;
    }
}

/// One turn of a worker.
struct Taking<'a> {
    stage: &'a Arc<Stage>,
    machine: &'a Machine,
    number: usize,
    /// The number of this turn among the worker's turns.
    place: u64,
    worker: &'a Worker,
    who: &'a str,
    turn: &'a Turn,
}

impl Taking<'_> {
    fn subject(&self) -> Subject {
        self.stage.scenario.subject
    }

    fn wish<'a>(&'a self, owner: &'a Owner) -> Wish<'a> {
        Wish {
            seed: self.stage.scenario.seed,
            machine: self.worker.machine,
            place: self.place,
            turn: self.turn,
            poll_interval: Duration::from_millis(self.stage.scenario.poll_cap_ms),
            longest_lease: self.stage.scenario.longest_lease_for(self.turn),
            acknowledged: self.worker.acknowledged,
            owner: self.turn.reenters.then_some(owner),
        }
    }

    /// For every name for which the turn's hold excludes other holds, records in the history that
    /// the turn requests it.
    fn record(&self) -> Vec<Asked> {
        let names = self.subject().names(self.turn).into_iter();
        let asked = names.map(|(name, shares)| {
            let asked = self.stage.recorder.ask(name, self.who);
            if shares { asked.sharing() } else { asked }
        });
        asked.collect()
    }

    async fn take(&self) {
        let owner = leasehold::Owner::new();
        let wish = self.wish(&owner);
        let mut lock = self.subject().lock(&self.machine.clients, &wish);
        if let Wanted::Candidate(election) = &lock
            && self.leads_again_and_again()
        {
            return self.lead(election).await;
        }
        let offer = self.ticket();
        if let Some(offer) = &offer {
            lock = Wanted::Ticket(offer.resumed(&self.machine.clients[0], &wish));
        }
        let wanting = self.stage.enter();
        let closed = self.machine.closed.load(Ordering::SeqCst);
        let asked = self.record();
        let started = Instant::now();
        let open = self.stage.tickets.open();
        if let Some(offer) = &offer {
            self.stage.tickets.tried(offer.number);
        }
        let acquire = self.polled(Box::pin(lock.ask(self.turn.ask)));
        let result = match self.turn.dropped_at_poll {
            None => acquire.await,
            Some(polls) => match drop_at_poll(polls, acquire).await {
                Some(result) => result,
                None => return self.stage.fired(Kind::AcquireDropped),
            },
        };
        let patience = offer.as_ref().map_or(self.turn.ask, |_| Ask::Try);
        self.check_time(patience, started.elapsed());
        if closed && result.is_ok() {
            self.violation("a closed client acquires");
        }
        match result {
            Ok(Answer::Held(guard)) => {
                let inside = asked.into_iter().map(|asked| asked.acquired(&*guard));
                let inside = inside.collect();
                self.check_new(&guard);
                match (&offer, &guard) {
                    (Some(offer), _) => self.check_resumed(offer, &guard),
                    (None, Held::Turn(turn)) => self.check_begun(turn, started),
                    (None, Held::Term(term)) => self.check_term(term.token(), term.holder_id()),
                    (None, _) => self.check_no_ticket_was_passed_over(&open),
                }
                self.hold(&lock, guard, inside).await;
            }
            Ok(Answer::Over(info)) => self.check_over(&info),
            Ok(Answer::Busy) => {
                let undisturbed = self.stage.kinds.is_empty() && wanting.was_alone();
                if undisturbed || wanting.is_first() {
                    self.violation("told that a free lock is held");
                }
            }
            Err(error) => match &offer {
                Some(offer) => self.check_not_resumed(offer, &error),
                None => self.check_error("acquire", &error),
            },
        }
    }

    /// Polls an acquire as often as the turn's settings say.
    fn polled<F: Future>(&self, acquire: F) -> impl Future<Output = F::Output> {
        let number = (self.number as u64) << 32 | self.place;
        let rng = fastrand::Rng::with_seed(self.stage.scenario.seed ^ number);
        let stalls = || self.stage.fired(Kind::Unpolled);
        now_and_then(self.turn.unpolled_percent, rng, stalls, acquire)
    }

    async fn hold(&self, lock: &Wanted, guard: Held, inside: Vec<Inside>) {
        let granted = Instant::now();
        if let Some(least_ms) = self.turn.least_ms {
            // From the grant on, the server keeps the lock for this time, whatever happens to the
            // holder.
            let until = granted + Duration::from_millis(least_ms);
            self.stage.kept(granted, until);
            self.stage.fired(Kind::Kept);
        }
        let told = Told::listen(&guard, &self.machine.life);
        let half = Duration::from_millis(self.turn.stay_ms / 2);
        self.stay(&guard, half).await;
        if let Some(lease_ms) = self.turn.extends_to_ms
            && guard.is_held()
        {
            self.extend(&guard, Duration::from_millis(lease_ms)).await;
        }
        if guard.is_held() && self.turn.reenters {
            self.reenter(lock, &guard).await;
        }
        self.stay(&guard, half).await;
        inside
            .into_iter()
            .for_each(|inside| inside.releasing(&*guard));
        let lost = self.check_told(&guard, &told, granted);
        if lost {
            self.check_stays_lost(&guard).await;
        }
        self.leave(guard, lost).await;
    }

    /// Works for a while, or until the lock is lost.
    async fn stay(&self, guard: &LockGuard, span: Duration) {
        const LOOKS: u32 = 4;
        for _ in 0..LOOKS {
            self.check_belief(guard).await;
            if !self.turn.stalls() {
                guard.progress();
            }
            tokio::select! {
                biased;
                _ = guard.lost() => return,
                () = sleep(span / LOOKS) => {}
            }
        }
    }

    /// Compares the holder's belief with the server: checks that the server has a hold with this
    /// id, and keeps it at least until the guard's deadline.
    async fn check_belief(&self, guard: &LockGuard) {
        if self.stage.any(Kind::ends_the_promise) || !guard.is_held() {
            return;
        }
        // The operators' clients bypass the network, so this takes no virtual time.
        let (subject, operators) = (self.subject(), &self.stage.operators);
        match subject.belief(operators, self.turn, guard).await {
            Belief::Unknown => {}
            Belief::NotHeld => self.violation("believes in a lock that the server has not"),
            Belief::Held(left) => {
                if guard.valid_until() > Instant::now() + left {
                    self.violation("believes in its lock for longer than the server keeps it");
                }
            }
        }
    }

    async fn extend(&self, guard: &LockGuard, lease: Duration) {
        let asked = Instant::now();
        match guard.extend(lease).await {
            Err(error) => self.check_error("extend", &error),
            Ok(()) => {
                let promised = asked + lease.mul_f64(0.98) - ROUNDING * 2;
                if guard.valid_until() < promised && self.turn.max_hold_ms.is_none() {
                    self.violation("an extension did not extend");
                }
            }
        }
    }

    async fn reenter(&self, lock: &Wanted, outer: &LockGuard) {
        match lock.ask(Ask::Acquire).await {
            Ok(Answer::Held(Held::Lock(inner))) => {
                if shares_a_hold(&inner, outer) {
                    if let Err(error) = inner.release().await {
                        self.check_error("inner release", &error);
                    }
                } else if outer.is_held() && !self.sets_members_again() {
                    self.violation("a re-entry got a hold of its own beside the first");
                }
            }
            Ok(_) => self.violation("a re-entry without a limit was refused"),
            Err(error) => self.check_error("re-entry", &error),
        }
    }

    /// Returns whether lost members of a hold may rejoin. The guard does not show which members
    /// have rejoined.
    fn sets_members_again(&self) -> bool {
        self.subject() == Subject::Red && self.stage.any(Kind::is_empty_restart)
    }

    async fn leave(&self, guard: Held, was_lost: bool) {
        let guard = match guard {
            Held::Turn(turn) => return self.end_turn(*turn, was_lost).await,
            Held::Term(term) if self.turn.end == End::Release => {
                return self.check_released(term.resign().await, was_lost);
            }
            Held::Term(term) => LockGuard::from(term),
            Held::Lock(guard) => guard,
        };
        match self.turn.end {
            End::Release => self.check_released(guard.release().await, was_lost),
            End::Ticket(lease_ms) => {
                self.give_ticket(guard, Duration::from_millis(lease_ms), was_lost)
                    .await;
            }
            End::ReleaseDropped(polls) => {
                let _ = drop_at_poll(polls, guard.release()).await;
                self.stage.fired(Kind::ReleaseDropped);
            }
            End::Drop => {
                drop(guard);
                self.stage.fired(Kind::GuardDropped);
            }
            End::Forget => {
                guard.forget();
                self.stage.fired(Kind::Forgotten);
            }
            End::Keep(span_ms) => {
                self.keep(guard, Duration::from_millis(span_ms), was_lost)
                    .await;
            }
        }
    }

    fn check_released(&self, released: leasehold::Result<()>, was_lost: bool) {
        match released {
            Ok(()) if was_lost => self.violation("a lost guard was released without an error"),
            Ok(()) => {}
            Err(error) => self.check_error("release", &error),
        }
    }

    /// Keeps the lock with `keep_for`. No other holder may get it before that time ends.
    async fn keep(&self, guard: LockGuard, span: Duration, was_lost: bool) {
        let from = Instant::now();
        match guard.keep_for(span).await {
            Ok(()) if was_lost => self.violation("a lost guard was kept without an error"),
            Ok(()) => self.stage.kept(from, from + span),
            Err(error) => self.check_error("keep", &error),
        }
        self.stage.fired(Kind::Kept);
    }

    fn violation(&self, what: &str) {
        self.stage.violation(format!("{}: {what}", self.who));
    }

    /// Checks that a call has ended within its time limit.
    fn check_time(&self, patience: Ask, took: Duration) {
        if self.machine.life.has_paused() || self.turn.unpolled_percent > 0 {
            return;
        }
        let limit = match patience {
            Ask::For(ms) => Duration::from_millis(ms),
            // A request whose reply is late is retried twice.
            Ask::Try => REPLY_LIMIT * 3,
            Ask::Acquire => return,
        };
        if took > limit + ROUNDING {
            self.violation(&format!("asked for {limit:?} and was kept for {took:?}"));
        }
    }

    fn check_new(&self, guard: &LockGuard) {
        self.stage.granted(Instant::now());
        if !guard.is_held() {
            self.violation("was given a guard that was lost already");
        }
        let rises = !self
            .stage
            .any(|kind| kind.ends_the_promise() || kind == Kind::ClockBack);
        if let Some(token) = guard.token()
            && !self.stage.token_rises(token)
            && rises
        {
            self.violation("was given a fencing token that is not greater than the last one");
        }
    }

    fn check_error(&self, what: &str, error: &Error) {
        let explained = match error.kind() {
            // An acquire without a limit survives every fault. It fails only if its client is
            // closed.
            _ if what == "acquire" && matches!(self.turn.ask, Ask::Acquire) => {
                self.stage.any(|kind| kind == Kind::Closed)
            }
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => {
                self.stage.any(Kind::disturbs_calls)
            }
            ErrorKind::Lost => {
                self.loses_holds() || error.loss().is_some_and(|why| self.by_close(why))
            }
            ErrorKind::Misuse => self.stage.any(|kind| kind == Kind::Closed),
            _ => false,
        };
        let no_answer = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
        let by_conduct = match what {
            "acquire" => {
                // If an earlier waiter in the line is not polled, this waiter may use up its time
                // limit.
                let is_short =
                    self.waits_too_short() || self.stage.any(|kind| kind == Kind::Unpolled);
                is_short && no_answer.contains(&error.kind())
            }
            _ => match error.kind() {
                ErrorKind::Lost => self.may_be_lost_by_conduct(),
                // Here, a downgrade is part of an acquire. If the downgrade is dropped halfway, the
                // request that undoes it can't confirm the hold for the earlier writers to which it
                // belonged before.
                ErrorKind::OutcomeUnknown => {
                    self.subject() == Subject::Rw
                        && self.stage.any(|kind| kind == Kind::AcquireDropped)
                }
                _ => false,
            },
        };
        if !explained && !by_conduct {
            self.violation(&format!("{what} failed: {error}"));
        }
    }

    /// Returns whether the lock was lost because its client was closed. A closed client does not
    /// renew holds.
    fn by_close(&self, reason: &LossReason) -> bool {
        let reasons = match reason {
            LossReason::Member { reason, .. } => reason,
            reason => reason,
        };
        matches!(reasons, LossReason::Closed) && self.stage.any(|kind| kind == Kind::Closed)
    }

    fn loses_holds(&self) -> bool {
        self.stage.loses_holds(self.worker.acknowledged)
    }

    fn may_be_lost_by_conduct(&self) -> bool {
        self.turn.overstays() || self.turn.max_hold_ms.is_some() || self.turn.stalls()
    }

    /// Returns whether the turn's wait may end before the waiter gets a reply, because other
    /// waiters on its machine send their requests first.
    fn waits_too_short(&self) -> bool {
        let round_trip_ms = self.stage.scenario.latency_ms * 2;
        let answer_ms = match self.subject() {
            // If an acquire of a `RedLock` gets only some members, it releases them before it ends.
            Subject::Red => round_trip_ms + 250,
            // A request for a turn asks for the server's time first, up to three times.
            Subject::Slot => round_trip_ms * 4,
            _ => round_trip_ms,
        };
        // Only one waiter at a time sends a request. If a waiter leaves without a reply, the next
        // waiter has waited just as long, and may not get a reply either.
        let in_front = self.leave_unanswered(answer_ms);
        matches!(self.turn.ask, Ask::For(ms) if ms <= answer_ms * (1 + in_front))
    }

    /// Returns how many other workers of this machine may leave the line before their reply
    /// arrives.
    fn leave_unanswered(&self, answer_ms: u64) -> u64 {
        let scenario = &self.stage.scenario;
        let leaves = |turn: &Turn| {
            turn.dropped_at_poll.is_some() || matches!(turn.ask, Ask::For(ms) if ms <= answer_ms)
        };
        let workers = scenario.workers.iter().enumerate();
        let others = workers.filter(|(number, worker)| {
            *number != self.number
                && worker.machine == self.worker.machine
                && worker.turns.iter().any(leaves)
        });
        others.count() as u64
    }

    /// Checks that the holder learns of a loss by its deadline, and that there was a cause for the
    /// loss. Returns whether the lock is lost.
    fn check_told(&self, guard: &LockGuard, told: &Told, granted: Instant) -> bool {
        let deadline = guard.valid_until() + ROUNDING;
        let told = told.get();
        let heard = told.as_ref().map_or(Instant::now(), |(at, _)| *at);
        if heard > deadline && !self.machine.life.has_paused() {
            let late = heard - guard.valid_until();
            self.violation(&format!("not told at its deadline, nor {late:?} after it"));
        }
        let limit = self.turn.max_hold_ms.map(Duration::from_millis);
        self.check_stalled(guard, granted);
        let over = limit.is_some_and(|limit| granted.elapsed() > limit + ROUNDING);
        if over && guard.is_held() && !self.machine.life.has_paused() {
            self.violation("is held for longer than its maximum");
        }
        if Instant::now() > guard.valid_until() && guard.is_held() {
            self.violation("holds a lock past its deadline");
        }
        match told {
            Some((_, reason)) if self.by_close(&reason) => {}
            Some((_, reason)) if !self.loses_holds() && !self.may_be_lost_by_conduct() => {
                self.violation(&format!("lost the lock for nothing: {reason}"));
            }
            Some((_, reason)) => self.check_reason(&reason),
            None => self.check_silence(guard, granted),
        }
        !guard.is_held()
    }

    /// Checks that a hold whose work has stalled ends in time. It is not renewed after the time
    /// limit for progress, so it ends at most one lease after this limit.
    fn check_stalled(&self, guard: &LockGuard, granted: Instant) {
        let Some(progress) = self.turn.progress.filter(|progress| progress.stalls) else {
            return;
        };
        let lease_ms = self.stage.scenario.lease_ms;
        let end = granted + Duration::from_millis(progress.within_ms + lease_ms) + ROUNDING;
        if Instant::now() > end && guard.is_held() && !self.machine.life.has_paused() {
            self.violation("its work has stalled, and it still has the lock");
        }
    }

    /// Checks that if the hold is known to be lost on the server, its next renewal reports the
    /// loss.
    fn check_silence(&self, guard: &LockGuard, granted: Instant) {
        let [kind] = self.stage.kinds[..] else {
            return;
        };
        let gone = kind.is_empty_restart() || matches!(kind, Kind::Forced | Kind::Removed);
        let Some((broken, _)) = self.stage.broken() else {
            return;
        };
        if !gone || granted >= broken || self.turn.fixed_lease_ms.is_some() {
            return;
        }
        let period = Duration::from_millis(self.stage.scenario.lease_ms) / 3;
        // This is enough for a renewal that was in flight, the request for the reason, and a cut
        // connection.
        let slack = REPLY_LIMIT + Duration::from_millis(500);
        if broken.elapsed() > period + slack && guard.is_held() {
            self.violation("was not told within a renewal that its lock is gone");
        }
    }

    /// Checks that if only one kind of fault has happened, the reported reason matches this kind.
    fn check_reason(&self, reason: &LossReason) {
        let [kind] = self.stage.kinds[..] else {
            return;
        };
        let reason = of_the_member(reason);
        let by_limit = matches!(reason, LossReason::MaxHold { .. });
        let right = match kind {
            _ if by_limit => self.turn.max_hold_ms.is_some(),
            Kind::Forced => matches!(
                reason,
                LossReason::Forced { .. } | LossReason::Expired | LossReason::RenewalFailed { .. }
            ),
            Kind::Removed => matches!(
                reason,
                LossReason::Deleted | LossReason::Taken { .. } | LossReason::Expired
            ),
            Kind::Stalled => matches!(reason, LossReason::Stalled { .. }),
            Kind::Overstayed if !self.turn.reenters => *reason == LossReason::Expired,
            Kind::Frozen | Kind::Refused | Kind::Unconfirmed | Kind::FailedOver
                if self.turn.fixed_lease_ms.is_none() =>
            {
                matches!(reason, LossReason::RenewalFailed { .. })
            }
            _ => true,
        };
        if !right {
            self.violation(&format!("was told a wrong reason: {reason:?}"));
        }
    }

    /// Checks that a lost guard remains lost.
    async fn check_stays_lost(&self, guard: &LockGuard) {
        for _ in 0..3 {
            if guard.is_held() || guard.loss().is_none() {
                self.violation("a lost guard is valid again");
            }
            sleep(Duration::from_millis(self.turn.think_ms * 10)).await;
        }
        if self.turn.overstays() {
            self.stage.fired(Kind::Overstayed);
        }
        if self.turn.stalls() {
            self.stage.fired(Kind::Stalled);
        }
    }
}

/// The time and the reason of the loss that a holder learned of.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Option<(Instant, LossReason)>>>);

impl Told {
    fn listen(guard: &LockGuard, life: &Life) -> Self {
        let told = Self::default();
        let (lost, ours) = (guard.lost(), told.clone());
        tokio::spawn(Living::new(life, async move {
            let reason = lost.await;
            *ours.slot() = Some((Instant::now(), reason));
        }));
        told
    }

    fn slot(&self) -> MutexGuard<'_, Option<(Instant, LossReason)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Option<(Instant, LossReason)> {
        self.slot().clone()
    }
}

/// Returns whether two guards belong to one hold. For guards of locks over several others, returns
/// whether any of their members share a hold.
fn shares_a_hold(one: &LockGuard, other: &LockGuard) -> bool {
    let of_other = |member: &LockGuard| {
        let mut members = other.members().iter();
        members.any(|other| other.number() == member.number())
    };
    one.number() == other.number() || one.members().iter().any(of_other)
}

/// Returns the loss reason. For a lock over several others, returns the reason why its member was
/// lost.
fn of_the_member(reason: &LossReason) -> &LossReason {
    match reason {
        LossReason::Member { reason, .. } => of_the_member(reason),
        reason => reason,
    }
}

/// Polls a future up to `polls` times, then drops it. Returns `None` if the future has not
/// completed.
async fn drop_at_poll<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}
