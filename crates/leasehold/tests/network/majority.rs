//! Random histories of the majority lock: five servers that lose holds, and an unreliable network
//! between each process and each server. `restarts.rs` tests the effects of one server that forgets
//! its holds.
//!
//! `LEASEHOLD_MAJORITY_SEED` plays one seed, `LEASEHOLD_MAJORITY_SEEDS` sets the number of seeds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use leasehold::inspect::Activity;
use leasehold::testing::history::{Recorder, Report};
use leasehold::testing::{Fate, Network};
use leasehold::{Client, Embedded, LockGuard, MultiLock, RedLock};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(2000);
const MASTERS: usize = 5;
const PROCESSES: usize = 4;
const HOLDS: usize = 12;

struct Stage {
    masters: Vec<Embedded>,
    /// The client of each master, for each process.
    clients: Vec<Vec<Client>>,
    networks: Vec<Vec<Network>>,
}

impl Stage {
    fn new(rng: &mut Rng) -> Self {
        let masters = std::iter::repeat_with(Embedded::new);
        Self::of(masters.take(MASTERS).collect(), rng)
    }

    /// Makes a stage whose server clocks differ too much for the clocks alone to make tokens rise.
    fn with_clocks_apart(rng: &mut Rng) -> Self {
        let masters = (0..MASTERS).map(|_| {
            let master = Embedded::new();
            master.step_clock_ahead(rng.u32(..100_000) * 1000 * MS);
            master
        });
        let masters = masters.collect();
        Self::of(masters, rng)
    }

    fn of(masters: Vec<Embedded>, rng: &mut Rng) -> Self {
        let builder = Client::builder().lease(LEASE).reply_timeout(300 * MS);
        let (mut clients, mut networks) = (Vec::new(), Vec::new());
        for _ in 0..PROCESSES {
            let sides = masters
                .iter()
                .map(|master| master.client_over_network(&builder).unwrap());
            let (ours, between): (Vec<_>, Vec<_>) = sides.unzip();
            for network in &between {
                let mut rng = rng.fork();
                network.on_request(move |_| fate(&mut rng));
            }
            clients.push(ours);
            networks.push(between);
        }
        Self {
            masters,
            clients,
            networks,
        }
    }

    fn lock(&self, process: usize) -> RedLock {
        let members = self.clients[process].iter().map(|client| client.lock("x"));
        RedLock::new(members)
            .unwrap()
            .longest_lease(LEASE)
            .outage_timeout(3600 * 1000 * MS)
    }

    /// Causes one fault at random. At most two of the five servers are without a vote at a time.
    async fn trouble(&self, rng: &mut Rng, restarted: &mut Vec<Instant>) -> &'static str {
        let (process, master) = (rng.usize(..PROCESSES), rng.usize(..MASTERS));
        let network = &self.networks[process][master];
        match rng.u8(..6) {
            0 | 1 => {
                restarted.retain(|at| at.elapsed() < LEASE);
                if restarted.len() < 2 {
                    restarted.push(Instant::now());
                    self.masters[master].restart();
                    return "restart without data";
                }
            }
            2 => network.cut(),
            3 => network.cut_while_requests_travel(rng.u32(1..800) * MS),
            4 => {
                network.freeze(true);
                sleep(rng.u32(1..1500) * MS).await;
                network.freeze(false);
                return "freeze";
            }
            _ => {
                network.refuse(true);
                sleep(rng.u32(1..1500) * MS).await;
                network.refuse(false);
                return "refusal";
            }
        }
        "cut"
    }
}

fn fate(rng: &mut Rng) -> Fate {
    let mut time = || {
        let most = if rng.u8(..20) == 0 { 250 } else { 8 };
        rng.u32(..most) * MS
    };
    let fate = Fate::delivered(time(), time());
    match rng.u8(..40) {
        0 => fate.request_lost(),
        1 => fate.reply_lost(),
        2 => fate.duplicated_after(rng.u32(..1000) * MS),
        _ => fate,
    }
}

/// The fencing tokens in the order in which they were drawn.
#[derive(Default)]
struct Tokens(Mutex<Vec<u64>>);

impl Tokens {
    /// Draws a token for this hold, unless the hold is lost or a server does not answer.
    async fn draw(&self, guard: &LockGuard) {
        if let Ok(token) = guard.fencing_token().await {
            self.0.lock().unwrap().push(token);
        }
    }

    fn judge(&self) -> Result<(), String> {
        let given = self.0.lock().unwrap();
        if given.len() < HOLDS {
            return Err(format!("{} tokens show nothing", given.len()));
        }
        match given.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => Err(format!("the token {} after {}", pair[1], pair[0])),
            None => Ok(()),
        }
    }
}

