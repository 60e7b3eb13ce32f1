//! The operations that wait for one connection, in order of arrival. The queue is pure data: it
//! knows neither the connection nor a clock, and nothing in it waits. Operations are taken from it
//! one call at a time.
//!
//! Only renewals are sent before earlier operations: thousands of waiters may send requests at the
//! same time, and a hold must not expire because its renewal is queued after them. This is safe
//! because no earlier operation must run before a renewal. A hold is renewed only after its grant
//! was answered. A release ends the renewals before it is queued (`leave.rs`), so a renewal that
//! overtakes it prolongs the hold only for a moment. An operation that changes the form of a hold,
//! or puts another hold in its place, stops the renewals until the operation is answered
//! (`rw/guard.rs`, `leave/permit_swap.rs`). So does an operation that shortens a hold
//! (`Share::keep_for`). Among themselves, renewals keep their order.
//!
//! If the server did not run operations, because it had forgotten the script or refused an entire
//! call, they are sent again in their old place. To keep the order, nothing is sent until all calls
//! on their way are over. (One gap remains. If another client loads the script between two of our
//! calls that are on their way, the second call runs, and the first one runs after it.)

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;

use crate::acknowledgement::Acknowledgement;
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::{Operation, Value};
use crate::shrink::ShrinkIfIdle;

/// The largest number of operations in one call.
// A server runs a call without a break, while all its other clients wait. 256 renewals take about 1
// ms.
pub(crate) const MAX_OPERATIONS: usize = 256;
/// The largest number of bytes in one call. A larger operation is sent alone.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// The largest number of remembered refused names. An operation on any further refused name is sent
/// twice: first with others, and then alone.
const MAX_REFUSED: usize = 1024;

