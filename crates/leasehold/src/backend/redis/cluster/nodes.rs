//! The map from slots to nodes, and the table of nodes.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::backend::failure::Failure;
use crate::backend::redis::address::Address;
use crate::backend::redis::node::Node;
use crate::backend::redis::reconnect::query_slots;
use crate::backend::redis::server::Server;
use crate::backend::redis::slots::{Range, SLOTS};
use crate::clock::Moment;

/// The time for which a node without slots stays connected.
const UNUSED: Duration = Duration::from_secs(10);

/// The entry of a slot that no node is known to have.
const NO_OWNER: u16 = u16::MAX;

/// The map from slots to the numbers of the nodes that have them.
pub(super) struct SlotMap(Vec<AtomicU16>);

impl Default for SlotMap {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU16::new(NO_OWNER)).collect())
    }
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        // Relaxed is enough, because an operation that is sent to an outdated owner is redirected.
        let owner = self.0[usize::from(slot)].load(Ordering::Relaxed);
        (owner != NO_OWNER).then_some(usize::from(owner))
    }

    /// Sets the owner of a slot. Returns whether that changes anything.
    pub(super) fn set(&self, slot: u16, number: Option<usize>) -> bool {
        let number = number.and_then(|number| u16::try_from(number).ok());
        let number = number.unwrap_or(NO_OWNER);
        self.0[usize::from(slot)].swap(number, Ordering::Relaxed) != number
    }

    /// Replaces the entire map. Each slot belongs to the node given for it, and the other slots
    /// have no node. Returns whether that changes anything.
    pub(super) fn replace(&self, owned: &[(RangeInclusive<u16>, usize)]) -> bool {
        let mut owners = vec![None; usize::from(SLOTS)];
        for (slots, number) in owned {
            let slots = usize::from(*slots.start())..=usize::from(*slots.end());
            owners[slots].fill(Some(*number));
        }
        let mut changed = false;
        for (slot, owner) in (0..).zip(owners) {
            changed |= self.set(slot, owner);
        }
        changed
    }

    /// Returns the nodes that have slots, in the order of their numbers.
    pub(super) fn owners(&self) -> Vec<usize> {
        let owners = (0..SLOTS).filter_map(|slot| self.owner(slot));
        let owners: BTreeSet<_> = owners.collect();
        owners.into_iter().collect()
    }

    fn has_slots(&self, number: usize) -> bool {
        (0..SLOTS).any(|slot| self.owner(slot) == Some(number))
    }
}

/// The nodes by their numbers. The number of a removed node is reused.
#[derive(Default)]
pub(super) struct Nodes(Vec<Option<NodeEntry>>);

struct NodeEntry {
    server: Arc<Server>,
    /// The time since which the node has been known to have no slot.
    unused_since: Option<Moment>,
}

impl Nodes {
    pub(super) fn get(&self, number: usize) -> Option<Arc<Server>> {
        let entry = self.0.get(number)?.as_ref()?;
        Some(Arc::clone(&entry.server))
    }

    /// Returns the node at this address, and counts it as used.
    pub(super) fn find(&mut self, address: &Address) -> Option<(usize, Arc<Server>)> {
        let nodes = self.0.iter_mut().enumerate();
        let mut nodes = nodes.filter_map(|(number, entry)| Some((number, entry.as_mut()?)));
        let (number, entry) = nodes.find(|(_, entry)| {
            entry.server.node.connector.address.identity() == address.identity()
        })?;
        entry.unused_since = None;
        Some((number, Arc::clone(&entry.server)))
    }

    pub(super) fn add(&mut self, start: impl FnOnce(usize) -> Server) -> (usize, Arc<Server>) {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or(self.0.len());
        let server = Arc::new(start(number));
        let entry = NodeEntry {
            server: Arc::clone(&server),
            unused_since: None,
        };
        match free {
            Some(number) => self.0[number] = Some(entry),
            None => self.0.push(Some(entry)),
        }
        (number, server)
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &NodeEntry)> {
        let nodes = self.0.iter().enumerate();
        nodes.filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    /// Returns any node. There is always at least one.
    pub(super) fn any(&self) -> Arc<Server> {
        let (_, entry) = self.iter().next().expect("the seeds are nodes");
        Arc::clone(&entry.server)
    }

    pub(super) fn shuffled(&self) -> Vec<Arc<Server>> {
        let mut servers: Vec<_> = self.all().into_iter().map(|(_, server)| server).collect();
        fastrand::shuffle(&mut servers);
        servers
    }

    /// Removes and returns the nodes that have had no slot for a while.
    pub(super) fn take_unused(&mut self, map: &SlotMap, now: Moment) -> Vec<Arc<Server>> {
        let mut removed = Vec::new();
        let mut remaining = self.iter().count();
        for (number, slot) in self.0.iter_mut().enumerate() {
            let Some(entry) = slot else { continue };
            let since = match map.has_slots(number) {
                true => None,
                false => Some(*entry.unused_since.get_or_insert(now)),
            };
            entry.unused_since = since;
            let is_over = since.is_some_and(|since| now.saturating_sub(since) > UNUSED);
            // One node is kept even without slots, because it can report when the cluster has other
            // nodes again.
            if is_over && remaining > 1 {
                remaining -= 1;
                removed.extend(slot.take().map(|entry| entry.server));
            }
        }
        removed
    }

    pub(super) fn all(&self) -> Vec<(usize, Arc<Server>)> {
        let all = self.iter();
        all.map(|(number, entry)| (number, Arc::clone(&entry.server)))
            .collect()
    }

    /// Allows operations with undeclared keys on all nodes again. A node that seemed to want
    /// declared keys may have refused for another reason.
    pub(super) fn try_undeclared_keys_again(&self) {
        for (_, entry) in self.iter() {
            entry.server.node.set_wants_declared_keys(false);
        }
    }
}

/// A node to ask for the map.
pub(super) struct MapQuery {
    node: Arc<Node>,
    connection: MultiplexedConnection,
}

impl MapQuery {
    /// Returns `None` while there is no connection to the node.
    pub(super) fn of(server: &Server) -> Option<Self> {
        let connection = server.lane.connection()?;
        Some(Self {
            node: Arc::clone(&server.node),
            connection,
        })
    }

    pub(super) async fn run(self) -> Result<(Address, Vec<Range>), Failure> {
        let ranges = query_slots(&self.node, self.connection).await?;
        Ok((self.node.connector.address.clone(), ranges))
    }
}
