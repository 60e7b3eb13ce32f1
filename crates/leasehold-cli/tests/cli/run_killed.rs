//! `leasehold run` that is killed or stopped: its command must not continue without it.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;
use std::thread;
use std::time::Instant;

use leasehold_testkit::{RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{BINARY, LIMIT, Running, Trace, leasehold, leasehold_at, run_script, send};
use crate::support::{
    delete_job, done, expect_nothing_runs, is_alive, is_free, process, processes, server, start,
};

/// The lease. The command is killed in the last twentieth, which is long enough for a busy machine.
const LEASE: [&str; 2] = ["--lease", "15s"];

/// Starts two runs: one with a command that ignores signals, and one that waits.
fn two_runs(server: &RedisServer, trace: &Trace) -> (Running, Running) {
    let mut first = run_script(server, &LEASE, Trace::STUBBORN);
    let mut first = start(trace.of(&mut first));
    first.until("held");
    let mut second = run_script(server, &LEASE, Trace::NEXT);
    let second = start(trace.of(&mut second));
    eventually("the second waits", LIMIT, || !server.channels().is_empty());
    (first, second)
}

#[test]
fn killed_run_takes_its_process_tree_along() {
    let server = server();
    let script = "trap '' TERM HUP; (while :; do sleep 1; done) & echo held; wait";
    let mut run = start(&mut run_script(&server, &[], script));
    run.until("held");
    run.signal(Signal::SIGKILL);
    expect_nothing_runs(&server.url());
    assert!(!is_free(&server), "its lease of 30s is not over yet");
    let done = run.done();
    assert!(
        done.stderr
            .contains("leasehold was killed, so its command was killed too"),
        "{done}"
    );
}

#[test]
fn command_of_killed_run_never_overlaps_next() {
    let (server, trace) = (server(), Trace::new());
    let (first, second) = two_runs(&server, &trace);
    first.signal(Signal::SIGKILL);
    second.done().expect_code(0);
    expect_nothing_runs(&server.url());
    trace.expect_no_overlap();
}

#[test]
fn command_of_stopped_run_never_overlaps_next() {
    let (server, trace) = (server(), Trace::new());
    let (first, second) = two_runs(&server, &trace);
    first.signal(Signal::SIGSTOP);
    second.done().expect_code(0);
    first.signal(Signal::SIGCONT);
    first
        .done()
        .expect_code(70)
        .expect_on_stderr("the lock `job` is lost: its lease ran out");
    expect_nothing_runs(&server.url());
    trace.expect_no_overlap();
}

#[test]
fn command_of_stopped_run_dies_before_expiry() {
    let (server, trace) = (server(), Trace::new());
    // The command writes the remaining TTL of the lock until it is killed.
    let script = format!(
        "trap '' TERM; echo held; exec redis-cli -u {} -r -1 -i 0.01 pttl job >>$TRACE",
        server.url()
    );
    let mut run = run_script(&server, &["--lease", "20s"], &script);
    let mut run = start(trace.of(&mut run));
    run.until("held");
    run.signal(Signal::SIGSTOP);
    eventually("the lease is over", LIMIT, || is_free(&server));
    run.signal(Signal::SIGCONT);
    run.done().expect_code(70);
    let last_ms = trace.last_number();
    // A twentieth of the lease and the drift remain, or half of this on a busy machine.
    assert!((500..4000).contains(&last_ms), "{last_ms} ms were left");
}

/// The switch sends TERM while there is time to clean up. If `leasehold` continues before the lease
/// ends, it reports why the command has ended.
#[test]
fn command_of_stopped_run_gets_its_grace_period() {
    let (server, trace) = (server(), Trace::new());
    let script = format!(
        "trap 'trap \"\" TERM; redis-cli -u {} pttl job >$TRACE; exit 5' TERM; echo held; while :; do sleep 0.1; done",
        server.url()
    );
    let options = ["--lease", "20s", "--grace", "8s"];
    let mut run = start(trace.of(&mut run_script(&server, &options, &script)));
    run.until("held");
    run.signal(Signal::SIGSTOP);
    eventually("the command has cleaned up", LIMIT, || trace.has_a_line());
    run.signal(Signal::SIGCONT);
    run.done()
        .expect_code(70)
        .expect_on_stderr("it was not renewed in time");
    // TERM is sent three quarters of the grace time before the kill, or half of that on a busy
    // machine.
    let left_ms = trace.last_number();
    assert!((4000..8000).contains(&left_ms), "{left_ms} ms were left");
}

/// With `kill` and `exec`, `leasehold` sends no TERM first, and neither does the switch.
#[test]
fn switch_sends_no_term_that_was_not_asked_for() {
    let server = server();
    let script = "trap 'echo asked' TERM; echo held; while :; do sleep 0.1; done";
    let options = ["--lease", "3s", "--on-loss", "kill"];
    let mut run = start(&mut run_script(&server, &options, script));
    run.until("held");
    run.signal(Signal::SIGSTOP);
    eventually("the lease is over", LIMIT, || is_free(&server));
    run.signal(Signal::SIGCONT);
    let done = run.done().expect_code(70);
    assert!(!done.stdout.contains("asked"), "{done}");
}

#[test]
fn run_stopped_at_launch_loses_its_command() {
    let script = "trap '' TERM HUP; while :; do sleep 0.1; done";
    // A launcher whose command has not begun waits for its parent, and then runs nothing.
    let is_ours = |line: &str| line.starts_with("sh ");
    // The moment of the stop is random, so this tries several times.
    let stopped = [(); 5].map(|()| {
        let server = server();
        let run = start(&mut run_script(&server, &LEASE, script));
        // Poll without a pause, because a check every few milliseconds would be too late.
        let children = format!("/proc/{0}/task/{0}/children", run.pid());
        let both_run = || {
            std::fs::read_to_string(&children)
                .is_ok_and(|children| children.split_whitespace().count() == 2)
        };
        let deadline = Instant::now() + LIMIT;
        while !both_run() {
            assert!(Instant::now() < deadline, "the command never started");
        }
        run.signal(Signal::SIGSTOP);
        (server, run)
    });
    for (server, run) in stopped {
        eventually("the lease is over", LIMIT, || is_free(&server));
        let left = processes(&server.url());
        assert!(!left.iter().any(|(_, line)| is_ours(line)), "{left:?}");
        run.signal(Signal::SIGCONT);
        run.done().expect_code(70);
    }
}

#[test]
fn command_dies_when_run_and_switch_die() {
    let server = server();
    let script = "trap '' TERM HUP; echo $$; exec sleep 300";
    let mut run = start(&mut run_script(&server, &[], script));
    let command = run.line().parse().expect("a process id");
    let deadman = process(&server.url(), "run-deadman");
    // The run is stopped, so that it does not start another switch in between.
    run.signal(Signal::SIGSTOP);
    send(deadman, Signal::SIGKILL);
    eventually("the switch is gone", LIMIT, || !is_alive(deadman));
    assert!(is_alive(command));
    run.signal(Signal::SIGKILL);
    eventually("the command has gone", LIMIT, || !is_alive(command));
}

#[test]
fn killed_dead_mans_switch_is_replaced() {
    let server = server();
    let script = "trap '' TERM HUP USR1; (while :; do sleep 1; done) & \
        trap 'echo heard' USR1; echo held; while :; do wait; done";
    let mut run = start(&mut run_script(&server, &[], script));
    run.until("held");
    let first = process(&server.url(), "run-deadman");
    send(first, Signal::SIGKILL);
    eventually("it has gone", LIMIT, || !is_alive(first));
    let second = process(&server.url(), "run-deadman");
    assert_ne!(first, second);
    // The run sends the group to the new switch before it forwards another signal.
    run.signal(Signal::SIGUSR1);
    run.until("heard");
    run.signal(Signal::SIGKILL);
    expect_nothing_runs(&server.url());
}

#[test]
fn replaced_dead_mans_switch_knows_the_deadline() {
    let server = server();
    let script =
        "trap '' TERM HUP; trap 'echo heard' USR1; echo held; while :; do sleep 0.01; done";
    let mut run = start(&mut run_script(&server, &LEASE, script));
    run.until("held");
    let first = process(&server.url(), "run-deadman");
    send(first, Signal::SIGKILL);
    eventually("it has gone", LIMIT, || !is_alive(first));
    process(&server.url(), "run-deadman");
    // The run sends all orders to the new switch before it forwards another signal.
    run.signal(Signal::SIGUSR1);
    run.until("heard");
    run.signal(Signal::SIGSTOP);
    eventually("the command was killed", LIMIT, || {
        let left = processes(&server.url());
        !left
            .iter()
            .any(|(_, line)| line.contains("echo heard") && line.starts_with("sh "))
    });
    assert!(!is_free(&server), "killed when the lease was over");
    run.signal(Signal::SIGCONT);
    run.done().expect_code(70);
}

#[test]
fn stopped_dead_mans_switch_lets_run_end() {
    let server = server();
    let mut run = start(&mut run_script(&server, &[], "echo held; read end; exit 4"));
    run.until("held");
    let deadman = process(&server.url(), "run-deadman");
    send(deadman, Signal::SIGSTOP);
    run.done().expect_code(4);
    assert!(!is_alive(deadman));
    assert!(is_free(&server));
}

#[test]
fn lost_lock_ends_command_despite_stopped_switch() {
    let server = server();
    let script = "trap '' TERM; echo held; while :; do sleep 0.01; done";
    let mut run = start(&mut run_script(&server, &LEASE, script));
    run.until("held");
    let deadman = process(&server.url(), "run-deadman");
    send(deadman, Signal::SIGSTOP);
    delete_job(&server);
    run.done().expect_code(70);
    expect_nothing_runs(&server.url());
}

#[test]
fn launch_without_its_parent_runs_nothing() {
    let mut launch = leasehold();
    // Process 1 is not the launcher's parent.
    launch.args(["run-launch", "--parent", "1", "--", "echo", "ran"]);
    let done = done(&mut launch)
        .expect_code(1)
        .expect_on_stderr("has ended before its command began");
    assert_eq!(done.stdout, "");
}

#[test]
fn launch_after_the_deadline_runs_nothing() {
    let mut launch = leasehold();
    let parent = std::process::id().to_string();
    launch.args(["run-launch", "--parent", &parent, "--before", "1"]);
    launch.args(["--", "echo", "ran"]);
    let launch = start(&mut launch);
    eventually("it waits to be continued", LIMIT, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", launch.pid()));
        stat.expect("it is there").contains(") T ")
    });
    launch.signal(Signal::SIGCONT);
    let done = launch
        .done()
        .expect_code(70)
        .expect_on_stderr("the lock was lost before the command began");
    assert_eq!(done.stdout, "");
}