/// The queue of one connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// The renewals, which are sent first.
    renewals: VecDeque<QueuedOperation>,
    others: VecDeque<QueuedOperation>,
    /// The numbers of the calls on their way.
    calls: Vec<u64>,
    /// The number of calls sent so far.
    departed: u64,
    /// Operations that did not run and will be sent again, keyed by the number of their call.
    returned: BTreeMap<u64, Vec<QueuedOperation>>,
    /// Keys for which the server refused an entire call. Operations on them are sent alone.
    refused: HashSet<Vec<u8>>,
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: QueuedOperation) {
        self.queue_for(&waiting).push_back(waiting);
    }

    fn push_front(&mut self, waiting: QueuedOperation) {
        self.queue_for(&waiting).push_front(waiting);
    }

    fn queue_for(&mut self, waiting: &QueuedOperation) -> &mut VecDeque<QueuedOperation> {
        match waiting.operation.step.renews {
            true => &mut self.renewals,
            false => &mut self.others,
        }
    }

    fn pop(&mut self) -> Option<QueuedOperation> {
        let renewal = self.renewals.pop_front();
        renewal.or_else(|| self.others.pop_front())
    }

    /// Returns the number of operations that wait to be sent.
    pub(crate) fn len(&self) -> usize {
        self.renewals.len() + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of calls on their way.
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of calls sent so far.
    pub(crate) fn departed(&self) -> u64 {
        self.departed
    }

    /// Returns whether the first `departed` calls are over.
    pub(crate) fn are_back(&self, departed: u64) -> bool {
        self.calls.iter().all(|call| *call > departed)
    }

    /// Returns whether operations are to be sent again. No call is sent until they are back in the
    /// queue.
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Takes up to `most` operations for the next call, if any may be sent. From here on, the call
    /// counts as under way.
    pub(crate) fn next_batch(&mut self, most: usize) -> Option<Batch> {
        if self.has_returned() {
            return None;
        }
        let operations = self.take_operations(most);
        self.renewals.shrink_if_idle();
        self.others.shrink_if_idle();
        // Check for an empty call before anything is counted: such a call never ends, and `drained`
        // would wait for it.
        let alone = operations.first()?.alone;
        let wanted = operations.iter().find_map(|waiting| waiting.route.wanted());
        self.departed += 1;
        self.calls.push(self.departed);
        Some(Batch {
            number: self.departed,
            operations,
            alone,
            wanted,
        })
    }

    fn take_operations(&mut self, most: usize) -> Vec<QueuedOperation> {
        let mut operations = Vec::new();
        let (mut bytes, mut wanted) = (0, None);
        while let Some(waiting) = self.pop() {
            // An operation that does not fit into this call begins the next one.
            let alone = self.travels_alone(&waiting);
            let full = bytes + waiting.bytes() > MAX_BYTES || operations.len() == most;
            // All confirmations that a call waits for are of one kind. Operations that need no
            // confirmation can join any call.
            let own = waiting.route.wanted();
            let differs = own.is_some() && wanted.is_some() && own != wanted;
            if !operations.is_empty() && (alone || full || differs) {
                self.push_front(waiting);
                break;
            }
            // The waiter has taken the operation out. The operation never ran, so there is nothing
            // to undo.
            if !waiting.ticket.mark_sent() {
                continue;
            }
            bytes += waiting.bytes();
            wanted = wanted.or(own);
            operations.push(waiting);
            if alone {
                break;
            }
        }
        operations
    }

    fn travels_alone(&self, waiting: &QueuedOperation) -> bool {
        waiting.alone
            || !self.refused.is_empty()
                && waiting
                    .operation
                    .keys()
                    .any(|key| self.refused.contains(key))
    }

    /// Takes back a call that the server did not run. Its operations are sent again when all calls
    /// are over.
    pub(crate) fn return_batch(&mut self, batch: Batch) {
        // The calls are ordered by number: a later call may return first, because different tasks
        // read their replies.
        self.returned.insert(batch.number, batch.operations);
    }

    /// Takes back a call that the server did not run because of one of its operations. The
    /// operations are sent again one by one.
    pub(crate) fn return_singly(&mut self, mut batch: Batch) {
        for waiting in &mut batch.operations {
            waiting.alone = true;
        }
        self.return_batch(batch);
    }

    /// Notes that a call is over, or that its operations have returned to be sent again. Returns
    /// `true` if no other call is on its way.
    pub(crate) fn call_is_back(&mut self, number: u64) -> bool {
        self.calls.retain(|call| *call != number);
        // Operations are sent again only now: a later call that is still on its way would run
        // before them.
        if self.calls.is_empty() {
            self.put_back();
        }
        self.calls.is_empty()
    }

    /// Puts the operations that must be sent again before all others, in their old order. An
    /// operation without a waiter is dropped: its undo may have run already.
    pub(crate) fn put_back(&mut self) {
        for operations in std::mem::take(&mut self.returned).into_values().rev() {
            let wanted = operations
                .into_iter()
                .filter(|waiting| waiting.ticket.requeue());
            for waiting in wanted.rev() {
                self.push_front(waiting);
            }
        }
    }

    /// Takes out all operations in the queue.
    pub(crate) fn take_all(&mut self) -> VecDeque<QueuedOperation> {
        let mut all = std::mem::take(&mut self.renewals);
        all.append(&mut self.others);
        all
    }

    /// Takes out the queued operations for which `keep` is false.
    pub(crate) fn take_unless(
        &mut self,
        keep: impl Fn(&Operation) -> bool,
    ) -> VecDeque<QueuedOperation> {
        let all = self.take_all().into_iter();
        let (kept, taken): (VecDeque<_>, _) = all.partition(|waiting| keep(&waiting.operation));
        kept.into_iter().for_each(|waiting| self.push(waiting));
        taken
    }

    /// Remembers a key for which a call was refused before it ran. From here on, operations on it
    /// are sent alone; otherwise the operations in the same call would be sent twice each time.
    pub(crate) fn remember_refused(&mut self, key: &[u8]) {
        if self.refused.len() < MAX_REFUSED {
            self.refused.insert(key.to_vec());
        }
    }

    /// Forgets the refused keys. Called for each new connection, because its user may have other
    /// permissions.
    pub(crate) fn forget_refused(&mut self) {
        self.refused.clear();
    }
}

