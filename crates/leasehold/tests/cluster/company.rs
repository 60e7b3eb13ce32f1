//! Every feature while its slot moves.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::{Cluster, eventually as soon};
use tokio::task::block_in_place;

use crate::support::asleep::asleep;
use crate::support::company::{Company, leaves_nothing, stays_at_the_end};
use crate::support::ended::at_runtime_end;
use crate::support::users::{Users, logged_in};
use crate::support::{HOUR, eventually};

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
    let company = Company::connect(&builder, &cluster.url()).await;
    let company = company.with_threads(&builder, &cluster.url()).await;
    company.goes_through(async || trouble(&cluster).await).await;
    leaves_nothing(|| cluster.keys()).await;
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

/// The nodes to which the slots move admit only the new user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_follows_its_slot_with_new_credentials() {
    let cluster = Cluster::start(3, 0);
    let users = Users::of(cluster.nodes(), "first");
    let builder = users.log_in(Client::builder().lease(LEASE));
    let company = Company::connect(&builder, &cluster.url()).await;
    let company = company.with_threads(&builder, &cluster.url()).await;
    let trouble = async || {
        users.change_to("second");
        block_in_place(|| {
            users.delete("first");
            move_all(&cluster);
        });
        company.is_answered().await;
        for node in cluster.nodes() {
            eventually("each client has logged in at the node", async || {
                logged_in(node, "second") >= 3
            })
            .await;
        }
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| cluster.keys()).await;
}

/// The slots move while the machine of the clients sleeps.
#[tokio::test]
async fn every_feature_sleeps_through_a_move_of_its_slot() {
    let cluster = Cluster::start(3, 0);
    let builder = Client::builder().lease(LEASE);
    let company = Company::connect(&builder, &cluster.url()).await;
    let moves = async || asleep(|| move_all(&cluster));
    company.goes_through(moves).await;
    leaves_nothing(|| cluster.keys()).await;
}

/// The releases that are sent when the runtime ends reach the nodes to which the slots have moved.
#[test]
fn runtime_end_after_a_move_leaves_nothing() {
    let cluster = Cluster::start(3, 0);
    let work = async || {
        let builder = Client::builder().lease(HOUR);
        let company = Company::connect(&builder, &cluster.url()).await;
        company.clone().settles().await;
        let keys = cluster.keys();
        move_all(&cluster);
        // A release at the end of the runtime is sent only once, so the clients must already know
        // the new nodes.
        for client in [&company.ours, &company.theirs] {
            for key in &keys {
                let _ = client.inspect(key).await;
            }
        }
    };
    let check = |()| {
        soon("nothing is left", Duration::from_secs(20), || {
            cluster.keys().iter().all(|key| stays_at_the_end(key))
        });
    };
    let again = || {
        for node in cluster.nodes() {
            node.command(&["FLUSHALL"]).unwrap();
        }
    };
    at_runtime_end(work, check, again);
}
