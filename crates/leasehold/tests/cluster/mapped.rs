//! Nodes that announce an address at which they can't be reached from here.

use leasehold::Client;
use leasehold_testkit::Cluster;

use super::bad_input::names_at;

async fn serves(client: &Client, name: &str) {
    let guard = client.lock(name).acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn node_is_reached_where_its_announced_address_leads() {
    let cluster = Cluster::start(2, 0);
    let (here, there) = (names_at(&cluster, 0), names_at(&cluster, 1));
    let reached = cluster.nodes()[1].port();
    // Nobody listens on port 1.
    cluster.announce(1, 1);
    let builder = Client::builder().map_address(move |host, port| {
        assert_eq!(host, "127.0.0.1");
        (port == 1).then(|| ("localhost".to_owned(), reached))
    });
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let client = builder.connect(&url).await.unwrap();
    serves(&client, &there[0]).await;
    // The next one has to follow a redirection there.
    cluster.migrate(cluster.slot_of(&here[0]), 1);
    serves(&client, &here[0]).await;
    let seen = client.inspect(&here[0]).await.unwrap();
    let at = seen.node.unwrap().address.unwrap();
    assert_eq!(at, format!("redis://localhost:{reached}"));
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