/// The operations that are sent as one call.
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) operations: Vec<QueuedOperation>,
    /// Whether this is one operation that was refused together with others.
    pub(crate) alone: bool,
    /// The confirmations that the operations in the call need, if any.
    pub(crate) wanted: Option<Acknowledgement>,
}

/// An operation in the queue or on its way.
pub(crate) struct QueuedOperation {
    pub(crate) operation: Operation,
    pub(crate) route: Route,
    ticket: QueueTicket,
    /// Whether the operation was refused together with others.
    alone: bool,
    /// The operation's place among all operations of a cluster, which it keeps from node to node.
    pub(crate) arrival: u64,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// Answers all operations with this failure.
pub(crate) fn fail(operations: impl IntoIterator<Item = QueuedOperation>, failure: &Failure) {
    for waiting in operations {
        waiting.answer(Err(failure.clone()));
    }
}

impl QueuedOperation {
    /// Makes an operation for the queue. Returns it with the ticket and the pending reply for its
    /// waiter.
    pub(crate) fn new(
        operation: Operation,
        route: Route,
        arrival: u64,
    ) -> (Self, QueueTicket, oneshot::Receiver<Result<Value, Failure>>) {
        let ticket = QueueTicket(Arc::new(AtomicU8::new(QUEUED)));
        let (reply, receiver) = oneshot::channel();
        let waiting = Self {
            operation,
            route,
            ticket: ticket.clone(),
            alone: false,
            arrival,
            reply,
        };
        (waiting, ticket, receiver)
    }

    pub(crate) fn answer(self, reply: Result<Value, Failure>) {
        // Sending fails if the waiter has given up. In that case, it has already arranged the undo.
        let _ = self.reply.send(reply);
    }

    /// Marks the operation as sent; returns `false` if its waiter has taken it out.
    pub(crate) fn mark_sent(&self) -> bool {
        self.ticket.mark_sent()
    }

    /// Marks an operation that did not run as queued again; returns `false` if it has no waiter any
    /// more and must not be sent again.
    pub(crate) fn requeue(&self) -> bool {
        self.ticket.is_queued() || self.ticket.requeue()
    }

    fn bytes(&self) -> usize {
        self.operation.parts.size()
    }
}

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const TAKEN_OUT: u8 = 2;
// The operation was sent and has no waiter any more. It is not sent again.
const ABANDONED: u8 = 3;

/// The state of an operation, shared by the queue, its waiter and its undo.
#[derive(Clone)]
pub(crate) struct QueueTicket(Arc<AtomicU8>);

impl QueueTicket {
    /// Marks the operation as sent by the lane, unless it was taken out.
    fn mark_sent(&self) -> bool {
        self.change(QUEUED, SENT)
    }

    /// Marks an operation that did not run as queued again, unless its waiter has given up.
    fn requeue(&self) -> bool {
        self.change(SENT, QUEUED)
    }

    fn is_queued(&self) -> bool {
        self.0.load(Ordering::SeqCst) == QUEUED
    }

