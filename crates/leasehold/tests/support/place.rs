//! The places where tests run: an embedded keyspace, a server, a cluster, a master behind
//! sentinels.

use std::sync::OnceLock;

use leasehold::{Client, ClientBuilder, Embedded};
use leasehold_testkit::{Cluster, RedisServer, Reply, Sentinels, server::Builder};

use super::{is_clean, wire};

/// A backend that is used by one test only.
#[allow(clippy::large_enum_variant, reason = "there is one per test")]
pub(crate) enum Place {
    Embedded(Embedded),
    Server {
        server: RedisServer,
        query: &'static str,
        builder: ClientBuilder,
        /// The prefix of all clients. Tests name keys without it.
        prefix: &'static str,
    },
    /// Three masters. A name may be on any of them.
    Cluster(Cluster),
    /// A master that the clients find through its sentinels.
    Sentinels(Sentinels),
}

/// Returns an embedded keyspace on a clock that only moves when all tasks sleep.
pub(crate) fn embedded_place() -> Place {
    tokio::time::pause();
    Place::Embedded(Embedded::new())
}

/// Returns a server whose user may run only the commands that the docs name.
/// `LEASEHOLD_TOPOLOGY=sentinels` or `sentinels-after-failover` puts the server behind sentinels,
/// so that every server test can run there. Each place then takes some seconds to start.
pub(crate) fn server_place() -> Place {
    match std::env::var("LEASEHOLD_TOPOLOGY").as_deref() {
        Err(_) | Ok("single") => {}
        Ok("sentinels") => return Place::Sentinels(sentinels()),
        Ok("sentinels-after-failover") => return sentinels_place(),
        Ok(other) => {
            panic!("{other}: here are `single`, `sentinels` and `sentinels-after-failover`")
        }
    }
    let rules = format!("~* resetchannels &* {}", wire::allowed_commands());
    start(RedisServer::builder().user("app", "pw").rules(&rules), "")
}

/// Returns a server whose user may only access keys and channels with a prefix.
pub(crate) fn prefixed_place() -> Place {
    const PREFIX: &str = "app:";
    let keys = ["~", "~redisson_*:{", "~{", "~leasehold:{"].map(|rule| format!("{rule}{PREFIX}*"));
    let (keys, commands) = (keys.join(" "), wire::allowed_commands());
    let rules = format!(
        "{keys} ~leasehold:client* resetchannels &redisson_*{{{PREFIX}* \
             &leasehold:{{{PREFIX}* {commands}"
    );
    match start(RedisServer::builder().user("app", "pw").rules(&rules), "") {
        Place::Server {
            server,
            query,
            builder,
            ..
        } => Place::Server {
            builder: builder.prefix(PREFIX),
            prefix: PREFIX,
            server,
            query,
        },
        place => place,
    }
}

pub(crate) fn resp3_place() -> Place {
    start(RedisServer::builder(), "?protocol=resp3")
}

/// Returns a cluster whose user may run only the commands that the docs name for clusters.
pub(crate) fn cluster_place() -> Place {
    let (commands, mut more) = (wire::allowed_commands(), wire::allowed_in_a_cluster());
    if !knows_shards() {
        // A server refuses rules for commands that it does not know.
        let known = |rule: &&str| !rule.starts_with("+s");
        more = more.split(' ').filter(known).collect::<Vec<_>>().join(" ");
    }
    let rules = format!("~* resetchannels &* {commands} {more}");
    let settings = RedisServer::builder().user("app", "pw").rules(&rules);
    Place::Cluster(Cluster::of(&settings, 3, 0))
}

/// Returns a master that its sentinels have just promoted.
pub(crate) fn sentinels_place() -> Place {
    let sentinels = sentinels();
    sentinels.fail_over();
    Place::Sentinels(sentinels)
}

/// Returns a master and its sentinels. On the master and on the sentinels, the user may run only
/// the commands that the docs name for each of them.
fn sentinels() -> Sentinels {
    let rules = format!("~* resetchannels &* {}", wire::allowed_commands());
    let servers = RedisServer::builder().user("app", "pw").rules(&rules);
    let rules = wire::allowed_at_sentinels();
    let watching = RedisServer::builder().user("looks", "s3cret").rules(&rules);
    Sentinels::of(&servers, &watching, 1)
}

/// Returns whether the servers have shard channels, as Redis 7.0 and later have.
pub(crate) fn knows_shards() -> bool {
    static KNOWS: OnceLock<bool> = OnceLock::new();
    *KNOWS.get_or_init(|| {
        let server = RedisServer::start().expect("redis-server starts; install it");
        let known = server
            .command(&["COMMAND", "INFO", "spublish"])
            .expect("it runs");
        known.as_array().is_some_and(|known| known != [Reply::Nil])
    })
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
            prefix,
        } => Place::Server {
            builder: builder.tls_authorities(server.ca_pem()),
            server,
            query,
            prefix,
        },
        place => place,
    }
}

