//! One connection to a node. Operations that wait at the same time are sent on it as one call.
//!
//! While the connection is idle, an operation is sent at once and alone. The future that waits for
//! the reply *carries* the call: it drives the call whenever it is polled. So no other task is
//! woken, and no other reply depends on whether that future is polled. While calls are on their
//! way, [`SendTask`] first yields to the tasks that were just answered, and then sends all
//! operations that have gathered. The queue is checked again whenever a call has been sent or has
//! ended.
//!
//! Operations are sent in their order of arrival, whichever threads submit them, so an operation
//! that undoes another always runs after it. Only renewals overtake other operations (`queue.rs`).
//! The [`Queue`] knows which operations wait, and which must be sent again in their old place.
//!
//! When the connection breaks, calls on their way end as "may have run" (`round_trip.rs`, and
//! `NoReplies` in `call.rs`). Operations that wait are sent on the next connection
//! (`Lane::opening`, `Lane::up`). If the first attempt to connect fails, they fail as "did not run"
//! (`Lane::down`). `keep_connected` in `reconnect.rs` decides which of these happens.
//!
//! There are two locks, taken in this order: `departures`, `state`. Under `state` no task is
//! spawned or dropped and no waiter is answered: a runtime that has ended drops a task at once, and
//! the drop of its call locks `state`. The locks of the driver and of a carried call are innermost:
//! nothing is locked under them.

mod carry;
mod queued_reply;
mod round_trip;
mod runtime_end;
mod sent_alone;
pub(crate) mod wait_command;

pub(crate) use self::queued_reply::QueuedReply;
pub(crate) use self::runtime_end::LaneDropGuard;
pub(crate) use self::sent_alone::SentAlone;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::carry::{Call, Carried};
use self::round_trip::{fail_unreached, round_trip};
use self::wait_command::WaitSupport;
use super::call::{Keys, ScriptRef};
use super::driver::{Driver, SharedDriver};
use super::node::Node;
use super::queue::{Batch, MAX_OPERATIONS, Queue, QueuedOperation};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::process::Process;
use crate::sync::{Mutex, MutexGuard};

/// The largest number of calls on their way: one on its way to the server, one being run, one on
/// its way back. With fewer, the server idles between two calls. With more, each call has fewer
/// operations.
const MAX_CALLS: usize = 3;
/// The number of replies in a row that must be missing before the client gives up the connection.
const MAX_MISSED_REPLIES: u32 = 2;

/// A handler for operations that a node of a cluster did not run.
pub(crate) trait Redirects: Send + Sync {
    /// Takes operations that the node did not run, because it lacks their slots or some of the
    /// keys.
    fn handle(&self, from: &Arc<Lane>, redirects: Vec<QueuedOperation>);
}

/// A queue and the connection it drains into.
pub(crate) struct Lane {
    /// Held from the moment when operations are taken off the queue until they are on the
    /// connection. Otherwise another thread could send later operations first. Locked before
    /// `state`.
    departures: Mutex<()>,
    state: Mutex<LaneState>,
    runtime: Handle,
    /// The process that created the lane. A forked child sends nothing.
    process: Process,
    /// The driver, which moves the bytes of the current connection.
    pub(super) driver: SharedDriver,
    /// Whether the runtime is ending or has ended.
    ended: AtomicBool,
    /// Whether calls were sent whose replies are never read, because the runtime has ended.
    sent_unanswered: AtomicBool,
    /// The server at the other end.
    pub(crate) node: Arc<Node>,
    /// The handler of operations that the node did not run; `None` for a single server.
    redirects: Option<Weak<dyn Redirects>>,
    /// The confirmations that the server can give; `None` if operations here are not acknowledged.
    wait_support: Option<WaitSupport>,
    /// The number of replies in a row that were missing. They are counted for the connection and
    /// not for the node: replies on another connection would hide that this one is dead.
    missed_replies: AtomicU32,
    /// Notified when a call is over.
    call_returned: Notify,
    /// Notified when the connection should be given up.
    pub(crate) given_up: Notify,
}

struct LaneState {
    queue: Queue,
    /// The call that is carried by the waiter for its reply, if there is one.
    carried: Option<Arc<Carried>>,
    /// Whether the server did not know the script, so that the next call must contain its source.
    /// Each lane has its own flag: a call with the source on another connection may run after the
    /// calls on this one that lack it.
    script_missing: bool,
    /// Whether a task is about to send the operations in the queue.
    send_scheduled: bool,
    link: LinkState,
}

enum LinkState {
    Opening,
    Up(MultiplexedConnection),
    Down(Failure),
}

impl Lane {
    pub(crate) fn new(
        runtime: Handle,
        node: Arc<Node>,
        redirects: Option<Weak<dyn Redirects>>,
    ) -> Arc<Self> {
        Self::with(runtime, node, redirects, None)
    }

