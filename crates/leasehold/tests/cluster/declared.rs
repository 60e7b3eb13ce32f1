//! The keys that a client declares to the nodes.

use leasehold::Client;
use leasehold_testkit::{Cluster, RedisServer, Reply};

/// Returns the number of declared keys of each script that this node has run.
fn declared(node: &RedisServer) -> Vec<String> {
    let log = node.command(&["SLOWLOG", "GET", "1000"]).unwrap();
    let calls = log.as_array().unwrap().iter();
    let calls = calls.map(|call| call.as_array().unwrap()[3].as_array().unwrap());
    let scripts = calls.filter(|call| call[0] == Reply::Text("EVALSHA".into()));
    let counts = scripts.map(|call| call[2].as_text().unwrap().to_owned());
    counts.collect()
}

#[tokio::test]
async fn keys_are_declared_when_that_is_set() {
    for declares in [false, true] {
        let settings = RedisServer::builder().arg("slowlog-log-slower-than", "0");
        let cluster = Cluster::of(&settings.arg("slowlog-max-len", "1000"), 2, 0);
        let builder = Client::builder().declare_keys(declares);
        let client = builder.connect(&cluster.url()).await.unwrap();
        for n in 0..10 {
            let lock = client.fenced_lock(format!("name {n}"));
            lock.acquire().await.unwrap().release().await.unwrap();
            let semaphore = client.semaphore(format!("permits {n}"));
            semaphore.try_set_permits(1).await.unwrap();
            let permit = semaphore.acquire().await.unwrap();
            permit.release().await.unwrap();
        }
        let counts: Vec<_> = cluster.nodes().iter().flat_map(declared).collect();
        assert!(counts.len() >= 40, "{counts:?}");
        let all_are_so = counts.iter().all(|count| (count != "0") == declares);
        assert!(all_are_so, "declares: {declares}, {counts:?}");
    }
}

/// A node may deny a user access to the key that operations use to find out whether the node has
/// their slot.
#[tokio::test]
async fn declared_keys_of_one_node_need_no_look() {
    let settings = RedisServer::builder().user("app", "pw");
    let cluster = Cluster::of(&settings.rules("~x ~redisson_* &* +@all"), 2, 0);
    let builder = Client::builder().declare_keys(true);
    let client = builder.connect(&cluster.url()).await.unwrap();
    let lock = client.lock("x");
    lock.acquire().await.unwrap().release().await.unwrap();
}