/// Plays one history and reports on it.
async fn play(seed: u64, lock: impl Fn(&Stage, usize) -> RedLock) -> (Report, Tokens) {
    let mut rng = Rng::with_seed(seed);
    let stage = Stage::new(&mut rng);
    let (recorder, tokens) = (Recorder::new(), Tokens::default());
    let over = Arc::new(AtomicBool::new(false));
    let worker = async |process: usize, mut rng: Rng| {
        let lock = lock(&stage, process);
        for _ in 0..HOLDS {
            let asked = recorder.ask("x", &process.to_string());
            let guard = lock.acquire().await.unwrap();
            let inside = asked.acquired(&guard);
            tokens.draw(&guard).await;
            let work = sleep(rng.u32(1..600) * MS);
            // A worker that loses the lock stops its work.
            let _ = guard.protect(work).await;
            inside.releasing(&guard);
            let _ = guard.release().await;
        }
    };
    let workers: Vec<_> = (0..PROCESSES)
        .map(|process| worker(process, rng.fork()))
        .collect();
    let work = async {
        futures_util::future::join_all(workers).await;
        over.store(true, Ordering::SeqCst);
    };
    recorder.expect_fault("restart without data");
    let troubles = async {
        let mut restarted = Vec::new();
        while !over.load(Ordering::SeqCst) {
            sleep(rng.u32(1..500) * MS).await;
            let fault = stage.trouble(&mut rng, &mut restarted).await;
            if fault == "restart without data" {
                recorder.fault_happened(fault);
            }
        }
    };
    tokio::join!(work, troubles);
    nothing_is_left(&stage, seed).await;
    (recorder.report(), tokens)
}

/// Asserts that no key remains after a lease and the time that the last requests take.
async fn nothing_is_left(stage: &Stage, seed: u64) {
    for network in stage.networks.iter().flatten() {
        network.on_request(|_| Fate::default());
    }
    sleep(LEASE * 4).await;
    for master in &stage.masters {
        let mut keys = master.keys();
        keys.retain(|key| key != "redisson_lock_token:{x}");
        assert!(keys.is_empty(), "seed {seed}: {keys:?}");
    }
    for client in stage.clients.iter().flatten() {
        assert_eq!(client.activity(), Activity::default(), "seed {seed}");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    match number("LEASEHOLD_MAJORITY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEASEHOLD_MAJORITY_SEEDS").unwrap_or(25),
    }
}

#[tokio::test(start_paused = true)]
async fn failing_minority_causes_no_overlap() {
    for seed in seeds() {
        let (report, tokens) = play(seed, Stage::lock).await;
        if let Err(what) = report.judge().and_then(|()| tokens.judge()) {
            panic!("LEASEHOLD_MAJORITY_SEED={seed}: {what}");
        }
    }
}

/// Shows that the histories are hard enough: without the distrust of restarted servers, holds
/// overlap.
#[tokio::test(start_paused = true)]
async fn trusting_restarted_servers_lets_holds_overlap() {
    for seed in 0..400 {
        let report = play(seed, |stage, process| {
            stage.lock(process).distrust_restarted(false)
        });
        let (report, _) = report.await;
        if !report.overlaps.is_empty() {
            return;
        }
    }
    panic!("no overlap was seen; the histories show nothing");
}

/// Multi-locks on the same stage: no deadlock, nothing left, no overlap, and tokens that rise.
#[tokio::test(start_paused = true)]
async fn failing_networks_cause_no_multi_lock_overlap() {
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let stage = Stage::with_clocks_apart(&mut rng);
        let (recorder, tokens) = (Recorder::new(), Tokens::default());
        let worker = async |process: usize, mut rng: Rng| {
            for _ in 0..HOLDS {
                let mut names = vec![0, 1, 2, 3, 4];
                rng.shuffle(&mut names);
                let members = names[..3]
                    .iter()
                    .map(|n| stage.clients[process][*n].lock("x"));
                let lock = MultiLock::new(members).unwrap();
                let lock = lock.outage_timeout(3600 * 1000 * MS);
                // Any two sets of three locks out of five share a lock.
                let asked = recorder.ask("x", &process.to_string());
                let guard = lock.acquire().await.unwrap();
                let inside = asked.acquired(&guard);
                tokens.draw(&guard).await;
                let _ = guard.protect(sleep(rng.u32(1..300) * MS)).await;
                inside.releasing(&guard);
                let _ = guard.release().await;
            }
        };
        let workers: Vec<_> = (0..PROCESSES)
            .map(|process| worker(process, rng.fork()))
            .collect();
        let over = AtomicBool::new(false);
        let work = async {
            let all = futures_util::future::join_all(workers);
            tokio::time::timeout(3600 * 1000 * MS, all)
                .await
                .unwrap_or_else(|_| panic!("LEASEHOLD_MAJORITY_SEED={seed}: dead-lock"));
            over.store(true, Ordering::SeqCst);
        };
        let troubles = async {
            // No server is restarted, because a multi-lock needs all of its members.
            let mut restarted = vec![Instant::now() + 24 * 3600 * 1000 * MS; 2];
            while !over.load(Ordering::SeqCst) {
                sleep(rng.u32(1..500) * MS).await;
                stage.trouble(&mut rng, &mut restarted).await;
            }
        };
        tokio::join!(work, troubles);
        nothing_is_left(&stage, seed).await;
        let report = recorder.report();
        if let Err(what) = report.judge().and_then(|()| tokens.judge()) {
            panic!("LEASEHOLD_MAJORITY_SEED={seed}: {what}");
        }
    }
}

