//! Tickets on the command line.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{Proxy, RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{
    Done, LIMIT, Running, done, full_pipe, is_free, is_writing, leasehold, leasehold_at, start,
};

/// Prints a ticket of the lock `job`.
fn ticket(server: &RedisServer, options: &[&str]) -> String {
    let words = [&["hold", "--ticket"][..], options, &["job"]].concat();
    let line = done(leasehold_at(server).args(words)).expect_code(0).stdout;
    assert_eq!(line.lines().count(), 1, "{line}");
    line.trim().to_owned()
}

fn run(server: &RedisServer, options: &[&str], script: &str) -> Done {
    let words = [&["run"][..], options, &["job", "--", "sh", "-c", script]].concat();
    done(leasehold_at(server).args(words))
}

fn release(server: &RedisServer, options: &[&str]) -> Done {
    done(leasehold_at(server).args([&["release"][..], options].concat()))
}

#[test]
fn hold_continues_under_another_command() {
    let server = server();
    for options in [
        &[][..],
        &["--fenced"],
        &["--fair"],
        &["--read"],
        &["--write"],
        &["--limit", "1"],
    ] {
        let ticket = ticket(&server, options);
        let try_it = [&["-n"][..], options].concat();
        if options != ["--read"] {
            run(&server, &try_it, "echo ran").expect_code(75);
        }
        let ran = run(&server, &["--resume", &ticket], "echo ran").expect_code(0);
        assert_eq!(ran.stdout, "ran\n", "{options:?}");
        let again = run(&server, &["--resume", &ticket], "echo ran").expect_code(70);
        assert_eq!(again.stdout, "");
        again.expect_on_stderr("no longer valid");
        run(&server, &try_it, "true").expect_code(0);
        server.command(&["FLUSHALL"]).expect("an empty server");
    }
}

#[test]
fn ticket_has_a_token_that_the_next_command_exceeds() {
    let server = server();
    let words = [
        "hold", "--ticket", "--json", "--fenced", "--lease", "1m", "job",
    ];
    let told = done(leasehold_at(&server).args(words))
        .expect_code(0)
        .stdout;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let token = told["token"].as_u64().expect("a token");
    assert_eq!(told["lease_ms"], 60_000);
    let line = told["ticket"].as_str().expect("a ticket");
    let ran = run(&server, &["--resume", line], "echo $LEASEHOLD_TOKEN");
    let next: u64 = ran.expect_code(0).stdout.trim().parse().expect("a token");
    assert!(next > token);
    assert!(is_free(&server));
}

#[test]
fn ticket_is_read_from_standard_input_and_the_rest_is_left() {
    let server = server();
    let line = ticket(&server, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ticket");
    std::fs::write(&file, format!("{line}\nthe rest\n")).expect("a file");
    let mut command = leasehold_at(&server);
    command.args(["run", "--resume", "-", "job", "--", "cat"]);
    let input = File::open(&file).expect("the file");
    let ran = command.stdin(input).output().expect("it ran");
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "the rest\n",
        "{ran:?}"
    );

    let line = ticket(&server, &[]);
    std::fs::write(&file, line).expect("a file");
    let mut command = leasehold_at(&server);
    command.args(["release", "--ticket", "-"]);
    let input = File::open(&file).expect("the file");
    let ran = command.stdin(input).output().expect("it ran");
    assert!(ran.status.success(), "{ran:?}");
    assert!(is_free(&server));
}

#[test]
fn released_ticket_is_over() {
    let server = server();
    let line = ticket(&server, &["--lease", "1h"]);
    let released = release(&server, &["--ticket", &line]).expect_code(0);
    assert_eq!(
        released.stdout,
        "released `job`, which was held by a ticket\n"
    );
    assert!(is_free(&server));
    release(&server, &["--ticket", &line]).expect_code(66);
    run(&server, &["--resume", &line], "true")
        .expect_code(70)
        .expect_on_stderr("its lease has expired, or it was released");

    let line = ticket(&server, &[]);
    let words = [
        "run",
        "--resume",
        &line,
        "job",
        "--",
        "sh",
        "-c",
        "echo runs; read end",
    ];
    let mut running = start(leasehold_at(&server).args(words));
    running.until("runs");
    release(&server, &["--ticket", &line])
        .expect_code(75)
        .expect_on_stderr("it was used, or its lease has expired");
    running.signal(Signal::SIGTERM);
    running.done();
}

