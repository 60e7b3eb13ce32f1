//! The majority lock, while some of its servers are down, slow, cut off or have lost their data.

use std::time::Duration;

use leasehold::{Client, ErrorKind, LossReason, MultiLock, RedLock};
use leasehold_testkit::{Proxy, RedisServer, Strike};

use crate::support::{HOUR, acquire_and_release, eventually};

/// A lease long enough for a busy machine.
const LEASE: Duration = Duration::from_millis(3000);

fn start(count: usize) -> Vec<RedisServer> {
    let start = || RedisServer::start().unwrap();
    std::iter::repeat_with(start).take(count).collect()
}

fn clients<'a>(urls: impl IntoIterator<Item = String> + 'a) -> Vec<Client> {
    let builder = Client::builder().lease(LEASE);
    urls.into_iter()
        .map(|url| builder.connect_in_background(&url).unwrap())
        .collect()
}

fn of(servers: &[RedisServer]) -> Vec<Client> {
    clients(servers.iter().map(RedisServer::url))
}

/// Returns a lock that trusts the servers, because a test's servers have just been started.
fn trusting(clients: &[Client]) -> RedLock {
    distrusting(clients).distrust_restarted(false)
}

fn distrusting(clients: &[Client]) -> RedLock {
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    lock.member_timeout(LEASE / 4).longest_lease(LEASE)
}

fn keys(server: &RedisServer) -> usize {
    server.keys().len()
}

#[tokio::test]
async fn majority_works_with_two_of_five_down() {
    let servers = start(5);
    servers[1].kill().unwrap();
    servers[3].kill().unwrap();
    let (ours, theirs) = (of(&servers), of(&servers));
    let lock = trusting(&ours);
    let guard = lock.try_acquire_for(LEASE * 10).await.unwrap();
    let guard = guard.expect("three of five are a majority");
    assert_eq!(guard.members().len(), 3);
    assert!(trusting(&theirs).try_acquire().await.unwrap().is_none());
    // Three of five servers renew the hold over several leases.
    let lost = tokio::time::timeout(LEASE * 2, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
    // All five servers take part again once they have been restarted.
    servers[1].restart().unwrap();
    servers[3].restart().unwrap();
    let lock = trusting(&ours);
    eventually("all five take part", async || {
        let guard = lock.acquire().await.unwrap();
        let members = guard.members().len();
        guard.release().await.unwrap();
        members == 5
    })
    .await;
}

#[tokio::test]
async fn majority_fails_with_three_of_five_down() {
    let servers = start(5);
    for server in &servers[..3] {
        server.kill().unwrap();
    }
    let ours = of(&servers);
    let error = trusting(&ours).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("3 of 5 masters"), "{text}");
    for client in &ours[..3] {
        assert!(text.contains(client.address()), "{text}");
    }
    assert!(text.contains("refused"), "{text}");
    eventually("the others are given back", async || {
        servers[3..].iter().all(|server| keys(server) == 0)
    })
    .await;
    // A wait continues until the servers are back.
    let lock = trusting(&ours).outage_timeout(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || {
        ours.iter().any(|client| client.activity().lines == 1)
    })
    .await;
    servers[0].restart().unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn majority_does_not_wait_for_silent_server() {
    let servers = start(3);
    let proxy = Proxy::to(servers[2].port());
    let urls = [servers[0].url(), servers[1].url(), proxy.url()];
    let ours = clients(urls);
    let lock = trusting(&ours);
    eventually("all take part", async || {
        let guard = lock.acquire().await.unwrap();
        let members = guard.members().len();
        guard.release().await.unwrap();
        members == 3
    })
    .await;
    eventually("nothing is left of that", async || keys(&servers[2]) == 0).await;
    proxy.hold_replies(true);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.members().len(), 2);
    guard.release().await.unwrap();
    proxy.hold_replies(false);
    for (server, client) in servers.iter().zip(&ours) {
        eventually("what it had granted is given back", async || {
            keys(server) == 0 && client.activity().releases == 0
        })
        .await;
    }
}

