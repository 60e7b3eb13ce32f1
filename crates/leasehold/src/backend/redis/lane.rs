//! The queue of one connection: operations that wait at the same time travel as one call.
//!
//! While the connection is idle an operation leaves at once and alone, and the future that waits
//! for its reply carries it: no other task is woken on its way, and nobody else's reply depends
//! on whether that future is polled. While calls are on their way, operations gather during the
//! turn of the tasks that were just answered, and leave together. After each gathering and each
//! call the queue is looked at again.
//!
//! Order of arrival is kept, whichever threads submit, so an operation that undoes another always
//! runs behind it. Operations that the server did not run, because it had forgotten the script
//! or refused a call as a whole, are sent again in their old place: nothing leaves until the
//! calls on their way are back. (One gap is left: if another client brings the script between
//! two calls of ours that are on their way, the second one runs and the first one behind it.)

mod ending;

pub(crate) use self::ending::Ending;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::call;
use super::driver::{Driver, Shared};
use super::refusals::Refusals;
use super::script::Script;
use crate::backend::about::About;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::step::{Operation, Value};
use crate::clock::{Clock, Moment};
use crate::room::Room;
use crate::sync::{Mutex, MutexGuard};

/// Most operations in one call.
const MAX_OPERATIONS: usize = 256;
/// Most bytes in one call. An operation over it travels alone.
const MAX_BYTES: usize = 64 * 1024;
/// Calls on their way at once: one being run by the server, one on the wire before it,
/// one behind it. With fewer the server idles between them; more make them smaller.
const MAX_CALLS: usize = 3;
/// How many replies in a row have to be missing before the connection is given up.
const MAX_SILENCE: u32 = 2;

/// The queue and the connection it drains into.
pub(crate) struct Lane {
    state: Mutex<State>,
    /// Held from taking operations off the queue until they are on the connection: a thread that
    /// takes the next ones must not get there first. Locked before `state`.
    departures: Mutex<()>,
    runtime: Handle,
    /// What moves the bytes of the present connection.
    pub(super) driver: Shared,
    /// The runtime ends, or has ended.
    ended: AtomicBool,
    /// Calls have left whose replies nobody reads, because the runtime has ended.
    left_unheard: AtomicBool,
    pub(crate) clock: Clock,
    pub(crate) script: Arc<Script>,
    pub(crate) address: Arc<str>,
    pub(crate) reply_timeout: Duration,
    /// Server time minus our clock, in ms.
    offset_ms: AtomicI64,
    /// What the server has said of itself.
    pub(crate) about: About,
    silent_calls: AtomicU32,
    pub(crate) refusals: Refusals,
    /// Notified when no call is on its way any more.
    idle: Notify,
    /// Notified when the connection should be given up.
    pub(crate) given_up: Notify,
}

struct State {
    queue: VecDeque<Waiting>,
    calls: usize,
    /// How many calls have left so far.
    departed: u64,
    /// Operations that did not run and are sent again, by the number of their call.
    returned: BTreeMap<u64, Vec<Waiting>>,
    /// The call that the waiter for its reply carries.
    carried: Option<Arc<Carried>>,
    /// The server may not know the script: the next call brings it.
    bring_script: bool,
    /// A task is about to take what waits.
    gathering: bool,
    link: Link,
    /// Keys for which the server refused a whole call; operations on them travel alone.
    refused: HashSet<Vec<u8>>,
}

enum Link {
    Opening,
    Up(MultiplexedConnection),
    Down(Failure),
}

/// An operation in the queue or on its way.
pub(crate) struct Waiting {
    pub(crate) operation: Operation,
    ticket: Ticket,
    /// It was refused together with others.
    alone: bool,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// What travels as one call.
pub(crate) struct Batch {
    number: u64,
    pub(crate) operations: Vec<Waiting>,
    pub(crate) by: ScriptRef,
}

/// How the script is named to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptRef {
    Sha,
    Source,
}

