//! A node with what leads to it: the connection for calls, the one for messages, and the tasks that
//! keep them.

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

/// One server that is connected to, or will be.
pub(crate) struct Server {
    pub(crate) node: Arc<Node>,
    pub(crate) lane: Arc<Lane>,
    acks: OnceLock<Acknowledging>,
    runtime: Handle,
    strays: Option<Weak<dyn Strays>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The connection for acknowledged calls, once there was one.
struct Acknowledging {
    lane: Arc<Lane>,
    task: JoinHandle<()>,
}

/// What the servers of a client share.
pub(crate) struct Shared {
    pub(crate) runtime: Handle,
    pub(crate) channels: Arc<Channels>,
    /// By which messages are heard.
    pub(crate) transports: &'static [Transport],
    /// What sees to operations that a node did not run.
    pub(crate) strays: Option<Weak<dyn Strays>>,
}

impl Server {
    /// `first` is a connection for calls that is there already; `number` is by which the channels
    /// know the node.
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

    /// The connection for operations that go this way.
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

    /// Those that there are.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let acks = self.acks.get().map(|acks| &acks.lane);
        std::iter::once(&self.lane).chain(acks)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            // A handle that is dropped detaches its task, which would connect again for ever. The
            // abort drops `Ending` with the task, and that sends the last releases.
            task.abort();
        }
        if let Some(acks) = self.acks.get() {
            acks.task.abort();
        }
    }
}
