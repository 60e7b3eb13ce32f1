//! Sentinels that are down, cut off, or outdated.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Proxy, RedisServer, Sentinels};

use super::failovers::{leads_to, master_of};
use crate::support::{acquire_and_release, eventually};

/// Starts a proxy in front of each sentinel. Returns the proxies, and a URL that names all of them.
pub(super) fn behind_proxies(sentinels: &Sentinels) -> (Vec<Proxy>, String) {
    let ports = sentinels.sentinels().iter().map(RedisServer::port);
    let proxies: Vec<_> = ports.map(Proxy::to).collect();
    let url = sentinels.url_by(proxies.iter().map(Proxy::port));
    (proxies, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minority_of_the_sentinels_is_not_believed() {
    let sentinels = Sentinels::start(1);
    let client = Client::connect(&sentinels.url()).await.unwrap();
    for sentinel in &sentinels.sentinels()[1..] {
        sentinel.kill().unwrap();
    }
    // Connected clients keep working.
    let guard = client.lock("x").acquire().await.unwrap();
    let error = Client::connect(&sentinels.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let says = "1 of 3 sentinels answers, but 2 must";
    assert!(error.to_string().contains(says), "{error}");
    sentinels.sentinels()[1].restart().unwrap();
    Client::connect(&sentinels.url()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_whose_connection_breaks_waits_for_a_majority() {
    let sentinels = Sentinels::start(1);
    let (proxies, url) = behind_proxies(&sentinels);
    let client = Client::connect(&url).await.unwrap();
    for proxy in &proxies[1..] {
        proxy.refuse(true);
        proxy.cut();
    }
    let closed = ["CLIENT", "KILL", "TYPE", "normal"];
    sentinels.master_server().command(&closed).unwrap();
    eventually("it is not connected", async || {
        let refused = client.lock("x").try_acquire().await.err();
        refused.is_some_and(|error| error.to_string().contains("1 of 3 sentinels"))
    })
    .await;
    let waiter = client.lock("x");
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    proxies[1].refuse(false);
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// One of three sentinels still names an old master, and another sentinel is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_with_old_news_leads_nobody_back() {
    let (sentinels, past) = (Sentinels::start(1), Sentinels::start(0));
    sentinels.fail_over();
    sentinels.sentinels()[2].kill().unwrap();
    let ports = [
        past.sentinels()[0].port(),
        sentinels.sentinels()[2].port(),
        sentinels.sentinels()[1].port(),
    ];
    let client = Client::connect(&sentinels.url_by(ports)).await.unwrap();
    let port = sentinels.master_server().port().to_string();
    let at = master_of(&client).await;
    assert!(at.ends_with(&port), "{at}");
    acquire_and_release(&client.lock("x")).await;
    assert_eq!(past.servers()[0].scripts(), 0);
}

/// Returns whether this process has a connection to this port.
fn is_connected_to(port: u16) -> bool {
    let ours: HashSet<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let socket = PathBuf::from(format!("socket:[{}]", fields[9]));
        fields[2].ends_with(&format!(":{port:04X}")) && fields[3] == "01" && ours.contains(&socket)
    })
}

/// While the client connects to the master that the sentinels reported, that master is replaced.
/// After that, the old master accepts the connection. The client learns of the replacement only
/// because it asks the sentinels again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_asked_again_behind_the_connection() {
    let sentinels = Sentinels::start(1);
    let (proxies, url) = behind_proxies(&sentinels);
    let old = &sentinels.servers()[0];
    old.pause().unwrap();
    let acquiring = tokio::spawn(async move {
        let builder = Client::builder().connect_timeout(Duration::from_secs(60));
        let client = builder.connect_in_background(&url).unwrap();
        // The request waits for the connection.
        client.lock("x").acquire().await.unwrap().forget();
        client
    });
    eventually("it connects", async || is_connected_to(old.port())).await;
    proxies.iter().for_each(|proxy| proxy.hold_replies(true));
    let new = sentinels.wait_until_replaced(0);
    old.resume().unwrap();
    eventually("the old master has answered", async || {
        old.calls("script|load") > 0
    })
    .await;
    proxies.iter().for_each(|proxy| proxy.hold_replies(false));
    let client = acquiring.await.unwrap();
    let at = master_of(&client).await;
    let port = sentinels.servers()[new].port().to_string();
    assert!(at.ends_with(&port), "{at}");
    assert_eq!(old.scripts(), 0, "nothing was asked of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_sentinel_holds_nobody_up() {
    let sentinels = Sentinels::start(1);
    let client = Client::connect(&sentinels.url()).await.unwrap();
    sentinels.sentinels()[0].pause().unwrap();
    let late = Client::connect(&sentinels.url()).await.unwrap();
    let old = sentinels.master();
    sentinels.servers()[old].kill().unwrap();
    let new = sentinels.wait_until_replaced(old);
    for client in [&client, &late] {
        leads_to(client, &sentinels.servers()[new]).await;
    }
}

/// The sentinels' messages do not arrive, so the client queries the sentinels instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_messages_of_sentinels_are_made_up_for() {
    let sentinels = Sentinels::start(1);
    let (proxies, url) = behind_proxies(&sentinels);
    let client = Client::connect(&url).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    for proxy in &proxies {
        proxy.cut();
        proxy.refuse(true);
    }
    let new = sentinels.fail_over();
    for proxy in &proxies {
        proxy.refuse(false);
    }
    leads_to(&client, &sentinels.servers()[new]).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_in_the_background_waits_for_its_sentinels() {
    let sentinels = Sentinels::start(0);
    for sentinel in sentinels.sentinels() {
        sentinel.kill().unwrap();
    }
    let client = Client::builder()
        .connect_in_background(&sentinels.url())
        .unwrap();
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    for sentinel in sentinels.sentinels() {
        sentinel.restart().unwrap();
    }
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// The servers can be reached only through proxies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_is_reached_where_its_announced_address_leads() {
    let sentinels = Sentinels::start(1);
    let ports: Vec<_> = sentinels.servers().iter().map(RedisServer::port).collect();
    let proxies: Vec<_> = ports.iter().map(|port| Proxy::to(*port)).collect();
    let reached = proxies.iter().map(Proxy::port);
    let map: HashMap<_, _> = ports.into_iter().zip(reached).collect();
    let builder = Client::builder().map_address(move |host, port| {
        let port = *map.get(&port)?;
        Some((host.to_owned(), port))
    });
    let client = builder.connect(&sentinels.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let leads_to = async |server: usize| {
        let at = format!("redis://127.0.0.1:{}", proxies[server].port());
        eventually("it calls the master", async || {
            let seen = client.inspect("x").await;
            seen.is_ok_and(|seen| seen.node.unwrap().address.unwrap() == at)
        })
        .await;
    };
    leads_to(0).await;
    let new = sentinels.fail_over();
    leads_to(new).await;
    guard.release().await.unwrap();
}
