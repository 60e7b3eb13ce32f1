//! The only wait loop. A waiter asks the server for the lock, subscribes, and asks again. Then it
//! sleeps until a wake-up, the end of the lease, the end of the poll interval or the deadline, and
//! asks the server again.
//!
//! No wait depends on a message. Each sleep ends by itself, and a wake-up is a hint to ask the
//! server, never a grant. Only a grant inside the process needs no request: the server has granted
//! something to another waiter on behalf of this one, or a holder passes permits on to this waiter
//! (`Ask::granted_locally`).

pub(crate) mod backoff;
mod deadline;
mod sleep;
#[cfg(test)]
mod tests;
mod throttle;

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::channels::{Channels, Listener};
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Moment;
use crate::config::Settings;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::local::line::{LineMode, Place, SoleWaiter};
use crate::local::{Outage, place_renewals};
use crate::observe::{AcquireSpan, WaitReason};
pub(crate) use deadline::Deadline;
pub(crate) use sleep::LATE_POLL_FACTOR;
use sleep::Sleep;
use throttle::Fingerprint;

/// The server's answer to one request.
pub(crate) enum Answer<T> {
    Granted(T),
    /// Another client holds the lock. That hold expires after `ttl`; `None` if it has no expiry.
    Busy {
        ttl: Option<Duration>,
    },
    /// The request is not granted yet, and it is unknown when it will be, because no holder's
    /// expiry shows it. Perhaps it will be granted after `within`.
    Later {
        within: Option<Duration>,
        fingerprint: Fingerprint,
    },
}

impl<T> Answer<T> {
    /// Converts what was granted.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Granted(granted) => Answer::Granted(convert(granted)),
            Self::Busy { ttl } => Answer::Busy { ttl },
            Self::Later {
                within,
                fingerprint,
            } => Answer::Later {
                within,
                fingerprint,
            },
        }
    }
}

/// The waiter's next action after an answer.
enum NextStep<T> {
    Granted(T),
    /// Ask the server again at once.
    Again,
    /// Sleep, but no longer than this.
    Pause(Duration),
}

/// The moment until which a waiter does not ask the server, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBefore {
    /// Other processes get to ask first. A wait that ends before that moment asks anyway: only a
    /// server can say that the name is held.
    Others(Moment),
    /// The waiter's own process holds the name, and hands it over within the process when the
    /// holder gives it up.
    Own(Moment),
}

/// The requests of a waiter: what a primitive adds to the loop.
pub(crate) trait Ask: Sync {
    /// The value that the waiter gets when its request is granted.
    type Grant: Send;

    /// Asks the server once.
    fn ask(&self) -> impl Future<Output = Result<Answer<Self::Grant>, Failure>> + Send;

    /// Returns the moment before which this waiter does not ask the server. Code that changes the
    /// moment to an earlier one wakes the waiter.
    fn not_before(&self) -> Option<NotBefore> {
        None
    }

    /// Resolves when the server has granted something to another waiter of this process on behalf
    /// of this one, or a holder of this process has passed permits on to it.
    fn granted_locally(&self) -> impl Future<Output = Self::Grant> + Send {
        std::future::pending()
    }

    /// Renews the waiter's place on the server, in one request with other waiters of its process.
    /// Returns `None` if the waiter must send its own request.
    fn renew_place(
        &self,
        _due: Duration,
    ) -> impl Future<Output = Option<TimedAnswer<Self::Grant>>> + Send {
        std::future::ready(None)
    }

    /// Called when a message has woken the waiter.
    fn on_message(&self) {}

    /// Called before each request, so that the primitive can check what the channels have received.
    fn before_ask(&self, _listeners: &[Listener]) {}

    /// Returns how many clients are before this one in the server's list of waiting clients,
    /// according to the last answer. Releases notify these clients first. `None` if this client is
    /// not in the list.
    fn clients_ahead(&self) -> Option<u32> {
        None
    }
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
    /// The way in which the waiters of this process form a line.
    pub(crate) line: LineMode,
    /// The waiter's place in that line, if it has one already.
    pub(crate) place: Option<&'a Place>,
    /// Whether a server has said, to an earlier request of the same caller, that the name is held.
    pub(crate) was_held: bool,
    /// The span of this acquire, if monitoring observes it.
    pub(crate) span: Option<&'a AcquireSpan>,
}

