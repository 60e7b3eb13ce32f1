//! The real client against a server that spoils its replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use leasehold::{Client, Lock, LockGuard};

use super::process::{MEASURING, assert_no_panics, memory, watch_panics};
use super::session::{Liar, Session};

/// Number of spoilt replies in a normal run.
const INPUTS: usize = 20_000;
/// Number of clients at a time.
const WORKERS: usize = 64;
/// Bytes that may stay allocated after all clients are dropped: less than a hundred for each input.
const MOST_GROWTH: usize = 1 << 20;
/// A limit far above the time limit of every call.
const HOPELESS: Duration = Duration::from_secs(60);

#[test]
fn mutated_replies_are_harmless() {
    match setting("LEASEHOLD_HOSTILE_SEED") {
        Some(seed) => run(1, usize::MAX, seed, seed + 1),
        None => run_inputs(setting("LEASEHOLD_HOSTILE_INPUTS").map_or(INPUTS, |n| n as usize)),
    }
}

#[test]
#[ignore = "takes minutes"]
fn million_mutated_replies_do_no_harm() {
    run_inputs(1_000_000);
}

fn run_inputs(inputs: usize) {
    let first = fastrand::u64(..u64::MAX / 2);
    println!("first seed: {first}");
    run(WORKERS, inputs, first, u64::MAX);
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// The state that all workers share.
struct Run {
    /// Number of spoilt replies to send.
    inputs: usize,
    sent: Arc<AtomicUsize>,
    first: u64,
    seeds: AtomicU64,
    end: u64,
    guards: AtomicUsize,
}

/// Runs sessions from the seed `first` until `inputs` were sent or `end` is reached.
fn run(workers: usize, inputs: usize, first: u64, end: u64) {
    let _alone = MEASURING.blocking_lock();
    watch_panics();
    let before = memory();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let run = Arc::new(Run {
        inputs,
        sent: Arc::default(),
        first,
        seeds: AtomicU64::new(first),
        end,
        guards: AtomicUsize::new(0),
    });
    let tasks: Vec<_> = (0..workers)
        .map(|_| runtime.spawn(work(Arc::clone(&run))))
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    run.judge();
    if end == u64::MAX {
        runtime.block_on(all_is_freed(before));
    }
}

/// Waits until the memory is freed: dropped clients are still releasing their holds.
async fn all_is_freed(before: usize) {
    let growth = || memory().saturating_sub(before);
    let freed = async {
        while growth() > MOST_GROWTH {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let freed = tokio::time::timeout(HOPELESS, freed).await;
    println!("memory grew from {before} by {} bytes", growth());
    assert!(freed.is_ok(), "{} bytes stay allocated", growth());
}

impl Run {
    fn judge(&self) {
        let sent = self.sent.load(Ordering::SeqCst);
        let guards = self.guards.load(Ordering::SeqCst);
        let sessions = self.seeds.load(Ordering::SeqCst) - self.first;
        println!("{sent} spoilt replies in {sessions} sessions with {guards} guards");
        assert_no_panics();
        if self.end == u64::MAX {
            assert!(guards > sent / 20, "the client was let in now and then");
        }
    }
}

/// Runs sessions, one after the other.
async fn work(run: Arc<Run>) {
    let liar = Liar::start(&run.sent);
    while run.sent.load(Ordering::SeqCst) < run.inputs {
        let seed = run.seeds.fetch_add(1, Ordering::SeqCst);
        if seed >= run.end {
            break;
        }
        let session = liar.begin(seed);
        tokio::time::timeout(HOPELESS, live(&liar, &session))
            .await
            .unwrap_or_else(|_| panic!("a call hangs\n{}", session.report()));
        run.guards.fetch_add(session.guards(), Ordering::SeqCst);
    }
}

/// Runs one client from its connection to its end.
async fn live(liar: &Liar, session: &Arc<Session>) {
    let builder = Client::builder()
        .connect_timeout(Duration::from_millis(500))
        .reply_timeout(Duration::from_millis(50));
    let url = liar.server.url();
    let mut rng = Rng::with_seed(session.seed);
    let url = match rng.bool() {
        true => format!("{url}?protocol=resp3"),
        false => url,
    };
    let Ok(client) = builder.connect(&url).await else {
        return;
    };
    for _ in 0..rng.u8(1..6) {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (client, session) = (client.clone(), Arc::clone(session));
            let rng = rng.fork();
            tasks.spawn(async move { act(&client, &session, rng).await });
        }
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

/// Does something that a user might do.
async fn act(client: &Client, session: &Session, mut rng: Rng) {
    let name = format!("name {}", rng.u8(..4));
    let lease = Duration::from_millis(100);
    let lock = client.lock(&name).fixed_lease(lease);
    match rng.u8(..10) {
        // The result does not matter: there is nothing to compare it with.
        0 => drop(lock.inspect().await),
        1 => drop(lock.force_unlock().await),
        2 | 3 => {
            let wait = Duration::from_millis(20);
            if let Ok(Some(guard)) = lock.try_acquire_for(wait).await {
                hold(guard, session, rng).await;
            }
        }
        4 => {
            let lock = client.lock(&name).lease(lease);
            let lock = lock.renew_every(Duration::from_millis(2));
            try_hold(&lock, session, rng).await;
        }
        _ => try_hold(&lock, session, rng).await,
    }
}

async fn try_hold(lock: &Lock, session: &Session, rng: Rng) {
    if let Ok(Some(guard)) = lock.try_acquire().await {
        hold(guard, session, rng).await;
    }
}

async fn hold(guard: LockGuard, session: &Session, mut rng: Rng) {
    session.is_held(guard.holder_id());
    match rng.u8(..5) {
        0 => drop(guard.extend(Duration::from_millis(200)).await),
        1 => {
            let told = tokio::time::timeout(Duration::from_millis(5), guard.lost()).await;
            drop(told);
        }
        2 => return guard.forget(),
        _ => {}
    }
    if rng.bool() {
        drop(guard.release().await);
    }
}
