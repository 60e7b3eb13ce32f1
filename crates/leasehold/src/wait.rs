//! The only wait loop: ask, listen, ask again, sleep until a wake-up, the lease's
//! end, the poll cap or the deadline, ask again.
//!
//! Nothing here rests on a message: each sleep has an end of its own, and what
//! wakes a waiter is a hint to ask the server, never a grant. (What others of this process
//! were granted for a waiter, or pass on to it, comes by itself: `Ask::meanwhile`.)

pub(crate) mod backoff;
pub(crate) mod company;
mod hints;
pub(crate) mod rounds;
pub(crate) mod tenure;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;

use crate::backend::channels::{Channels, Listener, Signal};
use crate::backend::step::{Cause, Failure, Outcome};
use crate::clock::{Clock, Moment};
use crate::config::{Settings, WaitStrategy};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use backoff::Pauses;
use hints::{Hints, Sign};
use tokio::sync::MutexGuard;
use turns::{Line, Place};

/// Until when a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Asks once and never sleeps.
    Now,
    At(Moment),
    Never,
}

impl Deadline {
    /// One that has passed already asks once.
    pub(crate) fn at_instant(instant: tokio::time::Instant, clock: Clock) -> Self {
        let moment = clock.moment_of(instant);
        if moment <= clock.now() {
            Self::Now
        } else {
            Self::At(moment)
        }
    }

    pub(crate) fn has_passed(self, clock: Clock) -> bool {
        self.comes_before(clock.now())
    }

    fn comes_before(self, other: Moment) -> bool {
        match self {
            Self::Now => true,
            Self::At(moment) => moment <= other,
            Self::Never => false,
        }
    }

    pub(crate) async fn passed(self, clock: Clock) {
        match self {
            Self::Now => {}
            Self::At(moment) => clock.sleep_until(moment).await,
            Self::Never => std::future::pending().await,
        }
    }
}

/// What the server says to one ask.
pub(crate) enum Answer<T> {
    Granted(T),
    /// Somebody holds it, for `ttl` more; `None` when it has no expiry.
    Busy {
        ttl: Option<Duration>,
    },
    /// Not yet, and nobody's expiry says when; perhaps after `within`.
    Later {
        within: Option<Duration>,
        sign: Sign,
    },
}

/// How a waiter asks: what a primitive adds to the loop.
pub(crate) trait Ask: Sync {
    /// What it gets when it is granted.
    type Grant: Send;

    /// Asks the server once.
    fn ask(&self) -> impl Future<Output = Result<Answer<Self::Grant>, Failure>> + Send;

    /// Before when it leaves it to others to ask.
    fn not_before(&self) -> Option<Moment> {
        None
    }

    /// Resolves when somebody else of this process was granted something for this waiter, or
    /// has passed it on.
    fn meanwhile(&self) -> impl Future<Output = Self::Grant> + Send {
        std::future::pending()
    }

    /// What its channel has brought until now; told before each ask.
    fn heard(&self, _listener: &Listener) {}
}

/// One caller's wait for one name.
pub(crate) struct Wait<'a> {
    pub(crate) context: &'a Context,
    pub(crate) key: &'a Key,
    /// What those in one line have in common.
    pub(crate) wanted: &'a Key,
    /// Where releases are heard of: one, or several when the state is on several servers.
    pub(crate) channels: &'a [(&'a Arc<Channels>, &'a str)],
    pub(crate) settings: &'a Settings,
    pub(crate) deadline: Deadline,
    /// How it stands among those of this process who want the same.
    pub(crate) line: Line,
}

/// How long a key without expiry is waited for. A holder whose key an operator
/// made persistent gives it an expiry again at its next renewal.
const PATIENCE_WITHOUT_EXPIRY: Duration = Duration::from_secs(12);
/// Beyond an expiry, so that the ask comes when it is over.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// Where the server denies the channel, its waiters poll this often at least.
const POLL_CAP_WHEN_DENIED: Duration = Duration::from_secs(1);