#[test]
fn switch_without_a_group_kills_nothing() {
    let (line, its_end) = UnixStream::pair().expect("a pair of sockets");
    let mut switch = leasehold();
    switch.arg("run-deadman").stdin(OwnedFd::from(its_end));
    let mut switch = switch.spawn().expect("it starts");
    // The stranger is a child of the same parent. Services are children of the first process of the
    // machine, which becomes the parent of an orphaned switch.
    let mut stranger = Command::new("sleep");
    let mut stranger = stranger.arg("300").process_group(0).spawn().expect("sleep");
    (&line).write_all(b"until 1\n").expect("it listens");
    drop(line);
    assert!(switch.wait().expect("it ends").success());
    // This signal ends the stranger, and not an earlier KILL.
    send(
        stranger.id().try_into().expect("a process id"),
        Signal::SIGTERM,
    );
    let end = stranger.wait().expect("it has ended");
    assert_eq!(end.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn killed_waiter_leaves_nothing_behind() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let waiter = start(&mut run_script(&server, &[], "echo ran"));
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    waiter.signal(Signal::SIGKILL);
    assert_eq!(waiter.done().stdout, "");
    eventually("nobody listens", LIMIT, || server.channels().is_empty());
    holder.done().expect_code(1);
    // The killed waiter could not remove its entry, so the server must.
    eventually("it is forgotten", LIMIT, || server.keys().is_empty());
    expect_nothing_runs(&server.url());
}

#[test]
fn deleted_binary_still_runs_its_command() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("leasehold");
    std::fs::copy(BINARY, &copy).expect("it can be copied");
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let mut waiter = std::process::Command::new(&copy);
    waiter
        .env("LEASEHOLD_URL", server.url())
        .args(["run", "job", "--", "echo", "ran"]);
    let waiter = start(&mut waiter);
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    std::fs::remove_file(&copy).expect("it can be removed");
    holder.done().expect_code(1);
    assert_eq!(waiter.done().expect_code(0).stdout, "ran\n");
}