/// The answer to a request.
pub(crate) struct TimedAnswer<T> {
    /// The time at which the request was sent.
    pub(crate) sent: Moment,
    pub(crate) answer: Result<Answer<T>, Failure>,
}

/// If no server has answered a wait yet, the wait sends a request no later than this time before
/// its end. It does so even while other processes should ask first, because the wait ends with an
/// error if no answer has arrived by its end.
pub(crate) const TIME_FOR_ANSWER: Duration = Duration::from_millis(100);
/// The time for which a waiter tolerates a key without expiry. An operator may have made a holder's
/// key persistent. The holder gives the key an expiry again at its next renewal: after 10 s, if it
/// has the default lease.
const TOLERATED_WITHOUT_EXPIRY: Duration = Duration::from_secs(12);
impl Wait<'_> {
    /// Asks the server until the lock is granted or the deadline has passed. Asks once before it
    /// subscribes, so that a free lock costs one round trip.
    pub(crate) async fn until_granted<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        match self.deadline {
            Deadline::Now => self.once(asker).await,
            _ => self.continue_from(asker, None).await,
        }
    }

    /// Asks the server as the process's only waiter for the name. Returns `None` if the deadline
    /// passes first.
    pub(crate) async fn as_sole_waiter<A: Ask>(
        &self,
        asker: &A,
        sole_waiter: &SoleWaiter,
    ) -> Option<TimedAnswer<A::Grant>> {
        let clock = self.context.clock;
        let sent = clock.now();
        let mut request = pin!(self.in_time(asker));
        let answer = poll_fn(|context| sole_waiter.poll_through(context, request.as_mut()));
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            // Dropping the request undoes what it may have been granted.
            () = self.deadline.passed(&self.context.timers) => return None,
        };
        Some(TimedAnswer { sent, answer })
    }

    /// Waits until the lock is granted or the deadline has passed. `first_answer` is the answer to
    /// a request that this waiter has sent already.
    pub(crate) async fn continue_from<A: Ask>(
        self,
        asker: &A,
        first_answer: Option<TimedAnswer<A::Grant>>,
    ) -> Result<Option<A::Grant>> {
        let own;
        let place = match self.place {
            Some(place) => place,
            None => {
                own = self.context.locals.of(self.line_key).line_up(self.line);
                &own
            }
        };
        let mut waiting = pin!(self.in_line(asker, place, first_answer));
        // Poll the wait through its place, which notes each poll: a waiter that was woken but is
        // not polled soon is passed over.
        match poll_fn(|context| place.poll_through(context, waiting.as_mut())).await {
            Ok(Some(granted)) => Ok(Some(granted)),
            // The server may have granted something to another waiter on behalf of this one just
            // before the end. If this waiter did not claim the grant, the grant would be given back
            // although it is still wanted.
            missed => match self.granted_locally(asker).now_or_never() {
                Some(granted) => Ok(Some(granted)),
                None => missed,
            },
        }
    }

    /// Runs the wait within this waiter's own time limits, at any position in the line.
    async fn in_line<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        first_answer: Option<TimedAnswer<A::Grant>>,
    ) -> Result<Option<A::Grant>> {
        let now = self.context.clock.now();
        let began = first_answer
            .as_ref()
            .map_or(now, |first_answer| first_answer.sent);
        tokio::select! {
            // Poll this first: an answer that has arrived when the time is up still counts.
            biased;
            result = self.ask_until_granted(asker, place, first_answer) => result,
            // Dropping the request undoes what it may have been granted.
            () = self.time_is_up(place, began) => self.ended(place),
        }
    }

    async fn ask_until_granted<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        mut first_answer: Option<TimedAnswer<A::Grant>>,
    ) -> Result<Option<A::Grant>> {
        let clock = self.context.clock;
        if let Some(granted) = self.until_head(asker, place).await? {
            return Ok(Some(granted));
        }
        let mut sleep = Sleep::new(self, first_answer.is_some());
        loop {
            if first_answer.is_none() {
                tokio::select! {
                    biased;
                    granted = self.granted_locally(asker) => return Ok(Some(granted)),
                    () = self.stand_down(asker, place) => {}
                }
            }
            // Read the channels' signals before sending the request. If they were read later, a
            // release just after the server's answer might not wake this waiter.
            let marks = sleep.marks();
            let answered = match first_answer.take() {
                Some(first_answer) => first_answer,
                None => match self.renew_place(asker, place, &sleep).await {
                    ControlFlow::Break(granted) => return Ok(Some(granted)),
                    ControlFlow::Continue(Some(renewed)) => renewed,
                    ControlFlow::Continue(None) => self.ask(asker, place, &sleep).await,
                },
            };
            sleep.clients_ahead = asker.clients_ahead();
            let pause = match self.next_step(answered, place, &mut sleep)? {
                NextStep::Granted(granted) => return Ok(Some(granted)),
                NextStep::Again => continue,
                NextStep::Pause(pause) => pause,
            };
            let behind = self.is_behind(place);
            tokio::select! {
                // Poll this during the sleep, too: permits that a holder of this process passes on
                // arrive without a message, and would lie unused until the next request.
                biased;
                granted = self.granted_locally(asker) => return Ok(Some(granted)),
                woken = sleep.until(&marks, clock.now() + pause) => {
                    if woken {
                        self.observe(AcquireSpan::count_wake_up);
                        asker.on_message();
                    }
                }
                () = place.until_head(), if behind => {}
            }
            // `in_line` polls this future before it checks the time. Without this check, one more
            // request would be sent when the sleep and the wait end at the same time.
            if self.deadline.has_passed(clock) {
                return self.ended(place);
            }
            // The waiter was passed over while it was not polled: another waiter now sends the
            // requests for the line.
            if !place.is_head()
                && let Some(granted) = self.until_head(asker, place).await?
            {
                return Ok(Some(granted));
            }
        }
    }

    /// Returns whether this waiter has a place in a line on the server, with other waiters of its
    /// process before it. Those waiters hand the lock over to this one, or the first of them is
    /// subscribed. So this waiter only renews its place.
    fn is_behind(&self, place: &Place) -> bool {
        matches!(self.line, LineMode::OnServer { .. }) && !place.is_head()
    }

    /// Asks the server once, and notes that this waiter has sent a request.
    async fn ask<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        sleep: &Sleep<'_>,
    ) -> TimedAnswer<A::Grant> {
        let clock = self.context.clock;
        asker.before_ask(&sleep.listeners);
        let sent = clock.now();
        // Note the request before sending it: if the time is up before the answer arrives, the
        // error must not say that nothing ran.
        place.note_asked();
        let answer = self.in_time(asker).await;
        TimedAnswer { sent, answer }
    }

    /// Renews the place of a waiter that is behind others of its process, in one request with their
    /// places. Continues with `None` if the waiter must send its own request. Breaks if the waiter
    /// gets what it wants before that.
    async fn renew_place<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        sleep: &Sleep<'_>,
    ) -> ControlFlow<A::Grant, Option<TimedAnswer<A::Grant>>> {
        // A waiter that is subscribed to the channels was the head before. It asks the server at
        // once when a message wakes it.
        let listens = !sleep.listeners.is_empty();
        let ask_every = match self.line {
            LineMode::OnServer { ask_every } if self.is_behind(place) && !listens => ask_every,
            _ => return ControlFlow::Continue(None),
        };
        tokio::select! {
            biased;
            // Poll this here, too: a hold that is handed over to this waiter would otherwise lie
            // unused until the answer.
            granted = self.granted_locally(asker) => ControlFlow::Break(granted),
            () = place.until_head() => ControlFlow::Continue(None),
            renewed = asker.renew_place(ask_every) => ControlFlow::Continue(renewed),
            // A joint request makes progress only while its waiters are polled, so its answer may
            // never arrive.
            () = self.context.timers.sleep(place_renewals::gather_time(ask_every) + self.gap()) => {
                ControlFlow::Continue(None)
            }
        }
    }

    /// Decides what the waiter does after an answer.
    fn next_step<T>(
        &self,
        TimedAnswer { sent, answer }: TimedAnswer<T>,
        place: &Place,
        sleep: &mut Sleep<'_>,
    ) -> Result<NextStep<T>> {
        let clock = self.context.clock;
        Ok(NextStep::Pause(match answer {
            Ok(Answer::Granted(granted)) => {
                place.granted(sent);
                return Ok(NextStep::Granted(granted));
            }
            Ok(Answer::Busy { ttl }) => {
                self.check_expiry(place, sent, ttl)?;
                if self.is_behind(place) {
                    return Ok(NextStep::Pause(sleep.after_busy(ttl)));
                }
                if sleep.listen() {
                    // The subscription was already live for another waiter, but this waiter did not
                    // use it yet when it sent its request. A release after the server's answer
                    // would not have woken this waiter, so it asks the server again.
                    return Ok(NextStep::Again);
                }
                sleep.throttle.busy(sent, clock.now(), ttl);
                if ttl.is_none() {
                    // Poll often: if the key still has no expiry later, the wait must end without
                    // much delay.
                    sleep.poll_often_again();
                }
                sleep.after_busy(ttl)
            }
            Ok(Answer::Later {
                within,
                fingerprint,
            }) => {
                place
                    .server_view()
                    .held(sent, clock.now(), Some(Duration::ZERO));
                if sleep.listen() {
                    return Ok(NextStep::Again);
                }
                if sleep.throttle.refused(sent, fingerprint) {
                    // The change may have been made without publishing a message.
                    sleep.poll_often_again();
                }
                sleep.after_busy(within)
            }
            Err(failure) if failure.may_heal() => {
                place.unanswered(sent, clock.now(), self.gap(), &failure);
                sleep.after_failure()
            }
            Err(failure) => return Err(self.error(failure)),
        }))
    }

    /// Waits until this waiter is the head of its line. Returns `Some` if the waiter gets what it
    /// wants before that.
    async fn until_head<A: Ask>(&self, asker: &A, place: &Place) -> Result<Option<A::Grant>> {
        match self.line {
            LineMode::Reader { yields_for } => {
                return self.wait_as_reader(asker, place, yields_for).await;
            }
            // On the server, each waiter has its own place in the line, and sends its own requests.
            LineMode::OnServer { .. } => return Ok(None),
            _ => {}
        }
        if !place.is_head() {
            self.observe(|span| span.note_wait(WaitReason::InLine));
        }
        tokio::select! {
            biased;
            granted = self.granted_locally(asker) => Ok(Some(granted)),
            () = place.until_head() => Ok(None),
        }
    }

    /// Notes that the server reports the lock as held. Returns an error if the lock has had no
    /// expiry for too long: perhaps no holder will ever release it.
    fn check_expiry(&self, place: &Place, sent: Moment, ttl: Option<Duration>) -> Result<()> {
        let now = self.context.clock.now();
        let mut server = place.server_view();
        server.held(sent, now, ttl);
        match server.without_expiry() {
            Some(since) if now.saturating_sub(since) > TOLERATED_WITHOUT_EXPIRY => {
                Err(self.never_expires())
            }
            _ => Ok(()),
        }
    }

    /// Resolves at the deadline, or when no server has answered for as long as this waiter
    /// tolerates an outage.
    async fn time_is_up(&self, place: &Place, began: Moment) {
        let clock = self.context.clock;
        loop {
            // Register before reading the state, or a failure between the two would be missed.
            let mut went_down = pin!(place.went_down().notified());
            went_down.as_mut().enable();
            let since = place.server_view().outage_since(clock.now(), self.gap());
            // If other waiters of the line noticed the outage before this one arrived, this waiter
            // counts the outage from its own arrival: each waiter has its own limit.
            let since = since.map(|since| since.max(began));
            let end = since.map_or(self.deadline, |since| {
                self.deadline
                    .or_earlier(since + self.settings.outage_timeout)
            });
            if end.has_passed(clock) {
                return;
            }
            // At `end`, read the state again: an answer may have ended the outage, and an outage
            // does not count if no waiter has sent a request since the failure.
            tokio::select! {
                biased;
                () = end.passed(&self.context.timers) => {}
                () = went_down => {}
            }
        }
    }

    /// Returns the longest time between two failures of a waiter that keeps asking: the timeout for
    /// a reply, plus the pause before the next request.
    fn gap(&self) -> Duration {
        self.context.backend.reply_timeout() + Duration::from_secs(1)
    }

    /// Returns the result of a wait whose only request was not answered.
    pub(crate) fn ended_unanswered<T>(&self) -> Result<Option<T>> {
        if self.was_held {
            return Ok(None);
        }
        Err(self.error(no_answer_in_time(self.context)))
    }

    /// Returns the result of a wait that was granted nothing. The result is `None`, "still held",
    /// only if a server has said so. A waiter that no server has answered gets an error.
    fn ended<T>(&self, place: &Place) -> Result<Option<T>> {
        let server = place.server_view();
        let failure = match server.outage().cloned() {
            Some(outage) => {
                // A waiter for a latch changes nothing.
                let changes = !matches!(self.line, LineMode::SingleFlight);
                let in_doubt = changes && place.is_in_doubt(&server);
                outage_failure(outage, self.context.clock.now(), in_doubt)
            }
            None if !server.has_answered() && !self.was_held => no_answer_in_time(self.context),
            None if server.without_expiry().is_some() => return Err(self.never_expires()),
            None => return Ok(None),
        };
        Err(self.error(match place.has_asked() {
            true => failure,
            // Another waiter of the line sent the request that failed. This waiter has sent none.
            false => Failure {
                outcome: Outcome::DidNotRun,
                ..failure
            },
        }))
    }

    /// Waits until this waiter may ask the server.
    async fn stand_down<A: Ask>(&self, asker: &A, place: &Place) {
        while let Some(until) = self.stand_down_until(asker, place) {
            let mut sleep = pin!(self.context.timers.sleep_until(until));
            // Check again with each poll: the time for which other processes ask first can end
            // early.
            poll_fn(
                |context| match self.stand_down_until(asker, place) == Some(until) {
                    true => sleep.as_mut().poll(context),
                    false => Poll::Ready(()),
                },
            )
            .await;
        }
    }

    fn stand_down_until<A: Ask>(&self, asker: &A, place: &Place) -> Option<Moment> {
        match asker.not_before()? {
            NotBefore::Others(until) => {
                // Waiters behind this one may have little time left, and only this one sends
                // requests.
                //
                // Never hold these two locks at the same time here: a waiter that takes a place
                // locks the line first, and then the view of the server.
                let answered = place.server_view().has_answered();
                let others = place.has_others();
                let ends = if answered {
                    until
                } else {
                    until + TIME_FOR_ANSWER
                };
                let stands_down = !self.deadline.is_before(ends) && (answered || !others);
                stands_down.then_some(until)
            }
            // A wait may report "held" only if a server has said so, and a waiter behind this one
            // may have little time left.
            NotBefore::Own(until) => place.server_view().has_answered().then_some(until),
        }
    }

    /// Waits as one of the readers that can hold the lock at the same time. Each reader asks the
    /// server at once. Of the readers that are refused, one becomes the leading reader: it keeps
    /// asking the server, and its grant makes the others ask again.
    async fn wait_as_reader<A: Ask>(
        &self,
        asker: &A,
        place: &Place,
        yields_for: Duration,
    ) -> Result<Option<A::Grant>> {
        let clock = self.context.clock;
        // A reader does not wait forever behind the writers of its process. The first of these
        // writers may itself wait for a long time, if another process writes all the time.
        tokio::select! {
            biased;
            () = place.until_admitted() => {}
            () = self.context.timers.sleep(yields_for) => place.pass_writers(),
        }
        while !place.is_head() {
            // Register before sending the request, or a grant between the two would be missed.
            let mut reader_granted = pin!(place.reader_granted().notified());
            reader_granted.as_mut().enable();
            let sent = self.context.clock.now();
            place.note_asked();
            match self.in_time(asker).await {
                Ok(Answer::Granted(granted)) => {
                    place.server_view().granted(sent);
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ttl }) => self.check_expiry(place, sent, ttl)?,
                Ok(Answer::Later { .. }) => {
                    place
                        .server_view()
                        .held(sent, clock.now(), Some(Duration::ZERO));
                }
                Err(failure) if failure.may_heal() => {
                    place.unanswered(sent, clock.now(), self.gap(), &failure);
                }
                Err(failure) => return Err(self.error(failure)),
            }
            tokio::select! {
                biased;
                () = place.until_head() => {}
                () = reader_granted => {}
            }
        }
        Ok(None)
    }

    /// Asks the server once, for `try_acquire`. Does not overtake the waiters of this process, as
    /// long as the server answers them.
    pub(crate) async fn once<A: Ask>(self, asker: &A) -> Result<Option<A::Grant>> {
        if self.context.locals.has_waiters(self.line_key, self.line) {
            self.observe(|span| span.note_wait(WaitReason::InLine));
            return Ok(None);
        }
        let sent = self.context.clock.now();
        let ttl = match self.in_time(asker).await {
            Ok(Answer::Granted(granted)) => return Ok(Some(granted)),
            Ok(Answer::Busy { ttl }) => ttl,
            Ok(Answer::Later { .. }) => Some(Duration::ZERO),
            Err(failure) => return Err(self.error(failure)),
        };
        let now = self.context.clock.now();
        self.context.locals.note_held(self.line_key, sent, now, ttl);
        match ttl {
            Some(_) => Ok(None),
            None => Err(self.never_expires()),
        }
    }

    /// Asks the server once. If the server refuses the request as too late, it reports its time,
    /// and one more request with that time is sent.
    async fn in_time<A: Ask>(&self, asker: &A) -> Result<Answer<A::Grant>, Failure> {
        for _ in 0..2 {
            match self.ask_observed(asker).await {
                Err(failure) if failure.cause == Cause::Late => {}
                result => return result,
            }
        }
        self.ask_observed(asker).await
    }

    async fn ask_observed<A: Ask>(&self, asker: &A) -> Result<Answer<A::Grant>, Failure> {
        self.observe(AcquireSpan::count_request);
        let answer = asker.ask().await;
        match &answer {
            Ok(Answer::Granted(_)) => {}
            Ok(_) => self.observe(|span| span.note_wait(WaitReason::Held)),
            Err(Failure {
                cause: Cause::Guarded { remaining: left },
                ..
            }) => {
                // The server grants the lock to no client for now, because an earlier holder may
                // still have it.
                self.observe(|span| span.note_wait(WaitReason::Held));
                return Ok(Answer::Busy { ttl: Some(*left) });
            }
            Err(failure) if failure.may_heal() && failure.cause != Cause::Late => {
                self.observe(|span| span.note_wait(WaitReason::NoAnswer));
            }
            Err(_) => {}
        }
        answer
    }

    /// Waits until another waiter or a holder of this process gives this waiter what it wants.
    async fn granted_locally<A: Ask>(&self, asker: &A) -> A::Grant {
        let granted = asker.granted_locally().await;
        self.observe(AcquireSpan::note_handed_over);
        granted
    }

    fn observe(&self, what: impl FnOnce(&AcquireSpan)) {
        if let Some(span) = self.span {
            what(span);
        }
    }

    fn error(&self, failure: Failure) -> Error {
        match self.line {
            // A waiter for a latch takes nothing, so it does not matter whether its request ran.
            LineMode::SingleFlight => failure.into_error_of_query(self.key),
            _ => failure.into_error(self.key),
        }
    }

    fn never_expires(&self) -> Error {
        never_expires(self.key, self.context.backend.address())
    }
}

