//! `leasehold demo`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leasehold_testkit::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Done, LIMIT, Running, done, is_alive, leasehold, server, start};

#[track_caller]
fn assert_exact(done: &Done, items: u64) {
    let sold = format!("sold {items} of {items}: 0 left, {items} sales in the ledger");
    for says in [
        sold.as_str(),
        "every item was sold once",
        "no two of",
        "overlapped",
    ] {
        assert!(done.stdout.contains(says), "no `{says}` in {done}");
    }
    assert!(!done.stdout.contains("WRONG"), "{done}");
}

#[test]
fn workers_in_one_process_sell_every_item_once() {
    // The demo ignores a server in the environment.
    let demo = done(
        leasehold()
            .env("LEASEHOLD_URL", "redis://127.0.0.1:1")
            .arg("demo"),
    );
    let demo = demo.expect_code(0);
    assert_exact(&demo, 40);
    for row in 1..=5 {
        assert!(demo.stdout.contains(&format!("worker {row}  ")), "{demo}");
    }
    assert!(
        demo.stdout.contains('█') && demo.stdout.contains('·'),
        "{demo}"
    );
}

#[test]
fn killed_worker_in_one_process_spoils_nothing() {
    let demo = done(leasehold().args(["demo", "--kill", "--stock", "10"])).expect_code(0);
    assert_exact(&demo, 10);
    assert!(demo.stdout.contains('✗'), "{demo}");
}

#[test]
fn picture_is_plain_where_the_locale_is() {
    for (language, words) in [("C", &["demo"][..]), ("C.UTF-8", &["demo", "--ascii"])] {
        let demo = done(leasehold().env("LANG", language).args(words)).expect_code(0);
        assert!(demo.stdout.is_ascii(), "{demo}");
        assert!(demo.stdout.contains('#'), "{demo}");
    }
}

#[test]
fn demo_without_lock_reports_overselling() {
    let demo = done(leasehold().args(["demo", "--no-lock"])).expect_code(0);
    assert!(demo.stdout.contains("OVERSOLD"), "{demo}");
    assert!(
        demo.stdout.contains("this is what happens without a lock"),
        "{demo}"
    );
}

#[test]
fn processes_with_killed_holder_sell_items_once() {
    let server = server();
    let demo = done(leasehold().args(["--redis", &server.url(), "demo", "--kill"]));
    let demo = demo.expect_code(0);
    assert_exact(&demo, 40);
    assert!(demo.stdout.contains("worker 8 ("), "{demo}");
    assert!(demo.stdout.contains('✗'), "{demo}");
    assert!(demo.stdout.contains("was killed"), "{demo}");
    eventually("nothing is left on the server", LIMIT, || {
        server.keys().is_empty()
    });
}

#[test]
fn processes_without_the_lock_sell_items_twice() {
    let server = server();
    let demo = done(leasehold().args(["--redis", &server.url(), "demo", "--no-lock"]));
    let demo = demo.expect_code(0);
    assert!(demo.stdout.contains("OVERSOLD"), "{demo}");
}

/// Returns the processes of a running demo.
fn workers_of(demo: &Running) -> BTreeSet<i32> {
    let path = format!("/proc/{0}/task/{0}/children", demo.pid());
    let children = std::fs::read_to_string(path).expect("the demo runs");
    let pids = children.split_whitespace();
    pids.map(|pid| pid.parse().expect("a process id")).collect()
}

#[test]
fn worker_killed_by_hand_spoils_nothing() {
    let server = server();
    let words = ["--redis", &server.url(), "demo", "--workers", "3"];
    let demo = start(leasehold().args(words));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    let worker = workers_of(&demo).into_iter().next().expect("a worker");
    kill(Pid::from_raw(worker), Signal::SIGKILL).expect("it is there");
    let demo = demo.done().expect_code(0);
    assert_exact(&demo, 40);
    assert!(demo.stdout.contains('✗'), "{demo}");
}

