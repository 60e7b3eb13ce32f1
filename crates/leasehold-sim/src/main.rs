//! Plays as many simulated histories as requested, and stops at the first one that breaks the
//! promise.
#![allow(clippy::print_stdout, reason = "a command")]

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use clap::builder::PossibleValue;
use clap::{Parser, ValueEnum};
use leasehold_sim::{Played, Scenario, Subject, Synchronizer, play, play_again, shrink::shrink};

/// The primitive whose histories are played.
#[derive(Clone, Copy)]
enum Primitive {
    Lock(Subject),
    Synchronizer(Synchronizer),
}

impl Primitive {
    fn play(self, seed: u64, style: Style) -> Played {
        match self {
            Self::Lock(subject) => play(&style.draw(subject, seed)),
            Self::Synchronizer(synchronizer) => match style {
                Style::Polled => synchronizer.play(seed),
                Style::Unpolled => synchronizer.play_unpolled(seed),
            },
        }
    }
}

/// The way in which the tasks of a history wait.
#[derive(Clone, Copy)]
enum Style {
    Polled,
    Unpolled,
}

impl Style {
    fn draw(self, subject: Subject, seed: u64) -> Scenario {
        match self {
            Self::Polled => Scenario::draw(subject, seed),
            Self::Unpolled => Scenario::draw_unpolled(subject, seed),
        }
    }

    /// Returns the command-line option for this style.
    fn option(self) -> &'static str {
        match self {
            Self::Polled => "",
            Self::Unpolled => " --unpolled",
        }
    }
}

impl ValueEnum for Primitive {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Primitive>> = LazyLock::new(|| {
            let locks = Subject::value_variants().iter().copied();
            let others = Synchronizer::value_variants().iter().copied();
            let locks = locks.map(Primitive::Lock);
            locks.chain(others.map(Primitive::Synchronizer)).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Lock(subject) => subject.to_possible_value(),
            Self::Synchronizer(synchronizer) => synchronizer.to_possible_value(),
        }
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(subject) => subject.fmt(f),
            Self::Synchronizer(synchronizer) => synchronizer.fmt(f),
        }
    }
}

/// Play simulated histories of a primitive under seeded faults.
#[derive(Parser)]
struct Arguments {
    /// Play these primitives, one after the other; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    subject: Vec<Primitive>,
    /// Play this number of histories of each primitive, not counting histories in which nothing
    /// happened.
    #[arg(long, default_value_t = 30_000)]
    seeds: u64,
    /// Start at this seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Play histories whose tasks sometimes don't poll their waits, for up to 0.7 s.
    #[arg(long)]
    unpolled: bool,
    /// Play only the history with this seed, and show it.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// With --seed, play only these parts of the history (for locks only).
    #[arg(long, value_delimiter = ',', requires = "seed")]
    keep: Option<Vec<usize>>,
    /// Use this number of threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
}

