//! What is told without being asked for, and what `--quiet` leaves out.

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
    done(&mut run_script(&server, &["-q", "--no-wait"], "true"))
        .expect_code(75)
        .expect_on_stderr("`job` is not free: held by ");
    holder.done();
    let limit = ["-q", "--limit", "2"];
    let quiet = done(&mut run_script(&server, &limit, "true")).expect_code(0);
    assert_eq!(quiet.stderr, "");
    done(&mut run_script(&server, &["-q", "--limit", "3"], "true")).expect_code(78);
}

/// Somebody at a terminal, and a program that reads events.
#[test]
fn who_looks_is_told_in_one_line_when_the_doctor_would_warn() {
    const ADVICE: &str = "see leasehold doctor";
    let server = server();
    let warned = "warning, see leasehold doctor: nothing is written to disk as it happens";
    let (shown, code) = on_terminal(&server, &[BINARY, "show", "job"], &[]);
    assert_eq!((code, shown.matches(ADVICE).count()), (0, 1), "{shown}");
    assert!(shown.contains(warned), "{shown}");
    // Each ends when it has told.
    let run = [BINARY, "run", "job", "--", "sh", "-c", "read end"];
    let (shown, code) = on_terminal(&server, &run, &[(ADVICE, "\n")]);
    assert_eq!((code, shown.matches(ADVICE).count()), (0, 1), "{shown}");
    let top = format!("stty rows 24 cols 200; exec {BINARY} top");
    // The picture sends what has changed, without the blanks.
    let (shown, code) = on_terminal(&server, &["sh", "-c", &top], &[("doctor", "q")]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("doctor"), "{shown}");
    // No line for a script, nor where nothing would be warned of.
    let piped = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(piped.stderr, "");
    let sound = RedisServer::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always");
    let sound = sound.start().expect("redis-server starts");
    let (shown, code) = on_terminal(&sound, &[BINARY, "show", "job"], &[]);
    assert_eq!((code, shown.trim()), (0, "`job` is free"));
}
