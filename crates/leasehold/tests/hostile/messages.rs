//! Forged messages: any client may publish on a lock's channel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::{Client, LockGuard};
use leasehold_testkit::fake::{Action, bulk, list, message, ordinary};
use leasehold_testkit::{FakeServer, RedisServer};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;

use super::calls::{self, Call, grant, int};
use super::process::{MEASURING, assert_no_panics, memory, watch_panics};
use crate::support::{HOUR, eventually};

const CHANNEL: &str = "redisson_lock__channel:{x}";

/// A held lock, and a waiter for it that listens.
struct Contended {
    server: RedisServer,
    guard: LockGuard,
    waiter: JoinHandle<LockGuard>,
    publisher: MultiplexedConnection,
}

async fn contended() -> Contended {
    let server = RedisServer::start().unwrap();
    let holder = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || hears(&server)).await;
    let publisher = redis::Client::open(server.url()).unwrap();
    let publisher = publisher.get_multiplexed_async_connection().await.unwrap();
    Contended {
        server,
        guard,
        waiter,
        publisher,
    }
}

/// Returns whether the waiter listens for releases, and for its own notifications.
fn hears(server: &RedisServer) -> bool {
    let channels = server.channels();
    channels.len() == 2 && channels.iter().any(|channel| channel == CHANNEL)
}

impl Contended {
    /// Publishes `payload` `times` times. Returns the number of listeners that received it.
    async fn publish(&mut self, payload: &[u8], times: usize) -> usize {
        let mut pipe = redis::pipe();
        for _ in 0..times {
            pipe.cmd("PUBLISH").arg(CHANNEL).arg(payload);
        }
        let heard: Vec<usize> = pipe.query_async(&mut self.publisher).await.unwrap();
        heard.into_iter().sum()
    }

