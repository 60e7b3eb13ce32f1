//! Several processes use every primitive, under names in one slot and in many slots, while slots
//! move and masters change, die and are paused.
//!
//! `LEASEHOLD_NEMESIS_MOVES`, `_OPEN`, `_ATOMIC`, `_FAILOVERS`, `_KILLS`, `_FREEZES` and `_LOSSES`
//! set how often each fault happens. `LEASEHOLD_NEMESIS_SEED` repeats the random choices of another
//! run, but the processes may react differently. `scripts/nemesis` runs a long form.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Client;
use leasehold::testing::history::monotonic_ns;
use leasehold_testkit::{Cluster, eventually};
use tokio::task::JoinSet;

use super::account::Account;
use super::crew::nothing_is_left;
use super::worker::{JOBS, LEASE, PERMITS, PLACES, TAG, Worker, make_semaphores};
use crate::support::child::{Child, job, until_parent_stops};

const TEST: &str = "cluster::nemesis::a_process_of_its_own";
const PROCESSES: usize = 2;
const TASKS: usize = 10;
/// The number of locks in each place that are held all the time.
const KEPT: usize = 20;
/// The longest wait for the effect of a fault, so that a hopeless wait ends.
const LIMIT: Duration = Duration::from_secs(60);
/// The time for which a slot is open. Requests wait for the slot for longer than this time.
const OPEN: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A slot moves key by key.
    Move,
    /// A slot moves key by key, and remains half-moved for a while.
    Open,
    /// A slot moves at once, on servers that can do that.
    Atomic,
    /// A replica takes over while its master is still running.
    FailOver,
    /// A master dies, and its replica has all of its data.
    Kill,
    /// A master is paused until its replica has taken over.
    Freeze,
    /// A master dies in the middle of its work. The data that no replica has is lost.
    Lose,
}

impl Trouble {
    /// Each fault with the setting for how often it happens, and the default of that setting.
    const ALL: [(Self, &str, usize); 7] = [
        (Self::Move, "MOVES", 4),
        (Self::Open, "OPEN", 1),
        (Self::Atomic, "ATOMIC", 1),
        (Self::FailOver, "FAILOVERS", 1),
        (Self::Kill, "KILLS", 1),
        (Self::Freeze, "FREEZES", 1),
        (Self::Lose, "LOSSES", 0),
    ];
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(format!("LEASEHOLD_NEMESIS_{name}")).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn troubled_cluster_keeps_the_promise() {
    let seed = setting("SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("LEASEHOLD_NEMESIS_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut troubles = Vec::new();
    for (trouble, name, count) in Trouble::ALL {
        let count = setting(name).map_or(count, |count| usize::try_from(count).unwrap());
        troubles.extend(vec![trouble; count]);
    }
    random.shuffle(&mut troubles);
    let mut arena = Arena::open(random);
    for trouble in troubles {
        arena.make(trouble);
    }
    arena.close();
}

struct Arena {
    random: fastrand::Rng,
    cluster: Cluster,
    children: Vec<Child>,
    /// The times at which a master died and may have lost grants.
    losses: Vec<u64>,
}

impl Arena {
    fn open(random: fastrand::Rng) -> Self {
        let cluster = Cluster::start(3, 1);
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let client = Client::connect(&cluster.url()).await.unwrap();
            for place in PLACES.iter().chain([&TAG]) {
                make_semaphores(&client, place).await.unwrap();
            }
        });
        let work = |n| Child::start(TEST, &format!("{} {n}", cluster.url()));
        Self {
            children: (0..PROCESSES).map(work).collect(),
            random,
            cluster,
            losses: Vec::new(),
        }
    }

    fn make(&mut self, trouble: Trouble) {
        self.goes_on();
        self.cluster.wait_until_replicated();
        let began = std::time::Instant::now();
        match trouble {
            Trouble::Move | Trouble::Open => {
                let (slot, to) = self.slot_and_target();
                let open = (trouble == Trouble::Open).then_some(OPEN);
                self.cluster
                    .migrate_slowly(slot, to, open.unwrap_or_default());
            }
            Trouble::Atomic => {
                let (slot, to) = self.slot_and_target();
                if !self.cluster.migrate_at_once(slot, to) {
                    println!("the servers move no slot at once");
                }
            }
            Trouble::FailOver => {
                let victim = self.victim();
                let replica = self.cluster.replicas_of(victim)[0];
                self.cluster.fail_over(replica);
            }
            Trouble::Kill | Trouble::Lose => {
                let victim = self.victim();
                match trouble {
                    Trouble::Kill => self.cluster.settle(victim),
                    _ => self.losses.push(monotonic_ns()),
                }
                self.cluster.nodes()[victim].kill().unwrap();
                self.cluster.wait_until_replaced(victim);
                self.cluster.nodes()[victim].restart().unwrap();
            }
            Trouble::Freeze => {
                let victim = self.victim();
                self.cluster.settle(victim);
                self.cluster.nodes()[victim].pause().unwrap();
                self.cluster.wait_until_replaced(victim);
                self.cluster.nodes()[victim].resume().unwrap();
                self.cluster.unsettle(victim);
            }
        }
        self.cluster.wait_until_whole();
        println!("{trouble:?} took {:?}", began.elapsed());
        for child in &mut self.children {
            assert!(!child.has_ended(), "a process has ended after {trouble:?}");
        }
    }

