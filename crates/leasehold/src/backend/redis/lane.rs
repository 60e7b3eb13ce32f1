//! The queue of one connection: what waits travels as one call.
//!
//! While the connection is idle an operation leaves at once, alone, and carried by
//! whoever waits for it: no other task is woken on its way. While calls are on
//! their way, operations gather while tasks that were just answered have their turn,
//! and leave together. Order of arrival is kept, so an operation that undoes another
//! always runs behind it. What the server did not run, because it had forgotten the script
//! or refused a call as a whole, goes again in its old place: nothing leaves until the calls
//! on their way are back. (One gap is left: if another client brings the script between two
//! calls of ours that are on their way, the second one runs and the first one behind it.)

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
use crate::backend::step::{Failure, Operation, Outcome, Value};
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
/// Replies in a row that did not come before the connection is given up.
const MAX_SILENCE: u32 = 2;

/// The queue and the connection it drains into.
pub(crate) struct Lane {
    state: Mutex<State>,
    /// Held from taking what waits until it is on the connection: whoever takes what
    /// comes next must not get there first. Taken before `state`.
    departures: Mutex<()>,
    runtime: Handle,
    /// What moves the bytes of the connection that stands.
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
    /// Told when no call is on its way any more.
    idle: Notify,
    /// Told when the connection should be given up.
    pub(crate) given_up: Notify,
}

struct State {
    queue: VecDeque<Waiting>,
    calls: usize,
    /// How many calls have left so far.
    departed: u64,
    /// What was not run and goes again, by the number of its call.
    returned: BTreeMap<u64, Vec<Waiting>>,
    /// The call that somebody carries who waits for its reply.
    carried: Option<Arc<Carried>>,
    /// The server may not know the script: the next call brings it.
    bring_script: bool,
    /// A call is about to take what waits.
    gathering: bool,
    link: Link,
    /// Keys for which a whole call was refused; they travel alone.
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
        // Whoever waited may be gone; the undo is theirs.
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
        // Before the operation is in the queue, where somebody else could take it. Who
        // does not get it finds a call that is about to leave.
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
            // Alone: who does not go on polling its own must not keep others from theirs.
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
            // Meanwhile: nobody else takes it from the queue.
            self.send_the_last();
        }
        queued
    }

    /// Whoever waits for the reply carries the call, unless others wait for its end already.
    fn carry(&self, call: Call) -> Option<Arc<Carried>> {
        let mut state = self.state.lock();
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

    /// Sees to it that what waits leaves, if there is room on the way.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let gather = !self.has_ended()
            && !state.gathering
            && !state.queue.is_empty()
            && state.returned.is_empty()
            && state.calls < MAX_CALLS
            && matches!(state.link, Link::Up(_));
        state.gathering |= gather;
        let hurry = state.calls == 0;
        // A runtime that has stopped drops what it is given at once, and that comes back
        // here: not with the lock held.
        drop(state);
        if gather {
            let gathering = Gathering(Some(Arc::clone(self)));
            self.runtime.spawn(gathering.leave(hurry));
        }
    }

    /// Takes what waits and puts it on the connection. What is returned has to be polled
    /// on, for the reply.
    fn depart(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        departure: MutexGuard<'_, ()>,
    ) -> Option<Call> {
        let call = self.next_call(&mut state);
        drop(state);
        let mut call = call?;
        let gone = Pin::new(&mut call)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        drop(departure);
        (!gone).then_some(call)
    }

    /// A call with what waits now, if there is anything and somewhere to send it.
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
        // Not told to wait for other tasks' sake before it is on the connection.
        let travels = tokio::task::unconstrained(async move {
            call::send(&lane, connection, batch).await;
        });
        Some(Call {
            travels: Some(Box::pin(travels)),
            done: CallDone(Arc::clone(self)),
        })
    }

    /// A connection stands; the queue drains into it.
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

    /// Operations wait for another connection. What is on its way is still answered on this one.
    pub(crate) fn hold_back(&self) {
        let mut state = self.state.lock();
        state.link = Link::Opening;
        // Its reply may lie with somebody who does not poll it, and all would wait for that.
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
            idle.as_mut().enable();
            if self.state.lock().calls == 0 {
                return;
            }
            idle.await;
        }
    }

    /// There is no connection: what waits is told, and so is what comes.
    pub(crate) fn down(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.link = Link::Down(failure.clone());
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        fail(queue, failure);
    }

    /// The server did not run these, because it does not know the script: they go again.
    pub(crate) fn retry_with_source(&self, batch: Batch) {
        let mut state = self.state.lock();
        state.bring_script = true;
        self.requeue(state, batch);
    }

    /// The server did not run these, because of one of them: they go again one by one.
    pub(crate) fn retry_singly(&self, mut batch: Batch) {
        for waiting in &mut batch.operations {
            waiting.alone = true;
        }
        self.requeue(self.state.lock(), batch);
    }

    /// It waits until all calls on their way are back. One of them may be carried by somebody
    /// who does not poll it.
    fn requeue(&self, mut state: MutexGuard<'_, State>, batch: Batch) {
        state.returned.insert(batch.number, batch.operations);
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

    /// Server time, in ms, as well as we know it.
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

    /// What a call's reply is known by: nothing that follows from other calls, or a
    /// reply that was spoilt could name the next one. A server returns whole numbers
    /// below 2^53.
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
        self.travels = None;
        Poll::Ready(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Its runtime ends. The driver leaves out what nobody waits for any more.
        if self.travels.is_some() {
            self.done.0.ends_unheard();
        }
    }
}

