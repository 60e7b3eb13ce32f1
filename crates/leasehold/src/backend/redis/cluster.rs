//! A cluster: the map from slots to nodes, and the nodes, each with its own connections.
//!
//! An operation is sent to the node that has the slot of its name. A node that lacks the slot, or
//! some of its keys, does not run the operation, and `redirects.rs` forwards it. The client asks
//! the nodes for the map when it connects, when anything indicates that slots have moved, and every
//! ten seconds.

mod nodes;
mod redirects;
mod unmapped;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::nodes::{MapQuery, Nodes, SlotMap};
use self::redirects::SlotQueues;
use self::unmapped::RefusedMapQuery;
use super::Endpoint;
use super::address::Address;
use super::lane::{Lane, QueuedReply, Redirects};
use super::node::{Node, NodeCommon};
use super::queue::QueuedOperation;
use super::reconnect::{PreparedConnection, prepare};
use super::script::Form;
use super::server::{Server, ServerShared};
use super::slots::{Range, slot_of};
use crate::backend::channels::{Channels, NodeResolver, Transport};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::{Operation, Step, Value};
use crate::clock::{Clock, Moment};
use crate::config::Peers;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::text::Shown;

/// The interval at which the client queries the map even if nothing indicates a change.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two requests for the map. It grows while the map does not change.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The number of nodes that are asked for the map at once. The first answer counts.
const QUERIED_AT_ONCE: usize = 3;

/// Returns the transports of messages about releases. With the default, this client and clients of
/// every Redisson version receive each other's messages.
fn transports(peers: Peers) -> &'static [Transport] {
    match peers {
        Peers::All => &[Transport::Global, Transport::Sharded],
        Peers::Redisson3 => &[Transport::Global],
        Peers::Redisson4 | Peers::RustOnly => &[Transport::Sharded],
    }
}

/// The nodes of a cluster.
pub(crate) struct Cluster {
    this: Weak<Self>,
    common: NodeCommon,
    shared: ServerShared,
    /// The addresses in the URL.
    seeds: Vec<Address>,
    map: Arc<SlotMap>,
    /// Whether a node has sent the map.
    has_map: AtomicBool,
    /// The last query for the map that no connected node answered with the map.
    refused_map: Mutex<Option<RefusedMapQuery>>,
    nodes: Mutex<Nodes>,
    slot_queues: SlotQueues,
    shown: Arc<str>,
    identity: String,
}

/// A guard that ends the task for the map when it is dropped.
pub(crate) struct MapTask(JoinHandle<()>);