fn start(builder: Builder, query: &'static str) -> Place {
    Place::Server {
        server: builder.start().expect("redis-server starts; install it"),
        query,
        builder: Client::builder(),
        prefix: "",
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
            Self::Cluster(cluster) => change(Client::builder())
                .connect(&cluster.url())
                .await
                .expect("connects"),
            Self::Sentinels(sentinels) => change(Client::builder())
                .connect(&sentinels.url())
                .await
                .expect("connects"),
            Self::Server {
                server,
                query,
                builder,
                ..
            } => change(builder.clone())
                .connect(&format!("{}{query}", server.url()))
                .await
                .expect("connects"),
        }
    }

    /// Starts another server of the same sort.
    pub(crate) fn beside(&self) -> Self {
        match self {
            Self::Embedded(_) => Self::Embedded(Embedded::new()),
            Self::Server { query, .. } => start(RedisServer::builder(), query),
            Self::Cluster(_) => cluster_place(),
            Self::Sentinels(_) => sentinels_place(),
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        match self {
            Self::Embedded(embedded) => embedded.keys(),
            Self::Server { server, prefix, .. } => {
                let keys = server.keys().into_iter();
                keys.map(|key| key.replacen(prefix, "", 1)).collect()
            }
            Self::Cluster(cluster) => cluster.keys(),
            Self::Sentinels(sentinels) => sentinels.keys(),
        }
    }

    /// Returns the key's full name on the server.
    pub(crate) fn key(&self, key: &str) -> String {
        match self {
            Self::Embedded(_) | Self::Cluster(_) | Self::Sentinels(_) => key.to_owned(),
            Self::Server { prefix, .. } if key.contains('{') => {
                key.replacen('{', &format!("{{{prefix}"), 1)
            }
            Self::Server { prefix, .. } => format!("{prefix}{key}"),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the server that has this key, or `None` for the embedded keyspace.
    pub(crate) fn server_of(&self, key: &str) -> Option<&RedisServer> {
        match self {
            Self::Embedded(_) => None,
            Self::Server { server, .. } => Some(server),
            Self::Cluster(cluster) => Some(cluster.node_of(key)),
            Self::Sentinels(sentinels) => Some(sentinels.master_server()),
        }
    }

    /// Removes the key, as an operator does by hand.
    pub(crate) fn remove(&self, key: &str) {
        match self {
            Self::Embedded(embedded) => {
                embedded.remove(key);
            }
            _ => {
                let server = self.server_of(key).expect("a server");
                server.command(&["DEL", &self.key(key)]).expect("DEL");
            }
        }
    }

    /// Returns the remaining TTL of a key in milliseconds: -1 if the key has no expiry, -2 if there
    /// is no key.
    pub(crate) fn ttl_ms(&self, key: &str) -> i64 {
        match self {
            Self::Embedded(embedded) => embedded.ttl_ms(key),
            _ => {
                let server = self.server_of(key).expect("a server");
                let left = server.command(&["PTTL", &self.key(key)]).expect("PTTL");
                left.as_int().expect("a number")
            }
        }
    }

    fn channels(&self) -> Vec<String> {
        match self {
            Self::Embedded(_) => Vec::new(),
            Self::Server { server, .. } => server.channels(),
            Self::Cluster(cluster) => cluster.channels(),
            Self::Sentinels(sentinels) => sentinels.channels(),
        }
    }

    /// Waits until no key, channel, subscription, line, owner or renewal is left.
    pub(crate) async fn is_clean(&self, clients: &[&Client]) {
        is_clean(|| self.keys(), || self.channels(), clients).await;
    }

    /// Like [`is_clean`](Self::is_clean), except for `kept` and for markers, which expire.
    pub(crate) async fn is_clean_but_for(&self, kept: &[&str], clients: &[&Client]) {
        let keys = || {
            let keys = self.keys().into_iter();
            keys.filter(|key| !kept.contains(&key.as_str()) && !self.is_marker(key))
                .collect()
        };
        is_clean(keys, || self.channels(), clients).await;
    }

    /// Like [`is_clean`](Self::is_clean), except for the counters of fencing tokens, which are
    /// permanent, and for notes about tickets.
    pub(crate) async fn is_clean_but_for_counters(&self, clients: &[&Client]) {
        let keys = || {
            let keys = self.keys().into_iter();
            keys.filter(|key| !key.starts_with("redisson_lock_token:"))
                .filter(|key| !key.ends_with(":taken") || !self.is_marker(key))
                .collect()
        };
        is_clean(keys, || self.channels(), clients).await;
    }

    fn is_marker(&self, key: &str) -> bool {
        let ends_with = |what: &str| key.ends_with(what);
        let named = key.starts_with("leasehold:")
            && (key.contains(":did:")
                || [":opened", ":released", ":taken"]
                    .into_iter()
                    .any(ends_with));
        let ends = match self {
            // The embedded keyspace can't report the TTL, but the twin of the script sets the same
            // TTL.
            Self::Embedded(_) => true,
            _ => (0..=3_600_000).contains(&self.ttl_ms(key)),
        };
        named && ends
    }
}
