//! Every feature while its slot moves.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use crate::support::company::Company;
use crate::support::eventually;

const LEASE: Duration = Duration::from_secs(60);

/// Moves every slot that has a key to the next node.
fn move_all(cluster: &Cluster) {
    let keys = cluster.keys();
    let slots: BTreeSet<_> = keys.iter().map(|key| cluster.slot_of(key)).collect();
    assert!(slots.len() > 20);
    for slot in slots {
        cluster.migrate(slot, (cluster.owner(slot) + 1) % 3);
    }
}

async fn goes_through(replicas: usize, trouble: impl AsyncFnOnce(&Cluster)) {
    let cluster = Cluster::start(3, replicas);
    let builder = Client::builder().lease(LEASE);
    let ours = builder.connect(&cluster.url()).await.unwrap();
    let theirs = builder.connect(&cluster.url()).await.unwrap();
    let company = Company::new(&ours, &theirs);
    let company = company.with_threads(&builder, &cluster.url()).await;
    company.goes_through(async || trouble(&cluster).await).await;
    eventually("nothing is left", async || {
        let mut keys = cluster.keys().into_iter();
        keys.all(|key| key.contains("_token:") || key.starts_with("leasehold:"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_follows_its_slot() {
    let moves = async |cluster: &Cluster| block_in_place(|| move_all(cluster));
    goes_through(0, moves).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_follows_a_failover_of_its_node() {
    let fails_over = async |cluster: &Cluster| {
        block_in_place(|| {
            cluster.wait_until_replicated();
            for node in 0..3 {
                let replica = cluster.replicas_of(node)[0];
                cluster.fail_over(replica);
            }
        });
    };
    goes_through(1, fails_over).await;
}
