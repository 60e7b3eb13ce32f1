//! One client holds thousands of names for minutes. Holds must not be lost or get close to their
//! end. The figures show the cost.

mod probe;

use std::time::{Duration, Instant};

use clap::Args;
use leasehold::{Client, Lock, LockGuard};
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Result;
use crate::figures::{duration, is_steady, mib, per, percent_of_a_core, spread};
use crate::findings::Findings;
use leasehold_bench::{server, usage};
use probe::Probe;

#[derive(Args)]
pub(crate) struct Holds {
    /// Hold this number of locks
    #[arg(long, default_value_t = 100_000)]
    locks: usize,

    /// Use this lease, which is renewed whenever a third of it has passed
    #[arg(long, default_value = "30s", value_parser = duration)]
    lease: Duration,

    /// Hold the locks for this long
    #[arg(long = "for", default_value = "10m", value_parser = duration)]
    time: Duration,
}

/// The pause between two readings of all guards.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Holds {
    pub(crate) async fn run(self) -> Result<Findings> {
        let mut findings = Findings::default();
        let server = RedisServer::start()?;
        let client = Client::builder()
            .lease(self.lease)
            .connect(&server.url())
            .await?;
        findings.say("locks held", self.locks);
        let guards = self.acquire_all(&client, &server, &findings).await?;
        let probe = Probe::start(client.lock("load:probe"));
        let looks = self.look_on(&guards, &server).await?;
        let probed = probe.stop().await?;
        // One check at the end is enough, because a lost guard stays lost.
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        findings.must(lost == 0, || format!("{lost} of {} locks lost", self.locks));
        self.judge(&looks, &mut findings);
        say_server(&server, &findings)?;
        findings.say("acquire of another name", spread(probed));
        let start = Instant::now();
        release_all(guards).await?;
        findings.say("all released in", format!("{:.1?}", start.elapsed()));
        findings.must_come_to_rest(&[&client], &server).await?;
        Ok(findings)
    }

    async fn acquire_all(
        &self,
        client: &Client,
        server: &RedisServer,
        findings: &Findings,
    ) -> Result<Vec<LockGuard>> {
        let (rss, memory) = (usage::rss()?, server::memory(server)?);
        let start = Instant::now();
        let locks = (0..self.locks).map(|n| client.lock(format!("load:hold:{n}")));
        let guards = acquire_all(locks.collect()).await?;
        findings.say("all acquired in", format!("{:.1?}", start.elapsed()));
        let each = |bytes: u64| format!("{:.0} bytes", per(bytes, self.locks));
        findings.say(
            "client memory per hold",
            each(usage::rss()?.saturating_sub(rss)),
        );
        findings.say(
            "server memory per hold",
            each(server::memory(server)?.saturating_sub(memory)),
        );
        Ok(guards)
    }

    async fn look_on(&self, guards: &[LockGuard], server: &RedisServer) -> Result<Vec<Look>> {
        let start = Instant::now();
        let mut looks = vec![Look::at(guards, server, start)?];
        while start.elapsed() < self.time {
            let left = self.time.saturating_sub(start.elapsed());
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
            looks.push(Look::at(guards, server, start)?);
        }
        Ok(looks)
    }

    fn judge(&self, looks: &[Look], findings: &mut Findings) {
        let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
            return;
        };
        let worst = looks.iter().min_by_key(|look| look.least_left);
        let (least, at) = worst.map_or_else(Default::default, |look| (look.least_left, look.at));
        findings.say(
            "least validity left, of all guards",
            format!("{least:.1?}, {at:.0?} after the start"),
        );
        say_machine(looks, findings);
        // The bound is half a lease, minus an allowance for drift and rounding.
        let bound = self.lease / 2 - self.lease / 50;
        findings.must(least >= bound, || {
            format!("a guard had {least:?} of {:?} left", self.lease)
        });
        let wall = last.at - first.at;
        let renewals = last.renewals - first.renewals;
        findings.say("renewals", renewals);
        findings.say(
            "renewals per call",
            format!(
                "{:.0}",
                renewals as f64 / (last.scripts - first.scripts) as f64
            ),
        );
        findings.must(renewals > 0, || "vacuous: nothing was renewed".into());
        let client = looks.windows(2).map(|two| two[1].client_cpu_since(&two[0]));
        let us = client.sum::<Duration>().as_secs_f64() * 1e6 / renewals as f64;
        findings.say("client CPU per renewal", format!("{us:.2} us"));
        say_cpu(looks, wall, findings);
        judge_memory(looks, findings);
    }
}

/// Reports disturbances by the machine: if a reading is late, the process did not run.
fn say_machine(looks: &[Look], findings: &Findings) {
    let gaps = looks.windows(2).map(|two| two[1].at - two[0].at);
    findings.say("time between two checks", spread(gaps.collect()));
    if let (Some(first), Some(last)) = (looks.first(), looks.last()) {
        findings.say("reconnects", last.connects - first.connects);
    }
}

