//! `leasehold run --progress-within`.

use std::fs::File;
use std::io::{Read as _, Write as _, pipe};
use std::process::{Command, Stdio};

use leasehold_testkit::{Proxy, RedisServer, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    LIMIT, Running, done, expect_nothing_runs, is_free, leasehold_at, run_script, send, server,
    start,
};

/// A stall that is noticed soon.
const SOON: [&str; 5] = [
    "--lease",
    "1500ms",
    "--progress-within",
    "500ms",
    "--progress-output",
];
/// Without progress, the lock is lost after eight seconds. A busy machine delays a report by less
/// than three.
const OFTEN: [&str; 4] = ["--lease", "5s", "--progress-within", "3s"];
/// Prints a dot without a line end, for six seconds.
const DOTS: &str = "i=0; while [ $i -lt 30 ]; do printf .; i=$((i+1)); sleep 0.2; done";
const HANGS: &str = "echo held; exec sleep 300";

fn held(server: &RedisServer, options: &[&str], script: &str) -> Running {
    let mut run = start(&mut run_script(server, options, script));
    run.until("held");
    run
}

#[test]
fn silent_command_loses_its_lock() {
    let server = server();
    let run = held(&server, &SOON, HANGS);
    let done = run
        .done()
        .expect_code(70)
        .expect_on_stderr("the command has made no progress for ")
        .expect_on_stderr("the lock `job` is about to be lost: its work made no progress for ");
    assert!(!done.stderr.contains("makes progress again"), "{done}");
    assert!(is_free(&server));
}

/// Cron mails each line.
#[test]
fn half_of_the_time_is_announced_only_on_request() {
    let server = server();
    // More than half of the time, and long before its end.
    let script = "echo held; sleep 4; echo more";
    let runs = [vec![], vec!["-v"]].map(|more| {
        let mut run = leasehold_at(&server);
        run.args(["run", "--progress-within", "7s", "--progress-output"]);
        run.args(&more).arg(format!("job {}", more.len()));
        start(run.args(["--", "sh", "-c", script]))
    });
    let [silent, told] = runs.map(|run| run.done().expect_code(0));
    assert_eq!(silent.stderr, "");
    told.expect_on_stderr("the work makes no progress");
}

#[test]
fn stopped_command_makes_no_progress() {
    let server = server();
    let script = "echo held; kill -STOP $$; echo never";
    let done = held(&server, &SOON, script).done().expect_code(70);
    assert!(!done.stdout.contains("never"), "{done}");
    expect_nothing_runs(&server.url());
}

#[test]
fn any_output_is_progress() {
    let server = server();
    let options = [&OFTEN[..], &["--progress-output"]].concat();
    let on_stderr = format!("({DOTS}) >&2; exit 3");
    let runs = [format!("{DOTS}; exit 3"), on_stderr].map(|script| {
        let name = format!("job {}", script.len());
        let mut run = leasehold_at(&server);
        run.arg("run").args(&options).arg(name);
        start(run.args(["--", "sh", "-c", &script]))
    });
    for run in runs {
        let done = run.done().expect_code(3);
        assert_eq!(done.stdout.len() + done.stderr.len(), 30, "{done}");
    }
}

#[test]
fn only_a_change_of_the_file_is_progress() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("progress");
    let path = file.to_str().expect("UTF-8");
    let options = [&OFTEN[..], &["--progress-file", path]].concat();
    // The file does not exist at first, and its output is no progress.
    let script = "for i in $(seq 30); do touch \"$FILE\"; sleep 0.2; done; echo touched; \
        while :; do echo more; sleep 0.1; done";
    let mut run = start(run_script(&server, &options, script).env("FILE", path));
    run.until("touched");
    run.done()
        .expect_code(70)
        .expect_on_stderr("its work made no progress for ");
    let options = [
        "--lease",
        "1s",
        "--progress-within",
        "500ms",
        "--progress-file",
    ];
    // It is not the clock that counts, but the change.
    let future = std::time::SystemTime::now() + LIMIT * 1000;
    let old = File::options()
        .write(true)
        .open(&file)
        .expect("it is there");
    old.set_modified(future).expect("it can be set");
    let options = [&options[..], &[path]].concat();
    held(&server, &options, HANGS).done().expect_code(70);
    let below = format!("{path}/none");
    let options = [&options[..5], &[&below]].concat();
    held(&server, &options, HANGS)
        .done()
        .expect_code(70)
        .expect_on_stderr("this counts as no progress");
}