    fn with(
        runtime: Handle,
        node: Arc<Node>,
        redirects: Option<Weak<dyn Redirects>>,
        wait_support: Option<WaitSupport>,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(LaneState {
                queue: Queue::default(),
                carried: None,
                // Each connection loads the script (`prepare`). If that failed, the server refuses
                // the first call, which is then sent again with the source.
                script_missing: false,
                send_scheduled: false,
                link: LinkState::Opening,
            }),
            departures: Mutex::default(),
            runtime,
            process: Process::own(),
            driver: SharedDriver::default(),
            ended: AtomicBool::new(false),
            sent_unanswered: AtomicBool::new(false),
            node,
            redirects,
            wait_support,
            missed_replies: AtomicU32::new(0),
            call_returned: Notify::new(),
            given_up: Notify::new(),
        })
    }

    /// Submits an operation. `arrival` is its place among the operations of all nodes of a cluster.
    pub(crate) fn submit(
        self: &Arc<Self>,
        operation: Operation,
        route: Route,
        arrival: u64,
    ) -> QueuedReply {
        let (waiting, mut queued) = QueuedReply::new(operation, route, arrival, Arc::clone(self));
        if self.process.is_forked() {
            waiting.answer(Err(Failure::forked(self.node.address())));
            return queued;
        }
        // Try to take the lock before the operation is in the queue, where another thread could
        // take the operation. If the lock is not free, another thread is about to send a call.
        let departure = self
            .in_own_runtime()
            .then(|| self.departures.try_lock())
            .flatten();
        let mut state = self.state.lock();
        if let LinkState::Down(failure) = &state.link {
            let failure = self.node.unreached(failure, &waiting.operation);
            drop(state);
            waiting.answer(Err(failure));
            return queued;
        }
        state.queue.push(waiting);
        match departure {
            // The waiter carries the call only if its operation is alone: a waiter that stops
            // polling its own call must not delay other replies.
            Some(departure) if state.queue.calls() == 0 && state.queue.len() == 1 => {
                let call = self.depart(state, departure);
                queued.carried = call.and_then(|call| self.carry(call));
            }
            departure => {
                drop(departure);
                self.pump(state);
            }
        }
        if self.has_ended() {
            // Check for the end of the lane after the push: once the lane has ended, no task takes
            // the operation from the queue.
            self.send_remaining();
        }
        queued
    }

    /// Lets the waiter for the reply carry the call. If other operations depend on the end of the
    /// call, a task carries it.
    fn carry(&self, call: Call) -> Option<Arc<Carried>> {
        let mut state = self.state.lock();
        // In two cases, other operations wait for the end of this call, so the call must not depend
        // on a waiter, which may stop polling. Operations that are to be sent again wait until all
        // calls are over. And on a lane for acknowledged calls, only one call is on its way at a
        // time.
        if state.queue.has_returned() || self.wait_support.is_some() {
            drop(state);
            self.runtime.spawn(call);
            return None;
        }
        let carried = Arc::new(Carried::new(call));
        state.carried = Some(Arc::clone(&carried));
        Some(carried)
    }

    fn max_calls(&self) -> usize {
        match self.wait_support {
            None => MAX_CALLS,
            // The server does not run other calls until the call on its way is confirmed.
            // Meanwhile, further operations gather for the next call, and will be confirmed
            // together.
            Some(_) => 1,
        }
    }

    /// Returns whether the calling thread is inside the client's own runtime, whose timers a
    /// carried call needs.
    fn in_own_runtime(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id())
    }

    /// Starts a task that sends the operations in the queue, if another call may be sent.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, LaneState>) {
        let gather = !self.has_ended()
            && !state.send_scheduled
            && !state.queue.is_empty()
            && !state.queue.has_returned()
            && state.queue.calls() < self.max_calls()
            && matches!(state.link, LinkState::Up(_));
        state.send_scheduled |= gather;
        // With no call on its way, no task was just answered, so there is nothing to gather.
        let at_once = state.queue.calls() == 0;
        // Unlock before the spawn: a runtime that has ended drops the task at once, and
        // `SendTask::drop` takes this lock.
        drop(state);
        if gather {
            let task = SendTask(Some(Arc::clone(self)));
            self.runtime.spawn(task.run(at_once));
        }
    }

    /// Takes the operations in the queue and puts them on the connection. The caller must keep
    /// polling the returned call to get the reply.
    fn depart(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, LaneState>,
        departure: MutexGuard<'_, ()>,
    ) -> Option<Call> {
        let call = self.next_call(&mut state);
        // Unlock before the poll: a call that fails immediately answers its waiters, or puts its
        // operations back into the queue, and that takes this lock.
        drop(state);
        let mut call = call?;
        // The first poll puts the call on the connection. `departure` is held until then: otherwise
        // another thread could send later operations first.
        let is_over = Pin::new(&mut call)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        drop(departure);
        (!is_over).then_some(call)
    }

    /// Returns a call with the operations that may be sent now, if there are any and the connection
    /// is up.
    fn next_call(self: &Arc<Self>, state: &mut LaneState) -> Option<Call> {
        let LinkState::Up(connection) = &state.link else {
            return None;
        };
        let connection = connection.clone();
        // A node that wants declared keys gets only one operation in each call, because the
        // declared keys must be in one slot.
        let declares = self.redirects.is_some() && self.node.wants_declared_keys();
        let most = if declares { 1 } else { MAX_OPERATIONS };
        let batch = state.queue.next_batch(most)?;
        let keys = match &self.redirects {
            None => Keys::Declared,
            Some(_) if declares => Keys::declared_alone(&batch.operations[0].operation),
            Some(_) => Keys::Undeclared,
        };
        // The flag is read under the lock of the queue, as in `retry_with_source`: otherwise a call
        // with the source could be sent before the refused operations are back in the queue, and
        // would run before them. Only one call contains the source, and the calls after it rely on
        // that.
        let missing = std::mem::take(&mut state.script_missing);
        let script = match batch.alone || missing {
            true => ScriptRef::Source,
            false => ScriptRef::Sha,
        };
        let lane = Arc::clone(self);
        let done = CallDone {
            lane: Arc::clone(self),
            number: batch.number,
        };
        // Unconstrained: tokio's budget must not end the first poll before the call is on the
        // connection.
        let future = tokio::task::unconstrained(async move {
            round_trip(&lane, connection, batch, (script, keys)).await;
        });
        Some(Call::new(future, done))
    }

    /// Starts to use a connection: the queue drains into it.
    pub(crate) fn up(self: &Arc<Self>, connection: MultiplexedConnection, driver: Driver) {
        // Set the driver before the link is up: a call that is sent while the runtime ends must
        // flush this driver, not the old one.
        self.driver.set(driver);
        // Replies that the old connection missed must not end the new one.
        self.missed_replies.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.link = LinkState::Up(connection);
        state.queue.forget_refused();
        self.pump(state);
    }

    /// Makes operations wait for a new connection, because the current one is lost.
    pub(crate) fn opening(&self) {
        // Change the link first: the calls on their way end with the driver, and operations in the
        // queue must not then be sent on the dead connection.
        self.stop_sending();
        self.driver.remove();
    }

    /// Makes operations wait for another connection. Calls on their way are still answered on the
    /// current one.
    pub(crate) fn stop_sending(&self) {
        let mut state = self.state.lock();
        state.link = LinkState::Opening;
        self.carry_by_task(state);
    }

    /// Resolves when no call is on its way.
    pub(crate) async fn drained(&self) {
        self.wait_for_calls(|queue| queue.calls() == 0).await;
    }

    /// Resolves when all calls that have been sent so far are over.
    pub(crate) async fn earlier_calls_are_back(&self) {
        let departed = self.departed();
        self.wait_for_calls(|queue| queue.are_back(departed)).await;
    }

    /// Returns how many calls were sent. Moves a carried call to a task, because its waiter might
    /// not poll it.
    fn departed(&self) -> u64 {
        let state = self.state.lock();
        let departed = state.queue.departed();
        self.carry_by_task(state);
        departed
    }

    async fn wait_for_calls(&self, are_back: impl Fn(&Queue) -> bool) {
        loop {
            let back = self.call_returned.notified();
            tokio::pin!(back);
            // Register before the calls are checked, or the end of the last call could be missed.
            back.as_mut().enable();
            if are_back(&self.state.lock().queue) {
                return;
            }
            back.await;
        }
    }

    /// Takes over the operations of a slot's queue, in the order of that queue.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        operations: impl IntoIterator<Item = QueuedOperation>,
    ) {
        let mut state = self.state.lock();
        operations
            .into_iter()
            .for_each(|waiting| state.queue.push(waiting));
        if let LinkState::Down(failure) = &state.link {
            let failure = failure.clone();
            let waiting = state.queue.take_all();
            drop(state);
            return fail_unreached(&self.node, waiting, &failure);
        }
        self.pump(state);
    }

    /// Returns the current connection, if there is one.
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        match &self.state.lock().link {
            LinkState::Up(connection) => Some(connection.clone()),
            LinkState::Opening | LinkState::Down(_) => None,
        }
    }

    /// Returns why there is no connection. `None` if there is one, or while one is being opened.
    pub(crate) fn why_down(&self) -> Option<Failure> {
        match &self.state.lock().link {
            LinkState::Down(failure) => Some(failure.clone()),
            LinkState::Up(_) | LinkState::Opening => None,
        }
    }

    /// Removes and returns the waiting operations for which `keep` is false: they belong to another
    /// node.
    pub(crate) fn take_unless(&self, keep: impl Fn(&Operation) -> bool) -> Vec<QueuedOperation> {
        self.state.lock().queue.take_unless(keep).into()
    }

    /// Notes that there is no connection. Operations that wait fail, and so do later ones.
    pub(crate) fn down(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.link = LinkState::Down(failure.clone());
        // `submit` reads the link under the same lock. So a later operation finds the link down,
        // and no operation remains in the queue.
        let waiting = state.queue.take_all();
        drop(state);
        fail_unreached(&self.node, waiting, failure);
    }

    /// Sends operations again that the server did not run because it does not know the script.
    fn retry_with_source(&self, batch: Batch) {
        let mut state = self.state.lock();
        // All of this happens under one lock: from here on nothing is sent before these operations,
        // so their call contains the source.
        state.script_missing = true;
        self.node.note_scripts_missing();
        state.queue.return_batch(batch);
        self.carry_by_task(state);
    }

    /// Sends operations again, one by one: the server did not run them because of one of them.
    fn retry_singly(&self, batch: Batch) {
        let mut state = self.state.lock();
        state.queue.return_singly(batch);
        self.carry_by_task(state);
    }

    /// Moves a carried call to a task. All operations now wait for the calls on their way, and the
    /// waiter might not poll the call that it carries.
    fn carry_by_task(&self, mut state: MutexGuard<'_, LaneState>) {
        let carried = state.carried.take();
        drop(state);
        if let Some(carried) = carried {
            carried.take_over(&self.runtime);
        }
    }

    /// Remembers a key because a call with only this key was refused before it ran.
    fn remember_refused(&self, key: &[u8]) {
        self.state.lock().queue.remember_refused(key);
    }

    /// Notes that a reply has arrived: the connection is alive.
    fn note_reply(&self) {
        self.missed_replies.store(0, Ordering::Relaxed);
    }

    /// Notes that no reply arrived in time. One missing reply may mean a slow server. After two in
    /// a row the connection may be dead, so the client opens a new one.
    fn reply_timed_out(&self) {
        if self.missed_replies.fetch_add(1, Ordering::Relaxed) + 1 == MAX_MISSED_REPLIES {
            self.give_up();
        }
    }

    /// Requests a new connection, because the current one can no longer be trusted.
    fn give_up(&self) {
        self.given_up.notify_one();
    }
}

