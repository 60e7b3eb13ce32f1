//! Joint renewals of places in a queue on the server: waiters of one process whose places are due
//! at about the same time share one request.
//!
//! A waiter adds its place only when it is polled, so the place of an unpolled waiter lapses.

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

/// The largest number of places in one request. While the server renews them, it can't run other
/// requests.
const MAX_PLACES: usize = 64;
/// A divisor for the time between two requests for a place. A request waits for the resulting time,
/// so that more places can be added.
const GATHER_DIVISOR: u32 = 16;
/// The longest time for which a request waits for more places. The limit is needed because a waiter
/// may learn only from the answer that it is the first in the queue.
const MAX_GATHER_TIME: Duration = Duration::from_millis(100);

/// The open batch of a name, if there is one.
#[derive(Default)]
pub(crate) struct PlaceRenewals {
    open: Mutex<Option<PlaceBatch>>,
}

struct PlaceBatch {
    /// The time for which the server keeps the places. It is the same for all places in a request.
    place_ttl: Duration,
    /// The time by which the request is sent if one of its waiters is polled.
    sent_by: Moment,
    places: Arc<Mutex<BatchPlaces>>,
    answer: WeakShared<PlaceRenewal>,
}

type PlaceRenewal = BoxFuture<'static, PlacesRenewed>;

/// The places in a batch.
#[derive(Default)]
struct BatchPlaces {
    number: usize,
    /// The ids, each preceded by a space; `None` once the request has been sent.
    ids: Option<String>,
}

/// The answer to a request for several places.
#[derive(Clone)]
pub(crate) struct PlacesRenewed {
    /// The time at which the request was sent.
    pub(crate) sent: Moment,
    pub(crate) reply: Result<Value, Failure>,
}

impl PlaceRenewals {
    /// Renews the place of this waiter, which must ask the server again after `due`. Returns the
    /// number of the place in the request, counted from 1, and the answer. Returns `None` if the
    /// waiter has no such place.
    pub(crate) async fn renew(
        &self,
        backend: &Backend,
        timers: &Timers,
        waiter: &Arc<Grant>,
        due: Duration,
    ) -> Option<(usize, PlacesRenewed)> {
        let place_ttl = waiter.steps.queue_steps()?.waiter_timeout();
        let now = timers.now();
        let sent_by = now + gather_time(due);
        let batch = |places: Arc<Mutex<BatchPlaces>>| {
            let (backend, timers) = (backend.clone(), timers.clone());
            let waiter = Arc::clone(waiter);
            async move {
                timers.sleep_until(sent_by).await;
                // Take the ids right before the request is sent. After this, no place can be added.
                let ids = places.lock().ids.take().unwrap_or_default();
                let sent = timers.now();
                let reply = match waiter.steps.queue_steps() {
                    Some(queued) => backend.submit(queued.keep_places(&ids)).await,
                    None => Ok(Value::Nil),
                };
                PlacesRenewed { sent, reply }
            }
            .boxed()
        };
        let (number, answer) = match self.join(place_ttl, now, waiter) {
            Ok(joined) => joined,
            // `_before` may be the last share of the previous batch's request, so that the request
            // is dropped with it. That must not happen under the lock.
            Err(_before) => self.open(place_ttl, sent_by, waiter, batch),
        };
        Some((number, answer.await))
    }

    /// Adds a place to the open batch. Returns an error if the place needs another batch. The error
    /// contains a share of the open batch's request, if there was one. The caller must drop that
    /// share.
    fn join(
        &self,
        place_ttl: Duration,
        now: Moment,
        waiter: &Grant,
    ) -> Result<(usize, Shared<PlaceRenewal>), Option<Shared<PlaceRenewal>>> {
        let open = self.open.lock();
        // If a batch was not sent by its time, its waiters are not polled, and their places lapse.
        let known = open
            .as_ref()
            .filter(|open| open.place_ttl == place_ttl && now <= open.sent_by);
        let Some((known, answer)) = known.and_then(|known| Some((known, known.answer.upgrade()?)))
        else {
            return Err(None);
        };
        let number = known.places.lock().add(waiter.steps.wire_id());
        match number {
            Some(number) => Ok((number, answer)),
            None => Err(Some(answer)),
        }
    }

    /// Opens a batch with one place.
    fn open(
        &self,
        place_ttl: Duration,
        sent_by: Moment,
        waiter: &Grant,
        batch: impl FnOnce(Arc<Mutex<BatchPlaces>>) -> PlaceRenewal,
    ) -> (usize, Shared<PlaceRenewal>) {
        let mut first = BatchPlaces {
            number: 0,
            ids: Some(String::new()),
        };
        let number = first.add(waiter.steps.wire_id()).unwrap_or_default();
        let places = Arc::new(Mutex::new(first));
        let answer = batch(Arc::clone(&places)).shared();
        // The reference is weak, so that the request is dropped when no waiter wants it any more.
        let open = answer.downgrade().map(|answer| PlaceBatch {
            place_ttl,
            sent_by,
            places,
            answer,
        });
        let before = std::mem::replace(&mut *self.open.lock(), open);
        drop(before);
        (number, answer)
    }
}

/// Returns how long a request waits for more places.
pub(crate) fn gather_time(due: Duration) -> Duration {
    (due / GATHER_DIVISOR).min(MAX_GATHER_TIME)
}

impl BatchPlaces {
    /// Adds a place, and returns its number, counted from 1. Returns `None` if the request is full
    /// or was sent.
    fn add(&mut self, id: &str) -> Option<usize> {
        let ids = self.ids.as_mut().filter(|_| self.number < MAX_PLACES)?;
        ids.push(' ');
        ids.push_str(id);
        self.number += 1;
        Some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_waits_a_tenth_of_a_second_at_most_for_more_places() {
        let ms = Duration::from_millis;
        assert_eq!(gather_time(ms(32)), ms(2));
        assert_eq!(gather_time(Duration::from_secs(1200)), ms(100));
    }
}
