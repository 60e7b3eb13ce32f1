//! Operations that a node did not run, because it lacks their slot or some of the slot's keys. The
//! operations of one slot form a queue, in order of arrival. They are sent one by one to the node
//! that has the slot, with their keys declared, so that each node's reply shows where the keys are.
//! While a slot has a queue, new operations of the slot join it.
//!
//! An operation that can't run now leaves the queue and is retried later. A release that needs all
//! keys of its slot on one node must not delay a renewal that needs only its own key.
//!
//! (One gap remains. An operation may overtake the queue if it was sent to its node just as the
//! queue began, or to the new node before the old node's refusal was read. Even so, an abandoned
//! acquire does not run after its own release: an acquire without a waiter is not sent again.)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Cluster;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::redis::call::Redirect;
use crate::backend::redis::lane::{Lane, QueuedReply, SentAlone};
use crate::backend::redis::queue::{QueuedOperation, fail};
use crate::backend::redis::server::Server;
use crate::backend::redis::slots::read_redirect;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::observe::log;
use crate::sync::Mutex;

/// The number of nodes that an operation is sent to before it is retried later.
const MAX_REDIRECTS: usize = 5;
/// The first and the longest delay before such a retry.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The delay between two checks whether a new node is connected.
const CONNECTING: Duration = Duration::from_millis(5);
/// The number of operations in a row after which all keys are declared to a node: operations that
/// the node refused with undeclared keys, and then ran at the first attempt with declared keys.
const DECLARED_IN_A_ROW: u32 = 3;

/// The operations of one slot, in order of arrival.
type SlotQueue = BTreeMap<u64, QueuedOperation>;

/// The queues of all slots that have one.
#[derive(Default)]
pub(super) struct SlotQueues {
    queues: Mutex<HashMap<u16, SlotQueue>>,
    /// The number of queues.
    count: AtomicUsize,
    arrivals: AtomicU64,
}

impl SlotQueues {
    pub(super) fn are_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(super) fn next_arrival(&self) -> u64 {
        1 + self.arrivals.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts the operation into the slot's queue. Returns the operation if the slot has no queue.
    pub(super) fn join(
        &self,
        slot: u16,
        (operation, route): (Operation, Route),
        arrival: u64,
        lane: &Arc<Lane>,
    ) -> Result<QueuedReply, Operation> {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&slot) else {
            return Err(operation);
        };
        let (waiting, queued) = QueuedReply::new(operation, route, arrival, Arc::clone(lane));
        queue.insert(arrival, waiting);
        Ok(queued)
    }

    /// Adds an operation to the slot's queue. Returns whether the queue is new, so that a task must
    /// drain it.
    fn add(&self, slot: u16, redirected: QueuedOperation) -> bool {
        let mut queues = self.queues.lock();
        let is_new = !queues.contains_key(&slot);
        queues
            .entry(slot)
            .or_default()
            .insert(redirected.arrival, redirected);
        self.count.fetch_add(usize::from(is_new), Ordering::SeqCst);
        is_new
    }

    /// Takes the next operation of a queue. Removes the queue if it is empty.
    fn next(&self, slot: u16) -> Option<QueuedOperation> {
        let mut queues = self.queues.lock();
        let next = queues.get_mut(&slot)?.pop_first();
        if next.is_none() {
            self.end(&mut queues, slot);
        }
        next.map(|(_, waiting)| waiting)
    }

    /// Returns the key of the next operation of a queue.
    fn key_of_next(&self, slot: u16) -> Option<Vec<u8>> {
        let queues = self.queues.lock();
        let (_, next) = queues.get(&slot)?.first_key_value()?;
        Some(next.operation.parts.first().to_vec())
    }

    /// Ends the slot's queue: moves all of its operations to the queues of this node's lanes.
    fn move_to(&self, slot: u16, server: &Server) {
        let mut queues = self.queues.lock();
        if let Some(queue) = self.end(&mut queues, slot) {
            // Move the operations under the lock of the queues: an operation that arrives now finds
            // no slot queue, and must not be queued in the lane before these operations.
            let is_plain = |waiting: &QueuedOperation| waiting.route == Route::Plain;
            let (plain, others): (Vec<_>, Vec<_>) = queue.into_values().partition(is_plain);
            server.lane.take_over(plain);
            if let Some(first) = others.first() {
                server.lane_of(first.route).take_over(others);
            }
        }
    }

