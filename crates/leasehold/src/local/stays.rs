//! Places in a queue on the server that are kept together: waiters of one process whose places are
//! due at about the same time share one request.
//!
//! Each waiter adds its place only when it is polled, so the place of an unpolled waiter lapses.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::backend::Backend;
use crate::backend::failure::Failure;
use crate::backend::step::Value;
use crate::clock::{Moment, Timers};
use crate::hold::Grant;
use crate::sync::Mutex;

/// Largest number of places in one request. The server runs nothing else while it keeps them.
const MOST: usize = 64;
/// The part of the time between two requests for a place for which a request waits for more places.
const GATHERS_FOR: u32 = 16;

/// The open batch of a name, if there is one.
#[derive(Default)]
pub(crate) struct Stays {
    open: Mutex<Option<Open>>,
}

struct Open {
    /// The time for which the server keeps the places. A request has one such time for all its
    /// places.
    stay: Duration,
    places: Arc<Mutex<Places>>,
    answer: WeakShared<Batch>,
}

type Batch = BoxFuture<'static, Answered>;

/// The places in a batch.
#[derive(Default)]
struct Places {
    number: usize,
    /// The ids, each after a space; `None` once the request has been sent.
    ids: Option<String>,
}

/// The answer to a request for several places.
#[derive(Clone)]
pub(crate) struct Answered {
    /// The time at which the request was sent.
    pub(crate) sent: Moment,
    pub(crate) reply: Result<Value, Failure>,
}

impl Stays {
    /// Keeps the place of this waiter, which must ask again after `due`. Returns the number of the
    /// place in the request, from 1, and the answer; `None` if the waiter has no such place.
    pub(crate) async fn keep(
        &self,
        backend: &Backend,
        timers: &Timers,
        waiter: &Arc<Grant>,
        due: Duration,
    ) -> Option<(usize, Answered)> {
        let stay = waiter.steps.queued()?.stay();
        let (number, answer) = self.join(stay, waiter, |places| {
            let (backend, timers) = (backend.clone(), timers.clone());
            let waiter = Arc::clone(waiter);
            async move {
                timers.sleep(due / GATHERS_FOR).await;
                // Taken out right before the request is sent: no place can be added to it later.
                let ids = places.lock().ids.take().unwrap_or_default();
                let sent = timers.now();
                let reply = match waiter.steps.queued() {
                    Some(queued) => backend.submit(queued.stay_many(&ids)).await,
                    None => Ok(Value::Nil),
                };
                Answered { sent, reply }
            }
            .boxed()
        });
        Some((number, answer.await))
    }

    /// Adds a place to the open batch, or opens one.
    fn join(
        &self,
        stay: Duration,
        waiter: &Grant,
        batch: impl FnOnce(Arc<Mutex<Places>>) -> Batch,
    ) -> (usize, Shared<Batch>) {
        let mut open = self.open.lock();
        let known = open.as_ref().filter(|open| open.stay == stay);
        if let Some(known) = known
            && let Some(answer) = known.answer.upgrade()
            && let Some(number) = known.places.lock().add(waiter.steps.wire_id())
        {
            return (number, answer);
        }
        let places = Arc::new(Mutex::new(Places {
            number: 0,
            ids: Some(String::new()),
        }));
        let number = places
            .lock()
            .add(waiter.steps.wire_id())
            .unwrap_or_default();
        let answer = batch(Arc::clone(&places)).shared();
        // Weak, so that a request that no waiter wants any more is dropped.
        *open = answer.downgrade().map(|answer| Open {
            stay,
            places,
            answer,
        });
        (number, answer)
    }
}

impl Places {
    /// Adds a place, and returns its number from 1; `None` if the request is full or was sent.
    fn add(&mut self, id: &str) -> Option<usize> {
        let ids = self.ids.as_mut().filter(|_| self.number < MOST)?;
        ids.push(' ');
        ids.push_str(id);
        self.number += 1;
        Some(self.number)
    }
}
