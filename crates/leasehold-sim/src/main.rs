//! Plays simulated histories, as many as asked for, and stops at the first that
//! breaks the promise.
#![allow(clippy::print_stdout, reason = "a command")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_sim::{Played, Scenario, play, shrink::shrink};

/// Play simulated histories of the lock under seeded faults.
#[derive(Parser)]
struct Arguments {
    /// How many histories to play; those in which nothing happened come on top.
    #[arg(long, default_value_t = 30_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Play this one, and show it.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// With --seed, only these of its parts.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    keep: Option<Vec<usize>>,
    /// How many threads to use; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic is a violation with a text of its own.
    std::panic::set_hook(Box::new(|_| {}));
    match arguments.seed {
        Some(seed) => show(seed, arguments.keep.as_deref()),
        None => play_many(&arguments),
    }
}

fn show(seed: u64, keep: Option<&[usize]>) -> ExitCode {
    let mut scenario = Scenario::draw(seed);
    if let Some(parts) = keep {
        scenario = scenario.keeping(parts);
    }
    println!("{scenario}");
    let played = play(&scenario);
    for line in &played.trace {
        println!("  {line}");
    }
    match played.violations.first() {
        None => {
            let judged = played.report.judge();
            println!(
                "no violation; {}",
                judged.err().unwrap_or("it counts".into())
            );
            ExitCode::SUCCESS
        }
        Some(_) => {
            for violation in &played.violations {
                println!("VIOLATION {violation}");
            }
            ExitCode::FAILURE
        }
    }
}

/// What all threads have come to.
#[derive(Default)]
struct Total {
    counted: AtomicU64,
    played: AtomicU64,
    holds: AtomicU64,
    requests: AtomicU64,
    stop: AtomicBool,
    done: AtomicUsize,
    faults: Mutex<BTreeMap<String, u64>>,
    failed: Mutex<Option<u64>>,
}

impl Total {
    fn add(&self, seed: u64, played: &Played) {
        self.played.fetch_add(1, Ordering::Relaxed);
        if !played.violations.is_empty() {
            self.stop.store(true, Ordering::Relaxed);
            let mut failed = lock(&self.failed);
            *failed = Some(failed.map_or(seed, |other| other.min(seed)));
        } else if played.counts() {
            self.counted.fetch_add(1, Ordering::Relaxed);
            self.holds
                .fetch_add(played.report.holds as u64, Ordering::Relaxed);
            self.requests.fetch_add(played.requests, Ordering::Relaxed);
            let mut faults = lock(&self.faults);
            for (fault, _) in &played.report.faults {
                *faults.entry(fault.clone()).or_default() += 1;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn play_many(arguments: &Arguments) -> ExitCode {
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let total = Total::default();
    let next = AtomicU64::new(arguments.from);
    let start = Instant::now();
    let watched: Vec<Mutex<Option<(u64, Instant)>>> =
        (0..threads).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for watched in &watched {
            scope.spawn(|| {
                while !total.stop.load(Ordering::Relaxed)
                    && total.counted.load(Ordering::Relaxed) < arguments.seeds
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    *lock(watched) = Some((seed, Instant::now()));
                    total.add(seed, &play(&Scenario::draw(seed)));
                    *lock(watched) = None;
                }
                total.done.fetch_add(1, Ordering::Relaxed);
            });
        }
        watch_for_spinning(&watched, || total.done.load(Ordering::Relaxed) == threads);
    });
    let (counted, played) = (
        total.counted.load(Ordering::Relaxed),
        total.played.load(Ordering::Relaxed),
    );
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{counted} histories counted of {played} played in {seconds:.1} s ({:.0} a second), \
         {} holds, {} requests",
        played as f64 / seconds,
        total.holds.load(Ordering::Relaxed),
        total.requests.load(Ordering::Relaxed),
    );
    for (fault, times) in lock(&total.faults).iter() {
        println!("  {times:>8} with {fault}");
    }
    match *lock(&total.failed) {
        None => {
            println!("no violation");
            ExitCode::SUCCESS
        }
        Some(seed) => report_failure(seed),
    }
}

/// A history in which something spins keeps its clock from moving, and never ends.
fn watch_for_spinning(watched: &[Mutex<Option<(u64, Instant)>>], done: impl Fn() -> bool) {
    const LONGEST: Duration = Duration::from_secs(20);
    while !done() {
        std::thread::sleep(Duration::from_millis(20));
        for watched in watched {
            if let Some((seed, since)) = *lock(watched)
                && since.elapsed() > LONGEST
            {
                println!("VIOLATION in seed {seed}: something spins, and time stands still");
                println!("repeat it: cargo run --release -p leasehold-sim -- --seed {seed}");
                std::process::exit(1);
            }
        }
    }
}

fn report_failure(seed: u64) -> ExitCode {
    let scenario = Scenario::draw(seed);
    let whole = play(&scenario);
    for violation in &whole.violations {
        println!("VIOLATION in seed {seed} {violation}");
    }
    let parts = shrink(&scenario);
    let small = scenario.keeping(&parts);
    println!("\nshrunk:\n{small}");
    for violation in &play(&small).violations {
        println!("VIOLATION {violation}");
    }
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    println!(
        "\nrepeat it: cargo run --release -p leasehold-sim -- --seed {seed} --keep {}",
        parts.join(",")
    );
    ExitCode::FAILURE
}
