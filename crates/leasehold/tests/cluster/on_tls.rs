//! Names in certificates: a client connects to a node by the name that the cluster gives it.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Cluster, RedisServer, server::Builder};
use tokio::task::block_in_place;

use super::bad_input::names_at;

/// Returns the settings of nodes whose certificates are only for `localhost`.
fn named() -> Builder {
    RedisServer::builder().tls_for(&["localhost"])
}

async fn connect(cluster: &Cluster) -> Client {
    let first = &cluster.nodes()[0];
    let builder = Client::builder()
        .tls_authorities(first.ca_pem())
        .reply_timeout(Duration::from_secs(2));
    // The URL names one node, so the client learns of the other nodes only from the cluster.
    let url = first.url().replace("rediss:", "rediss-cluster:");
    builder.connect(&url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_called_by_the_names_that_they_announce() {
    let settings = named()
        .arg("cluster-announce-hostname", "localhost")
        .arg("cluster-preferred-endpoint-type", "hostname");
    let cluster = Cluster::of(&settings, 2, 0);
    let client = connect(&cluster).await;
    for node in 0..2 {
        for name in names_at(&cluster, node) {
            let guard = client.lock(&name).acquire().await.unwrap();
            let seen = client.inspect(&name).await.unwrap();
            let address = format!("rediss://localhost:{}", cluster.nodes()[node].port());
            assert_eq!(seen.node.unwrap().address, Some(address));
            // The client learns of the new owner by a redirection.
            let slot = cluster.slot_of(&name);
            block_in_place(|| cluster.migrate(slot, 1 - node));
            guard.release().await.unwrap();
            let lock = client.lock(&name);
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn address_that_no_certificate_names_is_an_error() {
    let cluster = Cluster::of(&named(), 2, 0);
    let client = connect(&cluster).await;
    let name = names_at(&cluster, 1).remove(0);
    let error = client.lock(&name).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (port, slot) = (cluster.nodes()[1].port(), cluster.slot_of(&name));
    for word in [
        &format!("rediss://127.0.0.1:{port}"),
        &format!("the slot {slot};"),
        "cluster-announce-hostname",
    ] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}
