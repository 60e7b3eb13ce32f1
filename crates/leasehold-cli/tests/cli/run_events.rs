//! `leasehold run`: `--min-hold`, `--max-run`, `--on-loss`, and events for programs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use leasehold_testkit::{RedisServer, eventually};

use crate::support::{
    Done, LIMIT, STUBBORN_CHILD, Trace, delete_job, done, is_alive, is_free, leasehold_at,
    processes, run_script, server, start,
};

/// Returns how much of the lease of `job` remains on the server.
fn left(server: &RedisServer) -> Duration {
    let left = server.command(&["PTTL", "job"]).expect("the server runs");
    let left = left.as_int().expect("a number");
    Duration::from_millis(left.try_into().unwrap_or_default())
}

#[test]
fn lock_is_kept_for_its_least_time() {
    let server = server();
    let begun = Instant::now();
    let options = ["--min-hold", "3s", "--lease", "1m"];
    let first = done(&mut run_script(&server, &options, "exit 7")).expect_code(7);
    assert_eq!(first.stderr, "");
    // No process runs any more, so nothing renews the lock, but the server keeps it for the rest of
    // the time.
    assert!(processes(&server.url()).is_empty());
    let rest = left(&server);
    assert!(rest <= Duration::from_secs(3), "{rest:?}");
    let options = ["-n", "--min-hold", "3s"];
    let other = done(&mut run_script(&server, &options, "echo ran"));
    assert_eq!(other.expect_code(75).stdout, "");
    let next = done(&mut run_script(&server, &["--wait", "50"], "echo ran"));
    assert_eq!(next.expect_code(0).stdout, "ran\n");
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert!(is_free(&server));
}

#[test]
fn lock_without_its_token_is_released_at_once() {
    let server = server();
    let token = ["SET", "redisson_lock_token:{job}", "9007199254740991"];
    server.command(&token).expect("a reply");
    let options = ["--fair", "--fenced", "--min-hold", "10m"];
    let run = done(&mut run_script(&server, &options, "echo ran")).expect_code(65);
    assert_eq!(run.stdout, "");
    assert!(is_free(&server));
}

/// The server has the minimum time from the grant on.
#[test]
fn lock_is_kept_though_leasehold_is_killed() {
    let server = server();
    let options = ["--min-hold", "10m", "--lease", "1s"];
    let mut run = start(&mut run_script(&server, &options, "echo runs; read end"));
    run.until("runs");
    run.signal(Signal::SIGKILL);
    run.done();
    assert!(left(&server) > Duration::from_secs(60));
}

#[test]
fn command_that_outlasts_the_least_time_gives_the_lock_back() {
    let server = server();
    let options = ["--min-hold", "200ms"];
    done(&mut run_script(&server, &options, "sleep 0.5; exit 7")).expect_code(7);
    assert!(is_free(&server));
    // For a command that never ran, the lock is released at once.
    let mut run = leasehold_at(&server);
    run.args(["run", "--min-hold", "1h", "job", "--", "nosuchcmd"]);
    done(&mut run).expect_code(127);
    assert!(is_free(&server));
}

