//! `leasehold run --limit` and `leasehold set-limit`.

use leasehold_testkit::{Proxy, RedisServer, Strike, eventually};
use nix::sys::signal::Signal;

use crate::support::{Done, LIMIT, Running, done, leasehold, leasehold_at, run_script, server};
use crate::support::{delete_job, start};

/// Runs a command that ends at once.
fn limited(server: &RedisServer, limit: &str) -> Done {
    let options = ["--limit", limit, "--no-wait"];
    done(&mut run_script(server, &options, "echo ran"))
}

/// Starts a command that runs until its input ends.
fn running(server: &RedisServer, limit: &str) -> Running {
    let mut run = start(&mut run_script(
        server,
        &["--limit", limit],
        "echo runs; read end",
    ));
    run.until("runs");
    run
}

fn set_limit(server: &RedisServer, limit: &str) -> Done {
    done(leasehold_at(server).args(["set-limit", "job", limit]))
}

#[test]
fn at_most_the_limit_of_commands_run() {
    let server = server();
    let run = || {
        start(&mut run_script(
            &server,
            &["--limit", "2"],
            "echo runs; read end",
        ))
    };
    let mut running = [run(), run()];
    running.iter_mut().for_each(|run| run.until("runs"));
    done(&mut run_script(
        &server,
        &["--limit", "2", "--no-wait"],
        "true",
    ))
    .expect_code(75)
    .expect_on_stderr("`job` is not free: 2 of 2 are already running");
    let mut waiter = run();
    let [mut first, second] = running;
    first.close_stdin();
    first.done().expect_code(1);
    waiter.until("runs");
    // The permit of a killed run is free again after its lease.
    second.signal(Signal::SIGKILL);
    second.done();
    let lease = ["--limit", "2", "--wait", "60s"];
    done(&mut run_script(&server, &lease, "true")).expect_code(0);
    waiter.close_stdin();
    waiter.done().expect_code(1);
    let free = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(free.as_text(), Some("2"));
}

#[test]
fn first_one_sets_the_limit_and_says_so() {
    let server = server();
    let first = limited(&server, "3").expect_code(0);
    let created = "leasehold: `job` had no limit; from now on, 3 commands can run at a time\n";
    assert_eq!(first.stderr, created);
    let second = limited(&server, "3").expect_code(0);
    assert_eq!(second.stderr, "");
}

#[test]
fn run_with_a_different_limit_is_refused() {
    let server = server();
    let mut holder = running(&server, "2");
    for other in ["5", "1"] {
        let refused = limited(&server, other)
            .expect_code(78)
            .expect_on_stderr(&format!("the limit of `job` is 2, not {other}"))
            .expect_on_stderr(&format!("leasehold set-limit job {other}"));
        assert_eq!(refused.stdout, "");
    }
    let mut second = running(&server, "2");
    limited(&server, "2").expect_code(75);
    for run in [&mut holder, &mut second] {
        run.close_stdin();
    }
    holder.done();
    second.done();
    let free = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(free.as_text(), Some("2"));
}

#[test]
fn one_of_two_racing_limits_is_refused() {
    let server = server();
    let proxy = Proxy::to(server.port());
    // The first run has found no limit, and its request to set one is still under way.
    let held = proxy.strike_next(b".set\r\n", Strike::HoldRequest);
    let mut first = leasehold();
    first
        .env("LEASEHOLD_URL", proxy.url())
        .args(["run", "--limit", "2", "job", "--", "echo", "ran"]);
    let first = start(&mut first);
    eventually("it sets its limit", LIMIT, || held.fired());
    limited(&server, "3").expect_code(0);
    proxy.let_go(&held);
    let first = first.done().expect_code(78);
    assert_eq!(first.stdout, "");
    let set = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(set.as_text(), Some("3"));
}

#[test]
fn set_limit_changes_a_limit_in_use() {
    let server = server();
    set_limit(&server, "1")
        .expect_code(0)
        .expect_on_stderr("the limit of `job` is 1 from now on\n");
    let first = running(&server, "1");
    set_limit(&server, "2")
        .expect_code(0)
        .expect_on_stderr("is 2 from now on; it was 1");
    let second = running(&server, "2");
    limited(&server, "2").expect_code(75);
    set_limit(&server, "1").expect_code(0);
    first.done();
    // One command too many was running, so no permit is free yet.
    limited(&server, "1").expect_code(75);
    second.done();
    limited(&server, "1").expect_code(0);
    set_limit(&server, "0").expect_code(2);
}

