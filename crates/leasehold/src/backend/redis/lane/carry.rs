//! A call on its way, and its carrier: the waiter for its reply, or a task.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::CallDone;
use crate::sync::{Mutex, MutexGuard};

/// A call on its way, or about to be sent.
pub(super) struct Call {
    /// The round trip to the server; `None` once it is over.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The guard that removes the call from the calls on their way, even if the call is dropped
    /// with its runtime.
    done: CallDone,
}

impl Call {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static, done: CallDone) -> Self {
        Self {
            future: Some(Box::pin(future)),
            done,
        }
    }
}

impl Future for Call {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(future) = &mut self.future {
            std::task::ready!(future.as_mut().poll(context));
        }
        // The call is over: `drop` must not treat it as a call whose reply is never read.
        self.future = None;
        Poll::Ready(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // The runtime is ending. The driver skips a request whose reply is no longer awaited, so
        // the request's bytes must be sent before the request is dropped.
        if self.future.is_some() {
            self.done.lane.flush_unanswered();
        }
    }
}

/// A call that the waiter for its reply carries, and that a task may take over.
pub(super) struct Carried(Mutex<CarryState>);

enum CarryState {
    /// The call waits for its reply, which wakes the task with this waker.
    Waits(Call, Waker),
    /// The waiter is polling the call.
    Polled,
    TakenOver,
}

impl Carried {
    pub(super) fn new(call: Call) -> Self {
        // The waiter has not polled yet. Its first poll sets its waker.
        Self(Mutex::new(CarryState::Waits(call, Waker::noop().clone())))
    }

    fn state(&self) -> MutexGuard<'_, CarryState> {
        self.0.lock()
    }

    /// Polls the call. Returns `Ready` when the call is over, or when a task has taken it over.
    pub(super) fn poll(&self, runtime: &Handle, context: &mut Context<'_>) -> Poll<()> {
        // The call is taken out for the poll: if it returns its operations to the queue, it locks
        // this state on the same thread (`carry_by_task`).
        let state = std::mem::replace(&mut *self.state(), CarryState::Polled);
        let CarryState::Waits(mut call, _) = state else {
            return Poll::Ready(());
        };
        if Pin::new(&mut call).poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut state = self.state();
        if matches!(*state, CarryState::Polled) {
            *state = CarryState::Waits(call, context.waker().clone());
            return Poll::Pending;
        }
        // Another thread took the call over during the poll, but could not spawn it, because this
        // thread had it. Spawn it without the lock: a runtime that has ended drops the call at
        // once, and that locks the driver.
        drop(state);
        runtime.spawn(call);
        Poll::Ready(())
    }

    /// Moves the call to a task. If the waiter is polling the call now, the waiter spawns the task
    /// after its poll.
    pub(super) fn take_over(&self, runtime: &Handle) {
        let state = std::mem::replace(&mut *self.state(), CarryState::TakenOver);
        if let CarryState::Waits(call, waker) = state {
            runtime.spawn(call);
            // Wake the waiter once, so that it registers with the receiver of the reply.
            waker.wake();
        }
    }
}
