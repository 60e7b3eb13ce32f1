//! Readers of one process that share a hold. One reader asks the server, and readers that arrive
//! within a slice after the grant enter its hold. So a lock that is mostly read costs one request
//! per slice, not one per read.
//!
//! Each reader has its own share, and its release waits for the server's answer like any other
//! release (`hold/confirm.rs`). The last reader releases the hold. The hold is not kept for readers
//! that may arrive later. But a quick holder must not release it before the readers that waited for
//! its answer have entered: an extra share keeps it for them until then ([`Grace`]). A hold takes
//! at most [`MAX_READERS`] readers. Thousands of readers make several requests at the same time,
//! and each reader is woken by the answer to one of these requests.
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

/// The largest number of readers that share one hold. It is limited because many operations on one
/// guard go through all guards of its hold.
const MAX_READERS: u32 = 128;

/// The longest time for which a reader waits for another reader's request, because that reader's
/// future might not be polled. For the same reason, a hold is kept only this long for the readers
/// that waited for its answer.
const MAX_UNPOLLED: Duration = Duration::from_millis(10);

/// The holds that readers share under one name.
#[derive(Default)]
pub(crate) struct SharedHold(Mutex<SharedHoldState>);

#[derive(Default)]
struct SharedHoldState {
    /// The request that was granted last.
    open: Option<Arc<SharedRequest>>,
    /// The request that was sent last.
    in_flight: Option<Arc<SharedRequest>>,
    /// The number of requests that were ever sent.
    sent: u64,
}

/// A request by one reader, for itself and for the readers that wait for its answer. Its state is
/// locked after [`SharedHold`].
struct SharedRequest {
    number: u64,
    state: Mutex<SharedRequestState>,
    /// Notified when the request was answered or given up.
    answered: Notify,
}

#[derive(Default)]
struct SharedRequestState {
    answer: Option<SharedAnswer>,
    /// The number of readers that wait for the answer, or have not taken it yet.
    followers: u32,
    /// The share that keeps the hold for these readers.
    grace: Option<Grace>,
}

enum SharedAnswer {
    Granted(OpenHold),
    /// Another client has the lock, for this duration.
    Refused(Option<Duration>),
    /// The reader that asked has left.
    GivenUp,
}

/// A share in a hold. Dropping this value ends the share.
pub(crate) type Grace = Box<dyn Any + Send + Sync>;

/// A hold that readers may enter.
struct OpenHold {
    held: Weak<Held>,
    until: Moment,
    /// The number of readers that have entered. Readers that waited for the answer count from the
    /// start.
    entered: u32,
}

/// The requests by other readers for which a reader does not wait.
#[derive(Clone, Copy)]
enum Skipped {
    One(u64),
    All,
}

/// The result of a reader's attempt to enter.
pub(crate) enum Join<'a> {
    Entered(Arc<Held>, Joined),
    /// The server refused a request that was sent after this reader's arrival: another client has
    /// the lock, for this duration.
    Refused(Option<Duration>),
    /// The reader must ask the server, for itself and for the readers that wait for its answer.
    Ask(InFlight<'a>),
}

impl Record {
    /// Enters a hold that is open to readers, or returns the refusal of a request that another
    /// reader sends from now on. Otherwise this reader must ask the server. If this reader has no
    /// time to wait for another reader's request, it asks at once.
    pub(crate) async fn join_shared_hold(
        &self,
        terms: Terms,
        has_time: bool,
        timers: &Timers,
    ) -> Join<'_> {
        // The refusal of an earlier request does not count: the lock may have been released since
        // then.
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

