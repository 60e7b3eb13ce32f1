//! The queue of one connection: what waits travels as one call.
//!
//! While the connection is idle an operation leaves at once, alone, and carried by
//! whoever waits for it: no other task is woken on its way. While calls are on
//! their way, operations gather while tasks that were just answered have their turn,
//! and leave together. Order of arrival is kept, so an operation that undoes another
//! always runs behind it.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::call;
use super::script::Script;
use crate::backend::step::{Failure, Operation, Value};
use crate::clock::Clock;

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
    runtime: Handle,
    pub(crate) clock: Clock,
    pub(crate) script: Script,
    pub(crate) address: Arc<str>,
    pub(crate) reply_limit: Duration,
    /// Server time minus our clock, in ms.
    offset_ms: AtomicI64,
    silent_calls: AtomicU32,
    /// Told when the connection should be given up.
    pub(crate) given_up: Notify,
}

struct State {
    queue: VecDeque<Waiting>,
    calls: usize,
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
    reply: oneshot::Sender<Result<Value, Failure>>,
}

impl Waiting {
    pub(crate) fn answer(self, reply: Result<Value, Failure>) {
        // Whoever waited may be gone; the undo is theirs.
        let _ = self.reply.send(reply);
    }

    /// Nobody waits for it any more and it would grant something.
    pub(crate) fn abandoned(&self) -> bool {
        self.ticket.0.load(Ordering::SeqCst) == ABANDONED
    }

    fn bytes(&self) -> usize {
        self.operation.parts.iter().map(Vec::len).sum()
    }
}

impl Lane {
    pub(crate) fn new(
        runtime: Handle,
        clock: Clock,
        script: Script,
        address: Arc<str>,
        reply_limit: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                calls: 0,
                gathering: false,
                link: Link::Opening,
                refused: HashSet::new(),
            }),
            runtime,
            clock,
            script,
            address,
            reply_limit,
            offset_ms: AtomicI64::new(0),
            silent_calls: AtomicU32::new(0),
            given_up: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            reply: sender,
        };
        let mut state = self.state();
        if let Link::Down(failure) = &state.link {
            let failure = failure.clone();
            drop(state);
            waiting.answer(Err(failure));
            return queued;
        }
        state.queue.push_back(waiting);
        if state.calls == 0 && self.is_here() {
            queued.carried = self.next_call(&mut state);
            drop(state);
            // Polled once here, or what is submitted next would overtake it.
            queued.poll_carried(&mut Context::from_waker(Waker::noop()));
        } else {
            self.pump(state);
        }
        queued
    }

    /// Whether the calling thread is inside the client's own runtime, whose timers a
    /// carried call needs.
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id())
    }

    /// Sends calls as long as there is something to send and room on the way.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut call = None;
        if state.calls == 0 {
            call = self.next_call(&mut state);
        }
        // One is on its way, so there is no hurry: whoever has just been answered may
        // have something to add.
        let gather = !state.gathering
            && !state.queue.is_empty()
            && (1..MAX_CALLS).contains(&state.calls)
            && matches!(state.link, Link::Up(_));
        state.gathering |= gather;
        // A runtime that has stopped drops what it is given at once, and a dropped
        // call comes back here: not with the lock held.
        drop(state);
        if let Some(call) = call {
            self.runtime.spawn(call);
        }
        if gather {
            self.runtime.spawn(Arc::clone(self).gather());
        }
    }

    async fn gather(self: Arc<Self>) {
        tokio::task::yield_now().await;
        let call = {
            let mut state = self.state();
            state.gathering = false;
            self.next_call(&mut state)
        };
        if let Some(call) = call {
            call.await;
        }
    }

    /// A call with what waits now, if there is anything and somewhere to send it.
    fn next_call(self: &Arc<Self>, state: &mut State) -> Option<Call> {
        let Link::Up(connection) = &state.link else {
            return None;
        };
        let connection = connection.clone();
        let batch = state.take_batch();
        if batch.is_empty() {
            return None;
        }
        state.calls += 1;
        // Counted down also if the call is dropped with its runtime.
        let done = CallDone(Arc::clone(self));
        Some(Box::pin(async move {
            call::send(&done.0, connection, batch).await;
        }))
    }

    /// A connection stands; the queue drains into it.
    pub(crate) fn up(self: &Arc<Self>, connection: MultiplexedConnection) {
        self.silent_calls.store(0, Ordering::Relaxed);
        let mut state = self.state();
        state.link = Link::Up(connection);
        state.refused.clear();
        self.pump(state);
    }

    /// The connection is lost and a new one is on its way: operations wait for it.
    pub(crate) fn opening(&self) {
        self.state().link = Link::Opening;
    }

    /// There is no connection: what waits is told, and so is what comes.
    pub(crate) fn down(&self, failure: &Failure) {
        let mut state = self.state();
        state.link = Link::Down(failure.clone());
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        for waiting in queue {
            waiting.answer(Err(failure.clone()));
        }
    }

    /// A call for this key alone was refused before it ran.
    pub(crate) fn remember_refused(&self, key: &[u8]) {
        const MOST: usize = 1024;
        let mut state = self.state();
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
    pub(crate) fn learn_time(&self, server_ms: i64) {
        self.offset_ms
            .store(server_ms.saturating_sub(self.now_ms()), Ordering::Relaxed);
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now().as_millis()).unwrap_or(i64::MAX)
    }

    /// A reply came: the connection is alive.
    pub(crate) fn heard(&self) {
        self.silent_calls.store(0, Ordering::Relaxed);
    }

    /// No reply came in time. One may be a slow server; two in a row are a dead
    /// connection, and only a new one finds that out.
    pub(crate) fn unheard(&self) {
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

/// A call on its way, or about to leave.
type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

struct CallDone(Arc<Lane>);

impl Drop for CallDone {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.calls -= 1;
        self.0.pump(state);
    }
}

impl State {
    fn take_batch(&mut self) -> Vec<Waiting> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(waiting) = self.queue.pop_front() {
            // Full: the next one opens the next call.
            let alone = self.travels_alone(&waiting);
            let full = bytes + waiting.bytes() > MAX_BYTES || batch.len() == MAX_OPERATIONS;
            if !batch.is_empty() && (alone || full) {
                self.queue.push_front(waiting);
                break;
            }
            if !waiting.ticket.send() {
                continue;
            }
            bytes += waiting.bytes();
            batch.push(waiting);
            if alone {
                break;
            }
        }
        batch
    }

    fn travels_alone(&self, waiting: &Waiting) -> bool {
        !self.refused.is_empty()
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
    carried: Option<Call>,
}

impl Queued {
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket.clone()
    }

    fn poll_carried(&mut self, context: &mut Context<'_>) {
        if let Some(call) = &mut self.carried
            && call.as_mut().poll(context).is_ready()
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
                Err(Failure::runtime_stopped(Arc::clone(&self.lane.address)))
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
        if let Some(call) = self.carried.take() {
            self.lane.runtime.spawn(call);
        }
    }
}
