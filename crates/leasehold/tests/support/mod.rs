//! Where a test runs, and what it checks at its end.
#![allow(dead_code, reason = "each test binary uses its part of it")]

pub(crate) mod child;

use std::time::Duration;

use leasehold::{Activity, Client, ClientBuilder, Embedded};
use leasehold_testkit::{RedisServer, server::Builder};

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

pub(crate) fn server_place() -> Place {
    start(RedisServer::builder(), "")
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
            Self::Embedded(embedded) => embedded
                .client_with(&change(Client::builder()))
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
