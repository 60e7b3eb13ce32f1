//! Where a test runs, and what it checks at its end.
#![allow(dead_code, reason = "each test binary uses its part of it")]

pub(crate) mod child;
pub(crate) mod sources;
pub(crate) mod wire;

use std::time::Duration;

use leasehold::inspect::Activity;
use leasehold::{Client, ClientBuilder, Embedded, FairLock, FencedLock, Lock};
use leasehold_testkit::{RedisServer, server::Builder};

/// The lock that a test is mounted for.
pub(crate) fn plain_lock(client: &Client, name: &str) -> Lock {
    client.lock(name)
}

pub(crate) fn fenced_lock(client: &Client, name: &str) -> FencedLock {
    client.fenced_lock(name)
}

/// Its waiters keep their place without asking, so that nothing but a message or the end
/// of a lease makes them ask again.
pub(crate) fn fair_lock(client: &Client, name: &str) -> FairLock {
    client.fair_lock(name).waiter_timeout(HOUR)
}

/// A backend of its own for one test.
#[allow(clippy::large_enum_variant, reason = "there is one per test")]
pub(crate) enum Place {
    Embedded(Embedded),
    Server {
        server: RedisServer,
        query: &'static str,
        builder: ClientBuilder,
    },
}

/// On a clock that only moves when everybody sleeps.
pub(crate) fn embedded_place() -> Place {
    tokio::time::pause();
    Place::Embedded(Embedded::new())
}

/// As a user who may run the commands that the docs name, and no other.
pub(crate) fn server_place() -> Place {
    let rules = format!("~* resetchannels &* {}", wire::allowed_commands());
    start(RedisServer::builder().user("app", "pw").rules(&rules), "")
}

pub(crate) fn resp3_place() -> Place {
    start(RedisServer::builder(), "?protocol=resp3")
}

pub(crate) fn unix_place() -> Place {
    start(RedisServer::builder().unix_socket(), "")
}

#[cfg(feature = "tls")]
pub(crate) fn tls_place() -> Place {
    match start(RedisServer::builder().tls(), "") {
        Place::Server {
            server,
            query,
            builder,
        } => Place::Server {
            builder: builder.tls_authorities(server.ca_pem()),
            server,
            query,
        },
        place @ Place::Embedded(_) => place,
    }
}

fn start(builder: Builder, query: &'static str) -> Place {
    Place::Server {
        server: builder.start().expect("redis-server starts; install it"),
        query,
        builder: Client::builder(),
    }
}

impl Place {
    pub(crate) async fn client(&self) -> Client {
        self.client_with(|builder| builder).await
    }

    pub(crate) async fn client_with(
        &self,
        change: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Client {
        match self {
            Self::Embedded(embedded) => change(Client::builder())
                .embedded(embedded)
                .expect("settings in range"),
            Self::Server {
                server,
                query,
                builder,
            } => change(builder.clone())
                .connect(&format!("{}{query}", server.url()))
                .await
                .expect("connects"),
        }
    }

    /// Another server of the same sort.
    pub(crate) fn beside(&self) -> Self {
        match self {
            Self::Embedded(_) => Self::Embedded(Embedded::new()),
            Self::Server { query, .. } => start(RedisServer::builder(), query),
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        match self {
            Self::Embedded(embedded) => embedded.keys(),
            Self::Server { server, .. } => server.keys(),
        }
    }

    /// As an operator does who removes the key by hand.
    pub(crate) fn remove(&self, key: &str) {
        match self {
            Self::Embedded(embedded) => {
                embedded.remove(key);
            }
            Self::Server { server, .. } => {
                server.command(&["DEL", key]).expect("DEL");
            }
        }
    }

    /// Milliseconds left of a key; -1 without expiry, -2 without key.
    pub(crate) fn ttl_ms(&self, key: &str) -> i64 {
        match self {
            Self::Embedded(embedded) => embedded.ttl_ms(key),
            Self::Server { server, .. } => server
                .command(&["PTTL", key])
                .expect("PTTL")
                .as_int()
                .expect("a number"),
        }
    }

    fn channels(&self) -> Vec<String> {
        match self {
            Self::Embedded(_) => Vec::new(),
            Self::Server { server, .. } => server.channels(),
        }
    }

    /// Waits until no key, channel, subscription, line, owner or renewal is left.
    pub(crate) async fn is_clean(&self, clients: &[&Client]) {
        is_clean(|| self.keys(), || self.channels(), clients).await;
    }

    /// As [`is_clean`](Self::is_clean), but for `kept` and for markers, which end by
    /// themselves.
    pub(crate) async fn is_clean_but_for(&self, kept: &[&str], clients: &[&Client]) {
        let keys = || {
            let keys = self.keys().into_iter();
            keys.filter(|key| !kept.contains(&key.as_str()) && !self.is_marker(key))
                .collect()
        };
        is_clean(keys, || self.channels(), clients).await;
    }

    /// As [`is_clean`](Self::is_clean), but for the counters of fencing tokens, which stay.
    pub(crate) async fn is_clean_but_for_counters(&self, clients: &[&Client]) {
        let keys = || {
            let keys = self.keys().into_iter();
            keys.filter(|key| !key.starts_with("redisson_lock_token:"))
                .collect()
        };
        is_clean(keys, || self.channels(), clients).await;
    }

    fn is_marker(&self, key: &str) -> bool {
        let ends_with = |what: &str| key.ends_with(what);
        let named = key.starts_with("leasehold:")
            && (key.contains(":did:") || [":opened", ":released"].into_iter().any(ends_with));
        let ends = match self {
            // There it can't be asked for; the twin does what the script does.
            Self::Embedded(_) => true,
            Self::Server { server, .. } => {
                let left = server.command(&["PTTL", key]).expect("PTTL");
                (0..=3_600_000).contains(&left.as_int().expect("a number"))
            }
        };
        named && ends
    }
}

/// Waits until no key, channel, subscription, line, owner or renewal is left.
pub(crate) async fn is_clean(
    keys: impl Fn() -> Vec<String>,
    channels: impl Fn() -> Vec<String>,
    clients: &[&Client],
) {
    let mut last = String::new();
    for _ in 0..2000 {
        let (keys, channels) = (keys(), channels());
        let busy = clients
            .iter()
            .map(|client| client.activity())
            .find(|activity| *activity != Activity::default());
        if keys.is_empty() && channels.is_empty() && busy.is_none() {
            return;
        }
        last = format!("keys {keys:?}, channels {channels:?}, {busy:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("left behind: {last}");
}

/// Polls until `condition` holds; the limit only ends a hopeless wait.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..4000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
