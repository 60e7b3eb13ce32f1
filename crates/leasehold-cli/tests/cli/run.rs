//! `leasehold run` with a lock that stays: exit codes, waiting, signals.

use std::process::Stdio;
use std::time::Duration;

use leasehold_testkit::eventually;
use nix::sys::signal::Signal;

use crate::support::{BINARY, LIMIT, done, is_alive, is_free, leasehold, leasehold_at, run_script};
use crate::support::{server, start};

#[test]
fn command_runs_under_the_lock_and_gives_its_exit_code_back() {
    let server = server();
    let script = format!("{BINARY} show --json \"$LEASEHOLD_NAME\"; exit 7");
    let done = done(&mut run_script(&server, &[], &script)).expect_code(7);
    assert!(done.stdout.contains(r#""held":true"#), "{done}");
    assert!(done.stdout.contains(r#""name":"job""#), "{done}");
    assert_eq!(done.stderr, "");
    assert!(is_free(&server));
}

#[test]
fn command_that_a_signal_ends_gives_128_and_the_signal() {
    let server = server();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        done(&mut run_script(&server, &[], &script)).expect_code(code);
        assert!(is_free(&server), "after {signal}");
    }
}

#[test]
fn command_that_cannot_run_gives_126_or_127_and_the_lock_is_free() {
    let server = server();
    for (command, code) in [
        ("/etc/passwd", 126),
        ("/no/such/file", 127),
        ("nosuchcmd", 127),
    ] {
        let mut run = leasehold_at(&server);
        run.args(["run", "job", "--", command]);
        done(&mut run)
            .expect_code(code)
            .expect_on_stderr(&format!("can't run `{command}`"));
        assert!(is_free(&server), "after {command}");
    }
}

#[test]
fn lock_that_is_not_free_in_time_gives_75_or_the_number_asked_for() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    for (options, code, why) in [
        (&["--no-wait"][..], 75, "`job` is not free: held by "),
        (
            &["--wait", "50ms"],
            75,
            "`job` was not free within 50ms: held by ",
        ),
        (&["--no-wait", "--conflict-exit-code", "9"], 9, "--no-wait"),
        (&["--wait=50ms", "--conflict-exit-code=0"], 0, "--wait"),
    ] {
        let done = done(&mut run_script(&server, options, "echo ran"))
            .expect_code(code)
            .expect_on_stderr(why);
        assert_eq!(done.stdout, "", "the command must not run");
    }
    holder.done();
    assert!(is_free(&server));
}

#[test]
fn second_run_starts_when_the_first_ends() {
    let server = server();
    let mut first = start(&mut run_script(&server, &[], "echo held; read end"));
    first.until("held");
    // Only a wake-up can be in time.
    let mut second = start(&mut run_script(&server, &["--poll-cap", "1h"], "echo mine"));
    eventually("the second listens", LIMIT, || {
        !server.channels().is_empty()
    });
    first.close_stdin();
    second.until("mine");
    first.done().expect_code(1);
    second.done().expect_code(0);
    assert!(is_free(&server));
}

#[test]
fn no_server_gives_69_at_once() {
    let server = server();
    let url = server.url();
    drop(server);
    let mut run = leasehold();
    run.args(["--redis", &url, "run", "job", "--", "echo", "ran"]);
    let done = done(&mut run).expect_code(69).expect_on_stderr("no server");
    assert_eq!(done.stdout, "");
}

#[test]
fn flag_goes_before_leasehold_url_and_that_before_redis_url() {
    let server = server();
    let nowhere = "redis://127.0.0.1:1";
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", nowhere)
        .args(["run", "--redis", &server.url(), "job", "--", "true"]);
    done(&mut run).expect_code(0);
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", server.url())
        .env("REDIS_URL", nowhere)
        .args(["run", "job", "--", "true"]);
    done(&mut run).expect_code(0);
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", "")
        .env("REDIS_URL", server.url())
        .args(["run", "job", "--", "true"]);
    done(&mut run).expect_code(0);
}

#[test]
fn memory_needs_no_server() {
    let mut run = leasehold();
    run.args(["--redis", "memory://", "run", "job", "--", "echo", "ran"]);
    assert_eq!(done(&mut run).expect_code(0).stdout, "ran\n");
}

#[test]
fn signals_are_passed_on_and_the_command_decides() {
    let server = server();
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
    ] {
        let script =
            format!("trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.01; done");
        let mut run = start(&mut run_script(&server, &[], &script));
        run.until("ready");
        run.signal(signal);
        run.until("got");
        run.done().expect_code(3);
        assert!(is_free(&server), "after {signal}");
    }
}

#[test]
fn signal_ends_all_that_the_command_has_started() {
    let server = server();
    let mut run = start(&mut run_script(&server, &[], "sleep 300 & echo $!; wait"));
    let grandchild = run.line().parse().expect("a process id");
    run.signal(Signal::SIGTERM);
    run.done().expect_code(143);
    eventually("the grandchild has ended", LIMIT, || !is_alive(grandchild));
    assert!(is_free(&server));
}

#[test]
fn ignored_hangup_stays_ignored_as_nohup_wants_it() {
    let server = server();
    let script =
        format!("trap '' HUP; exec {BINARY} run job -- sh -c 'echo ready; read end; echo on'");
    let mut shell = std::process::Command::new("sh");
    shell
        .env("LEASEHOLD_URL", server.url())
        .args(["-c", &script]);
    let mut run = start(&mut shell);
    run.until("ready");
    run.signal(Signal::SIGHUP);
    run.close_stdin();
    run.until("on");
    run.done().expect_code(0);
}

#[test]
fn signal_during_the_wait_ends_it_and_leaves_nothing_behind() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ] {
        let waiter = start(&mut run_script(&server, &[], "echo ran"));
        eventually("it waits", LIMIT, || !server.channels().is_empty());
        waiter.signal(signal);
        let done = waiter.done().expect_code(code);
        assert_eq!(done.stdout, "");
        eventually("nobody listens", LIMIT, || server.channels().is_empty());
    }
    holder.done();
    assert!(is_free(&server));
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn lock_outlives_a_killed_leasehold_by_its_lease_at_most() {
    let server = server();
    let script = "echo held; sleep 1; echo end";
    let mut run = start(&mut run_script(&server, &["--lease", "500ms"], script));
    run.until("held");
    run.signal(Signal::SIGKILL);
    eventually("the lock is free", Duration::from_secs(5), || {
        is_free(&server)
    });
}

#[test]
fn command_reads_stdin_and_has_no_other_pipes() {
    let server = server();
    let mut run = run_script(&server, &[], "cat; echo done");
    run.stdin(Stdio::null());
    assert_eq!(done(&mut run).expect_code(0).stdout, "done\n");
}
