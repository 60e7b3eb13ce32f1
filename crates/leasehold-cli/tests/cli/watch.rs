//! `leasehold watch`.

use nix::sys::signal::Signal;

use crate::support::{Running, done, expect_nothing_runs, leasehold_at, run_script, server, start};

/// Returns the next change of a `watch --json`.
fn next(watch: &mut Running) -> serde_json::Value {
    serde_json::from_str(&watch.line()).expect("JSON")
}

#[test]
fn each_change_is_a_line() {
    let server = server();
    let mut watch = start(leasehold_at(&server).args(["watch", "--every", "20ms", "job"]));
    let until = |watch: &mut Running, text: &str| {
        loop {
            let line = watch.line();
            assert_ne!(line, "", "it ended without `{text}`");
            if line.contains(text) {
                break line;
            }
        }
    };
    until(&mut watch, "is free");
    let mut holder = start(&mut run_script(&server, &["--fair"], "echo held; read end"));
    holder.until("held");
    let held = until(&mut watch, "held by ");
    let id = held.split_once("held by ").expect("an id").1;
    let id = id.split(' ').next().expect("an id").to_owned();
    let waiter = start(&mut run_script(&server, &["--fair"], "true"));
    until(&mut watch, "waited for by ");
    holder.close_stdin();
    until(&mut watch, &format!("no longer held by {id}"));
    holder.done();
    waiter.done().expect_code(0);
    until(&mut watch, "is free");
    watch.signal(Signal::SIGINT);
    watch.done().expect_code(130);
}

#[test]
fn watch_says_who_a_holder_is() {
    let server = server();
    let words = ["watch", "--every", "20ms", "--json", "job"];
    let mut watch = start(leasehold_at(&server).args(words));
    let options = ["--label", "nightly billing"];
    let mut holder = start(&mut run_script(&server, &options, "echo held; read end"));
    holder.until("held");
    let mut until = |is_it: fn(&serde_json::Value) -> bool| {
        loop {
            let json = next(&mut watch);
            if is_it(&json) {
                break json;
            }
        }
    };
    // The client is announced some milliseconds after the grant: in the same change, or in a
    // separate one.
    let known = until(|change| change["client"].is_object());
    assert_eq!(known["client"]["label"], "nightly billing", "{known}");
    let pid = holder.pid();
    assert_eq!(known["client"]["pid"], pid.to_string(), "{known}");
    let host = known["client"]["host"].as_str().expect("a name").to_owned();
    let mut later = start(leasehold_at(&server).args(["watch", "job"]));
    let who = format!(" (nightly billing on {host}, process {pid})");
    let told = later.line();
    assert!(told.ends_with(&who), "{told}");
    later.signal(Signal::SIGINT);
    later.done().expect_code(130);
    holder.close_stdin();
    holder.done();
    let released = until(|change| change["change"] == "released");
    assert_eq!(released["client"]["pid"], pid.to_string(), "{released}");
    watch.signal(Signal::SIGINT);
    watch.done().expect_code(130);
}

#[test]
fn late_announcement_of_a_holder_is_a_change() {
    let server = server();
    let uuid = "7e57c0de-0000-4000-8000-000000000000";
    let hold = format!("{uuid}:1");
    server
        .command(&["HSET", "job", &hold, "1"])
        .expect("a hold");
    server
        .command(&["PEXPIRE", "job", "3600000"])
        .expect("a lease");
    let mut watch =
        start(leasehold_at(&server).args(["watch", "--every", "20ms", "--json", "job"]));
    let first = next(&mut watch);
    assert_eq!(first["change"], "held", "{first}");
    assert!(first["client"].is_null(), "{first}");
    let key = format!("leasehold:client:{uuid}");
    let fields = [
        "label", "billing", "host", "db1", "pid", "7", "version", "1", "address", "db1:1",
    ];
    let numbers = [
        "age_ms",
        "1",
        "holds",
        "1:1",
        "waits",
        "",
        "at",
        "9000000000000",
    ];
    let command = [&["HSET", &key][..], &fields, &numbers].concat();
    server.command(&command).expect("an announcement");
    let known = next(&mut watch);
    assert_eq!(known["change"], "client", "{known}");
    assert_eq!(known["id"], hold, "{known}");
    assert_eq!(known["client"]["label"], "billing", "{known}");
    watch.signal(Signal::SIGINT);
    watch.done().expect_code(130);
}

#[test]
fn changes_are_json_for_a_program() {
    let server = server();
    // Even if the time is very short, the first result is shown.
    let words = ["watch", "--for", "1ms", "--json", "job"];
    let watched = done(leasehold_at(&server).args(words)).expect_code(0);
    let first = watched.stdout.lines().next().expect("a line");
    let json: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(
        (&json["name"], &json["kind"]),
        (&"job".into(), &"free".into())
    );
    assert!(
        json["at"].as_str().is_some_and(|at| at.ends_with('Z')),
        "{json}"
    );
}

#[test]
fn command_runs_for_each_change() {
    let server = server();
    let script =
        r#"echo "ran $LEASEHOLD_NAME $LEASEHOLD_CHANGE ${LEASEHOLD_ID:+somebody}"; exit 3"#;
    let words = ["watch", "--every", "20ms", "--exec", script, "job"];
    let mut watch = start(
        leasehold_at(&server)
            .env("LEASEHOLD_ID", "mine")
            .args(words),
    );
    watch.until("ran job kind");
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    // The command before has failed, and the watch has continued.
    watch.until("ran job held somebody");
    holder.close_stdin();
    holder.done();
    watch.until("ran job released somebody");
    watch.signal(Signal::SIGINT);
    watch.done().expect_on_stderr("failed").expect_code(130);
}

#[test]
fn signal_ends_the_command_too() {
    let server = server();
    // The shell has a child, and a signal to the shell alone would leave the child behind.
    let script = "trap 'echo told; exit' TERM; echo runs; sleep 120 & wait; sleep 120";
    let words = ["watch", "--exec", script, "job"];
    let mut watch = start(leasehold_at(&server).args(words));
    watch.until("runs");
    watch.signal(Signal::SIGTERM);
    watch.until("told");
    watch.done().expect_code(143);
    expect_nothing_runs(&server.url());

    // A command that ignores the signal is waited for, until another signal arrives.
    let script = "trap 'echo told' TERM; echo runs; while :; do sleep 0.05; done";
    let words = ["watch", "--exec", script, "job"];
    let mut watch = start(leasehold_at(&server).args(words));
    watch.until("runs");
    watch.signal(Signal::SIGTERM);
    watch.until("told");
    watch.signal(Signal::SIGTERM);
    watch.done().expect_code(143);
    expect_nothing_runs(&server.url());
}
