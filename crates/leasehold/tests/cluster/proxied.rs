//! Operations whose reply is lost on the way from a node of a cluster.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Cluster, Proxy};

use crate::support::eventually;

const NAME: &str = "x";

/// Two masters, and a proxy in front of the one that has the name.
struct Place {
    cluster: Cluster,
    proxy: Proxy,
    owner: usize,
}

impl Place {
    fn start() -> Self {
        let cluster = Cluster::start(2, 0);
        let owner = cluster.owner(cluster.slot_of(NAME));
        let proxy = Proxy::to(cluster.nodes()[owner].port());
        cluster.announce(owner, proxy.port());
        Self {
            cluster,
            proxy,
            owner,
        }
    }

    /// Connects a client through the other node, which reports the proxy's address.
    async fn client(&self) -> Client {
        let other = self.cluster.nodes()[1 - self.owner].url();
        let url = other.replace("redis:", "redis-cluster:");
        Client::connect(&url).await.unwrap()
    }

    /// Reads the value of a key at one node.
    fn value(&self, node: usize, key: &str) -> Option<String> {
        let values = self.cluster.nodes()[node].asking(&[&["GET", key]]).unwrap();
        values[0].as_text().map(str::to_owned)
    }
}

/// The operation may have run, so the client does not send it again.
#[tokio::test]
async fn lost_reply_is_told_and_does_not_go_again() {
    let place = Place::start();
    let client = place.client().await;
    let lock = client.lock(NAME);
    lock.acquire().await.unwrap().release().await.unwrap();
    let _fault = place.proxy.cut_after_next(b"lock.acquire");
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    eventually("it has struck", async || place.proxy.faults_fired() == 1).await;
    eventually("it is undone", async || place.cluster.keys().is_empty()).await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// An acquire has run when its slot begins to move, and its reply is lost.
#[tokio::test]
async fn undo_waits_for_its_slot_and_gives_the_permits_back() {
    const PERMITS: u32 = 5;
    let place = Place::start();
    let (cluster, owner, to) = (&place.cluster, place.owner, 1 - place.owner);
    let slot = cluster.slot_of(NAME);
    let client = place.client().await;
    let semaphore = client.semaphore(NAME);
    semaphore.try_set_permits(PERMITS).await.unwrap();
    place.proxy.hold_replies(true);
    let asks = semaphore.clone();
    let acquire = tokio::spawn(async move { asks.acquire_many(2).await });
    eventually("it has run", async || {
        place.value(owner, NAME).as_deref() == Some("3")
    })
    .await;
    cluster.open(slot, to);
    let markers = || {
        let keys = cluster.keys_in(owner, slot).into_iter();
        keys.filter(|key| key.contains(":did:"))
    };
    assert!(markers().count() > 0, "{:?}", cluster.keys_in(owner, slot));
    acquire.abort();
    place.proxy.cut_calls();
    place.proxy.hold_replies(false);
    // Other names of this node are served again, so the undo was sent.
    let other = (0..).map(|n| format!("name {n}"));
    let mut others = other.filter(|name| cluster.owner(cluster.slot_of(name)) == owner);
    let other = client.lock(others.next().unwrap());
    other.acquire().await.unwrap().release().await.unwrap();
    eventually("it is undone in the background", async || {
        client.activity().releases > 0 || place.value(owner, NAME).as_deref() == Some("5")
    })
    .await;
    tokio::task::yield_now().await;
    assert_eq!(place.value(owner, NAME).as_deref(), Some("3"), "not half");
    assert!(markers().count() > 0, "the marker says what was taken");
    for key in cluster.keys_in(owner, slot) {
        cluster.move_key(owner, to, &key);
    }
    cluster.assign(slot, to);
    eventually("the permits are back", async || {
        place.value(to, NAME).as_deref() == Some("5")
    })
    .await;
    let limit = Duration::from_secs(20);
    let all = tokio::time::timeout(limit, semaphore.acquire_many(PERMITS));
    all.await.unwrap().unwrap().release().await.unwrap();
}
