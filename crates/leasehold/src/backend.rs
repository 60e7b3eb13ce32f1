//! The backends that keep the state of locks: the embedded keyspace, or a server. Both take the
//! same [`Operation`]s and wake the same [`Channels`].

#[cfg(any(feature = "redis", feature = "testing"))]
pub(crate) mod about;
pub(crate) mod channels;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod memory;
#[cfg(feature = "testing")]
pub(crate) mod network;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod retry;
pub(crate) mod route;
pub(crate) mod step;
pub(crate) mod value;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "testing")]
use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::error::Result;
use crate::key::Key;

use channels::Channels;
use facts::ServerFacts;
use failure::{Cause, Failure, Outcome};
use route::Route;
use step::{Operation, Value};

/// A backend. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub(crate) enum Backend {
    Memory(memory::Memory),
    /// The embedded keyspace, seen through a network that a test can disturb.
    #[cfg(feature = "testing")]
    Network(Arc<network::NetworkBackend>),
    #[cfg(feature = "redis")]
    Redis(Arc<redis::Redis>),
}

impl Backend {
    /// Submits an operation. The operation is queued when this returns, even if nothing ever waits
    /// for the reply. Operations of one name run in the order they were submitted.
    pub(crate) fn submit(&self, operation: Operation) -> Reply {
        self.submit_by(operation, Route::Plain)
    }

    /// Like [`submit`](Self::submit), over `route`. An operation runs after all earlier operations
    /// of its name that took the same route. An embedded keyspace has no replicas and never loses
    /// data by itself, so it confirms everything, unless the simulated network of a test decides
    /// otherwise.
    #[cfg_attr(
        not(any(feature = "redis", feature = "testing")),
        expect(unused_variables)
    )]
    pub(crate) fn submit_by(&self, operation: Operation, route: Route) -> Reply {
        match self {
            // The operation runs here and not at the first poll: a future that is dropped before
            // its first poll submits its undo, and the undo must find the effect of this operation.
            Self::Memory(memory) => Reply::Ready(Some(memory.run(&operation))),
            #[cfg(feature = "testing")]
            Self::Network(network) => Reply::Sent(network.submit(operation, route)),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Reply::Queued(redis.submit_by(operation, route)),
        }
    }

    /// Returns whether the reply is already available when [`submit`](Self::submit) returns.
    pub(crate) fn is_in_process(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        match self {
            Self::Memory(memory) => memory.channels(),
            #[cfg(feature = "testing")]
            Self::Network(network) => network.channels(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.channels(),
        }
    }

    /// Returns how long to wait for a reply.
    pub(crate) fn reply_timeout(&self) -> std::time::Duration {
        match self {
            Self::Memory(_) => std::time::Duration::from_secs(1),
            #[cfg(feature = "testing")]
            Self::Network(network) => network.reply_timeout(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.reply_timeout(),
        }
    }

    /// Returns whether a request may have been sent. This is so if the client has been connected at
    /// least once.
    pub(crate) fn was_connected(&self) -> bool {
        #[cfg(feature = "redis")]
        if let Self::Redis(redis) = self {
            return redis.was_connected();
        }
        true
    }

    /// Returns a failure at this backend.
    pub(crate) fn failure(&self, outcome: Outcome, cause: Cause) -> Failure {
        Failure::new(outcome, cause, self.address())
    }

    /// Returns the failure for a reply that makes no sense: no version of the script sends it.
    pub(crate) fn malformed(&self) -> Failure {
        let what = "the reply makes no sense";
        // `DidNotRun` would be wrong: the caller would disarm its undo, although the step may have
        // granted something.
        self.failure(Outcome::MayHaveRun, Cause::Other(what.into()))
    }

    /// Returns the failure for a grant whose reply took longer than the lease. The caller's undo
    /// releases the grant.
    pub(crate) fn granted_too_late(&self) -> Failure {
        let what = "it was granted, but the answer arrived after its lease had expired; \
                    set a longer lease";
        // The undo stays armed: by our clock the lease has expired, but the key may still exist.
        self.failure(Outcome::MayHaveRun, Cause::NoAnswer(what.into()))
    }

    /// Returns the identity of this server and of its database. The identity is the same for all
    /// clients of a server in this process, and in all processes that use the same address for the
    /// server. It is never shortened; messages use [`address`](Self::address).
    pub(crate) fn server(&self) -> String {
        match self {
            Self::Memory(memory) => memory.server(),
            #[cfg(feature = "testing")]
            Self::Network(network) => network.server(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.identity().to_owned(),
        }
    }

    /// Returns the time at which the server that has this key started, if that time is known and
    /// later than `since`. The server may have lost everything from before its start.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn started_after(&self, key: &Key, since: Moment) -> Option<Moment> {
        let started = match self {
            Self::Memory(memory) => memory.started(),
            #[cfg(feature = "testing")]
            Self::Network(network) => network.started(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.started(key.as_str().as_bytes()),
        };
        // This is also `None` before the first connection. Nothing was granted before that
        // connection, and a `RedLock` checks again after each vote.
        started.filter(|started| *started > since)
    }

    /// Returns the earliest time at which the server can have started, if it is known to have been
    /// restarted or replaced since a request was sent at `sent`. Always `None` for servers that
    /// replicate to each other: one server may still have the data that another has lost.
    pub(crate) fn replaced_since(&self, sent: Moment) -> Option<Moment> {
        match self {
            Self::Memory(memory) => memory.started().filter(|started| sent <= *started),
            #[cfg(feature = "testing")]
            Self::Network(network) => network.replaced_since(sent),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.replaced_since(sent),
        }
    }

    /// Returns the id of the server's current start, and the number of the database. Both are the
    /// same for every address of the server. `None` if the server does not report an id, and for an
    /// embedded keyspace, which has no second address.
    pub(crate) fn run_id(&self) -> Option<(Arc<str>, i64)> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "testing")]
            Self::Network(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.run_id(),
        }
    }

    /// Returns the client's own address, as the server sees it.
    pub(crate) fn client_address(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "testing")]
            Self::Network(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.client_address(),
        }
    }

    /// Returns the numbers by which the client addresses the servers that have keys.
    pub(crate) async fn masters(&self) -> Result<Vec<usize>, Failure> {
        #[cfg(feature = "redis")]
        if let Some(cluster) = self.cluster() {
            return cluster.masters().await;
        }
        Ok(vec![0])
    }

    /// Sends an operation without keys to one of the servers of [`masters`](Self::masters).
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn submit_to(&self, master: usize, operation: Operation) -> Reply {
        #[cfg(feature = "redis")]
        if let Some(cluster) = self.cluster() {
            return Reply::Queued(cluster.submit_to(master, operation));
        }
        self.submit(operation)
    }

    /// Returns the number of the server that has this key. Operations on keys with the same number
    /// can be sent in one call.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn node_of(&self, key: &[u8]) -> usize {
        #[cfg(feature = "redis")]
        if let Some(cluster) = self.cluster() {
            return cluster.node_of(key);
        }
        0
    }

    /// Returns whether the reply to a release contains the number of connections that received its
    /// message. A node of a cluster counts only its own connections.
    pub(crate) fn counts_listeners(&self) -> bool {
        #[cfg(feature = "redis")]
        if self.cluster().is_some() {
            return false;
        }
        true
    }

    /// Refuses a name whose keys would not all be on one node of a cluster.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn check_name(&self, key: &Key, kind: NameKind) -> Result<()> {
        #[cfg(feature = "redis")]
        if self.cluster().is_some() {
            return redis::slots::check_name(key, kind);
        }
        Ok(())
    }

    /// Returns which of several servers has this key: the slot and the node's address in a cluster,
    /// the master's address with sentinels. `None` for a single server.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn location(&self, key: &Key) -> Option<(Option<u16>, Option<Arc<str>>)> {
        #[cfg(feature = "redis")]
        if let Self::Redis(redis) = self {
            if let Some(master) = redis.master() {
                return Some((None, Some(master)));
            }
            let cluster = redis.cluster()?;
            let (slot, address) = cluster.location(key.as_str().as_bytes());
            return Some((Some(slot), address));
        }
        None
    }

    /// Resolves once the server may have lost the holds, because it was restarted or replaced by
    /// another server.
    pub(crate) async fn holds_in_doubt(&self) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.holds_in_doubt().await,
            _ => std::future::pending().await,
        }
    }

    /// Collects the facts that each server reports about itself. The list is empty for an embedded
    /// keyspace.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) async fn examine(&self, channel: &str) -> Result<Vec<ServerFacts>, Failure> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.examine(channel).await,
            _ => Ok(Vec::new()),
        }
    }

    #[cfg(feature = "redis")]
    fn cluster(&self) -> Option<&redis::Cluster> {
        match self {
            Self::Redis(redis) => redis.cluster(),
            _ => None,
        }
    }

    /// Returns the server's address as errors and logs show it: without credentials, and shortened
    /// if it is long.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Memory(_) => memory::ADDRESS,
            #[cfg(feature = "testing")]
            Self::Network(_) => memory::ADDRESS,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.address(),
        }
    }
}

