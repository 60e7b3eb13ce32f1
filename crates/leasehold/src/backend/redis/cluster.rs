//! A cluster: the map from slots to nodes, and the nodes, each with its own connections.
//!
//! An operation is sent to the node that has the slot of its name. A node that lacks the slot, or
//! some of its keys, does not run the operation, and `strays.rs` sends it on. The client asks the
//! nodes for the map when it connects, when anything indicates that slots have moved, and every ten
//! seconds.

mod nodes;
mod strays;
mod unmapped;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::nodes::{Asked, Map, Nodes};
use self::strays::Lines;
use self::unmapped::Refused;
use super::Endpoint;
use super::address::Address;
use super::lane::{Lane, Queued, Strays};
use super::node::{Common, Node};
use super::queue::Waiting;
use super::reconnect::{Opened, prepare};
use super::script::Form;
use super::server::{Server, Shared};
use super::slots::{Range, slot_of};
use crate::backend::channels::{Channels, Place, Transport};
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::{Operation, Step, Value};
use crate::clock::{Clock, Moment};
use crate::config::Peers;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::text::Shown;

/// The time after which the client asks for the map again, even if nothing has contradicted it.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two requests for the map. It grows while they find nothing new.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Number of nodes that are asked for the map at once. The first answer counts.
const ASKED_AT_ONCE: usize = 3;

/// Returns the kinds of message by which clients announce a release. With the default, clients of
/// every Redisson version hear this client, and it hears each of them.
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
    common: Common,
    shared: Shared,
    /// The addresses in the URL.
    seeds: Vec<Address>,
    map: Arc<Map>,
    /// Whether a node has sent the map.
    has_map: AtomicBool,
    /// The last attempt to read the map at which no connected node sent it.
    refused_map: Mutex<Option<Refused>>,
    nodes: Mutex<Nodes>,
    lines: Lines,
    shown: Arc<str>,
    identity: String,
}

