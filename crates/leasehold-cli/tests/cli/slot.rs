//! `leasehold run --slot` and `--once`.

use leasehold_testkit::{RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{Done, LIMIT, done, is_free, leasehold_at, run_script, server, start};

/// A slot that lasts longer than a test, and whose boundary is far away.
const SLOT: [&str; 2] = ["--slot", "365d"];

fn slot(server: &RedisServer, more: &[&str], script: &str) -> Done {
    done(&mut run_script(server, &[&SLOT[..], more].concat(), script))
}

fn show(server: &RedisServer) -> Done {
    done(leasehold_at(server).args(["show", "job"]))
}

#[test]
fn slot_runs_once_and_the_others_are_silent() {
    let server = server();
    assert_eq!(
        slot(&server, &[], "echo ran").expect_code(0).stdout,
        "ran\n"
    );
    let second = slot(&server, &[], "echo ran").expect_code(0);
    assert_eq!((&*second.stdout, &*second.stderr), ("", ""));
    slot(&server, &["-v"], "echo ran")
        .expect_code(0)
        .expect_on_stderr("was done by ");
    slot(&server, &["--json"], "echo ran")
        .expect_code(0)
        .expect_on_stderr(r#""event":"done_already""#);
    slot(&server, &["-E", "9"], "echo ran").expect_code(9);
    let shown = show(&server).expect_code(0).stdout;
    assert!(shown.contains("with exit code 0"), "{shown}");
}

#[test]
fn second_run_is_told_that_the_first_still_runs() {
    let server = server();
    let mut first = start(&mut run_script(&server, &SLOT, "echo runs; read end; true"));
    first.until("runs");
    slot(&server, &["--json"], "echo ran")
        .expect_code(0)
        .expect_on_stderr(r#""event":"running_elsewhere""#);
    let mut waiter = start(&mut run_script(
        &server,
        &[&SLOT[..], &["--wait", "60s"]].concat(),
        "echo ran",
    ));
    first.close_stdin();
    first.done().expect_code(0);
    assert_eq!(waiter.line(), "");
    waiter.done().expect_code(0);
}

#[test]
fn failed_command_is_repeated_only_on_request() {
    let server = server();
    slot(&server, &[], "exit 3").expect_code(3);
    assert_eq!(slot(&server, &[], "echo ran").expect_code(0).stdout, "");
    let retried = slot(&server, &["--retry-failed"], "echo ran").expect_code(0);
    assert_eq!(retried.stdout, "ran\n");
}

#[test]
fn killed_run_is_repeated_unless_at_most_once() {
    let server = server();
    let options = [&SLOT[..], &["--lease", "1s"]].concat();
    let mut first = start(&mut run_script(&server, &options, "echo runs; read end"));
    first.until("runs");
    first.signal(Signal::SIGKILL);
    first.done();
    eventually("the lease is over", LIMIT, || is_free(&server));
    let once = slot(&server, &["--at-most-once", "-v"], "echo ran").expect_code(0);
    assert_eq!(once.expect_on_stderr("never ended").stdout, "");
    assert_eq!(
        slot(&server, &[], "echo ran").expect_code(0).stdout,
        "ran\n"
    );
}

#[test]
fn other_slots_under_the_name_are_refused() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    done(&mut run_script(&server, &["--slot", "1d"], "echo ran"))
        .expect_code(78)
        .expect_on_stderr("use the same --slot");
    done(&mut run_script(&server, &["--once", "monday"], "echo ran")).expect_code(78);
    slot(&server, &["--limit", "2"], "true").expect_code(2);
}

#[test]
fn id_runs_once() {
    let server = server();
    let run = |id: &str| {
        let options = ["--once", id, "--keep", "1h"];
        done(&mut run_script(&server, &options, "echo ran"))
            .expect_code(0)
            .stdout
    };
    assert_eq!(run("monday"), "ran\n");
    assert_eq!(run("monday"), "");
    assert_eq!(run("tuesday"), "ran\n");
}
