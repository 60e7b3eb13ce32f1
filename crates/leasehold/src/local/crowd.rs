//! Readers of one process that share a hold: one of them asks the server, and those that come before
//! its hold is a turn old enter that. So a lock that is mostly read costs one request a turn, not one
//! a read.
//!
//! Each reader has a share of its own, and its release waits for a word of the server as any other
//! (`hold/acks.rs`). The last one gives the hold back. Nobody keeps it for readers that may come,
//! but a holder that is quick must not give it back before those have entered that have waited for
//! its answer: a share of theirs keeps it until then ([`Keeper`]).
//! A reader behind a writer of its process does not come here: its line keeps it back (`line.rs`).

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::Record;
use super::reentry::Held;
use crate::clock::{Moment, Timers};
use crate::config::Terms;
use crate::hold::Joined;
use crate::sync::Mutex;

/// The most readers that have shared one hold. What a hold does for one guard, it does with a look at
/// all.
const MOST: u32 = 128;

/// So long a reader waits for the answer to the request of another one, which may not be polled. And
/// so long a hold is kept for those that have waited for its answer.
const UNPOLLED: Duration = Duration::from_millis(10);

/// The readers of one name.
#[derive(Default)]
pub(crate) struct Crowd {
    state: Mutex<State>,
    /// Notified when a request was answered, or given up.
    changed: Notify,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// The request that is on its way.
    asking: Option<u64>,
    /// How many requests have ever left.
    asked: u64,
    /// The last one that was refused, and for how long others have the lock.
    refused: Option<(u64, Option<Duration>)>,
    /// How many readers wait for the answer to the request of another one.
    waiting: usize,
    /// What keeps the hold for them that the request of this number was granted.
    keeper: Option<(u64, Keeper)>,
}

/// A share in a hold. It is left when this is dropped.
pub(crate) type Keeper = Box<dyn Any + Send + Sync>;

/// A hold that readers may enter.
struct Open {
    held: Weak<Held>,
    until: Moment,
    entered: u32,
}

/// Which requests of others a reader does not wait for.
#[derive(Clone, Copy)]
enum Late {
    One(u64),
    All,
}

/// What a reader finds.
pub(crate) enum Met<'a> {
    Entered(Arc<Held>, Joined),
    /// A request that left behind this reader's coming was refused: others have the lock for so long.
    Refused(Option<Duration>),
    /// It has to ask for all.
    Ask(Asking<'a>),
}

impl Record {
    /// Enters an open hold, or gets the answer to a request that leaves from now on. A reader that has
    /// no time to wait for the request of another one asks at once.
    pub(crate) async fn meet(&self, terms: Terms, has_time: bool, timers: &Timers) -> Met<'_> {
        // What was asked before may have been answered before the reader began to listen.
        let first = self.crowd.state.lock().asked + 1;
        let mut late = (!has_time).then_some(Late::All);
        let mut _waiting = None;
        loop {
            let mut changed = std::pin::pin!(self.crowd.changed.notified());
            // Registered before the look, or a change between the two would be missed.
            changed.as_mut().enable();
            let asking = match self.look(terms, first, late, timers.now()) {
                Ok(met) => return met,
                Err(asking) => asking,
            };
            _waiting.get_or_insert_with(|| Waiting::of(&self.crowd));
            // The one that asks may not be polled.
            let answered = timers.timeout(UNPOLLED, changed).await;
            late = answered.is_none().then_some(Late::One(asking));
        }
    }

    /// An error has the request that is on its way, unless that is `late`.
    fn look(
        &self,
        terms: Terms,
        first: u64,
        late: Option<Late>,
        now: Moment,
    ) -> Result<Met<'_>, u64> {
        let mut state = self.crowd.state.lock();
        if let Some(open) = state.open.as_mut()
            && let Some((held, joined)) = open.enter(terms, now)
        {
            return Ok(Met::Entered(held, joined));
        }
        let waits = |asking: &u64| match late {
            None => true,
            Some(Late::One(late)) => late != *asking,
            Some(Late::All) => false,
        };
        if let Some(asking) = state.asking.filter(waits) {
            return Err(asking);
        }
        if let Some((number, left)) = state.refused
            && number >= first
        {
            return Ok(Met::Refused(left));
        }
        state.asked += 1;
        let number = state.asked;
        state.asking = Some(number);
        Ok(Met::Ask(Asking {
            crowd: &self.crowd,
            number,
        }))
    }
}

/// A reader that waits for the answer to the request of another one, until it has entered.
struct Waiting<'a>(&'a Crowd);

impl<'a> Waiting<'a> {
    fn of(crowd: &'a Crowd) -> Self {
        crowd.state.lock().waiting += 1;
        Self(crowd)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        let keeper = match state.waiting {
            0 => state.keeper.take(),
            _ => None,
        };
        // A share is left with nothing locked.
        drop(state);
        drop(keeper);
    }
}

impl Record {
    /// Ends what keeps a hold for those that have waited for it: some of them may not be polled.
    pub(crate) async fn is_kept(&self, number: u64) {
        tokio::time::sleep(UNPOLLED).await;
        let mut state = self.crowd.state.lock();
        let keeper = state.keeper.take_if(|(kept, _)| *kept == number);
        drop(state);
        drop(keeper);
    }
}

impl Open {
    fn enter(&mut self, terms: Terms, now: Moment) -> Option<(Arc<Held>, Joined)> {
        if now > self.until || self.entered >= MOST {
            return None;
        }
        let held = self.held.upgrade()?;
        let joined = held.hold().share(terms)?;
        self.entered += 1;
        Some((held, joined))
    }
}

/// A reader that asks. Dropped without an answer, it leaves the next request to another one.
pub(crate) struct Asking<'a> {
    crowd: &'a Crowd,
    number: u64,
}

impl Asking<'_> {
    /// The server has granted it: others may enter the hold until then. If readers wait for that, a
    /// share from `keeper` keeps it for them, and the caller sees to the end of that (`is_kept`).
    pub(crate) fn opens(
        self,
        held: &Arc<Held>,
        until: Moment,
        keeper: impl FnOnce() -> Option<Keeper>,
    ) -> Option<u64> {
        let mut state = self.crowd.state.lock();
        state.open = Some(Open {
            held: Arc::downgrade(held),
            until,
            entered: 1,
        });
        let kept = (state.waiting > 0).then(keeper).flatten();
        let kept = kept.map(|keeper| (self.number, keeper));
        let is_kept = kept.is_some().then_some(self.number);
        let before = std::mem::replace(&mut state.keeper, kept);
        drop(state);
        drop(before);
        is_kept
    }

    /// Others have the lock, for so long.
    pub(crate) fn refused(self, left: Option<Duration>) {
        self.crowd.state.lock().refused = Some((self.number, left));
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.crowd.state.lock();
        state.asking.take_if(|number| *number == self.number);
        drop(state);
        self.crowd.changed.notify_waiters();
    }
}