/// Ends the task that keeps the map.
pub(crate) struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
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
    ) -> Result<(Arc<Self>, Keeper)> {
        let cluster = Self::new(seeds, endpoint, steps, clock)?;
        let attempts = cluster.seeds.iter().map(|seed| cluster.open(seed).boxed());
        let (opened, _) = select_ok(attempts)
            .await
            .map_err(Failure::into_connect_error)?;
        let (node, opened, ranges) = opened;
        node.learn(&opened.told);
        let asked = node.connector.address.clone();
        cluster.start_node(node, Some(opened));
        cluster.apply(&asked, &ranges);
        Ok(cluster.kept())
    }

    /// Connects in the background. Until a node has answered, operations wait.
    pub(crate) fn start(
        seeds: Vec<Address>,
        endpoint: &Endpoint,
        steps: &[&Step],
        clock: Clock,
    ) -> Result<(Arc<Self>, Keeper)> {
        let cluster = Self::new(seeds, endpoint, steps, clock)?;
        cluster.start_seeds();
        Ok(cluster.kept())
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
        let common = Common::new(endpoint, &seeds[0], steps, clock, form)?;
        let map = Arc::new(Map::default());
        let places = Arc::clone(&map);
        let place = Place::by(move |channel| places.owner(slot_of(channel.as_bytes())));
        let mut hosts: Vec<_> = seeds.iter().map(Address::identity).collect();
        let shown = hosts.join(",").replace("redis://", "");
        hosts.sort_unstable();
        let identity = format!("cluster {}", hosts.join(","));
        Ok(Arc::new_cyclic(|this: &Weak<Self>| {
            let strays: Weak<dyn Strays> = this.clone();
            Self {
                this: this.clone(),
                shared: Shared {
                    runtime: Handle::current(),
                    channels: Channels::placed(place, transports.len() > 1),
                    transports,
                    strays: Some(strays),
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
                lines: Lines::default(),
            }
        }))
    }

    fn kept(self: Arc<Self>) -> (Arc<Self>, Keeper) {
        let keeper = keep_map(Arc::downgrade(&self), self.common.clone());
        let keeper = self.shared.runtime.spawn(keeper);
        (self, Keeper(keeper))
    }

    /// Connects to a node and asks it for the map.
    async fn open(
        &self,
        seed: &Address,
    ) -> std::result::Result<(Arc<Node>, Opened, Vec<Range>), Failure> {
        let node = Node::new(seed.clone(), &self.common);
        let mut opened = prepare(&node).await?;
        let ranges = opened.told.slots.take().unwrap_or(Ok(Vec::new()))?;
        Ok((node, opened, ranges))
    }

    pub(crate) fn submit(&self, operation: Operation, route: Route) -> Queued {
        let slot = slot_of(operation.parts.first());
        let arrival = self.lines.next_arrival();
        let owner = self.owner(slot);
        match owner {
            Some(server) if self.lines.are_empty() => {
                server.lane_of(route).submit(operation, route, arrival)
            }
            Some(server) => {
                let lane = server.lane_of(route);
                match self.lines.join(slot, (operation, route), arrival, lane) {
                    Ok(queued) => queued,
                    Err(operation) => lane.submit(operation, route, arrival),
                }
            }
            None => {
                let any = Arc::clone(&self.nodes.lock().any().lane);
                let (waiting, queued) = Queued::new(operation, route, arrival, any);
                self.common.look_at_slots();
                self.add_stray(None, slot, waiting);
                queued
            }
        }
    }

    /// Returns the numbers of the nodes that have slots.
    pub(crate) async fn masters(&self) -> std::result::Result<Vec<usize>, Failure> {
        self.map_is_there().await?;
        Ok(self.map.owners())
    }

    /// Returns the nodes that have slots.
    pub(crate) async fn servers(&self) -> std::result::Result<Vec<Arc<Server>>, Failure> {
        let masters = self.masters().await?.into_iter();
        let nodes = self.nodes.lock();
        Ok(masters.filter_map(|number| nodes.get(number)).collect())
    }

    /// Sends an operation without keys to this node, or to any node if this one has been removed.
    pub(crate) fn submit_to(&self, number: usize, operation: Operation) -> Queued {
        let nodes = self.nodes.lock();
        let server = nodes.get(number).unwrap_or_else(|| nodes.any());
        drop(nodes);
        server
            .lane
            .submit(operation, Route::Plain, self.lines.next_arrival())
    }

    /// Returns whether the client was ever connected to a node.
    pub(crate) fn was_connected(&self) -> bool {
        let nodes = self.nodes.lock().all();
        // The node that sent the map may have been removed since.
        self.has_map() || nodes.iter().any(|(_, server)| server.node.was_connected())
    }

    /// Returns the address of one of our connections, as its node sees it.
    pub(crate) fn seen_as(&self) -> Option<String> {
        let nodes = self.nodes.lock().all();
        nodes
            .iter()
            .find_map(|(_, server)| server.node.seen_as.lock().clone())
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

    /// Returns when the node that has this key started.
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

    /// Returns the node that another node, at `from`, calls by this address.
    fn node_told_by(&self, from: &Address, host: &str, port: u16) -> (usize, Arc<Server>) {
        let (leads_to, port) = self.common.addresses.lead(host, port);
        self.node_at(&from.of_node(&leads_to, port).told_as(host))
    }

    fn start_node(&self, node: Arc<Node>, first: Option<Opened>) {
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
        // The host before the address map: a host that was mapped already must not be mapped again.
        let own_host = asked.unmapped_host().unwrap_or_default();
        // Looks up each address once: a node may have thousands of ranges.
        let mut numbers = HashMap::new();
        let owned = ranges.iter().map(|range| {
            let host = range.host.as_deref().unwrap_or(own_host);
            let number = numbers
                .entry((host, range.port))
                .or_insert_with(|| self.node_told_by(asked, host, range.port).0);
            (range.first..=range.last, *number)
        });
        let owned: Vec<_> = owned.collect();
        let changed = self.map.replace(&owned);
        self.has_map.store(true, Ordering::Relaxed);
        // Runs even if the map has not changed: a node may have said that it no longer has a
        // channel.
        self.shared.channels.place_again();
        let now = self.common.clock.now();
        let gone = self.nodes.lock().take_unused(&self.map, now);
        // Dropped after unlocking: dropping a server ends its tasks.
        drop(gone);
        if changed {
            let servers = self.nodes.lock().all();
            for (number, server) in servers {
                self.take_from(number, &server);
            }
        }
        changed
    }

    /// Takes the operations of slots that this node has lost out of its queues, so that they are
    /// sent to the nodes that have the slots now.
    fn take_from(&self, number: usize, server: &Server) {
        let stays = |operation: &Operation| {
            self.map.owner(slot_of(operation.parts.first())) == Some(number)
        };
        for lane in server.lanes() {
            let strays = lane.take_unless(stays);
            if !strays.is_empty() {
                self.take(lane, strays);
            }
        }
    }

    /// Asks some nodes for the map. Returns whether it changes anything.
    async fn learn(&self) -> bool {
        let asked_at = self.common.clock.now();
        let mut asked = Vec::new();
        for server in self.nodes.lock().in_any_order() {
            if let Some(question) = Asked::of(&server)
                && asked.len() < ASKED_AT_ONCE
            {
                asked.push(question);
            }
        }
        if asked.is_empty() {
            // The names in the URL may lead to other servers now.
            self.start_seeds();
            return false;
        }
        let answers = asked.into_iter().map(|asked| asked.answer().boxed());
        match select_ok(answers).await {
            Ok(((address, ranges), _)) => self.apply(&address, &ranges),
            Err(failure) => {
                *self.refused_map.lock() = Some(Refused { asked_at, failure });
                false
            }
        }
    }
}

impl Strays for Cluster {
    fn take(&self, from: &Arc<Lane>, strays: Vec<Waiting>) {
        from.node.slots_may_have_moved();
        for stray in strays {
            if !stray.goes_again() {
                continue;
            }
            if stray.operation.step.many {
                // The keys of this operation are in several slots. The reply names all of them, so
                // that each is asked for on its own.
                let count = stray.operation.key_count();
                let all = (1..).take(count).map(Value::Int).collect();
                stray.answer(Ok(Value::List(all)));
                continue;
            }
            let slot = slot_of(stray.operation.parts.first());
            self.add_stray(Some(from), slot, stray);
        }
    }
}

/// Keeps the map up to date until the cluster is dropped.
async fn keep_map(cluster: Weak<Cluster>, common: Common) {
    let mut pause = PAUSE;
    loop {
        let may_have_moved = common.slots_may_have_moved();
        let told = tokio::time::timeout(LEARN_EVERY, may_have_moved)
            .await
            .is_ok();
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        if !told {
            cluster.nodes.lock().try_free_keys_again();
        }
        let changed = cluster.learn().await;
        pause = match told && !changed {
            true => (pause * 2).min(LONGEST_PAUSE),
            false => PAUSE,
        };
        drop(cluster);
        tokio::time::sleep(pause).await;
    }
}
