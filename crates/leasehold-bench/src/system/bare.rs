//! The smallest scripts that acquire and release, one call each, through the driver that Leasehold
//! uses. They run five commands for an acquire and its release, and Redisson's scripts run seven.
//! In a cluster, each call is sent to the node that has the name, according to a slot map that is
//! read at the start.

use std::ops::RangeInclusive;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};

use super::pairs::{self, Pair};
use super::{Worker, cannot};
use crate::Result;
use crate::task::{Done, Task, What};

pub(super) struct Bare {
    url: String,
    nodes: Nodes,
    scripts: Arc<Scripts>,
}

struct Scripts {
    acquire: Script,
    release: Script,
}

impl Bare {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        Ok(Self {
            url: url.to_owned(),
            nodes: Nodes::connect(url).await?,
            scripts: Arc::new(Scripts {
                acquire: Script::new(
                    "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
                     redis.call('HSET', KEYS[1], ARGV[1], 1)
                     redis.call('PEXPIRE', KEYS[1], ARGV[2])
                     return false",
                ),
                release: Script::new(
                    "if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
                     redis.call('PUBLISH', ARGV[2], '0')
                     return 1",
                ),
            }),
        })
    }

    async fn named(&self, name: String) -> Result<Named> {
        Ok(Named {
            channel: format!("redisson_lock__channel:{{{name}}}"),
            connection: self.nodes.of(&name).await?,
            scripts: Arc::clone(&self.scripts),
            name,
        })
    }
}

/// Ranges of slots, each with a connection to the node that has them.
struct Nodes(Vec<(RangeInclusive<u16>, MultiplexedConnection)>);

impl Nodes {
    async fn connect(url: &str) -> Result<Self> {
        const ALL: RangeInclusive<u16> = 0..=u16::MAX;
        let Some(hosts) = url.strip_prefix("redis-cluster://") else {
            return Ok(Self(vec![(ALL, connection(url).await?)]));
        };
        let first = hosts.split(',').next().unwrap_or_default();
        let mut first = connection(&format!("redis://{first}")).await?;
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        type Node = (String, u16, String, Vec<String>);
        let ranges: Vec<(u16, u16, Node)> = slots.query_async(&mut first).await?;
        let mut nodes = Vec::new();
        for (from, until, (host, port, ..)) in ranges {
            let node = connection(&format!("redis://{host}:{port}")).await?;
            nodes.push((from..=until, node));
        }
        Ok(Self(nodes))
    }

    async fn of(&self, name: &str) -> Result<MultiplexedConnection> {
        if let [(_, alone)] = &self.0[..] {
            return Ok(alone.clone());
        }
        let key_slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).to_owned();
        let slot: u16 = key_slot.query_async(&mut self.0[0].1.clone()).await?;
        let node = self.0.iter().find(|(slots, _)| slots.contains(&slot));
        Ok(node.ok_or("no node has the slot")?.1.clone())
    }
}

async fn connection(url: &str) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(url)?;
    // On a busy machine, a reply may take longer than half a second, the driver's default limit.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

impl Worker for Bare {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>> {
        Box::pin(async move {
            let Task::Pairs(task) = task else {
                return Err(cannot("bare", &task));
            };
            let mut named = Vec::new();
            for n in 0..task.tasks {
                named.push(match task.own_names {
                    true => self.named(format!("{}:{n}", task.name)).await?,
                    false => self.named(task.name.clone()).await?,
                });
            }
            let mut named = named.into_iter();
            let mut next = move || named.next().expect("one for each task");
            match task.what {
                What::Lock => pairs::run(task.tasks, task.run_ms, |_| next()).await,
                What::Connect => {
                    let fresh = |_| Fresh(self.url.clone(), next());
                    pairs::run(task.tasks, task.run_ms, fresh).await
                }
                _ => Err(cannot("bare", &Task::Pairs(task))),
            }
        })
    }
}

struct Named {
    name: String,
    channel: String,
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
}

impl Pair for Named {
    async fn pair(&mut self, _: u64) -> Result<()> {
        let holder = "7e57c0de-0000-4000-8000-000000000000:1";
        let acquire = &self.scripts.acquire;
        let busy: Option<i64> = acquire
            .key(&self.name)
            .arg(holder)
            .arg(30_000)
            .invoke_async(&mut self.connection)
            .await?;
        let release = &self.scripts.release;
        let released: i64 = release
            .key(&self.name)
            .arg(holder)
            .arg(&self.channel)
            .invoke_async(&mut self.connection)
            .await?;
        if busy.is_some() || released != 1 {
            return Err("somebody else used the name".into());
        }
        Ok(())
    }
}

/// A pair that opens a new connection each time.
struct Fresh(String, Named);

impl Pair for Fresh {
    async fn pair(&mut self, turn: u64) -> Result<()> {
        self.1.connection = connection(&self.0).await?;
        self.1.pair(turn).await
    }
}
