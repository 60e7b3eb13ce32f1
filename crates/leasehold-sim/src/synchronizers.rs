//! Semaphores and latches in random histories. The clients' networks lose, duplicate and delay
//! messages, and cut connections. Tasks acquire, hold, release and drop permits, and give up waits.
//! There must never be more permits in use than the semaphore has, and at the end all permits must
//! be free. A task must not pass a latch before the last count, or miss the opening of the latch.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use leasehold::testing::history::limits::{Recorder, Report};
use leasehold::testing::{Fate, Network};
use leasehold::{Client, ClientBuilder, Embedded, ExpirableSemaphore, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::play::{Played, on_its_own_clock};
use crate::unpolled::now_and_then;

/// A synchronizer, which counts permits or steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Synchronizer {
    /// `Semaphore`.
    Semaphore,
    /// `ExpirableSemaphore`.
    Expirable,
    /// `CountDownLatch`.
    Latch,
}

const CAPACITY: u32 = 4;
const CLIENTS: usize = 3;
const NAME: &str = "x";
const MINUTE: Duration = Duration::from_secs(60);
/// The virtual time by which every waiter has been served.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// The counts from a history, or a violation.
type Shown = Result<Counts, String>;

struct Counts {
    uses: usize,
    contended: usize,
}

impl Synchronizer {
    /// Plays the history of a seed.
    #[must_use]
    pub fn play(self, seed: u64) -> Played {
        on_its_own_clock(seed, self.run(seed, 0))
    }

    /// Plays the history of a seed, in which tasks sometimes do not poll their waits.
    #[must_use]
    pub fn play_unpolled(self, seed: u64) -> Played {
        let percent = [2, 10, 30][(seed % 3) as usize];
        on_its_own_clock(seed, self.run(seed, percent))
    }

    async fn run(self, seed: u64, unpolled_percent: u8) -> Played {
        let rng = Rng::with_seed(seed.wrapping_mul(0x5851_F42D_4C95_7F2D));
        let notes = Notes::default();
        notes.state().unpolled_percent = unpolled_percent;
        let shown = match self {
            Self::Semaphore => semaphore(rng, &notes).await,
            Self::Expirable => expirable(rng, &notes).await,
            Self::Latch => latch(rng, &notes).await,
        };
        let mut played = Played::default();
        let notes = std::mem::take(&mut *notes.state());
        played.violations = notes.violations;
        let faults = notes.faults.into_iter();
        played.report.faults = faults.map(|(name, times)| (name.into(), times)).collect();
        played.requests = notes.networks.iter().map(Network::requests).sum();
        match shown {
            Ok(counts) => {
                played.report.holds = counts.uses;
                played.report.contended = counts.contended;
            }
            Err(violation) => played.violations.push(violation),
        }
        played
    }
}

impl fmt::Display for Synchronizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The records that the tasks of a history write.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    violations: Vec<String>,
    faults: BTreeMap<&'static str, u64>,
    networks: Vec<Network>,
    /// Percentage of the polls of a wait after which the wait is not polled for a while.
    unpolled_percent: u8,
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn violation(&self, what: String) {
        self.state().violations.push(what);
    }

    fn fault(&self, name: &'static str) {
        *self.state().faults.entry(name).or_default() += 1;
    }

    /// Polls a wait as often as tasks in this history do.
    async fn polled<F: Future>(&self, rng: &mut Rng, wait: F) -> F::Output {
        let percent = self.state().unpolled_percent;
        if percent == 0 {
            return wait.await;
        }
        now_and_then(percent, rng.fork(), || self.fault("Unpolled"), wait).await
    }
}

fn ms(rng: &mut Rng, limit: u64) -> Duration {
    Duration::from_millis(rng.u64(..limit))
}

fn fate(rng: &mut Rng, notes: &Notes) -> Fate {
    let fate = Fate::delivered(ms(rng, 20), ms(rng, 20));
    let (fault, fate) = match rng.u8(..40) {
        0 | 1 => ("RequestLost", fate.request_lost()),
        2..=4 => ("ReplyLost", fate.reply_lost()),
        5..=7 => ("RequestDoubled", fate.duplicated_after(ms(rng, 1500))),
        8 => {
            let again = ms(rng, 1500);
            (
                "ReplyLostAndDoubled",
                fate.reply_lost().duplicated_after(again),
            )
        }
        9 => {
            let again = ms(rng, 1900);
            ("RequestLate", fate.request_lost().duplicated_after(again))
        }
        10 => ("Slow", Fate::delivered(ms(rng, 2500), ms(rng, 2500))),
        _ => return fate,
    };
    notes.fault(fault);
    fate
}

