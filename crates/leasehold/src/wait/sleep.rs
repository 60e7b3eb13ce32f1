//! How one waiter sleeps: until a wake-up that it follows, or until it has to ask anyway.

use std::time::Duration;

use futures_util::future::select_all;

use super::Wait;
use super::backoff::Pauses;
use super::throttle::WakeUpThrottle;
use crate::backend::channels::{Listener, Signal};
use crate::clock::{Moment, Timers};
use crate::config::WaitStrategy;
use crate::local::line::Line;

/// How long after an expiry the waiter asks: the server tells whole milliseconds, and the key
/// has to be gone when the request arrives.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// Where the server denies the channel, its waiters poll this often at least.
const POLL_INTERVAL_WHEN_DENIED: Duration = Duration::from_secs(1);

/// How one waiter sleeps.
pub(super) struct Sleep<'a> {
    wait: &'a Wait<'a>,
    /// One for each channel of the wait, or none.
    pub(super) listeners: Vec<Listener>,
    pauses: Option<Pauses>,
    failures: Pauses,
    pub(super) throttle: WakeUpThrottle,
    /// How many times in a row it has slept to the end, and found nothing changed.
    quiet: u32,
    /// How many other clients are called before this one, if it is called.
    pub(super) before: Option<u32>,
}

/// After a release that has called another client, the one behind that asks when this time is over
/// and nothing more has come; the next one in twice that time, and so on. Whoever was called may be
/// gone.
const TIME_TO_ASK: Duration = Duration::from_millis(5);
/// No further than this: a poll interval is no longer as a rule.
const MOST_DOUBLINGS: u32 = 9;

impl<'a> Sleep<'a> {
    /// `has_asked`: a request has left before, and no message since then is marked.
    pub(super) fn new(wait: &'a Wait<'a>, has_asked: bool) -> Self {
        let (listeners, pauses) = match &wait.settings.strategy {
            // A waiter for a latch listens from its first answer on, behind a confirmation of
            // its own: a message from before must not open the latch for it.
            WaitStrategy::PubSub if wait.line == Line::AllAsk => (Vec::new(), None),
            // It begins to listen behind the answer, and asks again then.
            WaitStrategy::PubSub if has_asked => (Vec::new(), None),
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
            quiet: 0,
            before: None,
        }
    }

    pub(super) fn marks(&self) -> Vec<Signal> {
        self.listeners.iter().map(Listener::mark).collect()
    }

    /// Starts to listen, if this waiter waits for messages and does not listen yet.
    /// `true` when a channel is live at once.
    pub(super) fn listen(&mut self) -> bool {
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

    /// A message may have been lost: the next pauses are short again.
    pub(super) fn polls_anew(&mut self) {
        self.quiet = 0;
    }

    /// How long it sleeps unless a message wakes it.
    fn poll_pause(&self) -> Duration {
        let (marks, settings) = (self.marks(), self.wait.settings);
        if marks.iter().any(|signal| signal.denied) {
            return settings.poll_interval().min(POLL_INTERVAL_WHEN_DENIED);
        }
        // Longer and longer only while the server has confirmed that it sends the messages.
        match !marks.is_empty() && marks.iter().all(|signal| signal.live) {
            true => settings.poll_interval_after(self.quiet),
            false => settings.poll_interval(),
        }
    }

    pub(super) fn after_busy(&mut self, ttl: Option<Duration>) -> Duration {
        self.failures.restart();
        let pause = match &mut self.pauses {
            Some(pauses) => pauses.next(),
            None => self.poll_pause(),
        };
        let ask_every = match self.wait.line {
            Line::OnServer { ask_every } => Some(ask_every),
            _ => self.wait.settings.ask_every,
        };
        // The server takes a waiter that asks less often for dead, and its place or its mark is gone.
        let pause = ask_every.map_or(pause, |most| pause.min(most));
        // Not the TTL alone: with one of 0 a key is about to end, and the waiter would ask at
        // full speed until it has.
        ttl.map_or(pause, |ttl| pause.min(ttl + AFTER_EXPIRY))
    }

    pub(super) fn after_failure(&mut self) -> Duration {
        // The connection for messages may be as dead.
        self.polls_anew();
        self.failures.next()
    }

    /// Sleeps until `moment`, or until a channel has moved since `marks` and the throttle lets
    /// the waiter follow that: then it returns `true`.
    pub(super) async fn until(&mut self, marks: &[Signal], moment: Moment) -> bool {
        let timers = &self.wait.context.timers;
        let not_before = self.throttle.not_before();
        let (listeners, before) = (&mut self.listeners, self.before);
        let woken = async {
            match &mut listeners[..] {
                [] => std::future::pending().await,
                // Without a mark, listening began after the ask. Then whatever the channel has
                // ever brought counts, and so does the confirmation of the subscription: only
                // an ask behind that finds a release that nobody heard.
                [listener] => {
                    let mark = marks.first().copied().unwrap_or_default();
                    match before {
                        Some(before) => its_turn(listener, mark, before, timers).await,
                        None => listener.moved_since(mark).await,
                    }
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
                timers.sleep_until(not_before).await;
            }
        };
        let woken = tokio::select! {
            biased;
            () = woken => true,
            () = timers.sleep_until(moment) => false,
        };
        // A lost connection and a new subscription wake it as well.
        self.quiet = match woken {
            true => 0,
            false => self.quiet.saturating_add(1),
        };
        woken
    }
}

/// Resolves when a client asks that is called by its number, and before which so many are called.
async fn its_turn(listener: &mut Listener, mark: Signal, before: u32, timers: &Timers) {
    let mut seen = mark;
    loop {
        let signal = listener.mark();
        if signal.count() != mark.count() {
            return;
        }
        let passed = signal.passed - mark.passed;
        let first = async {
            match u32::try_from(passed) {
                Ok(0) => std::future::pending().await,
                passed => {
                    let before = before.saturating_sub(passed.unwrap_or(u32::MAX));
                    let times = 1 << before.min(MOST_DOUBLINGS);
                    timers.sleep(TIME_TO_ASK * times).await;
                }
            }
        };
        tokio::select! {
            biased;
            // Each release shows that somebody had the lock: then the time begins anew.
            () = listener.moved_since(seen) => seen = listener.mark(),
            () = first => return,
        }
    }
}
