//! Connections that a server refuses, limits, or closes for reasons of its own.

use std::net::TcpStream;
use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Proxy, RedisServer, Reply};

use super::warnings::Warnings;
use crate::support::{HOUR, eventually};

fn set(server: &RedisServer, name: &str, value: &str) {
    let reply = server.command(&["CONFIG", "SET", name, value]).unwrap();
    assert_eq!(reply, Reply::Text("OK".into()), "{name} {value}");
}

/// Returns the ids of all connections of this kind, except for the connection that queries them.
fn clients(server: &RedisServer, kind: &str) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST", "TYPE", kind]).unwrap();
    let list = list.as_text().unwrap();
    let others = list.lines().filter(|line| !line.contains("cmd=client"));
    others
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

/// Opens connections that use up the server's limit until they are dropped.
fn crowd(server: &RedisServer, size: usize) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    (0..size).map(connect).collect()
}

#[tokio::test]
async fn connect_error_repeats_full_servers_message() {
    let server = RedisServer::start().unwrap();
    let crowd = crowd(&server, 20);
    eventually("they are in", async || {
        clients(&server, "NORMAL").len() == 20
    })
    .await;
    set(&server, "maxclients", "20");
    for query in ["", "?protocol=resp3"] {
        let url = format!("{}{query}", server.url());
        // The network may lose the server's last message before the server closes the connection.
        eventually("its words come through", async || {
            let error = Client::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.to_string().contains("max number of clients")
        })
        .await;
    }
    drop(crowd);
    eventually("there is room", async || {
        Client::connect(&server.url()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn waiters_poll_while_server_refuses_subscriber() {
    let server = RedisServer::start().unwrap();
    let holder = Client::connect(&server.url()).await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let crowd = crowd(&server, 10);
    eventually("they are in", async || {
        clients(&server, "NORMAL").len() == 12
    })
    .await;
    // There is room for one more connection, because the testkit's own commands need it.
    set(&server, "maxclients", "13");
    let keep = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(30));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || client.activity().channels == 1).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    // Once there is room again, the client subscribes.
    drop((crowd, keep));
    eventually("there is room", async || server.command(&["PING"]).is_ok()).await;
    let stats = server.command(&["INFO", "stats"]).unwrap();
    let refused = "rejected_connections:0\r\n";
    assert!(!stats.as_text().unwrap().contains(refused), "it has tried");
    let lock = holder.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn disconnected_subscriber_subscribes_again() {
    let server = RedisServer::start().unwrap();
    set(&server, "client-output-buffer-limit", "pubsub 32kb 0 0");
    let holder = Client::connect(&server.url()).await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let channel = "redisson_lock__channel:{x}";
    let listens = || server.channels().iter().any(|there| there == channel);
    // Many messages are published at once, and none is large: Valkey 9 does not count large ones.
    let payload = "x".repeat(8 << 10);
    let flood = "for i = 1, 20 do redis.call('PUBLISH', ARGV[1], ARGV[2]) end";
    for _ in 0..5 {
        eventually("it listens", async || listens()).await;
        let before = clients(&server, "PUBSUB");
        let command = ["EVAL", flood, "0", channel, &payload];
        server.command(&command).unwrap();
        eventually("it is thrown out", async || {
            clients(&server, "PUBSUB") != before
        })
        .await;
    }
    eventually("it listens", async || listens()).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn idle_disconnects_harm_no_holder_or_waiter() {
    let server = RedisServer::builder().arg("timeout", "1").start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    for _ in 0..2 {
        let before = clients(&server, "NORMAL");
        eventually("another connection", async || {
            let now = clients(&server, "NORMAL");
            !now.is_empty() && now != before
        })
        .await;
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

/// Some proxies without `SUBSCRIBE` say so, and some end the connection.
#[tokio::test]
async fn server_without_subscriptions_is_told_of_once_and_polled() {
    for hangs_up in [false, true] {
        let without = ("rename-command", "SUBSCRIBE not-subscribe");
        let server = RedisServer::builder();
        let server = match hangs_up {
            false => server.arg(without.0, without.1).start().unwrap(),
            true => server.start().unwrap(),
        };
        let proxy = Proxy::to(server.port());
        if hangs_up {
            for _ in 0..10 {
                proxy.cut_before_next(b"\r\nSUBSCRIBE\r\n");
            }
        }
        let (warnings, told) = (Warnings::listen(), "accepts no subscriptions");
        let client = Client::connect(&proxy.url()).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        let lock = client.lock("x").poll_interval(Duration::from_millis(10));
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        eventually("it is told", async || warnings.count(told) == 1).await;
        let before = proxy.connections();
        // Waiters for further names do not need further connections.
        for round in 0..50 {
            let name = format!("x{round}");
            let guard = client.lock(&name).acquire().await.unwrap();
            let lock = client.lock(&name).poll_interval(Duration::from_millis(10));
            let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
            eventually("it waits", async || client.activity().channels > 1).await;
            guard.release().await.unwrap();
            waiter.await.unwrap().release().await.unwrap();
        }
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap();
        assert_eq!(proxy.connections(), before);
        assert_eq!(warnings.count(told), 1);

        let lock = client.lock("x").poll_interval(Duration::from_millis(10));
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        eventually("it waits", async || client.activity().channels == 1).await;
        proxy.disarm();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
        eventually("it is asked once more", async || {
            proxy.connections() > before
        })
        .await;
        eventually("it listens, if it can", async || {
            server.channels().is_empty() != hangs_up
        })
        .await;
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        assert_eq!(warnings.count(told), 1);
    }
}
