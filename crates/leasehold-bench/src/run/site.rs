//! What the systems of a scenario use: one server, or a cluster.

use std::slice;

use leasehold_testkit::{Cluster, RedisServer};

use crate::scenario::Topology;
use crate::{Result, server};

#[allow(clippy::large_enum_variant, reason = "there are two per run")]
pub(crate) enum Site {
    Single(RedisServer),
    Cluster(Cluster),
}

impl Site {
    pub(crate) fn start(topology: Topology) -> Result<Self> {
        const MASTERS: usize = 3;
        Ok(match topology {
            Topology::Single => Self::Single(RedisServer::start()?),
            Topology::Cluster => Self::Cluster(Cluster::start(MASTERS, 0)),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    pub(crate) fn servers(&self) -> &[RedisServer] {
        match self {
            Self::Single(server) => slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Bytes that the servers have allocated.
    pub(super) fn memory(&self) -> Result<u64> {
        self.servers().iter().map(server::memory).sum()
    }
}
