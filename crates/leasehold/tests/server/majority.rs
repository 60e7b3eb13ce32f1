//! The lock of a majority, while some of its servers are down, slow, cut off or came back
//! empty.

use std::time::Duration;

use leasehold::{Client, ErrorKind, LossReason, RedLock};
use leasehold_testkit::{Proxy, RedisServer};

use crate::support::{HOUR, eventually};

/// With room for a busy machine.
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

/// The servers of a test have just been started.
fn trusting(clients: &[Client]) -> RedLock {
    distrusting(clients).distrust_restarted(false)
}

fn distrusting(clients: &[Client]) -> RedLock {
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    lock.master_limit(LEASE / 4)
}

fn keys(server: &RedisServer) -> usize {
    server.keys().len()
}

#[tokio::test]
async fn it_works_while_two_of_five_are_down_from_the_start() {
    let servers = start(5);
    servers[1].kill().unwrap();
    servers[3].kill().unwrap();
    let (ours, theirs) = (of(&servers), of(&servers));
    let lock = trusting(&ours);
    let guard = lock.try_acquire_for(LEASE * 10).await.unwrap();
    let guard = guard.expect("three of five are a majority");
    assert_eq!(guard.members().len(), 3);
    assert!(trusting(&theirs).try_acquire().await.unwrap().is_none());
    // Renewed over several leases, by three of five.
    let lost = tokio::time::timeout(LEASE * 2, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
    // And with all of them when they are there.
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
async fn with_three_of_five_down_it_fails_and_names_each() {
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
    // A wait goes on until they are back.
    let lock = trusting(&ours).outage_limit(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it waits", async || {
        ours.iter().any(|client| client.activity().lines == 1)
    })
    .await;
    servers[0].restart().unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_and_keeps_nothing() {
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
async fn servers_that_came_back_empty_have_no_vote_for_one_lease() {
    let servers = start(3);
    let (ours, theirs) = (of(&servers), of(&servers));
    let error = distrusting(&ours).try_acquire().await.unwrap_err();
    assert!(
        error.to_string().contains("started a moment ago"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // It waits until they count.
    let guard = distrusting(&ours)
        .fixed_lease(LEASE)
        .acquire()
        .await
        .unwrap();
    assert!(guard.is_held());
    // Two of three forget the hold.
    for server in &servers[..2] {
        server.kill().unwrap();
        server.restart().unwrap();
    }
    let next = distrusting(&theirs).acquire().await.unwrap();
    assert!(!guard.is_held(), "let in beside a hold that was good");
    next.release().await.unwrap();
}

#[tokio::test]
async fn an_error_of_a_lazy_client_says_what_connecting_would_have_said() {
    let server = RedisServer::builder().password("secret").start().unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = Client::builder().connect_in_background(&url).unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = Client::builder().connect_in_background("nonsense");
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Misuse);
}