/// Connects clients, each through its own network, which has random disturbances and is cut now and
/// then.
fn connect(
    server: &Embedded,
    builder: &ClientBuilder,
    rng: &mut Rng,
    notes: &Notes,
) -> Vec<(Client, Network)> {
    let connect_one = |rng: &mut Rng| {
        let (client, network) = server
            .client_over_network(builder)
            .expect("settings in range");
        disturb(&network, rng, notes);
        notes.state().networks.push(network.clone());
        (client, network)
    };
    (0..CLIENTS).map(|_| connect_one(rng)).collect()
}

fn disturb(network: &Network, rng: &mut Rng, notes: &Notes) {
    let (mut own, noting) = (rng.fork(), notes.clone());
    network.on_request(move |_| fate(&mut own, &noting));
    let (mut own, noting) = (rng.fork(), notes.clone());
    network.on_message(move |_| {
        if own.u8(..4) == 0 {
            noting.fault("MessageLost");
            return None;
        }
        Some(ms(&mut own, 50))
    });
    let (mut own, notes, network) = (rng.fork(), notes.clone(), network.clone());
    tokio::spawn(async move {
        for _ in 0..6 {
            sleep(ms(&mut own, 4000)).await;
            match own.u8(..3) {
                0 => network.cut(),
                1 => network.cut_while_requests_travel(ms(&mut own, 1500)),
                _ => network.cut_messages(),
            }
            notes.fault("Cut");
        }
    });
}

fn heal(network: &Network) {
    network.on_request(|_| Fate::default());
    network.on_message(|_| Some(Duration::ZERO));
}

/// Waits until all tasks have ended, and records a violation if one panicked.
async fn all_end(tasks: &mut JoinSet<()>, notes: &Notes) -> Result<(), String> {
    let all = async {
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                notes.violation(format!("a task ended badly: {error}"));
            }
        }
    };
    let ended = timeout(LONGEST, all).await;
    ended.map_err(|_| "somebody waits for ever".into())
}

fn at_most(report: Report) -> Shown {
    if report.most > report.capacity {
        let (most, capacity) = (report.most, report.capacity);
        return Err(format!("{most} permits of {capacity} were in use at once"));
    }
    Ok(Counts {
        uses: report.uses,
        contended: report.contended,
    })
}

fn all_free(available: leasehold::Result<i64>) -> Result<(), String> {
    match available {
        Ok(free) if free == i64::from(CAPACITY) => Ok(()),
        Ok(free) => Err(format!("{free} permits of {CAPACITY} are free at the end")),
        Err(error) => Err(format!("at the end: {error}")),
    }
}

fn made(result: leasehold::Result<bool>) -> Result<(), String> {
    match result {
        Ok(true) => Ok(()),
        Ok(false) => Err("could not be made, although it is not there".into()),
        Err(error) => Err(format!("could not be made: {error}")),
    }
}

/// Plays a semaphore. Checks that there are never more permits in use than the semaphore has, and
/// that permits are not lost.
async fn semaphore(mut rng: Rng, notes: &Notes) -> Shown {
    let server = Embedded::new();
    let witness = server.client().semaphore(NAME);
    made(witness.try_set_permits(CAPACITY).await)?;
    let recorder = Recorder::new();
    let clients = connect(&server, &Client::builder(), &mut rng, notes);
    let mut tasks = JoinSet::new();
    for (client, _) in &clients {
        for _ in 0..3 {
            let (semaphore, recorder) = (client.semaphore(NAME), recorder.clone());
            tasks.spawn(use_permits(semaphore, recorder, rng.fork(), notes.clone()));
        }
    }
    all_end(&mut tasks, notes).await?;
    for (client, network) in &clients {
        heal(network);
        client.close().await;
    }
    sleep(MINUTE).await;
    all_free(witness.available_permits().await)?;
    at_most(recorder.report(CAPACITY.into()))
}

async fn use_permits(semaphore: Semaphore, recorder: Recorder, mut rng: Rng, notes: Notes) {
    // The hold is either so short that a process hands permits to many of its waiters within one
    // slice (the time for which it may keep permits for itself), or longer than a slice.
    let hold = if rng.bool() { 4 } else { 300 };
    for _ in 0..8 {
        let permits = rng.u32(1..=CAPACITY);
        let asked = recorder.ask(permits);
        let patience = Duration::from_millis(1) + ms(&mut rng, 4000);
        let acquired = match rng.u8(..3) {
            0 => semaphore.try_acquire_many(permits).await,
            1 => {
                let acquire = semaphore.try_acquire_many_for(permits, patience);
                notes.polled(&mut rng, acquire).await
            }
            // The acquire is dropped at a random point.
            _ => {
                let acquire = notes.polled(&mut rng, semaphore.acquire_many(permits));
                match timeout(patience, acquire).await {
                    Ok(permit) => permit.map(Some),
                    Err(_) => Ok(None),
                }
            }
        };
        // After an error, the outcome is unknown. If the acquire took permits, they are released.
        let Ok(Some(mut permit)) = acquired else {
            continue;
        };
        let inside = asked.inside(None);
        sleep(ms(&mut rng, hold)).await;
        inside.leaving(None);
        let part = permit.split(1);
        match rng.u8(..3) {
            0 => drop(permit),
            1 => drop(permit.release().await),
            _ => drop(timeout(ms(&mut rng, 30), permit.release()).await),
        }
        drop(part);
    }
}

