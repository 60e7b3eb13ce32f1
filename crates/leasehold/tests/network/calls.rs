//! Clients that wait for one plain lock: a release notifies one of them, and the others do not send
//! a request.

use leasehold::testing::history::Recorder;
use leasehold::{Lock, LockGuard};
use tokio::task::JoinHandle;

use super::hand_over::{Sent, near};
use super::*;

/// A client with one waiter, which listens for its notification.
struct Waiting {
    waiter: JoinHandle<LockGuard>,
    sent: Sent,
    client: (Client, Network),
}

impl Waiting {
    /// Returns how many requests the waiter has sent.
    fn asked(&self) -> usize {
        self.sent.asks()
    }

    /// Ends the waiter without a request to the server.
    fn dies(&self) {
        let (_, network) = &self.client;
        network.on_request(|_| Fate::default().request_lost());
        self.waiter.abort();
    }

    /// Ends the waiter as [`dies`](Self::dies) does, and also its client's connections.
    fn is_killed(&self) {
        self.dies();
        self.client.1.refuse(true);
    }
}

async fn waits(server: &Embedded) -> Waiting {
    let (client, network, sent) = near(server);
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // The waiter asks the server, subscribes, and asks again.
    sleep(10 * MS).await;
    assert!(!waiter.is_finished());
    Waiting {
        waiter,
        sent,
        client: (client, network),
    }
}

/// Returns a holder that had to wait for the lock, and so knows that the lock is contended.
async fn held(server: &Embedded) -> (LockGuard, (Client, Network)) {
    let before = server.client().lock("x").acquire().await.unwrap();
    let (client, network, _) = near(server);
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(5 * MS).await;
    before.release().await.unwrap();
    (waiter.await.unwrap(), (client, network))
}

#[tokio::test(start_paused = true)]
async fn release_calls_the_client_that_came_first() {
    let server = Embedded::new();
    let (guard, _holder) = held(&server).await;
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(waits(&server).await);
    }
    let asked: Vec<_> = others.iter().map(Waiting::asked).collect();
    guard.release().await.unwrap();
    let first = others.remove(0);
    let start = Instant::now();
    let guard = first.waiter.await.unwrap();
    assert!(start.elapsed() <= 2 * MS, "{:?}", start.elapsed());
    sleep(MS).await;
    // No other client sends a request until one of them checks whether the first client is dead.
    assert_eq!(
        others.iter().map(Waiting::asked).collect::<Vec<_>>(),
        asked[1..]
    );
    sleep(100 * MS).await;
    let more: usize = others.iter().map(Waiting::asked).sum();
    let more = more - asked[1..].iter().sum::<usize>();
    assert!((1..=6).contains(&more), "{more} of nine asked");
    guard.release().await.unwrap();
    for other in others {
        other.waiter.await.unwrap().release().await.unwrap();
    }
}

/// Acquires a lock, makes `gone` clients wait for it, and ends each of them with `goes`.
async fn held_before(
    server: &Embedded,
    gone: usize,
    goes: fn(&Waiting),
) -> (LockGuard, Vec<Waiting>, (Client, Network)) {
    let (guard, holder) = held(server).await;
    let mut others = Vec::new();
    for _ in 0..gone {
        others.push(waits(server).await);
    }
    others.iter().for_each(goes);
    (guard, others, holder)
}