impl Wait<'_> {
    /// Asks until the lock is granted or the deadline has passed. The first ask
    /// comes before listening, so that a free lock costs one round trip.
    pub(crate) async fn until_granted<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if matches!(self.deadline, Deadline::Now) {
            return self.once(asker).await;
        }
        match self.in_line(asker).await {
            Ok(Some(granted)) => Ok(Some(granted)),
            // It may have been granted something all the same, just before the end.
            missed => match asker.meanwhile().now_or_never() {
                Some(granted) => Ok(Some(granted)),
                None => missed,
            },
        }
    }

    async fn in_line<A: Ask>(&self, asker: &A) -> Result<Option<A::Grant>> {
        let clock = self.context.clock;
        let place = self.context.turns.line_up(self.wanted, self.line);
        let _turn = tokio::select! {
            biased;
            turn = place.turn() => turn,
            () = self.deadline.passed(clock) => return Ok(None),
        };
        let entered = match self.line {
            Line::Together => self.together(asker, &place).await?,
            _ => tokio::select! {
                biased;
                granted = asker.meanwhile() => Entered::Granted(granted),
                trouble = place.asker() => Entered::Asker(trouble),
                () = self.deadline.passed(clock) => Entered::TooLate,
            },
        };
        let mut trouble = match entered {
            Entered::Asker(trouble) => trouble,
            Entered::Granted(granted) => return Ok(Some(granted)),
            Entered::TooLate => return Ok(None),
        };
        trouble.has_answered |= place.was_answered();
        let mut sleep = Sleep::new(self);
        if self.line == Line::Together {
            // It has asked before: this time whatever comes from now on counts.
            sleep.listen();
        }
        loop {
            tokio::select! {
                biased;
                granted = asker.meanwhile() => return Ok(Some(granted)),
                () = self.stand_down(asker) => {}
            }
            let marks = sleep.marks();
            for listener in &sleep.listeners {
                asker.heard(listener);
            }
            let sent = clock.now();
            let answer = tokio::select! {
                biased;
                answer = in_time(asker) => answer,
                // What it may have been granted is undone.
                () = self.deadline.passed(clock) => return trouble.at_the_end(self),
            };
            let pause = match answer {
                Ok(Answer::Granted(granted)) => {
                    trouble.over();
                    place.note_answer();
                    place.opened().notify_waiters();
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ttl }) => {
                    trouble.answered(clock, ttl);
                    place.note_answer();
                    if trouble.without_expiry_for(clock) > PATIENCE_WITHOUT_EXPIRY {
                        return Err(self.never_expires());
                    }
                    if sleep.listen() {
                        // It stood already, but not when this ask left.
                        continue;
                    }
                    sleep.hints.busy(sent, clock.now(), ttl);
                    sleep.after_busy(ttl)
                }
                Ok(Answer::Later { within, sign }) => {
                    trouble.answered(clock, Some(Duration::ZERO));
                    if sleep.listen() {
                        continue;
                    }
                    sleep.hints.refused(sent, sign);
                    sleep.after_busy(within)
                }
                Err(failure) if failure.may_heal() => {
                    let down_for = trouble.unanswered(clock, &failure);
                    if down_for >= self.settings.outage_limit {
                        return Err(self.error(still_down(failure, down_for)));
                    }
                    sleep.after_failure()
                }
                Err(failure) => return Err(self.error(failure)),
            };
            tokio::select! {
                biased;
                granted = asker.meanwhile() => return Ok(Some(granted)),
                () = sleep.until(&marks, clock.now() + pause) => {}
                () = self.deadline.passed(clock) => {}
            }
            if self.deadline.has_passed(clock) {
                return trouble.at_the_end(self);
            }
        }
    }

    /// Leaves it to others to ask, unless that would take the rest of its time.
    async fn stand_down<A: Ask>(&self, asker: &A) {
        while let Some(until) = asker.not_before() {
            if self.deadline.comes_before(until) {
                return;
            }
            self.context.clock.sleep_until(until).await;
        }
    }

    /// Those who enter together ask at once, and again each time that one of them got
    /// in; until then one of them waits for the server.
    async fn together<'a, A: Ask>(
        &self,
        asker: &A,
        place: &'a Place<Trouble>,
    ) -> Result<Entered<'a, A::Grant>> {
        let clock = self.context.clock;
        let mut seen = Trouble {
            has_answered: place.was_answered(),
            ..Trouble::default()
        };
        loop {
            let opened = place.opened().notified();
            tokio::pin!(opened);
            // Registered before the ask, or a grant between the two would be missed.
            opened.as_mut().enable();
            let answer = tokio::select! {
                biased;
                answer = in_time(asker) => answer,
                () = self.deadline.passed(clock) => {
                    return seen.at_the_end::<()>(self).map(|_| Entered::TooLate);
                }
            };
            match answer {
                Ok(Answer::Granted(granted)) => {
                    place.note_answer();
                    return Ok(Entered::Granted(granted));
                }
                Ok(Answer::Busy { ttl }) => {
                    place.note_answer();
                    seen.answered(clock, ttl);
                }
                Ok(Answer::Later { .. }) => {
                    place.note_answer();
                    seen.answered(clock, Some(Duration::ZERO));
                }
                Err(failure) if failure.may_heal() => {
                    seen.unanswered(clock, &failure);
                }
                Err(failure) => return Err(self.error(failure)),
            }
            tokio::select! {
                biased;
                mut trouble = place.asker() => {
                    trouble.learn(seen);
                    return Ok(Entered::Asker(trouble));
                }
                () = opened => {}
                () = self.deadline.passed(clock) => {
                    return seen.at_the_end::<()>(self).map(|_| Entered::TooLate);
                }
            }
        }
    }

    /// `try_acquire`: it does not overtake those of this process who wait.
    async fn once<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if self.context.turns.anyone_waits(self.wanted, self.line) {
            return Ok(None);
        }
        match in_time(asker).await {
            Ok(Answer::Granted(granted)) => Ok(Some(granted)),
            Ok(Answer::Busy { ttl: Some(_) } | Answer::Later { .. }) => Ok(None),
            Ok(Answer::Busy { ttl: None }) => Err(self.never_expires()),
            Err(failure) => Err(self.error(failure)),
        }
    }

    fn error(&self, failure: Failure) -> Error {
        match self.line {
            // Who waits for a latch takes nothing.
            Line::AllAsk => failure.into_error_of_question(self.key),
            _ => failure.into_error(self.key),
        }
    }

    fn never_expires(&self) -> Error {
        never_expires(self.key, self.context.backend.address())
    }
}

