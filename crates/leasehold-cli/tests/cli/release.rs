//! `leasehold release`.

use leasehold_testkit::{RedisServer, eventually};

use crate::support::{LIMIT, done, is_free, leasehold_at, run_script, server, start};

const UUID: &str = "5400c6ee-9efb-4d7c-afeb-d3cddd05968d";

fn command(server: &RedisServer, parts: &[&str]) {
    server.command(parts).expect("the server runs");
}

#[test]
fn a_lock_is_taken_from_its_holder() {
    let server = server();
    let options = ["--lease", "2s"];
    let mut holder = start(&mut run_script(&server, &options, "echo held; sleep 60"));
    holder.until("held");
    let refused = done(leasehold_at(&server).args(["release", "job"])).expect_code(2);
    assert!(refused.stderr.contains("--yes"), "{refused}");
    assert!(!is_free(&server));
    let words = ["--label", "on\u{1b}[2Jcall", "release", "job", "--yes"];
    let released = done(leasehold_at(&server).args(words)).expect_code(0);
    assert!(released.stdout.contains("took `job` from "), "{released}");
    assert!(
        released
            .stdout
            .contains("may still act as the holder for up to"),
        "{released}"
    );
    // The holder learns the reason at its next renewal, and the label without control characters.
    holder
        .done()
        .expect_code(70)
        .expect_on_stderr("unlocked by force, by on [2Jcall");
    eventually("it is free", LIMIT, || is_free(&server));
    done(leasehold_at(&server).args(["release", "job", "--yes"]))
        .expect_code(66)
        .expect_on_stderr("no client holds");
}

#[test]
fn another_holder_and_another_kind_are_told_apart() {
    let server = server();
    let (one, other) = (format!("{UUID}:1"), format!("{UUID}:2"));
    command(&server, &["HSET", "job", &one, "1"]);
    done(leasehold_at(&server).args(["release", "-y", "job", "--holder", &other]))
        .expect_code(75)
        .expect_on_stderr(&one);
    assert!(!is_free(&server));
    // A part of an id is not an id.
    for part in [&one[..20], &one[..36], &one[..37], "5", ""] {
        done(leasehold_at(&server).args(["release", "-y", "job", "--holder", part]))
            .expect_code(75)
            .expect_on_stderr(&one);
        assert!(!is_free(&server), "{part}");
    }
    let words = ["release", "-y", "job", "--holder", &one, "--json"];
    let released = done(leasehold_at(&server).args(words)).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&released.stdout).expect("JSON");
    // The hold has no lease.
    let told = serde_json::json!({
        "name": "job", "released": [{ "id": one, "client": null, "guards": null, "kept": false, "believed_ms": null }]
    });
    assert_eq!(json, told);
    for foreign in [
        &["SET", "job", "3"][..],
        &["SET", "leasehold:{job}:opened", "1"],
        &["RPUSH", "job", "x"],
    ] {
        command(&server, &["FLUSHALL"]);
        command(&server, foreign);
        done(leasehold_at(&server).args(["release", "-y", "job"]))
            .expect_code(65)
            .expect_on_stderr("which has no holder");
    }
}

#[test]
fn several_holders_need_a_choice() {
    let server = server();
    let (one, other) = (format!("{UUID}:1"), format!("{UUID}:2"));
    let read = || {
        command(
            &server,
            &["HSET", "job", "mode", "read", &one, "1", &other, "1"],
        );
        for hold in [&one, &other] {
            let key = format!("{{job}}:{hold}:rwlock_timeout:1");
            command(&server, &["SET", &key, "1", "EX", "600"]);
        }
    };
    read();
    done(leasehold_at(&server).args(["release", "-y", "job"]))
        .expect_code(2)
        .expect_on_stderr("--holder ID");
    done(leasehold_at(&server).args(["release", "-y", "job", "--holder", &one])).expect_code(0);
    let left = server.command(&["HKEYS", "job"]).expect("the server runs");
    assert_eq!(
        left.as_array().expect("fields").len(),
        2,
        "the mode and the other"
    );
    read();
    let all = done(leasehold_at(&server).args(["release", "-y", "job", "--force"])).expect_code(0);
    assert_eq!(all.stdout.lines().count(), 2, "{all}");
    assert!(is_free(&server));
}

#[test]
fn one_permit_of_a_limit_is_given_back() {
    let server = server();
    let options = ["--limit", "1"];
    let mut holder = start(&mut run_script(&server, &options, "echo held; sleep 60"));
    holder.until("held");
    let released = done(leasehold_at(&server).args(["release", "-y", "job"])).expect_code(0);
    assert!(released.stdout.contains("took `job` from "), "{released}");
    done(&mut run_script(&server, &["--limit", "1", "-n"], "true")).expect_code(0);
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.done();
}
