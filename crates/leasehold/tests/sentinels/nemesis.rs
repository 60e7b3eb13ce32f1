//! Several processes use the primitives while the master behind sentinels is replaced, killed and
//! paused, and the sentinels are killed, late or cut off.
//!
//! `LEASEHOLD_NEMESIS_SECONDS` makes a run longer. `LEASEHOLD_NEMESIS_SEED` repeats the random
//! choices of another run, but the processes may react differently.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::history::monotonic_ns;
use leasehold_testkit::{Proxy, RedisServer, Sentinels, eventually};
use tokio::task::JoinSet;

use super::account::Account;
use super::asked::behind_proxies;
use super::worker::{JOBS, Job, PERMITS, PLACES, Worker, make_semaphores};
use crate::support::child::{Child, job, until_parent_stops};

const TEST: &str = "sentinels::nemesis::a_process_of_its_own";
const PROCESSES: usize = 2;
const TASKS: usize = 10;
/// The number of locks in each place that are held all the time.
const KEPT: usize = 10;
/// The lease of most holds. It is short: if only the old master has run a release, the hold remains
/// at the new master until its lease ends.
const LEASE: Duration = Duration::from_secs(5);
/// The lease of the locks that are held all the time, which outlasts the longest fault.
const KEPT_LEASE: Duration = Duration::from_secs(120);
/// The length of a hold: long enough that some holders have the lock when the master is replaced.
const LONG: Duration = Duration::from_secs(2);
/// The longest wait for the effect of a fault, so that a hopeless wait ends.
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Another server is made the master, and the old one continues to run for a while.
    FailOver,
    /// The master dies, and is restarted after its replica has been promoted.
    Kill,
    /// The master is paused until its replica has been promoted.
    Freeze,
    /// The master is replaced, and one process is not notified.
    Deaf,
    /// The master is replaced while a sentinel is paused. After that, the sentinel is queried and
    /// its answer is stale.
    OldNews,
    /// Two of three sentinels die, and no client can find the master before they are restarted.
    Blind,
    /// All connections are cut.
    Cut,
}

impl Trouble {
    const ALL: [Self; 7] = [
        Self::FailOver,
        Self::Kill,
        Self::Freeze,
        Self::Deaf,
        Self::OldNews,
        Self::Blind,
        Self::Cut,
    ];