/// Asks once. A request that came to the server too late to be granted teaches us the
/// server's time, and the next one is in time.
async fn in_time<A: Ask>(asker: &A) -> Result<Answer<A::Grant>, Failure> {
    for _ in 0..2 {
        match asker.ask().await {
            Err(failure) if failure.cause == Cause::Late => {}
            result => return result,
        }
    }
    asker.ask().await
}

/// What has become of a waiter at the head of its line.
enum Entered<'a, T> {
    /// It is the one who asks.
    Asker(MutexGuard<'a, Trouble>),
    Granted(T),
    TooLate,
}

/// How one waiter sleeps.
struct Sleep<'a> {
    wait: &'a Wait<'a>,
    /// One for each channel, or none.
    listeners: Vec<Listener>,
    pauses: Option<Pauses>,
    failures: Pauses,
    hints: Hints,
}

impl<'a> Sleep<'a> {
    fn new(wait: &'a Wait<'a>) -> Self {
        let (listeners, pauses) = match &wait.settings.strategy {
            // It counts what it hears from the time when it asks.
            WaitStrategy::PubSub if wait.line == Line::AllAsk => (Vec::new(), None),
            WaitStrategy::PubSub => {
                let channels = wait.channels.iter();
                let live = channels.map(|(channels, name)| channels.listen_if_live(name));
                (live.collect::<Option<_>>().unwrap_or_default(), None)
            }
            WaitStrategy::BackOff(back_off) => (Vec::new(), Some(Pauses::new(back_off.clone()))),
        };
        Self {
            wait,
            listeners,
            pauses,
            failures: Pauses::after_failures(),
            hints: Hints::default(),
        }
    }

    fn marks(&self) -> Vec<Signal> {
        self.listeners.iter().map(Listener::mark).collect()
    }

    /// Starts to listen, if that is how this waiter waits and it does not yet.
    /// `true` when a channel is live at once.
    fn listen(&mut self) -> bool {
        if self.pauses.is_some() || !self.listeners.is_empty() {
            return false;
        }
        let channels = self.wait.channels.iter();
        self.listeners = channels
            .map(|(channels, name)| match self.wait.line {
                Line::AllAsk => channels.listen_from_now(name),
                _ => channels.listen(name),
            })
            .collect();
        self.marks().iter().any(|signal| signal.live)
    }

    fn after_busy(&mut self, ttl: Option<Duration>) -> Duration {
        self.failures.restart();
        let pause = match &mut self.pauses {
            Some(pauses) => pauses.next(),
            None => {
                let denied = self.marks().iter().any(|signal| signal.denied);
                let cap = self.wait.settings.poll_cap;
                if denied {
                    cap.min(POLL_CAP_WHEN_DENIED)
                } else {
                    cap
                }
            }
        };
        let pause = match self.wait.line {
            Line::OnServer { ask_every } => pause.min(ask_every),
            _ => pause,
        };
        // A TTL of 0 is a key about to end; asking at full speed would not help it.
        ttl.map_or(pause, |ttl| pause.min(ttl + AFTER_EXPIRY))
    }

