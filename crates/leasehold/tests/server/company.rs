//! Every feature with real servers, during a restart, a change of passwords, a span of the failover
//! guard, a sleep of the machine, and a query for the identity of the clients.

use std::thread;
use std::time::Duration;

use leasehold::inspect::{ClientInfo, Found, NameInfo};
use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Proxy, RedisServer};

use crate::support::asleep::asleep;
use crate::support::company::{Company, OUR_NAMES, leaves_nothing};
use crate::support::eventually;
use crate::support::guarded::{guarded, is_known, is_promoted};
use crate::support::users::Users;

/// A lease that is longer than any fault in these tests.
const LEASE: Duration = Duration::from_secs(20);
/// The span of the failover guard.
const SPAN: Duration = Duration::from_secs(10);

fn with_a_log() -> RedisServer {
    let settings = RedisServer::builder().arg("appendonly", "yes");
    settings.arg("appendfsync", "always").start().unwrap()
}

async fn company(builder: &ClientBuilder, url: &str) -> Company {
    let company = Company::connect(builder, url).await;
    company.with_threads(builder, url).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_restart_and_cut_connections() {
    let server = with_a_log();
    let proxy = Proxy::to(server.port());
    let builder = Client::builder().lease(LEASE);
    let company = company(&builder, &proxy.url()).await;
    let trouble = async || {
        server.kill().unwrap();
        server.restart().unwrap();
        proxy.cut();
        proxy.cut_messages();
    };
    company.goes_through(trouble).await;
    leaves_nothing(|| server.keys()).await;
}

/// Changes the user twice: first while the clients query the credentials again, and then after
/// every connection has ended.
async fn change_twice(users: &Users<'_>) {
    users.change_to("second");
    users.have_moved("first", "second").await;
    // The server closes the remaining connections of this user, which are for messages.
    users.delete("first");
    users.change_to("third");
    users.delete("second");
    eventually("each client is back", async || {
        users.logged_in("third") >= 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_change_of_the_credentials() {
    let servers = [RedisServer::start().unwrap()];
    let users = Users::of(&servers, "first");
    let builder = users.log_in(Client::builder().lease(LEASE));
    let company = company(&builder, &servers[0].url()).await;
    company
        .goes_through(async || change_twice(&users).await)
        .await;
    leaves_nothing(|| servers[0].keys()).await;
}

/// Clients that log in again during the span are refused like the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_new_credentials_beside_a_failover_guard() {
    let servers = [RedisServer::start().unwrap()];
    is_known(&servers[0]);
    let users = Users::of(&servers, "first");
    let builder = users.log_in(guarded(SPAN));
    let company = Company {
        long: SPAN,
        ..company(&builder, &servers[0].url()).await
    };
    let trouble = async || {
        is_promoted(&servers[0]);
        change_twice(&users).await;
        is_refused(&company).await;
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| servers[0].keys()).await;
}

/// Asserts that the guard refuses a lock that is free.
async fn is_refused(company: &Company) {
    company.is_answered().await;
    let refused = company.theirs.lock("during the span").try_acquire().await;
    assert!(refused.unwrap().is_none());
}

/// For the guard, the restarted server is a different server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_goes_on_beside_a_failover_guard() {
    let server = with_a_log();
    is_known(&server);
    let company = Company {
        long: SPAN,
        ..company(&guarded(SPAN), &server.url()).await
    };
    let trouble = async || {
        server.kill().unwrap();
        server.restart().unwrap();
        is_refused(&company).await;
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| server.keys()).await;
}

/// A hold is renewed soon after the sleep. If the timer merely continued from where it stopped, the
/// next renewal would be too late.
#[tokio::test]
async fn every_feature_outlasts_a_sleep_of_the_machine() {
    const LEASE: Duration = Duration::from_secs(12);
    let server = RedisServer::start().unwrap();
    let company = Company::connect(&Client::builder().lease(LEASE), &server.url()).await;
    let sleeps = async || asleep(|| thread::sleep(LEASE * 3 / 4));
    company.goes_through(sleeps).await;
    leaves_nothing(|| server.keys()).await;
}

/// The server ends all connections while the machine of the clients sleeps. When it wakes, the old
/// user does not exist any more.
#[tokio::test]
async fn every_feature_sleeps_through_a_change_of_the_credentials() {
    let servers = [RedisServer::start().unwrap()];
    let users = Users::of(&servers, "first");
    let builder = users.log_in(Client::builder().lease(LEASE));
    let company = Company::connect(&builder, &servers[0].url()).await;
    let trouble = async || {
        asleep(|| {
            users.change_to("second");
            users.delete("first");
            thread::sleep(Duration::from_secs(2));
        });
        eventually("all are back", async || users.logged_in("second") >= 2).await;
    };
    company.goes_through(trouble).await;
    leaves_nothing(|| servers[0].keys()).await;
}

/// The server is replaced while the machine of the clients sleeps.
#[tokio::test]
async fn every_feature_sleeps_through_a_failover_beside_its_guard() {
    let server = RedisServer::start().unwrap();
    is_known(&server);
    let company = Company {
        long: SPAN,
        ..Company::connect(&guarded(SPAN), &server.url()).await
    };
    let trouble = async || {
        asleep(|| {
            is_promoted(&server);
            thread::sleep(Duration::from_secs(2));
        });
        is_refused(&company).await;
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| server.keys()).await;
}

/// Returns all clients that hold the lock or permits of the name.
fn holders(seen: &NameInfo) -> Vec<&ClientInfo> {
    let clients: Vec<_> = match &seen.found {
        Found::Lock(hold) => vec![&hold.client],
        Found::ReadWrite { writer, readers } => writer
            .iter()
            .chain(readers)
            .map(|hold| &hold.client)
            .collect(),
        Found::Group(values) => values.iter().map(|value| &value.hold.client).collect(),
        Found::Leases { permits, .. } => permits.iter().map(|permit| &permit.client).collect(),
        _ => Vec::new(),
    };
    clients.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_says_who_it_is() {
    let server = RedisServer::start().unwrap();
    let company = company(&Client::builder().lease(LEASE), &server.url()).await;
    let operator = Client::connect(&server.url()).await.unwrap();
    let ours = company.ours.id().to_owned();
    let threads = company.threads.as_ref().unwrap().as_async().id().to_owned();
    // The `RedLock` can be held without this server.
    let names = OUR_NAMES.into_iter().filter(|name| *name != "majority");
    let names: Vec<_> = names.map(|name| (name, &ours)).collect();
    let looks = async || {
        for (name, ours) in names.into_iter().chain([("threads", &threads)]) {
            eventually(&format!("the holder of {name} is known"), async || {
                let seen = operator.inspect(name).await.unwrap();
                holders(&seen).iter().any(|client| client.id == *ours)
            })
            .await;
        }
    };
    company.goes_through(looks).await;
    leaves_nothing(|| server.keys()).await;
    for name in OUR_NAMES {
        eventually("no wait is told that has ended", async || {
            operator.inspect(name).await.unwrap().waiting.is_empty()
        })
        .await;
    }
}
