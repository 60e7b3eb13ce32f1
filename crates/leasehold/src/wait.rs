//! The only wait loop: ask, listen, ask again, sleep until a wake-up, the lease's
//! end, the poll interval or the deadline, ask again.
//!
//! No wait depends on a message: each sleep has an end of its own, and a wake-up is a hint to
//! ask the server, never a grant. One kind of grant comes without an ask: another waiter of this
//! process was granted something for this one, or a holder passes permits on to it
//! (`Ask::meanwhile`).

pub(crate) mod backoff;
pub(crate) mod company;
mod order;
mod outage;
pub(crate) mod single_flight;
pub(crate) mod tenure;
#[cfg(test)]
mod tests;
mod throttle;
pub(crate) mod turns;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;

use crate::backend::channels::{Channels, Listener, Signal};
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::{Clock, Moment};
use crate::config::{Settings, WaitStrategy};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use backoff::Pauses;
use outage::Down;
use throttle::{Evidence, WakeUpThrottle};
use turns::{Line, Place};

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Asks once and never sleeps.
    Now,
    At(Moment),
    Never,
}

impl Deadline {
    /// An instant that has passed already is [`Now`](Self::Now): the caller asks once.
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

    /// This one or `moment`, whichever comes first.
    fn or(self, moment: Moment) -> Self {
        match self {
            Self::Never => Self::At(moment),
            _ if self.comes_before(moment) => self,
            _ => Self::At(moment),
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
    /// Not yet, and no holder's expiry says when; perhaps after `within`.
    Later {
        within: Option<Duration>,
        evidence: Evidence,
    },
}

/// How a waiter asks: what a primitive adds to the loop.
pub(crate) trait Ask: Sync {
    /// What the waiter gets when its request is granted.
    type Grant: Send;

    /// Asks the server once.
    fn ask(&self) -> impl Future<Output = Result<Answer<Self::Grant>, Failure>> + Send;

    /// The moment before which this waiter lets other processes ask.
    fn not_before(&self) -> Option<Moment> {
        None
    }

    /// Resolves when another waiter of this process was granted something for this one, or a
    /// holder of this process has passed permits on to it.
    fn meanwhile(&self) -> impl Future<Output = Self::Grant> + Send {
        std::future::pending()
    }

    /// Called before each ask, so that the primitive can look at what the channel has brought.
    fn heard(&self, _listener: &Listener) {}
}

/// One caller's wait for one name.
pub(crate) struct Wait<'a> {
    pub(crate) context: &'a Context,
    pub(crate) key: &'a Key,
    /// The key that the waiters of one line have in common.
    pub(crate) line_key: &'a Key,
    /// The channels on which releases are published: one, or several when the state is on
    /// several servers.
    pub(crate) channels: &'a [(&'a Arc<Channels>, &'a str)],
    pub(crate) settings: &'a Settings,
    pub(crate) deadline: Deadline,
    /// How it lines up with the other waiters of this process.
    pub(crate) line: Line,
}

/// How long a waiter bears a key without expiry. An operator may have made a holder's key
/// persistent, and the holder gives it an expiry again at its next renewal: after 10 s, if it
/// has the default lease.
const PATIENCE_WITHOUT_EXPIRY: Duration = Duration::from_secs(12);
/// How long after an expiry the waiter asks: the server tells whole milliseconds, and the key
/// has to be gone when the request arrives.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// Where the server denies the channel, its waiters poll this often at least.
const POLL_INTERVAL_WHEN_DENIED: Duration = Duration::from_secs(1);

impl Wait<'_> {
    /// Asks until the lock is granted or the deadline has passed. The first ask
    /// comes before listening, so that a free lock costs one round trip.
    pub(crate) async fn until_granted<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if matches!(self.deadline, Deadline::Now) {
            return self.once(asker).await;
        }
        let place = self.context.turns.line_up(self.line_key, self.line);
        let mut waiting = pin!(self.in_line(asker, &place));
        // Polled through its place, which notes each poll: a waiter that was woken and is not
        // polled in time is passed over.
        match poll_fn(|context| place.attend(context, waiting.as_mut())).await {
            Ok(Some(granted)) => Ok(Some(granted)),
            // Another waiter may have been granted something for this one just before the end.
            // Unclaimed, it would go back to the server although its waiter is still here.
            missed => match asker.meanwhile().now_or_never() {
                Some(granted) => Ok(Some(granted)),
                None => missed,
            },
        }
    }

    /// Runs the wait within this waiter's own limits, wherever in the line it is.
    async fn in_line<A: Ask>(&self, asker: &A, place: &Place) -> Result<Option<A::Grant>> {
        tokio::select! {
            // Polled first: an answer that has come when the time is up still counts.
            biased;
            result = self.asks(asker, place) => result,
            // Dropping the ask undoes what it may have been granted.
            () = self.time_is_up(place) => self.ended(place),
        }
    }

    async fn asks<A: Ask>(&self, asker: &A, place: &Place) -> Result<Option<A::Grant>> {
        let clock = self.context.clock;
        if let Some(granted) = self.turn(asker, place).await? {
            return Ok(Some(granted));
        }
        let mut sleep = Sleep::new(self);
        loop {
            tokio::select! {
                biased;
                granted = asker.meanwhile() => return Ok(Some(granted)),
                () = self.stand_down(asker) => {}
            }
            // Marked before the request leaves: a release between the server's answer and a
            // later mark would wake nobody.
            let marks = sleep.marks();
            for listener in &sleep.listeners {
                asker.heard(listener);
            }
            let sent = clock.now();
            // Noted before it leaves: if the time is up meanwhile, the error must not say that
            // nothing ran.
            place.asks();
            let pause = match in_time(asker).await {
                Ok(Answer::Granted(granted)) => {
                    place.granted(sent);
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ttl }) => {
                    self.check_expiry(place, sent, ttl)?;
                    if sleep.listen() {
                        // The subscription was live already, for another waiter; but this one
                        // had no mark when it asked. A release since the server's answer has
                        // not woken it, so it asks again.
                        continue;
                    }
                    sleep.throttle.busy(sent, clock.now(), ttl);
                    sleep.after_busy(ttl)
                }
                Ok(Answer::Later { within, evidence }) => {
                    place.outage().held(sent, clock.now(), Some(Duration::ZERO));
                    if sleep.listen() {
                        continue;
                    }
                    sleep.throttle.refused(sent, evidence);
                    sleep.after_busy(within)
                }
                Err(failure) if failure.may_heal() => {
                    place.unanswered(sent, clock.now(), self.gap(), &failure);
                    sleep.after_failure()
                }
                Err(failure) => return Err(self.error(failure)),
            };
            tokio::select! {
                // Also during the sleep: permits that a holder of this process passes on come
                // without a message, and would lie unused until the next ask.
                biased;
                granted = asker.meanwhile() => return Ok(Some(granted)),
                () = sleep.until(&marks, clock.now() + pause) => {}
            }
            // `in_line` polls this side first: without this look one more request would leave
            // when the sleep and the time end together.
            if self.deadline.has_passed(clock) {
                return self.ended(place);
            }
            // Passed over while nobody polled it: another waiter asks for the line now.
            if !place.has_turn()
                && let Some(granted) = self.turn(asker, place).await?
            {
                return Ok(Some(granted));
            }
        }
    }

    /// Waits until this waiter is the one who asks for its line. `Some` if it gets what it
    /// wants before that.
    async fn turn<A: Ask>(&self, asker: &A, place: &Place) -> Result<Option<A::Grant>> {
        if let Line::Together { patience } = self.line {
            return self.together(asker, place, patience).await;
        }
        tokio::select! {
            biased;
            granted = asker.meanwhile() => Ok(Some(granted)),
            () = place.turn() => Ok(None),
        }
    }

    /// Notes that the server calls the lock held. An error when it has had no expiry for too
    /// long: nobody is known who would ever free it.
    fn check_expiry(&self, place: &Place, sent: Moment, ttl: Option<Duration>) -> Result<()> {
        let now = self.context.clock.now();
        let mut outage = place.outage();
        outage.held(sent, now, ttl);
        match outage.without_expiry() {
            Some(since) if now.saturating_sub(since) > PATIENCE_WITHOUT_EXPIRY => {
                Err(self.never_expires())
            }
            _ => Ok(()),
        }
    }

    /// Resolves at the deadline, or when no server has answered for as long as this waiter
    /// bears an outage.
    async fn time_is_up(&self, place: &Place) {
        let clock = self.context.clock;
        let began = clock.now();
        loop {
            // Registered before the state is read, or a failure between the two is missed.
            let mut went_down = pin!(place.went_down().notified());
            went_down.as_mut().enable();
            let since = place.outage().down_since(clock.now(), self.gap());
            // An outage that others of the line have met before counts for this waiter from
            // when it came: each has a limit of its own.
            let since = since.map(|since| since.max(began));
            let end = since.map_or(self.deadline, |since| {
                self.deadline.or(since + self.settings.outage_timeout)
            });
            if end.has_passed(clock) {
                return;
            }
            // At `end` the state is read again: an answer may have ended the outage, and it counts
            // no more if nobody has asked since the failure.
            tokio::select! {
                biased;
                () = end.passed(clock) => {}
                () = went_down => {}
            }
        }
    }

    /// The longest time between two failures while somebody asks: that of a reply, and that of
    /// the pause before the next request.
    fn gap(&self) -> Duration {
        self.context.backend.reply_timeout() + Duration::from_secs(1)
    }

    /// The result of a wait that was granted nothing. `None`, "still held", only if a server
    /// has said so: a waiter that no server answered gets an error.
    fn ended<T>(&self, place: &Place) -> Result<Option<T>> {
        let outage = place.outage();
        let failure = match outage.down().cloned() {
            Some(down) => still_down(down, self.context.clock.now()),
            None if !outage.has_answered() => no_answer_in_time(self.context),
            None if outage.without_expiry().is_some() => return Err(self.never_expires()),
            None => return Ok(None),
        };
        Err(self.error(match place.has_asked() {
            true => failure,
            // Another waiter of the line sent the request that failed: none of this one's ran.
            false => Failure {
                outcome: Outcome::DidNotRun,
                ..failure
            },
        }))
    }

    /// Lets other processes ask first.
    async fn stand_down<A: Ask>(&self, asker: &A) {
        while let Some(until) = asker.not_before() {
            // A wait asks before it ends, even in the turn of others.
            if self.deadline.comes_before(until) {
                return;
            }
            self.context.clock.sleep_until(until).await;
        }
    }

    /// Readers that enter together ask at once. When that was in vain, one of them has the
    /// turn: it waits for the server, and its grant makes the others ask again.
    async fn together<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        patience: Duration,
    ) -> Result<Option<A::Grant>> {
        let clock = self.context.clock;
        // Not behind the writers of its process for ever: the first of them may itself wait for
        // long, beside a process that writes all the time.
        tokio::select! {
            biased;
            () = place.entered() => {}
            () = clock.sleep_until(clock.now() + patience) => place.goes_before_writers(),
        }
        while !place.has_turn() {
            // Registered before the ask, or a grant between the two would be missed.
            let mut opened = pin!(place.opened().notified());
            opened.as_mut().enable();
            let sent = self.context.clock.now();
            place.asks();
            match in_time(asker).await {
                Ok(Answer::Granted(granted)) => {
                    place.outage().over(sent);
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ttl }) => self.check_expiry(place, sent, ttl)?,
                Ok(Answer::Later { .. }) => {
                    place.outage().held(sent, clock.now(), Some(Duration::ZERO));
                }
                Err(failure) if failure.may_heal() => {
                    place.unanswered(sent, clock.now(), self.gap(), &failure);
                }
                Err(failure) => return Err(self.error(failure)),
            }
            tokio::select! {
                biased;
                () = place.turn() => {}
                () = opened => {}
            }
        }
        Ok(None)
    }

    /// `try_acquire`: it does not overtake the waiters of this process, as long as the server
    /// answers them.
    async fn once<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if self.context.turns.anyone_waits(self.line_key, self.line) {
            return Ok(None);
        }
        let sent = self.context.clock.now();
        let ttl = match in_time(asker).await {
            Ok(Answer::Granted(granted)) => return Ok(Some(granted)),
            Ok(Answer::Busy { ttl }) => ttl,
            Ok(Answer::Later { .. }) => Some(Duration::ZERO),
            Err(failure) => return Err(self.error(failure)),
        };
        let now = self.context.clock.now();
        self.context.turns.held(self.line_key, sent, now, ttl);
        match ttl {
            Some(_) => Ok(None),
            None => Err(self.never_expires()),
        }
    }

    fn error(&self, failure: Failure) -> Error {
        match self.line {
            // A waiter for a latch takes nothing: it makes no difference whether its request ran.
            Line::AllAsk => failure.into_error_of_question(self.key),
            _ => failure.into_error(self.key),
        }
    }

    fn never_expires(&self) -> Error {
        never_expires(self.key, self.context.backend.address())
    }
}

