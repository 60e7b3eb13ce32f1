//! Redisson's keys and messages match `docs/wire-format.md`: all rows that name its version were
//! seen, and nothing else.

use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{RedisServer, RedissonVersion};
use serde_json::{Value, json};

use super::VERSION;
use crate::javas::JavaClient;
use crate::sides::SOON;
use crate::support::eventually;
use crate::support::wire::{Wire, Writer};
use crate::topology;

/// A name without a brace and one with a brace. Their keys are made in different ways.
const NAMES: [&str; 2] = ["orders", "a{b}c"];

struct Place {
    server: RedisServer,
    java: JavaClient,
}

impl Place {
    fn new() -> Self {
        let server = topology::start();
        Self {
            java: JavaClient::new(VERSION, &server.url(), None),
            server,
        }
    }

    fn wire(&self, section: &'static str, name: &str) -> Wire<'_> {
        Wire::new(&self.server, section, name, Writer::Java(VERSION))
    }

    fn thread(&self, kind: LockKind) -> RedissonThread {
        self.java.thread("t").kind(kind)
    }

    fn call(&self, op: &str, name: &str, mut request: Value) -> Value {
        request["name"] = name.into();
        let answer = self.java.thread("t").start_call(op, request).wait(SOON);
        answer.unwrap_or_else(|error| panic!("{op}: {error}")).value
    }
}

/// Whether this version has such locks.
fn has(kind: LockKind) -> bool {
    !matches!(kind, LockKind::Fenced | LockKind::Group) || VERSION != RedissonVersion::V3_16_8
}

/// Does what all locks can do: acquire, re-enter, release, force-unlock.
fn hold_and_break(wire: &mut Wire<'_>, java: &RedissonThread, name: &str) {
    java.lock(name).unwrap();
    wire.look();
    java.lock(name).unwrap();
    wire.look();
    java.unlock(name).unwrap();
    wire.look();
    java.unlock(name).unwrap();
    hold_once_and_break(wire, java, name);
}

fn hold_once_and_break(wire: &mut Wire<'_>, java: &RedissonThread, name: &str) {
    java.lock(name).unwrap();
    wire.look();
    java.unlock(name).unwrap();
    wire.look();
    java.lock(name).unwrap();
    assert!(java.force_unlock(name).unwrap().value);
    wire.look();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_match_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Lock", name);
        hold_and_break(&mut wire, &place.thread(LockKind::Plain), name);
        wire.finish();
        let mut wire = place.wire("Spin lock", name);
        hold_and_break(&mut wire, &place.thread(LockKind::Spin), name);
        wire.finish();
        if has(LockKind::Fenced) {
            let lock = place.wire("Lock", name);
            let mut wire = place.wire("Fenced lock", name).with(lock);
            hold_and_break(&mut wire, &place.thread(LockKind::Fenced), name);
            wire.finish();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fair_lock_matches_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Fair lock", name);
        let holder = place.thread(LockKind::Fair);
        hold_and_break(&mut wire, &holder, name);
        holder.lock(name).unwrap();
        let waiters = ["one", "two"].map(|who| place.java.thread(who).kind(LockKind::Fair));
        let mut waiting = Vec::new();
        for waiter in &waiters {
            waiting.push(waiter.start_lock(name));
            eventually("it stands in line and listens", async || {
                place.server.channels().len() == waiting.len()
            })
            .await;
            wire.look();
        }
        holder.unlock(name).unwrap();
        for (waiter, served) in waiters.iter().zip(waiting) {
            served.wait(SOON).unwrap();
            wire.look();
            waiter.unlock(name).unwrap();
        }
        wire.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rw_lock_matches_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Read-write lock", name);
        let [read, write] = [LockKind::Read, LockKind::Write].map(|kind| place.thread(kind));
        hold_and_break(&mut wire, &read, name);
        // The write side is not re-entered, because that would add its lease to the remaining time.
        hold_once_and_break(&mut wire, &write, name);
        let other = place.java.thread("other").kind(LockKind::Read);
        read.lock(name).unwrap();
        other.lock(name).unwrap();
        wire.look();
        read.unlock(name).unwrap();
        wire.look();
        other.unlock(name).unwrap();
        write.lock(name).unwrap();
        read.lock(name).unwrap();
        wire.look();
        write.unlock(name).unwrap();
        wire.look();
        read.unlock(name).unwrap();
        wire.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn group_matches_documented_wire_format() {
    // 3.16.8 has no groups, so there must not be a row for it either.
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Group lock", name);
        if has(LockKind::Group) {
            let java = place.thread(LockKind::Group);
            hold_and_break(&mut wire, &java, &format!("{name}/a"));
            let values = format!("{name}/a,order:42");
            java.lock(&values).unwrap();
            wire.look();
            java.unlock(&values).unwrap();
        }
        wire.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphore_matches_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Semaphore", name);
        if VERSION != RedissonVersion::V3_16_8 {
            let request = json!({"permits": 2, "ttl_ms": 60_000});
            assert_eq!(place.call("semaphore_set_for", name, request), true);
            wire.look();
            place.server.command(&["DEL", name]).unwrap();
        }
        place.call("semaphore_set", name, json!({"permits": 2}));
        wire.look();
        place.call("semaphore_acquire", name, json!({"permits": 2}));
        wire.look();
        place.call("semaphore_release", name, json!({"permits": 1}));
        wire.look();
        place.call("semaphore_add", name, json!({"permits": -3}));
        wire.look();
        place.call("semaphore_drain", name, json!({}));
        wire.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_permits_match_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Semaphore whose permits have leases", name);
        place.call("expirable_set", name, json!({"permits": 3}));
        place.call("expirable_acquire", name, json!({}));
        wire.look();
        let lease = json!({"lease_ms": 60_000});
        let permit = place.call("expirable_acquire_lease", name, lease);
        wire.look();
        let update = json!({"permit": permit, "lease_ms": 90_000});
        assert_eq!(place.call("expirable_update", name, update), true);
        wire.look();
        let release = json!({"permit": permit});
        assert_eq!(place.call("expirable_release", name, release), true);
        wire.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn latch_matches_documented_wire_format() {
    for name in NAMES {
        let place = Place::new();
        let mut wire = place.wire("Count-down latch", name);
        assert_eq!(place.call("latch_set", name, json!({"count": 2})), true);
        wire.look();
        place.call("latch_down", name, json!({}));
        wire.look();
        place.call("latch_down", name, json!({}));
        wire.look();
        assert_eq!(place.call("latch_set", name, json!({"count": 2})), true);
        assert_eq!(place.call("latch_delete", name, json!({})), true);
        wire.finish();
    }
}
