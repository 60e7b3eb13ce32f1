//! `docs/from-redisson.md` has a line for every method of Redisson's locks and synchronizers, with
//! its parameters, as the live classes have them. It has no other methods.

use std::collections::BTreeSet;

use leasehold_testkit::RedissonVersion;
use leasehold_testkit::redisson::Pending;
use serde_json::json;

use super::VERSION;
use crate::javas::JavaClient;
use crate::sides::SOON;
use crate::support::wire::cells;
use crate::topology;

const PAGE: &str = include_str!("../../../../docs/from-redisson.md");

/// The section of methods that several types inherit.
const SHARED: &str = "What all objects have";

/// Types that are `RLock`s, but have a section of their own.
const WHOLES: [&str; 3] = [
    "Multi-lock: `getMultiLock(locks...)`",
    "Multi-lock of a group: `getMultiLock(group, values)`",
    "RedissonRedLock",
];

/// A method, and its number of parameters; `None` for any number.
type Method = (String, Option<usize>);

/// Returns the methods that the first column of a section's tables names.
fn named(section: &str) -> BTreeSet<Method> {
    let start = format!("\n## {section}\n");
    let parts = PAGE.split_once(&start);
    let (_, rest) = parts.unwrap_or_else(|| panic!("no section {section}"));
    let body = rest.split("\n## ").next().unwrap();
    let mut methods = BTreeSet::new();
    for line in body.lines() {
        let Some(first) = cells_of(line) else {
            continue;
        };
        let mut name = String::new();
        for span in first.split('`').skip(1).step_by(2) {
            let (called, parameters) = match span.split_once('(') {
                Some((called, rest)) => (called, rest.split(')').next()),
                None => (span, None),
            };
            // `(n)` is the previous method, with other parameters.
            if !called.is_empty() {
                name = called.to_owned();
            }
            let count = parameters.filter(|list| !list.contains("..."));
            methods.insert((name.clone(), count.map(parameters_of)));
        }
    }
    methods
}

fn cells_of(line: &str) -> Option<&str> {
    (!cells(line).is_empty())
        .then(|| line.split('|').nth(1))
        .flatten()
}

fn parameters_of(list: &str) -> usize {
    list.split(',').filter(|one| !one.trim().is_empty()).count()
}

/// Whether the page has the method, or the method whose asynchronous twin it is. A twin may have
/// one more parameter, the id of a thread.
fn is_named(named: &BTreeSet<Method>, name: &str, count: usize) -> bool {
    let has = |name: &str, count| {
        named.contains(&(name.to_owned(), Some(count))) || named.contains(&(name.to_owned(), None))
    };
    let twin = name.strip_suffix("Async");
    has(name, count)
        || twin.is_some_and(|name| has(name, count) || (count > 0 && has(name, count - 1)))
}

/// A method of this version: its type, the type that declares it, its name and its number of
/// parameters.
type There = (String, String, String, usize);

fn there() -> Vec<There> {
    let server = topology::start();
    let java = JavaClient::new(VERSION, &server.url(), None);
    let methods: Pending<Vec<String>> = java.thread("t").start_call("methods", json!({}));
    let methods = methods.wait(SOON).unwrap().value;
    assert!(methods.len() > 100, "{methods:?}");
    let parts = methods.iter().map(|method| {
        let parts: [&str; 4] = method.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let [kind, declared_by, name, count] = parts.map(str::to_owned);
        (kind, declared_by, name, count.parse().unwrap())
    });
    parts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_of_redissons_stands_in_the_page() {
    let there = there();
    let mut missing = Vec::new();
    for (kind, declared_by, name, count) in &there {
        let (kind, name, count) = (kind.as_str(), name.as_str(), *count);
        let of_all = ["RObject", "RExpirable", "RObservable"];
        let section = match declared_by.trim_end_matches("Async") {
            by if of_all.contains(&by) => SHARED,
            // The methods that `RFencedLock` has beyond `RLock`.
            "RFencedLock" => "RFencedLock",
            _ if kind == "RFencedLock" => "RLock",
            _ => kind,
        };
        if !is_named(&named(section), name, count) {
            missing.push(format!("{section}: {name}, {count} parameters"));
        }
        let is_of_locks = kind == "RLock" && section == "RLock" && !name.ends_with("Async");
        for whole in WHOLES.iter().filter(|_| is_of_locks) {
            if !is_named(&named(whole), name, count) {
                missing.push(format!("{whole}: {name}, {count} parameters"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/from-redisson.md: {missing:#?}");
    // The oldest version has fewer methods.
    if VERSION == RedissonVersion::V4_7_0 {
        let unknown = unknown(&there);
        assert!(unknown.is_empty(), "there is no such method: {unknown:#?}");
    }
}

/// Returns the methods that the page names and no type has.
fn unknown(there: &[There]) -> Vec<String> {
    let there: BTreeSet<_> = there
        .iter()
        .map(|(_, _, name, count)| (name.clone(), Some(*count)))
        .collect();
    let of_types = [
        "RedissonClient",
        "RLock",
        "RReadWriteLock",
        "RFencedLock",
        "RSemaphore",
        "RPermitExpirableSemaphore",
        "RCountDownLatch",
        SHARED,
    ];
    let sections = of_types.iter().chain(&WHOLES);
    let is_method = |(name, count): &Method| {
        count.is_some() && !name.is_empty() && name.chars().all(char::is_alphanumeric)
    };
    let unknown = sections.flat_map(|section| {
        let named = named(section).into_iter().filter(is_method);
        let unknown = named.filter(|method| !there.contains(method));
        unknown.map(move |(name, count)| format!("{section}: {name}, {count:?} parameters"))
    });
    unknown.collect()
}

#[test]
fn method_table_parser_reads_parameter_counts() {
    let lock = named("RLock");
    assert!(is_named(&lock, "tryLock", 0) && is_named(&lock, "tryLock", 3));
    assert!(is_named(&lock, "lockAsync", 1), "the id of a thread");
    assert!(!is_named(&lock, "tryLock", 1));
    assert!(!is_named(&lock, "lockForFun", 0));
}