fn say_cpu(looks: &[Look], wall: Duration, findings: &Findings) {
    let sum = |of: fn(&Look, &Look) -> Duration| -> String {
        let each: Vec<Duration> = looks.windows(2).map(|two| of(&two[0], &two[1])).collect();
        let mean = percent_of_a_core(each.iter().sum(), wall);
        let most = each.iter().max().copied().unwrap_or_default();
        format!(
            "{mean:.1} % of a core, busiest second {:.0} %",
            percent_of_a_core(most, LOOK_EVERY)
        )
    };
    findings.say(
        "client CPU",
        sum(|before, after| after.client_cpu_since(before)),
    );
    findings.say(
        "server CPU",
        sum(|before, after| after.server_cpu - before.server_cpu),
    );
}

/// Compares the memory after the first quarter, when every hold has been renewed, with the memory
/// at the end.
fn judge_memory(looks: &[Look], findings: &mut Findings) {
    let (Some(early), Some(late)) = (looks.get(looks.len() / 4), looks.last()) else {
        return;
    };
    let minutes = (late.at - early.at).as_secs_f64() / 60.0;
    let grown = late.rss as f64 - early.rss as f64;
    findings.say(
        "client memory",
        format!(
            "{}, then {}: {:+.1} KiB a minute",
            mib(early.rss),
            mib(late.rss),
            grown / 1024.0 / minutes
        ),
    );
    findings.must(is_steady(early.rss, late.rss), || {
        format!("memory grew from {} to {}", mib(early.rss), mib(late.rss))
    });
    let steady = is_steady(early.memory, late.memory);
    findings.must(steady, || {
        let (early, late) = (mib(early.memory), mib(late.memory));
        format!("the server's memory grew from {early} to {late}")
    });
}

fn say_server(server: &RedisServer, findings: &Findings) -> Result<()> {
    findings.say("server memory", mib(server::memory(server)?));
    findings.say(
        "server time of a call, in us",
        server::script_times(server)?,
    );
    let (slow, longest) = server::slow_scripts(server)?;
    findings.say(
        "calls over 1 ms, all within",
        format!("{slow}, {:.1} ms", longest as f64 / 1000.0),
    );
    Ok(())
}

/// The figures of one reading.
struct Look {
    /// The time since the first reading.
    at: Duration,
    least_left: Duration,
    client_cpu: Duration,
    server_cpu: Duration,
    /// The CPU time of the reading itself.
    looking: Duration,
    rss: u64,
    memory: u64,
    scripts: u64,
    /// Number of connections for calls so far. Each connection loads the script.
    connects: u64,
    /// Number of renewals so far. It is the number of `HEXISTS` commands, because each renewal
    /// first checks whether the hold exists.
    renewals: u64,
}

impl Look {
    fn at(guards: &[LockGuard], server: &RedisServer, start: Instant) -> Result<Self> {
        let client_cpu = usage::cpu_here()?;
        let began = usage::cpu_of_this_thread();
        let now = tokio::time::Instant::now();
        let left = guards.iter().map(|guard| guard.valid_until());
        let least_left = left
            .min()
            .map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        Ok(Self {
            at: start.elapsed(),
            least_left,
            server_cpu: usage::cpu(server.pid())?,
            rss: usage::rss()?,
            memory: server::memory(server)?,
            scripts: server::scripts(server)?,
            connects: server::calls(server, "script|load")?,
            renewals: server::calls(server, "hget")?,
            client_cpu,
            looking: usage::cpu_of_this_thread() - began,
        })
    }

    /// Returns the client's CPU time without the time of the readings themselves.
    fn client_cpu_since(&self, before: &Self) -> Duration {
        (self.client_cpu - before.client_cpu).saturating_sub(before.looking)
    }
}

/// Number of tasks that acquire and release at the same time.
const HANDS: usize = 256;

/// Acquires all locks, each of which must be free.
pub(crate) async fn acquire_all(locks: Vec<Lock>) -> Result<Vec<LockGuard>> {
    let mut hands = JoinSet::new();
    for part in locks.chunks(locks.len().div_ceil(HANDS).max(1)) {
        let part = part.to_vec();
        hands.spawn(async move {
            let mut guards = Vec::with_capacity(part.len());
            for lock in part {
                guards.push(lock.acquire().await?);
            }
            Ok::<_, leasehold::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(locks.len());
    while let Some(part) = hands.join_next().await {
        guards.extend(part??);
    }
    Ok(guards)
}

/// Releases all guards, each of which must still be held.
pub(crate) async fn release_all(mut guards: Vec<LockGuard>) -> Result<()> {
    let mut hands = JoinSet::new();
    let part = guards.len().div_ceil(HANDS).max(1);
    while !guards.is_empty() {
        let part = guards.split_off(guards.len().saturating_sub(part));
        hands.spawn(async move {
            for guard in part {
                guard.release().await?;
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    while let Some(part) = hands.join_next().await {
        part??;
    }
    Ok(())
}
