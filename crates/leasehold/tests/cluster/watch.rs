//! A watch follows its name's slot.

use leasehold::Client;
use leasehold::watch::{Change, Watch};
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use crate::support::HOUR;

async fn until(watch: &mut Watch, is_it: fn(&Change) -> bool) {
    let found = async { while !is_it(&watch.next().await.expect("it goes on").unwrap()) {} };
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, found).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_sees_releases_after_its_slot_has_moved() {
    let cluster = block_in_place(|| Cluster::start(3, 0));
    let client = Client::connect(&cluster.url()).await.unwrap();
    let other = Client::connect(&cluster.url()).await.unwrap();
    let slot = cluster.slot_of("x");
    for _ in 0..3 {
        let guard = client.lock("x").acquire().await.unwrap();
        // A first watch finds out which node has the name. Without polls, only a message can wake
        // the second watch.
        let mut watch = other.watch("x").poll_interval(HOUR);
        until(&mut watch, |change| matches!(change, Change::Held(_))).await;
        let to = (cluster.owner(slot) + 1) % 3;
        block_in_place(|| cluster.migrate(slot, to));
        let mut polls = other.watch("x");
        until(&mut polls, |change| matches!(change, Change::Held(_))).await;
        guard.release().await.unwrap();
        until(&mut polls, |change| matches!(change, Change::Freed)).await;
        until(&mut watch, |change| matches!(change, Change::Freed)).await;
    }
}
