//! The fair lock's rows: one queue for both sides, in the order in which clients have asked.

use std::time::Duration;

use leasehold::{Client, FairLock, LockGuard};
use leasehold_testkit::redisson::{LockKind, Pending, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson};
use tokio::task::JoinHandle;

use super::VERSION;
use crate::child;
use crate::support::{HOUR, eventually};

/// A limit that ends long before any lease of 30 s, and before any timeout of Redisson's.
const SOON: Duration = Duration::from_secs(10);
const WATCHDOG: Duration = Duration::from_millis(2400);

struct Place {
    server: RedisServer,
    redisson: Redisson,
    rust: Client,
}

impl Place {
    async fn new() -> Self {
        let server = crate::topology::start();
        let redisson = Redisson::start(VERSION, &server.url());
        redisson.client("c", None).unwrap();
        Self {
            redisson,
            rust: Client::connect(&server.url()).await.unwrap(),
            server,
        }
    }

    fn java(&self, thread: &str) -> RedissonThread {
        self.redisson.thread("c", thread).kind(LockKind::Fair)
    }

    /// Makes our lock. Its waiters poll no more often than once an hour, so only a message or the
    /// end of a lease makes them ask earlier.
    fn ours(&self) -> FairLock {
        let lock = self.rust.fair_lock("x").poll_interval(HOUR);
        lock.waiter_timeout(HOUR)
    }

    async fn waiting(&self, waiters: usize) {
        let lock = self.ours();
        eventually(&format!("{waiters} wait"), async || {
            lock.waiters().await.unwrap().len() == waiters
        })
        .await;
    }

    /// Waits until the last waiter in line listens on its channel. Of our waiters only the first
    /// listens, and it wakes the others.
    async fn last_listens(&self) {
        let last = self.ours().waiters().await.unwrap().pop().unwrap();
        eventually("the last in line listens", async || {
            let channels = self.server.channels();
            channels.iter().any(|channel| channel.ends_with(&last))
        })
        .await;
    }

    async fn waiter(&self) -> JoinHandle<LockGuard> {
        let before = self.ours().waiters().await.unwrap();
        let lock = self.ours();
        let task = tokio::spawn(async move { lock.acquire().await.unwrap() });
        self.waiting(before.len() + 1).await;
        if !before.iter().any(|id| id.starts_with(self.rust.id())) {
            self.last_listens().await;
        }
        task
    }

    async fn java_waiter(&self, thread: &RedissonThread) -> Pending<()> {
        let before = self.ours().waiters().await.unwrap().len();
        let waiting = thread.start_lock("x");
        self.waiting(before + 1).await;
        self.last_listens().await;
        waiting
    }
}

async fn head(place: &Place) -> String {
    place.ours().waiters().await.unwrap().remove(0)
}

