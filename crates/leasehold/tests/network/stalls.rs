//! Stalled holders of each kind of lock on a network that loses, delays and duplicates requests.
//! The history checker finds out whether another holder enters before the stalled holder has
//! learned of its loss.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fastrand::Rng;
use leasehold::slot::Begin;
use leasehold::testing::history::Recorder;
use leasehold::testing::{Fate, Network};
use leasehold::{AnyLock, Client, Embedded, ErrorKind, LockGuard, LossReason, MultiLock, RedLock};
use tokio::time::{sleep, timeout};

use super::{MS, over_network};

const WITHIN: Duration = Duration::from_millis(700);
const HOUR: Duration = Duration::from_secs(3600);
const WORKERS: usize = 4;
const HOLDS: usize = 6;
const SEEDS: u64 = 4;

/// Makes a worker's lock. Also returns whether its hold is shared.
type Make = fn(&[Client], usize) -> (AnyLock, bool);

fn fair(clients: &[Client], _: usize) -> (AnyLock, bool) {
    (clients[0].fair_lock("x").into(), false)
}

fn fenced(clients: &[Client], _: usize) -> (AnyLock, bool) {
    (clients[0].fenced_lock("x").into(), false)
}

fn read_write(clients: &[Client], worker: usize) -> (AnyLock, bool) {
    let both = clients[0].rw_lock("x");
    match worker % 2 {
        0 => (both.write_lock().into(), false),
        _ => (both.read_lock().into(), true),
    }
}

/// Each worker has a value of its own, and one value that all workers have.
fn group(clients: &[Client], worker: usize) -> (AnyLock, bool) {
    let values = ["all".to_owned(), worker.to_string()];
    (clients[0].group_lock("x", values).into(), false)
}

fn red(clients: &[Client], _: usize) -> (AnyLock, bool) {
    let members = clients.iter().map(|client| client.lock("x"));
    (RedLock::new(members).unwrap().into(), false)
}

fn several(clients: &[Client], _: usize) -> (AnyLock, bool) {
    let members = ["x", "y"].map(|name| clients[0].lock(name));
    (MultiLock::new(members).unwrap().into(), false)
}

fn fate(rng: &mut Rng) -> Fate {
    let fate = Fate::delivered(rng.u32(..20) * MS, rng.u32(..20) * MS);
    match rng.u8(..60) {
        0 => fate.request_lost(),
        1 => fate.reply_lost(),
        2 => fate.duplicated_after(rng.u32(..1000) * MS),
        _ => fate,
    }
}

/// The holders so far, and whether each shares its hold.
type Holders = Arc<Mutex<Vec<(Weak<LockGuard>, bool)>>>;

struct Worker {
    lock: AnyLock,
    shares: bool,
    who: String,
    recorder: Recorder,
    holders: Holders,
    rng: Rng,
    _networks: Vec<Network>,
}

impl Worker {
    /// Holds the lock again and again, and stalls in half of the holds. Returns how often it
    /// stalled.
    async fn work(mut self) -> usize {
        let mut stalls = 0;
        for _ in 0..HOLDS {
            let asked = self.recorder.ask("x", &self.who);
            let asked = if self.shares { asked.sharing() } else { asked };
            let guard = Arc::new(self.lock.acquire().await.unwrap());
            let inside = asked.acquired(&*guard);
            self.enters(&guard);
            match self.rng.bool() {
                true => stalls += usize::from(has_stalled(&guard.lost().await)),
                false => {
                    for _ in 0..self.rng.u32(1..6) {
                        sleep(WITHIN / 2).await;
                        guard.progress();
                    }
                }
            }
            inside.releasing(&*guard);
            let _ = Arc::into_inner(guard).unwrap().release().await;
        }
        stalls
    }

    /// Checks that every other holder knows that it no longer holds the lock.
    fn enters(&self, guard: &Arc<LockGuard>) {
        let mut holders = self.holders.lock().unwrap();
        holders.retain(|(holder, _)| holder.strong_count() > 0);
        for (holder, shares) in holders.iter() {
            let is_held = holder.upgrade().is_some_and(|holder| holder.is_held());
            assert!(!is_held || self.shares && *shares, "{} enters", self.who);
        }
        holders.push((Arc::downgrade(guard), self.shares));
    }
}

