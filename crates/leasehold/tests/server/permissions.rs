//! A user with few permissions: permitted actions still work, and the error names the missing
//! permissions.

use std::time::Duration;

use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, Error, ErrorKind, Result};
use leasehold_testkit::{Cluster, RedisServer, Reply, Sentinels};

use crate::support::wire::allowed_commands;
use crate::support::{HOUR, eventually, knows_shards};

/// Returns a client for a user that has exactly these rules.
pub(crate) async fn client_with(server: &RedisServer, rules: &[&str]) -> Client {
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw"];
    command.extend(rules);
    server.command(&command).unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    Client::connect(&url).await.unwrap()
}

#[tokio::test]
async fn denied_key_fails_only_its_own_operation() {
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
async fn denied_channel_costs_only_the_wakeup() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~*", "resetchannels"]).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_secs(3600));
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
async fn denied_script_command_leaves_no_lock() {
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

#[tokio::test]
async fn denied_script_command_leaves_no_turn() {
    let server = RedisServer::start().unwrap();
    for denied in ["-pexpire", "-hdel", "-hset"] {
        let client = client_with(&server, &["+@all", "~*", "&*", denied]).await;
        let lock = client.lock("x");
        let hour = lock.once_per(HOUR).try_begin().await;
        let id = lock.once_for("y").try_begin().await;
        for begun in [hour, id] {
            let error = begun.expect_err("a command is denied");
            assert_eq!(error.kind(), ErrorKind::Denied, "{denied}: {error}");
        }
        assert!(server.keys().is_empty(), "{denied}: {:?}", server.keys());
    }
}

/// A time longer than a busy server takes to answer.
const A_WHILE: Duration = Duration::from_secs(2);

/// Does everything that a client can do with one kind of lock.
async fn use_all(kind: &str, client: &Client, other: &Client) -> Result<()> {
    match kind {
        "lock" => {
            let lock = client.lock("x");
            let guard = lock.acquire().await?;
            guard.extend(HOUR).await?;
            guard.fencing_token().await?;
            lock.inspect().await?;
            guard.release().await?;
            let _broken = lock.acquire().await?;
            lock.force_unlock().await?;
        }
        "fair" => {
            let held = other.fair_lock("x").acquire().await?;
            let backoff = Backoff::constant(Duration::from_millis(5));
            let lock = client.fair_lock("x");
            let lock = lock.wait_strategy(WaitStrategy::Backoff(backoff));
            assert!(lock.try_acquire_for(A_WHILE).await?.is_none());
            held.release().await?;
            lock.acquire().await?.release().await?;
        }
        "rw" => {
            let lock = client.rw_lock("x");
            let reads = lock.read().await?;
            let more = lock.read().await?;
            assert!(lock.try_write_for(A_WHILE).await?.is_none());
            reads.release().await?;
            more.release().await?;
            lock.write().await?.downgrade().await?.release().await?;
        }
        "fenced" => client.fenced_lock("x").acquire().await?.release().await?,
        "group" => {
            client
                .group_lock("x", ["a", "b"])
                .acquire()
                .await?
                .release()
                .await?
        }
        "semaphore" => {
            let semaphore = client.semaphore("x");
            semaphore.try_set_permits(3).await?;
            semaphore.acquire_many(2).await?.release().await?;
            semaphore.drain().await?;
            semaphore.delete().await?;
        }
        "election" => {
            let term = client.election("x").stand().await?;
            let mut terms = client.election("x").observe();
            let leader = terms.next().await.expect("it is open")?.expect("one leads");
            assert_eq!(leader.token, Some(term.token()));
            term.extend(HOUR).await?;
            term.resign().await?;
            assert_eq!(client.election("x").leader().await?, None);
        }
        "expirable" => {
            let semaphore = client.expirable_semaphore("x");
            semaphore.set_permits(3).await?;
            semaphore.acquire().await?.release().await?;
            semaphore.delete().await?;
        }
        _ => {
            let latch = client.count_down_latch("x");
            latch.try_set_count(2).await?;
            latch.count_down_by(2).await?;
            latch.wait().await?;
            latch.delete().await?;
        }
    }
    Ok(())
}

const KINDS: [&str; 9] = [
    "lock",
    "fair",
    "rw",
    "fenced",
    "group",
    "semaphore",
    "expirable",
    "election",
    "latch",
];

#[tokio::test]
async fn user_of_a_prefix_may_use_every_kind_under_it() {
    let server = RedisServer::start().unwrap();
    let rules = [
        "resetchannels",
        "~app:*",
        "~redisson_*:{app:*",
        "~{app:*",
        "~leasehold:{app:*",
        "&redisson_*{app:*",
        "&leasehold:{app:*",
    ];
    let commands = allowed_commands();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">pw"];
    user.extend(commands.split(' '));
    user.extend(rules);
    server.command(&user).unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let builder = Client::builder().prefix("app:");
    let client = builder.connect(&url).await.unwrap();
    let other = builder.connect(&server.url()).await.unwrap();
    for kind in KINDS {
        use_all(kind, &client, &other).await.unwrap();
        server.command(&["FLUSHALL"]).unwrap();
    }
    let without = Client::connect(&url).await.unwrap();
    let error = without.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn error_names_every_missing_acl_rule() {
    for kind in KINDS {
        let server = RedisServer::start().unwrap();
        names_every_rule(kind, &server.url(), std::slice::from_ref(&server)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_a_cluster_names_every_missing_acl_rule() {
    let cluster = Cluster::start(2, 0);
    for kind in KINDS {
        names_every_rule(kind, &cluster.url(), cluster.nodes()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_behind_sentinels_names_every_missing_acl_rule() {
    let sentinels = Sentinels::start(1);
    for kind in KINDS {
        names_every_rule(kind, &sentinels.url(), sentinels.servers()).await;
    }
}

/// Returns the rules that an error says are missing.
fn rules_of(error: &Error) -> Vec<String> {
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    let (_, rules) = text.split_once("ACL SETUSER USER ").expect(&text);
    let rules = rules.split(';').next().unwrap().split(' ');
    rules.map(str::to_owned).collect()
}

/// Returns a client for a user that only has the rules that a connection needs.
async fn denied_client(url: &str, set_user: impl Fn(&[String])) -> Client {
    set_user(&["reset", "on", ">pw", "resetchannels"].map(str::to_owned));
    let url = url.replacen("://", "://app:pw@", 1);
    match Client::connect(&url).await {
        Ok(client) => client,
        // A node of a cluster must say where the other nodes are.
        Err(error) => {
            set_user(&rules_of(&error));
            Client::connect(&url).await.unwrap()
        }
    }
}

/// Asserts that a user with exactly the rules that the errors name can do everything that a client
/// can do with one kind of lock.
async fn names_every_rule(kind: &str, url: &str, servers: &[RedisServer]) {
    let set_user = |rules: &[String]| {
        // A server refuses rules for commands that it does not know.
        let sharded = ["+spublish", "+ssubscribe", "+sunsubscribe"];
        let is_known = |rule: &&str| knows_shards() || !sharded.contains(rule);
        let rules = rules.iter().map(String::as_str).filter(is_known);
        let command: Vec<_> = ["ACL", "SETUSER", "app"].into_iter().chain(rules).collect();
        for server in servers {
            assert_eq!(server.command(&command).unwrap(), Reply::Text("OK".into()));
        }
    };
    let clear = || {
        for server in servers {
            // A replica refuses this command, but follows its master.
            server.command(&["FLUSHALL"]).unwrap();
        }
    };
    let other = Client::connect(url).await.unwrap();
    let client = denied_client(url, set_user).await;
    // The errors must name all rules to a user without any permission, and to a user that may run
    // scripts.
    for allowed in ["+evalsha", "+eval"] {
        let error = use_all(kind, &client, &other).await.unwrap_err();
        let rules = rules_of(&error);
        match allowed {
            "+eval" => set_user(&rules),
            _ => set_user(&[allowed.to_owned()]),
        }
        clear();
    }
    if let Err(error) = use_all(kind, &client, &other).await {
        panic!("{kind} with what the error says: {error}");
    }
    clear();
}
