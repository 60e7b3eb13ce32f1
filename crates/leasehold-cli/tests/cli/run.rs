//! `leasehold run` without the loss of a lock: exit codes, waiting, signals.

use std::process::Stdio;

use leasehold_testkit::eventually;
use nix::sys::signal::Signal;

use crate::support::{BINARY, LIMIT, done, is_alive, is_free, leasehold, leasehold_at, run_script};
use crate::support::{processes, send, server, start, with_hangup};

#[test]
fn run_holds_lock_and_returns_exit_code() {
    let server = server();
    let script = format!("{BINARY} show --json \"$LEASEHOLD_NAME\"; exit 7");
    let done = done(&mut run_script(&server, &[], &script)).expect_code(7);
    assert!(done.stdout.contains(r#""held":true"#), "{done}");
    assert!(done.stdout.contains(r#""name":"job""#), "{done}");
    assert_eq!(done.stderr, "");
    assert!(is_free(&server));
}

#[test]
fn fenced_command_sees_increasing_tokens() {
    let server = server();
    let token = |options: &[&str]| {
        let script = "echo \"token=$LEASEHOLD_TOKEN\"";
        let mut run = run_script(&server, options, script);
        let done = done(run.env("LEASEHOLD_TOKEN", "7")).expect_code(0);
        let token = done.stdout.trim().strip_prefix("token=").map(str::to_owned);
        token.unwrap_or_else(|| panic!("{done}"))
    };
    let kinds: [&[&str]; 5] = [
        &[],
        &["--fair"],
        &["--also", "other", "--fair"],
        &["--write"],
        &["--also", "other"],
    ];
    let mut last = 0;
    for kind in kinds.into_iter().chain(kinds) {
        let token = token(&[kind, &["--fenced"]].concat());
        let token: u64 = token.parse().expect("a number");
        assert!(token > last, "{kind:?}: {token} after {last}");
        last = token;
    }
    assert_eq!(token(&[]), "", "a lock without a token inherits none");
}

#[test]
fn token_counter_of_rust_only_commands_expires() {
    let server = server();
    let counter = "redisson_lock_token:{job}";
    let life = || {
        let life = server.command(&["TTL", counter]).expect("it runs");
        life.as_int().expect("a number")
    };
    let kinds: [&[&str]; 4] = [&[], &["--fair"], &["--write"], &["--also", "other"]];
    for kind in kinds {
        let run = |options| {
            let options = [kind, &["--fenced"], options].concat();
            done(&mut run_script(&server, &options, "true")).expect_code(0);
        };
        run(&[]);
        assert_eq!(life(), -1, "{kind:?}: Redisson needs it forever");
        run(&["--rust-only"]);
        let day = 24 * 60 * 60;
        assert!((1..=day).contains(&life()), "{kind:?}: {}", life());
    }
}

#[test]
fn failed_fencing_token_prevents_the_command() {
    let server = server();
    let counter = "redisson_lock_token:{job}";
    server.command(&["HSET", counter, "a", "b"]).expect("HSET");
    for kind in [
        &["--fair", "--fenced"][..],
        &["--also", "other", "--fenced"],
    ] {
        let run = done(&mut run_script(&server, kind, "echo ran"));
        let run = run.expect_on_stderr(counter);
        assert_ne!(run.code(), 0);
        assert_eq!(run.stdout, "");
        assert!(is_free(&server), "{run}");
    }
}

#[test]
fn reader_commands_share_and_block_a_writer() {
    let server = server();
    let script = "echo reading; read end";
    let mut readers = [(); 2].map(|()| start(&mut run_script(&server, &["--read"], script)));
    for reader in &mut readers {
        reader.until("reading");
    }
    let mut writer = run_script(&server, &["--write", "--no-wait"], "echo written");
    done(&mut writer)
        .expect_code(75)
        .expect_on_stderr("`job` is not free: held by ");
    for mut reader in readers {
        reader.close_stdin();
        // The input of `read` ends, so `read` fails.
        reader.done().expect_code(1);
    }
    let mut writer = run_script(&server, &["--write"], "echo written");
    assert_eq!(done(&mut writer).expect_code(0).stdout, "written\n");
    assert!(is_free(&server));
}

#[test]
fn fair_runs_start_in_arrival_order() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &["--fair"], "echo held; read end"));
    holder.until("held");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let waiting = |number: usize| {
        let script = format!("echo {number} >> {}", file.path().display());
        let waiter = start(&mut run_script(&server, &["--fair"], &script));
        eventually("it stands in line", LIMIT, || {
            let queue = server.command(&["LLEN", "redisson_lock_queue:{job}"]);
            queue.ok().and_then(|reply| reply.as_int()) == Some(number as i64)
        });
        waiter
    };
    let waiters: Vec<_> = (1..=4).map(waiting).collect();
    holder.close_stdin();
    holder.done().expect_code(1);
    for waiter in waiters {
        waiter.done().expect_code(0);
    }
    let order = std::fs::read_to_string(file.path()).expect("it is there");
    assert_eq!(order, "1\n2\n3\n4\n");
}

#[test]
fn conflicting_lock_kind_flags_are_refused() {
    let server = server();
    for options in [
        &["--fair", "--read"][..],
        &["--read", "--write"],
        // Several clients hold locks of these kinds at a time.
        &["--fenced", "--read"],
        &["--fenced", "--limit", "2"],
    ] {
        let mut run = run_script(&server, options, "true");
        done(&mut run)
            .expect_code(2)
            .expect_on_stderr("cannot be used with");
    }
}

#[test]
fn signalled_command_exits_with_128_plus_signal() {
    let server = server();
    // Signal 40 is a real-time signal, which has no name.
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139), ("40", 168)] {
        let script = format!("kill -{signal} $$");
        done(&mut run_script(&server, &[], &script)).expect_code(code);
        assert!(is_free(&server), "after {signal}");
    }
}

