//! `leasehold elect` and `leasehold leader`.

use std::process::Command;

use leasehold_testkit::{RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{LIMIT, done, expect_nothing_runs, leasehold_at, server, start};

fn elect(server: &RedisServer, options: &[&str], script: &str) -> Command {
    let mut command = leasehold_at(server);
    command.arg("elect").args(options).arg("x");
    command.args(["--", "sh", "-c", script]);
    command
}

fn leader(server: &RedisServer, options: &[&str]) -> Command {
    let mut command = leasehold_at(server);
    command.arg("leader").args(options).arg("x");
    command
}

#[test]
fn one_candidate_leads_and_the_next_follows() {
    let server = server();
    done(&mut leader(&server, &[])).expect_code(1);
    let script = "echo $LEASEHOLD_TOKEN; exec sleep 600";
    let mut first = start(&mut elect(&server, &["--payload", "one"], script));
    let token: u64 = first.line().trim().parse().expect("a token");
    let seen = done(&mut leader(&server, &[])).expect_code(0);
    assert_eq!(seen.stdout, "one\n");
    let mut second = start(&mut elect(&server, &["--payload", "two"], script));
    first.signal(Signal::SIGTERM);
    first.done().expect_code(143);
    let next: u64 = second.line().trim().parse().expect("a token");
    assert!(next > token);
    let seen = done(&mut leader(&server, &["--json"])).expect_code(0);
    let seen: serde_json::Value = serde_json::from_str(&seen.stdout).expect("JSON");
    assert_eq!(seen["payload"], "two");
    assert_eq!(seen["token"], next);
    second.signal(Signal::SIGINT);
    second.done().expect_code(130);
    done(&mut leader(&server, &[])).expect_code(1);
}

#[test]
fn command_that_fails_gives_the_lead_up_and_runs_again() {
    let server = server();
    let script = "echo $LEASEHOLD_TOKEN; exit 3";
    let options = ["--restart-delay", "100ms"];
    let mut candidate = start(&mut elect(&server, &options, script));
    let tokens: Vec<u64> = (0..3)
        .map(|_| candidate.line().trim().parse().expect("a token"))
        .collect();
    assert!(tokens.is_sorted() && tokens[0] < tokens[2], "{tokens:?}");
    eventually("the lead is given up", LIMIT, || {
        done(&mut leader(&server, &[])).code() == 1
    });
    candidate.signal(Signal::SIGTERM);
    candidate.done().expect_code(143);
}

#[test]
fn lost_lead_ends_the_command_and_it_stands_again() {
    let server = server();
    let script = "trap 'echo told; exit' TERM; echo leads; while :; do sleep 0.05; done";
    let options = ["--lease", "1s", "--restart-delay", "100ms"];
    let mut candidate = start(&mut elect(&server, &options, script));
    candidate.until("leads");
    server.command(&["DEL", "x"]).expect("the server runs");
    candidate.until("told");
    candidate.until("leads");
    candidate.signal(Signal::SIGTERM);
    candidate.done().expect_code(143);
}

/// A program that reads its configuration again at HUP.
#[test]
fn hang_up_that_the_command_survives_is_forgotten() {
    let server = server();
    let script = "trap 'echo reloaded' HUP; echo leads; while :; do sleep 0.05; done";
    let options = ["--lease", "1s", "--restart-delay", "100ms"];
    let mut candidate = start(&mut elect(&server, &options, script));
    candidate.until("leads");
    candidate.signal(Signal::SIGHUP);
    candidate.until("reloaded");
    server.command(&["DEL", "x"]).expect("the server runs");
    candidate.until("leads");
    // A command that does not survive it ends the candidate.
    candidate.signal(Signal::SIGTERM);
    candidate.done().expect_code(143);
    let mut candidate = start(&mut elect(&server, &[], "echo leads; exec sleep 600"));
    candidate.until("leads");
    candidate.signal(Signal::SIGHUP);
    candidate.done().expect_code(129);
}

/// The token of a term is the time at which it began, in microseconds.
#[test]
fn short_delays_are_kept() {
    let server = server();
    let script = "echo $LEASEHOLD_TOKEN";
    let options = ["--restart-delay", "1ms"];
    let mut candidate = start(&mut elect(&server, &options, script));
    let tokens: Vec<u64> = (0..6)
        .map(|_| candidate.line().trim().parse().expect("a token"))
        .collect();
    candidate.signal(Signal::SIGTERM);
    candidate.done().expect_code(143);
    let pauses = tokens.windows(2).map(|pair| pair[1] - pair[0]);
    let shortest = pauses.min().expect("some terms");
    assert!(shortest < 1_000_000, "{tokens:?}");
}

#[test]
fn watch_prints_each_leader() {
    let server = server();
    let mut watch = start(&mut leader(&server, &["--watch"]));
    assert_eq!(watch.line().trim(), "-");
    let candidate = start(&mut elect(&server, &["--payload", "one"], "exec sleep 600"));
    assert_eq!(watch.line().trim(), "one");
    candidate.signal(Signal::SIGTERM);
    candidate.done().expect_code(143);
    assert_eq!(watch.line().trim(), "-");
    watch.signal(Signal::SIGTERM);
    watch.done().expect_code(143);
}

#[test]
fn missing_command_ends_the_candidate() {
    let server = server();
    let mut command = leasehold_at(&server);
    command.args(["elect", "x", "--", "/no/such/command"]);
    done(&mut command).expect_code(127);
    let mut command = leasehold_at(&server);
    done(command.args(["elect", "x"])).expect_code(2);
}

/// A tool that the command calls may be missing, too.
#[test]
fn command_that_ends_with_127_is_started_again() {
    let server = server();
    let mut elect = start(&mut elect(
        &server,
        &["--restart-delay", "1ms"],
        "echo leads; exit 127",
    ));
    for _ in 0..3 {
        elect.until("leads");
    }
    elect.signal(Signal::SIGTERM);
    elect.done();
}

#[test]
fn killed_leader_is_replaced() {
    let server = server();
    let script = "echo $LEASEHOLD_TOKEN; exec sleep 600";
    let mut first = start(&mut elect(&server, &["--lease", "3s"], script));
    let token: u64 = first.line().trim().parse().expect("a token");
    let mut second = start(&mut elect(&server, &[], script));
    first.signal(Signal::SIGKILL);
    let next: u64 = second.line().trim().parse().expect("a token");
    assert!(next > token);
    second.signal(Signal::SIGTERM);
    second.done().expect_code(143);
    expect_nothing_runs(&server.url());
}
