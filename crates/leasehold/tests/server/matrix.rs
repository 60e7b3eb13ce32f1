//! One command is denied at a time: whatever works without that command still works, everything
//! else returns an error, and nothing is left half done.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::inspect::Found;
use leasehold::{Client, ErrorKind, Lock, LossReason, Result};
use leasehold_testkit::{RedisServer, Reply};

use crate::server::permissions::client_with;
use crate::server::warnings::Warnings;
use crate::support::eventually;

/// A user's actions, and the commands that each of them needs.
const NEEDS: &[(&str, &[&str])] = &[
    ("acquire", &["evalsha", "time", "hlen", "hset", "pexpire"]),
    (
        "acquire a held one",
        &["evalsha", "time", "hlen", "hexists", "hgetall", "pttl"],
    ),
    ("extend", &["evalsha", "time", "hget", "pttl", "pexpire"]),
    (
        "draw a token",
        &["evalsha", "time", "hexists", "get", "set"],
    ),
    ("release", &["evalsha", "hdel"]),
    ("inspect", &["evalsha", "hlen", "hgetall", "pttl"]),
    (
        "inspect the name",
        &[
            "evalsha", "time", "type", "exists", "hget", "hlen", "hgetall", "hscan", "pttl",
        ],
    ),
    (
        "force",
        &["evalsha", "hlen", "hgetall", "hkeys", "pttl", "del"],
    ),
];

/// All commands that the library uses, including commands without which it also works.
const COMMANDS: &[&str] = &[
    "client",
    "info",
    "script",
    "eval",
    "evalsha",
    "ping",
    "time",
    "hlen",
    "hexists",
    "hkeys",
    "hgetall",
    "hget",
    "hscan",
    "type",
    "exists",
    "hset",
    "hdel",
    "pexpire",
    "pttl",
    "del",
    "get",
    "set",
    "publish",
    "subscribe",
    "unsubscribe",
];

const COUNTER: &str = "redisson_lock_token:{x}";

/// One user's view of a lock that an administrator may hold.
struct Scene {
    server: RedisServer,
    admin: Client,
    client: Client,
    denied: String,
}

impl Scene {
    async fn new(denied: &str) -> Self {
        let server = RedisServer::start().unwrap();
        let admin = Client::connect(&server.url()).await.unwrap();
        let rule = format!("-{denied}");
        let rules = ["+@all", "~*", "&*"];
        let client = client_with(&server, &rules).await;
        drop(client);
        // The command is already denied during the handshake.
        let client = client_with(&server, &[&rules[..], &[&rule]].concat()).await;
        Self {
            server,
            admin,
            client,
            denied: denied.to_owned(),
        }
    }

    fn lock(&self) -> Lock {
        self.client.lock("x")
    }

    /// Sets the permission. A preparation that needs the permission restores it.
    fn allow(&self, allowed: bool) {
        let sign = if allowed { '+' } else { '-' };
        let rule = format!("{sign}{}", self.denied);
        let command = ["ACL", "SETUSER", "app", &rule];
        assert_eq!(
            self.server.command(&command).unwrap(),
            Reply::Text("OK".into())
        );
    }

    fn dump(&self) -> Reply {
        self.server.command(&["DUMP", "x"]).unwrap()
    }

    /// Asserts that every key expires, except for the counter of tokens. A TTL of -2 is a missing
    /// key, -1 a key without expiry.
    fn every_key_expires(&self, after: &str) {
        self.server.command(&["DEL", COUNTER]).unwrap();
        for key in self.server.keys() {
            let ttl = self.server.command(&["PTTL", &key]).unwrap();
            assert_ne!(ttl, Reply::Int(-1), "{key} after {after}");
        }
    }

    async fn act(&self, action: &str) {
        let before = self.dump();
        let result = match action {
            "acquire" => self.acquire().await,
            "acquire a held one" => {
                let guard = self.admin.lock("x").acquire().await.unwrap();
                let result = self.lock().try_acquire().await;
                guard.release().await.unwrap();
                result.map(|guard| assert!(guard.is_none()))
            }
            "extend" | "draw a token" | "release" => self.with_a_hold(action).await,
            "inspect" => {
                let guard = self.admin.lock("x").acquire().await.unwrap();
                let result = self.lock().inspect().await;
                guard.release().await.unwrap();
                result.map(|info| assert!(info.is_locked()))
            }
            "inspect the name" => {
                let guard = self.admin.lock("x").acquire().await.unwrap();
                let result = self.client.inspect("x").await;
                guard.release().await.unwrap();
                result.map(|seen| assert!(matches!(seen.found, Found::Lock(_)), "{seen:?}"))
            }
            _ => self.force().await,
        };
        self.every_key_expires(action);
        self.judge(action, result);
        self.server.command(&["DEL", "x"]).unwrap();
        assert_eq!(before, Reply::Nil);
    }