#[test]
fn unrunnable_command_exits_with_126_or_127() {
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
fn busy_lock_exits_with_the_conflict_code() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    for (options, code, why) in [
        (&["--no-wait"][..], 75, "`job` is not free: held by "),
        (
            &["--wait", "1s"],
            75,
            "`job` was not free within 1s: held by ",
        ),
        (&["--no-wait", "--conflict-exit-code", "9"], 9, "--no-wait"),
        (&["--wait=1s", "--conflict-exit-code=0"], 0, "--wait"),
    ] {
        let done = done(&mut run_script(&server, options, "echo ran"))
            .expect_code(code)
            .expect_on_stderr(why);
        assert_eq!(done.stdout, "", "the command must not run");
    }
    holder.done();
    assert!(is_free(&server));
}

/// The holder is named even if it has had the lock for only some milliseconds.
#[test]
fn holder_is_named_to_a_run_that_comes_at_once() {
    let server = server();
    let mut holder = start(&mut run_script(
        &server,
        &["--label", "nightly billing"],
        "echo held; read end",
    ));
    holder.until("held");
    let busy = done(&mut run_script(&server, &["--no-wait"], "echo ran")).expect_code(75);
    busy.expect_on_stderr("held by nightly billing on ")
        .expect_on_stderr(&format!("process {}", holder.pid()));
    holder.done();
}

