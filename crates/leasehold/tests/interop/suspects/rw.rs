//! The read-write lock.

use super::*;
use crate::javas::asleep;
use leasehold_testkit::Proxy;
use leasehold_testkit::proxy::Strike;

/// Bytes of each request for a lock with Redisson's watchdog.
const LEASE_MS: &[u8] = b"\r\n30000\r\n";
const CHANNEL: &str = "redisson_rwlock:{x}";

#[tokio::test(flavor = "multi_thread")]
async fn inner_read_unlock_cuts_java_write_hold() {
    let place = place().await;
    let (read, write) = (place.thread(LockKind::Read), place.thread(LockKind::Write));
    write.lock_lease("x", LONG).unwrap();
    read.lock_lease("x", SHORT).unwrap();
    read.lock_lease("x", SHORT).unwrap();
    read.unlock("x").unwrap();
    assert!(place.ttl_ms("x") <= SHORT_MS, "{}", place.ttl_ms("x"));
    read.unlock("x").unwrap();
    write.unlock("x").unwrap();
    let owner = leasehold::Owner::new();
    let lock = place.rust.rw_lock("x").owned_by(&owner);
    let writing = lock.clone().fixed_lease(LONG).write().await.unwrap();
    let first = lock.clone().fixed_lease(SHORT).read().await.unwrap();
    let second = lock.fixed_lease(SHORT).read().await.unwrap();
    first.release().await.unwrap();
    assert!(place.ttl_ms("x") > SHORT_MS, "{}", place.ttl_ms("x"));
    second.release().await.unwrap();
    writing.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_in_java_wakes_nobody() {
    let place = place().await;
    let (read, write) = (place.thread(LockKind::Read), place.thread(LockKind::Write));
    let reader = place.other("reader", LockKind::Read);
    write.lock("x").unwrap();
    read.lock("x").unwrap();
    let before = place.asks();
    let waiting = reader.start_lock("x");
    place.listen(1, CHANNEL).await;
    place.asked(before, 2).await;
    let published = place.published();
    write.unlock("x").unwrap();
    assert_eq!(place.published(), published);
    assert!(!waiting.is_done());
    // Our client reads at once.
    let reading = place.rust.rw_lock("x").try_read().await.unwrap();
    reading.unwrap().release().await.unwrap();
    read.unlock("x").unwrap();
    waiting.wait(SOON).unwrap();
    reader.unlock("x").unwrap();
}

/// The reply to the refused reader arrives after the message that the lock is free. That message
/// wakes a thread that already sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn refused_java_reader_misses_java_writers_release() {
    let server = topology::start();
    let proxy = Proxy::to(server.port());
    let readers = JavaClient::with(VERSION, &proxy.url(), json!({}));
    let [sleeps, refused] = ["sleeps", "refused"].map(|name| readers.thread(name));
    let [sleeps, refused] = [sleeps, refused].map(|java| java.kind(LockKind::Read));
    let place = place_at(server, json!({})).await;
    let write = place.thread(LockKind::Write);
    // After these calls, the server knows the thread's script.
    sleeps.lock("x").unwrap();
    sleeps.unlock("x").unwrap();
    for ours in [true, false] {
        let writing = match ours {
            true => Some(place.rust.rw_lock("x").write().await.unwrap()),
            false => write.lock("x").map(|_| None).unwrap(),
        };
        let sleeping = sleeps.start_lock("x");
        asleep(&[&sleeps]).await;
        let answer = proxy.strike_after(1, LEASE_MS, Strike::HoldReply);
        let waiting = refused.start_lock("x");
        eventually("it is refused", async || answer.fired()).await;
        match writing {
            Some(writing) => writing.release().await.unwrap(),
            None => drop(write.unlock("x").unwrap()),
        }
        sleeping.wait(SOON).expect("woken by the message");
        proxy.let_go(&answer);
        match ours {
            true => drop(waiting.wait(SOON).expect("woken by what is kept for it")),
            false => {
                asleep(&[&refused]).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(!waiting.is_done());
            }
        }
        // The message of the last reader's release is kept for the thread too.
        sleeps.unlock("x").unwrap();
        if !ours {
            waiting.wait(SOON).expect("woken");
        }
        refused.unlock("x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_write_reentry_adds_lease_to_hold() {
    let place = place().await;
    let write = place.thread(LockKind::Write);
    for _ in 0..3 {
        write.lock_lease("x", SHORT).unwrap();
    }
    assert!(place.ttl_ms("x") > 2 * SHORT_MS, "{}", place.ttl_ms("x"));
}

#[tokio::test(flavor = "multi_thread")]
async fn java_readers_overtake_writer_and_cannot_upgrade() {
    let place = place().await;
    let [a, b] = ["a", "b"].map(|name| place.other(name, LockKind::Read));
    let writer = place.other("writer", LockKind::Write);
    a.lock("x").unwrap();
    let waiting = writer.start_lock("x");
    place.listen(1, CHANNEL).await;
    assert!(b.try_lock("x").unwrap().value);
    a.unlock("x").unwrap();
    assert!(!b.kind(LockKind::Write).try_lock("x").unwrap().value);
    b.unlock("x").unwrap();
    waiting.wait(SOON).unwrap();
    writer.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_java_read_hold_is_still_reported() {
    let place = place().await;
    let [ended, other] = ["ended", "other"].map(|name| place.other(name, LockKind::Read));
    other.lock_lease("x", LONG).unwrap();
    ended.lock_lease("x", Duration::from_secs(1)).unwrap();
    let holds = || {
        let keys = place.server.keys();
        keys.iter()
            .filter(|key| key.contains("rwlock_timeout"))
            .count()
    };
    eventually("its lease is over", async || holds() == 1).await;
    assert!(ended.is_held_by_current_thread("x").unwrap().value);
    ended.unlock("x").expect("without an error");
    // Each unlock queries the expiry of each hold of all readers.
    for n in 0..50 {
        let reader = format!("reader-{n}");
        place.int(&["HSET", "x", &reader, "1"]);
        let hold = format!("{{x}}:{reader}:rwlock_timeout:1");
        place.text(&["SET", &hold, "1", "PX", "60000"]);
    }
    let before = place.server.calls("pttl");
    other.unlock("x").unwrap();
    assert!(place.server.calls("pttl") - before >= 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_java_reader_cuts_longer_read_leases() {
    const WATCHDOG_MS: u64 = 3000;
    let place = place_with(json!({"watchdog_ms": WATCHDOG_MS})).await;
    let strangers = [place.stranger(), place.stranger()];
    let [living, dead] =
        [&strangers[0], &strangers[1]].map(|java| java.thread("t").kind(LockKind::Read));
    living.lock_lease("x", LONG).unwrap();
    dead.lock_lease("x", Duration::from_millis(WATCHDOG_MS))
        .unwrap();
    let (read, write) = (place.thread(LockKind::Read), place.thread(LockKind::Write));
    read.lock("x").unwrap();
    let cut = || place.ttl_ms("x") <= SHORT_MS;
    eventually("its watchdog has cut the lock", async || cut()).await;
    place.is_renewed("x", 4).await;
    let holds = || {
        let keys = place.server.keys();
        keys.iter()
            .filter(|key| key.contains("rwlock_timeout"))
            .count()
    };
    assert_eq!(
        holds(),
        if IS_OLD { 3 } else { 2 },
        "nobody renews the dead"
    );
    read.unlock("x").unwrap();
    if IS_OLD {
        let entered = write.try_lock_wait("x", SOON, None).unwrap();
        assert!(entered.value, "beside one that reads for {LONG:?}");
    } else {
        assert!(place.ttl_ms("x") > SHORT_MS, "put right as it leaves");
        assert!(!write.try_lock("x").unwrap().value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_read_lease_leaks_to_next_hold() {
    let place = place().await;
    let other = place.other("other", LockKind::Read);
    other.lock_lease("x", LONG).unwrap();
    let read = place.thread(LockKind::Read).shared();
    read.lock_lease("x", Duration::from_secs(3)).unwrap();
    read.unlock("x").unwrap();
    read.lock("x").unwrap();
    let keys = place.server.keys();
    let leases = keys.iter().filter(|key| key.contains("rwlock_timeout"));
    let shortest = leases.map(|key| place.ttl_ms(key)).min().unwrap();
    assert!(shortest <= 3000, "{shortest}: its own would be 30 s");
}