impl Waiting {
    pub(crate) fn answer(self, reply: Result<Value, Failure>) {
        // The waiter may be gone. Then it has seen to the undo.
        let _ = self.reply.send(reply);
    }

    fn bytes(&self) -> usize {
        self.operation.parts.iter().map(Vec::len).sum()
    }
}

impl Lane {
    pub(crate) fn new(
        runtime: Handle,
        clock: Clock,
        script: Arc<Script>,
        address: Arc<str>,
        reply_timeout: Duration,
        loading_limit: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                calls: 0,
                departed: 0,
                returned: BTreeMap::new(),
                carried: None,
                bring_script: false,
                gathering: false,
                link: Link::Opening,
                refused: HashSet::new(),
            }),
            departures: Mutex::default(),
            runtime,
            driver: Shared::default(),
            ended: AtomicBool::new(false),
            left_unheard: AtomicBool::new(false),
            clock,
            script,
            address,
            reply_timeout,
            offset_ms: AtomicI64::new(0),
            about: About::default(),
            silent_calls: AtomicU32::new(0),
            refusals: Refusals::new(loading_limit),
            idle: Notify::new(),
            given_up: Notify::new(),
        })
    }

    pub(crate) fn submit(self: &Arc<Self>, operation: Operation) -> Queued {
        let ticket = Ticket(Arc::new(AtomicU8::new(QUEUED)));
        let (sender, receiver) = oneshot::channel();
        let mut queued = Queued {
            ticket: ticket.clone(),
            receiver,
            grants: operation.step.grants,
            lane: Arc::clone(self),
            carried: None,
        };
        let waiting = Waiting {
            operation,
            ticket,
            alone: false,
            reply: sender,
        };
        // Locked before the operation is in the queue, where another thread could take it. A
        // thread that does not get the lock finds another one that is about to send a call.
        let departure = self.is_here().then(|| self.departures.try_lock()).flatten();
        let mut state = self.state.lock();
        if let Link::Down(failure) = &state.link {
            let failure = failure.clone();
            drop(state);
            waiting.answer(Err(failure));
            return queued;
        }
        state.queue.push_back(waiting);
        match departure {
            // Alone: a waiter that stops polling its own call must not keep the replies of others.
            Some(departure) if state.calls == 0 && state.queue.len() == 1 => {
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
        // Operations that are sent again wait for all calls, so none may depend on being polled.
        if !state.returned.is_empty() {
            drop(state);
            self.runtime.spawn(call);
            return None;
        }
        let carried = Arc::new(Carried(Mutex::new(Slot::Waits(
            call,
            Waker::noop().clone(),
        ))));
        state.carried = Some(Arc::clone(&carried));
        Some(carried)
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
            && state.returned.is_empty()
            && state.calls < MAX_CALLS
            && matches!(state.link, Link::Up(_));
        state.gathering |= gather;
        let hurry = state.calls == 0;
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

    /// A call with the operations that wait now, if there are any and a connection for them.
    fn next_call(self: &Arc<Self>, state: &mut State) -> Option<Call> {
        let Link::Up(connection) = &state.link else {
            return None;
        };
        if !state.returned.is_empty() {
            return None;
        }
        let connection = connection.clone();
        let batch = state.take_batch()?;
        state.calls += 1;
        let lane = Arc::clone(self);
        // Unconstrained: tokio's budget must not end the first poll before the call is on the
        // connection.
        let travels = tokio::task::unconstrained(async move {
            call::send(&lane, connection, batch).await;
        });
        Some(Call {
            travels: Some(Box::pin(travels)),
            done: CallDone(Arc::clone(self)),
        })
    }

    /// A connection is up; the queue drains into it.
    pub(crate) fn up(self: &Arc<Self>, connection: MultiplexedConnection, driver: Driver) {
        self.driver.set(driver);
        self.silent_calls.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.link = Link::Up(connection);
        state.refused.clear();
        self.pump(state);
    }

    /// The connection is lost and a new one is on its way: operations wait for it.
    pub(crate) fn opening(&self) {
        self.hold_back();
        self.driver.remove();
    }

    /// Operations wait for another connection. Calls on their way are still answered on this one.
    pub(crate) fn hold_back(&self) {
        let mut state = self.state.lock();
        state.link = Link::Opening;
        // All wait for the calls on their way now, and a waiter that carries one of them may not
        // poll it.
        let carried = state.carried.take();
        drop(state);
        if let Some(carried) = carried {
            carried.take_over(&self.runtime);
        }
    }

    /// Resolves when no call is on its way.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the count is read, or the end of the last call is missed.
            idle.as_mut().enable();
            if self.state.lock().calls == 0 {
                return;
            }
            idle.await;
        }
    }

    /// There is no connection: waiting operations fail, and so do those that come.
    pub(crate) fn down(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.link = Link::Down(failure.clone());
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        fail(queue, failure);
    }

    /// The server did not run these, because it does not know the script: they are sent again.
    pub(crate) fn retry_with_source(&self, batch: Batch) {
        let mut state = self.state.lock();
        state.bring_script = true;
        self.requeue(state, batch);
    }

    /// The server did not run these, because of one of them: they are sent again one by one.
    pub(crate) fn retry_singly(&self, mut batch: Batch) {
        for waiting in &mut batch.operations {
            waiting.alone = true;
        }
        self.requeue(self.state.lock(), batch);
    }

    /// The batch waits until all calls on their way are back.
    fn requeue(&self, mut state: MutexGuard<'_, State>, batch: Batch) {
        state.returned.insert(batch.number, batch.operations);
        // A waiter that carries one of them may not poll it: from here on a task does.
        let carried = state.carried.take();
        drop(state);
        if let Some(carried) = carried {
            carried.take_over(&self.runtime);
        }
    }

    /// A call for this key alone was refused before it ran.
    pub(crate) fn remember_refused(&self, key: &[u8]) {
        const MOST: usize = 1024;
        let mut state = self.state.lock();
        if state.refused.len() < MOST {
            state.refused.insert(key.to_vec());
        }
    }

    /// Server time in ms, as far as we know it.
    pub(crate) fn server_now_ms(&self) -> i64 {
        self.offset_ms
            .load(Ordering::Relaxed)
            .saturating_add(self.now_ms())
    }

    /// The server has told its time.
    pub(crate) fn learn_time(&self, server_ms: i64, at: Moment) {
        self.offset_ms
            .store(server_ms.saturating_sub(ms(at)), Ordering::Relaxed);
    }

    fn now_ms(&self) -> i64 {
        ms(self.clock.now())
    }

    /// A reply came: the connection is alive.
    pub(crate) fn heard(&self) {
        self.silent_calls.store(0, Ordering::Relaxed);
    }

    /// No reply came in time. One may be a slow server; two in a row are a dead
    /// connection, and only a new one finds that out.
    pub(crate) fn reply_timed_out(&self) {
        if self.silent_calls.fetch_add(1, Ordering::Relaxed) + 1 == MAX_SILENCE {
            self.give_up();
        }
    }

    /// The connection is not to be trusted any more: another one is opened.
    pub(crate) fn give_up(&self) {
        self.given_up.notify_one();
    }

    /// The number by which a call's reply is known. It follows from no other call's: a spoilt
    /// reply could otherwise name the next call. It is below 2^53, where a script's numbers are
    /// exact.
    pub(crate) fn call_number() -> i64 {
        fastrand::i64(1_000_000_000_000_000..1 << 53)
    }
}