    /// Releases the lock. The waiter gets it as usual.
    async fn hand_over(self) {
        self.guard.release().await.unwrap();
        self.waiter.await.unwrap().release().await.unwrap();
        assert!(self.server.keys().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wake_up_flood_triggers_few_requests() {
    let _alone = MEASURING.lock().await;
    let mut lock = contended().await;
    let calls = lock.server.calls("evalsha");
    let started = tokio::time::Instant::now();
    let mut heard = 0;
    // The flood is sent in small pieces, so that the server has time for requests between them.
    for _ in 0..3000 {
        heard += lock.publish(b"0", 10).await;
    }
    let (calls, took) = (lock.server.calls("evalsha") - calls, started.elapsed());
    println!("{heard} wake-ups in {took:.1?}, {calls} asks");
    assert_eq!(heard, 30_000, "it was flooded");
    // The watchdog may have renewed in between, and that allows another burst of requests.
    let most = 60 + (took.as_secs_f64() * 15.0) as u64;
    assert!(calls <= most, "{calls} asks in {took:?}");
    lock.hand_over().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_permit_messages_trigger_few_requests() {
    let _alone = MEASURING.lock().await;
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let publisher = redis::Client::open(server.url()).unwrap();
    let mut publisher = publisher.get_multiplexed_async_connection().await.unwrap();
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    let expirable = client.expirable_semaphore("y").poll_interval(HOUR);
    semaphore.try_set_permits(0).await.unwrap();
    expirable.try_set_permits(0).await.unwrap();
    let waits = semaphore.clone();
    let plain = tokio::spawn(async move { waits.acquire().await.unwrap() });
    let waits = expirable.clone();
    let leased = tokio::spawn(async move { waits.acquire().await.unwrap() });
    // Each client listens for releases and for its own notifications.
    eventually("both listen", async || server.channels().len() == 4).await;
    let calls = server.calls("evalsha");
    let started = tokio::time::Instant::now();
    for _ in 0..1500 {
        let mut pipe = redis::pipe();
        for channel in ["redisson_sc:{x}", "redisson_sc:{y}"].repeat(5) {
            pipe.cmd("PUBLISH").arg(channel).arg("1");
        }
        let heard: Vec<usize> = pipe.query_async(&mut publisher).await.unwrap();
        assert_eq!(heard, [1; 10], "they are flooded");
    }
    let (calls, took) = (server.calls("evalsha") - calls, started.elapsed());
    let most = 120 + (took.as_secs_f64() * 25.0) as u64;
    assert!(calls <= most, "{calls} asks in {took:?}");
    semaphore.release(1).await.unwrap();
    expirable.add_permits(1).await.unwrap();
    plain.await.unwrap().release().await.unwrap();
    leased.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_flood_does_not_fill_the_memory() {
    const MESSAGES: usize = 150_000;
    watch_panics();
    let _alone = MEASURING.lock().await;
    let flood = message(CHANNEL.as_bytes(), b"0").repeat(MESSAGES);
    let grown = Arc::new(OnceLock::new());
    let (before, seen) = (memory(), Arc::clone(&grown));
    let server = FakeServer::with(move |request| {
        if let Some(call) = calls::read(request) {
            let free = seen.get().is_some() || !call.operations[0].step.starts_with("lock.acquire");
            let reply = if free { grant(&call) } else { busy(&call) };
            return Some(Action::Send(reply));
        }
        if request.command() != "SUBSCRIBE" {
            return None;
        }
        request.connection.send(&ordinary(request)).unwrap();
        // This is faster than any server: it returns when all but the last piece was read.
        request.connection.send(&flood).unwrap();
        seen.set(memory().saturating_sub(before)).unwrap();
        Some(Action::Send(Vec::new()))
    });
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(50));
    lock.acquire().await.unwrap().release().await.unwrap();
    let grown = grown.get().unwrap();
    println!("memory grew by {grown} bytes");
    assert!(*grown < 16 << 20, "memory grew by {grown} bytes");
    assert_no_panics();
}

/// Builds the reply "another client holds the lock for a minute".
fn busy(call: &Call) -> Vec<u8> {
    list(&[int(call.number), int(60_000)])
}

#[tokio::test]
async fn payloads_of_any_size_and_content_change_nothing() {
    let _alone = MEASURING.lock().await;
    watch_panics();
    let mut lock = contended().await;
    let random: Vec<u8> = (0..5000).map(|_| fastrand::u8(..)).collect();
    for payload in [&b""[..], b"1", b"\r\n*3\r\n", b"-1", &random] {
        lock.publish(payload, 3).await;
    }
    let before = memory();
    let huge = vec![b'x'; 10 << 20];
    for _ in 0..8 {
        lock.publish(&huge, 1).await;
        // The huge message may have cost the connection, which is opened again.
        let server = &lock.server;
        eventually("it listens", async || hears(server)).await;
    }
    let growth = memory().saturating_sub(before);
    assert!(growth < 96 << 20, "memory grew by {growth} bytes");
    assert!(!lock.waiter.is_finished(), "nothing of this is a grant");
    lock.hand_over().await;
    assert_no_panics();
}

/// Starts a server that sends `unasked` after the first subscription. Its locks are free from the
/// second subscription on.
fn intruding(unasked: Vec<u8>, subscriptions: &Arc<AtomicUsize>) -> FakeServer {
    let seen = Arc::clone(subscriptions);
    FakeServer::with(move |request| {
        if let Some(call) = calls::read(request) {
            let free = seen.load(Ordering::SeqCst) > 1;
            let reply = if free { grant(&call) } else { busy(&call) };
            return Some(Action::Send(reply));
        }
        if request.command() != "SUBSCRIBE" {
            return None;
        }
        let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
        let more = if first { &unasked[..] } else { b"" };
        Some(Action::Send([&ordinary(request), more].concat()))
    })
}

#[tokio::test]
async fn unsolicited_push_ends_the_connection() {
    watch_panics();
    let x = CHANNEL.as_bytes();
    let kinds = ["subscribe", "unsubscribe", "sunsubscribe", "pmessage", "?"];
    let odd = kinds.map(|kind| list(&[bulk(kind.as_bytes()), bulk(x), int(0)]));
    let pushes = [
        &b">3\r\n+sunsubscribe\r\n+x\r\n:0\r\n"[..],
        b"*1048577\r\n",
        b"+OK\r\n",
    ];
    let pushes = pushes.map(<[u8]>::to_vec);
    for unasked in odd.into_iter().chain(pushes) {
        let shown = unasked.escape_ascii().to_string();
        let subscriptions = Arc::default();
        let server = intruding(unasked, &subscriptions);
        let client = Client::connect(&server.url()).await.unwrap();
        let lock = client.lock("x").poll_interval(HOUR);
        let guard = tokio::time::timeout(Duration::from_secs(30), lock.acquire()).await;
        let guard = guard.unwrap_or_else(|_| panic!("asleep for ever after {shown}"));
        guard.unwrap().release().await.unwrap();
        assert_eq!(subscriptions.load(Ordering::SeqCst), 2, "{shown}");
    }
    assert_no_panics();
}

#[tokio::test]
async fn a_message_for_another_channel_wakes_nobody() {
    let asks = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asks);
    let server = FakeServer::with(move |request| {
        if let Some(call) = calls::read(request) {
            seen.fetch_add(1, Ordering::SeqCst);
            return Some(Action::Send(busy(&call)));
        }
        if request.command() != "SUBSCRIBE" {
            return None;
        }
        let others = message(b"another", b"0").repeat(1000);
        Some(Action::Send([ordinary(request), others].concat()))
    });
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    // The waiter has asked once before it listened, and once after that.
    eventually("it listens", async || asks.load(Ordering::SeqCst) == 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(asks.load(Ordering::SeqCst), 2);
    waiter.abort();
}
