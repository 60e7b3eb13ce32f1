//! The operations that wait for one connection, in order of arrival. Pure data: it knows no
//! connection and no clock, and nothing in it waits. Operations leave it a call at a time.
//!
//! Renewals alone leave before what came earlier: thousands of waiters may ask at the same time, and a
//! hold must not end behind them. That is safe because nothing that came earlier has to run before a
//! renewal. A hold is renewed once its grant was answered. A release ends the renewals before it is
//! queued (`guard.rs`), so one that leaves before it makes the hold longer for a moment only. What puts
//! a hold into another form, or another hold into its place, stops its renewals until it was answered
//! (`rw/guard.rs`, `exchange.rs`), and so does what makes a hold shorter (`Share::keep_for`). Among
//! themselves renewals keep their order.
//!
//! Operations that the server did not run, because it had forgotten the script or refused a call
//! as a whole, are sent again in their old place: nothing leaves until the calls on their way are
//! back. (One gap is left: if another client brings the script between two calls of ours that
//! are on their way, the second one runs and the first one behind it.)

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;

use crate::acknowledgement::Acknowledgement;
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::{Operation, Value};
use crate::room::Room;

/// Most operations in one call.
// A server runs a call without a break, and all its other clients wait meanwhile: 256 renewals take
// it about 1 ms.
pub(crate) const MAX_OPERATIONS: usize = 256;
/// Most bytes in one call. An operation over it travels alone.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Most names that are known to be refused. Those beyond are sent twice, as each was at first.
const MAX_REFUSED: usize = 1024;