#[tokio::test(start_paused = true)]
async fn clients_that_are_gone_keep_nobody_waiting() {
    for gone in 1..=6 {
        let server = Embedded::new();
        let (guard, _others, _holder) = held_before(&server, gone, Waiting::dies).await;
        let last = waits(&server).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        last.waiter.await.unwrap().release().await.unwrap();
        let limit = 5 * MS * (1 << (gone - 1)) + 5 * MS;
        assert!(
            start.elapsed() <= limit,
            "{:?} behind {gone}",
            start.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_were_killed_cost_the_next_ones_no_time() {
    let server = Embedded::new();
    let (guard, _others, _holder) = held_before(&server, 30, Waiting::is_killed).await;
    let last = [waits(&server).await, waits(&server).await];
    let start = Instant::now();
    guard.release().await.unwrap();
    for last in last {
        last.waiter.await.unwrap().release().await.unwrap();
    }
    assert!(start.elapsed() <= 6 * MS, "{:?}", start.elapsed());
    assert_eq!(server.keys(), [""; 0]);
}

/// The waiter must not wait for dead clients until its own limit has passed.
#[tokio::test(start_paused = true)]
async fn waiter_with_a_limit_asks_before_its_end() {
    for limit in [40, 1000] {
        let server = Embedded::new();
        let (guard, _others, _holder) = held_before(&server, 9, Waiting::dies).await;
        let (client, _network, _) = near(&server);
        let lock = client.lock("x");
        let last = tokio::spawn(async move { lock.try_acquire_for(limit * MS).await.unwrap() });
        sleep(10 * MS).await;
        guard.release().await.unwrap();
        let guard = last.await.unwrap();
        guard.expect("it is free").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_gives_up_is_called_no_more() {
    let server = Embedded::new();
    let (guard, _holder) = held(&server).await;
    let gives_up = [waits(&server).await, waits(&server).await];
    let last = waits(&server).await;
    for other in &gives_up {
        other.waiter.abort();
    }
    sleep(10 * MS).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    let guard = last.waiter.await.unwrap();
    assert!(start.elapsed() <= 2 * MS, "{:?}", start.elapsed());
    guard.release().await.unwrap();
    sleep(10 * MS).await;
    assert_eq!(server.keys(), [""; 0]);
    // A waiter with a time limit also leaves nothing behind.
    let (guard, _holder) = held(&server).await;
    let (client, _network, _) = near(&server);
    let lock = client.lock("x");
    assert!(lock.try_acquire_for(30 * MS).await.unwrap().is_none());
    sleep(10 * MS).await;
    assert_eq!(server.keys(), ["x"]);
    guard.release().await.unwrap();
}

/// Uses the lock all the time. Returns the longest wait, and the number of holds.
async fn busy(lock: Lock, who: String, recorder: Recorder, end: Instant) -> (Duration, u32) {
    let (mut longest, mut held) = (Duration::ZERO, 0);
    while Instant::now() < end {
        let (asked, start) = (recorder.ask("x", &who), Instant::now());
        let guard = lock.acquire().await.unwrap();
        longest = longest.max(start.elapsed());
        held += 1;
        let inside = asked.acquired(&guard);
        sleep(MS / 10).await;
        inside.releasing(&guard);
        guard.release().await.unwrap();
    }
    (longest, held)
}

/// Records the requests, and makes each of them take about a millisecond, with random differences.
/// Without these, polls and releases would always be in step, which does not happen on a real
/// network.
pub(super) fn takes_about_a_millisecond(network: &Network) -> Sent {
    let sent = Sent::default();
    let noted = sent.clone();
    network.on_request(move |asked| {
        noted.note(asked.step);
        let time = Duration::from_micros(fastrand::u64(800..1200));
        Fate::delivered(time, Duration::ZERO)
    });
    sent
}

fn about_as_near(server: &Embedded) -> (Client, Network, Sent) {
    let (client, network) = over_network(server);
    let sent = takes_about_a_millisecond(&network);
    (client, network, sent)
}

#[tokio::test(start_paused = true)]
async fn a_hundred_processes_ask_seldom_and_have_their_turns() {
    let (server, recorder) = (Embedded::new(), Recorder::new());
    let end = Instant::now() + Duration::from_secs(10);
    let clients: Vec<_> = (0..100).map(|_| about_as_near(&server)).collect();
    let tasks = clients.iter().enumerate().map(|(n, (client, _, _))| {
        let who = format!("process {n}");
        tokio::spawn(busy(client.lock("x"), who, recorder.clone(), end))
    });
    let results = futures_util::future::join_all(tasks.collect::<Vec<_>>()).await;
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    recorder.report().judge().unwrap();
    let holds: u32 = results.iter().map(|(_, held)| held).sum();
    let asks: usize = clients.iter().map(|(_, _, sent)| sent.asks()).sum();
    let asks = asks as f64 / f64::from(holds);
    assert!(asks <= 10.0, "{asks} asks a hold");
    // The longest wait is the one before a slice, in which the process then holds the lock several
    // times.
    let longest = results.iter().map(|(longest, _)| *longest).max().unwrap();
    let mean = results
        .iter()
        .map(|(longest, _)| *longest)
        .sum::<Duration>()
        / 100;
    assert!(longest <= 5 * mean, "{longest:?}, {mean:?}");
    let least = results.iter().map(|(_, held)| held).min().unwrap();
    assert!(*least * 100 >= holds / 5, "{results:?}");
}
