//! Addresses, names and clusters that can't work. Each causes an error that says what to do, or a
//! wait that ends.

use std::time::Duration;

use leasehold::{Client, Error, ErrorKind};
use leasehold_testkit::server::Builder;
use leasehold_testkit::{Cluster, RedisServer, Reply};

async fn refused(url: &str) -> Error {
    let connect = Client::builder().connect_timeout(Duration::from_secs(5));
    let connected = tokio::time::timeout(Duration::from_secs(30), connect.connect(url));
    let refused = connected.await.expect("it does not hang");
    refused.expect_err(url)
}

#[tokio::test]
async fn url_has_to_name_what_the_server_is() {
    let single = RedisServer::start().unwrap();
    let url = single.url().replace("redis://", "redis-cluster://");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("use redis://"), "{error}");
    let cluster = Cluster::start(1, 0);
    let error = refused(&cluster.nodes()[0].url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("use redis-cluster://"),
        "{error}"
    );
}

#[tokio::test]
async fn one_seed_that_answers_is_enough() {
    let cluster = Cluster::start(2, 0);
    let host = |n: usize| cluster.nodes()[n].url().replace("redis://", "");
    // No server listens on port 1.
    let url = format!("redis-cluster://127.0.0.1:1,{}", host(1));
    let client = Client::connect(&url).await.unwrap();
    for n in 0..8 {
        let lock = client.lock(format!("name {n}"));
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let error = refused("redis-cluster://127.0.0.1:1,127.0.0.1:2").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("redis://127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn client_in_the_background_waits_for_its_cluster() {
    let cluster = Cluster::start(2, 0);
    let client = Client::builder()
        .connect_in_background(&cluster.url())
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Returns the error of a client that connects to a cluster in the background. Every call must
/// report it.
async fn refused_in_the_background(url: &str) -> Error {
    let builder = Client::builder().reply_timeout(Duration::from_secs(60));
    let client = builder.connect_in_background(url).unwrap();
    let errors = async {
        let listed = client.list("*").next().await;
        [
            client.lock("x").try_acquire().await.unwrap_err(),
            client.count_down_latch("x").count().await.unwrap_err(),
            client.examine("x").await.unwrap_err(),
            listed.expect("an error").unwrap_err(),
        ]
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), errors).await;
    let [first, rest @ ..] = in_time.expect("it waits for no map");
    for error in rest {
        assert_eq!(error.kind(), first.kind(), "{error}");
    }
    first
}

#[tokio::test]
async fn first_connection_in_the_background_fails_with_what_the_nodes_say() {
    let node = |builder: Builder| builder.arg("cluster-enabled", "yes").start().unwrap();
    let wants_a_password = node(RedisServer::builder().password("pw"));
    let tells_no_map = node(
        RedisServer::builder()
            .user("app", "pw")
            .rules("+@all -cluster ~* &*"),
    );
    let single = RedisServer::start().unwrap();
    let wrong = format!("redis-cluster://:no@127.0.0.1:{}", wants_a_password.port());
    let of_cluster = |server: &RedisServer| server.url().replace("redis://", "redis-cluster://");
    for (url, kind, says) in [
        (&wrong, ErrorKind::Denied, "the password is refused"),
        (&of_cluster(&tells_no_map), ErrorKind::Denied, "needs ACL"),
        (&of_cluster(&single), ErrorKind::Unsupported, "use redis://"),
        // No server listens on port 1.
        (
            &"redis-cluster://127.0.0.1:1".to_owned(),
            ErrorKind::Unavailable,
            "127.0.0.1:1",
        ),
    ] {
        let error = refused_in_the_background(url).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // A permanent error ends a wait at once. After an error that may be temporary, the wait
    // continues to its limit, and reports the error as the reason.
    let client = Client::builder().connect_in_background(&wrong).unwrap();
    let error = client.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let both = format!("{wrong},127.0.0.1:1");
    let client = Client::builder().connect_in_background(&both).unwrap();
    let lock = client.lock("x").outage_timeout(Duration::from_secs(1));
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for says in ["127.0.0.1:1", "the password is refused"] {
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// A node's earlier refusal does not answer the next call.
#[tokio::test]
async fn map_that_a_user_may_read_by_now_is_read_by_the_next_call() {
    let cluster = Cluster::start(1, 0);
    let node = &cluster.nodes()[0];
    let set_user = |rules: &[&str]| {
        let user = [&["ACL", "SETUSER", "app", "on", ">pw"], rules].concat();
        node.command(&user).unwrap();
    };
    let url = format!("redis-cluster://app:pw@127.0.0.1:{}", node.port());
    for examines in [false, true] {
        set_user(&["+@all", "-cluster", "~*", "&*"]);
        let client = Client::builder().connect_in_background(&url).unwrap();
        let denied = client.lock("x").try_acquire().await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        set_user(&["+cluster|slots"]);
        if examines {
            client.examine("x").await.unwrap();
        } else {
            let guard = client.lock("x").acquire().await.unwrap();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn names_whose_keys_would_be_split_are_refused() {
    let cluster = Cluster::start(2, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    for name in ["{", "}", "a}b", "{}", "}{a}", "a{b"] {
        let error = client.lock(name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{name}: {error}");
        assert!(error.to_string().contains("use another name"), "{error}");
    }
    let error = client.count_down_latch("a{b}").count().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(cluster.keys().is_empty(), "nothing was sent");
}

/// Names of every sort are tested, with all keys that are derived from each name.
#[tokio::test]
async fn names_that_are_allowed_have_one_slot() {
    let cluster = Cluster::start(1, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let pieces = ["a", "{", "}", "b", "{c}", " "];
    let mut allowed = 0;
    for n in 0..6usize.pow(4) {
        let picked = [n % 6, n / 6 % 6, n / 36 % 6, n / 216];
        let name: String = picked.map(|piece| pieces[piece]).concat();
        let Ok(guard) = client.fenced_lock(&name).try_acquire().await else {
            continue;
        };
        allowed += 1;
        let slots: Vec<_> = cluster
            .keys()
            .iter()
            .map(|key| cluster.slot_of(key))
            .collect();
        assert!(
            slots.iter().all(|slot| *slot == slots[0]),
            "{name:?}: {:?}",
            cluster.keys()
        );
        guard.expect("free").release().await.unwrap();
        cluster.nodes()[0].command(&["FLUSHALL"]).unwrap();
        if allowed == 40 {
            return;
        }
    }
    panic!("only {allowed} names are allowed");
}

#[tokio::test]
async fn user_who_may_not_look_is_told_the_rule() {
    let settings = RedisServer::builder().user("app", "pw");
    let cluster = Cluster::of(&settings.rules("~x ~{x}* ~redisson_* &* +@all"), 2, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("~leasehold:{x}:*"), "{error}");
}

#[tokio::test]
async fn slot_without_a_node_is_named() {
    let cluster = Cluster::start(2, 0);
    let settings = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    for node in cluster.nodes() {
        assert_eq!(node.command(&settings).unwrap(), Reply::Text("OK".into()));
    }
    let slot = cluster.slot_of("x").to_string();
    for node in cluster.nodes() {
        let deleted = node.command(&["CLUSTER", "DELSLOTS", &slot]).unwrap();
        assert_eq!(deleted, Reply::Text("OK".into()));
    }
    let builder = Client::builder().reply_timeout(Duration::from_millis(500));
    let client = builder.connect(&cluster.url()).await.unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&slot), "{error}");
}

#[tokio::test]
async fn open_slot_is_named() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of("x");
    cluster.open(slot, 1 - cluster.owner(slot));
    let builder = Client::builder().reply_timeout(Duration::from_millis(500));
    let client = builder.connect(&cluster.url()).await.unwrap();
    let error = client.semaphore("x").try_set_permits(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let says = format!("its slot, {slot}, is moving");
    assert!(error.to_string().contains(&says), "{error}");
}

/// Returns names in slots of this node.
pub(crate) fn names_at(cluster: &Cluster, node: usize) -> Vec<String> {
    let names = (0..).map(|n| format!("name {n}"));
    let there = names.filter(|name| cluster.owner(cluster.slot_of(name)) == node);
    there.take(3).collect()
}

async fn impatient(cluster: &Cluster) -> Client {
    let builder = Client::builder().reply_timeout(Duration::from_millis(500));
    builder.connect(&cluster.url()).await.unwrap()
}

/// Returns the error of an acquire. First waits until the client knows that its connection is lost.
async fn error_of(client: &Client, name: &str) -> Error {
    loop {
        let error = client.lock(name).try_acquire().await.unwrap_err();
        if error.kind() != ErrorKind::OutcomeUnknown {
            return error;
        }
    }
}

/// Gives the slots of `from` to another node, without their keys.
fn take_slots(cluster: &Cluster, from: usize, to: usize) {
    let slots: Vec<_> = cluster.slots_of(from).iter().map(u16::to_string).collect();
    for (node, command) in [(from, "DELSLOTS"), (to, "DELSLOTS"), (to, "ADDSLOTS")] {
        let mut words = vec!["CLUSTER", command];
        words.extend(slots.iter().map(String::as_str));
        cluster.nodes()[node].command(&words).unwrap();
    }
    // The other nodes believe the newest epoch.
    cluster.nodes()[to]
        .command(&["CLUSTER", "BUMPEPOCH"])
        .unwrap();
    cluster.wait_until_whole();
}

#[tokio::test]
async fn map_that_shrinks_leaves_no_name_behind() {
    let cluster = Cluster::start(3, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let names = names_at(&cluster, 2);
    for name in &names {
        let lock = client.lock(name);
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    take_slots(&cluster, 2, 0);
    cluster.nodes()[2].kill().unwrap();
    for name in &names {
        let lock = client.lock(name);
        lock.acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn node_that_refuses_the_password_is_named() {
    let settings = RedisServer::builder().user("app", "pw");
    let cluster = Cluster::of(&settings.rules("~* &* +@all"), 2, 0);
    let client = impatient(&cluster).await;
    let other = ["ACL", "SETUSER", "app", "resetpass", ">other"];
    cluster.nodes()[1].command(&other).unwrap();
    let killed = ["CLIENT", "KILL", "TYPE", "normal"];
    cluster.nodes()[1].command(&killed).unwrap();
    let error = error_of(&client, &names_at(&cluster, 1)[0]).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let port = cluster.nodes()[1].port().to_string();
    assert!(error.to_string().contains(&port), "{error}");
    let serves = client.lock(&names_at(&cluster, 0)[0]);
    serves.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn slot_of_a_dead_node_is_refused_with_its_address() {
    let cluster = Cluster::start(2, 0);
    for node in cluster.nodes() {
        let settings = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        assert_eq!(node.command(&settings).unwrap(), Reply::Text("OK".into()));
    }
    let (name, port) = (names_at(&cluster, 1).remove(0), cluster.nodes()[1].port());
    let client = impatient(&cluster).await;
    cluster.nodes()[1].kill().unwrap();
    let error = error_of(&client, &name).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

/// Each of two nodes sends a client to the other one.
#[tokio::test]
async fn circle_of_nodes_ends_with_the_time_for_a_reply() {
    let cluster = Cluster::start(2, 0);
    let (slot, id) = (cluster.slot_of("x").to_string(), |node| cluster.id(node));
    let client = impatient(&cluster).await;
    let owner = cluster.owner(cluster.slot_of("x"));
    for (node, names) in [(owner, 1 - owner), (1 - owner, owner)] {
        let assign = ["CLUSTER", "SETSLOT", &slot, "NODE", &id(names)];
        let assigned = cluster.nodes()[node].command(&assign).unwrap();
        assert_eq!(assigned, Reply::Text("OK".into()));
    }
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&slot), "{error}");
}

/// A node names another node's address as its own.
#[tokio::test]
async fn node_that_is_sent_to_itself_ends_with_the_time_for_a_reply() {
    let cluster = Cluster::start(2, 0);
    let (name, slot) = {
        let name = names_at(&cluster, 1).remove(0);
        let slot = cluster.slot_of(&name);
        (name, slot)
    };
    cluster.announce(1, cluster.nodes()[0].port());
    let builder = Client::builder().reply_timeout(Duration::from_millis(500));
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let client = builder.connect(&url).await.unwrap();
    let error = client.lock(&name).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&slot.to_string()), "{error}");
}

/// The slot map contains an address at which there has never been a node.
#[tokio::test]
async fn slot_that_leads_to_nowhere_is_refused_with_its_address() {
    let cluster = Cluster::start(2, 0);
    let name = names_at(&cluster, 1).remove(0);
    let slot = cluster.slot_of(&name);
    // No server listens on port 1.
    cluster.announce(1, 1);
    let builder = Client::builder().reply_timeout(Duration::from_millis(500));
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let client = builder.connect(&url).await.unwrap();
    let error = client.lock(&name).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let slot = format!("the slot {slot};");
    for word in ["redis://127.0.0.1:1 ", &slot, "--map", "check the address"] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}