impl Arguments {
    fn style(&self) -> Style {
        match self.unpolled {
            false => Style::Polled,
            true => Style::Unpolled,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic is reported as a violation, with its message.
    std::panic::set_hook(Box::new(|_| {}));
    let mut subjects = arguments.subject.clone();
    if subjects.is_empty() {
        subjects = Primitive::value_variants().to_vec();
    }
    let play = |subject| match arguments.seed {
        Some(seed) => show(subject, seed, arguments.style(), arguments.keep.as_deref()),
        None => play_many(subject, &arguments),
    };
    let all_well = subjects.into_iter().all(play);
    if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Plays and shows one history. Like the functions below, returns whether there was no violation.
fn show(subject: Primitive, seed: u64, style: Style, keep: Option<&[usize]>) -> bool {
    let played = match subject {
        Primitive::Lock(subject) => {
            let mut scenario = style.draw(subject, seed);
            if let Some(parts) = keep {
                scenario = scenario.keeping(parts);
            }
            println!("{scenario}");
            play_again(|| play(&scenario))
        }
        Primitive::Synchronizer(synchronizer) => {
            let played = play_again(|| subject.play(seed, style));
            println!("{synchronizer}: {:?}", played.report);
            played
        }
    };
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
            true
        }
        Some(_) => {
            for violation in &played.violations {
                println!("VIOLATION {violation}");
            }
            false
        }
    }
}

/// The totals of all threads.
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

fn play_many(subject: Primitive, arguments: &Arguments) -> bool {
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let (total, style) = (Total::default(), arguments.style());
    let next = AtomicU64::new(arguments.from);
    let start = Instant::now();
    let watched: Vec<Mutex<Option<(u64, Begun)>>> =
        (0..threads).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for watched in &watched {
            scope.spawn(|| {
                while !total.stop.load(Ordering::Relaxed)
                    && total.counted.load(Ordering::Relaxed) < arguments.seeds
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    *lock(watched) = Some((seed, Begun::now()));
                    total.add(seed, &subject.play(seed, style));
                    *lock(watched) = None;
                }
                total.done.fetch_add(1, Ordering::Relaxed);
            });
        }
        watch_for_spinning((subject, style), &watched, || {
            total.done.load(Ordering::Relaxed) == threads
        });
    });
    let (counted, played) = (
        total.counted.load(Ordering::Relaxed),
        total.played.load(Ordering::Relaxed),
    );
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}: {counted} histories counted of {played} played in {seconds:.1} s ({:.0} a second), \
         {} holds, {} requests",
        subject,
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
            true
        }
        Some(seed) => report_failure(subject, seed, style),
    }
}

/// The time at which a history began, on the machine's clock and in CPU time of this process.
#[derive(Clone, Copy)]
struct Begun {
    at: Instant,
    cpu: Duration,
}

impl Begun {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// Returns whether a history that began at this time has taken too long. On a busy machine, a
    /// process may get little CPU time for minutes, so the CPU time that it has used decides. The
    /// machine's clock detects a history that uses no CPU time and never ends.
    fn is_long_ago(self, threads: usize) -> bool {
        const CPU: Duration = Duration::from_secs(20);
        const CLOCK: Duration = Duration::from_secs(600);
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        cpu_time().saturating_sub(self.cpu) > CPU.saturating_mul(threads)
            || self.at.elapsed() > CLOCK
    }
}

/// Returns the CPU time that this process has used, or zero if the system does not report it.
fn cpu_time() -> Duration {
    /// The number of clock ticks in a second, which is the same on every Linux system.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may contain spaces. The first field after the name is the state.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let spent: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(spent.saturating_mul(1000 / TICKS))
}

/// Detects a history that never ends. If a task spins, the paused clock does not advance.
fn watch_for_spinning(
    (subject, style): (Primitive, Style),
    watched: &[Mutex<Option<(u64, Begun)>>],
    done: impl Fn() -> bool,
) {
    while !done() {
        std::thread::sleep(Duration::from_millis(20));
        for one in watched {
            if let Some((seed, since)) = *lock(one)
                && since.is_long_ago(watched.len())
            {
                println!("VIOLATION in seed {seed}: something spins, and time stands still");
                println!(
                    "repeat it: cargo run --release -p leasehold-sim -- --subject {subject}{} --seed {seed}",
                    style.option()
                );
                std::process::exit(1);
            }
        }
    }
}

fn report_failure(subject: Primitive, seed: u64, style: Style) -> bool {
    for violation in &play_again(|| subject.play(seed, style)).violations {
        println!("VIOLATION in seed {seed} {violation}");
    }
    let Primitive::Lock(lock) = subject else {
        println!(
            "\nrepeat it: cargo run --release -p leasehold-sim -- --subject {subject}{} --seed {seed}",
            style.option()
        );
        return false;
    };
    let scenario = style.draw(lock, seed);
    let parts = shrink(&scenario);
    let small = scenario.keeping(&parts);
    println!("\nshrunk:\n{small}");
    for violation in &play_again(|| play(&small)).violations {
        println!("VIOLATION {violation}");
    }
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    println!(
        "\nrepeat it: cargo run --release -p leasehold-sim -- --subject {subject}{} --seed {seed} --keep {}",
        style.option(),
        parts.join(",")
    );
    false
}
