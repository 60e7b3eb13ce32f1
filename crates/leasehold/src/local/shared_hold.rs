//! Readers of one process that share a hold. One reader asks the server, and readers that arrive
//! before its hold is a turn old enter the hold. So a lock that is mostly read costs one request a
//! turn, not one a read.
//!
//! Each reader has its own share, and its release waits for the server's answer like any other
//! release (`hold/confirm.rs`). The last reader gives the hold back. The hold is not kept for readers
//! that may arrive. But a quick holder must not give it back before the readers that waited for its
//! answer have entered: a share for them keeps it until then ([`Grace`]). A hold takes no more
//! than [`MAX_READERS`] readers, so each request has a crowd of its own. Thousands of readers make several
//! requests at the same time, and each reader is woken by the answer to one of them.
//!
//! A reader behind a writer of its process does not get here: its line keeps it back (`line.rs`).

use std::any::Any;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::Record;
use super::reentry::Held;
use crate::clock::{Moment, Timers};
use crate::config::Terms;
use crate::hold::Joined;
use crate::sync::Mutex;

/// Largest number of readers that share one hold. Work that a hold does for one guard looks at all
/// of its guards.
const MAX_READERS: u32 = 128;

/// The time for which a reader waits for the answer to another reader's request, which may not be
/// polled. A hold is kept for the same time for the readers that waited for its answer.
const MAX_UNPOLLED: Duration = Duration::from_millis(10);

/// The readers of one name.
#[derive(Default)]
pub(crate) struct SharedHold(Mutex<SharedHoldState>);

#[derive(Default)]
struct SharedHoldState {
    /// The request that was granted last.
    open: Option<Arc<SharedRequest>>,
    /// The request that left last.
    in_flight: Option<Arc<SharedRequest>>,
    /// Number of requests that have ever left.
    sent: u64,
}

/// A request of one reader, for itself and for the readers that wait for its answer. Locked after
/// the crowd.
struct SharedRequest {
    number: u64,
    state: Mutex<SharedRequestState>,
    /// Notified when the request was answered or given up.
    answered: Notify,
}

#[derive(Default)]
struct SharedRequestState {
    answer: Option<SharedAnswer>,
    /// Number of readers that wait for the answer, or have not taken it yet.
    followers: u32,
    /// The share that keeps the hold for these readers.
    grace: Option<Grace>,
}

enum SharedAnswer {
    Granted(OpenHold),
    /// Others have the lock, for this duration.
    Refused(Option<Duration>),
    /// The reader that asked has left.
    GivenUp,
}

/// A share in a hold. The share ends when this is dropped.
pub(crate) type Grace = Box<dyn Any + Send + Sync>;

/// A hold that readers may enter.
struct OpenHold {
    held: Weak<Held>,
    until: Moment,
    /// Number of readers that have entered. Readers that waited for the answer count from the
    /// start.
    entered: u32,
}

/// The requests of other readers that a reader does not wait for.
#[derive(Clone, Copy)]
enum Skipped {
    One(u64),
    All,
}

/// The result of a reader's attempt to enter.
pub(crate) enum Join<'a> {
    Entered(Arc<Held>, Joined),
    /// A request that left after this reader's arrival was refused: others have the lock, for this
    /// duration.
    Refused(Option<Duration>),
    /// The reader must ask for all.
    Ask(InFlight<'a>),
}

impl Record {
    /// Enters an open hold, or gets the answer to a request that leaves from now on. A reader that
    /// has no time to wait for another reader's request asks at once.
    pub(crate) async fn join_shared_hold(
        &self,
        terms: Terms,
        has_time: bool,
        timers: &Timers,
    ) -> Join<'_> {
        // An earlier request may have been answered before the reader began to listen.
        let first = self.shared_hold.0.lock().sent + 1;
        let mut skipped = (!has_time).then_some(Skipped::All);
        loop {
            let follower = match self.try_join(terms, skipped, timers.now()) {
                Ok(outcome) => return outcome,
                Err(follower) => follower,
            };
            let in_time = follower.answered(timers).await;
            match follower.take(terms, timers.now()) {
                Some(Join::Refused(_)) if follower.0.number < first => {}
                Some(outcome) => return outcome,
                None => {}
            }
            skipped = (!in_time).then_some(Skipped::One(follower.0.number));
        }
    }

    /// Enters the open hold, or starts a request. The error is a place among the readers that wait
    /// for the request on its way, unless that request is `skipped` or full.
    fn try_join(
        &self,
        terms: Terms,
        skipped: Option<Skipped>,
        now: Moment,
    ) -> Result<Join<'_>, Follower> {
        let mut state = self.shared_hold.0.lock();
        if let Some(open) = &state.open
            && let Some((held, joined)) = open.enter(terms, now)
        {
            return Ok(Join::Entered(held, joined));
        }
        let is_awaited = |in_flight: &&Arc<SharedRequest>| match skipped {
            None => true,
            Some(Skipped::One(skipped)) => skipped != in_flight.number,
            Some(Skipped::All) => false,
        };
        if let Some(follower) = state
            .in_flight
            .as_ref()
            .filter(is_awaited)
            .and_then(Follower::of)
        {
            return Err(follower);
        }
        state.sent += 1;
        let request = Arc::new(SharedRequest {
            number: state.sent,
            state: Mutex::default(),
            answered: Notify::new(),
        });
        state.in_flight = Some(Arc::clone(&request));
        Ok(Join::Ask(InFlight {
            shared_hold: &self.shared_hold,
            request,
        }))
    }
}

