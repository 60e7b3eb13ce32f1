//! Warnings that are printed without a request, and the messages that `--quiet` suppresses.

use leasehold_testkit::{Proxy, RedisServer, eventually};

use crate::support::{BINARY, LIMIT, done, leasehold, leasehold_at, run_script, server, start};
use crate::terminal::on_terminal;

#[test]
fn server_that_may_evict_locks_is_warned_of() {
    let server = RedisServer::builder()
        .arg("maxmemory", "1gb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .expect("redis-server starts");
    for words in [&["run", "job", "--", "true"][..], &["show", "job"]] {
        let warned = done(leasehold_at(&server).args(words))
            .expect_code(0)
            .expect_on_stderr("set maxmemory-policy noeviction");
        let line = warned.stderr.strip_prefix("leasehold: WARN ");
        assert_eq!(line.map(|line| line.lines().count()), Some(1), "{warned}");
        let quiet = done(leasehold_at(&server).arg("-q").args(words)).expect_code(0);
        assert_eq!(quiet.stderr, "", "{words:?}");
    }
}

#[test]
fn lost_connection_is_logged_as_a_warning() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", proxy.url())
        .args(["run", "--lease", "3s", "job", "--"])
        .args(["sh", "-c", "echo held; read end; exit 3"]);
    let mut run = start(&mut run);
    run.until("held");
    let before = proxy.connections();
    proxy.cut();
    eventually("it has connected again", LIMIT, || {
        proxy.connections() > before
    });
    run.done()
        .expect_code(3)
        .expect_on_stderr("leasehold: WARN the connection is lost; connecting again address=");
}

#[test]
fn quiet_runs_still_tell_why_they_failed() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    // Only the exit code reports that the lock is not free.
    let busy = done(&mut run_script(&server, &["-q", "-n", "-E", "0"], "true")).expect_code(0);
    assert_eq!(busy.stderr, "");
    let busy = done(&mut run_script(&server, &["-q", "--wait", "3s"], "true")).expect_code(75);
    assert_eq!(busy.stderr, "");
    holder.done();
    let limit = ["-q", "--limit", "2"];
    let quiet = done(&mut run_script(&server, &limit, "true")).expect_code(0);
    assert_eq!(quiet.stderr, "");
    done(&mut run_script(&server, &["-q", "--limit", "3"], "true")).expect_code(78);
}

/// A user at a terminal gets the doctor's warning, and so does a program that reads events.
#[test]
fn who_looks_is_told_in_one_line_when_the_doctor_would_warn() {
    const ADVICE: &str = "see leasehold doctor";
    let server = server();
    let warned = "warning, see leasehold doctor: writes do not go to disk as they happen";
    let (shown, code) = on_terminal(&server, &[BINARY, "show", "job"], &[]);
    assert_eq!((code, shown.matches(ADVICE).count()), (0, 1), "{shown}");
    assert!(shown.contains(warned), "{shown}");
    // Each command ends after its warning.
    let run = [BINARY, "run", "job", "--", "sh", "-c", "read end"];
    let (shown, code) = on_terminal(&server, &run, &[(ADVICE, "\n")]);
    assert_eq!((code, shown.matches(ADVICE).count()), (0, 1), "{shown}");
    let top = format!("stty rows 24 cols 200; exec {BINARY} top");
    // The picture sends only changes, without blanks.
    let (shown, code) = on_terminal(&server, &["sh", "-c", &top], &[("doctor", "q")]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("doctor"), "{shown}");
    // A script gets no line, and neither does a user without a warning.
    let piped = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(piped.stderr, "");
    let sound = RedisServer::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always");
    let sound = sound.start().expect("redis-server starts");
    let (shown, code) = on_terminal(&sound, &[BINARY, "show", "job"], &[]);
    assert_eq!((code, shown.trim()), (0, "`job` is free"));
}

#[test]
fn each_step_is_told_with_verbose() {
    let server = server();
    let mut holder = leasehold_at(&server);
    let holder = start(holder.args(["run", "job", "--", "sh", "-c", "read end"]));
    let show = || done(leasehold_at(&server).args(["show", "job"])).stdout;
    // The label is the command's name.
    eventually("it has said who it is", LIMIT, || {
        show().contains("client  sh on ")
    });
    let pid = holder.pid();
    let mut waiter = leasehold_at(&server);
    let waiter = start(waiter.args(["-v", "run", "job", "--", "true"]));
    eventually("it waits", LIMIT, || !server.channels().is_empty());
    eventually("it says so", LIMIT, || waiter.has_told("waiting for `job`"));
    holder.done();
    let told = waiter.done().expect_code(0);
    for said in [
        "leasehold: waiting for `job`, held by sh on ",
        &format!("process {pid} ("),
        "leasehold: acquired `job`, ",
        "leasehold: released `job`, held for ",
    ] {
        assert!(told.stderr.contains(said), "no `{said}` in {told}");
    }
    let quiet = done(&mut run_script(&server, &[], "true")).expect_code(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn run_inside_a_run_of_the_same_lock_is_explained() {
    let server = server();
    let inner = format!("{BINARY} run --wait 3s job -- echo ran");
    let done = done(&mut run_script(&server, &[], &inner)).expect_code(75);
    let told = done.stderr.lines().collect::<Vec<_>>();
    assert_eq!(told.len(), 2, "{done}");
    assert!(
        told[0].starts_with("leasehold: waiting for `job`"),
        "{done}"
    );
    for line in told {
        assert!(line.contains("it waits for itself"), "{done}");
    }
}