    fn replaces_the_master(self) -> bool {
        !matches!(self, Self::Blind | Self::Cut)
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(format!("LEASEHOLD_NEMESIS_{name}")).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn troubled_sentinels_keep_the_promise() {
    let seconds = setting("SECONDS").unwrap_or(10);
    let seed = setting("SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("LEASEHOLD_NEMESIS_SEED={seed} LEASEHOLD_NEMESIS_SECONDS={seconds}");
    let mut arena = Arena::open(fastrand::Rng::with_seed(seed));
    let end = Instant::now() + Duration::from_secs(seconds);
    // Even in a short run, there is a failover that was ordered.
    arena.make(Trouble::FailOver);
    while Instant::now() < end {
        let mut round = Trouble::ALL.to_vec();
        arena.random.shuffle(&mut round);
        for trouble in round {
            if Instant::now() < end {
                arena.make(trouble);
            }
        }
    }
    arena.close();
}

struct Arena {
    random: fastrand::Rng,
    sentinels: Sentinels,
    /// The processes. Each is connected to the sentinels through proxies of its own.
    processes: Vec<(Vec<Proxy>, Child)>,
    /// The spans, each from a replacement of the master until no client called the old master any
    /// more.
    spans: Vec<RangeInclusive<u64>>,
}

impl Arena {
    fn open(random: fastrand::Rng) -> Self {
        let sentinels = Sentinels::start(2);
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let client = Client::connect(&sentinels.url()).await.unwrap();
            for place in PLACES {
                make_semaphores(&client, place).await.unwrap();
            }
        });
        let process = |n| {
            let (proxies, url) = behind_proxies(&sentinels);
            (proxies, Child::start(TEST, &format!("{url} {n}")))
        };
        Self {
            processes: (0..PROCESSES).map(process).collect(),
            random,
            sentinels,
            spans: Vec::new(),
        }
    }

    fn make(&mut self, trouble: Trouble) {
        self.goes_on();
        let began = (Instant::now(), monotonic_ns());
        let old = self.sentinels.master();
        match trouble {
            Trouble::FailOver => {
                self.sentinels.fail_over();
            }
            Trouble::Kill => self.kill(old),
            Trouble::Freeze => {
                self.sentinels.servers()[old].pause().unwrap();
                self.sentinels.wait_until_replaced(old);
                self.sentinels.servers()[old].resume().unwrap();
            }
            Trouble::Deaf => self.replace_unheard(),
            Trouble::OldNews => self.replace_with_old_news(),
            Trouble::Blind => self.blind(),
            Trouble::Cut => self.cut(),
        }
        let replaced = began.0.elapsed();
        self.follows();
        let followed = began.0.elapsed();
        if trouble.replaces_the_master() {
            assert_ne!(self.sentinels.master(), old);
            self.spans.push(began.1..=monotonic_ns());
        }
        self.sentinels.wait_until_whole();
        println!(
            "{trouble:?} took {replaced:?}, was followed after {followed:?}, over after {:?}",
            began.0.elapsed()
        );
        for (_, child) in &mut self.processes {
            assert!(!child.has_ended(), "a process has ended after {trouble:?}");
        }
    }

    fn kill(&self, old: usize) {
        self.sentinels.servers()[old].kill().unwrap();
        self.sentinels.wait_until_replaced(old);
        // The old server calls itself a master for a while.
        self.sentinels.servers()[old].restart().unwrap();
    }

    fn replace_unheard(&mut self) {
        let deaf = self.random.usize(..PROCESSES);
        let hold = |hold| {
            for proxy in &self.processes[deaf].0 {
                proxy.hold(hold);
            }
        };
        hold(true);
        self.sentinels.fail_over();
        hold(false);
    }

    fn replace_with_old_news(&mut self) {
        let late = self.random.usize(..3);
        let late = &self.sentinels.sentinels()[late];
        late.pause().unwrap();
        self.sentinels.fail_over();
        late.resume().unwrap();
        self.cut();
    }

    fn blind(&mut self) {
        let seeing = self.random.usize(..3);
        let others = || (0..3).filter(move |n| *n != seeing);
        for n in others() {
            self.sentinels.sentinels()[n].kill().unwrap();
        }
        // Connected clients keep working.
        self.goes_on();
        self.cut();
        for n in others() {
            self.sentinels.sentinels()[n].restart().unwrap();
        }
    }

    fn cut(&self) {
        for (proxies, _) in &self.processes {
            for proxy in proxies {
                proxy.cut();
            }
        }
        for server in self.running() {
            for kind in ["normal", "pubsub"] {
                // The server may just have become a replica.
                let _ = server.command(&["CLIENT", "KILL", "TYPE", kind]);
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        let servers = self.sentinels.servers().iter();
        servers.filter(|server| server.is_running())
    }

    /// Waits until each process calls the master, and no process calls another server.
    fn follows(&self) {
        eventually("each process calls the master", LIMIT, || {
            let master = self.sentinels.master_server();
            let of_master = callers(master);
            let is_called = |n| of_master.contains(&format!("name=leasehold:crew{n} "));
            let mut others = self.running().filter(|server| server.pid() != master.pid());
            (0..PROCESSES).all(is_called) && !others.any(|server| callers(server).contains("crew"))
        });
    }

    /// Waits until each process has done each of its jobs once more.
    fn goes_on(&self) {
        for (_, child) in &self.processes {
            let long = ["done long".to_owned()].into_iter();
            let all: Vec<_> = jobs()
                .map(|job| format!("done {job:?}"))
                .chain(long)
                .collect();
            let counts = || all.iter().map(|word| child.count(word)).collect::<Vec<_>>();
            let before = counts();
            eventually("each process goes on", LIMIT, || {
                counts()
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| now > before)
            });
        }
    }

    fn close(mut self) {
        self.goes_on();
        let mut account = Account::default();
        for (process, (_, child)) in self.processes.drain(..).enumerate() {
            account.read(process, &child.finished());
        }
        account.judge_behind_sentinels(&self.spans);
        for error in &account.errors {
            let is_told = ["error Unavailable ", "error OutcomeUnknown "];
            let is_told = is_told.iter().any(|told| error.starts_with(told));
            assert!(is_told, "{error}");
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(self.permits_are_back());
        eventually("nothing is left", LIMIT, || {
            let keys = self.sentinels.keys().into_iter();
            // Token counters are permanent, and markers expire.
            let mut keys =
                keys.filter(|key| !key.contains("_token:") && !key.starts_with("leasehold:"));
            keys.next().is_none() && self.sentinels.channels().is_empty()
        });
    }

    /// Waits until the permits with leases are free again. They return by themselves, even if a
    /// master has lost requests.
    async fn permits_are_back(&self) {
        let client = Client::connect(&self.sentinels.url()).await.unwrap();
        for place in PLACES {
            let leased = client.expirable_semaphore(format!("{place}leased"));
            crate::support::eventually("every permit is back", async || {
                leased.available_permits().await.unwrap() == i64::from(PERMITS)
            })
            .await;
            leased.delete().await.unwrap();
            let semaphore = client.semaphore(format!("{place}permits"));
            semaphore.delete().await.unwrap();
        }
    }
}

/// Returns the connected clients of a server; nothing if it has just disconnected.
fn callers(server: &RedisServer) -> String {
    let list = server.command(&["CLIENT", "LIST"]);
    list.map_or(String::new(), |list| {
        list.as_text().unwrap_or_default().to_owned()
    })
}

/// Returns all jobs except for plain permits: if a master loses the release of such a permit, the
/// permit never returns.
fn jobs() -> impl Iterator<Item = Job> + Clone {
    JOBS.into_iter().filter(|job| *job != Job::Permit)
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
    let connect = async |lease| {
        let builder = Client::builder().lease(lease).label(format!("crew{seed}"));
        builder.connect(url).await.unwrap()
    };
    let worker = Worker {
        client: connect(LEASE).await,
        say: Arc::new(|line| println!("{line}")),
        numbers: Arc::new(AtomicU64::new(0)),
    };
    let keeper = Worker {
        client: connect(KEPT_LEASE).await,
        ..worker.clone()
    };
    let mut kept = Vec::new();
    for place in PLACES {
        kept.extend(keeper.keep(place, KEPT).await);
    }
    let tasks: JoinSet<_> = (0..TASKS)
        .map(|task| {
            let random = fastrand::Rng::with_seed(seed * 1000 + task as u64);
            use_all(worker.clone(), task == 0, random, Arc::clone(&stop))
        })
        .collect();
    tasks.join_all().await;
    worker.client.close().await;
    keeper.give_back(kept).await;
    keeper.client.close().await;
}

/// Makes one task hold one lock for a long time, in a loop. The other tasks use everything.
async fn use_all(worker: Worker, holds_on: bool, mut random: fastrand::Rng, stop: Arc<AtomicBool>) {
    let jobs: Vec<_> = jobs().collect();
    while !stop.load(Ordering::SeqCst) {
        let place = PLACES[random.usize(..PLACES.len())];
        match holds_on {
            true => worker.hold_on(place, LONG).await,
            false => worker.run(jobs[random.usize(..jobs.len())], place).await,
        }
        tokio::task::yield_now().await;
    }
}
