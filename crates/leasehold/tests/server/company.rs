//! Every feature through troubles of real servers: a restart, a change of passwords, a failover
//! guard, and a look at who the clients are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::inspect::{ClientInfo, Found, NameInfo};
use leasehold::settings::Credentials;
use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Proxy, RedisServer};

use crate::support::company::{Company, OUR_NAMES};
use crate::support::eventually;
use crate::support::guarded::{guarded, is_known};

/// A lease that is longer than any trouble here.
const LEASE: Duration = Duration::from_secs(20);

fn with_a_log() -> RedisServer {
    let settings = RedisServer::builder().arg("appendonly", "yes");
    settings.arg("appendfsync", "always").start().unwrap()
}

async fn company(builder: &ClientBuilder, url: &str) -> Company {
    let ours = builder.connect(url).await.unwrap();
    let theirs = builder.connect(url).await.unwrap();
    let company = Company::new(&ours, &theirs);
    company.with_threads(builder, url).await
}

/// Waits until nothing is left but keys that end by themselves.
async fn nothing_is_left(server: &RedisServer) {
    eventually("nothing is left", async || {
        let mut keys = server.keys().into_iter();
        keys.all(|key| key.contains("_token:") || key.starts_with("leasehold:"))
    })
    .await;
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
    nothing_is_left(&server).await;
}

fn set_user(server: &RedisServer, user: &str, rules: &[&str]) {
    let command = [&["ACL", "SETUSER", user][..], rules].concat();
    server.command(&command).unwrap();
}

/// The user changes twice: once while the client asks for the credentials again, and once more when
/// every connection has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_change_of_the_credentials() {
    let server = RedisServer::start().unwrap();
    let admit = |user: &str| set_user(&server, user, &["on", ">pw", "+@all", "~*", "&*"]);
    admit("first");
    let present = Arc::new(Mutex::new("first"));
    let asked = Arc::clone(&present);
    let builder = Client::builder()
        .lease(LEASE)
        .credentials_every(Duration::from_millis(50))
        .credentials(move || {
            let user = *asked.lock().unwrap();
            async move { Ok(Credentials::user(user, "pw")) }
        });
    let company = company(&builder, &server.url()).await;
    let logged_in = |user: &str| {
        let list = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
        let list = list.unwrap().as_text().unwrap().to_owned();
        list.matches(&format!("user={user} ")).count()
    };
    let trouble = async || {
        let many = logged_in("first");
        admit("second");
        *present.lock().unwrap() = "second";
        eventually("all have logged in again", async || {
            logged_in("second") == many
        })
        .await;
        // The server closes the connections of this user: the ones for messages.
        server.command(&["ACL", "DELUSER", "first"]).unwrap();
        admit("third");
        *present.lock().unwrap() = "third";
        server.command(&["ACL", "DELUSER", "second"]).unwrap();
        eventually("all are back", async || logged_in("third") >= many).await;
    };
    company.goes_through(trouble).await;
    nothing_is_left(&server).await;
}

/// To the guard, the restarted server is another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_goes_on_beside_a_failover_guard() {
    const SPAN: Duration = Duration::from_secs(10);
    let server = with_a_log();
    is_known(&server);
    let company = Company {
        long: SPAN,
        ..company(&guarded(SPAN), &server.url()).await
    };
    let trouble = async || {
        server.kill().unwrap();
        server.restart().unwrap();
        company.is_answered().await;
        let refused = company.theirs.lock("during the span").try_acquire().await;
        assert!(refused.unwrap().is_none());
    };
    company.clone().goes_through(trouble).await;
    nothing_is_left(&server).await;
}

/// Returns all clients that hold something of the name.
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
    // A majority can be held without this server.
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
    nothing_is_left(&server).await;
    for name in OUR_NAMES {
        eventually("no wait is told that has ended", async || {
            operator.inspect(name).await.unwrap().waiting.is_empty()
        })
        .await;
    }
}
