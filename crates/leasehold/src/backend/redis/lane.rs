//! One connection to a node: operations that wait at the same time travel on it as one call.
//!
//! While the connection is idle an operation leaves at once and alone, and the future that waits
//! for its reply carries it: no other task is woken on its way, and nobody else's reply depends
//! on whether that future is polled. While calls are on their way, operations gather during the
//! turn of the tasks that were just answered, and leave together. After each gathering and each
//! call the queue is looked at again.
//!
//! Order of arrival is kept, whichever threads submit, so an operation that undoes another always
//! runs after it. Only renewals overtake other operations (`queue.rs`). The [`Queue`] knows which
//! operations wait and which are sent again in their old place.
//!
//! When the connection breaks, what was under way ends as "may have run" (`exchange.rs`, and
//! `NoReplies` in `call.rs`), and what waits goes on with the next connection (`Lane::opening`,
//! `Lane::up`). If the first attempt to connect fails, it fails as "did not run"
//! (`Lane::down`). `keep_connected` in `reconnect.rs` decides which.
//!
//! Two locks, in this order: `departures`, `state`. Under `state` no task is spawned or dropped and
//! no waiter answered: a runtime that has ended drops a task at once, and the call in it comes back
//! for that lock. The driver's lock and that of a carried call are last: nothing is locked under
//! them.

pub(crate) mod acks;
mod carry;
mod ending;
mod exchange;
mod lone;
mod queued;

pub(crate) use self::ending::Ending;
pub(crate) use self::lone::Lone;
pub(crate) use self::queued::Queued;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::acks::Acks;
use self::carry::{Call, Carried};
use self::exchange::{exchange, fail_unreached};
use super::call::{Keys, ScriptRef};
use super::driver::{Driver, Shared};
use super::node::Node;
use super::queue::{Batch, MAX_OPERATIONS, Queue, Waiting};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::process::Process;
use crate::sync::{Mutex, MutexGuard};

/// Calls on their way at once: one being run by the server, one on the wire before it,
/// one behind it. With fewer the server idles between them; more make them smaller.
const MAX_CALLS: usize = 3;
/// How many replies in a row have to be missing before the connection is given up.
const MAX_SILENCE: u32 = 2;

/// Sees to what a node of a cluster did not run.
pub(crate) trait Strays: Send + Sync {
    /// The node did not run these, because it does not have their slots, or not wholly.
    fn take(&self, from: &Arc<Lane>, strays: Vec<Waiting>);
}

/// A queue and the connection it drains into.
pub(crate) struct Lane {
    /// Held from taking operations off the queue until they are on the connection: a thread that
    /// takes the next ones must not get there first. Locked before `state`.
    departures: Mutex<()>,
    state: Mutex<State>,
    runtime: Handle,
    /// Nothing leaves in another one.
    process: Process,
    /// What moves the bytes of the present connection.
    pub(super) driver: Shared,
    /// The runtime ends, or has ended.
    ended: AtomicBool,
    /// Calls have left whose replies nobody reads, because the runtime has ended.
    left_unheard: AtomicBool,
    /// The server at the other end.
    pub(crate) node: Arc<Node>,
    /// Where operations go that it did not run; `None` for a single server.
    strays: Option<Weak<dyn Strays>>,
    /// What the server confirms, if operations travel here to be acknowledged.
    acks: Option<Acks>,
    /// Replies that were missing in a row. The connection's and not the node's: what another
    /// connection hears would hide that this one is dead.
    silent_calls: AtomicU32,
    /// Notified when a call is back.
    back: Notify,
    /// Notified when the connection should be given up.
    pub(crate) given_up: Notify,
}

struct State {
    queue: Queue,
    /// The call that the waiter for its reply carries.
    carried: Option<Arc<Carried>>,
    /// The server did not know the script: the next call brings it. The lane's and not the node's:
    /// a call of another connection, which brought it instead, may run behind those that lack it.
    script_missing: bool,
    /// A task is about to take what waits.
    gathering: bool,
    link: Link,
}

enum Link {
    Opening,
    Up(MultiplexedConnection),
    Down(Failure),
}

