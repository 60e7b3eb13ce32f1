//! Hundreds of processes want one name. If each release woke all waiters, all of them would send
//! requests at once. This load measures the size of this thundering herd.

pub(crate) mod child;

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use leasehold::testing::history::check;
use leasehold_testkit::RedisServer;

use crate::Result;
use crate::figures::{per, percent_of_a_core, percentile, spread};
use crate::findings::Findings;
use crate::seen::Seen;
use leasehold_bench::{server, usage};

const NAME: &str = "load:processes";
const COUNTER: &str = "load:counter";

#[derive(Args)]
pub(crate) struct Processes {
    /// Start this number of processes
    #[arg(long, default_value_t = 200)]
    processes: usize,

    /// Let each process acquire the lock this number of times
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

impl Processes {
    pub(crate) fn run(self) -> Result<Findings> {
        let mut findings = Findings::default();
        let server = RedisServer::start()?;
        let mut crew = (0..self.processes)
            .map(|_| Worker::start(&server.url(), self.rounds))
            .collect::<Result<Vec<_>>>()?;
        for worker in &mut crew {
            worker.until_ready()?;
        }
        let calls = Calls::so_far(&server)?;
        let (cpu, start) = (usage::cpu(server.pid())?, Instant::now());
        for worker in &mut crew {
            worker.go()?;
        }
        let holds = crew
            .into_iter()
            .map(Worker::holds)
            .collect::<Result<Vec<_>>>()?;
        let took = start.elapsed();
        let cpu = percent_of_a_core(usage::cpu(server.pid())? - cpu, took);
        findings.say(
            "processes, holds of each",
            format!("{}, {}", self.processes, self.rounds),
        );
        findings.say("time, server CPU", format!("{took:.1?}, {cpu:.0} %"));
        self.judge_calls(calls.until_now(&server)?, &mut findings);
        self.judge_holds(&holds, &server, &mut findings)?;
        say_fairness(&holds, &findings);
        Ok(findings)
    }

    fn total(&self) -> usize {
        self.processes * self.rounds
    }

    /// Checks the number of calls. A message wakes each waiting process once. If each process sent
    /// more than one request after one release, the herd would sustain itself.
    fn judge_calls(&self, calls: Calls, findings: &mut Findings) {
        let per_hold = |count| per(count, self.total());
        let asks = per_hold(calls.scripts) - 1.0;
        findings.say("requests for the lock per hand-over", format!("{asks:.1}"));
        findings.say(
            "server commands per hand-over",
            format!("{:.1}", per_hold(calls.commands)),
        );
        findings.must(asks <= self.processes as f64 + 1.0, || {
            format!(
                "{asks:.0} requests per hand-over with {} processes",
                self.processes
            )
        });
    }

    fn judge_holds(
        &self,
        holds: &[Vec<Seen>],
        server: &RedisServer,
        findings: &mut Findings,
    ) -> Result<()> {
        let intervals: Vec<_> = holds
            .iter()
            .enumerate()
            .flat_map(|(process, holds)| {
                let holder = move |round| format!("process {process}, hold {round}");
                let numbered = holds.iter().enumerate();
                numbered.map(move |(round, seen)| seen.interval(NAME, &holder(round)))
            })
            .collect();
        if let Err(violation) = check(&intervals).judge() {
            findings.must(false, || violation);
        }
        let counted = server.command(&["GET", COUNTER])?;
        let counted = counted.as_text().unwrap_or("nothing").to_owned();
        findings.must(counted == self.total().to_string(), || {
            format!("{} holds counted to {counted}", self.total())
        });
        findings.must(intervals.len() == self.total(), || {
            format!("{} of {} holds happened", intervals.len(), self.total())
        });
        Ok(())
    }
}

/// Reports how long each waiter waited, and how many others were served before it.
fn say_fairness(holds: &[Vec<Seen>], findings: &Findings) {
    let all = || holds.iter().flatten();
    let wait = |seen: &Seen| Duration::from_nanos(seen.from.saturating_sub(seen.asked));
    findings.say("wait for a hold", spread(all().map(wait).collect()));
    let mut grants: Vec<u64> = all().map(|seen| seen.from).collect();
    grants.sort_unstable();
    let before = |moment| grants.partition_point(|from| *from < moment);
    let mut passed: Vec<usize> = all()
        .map(|seen| before(seen.from) - before(seen.asked))
        .collect();
    passed.sort_unstable();
    findings.say(
        "other holds during one wait",
        format!(
            "p50 {}, p99 {}, max {}",
            percentile(&passed, 0.5),
            percentile(&passed, 0.99),
            percentile(&passed, 1.0)
        ),
    );
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for seen in all() {
        ends.insert(seen.from, seen.until);
    }
    let gaps = ends.values().zip(ends.keys().skip(1));
    let gaps = gaps.map(|(until, next)| Duration::from_nanos(next.saturating_sub(*until)));
    findings.say(
        "time from a release to the next grant",
        spread(gaps.collect()),
    );
}

/// The calls and commands that the server has run.
struct Calls {
    scripts: u64,
    commands: u64,
}

impl Calls {
    fn so_far(server: &RedisServer) -> Result<Self> {
        Ok(Self {
            scripts: server::scripts(server)?,
            commands: server::number(server, "stats", "total_commands_processed")?,
        })
    }

    fn until_now(&self, server: &RedisServer) -> Result<Self> {
        let now = Self::so_far(server)?;
        Ok(Self {
            scripts: now.scripts - self.scripts,
            commands: now.commands - self.commands,
        })
    }
}

/// A process of the load. It is killed if this value is dropped before the process ends.
struct Worker {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Worker {
    fn start(url: &str, rounds: usize) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["child", "--url", url, "--rounds", &rounds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("no pipe from the process")?;
        Ok(Self {
            child,
            out: BufReader::new(out),
        })
    }

    fn until_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        if line.trim() == "ready" {
            return Ok(());
        }
        Err("a process ended before the start".into())
    }

    fn go(&mut self) -> Result<()> {
        let mut start = self.child.stdin.take().ok_or("no pipe to the process")?;
        Ok(start.write_all(b"go\n")?)
    }

    /// Returns the process's holds, if it has ended without an error. The process prints them after
    /// its last release, so that a full pipe does not delay a waiter.
    fn holds(mut self) -> Result<Vec<Seen>> {
        let holds = (&mut self.out)
            .lines()
            .map(|line| Ok(line?.parse()?))
            .collect::<Result<Vec<Seen>>>()?;
        let status = self.child.wait()?;
        if status.success() {
            return Ok(holds);
        }
        Err(format!("a process ended with {status}").into())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // This has no effect if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
