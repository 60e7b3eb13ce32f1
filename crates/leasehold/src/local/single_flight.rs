//! One request for many waiters: waiters that would send the same request at the same time share
//! one answer. A thousand waiters cost the server as much as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::backend::Backend;
use crate::backend::failure::Failure;
use crate::backend::step::{Operation, Value};
use crate::sync::Mutex;

type FlightReply = Result<Value, Failure>;
type FlightRequest = BoxFuture<'static, FlightReply>;

/// The request for a name that is in flight, if there is one.
#[derive(Default)]
pub(crate) struct SingleFlight {
    flight: Mutex<Option<Flight>>,
}

struct Flight {
    answer: WeakShared<FlightRequest>,
    /// Whether the request was sent.
    sent: Arc<AtomicBool>,
    /// The position of the channel before the request was sent.
    mark: Option<u64>,
}

impl SingleFlight {
    /// Asks the server, or shares another waiter's request. A request can be shared if it was not
    /// sent yet, or if the channel had the same position as now when it was sent. `mark` is the
    /// channel's current position.
    pub(crate) async fn ask(
        &self,
        backend: &Backend,
        mark: Option<u64>,
        operation: Operation,
    ) -> FlightReply {
        let waiter = FlightWaiter {
            flight: &self.flight,
            answer: Some(self.join(backend, mark, operation)),
        };
        waiter
            .answer
            .clone()
            .expect("it is there until it is dropped")
            .await
    }

    fn join(
        &self,
        backend: &Backend,
        mark: Option<u64>,
        operation: Operation,
    ) -> Shared<FlightRequest> {
        let mut present = self.flight.lock();
        // An answered request does not count: the latch may have opened since then.
        let before = present
            .as_ref()
            .and_then(|flight| Some((flight, flight.answer.upgrade()?)))
            .filter(|(_, answer)| answer.peek().is_none());
        // If a request was already sent, the server may have executed it before the latch opened.
        // Such a request serves only waiters whose channel has received nothing since the request
        // was sent.
        if let Some((flight, answer)) = &before
            && (!flight.sent.load(Ordering::SeqCst) || (mark.is_some() && flight.mark == mark))
        {
            return answer.clone();
        }
        let (before, backend) = (before.map(|(_, answer)| answer), backend.clone());
        let sent = Arc::new(AtomicBool::new(false));
        let was_sent = Arc::clone(&sent);
        let ask = async move {
            // Only one request is in flight at a time: all waiters that arrive during the earlier
            // request share this one.
            if let Some(before) = before {
                let _ = before.await;
            }
            // Set the flag before the request is sent: a waiter that joined after the server had
            // executed the request would get an answer that is older than its question.
            was_sent.store(true, Ordering::SeqCst);
            backend.submit(operation).await
        };
        let answer = ask.boxed().shared();
        // The reference is weak, so that the request is dropped when no waiter wants it any more.
        if let Some(weak) = answer.downgrade() {
            *present = Some(Flight {
                answer: weak,
                sent,
                mark,
            });
        }
        answer
    }
}

/// A waiter for an answer, which may give up before the answer arrives.
struct FlightWaiter<'a> {
    flight: &'a Mutex<Option<Flight>>,
    answer: Option<Shared<FlightRequest>>,
}

impl Drop for FlightWaiter<'_> {
    fn drop(&mut self) {
        // Drop our own share first. Otherwise it would keep the request alive.
        drop(self.answer.take());
        // Remove the flight, unless another waiter wants the request in flight. `ask` may then be
        // the last share, so that the request is dropped with it. That must not happen under the
        // lock.
        let mut present = self.flight.lock();
        let ask = present.as_ref().and_then(|flight| flight.answer.upgrade());
        if ask.as_ref().is_none_or(|ask| ask.peek().is_some()) {
            *present = None;
        }
        drop(present);
        drop(ask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::Embedded;
    use crate::key::Key;
    use crate::primitives::latch::steps;

    /// Creates a flight whose request never ends, so that all later requests wait.
    fn flight() -> (SingleFlight, Shared<FlightRequest>) {
        let endless = std::future::pending().boxed().shared();
        let flight = Flight {
            answer: endless.downgrade().expect("it is not over"),
            sent: Arc::new(AtomicBool::new(true)),
            mark: None,
        };
        let flight = Mutex::new(Some(flight));
        (SingleFlight { flight }, endless)
    }

    #[tokio::test]
    async fn asks_that_all_have_given_up_are_forgotten() {
        let key = Key::parse("x").expect("a name");
        let (single, endless) = flight();
        let backend = Backend::Memory(Embedded::new().memory());
        let ask = || Box::pin(single.ask(&backend, None, steps::count(&key)));
        let (mut one, mut other) = (ask(), ask());
        assert!((&mut one).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_none());
        drop(one);
        assert!(single.flight.lock().is_some(), "somebody waits still");
        drop(other);
        assert!(single.flight.lock().is_none());
        drop(endless);
        assert!(ask().await.is_ok());
        assert!(single.flight.lock().is_none());
    }
}
