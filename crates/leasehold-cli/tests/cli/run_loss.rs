//! `leasehold run` when the lock is lost.

use std::time::{Duration, Instant};

use leasehold_testkit::eventually;
use nix::sys::signal::Signal;

use crate::support::{
    LIMIT, STUBBORN_CHILD, delete_job, done, is_alive, is_free, leasehold_at, run_script, server,
    start,
};

/// A lease that is renewed so often that a loss is noticed soon, even if a busy machine misses a
/// renewal now and then.
const SHORT: [&str; 2] = ["--lease", "3s"];

#[test]
fn command_is_ended_when_the_key_is_deleted() {
    let server = server();
    // This is the longest possible grace time, because a busy machine is slow to run the trap.
    let options = ["--lease", "6s", "--grace", "3s"];
    let script = "trap 'echo told; exit 0' TERM; echo held; sleep 300 & wait";
    let mut run = start(&mut run_script(&server, &options, script));
    run.until("held");
    delete_job(&server);
    run.until("told");
    run.done()
        .expect_code(70)
        .expect_on_stderr("the lock `job` is lost: it was removed on the server");
    assert!(is_free(&server));
}

#[test]
fn command_ignoring_sigterm_is_killed_after_grace() {
    let server = server();
    let options = ["--lease", "3s", "--grace", "300ms"];
    let script = "trap '' TERM; echo held; sleep 300 & echo $!; while :; do sleep 300; done";
    let mut run = start(&mut run_script(&server, &options, script));
    run.until("held");
    let grandchild = run.line().parse().expect("a process id");
    delete_job(&server);
    let deleted = Instant::now();
    run.done()
        .expect_code(70)
        .expect_on_stderr("KILL follows in 300ms");
    assert!(deleted.elapsed() >= Duration::from_millis(300));
    eventually("the grandchild is gone", LIMIT, || !is_alive(grandchild));
}

#[test]
fn lost_lock_kills_surviving_grandchildren() {
    let server = server();
    let options = ["--lease", "3s", "--grace", "300ms"];
    let mut run = start(&mut run_script(&server, &options, STUBBORN_CHILD));
    let grandchild = run.line().parse().expect("a process id");
    delete_job(&server);
    run.done().expect_code(70);
    eventually("the grandchild is gone", LIMIT, || !is_alive(grandchild));
}

#[test]
fn command_is_ended_when_another_holds_the_lock() {
    let server = server();
    let mut run = start(&mut run_script(
        &server,
        &SHORT,
        "echo held; exec sleep 300",
    ));
    run.until("held");
    delete_job(&server);
    let another = "7e57c0de-0000-4000-8000-000000000000:1";
    let theirs = ["HSET", "job", another, "1"];
    server.command(&theirs).expect("the server runs");
    run.done()
        .expect_code(70)
        .expect_on_stderr(&format!("it is held by {another} now"));
    let kept = server.command(&["HEXISTS", "job", another]);
    assert_eq!(kept.expect("the server runs").as_int(), Some(1));
}

#[test]
fn who_has_a_lost_lock_is_named() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let script = "trap 'while [ ! -e $GO ]; do sleep 0.01; done; exit 0' TERM; \
        echo held; while :; do sleep 0.01; done";
    let options = ["--lease", "20s", "--grace", "10s"];
    let mut run = start(run_script(&server, &options, script).env("GO", &go));
    run.until("held");
    delete_job(&server);
    let mut next = leasehold_at(&server);
    let mut next = start(next.args(["--label", "billing", "hold", "job"]));
    next.until("held");
    let show = || done(leasehold_at(&server).args(["show", "job"])).stdout;
    eventually("it has said who it is", LIMIT, || {
        show().contains("billing")
    });
    std::fs::write(&go, "").expect("it can be written");
    run.done()
        .expect_code(70)
        .expect_on_stderr("`job` is held by billing on ");
    next.done().expect_code(0);
}

#[test]
fn command_is_ended_when_the_server_is_gone() {
    let server = server();
    let mut run = start(&mut run_script(
        &server,
        &SHORT,
        "echo held; exec sleep 300",
    ));
    run.until("held");
    server.kill().expect("the server can be killed");
    run.done()
        .expect_code(70)
        .expect_on_stderr("renewing it has failed");
}

#[test]
fn loss_while_leasehold_stood_still_ends_the_command() {
    let server = server();
    let mut run = start(&mut run_script(
        &server,
        &SHORT,
        "echo held; exec sleep 300",
    ));
    run.until("held");
    run.signal(Signal::SIGSTOP);
    eventually("the lease is over", LIMIT, || is_free(&server));
    run.signal(Signal::SIGCONT);
    run.done().expect_code(70).expect_on_stderr("is lost");
}

#[test]
fn stopped_command_is_ended_too() {
    let server = server();
    let script = "echo $$; kill -STOP $$; echo never";
    let mut run = start(&mut run_script(&server, &SHORT, script));
    let pid = run.line().parse().expect("a process id");
    delete_job(&server);
    let done = run.done().expect_code(70);
    assert_eq!(done.stdout, "");
    assert!(!is_alive(pid));
}

#[test]
fn stopped_command_gets_its_grace_period() {
    let server = server();
    // This is the longest possible grace time, because a busy machine is slow to run the trap.
    let options = ["--lease", "6s", "--grace", "3s"];
    let script = "trap 'echo told; exit 0' TERM; echo held; kill -STOP $$; echo never";
    let mut run = start(&mut run_script(&server, &options, script));
    run.until("held");
    delete_job(&server);
    // A stopped command gets the TERM only when it continues.
    run.until("told");
    run.done().expect_code(70);
}
