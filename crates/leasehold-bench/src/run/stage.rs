//! The clients of a system in a scenario, and one round of this scenario.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Bench;
use super::measure::{Measured, measure};
use super::moved;
use super::site::Site;
use crate::Result;
use crate::delays::Delays;
use crate::figure::Figure;
use crate::scenario::Kind;
use crate::system::{Place, System, Systems, Worker};
use crate::task::{Done, Pairs, Task, What};

const PERMITS: u32 = 8;

type Figures = BTreeMap<Figure, f64>;

pub(super) struct Stage<'a> {
    site: &'a Site,
    systems: &'a Systems,
    kind: Kind,
    /// The name of the lock, or the prefix for the names of several locks.
    name: String,
    clients: Vec<(System, Place)>,
    workers: Vec<Arc<dyn Worker>>,
}

impl<'a> Stage<'a> {
    pub(super) async fn open(
        bench: &Bench<'a>,
        kind: Kind,
        system: System,
        name: String,
    ) -> Result<Self> {
        let clients = match kind {
            // These scenarios connect their own clients.
            Kind::Moved { .. } | Kind::FailedOver { .. } => Vec::new(),
            Kind::Own { .. } | Kind::One { .. } | Kind::Latch { .. } => {
                vec![(system, Place::Here)]
            }
            Kind::Beside { waiter, .. } => vec![(system, Place::Here), (waiter, Place::Apart)],
            Kind::Processes { processes, .. } => vec![(system, Place::Apart); processes],
            Kind::HandOver => vec![(system, Place::Apart); 2],
            // In these scenarios, the memory of the client's process is measured. In a process that
            // was already used for an earlier measurement, the growth would not be visible.
            Kind::Held { .. } | Kind::Line { .. } => vec![(system, Place::Apart)],
        };
        let mut stage = Self {
            site: bench.site,
            systems: bench.systems,
            kind,
            name,
            clients,
            workers: Vec::new(),
        };
        stage.connect().await?;
        Ok(stage)
    }

    async fn connect(&mut self) -> Result<()> {
        self.workers.clear();
        for &(system, place) in &self.clients {
            self.workers.push(self.systems.worker(system, place).await?);
        }
        Ok(())
    }

    /// Runs a round that is not measured.
    pub(super) async fn warm_up(&mut self, run: Duration) -> Result<()> {
        match self.kind {
            Kind::Held { .. }
            | Kind::Line { .. }
            | Kind::Moved { .. }
            | Kind::FailedOver { .. } => Ok(()),
            _ => self.round(run).await.map(|_| ()),
        }
    }

    pub(super) async fn round(&mut self, run: Duration) -> Result<(Figures, Delays)> {
        let run_ms = u64::try_from(run.as_millis())?;
        if matches!(self.kind, Kind::Held { .. } | Kind::Line { .. }) {
            // After a round, a process keeps freed memory for later. So each round uses a new
            // process.
            self.connect().await?;
        }
        if let Kind::Held { locks } = self.kind {
            return Ok((self.held(locks, run_ms).await?, Delays::default()));
        }
        if let Kind::Moved { times } = self.kind {
            let delays = moved::hand_overs(self.site, &self.name, times).await?;
            return Ok((times_of(&delays), delays));
        }
        if let Kind::FailedOver { times } = self.kind {
            let delays = moved::failed_over(&self.name, times).await?;
            return Ok((times_of(&delays), delays));
        }
        let tasks = self.workers.iter().zip(self.tasks(run_ms));
        let measured = measure(self.site.servers(), tasks.collect()).await?;
        Ok(match self.kind {
            Kind::HandOver => hand_overs(&measured),
            Kind::Beside { .. } => beside(measured),
            Kind::Line { tasks } => {
                let (mut figures, delays) = pairs(&measured);
                let each = |bytes: i64| bytes as f64 / tasks as f64;
                figures.insert(Figure::Rss, each(measured.done[0].rss));
                figures.insert(Figure::Heap, each(measured.done[0].heap));
                (figures, delays)
            }
            _ => pairs(&measured),
        })
    }

