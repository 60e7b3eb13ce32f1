//! A full stdout or stderr without a reader: a paused pager, a log collector that hangs, a terminal
//! after Ctrl-S.

use std::io::Read as _;
use std::process::{Command, Stdio};

use leasehold_testkit::{Proxy, RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{
    LIMIT, Running, delete_job, full_pipe, is_free, is_writing, leasehold_at, run_script, server,
    start, start_telling, still_terminal,
};

const STDOUT: i32 = 1;
const STDERR: i32 = 2;

/// Returns how much of the lease of `job` remains on the server.
fn ttl_ms(server: &RedisServer) -> i64 {
    let left = server.command(&["PTTL", "job"]).expect("the server runs");
    left.as_int().expect("a number")
}

fn expect_writes(run: &Running, descriptor: i32) {
    eventually("it has something to say", LIMIT, || {
        is_writing(run.pid(), descriptor)
    });
}

/// Starts a command whose output nothing reads, and expects that a signal ends it.
fn expect_end_by_signal(command: &mut Command) {
    let child = command.stderr(Stdio::null()).spawn();
    let run = Running::of(child.expect("the binary starts"));
    expect_writes(&run, STDOUT);
    run.signal(Signal::SIGTERM);
    run.done().expect_code(143);
}

#[test]
fn lock_is_renewed_after_an_outage_that_nobody_reads_of() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let (_reader, stderr) = full_pipe();
    let mut run = run_script(&server, &["--lease", "10s"], "echo held; read end; exit 3");
    let mut run = start_telling(run.env("LEASEHOLD_URL", proxy.url()), stderr);
    run.until("held");
    proxy.refuse(true);
    proxy.cut();
    eventually("a renewal was due", LIMIT, || ttl_ms(&server) < 6000);
    expect_writes(&run, STDERR);
    proxy.refuse(false);
    eventually("it is renewed again", LIMIT, || ttl_ms(&server) > 9000);
    run.done().expect_code(3);
    assert!(is_free(&server));
}

#[test]
fn most_time_of_a_command_holds_without_a_reader() {
    let server = server();
    let (_reader, stderr) = full_pipe();
    let options = ["--max-run", "300ms", "--grace", "200ms"];
    let mut run = run_script(&server, &options, "exec sleep 300");
    start_telling(&mut run, stderr).done().expect_code(124);
    assert!(is_free(&server));
}

#[test]
fn lost_lock_ends_the_command_gently_without_a_reader() {
    let server = server();
    let (_reader, stderr) = full_pipe();
    let script = "exec 2>/dev/null; trap 'echo told; exit 0' TERM; \
        echo held; while :; do sleep 0.01; done";
    let options = ["--lease", "9s"];
    let mut run = start_telling(&mut run_script(&server, &options, script), stderr);
    run.until("held");
    delete_job(&server);
    run.until("told");
    run.done().expect_code(70);
}

#[test]
fn events_hold_up_no_command_without_a_reader() {
    let server = server();
    let (_reader, stderr) = full_pipe();
    let mut run = start_telling(&mut run_script(&server, &["--json"], "echo ran"), stderr);
    run.until("ran");
    run.done().expect_code(0);
    assert!(is_free(&server));
}

#[test]
fn busy_lock_ends_the_run_without_a_reader() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let (_reader, stderr) = full_pipe();
    let mut run = run_script(&server, &["-n"], "echo ran");
    start_telling(&mut run, stderr).done().expect_code(75);
    holder.done();
}

#[test]
fn signals_end_a_run_without_a_reader() {
    let server = server();
    let (_reader, stderr) = full_pipe();
    let mut run = run_script(&server, &["--json"], "echo held; exec sleep 300");
    let mut run = start_telling(&mut run, stderr);
    run.until("held");
    expect_writes(&run, STDERR);
    let (_reader, stderr) = full_pipe();
    let waiter = start_telling(&mut run_script(&server, &["--json"], "echo ran"), stderr);
    // The waiter has waited long enough to report its wait.
    expect_writes(&waiter, STDERR);
    waiter.signal(Signal::SIGINT);
    waiter.done().expect_code(130);
    run.signal(Signal::SIGTERM);
    run.done().expect_code(143);
    assert!(is_free(&server));
}

#[test]
fn signals_end_what_writes_to_a_full_stdout() {
    let server = server();
    server
        .command(&["HSET", "job", "5400c6ee-9efb-4d7c-afeb-d3cddd05968d:1", "1"])
        .expect("the server runs");
    for words in [
        &["ls"][..],
        &["watch", "job"],
        &["doctor"],
        &["release", "-y", "job"],
        &["hold", "other"],
    ] {
        let (_reader, stdout) = full_pipe();
        let mut command = leasehold_at(&server);
        expect_end_by_signal(command.args(words).stdin(Stdio::null()).stdout(stdout));
    }
}

#[test]
fn signals_end_a_picture_on_a_terminal_that_stands_still() {
    let server = server();
    let (_other_side, terminal) = still_terminal();
    let end = || terminal.try_clone().expect("a second one");
    let mut top = leasehold_at(&server);
    expect_end_by_signal(top.arg("top").stdin(end()).stdout(end()));
}

#[test]
fn slow_reader_gets_all_of_the_list() {
    let server = server();
    for number in 0..300 {
        let name = format!("job-{number:03}-{}", "x".repeat(400));
        let set = ["HSET", &name, "5400c6ee-9efb-4d7c-afeb-d3cddd05968d:1", "1"];
        server.command(&set).expect("the server runs");
    }
    let (mut reader, stdout) = full_pipe();
    let child = leasehold_at(&server)
        .args(["ls", "--json"])
        .stdin(Stdio::null())
        .stdout(stdout)
        .spawn();
    let run = Running::of(child.expect("the binary starts"));
    expect_writes(&run, STDOUT);
    let (mut text, mut part) = (String::new(), [0; 4096]);
    loop {
        match reader.read(&mut part).expect("it can be read") {
            0 => break,
            read => text.push_str(&String::from_utf8_lossy(&part[..read])),
        }
    }
    run.done().expect_code(0);
    assert_eq!(text.matches(r#""name":"job-"#).count(), 300);
}