impl Lane {
    pub(crate) fn new(
        runtime: Handle,
        node: Arc<Node>,
        strays: Option<Weak<dyn Strays>>,
    ) -> Arc<Self> {
        Self::with(runtime, node, strays, None)
    }

    fn with(
        runtime: Handle,
        node: Arc<Node>,
        strays: Option<Weak<dyn Strays>>,
        acks: Option<Acks>,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                queue: Queue::default(),
                carried: None,
                // Each connection loads the script (`prepare`). If that failed, the server refuses the
                // first call, and it goes again with the source.
                script_missing: false,
                gathering: false,
                link: Link::Opening,
            }),
            departures: Mutex::default(),
            runtime,
            process: Process::own(),
            driver: Shared::default(),
            ended: AtomicBool::new(false),
            left_unheard: AtomicBool::new(false),
            node,
            strays,
            acks,
            silent_calls: AtomicU32::new(0),
            back: Notify::new(),
            given_up: Notify::new(),
        })
    }

    /// Hands an operation over. `arrival` is its place among those of all nodes of a cluster.
    pub(crate) fn submit(
        self: &Arc<Self>,
        operation: Operation,
        route: Route,
        arrival: u64,
    ) -> Queued {
        let (waiting, mut queued) = Queued::new(operation, route, arrival, Arc::clone(self));
        if self.process.is_gone() {
            waiting.answer(Err(Failure::forked(self.node.address())));
            return queued;
        }
        // Locked before the operation is in the queue, where another thread could take it. A
        // thread that does not get the lock finds another one that is about to send a call.
        let departure = self.is_here().then(|| self.departures.try_lock()).flatten();
        let mut state = self.state.lock();
        if let Link::Down(failure) = &state.link {
            let failure = self.node.unreached(failure, &waiting.operation);
            drop(state);
            waiting.answer(Err(failure));
            return queued;
        }
        state.queue.push(waiting);
        match departure {
            // Alone: a waiter that stops polling its own call must not keep the replies of others.
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
            // Looked at behind the push: no task takes the operation from the queue any more.
            self.send_the_last();
        }
        queued
    }

    /// The waiter for the reply carries the call, unless others wait for its end already.
    fn carry(&self, call: Call) -> Option<Arc<Carried>> {
        let mut state = self.state.lock();
        // Operations that are sent again wait for all calls, so none may depend on being polled. Nor
        // may one behind which all others wait.
        if state.queue.has_returned() || self.acks.is_some() {
            drop(state);
            self.runtime.spawn(call);
            return None;
        }
        let carried = Arc::new(Carried::new(call));
        state.carried = Some(Arc::clone(&carried));
        Some(carried)
    }

    fn most_calls(&self) -> usize {
        match self.acks {
            None => MAX_CALLS,
            // The server runs nothing behind a call that it has not confirmed. What comes meanwhile
            // gathers for the next one, and is confirmed together.
            Some(_) => 1,
        }
    }

    /// Whether the calling thread is inside the client's own runtime, whose timers a
    /// carried call needs.
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id())
    }

    /// Makes the waiting operations leave, if there is room on the way.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let gather = !self.has_ended()
            && !state.gathering
            && !state.queue.is_empty()
            && !state.queue.has_returned()
            && state.queue.calls() < self.most_calls()
            && matches!(state.link, Link::Up(_));
        state.gathering |= gather;
        // With no call on its way no task was just answered, so there is nothing to gather for.
        let hurry = state.queue.calls() == 0;
        // Before the spawn: a runtime that has ended drops the task at once, and
        // `Gathering::drop` comes back for this lock.
        drop(state);
        if gather {
            let gathering = Gathering(Some(Arc::clone(self)));
            self.runtime.spawn(gathering.leave(hurry));
        }
    }

    /// Takes the waiting operations and puts them on the connection. The call that it returns
    /// has to be polled on, for the reply.
    fn depart(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        departure: MutexGuard<'_, ()>,
    ) -> Option<Call> {
        let call = self.next_call(&mut state);
        // Polled without the lock: a call that fails at once answers its waiters, or puts its
        // operations back into the queue.
        drop(state);
        let mut call = call?;
        // The first poll puts the call on the connection. Only then may `departure` go: another
        // thread could otherwise overtake with operations that came later.
        let gone = Pin::new(&mut call)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        drop(departure);
        (!gone).then_some(call)
    }

    /// A call with the operations that may leave now, if there are any and a connection for them.
    fn next_call(self: &Arc<Self>, state: &mut State) -> Option<Call> {
        let Link::Up(connection) = &state.link else {
            return None;
        };
        let connection = connection.clone();
        // A node that wants keys declared takes those of one slot at a time.
        let declares = self.strays.is_some() && self.node.wants_declared_keys();
        let most = if declares { 1 } else { MAX_OPERATIONS };
        let batch = state.queue.next_batch(most)?;
        let keys = match &self.strays {
            None => Keys::Declared,
            Some(_) if declares => Keys::of_one(&batch.operations[0].operation),
            Some(_) => Keys::Free,
        };
        // With the queue locked, as in `retry_with_source`: a call that left between those two and
        // brought the script would run before the operations that lacked it. Once: the calls behind
        // this one rely on it.
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
        let travels = tokio::task::unconstrained(async move {
            exchange(&lane, connection, batch, (script, keys)).await;
        });
        Some(Call::new(travels, done))
    }

    /// A connection is up; the queue drains into it.
    pub(crate) fn up(self: &Arc<Self>, connection: MultiplexedConnection, driver: Driver) {
        // Before the link is up: a call that leaves as the runtime ends flushes this driver, and
        // must not find the old one.
        self.driver.set(driver);
        // Replies that the old connection missed must not end the new one.
        self.silent_calls.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.link = Link::Up(connection);
        state.queue.forget_refused();
        self.pump(state);
    }

    /// The connection is lost and a new one is on its way: operations wait for it.
    pub(crate) fn opening(&self) {
        // The link first: the calls on their way end with the driver, and operations in the queue
        // would follow them onto the dead connection.
        self.hold_back();
        self.driver.remove();
    }

    /// Operations wait for another connection. Calls on their way are still answered on this one.
    pub(crate) fn hold_back(&self) {
        let mut state = self.state.lock();
        state.link = Link::Opening;
        self.let_no_waiter_carry(state);
    }

    /// Resolves when no call is on its way.
    pub(crate) async fn drained(&self) {
        self.wait_for_calls(|queue| queue.calls() == 0).await;
    }

    /// Resolves when the calls that have left until now are back.
    pub(crate) async fn earlier_calls_are_back(&self) {
        let departed = self.departed();
        self.wait_for_calls(|queue| queue.are_back(departed)).await;
    }

    /// How many calls have left. A waiter that carries one of them may not poll it, so a task does
    /// from here on.
    fn departed(&self) -> u64 {
        let state = self.state.lock();
        let departed = state.queue.departed();
        self.let_no_waiter_carry(state);
        departed
    }

    async fn wait_for_calls(&self, are_back: impl Fn(&Queue) -> bool) {
        loop {
            let back = self.back.notified();
            tokio::pin!(back);
            // Registered before the calls are looked at, or the end of the last one is missed.
            back.as_mut().enable();
            if are_back(&self.state.lock().queue) {
                return;
            }
            back.await;
        }
    }

    /// Operations of another node's queue, in their order, are this one's from now on.
    pub(crate) fn take_over(self: &Arc<Self>, operations: impl IntoIterator<Item = Waiting>) {
        let mut state = self.state.lock();
        operations
            .into_iter()
            .for_each(|waiting| state.queue.push(waiting));
        if let Link::Down(failure) = &state.link {
            let failure = failure.clone();
            let waiting = state.queue.take_all();
            drop(state);
            return fail_unreached(&self.node, waiting, &failure);
        }
        self.pump(state);
    }

    /// The present connection, if there is one.
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        match &self.state.lock().link {
            Link::Up(connection) => Some(connection.clone()),
            Link::Opening | Link::Down(_) => None,
        }
    }

    /// Why there is none. `None` while one is being opened, too.
    pub(crate) fn why_down(&self) -> Option<Failure> {
        match &self.state.lock().link {
            Link::Down(failure) => Some(failure.clone()),
            Link::Up(_) | Link::Opening => None,
        }
    }

    /// Takes out the waiting operations for which `stays` is false: they are another node's.
    pub(crate) fn take_unless(&self, stays: impl Fn(&Operation) -> bool) -> Vec<Waiting> {
        self.state.lock().queue.take_unless(stays).into()
    }

    /// There is no connection: waiting operations fail, and so do those that come.
    pub(crate) fn down(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.link = Link::Down(failure.clone());
        // Under the lock under which `submit` looks at the link: an operation that comes later
        // finds it down, so none is left behind in the queue.
        let waiting = state.queue.take_all();
        drop(state);
        fail_unreached(&self.node, waiting, failure);
    }

    /// The server did not run these, because it does not know the script: they are sent again.
    fn retry_with_source(&self, batch: Batch) {
        let mut state = self.state.lock();
        // Under one lock: from here on nothing leaves before these, so they bring the script.
        state.script_missing = true;
        self.node.forgot_the_scripts();
        state.queue.return_batch(batch);
        self.let_no_waiter_carry(state);
    }

    /// The server did not run these, because of one of them: they are sent again one by one.
    fn retry_singly(&self, batch: Batch) {
        let mut state = self.state.lock();
        state.queue.return_singly(batch);
        self.let_no_waiter_carry(state);
    }

    /// All wait for the calls on their way now, and a waiter that carries one of them may not
    /// poll it: from here on a task does.
    fn let_no_waiter_carry(&self, mut state: MutexGuard<'_, State>) {
        let carried = state.carried.take();
        drop(state);
        if let Some(carried) = carried {
            carried.take_over(&self.runtime);
        }
    }

    /// A call for this key alone was refused before it ran.
    fn remember_refused(&self, key: &[u8]) {
        self.state.lock().queue.remember_refused(key);
    }

    /// A reply came: the connection is alive.
    fn heard(&self) {
        self.silent_calls.store(0, Ordering::Relaxed);
    }

    /// No reply came in time. One may be a slow server; two in a row are a dead
    /// connection, and only a new one finds that out.
    fn reply_timed_out(&self) {
        if self.silent_calls.fetch_add(1, Ordering::Relaxed) + 1 == MAX_SILENCE {
            self.give_up();
        }
    }

    /// The connection is not to be trusted any more: another one is opened.
    fn give_up(&self) {
        self.given_up.notify_one();
    }
}

