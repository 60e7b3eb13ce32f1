//! `leasehold run` when its server is unreachable for a while, or forever.

use std::time::Duration;

use leasehold_testkit::{Proxy, RedisServer, Reply, Strike, eventually};
use nix::sys::signal::Signal;

use crate::support::{LIMIT, Running, Trace, done, expect_nothing_runs, is_free, leasehold};
use crate::support::{is_alive, run_script, send, server, set_password, start};

/// A lease whose last part is long enough for a kill, even on a busy machine.
const LEASE: &str = "5s";

/// Starts a server, and a proxy to it that can be cut off.
fn behind_proxy() -> (RedisServer, Proxy) {
    let server = server();
    let proxy = Proxy::to(server.port());
    (server, proxy)
}

/// Starts a run through the proxy.
fn run_through(proxy: &Proxy, options: &[&str], script: &str, trace: &Trace) -> Running {
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", proxy.url())
        .arg("run")
        .args(options)
        .args(["job", "--", "sh", "-c", script]);
    start(trace.of(&mut run))
}

fn cut_off(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

/// Returns how much of the lease remains on the server.
fn ttl_ms(server: &RedisServer) -> i64 {
    match server.command(&["PTTL", "job"]).expect("the server runs") {
        Reply::Int(ms) => ms,
        other => panic!("{other:?}"),
    }
}

#[test]
fn gap_shorter_than_the_lease_is_ridden_over() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let script = "echo held; read end; exit 3";
    let mut run = run_through(&proxy, &["--lease", "10s"], script, &trace);
    run.until("held");
    cut_off(&proxy);
    // A renewal was due, but did not arrive.
    eventually("a part of the lease is over", LIMIT, || {
        ttl_ms(&server) < 6000
    });
    proxy.refuse(false);
    eventually("it is renewed again", LIMIT, || ttl_ms(&server) > 9000);
    let done = run.done().expect_code(3);
    let warnings = done.stderr.lines();
    let warnings = warnings.filter(|line| line.starts_with("leasehold: WARN "));
    assert_eq!(warnings.count(), done.stderr.lines().count(), "{done}");
    assert!(is_free(&server));
}

#[test]
fn password_that_changes_in_its_file_costs_nothing() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    let set_password = |password: &str| {
        set_password(&server, password);
        std::fs::write(&file, format!("{password}\n")).expect("written");
    };
    set_password("old");
    let mut run = leasehold();
    run.env(
        "LEASEHOLD_URL",
        format!("redis://app@127.0.0.1:{}", proxy.port()),
    )
    .env("LEASEHOLD_PASSWORD_FILE", &file)
    .args(["run", "--lease", "10s", "job", "--", "sh", "-c"])
    .arg("echo held; read end; exit 3");
    let mut run = start(trace.of(&mut run));
    run.until("held");
    cut_off(&proxy);
    set_password("new");
    eventually("a part of the lease is over", LIMIT, || {
        ttl_ms(&server) < 6000
    });
    proxy.refuse(false);
    eventually("it is renewed again", LIMIT, || ttl_ms(&server) > 9000);
    run.done().expect_code(3);
    assert!(is_free(&server));
}

#[test]
fn long_outage_ends_command_before_next_holder() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut first = run_through(&proxy, &["--lease", LEASE], Trace::STUBBORN, &trace);
    first.until("held");
    let mut second = run_script(&server, &["--lease", LEASE], Trace::NEXT);
    let second = start(trace.of(&mut second));
    eventually("the second waits", LIMIT, || !server.channels().is_empty());
    cut_off(&proxy);
    second.done().expect_code(0);
    proxy.refuse(false);
    let address = format!("127.0.0.1:{}", proxy.port());
    first
        .done()
        .expect_code(70)
        .expect_on_stderr("the lock `job` is about to be lost: renewing it has failed")
        .expect_on_stderr(&address)
        .expect_on_stderr("ending the command; KILL follows in ");
    expect_nothing_runs(&proxy.url());
    trace.expect_no_overlap();
    assert!(is_free(&server));
}

#[test]
fn frozen_server_ends_command_before_next_holder() {
    let (server, trace) = (server(), Trace::new());
    let mut first = run_script(&server, &["--lease", LEASE], Trace::STUBBORN);
    let mut first = start(trace.of(&mut first));
    first.until("held");
    let mut second = run_script(&server, &["--lease", LEASE], Trace::NEXT);
    let second = start(trace.of(&mut second));
    eventually("the second waits", LIMIT, || !server.channels().is_empty());
    server.pause().expect("it can be stopped");
    first
        .done()
        .expect_code(70)
        .expect_on_stderr("renewing it has failed");
    server.resume().expect("it goes on");
    second.done().expect_code(0);
    expect_nothing_runs(&server.url());
    trace.expect_no_overlap();
}

