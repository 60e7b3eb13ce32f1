//! The servers that the systems of a scenario use: one server or several.

use std::{env, slice};

use leasehold_testkit::{Cluster, RedisServer, Sentinels};

use crate::scenario::Topology;
use crate::{Result, server};

/// The environment variable that names a server program for locks that must be on the server's
/// disk. It is for machines where the `redis-server` on the `PATH` can't confirm this. Redis from
/// 7.2 on and Valkey can.
const DISK_SERVER: &str = "LEASEHOLD_DISK_SERVER";

#[allow(clippy::large_enum_variant, reason = "there are a few per run")]
pub(crate) enum Site {
    Single(RedisServer),
    Cluster(Cluster),
    Replicated(Sentinels),
}

impl Site {
    pub(crate) fn start(topology: Topology) -> Result<Self> {
        const MASTERS: usize = 3;
        const REPLICAS: usize = 2;
        Ok(match topology {
            Topology::Single => Self::Single(RedisServer::start()?),
            Topology::Cluster => Self::Cluster(Cluster::start(MASTERS, 0)),
            Topology::Replicated => Self::Replicated(Sentinels::start(REPLICAS)),
            Topology::OnDisk => {
                let settings = RedisServer::builder()
                    .arg("appendonly", "yes")
                    .arg("appendfsync", "always");
                let settings = match env::var_os(DISK_SERVER) {
                    Some(program) => settings.program(program),
                    None => settings,
                };
                Self::Single(settings.start()?)
            }
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Replicated(sentinels) => sentinels.url(),
        }
    }

    /// Returns the servers that run the clients' requests. Replicas are not included, so their cost
    /// is not counted.
    pub(crate) fn servers(&self) -> &[RedisServer] {
        match self {
            Self::Single(server) => slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Replicated(sentinels) => slice::from_ref(sentinels.master_server()),
        }
    }

    /// Returns how many bytes the servers have allocated.
    pub(super) fn memory(&self) -> Result<u64> {
        self.servers().iter().map(server::memory).sum()
    }
}
