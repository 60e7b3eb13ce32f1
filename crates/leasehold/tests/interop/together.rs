//! Both Redisson versions and two Rust processes at once on one plain counter.

use std::time::Duration;

use leasehold::history::{Interval, check};
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};

use crate::child;

const THREADS: usize = 8;
const RUN: Duration = Duration::from_secs(10);

#[test]
fn threads_of_both_versions_and_two_rust_processes_lose_no_count() {
    let server = RedisServer::start().unwrap();
    let javas: Vec<_> = RedissonVersion::ALL
        .iter()
        .map(|version| {
            let redisson = Redisson::start(*version, &server.url());
            redisson.client("c", None).unwrap();
            redisson
        })
        .collect();
    let hammers: Vec<_> = javas
        .iter()
        .map(|java| java.thread("c", "t").hammer("hot", "counter", THREADS, RUN))
        .collect();
    let children: Vec<_> = (0..2)
        .map(|_| child::count(&server.url(), "hot", "counter", THREADS / 2, RUN))
        .collect();
    let mut intervals = Vec::new();
    let mut sides = Vec::new();
    for (hammer, version) in hammers.into_iter().zip(RedissonVersion::ALL) {
        let report = hammer.wait(RUN * 4).unwrap().value;
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
    println!("{sides:?}, counted {counted}");
    assert_eq!(counted, intervals.len(), "counts were lost");
    assert!(sides.iter().all(|(_, holds)| *holds > 0), "{sides:?}");
    check(&intervals).judge().unwrap();
    assert_eq!(server.keys(), ["counter"]);
}
