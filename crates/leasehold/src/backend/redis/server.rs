//! A node with its connections, one for calls and one for messages, and with the tasks that keep
//! them open.

use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::acknowledged::keep_acknowledged_connection;
use super::lane::{Lane, Redirects};
use super::node::Node;
use super::pubsub::{self, WakeAllOnDrop};
use super::reconnect::{PreparedConnection, keep_connected};
use crate::backend::channels::{Channels, Transport};
use crate::backend::route::Route;

/// A server with its connections, each of which is open or being opened.
pub(crate) struct Server {
    pub(crate) node: Arc<Node>,
    pub(crate) lane: Arc<Lane>,
    acknowledged: OnceLock<AcknowledgedLane>,
    runtime: Handle,
    redirects: Option<Weak<dyn Redirects>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The connection for acknowledged calls, which is opened for the first such call.
struct AcknowledgedLane {
    lane: Arc<Lane>,
    task: JoinHandle<()>,
}

/// The objects that all servers of a client share.
pub(crate) struct ServerShared {
    pub(crate) runtime: Handle,
    pub(crate) channels: Arc<Channels>,
    /// The transports by which messages are received.
    pub(crate) transports: &'static [Transport],
    /// The handler of operations that a node did not run.
    pub(crate) redirects: Option<Weak<dyn Redirects>>,
}

impl Server {
    /// Starts the connections of a node. `first` is a connection for calls that is already open.
    /// `number` is the number under which the channels know the node.
    pub(crate) fn start(
        shared: &ServerShared,
        number: usize,
        node: Arc<Node>,
        first: Option<PreparedConnection>,
    ) -> Self {
        let ServerShared {
            runtime,
            channels,
            transports,
            redirects,
        } = shared;
        let lane = Lane::new(runtime.clone(), Arc::clone(&node), redirects.clone());
        let messages = pubsub::run(
            Arc::clone(&node),
            channels.node_channels(number),
            transports,
            WakeAllOnDrop(Arc::clone(channels)),
        );
        let mut tasks = vec![
            runtime.spawn(keep_connected(lane.drop_guard(), first)),
            runtime.spawn(messages),
        ];
        if node.connector.sentinels.is_some() {
            let node = Arc::clone(&node);
            tasks.push(runtime.spawn(async move {
                if let Some(sentinels) = &node.connector.sentinels {
                    sentinels.follow().await;
                }
            }));
        }
        Self {
            node,
            lane,
            acknowledged: OnceLock::new(),
            runtime: runtime.clone(),
            redirects: redirects.clone(),
            tasks,
        }
    }

    /// Returns the connection for operations that take this route.
    pub(crate) fn lane_of(&self, route: Route) -> &Arc<Lane> {
        match route {
            Route::Plain => &self.lane,
            Route::SameConnection | Route::Confirmed(_) => &self.acknowledged_lane().lane,
        }
    }

    fn acknowledged_lane(&self) -> &AcknowledgedLane {
        self.acknowledged.get_or_init(|| {
            let (runtime, node) = (self.runtime.clone(), Arc::clone(&self.node));
            let lane = Lane::acknowledged(runtime, node, self.redirects.clone());
            let task = self
                .runtime
                .spawn(keep_acknowledged_connection(lane.drop_guard()));
            AcknowledgedLane { lane, task }
        })
    }

    /// Returns the lanes that exist.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let acknowledged = self
            .acknowledged
            .get()
            .map(|acknowledged| &acknowledged.lane);
        std::iter::once(&self.lane).chain(acknowledged)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            // Dropping the handle would only detach the task, which would reconnect forever. The
            // abort drops the task's `LaneDropGuard`, which sends the last releases.
            task.abort();
        }
        if let Some(acknowledged) = self.acknowledged.get() {
            acknowledged.task.abort();
        }
    }
}