#[test]
fn worker_paused_past_its_lease_sells_nothing() {
    let server = server();
    const SALE: Duration = Duration::from_secs(1);
    let words = [
        "--redis",
        &server.url(),
        "demo",
        "--stock",
        "5",
        "--pause",
        "1s",
    ];
    let demo = start(leasehold().args(words).args(["--workers", "3"]));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    let workers = workers_of(&demo);
    let signal = |signal| {
        for worker in &workers {
            kill(Pid::from_raw(*worker), signal).expect("it is there");
        }
    };
    let holder = || {
        let lock = server.keys().first().cloned()?;
        let holders = server.command(&["HKEYS", &lock]).expect("the server runs");
        let first = holders.as_array()?.first()?.as_text()?.to_owned();
        Some(first)
    };
    // The holder is stopped in the middle of a sale: after it has learned of its lock, and before
    // it writes. A holder that was noticed too late is skipped.
    let (mut last, mut looked, mut seen) = (holder(), Instant::now(), None);
    eventually("a worker stands in the middle of a sale", LIMIT, || {
        let (before, now) = (std::mem::replace(&mut looked, Instant::now()), holder());
        if now != last {
            seen = now.is_some().then_some((before, looked));
            last = now;
        }
        let in_time = || seen.is_some_and(|(earliest, _)| earliest.elapsed() < SALE / 2);
        if !in_time() || seen.is_none_or(|(_, at)| at.elapsed() < SALE / 5) {
            return false;
        }
        signal(Signal::SIGSTOP);
        let stands = in_time() && holder() == last;
        if !stands {
            signal(Signal::SIGCONT);
        }
        stands
    });
    eventually("the lease is over", LIMIT, || server.keys().is_empty());
    signal(Signal::SIGCONT);
    let demo = demo.done().expect_code(0);
    assert_exact(&demo, 5);
    assert!(
        demo.stdout.contains("found that it had lost its lock"),
        "{demo}"
    );
}

#[test]
fn demo_fails_if_all_workers_are_killed() {
    let server = server();
    let words = [
        "--redis",
        &server.url(),
        "demo",
        "--workers",
        "2",
        "--stock",
        "1000",
    ];
    let demo = start(leasehold().args(words));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    for worker in workers_of(&demo) {
        kill(Pid::from_raw(worker), Signal::SIGKILL).expect("it is there");
    }
    let demo = demo.done().expect_code(1);
    assert!(demo.stdout.contains("NOT DONE"), "{demo}");
    assert!(!demo.stdout.contains("WRONG"), "{demo}");
}

#[test]
fn signal_ends_the_demo_and_its_workers() {
    let server = server();
    let words = ["--redis", &server.url(), "demo", "--stock", "10000"];
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let demo = start(leasehold().args(words));
        eventually("it sells", LIMIT, || !server.keys().is_empty());
        let workers = workers_of(&demo);
        assert_eq!(workers.len(), 8);
        demo.signal(signal);
        demo.done().expect_code(code);
        assert!(!workers.into_iter().any(is_alive));
        eventually("the lease is over", LIMIT, || server.keys().is_empty());
    }
}

#[test]
fn killed_demo_leaves_no_workers() {
    let server = server();
    let words = ["--redis", &server.url(), "demo", "--stock", "10000"];
    let demo = start(leasehold().args(words));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    let workers = workers_of(&demo);
    demo.signal(Signal::SIGKILL);
    eventually("the workers have ended", LIMIT, || {
        !workers.iter().any(|worker| is_alive(*worker))
    });
}

#[test]
fn worker_arguments_contain_no_password() {
    let server = leasehold_testkit::RedisServer::builder()
        .password("s3cret")
        .start()
        .expect("redis-server starts");
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", "redis://127.0.0.1:1");
    let demo = start(command.args(["--redis", &server.url(), "demo", "--stock", "10000"]));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    for worker in workers_of(&demo) {
        let arguments = std::fs::read_to_string(format!("/proc/{worker}/cmdline"));
        let arguments = arguments.expect("it is there");
        assert!(arguments.contains("demo-worker"));
        assert!(!arguments.contains("s3cret"));
    }
    demo.signal(Signal::SIGTERM);
    let demo = demo.done().expect_code(143);
    assert!(!format!("{demo}").contains("s3cret"), "{demo}");
}

/// Workers use the certificates, the prefix and the mappings of their parent.
#[test]
fn workers_reach_the_server_by_the_flags_of_the_demo() {
    let server = leasehold_testkit::RedisServer::builder()
        .tls_with_client_certificates()
        .start()
        .expect("redis-server starts");
    let [(certificate, key), ..] = &server.client_certificates()[..] else {
        panic!("there are some");
    };
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let mut demo = leasehold();
    demo.args(["--redis", &url, "demo", "--workers", "2", "--stock", "10"])
        .args(["--sni", "localhost", "--map", "127.0.0.1:1=localhost:2"])
        .arg("--cacert")
        .arg(server.ca_file())
        .arg("--cert")
        .arg(certificate)
        .arg("--key")
        .arg(key);
    assert_exact(&done(&mut demo), 10);
}

#[test]
fn server_killed_mid_demo_exits_with_69() {
    let server = server();
    let words = ["--redis", &server.url(), "demo", "--stock", "10000"];
    let demo = start(leasehold().args(words));
    eventually("it sells", LIMIT, || !server.keys().is_empty());
    server.kill().expect("the server can be killed");
    demo.done().expect_code(69).expect_on_stderr("no server");
}

#[test]
fn demo_without_a_server_exits_with_69() {
    let demo = done(leasehold().args(["--redis", "redis://127.0.0.1:1", "demo"]));
    demo.expect_code(69).expect_on_stderr("no server");
}
