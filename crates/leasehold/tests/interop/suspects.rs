//! What Redisson does that its users may not expect, seen live; and that ours does not.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::RedisServer;
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use serde_json::json;

use super::VERSION;
use crate::javas::JavaClient;
use crate::sides::SOON;
use crate::topology;

struct Place {
    server: RedisServer,
    java: JavaClient,
    rust: Client,
}

async fn place() -> Place {
    let server = topology::start();
    Place {
        java: JavaClient::new(VERSION, &server.url(), None),
        rust: Client::connect(&server.url()).await.unwrap(),
        server,
    }
}

impl Place {
    fn ttl_ms(&self) -> i64 {
        let ttl = self.server.command(&["PTTL", "x"]).unwrap();
        ttl.as_int().unwrap()
    }

    fn thread(&self, kind: LockKind) -> RedissonThread {
        self.java.thread("t").kind(kind)
    }
}

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(20);
const SHORT_MS: i64 = 20_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_re_entry_with_a_shorter_lease_shortens_javas_hold_and_not_ours() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    java.lock_lease("x", LONG).unwrap();
    java.lock_lease("x", SHORT).unwrap();
    assert!(place.ttl_ms() <= SHORT_MS);
    java.unlock("x").unwrap();
    java.unlock("x").unwrap();
    let owner = place.rust.owner();
    let lock = place.rust.lock("x").owned_by(&owner);
    let outer = lock.clone().lease(LONG).acquire().await.unwrap();
    let inner = lock.lease(SHORT).acquire().await.unwrap();
    assert!(place.ttl_ms() > SHORT_MS);
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_unlock_inside_a_write_hold_cuts_javas_write_hold_and_not_ours() {
    let place = place().await;
    let (read, write) = (place.thread(LockKind::Read), place.thread(LockKind::Write));
    write.lock_lease("x", LONG).unwrap();
    read.lock_lease("x", SHORT).unwrap();
    read.lock_lease("x", SHORT).unwrap();
    read.unlock("x").unwrap();
    assert!(place.ttl_ms() <= SHORT_MS, "{}", place.ttl_ms());
    read.unlock("x").unwrap();
    write.unlock("x").unwrap();
    let owner = place.rust.owner();
    let lock = place.rust.rw_lock("x").owned_by(&owner);
    let writing = lock.clone().lease(LONG).write().await.unwrap();
    let first = lock.clone().lease(SHORT).read().await.unwrap();
    let second = lock.lease(SHORT).read().await.unwrap();
    first.release().await.unwrap();
    assert!(place.ttl_ms() > SHORT_MS, "{}", place.ttl_ms());
    second.release().await.unwrap();
    writing.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_unlocks_a_free_fair_lock_without_an_error() {
    let place = place().await;
    let java = place.thread(LockKind::Fair);
    java.unlock("x").expect("although nobody holds it");
    // One that we hold it does not.
    let guard = place.rust.fair_lock("x").acquire().await.unwrap();
    assert!(java.unlock("x").is_err());
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_in_java_drops_the_expiry_of_a_semaphore_and_ours_keeps_it() {
    let place = place().await;
    let semaphore = place.rust.semaphore("x");
    for ours in [true, false] {
        place
            .server
            .command(&["SET", "x", "3", "PX", "100000"])
            .unwrap();
        if ours {
            semaphore.drain().await.unwrap();
            assert!(place.ttl_ms() > 0);
        } else {
            let drained = place.thread(LockKind::Plain);
            let drained = drained.start_call::<i64>("semaphore_drain", json!({"name": "x"}));
            assert_eq!(drained.wait(SOON).unwrap().value, 3);
            assert_eq!(place.ttl_ms(), -1);
        }
    }
}
