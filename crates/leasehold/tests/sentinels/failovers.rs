//! The master moves to another server: holds, waiters and connections follow it.

use std::time::Duration;

use leasehold::{Client, ClientBuilder, LockGuard};
use leasehold_testkit::{RedisServer, Reply, Sentinels};
use tokio::time::Instant;

use crate::support::{HOUR, eventually};

/// A lease long enough that no renewal is due while a test runs. So any renewal is caused by the
/// failover.
const LEASE: Duration = Duration::from_secs(600);

fn builder() -> ClientBuilder {
    Client::builder().lease(LEASE)
}

async fn connected(sentinels: &Sentinels) -> Client {
    builder().connect(&sentinels.url()).await.unwrap()
}

async fn held(client: &Client, name: &str) -> LockGuard {
    client.lock(name).acquire().await.unwrap()
}

/// Waits until the hold has been renewed since `before`. The lock must be held all the time.
async fn is_renewed(guard: &LockGuard, before: Instant) {
    eventually("it is renewed by the new master", async || {
        assert_eq!(guard.loss(), None);
        // This is more than the rounding of the clocks.
        guard.valid_until() > before + Duration::from_millis(100)
    })
    .await;
}

/// Returns the address to which this client sends its calls.
pub(super) async fn master_of(client: &Client) -> String {
    let seen = client.inspect("x").await.unwrap();
    seen.node.unwrap().address.unwrap()
}

pub(super) async fn leads_to(client: &Client, server: &RedisServer) {
    let at = server.url().replace("localhost", "127.0.0.1");
    let at = at.rsplit(['@', '/']).next().unwrap().to_owned();
    eventually("it calls the master", async || {
        let seen = client.inspect("x").await;
        seen.is_ok_and(|seen| seen.node.unwrap().address.unwrap().ends_with(&at))
    })
    .await;
}

/// Cuts the replica off from its master. The replica is promoted anyway.
pub(super) fn cut_off(replica: &RedisServer, master: &RedisServer) {
    let wrong = replica.command(&["CONFIG", "SET", "masterauth", "wrong"]);
    assert_eq!(wrong.unwrap(), Reply::Text("OK".into()));
    let wrong = replica.command(&["CONFIG", "SET", "masteruser", "nobody"]);
    assert_eq!(wrong.unwrap(), Reply::Text("OK".into()));
    let killed = master.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert!(matches!(killed.unwrap(), Reply::Int(1..)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_failover_costs_no_hold_and_no_waiter() {
    let sentinels = Sentinels::start(1);
    let (client, other) = (connected(&sentinels).await, connected(&sentinels).await);
    let guard = held(&client, "x").await;
    let before = guard.valid_until();
    let lock = other.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || !sentinels.channels().is_empty()).await;
    let new = sentinels.fail_over();
    leads_to(&client, &sentinels.servers()[new]).await;
    leads_to(&other, &sentinels.servers()[new]).await;
    is_renewed(&guard, before).await;
    eventually("who waits listens to the new master", async || {
        !sentinels.channels().is_empty()
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    eventually("nothing is left", async || sentinels.keys().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_are_renewed_at_once_by_the_new_master() {
    let sentinels = Sentinels::start(1);
    let client = connected(&sentinels).await;
    let guards = [held(&client, "x").await, held(&client, "y").await];
    eventually("they are replicated", async || {
        sentinels.servers()[1].keys() == ["x", "y"]
    })
    .await;
    let before = guards.each_ref().map(LockGuard::valid_until);
    sentinels.servers()[0].kill().unwrap();
    for (guard, before) in guards.iter().zip(before) {
        is_renewed(guard, before).await;
    }
    assert_eq!(sentinels.master(), 1);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// The promise ends here: only the old master had the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_that_no_replica_had_is_told_as_lost_at_once() {
    let sentinels = Sentinels::start(1);
    let client = connected(&sentinels).await;
    cut_off(&sentinels.servers()[1], &sentinels.servers()[0]);
    let guard = held(&client, "x").await;
    let other = Client::connect(&sentinels.url()).await.unwrap();
    sentinels.servers()[0].kill().unwrap();
    // For a moment, both clients hold the lock.
    let second = other.lock("x").acquire().await.unwrap();
    eventually("its holder is told", async || guard.loss().is_some()).await;
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_master_that_comes_back_is_not_asked() {
    let sentinels = Sentinels::start(1);
    let client = connected(&sentinels).await;
    let guard = held(&client, "x").await;
    sentinels.servers()[0].kill().unwrap();
    sentinels.wait_until_replaced(0);
    leads_to(&client, &sentinels.servers()[1]).await;
    let old = &sentinels.servers()[0];
    // The old server calls itself a master until the sentinels have made it a replica.
    old.restart().unwrap();
    let late = connected(&sentinels).await;
    let mut rounds = 0;
    eventually("it is a replica", async || {
        for client in [&client, &late] {
            held(client, &format!("y{rounds}"))
                .await
                .release()
                .await
                .unwrap();
        }
        rounds += 1;
        // The sentinels close all connections of a server that they make a replica, including this
        // one.
        let info = old.command(&["INFO", "replication"]);
        info.is_ok_and(|info| info.as_text().unwrap().contains("role:slave"))
    })
    .await;
    assert_eq!(old.calls("evalsha") + old.calls("eval"), 0);
    guard.release().await.unwrap();
}

/// The connection stays open, but no reply arrives on it for longer than the test takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_to_a_frozen_master_is_dropped_when_it_is_replaced() {
    let sentinels = Sentinels::start(1);
    let builder = builder().reply_timeout(Duration::from_secs(120));
    let client = builder.connect(&sentinels.url()).await.unwrap();
    let guard = held(&client, "x").await;
    let before = guard.valid_until();
    eventually("it is replicated", async || {
        sentinels.servers()[1].keys() == ["x"]
    })
    .await;
    let old = &sentinels.servers()[0];
    old.pause().unwrap();
    is_renewed(&guard, before).await;
    old.resume().unwrap();
    held(&client, "y").await.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_one_after_the_other_are_followed() {
    let sentinels = Sentinels::start(2);
    let client = connected(&sentinels).await;
    let guard = held(&client, "x").await;
    for _ in 0..3 {
        let new = sentinels.fail_over();
        leads_to(&client, &sentinels.servers()[new]).await;
        assert_eq!(guard.loss(), None);
    }
    guard.release().await.unwrap();
}