/// Plays permits with leases. Checks that there are never more permits in use than the semaphore
/// has, and that permits of dead processes become free again.
async fn expirable(mut rng: Rng, notes: &Notes) -> Shown {
    let server = Embedded::new();
    let witness = server.client().expirable_semaphore(NAME);
    made(witness.try_set_permits(CAPACITY).await)?;
    let recorder = Recorder::new();
    let builder = Client::builder().lease(Duration::from_secs(3));
    let clients = connect(&server, &builder, &mut rng, notes);
    let mut tasks = JoinSet::new();
    for (client, network) in &clients {
        for _ in 0..3 {
            let (semaphore, recorder) = (client.expirable_semaphore(NAME), recorder.clone());
            tasks.spawn(use_leases(semaphore, recorder, rng.fork(), notes.clone()));
        }
        // The process is killed: from now on its requests do not reach the server.
        let (dies, network, notes) = (ms(&mut rng, 20_000), network.clone(), notes.clone());
        tasks.spawn(async move {
            sleep(dies).await;
            network.refuse(true);
            notes.fault("Killed");
        });
    }
    all_end(&mut tasks, notes).await?;
    // One lease later, all permits are free again.
    sleep(Duration::from_secs(10)).await;
    all_free(witness.available_permits().await)?;
    at_most(recorder.report(CAPACITY.into()))
}

async fn use_leases(semaphore: ExpirableSemaphore, recorder: Recorder, mut rng: Rng, notes: Notes) {
    for _ in 0..8 {
        let permits = rng.u32(1..=CAPACITY);
        let asked = recorder.ask(permits);
        let patience = Duration::from_millis(1) + ms(&mut rng, 4000);
        let acquire = semaphore.try_acquire_many_for(permits, patience);
        let acquired = notes.polled(&mut rng, acquire).await;
        let Ok(Some(permit)) = acquired else {
            continue;
        };
        if !permit.is_held() {
            notes.violation("was given permits that were lost already".into());
        }
        let inside = asked.inside(Some(permit.valid_until()));
        // A holder stops when it learns of a loss. It has no deadline after that.
        let _ = permit.protect(sleep(ms(&mut rng, 5000))).await;
        inside.leaving(Some(permit.valid_until()));
        match rng.u8(..3) {
            0 => drop(permit),
            1 => drop(permit.release().await),
            _ => permit.forget(),
        }
    }
}

/// Plays a latch. Checks that it opens for every waiter after the last count, and never before.
async fn latch(mut rng: Rng, notes: &Notes) -> Shown {
    let server = Embedded::new();
    let witness = server.client().count_down_latch(NAME);
    let failed = |error: leasehold::Error| format!("beside all networks: {error}");
    let mut uses = 0;
    for _round in 0..4 {
        let count = rng.u64(1..=4);
        made(witness.try_set_count(count).await)?;
        let counted = Arc::new(AtomicU64::new(0));
        let clients = connect(&server, &Client::builder(), &mut rng, notes);
        let mut tasks = JoinSet::new();
        for client in clients.iter().flat_map(|(client, _)| [client, client]) {
            let (latch, counted, notes) = (
                client.count_down_latch(NAME),
                counted.clone(),
                notes.clone(),
            );
            let mut rng = Rng::with_seed(uses as u64);
            tasks.spawn(async move {
                while notes.polled(&mut rng, latch.wait()).await.is_err() {
                    sleep(Duration::from_millis(1)).await;
                }
                let counted = counted.load(Ordering::SeqCst);
                if counted < count {
                    notes.violation(format!("open after {counted} of {count}"));
                }
            });
            uses += 1;
        }
        // By now, all tasks are waiting. The task that counts down has a network without faults.
        sleep(MINUTE / 2).await;
        for _ in 0..count {
            sleep(ms(&mut rng, 500)).await;
            counted.fetch_add(1, Ordering::SeqCst);
            witness.count_down().await.map_err(failed)?;
        }
        // The latch is set again at once. This must not make any waiter miss the first opening.
        made(witness.try_set_count(1).await)?;
        all_end(&mut tasks, notes).await?;
        let left = witness.count().await.map_err(failed)?;
        if left != 1 {
            return Err(format!("{left} are left of 1, counted by nobody"));
        }
        witness.delete().await.map_err(failed)?;
    }
    let contended = uses;
    Ok(Counts { uses, contended })
}