impl SharedRequest {
    /// Enters the request's hold, for a reader that has not waited for it.
    fn enter(&self, terms: Terms, now: Moment) -> Option<(Arc<Held>, Joined)> {
        let mut request_state = self.state.lock();
        let Some(SharedAnswer::Granted(open)) = &mut request_state.answer else {
            return None;
        };
        if open.entered >= MAX_READERS {
            return None;
        }
        let entered = open.join(terms, now)?;
        open.entered += 1;
        Some(entered)
    }

    fn is_answered(&self) -> bool {
        self.state.lock().answer.is_some()
    }
}

/// A reader that waits for the answer to another reader's request, until it has entered.
struct Follower(Arc<SharedRequest>);

impl Follower {
    /// Returns `None` if the answer has arrived, or the hold has no room for another reader.
    fn of(request: &Arc<SharedRequest>) -> Option<Self> {
        let mut request_state = request.state.lock();
        // One place belongs to the reader that asks.
        if request_state.answer.is_some() || request_state.followers + 1 >= MAX_READERS {
            return None;
        }
        request_state.followers += 1;
        drop(request_state);
        Some(Self(Arc::clone(request)))
    }

    /// Waits for the answer. Returns `false` if the answer does not arrive in time: the reader that
    /// asked may not be polled.
    async fn answered(&self, timers: &Timers) -> bool {
        let mut answered = pin!(self.0.answered.notified());
        // Registered before the check, or an answer between the two would be missed.
        answered.as_mut().enable();
        self.0.is_answered() || timers.timeout(MAX_UNPOLLED, answered).await.is_some()
    }

    /// Returns the answer for a reader that has waited for it; `None` if the reader must look
    /// again.
    fn take(&self, terms: Terms, now: Moment) -> Option<Join<'static>> {
        let request_state = self.0.state.lock();
        match request_state.answer.as_ref()? {
            SharedAnswer::Granted(open) => {
                let (held, joined) = open.join(terms, now)?;
                Some(Join::Entered(held, joined))
            }
            SharedAnswer::Refused(remaining) => Some(Join::Refused(*remaining)),
            SharedAnswer::GivenUp => None,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut request_state = self.0.state.lock();
        request_state.followers -= 1;
        let grace = match request_state.followers {
            0 => request_state.grace.take(),
            _ => None,
        };
        // A share is dropped with nothing locked.
        drop(request_state);
        drop(grace);
    }
}

impl OpenHold {
    fn join(&self, terms: Terms, now: Moment) -> Option<(Arc<Held>, Joined)> {
        if now > self.until {
            return None;
        }
        let held = self.held.upgrade()?;
        let joined = held.hold().share(terms)?;
        Some((held, joined))
    }
}

/// A reader that asks. If it is dropped without an answer, it leaves the next request to another
/// reader.
pub(crate) struct InFlight<'a> {
    shared_hold: &'a SharedHold,
    request: Arc<SharedRequest>,
}

/// A hold that is kept for the readers that waited for its answer.
pub(crate) struct GracePeriod(Arc<SharedRequest>);

impl InFlight<'_> {
    /// Notes that the server has granted the request: other readers may enter the hold until
    /// `until`. If readers wait for that, a share from `grace` keeps the hold for them, and the
    /// caller must end that ([`GracePeriod`]).
    pub(crate) fn publish(
        self,
        held: &Arc<Held>,
        until: Moment,
        grace: impl FnOnce() -> Option<Grace>,
    ) -> Option<GracePeriod> {
        let mut state = self.shared_hold.0.lock();
        let mut request_state = self.request.state.lock();
        request_state.answer = Some(SharedAnswer::Granted(OpenHold {
            held: Arc::downgrade(held),
            until,
            entered: 1 + request_state.followers,
        }));
        request_state.grace = (request_state.followers > 0).then(grace).flatten();
        let has_grace = request_state.grace.is_some();
        drop(request_state);
        let before = state.open.replace(Arc::clone(&self.request));
        drop(state);
        drop(before);
        has_grace.then(|| GracePeriod(Arc::clone(&self.request)))
    }

    /// Notes a refusal: others have the lock, for this duration.
    pub(crate) fn refused(self, remaining: Option<Duration>) {
        self.request.state.lock().answer = Some(SharedAnswer::Refused(remaining));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut request_state = self.request.state.lock();
        request_state.answer.get_or_insert(SharedAnswer::GivenUp);
        drop(request_state);
        self.request.answered.notify_waiters();
    }
}

impl GracePeriod {
    /// Waits a short time, then ends the share that keeps the hold: some of the readers for which
    /// it is kept may not be polled.
    pub(crate) async fn end(self) {
        tokio::time::sleep(MAX_UNPOLLED).await;
        let grace = self.0.state.lock().grace.take();
        drop(grace);
    }
}
