//! Several processes use a few names all the time, while everything around them fails at random.
//!
//! `LEASEHOLD_NEMESIS_SECONDS` makes a run longer. `LEASEHOLD_NEMESIS_SEED` repeats the random
//! choices of another run, but the processes may react differently.

mod trouble;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::testing::history::{Interval, Report, check, monotonic_ns};
use leasehold_testkit::{Proxy, RedisServer, Reply, eventually};

use self::trouble::Trouble;
use super::child;
use crate::support::child::Child;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
/// The prefix of the counters' names at the resource, and the key that stops the workers.
pub(crate) const COUNTER: &str = "count:";
pub(crate) const STOP: &str = "stop";

const PROCESSES: usize = 3;
const TASKS: usize = 3;
/// The number of holds below which a run proves little.
const ENOUGH: usize = 100;

#[test]
fn network_and_server_faults_lose_no_count() {
    let arena = Arena::run(&Trouble::OUTSIDE);
    arena.judge_counters();
}

#[test]
fn killed_and_stopped_processes_cause_no_overlap() {
    // A process that is stopped while it counts finishes the count when it is resumed, even if it
    // has lost the lock. So the counters can't be checked, but only the times at which each process
    // believed that it held a lock.
    Arena::run(&Trouble::EVERYWHERE);
}

/// One client process, and its proxy.
struct Process {
    proxy: Proxy,
    child: Child,
}

/// The holds that one process has printed.
#[derive(Default)]
struct Account {
    intervals: Vec<Interval>,
    /// The numbers of counts by name: `done` counts are finished, `open` counts were begun and may
    /// be unfinished.
    done: BTreeMap<String, u64>,
    open: BTreeMap<String, u64>,
    overdue: u64,
}

struct Arena {
    seed: u64,
    random: fastrand::Rng,
    server: RedisServer,
    resource: RedisServer,
    processes: Vec<Process>,
    accounts: Vec<Account>,
    happened: BTreeMap<Trouble, usize>,
}

