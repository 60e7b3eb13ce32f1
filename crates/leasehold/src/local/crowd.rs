//! Readers of one process that share a hold. One reader asks the server, and readers that arrive
//! before its hold is a turn old enter the hold. So a lock that is mostly read costs one request a
//! turn, not one a read.
//!
//! Each reader has its own share, and its release waits for the server's answer like any other
//! release (`hold/acks.rs`). The last reader gives the hold back. The hold is not kept for readers
//! that may arrive. But a quick holder must not give it back before the readers that waited for its
//! answer have entered: a share for them keeps it until then ([`Keeper`]). A hold takes no more
//! than [`MOST`] readers, so each request has a crowd of its own. Thousands of readers make several
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
const MOST: u32 = 128;

/// The time for which a reader waits for the answer to another reader's request, which may not be
/// polled. A hold is kept for the same time for the readers that waited for its answer.
const UNPOLLED: Duration = Duration::from_millis(10);

/// The readers of one name.
#[derive(Default)]
pub(crate) struct Crowd(Mutex<State>);

#[derive(Default)]
struct State {
    /// The request that was granted last.
    open: Option<Arc<Request>>,
    /// The request that left last.
    asking: Option<Arc<Request>>,
    /// Number of requests that have ever left.
    asked: u64,
}

/// A request of one reader, for itself and for the readers that wait for its answer. Locked after
/// the crowd.
struct Request {
    number: u64,
    state: Mutex<Crew>,
    /// Notified when the request was answered or given up.
    answered: Notify,
}

#[derive(Default)]
struct Crew {
    answer: Option<Answer>,
    /// Number of readers that wait for the answer, or have not taken it yet.
    waiting: u32,
    /// The share that keeps the hold for these readers.
    keeper: Option<Keeper>,
}

enum Answer {
    Granted(Open),
    /// Others have the lock, for this duration.
    Refused(Option<Duration>),
    /// The reader that asked has left.
    GivenUp,
}

/// A share in a hold. The share ends when this is dropped.
pub(crate) type Keeper = Box<dyn Any + Send + Sync>;

/// A hold that readers may enter.
struct Open {
    held: Weak<Held>,
    until: Moment,
    /// Number of readers that have entered. Readers that waited for the answer count from the
    /// start.
    entered: u32,
}

/// The requests of other readers that a reader does not wait for.
#[derive(Clone, Copy)]
enum Late {
    One(u64),
    All,
}

/// The result of a reader's attempt to enter.
pub(crate) enum Met<'a> {
    Entered(Arc<Held>, Joined),
    /// A request that left after this reader's arrival was refused: others have the lock, for this
    /// duration.
    Refused(Option<Duration>),
    /// The reader must ask for all.
    Ask(Asking<'a>),
}

impl Record {
    /// Enters an open hold, or gets the answer to a request that leaves from now on. A reader that
    /// has no time to wait for another reader's request asks at once.
    pub(crate) async fn meet(&self, terms: Terms, has_time: bool, timers: &Timers) -> Met<'_> {
        // An earlier request may have been answered before the reader began to listen.
        let first = self.crowd.0.lock().asked + 1;
        let mut late = (!has_time).then_some(Late::All);
        loop {
            let waiting = match self.look(terms, late, timers.now()) {
                Ok(met) => return met,
                Err(waiting) => waiting,
            };
            let in_time = waiting.answered(timers).await;
            match waiting.take(terms, timers.now()) {
                Some(Met::Refused(_)) if waiting.0.number < first => {}
                Some(met) => return met,
                None => {}
            }
            late = (!in_time).then_some(Late::One(waiting.0.number));
        }
    }

    /// Enters the open hold, or starts a request. The error is a place among the readers that wait
    /// for the request on its way, unless that request is `late` or full.
    fn look(&self, terms: Terms, late: Option<Late>, now: Moment) -> Result<Met<'_>, Waiting> {
        let mut state = self.crowd.0.lock();
        if let Some(open) = &state.open
            && let Some((held, joined)) = open.enter(terms, now)
        {
            return Ok(Met::Entered(held, joined));
        }
        let waits = |asking: &&Arc<Request>| match late {
            None => true,
            Some(Late::One(late)) => late != asking.number,
            Some(Late::All) => false,
        };
        if let Some(waiting) = state.asking.as_ref().filter(waits).and_then(Waiting::of) {
            return Err(waiting);
        }
        state.asked += 1;
        let request = Arc::new(Request {
            number: state.asked,
            state: Mutex::default(),
            answered: Notify::new(),
        });
        state.asking = Some(Arc::clone(&request));
        Ok(Met::Ask(Asking {
            crowd: &self.crowd,
            request,
        }))
    }
}