#[test]
fn many_short_runs_leave_nothing_behind() {
    const SHELLS: usize = 4;
    const RUNS: usize = 50;
    let server = server();
    thread::scope(|scope| {
        for shell in 0..SHELLS {
            let server = &server;
            scope.spawn(move || {
                for run in 0..RUNS {
                    let (own, shared) = (format!("job-{shell}-{run}"), "job".to_owned());
                    let name = if run % 2 == 0 { own } else { shared };
                    let mut command = leasehold_at(server);
                    command.args(["run", &name, "--", "sh", "-c", "exit 3"]);
                    done(&mut command).expect_code(3);
                }
            });
        }
    });
    assert_eq!(server.keys(), [""; 0]);
    assert_eq!(server.channels(), [""; 0]);
    expect_nothing_runs(&server.url());
}

#[test]
fn first_process_of_a_container_reaps_orphans() {
    let server = server();
    // The shell in the middle ends, so the shell that it has started becomes an orphan.
    let script = "sh -c 'sh -c \"echo \\$\\$; read end </dev/null\" &'; read end; exit 7";
    let mut run = Command::new("python3");
    run.args(["-c", SUBREAPER, BINARY])
        .args(["run", "job", "--", "sh", "-c", script])
        .env("LEASEHOLD_URL", server.url());
    let mut run = start(&mut run);
    let orphan = run.line();
    eventually("nothing of it is left", LIMIT, || {
        !std::path::Path::new(&format!("/proc/{orphan}")).exists()
    });
    assert!(is_alive(run.pid()));
    run.done().expect_code(7);
}