fn ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_millis()).unwrap_or(i64::MAX)
}

/// A call on its way, or about to leave.
struct Call {
    /// `None` once it is over.
    travels: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Counts it down, also if it is dropped with its runtime.
    done: CallDone,
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
            self.done.0.ends_unheard();
        }
    }
}

/// A call that the waiter for its reply carries, and that a task may take over.
struct Carried(Mutex<Slot>);

enum Slot {
    /// For its reply, which wakes this task.
    Waits(Call, Waker),
    /// Its waiter is polling it.
    Polled,
    TakenOver,
}

impl Carried {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock()
    }

    /// Ready when the call is over, or a task has taken it over.
    fn poll(&self, runtime: &Handle, context: &mut Context<'_>) -> Poll<()> {
        // Taken out for the poll: a call that is sent again comes back for this slot
        // (`requeue`), on the same thread.
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
        drop(slot);
        runtime.spawn(call);
        Poll::Ready(())
    }

    /// From here on a task carries the call. If its waiter is polling it just now, the waiter
    /// hands it to a task when it has done that.
    fn take_over(&self, runtime: &Handle) {
        let slot = std::mem::replace(&mut *self.slot(), Slot::TakenOver);
        if let Slot::Waits(call, waker) = slot {
            runtime.spawn(call);
            // Woken once, so that the waiter asks the receiver of the reply to wake it.
            waker.wake();
        }
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
        // What did not fit leaves with the next call, and waits for no reply to this one: that
        // may never come.
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

fn fail(queue: VecDeque<Waiting>, failure: &Failure) {
    for waiting in queue {
        waiting.answer(Err(failure.clone()));
    }
}

struct CallDone(Arc<Lane>);

impl Drop for CallDone {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.calls -= 1;
        // Only now are operations sent again: a later call that is still on its way would run
        // before them.
        if state.calls == 0 {
            self.0.idle.notify_waiters();
            state.put_back();
        }
        if let Link::Down(failure) = &state.link {
            let failure = failure.clone();
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            return fail(queue, &failure);
        }
        if self.0.has_ended() && !state.queue.is_empty() {
            // No task takes the operations that are sent again.
            drop(state);
            return self.0.send_the_last();
        }
        // Also while other calls are on their way: a waiter that carries one of them may never
        // poll it.
        self.0.pump(state);
    }
}

