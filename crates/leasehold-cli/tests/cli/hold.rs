//! `leasehold hold`.

use leasehold_testkit::eventually;
use nix::sys::signal::Signal;

use crate::support::{LIMIT, done, is_alive, is_free, leasehold_at, run_script, server, start};

#[test]
fn lock_is_held_until_the_input_ends() {
    let server = server();
    let mut hold = start(leasehold_at(&server).args(["hold", "job"]));
    hold.until("held");
    assert!(!is_free(&server));
    done(&mut run_script(&server, &["-n"], "true")).expect_code(75);
    done(leasehold_at(&server).args(["hold", "-n", "-E", "9", "job"])).expect_code(9);
    hold.done().expect_code(0);
    assert!(is_free(&server));
}

#[test]
fn signal_gives_the_held_lock_back() {
    let server = server();
    let mut hold = start(leasehold_at(&server).args(["hold", "--fenced", "job"]));
    let token: u64 = hold.line().parse().expect("the token");
    assert!(token > 0);
    hold.signal(Signal::SIGTERM);
    // Its input has not ended.
    eventually("it has ended", LIMIT, || !is_alive(hold.pid()));
    hold.done().expect_code(143);
    assert!(is_free(&server));
}

#[test]
fn loss_of_a_held_lock_ends_with_70() {
    let server = server();
    let mut hold = start(leasehold_at(&server).args(["hold", "--lease", "2s", "--json", "job"]));
    let told: serde_json::Value = serde_json::from_str(&hold.line()).expect("JSON");
    let id = told["id"].as_str().expect("an id").to_owned();
    let words = ["release", "-y", "job", "--holder", &id];
    done(leasehold_at(&server).args(words)).expect_code(0);
    // Its input has not ended.
    eventually("it has ended", LIMIT, || !is_alive(hold.pid()));
    hold.done().expect_code(70).expect_on_stderr("is lost");
}
