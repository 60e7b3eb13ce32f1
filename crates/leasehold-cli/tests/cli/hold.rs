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
    // The program ends although its input is still open.
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
    // The program ends although its input is still open.
    eventually("it has ended", LIMIT, || !is_alive(hold.pid()));
    hold.done().expect_code(70).expect_on_stderr("is lost");
}

#[test]
fn failover_guard_keeps_the_lock_back() {
    let server = server();
    let guarded = ["--failover-guard", "1h", "-n"];
    // To the guard of this client, the server is new.
    let kept_back = done(&mut run_script(&server, &guarded, "true"));
    kept_back.expect_code(75).expect_on_stderr("failover guard");
    done(
        leasehold_at(&server)
            .args(["hold"])
            .args(guarded)
            .arg("job"),
    )
    .expect_code(75);
    let info = server.command(&["INFO", "replication"]).expect("it runs");
    let info = info.as_text().expect("a text");
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("master_replid:"));
    let long_ago = format!("{} 1", id.expect("it has one").trim());
    let noted = server.command(&["SET", "leasehold:guard", &long_ago]);
    noted.expect("it runs");
    done(&mut run_script(&server, &guarded, "true")).expect_code(0);
    let short = ["--failover-guard", "5s"];
    let refused = done(&mut run_script(&server, &short, "true"));
    refused
        .expect_code(2)
        .expect_on_stderr("failover guard of 5s");
}