/// Asks once. A server that refuses a request as too late tells its time, so the next request
/// is in time.
async fn in_time<A: Ask>(asker: &A) -> Result<Answer<A::Grant>, Failure> {
    for _ in 0..2 {
        match asker.ask().await {
            Err(failure) if failure.cause == Cause::Late => {}
            result => return result,
        }
    }
    asker.ask().await
}

/// How one waiter sleeps.
struct Sleep<'a> {
    wait: &'a Wait<'a>,
    /// One for each channel of the wait, or none.
    listeners: Vec<Listener>,
    pauses: Option<Pauses>,
    failures: Pauses,
    throttle: WakeUpThrottle,
}

impl<'a> Sleep<'a> {
    fn new(wait: &'a Wait<'a>) -> Self {
        let (listeners, pauses) = match &wait.settings.strategy {
            // A waiter for a latch listens from its first answer on, behind a confirmation of
            // its own: a message from before must not open the latch for it.
            WaitStrategy::PubSub if wait.line == Line::AllAsk => (Vec::new(), None),
            WaitStrategy::PubSub => {
                let channels = wait.channels.iter();
                // A channel that is live before the first ask saves the second one. All or
                // none: `listen` adds nothing to listeners that are there.
                let live = channels.map(|(channels, name)| channels.listen_if_live(name));
                (live.collect::<Option<_>>().unwrap_or_default(), None)
            }
            WaitStrategy::Backoff(back_off) => (Vec::new(), Some(Pauses::new(back_off.clone()))),
        };
        Self {
            wait,
            listeners,
            pauses,
            failures: Pauses::after_failures(),
            throttle: WakeUpThrottle::default(),
        }
    }