    /// Returns the tasks for the clients, one for each.
    fn tasks(&self, run_ms: u64) -> Vec<Task> {
        let name = || self.name.clone();
        let pairs = |what, tasks, writes_every| {
            Task::Pairs(Pairs {
                what,
                name: name(),
                own_names: false,
                tasks,
                run_ms,
                writes_every,
                permits: PERMITS,
            })
        };
        match self.kind {
            Kind::Own { tasks } => vec![Task::Pairs(Pairs {
                what: What::Lock,
                name: name(),
                own_names: true,
                tasks,
                run_ms,
                writes_every: 1,
                permits: PERMITS,
            })],
            Kind::One {
                what,
                tasks,
                writes_every,
            } => vec![pairs(what, tasks, writes_every)],
            Kind::Processes { processes, tasks } => {
                vec![pairs(What::Lock, tasks, 1); processes]
            }
            Kind::Beside { tasks, .. } => {
                vec![pairs(What::Lock, tasks, 1), pairs(What::Lock, 1, 1)]
            }
            Kind::HandOver => {
                // While one client holds the lock, the other client requests it, and then sleeps.
                let task = Task::HandOver {
                    name: name(),
                    run_ms,
                    hold_ms: 5,
                    pause_ms: 1,
                };
                vec![task; 2]
            }
            Kind::Latch { tasks } => vec![Task::Latch {
                name: name(),
                tasks,
            }],
            Kind::Line { tasks } => vec![Task::Line {
                name: name(),
                tasks,
            }],
            Kind::Held { .. } | Kind::Moved { .. } | Kind::FailedOver { .. } => Vec::new(),
        }
    }

    async fn held(&self, locks: usize, run_ms: u64) -> Result<Figures> {
        let worker = &self.workers[0];
        let name = || self.name.clone();
        let memory = self.site.memory()?;
        let task = Task::Hold {
            name: name(),
            locks,
        };
        let held = worker.run(task).await?;
        let memory = self.site.memory()?.saturating_sub(memory);
        let watched = measure(self.site.servers(), vec![(worker, Task::Watch { run_ms })]).await?;
        let task = Task::LetGo {
            name: name(),
            locks,
        };
        let released = worker.run(task).await?;
        let percent = |cpu: Duration| cpu.as_secs_f64() * 1e5 / run_ms as f64;
        let each = |bytes: f64| bytes / locks as f64;
        let mut figures = BTreeMap::from([
            (Figure::ClientPercent, percent(watched.client_cpu)),
            (Figure::ServerPercent, percent(watched.server_cpu)),
            (Figure::ServerBytes, each(memory as f64)),
            (Figure::Lost, released.lost as f64),
        ]);
        // Only Leasehold reports these figures.
        if let Some(validity) = watched.done[0].least_validity {
            figures.insert(Figure::Validity, validity);
            figures.insert(Figure::Rss, each(held.rss as f64));
            figures.insert(Figure::Heap, each(held.heap as f64));
        }
        Ok(figures)
    }
}

/// Returns throughput, delays and cost, and how evenly the tasks or processes got the lock.
fn pairs(measured: &Measured) -> (Figures, Delays) {
    let mut delays = Delays::default();
    for done in &measured.done {
        delays.add_all(&done.delays);
    }
    let rate = measured.done.iter().map(Done::pairs_per_s).sum();
    let all: u64 = measured.done.iter().map(Done::all_pairs).sum();
    let mut figures = costs(measured, all);
    figures.insert(Figure::Pairs, rate);
    figures.extend(times_of(&delays));
    figures.extend(evenness(&measured.done));
    (figures, delays)
}

fn costs(measured: &Measured, pairs: u64) -> Figures {
    let each = |value: f64| value / pairs.max(1) as f64;
    let us = |time: Duration| each(time.as_secs_f64() * 1e6);
    BTreeMap::from([
        (Figure::Commands, each(measured.commands as f64)),
        (Figure::Scripts, each(measured.scripts as f64)),
        (Figure::ServerUs, us(measured.server_cpu)),
        (Figure::ClientUs, us(measured.client_cpu)),
    ])
}

/// Returns the rates of the slowest and the fastest process, or task if there is only one process.
fn evenness(done: &[Done]) -> Figures {
    let rates: Vec<f64> = match done {
        [alone] => {
            let rate = |pairs: &u64| *pairs as f64 * 1e9 / alone.took_ns.max(1) as f64;
            alone.pairs.iter().map(rate).collect()
        }
        several => several.iter().map(Done::pairs_per_s).collect(),
    };
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    if rates.len() < 2 {
        return Figures::new();
    }
    BTreeMap::from([
        (Figure::Least, least),
        (Figure::Most, most),
        (Figure::MostOverLeast, most / least.max(1e-3)),
    ])
}

