//! Holders and waiters of a live Redisson, in the output of the commands.

use leasehold_testkit::redisson::{LockKind, RedissonThread, java_available};
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion, eventually};
use serde_json::{Value, json};

use crate::support::{LIMIT, done, leasehold_at, server, start};

/// Starts a Redisson at this server. `None` on a machine without Java.
fn redisson(server: &RedisServer) -> Option<Redisson> {
    if !java_available() {
        eprintln!("not tested: this machine has no Java");
        return None;
    }
    let redisson = Redisson::start(RedissonVersion::V4_7_0, &server.url());
    redisson.client("c", None).expect("it connects");
    Some(redisson)
}

/// Returns the output of `show --json`.
fn seen(server: &RedisServer, name: &str) -> Value {
    let shown = done(leasehold_at(server).args(["show", "--json", name])).expect_code(0);
    serde_json::from_str(&shown.stdout).expect("JSON")
}

fn text(server: &RedisServer, name: &str) -> String {
    done(leasehold_at(server).args(["show", name]))
        .expect_code(0)
        .stdout
}

fn call(java: &RedissonThread, op: &str, request: Value) -> Value {
    let answer = java.start_call(op, request).wait(LIMIT);
    answer.unwrap_or_else(|error| panic!("{op}: {error}")).value
}

/// The kinds of lock that Java can create: the name in Java, the names of its keys, and the kind
/// that `show` prints.
const LOCKS: [(LockKind, &str, &[&str], &str); 9] = [
    (LockKind::Plain, "plain", &["plain"], "lock"),
    (LockKind::Spin, "spin", &["spin"], "lock"),
    (LockKind::Fair, "fair", &["fair"], "lock"),
    (LockKind::Fenced, "fenced", &["fenced"], "lock"),
    (LockKind::Read, "read", &["read"], "rw"),
    (LockKind::Write, "write", &["write"], "rw"),
    (LockKind::Multi, "m1,m2", &["m1", "m2"], "lock"),
    (LockKind::Red, "r1,r2,r3", &["r1", "r2", "r3"], "lock"),
    (LockKind::Group, "group/a,b", &["group"], "group"),
];

#[test]
fn each_kind_that_java_holds_is_recognised_and_can_be_released() {
    let server = server();
    let Some(redisson) = redisson(&server) else {
        return;
    };
    let java = redisson.thread("c", "t");
    let thread = java.thread_id().expect("an id").value;
    for (kind, name, names, what) in LOCKS {
        java.kind(kind).lock(name).expect("it is free");
        for name in names {
            let seen = seen(&server, name);
            assert_eq!(seen["kind"], what, "{kind:?}: {seen}");
            assert_eq!(seen["held"], true, "{kind:?}: {seen}");
            let text = text(&server, name);
            assert!(text.contains(&format!(":{thread}")), "{kind:?}: {text}");
            assert!(
                text.contains("client  unknown (a Redisson client"),
                "{kind:?}: {text}"
            );
        }
    }
    call(
        &java,
        "semaphore_set",
        json!({"name": "count", "permits": 2}),
    );
    call(&java, "latch_set", json!({"name": "latch", "count": 3}));
    call(
        &java,
        "expirable_set",
        json!({"name": "seats", "permits": 2}),
    );
    let permit = call(&java, "expirable_acquire", json!({"name": "seats"}));
    for (name, what) in [("count", "count"), ("latch", "count"), ("seats", "permits")] {
        assert_eq!(seen(&server, name)["kind"], what, "{name}");
    }
    let shown = text(&server, "seats");
    assert!(shown.contains(permit.as_str().expect("an id")), "{shown}");

    let listed = done(leasehold_at(&server).args(["ls", "--json"])).expect_code(0);
    let name = |line: &str| -> String {
        let json: Value = serde_json::from_str(line).expect("JSON");
        json["name"].as_str().expect("a name").to_owned()
    };
    let mut listed: Vec<_> = listed.stdout.lines().map(name).collect();
    listed.sort();
    let locks = LOCKS
        .iter()
        .flat_map(|(_, _, names, _)| names.iter().copied());
    let mut names: Vec<_> = locks.chain(["count", "latch", "seats"]).collect();
    names.sort_unstable();
    assert_eq!(listed, names);

    for name in names {
        let counted = ["count", "latch"].contains(&name);
        let words = ["release", "--yes", "--force", name];
        done(leasehold_at(&server).args(words)).expect_code(if counted { 65 } else { 0 });
        if !counted {
            let seen = seen(&server, name);
            assert_ne!(seen["held"], true, "{name}: {seen}");
        }
    }
}

#[test]
fn java_waiters_are_seen_and_get_what_is_released() {
    let server = server();
    let Some(redisson) = redisson(&server) else {
        return;
    };
    let (java, waiter) = (redisson.thread("c", "t"), redisson.thread("c", "waiter"));
    let waits_as = format!(":{}", waiter.thread_id().expect("an id").value);
    for (kind, name, names, _) in LOCKS {
        // Waiters of spin locks and red locks poll, and listen only for short times. A reader does
        // not wait for a reader.
        if matches!(kind, LockKind::Spin | LockKind::Red | LockKind::Read) {
            continue;
        }
        java.kind(kind).lock(name).expect("it is free");
        let waiting = waiter.kind(kind).start_lock(name);
        eventually("it waits", LIMIT, || {
            names.iter().any(|name| {
                let seen = seen(&server, name);
                seen["listening"].as_u64() > Some(0) || seen["waiting"] != json!([])
            })
        });
        if kind == LockKind::Fair {
            let seen = seen(&server, name);
            let id = seen["waiting"][0]["id"].as_str().expect("one in line");
            assert!(id.ends_with(&waits_as), "{seen}");
        }
        for name in names {
            let words = ["release", "--yes", "--force", name];
            done(leasehold_at(&server).args(words)).expect_code(0);
        }
        waiting
            .wait(LIMIT)
            .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        waiter.kind(kind).unlock(name).expect("it is held");
    }
}

#[test]
fn a_change_on_the_java_side_is_watched() {
    let server = server();
    let Some(redisson) = redisson(&server) else {
        return;
    };
    let java = redisson.thread("c", "t").kind(LockKind::Plain);
    let mut watch = start(leasehold_at(&server).args(["watch", "--every", "20ms", "job"]));
    let mut until = |text: &str| {
        loop {
            let line = watch.line();
            assert_ne!(line, "", "it ended without `{text}`");
            if line.contains(text) {
                break;
            }
        }
    };
    until("is free");
    java.lock("job").expect("it is free");
    until(&format!(":{}", java.thread_id().expect("an id").value));
    java.unlock("job").expect("it is held");
    until("is free");
}