    fn marks(&self) -> Vec<Signal> {
        self.listeners.iter().map(Listener::mark).collect()
    }

    /// Starts to listen, if this waiter waits for messages and does not listen yet.
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
                let cap = self.wait.settings.poll_interval;
                if denied {
                    cap.min(POLL_INTERVAL_WHEN_DENIED)
                } else {
                    cap
                }
            }
        };
        let pause = match self.wait.line {
            // The server takes a waiter that asks less often for dead, and its place is gone.
            Line::OnServer { ask_every } => pause.min(ask_every),
            _ => pause,
        };
        // Not the TTL alone: with one of 0 a key is about to end, and the waiter would ask at
        // full speed until it has.
        ttl.map_or(pause, |ttl| pause.min(ttl + AFTER_EXPIRY))
    }

    fn after_failure(&mut self) -> Duration {
        self.failures.next()
    }

    /// Sleeps until `moment`, or until a channel has moved since `marks` and the throttle lets
    /// the waiter follow that.
    async fn until(&mut self, marks: &[Signal], moment: Moment) {
        let clock = self.wait.context.clock;
        let not_before = self.throttle.not_before();
        let listeners = &mut self.listeners;
        let woken = async {
            match &mut listeners[..] {
                [] => std::future::pending().await,
                // Without a mark, listening began after the ask. Then whatever the channel has
                // ever brought counts, and so does the confirmation of the subscription: only
                // an ask behind that finds a release that nobody heard.
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
            // Put off, not thrown away: this wake-up may be the one that matters.
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

/// The wait was shorter than the server takes to answer.
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
fn still_down(down: Down, now: Moment) -> Failure {
    let (failure, for_so_long) = (down.failure, now.saturating_sub(down.since));
    match &failure.cause {
        Cause::NoAnswer(what) => Failure {
            cause: Cause::NoAnswer(format!("{what}; nothing answered for {for_so_long:.1?}")),
            ..failure
        },
        _ => failure,
    }
}
