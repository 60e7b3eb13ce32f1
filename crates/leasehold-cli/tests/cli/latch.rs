//! `leasehold latch`.

use leasehold_testkit::{RedisServer, eventually};
use nix::sys::signal::Signal;

use crate::support::{LIMIT, done, leasehold_at, server, start};

fn latch(server: &RedisServer, words: &[&str]) -> std::process::Command {
    let mut command = leasehold_at(server);
    command.arg("latch").args(words);
    command
}

#[test]
fn latch_waiters_finish_at_count_zero() {
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
fn latch_timeout_and_second_set_give_75() {
    let server = server();
    done(&mut latch(&server, &["set", "go", "5"])).expect_code(0);
    done(&mut latch(&server, &["wait", "go", "-w", "1"]))
        .expect_code(75)
        .expect_on_stderr("`go` was not open within 1s: its count is 5");
    done(&mut latch(&server, &["set", "go", "7"]))
        .expect_code(75)
        .expect_on_stderr("`go` is set already, and its count is 5");
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
fn unset_latch_is_reported() {
    let server = server();
    let unset = "because it was never set";
    done(&mut latch(&server, &["wait", "typo"]))
        .expect_code(0)
        .expect_on_stderr(unset);
    let quiet = done(&mut latch(&server, &["wait", "typo", "--quiet"])).expect_code(0);
    assert_eq!(quiet.stderr, "");
    done(&mut latch(&server, &["wait", "typo", "--must-exist"]))
        .expect_code(66)
        .expect_on_stderr("leasehold latch set typo N");
    let counted = done(&mut latch(&server, &["down", "typo"]))
        .expect_code(0)
        .expect_on_stderr(unset);
    assert_eq!(counted.stdout, "0\n");
    let counted = done(&mut latch(&server, &["down", "typo", "--must-exist"])).expect_code(66);
    assert_eq!(counted.stdout, "");
    // A latch that was opened exists.
    done(&mut latch(&server, &["set", "go", "1"])).expect_code(0);
    done(&mut latch(&server, &["down", "go"])).expect_code(0);
    for options in [
        &["wait", "go"][..],
        &["wait", "go", "--must-exist"],
        &["down", "go", "--must-exist"],
    ] {
        let opened = done(&mut latch(&server, options)).expect_code(0);
        assert_eq!(opened.stderr, "", "{options:?}");
    }
}