impl State {
    /// Operations that are sent again come before all others, in their old order. One that nobody
    /// waits for any more stays out: its undo may have run meanwhile.
    fn put_back(&mut self) {
        for operations in std::mem::take(&mut self.returned).into_values().rev() {
            let wanted = operations
                .into_iter()
                .filter(|waiting| waiting.ticket.recall());
            for waiting in wanted.rev() {
                self.queue.push_front(waiting);
            }
        }
    }

    fn take_batch(&mut self) -> Option<Batch> {
        let mut operations = Vec::new();
        let mut bytes = 0;
        while let Some(waiting) = self.queue.pop_front() {
            // One that does not fit opens the next call.
            let alone = self.travels_alone(&waiting);
            let full = bytes + waiting.bytes() > MAX_BYTES || operations.len() == MAX_OPERATIONS;
            if !operations.is_empty() && (alone || full) {
                self.queue.push_front(waiting);
                break;
            }
            // Its waiter has taken it out: it never ran, so nothing undoes it.
            if !waiting.ticket.send() {
                continue;
            }
            bytes += waiting.bytes();
            operations.push(waiting);
            if alone {
                break;
            }
        }
        self.queue.give_back();
        let first = operations.first()?;
        let by = match first.alone || self.bring_script {
            true => ScriptRef::Source,
            false => ScriptRef::Sha,
        };
        self.bring_script = false;
        self.departed += 1;
        Some(Batch {
            number: self.departed,
            operations,
            by,
        })
    }

    fn travels_alone(&self, waiting: &Waiting) -> bool {
        waiting.alone
            || !self.refused.is_empty()
                && waiting.operation.parts[..waiting.operation.step.keys]
                    .iter()
                    .any(|key| self.refused.contains(key))
    }
}

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const TAKEN_OUT: u8 = 2;
// Sent, and nobody waits for it: it is not sent again.
const ABANDONED: u8 = 3;

/// Where an operation is; shared by the queue, its waiter and its undo.
#[derive(Clone)]
pub(crate) struct Ticket(Arc<AtomicU8>);

