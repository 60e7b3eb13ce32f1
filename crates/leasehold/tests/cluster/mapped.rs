//! Nodes that announce an address at which the client can't reach them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use leasehold::Client;
use leasehold_testkit::{Cluster, RedisServer};

use super::bad_input::names_at;
use crate::support::eventually;

async fn serves(client: &Client, name: &str) {
    let guard = client.lock(name).acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn node_is_reached_where_its_announced_address_leads() {
    let cluster = Cluster::start(2, 0);
    let (here, there) = (names_at(&cluster, 0), names_at(&cluster, 1));
    let reached = cluster.nodes()[1].port();
    // No server listens on port 1.
    cluster.announce(1, 1);
    let builder = Client::builder().map_address(move |host, port| {
        assert_eq!(host, "127.0.0.1");
        (port == 1).then(|| ("localhost".to_owned(), reached))
    });
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let client = builder.connect(&url).await.unwrap();
    serves(&client, &there[0]).await;
    // The next use of the name must follow a redirection to the mapped node.
    cluster.migrate(cluster.slot_of(&here[0]), 1);
    serves(&client, &here[0]).await;
    let seen = client.inspect(&here[0]).await.unwrap();
    let at = seen.node.unwrap().address.unwrap();
    assert_eq!(at, format!("redis://localhost:{reached}"));
}

#[tokio::test]
async fn mapped_node_that_names_no_host_is_not_mapped_again() {
    let settings = RedisServer::builder()
        .arg("cluster-preferred-endpoint-type", "unknown-endpoint")
        .arg("cluster-require-full-coverage", "no");
    let cluster = Cluster::of(&settings, 3, 0);
    let names: Vec<_> = (0..3).map(|node| names_at(&cluster, node)).collect();
    let reached: Vec<_> = cluster.nodes().iter().map(RedisServer::port).collect();
    for node in 1..3 {
        // No server listens on ports 1 and 2.
        cluster.announce(node, u16::try_from(node).unwrap());
    }
    let hosts = Arc::<Mutex<BTreeSet<String>>>::default();
    let seen = Arc::clone(&hosts);
    let builder = Client::builder().map_address(move |host, port| {
        seen.lock().unwrap().insert(host.to_owned());
        let there = reached.get(usize::from(port))?;
        Some(("localhost".to_owned(), *there))
    });
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let client = builder.connect(&url).await.unwrap();
    for names in &names {
        serves(&client, &names[0]).await;
    }
    // A mapped node redirects the client, even without naming a host.
    cluster.migrate(cluster.slot_of(&names[1][1]), 2);
    serves(&client, &names[1][1]).await;
    // From now on, only mapped nodes can report the slot map.
    let told = || {
        let calls = cluster.nodes()[1..].iter();
        calls.map(|node| node.calls("cluster|slots")).sum::<u64>()
    };
    let before = told();
    cluster.nodes()[0].kill().unwrap();
    eventually("a mapped node has told the map", async || {
        told() > before + 2
    })
    .await;
    for names in &names[1..] {
        serves(&client, &names[0]).await;
    }
    let hosts: Vec<_> = hosts.lock().unwrap().iter().cloned().collect();
    assert_eq!(hosts, ["127.0.0.1"]);
}

#[tokio::test]
async fn callback_that_panics_costs_no_connection() {
    let cluster = Cluster::start(2, 0);
    let builder = Client::builder().map_address(|_, _| panic!("on purpose"));
    let client = builder.connect(&cluster.url()).await.unwrap();
    for node in 0..2 {
        serves(&client, &names_at(&cluster, node)[0]).await;
    }
}
