//! The read-write lock's rows: each side excludes the other side, wakes it, and keeps its own holds
//! apart from the other's. Calls to Java block their thread, so our side has other threads to run
//! on.

use std::time::Duration;

use leasehold::{Client, LossReason, RwLock};
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson};

use super::VERSION;
use crate::child;
use crate::javas::asleep;
use crate::support::{HOUR, eventually};

/// A limit that ends long before any lease of 30 s.
const SOON: Duration = Duration::from_secs(10);
const WATCHDOG: Duration = Duration::from_millis(2400);

struct Place {
    server: RedisServer,
    redisson: Redisson,
    client: Client,
    /// This library's lock, whose waiters only messages wake.
    lock: RwLock,
}

/// Starts a server, a Redisson client and a client of this library.
async fn place(watchdog: Option<Duration>) -> Place {
    let server = crate::topology::start();
    let redisson = Redisson::start(VERSION, &server.url());
    redisson.client("c", watchdog).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    Place {
        lock: client
            .rw_lock("x")
            .poll_interval(HOUR)
            .prefer_writers(false),
        client,
        server,
        redisson,
    }
}

impl Place {
    /// Returns a Java thread's read side and write side.
    fn java(&self, thread: &str) -> (RedissonThread, RedissonThread) {
        let thread = self.redisson.thread("c", thread);
        (thread.kind(LockKind::Read), thread.kind(LockKind::Write))
    }

    async fn we_wait(&self) {
        eventually("our waiter listens", async || {
            self.client.activity().channels == 1
        })
        .await;
        // After this time, the subscription is confirmed, and the waiter has asked once more.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn ttl_ms(&self, key: &str) -> i64 {
        let ttl = self.server.command(&["PTTL", key]).unwrap();
        ttl.as_int().unwrap()
    }

