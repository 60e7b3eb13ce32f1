//! Multi-locks and majority locks beside Java's: each member excludes on its own, and each side
//! wakes the other.

use std::time::Duration;

use leasehold::{Client, MultiLock, RedLock};
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson};

use super::VERSION;
use crate::support::{HOUR, eventually};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(400);

struct Place {
    servers: Vec<RedisServer>,
    _redisson: Redisson,
    java: RedissonThread,
    rust: Vec<Client>,
}

/// Starts servers, each with a Redisson client `c0`, `c1` … and a client of this library.
async fn place(servers: usize) -> Place {
    let servers: Vec<_> = std::iter::repeat_with(crate::topology::start)
        .take(servers)
        .collect();
    let redisson = Redisson::start(VERSION, &servers[0].url());
    let mut rust = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let client = format!("c{n}");
        redisson.client_at(&client, &server.url(), None).unwrap();
        rust.push(Client::connect(&server.url()).await.unwrap());
    }
    Place {
        java: redisson.thread("c0", "t"),
        _redisson: redisson,
        servers,
        rust,
    }
}

fn multi(rust: &Client, names: [&str; 2]) -> MultiLock {
    MultiLock::new(names.map(|name| rust.lock(name))).unwrap()
}

fn red(rust: &[Client]) -> RedLock {
    let lock = RedLock::new(rust.iter().map(|client| client.lock("x"))).unwrap();
    // The servers have just been started.
    lock.distrust_restarted(false).member_timeout(SOON / 4)
}

const RED: &str = "c0/x,c1/x,c2/x";

#[tokio::test(flavor = "multi_thread")]
async fn multi_locks_exclude_java_member_by_member() {
    let Place {
        servers,
        java,
        rust,
        ..
    } = &place(1).await;
    let (java, plain) = (java.kind(LockKind::Multi), java.kind(LockKind::Plain));
    java.lock("a,b").unwrap();
    for lock in [multi(&rust[0], ["b", "c"]), multi(&rust[0], ["a", "b"])] {
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert!(lock.try_acquire_for(SHORT).await.unwrap().is_none());
    }
    java.unlock("a,b").unwrap();
    let guard = multi(&rust[0], ["b", "c"]).acquire().await.unwrap();
    assert!(!java.try_lock("a,b").unwrap().value);
    assert!(!java.try_lock_wait("a,b", SHORT, None).unwrap().value);
    assert!(!plain.try_lock("c").unwrap().value);
    guard.release().await.unwrap();
    assert!(java.try_lock("a,b").unwrap().value);
    java.unlock("a,b").unwrap();
    crate::topology::is_empty(&servers[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn multi_locks_of_both_sides_wake_each_other() {
    let Place {
        servers,
        java,
        rust,
        ..
    } = &place(1).await;
    let java = java.kind(LockKind::Multi);
    let guard = multi(&rust[0], ["a", "b"]).acquire().await.unwrap();
    let waiting = java.start_lock("a,b");
    eventually("it listens", async || !servers[0].channels().is_empty()).await;
    assert!(!waiting.is_done());
    guard.release().await.unwrap();
    waiting.wait(SOON).expect("woken");
    eventually("nobody listens", async || servers[0].channels().is_empty()).await;
    let lock = multi(&rust[0], ["a", "b"]).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !servers[0].channels().is_empty()).await;
    java.unlock("a,b").unwrap();
    let guard = tokio::time::timeout(SOON, waiter).await.expect("woken");
    guard.unwrap().release().await.unwrap();
    crate::topology::is_empty(&servers[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn majorities_of_both_sides_exclude_each_other() {
    let Place {
        servers,
        java,
        rust,
        ..
    } = &place(3).await;
    let java = java.kind(LockKind::Red);
    java.lock(RED).unwrap();
    assert!(red(rust).try_acquire().await.unwrap().is_none());
    assert!(red(rust).try_acquire_for(SHORT).await.unwrap().is_none());
    java.unlock(RED).unwrap();

    // Another client holds one of the three members. Each side is tested.
    let one = rust[1].lock("x").acquire().await.unwrap();
    let guard = red(rust).acquire().await.unwrap();
    assert_eq!(guard.members().len(), 2);
    assert!(!java.try_lock(RED).unwrap().value);
    assert!(!java.try_lock_wait(RED, SHORT, None).unwrap().value);
    guard.release().await.unwrap();
    assert!(java.try_lock(RED).unwrap().value);
    assert!(red(rust).try_acquire().await.unwrap().is_none());
    java.unlock(RED).unwrap();
    one.release().await.unwrap();
    eventually("nothing is left", async || {
        servers.iter().all(|server| server.keys().is_empty())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn majorities_of_both_sides_wake_each_other() {
    let Place {
        servers,
        java,
        rust,
        ..
    } = &place(3).await;
    let java = java.kind(LockKind::Red);
    let listened = || servers.iter().any(|server| !server.channels().is_empty());
    let guard = red(rust).acquire().await.unwrap();
    let waiting = java.start_lock(RED);
    eventually("it listens", async || listened()).await;
    assert!(!waiting.is_done());
    guard.release().await.unwrap();
    waiting.wait(SOON).expect("woken");
    let lock = red(rust).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens everywhere", async || {
        rust.iter().all(|client| client.activity().channels == 1)
    })
    .await;
    // After this time, the subscription is confirmed, and the waiter has asked once more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    java.unlock(RED).unwrap();
    let guard = tokio::time::timeout(SOON, waiter).await.expect("woken");
    guard.unwrap().release().await.unwrap();
}
