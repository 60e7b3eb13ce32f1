//! Wake-ups after a release in a cluster.

use std::time::Duration;

use leasehold::settings::Peers;
use leasehold::{Client, LockGuard};
use leasehold_testkit::{Cluster, Heard, RedisServer};
use tokio::task::{JoinHandle, block_in_place};

use crate::support::{HOUR, eventually, knows_shards};

const NAME: &str = "x";

async fn client(cluster: &Cluster, peers: Peers) -> Client {
    let builder = Client::builder().peers(peers);
    builder.connect(&cluster.url()).await.unwrap()
}

/// Starts a waiter for the lock that sends requests only when something wakes it.
async fn waiter(cluster: &Cluster, client: &Client) -> JoinHandle<LockGuard> {
    let before = asks(cluster);
    let lock = client.lock(NAME).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !cluster.channels().is_empty()).await;
    // The waiter asks the server once when it begins, and once when its subscription is confirmed.
    // The second request notices a release whose message did not arrive.
    let asked = async || asks(cluster) >= before + 2;
    eventually("it has asked again", asked).await;
    waiter
}

/// Counts the scripts that the name's node was asked to run.
fn asks(cluster: &Cluster) -> u64 {
    cluster.node_of(NAME).calls("evalsha")
}

/// Waits until a client listens at this node. The limit is shorter than the ten seconds after which
/// a client queries the slot map on its own.
///
/// Servers before 7.0 do not have channels per slot. Each node forwards a message to all other
/// nodes, so a waiter hears the message at any node, and this function returns at once.
async fn listens_at(cluster: &Cluster, node: usize) {
    let node = &cluster.nodes()[node];
    let listens = eventually("it listens there", async || {
        let sharded = node.command(&["PUBSUB", "SHARDCHANNELS"]).unwrap();
        sharded
            .as_array()
            .is_none_or(|listened| !listened.is_empty())
    });
    let soon = tokio::time::timeout(Duration::from_secs(6), listens);
    soon.await.expect("it follows what the servers say");
}

/// Waits until no client has queried the slot map for a while. Each client queries it when it has
/// just connected, and again on its own ten seconds later.
async fn map_is_left_alone(cluster: &Cluster) {
    let looks = || -> u64 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| node.calls("cluster|slots")).sum()
    };
    let mut before = looks();
    eventually("nobody looks at the map", async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = looks();
        now == std::mem::replace(&mut before, now)
    })
    .await;
}

async fn is_served(waiter: JoinHandle<LockGuard>) {
    let limit = Duration::from_secs(20);
    let served = tokio::time::timeout(limit, waiter);
    let guard = served.await.expect("it is woken").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_sort_of_peers_wakes_its_own_kind_and_all() {
    let cluster = Cluster::start(2, 0);
    use Peers::{All, Redisson3, Redisson4, RustOnly};
    for (holds, waits) in [
        (All, All),
        (RustOnly, RustOnly),
        (Redisson3, Redisson3),
        (Redisson4, Redisson4),
        (All, Redisson3),
        (All, Redisson4),
        (Redisson3, All),
        (Redisson4, All),
        (RustOnly, Redisson4),
    ] {
        let holder = client(&cluster, holds).await;
        let guard = holder.lock(NAME).acquire().await.unwrap();
        let other = client(&cluster, waits).await;
        let waiter = waiter(&cluster, &other).await;
        guard.release().await.unwrap();
        is_served(waiter).await;
        drop(other);
        eventually("nobody listens", async || cluster.channels().is_empty()).await;
    }
}

/// Starts a waiter of this client for the latch. It sends requests only when something wakes it.
async fn latch_waiter(cluster: &Cluster, client: &Client) -> JoinHandle<()> {
    let before = asks(cluster);
    let latch = client.count_down_latch(NAME).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { latch.wait().await.unwrap() });
    let asked = async || asks(cluster) >= before + 2;
    eventually("it has asked again since it listens", asked).await;
    waiter
}

/// The two versions of Redisson publish in different ways. A waiter of this library listens to
/// both, and republishes a message that arrived in only one of them.
#[tokio::test]
async fn waiter_passes_an_opened_latch_on() {
    use Peers::{All, Redisson3, Redisson4};
    if !knows_shards() {
        // Every client hears every message.
        return;
    }
    let cluster = Cluster::start(2, 0);
    for (counts, hears_nothing) in [(Redisson3, Redisson4), (Redisson4, Redisson3)] {
        let counter = client(&cluster, counts).await;
        let latch = counter.count_down_latch(NAME);
        latch.try_set_count(1).await.unwrap();
        let (other, between) = (
            client(&cluster, hears_nothing).await,
            client(&cluster, All).await,
        );
        let waiting = [
            latch_waiter(&cluster, &other).await,
            latch_waiter(&cluster, &between).await,
            latch_waiter(&cluster, &between).await,
        ];
        let before = asks(&cluster);
        latch.count_down().await.unwrap();
        for waiter in waiting {
            let woken = tokio::time::timeout(Duration::from_secs(20), waiter);
            woken.await.expect("it is woken").unwrap();
        }
        // These are the count-down, one request by each client, and one republished message for two
        // waiters.
        assert!(asks(&cluster) <= before + 5, "{}", asks(&cluster) - before);
        drop((other, between));
        eventually("nobody listens", async || cluster.channels().is_empty()).await;
    }
}