    /// Enters the open hold, or starts a request. If a request is in flight that has room and is
    /// not `skipped`, returns a follower of that request as the error.
    fn try_join(
        &self,
        terms: Terms,
        skipped: Option<Skipped>,
        now: Moment,
    ) -> Result<Join<'_>, Follower> {
        // Declare `_ended` before the lock guard, so that it is dropped after unlocking: it may be
        // the last reference to a hold.
        let mut _ended = None;
        let mut state = self.shared_hold.0.lock();
        if let Some(open) = &state.open {
            match open.enter(terms, now) {
                Ok((held, joined)) => return Ok(Join::Entered(held, joined)),
                Err(ended) => _ended = ended,
            }
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
    /// Enters the request's hold, for a reader that has not waited for it. See [`OpenHold::join`].
    fn enter(&self, terms: Terms, now: Moment) -> Result<(Arc<Held>, Joined), Option<Arc<Held>>> {
        let mut request_state = self.state.lock();
        let Some(SharedAnswer::Granted(open)) = &mut request_state.answer else {
            return Err(None);
        };
        if open.entered >= MAX_READERS {
            return Err(None);
        }
        let entered = open.join(terms, now)?;
        open.entered += 1;
        Ok(entered)
    }

    fn is_answered(&self) -> bool {
        self.state.lock().answer.is_some()
    }
}

/// A reader that waits for the answer to another reader's request, until it has entered.
struct Follower(Arc<SharedRequest>);

impl Follower {
    /// Adds a reader that waits for the answer. Returns `None` if the answer has arrived, or the
    /// hold has no room for another reader.
    fn of(request: &Arc<SharedRequest>) -> Option<Self> {
        let mut request_state = request.state.lock();
        // One place belongs to the reader that asks the server.
        if request_state.answer.is_some() || request_state.followers + 1 >= MAX_READERS {
            return None;
        }
        request_state.followers += 1;
        drop(request_state);
        Some(Self(Arc::clone(request)))
    }

    /// Waits for the answer. Returns `false` if the answer is late: the reader that asked may not
    /// be polled.
    async fn answered(&self, timers: &Timers) -> bool {
        let mut answered = pin!(self.0.answered.notified());
        // Register before the check. Otherwise an answer between the two would be missed.
        answered.as_mut().enable();
        self.0.is_answered() || timers.timeout(MAX_UNPOLLED, answered).await.is_some()
    }

    /// Returns the answer for a reader that has waited for it, or `None` if the reader must try
    /// again.
    fn take(&self, terms: Terms, now: Moment) -> Option<Join<'static>> {
        // Declare `_ended` before the lock guard, as in `Record::try_join`.
        let _ended;
        let request_state = self.0.state.lock();
        match request_state.answer.as_ref()? {
            SharedAnswer::Granted(open) => match open.join(terms, now) {
                Ok((held, joined)) => Some(Join::Entered(held, joined)),
                Err(ended) => {
                    _ended = ended;
                    None
                }
            },
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
        // The share is dropped after unlocking, because it may release the hold.
        drop(request_state);
        drop(grace);
    }
}

impl OpenHold {
    /// Adds a reader to the hold. If the reader can't enter, returns the hold as the error. The
    /// caller must drop it after unlocking, because the other readers may have left in the
    /// meantime.
    fn join(&self, terms: Terms, now: Moment) -> Result<(Arc<Held>, Joined), Option<Arc<Held>>> {
        if now > self.until {
            return Err(None);
        }
        let held = self.held.upgrade().ok_or(None)?;
        match held.hold().share(terms) {
            Some(joined) => Ok((held, joined)),
            None => Err(Some(held)),
        }
    }
}

/// A reader that asks the server. If it is dropped without an answer, another reader sends the next
/// request.
pub(crate) struct InFlight<'a> {
    shared_hold: &'a SharedHold,
    request: Arc<SharedRequest>,
}

/// The time for which a hold is kept for the readers that waited for its answer.
pub(crate) struct GracePeriod(Arc<SharedRequest>);

impl InFlight<'_> {
    /// Notes that the server has granted the request, so that other readers may enter the hold
    /// until `until`. If readers wait for the answer, a share from `grace` keeps the hold for them,
    /// and the caller must run [`GracePeriod::end`].
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

    /// Notes a refusal: another client has the lock, for this duration.
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
    /// Waits a short time, then ends the share that keeps the hold: a reader for which it is kept
    /// may not be polled.
    pub(crate) async fn end(self) {
        tokio::time::sleep(MAX_UNPOLLED).await;
        let grace = self.0.state.lock().grace.take();
        drop(grace);
    }
}