    async fn is_clean(&self) {
        crate::topology::is_empty(&self.server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_and_writers_exclude_across_sides() {
    let place = place(None).await;
    let (read, write) = place.java("t");
    let lock = &place.lock;
    read.lock("x").unwrap();
    let reading = lock.try_read().await.unwrap().expect("readers share");
    assert!(lock.try_write().await.unwrap().is_none());
    let (other_read, other_write) = place.java("other");
    assert!(other_read.try_lock("x").unwrap().value, "and a second one");
    assert!(!other_write.try_lock("x").unwrap().value);
    other_read.unlock("x").unwrap();
    // The end of each side's hold does not affect the other side's.
    read.unlock("x").unwrap();
    assert!(!write.try_lock("x").unwrap().value, "ours still reads");
    assert!(read.try_lock("x").unwrap().value);
    reading.release().await.unwrap();
    assert!(
        lock.try_write().await.unwrap().is_none(),
        "Java still reads"
    );
    read.unlock("x").unwrap();
    place.is_clean().await;

    write.lock("x").unwrap();
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(lock.write_lock().is_locked().await.unwrap());
    assert!(!lock.read_lock().is_locked().await.unwrap());
    write.unlock("x").unwrap();
    let writing = lock.try_write().await.unwrap().unwrap();
    assert!(!read.try_lock("x").unwrap().value);
    assert!(!write.try_lock("x").unwrap().value);
    assert!(write.is_locked("x").unwrap().value);
    assert!(!read.is_locked("x").unwrap().value);
    assert!(write.unlock("x").is_err(), "it is not Java's");
    writing.release().await.unwrap();
    assert!(write.try_lock("x").unwrap().value);
    write.unlock("x").unwrap();
    place.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_one_side_wakes_the_other() {
    let place = place(None).await;
    let (read, write) = place.java("t");
    // In the first case, Java reads and our client wants to write. In the others Java writes, and
    // our client wants to read or to write.
    for (java, we_write) in [(&read, true), (&write, false), (&write, true)] {
        java.lock("x").unwrap();
        let lock = place.lock.clone();
        let waiter = tokio::spawn(async move {
            match we_write {
                true => lock.write().await.unwrap().release().await.unwrap(),
                false => lock.read().await.unwrap().release().await.unwrap(),
            }
        });
        place.we_wait().await;
        assert!(!waiter.is_finished());
        java.unlock("x").unwrap();
        tokio::time::timeout(SOON, waiter)
            .await
            .expect("woken")
            .unwrap();
        eventually("nobody listens", async || {
            place.client.activity().channels == 0 && place.server.channels().is_empty()
        })
        .await;
    }
    // Then our client reads, and Java wants to write.
    let reading = place.lock.read().await.unwrap();
    let waiting = write.start_lock("x");
    asleep(&[&write]).await;
    reading.release().await.unwrap();
    waiting.wait(SOON).expect("woken");
    write.unlock("x").unwrap();
    for java in [&read, &write] {
        let writing = place.lock.write().await.unwrap();
        let waiting = java.start_lock("x");
        asleep(&[java]).await;
        assert!(!waiting.is_done());
        drop(writing);
        waiting.wait(SOON).expect("woken");
        java.unlock("x").unwrap();
    }
    place.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_write_release_wakes_all_java_readers() {
    let place = place(None).await;
    let writing = place.lock.write().await.unwrap();
    let readers: Vec<_> = (0..6).map(|n| place.java(&n.to_string()).0).collect();
    let waiting: Vec<_> = readers.iter().map(|java| java.start_lock("x")).collect();
    asleep(&readers.iter().collect::<Vec<_>>()).await;
    writing.release().await.unwrap();
    for waiting in &waiting {
        waiting.wait(SOON).expect("woken");
    }
    assert!(place.lock.try_read().await.unwrap().is_some());
    for java in readers {
        java.unlock("x").unwrap();
    }
    let clean = || place.server.keys().is_empty();
    eventually("all is gone", async || clean()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_downgrade_wakes_only_java_readers() {
    let place = place(None).await;
    let ((read, _), (_, write)) = (place.java("r"), place.java("w"));
    let writing = place.lock.write().await.unwrap();
    let reader = read.start_lock("x");
    let writer = write.start_lock("x");
    asleep(&[&read, &write]).await;
    // A downgrade wakes readers, and so does a release.
    let reading = writing.downgrade().await.unwrap();
    reader.wait(SOON).expect("woken");
    assert!(!writer.is_done());
    read.unlock("x").unwrap();
    assert!(!writer.is_done());
    reading.release().await.unwrap();
    writer.wait(SOON).expect("woken");
    write.unlock("x").unwrap();

    let owner = leasehold::Owner::new();
    let lock = place.lock.clone().owned_by(&owner);
    let (writing, reading) = (lock.write().await.unwrap(), lock.read().await.unwrap());
    assert!(read.is_locked("x").unwrap().value || VERSION.to_string() == "3.16.8");
    let reader = read.start_lock("x");
    asleep(&[&read]).await;
    writing.release().await.unwrap();
    reader
        .wait(SOON)
        .expect("woken, which Redisson's own downgrade does not");
    reading.release().await.unwrap();
    read.unlock("x").unwrap();
    place.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downgraded_java_thread_lets_our_reader_in() {
    let place = place(None).await;
    let (read, write) = place.java("t");
    write.lock("x").unwrap();
    read.lock("x").unwrap();
    assert!(place.lock.read_lock().is_locked().await.unwrap());
    assert!(place.lock.try_read().await.unwrap().is_none());
    write.unlock("x").unwrap();
    let reading = place.lock.try_read().await.unwrap().expect("it only reads");
    let refused = reading.try_upgrade().await.unwrap_err();
    read.unlock("x").unwrap();
    let writing = refused.into_guard().try_upgrade().await.unwrap();
    assert!(!read.try_lock("x").unwrap().value);
    writing.release().await.unwrap();
    assert!(read.try_lock("x").unwrap().value);
    read.unlock("x").unwrap();
    eventually("all is gone", async || place.server.keys().is_empty()).await;
}

/// If only Redisson used the lock, this would break exclusion: the watchdog of a reader of 3.16.8
/// cuts the leases of all other readers to its own timeout.
#[tokio::test(flavor = "multi_thread")]
async fn java_reader_watchdog_keeps_our_longer_hold() {
    let place = place(Some(WATCHDOG)).await;
    let (read, write) = place.java("t");
    let lock = place.lock.clone().redisson_watchdog(WATCHDOG);
    let ours = [
        lock.clone().fixed_lease(HOUR).read().await.unwrap(),
        lock.clone().read().await.unwrap(),
    ];
    read.lock("x").unwrap();
    let cut = || place.ttl_ms("x") <= 30_000;
    eventually("its watchdog has cut the lock", async || cut()).await;
    read.unlock("x").unwrap();
    // This is longer than the lease that the watchdog has left to them.
    for ours in &ours {
        let lost = tokio::time::timeout(WATCHDOG * 2, ours.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        assert!(!write.try_lock("x").unwrap().value, "we read");
    }
    let key = format!("{{x}}:{}:rwlock_timeout:1", ours[0].holder_id());
    assert!(place.ttl_ms(&key) > 3_500_000);
    assert!(place.ttl_ms("x") > 3_500_000);
    for ours in ours {
        ours.release().await.unwrap();
    }
    assert!(write.try_lock("x").unwrap().value);
    write.unlock("x").unwrap();
    place.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_renewal_changes_no_java_read_lease() {
    let place = place(Some(WATCHDOG)).await;
    let (left, _) = place.java("left");
    let (long, _) = place.java("long");
    let builder = Client::builder().lease(WATCHDOG);
    let client = builder.connect(&place.server.url()).await.unwrap();
    left.lock_lease("x", WATCHDOG).unwrap();
    long.lock_lease("x", HOUR).unwrap();
    let ours = client.rw_lock("x").read().await.unwrap();
    assert!(place.ttl_ms("x") > 3_500_000);
    let info = client.rw_lock("x").read_lock();
    eventually("it ends although we renew", async || {
        info.inspect().await.unwrap().holders.len() == 2
    })
    .await;
    let lost = tokio::time::timeout(WATCHDOG * 2, ours.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(place.ttl_ms("x") > 3_500_000, "the long one counts on it");
    long.unlock("x").unwrap();
    let ttl = place.ttl_ms("x");
    assert!((1..=2400).contains(&ttl), "{ttl}");
    ours.release().await.unwrap();
    place.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_rw_holder_lets_other_side_in() {
    let place = place(Some(WATCHDOG)).await;
    for side in ["read", "write"] {
        let redisson = Redisson::start(VERSION, &place.server.url());
        redisson.client("c", Some(WATCHDOG)).unwrap();
        let thread = redisson.thread("c", "t");
        let kind = if side == "read" {
            LockKind::Read
        } else {
            LockKind::Write
        };
        thread.kind(kind).lock("x").unwrap();
        redisson.kill();
        let writing = tokio::time::timeout(SOON, place.lock.write()).await;
        writing
            .expect("free after one lease of the killed process")
            .unwrap()
            .release()
            .await
            .unwrap();

        let mut child = child::hold(kind, &place.server.url(), "x", WATCHDOG);
        let (read, write) = place.java("t");
        assert!(!write.try_lock("x").unwrap().value);
        assert_eq!(read.try_lock("x").unwrap().value, side == "read");
        child.kill();
        if side == "read" {
            // A living reader of Java held the lock beside the killed one.
            read.unlock("x").unwrap();
        }
        let waiting = write.start_lock("x");
        waiting
            .wait(SOON)
            .expect("free after one lease of the killed process");
        write.unlock("x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_rw_unlock_is_seen_across_sides() {
    let place = place(None).await;
    let builder = Client::builder().lease(WATCHDOG);
    let client = builder.connect(&place.server.url()).await.unwrap();
    let lock = client.rw_lock("x");
    let (read, write) = place.java("t");
    let (_, other) = place.java("other");

    let reading = lock.read().await.unwrap();
    assert!(!write.force_unlock("x").unwrap().value, "the other mode");
    assert!(reading.is_held());
    assert!(read.force_unlock("x").unwrap().value);
    assert_eq!(reading.lost().await, LossReason::Deleted);
    drop(reading);
    let writing = lock.write().await.unwrap();
    assert!(write.force_unlock("x").unwrap().value);
    assert_eq!(writing.lost().await, LossReason::Deleted);
    drop(writing);

    read.lock("x").unwrap();
    let waiting = other.start_lock("x");
    asleep(&[&other]).await;
    assert!(!lock.write_lock().force_unlock().await.unwrap());
    assert!(lock.read_lock().force_unlock().await.unwrap());
    waiting.wait(SOON).expect("woken");
    assert!(read.unlock("x").is_err());
    let reader = read.start_lock("x");
    asleep(&[&read]).await;
    assert!(lock.write_lock().force_unlock().await.unwrap());
    reader.wait(SOON).expect("woken");
    assert!(other.unlock("x").is_err());
    read.unlock("x").unwrap();
}
