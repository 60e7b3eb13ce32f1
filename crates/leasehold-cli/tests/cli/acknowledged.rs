//! Locks that replicas must confirm.

use leasehold_testkit::Replicas;

use crate::support::{done, is_free, leasehold, run_script};

fn doctor(servers: &Replicas, replicas: &str) -> String {
    let mut command = leasehold();
    let url = servers.master().url();
    command.env("LEASEHOLD_URL", url);
    command.args(["doctor", "--json", "--replicas", replicas]);
    done(&mut command).expect_code(1).stdout
}

#[test]
fn command_runs_when_its_lock_is_confirmed() {
    let servers = Replicas::start(1);
    let before = servers.master().calls("wait");
    let options = ["--replicas", "1"];
    let run = done(&mut run_script(servers.master(), &options, "echo runs"));
    assert_eq!(run.expect_code(0).stdout, "runs\n");
    assert!(servers.master().calls("wait") >= before + 2);
    servers.cut(0);
    let options = ["--replicas", "1", "--fair", "--no-wait"];
    let run = done(&mut run_script(servers.master(), &options, "echo runs"));
    let run = run
        .expect_code(69)
        .expect_on_stderr("only 0 of 1 replicas confirmed it");
    assert_eq!(run.stdout, "");
}

#[test]
fn acquire_that_is_not_confirmed_in_time_leaves_no_lock() {
    let servers = Replicas::start(0);
    // When one of these waits ends, the server has an acquire and waits for its replicas.
    for wait in ["400ms", "700ms", "1s", "1300ms"] {
        let options = ["--replicas", "1", "--wait", wait];
        let run = done(&mut run_script(servers.master(), &options, "echo runs"));
        assert_eq!(run.expect_code(69).stdout, "");
        assert!(is_free(servers.master()), "{wait}");
    }
}

#[test]
fn disk_that_confirms_nothing_is_told() {
    let servers = Replicas::start(0);
    let mut run = run_script(servers.master(), &["--on-disk"], "echo runs");
    let run = done(&mut run);
    assert_ne!(run.code(), 0);
    assert_eq!(run.stdout, "");
}

#[test]
fn doctor_warns_of_replicas_that_are_missing() {
    let servers = Replicas::start(1);
    assert!(doctor(&servers, "2").contains("too-few-replicas"));
    assert!(!doctor(&servers, "1").contains("too-few-replicas"));
}
