//! The observation of an election: its current leader, and then each change.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use futures_util::future::select_all;
use futures_util::{Stream, StreamExt, stream};

use super::leader::{Leader, Seen};
use super::{Election, steps};
use crate::backend::channels::{Listener, Signal};
use crate::clock::Moment;
use crate::error::Result;

/// The shortest pause between two requests. It limits the number of requests while a lease is
/// ending, and while messages flood the channels, on which anyone can publish.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// The time by which two clocks can drift apart during one lease.
const CLOCK_DRIFT: Duration = Duration::from_millis(50);

/// The terms of an election as an observer sees them: see [`Election::observe`].
///
/// It is a stream of `Option<Leader>`, where `None` means that there is no leader. With
/// [`next`](Self::next), you can read it without the `Stream` trait.
#[must_use = "no request is sent until the terms are read"]
pub struct Terms {
    walk: Pin<Box<dyn Stream<Item = Result<Option<Leader>>> + Send>>,
}

impl Terms {
    pub(super) fn of(election: &Election) -> Self {
        let observer = Observer::new(election.clone());
        let walk = stream::unfold(observer, async |mut observer| {
            let next = observer.next().await?;
            Some((next, observer))
        });
        Self {
            walk: Box::pin(walk),
        }
    }

    /// Returns the current leader at first, and then each change: a new leader, or `None` if there
    /// is no leader. A state that ended before it was read is left out. `None` outside of the
    /// `Result` means that the client has been closed.
    ///
    /// # Errors
    ///
    /// Same as [`Election::leader`]. `Unavailable` only after no server has answered for the
    /// [`outage_timeout`](Election::outage_timeout). The next call continues after an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues at the same place.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        StreamExt::next(self).await
    }
}

impl Stream for Terms {
    type Item = Result<Option<Leader>>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Self::Item>> {
        self.walk.as_mut().poll_next(task)
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").finish_non_exhaustive()
    }
}

/// The state of one observer.
struct Observer {
    election: Election,
    /// One listener for the changes of the leader, and one for the releases of the lock, which Java
    /// also publishes. Empty before the first request.
    listeners: Vec<Listener>,
    /// The state that was returned last.
    shown: Option<Seen>,
    /// The greatest token that was returned.
    greatest_token: u64,
    /// A leader whose token is smaller than `greatest_token`, and the latest time at which its
    /// lease ends if it is not renewed.
    former: Option<(u64, Moment)>,
    /// The last request.
    asked: Option<Asked>,
    /// The time of the first unanswered request since the last answer.
    failing_since: Option<Moment>,
}

/// A request of an observer.
struct Asked {
    /// The listeners' signals, as read before the request was sent.
    signals: Vec<Signal>,
    sent: Moment,
    /// The time of the next request, if no new signal arrives earlier.
    next: Moment,
}

impl Observer {
    fn new(election: Election) -> Self {
        Self {
            election,
            listeners: Vec::new(),
            shown: None,
            greatest_token: 0,
            former: None,
            asked: None,
            failing_since: None,
        }
    }

    async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        loop {
            self.sleep().await;
            if self.election.context().is_closed() {
                return None;
            }
            match self.ask().await {
                Ok(seen) if self.is_news(&seen) => return Some(Ok(self.show(seen).await)),
                Ok(_) => {}
                Err(error) if error.is_transient() && !self.has_failed_for_long() => {}
                Err(error) => {
                    self.failing_since = None;
                    return Some(Err(error));
                }
            }
        }
    }

    /// Sleeps until a message arrives or the next request is due.
    async fn sleep(&mut self) {
        let Some(Asked {
            signals,
            sent,
            next,
        }) = &self.asked
        else {
            return;
        };
        let timers = &self.election.context().timers;
        let waits = self.listeners.iter_mut().zip(signals);
        let woken =
            select_all(waits.map(|(listener, signal)| Box::pin(listener.changed_since(*signal))));
        tokio::select! {
            _ = woken => {}
            () = timers.sleep_until(*next) => {}
        }
        timers.sleep_until(*sent + SHORTEST_PAUSE).await;
    }

    /// Requests the leader once.
    async fn ask(&mut self) -> Result<Seen> {
        self.election.check()?;
        let key = self.election.key()?;
        let context = self.election.context();
        if self.listeners.is_empty() {
            // Subscribe before the first request, so that no later change is missed.
            let channels = context.backend.channels();
            let names = [steps::terms_channel(key), key.lock_channel()];
            self.listeners = names.iter().map(|name| channels.listen(name)).collect();
        }
        let sent = context.clock.now();
        let signals = self.listeners.iter().map(Listener::signal).collect();
        let poll = self.election.poll;
        // Set the due time before the reply arrives: if the request fails, the next one is due
        // after a poll interval.
        self.asked = Some(Asked {
            signals,
            sent,
            next: sent + poll,
        });
        let seen = self.election.see().await;
        match &seen {
            Ok(seen) => {
                self.failing_since = None;
                // No message says that a lease has ended.
                let pause = seen.ttl.map_or(poll, |ttl| poll.min(ttl));
                let due = self.election.context().clock.now() + pause.max(SHORTEST_PAUSE);
                if let Some(asked) = &mut self.asked {
                    asked.next = due.min(sent + poll.max(SHORTEST_PAUSE));
                }
            }
            Err(_) => {
                self.failing_since.get_or_insert(sent);
            }
        }
        seen.map(|seen| match self.is_former(&seen, sent) {
            true => Seen::no_leader(),
            false => seen,
        })
    }

    /// Returns whether the server shows a leader of an earlier term, as after a failover to a
    /// replica that has missed the last term. That leader has resigned or will learn that its term
    /// is lost, so its term is not renewed. If the term is renewed, the server has lost its data,
    /// and tokens have started again.
    fn is_former(&mut self, seen: &Seen, sent: Moment) -> bool {
        let is_shown = (self.shown.as_ref()).is_some_and(|shown| shown.is_same_term(seen));
        let token = seen
            .token()
            .filter(|token| *token <= self.greatest_token && !is_shown);
        let Some((token, ttl)) = token.zip(seen.ttl) else {
            self.former = None;
            return false;
        };
        let now = self.election.context().clock.now();
        let (first, ends) = *self.former.get_or_insert((token, now + ttl));
        if first != token {
            self.former = Some((token, now + ttl));
            return true;
        }
        let is_renewed = sent + ttl > ends + CLOCK_DRIFT;
        if is_renewed {
            self.former = None;
            self.greatest_token = 0;
        }
        !is_renewed
    }

    fn is_news(&self, seen: &Seen) -> bool {
        self.shown
            .as_ref()
            .is_none_or(|shown| !shown.is_same_term(seen))
    }

    /// Returns the leader that was seen, with what its client announces.
    async fn show(&mut self, seen: Seen) -> Option<Leader> {
        let leader = seen.clone().describe(self.election.context()).await;
        // Note the returned leader last: if this future is dropped earlier, the next call returns
        // the same leader.
        self.greatest_token = self.greatest_token.max(seen.token().unwrap_or(0));
        self.shown = Some(seen);
        leader
    }

    fn has_failed_for_long(&self) -> bool {
        let now = self.election.context().clock.now();
        self.failing_since
            .is_some_and(|since| now >= since + self.election.outage_timeout)
    }
}