    /// Gives up waiting: takes the operation out if it is still queued, and otherwise marks it as
    /// abandoned.
    pub(crate) fn give_up(&self) {
        if !self.change(QUEUED, TAKEN_OUT) {
            // A requeue between the two changes wins: the operation is sent again, and its undo,
            // which is submitted later, runs after it.
            self.change(SENT, ABANDONED);
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        // One atomic change, so that either the lane sends the operation or its waiter takes it
        // out. If both could happen, the operation would run although its undo believed that it
        // never ran.
        self.0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(crate) fn may_have_run(&self) -> bool {
        self.0.load(Ordering::SeqCst) != TAKEN_OUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::step::{LuaFile, Step};

    static LUA: LuaFile = LuaFile::new("");
    static STEP: Step = Step {
        name: "test.step",
        file: &LUA,
        keys: 1,
        many: false,
        own_script: false,
        while_moving: false,
        uses: &[],
        parameters: &["name", "argument"],
        grants: true,
        for_holders: false,
        renews: false,
        twin: |_, _| Ok(Value::Nil),
    };
    static RENEWAL: Step = Step {
        name: "test.renewal",
        renews: true,
        ..STEP
    };

    fn operation(name: &str, argument: &[u8]) -> Operation {
        // The first letter of the name chooses the step.
        let step = if name.starts_with('r') {
            &RENEWAL
        } else {
            &STEP
        };
        Operation::new(step, [name.as_bytes(), argument])
    }

    fn push(queue: &mut Queue, name: &str) -> QueueTicket {
        let (waiting, ticket, _) = QueuedOperation::new(operation(name, b""), Route::Plain, 0);
        queue.push(waiting);
        ticket
    }

    fn queue_of(names: &[&str]) -> Queue {
        let mut queue = Queue::default();
        for name in names {
            push(&mut queue, name);
        }
        queue
    }

    fn names(batch: &Batch) -> Vec<String> {
        let name =
            |waiting: &QueuedOperation| String::from_utf8(waiting.operation.parts.first().to_vec());
        batch
            .operations
            .iter()
            .map(|w| name(w).expect("UTF-8"))
            .collect()
    }

    /// Returns the names in the next call.
    fn next(queue: &mut Queue) -> Vec<String> {
        names(&queue.next_batch(MAX_OPERATIONS).expect("something waits"))
    }

    /// Returns a call with these operations. The call counts as sent.
    fn call_of(queue: &mut Queue, names: &[&str]) -> Batch {
        names.iter().for_each(|name| drop(push(queue, name)));
        queue.next_batch(MAX_OPERATIONS).expect("these")
    }

    #[test]
    fn waiting_operations_leave_as_one_call_in_order() {
        let mut queue = queue_of(&["a", "b", "c"]);
        assert_eq!(next(&mut queue), ["a", "b", "c"]);
        assert!(queue.next_batch(MAX_OPERATIONS).is_none());
        assert_eq!(queue.calls(), 1, "a call of nothing does not count");
    }

    #[test]
    fn excess_operation_starts_the_next_call() {
        let mut queue = Queue::default();
        for n in 0..=MAX_OPERATIONS {
            push(&mut queue, &n.to_string());
        }
        assert_eq!(next(&mut queue).len(), MAX_OPERATIONS);
        assert_eq!(next(&mut queue), [MAX_OPERATIONS.to_string()]);
    }

    #[test]
    fn an_operation_larger_than_a_call_travels_alone() {
        let mut queue = Queue::default();
        for (name, bytes) in [
            ("a", MAX_BYTES / 2),
            ("b", MAX_BYTES / 2 - 2),
            ("c", 1),
            ("d", MAX_BYTES + 1),
            ("e", 1),
        ] {
            queue
                .push(QueuedOperation::new(operation(name, &vec![b'x'; bytes]), Route::Plain, 0).0);
        }
        // The first two operations, with their names of one byte, fill a call to its last byte.
        assert_eq!(next(&mut queue), ["a", "b"]);
        assert_eq!(next(&mut queue), ["c"]);
        assert_eq!(next(&mut queue), ["d"]);
        assert_eq!(next(&mut queue), ["e"]);
    }

    #[test]
    fn returned_operations_regain_their_queue_order() {
        let mut queue = queue_of(&["a", "b"]);
        let first = queue.next_batch(MAX_OPERATIONS).expect("a and b");
        push(&mut queue, "c");
        let second = queue.next_batch(MAX_OPERATIONS).expect("c");
        push(&mut queue, "d");
        // The refusal of the later call may be handled first.
        queue.return_batch(second);
        assert!(
            queue.next_batch(MAX_OPERATIONS).is_none(),
            "d would overtake"
        );
        assert!(!queue.call_is_back(2));
        assert!(
            queue.next_batch(MAX_OPERATIONS).is_none(),
            "the first is on its way"
        );
        queue.return_batch(first);
        assert!(queue.call_is_back(1));
        assert_eq!(next(&mut queue), ["a", "b", "c", "d"]);
    }

    /// Thousands of waiters may have sent requests before the renewal.
    #[test]
    fn renewals_leave_before_what_waits() {
        let mut queue = Queue::default();
        for n in 0..MAX_OPERATIONS {
            push(&mut queue, &n.to_string());
        }
        push(&mut queue, "r1");
        push(&mut queue, "a");
        push(&mut queue, "r2");
        assert_eq!(queue.len(), MAX_OPERATIONS + 3);
        let first = next(&mut queue);
        assert_eq!(first.len(), MAX_OPERATIONS);
        assert_eq!(first[..4], ["r1", "r2", "0", "1"]);
        assert_eq!(next(&mut queue), ["254", "255", "a"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn renewals_that_go_again_leave_first_in_their_order() {
        let mut queue = queue_of(&["a", "r1"]);
        let first = queue.next_batch(MAX_OPERATIONS).expect("both");
        let second = call_of(&mut queue, &["r2", "b"]);
        queue.return_batch(first);
        queue.return_batch(second);
        push(&mut queue, "r3");
        queue.call_is_back(1);
        queue.call_is_back(2);
        assert_eq!(next(&mut queue), ["r1", "r2", "r3", "a", "b"]);
    }

    #[test]
    fn an_operation_without_a_waiter_does_not_leave() {
        let mut queue = queue_of(&["a"]);
        let given_up = push(&mut queue, "b");
        push(&mut queue, "c");
        given_up.give_up();
        assert_eq!(next(&mut queue), ["a", "c"]);
        assert!(!given_up.may_have_run());
    }

    #[test]
    fn operation_abandoned_in_flight_is_not_resent() {
        let mut queue = queue_of(&["a"]);
        let given_up = push(&mut queue, "b");
        push(&mut queue, "c");
        let batch = queue.next_batch(MAX_OPERATIONS).expect("all three");
        given_up.give_up();
        assert!(given_up.may_have_run());
        // The waiter's undo may already be in the queue. If the operation were sent after the undo,
        // the operation would take the lock, which no waiter wants any more.
        queue.return_batch(batch);
        queue.call_is_back(1);
        assert_eq!(next(&mut queue), ["a", "c"]);
    }

    #[test]
    fn operation_abandoned_before_resend_never_ran() {
        let mut queue = Queue::default();
        // The server has said that the operation did not run, so it needs no undo if it is given up
        // now.
        let given_up = push(&mut queue, "a");
        let batch = queue.next_batch(MAX_OPERATIONS).expect("a");
        queue.return_batch(batch);
        queue.call_is_back(1);
        given_up.give_up();
        assert!(queue.next_batch(MAX_OPERATIONS).is_none());
        assert!(!given_up.may_have_run());
    }

    #[test]
    fn operations_refused_together_go_again_one_by_one() {
        let mut queue = queue_of(&["a", "b"]);
        let batch = queue.next_batch(MAX_OPERATIONS).expect("both");
        assert!(!batch.alone);
        queue.return_singly(batch);
        push(&mut queue, "c");
        queue.call_is_back(1);
        for name in ["a", "b"] {
            let batch = queue.next_batch(MAX_OPERATIONS).expect("one of them");
            assert_eq!((names(&batch), batch.alone), (vec![name.into()], true));
        }
        assert_eq!(next(&mut queue), ["c"]);
    }

    #[test]
    fn refused_name_is_isolated_until_reconnect() {
        let mut queue = queue_of(&["a", "b", "c"]);
        queue.remember_refused(b"b");
        assert_eq!(next(&mut queue), ["a"]);
        assert_eq!(next(&mut queue), ["b"]);
        assert_eq!(next(&mut queue), ["c"]);
        queue.forget_refused();
        push(&mut queue, "a");
        push(&mut queue, "b");
        assert_eq!(next(&mut queue), ["a", "b"]);
    }

    #[test]
    fn removing_operations_keeps_the_others_order() {
        let mut queue = queue_of(&["a", "x", "b"]);
        let taken = queue.take_unless(|operation| operation.parts.first() != b"x");
        assert_eq!((taken.len(), queue.len()), (1, 2));
        assert_eq!(next(&mut queue), ["a", "b"]);
    }
}
