//! A node with its connections, one for calls and one for messages, and with the tasks that keep
//! them.

use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::acks::keep_acknowledging;
use super::lane::{Lane, Strays};
use super::node::Node;
use super::pubsub::{self, WakesAll};
use super::reconnect::{Opened, keep_connected};
use super::sentinel;
use crate::backend::channels::{Channels, Transport};
use crate::backend::route::Route;

/// A server with its connections, which are up or will be.
pub(crate) struct Server {
    pub(crate) node: Arc<Node>,
    pub(crate) lane: Arc<Lane>,
    acks: OnceLock<Acknowledging>,
    runtime: Handle,
    strays: Option<Weak<dyn Strays>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The connection for acknowledged calls, once one was needed.
struct Acknowledging {
    lane: Arc<Lane>,
    task: JoinHandle<()>,
}

/// The objects that all servers of a client share.
pub(crate) struct Shared {
    pub(crate) runtime: Handle,
    pub(crate) channels: Arc<Channels>,
    /// The transports by which messages are heard.
    pub(crate) transports: &'static [Transport],
    /// The handler of operations that a node did not run.
    pub(crate) strays: Option<Weak<dyn Strays>>,
}

impl Server {
    /// Starts the connections of a node. `first` is a connection for calls that is already up.
    /// `number` is the number under which the channels know the node.
    pub(crate) fn start(
        shared: &Shared,
        number: usize,
        node: Arc<Node>,
        first: Option<Opened>,
    ) -> Self {
        let Shared {
            runtime,
            channels,
            transports,
            strays,
        } = shared;
        let lane = Lane::new(runtime.clone(), Arc::clone(&node), strays.clone());
        let messages = pubsub::run(
            Arc::clone(&node),
            channels.section(number),
            transports,
            WakesAll(Arc::clone(channels)),
        );
        let mut tasks = vec![
            runtime.spawn(keep_connected(lane.ending(), first)),
            runtime.spawn(messages),
        ];
        if node.connector.sentinels.is_some() {
            tasks.push(runtime.spawn(sentinel::follow(Arc::clone(&node))));
        }
        Self {
            node,
            lane,
            acks: OnceLock::new(),
            runtime: runtime.clone(),
            strays: strays.clone(),
            tasks,
        }
    }

    /// Returns the connection for operations that take this route.
    pub(crate) fn lane_of(&self, route: Route) -> &Arc<Lane> {
        match route {
            Route::Plain => &self.lane,
            Route::Behind | Route::Confirmed(_) => &self.acknowledging().lane,
        }
    }

    fn acknowledging(&self) -> &Acknowledging {
        self.acks.get_or_init(|| {
            let (runtime, node) = (self.runtime.clone(), Arc::clone(&self.node));
            let lane = Lane::acknowledging(runtime, node, self.strays.clone());
            let task = self.runtime.spawn(keep_acknowledging(lane.ending()));
            Acknowledging { lane, task }
        })
    }

    /// Returns the lanes that exist.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let acks = self.acks.get().map(|acks| &acks.lane);
        std::iter::once(&self.lane).chain(acks)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            // Dropping the handle would only detach the task, which would connect again for ever.
            // The abort drops `Ending` with the task, which sends the last releases.
            task.abort();
        }
        if let Some(acks) = self.acks.get() {
            acks.task.abort();
        }
    }
}
