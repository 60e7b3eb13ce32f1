//! `leasehold run` at a terminal, which Python's `pty` module simulates.

use std::io::Write as _;
use std::process::{Command, Stdio};

use leasehold_testkit::RedisServer;

use crate::support::{BINARY, is_free, run_script, server, start};

/// Runs a command on a terminal. For each step, types the second text after the first has appeared.
pub(crate) fn on_terminal(
    server: &RedisServer,
    command: &[&str],
    steps: &[(&str, &str)],
) -> (String, i32) {
    let mut python = Command::new("python3")
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/cli/on_terminal.py"
        ))
        .args(command)
        .env("LEASEHOLD_URL", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there");
    let mut stdin = python.stdin.take().expect("a pipe");
    let steps = serde_json::to_string(steps).expect("JSON");
    stdin.write_all(steps.as_bytes()).expect("python3 reads it");
    drop(stdin);
    let output = python.wait_with_output().expect("python3 ends");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    (shown, output.status.code().expect("no signal"))
}

#[test]
fn command_can_read_from_the_terminal() {
    let server = server();
    let script = "echo ready; read answer; echo \"got $answer\"; exit 4";
    let command = [BINARY, "run", "job", "--", "sh", "-c", script];
    let (shown, code) = on_terminal(&server, &command, &[("ready", "hello\n")]);
    assert!(shown.contains("got hello"), "{shown}");
    assert_eq!(code, 4, "{shown}");
    assert!(is_free(&server));
}

#[test]
fn interrupt_key_ends_the_command() {
    let server = server();
    let command = [
        BINARY,
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 300",
    ];
    let (shown, code) = on_terminal(&server, &command, &[("ready", "\u{3}")]);
    assert_eq!(code, 130, "{shown}");
    assert!(is_free(&server));
}

#[test]
fn resumed_job_reads_from_the_terminal() {
    let server = server();
    let run =
        format!("{BINARY} run job -- sh -c 'echo re\"\"ady; read answer; echo got $answer'\n");
    // The typed text contains quotes, so that its echo is not taken for the output.
    let steps = [
        ("", "PS1='prompt'\"> \"\n"),
        ("prompt> ", &run),
        ("ready", "\u{1a}"),
        ("Stopped", "fg\n"),
        ("run job", "hello\n"),
        ("got hello", "exit 5\n"),
    ];
    let shell = ["bash", "--norc", "--noprofile", "-i"];
    let (shown, code) = on_terminal(&server, &shell, &steps);
    assert!(
        shown.contains("stopped; until leasehold continues, `job` is not renewed"),
        "{shown}"
    );
    assert_eq!(code, 5, "{shown}");
    assert!(is_free(&server));
}

/// Stops a job with Ctrl-Z until its lease of 3 s has ended, and continues it. `run` is the rest of
/// the job's command line. Its command first prints `ready`. The `rest` of the steps follows `fg`.
fn stopped_past_its_lease(run: &str, rest: &[(&str, &str)]) -> (String, i32) {
    let server = server();
    let run = format!("{BINARY} run --lease 3s {run}\n");
    let wait =
        format!("while {BINARY} show job | grep -q held; do sleep 0.01; done; echo fr\"\"ee\n");
    let steps = [
        ("", "PS1='prompt'\"> \"\n"),
        ("prompt> ", &run),
        ("ready", "\u{1a}"),
        ("Stopped", &wait),
        ("free", "fg\n"),
    ];
    let shell = ["bash", "--norc", "--noprofile", "-i"];
    on_terminal(&server, &shell, &[&steps[..], rest].concat())
}

#[test]
fn job_stopped_past_its_lease_is_killed() {
    let run = "job -- sh -c 'echo re\"\"ady; read answer; echo never'";
    let (shown, code) = stopped_past_its_lease(run, &[("is lost", "exit\n")]);
    assert!(!shown.contains("never\r"), "{shown}");
    assert_eq!(code, 70, "{shown}");
}

#[test]
fn job_stopped_past_its_lease_goes_on_if_a_loss_is_only_reported() {
    let run = "--on-loss warn job -- \
        sh -c 'echo re\"\"ady; read answer; echo got $answer; exit 5'";
    let rest = [("continues without it", "hello\n"), ("got hello", "exit\n")];
    let (shown, code) = stopped_past_its_lease(run, &rest);
    assert!(shown.contains("is lost when its lease ends"), "{shown}");
    assert_eq!(code, 5, "{shown}");
}

#[test]
fn pipe_reader_keeps_the_terminal() {
    let server = server();
    let pipe = format!(
        "{BINARY} run job -- sh -c 'echo ready; sleep 1' | (cat; read x </dev/tty; echo got $x)"
    );
    // The shell is interactive, so that it gives each job a group of its own.
    let shell = ["bash", "--norc", "--noprofile", "-ic", &pipe];
    let (shown, code) = on_terminal(&server, &shell, &[("ready", "hello\n")]);
    assert!(shown.contains("got hello"), "{shown}");
    assert_eq!(code, 0, "{shown}");
}

#[test]
fn terminal_wait_names_the_holder() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let command = [BINARY, "run", "job", "--", "true"];
    let steps = [("waiting for `job`, held by ", "\u{3}")];
    let (shown, code) = on_terminal(&server, &command, &steps);
    assert_eq!(code, 130, "{shown}");
    holder.done();
    assert!(is_free(&server));
}

#[test]
fn terminal_latch_wait_shows_the_count() {
    let server = server();
    server
        .command(&["SET", "go", "3"])
        .expect("the server runs");
    let command = [BINARY, "latch", "wait", "go"];
    let steps = [("waiting for `go`: its count is 3", "\u{3}")];
    let (shown, code) = on_terminal(&server, &command, &steps);
    assert_eq!(code, 130, "{shown}");
}

#[test]
fn quiet_waits_say_nothing_at_a_terminal() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    server
        .command(&["SET", "go", "3"])
        .expect("the server runs");
    for words in [
        &["run", "--wait", "4s", "job", "--", "true"][..],
        &["latch", "wait", "--wait", "4s", "go"],
    ] {
        let command = [&[BINARY, "--quiet"], words].concat();
        let (shown, code) = on_terminal(&server, &command, &[]);
        assert_eq!(code, 75, "{shown}");
        assert!(!shown.contains("waiting for"), "{shown}");
    }
    holder.done();
}

#[test]
fn interrupt_key_ends_the_question_of_release() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let command = [BINARY, "release", "job"];
    for (typed, code) in [("\u{3}", 130), ("n\n", 1), ("\u{4}", 1)] {
        let (shown, ended) = on_terminal(&server, &command, &[("[y/N]", typed)]);
        assert_eq!(ended, code, "{shown}");
        assert!(!is_free(&server), "{shown}");
    }
    let (shown, ended) = on_terminal(&server, &command, &[("[y/N]", "y\n")]);
    assert_eq!(ended, 0, "{shown}");
    holder.done();
}

#[test]
fn hold_in_the_background_of_a_terminal_gives_the_lock_back() {
    let server = server();
    let hold = format!("{BINARY} hold job & wait $!; echo en\"\"ded $?\n");
    let steps = [
        ("", "PS1='prompt'\"> \"\n"),
        ("prompt> ", &hold),
        ("ended", "exit 5\n"),
    ];
    let shell = ["bash", "--norc", "--noprofile", "-i"];
    let (shown, code) = on_terminal(&server, &shell, &steps);
    assert!(shown.contains("`job` was released"), "{shown}");
    assert!(shown.contains("ended 1"), "{shown}");
    assert_eq!(code, 5, "{shown}");
    assert!(is_free(&server));
}
