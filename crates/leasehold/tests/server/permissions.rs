//! A user with few permissions: what is allowed goes on, the error names the rest.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::RedisServer;

use crate::support::eventually;

/// A client of a user with just these rules.
pub(crate) async fn client_with(server: &RedisServer, rules: &[&str]) -> Client {
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw"];
    command.extend(rules);
    server.command(&command).unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    Client::connect(&url).await.unwrap()
}

#[tokio::test]
async fn a_denied_key_fails_its_own_operation_and_no_other() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~app:*", "&*"]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let client = client.clone();
        tasks.spawn(async move {
            let allowed = number % 4 != 0;
            let name = format!("{}:{number}", if allowed { "app" } else { "other" });
            for _ in 0..20 {
                match client.lock(&name).try_acquire().await {
                    Ok(Some(guard)) if allowed => guard.release().await.unwrap(),
                    Err(error) if !allowed => {
                        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
                        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_denied_channel_costs_the_wake_up_and_nothing_else() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~*", "resetchannels"]).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_cap(Duration::from_secs(3600));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it tries to listen", async || {
        client.activity().channels == 1
    })
    .await;
    guard
        .release()
        .await
        .expect("released although nobody may be told");
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_denied_command_in_the_script_is_named_and_leaves_no_lock() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~*", "&*", "-pexpire"]).await;
    let error = client.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(server.keys().is_empty(), "no lock without expiry");
    let client = client_with(&server, &["-hdel"]).await;
    let error = client.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(server.keys().is_empty(), "taken away by the other command");
    let client = client_with(&server, &["+pexpire", "+hdel", "-hset"]).await;
    let error = client.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(server.keys().is_empty());
}