#[test]
fn progress_before_the_end_starts_the_renewals_again() {
    let server = server();
    let options = [
        "--json",
        "--lease",
        "15s",
        "--progress-within",
        "1s",
        "--progress-output",
    ];
    let script = "echo held; read line; while :; do echo again; sleep 0.1; done";
    let mut run = held(&server, &options, script);
    eventually("the stall is told", LIMIT, || {
        run.has_told(r#""event":"stalled""#)
    });
    run.say("go on");
    run.until("again");
    eventually("the end of the stall is told", LIMIT, || {
        run.has_told(r#""event":"progressing""#)
    });
    run.signal(Signal::SIGTERM);
    let done = run.done().expect_code(143);
    let stalled = done.stderr.lines().find(|line| line.contains("stalled"));
    let stalled: Value = serde_json::from_str(stalled.expect("an event")).expect("JSON");
    assert!(
        stalled["no_progress_ms"].as_u64() >= Some(1000),
        "{stalled}"
    );
    // The test runs after the year 2020.
    assert!(stalled["last_progress_ms"].as_u64() > Some(1_577_836_800_000));
}

#[test]
fn progress_that_is_too_late_for_a_renewal_is_not_told_as_one() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let options = ["--lease", "6s", "--progress-within", "1s"];
    let options = [&["--json"], &options[..], &["--progress-output"]].concat();
    let script = "echo held; read line; echo again; exec sleep 300";
    let mut run = run_script(&server, &options, script);
    let mut run = start(run.env("LEASEHOLD_URL", proxy.url()));
    run.until("held");
    eventually("the stall is told", LIMIT, || {
        run.has_told(r#""event":"stalled""#)
    });
    proxy.hold(true);
    run.say("go on");
    run.until("again");
    let done = run.done().expect_code(70);
    assert!(!done.stderr.contains("progressing"), "{done}");
}

#[test]
fn warned_of_command_continues_without_its_lock() {
    let server = server();
    let options = [&SOON[..], &["--on-loss", "warn"]].concat();
    let run = held(&server, &options, "echo held; read line; exit 5");
    eventually("the lock is free", LIMIT, || is_free(&server));
    run.done()
        .expect_code(5)
        .expect_on_stderr("the command continues without it");
}

/// The options of each kind of hold.
fn kinds(server: &RedisServer) -> Vec<Vec<String>> {
    let ticket = |options: &[&str], name: &str| {
        let words = [&["hold", "--ticket"][..], options, &[name]].concat();
        let ticket = done(leasehold_at(server).args(words)).expect_code(0).stdout;
        vec!["--resume".to_owned(), ticket.trim().to_owned()]
    };
    let mut kinds = vec![
        ticket(&[], "0"),
        ticket(&["--limit", "2"], "1"),
        ticket(&["--read"], "2"),
    ];
    let options: [&[&str]; 9] = [
        &["--fair"],
        &["--read"],
        &["--write"],
        &["--fenced"],
        &["--limit", "3"],
        &["--also", "another"],
        &["--slot", "365d"],
        &["--once", "today"],
        &["--min-hold", "1s"],
    ];
    kinds.extend(options.map(|words| words.iter().map(|word| (*word).to_owned()).collect()));
    kinds
}

/// Starts the script under each kind of hold at the same time.
fn under_each_kind(server: &RedisServer, options: &[&str], script: &str) -> Vec<Running> {
    let kinds = kinds(server).into_iter().enumerate();
    kinds
        .map(|(number, kind)| {
            let mut run = leasehold_at(server);
            run.arg("run").args(options).args(kind);
            run.args([&number.to_string(), "--", "sh", "-c", script]);
            start(&mut run)
        })
        .collect()
}

#[test]
fn each_kind_of_hold_depends_on_progress() {
    let server = server();
    let options = [&OFTEN[..], &["--progress-output"]].concat();
    for run in under_each_kind(&server, &options, DOTS) {
        run.done().expect_code(0);
    }
    server.command(&["FLUSHALL"]).expect("the server runs");
    let options = ["--lease", "1s", "--progress-within", "1s"];
    let options = [&options[..], &["--progress-output"]].concat();
    for run in under_each_kind(&server, &options, "exec sleep 300") {
        run.done()
            .expect_code(70)
            .expect_on_stderr("made no progress for ");
    }
}

#[test]
fn leader_whose_command_is_silent_is_replaced() {
    let server = server();
    let elect = |script: &str| {
        let mut elect = leasehold_at(&server);
        elect.arg("elect").args(SOON).arg("x");
        start(elect.args(["--", "sh", "-c", script]))
    };
    let mut silent = elect(HANGS);
    silent.until("held");
    let mut next = elect("while :; do echo leads; sleep 0.1; done");
    next.until("leads");
    for candidate in [silent, next] {
        candidate.signal(Signal::SIGTERM);
        candidate.done().expect_code(143);
    }
}

/// Returns random bytes.
fn noise(length: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let random = File::open("/dev/urandom").expect("it is there");
    random.take(length).read_to_end(&mut bytes).expect("bytes");
    bytes
}

#[test]
fn output_passes_unchanged_and_whole() {
    let server = server();
    let bytes = noise(10_000_001);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&bytes).expect("it can be written");
    let script = "cat \"$FILE\"; printf end >&2; exit 7";
    let mut run = run_script(
        &server,
        &["--progress-within", "1m", "--progress-output"],
        script,
    );
    let output = run.env("FILE", file.path()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stdout == bytes, "{} bytes", output.stdout.len());
    assert_eq!(output.stderr, b"end");
}

#[test]
fn slow_reader_gets_all_output_and_keeps_no_lock() {
    let server = server();
    // More than two pipes contain, and less than these and what is copied at a time.
    let bytes = noise(150_000);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&bytes).expect("it can be written");
    let options = ["--progress-within", "1m", "--progress-output"];
    let mut run = run_script(&server, &options, "cat \"$FILE\"");
    run.env("FILE", file.path()).stdout(Stdio::piped());
    let mut child = run.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("output");
    eventually("the lock is free", LIMIT, || is_free(&server));
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("output");
    assert!(
        first[0] == bytes[0] && rest == bytes[1..],
        "{} bytes",
        rest.len()
    );
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn streams_to_one_file_keep_their_order() {
    let server = server();
    let script = "i=0; while [ $i -lt 500 ]; do echo $i; echo $i >&2; i=$((i+1)); done";
    let mut run = run_script(
        &server,
        &["--progress-within", "1m", "--progress-output"],
        script,
    );
    let (mut reader, writer) = pipe().expect("a pipe");
    run.stdout(writer.try_clone().expect("a second end"))
        .stderr(writer);
    let mut child = run.spawn().expect("it starts");
    drop(run);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert!(child.wait().expect("it ends").success());
    let expected: String = (0..500).map(|i| format!("{i}\n{i}\n")).collect();
    assert_eq!(text, expected);
}

#[test]
fn output_without_a_line_end_arrives_at_once() {
    let server = server();
    let script = "printf 'name? '; read name; echo \"hello $name\"";
    let mut run = run_script(
        &server,
        &["--progress-within", "1m", "--progress-output"],
        script,
    );
    run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = run.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut question = [0; 6];
    stdout.read_exact(&mut question).expect("a question");
    assert_eq!(&question, b"name? ");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"bob\n").expect("it reads");
    let mut answer = String::new();
    stdout.read_to_string(&mut answer).expect("text");
    assert_eq!(answer, "hello bob\n");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn closed_reader_ends_the_command_with_sigpipe() {
    let server = server();
    let options = ["--progress-within", "1m", "--progress-output"];
    // The second one writes only once when there is no reader any more.
    for script in [
        "while :; do echo more; done",
        "echo first; read go; echo more; exit 9",
    ] {
        let mut run = run_script(&server, &options, script);
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.spawn().expect("it starts");
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut [0; 5]).expect("output");
        drop(stdout);
        eventually("the end of the reader is noticed", LIMIT, || {
            threads_that_copy(child.id()) <= 1
        });
        drop(child.stdin.take());
        let code = child.wait().expect("it ends");
        assert_eq!(code.code(), Some(128 + 13), "{script}");
        assert!(is_free(&server));
    }
}