impl Drop for MapTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    /// Connects to one of the nodes, so that a wrong address or password is an error here. Connects
    /// to the other nodes in the background.
    pub(crate) async fn connect(
        seeds: Vec<Address>,
        endpoint: &Endpoint,
        steps: &[&Step],
        clock: Clock,
    ) -> Result<(Arc<Self>, MapTask)> {
        let cluster = Self::new(seeds, endpoint, steps, clock)?;
        let attempts = cluster.seeds.iter().map(|seed| cluster.open(seed).boxed());
        let (opened, _) = select_ok(attempts)
            .await
            .map_err(Failure::into_connect_error)?;
        let (node, opened, ranges) = opened;
        node.learn(&opened.hello);
        let asked = node.connector.address.clone();
        cluster.start_node(node, Some(opened));
        cluster.apply(&asked, &ranges);
        Ok(cluster.with_map_task())
    }

    /// Connects in the background. Until a node has answered, operations wait.
    pub(crate) fn start(
        seeds: Vec<Address>,
        endpoint: &Endpoint,
        steps: &[&Step],
        clock: Clock,
    ) -> Result<(Arc<Self>, MapTask)> {
        let cluster = Self::new(seeds, endpoint, steps, clock)?;
        cluster.start_seeds();
        Ok(cluster.with_map_task())
    }

    fn new(
        seeds: Vec<Address>,
        endpoint: &Endpoint,
        steps: &[&Step],
        clock: Clock,
    ) -> Result<Arc<Self>> {
        if endpoint.failover_guard.is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a cluster has no failover guard, because slots move between servers all the time; \
                 leave it out, or use one server or a master behind sentinels",
            ));
        }
        let transports = transports(endpoint.peers);
        let form = Form::Cluster(transports);
        let common = NodeCommon::new(endpoint, &seeds[0], steps, clock, form)?;
        let map = Arc::new(SlotMap::default());
        let places = Arc::clone(&map);
        let place = NodeResolver::new(move |channel| places.owner(slot_of(channel.as_bytes())));
        let mut hosts: Vec<_> = seeds.iter().map(Address::identity).collect();
        let shown = hosts.join(",").replace("redis://", "");
        hosts.sort_unstable();
        let identity = format!("cluster {}", hosts.join(","));
        Ok(Arc::new_cyclic(|this: &Weak<Self>| {
            let redirects: Weak<dyn Redirects> = this.clone();
            Self {
                this: this.clone(),
                shared: ServerShared {
                    runtime: Handle::current(),
                    channels: Channels::with_resolver(place, transports.len() > 1),
                    transports,
                    redirects: Some(redirects),
                },
                common,
                shown: Shown(&format!("redis-cluster://{shown}"))
                    .to_string()
                    .into(),
                identity,
                seeds,
                map,
                has_map: AtomicBool::new(false),
                refused_map: Mutex::default(),
                nodes: Mutex::default(),
                slot_queues: SlotQueues::default(),
            }
        }))
    }

    fn with_map_task(self: Arc<Self>) -> (Arc<Self>, MapTask) {
        let map_task = run_map_task(Arc::downgrade(&self), self.common.clone());
        let map_task = self.shared.runtime.spawn(map_task);
        (self, MapTask(map_task))
    }

    /// Connects to a node and asks it for the map.
    async fn open(
        &self,
        seed: &Address,
    ) -> std::result::Result<(Arc<Node>, PreparedConnection, Vec<Range>), Failure> {
        let node = Node::new(seed.clone(), &self.common);
        let mut opened = prepare(&node).await?;
        let ranges = opened.hello.slots.take().unwrap_or(Ok(Vec::new()))?;
        Ok((node, opened, ranges))
    }

    pub(crate) fn submit(&self, operation: Operation, route: Route) -> QueuedReply {
        let slot = slot_of(operation.parts.first());
        let arrival = self.slot_queues.next_arrival();
        let owner = self.owner(slot);
        match owner {
            // An operation on keys of several slots does not queue for one of them: with its keys
            // declared, no node would run it.
            Some(server) if self.slot_queues.are_empty() || operation.step.many => {
                server.lane_of(route).submit(operation, route, arrival)
            }
            Some(server) => {
                let lane = server.lane_of(route);
                match self
                    .slot_queues
                    .join(slot, (operation, route), arrival, lane)
                {
                    Ok(queued) => queued,
                    Err(operation) => lane.submit(operation, route, arrival),
                }
            }
            None => {
                let any = Arc::clone(&self.nodes.lock().any().lane);
                let (waiting, queued) = QueuedReply::new(operation, route, arrival, any);
                self.common.request_map_refresh();
                self.redirect(None, waiting);
                queued
            }
        }
    }

    /// Queues an operation that did not run at `from`, or can't be sent yet, for its slot. Answers
    /// an operation on several slots as not done, so that its caller sends an operation for each
    /// key.
    fn redirect(&self, from: Option<&Arc<Lane>>, redirected: QueuedOperation) {
        if redirected.operation.step.many {
            let count = redirected.operation.key_count();
            let all = (1..).take(count).map(Value::Int).collect();
            return redirected.answer(Ok(Value::List(all)));
        }
        let slot = slot_of(redirected.operation.parts.first());
        self.add_redirected(from, slot, redirected);
    }

    /// Returns the numbers of the nodes that have slots.
    pub(crate) async fn masters(&self) -> std::result::Result<Vec<usize>, Failure> {
        self.wait_for_map().await?;
        Ok(self.map.owners())
    }

    /// Returns the nodes that have slots.
    pub(crate) async fn servers(&self) -> std::result::Result<Vec<Arc<Server>>, Failure> {
        let masters = self.masters().await?.into_iter();
        let nodes = self.nodes.lock();
        Ok(masters.filter_map(|number| nodes.get(number)).collect())
    }

    /// Sends an operation without keys to this node, or to any node if this one has been removed.
    pub(crate) fn submit_to(&self, number: usize, operation: Operation) -> QueuedReply {
        let nodes = self.nodes.lock();
        let server = nodes.get(number).unwrap_or_else(|| nodes.any());
        drop(nodes);
        server
            .lane
            .submit(operation, Route::Plain, self.slot_queues.next_arrival())
    }

    /// Returns whether the client was ever connected to a node.
    pub(crate) fn was_connected(&self) -> bool {
        let nodes = self.nodes.lock().all();
        // The node that sent the map may have been removed since.
        self.has_map() || nodes.iter().any(|(_, server)| server.node.was_connected())
    }

    /// Returns the address of one of our connections, as its node sees it.
    pub(crate) fn client_address(&self) -> Option<String> {
        let nodes = self.nodes.lock().all();
        nodes
            .iter()
            .find_map(|(_, server)| server.node.client_address.lock().clone())
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.shared.channels
    }

    /// Returns the addresses in the URL, without credentials.
    pub(crate) fn address(&self) -> &str {
        &self.shown
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.common.reply_timeout
    }

    /// Returns the number of the node that has this key.
    pub(crate) fn node_of(&self, key: &[u8]) -> usize {
        self.map.owner(slot_of(key)).unwrap_or(usize::MAX)
    }

    /// Returns the time at which the node that has this key started.
    pub(crate) fn started(&self, key: &[u8]) -> Option<Moment> {
        self.owner(slot_of(key))?.node.about.started()
    }

    /// Returns the key's slot, and the address of the node that has this key.
    pub(crate) fn location(&self, key: &[u8]) -> (u16, Option<Arc<str>>) {
        let slot = slot_of(key);
        let owner = self.owner(slot);
        (slot, owner.map(|server| server.node.address()))
    }

    fn owner(&self, slot: u16) -> Option<Arc<Server>> {
        let number = self.map.owner(slot)?;
        self.nodes.lock().get(number)
    }

    /// Returns the node at this address. If the node is new, starts to connect to it.
    fn node_at(&self, address: &Address) -> (usize, Arc<Server>) {
        let mut nodes = self.nodes.lock();
        if let Some(found) = nodes.find(address) {
            return found;
        }
        let node = Node::new(address.clone(), &self.common);
        nodes.add(|number| Server::start(&self.shared, number, node, None))
    }

    /// Returns the node that the node at `from` announced under this address.
    fn node_announced_by(&self, from: &Address, host: &str, port: u16) -> (usize, Arc<Server>) {
        let (leads_to, port) = self.common.addresses.translate(host, port);
        self.node_at(&from.of_node(&leads_to, port).announced_as(host))
    }

    fn start_node(&self, node: Arc<Node>, first: Option<PreparedConnection>) {
        let mut nodes = self.nodes.lock();
        nodes.add(|number| Server::start(&self.shared, number, node, first));
    }

    fn start_seeds(&self) {
        for seed in &self.seeds {
            self.node_at(seed);
        }
    }

    /// Adopts a map that the node at `asked` has sent. Returns whether it changes anything.
    fn apply(&self, asked: &Address, ranges: &[Range]) -> bool {
        // Use the host as announced, because `node_announced_by` applies the address map. A mapped
        // host must not be mapped again.
        let own_host = asked.unmapped_host().unwrap_or_default();
        // The node of each address is looked up only once: a node may have thousands of ranges.
        let mut numbers = HashMap::new();
        let owned = ranges.iter().map(|range| {
            let host = range.host.as_deref().unwrap_or(own_host);
            let number = numbers
                .entry((host, range.port))
                .or_insert_with(|| self.node_announced_by(asked, host, range.port).0);
            (range.first..=range.last, *number)
        });
        let owned: Vec<_> = owned.collect();
        let changed = self.map.replace(&owned);
        self.has_map.store(true, Ordering::Relaxed);
        // Reassign the channels even if the map has not changed: a node may have reported that it
        // no longer has a channel.
        self.shared.channels.reassign_nodes();
        let now = self.common.clock.now();
        let unused = self.nodes.lock().take_unused(&self.map, now);
        // Drop the servers only after unlocking, because dropping a server ends its tasks.
        drop(unused);
        if changed {
            let servers = self.nodes.lock().all();
            for (number, server) in servers {
                self.take_from(number, &server);
            }
        }
        changed
    }

    /// Removes from this node's queues the operations whose slots the node has lost, and sends them
    /// to the nodes that have the slots now.
    fn take_from(&self, number: usize, server: &Server) {
        let keep = |operation: &Operation| {
            self.map.owner(slot_of(operation.parts.first())) == Some(number)
        };
        for lane in server.lanes() {
            let redirects = lane.take_unless(keep);
            if !redirects.is_empty() {
                self.handle(lane, redirects);
            }
        }
    }

    /// Queries some nodes for the map. Returns whether the map has changed.
    async fn refresh_map(&self) -> bool {
        let asked_at = self.common.clock.now();
        let mut asked = Vec::new();
        for server in self.nodes.lock().shuffled() {
            if let Some(question) = MapQuery::of(&server)
                && asked.len() < QUERIED_AT_ONCE
            {
                asked.push(question);
            }
        }
        if asked.is_empty() {
            // The names in the URL may lead to other servers now.
            self.start_seeds();
            return false;
        }
        let answers = asked.into_iter().map(|asked| asked.run().boxed());
        match select_ok(answers).await {
            Ok(((address, ranges), _)) => self.apply(&address, &ranges),
            Err(failure) => {
                *self.refused_map.lock() = Some(RefusedMapQuery { asked_at, failure });
                false
            }
        }
    }
}

impl Redirects for Cluster {
    fn handle(&self, from: &Arc<Lane>, redirects: Vec<QueuedOperation>) {
        from.node.slots_may_have_moved();
        for redirected in redirects {
            if redirected.requeue() {
                self.redirect(Some(from), redirected);
            }
        }
    }
}

/// Keeps the map up to date until the cluster is dropped.
async fn run_map_task(cluster: Weak<Cluster>, common: NodeCommon) {
    let mut pause = PAUSE;
    loop {
        let may_have_moved = common.slots_may_have_moved();
        let notified = tokio::time::timeout(LEARN_EVERY, may_have_moved)
            .await
            .is_ok();
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        if !notified {
            cluster.nodes.lock().try_undeclared_keys_again();
        }
        let changed = cluster.refresh_map().await;
        pause = match notified && !changed {
            true => (pause * 2).min(LONGEST_PAUSE),
            false => PAUSE,
        };
        drop(cluster);
        tokio::time::sleep(pause).await;
    }
}