fn has_stalled(reason: &LossReason) -> bool {
    match reason {
        LossReason::Member { reason, .. } => has_stalled(reason),
        reason => matches!(reason, LossReason::Stalled { .. }),
    }
}

async fn stalled_holders_end(make: Make) {
    let mut stalls = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let servers = [(); 3].map(|()| Embedded::new());
        let (recorder, holders) = (Recorder::new(), Holders::default());
        let workers = (0..WORKERS).map(|number| {
            let (clients, networks): (Vec<_>, Vec<_>) = servers.iter().map(over_network).unzip();
            for network in &networks {
                let mut rng = rng.fork();
                network.on_request(move |_| fate(&mut rng));
            }
            let (lock, shares) = make(&clients, number);
            let worker = Worker {
                lock: lock.progress_within(WITHIN).outage_timeout(HOUR),
                shares,
                who: number.to_string(),
                recorder: recorder.clone(),
                holders: Arc::clone(&holders),
                rng: rng.fork(),
                _networks: networks,
            };
            tokio::spawn(worker.work())
        });
        let workers = futures_util::future::join_all(workers.collect::<Vec<_>>());
        let ended = timeout(HOUR, workers).await.expect("stalled holders end");
        stalls += ended.into_iter().map(Result::unwrap).sum::<usize>();
        let judged = recorder.report().judge();
        judged.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(stalls > WORKERS, "{stalls} stalls show nothing");
}

macro_rules! stalled_holders_end {
    ($($kind:ident),+) => {
        mod each {
            $(
                #[tokio::test(start_paused = true)]
                async fn $kind() {
                    super::stalled_holders_end(super::$kind).await;
                }
            )+
        }
    };
}

stalled_holders_end!(fair, fenced, read_write, group, red, several);

#[tokio::test(start_paused = true)]
async fn stalled_turn_ends_and_the_next_one_runs() {
    let server = Embedded::new();
    let turns = |client: &Client| {
        let lock = client.lock("x").progress_within(WITHIN);
        lock.once_per(HOUR).retry_failed(true)
    };
    let (ours, theirs) = (server.client(), server.client());
    let Begin::Run(turn) = turns(&ours).try_begin().await.unwrap() else {
        panic!("nobody else runs");
    };
    for _ in 0..100 {
        sleep(WITHIN.mul_f64(0.9)).await;
        turn.progress();
        assert!(turn.is_held());
    }
    let turn = Arc::new(turn);
    let next = async {
        let begun = turns(&theirs).begin_for(HOUR).await.unwrap();
        assert!(matches!(turn.loss(), Some(LossReason::Stalled { .. })));
        begun
    };
    let Begin::Run(next) = next.await else {
        panic!("the first one has not done it");
    };
    next.done().await.unwrap();
    let error = Arc::into_inner(turn).unwrap().done().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn resumed_hold_and_permits_take_reports() {
    let client = Client::embedded();
    let lock = client.lock("x").progress_within(WITHIN);
    let ticket = lock
        .acquire()
        .await
        .unwrap()
        .into_ticket(HOUR)
        .await
        .unwrap();
    let guard = lock.resume(&ticket).await.unwrap();
    let seats = client.expirable_semaphore("seats").progress_within(WITHIN);
    seats.try_set_permits(1).await.unwrap();
    let ticket = seats.acquire().await.unwrap().into_ticket(HOUR).await;
    let permit = seats.resume(&ticket.unwrap()).await.unwrap();
    for _ in 0..200 {
        sleep(WITHIN / 2).await;
        guard.progress();
        permit.progress();
    }
    assert!(guard.is_held() && permit.is_held());
    assert!(has_stalled(&guard.lost().await));
    assert!(has_stalled(&permit.lost().await));
}

#[tokio::test(start_paused = true)]
async fn stalled_leader_is_replaced() {
    let server = Embedded::new();
    let election = |client: &Client| client.election("x").progress_within(WITHIN);
    let (ours, theirs) = (server.client(), server.client());
    let (ours, theirs) = (election(&ours), election(&theirs));
    let term = ours.stand().await.unwrap();
    for _ in 0..100 {
        sleep(WITHIN / 2).await;
        term.progress();
    }
    assert!(term.is_held());
    let next = timeout(HOUR, theirs.stand())
        .await
        .expect("the term ends")
        .unwrap();
    assert!(matches!(term.loss(), Some(LossReason::Stalled { .. })));
    assert!(next.token() > term.token());
}