impl Ticket {
    /// The lane sends it, unless it has been taken out.
    fn send(&self) -> bool {
        self.change(QUEUED, SENT)
    }

    /// It did not run and is sent again, unless nobody waits for it any more.
    fn recall(&self) -> bool {
        self.change(SENT, QUEUED)
    }

    /// Nobody waits any more: taken out if it is still queued, else marked.
    fn give_up(&self) {
        if !self.change(QUEUED, TAKEN_OUT) {
            self.change(SENT, ABANDONED);
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        // In one exchange: either the lane sends the operation, or its waiter takes it out. After
        // both it would run, and its undo would believe that it did not.
        self.0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(crate) fn may_have_run(&self) -> bool {
        self.0.load(Ordering::SeqCst) != TAKEN_OUT
    }
}

/// The reply to come of an operation in the queue.
pub(crate) struct Queued {
    ticket: Ticket,
    receiver: oneshot::Receiver<Result<Value, Failure>>,
    grants: bool,
    lane: Arc<Lane>,
    /// Its call, if this future carries that.
    carried: Option<Arc<Carried>>,
}

impl Queued {
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket.clone()
    }

    fn poll_carried(&mut self, context: &mut Context<'_>) {
        if let Some(carried) = &self.carried
            && carried.poll(&self.lane.runtime, context).is_ready()
        {
            self.carried = None;
        }
    }
}

impl Future for Queued {
    type Output = Result<Value, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_carried(context);
        if self.carried.is_some() {
            // The receiver must not know this task yet: the poll of the call brings the reply, so
            // the task would wake itself, and another thread with it.
            return Poll::Pending;
        }
        Pin::new(&mut self.receiver).poll(context).map(|reply| {
            reply.unwrap_or_else(|_| {
                // The task that carried the call ended with its runtime.
                Err(self.lane.runtime_ended(Outcome::MayHaveRun))
            })
        })
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // An operation that gives something back runs whether anybody waits for it or not.
        if self.grants {
            self.ticket.give_up();
        }
        // A task reads the reply; the undo of what it may have taken runs behind it.
        if let Some(carried) = self.carried.take() {
            carried.take_over(&self.lane.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use leasehold_testkit::RedisServer;

    use super::*;
    use crate::backend::redis::{Endpoint, Redis};
    use crate::primitives::lock::steps;

    fn operation(name: &str, hold: &str, releases: bool) -> Operation {
        let parts = [name, hold, if releases { "channel" } else { "60000" }];
        let parts = parts.map(|part| part.as_bytes().to_vec()).to_vec();
        let step = if releases {
            &steps::RELEASE
        } else {
            &steps::ACQUIRE
        };
        Operation::new(step, parts)
    }

    async fn connect(server: &RedisServer) -> Redis {
        let endpoint = Endpoint {
            url: server.url(),
            credentials: None,
            connect_timeout: Duration::from_secs(10),
            reply_timeout: Duration::from_secs(60),
            #[cfg(feature = "tls")]
            authorities: Vec::new(),
        };
        let connecting = Redis::connect(endpoint, &steps::ALL, Clock::Boot);
        connecting.await.expect("connects")
    }

    /// Each acquire is followed by its release before it was answered, as a dropped wait
    /// does; in order, whatever so many threads do again and again in between.
    fn nothing_is_overtaken(server: &RedisServer, threads: usize, disturb: impl Fn() + Sync) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        let redis = Arc::new(runtime.block_on(connect(server)));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        disturb();
                    }
                });
            }
            let tasks: Vec<_> = (0..6)
                .map(|task| runtime.spawn(in_order(Arc::clone(&redis), format!("name {task}"))))
                .collect();
            let overtaken: usize = tasks
                .into_iter()
                .map(|task| runtime.block_on(task).unwrap_or(1))
                .sum();
            over.store(true, Ordering::Relaxed);
            assert_eq!(overtaken, 0, "releases that came before their acquires");
        });
    }

    /// Threads that do nothing else take the processor away.
    #[test]
    fn what_was_submitted_first_runs_first() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        nothing_is_overtaken(&server, 12, std::hint::spin_loop);
    }

    /// Several calls are on their way when the server forgets the script.
    #[test]
    fn what_goes_again_keeps_its_order() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        nothing_is_overtaken(&server, 1, || {
            server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
        });
    }

    /// A waiter for an operation may stop polling it, as a loop around `select!` does.
    #[test]
    fn what_nobody_polls_keeps_no_reply_from_others() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let redis = connect(&server).await;
            let first = redis.submit(operation("first", "ours", false)).await;
            assert!(first.is_ok(), "the connection stands: {first:?}");
            // From outside of the runtime it leaves with a task, which has not begun yet.
            let other = thread::scope(|scope| {
                let submit = || redis.submit(operation("x", "theirs", false));
                scope.spawn(submit).join().expect("it is queued")
            });
            let unpolled = redis.submit(operation("y", "ours", false));
            let reply = tokio::time::timeout(Duration::from_secs(10), other).await;
            assert!(matches!(reply, Ok(Ok(Value::Nil))), "{reply:?}");
            assert!(matches!(unpolled.await, Ok(Value::Nil)));
        });
    }

    #[test]
    fn what_nobody_polls_keeps_nothing_from_going_again() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let redis = connect(&server).await;
            let first = redis.submit(operation("first", "ours", false)).await;
            assert!(first.is_ok(), "the connection stands: {first:?}");
            server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
            let unpolled = redis.submit(operation("x", "ours", false));
            let release = redis.submit(operation("x", "ours", true));
            let reply = tokio::time::timeout(Duration::from_secs(10), release).await;
            assert!(matches!(reply, Ok(Ok(Value::Int(1)))), "{reply:?}");
            assert!(matches!(unpolled.await, Ok(Value::Nil)));
        });
    }

    /// A connection on which one operation is carried by a future that nobody polls.
    async fn beside_an_unpolled_call(server: &RedisServer) -> (Redis, Queued) {
        let redis = connect(server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        let unpolled = redis.submit(operation("unpolled", "ours", false));
        (redis, unpolled)
    }

    async fn all_answered(replies: Vec<Queued>) {
        let replies = futures_util::future::join_all(replies);
        let replies = tokio::time::timeout(Duration::from_secs(20), replies).await;
        let replies = replies.expect("each is answered");
        let granted = replies
            .iter()
            .filter(|reply| matches!(reply, Ok(Value::Nil)));
        assert_eq!(granted.count(), replies.len());
    }

    #[tokio::test]
    async fn what_does_not_fit_one_call_leaves_beside_one_that_nobody_polls() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let (redis, unpolled) = beside_an_unpolled_call(&server).await;
        let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
        all_answered((0..4 * MAX_OPERATIONS).map(submit).collect()).await;
        assert!(matches!(unpolled.await, Ok(Value::Nil)));
    }

    #[tokio::test]
    async fn what_is_too_large_for_one_call_leaves_beside_one_that_nobody_polls() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let (redis, unpolled) = beside_an_unpolled_call(&server).await;
        let long = "x".repeat(MAX_BYTES / 2);
        let submit = |n: usize| redis.submit(operation(&format!("{long}{n}"), "ours", false));
        all_answered((0..8).map(submit).collect()).await;
        assert!(matches!(unpolled.await, Ok(Value::Nil)));
    }

    #[tokio::test]
    async fn what_travels_alone_leaves_beside_a_call_that_nobody_polls() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let (redis, unpolled) = beside_an_unpolled_call(&server).await;
        unpolled.lane.remember_refused(b"x3");
        unpolled.lane.remember_refused(b"x5");
        let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
        all_answered((0..8).map(submit).collect()).await;
        assert!(matches!(unpolled.await, Ok(Value::Nil)));
    }

    /// No reply comes that would make room.
    #[tokio::test]
    async fn what_does_not_fit_one_call_does_not_wait_for_its_reply() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let redis = connect(&server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        server.pause().expect("it stops");
        let submit = |n: usize| redis.submit(operation(&format!("x{n}"), "ours", false));
        let replies: Vec<_> = (0..3 * MAX_OPERATIONS).map(submit).collect();
        let lane = Arc::clone(&replies[0].lane);
        let departures = async {
            while lane.state.lock().calls < MAX_CALLS {
                tokio::task::yield_now().await;
            }
        };
        let departures = tokio::time::timeout(Duration::from_secs(20), departures);
        departures.await.expect("nothing holds them back");
        // One operation alone, and two calls that are full.
        assert_eq!(lane.state.lock().queue.len(), MAX_OPERATIONS - 1);
        server.resume().expect("it goes on");
        all_answered(replies).await;
    }

    #[tokio::test]
    async fn an_acquire_that_nobody_waits_for_does_not_go_again() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let redis = connect(&server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
        drop(redis.submit(operation("given up", "ours", false)));
        let kept = redis.submit(operation("kept", "ours", false)).await;
        assert!(matches!(kept, Ok(Value::Nil)), "{kept:?}");
        let keys = server.keys();
        assert!(keys.iter().all(|key| key != "given up"), "{keys:?}");
    }

    #[tokio::test]
    async fn a_release_that_nobody_waits_for_goes_again() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let redis = connect(&server).await;
        let held = redis.submit(operation("x", "ours", false)).await;
        assert!(matches!(held, Ok(Value::Nil)), "{held:?}");
        server.command(&["SCRIPT", "FLUSH"]).expect("it runs");
        drop(redis.submit(operation("x", "ours", true)));
        let behind = redis.submit(operation("x", "next", false)).await;
        assert!(matches!(behind, Ok(Value::Nil)), "released: {behind:?}");
    }

    /// The refused operation is in the same call as the others.
    #[tokio::test]
    async fn what_goes_again_after_a_refusal_is_what_somebody_waits_for() {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let redis = connect(&server).await;
        let first = redis.submit(operation("first", "ours", false)).await;
        assert!(first.is_ok(), "the connection stands: {first:?}");
        let rules = ["ACL", "SETUSER", "default", "resetkeys", "~ours:*"];
        server.command(&rules).expect("it runs");
        let carried = redis.submit(operation("ours:first", "ours", false));
        let given_up = redis.submit(operation("ours:given up", "ours", false));
        let denied = redis.submit(operation("theirs", "ours", false));
        let kept = redis.submit(operation("ours:kept", "ours", false));
        let lane = Arc::clone(&carried.lane);
        while !lane.state.lock().queue.is_empty() {
            tokio::task::yield_now().await;
        }
        // On its way, and not answered yet.
        drop(given_up);
        assert!(carried.await.is_ok());
        assert!(denied.await.is_err());
        let kept = kept.await;
        assert!(matches!(kept, Ok(Value::Nil)), "{kept:?}");
        let keys = server.keys();
        assert!(keys.contains(&"ours:kept".into()), "{keys:?}");
        assert!(keys.iter().all(|key| !key.contains("given")), "{keys:?}");
    }

    async fn in_order(redis: Arc<Redis>, name: String) -> usize {
        let mut overtaken = 0;
        for round in 0..300 {
            let holds = (0..8).map(|number| format!("{round} {number}"));
            let replies: Vec<_> = holds
                .map(|hold| {
                    let acquire = redis.submit(operation(&name, &hold, false));
                    let release = redis.submit(operation(&name, &hold, true));
                    (acquire, release)
                })
                .collect();
            for (acquire, release) in replies {
                let (acquired, released) = (acquire.await, release.await);
                let right = matches!(acquired, Ok(Value::Nil)) && released.is_ok_and(was_ours);
                overtaken += usize::from(!right);
            }
        }
        overtaken
    }

    fn was_ours(reply: Value) -> bool {
        reply == Value::Int(1)
    }
}
