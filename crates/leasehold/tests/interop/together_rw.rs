//! Both Redisson versions and four Rust processes at once on one plain counter, raised
//! under the write side and looked at under the read side.

use std::time::Duration;

use leasehold::history::{Interval, check};
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{Redisson, RedissonVersion};

use crate::child;

const THREADS: usize = 8;
const PROCESSES: usize = 4;
const CLIENTS_EACH: usize = 4;
const RUN: Duration = Duration::from_secs(10);

#[test]
fn writers_of_both_versions_and_sixteen_rust_clients_lose_no_count() {
    let server = crate::topology::start();
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
        .map(|java| {
            let thread = java.thread("c", "t").kind(LockKind::Write);
            thread.hammer("hot", "counter", THREADS, RUN)
        })
        .collect();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| child::count_writes(&server.url(), "hot", "counter", CLIENTS_EACH, RUN))
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
    let mut reads = 0;
    for (number, child) in children.into_iter().enumerate() {
        let (holds, lines) = child::intervals_and_lines(child, "hot");
        reads += lines.iter().filter(|line| *line == "read").count();
        sides.push((format!("Rust process {number}"), holds.len()));
        intervals.extend(holds);
    }
    let counted = server.command(&["GET", "counter"]).unwrap();
    let counted: usize = counted.as_text().unwrap().parse().unwrap();
    println!("{sides:?}, {reads} reads, counted {counted}");
    assert_eq!(counted, intervals.len(), "counts were lost");
    assert!(sides.iter().all(|(_, holds)| *holds > 0), "{sides:?}");
    assert!(reads > 0);
    check(&intervals).judge().unwrap();
    // What a writer left that was not served to the last ends within its 5 s.
    let left = server.keys();
    assert!(left.contains(&"counter".to_owned()));
    assert!(!left.contains(&"hot".to_owned()), "{left:?}");
}