/// Returns the figures for the first client and for the waiter that competes with it.
fn beside(mut measured: Measured) -> (Figures, Delays) {
    let all = measured.done.iter().map(Done::all_pairs).sum();
    let cost = costs(&measured, all);
    let waiter = measured.done.pop().unwrap_or_default();
    let (mut figures, delays) = pairs(&measured);
    figures.extend(cost);
    figures.extend([
        (Figure::WaiterPairs, waiter.pairs_per_s()),
        (Figure::WaiterP50, waiter.delays.us(50.0)),
        (Figure::WaiterP99, waiter.delays.us(99.0)),
        (Figure::WaiterMax, waiter.delays.max_us()),
    ]);
    (figures, delays)
}

/// Returns the delays from one client's release to the other client's grant, if the other client
/// had been waiting.
fn hand_overs(measured: &Measured) -> (Figures, Delays) {
    /// The time after which a waiter has sent its request and sleeps.
    const ASLEEP_NS: u64 = 1_000_000;
    let clients = measured.done.iter().enumerate();
    let mut holds: Vec<(usize, [u64; 3])> = clients
        .flat_map(|(client, done)| done.holds.iter().map(move |hold| (client, *hold)))
        .collect();
    holds.sort_by_key(|(_, [_, granted, _])| *granted);
    let mut delays = Delays::default();
    for two in holds.windows(2) {
        let (before, [_, _, released]) = two[0];
        let (after, [asked, granted, _]) = two[1];
        if before != after && asked + ASLEEP_NS < released {
            delays.add(granted.saturating_sub(released));
        }
    }
    let mut figures = costs(measured, holds.len() as u64);
    if !delays.is_empty() {
        figures.extend(times_of(&delays));
    }
    (figures, delays)
}

fn times_of(delays: &Delays) -> Figures {
    BTreeMap::from([
        (Figure::P50, delays.us(50.0)),
        (Figure::P99, delays.us(99.0)),
        (Figure::Max, delays.max_us()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(done: Vec<Done>) -> Measured {
        Measured {
            done,
            commands: 30,
            scripts: 10,
            server_cpu: Duration::from_micros(100),
            client_cpu: Duration::from_micros(50),
        }
    }

    #[test]
    fn only_delays_of_those_that_waited_count() {
        const MS: u64 = 1_000_000;
        let one = [[0, 1, 5 * MS], [6 * MS, 12 * MS, 16 * MS]];
        // This client waited for the first hold to end. It requested the lock again only after the
        // second hold had been released.
        let other = [[2 * MS, 7 * MS, 10 * MS], [17 * MS, 25 * MS, 26 * MS]];
        let client = |holds: [[u64; 3]; 2]| Done {
            holds: holds.to_vec(),
            ..Done::default()
        };
        let (figures, delays) = hand_overs(&measured(vec![client(one), client(other)]));
        assert!((delays.us(50.0) - 2000.0).abs() < 2.0, "{delays:?}");
        assert!((delays.max_us() - 2000.0).abs() < 2.0, "{delays:?}");
        assert_eq!(figures[&Figure::Commands], 7.5);
    }

    #[test]
    fn several_processes_are_compared_and_one_has_its_tasks() {
        let done = |pairs: &[u64]| Done {
            pairs: pairs.to_vec(),
            took_ns: 1_000_000_000,
            ..Done::default()
        };
        let (figures, _) = pairs(&measured(vec![done(&[1, 4]), done(&[2, 13])]));
        assert_eq!(figures[&Figure::Pairs], 20.0);
        assert_eq!(
            (figures[&Figure::Least], figures[&Figure::Most]),
            (5.0, 15.0)
        );
        assert_eq!(figures[&Figure::ServerUs], 5.0);
        let (figures, _) = pairs(&measured(vec![done(&[2, 8])]));
        assert_eq!(figures[&Figure::MostOverLeast], 4.0);
    }

    #[test]
    fn waiter_beside_has_figures_of_its_own() {
        let done = |pairs| Done {
            pairs: vec![pairs],
            took_ns: 1_000_000_000,
            ..Done::default()
        };
        let (figures, _) = beside(measured(vec![done(9), done(1)]));
        assert_eq!(figures[&Figure::Pairs], 9.0);
        assert_eq!(figures[&Figure::WaiterPairs], 1.0);
        assert_eq!(figures[&Figure::Commands], 3.0);
    }
}
