//! What a client calls when something is acquired, takes long, or is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Embedded};

use crate::support::{HOUR, eventually};

type Calls = Arc<Mutex<Vec<String>>>;

/// A client that writes down what it calls.
fn client(keyspace: &Embedded, longest: Duration) -> (Client, Calls) {
    let calls = Calls::default();
    let note = |what: &'static str| {
        let calls = Arc::clone(&calls);
        move |kind: &str, name: &str| calls.lock().unwrap().push(format!("{what} {kind} {name}"))
    };
    let (acquired, lost, waits) = (note("acquired"), note("lost"), note("waits"));
    let builder = Client::builder()
        .on_acquired(move |told| acquired(told.kind, told.name))
        .on_lost(move |told| lost(told.kind, told.name))
        .on_waiting_longer_than(longest, move |told| {
            assert!(told.waited >= longest);
            waits(told.kind, told.name);
        });
    (builder.embedded(keyspace).unwrap(), calls)
}

fn take(calls: &Calls) -> Vec<String> {
    std::mem::take(&mut *calls.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_kind_is_told_when_it_is_acquired() {
    let (client, calls) = client(&Embedded::new(), HOUR);
    client.semaphore("s").try_set_permits(1).await.unwrap();
    let permits = client.expirable_semaphore("p");
    permits.try_set_permits(1).await.unwrap();
    drop(client.lock("a").acquire().await.unwrap());
    drop(client.fenced_lock("b").acquire().await.unwrap());
    drop(client.fair_lock("c").acquire().await.unwrap());
    drop(client.rw_lock("d").read().await.unwrap());
    drop(client.rw_lock("e").write().await.unwrap());
    drop(client.group_lock("f", ["1"]).acquire().await.unwrap());
    drop(client.semaphore("s").acquire().await.unwrap());
    drop(permits.acquire().await.unwrap());
    let told = [
        "lock a",
        "lock b",
        "fair c",
        "read d",
        "write e",
        "group f",
        "semaphore s",
        "permit p",
    ];
    assert_eq!(take(&calls), told.map(|what| format!("acquired {what}")));
}

#[tokio::test(start_paused = true)]
async fn long_wait_is_told_once_and_its_guard_knows_how_long_it_was() {
    let second = Duration::from_secs(1);
    let (client, calls) = client(&Embedded::new(), second);
    let guard = client.lock("a").acquire().await.unwrap();
    assert_eq!(guard.waited(), Duration::ZERO);
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(5 * second).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.waited() >= 5 * second, "{:?}", guard.waited());
    assert_eq!(
        take(&calls),
        ["acquired lock a", "waits lock a", "acquired lock a"]
    );
}

#[tokio::test(start_paused = true)]
async fn loss_is_told_once_and_without_being_asked() {
    let keyspace = Embedded::new();
    let (client, calls) = client(&keyspace, HOUR);
    let guard = client.lock("a").acquire().await.unwrap();
    keyspace.client().lock("a").force_unlock().await.unwrap();
    eventually("the next renewal finds it", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        calls.lock().unwrap().len() == 2
    })
    .await;
    assert!(guard.loss().is_some());
    drop(guard);
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_that_ran_out_is_told_when_its_guard_is_dropped() {
    let (client, calls) = client(&Embedded::new(), HOUR);
    let lock = client.lock("a").fixed_lease(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(guard);
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
}
