//! The sleep of one waiter. It ends with a wake-up that the waiter follows, or when the waiter must
//! ask the server anyway.

use std::time::Duration;

use futures_util::future::select_all;

use super::backoff::BackoffPauses;
use super::deadline::Deadline;
use super::throttle::WakeUpThrottle;
use super::{TIME_FOR_ANSWER, Wait};
use crate::backend::channels::{Listener, Signal};
use crate::clock::{Moment, Timers};
use crate::config::WaitStrategy;
use crate::local::line::LineMode;

/// The time between an expiry and the request of the waiter. The server reports whole milliseconds,
/// and the key must have expired when the request arrives.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// The longest poll interval of waiters whose channel the server denies.
const POLL_INTERVAL_WHEN_DENIED: Duration = Duration::from_secs(1);

/// The sleep of one waiter.
pub(super) struct Sleep<'a> {
    wait: &'a Wait<'a>,
    /// One listener for each channel of the wait, or none.
    pub(super) listeners: Vec<Listener>,
    pauses: Option<BackoffPauses>,
    failures: BackoffPauses,
    pub(super) throttle: WakeUpThrottle,
    /// The number of sleeps in a row that ended without a wake-up or a change.
    quiet_sleeps: u32,
    /// The number of clients before this one in the server's list of waiting clients. Releases
    /// notify these clients first. `None` if this client is not in the list.
    pub(super) clients_ahead: Option<u32>,
    /// The time of the last refusal.
    refused_at: Moment,
}

/// The time within which a notified client should acquire the lock. If there is no sign of that
/// client after this time, it may have disconnected, and the next client in the list of waiting
/// clients asks the server. The client after that waits for twice this time, and so on.
const TIME_TO_ASK: Duration = Duration::from_millis(5);
/// The limit of these doublings.
const MAX_DOUBLINGS: u32 = 9;
/// The number of clients at the head of the list that poll as often as a lone client. It is more
/// than one, because the first clients may have disconnected. The further back a client is, the
/// less often it polls, so a long list costs the server few more polls.
const POLL_FULLY: u32 = 4;
/// The factor by which a client far back in the list may lengthen its pause, if it must send
/// requests regularly to keep a reservation. The reservation outlasts the longer pause.
pub(crate) const LATE_POLL_FACTOR: u32 = 2;
/// The longest pause between two polls of a client in the list. The server forgets the list 2 s
/// later.
const LONGEST_POLL: Duration = Duration::from_secs(10);

impl<'a> Sleep<'a> {
    /// Creates the sleep of a waiter. `has_asked` means that the waiter has already sent a request,
    /// before it listened to any channel.
    pub(super) fn new(wait: &'a Wait<'a>, has_asked: bool) -> Self {
        let (listeners, pauses) = match &wait.settings.strategy {
            // A waiter for a latch subscribes only after the reply to its first request, and waits
            // until this subscription is confirmed. An earlier message must not open the latch for
            // this waiter.
            WaitStrategy::PubSub if wait.line == LineMode::SingleFlight => (Vec::new(), None),
            // This waiter begins to listen after the answer to its first request, and then asks
            // again.
            WaitStrategy::PubSub if has_asked => (Vec::new(), None),
            WaitStrategy::PubSub => {
                let channels = wait.channels.iter();
                // A channel that is live before the first request makes the second one unnecessary.
                // The waiter takes all channels or none, because `listen` adds nothing to existing
                // listeners.
                let live = channels.map(|(channels, name)| channels.listen_if_live(name));
                (live.collect::<Option<_>>().unwrap_or_default(), None)
            }
            WaitStrategy::Backoff(back_off) => {
                (Vec::new(), Some(BackoffPauses::new(back_off.clone())))
            }
        };
        Self {
            wait,
            listeners,
            pauses,
            failures: BackoffPauses::after_failures(),
            throttle: WakeUpThrottle::default(),
            quiet_sleeps: 0,
            clients_ahead: None,
            refused_at: wait.context.clock.now(),
        }
    }

    pub(super) fn marks(&self) -> Vec<Signal> {
        self.listeners.iter().map(Listener::signal).collect()
    }

    /// Starts to listen, if this waiter waits for messages and does not listen yet. Returns `true`
    /// if a channel is live at once.
    pub(super) fn listen(&mut self) -> bool {
        if self.pauses.is_some() || !self.listeners.is_empty() {
            return false;
        }
        let channels = self.wait.channels.iter();
        self.listeners = channels
            .map(|(channels, name)| match self.wait.line {
                LineMode::SingleFlight => channels.listen_from_now(name),
                _ => channels.listen(name),
            })
            .collect();
        self.marks().iter().any(|signal| signal.live)
    }