impl Arena {
    fn run(troubles: &[Trouble]) -> Self {
        let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
        let seconds = variable("LEASEHOLD_NEMESIS_SECONDS").unwrap_or(5);
        let seed = variable("LEASEHOLD_NEMESIS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
        // The output is shown if the test fails.
        println!("LEASEHOLD_NEMESIS_SEED={seed} LEASEHOLD_NEMESIS_SECONDS={seconds}");
        let mut arena = Self::open(seed);
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end || !arena.shows_enough(troubles) {
            let mut round = troubles.to_vec();
            arena.random.shuffle(&mut round);
            for trouble in round {
                arena.make(trouble);
                if Instant::now() >= end && arena.shows_enough(troubles) {
                    break;
                }
            }
        }
        arena.calm();
        arena.close();
        arena.judge_history();
        arena
    }

    fn open(seed: u64) -> Self {
        let mut arena = Self {
            seed,
            random: fastrand::Rng::with_seed(seed),
            server: RedisServer::start().unwrap(),
            resource: RedisServer::start().unwrap(),
            processes: Vec::new(),
            accounts: Vec::new(),
            happened: BTreeMap::new(),
        };
        for _ in 0..PROCESSES {
            arena.start_process();
        }
        arena
    }

    fn start_process(&mut self) {
        let proxy = Proxy::to(self.server.port());
        let seed = self.random.u64(..1 << 32);
        let child = child::work(&proxy.url(), &self.resource.url(), TASKS, seed);
        self.processes.push(Process { proxy, child });
    }

    fn make(&mut self, trouble: Trouble) {
        if self.strike(trouble) {
            *self.happened.entry(trouble).or_default() += 1;
        }
        for process in &mut self.processes {
            assert!(
                !process.child.has_ended(),
                "a process has ended after {trouble:?}, seed {}",
                self.seed
            );
        }
        // In this calm moment, processes can acquire a lock.
        let pause = self.random.u64(..100);
        std::thread::sleep(Duration::from_millis(pause));
    }

    /// Returns whether each fault has happened and there were enough holds during the run.
    fn shows_enough(&self, troubles: &[Trouble]) -> bool {
        let happened = |trouble| self.happened.contains_key(trouble);
        let running = self.processes.iter().map(|one| one.child.count("in "));
        let ended = self.accounts.iter().map(|account| account.intervals.len());
        troubles.iter().all(happened) && running.chain(ended).sum::<usize>() > ENOUGH
    }

    /// Ends all faults, and waits until every process makes progress.
    fn calm(&self) {
        for process in &self.processes {
            process.proxy.disarm();
            let before = process.child.count("in ");
            eventually("a process goes on", Duration::from_secs(30), || {
                process.child.count("in ") > before
            });
        }
    }

    fn close(&mut self) {
        self.resource.command(&["SET", STOP, "1"]).unwrap();
        for process in std::mem::take(&mut self.processes) {
            let lines = process.child.finished();
            self.accounts.push(self.account(&lines, u64::MAX));
        }
        let limit = Duration::from_secs(10);
        eventually("nothing is left", limit, || {
            self.server.keys().is_empty() && self.server.channels().is_empty()
        });
    }

    /// Parses the lines of a process that ended at `end`.
    fn account(&self, lines: &[String], end: u64) -> Account {
        let mut account = Account::default();
        let mut inside = BTreeMap::new();
        let process = self.accounts.len();
        let number = |text: &str| text.parse::<u64>().unwrap();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["in", hold, name, asked, from, deadline, counts] => {
                    let holder = format!("process {process} hold {hold}");
                    // If a process is killed while it holds the lock, its first deadline is the
                    // only one that it has certainly believed in.
                    let until = number(deadline).min(end);
                    let interval = move |until| {
                        Interval::new(name, &holder, number(asked), number(from), until)
                    };
                    inside.insert(hold, (interval, until));
                    let begun = u64::from(counts == "true");
                    *account.open.entry(name.to_owned()).or_default() += begun;
                }
                ["counted", _, name, overdue] => {
                    *account.open.get_mut(name).unwrap() -= 1;
                    *account.done.entry(name.to_owned()).or_default() += 1;
                    account.overdue += u64::from(overdue == "true");
                }
                ["out", hold, until] => {
                    let (_, last) = inside.get_mut(hold).unwrap();
                    *last = number(until);
                }
                _ => {}
            }
        }
        let holds = inside.into_values();
        account.intervals = holds.map(|(interval, until)| interval(until)).collect();
        account
    }

    fn judge_history(&self) {
        let all = self.accounts.iter().flat_map(|account| &account.intervals);
        let report: Report = check(&all.cloned().collect::<Vec<_>>());
        println!(
            "{} holds, {} contended, {:?}",
            report.holds, report.contended, self.happened
        );
        if let Err(wrong) = report.judge() {
            panic!("seed {}: {wrong}", self.seed);
        }
        assert!(report.holds > ENOUGH, "{} holds show little", report.holds);
    }

    fn judge_counters(&self) {
        // If a process's lease ended while it counted, the process was too slow and broke the
        // promise itself.
        let overdue: u64 = self.accounts.iter().map(|account| account.overdue).sum();
        if overdue > 0 {
            println!("{overdue} counts took longer than a lease; the counters show nothing");
            return;
        }
        for name in NAMES {
            let sum = |part: fn(&Account) -> &BTreeMap<String, u64>| -> u64 {
                let counts = self.accounts.iter().filter_map(|a| part(a).get(name));
                counts.sum()
            };
            let (done, open) = (sum(|a| &a.done), sum(|a| &a.open));
            let reply = self.resource.command(&["GET", &format!("{COUNTER}{name}")]);
            let counted: u64 = match reply.unwrap() {
                Reply::Text(text) => text.parse().unwrap(),
                other => panic!("{other:?}"),
            };
            println!("`{name}`: {done} counts done, {open} maybe, counted {counted}");
            assert!(
                (done..=done + open).contains(&counted),
                "seed {}: `{name}` was counted {done} to {} times and says {counted}",
                self.seed,
                done + open
            );
        }
    }

    /// Kills a process, which has no chance to clean up, and starts another in its place.
    fn kill_process(&mut self) {
        let victim = self.random.usize(..self.processes.len());
        let mut process = self.processes.swap_remove(victim);
        let end = monotonic_ns();
        process.child.kill();
        let account = self.account(&process.child.lines(), end);
        self.accounts.push(account);
        self.start_process();
    }
}
