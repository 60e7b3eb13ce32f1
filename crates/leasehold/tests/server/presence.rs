//! Clients announce themselves, so that an operator sees them.

use std::time::Duration;

use leasehold::inspect::{ClientInfo, Found, NameInfo, Wants};
use leasehold::{Client, Embedded};
use leasehold_testkit::RedisServer;

use crate::support::{HOUR, eventually};

use super::permissions::client_with;

async fn labelled(server: &RedisServer, label: &str) -> Client {
    let builder = Client::builder().label(label);
    builder.connect(&server.url()).await.unwrap()
}

async fn at(client: &Client, name: &str) -> NameInfo {
    client.inspect(name).await.unwrap()
}

fn is(client: Option<&ClientInfo>, label: &str) -> bool {
    client.is_some_and(|client| client.label == label)
}

#[tokio::test]
async fn holders_and_waiters_say_who_they_are() {
    let server = RedisServer::start().unwrap();
    let holder = labelled(&server, "nightly\u{1b} billing").await;
    let waits = labelled(&server, "a waiter").await;
    let operator = labelled(&server, "an operator").await;
    let guard = holder.lock("x").acquire().await.unwrap();
    let permits = holder.expirable_semaphore("y");
    permits.try_set_permits(2).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    let lock = waits.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("holder and waiter are known", async || {
        let seen = at(&operator, "x").await;
        let Found::Lock(hold) = &seen.found else {
            panic!("{seen:?}");
        };
        is(hold.client.as_ref(), "nightly  billing")
            && hold.held_for.is_some()
            && matches!(&seen.waiting[..], [one] if one.wants == Wants::Any
                && is(one.client.as_ref(), "a waiter") && one.id == waits.id())
    })
    .await;
    let Found::Lock(hold) = at(&operator, "x").await.found else {
        panic!("it is held");
    };
    let client = hold.client.unwrap();
    assert_eq!(client.id, holder.id());
    assert_eq!(client.pid, std::process::id().to_string());
    assert_eq!(client.version, env!("CARGO_PKG_VERSION"));
    assert!(client.address.starts_with("127.0.0.1:"), "{client:?}");
    assert!(!client.host.is_empty(), "{client:?}");
    assert!(hold.held_for.unwrap() <= client.age, "{client:?}");
    eventually("the permit's holder is known", async || {
        let Found::Leases { permits, .. } = at(&operator, "y").await.found else {
            panic!("one is in use");
        };
        is(permits[0].client.as_ref(), "nightly  billing") && permits[0].held_for.is_some()
    })
    .await;
    // The connection for messages has the client's name, too.
    for connections in ["NORMAL", "PUBSUB"] {
        let list = server.command(&["CLIENT", "LIST", "TYPE", connections]);
        let names = list.unwrap().as_text().unwrap().to_owned();
        assert!(names.contains("name=leasehold:a_waiter"), "{names}");
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    permit.release().await.unwrap();
}

#[tokio::test]
async fn waiters_for_permits_and_latches_say_so() {
    let server = RedisServer::start().unwrap();
    let waits = labelled(&server, "a waiter").await;
    let operator = labelled(&server, "an operator").await;
    operator.semaphore("s").try_set_permits(0).await.unwrap();
    let seats = operator.expirable_semaphore("e");
    seats.try_set_permits(1).await.unwrap();
    let seat = seats.acquire().await.unwrap();
    operator
        .count_down_latch("l")
        .try_set_count(1)
        .await
        .unwrap();
    let all = waits.clone();
    let waiter = tokio::spawn(async move {
        let (semaphore, seats, latch) = (
            all.semaphore("s"),
            all.expirable_semaphore("e"),
            all.count_down_latch("l"),
        );
        let _ = tokio::join!(semaphore.acquire(), seats.acquire(), latch.wait());
    });
    for name in ["s", "e", "l"] {
        eventually("it is told", async || {
            let seen = at(&operator, name).await;
            matches!(&seen.waiting[..], [one] if is(one.client.as_ref(), "a waiter"))
        })
        .await;
    }
    let seen = at(&operator, "l").await;
    let client = seen.waiting[0].client.clone().unwrap();
    let mut names = client.waits_for;
    names.sort();
    assert_eq!(names, ["e", "l", "s"]);
    waiter.abort();
    seat.release().await.unwrap();
}

#[tokio::test]
async fn presence_ends_with_its_client() {
    let server = RedisServer::start().unwrap();
    let client = labelled(&server, "one").await;
    let key = format!("leasehold:client:{}", client.id());
    let ask = |parts: &[&str]| server.command(parts).unwrap().as_int().unwrap();
    let there = || ask(&["ZCARD", "leasehold:clients"]) == 1;
    eventually("it says so", async || {
        ask(&["EXISTS", &key]) == 1 && there()
    })
    .await;
    let left_ms = ask(&["PTTL", &key]);
    assert!((1..=60_000).contains(&left_ms), "{left_ms}");
    client.close().await;
    eventually("it is gone", async || {
        ask(&["EXISTS", &key]) == 0 && !there()
    })
    .await;
}

#[tokio::test]
async fn silent_client_is_not_there() {
    let server = RedisServer::start().unwrap();
    let other = labelled(&server, "other").await;
    let silent = Client::builder().presence(false);
    let silent = silent.connect(&server.url()).await.unwrap();
    let guard = silent.lock("x").acquire().await.unwrap();
    // The silent client is older than this one, so it would have announced itself first.
    let later = labelled(&server, "later").await;
    let there = |client: &Client| {
        let key = format!("leasehold:client:{}", client.id());
        server.command(&["EXISTS", &key]).unwrap().as_int() == Some(1)
    };
    eventually("others say who they are", async || {
        there(&other) && there(&later)
    })
    .await;
    assert!(!there(&silent));
    let seen = at(&other, "x").await;
    let Found::Lock(hold) = seen.found else {
        panic!("{seen:?}");
    };
    assert_eq!((hold.client, hold.held_for), (None, None));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn user_who_may_not_say_so_locks_all_the_same() {
    let server = RedisServer::start().unwrap();
    let rules = [
        "+@all",
        "&*",
        "~x",
        "~redisson_*:{x}*",
        "~{x}:*",
        "~leasehold:{x}:*",
    ];
    let client = client_with(&server, &rules).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let seen = at(&client, "x").await;
    assert!(seen.clients_denied, "{seen:?}");
    assert!(matches!(seen.found, Found::Lock(_)), "{seen:?}");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    guard.extend(HOUR).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn forged_presence_changes_only_what_is_shown() {
    let server = RedisServer::start().unwrap();
    let client = labelled(&server, "one").await;
    let id = "5400c6ee-9efb-4d7c-afeb-d3cddd05968d";
    let hold = format!("{id}:1");
    server.command(&["HSET", "x", &hold, "1"]).unwrap();
    server.command(&["PEXPIRE", "x", "600000"]).unwrap();
    let key = format!("leasehold:client:{id}");
    let long = "x".repeat(100_000);
    for forged in [
        &["SET", &key, "text"][..],
        &["HSET", &key, "at", "text"],
        &["HSET", &key, "at", "99999999999999999999", "age_ms", "1"],
        &[
            "HSET",
            &key,
            "at",
            "1",
            "age_ms",
            "-1",
            "holds",
            "a:b 1:x :",
            "waits",
            "x\nx",
        ],
        &[
            "HSET", &key, "at", "1", "age_ms", "1", "label", &long, "holds", &long, "waits", &long,
        ],
    ] {
        server.command(&["DEL", &key]).unwrap();
        server.command(forged).unwrap();
        let seen = at(&client, "x").await;
        let Found::Lock(seen) = seen.found else {
            panic!("{seen:?}");
        };
        assert_eq!(seen.id, hold);
        let label = seen.client.map(|client| client.label.len());
        assert!(label.is_none_or(|length| length <= 200), "{forged:?}");
    }
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn hold_that_was_handed_over_is_its_clients_still() {
    let server = RedisServer::start().unwrap();
    let holder = labelled(&server, "nightly").await;
    let operator = labelled(&server, "an operator").await;
    let lock = holder.lock("x");
    let mut second = None;
    // A hand-over needs a confirmation that is at most 5 ms old. On a busy machine it may be older.
    eventually("a hold is handed over", async || {
        second = None;
        let first = lock.acquire().await.unwrap();
        let id = first.holder_id().to_owned();
        let (next, released) = tokio::join!(lock.acquire(), first.release());
        released.unwrap();
        let next = second.insert(next.unwrap());
        next.holder_id() == id
    })
    .await;
    let second = second.unwrap();
    eventually("its client is known", async || {
        let Found::Lock(hold) = at(&operator, "x").await.found else {
            panic!("it is held");
        };
        assert_eq!(hold.id, second.holder_id());
        is(hold.client.as_ref(), "nightly") && hold.held_for.is_some()
    })
    .await;
    second.release().await.unwrap();
}

#[tokio::test]
async fn embedded_clients_say_nothing() {
    let embedded = Embedded::new();
    let client = embedded.client();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(embedded.keys(), ["x"]);
    guard.release().await.unwrap();
}