fn server_ms(server: &RedisServer) -> i64 {
    let time = server.command(&["TIME"]).unwrap();
    let part = |n: usize| -> i64 {
        time.as_array().unwrap()[n]
            .as_text()
            .unwrap()
            .parse()
            .unwrap()
    };
    part(0) * 1000 + part(1) / 1000
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let guard = tokio::time::timeout(SOON, waiter).await;
    guard.expect("served in time").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_is_refused_what_the_other_holds() {
    let place = Place::new().await;
    let (java, lock) = (place.java("t"), place.ours());
    java.lock("x").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let wait = Duration::from_secs(2);
    assert!(lock.try_acquire_for(wait).await.unwrap().is_none());
    java.unlock("x").unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert!(!java.try_lock("x").unwrap().value);
    assert!(!java.try_lock_wait("x", wait, None).unwrap().value);
    let error = java.unlock("x").unwrap_err();
    assert!(error.class.contains("IllegalMonitorState"), "{error:?}");
    guard.release().await.unwrap();
    assert!(java.try_lock("x").unwrap().value);
    java.unlock("x").unwrap();
    crate::topology::is_empty(&place.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_serve_mixed_queue_in_order() {
    let place = Place::new().await;
    let [a, b] = [place.java("a"), place.java("b")];
    let guard = place.ours().acquire().await.unwrap();
    let first = place.waiter().await;
    let second = place.java_waiter(&a).await;
    let third = place.waiter().await;
    let fourth = place.java_waiter(&b).await;
    guard.release().await.unwrap();
    let guard = served(first).await;
    assert!(!second.is_done());
    guard.release().await.unwrap();
    second.wait(SOON).unwrap();
    assert!(!third.is_finished());
    a.unlock("x").unwrap();
    let guard = served(third).await;
    assert!(!fourth.is_done());
    guard.release().await.unwrap();
    fourth.wait(SOON).unwrap();
    b.unlock("x").unwrap();
    crate::topology::is_empty(&place.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_aborted_head_lets_java_waiter_in() {
    let place = Place::new().await;
    let [holder, next] = [place.java("holder"), place.java("next")];
    holder.lock("x").unwrap();
    let head = place.waiter().await;
    let waiting = place.java_waiter(&next).await;
    head.abort();
    place.waiting(1).await;
    assert!(!waiting.is_done());
    holder.unlock("x").unwrap();
    waiting.wait(SOON).expect("it was called");
    next.unlock("x").unwrap();
    crate::topology::is_empty(&place.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_head_timeout_lets_our_waiter_in() {
    let place = Place::new().await;
    let java = place.java("t");
    let guard = place.ours().acquire().await.unwrap();
    let wait = Duration::from_millis(1500);
    let head = java.start_try_lock_wait("x", wait, Some(Duration::from_secs(30)));
    place.waiting(1).await;
    let next = place.waiter().await;
    assert!(!head.wait(SOON).unwrap().value);
    place.waiting(1).await;
    guard.release().await.unwrap();
    served(next).await.release().await.unwrap();
    crate::topology::is_empty(&place.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_unlock_wakes_other_sides_queue_head() {
    let place = Place::new().await;
    let (java, lock) = (place.java("t"), place.ours());
    let guard = lock.acquire().await.unwrap();
    let waiting = place.java_waiter(&java).await;
    assert!(lock.force_unlock().await.unwrap());
    waiting.wait(SOON).unwrap();
    assert!(guard.release().await.is_err());
    let next = place.waiter().await;
    assert!(java.force_unlock("x").unwrap().value);
    served(next).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_lease_hands_fair_lock_across() {
    let place = Place::new().await;
    let (java, lock) = (place.java("t"), place.ours());
    let lease = WATCHDOG * 2;
    java.lock_lease("x", lease).unwrap();
    let guard = served(place.waiter().await).await;
    guard.release().await.unwrap();
    lock.fixed_lease(lease).acquire().await.unwrap().forget();
    let waiting = place.java_waiter(&java).await;
    // A head of 3.16.8 that asks just when the lease ends sleeps for ever, because no client
    // notifies it. Our waiters do.
    let behind = place.rust.fair_lock("x");
    let behind = tokio::spawn(async move { behind.acquire().await.unwrap() });
    waiting.wait(SOON).expect("served");
    java.unlock("x").unwrap();
    served(behind).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_rust_waiter_does_not_block_java() {
    let place = Place::new().await;
    let java = place.java("t");
    let guard = place.ours().acquire().await.unwrap();
    let url = place.server.url();
    let mut dead = child::wait(LockKind::Fair, &url, "x", WATCHDOG);
    dead.wait_for("waits");
    place.waiting(1).await;
    let waiting = java.start_lock("x");
    place.waiting(2).await;
    dead.kill();
    // One of our clients removes the dead waiter. Here the next waiter in line does it; without
    // that waiter, the release would.
    let lock = place.rust.fair_lock("x");
    let last = tokio::spawn(async move { lock.acquire().await.unwrap() });
    guard.release().await.unwrap();
    waiting
        .wait(SOON)
        .expect("served after the waiter timeout of 5 s");
    java.unlock("x").unwrap();
    served(last).await.release().await.unwrap();
    crate::topology::is_empty(&place.server).await;
}

/// Redisson's own rule applies: an entry is valid for as long as its waiter wants to wait.
#[tokio::test(flavor = "multi_thread")]
async fn killed_java_waiter_leaves_at_redissons_timeout() {
    let place = Place::new().await;
    let other = Redisson::start(VERSION, &place.server.url());
    other.client("c", None).unwrap();
    let dead = other.thread("c", "t").kind(LockKind::Fair);
    let lock = place.ours().fixed_lease(WATCHDOG);
    lock.clone().acquire().await.unwrap().forget();
    let wait = Duration::from_secs(3);
    let _waiting = dead.start_try_lock_wait("x", wait, Some(WATCHDOG));
    place.waiting(1).await;
    other.kill();
    let score = ["ZSCORE", "redisson_lock_timeout:{x}", &head(&place).await];
    let timeout_ms: i64 = place
        .server
        .command(&score)
        .unwrap()
        .as_text()
        .unwrap()
        .parse()
        .unwrap();
    let lock = place.rust.fair_lock("x");
    let guard = tokio::time::timeout(SOON, lock.acquire()).await;
    let guard = guard.expect("served").unwrap();
    assert!(
        server_ms(&place.server) >= timeout_ms,
        "thrown out too early"
    );
    guard.release().await.unwrap();
    crate::topology::is_empty(&place.server).await;
}

/// The head would sleep for ever in 3.16.8; in 4.7.0 the later waiters would spin.
#[tokio::test(flavor = "multi_thread")]
async fn our_waiter_wakes_sleeping_java_head() {
    let place = Place::new().await;
    let java = place.java("t");
    let mut holder = child::hold(LockKind::Fair, &place.server.url(), "x", WATCHDOG);
    let waiting = place.java_waiter(&java).await;
    // This leaves time for the polls after which 3.16.8 sleeps for ever. A head that does not sleep
    // yet must be served anyway.
    tokio::time::sleep(WATCHDOG * 3).await;
    assert!(!waiting.is_done());
    let lock = place.rust.fair_lock("x");
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    place.waiting(2).await;
    holder.kill();
    waiting.wait(SOON).expect("our waiter has called it");
    java.unlock("x").unwrap();
    served(next).await.release().await.unwrap();
}