#[test]
fn outage_leaves_time_to_clean_up() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let script = "trap 'echo told; read end; echo clean; exit 0' TERM; echo held; \
        while :; do sleep 0.01; done";
    let mut run = run_through(&proxy, &["--lease", "10s"], script, &trace);
    run.until("held");
    cut_off(&proxy);
    run.until("told");
    let left_ms = ttl_ms(&server);
    assert!(
        left_ms > 1000,
        "it is told in time, not at the end: {left_ms}"
    );
    run.close_stdin();
    run.until("clean");
    run.done()
        .expect_code(70)
        .expect_on_stderr("is about to be lost");
}

#[test]
fn lock_is_released_after_an_outage() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let script = "trap 'echo told; read end; exit 0' TERM; echo held; while :; do sleep 0.01; done";
    let mut run = run_through(&proxy, &["--lease", "6s", "--grace", "3s"], script, &trace);
    run.until("held");
    cut_off(&proxy);
    run.until("told");
    proxy.refuse(false);
    eventually("it is renewed again", LIMIT, || ttl_ms(&server) > 5000);
    run.done().expect_code(70);
    assert!(is_free(&server), "long before its lease ends");
}

#[test]
fn failed_release_says_when_the_lock_is_free() {
    let ((_server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut run = run_through(&proxy, &[], "echo held; read end; exit 3", &trace);
    run.until("held");
    cut_off(&proxy);
    run.done()
        .expect_code(3)
        .expect_on_stderr("the release of `job` is not confirmed: no server answered at ")
        .expect_on_stderr("; the lock is free when its lease ends, in ");
}

#[test]
fn signals_that_wait_leave_a_release_its_time() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut run = run_through(&proxy, &[], "echo $$; exec sleep 60", &trace);
    let command: i32 = run.line().parse().expect("a process id");
    // This follows the loading of the scripts, which contain this word, too.
    let asked = proxy.strike_next(b"lock.release", Strike::HoldRequest);
    run.signal(Signal::SIGSTOP);
    send(command, Signal::SIGTERM);
    // Otherwise leasehold would forward the signals to the command.
    eventually("the command has ended", LIMIT, || !is_alive(command));
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGUSR1,
    ] {
        run.signal(signal);
    }
    run.signal(Signal::SIGCONT);
    eventually("it is released", LIMIT, || asked.fired());
    // If the signals counted, leasehold would end now. Nothing shows that it has received them.
    std::thread::sleep(Duration::from_millis(500));
    proxy.let_go(&asked);
    let done = run.done().expect_code(143);
    assert!(!done.stderr.contains("not confirmed"), "{done}");
    assert!(is_free(&server));
}

#[test]
fn signals_end_a_release_that_takes_long() {
    let (_server, proxy) = behind_proxy();
    let words = [
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "echo held; read end; exit 3",
    ];
    // Without a command, the first signal ends the hold, and only later signals can end the
    // release.
    let hold = ["hold", "job"];
    for (words, signals, code) in [
        (&words[..], &[Signal::SIGTERM, Signal::SIGINT][..], 3),
        (
            &hold,
            &[Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT],
            129,
        ),
        // An exit code of 0 would look like a release.
        (&hold, &[Signal::SIGTERM, Signal::SIGINT], 69),
    ] {
        let mut run = leasehold();
        let mut run = start(run.env("LEASEHOLD_URL", proxy.url()).args(words));
        run.until("held");
        let asked = proxy.strike_next(b"lock.release", Strike::HoldRequest);
        let (first, more) = signals.split_at(signals.len() - 2);
        match first {
            [signal] => run.signal(*signal),
            _ => run.close_stdin(),
        }
        eventually("it is released", LIMIT, || asked.fired());
        proxy.refuse(true);
        for signal in more {
            run.signal(*signal);
        }
        run.done()
            .expect_code(code)
            .expect_on_stderr("the release of `job` is not confirmed: a signal has ended the wait");
        proxy.refuse(false);
        proxy.let_go(&asked);
    }
}

#[test]
fn waiter_rides_over_a_gap() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let mut waiter = run_through(&proxy, &[], "echo mine", &trace);
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    let before = proxy.connections();
    cut_off(&proxy);
    eventually("it has tried again in vain", LIMIT, || {
        proxy.connections() > before + 1
    });
    proxy.refuse(false);
    eventually("it waits again", LIMIT, || !server.channels().is_empty());
    holder.done().expect_code(1);
    waiter.until("mine");
    waiter.done().expect_code(0);
}

