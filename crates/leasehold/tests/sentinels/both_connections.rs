//! A client with acknowledged holds has two connections for calls. Either connection may be the
//! first to learn that the master has moved to another server.

use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Acknowledgement, Client};
use leasehold_testkit::{RedisServer, Reply, Sentinels};

use super::asked::behind_proxies;
use crate::support::eventually;

/// A lease long enough that no renewal is due while a test runs.
const LEASE: Duration = Duration::from_secs(600);
/// The label of the client's connections on the server.
const LABEL: &str = "both";

/// Returns the ids of the client's connections to this server, the oldest first.
fn connections(server: &RedisServer) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    let ours = list.as_text().unwrap().lines();
    let ours = ours.filter(|line| line.contains(&format!("name=leasehold:{LABEL}")));
    ours.map(|line| line.split(' ').next().unwrap().replace("id=", ""))
        .collect()
}

/// Reopens the connection for plain calls, so that it is the last connection that waits for the
/// sentinels' report.
async fn open_plain_connection_again(client: &Client, server: &RedisServer) {
    let before = connections(server);
    assert_eq!(before.len(), 2, "one for plain calls, and then the other");
    let killed = server.command(&["CLIENT", "KILL", "ID", &before[0]]);
    assert_eq!(killed.unwrap(), Reply::Int(1));
    eventually("it is connected again", async || {
        let plain = client.lock("plain").try_acquire().await;
        let now = connections(server);
        plain.is_ok() && now.len() == 2 && !now.contains(&before[0])
    })
    .await;
}

/// The old server remains a master, as if the sentinels could not reach it, and two of the three
/// sentinels send no message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_connections_for_calls_leave_an_old_master_by_one_word() {
    let sentinels = Sentinels::start(1);
    let (proxies, url) = behind_proxies(&sentinels);
    let builder = Client::builder().lease(LEASE).label(LABEL);
    let client = builder.connect(&url).await.unwrap();
    let other = Client::connect(&sentinels.url()).await.unwrap();
    let [old, new] = sentinels.servers() else {
        panic!("there are two servers");
    };
    let confirmed = client.lock("confirmed");
    let confirmed = confirmed.acknowledged_by(Acknowledgement::replicas(1));
    let confirmed = confirmed.acquire().await.unwrap();
    open_plain_connection_again(&client, old).await;
    let plain = client.lock("held").acquire().await.unwrap();
    eventually("it is replicated", async || new.keys() == old.keys()).await;
    let before = plain.valid_until();
    let denied = ["ACL", "SETUSER", "default", "-slaveof", "-replicaof"];
    assert_eq!(old.command(&denied).unwrap(), Reply::Text("OK".into()));
    proxies[1..]
        .iter()
        .for_each(|proxy| proxy.swallow_messages(true));
    sentinels.order_failover();
    sentinels.wait_until_replaced(0);

    eventually("no connection leads to the old master", async || {
        connections(old).is_empty()
    })
    .await;
    let role = old.command(&["INFO", "replication"]).unwrap();
    assert!(role.as_text().unwrap().contains("role:master"));
    let recorder = Recorder::new();
    let asked = recorder.ask("y", "other");
    let theirs = other.lock("y").acquire().await.unwrap();
    let theirs_inside = asked.acquired(&theirs);
    let asked = recorder.ask("y", "client");
    let lock = client.lock("y");
    let waiter = tokio::spawn(async move {
        let ours = lock.acquire().await.unwrap();
        asked.acquired(&ours).releasing(&ours);
        ours.release().await
    });
    eventually("it waits at the new master", async || {
        !sentinels.channels().is_empty() || waiter.is_finished()
    })
    .await;
    theirs_inside.releasing(&theirs);
    theirs.release().await.unwrap();
    waiter.await.unwrap().unwrap();
    recorder.report().judge().unwrap();
    eventually("the new master has renewed the plain hold", async || {
        assert_eq!(plain.loss(), None);
        plain.valid_until() > before + Duration::from_millis(100)
    })
    .await;
    plain.release().await.unwrap();
    confirmed.release().await.unwrap();
}
