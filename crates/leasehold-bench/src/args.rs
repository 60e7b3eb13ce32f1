//! The command line, and the run that it requests.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::floors::{self, Floor, Verdict};
use crate::machine::Machine;
use crate::results::{Results, Skipped};
use crate::run::{Bench, Settings, Site};
use crate::scenario::{self, Scenario, Topology};
use crate::system::process::Apart;
use crate::system::{System, Systems};
use crate::{Result, page, table};

const FLOORS: &str = include_str!("../FLOORS");
const SHORT_FLOORS: &str = include_str!("../FLOORS.short");

/// Compare Leasehold with bare scripts, rslock and live Redissons on the same servers, taking turns
#[derive(Debug, Parser)]
#[command(
    name = "leasehold-bench",
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Measure only these scenarios
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = scenario::named)]
    scenario: Vec<&'static Scenario>,

    /// Measure only these systems
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    system: Vec<System>,

    /// Measure each system this number of times; the systems take turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Let each round take this number of seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,

    /// Print the scenarios, each with its systems, and measure nothing
    #[arg(long)]
    list: bool,

    /// Measure for a quarter of a minute, in short rounds: only the scenarios that show whether
    /// something has become slow
    #[arg(long)]
    short: bool,

    /// Measure everything in the smallest size, only to see that each measurement works
    #[arg(long, conflicts_with = "short")]
    tiny: bool,

    /// Exit with 1 if a goal is missed; if FILE is not given, use the goals in the repository [with
    /// --short: FLOORS.short]
    #[arg(long, value_name = "FILE")]
    check: Option<Option<PathBuf>>,

    /// Write all figures of all rounds to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Measure nothing, and read the figures from a file that --json wrote
    #[arg(long, value_name = "FILE", conflicts_with = "short")]
    from: Option<PathBuf>,

    /// Write the page to this file, and its plots into a folder beside it
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Never hand a lock over within a process of Leasehold, to see that goals are missed
    #[arg(long)]
    no_hand_over: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a client in a process of its own
    #[command(hide = true)]
    Worker(Apart),
}

pub(crate) fn run() -> Result<ExitCode> {
    let cli = Cli::parse();
    if cli.list {
        print!("{}", table::list());
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        match cli.command {
            Some(Command::Worker(worker)) => worker.run().await.map(|()| ExitCode::SUCCESS),
            None => cli.bench().await,
        }
    });
    // A blocking call into a JVM may still be running. It does not matter any more.
    runtime.shutdown_background();
    done
}