/// Groups that have values in common, on a network that loses, delays and duplicates requests.
#[tokio::test(start_paused = true)]
async fn failing_networks_cause_no_group_overlap() {
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let stage = Stage::new(&mut rng);
        let recorder = Recorder::new();
        let worker = async |process: usize, mut rng: Rng| {
            for _ in 0..HOLDS {
                let mut values = vec!["a", "b", "c", "d"];
                rng.shuffle(&mut values);
                let values = &values[..rng.usize(1..4)];
                let client = &stage.clients[process][0];
                let lock = client.group_lock("g", values.iter().copied());
                let lock = lock.outage_timeout(3600 * 1000 * MS);
                let who = process.to_string();
                let asked: Vec<_> = values
                    .iter()
                    .map(|value| recorder.ask(value, &who))
                    .collect();
                let guard = lock.acquire().await.unwrap();
                let inside: Vec<_> = asked.into_iter().map(|one| one.acquired(&guard)).collect();
                let _ = guard.protect(sleep(rng.u32(1..300) * MS)).await;
                inside.into_iter().for_each(|one| one.releasing(&guard));
                let _ = guard.release().await;
            }
        };
        let workers: Vec<_> = (0..PROCESSES)
            .map(|process| worker(process, rng.fork()))
            .collect();
        let over = AtomicBool::new(false);
        let work = async {
            futures_util::future::join_all(workers).await;
            over.store(true, Ordering::SeqCst);
        };
        let troubles = async {
            let mut restarted = vec![Instant::now() + 24 * 3600 * 1000 * MS; 2];
            while !over.load(Ordering::SeqCst) {
                sleep(rng.u32(1..100) * MS).await;
                stage.trouble(&mut rng, &mut restarted).await;
            }
        };
        tokio::join!(work, troubles);
        nothing_is_left(&stage, seed).await;
        if let Err(what) = recorder.report().judge() {
            panic!("LEASEHOLD_MAJORITY_SEED={seed}: {what}");
        }
    }
}

/// The first of two servers refuses at once, so there can be no majority. The waiter does not wait
/// for the reply of the second server, and does not learn how long the lock is held there.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_not_heard_is_asked_when_the_others_are_free() {
    let servers = [Embedded::new(), Embedded::new()];
    let builder = Client::builder().reply_timeout(3000 * MS);
    let sides = servers
        .each_ref()
        .map(|server| server.client_over_network(&builder).unwrap());
    let way = [MS, 400 * MS];
    for ((_, network), way) in sides.iter().zip(way) {
        network.on_request(move |_| Fate::delivered(way, MS));
    }
    for server in &servers {
        let held = server.client().lock("x").fixed_lease(LEASE);
        held.acquire().await.unwrap().forget();
    }
    let members = sides.iter().map(|(client, _)| client.lock("x"));
    let lock = RedLock::new(members).unwrap();
    let lock = lock
        .member_timeout(1000 * MS)
        .distrust_restarted(false)
        .poll_interval(3600 * 1000 * MS);
    let start = Instant::now();
    let guard = lock.try_acquire_for(LEASE * 5).await.unwrap();
    assert!(guard.is_some(), "no answer in {:?}", start.elapsed());
}

/// Two of three servers are enough: the acquire does not wait for the reply of a silent server.
#[tokio::test(start_paused = true)]
async fn a_majority_of_those_that_answer_is_enough() {
    let servers = [(); 3].map(|()| Embedded::new());
    let builder = Client::builder().lease(LEASE).reply_timeout(300 * MS);
    let sides = servers
        .each_ref()
        .map(|server| server.client_over_network(&builder).unwrap());
    for (_, network) in &sides {
        network.on_request(|_| Fate::delivered(MS, MS));
    }
    let members = sides.each_ref().map(|(client, _)| client.lock("x"));
    let lock = RedLock::new(members).unwrap().distrust_restarted(false);
    // All clients are connected now.
    lock.acquire().await.unwrap().release().await.unwrap();
    sides[1].1.freeze(true);
    let start = Instant::now();
    let guard = lock.try_acquire().await.unwrap().expect("two of three");
    assert!(start.elapsed() < 20 * MS, "{:?}", start.elapsed());
    sides[1].1.freeze(false);
    guard.release().await.unwrap();
}
