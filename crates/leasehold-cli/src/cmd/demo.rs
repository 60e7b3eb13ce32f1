//! `leasehold demo`: workers sell a stock under the lock, and a picture shows when each worker held
//! the lock.

mod crew;
mod event;
mod picture;
pub(super) mod process;
mod stock;
mod story;
mod verdict;
mod worker;

use std::time::Duration;

use leasehold::testing::history::monotonic_ns;

use crate::cli::Demo;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::signals::Signals;
use crew::{Crew, End, What};
use event::Event;
use picture::Marks;
use stock::Stock;
use story::Story;

/// The lease of the workers. It is short, so that the survivors of a killed holder soon continue.
const LEASE: Duration = Duration::from_secs(2);
/// The longest time for which a worker waits for a server that does not answer.
const OUTAGE_LIMIT: Duration = Duration::from_secs(5);
/// The longest time in which no worker reports an event, not counting an outage, a lease and two
/// pauses.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// The settings of a demo.
pub(super) struct Plan {
    workers: usize,
    items: u64,
    pause: Duration,
    /// Number of items that are left when the holder is killed.
    victim_at: Option<u64>,
    /// The name of the lock, new for each demo. `None` with `--no-lock`.
    lock: Option<String>,
    ascii: bool,
}

impl Plan {
    fn new(args: &Demo, processes: bool) -> Self {
        let (workers, pause_ms) = if processes { (8, 25) } else { (5, 5) };
        let unique = format!(
            "leasehold-demo:{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        Self {
            workers: args.workers.unwrap_or(workers).into(),
            items: args.stock,
            pause: args.pause.unwrap_or(Duration::from_millis(pause_ms)),
            victim_at: args.kill.then_some(args.stock - args.stock / 2),
            lock: (!args.no_lock).then_some(unique),
            ascii: args.ascii || !picture::locale_is_utf8(),
        }
    }
}

/// Runs the demo. If `server` is a server that other processes can reach, each worker is a process.
/// Otherwise all workers run in this process.
pub(super) async fn demo(args: Demo, server: Option<Server>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let server = server.filter(|server| !server.is_embedded());
    let plan = Plan::new(&args, server.is_some());
    let dir = tempfile::tempdir()
        .map_err(|error| Failure::io("can't make a folder for the stock", error))?;
    let stock = Stock::create(dir.path(), plan.items)?;
    tokio::select! {
        told = output::result(headline(&plan, server.as_ref())) => told?,
        signal = signals.next() => return Ok(Exit::Signal(signal as i32)),
    }
    let mut crew = match &server {
        None => Crew::of_tasks(&plan, &stock)?,
        Some(server) => {
            if plan.lock.is_some() {
                // Report a failure to connect at once and only once, not from each worker.
                server.connect(Some(LEASE)).await?;
            }
            Crew::of_processes(&plan, &stock, server)?
        }
    };
    let mut story = Story::new(crew.labels());
    if server.is_some() {
        tell(format_args!("the processes: {}", crew.labels().join(", ")));
    }
    let end = tokio::select! {
        end = play(&mut crew, &mut story, plan.pause) => end,
        signal = signals.next() => Err(Ended::By(signal as i32)),
    };
    // The workers must have ended before the folder of the stock is removed.
    crew.stop().await;
    match end {
        Ok(()) => {}
        Err(Ended::By(signal)) => return Ok(Exit::Signal(signal)),
        Err(Ended::Failed(failure)) => return Err(failure),
    }
    let verdict = verdict::judge(&plan, &stock.read()?, &story);
    let picture = picture::draw(&story, &Marks::new(plan.ascii), plan.lock.is_some());
    let shown = format!("{picture}\n{}", verdict.text);
    tokio::select! {
        told = output::result(&shown) => told?,
        signal = signals.next() => return Ok(Exit::Signal(signal as i32)),
    }
    Ok(if verdict.as_announced {
        Exit::Success
    } else {
        Exit::Failed
    })
}

/// The reason why the demo stopped early.
enum Ended {
    By(i32),
    Failed(Failure),
}

/// Follows the workers until each of them has ended.
async fn play(crew: &mut Crew, story: &mut Story, pause: Duration) -> Result<(), Ended> {
    let patience = SILENCE_LIMIT + OUTAGE_LIMIT + LEASE + 2 * pause;
    let mut ready = vec![false; crew.len()];
    let mut at_work = crew.len();
    while at_work > 0 {
        let news = tokio::time::timeout(patience, crew.news())
            .await
            .map_err(|_| Ended::Failed(silent(patience)))?;
        let worker = news.worker;
        match news.what {
            What::Said(Event::Ready) => ready[worker] = true,
            What::Said(Event::Failed { exit, message }) => {
                return Err(failed(worker, exit, &format!(": {message}")));
            }
            What::Said(event) => {
                if matches!(event, Event::Lingering { .. }) {
                    crew.kill(worker);
                }
                story.said(worker, &event);
            }
            What::Ended(End::Broken(what)) => {
                return Err(failed(worker, Exit::Failed, &format!(" {what}")));
            }
            What::Ended(end) => {
                at_work -= 1;
                // The other workers start without a worker that has already ended.
                ready[worker] = true;
                story.ended(worker, matches!(end, End::Killed), monotonic_ns());
            }
        }
        // All workers start at the same moment, so that they compete.
        if ready.iter().all(|ready| *ready) {
            crew.start();
        }
    }
    Ok(())
}

fn failed(worker: usize, exit: Exit, what: &str) -> Ended {
    let message = format!("worker {}{}", worker + 1, Shown(what));
    Ended::Failed(Failure::new(exit, message))
}

fn silent(patience: Duration) -> Failure {
    Failure::new(
        Exit::Failed,
        format!(
            "no worker has made progress for {}; all of them have been killed",
            duration::shown(patience)
        ),
    )
}

fn headline(plan: &Plan, server: Option<&Server>) -> String {
    let where_ = match server {
        None => "in this process",
        Some(_) => "each a process of its own",
    };
    let how = match plan.lock {
        None => "without a lock",
        Some(_) => "under one lock",
    };
    format!(
        "{} workers, {where_}, sell {} items {how}; a sale takes {}",
        plan.workers,
        plan.items,
        duration::shown(plan.pause)
    )
}