/// A program that becomes the parent of orphans, like the first process of a container.
const SUBREAPER: &str = "import ctypes, os, sys; \
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0; os.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn first_process_of_a_container_waits_for_no_ended_process() {
    let server = server();
    // This is longer than a test may take.
    let grace = ["--grace", "2m", "--lease", "4m", "--max-run", "300ms"];
    // The command ends first, and the process that it has started is already an orphan when it
    // ends.
    let script = "(trap 'sleep 0.2; exit' TERM; while :; do sleep 0.05; done) & \
        trap 'exit 0' TERM; wait";
    let mut run = Command::new("python3");
    run.args(["-c", SUBREAPER, BINARY, "run"])
        .args(grace)
        .args(["job", "--", "sh", "-c", script])
        .env("LEASEHOLD_URL", server.url());
    done(&mut run).expect_code(124);
}

#[test]
fn helper_processes_have_names() {
    let server = server();
    let mut run = start(&mut run_script(&server, &[], "echo held; read end"));
    run.until("held");
    let helper = process(&server.url(), "run-deadman");
    eventually("it has its name", LIMIT, || {
        let name = std::fs::read_to_string(format!("/proc/{helper}/comm"));
        name.expect("it runs").trim() == "run-deadman"
    });
    run.done();
}

#[test]
fn missing_proc_is_named() {
    let server = server();
    // A separate mount namespace is like a system without /proc.
    let script = "mount -t tmpfs none /proc && exec \"$0\" run job -- echo ran";
    let mut run = Command::new("unshare");
    run.args(["-rm", "sh", "-c", script, BINARY])
        .env("LEASEHOLD_URL", server.url());
    let done = done(&mut run).expect_code(1);
    if done.stderr.contains("unshare failed") {
        eprintln!("skipped: no mount namespace may be created here, for example in a chroot");
        return;
    }
    assert_eq!(done.stdout, "");
    done.expect_on_stderr("/proc, which is not mounted; mount it");
    assert!(is_free(&server));
}