/// The queue of one connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// They leave first.
    renewals: VecDeque<Waiting>,
    waiting: VecDeque<Waiting>,
    /// The numbers of the calls on their way.
    calls: Vec<u64>,
    /// How many calls have left so far.
    departed: u64,
    /// Operations that did not run and are sent again, by the number of their call.
    returned: BTreeMap<u64, Vec<Waiting>>,
    /// Keys for which the server refused a whole call; operations on them travel alone.
    refused: HashSet<Vec<u8>>,
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.line_of(&waiting).push_back(waiting);
    }

    fn push_front(&mut self, waiting: Waiting) {
        self.line_of(&waiting).push_front(waiting);
    }

    fn line_of(&mut self, waiting: &Waiting) -> &mut VecDeque<Waiting> {
        match waiting.operation.step.renews {
            true => &mut self.renewals,
            false => &mut self.waiting,
        }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let renewal = self.renewals.pop_front();
        renewal.or_else(|| self.waiting.pop_front())
    }

    /// How many wait to leave.
    pub(crate) fn len(&self) -> usize {
        self.renewals.len() + self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls are on their way.
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// How many calls have left so far.
    pub(crate) fn departed(&self) -> u64 {
        self.departed
    }

    /// Whether the first so many calls are back.
    pub(crate) fn are_back(&self, departed: u64) -> bool {
        self.calls.iter().all(|call| *call > departed)
    }

    /// Whether operations are to go again. Until then none leaves.
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// The operations of the next call, if any may leave: at most so many. The call is on its way
    /// from here on.
    pub(crate) fn next_batch(&mut self, most: usize) -> Option<Batch> {
        if self.has_returned() {
            return None;
        }
        let operations = self.take_operations(most);
        self.renewals.give_back();
        self.waiting.give_back();
        // Before anything is counted: a call of nothing never ends, and `drained` would wait for
        // it.
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

    fn take_operations(&mut self, most: usize) -> Vec<Waiting> {
        let mut operations = Vec::new();
        let (mut bytes, mut wanted) = (0, None);
        while let Some(waiting) = self.pop() {
            // One that does not fit opens the next call.
            let alone = self.travels_alone(&waiting);
            let full = bytes + waiting.bytes() > MAX_BYTES || operations.len() == most;
            // A call is confirmed in one way. Operations that need no confirmation go with any call.
            let own = waiting.route.wanted();
            let differs = own.is_some() && wanted.is_some() && own != wanted;
            if !operations.is_empty() && (alone || full || differs) {
                self.push_front(waiting);
                break;
            }
            // Its waiter has taken it out: it never ran, so nothing undoes it.
            if !waiting.ticket.send() {
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

    fn travels_alone(&self, waiting: &Waiting) -> bool {
        waiting.alone
            || !self.refused.is_empty()
                && waiting
                    .operation
                    .keys()
                    .any(|key| self.refused.contains(key))
    }

    /// The server did not run this call. Its operations go again when all calls are back.
    pub(crate) fn return_batch(&mut self, batch: Batch) {
        // By its number: two calls are read by two tasks, so the later call may come back first.
        self.returned.insert(batch.number, batch.operations);
    }

    /// The server did not run this call, because of one of its operations: they go again one by
    /// one.
    pub(crate) fn return_singly(&mut self, mut batch: Batch) {
        for waiting in &mut batch.operations {
            waiting.alone = true;
        }
        self.return_batch(batch);
    }

    /// A call is over, or went again. `true` if no other one is on its way.
    pub(crate) fn call_is_back(&mut self, number: u64) -> bool {
        self.calls.retain(|call| *call != number);
        // Only now are operations sent again: a later call that is still on its way would run
        // before them.
        if self.calls.is_empty() {
            self.put_back();
        }
        self.calls.is_empty()
    }

    /// Operations that are sent again come before all others, in their old order. One that nobody
    /// waits for any more stays out: its undo may have run meanwhile.
    pub(crate) fn put_back(&mut self) {
        for operations in std::mem::take(&mut self.returned).into_values().rev() {
            let wanted = operations
                .into_iter()
                .filter(|waiting| waiting.ticket.recall());
            for waiting in wanted.rev() {
                self.push_front(waiting);
            }
        }
    }

    /// Takes out all operations that wait.
    pub(crate) fn take_all(&mut self) -> VecDeque<Waiting> {
        let mut all = std::mem::take(&mut self.renewals);
        all.append(&mut self.waiting);
        all
    }

    /// Takes out the waiting operations for which `stays` is false.
    pub(crate) fn take_unless(&mut self, stays: impl Fn(&Operation) -> bool) -> VecDeque<Waiting> {
        let all = self.take_all().into_iter();
        let (kept, taken): (VecDeque<_>, _) = all.partition(|waiting| stays(&waiting.operation));
        kept.into_iter().for_each(|waiting| self.push(waiting));
        taken
    }

    /// A call for this key alone was refused before it ran. It travels alone from here on, or the
    /// operations that it shares a call with would be sent twice each time.
    pub(crate) fn remember_refused(&mut self, key: &[u8]) {
        if self.refused.len() < MAX_REFUSED {
            self.refused.insert(key.to_vec());
        }
    }

    /// Another connection is up: its user may have other permissions.
    pub(crate) fn forget_refused(&mut self) {
        self.refused.clear();
    }
}

/// What travels as one call.
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) operations: Vec<Waiting>,
    /// One operation, which was refused together with others.
    pub(crate) alone: bool,
    /// Who has to confirm those of its operations that need it.
    pub(crate) wanted: Option<Acknowledgement>,
}

/// An operation in the queue or on its way.
pub(crate) struct Waiting {
    pub(crate) operation: Operation,
    pub(crate) route: Route,
    ticket: Ticket,
    /// It was refused together with others.
    alone: bool,
    /// Its place among all operations of a cluster, which it keeps from node to node.
    pub(crate) arrival: u64,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

impl Waiting {
    /// An operation for the queue, with the ticket and the reply to come for its waiter.
    pub(crate) fn new(
        operation: Operation,
        route: Route,
        arrival: u64,
    ) -> (Self, Ticket, oneshot::Receiver<Result<Value, Failure>>) {
        let ticket = Ticket(Arc::new(AtomicU8::new(QUEUED)));
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
        // The waiter may be gone. Then it has seen to the undo.
        let _ = self.reply.send(reply);
    }

    /// It is about to be sent; `false` if its waiter has taken it out.
    pub(crate) fn leaves(&self) -> bool {
        self.ticket.send()
    }

    /// It did not run; `false` if nobody waits for it any more, so that it must not go again.
    pub(crate) fn goes_again(&self) -> bool {
        self.ticket.is_queued() || self.ticket.recall()
    }

    fn bytes(&self) -> usize {
        self.operation.parts.size()
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

    fn is_queued(&self) -> bool {
        self.0.load(Ordering::SeqCst) == QUEUED
    }

    /// Nobody waits any more: taken out if it is still queued, else marked.
    pub(crate) fn give_up(&self) {
        if !self.change(QUEUED, TAKEN_OUT) {
            // A recall between the two exchanges wins: the operation goes again, and its undo,
            // which is submitted later, runs behind it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::step::Step;

    static STEP: Step = Step {
        name: "test.step",
        lua: "",
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
        // By the first letter of the name.
        let step = if name.starts_with('r') {
            &RENEWAL
        } else {
            &STEP
        };
        Operation::new(step, [name.as_bytes(), argument])
    }

    fn push(queue: &mut Queue, name: &str) -> Ticket {
        let (waiting, ticket, _) = Waiting::new(operation(name, b""), Route::Plain, 0);
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
        let name = |waiting: &Waiting| String::from_utf8(waiting.operation.parts.first().to_vec());
        batch
            .operations
            .iter()
            .map(|w| name(w).expect("UTF-8"))
            .collect()
    }

    /// The names of the next call.
    fn next(queue: &mut Queue) -> Vec<String> {
        names(&queue.next_batch(MAX_OPERATIONS).expect("something waits"))
    }

    /// A call of these, which leaves.
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
            queue.push(Waiting::new(operation(name, &vec![b'x'; bytes]), Route::Plain, 0).0);
        }
        // With their names of one byte the first two fill a call to its last byte.
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
        // The later call may be the first that the server has refused.
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

    /// Thousands of waiters may ask before it.
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
        // Its waiter's undo may be in the queue by now. Sent behind that, it would take the lock
        // for nobody.
        queue.return_batch(batch);
        queue.call_is_back(1);
        assert_eq!(next(&mut queue), ["a", "c"]);
    }

    #[test]
    fn operation_abandoned_before_resend_never_ran() {
        let mut queue = Queue::default();
        // The server has said that it did not run: given up now, it needs no undo.
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