#[test]
fn second_run_starts_when_the_first_ends() {
    let server = server();
    let mut first = start(&mut run_script(&server, &[], "echo held; read end"));
    first.until("held");
    // Only a notification can be early enough.
    let mut second = start(&mut run_script(
        &server,
        &["--poll-interval", "1h"],
        "echo mine",
    ));
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
fn no_server_gives_69_at_once_with_no_wait_and_after_the_outage_timeout() {
    // The server keeps its port while it is down, so no other test can listen on it.
    let server = server();
    server.kill().expect("the server runs");
    for options in [&["--no-wait"][..], &["--outage-timeout", "300ms"]] {
        let mut run = leasehold();
        run.args(["--redis", &server.url(), "run"]).args(options);
        run.args(["job", "--", "echo", "ran"]);
        let done = done(&mut run).expect_code(69).expect_on_stderr("no server");
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn redis_flag_overrides_the_url_variables() {
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
fn signals_are_passed_on_and_the_command_decides() {
    let server = server();
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.01; done");
        let run = run_script(&server, &[], &script);
        let mut run = start(&mut with_hangup(&run));
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
fn signal_while_waiting_leaves_nothing_behind() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
        (Signal::SIGQUIT, 131),
    ] {
        let waiter = run_script(&server, &[], "echo ran");
        let waiter = start(&mut with_hangup(&waiter));
        eventually("it waits", LIMIT, || !server.channels().is_empty());
        waiter.signal(signal);
        let done = waiter.done().expect_code(code);
        assert_eq!(done.stdout, "");
        eventually("nobody listens", LIMIT, || server.channels().is_empty());
    }
    holder.done();
    assert!(is_free(&server));
    // The server removes the waiter's entry within seconds.
    eventually("no key is left", LIMIT, || server.keys().is_empty());
}

#[test]
fn first_signal_while_waiting_sets_exit_code() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let waiter = start(&mut run_script(&server, &[], "echo ran"));
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    // While the server is paused, the waiter can't clean up.
    server.pause().expect("it can be stopped");
    waiter.signal(Signal::SIGINT);
    waiter.signal(Signal::SIGTERM);
    let done = waiter.done().expect_code(130);
    assert_eq!(done.stdout, "");
    server.resume().expect("it goes on");
    eventually("nobody listens", LIMIT, || server.channels().is_empty());
    holder.done().expect_code(1);
    // The server removes the waiter's entry within seconds.
    eventually("no key is left", LIMIT, || server.keys().is_empty());
}

#[test]
fn each_of_two_signals_reaches_the_command() {
    let server = server();
    let script = "n=0; trap 'n=$((n+1)); echo got $n; [ $n = 1 ] || exit 3' INT TERM; \
        echo ready; while :; do sleep 0.01; done";
    for second in [Signal::SIGINT, Signal::SIGTERM] {
        let mut run = start(&mut run_script(&server, &[], script));
        run.until("ready");
        run.signal(Signal::SIGINT);
        run.until("got 1");
        run.signal(second);
        run.until("got 2");
        run.done().expect_code(3);
        assert!(is_free(&server));
    }
}

#[test]
fn stopped_command_keeps_the_lock_renewed() {
    let server = server();
    let script = "echo $$; kill -STOP $$; echo on; exit 3";
    let mut run = start(&mut run_script(&server, &["--lease", "6s"], script));
    let command = run.line().parse().expect("a process id");
    let ttl_ms = || {
        let ttl = server.command(&["PTTL", "job"]).expect("the server runs");
        ttl.as_int().expect("a number")
    };
    eventually("a part of the lease is over", LIMIT, || ttl_ms() < 5000);
    eventually("it is renewed", LIMIT, || ttl_ms() > 5500);
    send(command, Signal::SIGCONT);
    run.until("on");
    run.done().expect_code(3);
    assert!(is_free(&server));
}

#[test]
fn successful_run_spares_background_processes() {
    let server = server();
    let script = "sleep 60 >/dev/null 2>&1 & echo $!";
    let mut run = start(&mut run_script(&server, &[], script));
    let left = run.line().parse().expect("a process id");
    run.done().expect_code(0);
    assert!(is_free(&server));
    assert!(processes(&server.url()).iter().all(|(pid, _)| *pid == left));
    assert!(is_alive(left));
    send(left, Signal::SIGKILL);
}

#[test]
fn command_reads_stdin_and_has_no_other_pipes() {
    let server = server();
    let mut run = run_script(&server, &[], "cat; echo done");
    run.stdin(Stdio::null());
    assert_eq!(done(&mut run).expect_code(0).stdout, "done\n");
}
