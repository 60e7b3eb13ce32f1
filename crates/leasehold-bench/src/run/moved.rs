//! How soon a waiter of another client has a lock whose slot has just moved.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use super::site::Site;
use crate::Result;
use crate::delays::Delays;

/// From the call of a release to the return of the other client's acquire, so many times.
pub(super) async fn hand_overs(site: &Site, name: &str, times: usize) -> Result<Delays> {
    let Site::Cluster(cluster) = site else {
        return Err("a single server has no slots".into());
    };
    let url = site.url();
    let clients = [Client::connect(&url).await?, Client::connect(&url).await?];
    let mut delays = Delays::default();
    for turn in 0..times {
        let (holder, waiter) = (&clients[turn % 2], &clients[(turn + 1) % 2]);
        let delay = hand_over(cluster, holder, waiter, name).await?;
        delays.add(u64::try_from(delay.as_nanos())?);
    }
    Ok(delays)
}

async fn hand_over(
    cluster: &Cluster,
    holder: &Client,
    waiter: &Client,
    name: &str,
) -> Result<Duration> {
    let held = holder.lock(name).acquire().await?;
    let lock = waiter.lock(name);
    let waiting = tokio::spawn(async move { (lock.acquire().await, Instant::now()) });
    while waiter.activity().channels == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let slot = cluster.slot_of(name);
    let to = (cluster.owner(slot) + 1) % cluster.nodes().len();
    block_in_place(|| cluster.migrate(slot, to));
    let released = Instant::now();
    held.release().await?;
    let (granted, at) = waiting.await?;
    granted?.release().await?;
    Ok(at.saturating_duration_since(released))
}
