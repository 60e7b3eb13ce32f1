//! A name that now points to another server, while the old server still answers: the old server was
//! demoted, or is loading its data forever.

use std::time::Duration;

use leasehold::{Client, ClientBuilder, ErrorKind, LockGuard};
use leasehold_testkit::{Proxy, RedisServer, Reply};
use tokio::time::Instant;

use crate::server::states::{hurry, slow_to_load};
use crate::support::{HOUR, eventually};

/// A lease long enough for the client to find the new server twice.
const LEASE: Duration = Duration::from_secs(8);

fn builder() -> ClientBuilder {
    Client::builder().lease(LEASE)
}

fn ok(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command).unwrap(), Reply::Text("OK".into()));
}

/// Returns a server, its replica, and a name that points to the server.
async fn replicated() -> (RedisServer, RedisServer, Proxy) {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    ok(&new, &["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    eventually("it replicates", async || {
        let info = new.command(&["INFO", "replication"]).unwrap();
        info.as_text().unwrap().contains("master_link_status:up")
    })
    .await;
    let name = Proxy::to(old.port());
    (old, new, name)
}

/// Promotes the replica and changes the name. The connections are not closed.
fn fail_over(old: &RedisServer, new: &RedisServer, name: &Proxy) {
    ok(new, &["REPLICAOF", "NO", "ONE"]);
    ok(old, &["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    name.move_to(new.port());
}

/// Waits until the hold has been renewed beyond the lease that it had at the failover.
async fn is_renewed_beyond_its_lease(guard: &LockGuard) {
    let beyond = guard.valid_until() + LEASE;
    eventually("it is renewed by the new server", async || {
        assert_eq!(guard.loss(), None);
        guard.valid_until() > beyond
    })
    .await;
}

#[tokio::test]
async fn client_follows_name_from_demoted_server() {
    let (old, new, name) = replicated().await;
    let client = builder().connect(&name.url()).await.unwrap();
    let guard = client
        .lock("x")
        .renew_every(LEASE / 8)
        .acquire()
        .await
        .unwrap();
    eventually("it is replicated", async || new.keys() == ["x"]).await;
    let other = builder().connect(&name.url()).await.unwrap();
    let lock = other.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || !old.channels().is_empty()).await;

    fail_over(&old, &new, &name);
    is_renewed_beyond_its_lease(&guard).await;
    eventually("who waits listens to the new server", async || {
        // A waiter that polls would find the new server on its own, but this waiter does not poll.
        other.lock("y").try_acquire().await.is_ok() && !new.channels().is_empty()
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    eventually("nothing is left", async || new.keys().is_empty()).await;
}

/// Only the connection for calls is lost, and is reopened to a different server.
#[tokio::test]
async fn subscriber_follows_call_connection_to_new_server() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let name = Proxy::to(old.port());
    let client = builder().connect(&name.url()).await.unwrap();
    let mut held = Vec::new();
    for server in [&old, &new] {
        let there = Client::connect(&server.url()).await.unwrap();
        let guard = there.lock("x").fixed_lease(HOUR).acquire().await.unwrap();
        held.push((there, guard));
    }
    let lock = client.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || !old.channels().is_empty()).await;

    name.move_to(new.port());
    let closed = old.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    assert!(matches!(closed, Reply::Int(1..)), "{closed:?}");
    eventually("it listens to the new server", async || {
        !new.channels().is_empty()
    })
    .await;
    let (_there, guard) = held.pop().unwrap();
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    // The waiter remains in the list of clients to notify until that list expires.
    let keys = old.keys().into_iter();
    let keys: Vec<_> = keys.filter(|key| !key.ends_with(":asking")).collect();
    assert_eq!(keys, ["x"]);
}

#[tokio::test]
async fn demoted_server_is_reconnected_at_limited_rate() {
    let server = RedisServer::start().unwrap();
    let name = Proxy::to(server.port());
    let client = builder().connect(&name.url()).await.unwrap();
    let guard = client.lock("x").fixed_lease(HOUR).acquire().await.unwrap();
    ok(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    let (before, started) = (name.connections(), Instant::now());
    while started.elapsed() < Duration::from_secs(5) {
        let error = guard.extend(HOUR * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("READONLY"), "{error}");
    }
    let most = 2 + started.elapsed().as_secs() as usize / 2;
    let looked = name.connections() - before;
    assert!((1..=most).contains(&looked), "{looked} of {most}");
    ok(&server, &["REPLICAOF", "NO", "ONE"]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn client_leaves_server_that_loads_too_long() {
    let old = std::sync::Arc::new(slow_to_load());
    let new = RedisServer::start().unwrap();
    let name = Proxy::to(old.port());
    let again = std::sync::Arc::clone(&old);
    let restart = tokio::task::spawn_blocking(move || again.restart().unwrap());
    let builder = builder().connect_timeout(Duration::from_millis(600));
    let client = builder.connect_in_background(&name.url()).unwrap();
    eventually("it says that it loads", async || {
        let told = client.lock("x").try_acquire().await.err();
        told.is_some_and(|error| error.to_string().contains("LOADING"))
    })
    .await;
    name.move_to(new.port());
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(new.keys(), ["x"]);
    guard.release().await.unwrap();
    hurry(&old);
    restart.await.unwrap();
}