/// Returns the number of the process's threads that copy output.
fn threads_that_copy(pid: u32) -> usize {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.flatten().filter_map(|thread| name(thread).ok());
    names.filter(|name| name.trim() == "output").count()
}

#[test]
fn process_left_behind_with_the_output_holds_nothing_up() {
    let server = server();
    let options = ["--progress-within", "1m", "--progress-output"];
    let script = "echo held; sleep 300 & echo $!; exit 4";
    let mut run = held(&server, &options, script);
    let pid = run.line().parse().expect("a process id");
    run.done().expect_code(4);
    assert!(is_free(&server));
    send(pid, Signal::SIGKILL);
    // It writes without end, and the command's own last word is copied.
    let script = "yes y | head -c 100000000 & sleep 0.1; echo last >&2; exit 6";
    let mut run: Command = run_script(&server, &options, script);
    let output = run.output().expect("it starts");
    assert_eq!(output.status.code(), Some(6));
    assert_eq!(output.stderr, b"last\n");
    assert!(output.stdout.len() < 100_000_000);
    expect_nothing_runs(&server.url());
}

#[test]
fn senseless_options_are_refused() {
    let server = server();
    let options: [&[&str]; 5] = [
        &["--progress-within", "1s"],
        &["--progress-file", "x"],
        &["--progress-output"],
        &[
            "--progress-within",
            "1s",
            "--progress-output",
            "--progress-file",
            "x",
        ],
        &[
            "--progress-within",
            "1s",
            "--progress-output",
            "--min-hold",
            "2s",
        ],
    ];
    for options in options {
        let refused = done(&mut run_script(&server, options, "echo ran")).expect_code(2);
        assert_eq!(refused.stdout, "", "{options:?}");
    }
}