#[test]
fn name_that_is_something_else_gets_no_limit() {
    for command in [
        &["RPUSH", "job", "x"][..],
        &["SET", "job", "x"],
        &["HSET", "job", "7e57c0de-0000-4000-8000-000000000000:1", "1"],
    ] {
        let server = server();
        server.command(command).expect("the server runs");
        let key = server.command(&["DUMP", "job"]).expect("the server runs");
        for refused in [limited(&server, "2"), set_limit(&server, "2")] {
            refused
                .expect_code(65)
                .expect_on_stderr("so it can't have a limit; choose another name");
        }
        let after = server.command(&["DUMP", "job"]).expect("the server runs");
        assert_eq!(key, after, "{command:?}");
    }
    let server = server();
    done(leasehold_at(&server).args(["latch", "set", "job", "2"])).expect_code(0);
    for refused in [limited(&server, "2"), set_limit(&server, "2")] {
        refused
            .expect_code(65)
            .expect_on_stderr("`job` is in use as a latch");
    }
}

#[test]
fn limit_is_compared_without_asking_who_the_clients_are() {
    let server = server();
    let holder = running(&server, "1");
    let proxy = Proxy::to(server.port());
    // If the query included clients, each process of a herd would read all clients. This fault
    // never strikes.
    let reads = proxy.strike_next(b"presence.clients\r\n", Strike::CutBefore);
    let mut busy = leasehold();
    busy.env("LEASEHOLD_URL", proxy.url());
    busy.args(["run", "--limit", "1", "-n", "job", "--", "true"]);
    done(&mut busy)
        .expect_code(75)
        .expect_on_stderr("1 of 1 are already running");
    assert!(!reads.fired());
    holder.done();
}

#[test]
fn removed_limit_admits_no_further_commands() {
    let server = server();
    let holders = [running(&server, "2"), running(&server, "2")];
    delete_job(&server);
    limited(&server, "2")
        .expect_code(78)
        .expect_on_stderr("was removed while commands ran under it (still running: 2)")
        .expect_on_stderr("leasehold set-limit job N");
    set_limit(&server, "2").expect_code(0);
    limited(&server, "2").expect_code(75);
    for holder in holders {
        holder.done();
    }
    limited(&server, "2").expect_code(0);
    let free = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(free.as_text(), Some("2"));
}

fn remove(server: &RedisServer, options: &[&str]) -> Done {
    let mut remove = leasehold_at(server);
    done(remove.args(["set-limit", "job", "--remove"]).args(options))
}

#[test]
fn limit_is_removed_when_no_command_runs_under_it() {
    let server = server();
    remove(&server, &["--yes"])
        .expect_code(66)
        .expect_on_stderr("`job` has no limit; there is nothing to remove");
    let holder = running(&server, "2");
    remove(&server, &["--yes"])
        .expect_code(75)
        .expect_on_stderr("commands running under the limit of `job`: 1")
        .expect_on_stderr("leasehold release job --force");
    holder.done().expect_code(1);
    remove(&server, &[])
        .expect_code(2)
        .expect_on_stderr("the limit of `job` is removed only with --yes");
    let set = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(set.as_text(), Some("2"));
    remove(&server, &["--yes"])
        .expect_code(0)
        .expect_on_stderr("`job` has no limit from now on; it was 2");
    limited(&server, "3").expect_code(0);
    done(leasehold_at(&server).args(["set-limit", "job", "2", "--remove"])).expect_code(2);
}

/// Neither a limit nor a latch expires, and neither is below zero.
#[test]
fn number_of_another_program_is_not_changed() {
    let server = server();
    let get = || server.command(&["GET", "job"]).expect("the server runs");
    for (set, why, is_limit) in [
        (&["SET", "job", "5", "EX", "1000"][..], "expires", false),
        (&["SET", "job", "-5"], "is below zero", true),
    ] {
        server.command(set).expect("the server runs");
        let before = get();
        done(leasehold_at(&server).args(["latch", "down", "job"]))
            .expect_code(65)
            .expect_on_stderr(&format!(
                "the number under `job` {why}, so it is not a latch"
            ));
        if !is_limit {
            for refused in [set_limit(&server, "2"), remove(&server, &["--yes"])] {
                refused
                    .expect_code(65)
                    .expect_on_stderr("the number under `job` expires, so it is not a limit");
            }
        }
        assert_eq!(get(), before);
    }
}
