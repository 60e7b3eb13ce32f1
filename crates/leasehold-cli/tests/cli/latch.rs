//! `leasehold latch`, and `leasehold run --limit`.

use leasehold_testkit::{RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{LIMIT, done, leasehold_at, run_script, server, start};

fn latch(server: &RedisServer, words: &[&str]) -> std::process::Command {
    let mut command = leasehold_at(server);
    command.arg("latch").args(words);
    command
}

#[test]
fn those_who_wait_go_on_when_it_is_counted_down_to_zero() {
    let server = server();
    done(&mut latch(&server, &["set", "go", "2"])).expect_code(0);
    let waiters = [(); 3].map(|()| start(&mut latch(&server, &["wait", "go"])));
    eventually("they listen", LIMIT, || {
        let channel = "redisson_countdownlatch__channel__{go}";
        let reply = server.command(&["PUBSUB", "NUMSUB", channel]);
        let reply = reply.expect("the server runs");
        reply.as_array().and_then(|pair| pair[1].as_int()) == Some(3)
    });
    let left = done(&mut latch(&server, &["down", "go"])).expect_code(0);
    assert_eq!(left.stdout, "1\n");
    let left = done(&mut latch(&server, &["down", "go"])).expect_code(0);
    assert_eq!(left.stdout, "0\n");
    for waiter in waiters {
        waiter.done().expect_code(0);
    }
    done(&mut latch(&server, &["wait", "go"])).expect_code(0);
}

#[test]
fn latch_that_is_not_open_in_time_or_is_set_already_gives_75() {
    let server = server();
    done(&mut latch(&server, &["set", "go", "5"])).expect_code(0);
    done(&mut latch(&server, &["wait", "go", "--wait", "50ms"]))
        .expect_code(75)
        .expect_on_stderr("`go` was not open within 50ms: 5 to count down");
    done(&mut latch(&server, &["set", "go", "7"]))
        .expect_code(75)
        .expect_on_stderr("`go` is set already, with 5 to count down");
    done(&mut latch(&server, &["down", "go", "--by", "5"])).expect_code(0);
    done(&mut latch(&server, &["set", "go", "0"])).expect_code(2);
}

#[test]
fn signal_ends_a_wait_for_a_latch() {
    let server = server();
    done(&mut latch(&server, &["set", "go", "1"])).expect_code(0);
    let waiter = start(&mut latch(&server, &["wait", "go"]));
    eventually("it listens", LIMIT, || !server.channels().is_empty());
    waiter.signal(Signal::SIGTERM);
    waiter.done().expect_code(143);
}

#[test]
fn up_to_so_many_commands_run_at_a_time() {
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
    .expect_on_stderr("`job` is not free: 2 of 2 run already");
    let mut waiter = run();
    let [mut first, second] = running;
    first.close_stdin();
    first.done().expect_code(1);
    waiter.until("runs");
    // One that is killed gives its permit back with its lease.
    second.signal(Signal::SIGKILL);
    second.done();
    let lease = ["--limit", "2", "--wait", "60s"];
    done(&mut run_script(&server, &lease, "true")).expect_code(0);
    waiter.close_stdin();
    waiter.done().expect_code(1);
    let free = server.command(&["GET", "job"]).expect("the server runs");
    assert_eq!(free.as_text(), Some("2"));
}