#[test]
fn waiter_gives_up_after_outage_timeout() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let (none, lost) = (
        format!("no server answered at {}", proxy.url()),
        format!("no answer from {}", proxy.url()),
    );
    for options in [
        &["--outage-timeout", "700ms"][..],
        // A wait that ends during an outage does not claim that the lock was held.
        &["--wait", "6s"],
    ] {
        proxy.refuse(false);
        let waiter = run_through(&proxy, options, "echo ran", &trace);
        eventually("it waits", LIMIT, || !server.channels().is_empty());
        cut_off(&proxy);
        let done = waiter
            .done()
            .expect_code(69)
            .expect_on_stderr("for `job`")
            .expect_on_stderr("nothing answered for");
        // A request may have been sent before the end of the connection was noticed.
        let advice = match done.stderr.contains(&lost) {
            true => "its effect is undone in the background",
            false => "check the address and whether the server is running",
        };
        assert!(
            done.stderr.contains(&none) || done.stderr.contains(&lost),
            "{done}"
        );
        let done = done.expect_on_stderr(advice);
        assert_eq!(done.stdout, "", "{options:?}");
        assert!(
            !done.stderr.contains("for 30."),
            "the default limit: {done}"
        );
        eventually("nobody listens", LIMIT, || server.channels().is_empty());
    }
}

/// Starts a run with a limit, and cuts it off before the server executes its first request.
fn cut_off_before_the_first_request(proxy: &Proxy, options: &[&str], trace: &Trace) -> Running {
    proxy.refuse(false);
    let held = proxy.strike_next(b"EVALSHA", Strike::HoldRequest);
    let options = [&["--limit", "1"], options].concat();
    let run = run_through(proxy, &options, "echo held", trace);
    eventually("it asks", LIMIT, || held.fired());
    cut_off(proxy);
    run
}

#[test]
fn setting_a_limit_survives_an_outage() {
    let ((_server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut run = cut_off_before_the_first_request(&proxy, &[], &trace);
    // This is longer than the library retries a single request.
    std::thread::sleep(Duration::from_secs(6));
    proxy.refuse(false);
    run.until("held");
    run.done().expect_code(0);
}

#[test]
fn setting_a_limit_gives_up_after_timeout() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    for options in [["--outage-timeout", "3s"], ["--wait", "3s"]] {
        let run = cut_off_before_the_first_request(&proxy, &options, &trace);
        let done = run
            .done()
            .expect_code(69)
            .expect_on_stderr(&format!("no server answered at {}", proxy.url()))
            .expect_on_stderr("for `job`")
            .expect_on_stderr("(tried for ");
        assert_eq!(done.stdout, "", "{options:?}");
    }
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn refused_limit_reports_the_server_error() {
    let server = server();
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .expect("it is set");
    // This is longer than the library retries a single request.
    let options = ["--limit", "2", "--outage-timeout", "12s"];
    done(&mut run_script(&server, &options, "echo ran"))
        .expect_code(69)
        .expect_on_stderr("can't answer now for `job`: OOM")
        .expect_on_stderr("(tried for ");
}

#[test]
fn signal_during_an_outage_ends_the_wait() {
    let ((server, proxy), trace) = (behind_proxy(), Trace::new());
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let waiter = run_through(&proxy, &[], "echo ran", &trace);
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    cut_off(&proxy);
    eventually("nobody listens", LIMIT, || server.channels().is_empty());
    waiter.signal(Signal::SIGTERM);
    let done = waiter.done().expect_code(143);
    assert_eq!(done.stdout, "");
}

#[test]
fn first_connection_is_waited_for_as_long_as_a_lost_one() {
    let ((_server, proxy), trace) = (behind_proxy(), Trace::new());
    proxy.refuse(true);
    let mut run = run_through(&proxy, &[], "echo held", &trace);
    eventually("it has tried", LIMIT, || proxy.connections() > 1);
    proxy.refuse(false);
    run.until("held");
    run.done().expect_code(0);
}

#[test]
fn latch_waits_for_its_first_connection() {
    let (server, proxy) = behind_proxy();
    let set = ["latch", "set", "ready", "1"];
    done(leasehold().env("LEASEHOLD_URL", server.url()).args(set)).expect_code(0);
    proxy.refuse(true);
    let mut wait = leasehold();
    wait.env("LEASEHOLD_URL", proxy.url());
    let wait = start(wait.args(["latch", "wait", "ready"]));
    eventually("it has tried", LIMIT, || proxy.connections() > 1);
    let down = ["latch", "down", "ready"];
    done(leasehold().env("LEASEHOLD_URL", server.url()).args(down)).expect_code(0);
    proxy.refuse(false);
    wait.done().expect_code(0);
}