    fn after_failure(&mut self) -> Duration {
        self.failures.next()
    }

    /// Sleeps until `moment`, or until a channel has moved since `marks` and that may
    /// be followed.
    async fn until(&mut self, marks: &[Signal], moment: Moment) {
        let clock = self.wait.context.clock;
        let not_before = self.hints.not_before();
        let listeners = &mut self.listeners;
        let woken = async {
            match &mut listeners[..] {
                [] => std::future::pending().await,
                // Listening may have begun after the ask: then whatever comes from now
                // on counts.
                [listener] => {
                    let mark = marks.first().copied().unwrap_or_default();
                    listener.moved_since(mark).await;
                }
                several => {
                    let moved = several.iter_mut().enumerate().map(|(n, listener)| {
                        let mark = marks.get(n).copied().unwrap_or_default();
                        Box::pin(listener.moved_since(mark))
                    });
                    select_all(moved).await;
                }
            }
            if let Some(not_before) = not_before {
                clock.sleep_until(not_before).await;
            }
        };
        tokio::select! {
            biased;
            () = woken => {}
            () = clock.sleep_until(moment) => {}
        }
    }
}

/// What has kept the waits for a name from ending well. It belongs to the line: those
/// who stand behind need not find out again, one after the other.
#[derive(Default)]
pub(crate) struct Trouble {
    has_answered: bool,
    down: Option<(Moment, Failure)>,
    without_expiry: Option<Moment>,
}

impl Trouble {
    fn answered(&mut self, clock: Clock, ttl: Option<Duration>) {
        self.has_answered = true;
        self.down = None;
        self.without_expiry = match ttl {
            Some(_) => None,
            None => self.without_expiry.or_else(|| Some(clock.now())),
        };
    }

    /// What one waiter has seen before it got the turn is the latest.
    fn learn(&mut self, seen: Self) {
        self.has_answered |= seen.has_answered;
        self.down = seen.down.map(|down| self.down.take().unwrap_or(down));
        self.without_expiry = seen
            .without_expiry
            .map(|since| self.without_expiry.unwrap_or(since));
    }

    /// Whoever is next in line knows that the server answers.
    fn over(&mut self) {
        *self = Self {
            has_answered: true,
            ..Self::default()
        };
    }

    /// How long nothing has answered.
    fn unanswered(&mut self, clock: Clock, failure: &Failure) -> Duration {
        let since = self.down.take().map_or(clock.now(), |(since, _)| since);
        self.down = Some((since, failure.clone()));
        clock.now().saturating_sub(since)
    }

    fn without_expiry_for(&self, clock: Clock) -> Duration {
        self.without_expiry
            .map_or(Duration::ZERO, |since| clock.now().saturating_sub(since))
    }

    /// The deadline has passed. "Still held" is only said of a lock that the
    /// server has said it of.
    fn at_the_end<T>(&self, wait: &Wait<'_>) -> Result<Option<T>> {
        if let Some((since, failure)) = &self.down {
            let down_for = wait.context.clock.now().saturating_sub(*since);
            return Err(wait.error(still_down(failure.clone(), down_for)));
        }
        if !self.has_answered {
            return Err(wait.error(no_answer_in_time(wait.context)));
        }
        if self.without_expiry.is_some() {
            return Err(wait.never_expires());
        }
        Ok(None)
    }
}

/// The wait was shorter than what the server takes to answer.
pub(crate) fn no_answer_in_time(context: &Context) -> Failure {
    let what = "no answer before the wait was over";
    context
        .backend
        .failure(Outcome::MayHaveRun, Cause::NoAnswer(what.into()))
}

/// The error for a wait that met a lock without expiry.
fn never_expires(key: &Key, address: &str) -> Error {
    Error::new(
        ErrorKind::WrongKind,
        format!(
            "the lock `{key}` at {address} has no expiry, so it never ends by itself; \
             find out who made it: `leasehold show NAME`; `force_unlock` ends it for everybody"
        ),
    )
    .with_key(key)
}

/// The last failure, with how long it has been so.
fn still_down(failure: Failure, waited: Duration) -> Failure {
    match &failure.cause {
        Cause::NoAnswer(what) => Failure {
            cause: Cause::NoAnswer(format!("{what}; nothing answered for {waited:.1?}")),
            ..failure
        },
        _ => failure,
    }
}