impl Cli {
    async fn bench(&self) -> Result<ExitCode> {
        let floors = self.floors()?;
        let results = match &self.from {
            Some(file) => serde_json::from_str(&fs::read_to_string(file)?)?,
            None => self.measure(&floors).await?,
        };
        println!("{}", table::all(&results));
        if let Some(file) = &self.json {
            fs::write(file, format!("{}\n", serde_json::to_string(&results)?))?;
        }
        if let Some(file) = &self.page {
            page::write(file, &results, &floors::parse(FLOORS)?)?;
        }
        let ours_failed = results.skipped.iter().any(|skipped| {
            skipped.scenario.is_some() && skipped.system == System::Leasehold.name()
        });
        let missed = self.check.is_some() && judge(&floors, &results);
        Ok(match missed || ours_failed {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    fn floors(&self) -> Result<Vec<Floor>> {
        let text = match &self.check {
            None => return Ok(Vec::new()),
            Some(Some(file)) => fs::read_to_string(file)?,
            Some(None) if self.short => SHORT_FLOORS.to_owned(),
            Some(None) => FLOORS.to_owned(),
        };
        Ok(floors::parse(&text)?)
    }

    async fn measure(&self, floors: &[Floor]) -> Result<Results> {
        let start = |topology| {
            let site = Site::start(topology)?;
            let systems = Systems::new(site.url(), !self.no_hand_over);
            Ok::<_, crate::Error>((site, systems))
        };
        let mut places = BTreeMap::from([(Topology::Single, start(Topology::Single)?)]);
        let settings = self.settings()?;
        let (single, on_single) = &places[&Topology::Single];
        let mut results = Results {
            machine: Machine::here(&single.servers()[0])?,
            run_ms: u64::try_from(settings.run.as_millis())?,
            rows: Vec::new(),
            skipped: self.skipped(on_single).await,
        };
        for scenario in self.scenarios() {
            if let Entry::Vacant(place) = places.entry(scenario.on) {
                place.insert(start(scenario.on)?);
            }
            let (site, systems) = &places[&scenario.on];
            let bench = Bench {
                site,
                systems,
                settings: &settings,
            };
            self.scenario(&bench, scenario, &mut results).await;
            // The machine may have stalled for a moment, so a missed floor is measured again. If
            // the code has become slow, it misses the floor each time.
            let mut tries = if self.short { 2 } else { 0 };
            while tries > 0 && is_missed(floors, scenario, &results) {
                eprintln!("{}: a goal was missed, measuring again", scenario.name);
                self.scenario(&bench, scenario, &mut results).await;
                tries -= 1;
            }
        }
        Ok(results)
    }

    async fn scenario(&self, bench: &Bench<'_>, scenario: &Scenario, results: &mut Results) {
        eprintln!("{}: {}", scenario.name, scenario.what);
        let is_missing = |system: &System| {
            let mut skipped = results.skipped.iter();
            skipped.any(|it| it.is_all_of(*system))
        };
        if scenario
            .kind
            .waiter()
            .is_some_and(|waiter| is_missing(&waiter))
        {
            eprintln!("  skipped: its waiter is missing");
            return;
        }
        let here = self.systems_of(scenario).iter().copied();
        let here: Vec<System> = here.filter(|system| !is_missing(system)).collect();
        let (rows, skipped) = bench.scenario(scenario, &here).await;
        for skipped in &skipped {
            eprintln!("  {skipped}");
        }
        results.put(rows);
        results.skipped.extend(skipped);
    }

    /// Returns the requested systems that are not available.
    async fn skipped(&self, systems: &Systems) -> Vec<Skipped> {
        let asked = |system: &System| {
            let wanted = self.system.is_empty() || self.system.contains(system);
            self.scenarios().iter().any(|scenario| {
                wanted && self.systems_of(scenario).contains(system)
                    || scenario.kind.waiter() == Some(*system)
            })
        };
        let mut skipped = Vec::new();
        for system in System::ALL.into_iter().filter(asked) {
            if let Some(why) = systems.missing(system).await {
                let it = Skipped {
                    scenario: None,
                    system: system.to_string(),
                    why,
                };
                eprintln!("{it}");
                skipped.push(it);
            }
        }
        skipped
    }

    fn systems_of(&self, scenario: &Scenario) -> &'static [System] {
        match self.short {
            true => scenario.short,
            false => scenario.systems,
        }
    }

    fn scenarios(&self) -> Vec<&'static Scenario> {
        let asked = |scenario: &&Scenario| {
            self.scenario.is_empty() || self.scenario.iter().any(|it| it.name == scenario.name)
        };
        let all = scenario::ALL.iter().filter(asked);
        all.filter(|scenario| !self.systems_of(scenario).is_empty())
            .collect()
    }

    fn settings(&self) -> Result<Settings> {
        let only = BTreeSet::from_iter(self.system.iter().copied());
        let (rounds, run) = match (self.short, self.tiny) {
            (true, _) => (3, Duration::from_millis(300)),
            (_, true) => (1, Duration::from_millis(100)),
            _ => (self.rounds, Duration::try_from_secs_f64(self.seconds)?),
        };
        Ok(Settings {
            rounds: rounds.max(1),
            run,
            tiny: self.tiny,
            systems: (!only.is_empty()).then_some(only),
        })
    }
}

fn is_missed(floors: &[Floor], scenario: &Scenario, results: &Results) -> bool {
    let mut its = floors.iter().filter(|it| it.scenario == scenario.name);
    its.any(|floor| matches!(floor.judge(results), Verdict::Missed(_)))
}

/// Prints the result for each floor. Returns whether a floor was missed.
fn judge(floors: &[Floor], results: &Results) -> bool {
    let verdicts = floors.iter().map(|floor| (floor, floor.judge(results)));
    let mut missed = false;
    for (floor, verdict) in verdicts {
        println!("{floor}: {verdict}");
        missed |= matches!(verdict, Verdict::Missed(_));
    }
    missed
}
