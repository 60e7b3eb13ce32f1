//! Both Redisson versions and several Rust processes at once on one plain counter.

use std::time::Duration;

use leasehold::testing::history::{Interval, check};
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion, eventually};

use crate::child::{self, Count};

const THREADS: usize = 8;
const RUN: Duration = Duration::from_secs(10);
/// A limit. A Redisson thread that misses a message of another Redisson sleeps for a lease, 30 s.
const LIMIT: Duration = Duration::from_secs(80);

/// Names of locks with several parts, as each side writes them.
const PAIR: &str = "hot,warm";
const GROUP: &str = "hot/a,b";

#[test]
fn plain_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Plain, "hot");
}

#[test]
fn fair_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Fair, "hot");
}

#[test]
fn fenced_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Fenced, "hot");
}

#[test]
fn write_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Write, "hot");
}

#[test]
fn multi_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Multi, PAIR);
}

#[test]
fn group_lock_loses_no_count_beside_redisson() {
    no_count_is_lost(LockKind::Group, GROUP);
}

#[test]
fn red_lock_loses_no_count_beside_redissons() {
    no_count_is_lost(LockKind::Red, "c0/hot,c1/hot,c2/hot");
}

/// Returns the lock that a version has for a kind of lock. Its plain lock excludes a fenced lock.
fn theirs(version: RedissonVersion, kind: LockKind) -> Option<LockKind> {
    match (version, kind) {
        (RedissonVersion::V3_16_8, LockKind::Fenced) => Some(LockKind::Plain),
        (RedissonVersion::V3_16_8, LockKind::Group) => None,
        _ => Some(kind),
    }
}

/// Increments a counter under a lock of this kind: in [`THREADS`] threads of each Redisson and in
/// sixteen clients in four processes.
fn no_count_is_lost(kind: LockKind, name: &str) {
    let count = if kind == LockKind::Red { 3 } else { 1 };
    let servers: Vec<_> = (0..count).map(|_| crate::topology::start()).collect();
    let server = &servers[0];
    let versions = RedissonVersion::ALL.into_iter();
    let versions = versions.filter_map(|version| Some((version, theirs(version, kind)?)));
    let javas: Vec<_> = versions
        .map(|(version, kind)| {
            let redisson = Redisson::start(version, &server.url());
            for (number, server) in servers.iter().enumerate() {
                let client = format!("c{number}");
                redisson.client_at(&client, &server.url(), None).unwrap();
            }
            (version, kind, redisson)
        })
        .collect();
    let hammers: Vec<_> = javas
        .iter()
        .map(|(_, kind, java)| {
            let thread = java.thread("c0", "t").kind(*kind);
            thread.hammer(name, "counter", THREADS, RUN)
        })
        .collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let plan = Count {
        urls: &urls.join(","),
        kind,
        name,
        counter: "counter",
        clients: 4,
        run: RUN,
    };
    let children: Vec<_> = (0..4).map(|_| child::count(plan)).collect();
    let mut intervals = Vec::new();
    let mut sides = Vec::new();
    for (hammer, (version, ..)) in hammers.into_iter().zip(&javas) {
        let report = hammer.wait(LIMIT);
        let report = report.unwrap_or_else(|error| panic!("{error}: {}", stands(&servers)));
        let report = report.value;
        sides.push((format!("Redisson {version}"), report.intervals.len()));
        for (number, hold) in report.intervals.iter().enumerate() {
            intervals.push(Interval::new(
                "hot",
                &format!("{version} thread {} hold {number}", hold.thread),
                hold.asked_ns,
                hold.acquired_ns,
                hold.released_ns,
            ));
        }
    }
    for (number, child) in children.into_iter().enumerate() {
        let holds = child::intervals(child, "hot");
        sides.push((format!("Rust process {number}"), holds.len()));
        intervals.extend(holds);
    }
    let counted = server.command(&["GET", "counter"]).unwrap();
    let counted: usize = counted.as_text().unwrap().parse().unwrap();
    println!("{kind:?}: {sides:?}, counted {counted}");
    assert_eq!(counted, intervals.len(), "counts were lost");
    assert!(sides.iter().all(|(_, holds)| *holds > 0), "{sides:?}");
    check(&intervals).judge().unwrap();
    let stays = |key: &String| key == "counter" || key.starts_with("redisson_lock_token:");
    let left = || servers.iter().flat_map(RedisServer::keys);
    eventually("nothing else is left", RUN, || {
        left().all(|key| stays(&key))
    });
}

/// Lists the keys on the servers, to show what delays a client.
fn stands(servers: &[RedisServer]) -> String {
    let keys = servers.iter().flat_map(|server| {
        server.keys().into_iter().map(move |key| {
            let [fields, ttl_ms] = ["HGETALL", "PTTL"].map(|ask| server.command(&[ask, &key]));
            format!("\n{key}: {fields:?}, {ttl_ms:?}")
        })
    });
    keys.collect()
}
