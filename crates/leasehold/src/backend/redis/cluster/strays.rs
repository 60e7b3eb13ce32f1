//! Operations that a node did not run, because it does not have their slot, or not wholly. Those of
//! one slot stand in a line, in the order in which they came, and go to the node of the slot one by
//! one, with their keys declared, so that each node says where the keys are. While there is such a
//! line, new operations of the slot join it.
//!
//! An operation that can't run now steps aside and is tried again: a release that needs all keys of
//! its slot in one place must not hold up a renewal that needs only its own.
//!
//! (One gap is left: an operation that was handed to its node while the line began, or to the new
//! node before the old one's refusal was read, may overtake those in the line. An acquire that was
//! given up does not run behind its own release: it does not go again when nobody waits for it any
//! more.)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Cluster;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::redis::call::Stray;
use crate::backend::redis::lane::{Lane, Lone, Queued};
use crate::backend::redis::queue::Waiting;
use crate::backend::redis::server::Server;
use crate::backend::redis::slots::read_redirect;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::observe::log;
use crate::sync::Mutex;

/// From how many nodes to how many others an operation goes before it steps aside.
const MAX_REDIRECTS: usize = 5;
/// The first pause of one that stepped aside, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often it is looked whether a new node is connected.
const CONNECTING: Duration = Duration::from_millis(5);
/// So many operations in a row that ran at once when their keys were declared, on a node that had
/// refused them before: it wants that for all.
const DECLARED_IN_A_ROW: u32 = 3;

/// The operations of one slot, in the order in which they came.
type Line = BTreeMap<u64, Waiting>;

/// The lines of all slots that have one.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<HashMap<u16, Line>>,
    /// How many there are.
    count: AtomicUsize,
    arrivals: AtomicU64,
}

impl Lines {
    pub(super) fn are_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(super) fn next_arrival(&self) -> u64 {
        1 + self.arrivals.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts the operation into the slot's line; gives it back if there is none.
    pub(super) fn join(
        &self,
        slot: u16,
        (operation, route): (Operation, Route),
        arrival: u64,
        lane: &Arc<Lane>,
    ) -> Result<Queued, Operation> {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&slot) else {
            return Err(operation);
        };
        let (waiting, queued) = Queued::new(operation, route, arrival, Arc::clone(lane));
        line.insert(arrival, waiting);
        Ok(queued)
    }

    /// Whether the line is new, so that somebody has to see to it.
    fn add(&self, slot: u16, stray: Waiting) -> bool {
        let mut lines = self.lines.lock();
        let is_new = !lines.contains_key(&slot);
        lines.entry(slot).or_default().insert(stray.arrival, stray);
        self.count.fetch_add(usize::from(is_new), Ordering::SeqCst);
        is_new
    }

    /// The next one of a line, which ends when there is none.
    fn next(&self, slot: u16) -> Option<Waiting> {
        let mut lines = self.lines.lock();
        let next = lines.get_mut(&slot)?.pop_first();
        if next.is_none() {
            self.end(&mut lines, slot);
        }
        next.map(|(_, waiting)| waiting)
    }

    /// One of those that are next.
    fn key_of_next(&self, slot: u16) -> Option<Vec<u8>> {
        let lines = self.lines.lock();
        let (_, next) = lines.get(&slot)?.first_key_value()?;
        Some(next.operation.parts.first().to_vec())
    }

    /// Ends the line: all that stand in it go to this node.
    fn hand_over(&self, slot: u16, server: &Server) {
        let mut lines = self.lines.lock();
        if let Some(line) = self.end(&mut lines, slot) {
            // With the lines locked: an operation that comes now finds no line, and must not be
            // queued before these.
            let is_plain = |waiting: &Waiting| waiting.route == Route::Plain;
            let (plain, others): (Vec<_>, Vec<_>) = line.into_values().partition(is_plain);
            server.lane.take_over(plain);
            if let Some(first) = others.first() {
                server.lane_of(first.route).take_over(others);
            }
        }
    }

    fn end(&self, lines: &mut HashMap<u16, Line>, slot: u16) -> Option<Line> {
        let ended = lines.remove(&slot)?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(ended)
    }
}

impl Cluster {
    /// This did not run, or can't be sent yet.
    pub(super) fn add_stray(&self, from: Option<&Arc<Lane>>, slot: u16, stray: Waiting) {
        if self.lines.add(slot, stray)
            && let Some(this) = self.this.upgrade()
        {
            let seen_to = see_to(this, slot, from.cloned());
            self.shared.runtime.spawn(seen_to);
        }
    }

