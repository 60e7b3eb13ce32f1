//! What the tests beside Redisson run on. Those that every primitive has run on each topology; the
//! others on one server, whose state they look at.

use leasehold_testkit::{Cluster, RedisServer, RedissonVersion, server::Builder};

use crate::support::eventually;

const CHOICE: &str = "LEASEHOLD_TOPOLOGY";
const MASTERS: usize = 3;

/// One server.
pub(crate) fn start() -> RedisServer {
    start_with(RedisServer::builder())
}

/// As [`start`], with these settings.
pub(crate) fn start_with(settings: Builder) -> RedisServer {
    settings.start().unwrap()
}

/// What `LEASEHOLD_TOPOLOGY` names: `single`, which is the default, or `cluster`.
#[allow(clippy::large_enum_variant, reason = "there is one per test")]
pub(crate) enum Site {
    Single(RedisServer),
    Cluster(Cluster),
}

impl Site {
    pub(crate) fn start() -> Self {
        match name().as_str() {
            "single" => Self::Single(start()),
            "cluster" => Self::Cluster(Cluster::start(MASTERS, 0)),
            other => panic!("{CHOICE}={other}: there are `single` and `cluster`"),
        }
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The server that has this key.
    pub(crate) fn server_of(&self, key: &str) -> &RedisServer {
        match self {
            Self::Single(server) => server,
            Self::Cluster(cluster) => cluster.node_of(key),
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        match self {
            Self::Single(server) => server.keys(),
            Self::Cluster(cluster) => cluster.keys(),
        }
    }

    /// How many scripts were run.
    pub(crate) fn scripts(&self) -> u64 {
        self.servers().map(RedisServer::scripts).sum()
    }

    /// How often this command was run.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.servers().map(|server| server.calls(command)).sum()
    }

    fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        let servers = match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        };
        servers.iter()
    }

    /// Whether these versions of Redisson don't hear each other here: in a cluster 4.7.0 uses the
    /// channels of a slot, and 3.16.8 those of all nodes.
    pub(crate) fn separates(&self, cast: &[RedissonVersion]) -> bool {
        matches!(self, Self::Cluster(_)) && cast.len() > 1
    }
}

pub(crate) fn name() -> String {
    std::env::var(CHOICE).unwrap_or_else(|_| "single".into())
}

/// Waits until nothing is left. Redisson takes away the key of its unlock's request (from 3.24
/// on) when the unlock has been answered already.
pub(crate) async fn is_empty(server: &RedisServer) {
    eventually("nothing is left", async || server.keys().is_empty()).await;
}
