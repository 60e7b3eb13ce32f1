//! Uses a million names, and waits for thousands at once. The client and the server must not keep
//! anything of these names.

use std::time::{Duration, Instant};

use clap::Args;
use leasehold::{Client, Lock};
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Result;
use crate::figures::{duration, is_steady, mib, per, percent_of_a_core};
use crate::findings::Findings;
use crate::holds::{acquire_all, release_all};
use leasehold_bench::{server, usage};

#[derive(Args)]
pub(crate) struct Churn {
    /// Use this number of names, one after the other
    #[arg(long, default_value_t = 1_000_000)]
    names: usize,

    /// Wait for this number of different names at once
    #[arg(long, default_value_t = 10_000)]
    waited: usize,

    /// Wait for these names for this long
    #[arg(long, default_value = "10s", value_parser = duration)]
    wait: Duration,
}

/// Another client also wants one in this number of names.
const CONTENDED: usize = 50;
const HOUR: Duration = Duration::from_secs(3600);
/// Number of tasks that use the names.
const TASKS: usize = 256;

impl Churn {
    pub(crate) async fn run(self) -> Result<Findings> {
        let mut findings = Findings::default();
        let server = RedisServer::start()?;
        // The leases are too long to be renewed during the run. If the watchdog did not forget a
        // hold at its release, it would keep the hold until a renewal is due, and the memory would
        // grow.
        let client = Client::builder().lease(HOUR);
        let one = client.connect(&server.url()).await?;
        let other = client.connect(&server.url()).await?;
        self.names_come_and_go(&one, &other, &server, &mut findings)
            .await?;
        // The waits happen twice. The second time must not need more memory than the allocator has
        // kept since the first time.
        let mut settled = Vec::new();
        for _ in 0..2 {
            self.names_are_waited_for(&one, &other, &server, &mut findings)
                .await?;
            settled.push(usage::rss()?);
        }
        must_stay(&settled, "client", &mut findings);
        Ok(findings)
    }

    async fn names_come_and_go(
        &self,
        one: &Client,
        other: &Client,
        server: &RedisServer,
        findings: &mut Findings,
    ) -> Result<()> {
        findings.say("names used once", self.names);
        let subscriptions = server::calls(server, "subscribe")?;
        let (mut rss, mut memory) = (Vec::new(), Vec::new());
        let start = Instant::now();
        // The first tenth of the names shows how much memory is in use. The other names must not
        // use more.
        for part in [0..self.names / 10, self.names / 10..self.names] {
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let names = part.clone().skip(task).step_by(TASKS);
                tasks.spawn(go_through(names, one.clone(), other.clone()));
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            findings.must_come_to_rest(&[one, other], server).await?;
            rss.push(usage::rss()?);
            memory.push(server::memory(server)?);
        }
        let pairs = self.names as f64 / start.elapsed().as_secs_f64();
        findings.say("names a second", format!("{pairs:.0}"));
        must_stay(&rss, "client", findings);
        must_stay(&memory, "server", findings);
        let subscriptions = server::calls(server, "subscribe")? - subscriptions;
        findings.say("SUBSCRIBE commands", subscriptions);
        findings.must(subscriptions > 0 || self.names < CONTENDED, || {
            "vacuous: no client ever subscribed".into()
        });
        Ok(())
    }

    async fn names_are_waited_for(
        &self,
        one: &Client,
        other: &Client,
        server: &RedisServer,
        findings: &mut Findings,
    ) -> Result<()> {
        let names = || (0..self.waited).map(|n| format!("load:waited:{n}"));
        let guards = acquire_all(names().map(|name| one.lock(&name)).collect()).await?;
        findings.say("-- names waited for at once", self.waited);
        let meter = Meter::start(server)?;
        let mut waiters = JoinSet::new();
        for name in names() {
            let lock = other.lock(&name);
            waiters.spawn(async move { lock.acquire().await?.release().await });
        }
        self.until_all_subscribed(server).await?;
        findings.say("until all are subscribed", meter.stop(server)?);
        findings.say(
            "client memory per waited name",
            format!("{:.0} bytes", per(meter.grown()?, self.waited)),
        );
        let meter = Meter::start(server)?;
        tokio::time::sleep(self.wait).await;
        findings.say("waiting, nothing happens", meter.stop(server)?);
        let meter = Meter::start(server)?;
        release_all(guards).await?;
        let mut served = 0;
        while let Some(done) = waiters.join_next().await {
            done??;
            served += 1;
        }
        findings.say("until all are served", meter.stop(server)?);
        findings.must(served == self.waited, || {
            format!("{served} of {} waiters were served", self.waited)
        });
        findings.must_come_to_rest(&[one, other], server).await
    }

    async fn until_all_subscribed(&self, server: &RedisServer) -> Result<()> {
        const LIMIT: Duration = Duration::from_secs(60);
        let deadline = Instant::now() + LIMIT;
        while server::number(server, "stats", "pubsub_channels")? < self.waited as u64 {
            if Instant::now() > deadline {
                return Err(format!("not all channels are subscribed after {LIMIT:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

async fn go_through(names: impl Iterator<Item = usize>, one: Client, other: Client) -> Result<()> {
    for n in names {
        let name = format!("load:churn:{n}");
        let lock = one.lock(&name);
        if n % CONTENDED == 0 {
            contend(&lock, &other.lock(&name)).await?;
        } else {
            lock.acquire().await?.release().await?;
        }
    }
    Ok(())
}

/// Makes `other` wait on the server while `lock` is held.
async fn contend(lock: &Lock, other: &Lock) -> Result<()> {
    let guard = lock.acquire().await?;
    let first = async {
        // This gives the other client time to send its request and its subscription.
        for _ in 0..5 {
            lock.is_locked().await?;
        }
        guard.release().await
    };
    let second = async { other.acquire().await?.release().await };
    let (first, second) = tokio::join!(first, second);
    first?;
    Ok(second?)
}

fn must_stay(memory: &[u64], whose: &str, findings: &mut Findings) {
    let (Some(&early), Some(&late)) = (memory.first(), memory.last()) else {
        return;
    };
    let figure = format!("{}, then {}", mib(early), mib(late));
    findings.say(&format!("{whose} memory at rest"), &figure);
    findings.must(is_steady(early, late), || {
        format!("the {whose}'s memory at rest grew: {figure}")
    });
}

/// A measurement of time, CPU and memory since its start.
struct Meter {
    start: Instant,
    client: Duration,
    server: Duration,
    rss: u64,
}

impl Meter {
    fn start(server: &RedisServer) -> Result<Self> {
        Ok(Self {
            rss: usage::rss()?,
            client: usage::cpu_here()?,
            server: usage::cpu(server.pid())?,
            start: Instant::now(),
        })
    }

    fn grown(&self) -> Result<u64> {
        Ok(usage::rss()?.saturating_sub(self.rss))
    }

    fn stop(&self, server: &RedisServer) -> Result<String> {
        let wall = self.start.elapsed();
        Ok(format!(
            "{wall:.2?}, client CPU {:.0} %, server CPU {:.0} % of a core",
            percent_of_a_core(usage::cpu_here()? - self.client, wall),
            percent_of_a_core(usage::cpu(server.pid())? - self.server, wall),
        ))
    }
}