    fn end(&self, queues: &mut HashMap<u16, SlotQueue>, slot: u16) -> Option<SlotQueue> {
        let ended = queues.remove(&slot)?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(ended)
    }
}

impl Cluster {
    /// Adds an operation that did not run, or can't be sent yet, to the queue of its slot.
    pub(super) fn add_redirected(
        &self,
        from: Option<&Arc<Lane>>,
        slot: u16,
        redirected: QueuedOperation,
    ) {
        if self.slot_queues.add(slot, redirected)
            && let Some(this) = self.this.upgrade()
        {
            let drain = Drain {
                cluster: this,
                slot,
                is_done: false,
            };
            // If the runtime has ended, the task is dropped at once.
            self.shared.runtime.spawn(drain.run(from.cloned()));
        }
    }

    /// Sends an operation to the node of its slot, and then to the nodes to which the replies
    /// redirect it. If the operation can't run now, returns it with the reason. Otherwise returns
    /// the node that has run it, if that node has the slot.
    async fn try_now(
        &self,
        slot: u16,
        mut waiting: QueuedOperation,
        first: &mut Option<Arc<Lane>>,
    ) -> Result<Option<Arc<Server>>, (QueuedOperation, Failure)> {
        let (mut server, mut asking) = (self.owner(slot), false);
        let mut why = self.no_known_owner(slot);
        for _ in 0..MAX_REDIRECTS {
            let Some(at) = &server else {
                return Err((waiting, why));
            };
            let redirect;
            match at.lane_of(waiting.route).send_alone(waiting, asking).await {
                SentAlone::Abandoned => return Ok(None),
                SentAlone::Answered => {
                    self.ran_at(at, first.take());
                    return Ok(server.filter(|_| !asking));
                }
                SentAlone::Unconnected(back, Some(failure)) => return Err((back, failure)),
                SentAlone::Unconnected(back, None) => {
                    waiting = back;
                    tokio::time::sleep(CONNECTING).await;
                    continue;
                }
                SentAlone::Redirected(back, why) => (waiting, redirect) = (back, why),
            }
            *first = None;
            match redirect {
                Redirect::Later(said) => return Err((waiting, self.refused(at, slot, &said))),
                Redirect::Ask(_) if !waiting.operation.step.while_moving => {
                    return Err((waiting, self.refused(at, slot, "TRYAGAIN")));
                }
                Redirect::Ask(to) => {
                    why = self.redirect_loop(at, slot, &to);
                    (server, asking) = (self.redirect_target(at, &to).map(|(_, to)| to), true);
                }
                Redirect::Moved(to) => {
                    why = self.redirect_loop(at, slot, &to);
                    let found = self.redirect_target(at, &to);
                    if let Some((number, _)) = &found {
                        self.map.set(slot, Some(*number));
                    }
                    self.common.request_map_refresh();
                    (server, asking) = (found.map(|(_, to)| to), false);
                }
            }
        }
        Err((waiting, why))
    }

    /// Returns the node at the address `to`, if `to` is an address.
    fn redirect_target(&self, from: &Server, to: &str) -> Option<(usize, Arc<Server>)> {
        let (host, port) = read_redirect(to)?;
        let address = &from.node.connector.address;
        let host = match &host {
            Some(host) => host,
            None => address.unmapped_host()?,
        };
        Some(self.node_announced_by(address, host, port))
    }

    /// Notes that `server` ran an operation at the first attempt with declared keys, after
    /// `refused_by` had refused it with undeclared keys.
    fn ran_at(&self, server: &Server, refused_by: Option<Arc<Lane>>) {
        let is_this = |by: Arc<Lane>| server.lanes().any(|lane| Arc::ptr_eq(&by, lane));
        if refused_by.is_some_and(is_this) && server.node.ran_when_declared() == DECLARED_IN_A_ROW {
            server.node.set_wants_declared_keys(true);
            log(|| {
                tracing::warn!(
                    address = %server.node.address(),
                    "this node of the cluster runs only scripts that declare their keys; each operation is sent to it in a separate call, which is slower"
                )
            });
        }
    }

