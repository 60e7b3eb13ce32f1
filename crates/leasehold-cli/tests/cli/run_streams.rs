//! `leasehold run` with streams that are closed, full, or not read.

use std::fs::File;
use std::io::pipe;
use std::process::{Command, Stdio};

use leasehold_testkit::RedisServer;

use crate::support::{
    BINARY, delete_job, is_free, leasehold_at, run_script, server, start_telling,
};

/// Returns `leasehold run`, started by a shell that redirects or closes streams.
fn in_shell(server: &RedisServer, redirections: &str) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("exec {BINARY} -vvv run job -- sh -c 'exit 7' {redirections}");
    shell
        .env("LEASEHOLD_URL", server.url())
        .args(["-c", &script]);
    shell
}

/// Returns a pipe whose reader is closed.
fn unread() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("it is there")
        .into()
}

#[test]
fn closed_streams_change_nothing() {
    let server = server();
    for redirections in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let code = in_shell(&server, redirections).status().expect("it starts");
        assert_eq!(code.code(), Some(7), "{redirections}");
        assert!(is_free(&server), "{redirections}");
    }
}

#[test]
fn closed_stdout_ends_command_with_sigpipe() {
    let server = server();
    let mut run = run_script(&server, &[], "while :; do echo more; done");
    run.stdin(Stdio::null()).stdout(unread());
    let code = run.status().expect("it starts");
    assert_eq!(code.code(), Some(128 + 13));
    assert!(is_free(&server));
}

#[test]
fn story_that_nobody_reads_changes_no_exit_code() {
    let server = server();
    for stderr in [unread, full] {
        for options in [&["run"][..], &["-vvv", "run"]] {
            let mut run = leasehold_at(&server);
            run.args(options)
                .args(["--lease", "1s", "job", "--"])
                .args(["sh", "-c", "echo held; exec sleep 300"]);
            let mut run = start_telling(&mut run, stderr());
            run.until("held");
            delete_job(&server);
            run.done().expect_code(70);
            let mut run = leasehold_at(&server);
            run.args(options).args(["job", "--", "nosuchcmd"]);
            start_telling(&mut run, stderr()).done().expect_code(127);
            assert!(is_free(&server), "{options:?}");
        }
    }
}

#[test]
fn unwritable_log_does_not_end_the_run() {
    // The shell itself would die when it writes about `sleep` to stderr.
    let script = "exec 2>/dev/null; trap 'echo told; exit 0' TERM; \
        echo held; while :; do sleep 0.01; done";
    let runs = [unread(), full()].map(|stderr| {
        let server = server();
        let mut run = leasehold_at(&server);
        run.args(["-vvv", "run", "--lease", "6s", "--grace", "3s", "job", "--"])
            .args(["sh", "-c", script]);
        let mut run = start_telling(&mut run, stderr);
        run.until("held");
        // From now on, there are warnings to log.
        server.kill().expect("it can be killed");
        run
    });
    for mut run in runs {
        run.until("told");
        run.done().expect_code(70);
    }
}
