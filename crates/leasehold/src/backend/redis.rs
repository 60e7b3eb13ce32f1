//! The backend that uses servers: a single server, the master that sentinels name, or the nodes of
//! a cluster. Each server has a connection for calls and one for messages, and tasks that reopen a
//! lost connection. Only this folder uses the driver, the crate `redis`.
//!
//! A [`Node`] owns the facts about one server, a [`Lane`](lane::Lane) is one connection to it, and
//! a [`Server`] has both and runs their tasks. Function calls between the files have one direction:
//! from lane to queue, codec and node. [`Redirects`](lane::Redirects) takes back operations that a
//! node of a cluster did not run.
//!
//! The first key of an operation is its name (`parts[0]`). A name has one slot, and one node has
//! that slot, so primitives see only operations and replies, whatever the servers are.

mod acknowledged;
mod address;
mod call;
mod cluster;
mod connect;
mod driver;
mod examine;
mod lane;
mod messages;
mod node;
mod pubsub;
mod queue;
mod reconnect;
mod reconnect_delay;
mod refusals;
pub(crate) mod script;
mod sentinel;
mod server;
mod server_info;
pub(crate) mod slots;
mod socket;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

pub(crate) use self::lane::QueuedReply;
pub(crate) use self::queue::QueueTicket;

use self::address::{Address, SentinelTopology, Topology};
pub(crate) use self::cluster::Cluster;

use self::cluster::MapTask;
use self::node::{Node, NodeCommon};
use self::reconnect::{PreparedConnection, prepare};
use self::script::Form;
use self::server::{Server, ServerShared};
use super::channels::{Channels, Transport};
use super::failure::Failure;
use super::route::Route;
use super::step::{Operation, Step};
use crate::address_map::AddressMap;
use crate::clock::{Clock, Moment};
use crate::config::{Peers, wire_ms};
use crate::credentials::CredentialsSource;
use crate::error::Result;
#[cfg(feature = "tls")]
use crate::tls::TlsSettings;

/// The settings of the connections to servers.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    /// The name that the server shows for our connections; empty for no name.
    pub(crate) label: String,
    pub(crate) credentials: Option<CredentialsSource>,
    pub(crate) credentials_every: Duration,
    /// The map from announced addresses to the addresses that are reachable from here.
    pub(crate) addresses: AddressMap,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    /// The clients with which this client exchanges messages about releases.
    pub(crate) peers: Peers,
    /// Whether each operation is sent to a node of a cluster in its own call, with its keys
    /// declared.
    pub(crate) declare_keys: bool,
    /// The time for which nothing is granted after a failover or a restart.
    pub(crate) failover_guard: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(crate) tls: TlsSettings,
}

impl Endpoint {
    /// Returns the form of the script for a single server.
    fn form(&self) -> Form {
        match self.failover_guard {
            Some(span) => Form::Guarded {
                span_ms: wire_ms(span),
            },
            None => Form::Server,
        }
    }
}

/// The backend that uses servers.
pub(crate) enum Redis {
    Single {
        server: Server,
        channels: Arc<Channels>,
    },
    Cluster {
        cluster: Arc<Cluster>,
        _map_task: MapTask,
    },
}

impl Redis {
    /// Connects once, so that a wrong address or password is an error here. After that, connects in
    /// the background.
    pub(crate) async fn connect(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        match Topology::parse(&endpoint.url)? {
            Topology::Cluster(seeds) => {
                let connected = Cluster::connect(seeds, &endpoint, steps, clock);
                Ok(Self::from_cluster(connected.await?))
            }
            Topology::Server(address) => {
                Self::connect_to(single(address, &endpoint, steps, clock)?).await
            }
            Topology::Master(topology) => {
                Self::connect_to(master(topology, &endpoint, steps, clock)?).await
            }
        }
    }

    async fn connect_to(node: Arc<Node>) -> Result<Self> {
        let first = prepare(&node).await;
        let first = first.map_err(Failure::into_connect_error)?;
        // Learn the server's facts here: the task that uses the connection might not have run yet,
        // and an acquire of a `RedLock` compares the run ids of its servers before it sends them
        // requests.
        node.learn(&first.hello);
        Ok(Self::run(node, Some(first)))
    }

    /// Connects in the background. Operations wait until the first attempt to connect has ended.
    pub(crate) fn start(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        match Topology::parse(&endpoint.url)? {
            Topology::Server(address) => {
                let node = single(address, &endpoint, steps, clock)?;
                Ok(Self::run(node, None))
            }
            Topology::Master(topology) => {
                let node = master(topology, &endpoint, steps, clock)?;
                Ok(Self::run(node, None))
            }
            Topology::Cluster(seeds) => {
                Cluster::start(seeds, &endpoint, steps, clock).map(Self::from_cluster)
            }
        }
    }

    fn from_cluster((cluster, map_task): (Arc<Cluster>, MapTask)) -> Self {
        Self::Cluster {
            cluster,
            _map_task: map_task,
        }
    }