/// A call that is carried by who waits for its reply, and may be taken from them.
struct Carried(Mutex<Slot>);

enum Slot {
    /// For its reply, and who is woken by that.
    Waits(Call, Waker),
    /// Whoever carries it has it in hand.
    Polled,
    TakenOver,
}

impl Carried {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // No code that can panic runs under this lock.
        self.0.lock()
    }

    /// Ready when it is over, or somebody else's.
    fn poll(&self, runtime: &Handle, context: &mut Context<'_>) -> Poll<()> {
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
        drop(slot);
        runtime.spawn(call);
        Poll::Ready(())
    }

    /// From here on a task of its own carries it. If it is being polled just now, whoever
    /// does that sees to it.
    fn take_over(&self, runtime: &Handle) {
        let slot = std::mem::replace(&mut *self.slot(), Slot::TakenOver);
        if let Slot::Waits(call, waker) = slot {
            runtime.spawn(call);
            // Who waits is woken by the reply itself, once it has asked for that.
            waker.wake();
        }
    }
}

/// A task that is about to take what waits.
struct Gathering(Option<Arc<Lane>>);

impl Gathering {
    async fn leave(mut self, hurry: bool) {
        if !hurry {
            // One is on its way: whoever has just been answered may have something to add.
            tokio::task::yield_now().await;
        }
        let Some(lane) = self.0.take() else {
            return;
        };
        let call = {
            let departure = lane.departures.lock();
            let mut state = lane.state.lock();
            state.gathering = false;
            lane.depart(state, departure)
        };
        // What did not fit follows with the next call.
        lane.pump(lane.state.lock());
        if let Some(call) = call {
            call.await;
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Dropped with its runtime before it began; the lane's own end sees to the queue.
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
            // No call would take what goes again.
            drop(state);
            return self.0.send_the_last();
        }
        // Others may be on their way for long: one of them may be carried by somebody who
        // does not poll it.
        self.0.pump(state);
    }
}

impl State {
    /// What goes again comes before everything else, in its old order. What nobody waits
    /// for any more stays out: its undo may have run meanwhile.
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
            // Full: the next one opens the next call.
            let alone = self.travels_alone(&waiting);
            let full = bytes + waiting.bytes() > MAX_BYTES || operations.len() == MAX_OPERATIONS;
            if !operations.is_empty() && (alone || full) {
                self.queue.push_front(waiting);
                break;
            }
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
const ABANDONED: u8 = 3;

/// Where an operation is; shared by the queue, who waits, and who has to undo it.
#[derive(Clone)]
pub(crate) struct Ticket(Arc<AtomicU8>);

impl Ticket {
    /// The lane takes it on its way, unless it has been taken out.
    fn send(&self) -> bool {
        self.change(QUEUED, SENT)
    }

    /// It was not run and goes again, unless nobody waits for it any more.
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
    /// The call that carries it, if nobody else does.
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
            // The receiver must not know this task yet: it would wake itself, and
            // another thread with it.
            return Poll::Pending;
        }
        Pin::new(&mut self.receiver).poll(context).map(|reply| {
            reply.unwrap_or_else(|_| {
                // The task that carried it went down with its runtime.
                Err(self.lane.runtime_ended(Outcome::MayHaveRun))
            })
        })
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // What takes something back must run whether anybody waits or not.
        if self.grants {
            self.ticket.give_up();
        }
        // Its reply is still read, and what it left is undone behind it.
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

    /// Whoever waits for an operation may stop polling it, as a loop around `select!` does.
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
