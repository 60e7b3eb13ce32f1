//! Passwords that are wrong, change, or go with their user.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::settings::Credentials;
use leasehold::{Client, ErrorKind, LossReason};
use leasehold_testkit::{Proxy, RedisServer};
use tokio::time::Instant;

use crate::support::{HOUR, eventually};

/// A server with a user, a proxy that counts connections, and a client through it.
async fn logged_in() -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start().unwrap();
    set_user(&server, &["on", ">old", "+@all", "~*", "&*"]);
    let proxy = Proxy::to(server.port());
    let url = format!("redis://app:old@127.0.0.1:{}", proxy.port());
    let builder = Client::builder().lease(Duration::from_secs(2));
    let client = builder.connect(&url).await.unwrap();
    (server, proxy, client)
}

fn set_user(server: &RedisServer, rules: &[&str]) {
    let command = [&["ACL", "SETUSER", "app"][..], rules].concat();
    server.command(&command).unwrap();
}

/// Tasks that ask as often as they can for a while: all are told, and few connect.
async fn denied_without_a_storm(client: &Client, proxy: &Proxy) {
    eventually("it is told", async || {
        let result = client.lock("y").try_acquire().await;
        result.is_err_and(|error| error.kind() == ErrorKind::Denied)
    })
    .await;
    let (before, started) = (proxy.connections(), Instant::now());
    let mut told = 0;
    while started.elapsed() < Duration::from_millis(2500) {
        let error = client.lock("y").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("`y`") && !text.contains("old"), "{text}");
        told += 1;
        tokio::task::yield_now().await;
    }
    let attempts = proxy.connections() - before;
    let most = 2 + 2 * started.elapsed().as_secs_f64().ceil() as usize;
    assert!(told > 100, "at once, not when the next attempt has failed");
    assert!((1..=most).contains(&attempts), "{attempts} of {most}");
}

#[tokio::test]
async fn rotated_password_is_reported_and_client_recovers() {
    let (server, proxy, client) = logged_in().await;
    set_user(&server, &["resetpass", ">new"]);
    // Who is connected stays so.
    let guard = client.lock("x").acquire().await.unwrap();
    proxy.cut();
    denied_without_a_storm(&client, &proxy).await;
    let reason = guard.lost().await;
    assert!(
        matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.contains("password")),
        "{reason:?}"
    );
    set_user(&server, &[">old"]);
    eventually("it connects again", async || {
        let guard = client.lock("y").try_acquire().await;
        matches!(guard, Ok(Some(_)))
    })
    .await;
}

#[tokio::test]
async fn hold_outlives_password_rotation_with_credentials_callback() {
    let server = RedisServer::start().unwrap();
    set_user(&server, &["on", ">old", "+@all", "~*", "&*"]);
    let proxy = Proxy::to(server.port());
    let vault = Arc::new(Mutex::new(Some("old")));
    let asked = Arc::clone(&vault);
    let lease = Duration::from_secs(8);
    let builder = Client::builder().lease(lease).credentials(move || {
        let password = *asked.lock().unwrap();
        async move {
            tokio::task::yield_now().await;
            let password = password.ok_or("the vault is shut")?;
            Ok(Credentials::user("app", password))
        }
    });
    // What the callback says counts, not the URL.
    let url = format!("redis://nobody:wrong@127.0.0.1:{}", proxy.port());
    let client = builder.connect(&url).await.unwrap();
    let held = client.lock("x").renew_every(lease / 16);
    let guard = held.acquire().await.unwrap();
    let refused = async |kind| {
        eventually("it is told", async || {
            let result = client.lock("y").try_acquire().await;
            result.is_err_and(|error| error.kind() == kind)
        })
        .await;
    };

    set_user(&server, &["resetpass", ">new"]);
    proxy.cut();
    refused(ErrorKind::Denied).await;
    *vault.lock().unwrap() = None;
    refused(ErrorKind::Unavailable).await;
    let error = client.lock("y").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("the vault is shut"), "{error}");
    *vault.lock().unwrap() = Some("new");
    let beyond = guard.valid_until() + lease / 8;
    eventually("it is renewed", async || {
        assert_eq!(guard.loss(), None);
        guard.valid_until() > beyond
    })
    .await;

    // The connection for messages asks as well.
    let other = Client::connect(&server.url()).await.unwrap();
    let theirs = other.lock("y").acquire().await.unwrap();
    let waits = client.lock("y").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { waits.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    theirs.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn deleted_user_gets_denied_at_once() {
    let (server, proxy, client) = logged_in().await;
    let held = Client::connect(&server.url()).await.unwrap();
    let _held = held.lock("y").acquire().await.unwrap();
    let lock = client.lock("y");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap_err() });
    eventually("it waits", async || !server.channels().is_empty()).await;
    // The server closes the user's connections by itself.
    server.command(&["ACL", "DELUSER", "app"]).unwrap();
    let error = waiter.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    denied_without_a_storm(&client, &proxy).await;
}

#[tokio::test]
async fn revoked_permission_fails_waiter_at_next_ask() {
    let (server, _proxy, client) = logged_in().await;
    let holder = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(20));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap_err() });
    eventually("it waits", async || !server.channels().is_empty()).await;
    set_user(&server, &["resetkeys"]);
    let error = waiter.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("`x`"), "{error}");
    guard.release().await.unwrap();
}