#[tokio::test]
async fn it_is_lost_when_the_majority_is_gone() {
    let servers = start(3);
    let ours = of(&servers);
    let guard = trusting(&ours).acquire().await.unwrap();
    servers[0].kill().unwrap();
    servers[2].kill().unwrap();
    let reason = guard.lost().await;
    let LossReason::Member { reason, .. } = &reason else {
        panic!("{reason:?}");
    };
    assert!(
        matches!(**reason, LossReason::RenewalFailed { .. }),
        "{reason:?}"
    );
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn restarted_servers_lose_vote_for_longest_lease() {
    let servers = start(3);
    let (ours, theirs) = (of(&servers), of(&servers));
    let error = distrusting(&ours).try_acquire().await.unwrap_err();
    assert!(
        error.to_string().contains("started a moment ago"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The acquire waits until the servers count.
    let guard = distrusting(&ours)
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap();
    assert!(guard.is_held());
    // Two of three servers forget the hold.
    for server in &servers[..2] {
        server.kill().unwrap();
        server.restart().unwrap();
    }
    let next = distrusting(&theirs).acquire().await.unwrap();
    assert!(!guard.is_held(), "let in beside a hold that was good");
    next.release().await.unwrap();
}

#[tokio::test]
async fn hold_outlives_the_restart_of_each_server() {
    const LONG: Duration = Duration::from_secs(6);
    let servers = start(5);
    let (ours, theirs) = (of(&servers), of(&servers));
    let lock = |clients| {
        let lock = distrusting(clients).longest_lease(LONG).lease(LONG);
        lock.member_timeout(LONG / 4).outage_timeout(HOUR)
    };
    let (ours, theirs) = (lock(&ours), lock(&theirs));
    let mut guard = None;
    eventually("all five take part", async || {
        let now = guard.insert(ours.acquire().await.unwrap());
        now.members().len() == 5 || {
            guard.take().unwrap().release().await.unwrap();
            false
        }
    })
    .await;
    let guard = guard.unwrap();
    let waiter = tokio::spawn(async move { theirs.acquire().await });
    for server in &servers {
        server.kill().unwrap();
        server.restart().unwrap();
        eventually("the server has the lock again", async || {
            assert!(guard.is_held(), "{:?}", guard.loss());
            server.keys().contains(&"x".to_owned())
        })
        .await;
        assert!(!waiter.is_finished(), "two have it");
    }
    let lost = tokio::time::timeout(LONG * 2, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(!waiter.is_finished(), "two have it");
    guard.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// The reason why the server does not report its start time.
#[derive(Clone, Copy, Debug)]
enum Untold {
    Denied,
    LateReply,
    LateRequest,
}

#[tokio::test]
async fn reconnected_server_without_info_has_no_vote() {
    for untold in [Untold::Denied, Untold::LateReply, Untold::LateRequest] {
        let server = RedisServer::start().unwrap();
        let user = ["ACL", "SETUSER", "app", "on", ">pw", "+@all", "~*", "&*"];
        server.command(&user).unwrap();
        let proxy = Proxy::to(server.port());
        let url = format!("redis://app:pw@127.0.0.1:{}", proxy.port());
        let builder = Client::builder().reply_timeout(LEASE / 3).lease(LEASE);
        let client = builder.connect(&url).await.unwrap();
        let lock = RedLock::new([client.lock("x")]).unwrap();
        let lock = lock.longest_lease(LEASE).member_timeout(LEASE / 4);
        // The server counts when it has been up for long enough.
        lock.acquire().await.unwrap().release().await.unwrap();
        let late = match untold {
            Untold::Denied => {
                server.command(&["ACL", "SETUSER", "app", "-info"]).unwrap();
                None
            }
            Untold::LateReply => Some(proxy.strike_next(b"$4\r\nINFO", Strike::HoldReply)),
            Untold::LateRequest => Some(proxy.strike_next(b"$4\r\nINFO", Strike::HoldRequest)),
        };
        proxy.cut_calls();
        eventually(
            &format!("it counts as just started, {untold:?}"),
            async || {
                let told = lock.try_acquire().await;
                told.is_err_and(|error| error.to_string().contains("started a moment ago"))
            },
        )
        .await;
        if let Some(late) = late {
            assert!(late.fired(), "{untold:?}");
            proxy.let_go(&late);
        }
        // The vote is suspended for one longest lease.
        lock.acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn two_addresses_of_one_server_are_refused() {
    let servers = start(2);
    let proxy = Proxy::to(servers[0].port());
    let urls = [servers[0].url(), proxy.url(), servers[1].url()];
    // In the first case, all clients are already connected. In the second case, a client learns
    // which server it has reached only from its first reply.
    let builder = Client::builder();
    let mut connected = Vec::new();
    for url in &urls {
        connected.push(builder.connect(url).await.unwrap());
    }
    for clients in [connected, clients(urls.clone())] {
        let names = |error: leasehold::Error| {
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            for client in &clients[..2] {
                assert!(error.to_string().contains(client.address()), "{error}");
            }
        };
        let locks = || clients.iter().map(|client| client.lock("x"));
        let majority = RedLock::new(locks()).unwrap().distrust_restarted(false);
        let mut refused = None;
        // While the client does not know which server is at the third address, it believes that the
        // first two servers are a majority.
        eventually("it is refused", async || match majority.acquire().await {
            Ok(guard) => {
                guard.release().await.unwrap();
                false
            }
            Err(error) => refused.insert(error).kind() == ErrorKind::Misuse,
        })
        .await;
        names(refused.unwrap());
        names(majority.try_acquire().await.unwrap_err());
        // Without the refusal, the multi-lock would wait for a lock that it already holds.
        let all = MultiLock::new(locks()).unwrap();
        names(all.acquire().await.unwrap_err());
        let all = MultiLock::new(clients.iter().map(|client| client.lock(client.address())));
        acquire_and_release(&all.unwrap()).await;
    }
    eventually("nothing is left", async || {
        servers.iter().all(|server| keys(server) == 0)
    })
    .await;
}

#[tokio::test]
async fn duplicate_server_is_undetected_without_info() {
    let servers = start(2);
    let user = [
        "ACL", "SETUSER", "app", "on", ">pw", "+@all", "-info", "~*", "&*",
    ];
    servers[0].command(&user).unwrap();
    let proxy = Proxy::to(servers[0].port());
    let ports = [servers[0].port(), proxy.port()];
    let urls = ports.map(|port| format!("redis://app:pw@127.0.0.1:{port}"));
    let clients = clients(urls.into_iter().chain([servers[1].url()]));
    let guard = trusting(&clients).acquire().await.unwrap();
    assert_eq!(guard.members().len(), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn majority_refuses_two_databases_of_one_server() {
    let server = RedisServer::start().unwrap();
    let urls = [server.url(), format!("{}/1", server.url())];
    let clients = clients(urls);
    let locks = || clients.iter().map(|client| client.lock("x"));
    let majority = RedLock::new(locks()).unwrap().distrust_restarted(false);
    let error = majority.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    // The two databases are two locks.
    let all = MultiLock::new(locks()).unwrap().acquire().await.unwrap();
    all.release().await.unwrap();
}

#[tokio::test]
async fn members_whose_addresses_are_shown_alike_are_two() {
    let long = "a.long-name.".repeat(12);
    let urls = ["one", "two", "three"].map(|host| format!("redis://{long}{host}.invalid"));
    let clients = clients(urls);
    assert_eq!(clients[0].address(), clients[1].address());
    assert_eq!(trusting(&clients).members().len(), 3);
    let all = MultiLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    assert_eq!(all.members().len(), 3);
}

#[tokio::test]
async fn lazy_client_reports_connect_errors() {
    let server = RedisServer::builder().password("secret").start().unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = Client::builder().connect_in_background(&url).unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = Client::builder().connect_in_background("nonsense");
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Misuse);
}