#[test]
fn kept_lock_can_be_released() {
    let server = server();
    for options in [&[][..], &["--fair"], &["--fenced"], &["--write"]] {
        let options = [options, &["--min-hold", "1h"]].concat();
        let mut run = start(&mut run_script(
            &server,
            &options,
            "echo ran; exec sleep 300",
        ));
        run.until("ran");
        // The lock is kept even if a signal ends the command.
        run.signal(Signal::SIGTERM);
        run.done().expect_code(143);
        assert!(left(&server) > Duration::from_secs(1800), "{options:?}");
        // The client has ended, so the message must not suggest that any process renews the lock or
        // works under it.
        let busy = [&options[..], &["-n"]].concat();
        let busy = done(&mut run_script(&server, &busy, "true")).expect_code(75);
        assert!(
            busy.stderr
                .contains("kept without renewal (a ticket, --min-hold or keep_for) for another "),
            "{busy}"
        );
        let of = |words: &[&str]| {
            done(leasehold_at(&server).args(words))
                .expect_code(0)
                .stdout
        };
        let shown = of(&["show", "job"]);
        assert!(
            shown.contains("not renewed (a ticket, --min-hold"),
            "{shown}"
        );
        assert!(of(&["show", "--json", "job"]).contains(r#""kept":true"#));
        assert!(of(&["ls"]).contains("kept, was "), "{options:?}");
        let chain = of(&["show", "--blocked-by", "job"]);
        let words =
            "`job`, kept without renewal (a ticket, --min-hold or keep_for); it was held by ";
        assert!(chain.starts_with(words), "{chain}");
        let chain = of(&["show", "--blocked-by", "--json", "job"]);
        assert!(chain.contains(r#""kept":true"#), "{chain}");
        let released = of(&["release", "-y", "job"]);
        assert!(
            released.contains("released `job`, which was kept without renewal"),
            "{released}"
        );
        assert!(is_free(&server), "{options:?}");
    }
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

#[test]
fn processes_of_a_command_that_ran_too_long_are_killed() {
    let server = server();
    let options = ["--max-run", "300ms", "--grace", "300ms"];
    let mut run = start(&mut run_script(&server, &options, STUBBORN_CHILD));
    let left_behind = run.line().parse().expect("a process id");
    run.done().expect_code(124);
    assert!(!is_alive(left_behind));
    assert!(is_free(&server));
}

#[test]
fn loss_while_a_command_ends_for_its_time_is_met() {
    let server = server();
    // The renewal that finds the loss is due long before the grace time ends.
    let grace = ["--grace", "12s", "--lease", "24s"];
    let options = [&grace[..], &["--max-run", "300ms", "--on-loss", "kill"]].concat();
    let script = "trap 'echo told' TERM; echo held; while :; do sleep 0.05; done";
    let mut run = start(&mut run_script(&server, &options, script));
    run.until("told");
    take(&server);
    run.done()
        .expect_code(70)
        .expect_on_stderr("ending the command; KILL follows at once");
}

/// Takes the lock from its holder, whose next renewal is soon.
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
    // This is longer than the lease, so a kill would have happened by now.
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&go, "").expect("it can be written");
    let done = run.done().expect_code(4);
    assert!(done.stdout.contains("went on"), "{done}");
    let mut events = events(&done);
    events.retain(|event| event["event"] != "message");
    assert_eq!(words(&events), ["held", "started", "losing", "lost"]);
}

/// Returns the lines of stderr that are JSON.
fn events(done: &Done) -> Vec<Value> {
    let lines = done.stderr.lines().filter(|line| line.starts_with('{'));
    let events = lines.map(|line| serde_json::from_str(line).expect("JSON"));
    events.collect()
}

fn words(events: &[Value]) -> Vec<&str> {
    let words = events.iter().map(|event| event["event"].as_str());
    words.map(|word| word.expect("a word")).collect()
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
    let events = events(&run);
    assert_eq!(words(&events), ["held", "started", "released"], "{run}");
    assert!(events[0]["token"].as_u64().is_some(), "{run}");
    assert!(events[0]["waited_ms"].as_u64().is_some(), "{run}");
    assert!(events[2]["held_ms"].as_u64().is_some(), "{run}");
    assert!(events.iter().all(|event| event["name"] == "job"), "{run}");
}

#[test]
fn loss_that_the_release_finds_has_a_reason() {
    let server = server();
    for (option, code) in [("--json", 70), ("--on-loss=warn", 3)] {
        let mut run = start(&mut run_script(
            &server,
            &[option],
            "echo held; read end; exit 3",
        ));
        run.until("held");
        delete_job(&server);
        let done = run.done().expect_code(code);
        let reason = "it was removed on the server";
        let says = format!("has ended, but the lock `job` was lost before that: {reason}");
        assert!(done.stderr.contains(&says), "{done}");
        if code == 70 {
            let events = events(&done);
            let lost = events.iter().find(|event| event["event"] == "lost");
            assert_eq!(lost.expect("it is lost")["reason"], reason, "{done}");
        }
    }
}

#[test]
fn events_name_the_holder_and_every_line_the_lock() {
    let server = server();
    let mut holder = leasehold_at(&server);
    let mut holder = start(holder.args(["--label", "billing", "hold", "job"]));
    holder.until("held");
    let told = |server: &RedisServer| done(leasehold_at(server).args(["show", "job"])).stdout;
    eventually("it has said who it is", LIMIT, || {
        told(&server).contains("billing")
    });
    let busy = done(&mut run_script(&server, &["--json", "-n"], "true")).expect_code(75);
    let busy = events(&busy);
    assert_eq!(words(&busy), ["busy"]);
    assert_eq!(busy[0]["holder"]["label"], "billing");
    assert_eq!(busy[0]["holder"]["pid"], holder.pid().to_string());
    let waited = done(&mut run_script(&server, &["--json", "-w", "4"], "true")).expect_code(75);
    let waited = events(&waited);
    assert_eq!(words(&waited), ["waiting", "busy"]);
    assert_eq!(waited[0]["holder"]["label"], "billing");
    holder.done().expect_code(0);
    let kept = ["--json", "--min-hold", "1m"];
    let kept = events(&done(&mut run_script(&server, &kept, "true")));
    assert_eq!(words(&kept), ["held", "started", "kept"]);
    assert!(kept[2]["kept_for_ms"].as_u64().is_some(), "{kept:?}");
    let mut run = leasehold_at(&server);
    run.args(["run", "--json", "other", "--", "nosuchcmd"]);
    let failed = events(&done(&mut run).expect_code(127));
    for event in busy.iter().chain(&waited).chain(&kept) {
        assert_eq!(event["name"], "job");
    }
    for event in &failed {
        assert_eq!(event["name"], "other");
    }
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
        &["-x", "-w", "2s", "-E", "9"],
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
            "write term, kill, warn or",
        ),
        (
            &["run", "--on-loss", "exec", "job", "--", "true"],
            "'exec CMD'",
        ),
        (&["run", "--min-hold", "0s", "job", "--", "true"], "zero"),
    ] {
        done(leasehold_at(&server).args(words))
            .expect_code(2)
            .expect_on_stderr(says);
    }
}