/// A ticket that no process can have would keep the lock locked for its lease.
#[test]
fn ticket_that_is_not_read_is_released() {
    let server = server();
    let words = ["hold", "--ticket", "--lease", "10m", "job"];
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let hold = leasehold_at(&server).args(words).stdout(writer).output();
    let hold = hold.expect("the binary starts");
    let told = String::from_utf8_lossy(&hold.stderr);
    assert_eq!(hold.status.code(), Some(1), "{told}");
    assert!(told.contains("was released"), "{told}");
    assert!(is_free(&server));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (_reader, stdout) = full_pipe();
        let mut hold = leasehold_at(&server);
        let hold = hold
            .args(words)
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn();
        let hold = Running::of(hold.expect("the binary starts"));
        eventually("it writes", LIMIT, || is_writing(hold.pid(), 1));
        hold.signal(signal);
        assert_eq!(hold.done().code(), 128 + signal as i32);
        assert!(is_free(&server));
    }
}

/// A closed stdout is the null device for the program.
#[test]
fn ticket_is_not_written_where_no_program_reads_it() {
    let server = server();
    for words in [
        "exec \"$0\" hold --ticket job >&-",
        "exec \"$0\" hold --ticket job >/dev/null",
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", words, env!("CARGO_BIN_EXE_leasehold")]);
        shell.env("LEASEHOLD_URL", server.url());
        done(&mut shell)
            .expect_code(2)
            .expect_on_stderr("no program would read the ticket");
        assert!(is_free(&server));
    }
}

#[test]
fn ticket_of_permits_has_no_options_of_locks() {
    let server = server();
    let line = ticket(&server, &["--limit", "2"]);
    for options in [&["--fenced"][..], &["--replicas", "1"], &["--on-disk"]] {
        let options = [&["--resume", &line], options].concat();
        run(&server, &options, "true")
            .expect_code(2)
            .expect_on_stderr("is only for locks");
    }
    run(&server, &["--resume", &line], "true").expect_code(0);
}

#[test]
fn wrong_tickets_are_refused() {
    let server = server();
    let line = ticket(&server, &[]);
    let words = ["run", "--resume", &line, "other", "--", "true"];
    done(leasehold_at(&server).args(words))
        .expect_code(2)
        .expect_on_stderr("the ticket is for `job`");
    run(&server, &["--resume", "nonsense"], "true")
        .expect_code(2)
        .expect_on_stderr("is not a ticket");
    run(&server, &["--resume", &line, "--fair"], "true").expect_code(2);
    let words = ["--prefix", "p:", "release", "--ticket", &line];
    done(leasehold_at(&server).args(words))
        .expect_code(2)
        .expect_on_stderr("prefix");
    release(&server, &[]).expect_code(2);
    release(&server, &["--ticket", &line]).expect_code(0);
}

fn server() -> RedisServer {
    crate::support::server()
}

/// The outage is longer than the library repeats a request.
#[test]
fn resume_waits_for_the_end_of_an_outage() {
    let server = server();
    let ticket = ticket(&server, &["--lease", "60s"]);
    let proxy = Proxy::to(server.port());
    proxy.refuse(true);
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", proxy.url());
    run.args(["run", "--resume", &ticket, "job", "--", "echo", "ran"]);
    let run = start(&mut run);
    std::thread::sleep(Duration::from_secs(5));
    proxy.refuse(false);
    assert_eq!(run.done().expect_code(0).stdout, "ran\n");
}