/// Returns the failure of a wait that was shorter than the server's time to answer.
pub(crate) fn no_answer_in_time(context: &Context) -> Failure {
    let what = "no answer before the wait was over";
    let outcome = match context.backend.was_connected() {
        true => Outcome::MayHaveRun,
        // Without a connection no request was sent.
        false => Outcome::DidNotRun,
    };
    context
        .backend
        .failure(outcome, Cause::NoAnswer(what.into()))
}

/// Returns the error for a wait that has found a lock without expiry.
fn never_expires(key: &Key, address: &str) -> Error {
    Error::new(
        ErrorKind::WrongKind,
        format!(
            "the lock `{key}` at {address} has no expiry, so it never ends by itself; \
             find out who acquired it with `leasehold show NAME`, or end it for all with `force_unlock`"
        ),
    )
    .with_key(key)
}

/// Returns the failure of a wait that an outage has ended. The result of the last request does not
/// count alone: an earlier request of the same outage may have run.
fn outage_failure(outage: Outage, now: Moment, in_doubt: bool) -> Failure {
    let (failure, duration) = (outage.failure, now.saturating_sub(outage.since));
    let unanswered_for = format!("nothing answered for {duration:.1?}");
    match &failure.cause {
        Cause::NoAnswer(what) => Failure {
            cause: Cause::NoAnswer(format!("{what}; {unanswered_for}")),
            outcome: match in_doubt {
                true => Outcome::MayHaveRun,
                false => failure.outcome,
            },
            ..failure
        },
        cause if in_doubt => Failure {
            cause: Cause::NoAnswer(format!("the last attempt failed: {cause}")),
            outcome: Outcome::MayHaveRun,
            ..failure
        },
        _ => failure,
    }
}