    fn refused(&self, server: &Server, slot: u16, said: &str) -> Failure {
        let address = &server.node.address();
        if said.starts_with("TRYAGAIN") {
            let what = format!(
                "its slot, {slot}, is moving to another node, and its keys are on two nodes until that is done"
            );
            return Failure::new(Outcome::DidNotRun, Cause::NotNow(what), Arc::clone(address));
        }
        Failure::from_reply(said, address)
    }

    fn no_known_owner(&self, slot: u16) -> Failure {
        if !self.has_map() {
            return self.no_node_answered();
        }
        let what = format!("no node of the cluster is known to have its slot, {slot}");
        Failure::new(
            Outcome::DidNotRun,
            Cause::NotNow(what),
            Arc::clone(&self.shown),
        )
    }

    fn redirect_loop(&self, server: &Server, slot: u16, to: &str) -> Failure {
        let to = crate::text::Shown(to);
        let what = format!(
            "the nodes do not agree on which of them has its slot, {slot}; this one names `{to}`"
        );
        let address = server.node.address();
        Failure::new(Outcome::DidNotRun, Cause::NotNow(what), address)
    }
}

/// The task that sends the operations of a slot's queue. If the runtime ends, the task is dropped
/// before the queue is empty. The rest of the queue then fails, because no other task would drain
/// it.
struct Drain {
    cluster: Arc<Cluster>,
    slot: u16,
    /// Whether the queue has ended. If it has, the slot may already have another queue.
    is_done: bool,
}

impl Drain {
    /// Sends the operations one after the other.
    async fn run(mut self, from: Option<Arc<Lane>>) {
        let (cluster, slot) = (Arc::clone(&self.cluster), self.slot);
        if let Some(from) = &from {
            // The calls on their way may return operations that arrived earlier than those in the
            // queue.
            from.earlier_calls_are_back().await;
        }
        while let Some(waiting) = cluster.slot_queues.next(slot) {
            let mut first = from.clone();
            match cluster.try_now(slot, waiting, &mut first).await {
                Err((waiting, failure)) => {
                    let retried = retry_later(Arc::clone(&cluster), slot, waiting, failure);
                    cluster.shared.runtime.spawn(retried);
                }
                Ok(Some(server)) => {
                    // If the slot is not moving, the rest of the queue need not be sent one by one.
                    if let Some(key) = cluster.slot_queues.key_of_next(slot)
                        && !server.node.wants_declared_keys()
                        && server.lane.has_complete_slot_of(&key).await
                    {
                        cluster.slot_queues.move_to(slot, &server);
                        break;
                    }
                }
                Ok(None) => {}
            }
        }
        self.is_done = true;
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let queues = &self.cluster.slot_queues;
        let rest = queues.end(&mut queues.queues.lock(), self.slot);
        let shown = Arc::clone(&self.cluster.shown);
        let ended = Failure::runtime_ended(Outcome::DidNotRun, shown);
        fail(rest.into_iter().flat_map(BTreeMap::into_values), &ended);
    }
}

/// Retries an operation until it runs, or until the reply timeout has passed. If no node has ever
/// sent the map, the operation fails as soon as the nodes report why, like an operation for a
/// single server that can't be reached.
async fn retry_later(cluster: Arc<Cluster>, slot: u16, waiting: QueuedOperation, failure: Failure) {
    let clock = cluster.common.clock;
    let began = clock.now();
    let until = began + cluster.common.reply_timeout;
    let mut pause = FIRST_PAUSE;
    let mut failed = (waiting, failure);
    loop {
        if let Some(failure) = cluster.why_no_map(began) {
            return failed.0.answer(Err(failure));
        }
        if clock.now() >= until {
            let (waiting, failure) = failed;
            return waiting.answer(Err(failure));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        cluster.common.request_map_refresh();
        match cluster.try_now(slot, failed.0, &mut None).await {
            Ok(_) => return,
            Err(again) => failed = again,
        }
    }
}