    /// Makes the next pauses short again, because a message may have been lost.
    pub(super) fn poll_often_again(&mut self) {
        self.quiet_sleeps = 0;
    }

    pub(super) fn after_busy(&mut self, ttl: Option<Duration>) -> Duration {
        self.failures.restart();
        self.refused_at = self.wait.context.clock.now();
        let pause = match &mut self.pauses {
            Some(pauses) => {
                let pause = pauses.next();
                self.max_pause().map_or(pause, |longest| pause.min(longest))
            }
            None => self.poll_pause().after(self.clients_ahead),
        };
        // The TTL alone is not enough: with a TTL of 0 the key is about to expire, and the waiter
        // would send requests at full speed until then.
        ttl.map_or(pause, |ttl| pause.min(ttl + AFTER_EXPIRY))
    }

    /// Returns the longest pause between two requests. If a waiter sends requests less often, the
    /// server regards it as dead, and drops its place or its reservation.
    fn max_pause(&self) -> Option<Duration> {
        match self.wait.line {
            LineMode::OnServer { ask_every } => Some(ask_every),
            _ => self.wait.settings.ask_every,
        }
    }

    /// Returns how often the waiter asks the server when no message arrives.
    fn poll_pause(&self) -> PollPause {
        let (listeners, settings) = (&self.listeners, self.wait.settings);
        let hears = !listeners.is_empty() && listeners.iter().all(|one| one.signal().live);
        let every = match hears {
            // The interval grows only while the server has confirmed the subscription, so that
            // messages arrive.
            true => settings.poll_interval_after(self.quiet_sleeps),
            false if listeners.iter().any(|one| one.signal().denied) => {
                settings.poll_interval().min(POLL_INTERVAL_WHEN_DENIED)
            }
            false => settings.poll_interval(),
        };
        let max_pause = self.max_pause();
        PollPause {
            every: max_pause.map_or(every, |longest| every.min(longest)),
            // An interval that the user has set is never lengthened.
            grows: hears && settings.poll_interval.is_none(),
            longest: max_pause.map_or(Duration::MAX, |longest| longest * LATE_POLL_FACTOR),
        }
    }

    pub(super) fn after_failure(&mut self) -> Duration {
        // The connection for messages may be dead, too.
        self.poll_often_again();
        self.failures.next()
    }

    /// Sleeps until `moment`, or until a channel's signal has changed since `marks` and the
    /// throttle lets the waiter follow that change. Returns `true` in the second case.
    pub(super) async fn until(&mut self, marks: &[Signal], moment: Moment) -> bool {
        let timers = &self.wait.context.timers;
        let not_before = self.throttle.not_before();
        let (polls, refused_at) = (self.poll_pause(), self.refused_at);
        let deadline = self.wait.deadline;
        // The wait for the clients that are notified first is limited, because they may have
        // disconnected.
        let ask_at = |clients_ahead: u32| {
            let (now, poll_at) = (timers.now(), refused_at + polls.after(Some(clients_ahead)));
            let over = now + TIME_TO_ASK * (1 << clients_ahead.min(MAX_DOUBLINGS));
            last_ask(deadline, now)
                .map_or(over, |last| last.min(over))
                .min(poll_at)
        };
        let (listeners, clients_ahead) = (&mut self.listeners, self.clients_ahead);
        let woken = async {
            match (&mut listeners[..], clients_ahead) {
                ([], _) => std::future::pending().await,
                ([listener], None) => listener.changed_since(mark_of(marks, 0)).await,
                ([listener, own @ ..], Some(clients_ahead)) => {
                    let own_time = after_earlier_clients(
                        listener,
                        mark_of(marks, 0),
                        clients_ahead,
                        timers,
                        ask_at,
                    );
                    tokio::select! {
                        biased;
                        () = any_moves(own, marks.get(1..).unwrap_or_default()) => {}
                        () = own_time => {}
                    }
                }
                (several, None) => any_moves(several, marks).await,
            }
            // The wake-up is postponed and not dropped, because it may be the one that matters.
            if let Some(not_before) = not_before {
                timers.sleep_until(not_before).await;
            }
        };
        let woken = tokio::select! {
            biased;
            () = woken => true,
            () = timers.sleep_until(moment) => false,
        };
        // A lost connection and a new subscription wake the waiter, too.
        self.quiet_sleeps = match woken {
            true => 0,
            false => self.quiet_sleeps.saturating_add(1),
        };
        woken
    }
}

/// Returns the signal that the `n`th channel had before the request. If there is none, the waiter
/// began to listen after its request. Then anything that the channel has ever received counts as a
/// change, even the confirmation of the subscription: the message of a release may have been
/// missed, and only a later request finds that release.
fn mark_of(marks: &[Signal], n: usize) -> Signal {
    marks.get(n).copied().unwrap_or_default()
}

