//! One measurement: so many tasks, each with a name of its own, acquire and release
//! for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::{Result, cpu};

/// An acquire and a release.
pub(crate) trait Pair: Clone + Send + Sync + 'static {
    fn pair(&self, name: usize) -> impl Future<Output = Result<()>> + Send;
}

/// The same two changes as ours, one script call each.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    acquire: Arc<Script>,
    release: Arc<Script>,
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let connection = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        Ok(Self {
            connection,
            acquire: Arc::new(Script::new(
                "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
                 redis.call('HSET', KEYS[1], ARGV[1], 1)
                 redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 return false",
            )),
            release: Arc::new(Script::new(
                "if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
                 redis.call('PUBLISH', ARGV[2], '0')
                 return 1",
            )),
        })
    }
}

impl Pair for Bare {
    async fn pair(&self, name: usize) -> Result<()> {
        let name = format!("bare:{name}");
        let holder = "7e57c0de-0000-4000-8000-000000000000:1";
        let mut connection = self.connection.clone();
        let busy: Option<i64> = self
            .acquire
            .key(&name)
            .arg(holder)
            .arg(30_000)
            .invoke_async(&mut connection)
            .await?;
        assert!(busy.is_none());
        let released: i64 = self
            .release
            .key(&name)
            .arg(holder)
            .arg(format!("redisson_lock__channel:{{{name}}}"))
            .invoke_async(&mut connection)
            .await?;
        assert_eq!(released, 1);
        Ok(())
    }
}

/// Ours, as a user would call it.
#[derive(Clone)]
pub(crate) struct Ours {
    client: leasehold::Client,
}

impl Ours {
    pub(crate) fn new(client: &leasehold::Client) -> Self {
        Self {
            client: client.clone(),
        }
    }
}

impl Pair for Ours {
    async fn pair(&self, name: usize) -> Result<()> {
        let guard = self.client.lock(&format!("ours:{name}")).acquire().await?;
        guard.release().await?;
        Ok(())
    }
}

/// Re-entry of one owner.
#[derive(Clone)]
pub(crate) struct Again(pub(crate) leasehold::Lock);

impl Pair for Again {
    async fn pair(&self, _: usize) -> Result<()> {
        self.0.acquire().await?.release().await?;
        Ok(())
    }
}

/// What a measurement shows.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) pairs_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) server_us: f64,
    pub(crate) client_us: f64,
    pub(crate) calls_per_pair: f64,
}

impl Measured {
    /// The one in the middle by throughput.
    pub(crate) fn median(mut all: Vec<Self>) -> Self {
        all.sort_by(|a, b| a.pairs_per_s.total_cmp(&b.pairs_per_s));
        all[all.len() / 2].clone()
    }

    pub(crate) fn where_it_goes(&self) -> String {
        let pair_us = 1e6 / self.pairs_per_s;
        let part = |us: f64| 100.0 * us / pair_us;
        format!(
            "{pair_us:.1} us a pair: server busy {:.0} %, client busy {:.0} % of a core",
            part(self.server_us),
            part(self.client_us),
        )
    }
}

pub(crate) async fn measure<P: Pair>(
    pair: &P,
    server: &RedisServer,
    tasks: usize,
    slice: Duration,
) -> Result<Measured> {
    let calls_before = calls(server)?;
    let (server_before, client_before) = (cpu::used(server.pid())?, cpu::used_here()?);
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let pair = pair.clone();
        running.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < slice {
                let began = Instant::now();
                pair.pair(task).await?;
                times.push(began.elapsed());
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = running.join_next().await {
        times.extend(done??);
    }
    let took = start.elapsed();
    let (server_after, client_after) = (cpu::used(server.pid())?, cpu::used_here()?);
    let calls_after = calls(server)?;
    times.sort_unstable();
    let pairs = times.len() as f64;
    let at = |part: f64| times[((pairs - 1.0) * part) as usize].as_secs_f64() * 1e6;
    Ok(Measured {
        pairs_per_s: pairs / took.as_secs_f64(),
        p50_us: at(0.50),
        p99_us: at(0.99),
        server_us: (server_after - server_before).as_secs_f64() * 1e6 / pairs,
        client_us: (client_after - client_before).as_secs_f64() * 1e6 / pairs,
        calls_per_pair: (calls_after - calls_before) as f64 / pairs,
    })
}

/// Script calls that the server has run so far.
pub(crate) fn calls(server: &RedisServer) -> Result<u64> {
    let info = server.command(&["INFO", "commandstats"])?;
    let info = info.as_text().unwrap_or_default().to_owned();
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or(0))
}