/// A task that is about to take what waits.
struct Gathering(Option<Arc<Lane>>);

impl Gathering {
    async fn leave(mut self, hurry: bool) {
        if !hurry {
            // A call is on its way: tasks that were just answered may have something to add.
            tokio::task::yield_now().await;
        }
        // Taken out, so that `drop` does not clear the flag later: it may be that of another task
        // then.
        let Some(lane) = self.0.take() else {
            return;
        };
        let call = {
            let departure = lane.departures.lock();
            let mut state = lane.state.lock();
            // Under the lock under which the queue is emptied: an operation that comes later
            // needs a gathering of its own.
            state.gathering = false;
            lane.depart(state, departure)
        };
        // Operations that did not fit leave with the next call, and wait for no reply to this one:
        // that may never come.
        lane.pump(lane.state.lock());
        if let Some(call) = call {
            call.await;
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Dropped with its runtime before it began; the end of the lane empties the queue.
        if let Some(lane) = self.0.take() {
            lane.state.lock().gathering = false;
        }
    }
}

/// Dropped when its call is over: there is room on the way again.
struct CallDone {
    lane: Arc<Lane>,
    number: u64,
}

impl Drop for CallDone {
    fn drop(&mut self) {
        let lane = &self.lane;
        let mut state = lane.state.lock();
        state.queue.call_is_back(self.number);
        lane.back.notify_waiters();
        // Operations that were to be sent again while the link went down: `down` has not seen them.
        if let Link::Down(failure) = &state.link {
            let failure = failure.clone();
            let waiting = state.queue.take_all();
            drop(state);
            return fail_unreached(&lane.node, waiting, &failure);
        }
        if lane.has_ended() && !state.queue.is_empty() {
            // No task takes the operations that are sent again.
            drop(state);
            return lane.send_the_last();
        }
        // Also while other calls are on their way: a waiter that carries one of them may never
        // poll it.
        lane.pump(state);
    }
}

#[cfg(test)]
mod tests;