    /// Returns a slot that is in use, and a master that does not have it.
    fn slot_and_target(&mut self) -> (u16, usize) {
        let places = [TAG, TAG, "one lock", "two permits", "three rw"];
        let slot = self
            .cluster
            .slot_of(places[self.random.usize(..places.len())]);
        let owner = self.cluster.owner(slot);
        let masters: Vec<_> = (0..self.cluster.nodes().len())
            .filter(|node| *node != owner && self.cluster.is_master(*node))
            .collect();
        (slot, masters[self.random.usize(..masters.len())])
    }

    /// Returns a master; in most cases, the one with most of the names.
    fn victim(&mut self) -> usize {
        let (slot, _) = match self.random.bool() {
            true => (self.cluster.slot_of(TAG), 0),
            false => self.slot_and_target(),
        };
        self.cluster.owner(slot)
    }

    /// Waits until each process has used each primitive once more.
    fn goes_on(&self) {
        for child in &self.children {
            let counts = || JOBS.map(|job| child.count(&format!("done {job:?}")));
            let before = counts();
            eventually("each process goes on", LIMIT, || {
                let now = counts();
                now.iter().zip(before).all(|(now, before)| *now > before)
            });
        }
    }

    fn close(mut self) {
        self.goes_on();
        let mut account = Account::default();
        for (process, child) in self.children.drain(..).enumerate() {
            account.read(process, &child.finished());
        }
        account.judge(&self.losses);
        for error in &account.errors {
            let is_told = ["error Unavailable ", "error OutcomeUnknown "];
            let is_told = is_told.iter().any(|told| error.starts_with(told));
            assert!(is_told, "{error}");
        }
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let client = Client::connect(&self.cluster.url()).await.unwrap();
            let places: Vec<_> = PLACES.into_iter().chain([TAG]).collect();
            if !self.losses.is_empty() {
                set_counts_right(&client, &places).await;
            }
            nothing_is_left(&self.cluster, &[&client], &places).await;
        });
    }
}

/// Recreates the semaphores: a permit's release, or its grant, may have been lost with a master.
async fn set_counts_right(client: &Client, places: &[&str]) {
    for place in places {
        let semaphore = client.semaphore(format!("{place}permits"));
        let leased = client.expirable_semaphore(format!("{place}leased"));
        let found = semaphore.available_permits().await.unwrap();
        let found_leased = leased.available_permits().await.unwrap();
        println!("`{place}`: {found} and {found_leased} permits of {PERMITS}");
        semaphore.delete().await.unwrap();
        leased.delete().await.unwrap();
        make_semaphores(client, place).await.unwrap();
    }
}

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_process_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let [url, seed] = &job[..] else {
        panic!("no such job: {job:?}");
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(work(url, seed.parse().unwrap()));
}

/// Works until the parent closes this process's input.
async fn work(url: &str, seed: u64) {
    let stop = until_parent_stops();
    // Every second process declares its keys.
    let builder = Client::builder().lease(LEASE).declare_keys(seed % 2 == 1);
    let client = builder.connect(url).await.unwrap();
    let worker = Worker {
        client: client.clone(),
        say: Arc::new(|line| println!("{line}")),
        numbers: Arc::new(AtomicU64::new(0)),
    };
    let mut kept = Vec::new();
    for place in PLACES.iter().chain([&TAG]) {
        kept.extend(worker.keep(place, KEPT).await);
    }
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (worker, stop) = (worker.clone(), Arc::clone(&stop));
        let mut random = fastrand::Rng::with_seed(seed * 1000 + task as u64);
        tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let place = match random.bool() {
                    true => TAG,
                    false => PLACES[random.usize(..PLACES.len())],
                };
                worker.run(JOBS[random.usize(..JOBS.len())], place).await;
                tokio::task::yield_now().await;
            }
        });
    }
    tasks.join_all().await;
    worker.give_back(kept).await;
    client.close().await;
}