/// A task that is about to send the operations in the queue.
struct SendTask(Option<Arc<Lane>>);

impl SendTask {
    async fn run(mut self, at_once: bool) {
        if !at_once {
            // A call is on its way: tasks that were just answered may submit more operations.
            tokio::task::yield_now().await;
        }
        // Take the lane out, so that `drop` does not clear the flag later, when the flag may belong
        // to another task.
        let Some(lane) = self.0.take() else {
            return;
        };
        let call = {
            let departure = lane.departures.lock();
            let mut state = lane.state.lock();
            // The flag is cleared under the lock under which the queue is emptied: an operation
            // that arrives later needs another task.
            state.send_scheduled = false;
            lane.depart(state, departure)
        };
        // Operations that did not fit into this call are sent with the next one. They do not wait
        // for the reply to this call, which may never arrive.
        lane.pump(lane.state.lock());
        if let Some(call) = call {
            call.await;
        }
    }
}

impl Drop for SendTask {
    fn drop(&mut self) {
        // The task was dropped with its runtime before it began. The end of the lane empties the
        // queue.
        if let Some(lane) = self.0.take() {
            lane.state.lock().send_scheduled = false;
        }
    }
}

/// A guard that is dropped when its call is over, so that another call may be sent.
struct CallDone {
    lane: Arc<Lane>,
    number: u64,
}

impl Drop for CallDone {
    fn drop(&mut self) {
        let lane = &self.lane;
        let mut state = lane.state.lock();
        state.queue.call_is_back(self.number);
        lane.call_returned.notify_waiters();
        // Some operations may have been waiting to be sent again when the link went down, so `down`
        // did not fail them.
        if let LinkState::Down(failure) = &state.link {
            let failure = failure.clone();
            let waiting = state.queue.take_all();
            drop(state);
            return fail_unreached(&lane.node, waiting, &failure);
        }
        if lane.has_ended() && !state.queue.is_empty() {
            // No task will take the operations that are to be sent again.
            drop(state);
            return lane.send_remaining();
        }
        // Send further operations even while other calls are on their way: a waiter that carries
        // one of them may never poll it.
        lane.pump(state);
    }
}

#[cfg(all(test, unix))]
mod tests;
