//! The fenced lock beside Redisson's: each side continues the other's tokens. Redisson 3.16.8 has
//! no fenced lock.

use std::time::Duration;

use leasehold::{Client, MultiLock};
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson};

use super::VERSION;
use crate::support::{HOUR, eventually};

/// A limit that ends long before any lease of 30 s.
const SOON: Duration = Duration::from_secs(10);

const COUNTER: &str = "redisson_lock_token:{x}";

async fn place() -> (RedisServer, Redisson, RedissonThread, Client) {
    let server = crate::topology::start();
    let redisson = Redisson::start(VERSION, &server.url());
    redisson.client("c", None).unwrap();
    let java = redisson.thread("c", "t").kind(LockKind::Fenced);
    let rust = Client::connect(&server.url()).await.unwrap();
    (server, redisson, java, rust)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_from_each_other() {
    let (server, _redisson, java, rust) = &place().await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = rust.fenced_lock("x").acquire().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        assert_eq!(java.token("x").unwrap().value, last, "Java reads ours");
        guard.release().await.unwrap();
        let theirs = java.lock_and_get_token("x").unwrap().value;
        assert_eq!(theirs, last + 1, "Java counts on from ours");
        last = theirs;
        let election = rust.election("x");
        let leader = election.leader().await.unwrap().expect("Java leads");
        assert_eq!(
            (leader.payload, leader.token, leader.since),
            (None, None, None)
        );
        assert!(election.try_stand().await.unwrap().is_none());
        assert_eq!(
            rust.fenced_lock("x").last_token().await.unwrap(),
            Some(last)
        );
        java.unlock("x").unwrap();
        let term = election.stand().await.unwrap();
        assert!(term.token() > last);
        last = term.token();
        assert_eq!(
            java.token("x").unwrap().value,
            last,
            "Java reads the term's"
        );
        term.resign().await.unwrap();
    }
    let stored = server.command(&["GET", COUNTER]).unwrap();
    assert_eq!(stored.as_text(), Some(&*last.to_string()));
    let ttl = server.command(&["PTTL", COUNTER]).unwrap();
    assert_eq!(ttl.as_int(), Some(-1), "Java would start again at 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn java_tokens_continue_after_other_kinds() {
    let (server, _redisson, java, rust) = &place().await;
    // A number beyond any clock, which can only have been derived from the counter of a member.
    const AHEAD: u64 = 1 << 52;
    let ahead = ["SET", "redisson_lock_token:{y}", &AHEAD.to_string()];
    server.command(&ahead).unwrap();
    let both = MultiLock::new([rust.lock("x"), rust.lock("y")]).unwrap();
    let mut last = 0;
    for kind in ["plain", "fair", "multi"] {
        let guard = match kind {
            "plain" => rust.lock("x").acquire().await.unwrap(),
            "fair" => rust.fair_lock("x").acquire().await.unwrap(),
            _ => both.acquire().await.unwrap(),
        };
        let token = guard.fencing_token().await.unwrap();
        assert!(token > last, "{kind}: {token} after {last}");
        assert_eq!(token > AHEAD, kind == "multi", "{token}");
        assert_eq!(java.token("x").unwrap().value, token, "Java reads ours");
        guard.release().await.unwrap();
        last = java.lock_and_get_token("x").unwrap().value;
        assert_eq!(last, token + 1, "Java counts on from a {kind} hold's");
        java.unlock("x").unwrap();
    }
    let guard = rust.rw_lock("x").write().await.unwrap();
    assert_eq!(guard.fencing_token().await.unwrap(), last + 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_excludes_the_other_and_wakes_it() {
    let (server, _redisson, java, rust) = &place().await;
    java.lock("x").unwrap();
    let lock = rust.fenced_lock("x").poll_interval(HOUR);
    assert!(lock.try_acquire().await.unwrap().is_none());
    // Only the message can wake the waiter in time.
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("it listens", async || rust.activity().channels == 1).await;
    // After this time, the subscription is confirmed, and the waiter has asked once more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    java.unlock("x").unwrap();
    let woken = tokio::time::timeout(SOON, waiter).await.expect("woken");
    let guard = woken.unwrap().unwrap();
    assert!(!java.try_lock("x").unwrap().value);
    let pending = java.start_lock("x");
    eventually("it listens", async || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    pending.wait(SOON).expect("woken");
    java.unlock("x").unwrap();
}