async fn any_moves(listeners: &mut [Listener], marks: &[Signal]) {
    if listeners.is_empty() {
        return std::future::pending().await;
    }
    let moved = listeners
        .iter_mut()
        .enumerate()
        .map(|(n, listener)| Box::pin(listener.changed_since(mark_of(marks, n))));
    select_all(moved).await;
}

/// The pause after which a waiter asks the server although no message arrived.
#[derive(Clone, Copy)]
struct PollPause {
    every: Duration,
    /// Whether a client far back in the list may poll less often. It may do so only if, as far as
    /// it knows, messages reach it.
    grows: bool,
    /// The longest pause that keeps the waiter's reservation or place.
    longest: Duration,
}

impl PollPause {
    /// Returns the pause of a waiter whose client is notified after `clients_ahead` others.
    fn after(self, clients_ahead: Option<u32>) -> Duration {
        let Some(clients_ahead) = clients_ahead else {
            return self.every;
        };
        let times = if self.grows {
            1 + clients_ahead / POLL_FULLY
        } else {
            1
        };
        let pause = self.every.saturating_mul(times);
        pause.min(LONGEST_POLL).min(self.longest)
    }
}

/// Returns the time at which a waiter that has heard of a release sends the last request before its
/// deadline. The waiter's last answer is out of date, because it is from before the release.
/// Returns `None` for a waiter without a deadline.
fn last_ask(deadline: Deadline, now: Moment) -> Option<Moment> {
    let remaining = match deadline {
        Deadline::At(end) => end.saturating_sub(now),
        _ => return None,
    };
    // A waiter that has little time left sends the request in the middle of that time.
    Some(now + remaining.saturating_sub(TIME_FOR_ANSWER).max(remaining / 2))
}

/// Resolves when this client should ask the server, if `clients_ahead` other clients are notified
/// before it. The more of them have been notified, the sooner this client asks.
async fn after_earlier_clients(
    listener: &mut Listener,
    mark: Signal,
    clients_ahead: u32,
    timers: &Timers,
    ask_at: impl Fn(u32) -> Moment,
) {
    let mut seen = mark;
    loop {
        let signal = listener.signal();
        if signal.count() != mark.count() {
            return;
        }
        let passed = signal.others_notified - mark.others_notified;
        let first = async {
            match u32::try_from(passed) {
                Ok(0) => std::future::pending().await,
                passed => {
                    let clients_ahead = clients_ahead.saturating_sub(passed.unwrap_or(u32::MAX));
                    timers.sleep_until(ask_at(clients_ahead)).await;
                }
            }
        };
        tokio::select! {
            biased;
            // Each release shows that a client had the lock, so the waiting time starts again.
            () = listener.changed_since(seen) => seen = listener.signal(),
            () = first => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn clients_poll_less_often_the_later_they_are_called() {
        let polls = PollPause {
            every: SECOND,
            grows: true,
            longest: Duration::MAX,
        };
        let after = |clients_ahead| polls.after(Some(clients_ahead)).as_secs();
        assert_eq!([0, 3, 4, 11, 36, 1000].map(after), [1, 1, 2, 3, 10, 10]);
        assert_eq!(polls.after(None), SECOND, "one that is not called");
        let deaf = PollPause {
            grows: false,
            ..polls
        };
        assert_eq!(deaf.after(Some(1000)), SECOND);
        // A thousand clients in total poll no more often than 111 lone clients would.
        let each =
            (0..1000).map(|clients_ahead| 1.0 / polls.after(Some(clients_ahead)).as_secs_f64());
        assert!(each.sum::<f64>() < 111.0);
    }

    /// Checks that the pauses are short enough for the server to remember the client.
    #[test]
    fn client_that_is_called_keeps_its_place_and_its_mark() {
        for grows in [true, false] {
            let seldom = PollPause {
                every: SECOND * 60,
                grows,
                longest: Duration::MAX,
            };
            assert_eq!(seldom.after(Some(1000)), LONGEST_POLL);
            assert_eq!(seldom.after(None), SECOND * 60, "it has no place");
            let marks = PollPause {
                every: SECOND,
                longest: SECOND * 2,
                ..seldom
            };
            assert!(marks.after(Some(1000)) <= SECOND * 2);
        }
    }

    #[test]
    fn last_ask_comes_before_the_end() {
        let now = Moment::from_millis(1000);
        let last = |ms: u64| {
            let end = Moment::from_millis(1000 + ms);
            let last = last_ask(Deadline::At(end), now).expect("it has a limit");
            last.saturating_sub(now).as_millis()
        };
        assert_eq!([0, 40, 150, 1000].map(last), [0, 20, 75, 900]);
        assert_eq!(last_ask(Deadline::Never, now), None);
    }
}