/// The kind of primitive that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A latch. Its channel wraps the name in braces, whatever the name contains.
    Latch,
    Other,
}

/// The pending reply of one operation.
///
/// Dropping this before the operation is sent removes the operation from the queue if the operation
/// would grant something.
pub(crate) enum Reply {
    Ready(Option<Result<Value, Failure>>),
    #[cfg(feature = "testing")]
    Sent(oneshot::Receiver<Result<Value, Failure>>),
    #[cfg(feature = "redis")]
    Queued(redis::QueuedReply),
}

impl Reply {
    /// Returns a ticket that shows whether the operation may have run, even after this reply was
    /// dropped.
    pub(crate) fn ticket(&self) -> Ticket {
        match self {
            Self::Ready(_) => Ticket::Ran,
            // The simulated network has no queue from which a request could be removed.
            #[cfg(feature = "testing")]
            Self::Sent(_) => Ticket::Ran,
            #[cfg(feature = "redis")]
            Self::Queued(queued) => Ticket::Queued(queued.ticket()),
        }
    }
}

impl Future for Reply {
    type Output = Result<Value, Failure>;

    #[cfg_attr(
        not(any(feature = "redis", feature = "testing")),
        expect(
            unused_variables,
            reason = "a reply that is there already wakes nobody"
        )
    )]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(reply) => Poll::Ready(reply.take().expect("a reply is polled once")),
            #[cfg(feature = "testing")]
            Self::Sent(receiver) => Pin::new(receiver).poll(context).map(|reply| {
                reply.unwrap_or_else(|_| {
                    let outcome = Outcome::MayHaveRun;
                    Err(Failure::runtime_ended(outcome, memory::ADDRESS))
                })
            }),
            #[cfg(feature = "redis")]
            Self::Queued(queued) => Pin::new(queued).poll(context),
        }
    }
}

/// The fate of a submitted operation, for the code that must undo it.
#[derive(Clone)]
pub(crate) enum Ticket {
    Ran,
    #[cfg(feature = "redis")]
    Queued(redis::QueueTicket),
}

impl Ticket {
    /// Returns whether there may be something to undo.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Ran => true,
            #[cfg(feature = "redis")]
            Self::Queued(ticket) => ticket.may_have_run(),
        }
    }
}