/// The server refuses one of the two sorts of messages: the user is not allowed to send it, or the
/// server is too old to know it. The release succeeds anyway, and the other sort of message is
/// sent.
#[tokio::test]
async fn release_wakes_where_messages_of_a_slot_are_refused() {
    let rules = match knows_shards() {
        true => "~* &* +@all -spublish",
        false => "~* &* +@all",
    };
    let settings = RedisServer::builder().user("ann", "pw").rules(rules);
    let cluster = Cluster::of(&settings, 1, 0);
    let holder = client(&cluster, Peers::All).await;
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let other = client(&cluster, Peers::All).await;
    let waiter = waiter(&cluster, &other).await;
    guard.release().await.unwrap();
    is_served(waiter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_follow_their_slot() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(NAME);
    for peers in [Peers::All, Peers::RustOnly] {
        let holder = client(&cluster, peers).await;
        let guard = holder.lock(NAME).acquire().await.unwrap();
        let other = client(&cluster, peers).await;
        let waiter = waiter(&cluster, &other).await;
        let to = 1 - cluster.owner(slot);
        map_is_left_alone(&cluster).await;
        block_in_place(|| cluster.migrate(slot, to));
        // The waiter subscribes to the channel on the node that now sends the messages.
        listens_at(&cluster, to).await;
        guard.release().await.unwrap();
        is_served(waiter).await;
        drop((holder, other));
        eventually("nobody listens", async || cluster.channels().is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_follow_a_failover() {
    let cluster = Cluster::start(1, 1);
    let holder = client(&cluster, Peers::All).await;
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let other = client(&cluster, Peers::All).await;
    let waiter = waiter(&cluster, &other).await;
    block_in_place(|| cluster.fail_over(1));
    listens_at(&cluster, 1).await;
    guard.release().await.unwrap();
    is_served(waiter).await;
}

/// A server counts only the clients that are subscribed on that server. Redisson may subscribe on
/// any node, and each of its asynchronous waiters needs a message.
#[tokio::test]
async fn a_count_of_receivers_keeps_no_message_back() {
    const PERMITS: u32 = 3;
    let cluster = Cluster::start(2, 0);
    let elsewhere = 1 - cluster.owner(cluster.slot_of(NAME));
    let client = client(&cluster, Peers::All).await;
    let semaphore = client.semaphore(NAME);
    let mut heard = cluster.nodes()[elsewhere].listen();
    semaphore.try_set_permits(PERMITS).await.unwrap();
    // Redis 8 and Valkey may deliver the messages to the other node only after all permits are
    // free.
    assert_eq!(next_of(&mut heard, PERMITS).await, ["3", "0", "0"]);
    let permits = semaphore.acquire_many(PERMITS).await.unwrap();
    permits.release().await.unwrap();
    assert_eq!(next_of(&mut heard, PERMITS).await, ["3", "0", "0"]);
}

/// Returns the contents of `count` messages.
async fn next_of(heard: &mut Heard, count: u32) -> Vec<String> {
    let mut texts = Vec::new();
    eventually("there is a message for each permit", async || {
        texts.extend(heard.messages().into_iter().map(|(_, text)| text));
        texts.len() >= count as usize
    })
    .await;
    texts
}

/// In a cluster, a release can't find out whether a particular client hears its notification. So
/// waiters are not registered for notifications.
#[tokio::test]
async fn waiters_are_called_by_no_number() {
    let cluster = Cluster::start(2, 0);
    let holder = client(&cluster, Peers::All).await;
    let mut heard = cluster.node_of(NAME).listen();
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let other = client(&cluster, Peers::All).await;
    let first = waiter(&cluster, &other).await;
    let lock = other.lock(NAME);
    // This client listens already, and its request says so.
    let refused = lock.try_acquire_for(Duration::from_millis(50)).await;
    assert!(refused.unwrap().is_none());
    guard.release().await.unwrap();
    is_served(first).await;
    let touched = heard.keys();
    assert!(touched.contains(&NAME.to_owned()), "{touched:?}");
    let noted = touched.iter().any(|key| key.ends_with(":asking"));
    assert!(!noted, "{touched:?}");
}

/// A client that asks again does not know on which nodes the other clients are subscribed, so it
/// must republish the message that permits are free.
#[tokio::test]
async fn receivers_are_not_counted() {
    let cluster = Cluster::start(2, 0);
    let ours = client(&cluster, Peers::All).await;
    let theirs = client(&cluster, Peers::All).await;
    let semaphore = ours.semaphore(NAME);
    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let waits = theirs.semaphore(NAME).poll_interval(HOUR);
    let other = tokio::spawn(async move { waits.acquire().await.unwrap() });
    eventually("it listens", async || !cluster.channels().is_empty()).await;
    permit.release().await.unwrap();
    let limit = Duration::from_secs(20);
    let served = tokio::time::timeout(limit, other).await;
    served
        .expect("it is woken")
        .unwrap()
        .release()
        .await
        .unwrap();
}
