//! Thousands of tasks in one process wait for one name. All must be served in the order of their
//! requests, and must not cost the server more than a few tasks would.

use std::future::poll_fn;
use std::mem::size_of_val;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use clap::Args;
use leasehold::testing::history::{check, monotonic_ns};
use leasehold::{Client, Lock};
use leasehold_testkit::RedisServer;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Result;
use crate::figures::{is_steady, mib, per};
use crate::findings::Findings;
use crate::seen::Seen;
use leasehold_bench::{server, usage};

const NAME: &str = "load:waiters";
/// Number of calls for a hand-over: the request that is refused with the remaining lease, the
/// request that is granted, and the release.
const CALLS_PER_HAND_OVER: usize = 3;
const HOUR: Duration = Duration::from_secs(3600);
/// A time limit that only ends waits that would never succeed.
const LIMIT: Duration = Duration::from_secs(30);
const LIMIT_EACH: Duration = Duration::from_millis(10);

#[derive(Args)]
pub(crate) struct Waiters {
    /// Let this number of tasks wait
    #[arg(long, default_value_t = 10_000)]
    tasks: usize,

    /// Repeat this number of times; memory must not grow after the second time
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Waiters {
    pub(crate) async fn run(self) -> Result<Findings> {
        let mut findings = Findings::default();
        let server = RedisServer::start()?;
        // With this lease and this poll interval, only a message can wake a waiter. If a message is
        // lost, neither a poll nor the end of the lease wakes the waiter in time.
        let client = Client::builder().lease(HOUR).connect(&server.url()).await?;
        let lock = client.lock(NAME).poll_interval(HOUR);
        // This loads the script, so that a round includes only the cost of the waiters.
        lock.acquire().await?.release().await?;
        findings.say("waiters of one name", self.tasks);
        findings.say("bytes of a handle", size_of_val(&lock));
        findings.say("bytes of an acquire's future", size_of_val(&lock.acquire()));
        let mut settled = Vec::new();
        for round in 0..self.rounds {
            println!("-- round {}", round + 1);
            let seen = self.round(&lock, &server, &mut findings).await?;
            judge(&seen, self.tasks, &mut findings);
            drop(seen);
            findings.must_come_to_rest(&[&client], &server).await?;
            settled.push(usage::rss()?);
            findings.say("memory afterwards", mib(usage::rss()?));
        }
        if let [_, early, .., late] = settled[..] {
            findings.must(is_steady(early, late), || {
                format!("memory grew from {} to {}", mib(early), mib(late))
            });
        }
        Ok(findings)
    }

    /// Makes all tasks wait. Then each task acquires the lock and releases it.
    async fn round(
        &self,
        lock: &Lock,
        server: &RedisServer,
        findings: &mut Findings,
    ) -> Result<Vec<Seen>> {
        let holder = lock.acquire().await?;
        let mut tasks = Vec::with_capacity(self.tasks);
        let (memory, cpu) = (usage::rss()?, usage::cpu_here()?);
        for _ in 0..self.tasks {
            tasks.push(line_up(lock.clone()).await);
        }
        let waiting = usage::rss()?.saturating_sub(memory);
        findings.say(
            "memory per waiter, beyond what is in reserve",
            format!("{:.0} bytes", per(waiting, self.tasks)),
        );
        let (calls, start) = (server::scripts(server)?, Instant::now());
        holder.release().await?;
        let seen = all_served(tasks).await?;
        let took = start.elapsed();
        self.judge_calls(server::scripts(server)? - calls, findings);
        say_times(findings, took, usage::cpu_here()? - cpu, self.tasks);
        Ok(seen)
    }

    fn judge_calls(&self, calls: u64, findings: &mut Findings) {
        let hand_overs = self.tasks + 1;
        findings.say(
            "server calls per hand-over",
            format!("{:.3}", per(calls, hand_overs)),
        );
        let most = CALLS_PER_HAND_OVER * hand_overs;
        findings.must(calls <= most as u64, || {
            format!("{calls} server calls for {hand_overs} hand-overs")
        });
    }
}

/// Returns the hold of each task, in the order of the line.
async fn all_served(tasks: Vec<Waiting>) -> Result<Vec<Seen>> {
    let limit = LIMIT + LIMIT_EACH * u32::try_from(tasks.len())?;
    let mut seen = Vec::with_capacity(tasks.len());
    let all = async {
        for task in tasks {
            seen.push(task.await??);
        }
        Ok(seen)
    };
    timeout(limit, all)
        .await
        .map_err(|_| format!("violated: a wait did not end within {limit:?}"))?
}

fn say_times(findings: &Findings, took: Duration, cpu: Duration, tasks: usize) {
    let us = |time: Duration| format!("{:.1} us", time.as_secs_f64() * 1e6 / tasks as f64);
    findings.say("time from one hold to the next", us(took));
    findings.say("client CPU per waiter, from asking", us(cpu));
}

type Served = Pin<Box<dyn Future<Output = leasehold::Result<Seen>> + Send>>;
type Waiting = JoinHandle<leasehold::Result<Seen>>;

/// Starts a task that waits. The task is in the line when this function returns.
async fn line_up(lock: Lock) -> Waiting {
    let asked = monotonic_ns();
    let mut waiter: Served = Box::pin(async move {
        let guard = lock.acquire().await?;
        let from = monotonic_ns();
        // Let the other tasks run: if the lock could be granted to the next task too early, that
        // would happen now.
        tokio::task::yield_now().await;
        let seen = Seen::at_release(asked, from, &guard);
        guard.release().await?;
        Ok(seen)
    });
    // A future that is not ready at its first poll has joined the line.
    poll_fn(|context| {
        let first = waiter.as_mut().poll(context);
        assert!(first.is_pending(), "the name is held");
        Poll::Ready(())
    })
    .await;
    tokio::spawn(waiter)
}

fn judge(seen: &[Seen], tasks: usize, findings: &mut Findings) {
    findings.must(seen.len() == tasks, || {
        format!("{} of {tasks} waiters were served", seen.len())
    });
    let intervals: Vec<_> = seen
        .iter()
        .enumerate()
        .map(|(place, seen)| seen.interval(NAME, &place.to_string()))
        .collect();
    if let Err(violation) = check(&intervals).judge() {
        findings.must(false, || violation);
    }
    let overtaken = seen.windows(2).filter(|two| two[0].from > two[1].from);
    let overtaken = overtaken.count();
    findings.must(overtaken == 0, || {
        format!("{overtaken} waiters were overtaken by the next waiter in line")
    });
}
