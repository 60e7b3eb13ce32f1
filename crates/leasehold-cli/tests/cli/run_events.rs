//! `leasehold run`: how long it holds and runs, what it does at a loss, what it tells programs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use leasehold_testkit::eventually;

use crate::support::{
    LIMIT, Trace, done, is_free, leasehold_at, processes, run_script, server, start,
};

#[test]
fn lock_is_kept_for_its_least_time() {
    let server = server();
    let begun = Instant::now();
    let mut first = start(&mut run_script(
        &server,
        &["--min-hold", "3s"],
        "echo ran; exit 7",
    ));
    first.until("ran");
    // The command has ended by itself, and is not run anew meanwhile.
    let other = done(&mut run_script(
        &server,
        &["-n", "--min-hold", "3s"],
        "echo ran",
    ));
    assert_eq!(other.expect_code(75).stdout, "");
    first.done().expect_code(7);
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert!(is_free(&server));
}

#[test]
fn signal_ends_the_rest_of_the_least_time() {
    let server = server();
    let mut run = start(&mut run_script(
        &server,
        &["--min-hold", "1h", "--json"],
        "echo ran",
    ));
    run.until("ran");
    eventually("the command and its guard have ended", LIMIT, || {
        processes(&server.url()).len() == 1
    });
    run.signal(Signal::SIGTERM);
    run.done();
    assert!(is_free(&server));
}

#[test]
fn command_that_runs_too_long_is_ended() {
    let server = server();
    let options = ["--max-run", "300ms", "--grace", "200ms"];
    done(&mut run_script(&server, &options, "sleep 60"))
        .expect_code(124)
        .expect_on_stderr("the most that --max-run allows");
    done(run_script(&server, &options, Trace::STUBBORN).env("TRACE", "/dev/null")).expect_code(124);
    assert!(is_free(&server));
}

/// Takes the lock from its holder, which renews it soon.
fn take(server: &leasehold_testkit::RedisServer) {
    done(leasehold_at(server).args(["release", "-y", "job"])).expect_code(0);
}

#[test]
fn loss_is_met_as_it_was_asked_for() {
    let server = server();
    let script = "trap 'echo told; exit 3' TERM; echo held; while :; do sleep 0.05; done";
    for (action, code, says) in [
        ("term", 70, "told"),
        ("kill", 70, ""),
        (
            "exec echo $LEASEHOLD_NAME: $LEASEHOLD_REASON; kill -TERM $LEASEHOLD_PID",
            70,
            "job: is lost",
        ),
    ] {
        let options = ["--lease", "2s", "--on-loss", action];
        let mut run = start(&mut run_script(&server, &options, script));
        run.until("held");
        take(&server);
        let done = run.done().expect_code(code);
        assert!(done.stdout.contains(says), "{action}: {done}");
        assert_eq!(
            done.stdout.contains("told"),
            action != "kill",
            "{action}: {done}"
        );
    }
    let options = ["--lease", "2s", "--on-loss", "warn", "--json"];
    let script = "echo held; while [ ! -e $GO ]; do sleep 0.05; done; echo went on; exit 4";
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let mut run = start(run_script(&server, &options, script).env("GO", &go));
    run.until("held");
    take(&server);
    // Longer than the lease: whoever kills it would have done so.
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&go, "").expect("it can be written");
    let done = run.done().expect_code(4);
    assert!(done.stdout.contains("went on"), "{done}");
    assert!(done.stderr.contains(r#""event":"losing""#), "{done}");
}

#[test]
fn events_are_json_for_a_program() {
    let server = server();
    let run = done(&mut run_script(
        &server,
        &["--json", "--fenced"],
        "echo out; echo err >&2",
    ));
    assert_eq!(run.stdout, "out\n");
    let events = run.stderr.lines().filter(|line| *line != "err");
    let events: Vec<Value> = events
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let words: Vec<_> = events.iter().map(|event| event["event"].as_str()).collect();
    assert_eq!(
        words,
        [Some("held"), Some("started"), Some("released")],
        "{run}"
    );
    assert!(events[0]["token"].as_u64().is_some(), "{run}");
    assert!(events.iter().all(|event| event["name"] == "job"), "{run}");
}

#[test]
fn short_flags_are_those_of_flock() {
    let server = server();
    let line = ["run", "-x", "-n", "job", "-c", "echo $LEASEHOLD_NAME | cat"];
    let ran = done(leasehold_at(&server).args(line)).expect_code(0);
    assert_eq!(ran.stdout, "job\n");
    let mut reader = start(&mut run_script(&server, &["-s"], "echo held; read end"));
    reader.until("held");
    done(&mut run_script(&server, &["-s", "-n"], "true")).expect_code(0);
    done(&mut run_script(
        &server,
        &["-x", "-w", "100ms", "-E", "9"],
        "true",
    ))
    .expect_code(9);
    reader.done();
    for (words, says) in [
        (
            &["run", "job", "-c", "true", "--", "true"][..],
            "cannot be used with",
        ),
        (
            &["run", "-s", "-x", "job", "--", "true"],
            "cannot be used with",
        ),
        (
            &["run", "--on-loss", "panic", "job", "--", "true"],
            "none of term",
        ),
        (
            &["run", "--on-loss", "exec", "job", "--", "true"],
            "'exec CMD'",
        ),
        (&["run", "--min-hold", "0s", "job", "--", "true"], "zero"),
        (&["run", "--max-run", "5", "job", "--", "true"], "5s or 5ms"),
    ] {
        done(leasehold_at(&server).args(words))
            .expect_code(2)
            .expect_on_stderr(says);
    }
}
