//! The only wait loop: ask, listen, ask again, sleep until a wake-up, the lease's
//! end, the poll cap or the deadline, ask again.
//!
//! Nothing here rests on a message: each sleep has an end of its own, and what
//! wakes a waiter is a hint to ask the server, never a grant.

pub(crate) mod backoff;
mod hints;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

use std::time::Duration;

use crate::backend::channels::{Listener, Signal};
use crate::backend::step::{Cause, Failure, Outcome};
use crate::clock::{Clock, Moment};
use crate::config::{Settings, WaitStrategy};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use backoff::Pauses;
use hints::Hints;

/// Until when a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Asks once and never sleeps.
    Now,
    At(Moment),
    Never,
}

impl Deadline {
    pub(crate) fn has_passed(self, clock: Clock) -> bool {
        match self {
            Self::Now => true,
            Self::At(moment) => clock.now() >= moment,
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
}

/// How a waiter asks: what a primitive adds to the loop.
pub(crate) trait Ask: Sync {
    /// What it gets when it is granted.
    type Grant: Send;

    /// Asks the server once.
    fn ask(&self) -> impl Future<Output = Result<Answer<Self::Grant>, Failure>> + Send;
}

/// One caller's wait for one name.
pub(crate) struct Wait<'a> {
    pub(crate) context: &'a Context,
    pub(crate) key: &'a Key,
    pub(crate) channel: &'a str,
    pub(crate) settings: &'a Settings,
    pub(crate) deadline: Deadline,
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
        let clock = self.context.clock;
        if matches!(self.deadline, Deadline::Now) {
            return self.once(asker).await;
        }
        let place = self.context.turns.line_up(self.key);
        let mut trouble = tokio::select! {
            biased;
            turn = place.turn() => turn,
            () = self.deadline.passed(clock) => return Ok(None),
        };
        let mut sleep = Sleep::new(&self);
        loop {
            let mark = sleep.mark();
            let sent = clock.now();
            let answer = tokio::select! {
                biased;
                answer = asker.ask() => answer,
                // What it may have been granted is undone.
                () = self.deadline.passed(clock) => return trouble.at_the_end(&self),
            };
            let pause = match answer {
                Ok(Answer::Granted(granted)) => {
                    trouble.over();
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ttl }) => {
                    trouble.answered(clock, ttl);
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
                Err(failure) if failure.may_heal() => {
                    let down_for = trouble.unanswered(clock, &failure);
                    if down_for >= self.settings.outage_limit {
                        return Err(still_down(failure, down_for).into_error(self.key));
                    }
                    sleep.after_failure()
                }
                Err(failure) => return Err(failure.into_error(self.key)),
            };
            tokio::select! {
                biased;
                () = sleep.until(mark, clock.now() + pause) => {}
                () = self.deadline.passed(clock) => {}
            }
            if self.deadline.has_passed(clock) {
                return trouble.at_the_end(&self);
            }
        }
    }

    /// `try_acquire`: it does not overtake those of this process who wait.
    async fn once<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if self.context.turns.anyone_waits(self.key) {
            return Ok(None);
        }
        match asker.ask().await {
            Ok(Answer::Granted(granted)) => Ok(Some(granted)),
            Ok(Answer::Busy { ttl: Some(_) }) => Ok(None),
            Ok(Answer::Busy { ttl: None }) => Err(self.never_expires()),
            Err(failure) => Err(failure.into_error(self.key)),
        }
    }

    fn never_expires(&self) -> Error {
        never_expires(self.key, self.context.backend.address())
    }
}

/// How one waiter sleeps.
struct Sleep<'a> {
    wait: &'a Wait<'a>,
    listener: Option<Listener>,
    pauses: Option<Pauses>,
    failures: Pauses,
    hints: Hints,
}

impl<'a> Sleep<'a> {
    fn new(wait: &'a Wait<'a>) -> Self {
        let (listener, pauses) = match &wait.settings.strategy {
            WaitStrategy::PubSub => {
                let channels = wait.context.backend.channels();
                (channels.listen_if_live(wait.channel), None)
            }
            WaitStrategy::BackOff(back_off) => (None, Some(Pauses::new(back_off.clone()))),
        };
        Self {
            wait,
            listener,
            pauses,
            failures: Pauses::after_failures(),
            hints: Hints::default(),
        }
    }

    fn mark(&self) -> Option<Signal> {
        self.listener.as_ref().map(Listener::mark)
    }

    /// Starts to listen, if that is how this waiter waits and it does not yet.
    /// `true` when the channel is live at once.
    fn listen(&mut self) -> bool {
        if self.pauses.is_some() || self.listener.is_some() {
            return false;
        }
        let listener = self
            .wait
            .context
            .backend
            .channels()
            .listen(self.wait.channel);
        let live = listener.mark().live;
        self.listener = Some(listener);
        live
    }

    fn after_busy(&mut self, ttl: Option<Duration>) -> Duration {
        self.failures.restart();
        let pause = match &mut self.pauses {
            Some(pauses) => pauses.next(),
            None => {
                let denied = self.mark().is_some_and(|signal| signal.denied);
                let cap = self.wait.settings.poll_cap;
                if denied {
                    cap.min(POLL_CAP_WHEN_DENIED)
                } else {
                    cap
                }
            }
        };
        // A TTL of 0 is a key about to end; asking at full speed would not help it.
        ttl.map_or(pause, |ttl| pause.min(ttl + AFTER_EXPIRY))
    }

    fn after_failure(&mut self) -> Duration {
        self.failures.next()
    }

    /// Sleeps until `moment`, or until the channel has moved since `mark` and that may
    /// be followed.
    async fn until(&mut self, mark: Option<Signal>, moment: Moment) {
        let clock = self.wait.context.clock;
        match &mut self.listener {
            None => clock.sleep_until(moment).await,
            Some(listener) => {
                // Listening began after the ask: whatever comes from now on counts.
                let mark = mark.unwrap_or_default();
                let not_before = self.hints.not_before();
                let woken = async {
                    listener.moved_since(mark).await;
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
            return Err(still_down(failure.clone(), down_for).into_error(wait.key));
        }
        if !self.has_answered {
            return Err(no_answer_in_time(wait.context).into_error(wait.key));
        }
        if self.without_expiry.is_some() {
            return Err(wait.never_expires());
        }
        Ok(None)
    }
}

/// The wait was shorter than what the server takes to answer.
fn no_answer_in_time(context: &Context) -> Failure {
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
             find out who made it, then unlock it by force or remove the key"
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
