//! The servers of the tests beside Redisson. Tests that every primitive has run on each topology.
//! The other tests read the server's state, and run on one server.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{Cluster, RedisServer, RedissonVersion, Sentinels, server::Builder};

use crate::support::eventually;

const CHOICE: &str = "LEASEHOLD_TOPOLOGY";
const MASTERS: usize = 3;
/// A name that no check uses.
const ELSEWHERE: &str = "elsewhere";

/// Starts one server.
pub(crate) fn start() -> RedisServer {
    start_with(RedisServer::builder())
}

/// Like [`start`], with these settings.
pub(crate) fn start_with(settings: Builder) -> RedisServer {
    settings.start().unwrap()
}

/// The topology that `LEASEHOLD_TOPOLOGY` names: `single`, which is the default, `cluster`,
/// `sentinels`, or `sentinels-after-failover`.
#[allow(clippy::large_enum_variant, reason = "there is one per test")]
pub(crate) enum Site {
    Single(RedisServer),
    Cluster(Cluster),
    Sentinels {
        sentinels: Sentinels,
        /// Whether [`fails_over`](Self::fails_over) still has to make the failover.
        fails_over: bool,
    },
}

impl Site {
    /// Starts the servers, and makes the failover, if there is one. Clients connect after that.
    pub(crate) fn start() -> Self {
        let site = Self::start_whole();
        site.replace_the_master();
        site
    }

    /// Like [`start`](Self::start), but without the failover. [`fails_over`](Self::fails_over)
    /// makes it.
    pub(crate) fn start_whole() -> Self {
        match name().as_str() {
            "single" => Self::Single(start()),
            "cluster" => Self::Cluster(Cluster::start(MASTERS, 0)),
            "sentinels" => Self::Sentinels {
                sentinels: Sentinels::start(1),
                fails_over: false,
            },
            "sentinels-after-failover" => Self::behind_sentinels(),
            other => panic!(
                "{CHOICE}={other}: there are `single`, `cluster`, `sentinels` and \
                 `sentinels-after-failover`"
            ),
        }
    }

    /// Starts a master behind sentinels, on every topology. The master fails over only when a test
    /// asks for it.
    pub(crate) fn behind_sentinels() -> Self {
        Self::Sentinels {
            sentinels: Sentinels::start(1),
            fails_over: true,
        }
    }

    /// Replaces the master under these clients, if a failover was chosen, and waits until each of
    /// them calls the new master.
    pub(crate) async fn fails_over(&self, ours: &Client, javas: &[RedissonThread]) {
        if self.replace_the_master() {
            self.is_followed(ours, javas).await;
        }
    }

    fn replace_the_master(&self) -> bool {
        let Self::Sentinels {
            sentinels,
            fails_over: true,
        } = self
        else {
            return false;
        };
        tokio::task::block_in_place(|| sentinels.fail_over());
        true
    }

    /// Waits until each of these clients calls the present master.
    pub(crate) async fn is_followed(&self, ours: &Client, javas: &[RedissonThread]) {
        let lock = ours.lock(ELSEWHERE);
        eventually("ours calls the new master", async || {
            let Ok(Some(guard)) = lock.try_acquire().await else {
                return false;
            };
            let is_there = self.has(ELSEWHERE);
            guard.release().await.is_ok() && is_there
        })
        .await;
        for java in javas {
            let java = java.kind(LockKind::Plain);
            // The lease is explicit, because otherwise 4.7.0 would leave a timer running.
            let lease = Some(Duration::from_secs(60));
            eventually("Redisson calls the new master", async || {
                let taken = java.try_lock_wait(ELSEWHERE, Duration::ZERO, lease);
                let is_there = taken.is_ok_and(|taken| taken.value) && self.has(ELSEWHERE);
                java.unlock(ELSEWHERE).is_ok() && is_there
            })
            .await;
        }
        eventually("it is free", async || !self.has(ELSEWHERE)).await;
    }

    fn has(&self, key: &str) -> bool {
        let exists = self.server_of(key).command(&["EXISTS", key]);
        exists.is_ok_and(|exists| exists.as_int() == Some(1))
    }

    /// Returns the URL that clients connect to.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels { sentinels, .. } => sentinels.url(),
        }
    }

    /// Returns the server that has this key.
    pub(crate) fn server_of(&self, key: &str) -> &RedisServer {
        match self {
            Self::Single(server) => server,
            Self::Cluster(cluster) => cluster.node_of(key),
            Self::Sentinels { sentinels, .. } => sentinels.master_server(),
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        match self {
            Self::Single(server) => server.keys(),
            Self::Cluster(cluster) => cluster.keys(),
            Self::Sentinels { sentinels, .. } => sentinels.keys(),
        }
    }

    /// Counts the scripts that were run.
    pub(crate) fn scripts(&self) -> u64 {
        self.servers().map(RedisServer::scripts).sum()
    }

    /// Counts how often this command was run.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.servers().map(|server| server.calls(command)).sum()
    }

    fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        let servers = match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
            // A replica receives a script's writes, not the script, so it counts nothing.
            Self::Sentinels { sentinels, .. } => sentinels.servers(),
        };
        servers.iter()
    }

    /// Whether these versions of Redisson don't hear each other: in a cluster, 4.7.0 uses the
    /// channels of a slot, and 3.16.8 uses channels of all nodes.
    pub(crate) fn separates(&self, cast: &[RedissonVersion]) -> bool {
        matches!(self, Self::Cluster(_)) && cast.len() > 1
    }
}

pub(crate) fn name() -> String {
    std::env::var(CHOICE).unwrap_or_else(|_| "single".into())
}

/// Waits until no key remains. Redisson (from 3.24 on) deletes the key of an unlock request only
/// after it has reported the unlock.
pub(crate) async fn is_empty(server: &RedisServer) {
    eventually("nothing is left", async || server.keys().is_empty()).await;
}