impl Request {
    /// Enters the request's hold, for a reader that has not waited for it.
    fn enter(&self, terms: Terms, now: Moment) -> Option<(Arc<Held>, Joined)> {
        let mut crew = self.state.lock();
        let Some(Answer::Granted(open)) = &mut crew.answer else {
            return None;
        };
        if open.entered >= MOST {
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
struct Waiting(Arc<Request>);

impl Waiting {
    /// Returns `None` if the answer has arrived, or the hold has no room for another reader.
    fn of(request: &Arc<Request>) -> Option<Self> {
        let mut crew = request.state.lock();
        // One place belongs to the reader that asks.
        if crew.answer.is_some() || crew.waiting + 1 >= MOST {
            return None;
        }
        crew.waiting += 1;
        drop(crew);
        Some(Self(Arc::clone(request)))
    }

    /// Waits for the answer. Returns `false` if the answer does not arrive in time: the reader that
    /// asked may not be polled.
    async fn answered(&self, timers: &Timers) -> bool {
        let mut answered = pin!(self.0.answered.notified());
        // Registered before the check, or an answer between the two would be missed.
        answered.as_mut().enable();
        self.0.is_answered() || timers.timeout(UNPOLLED, answered).await.is_some()
    }

    /// Returns the answer for a reader that has waited for it; `None` if the reader must look
    /// again.
    fn take(&self, terms: Terms, now: Moment) -> Option<Met<'static>> {
        let crew = self.0.state.lock();
        match crew.answer.as_ref()? {
            Answer::Granted(open) => {
                let (held, joined) = open.join(terms, now)?;
                Some(Met::Entered(held, joined))
            }
            Answer::Refused(left) => Some(Met::Refused(*left)),
            Answer::GivenUp => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut crew = self.0.state.lock();
        crew.waiting -= 1;
        let keeper = match crew.waiting {
            0 => crew.keeper.take(),
            _ => None,
        };
        // A share is dropped with nothing locked.
        drop(crew);
        drop(keeper);
    }
}

impl Open {
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
pub(crate) struct Asking<'a> {
    crowd: &'a Crowd,
    request: Arc<Request>,
}

/// A hold that is kept for the readers that waited for its answer.
pub(crate) struct Kept(Arc<Request>);

impl Asking<'_> {
    /// Notes that the server has granted the request: other readers may enter the hold until
    /// `until`. If readers wait for that, a share from `keeper` keeps the hold for them, and the
    /// caller must end that ([`Kept`]).
    pub(crate) fn opens(
        self,
        held: &Arc<Held>,
        until: Moment,
        keeper: impl FnOnce() -> Option<Keeper>,
    ) -> Option<Kept> {
        let mut state = self.crowd.0.lock();
        let mut crew = self.request.state.lock();
        crew.answer = Some(Answer::Granted(Open {
            held: Arc::downgrade(held),
            until,
            entered: 1 + crew.waiting,
        }));
        crew.keeper = (crew.waiting > 0).then(keeper).flatten();
        let is_kept = crew.keeper.is_some();
        drop(crew);
        let before = state.open.replace(Arc::clone(&self.request));
        drop(state);
        drop(before);
        is_kept.then(|| Kept(Arc::clone(&self.request)))
    }

    /// Notes a refusal: others have the lock, for this duration.
    pub(crate) fn refused(self, left: Option<Duration>) {
        self.request.state.lock().answer = Some(Answer::Refused(left));
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut crew = self.request.state.lock();
        crew.answer.get_or_insert(Answer::GivenUp);
        drop(crew);
        self.request.answered.notify_waiters();
    }
}

impl Kept {
    /// Waits a short time, then ends the share that keeps the hold: some of the readers for which
    /// it is kept may not be polled.
    pub(crate) async fn ends(self) {
        tokio::time::sleep(UNPOLLED).await;
        let keeper = self.0.state.lock().keeper.take();
        drop(keeper);
    }
}
