//! Measures how soon a waiter in another client gets a lock whose slot has just moved, or whose
//! master has just been replaced.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use super::site::Site;
use crate::Result;
use crate::delays::Delays;

/// Measures the time from the call to a release until the other client's acquire returns. Does this
/// `times` times, each time after the slot has moved.
pub(super) async fn hand_overs(site: &Site, name: &str, times: usize) -> Result<Delays> {
    let Site::Cluster(cluster) = site else {
        return Err("a single server has no slots".into());
    };
    let slot = cluster.slot_of(name);
    let pair = Pair::connect(&site.url()).await?;
    let mut delays = Delays::default();
    for turn in 0..times {
        let moving = || {
            let to = (cluster.owner(slot) + 1) % cluster.nodes().len();
            cluster.migrate(slot, to);
        };
        delays.add(pair.hand_over(turn, name, moving).await?);
    }
    Ok(delays)
}

/// Like [`hand_overs`], but with failovers instead of moves, on a cluster with replicas.
pub(super) async fn failed_over(name: &str, times: usize) -> Result<Delays> {
    const MASTERS: usize = 3;
    // Within twice the node timeout, a node does not vote for a second replica of the same master.
    const VOTES_AGAIN: Duration = Duration::from_secs(3);
    let cluster = block_in_place(|| Cluster::start(MASTERS, 1));
    let names = (0..MASTERS).map(|node| name_at(&cluster, name, node));
    // The slots do not move to another shard. Only the masters of the shards change.
    let mut shards: Vec<_> = names.map(|name| (name, Instant::now())).collect();
    let pair = Pair::connect(&cluster.url()).await?;
    let mut delays = Delays::default();
    for turn in 0..times {
        let (name, votes_at) = &mut shards[turn % MASTERS];
        tokio::time::sleep_until((*votes_at).into()).await;
        let slot = cluster.slot_of(name);
        let failing = || {
            let replica = cluster.replicas_of(cluster.owner(slot))[0];
            cluster.fail_over(replica);
        };
        delays.add(pair.hand_over(turn, name, failing).await?);
        *votes_at = Instant::now() + VOTES_AGAIN;
    }
    Ok(delays)
}

/// Returns a name in a slot of this node.
fn name_at(cluster: &Cluster, name: &str, node: usize) -> String {
    let mut names = (0..).map(|n| format!("{name}:{n}"));
    let found = names.find(|name| cluster.owner(cluster.slot_of(name)) == node);
    found.expect("each node has slots")
}

/// Two clients that hand a lock to each other.
struct Pair([Client; 2]);

impl Pair {
    async fn connect(url: &str) -> Result<Self> {
        let clients = [Client::connect(url).await?, Client::connect(url).await?];
        Ok(Self(clients))
    }

    /// Runs `behind` while one client holds the lock and the other waits. Then measures how many
    /// nanoseconds the hand-over takes.
    async fn hand_over(&self, turn: usize, name: &str, behind: impl FnOnce()) -> Result<u64> {
        let [holder, waiter] = [turn, turn + 1].map(|client| &self.0[client % 2]);
        let held = holder.lock(name).acquire().await?;
        let lock = waiter.lock(name);
        let waiting = tokio::spawn(async move { (lock.acquire().await, Instant::now()) });
        while waiter.activity().channels == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        block_in_place(behind);
        let released = Instant::now();
        held.release().await?;
        let (granted, at) = waiting.await?;
        granted?.release().await?;
        let delay = at.saturating_duration_since(released);
        Ok(u64::try_from(delay.as_nanos())?)
    }
}