    /// Sends an operation to the node of its slot, and after it where that leads. Gives it back,
    /// with the reason, if it can't run now. Returns the node that has run it, if the slot is that
    /// one's.
    async fn try_now(
        &self,
        slot: u16,
        mut waiting: Waiting,
        first: &mut Option<Arc<Lane>>,
    ) -> Result<Option<Arc<Server>>, (Waiting, Failure)> {
        let (mut server, mut asking) = (self.owner(slot), false);
        let mut why = self.nobody_has(slot);
        for _ in 0..MAX_REDIRECTS {
            let Some(at) = &server else {
                return Err((waiting, why));
            };
            let stray;
            match at.lane_of(waiting.route).send_alone(waiting, asking).await {
                Lone::Left => return Ok(None),
                Lone::Answered => {
                    self.ran_at(at, first.take());
                    return Ok(server.filter(|_| !asking));
                }
                Lone::Unconnected(back, Some(failure)) => return Err((back, failure)),
                Lone::Unconnected(back, None) => {
                    waiting = back;
                    tokio::time::sleep(CONNECTING).await;
                    continue;
                }
                Lone::Strayed(back, why) => (waiting, stray) = (back, why),
            }
            *first = None;
            match stray {
                Stray::Later(said) => return Err((waiting, self.refused(at, slot, &said))),
                Stray::Ask(_) if !waiting.operation.step.while_moving => {
                    return Err((waiting, self.refused(at, slot, "TRYAGAIN")));
                }
                Stray::Ask(to) => {
                    why = self.in_circles(at, slot, &to);
                    (server, asking) = (self.redirected(at, &to).map(|(_, to)| to), true);
                }
                Stray::Moved(to) => {
                    why = self.in_circles(at, slot, &to);
                    let found = self.redirected(at, &to);
                    if let Some((number, _)) = &found {
                        self.map.set(slot, Some(*number));
                    }
                    self.common.look_at_slots();
                    (server, asking) = (found.map(|(_, to)| to), false);
                }
            }
        }
        Err((waiting, why))
    }

    /// The node to which `to` leads, if it is the address of one.
    fn redirected(&self, from: &Server, to: &str) -> Option<(usize, Arc<Server>)> {
        let (host, port) = read_redirect(to)?;
        let address = &from.node.connector.address;
        let host = match &host {
            Some(host) => host,
            None => address.unmapped_host()?,
        };
        Some(self.node_told_by(address, host, port))
    }

    /// An operation that `refused_by` had refused without declared keys ran here at once.
    fn ran_at(&self, server: &Server, refused_by: Option<Arc<Lane>>) {
        let is_this = |by: Arc<Lane>| server.lanes().any(|lane| Arc::ptr_eq(&by, lane));
        if refused_by.is_some_and(is_this) && server.node.ran_when_declared() == DECLARED_IN_A_ROW {
            server.node.set_wants_declared_keys(true);
            log(|| {
                tracing::warn!(
                    address = %server.node.address(),
                    "this node of the cluster runs no script whose keys are not declared; each operation is sent to it alone, which is slower"
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

    fn nobody_has(&self, slot: u16) -> Failure {
        if !self.has_map() {
            return self.nobody_has_answered();
        }
        let what = format!("no node of the cluster is known to have its slot, {slot}");
        Failure::new(
            Outcome::DidNotRun,
            Cause::NotNow(what),
            Arc::clone(&self.shown),
        )
    }

    fn in_circles(&self, server: &Server, slot: u16, to: &str) -> Failure {
        let to = crate::text::Shown(to);
        let what =
            format!("the nodes do not agree on who has its slot, {slot}; this one names `{to}`");
        let address = server.node.address();
        Failure::new(Outcome::DidNotRun, Cause::NotNow(what), address)
    }
}

/// Sends the operations of a slot's line on, one after the other.
async fn see_to(cluster: Arc<Cluster>, slot: u16, from: Option<Arc<Lane>>) {
    if let Some(from) = &from {
        // Operations that came before these may come back with a later call.
        from.earlier_calls_are_back().await;
    }
    while let Some(waiting) = cluster.lines.next(slot) {
        let mut first = from.clone();
        match cluster.try_now(slot, waiting, &mut first).await {
            Err((waiting, failure)) => {
                let aside = step_aside(Arc::clone(&cluster), slot, waiting, failure);
                cluster.shared.runtime.spawn(aside);
            }
            Ok(Some(server)) => {
                // The others need not go one by one if the slot is settled.
                if let Some(key) = cluster.lines.key_of_next(slot)
                    && !server.node.wants_declared_keys()
                    && server.lane.has_whole_slot_of(&key).await
                {
                    cluster.lines.hand_over(slot, &server);
                }
            }
            Ok(None) => {}
        }
    }
}

/// Tries an operation again until it runs, or the time for a reply is over. If the map was never
/// learned, the end is what the nodes say of that from now on, as the failed connection to a single
/// server is.
async fn step_aside(cluster: Arc<Cluster>, slot: u16, waiting: Waiting, failure: Failure) {
    let clock = cluster.common.clock;
    let began = clock.now();
    let until = began + cluster.common.reply_timeout;
    let mut pause = FIRST_PAUSE;
    let mut left = (waiting, failure);
    loop {
        if let Some(failure) = cluster.why_no_map(began) {
            return left.0.answer(Err(failure));
        }
        if clock.now() >= until {
            let (waiting, failure) = left;
            return waiting.answer(Err(failure));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        cluster.common.look_at_slots();
        match cluster.try_now(slot, left.0, &mut None).await {
            Ok(_) => return,
            Err(again) => left = again,
        }
    }
}