    fn run(node: Arc<Node>, first: Option<PreparedConnection>) -> Self {
        let channels = Channels::new(false);
        let shared = ServerShared {
            runtime: Handle::current(),
            channels: Arc::clone(&channels),
            transports: &[Transport::Global],
            redirects: None,
        };
        let server = Server::start(&shared, 0, node, first);
        Self::Single { server, channels }
    }

    #[cfg(test)]
    pub(crate) fn submit(&self, operation: Operation) -> QueuedReply {
        self.submit_by(operation, Route::Plain)
    }

    pub(crate) fn submit_by(&self, operation: Operation, route: Route) -> QueuedReply {
        match self {
            Self::Single { server, .. } => server.lane_of(route).submit(operation, route, 0),
            Self::Cluster { cluster, .. } => cluster.submit(operation, route),
        }
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        match self {
            Self::Single { channels, .. } => channels,
            Self::Cluster { cluster, .. } => cluster.channels(),
        }
    }

    /// Returns the address in the URL, without credentials.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Single { server, .. } => server.node.connector.address.shown(),
            Self::Cluster { cluster, .. } => cluster.address(),
        }
    }

    pub(crate) fn identity(&self) -> &str {
        match self {
            Self::Single { server, .. } => server.node.connector.address.identity(),
            Self::Cluster { cluster, .. } => cluster.identity(),
        }
    }

    /// Returns the time at which the server that has this key started.
    pub(crate) fn started(&self, key: &[u8]) -> Option<Moment> {
        match self {
            Self::Single { server, .. } => server.node.about.started(),
            Self::Cluster { cluster, .. } => cluster.started(key),
        }
    }

    /// Returns the earliest time at which the server can have started, if it is known to have been
    /// restarted or replaced since `sent`.
    pub(crate) fn replaced_since(&self, sent: Moment) -> Option<Moment> {
        match self {
            Self::Single { server, .. } if server.node.connector.sentinels.is_none() => {
                server.node.about.replaced_since(sent)
            }
            _ => None,
        }
    }

    /// Returns the run id of the server, and the number of the database. Returns `None` for a
    /// cluster, which consists of several servers.
    pub(crate) fn run_id(&self) -> Option<(Arc<str>, i64)> {
        match self {
            Self::Single { server, .. } => {
                let run_id = server.node.about.run_id()?;
                Some((run_id, server.node.connector.address.db()))
            }
            Self::Cluster { .. } => None,
        }
    }

    /// Returns whether the client was ever connected to a server.
    pub(crate) fn was_connected(&self) -> bool {
        match self {
            Self::Single { server, .. } => server.node.was_connected(),
            Self::Cluster { cluster, .. } => cluster.was_connected(),
        }
    }

    /// Returns the address of our connection, as the server sees it.
    pub(crate) fn client_address(&self) -> Option<String> {
        match self {
            Self::Single { server, .. } => server.node.client_address.lock().clone(),
            Self::Cluster { cluster, .. } => cluster.client_address(),
        }
    }

    /// Returns the address of the master, if sentinels name it.
    pub(crate) fn master(&self) -> Option<Arc<str>> {
        match self {
            Self::Single { server, .. } if server.node.connector.sentinels.is_some() => {
                Some(server.node.address())
            }
            _ => None,
        }
    }

    /// Resolves once the server may have lost the holds, because it was restarted or replaced by
    /// another server.
    pub(crate) async fn holds_in_doubt(&self) {
        match self {
            Self::Single { server, .. } => server.node.holds_in_doubt.notified().await,
            // In a cluster, the server of a name usually changes because the slot moves, and a slot
            // takes its holds along. The loss of a master is far rarer.
            Self::Cluster { .. } => std::future::pending().await,
        }
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        match self {
            Self::Single { server, .. } => server.node.reply_timeout(),
            Self::Cluster { cluster, .. } => cluster.reply_timeout(),
        }
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Single { .. } => None,
            Self::Cluster { cluster, .. } => Some(cluster),
        }
    }
}

fn single(
    address: Address,
    endpoint: &Endpoint,
    steps: &[&Step],
    clock: Clock,
) -> Result<Arc<Node>> {
    let common = NodeCommon::new(endpoint, &address, steps, clock, endpoint.form())?;
    Ok(Node::new(address, &common))
}

fn master(
    topology: SentinelTopology,
    endpoint: &Endpoint,
    steps: &[&Step],
    clock: Clock,
) -> Result<Arc<Node>> {
    let common = NodeCommon::new(endpoint, &topology.master, steps, clock, endpoint.form())?;
    Ok(Node::master(topology, &common))
}

/// Returns the text of an error reply, if the error is one.
fn reply_text(error: &::redis::RedisError) -> Option<String> {
    let code = error.code()?;
    Some(match error.detail() {
        Some(detail) => format!("{code} {detail}"),
        None => code.to_owned(),
    })
}
