//! A server as the backend: one connection for calls and one for messages. A task of its own
//! opens each of them again whenever it is lost. Only this folder names the driver.
//!
//! A [`Node`] owns the facts about one server, a [`Lane`] is one connection to it. Calls between
//! the files go one way: lane to queue, codec and node.
//!
//! There is one node. A second one would stand beside it here, with a lane and a task of its own,
//! and [`Redis::submit`] would choose one of them: the first key of an operation is the name
//! (`parts[0]`), a name has one slot, and a slot one node. Primitives see only operations and
//! replies, so they would not change. [`Redis::started`] would choose by a name as well.

mod address;
mod call;
mod connect;
mod driver;
mod lane;
mod node;
mod pause;
mod pubsub;
mod queue;
mod reconnect;
mod refusals;
pub(crate) mod script;
mod server_info;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(crate) use self::lane::Queued;
pub(crate) use self::queue::Ticket;

use self::lane::Lane;
use self::node::Node;
use self::pubsub::WakesAll;
use self::reconnect::{Opened, keep_connected, prepare};
use super::channels::Channels;
use super::step::{Operation, Step};
use crate::clock::{Clock, Moment};
use crate::credentials::Source;
use crate::error::Result;

/// How a server is reached.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) credentials: Option<Source>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) authorities: Vec<Vec<u8>>,
}

/// The backend itself.
pub(crate) struct Redis {
    node: Arc<Node>,
    lane: Arc<Lane>,
    channels: Arc<Channels>,
    tasks: [JoinHandle<()>; 2],
}

impl Redis {
    /// Connects once, so that a wrong address or password is an error here, and from then on in
    /// the background.
    pub(crate) async fn connect(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        let node = Node::new(endpoint, steps, clock)?;
        let first = prepare(&node)
            .await
            .map_err(|failure| failure.into_connect_error())?;
        // Not left to the task that uses the connection, which may not have run yet: an acquire of
        // a majority compares the run ids of its servers before it asks them.
        node.learn(&first.told);
        Ok(Self::run(node, Some(first)))
    }

    /// Connects in the background. Until the first attempt has ended, operations wait.
    pub(crate) fn start(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        let node = Node::new(endpoint, steps, clock)?;
        Ok(Self::run(node, None))
    }

    fn run(node: Arc<Node>, first: Option<Opened>) -> Self {
        let (runtime, channels) = (Handle::current(), Channels::new(false));
        let lane = Lane::new(runtime.clone(), Arc::clone(&node));
        let tasks = [
            runtime.spawn(keep_connected(lane.ending(), first)),
            runtime.spawn(pubsub::run(
                Arc::clone(&node),
                WakesAll(Arc::clone(&channels)),
            )),
        ];
        Self {
            node,
            lane,
            channels,
            tasks,
        }
    }

    pub(crate) fn submit(&self, operation: Operation) -> Queued {
        // The one lane of the one node: of several, the slot of `parts[0]` would name it.
        self.lane.submit(operation)
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.channels
    }

    pub(crate) fn address(&self) -> &str {
        self.node.address()
    }

    pub(crate) fn identity(&self) -> &str {
        self.node.connector.address.identity()
    }

    pub(crate) fn started(&self) -> Option<Moment> {
        self.node.about.started()
    }

    /// Of the server, and the database.
    pub(crate) fn run_id(&self) -> Option<(Arc<str>, i64)> {
        let run_id = self.node.about.run_id()?;
        Some((run_id, self.node.connector.address.db()))
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.node.reply_timeout()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for task in &self.tasks {
            // A handle that is dropped detaches its task, which would connect again for ever. The
            // abort drops `Ending` with the task, and that sends the last releases.
            task.abort();
        }
    }
}
