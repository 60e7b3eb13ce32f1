//! A call on its way, and who carries it: the waiter for its reply, or a task.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::CallDone;
use crate::sync::{Mutex, MutexGuard};

/// A call on its way, or about to leave.
pub(super) struct Call {
    /// `None` once it is over.
    travels: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Counts it down, also if it is dropped with its runtime.
    done: CallDone,
}

impl Call {
    pub(super) fn new(travels: impl Future<Output = ()> + Send + 'static, done: CallDone) -> Self {
        Self {
            travels: Some(Box::pin(travels)),
            done,
        }
    }
}

impl Future for Call {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(travels) = &mut self.travels {
            std::task::ready!(travels.as_mut().poll(context));
        }
        // Over: `drop` must not take it for a call that nobody hears.
        self.travels = None;
        Poll::Ready(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // The runtime ends. The driver skips a request whose reply nobody waits for any more, so
        // its bytes have to move before the request is dropped.
        if self.travels.is_some() {
            self.done.lane.ends_unheard();
        }
    }
}

/// A call that the waiter for its reply carries, and that a task may take over.
pub(super) struct Carried(Mutex<Slot>);

enum Slot {
    /// For its reply, which wakes this task.
    Waits(Call, Waker),
    /// Its waiter is polling it.
    Polled,
    TakenOver,
}

impl Carried {
    pub(super) fn new(call: Call) -> Self {
        // Nobody waits for it yet: the first poll of the waiter brings its waker.
        Self(Mutex::new(Slot::Waits(call, Waker::noop().clone())))
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock()
    }

    /// Ready when the call is over, or a task has taken it over.
    pub(super) fn poll(&self, runtime: &Handle, context: &mut Context<'_>) -> Poll<()> {
        // Taken out for the poll: a call that is sent again comes back for this slot
        // (`let_no_waiter_carry`), on the same thread.
        let slot = std::mem::replace(&mut *self.slot(), Slot::Polled);
        let Slot::Waits(mut call, _) = slot else {
            return Poll::Ready(());
        };
        if Pin::new(&mut call).poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut slot = self.slot();
        if matches!(*slot, Slot::Polled) {
            *slot = Slot::Waits(call, context.waker().clone());
            return Poll::Pending;
        }
        // Taken over during the poll: whoever did that could not get at the call.
        // Spawned without the lock: a runtime that has ended drops the call at once, and that locks
        // the driver.
        drop(slot);
        runtime.spawn(call);
        Poll::Ready(())
    }

    /// From here on a task carries the call. If its waiter is polling it just now, the waiter
    /// hands it to a task when it has done that.
    pub(super) fn take_over(&self, runtime: &Handle) {
        let slot = std::mem::replace(&mut *self.slot(), Slot::TakenOver);
        if let Slot::Waits(call, waker) = slot {
            runtime.spawn(call);
            // Woken once, so that the waiter asks the receiver of the reply to wake it.
            waker.wake();
        }
    }
}