    async fn acquire(&self) -> Result<()> {
        let guard = match self.lock().acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                assert_eq!(self.dump(), Reply::Nil, "nothing is left of it: {error}");
                return Err(error);
            }
        };
        // The release may be denied, too, but another row covers that.
        guard.forget();
        Ok(())
    }

    async fn with_a_hold(&self, action: &str) -> Result<()> {
        self.allow(true);
        let guard = self.lock().acquire().await.unwrap();
        self.allow(false);
        let before = self.dump();
        let result = match action {
            "extend" => {
                let result = guard.extend(Duration::from_secs(40)).await;
                assert!(guard.is_held(), "it is good until its lease ends");
                guard.forget();
                result
            }
            "draw a token" => {
                let result = guard.fencing_token().await.map(drop);
                guard.forget();
                result
            }
            _ => guard.release().await,
        };
        match (&result, action) {
            (Ok(()), "release") => assert_eq!(self.dump(), Reply::Nil),
            _ => assert_eq!(self.dump(), before, "not half"),
        }
        result
    }

    async fn force(&self) -> Result<()> {
        let guard = self.admin.lock("x").acquire().await.unwrap();
        let before = self.dump();
        let result = self.lock().force_unlock().await;
        match &result {
            Ok(forced) => assert!(forced),
            Err(_) => assert_eq!(self.dump(), before, "not half"),
        }
        guard.forget();
        result.map(drop)
    }

    fn judge(&self, action: &str, result: Result<()>) {
        let denied = &self.denied[..];
        let needs = NEEDS.iter().find(|(name, _)| *name == action).unwrap().1;
        match result {
            Ok(()) => assert!(!needs.contains(&denied), "{action} without {denied}"),
            Err(error) => {
                assert!(
                    needs.contains(&denied),
                    "{action} without {denied}: {error}"
                );
                assert_eq!(error.kind(), ErrorKind::Denied, "{action}: {error}");
                let text = error.to_string();
                assert!(text.contains("`x`"), "the key in: {text}");
                let named = text.to_lowercase().contains(denied);
                assert!(named, "{denied} in: {text}");
            }
        }
    }
}

#[tokio::test]
async fn denied_command_fails_only_dependent_actions() {
    for denied in COMMANDS {
        let scene = Scene::new(denied).await;
        for (action, _) in NEEDS {
            scene.act(action).await;
        }
    }
}

#[tokio::test]
async fn denied_pubsub_command_leaves_waiters_to_poll() {
    for denied in ["subscribe", "unsubscribe", "publish"] {
        let scene = Scene::new(denied).await;
        for _ in 0..2 {
            let guard = scene.admin.lock("x").acquire().await.unwrap();
            let lock = scene.lock().poll_interval(Duration::from_millis(50));
            let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
            eventually("it waits", async || scene.client.activity().lines == 1).await;
            guard.release().await.unwrap();
            waiter.await.unwrap().release().await.unwrap();
        }
        let client = &scene.client;
        eventually("it listens no more", async || {
            client.activity().channels == 0
        })
        .await;
    }
}

#[tokio::test]
async fn subscriber_survives_denied_ping() {
    let scene = Scene::new("ping").await;
    let guard = scene.admin.lock("x").acquire().await.unwrap();
    let lock = scene.lock();
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let subscriber = || {
        let list = scene.server.command(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
        let list = list.unwrap().as_text().unwrap_or_default().to_owned();
        list.split(' ').next().unwrap_or_default().to_owned()
    };
    eventually("it listens", async || !subscriber().is_empty()).await;
    let before = subscriber();
    eventually("it has pinged", async || {
        let stats = scene.server.command(&["INFO", "commandstats"]).unwrap();
        let stats = stats.as_text().unwrap().to_owned();
        let pings = stats.lines().find(|line| line.starts_with("cmdstat_ping:"));
        pings.is_some_and(|line| line.contains("rejected_calls=1"))
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(subscriber(), before, "the same connection");
}

#[tokio::test]
async fn a_denied_channel_is_warned_of_once() {
    let server = RedisServer::start().unwrap();
    let warnings = Warnings::listen();
    let client = client_with(&server, &["+@all", "~*", "resetchannels"]).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(20));
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    let denied = "denies this channel";
    eventually("it is told", async || warnings.count(denied) > 0).await;
    guard.release().await.expect("the message does not matter");
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(warnings.count(denied), 1);
    assert_eq!(warnings.count("redisson_lock__channel:{x}"), 1);
}

#[tokio::test]
async fn each_of_several_denied_channels_is_warned_of() {
    let server = RedisServer::start().unwrap();
    let warnings = Warnings::listen();
    let client = client_with(&server, &["+@all", "~*", "resetchannels"]).await;
    let locks: Vec<_> = (0..5).map(|n| client.lock(format!("x{n}"))).collect();
    let guards = join_all(locks.iter().map(leasehold::Lock::acquire)).await;
    // One request subscribes to all their channels, and the server refuses the whole request.
    let waits = join_all(locks.iter().map(|lock| {
        let lock = lock.clone().poll_interval(Duration::from_millis(20));
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    }));
    let waits = tokio::spawn(waits);
    let denied = "denies this channel";
    eventually("each is told", async || warnings.count(denied) == 5).await;
    for guard in guards {
        guard.unwrap().release().await.unwrap();
    }
    waits.await.unwrap();
    for n in 0..5 {
        assert_eq!(
            warnings.count(&format!("redisson_lock__channel:{{x{n}}}")),
            1
        );
    }
}

#[tokio::test]
async fn user_limited_to_key_cannot_force_unlock() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~x", "&*"]).await;
    let lock = client.lock("x").fixed_lease(Duration::from_secs(30));
    let guard = lock.acquire().await.unwrap();
    // The force-unlock would leave a note at another key.
    let error = lock.force_unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("`x`"), "{error}");
    guard.release().await.unwrap();
    // The reason can't be looked up, but the loss is reported.
    let guard = lock.acquire().await.unwrap();
    server.command(&["DEL", "x"]).unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Deleted), "{error}");
}

#[tokio::test]
async fn user_with_read_only_key_is_refused() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "%R~x", "&*"]).await;
    let error = client.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(server.keys().is_empty());
}
