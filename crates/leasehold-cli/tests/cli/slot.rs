//! `leasehold run --slot` and `--once`.

use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use leasehold_testkit::{Proxy, RedisServer, Strike, eventually};
use nix::sys::signal::Signal;

use crate::support::{
    Done, LIMIT, Running, done, is_free, leasehold, leasehold_at, run_script, server, start,
};

/// A slot that began a day or two ago, and lasts for most of a year.
static SLOT: LazyLock<[&str; 4]> =
    LazyLock::new(|| ["--slot", "365d", "--offset", offset(1).leak()]);

/// Returns the offset of slots of 365 days, one of which began this number of days ago.
fn offset(days_ago: u64) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let days = since.expect("after 1970").as_secs() / (24 * 3600);
    format!("{}d", (days - days_ago) % 365)
}

fn slot(server: &RedisServer, more: &[&str], script: &str) -> Done {
    done(&mut run_script(server, &[&SLOT[..], more].concat(), script))
}

fn show(server: &RedisServer) -> Done {
    done(leasehold_at(server).args(["show", "job"]))
}

#[test]
fn slot_runs_once_and_the_others_are_silent() {
    let server = server();
    assert_eq!(
        slot(&server, &[], "echo ran").expect_code(0).stdout,
        "ran\n"
    );
    let second = slot(&server, &[], "echo ran").expect_code(0);
    assert_eq!((&*second.stdout, &*second.stderr), ("", ""));
    slot(&server, &["-v"], "echo ran")
        .expect_code(0)
        .expect_on_stderr("was done by ");
    slot(&server, &["--json"], "echo ran")
        .expect_code(0)
        .expect_on_stderr(r#""event":"done_already""#);
    slot(&server, &["-E", "9"], "echo ran").expect_code(9);
    let shown = show(&server).expect_code(0).stdout;
    assert!(shown.contains("with exit code 0"), "{shown}");
}

#[test]
fn runner_has_the_label_that_was_given() {
    let server = server();
    let options = [&SLOT[..], &["--label", "pod-7"]].concat();
    let mut first = start(&mut run_script(&server, &options, "echo runs; read end"));
    first.until("runs");
    slot(&server, &["-v"], "echo ran")
        .expect_code(0)
        .expect_on_stderr("runs on pod-7");
    let shown = show(&server).expect_code(0).stdout;
    assert!(shown.contains("runs on pod-7"), "{shown}");
    first.close_stdin();
    first.done();
    // The flag is for one command, and the variable for all commands of the machine.
    let options = [&SLOT[..], &["--again", "--label", "pod-8"]].concat();
    let mut second = run_script(&server, &options, "true");
    done(second.env("LEASEHOLD_LABEL", "machine")).expect_code(0);
    let shown = show(&server).expect_code(0).stdout;
    assert!(shown.contains("pod-8"), "{shown}");
}

#[test]
fn second_run_is_told_that_the_first_still_runs() {
    let server = server();
    let mut first = start(&mut run_script(
        &server,
        &SLOT[..],
        "echo runs; read end; true",
    ));
    first.until("runs");
    slot(&server, &["--json"], "echo ran")
        .expect_code(0)
        .expect_on_stderr(r#""event":"running_elsewhere""#);
    let mut waiter = start(&mut run_script(
        &server,
        &[&SLOT[..], &["--wait", "60s"]].concat(),
        "echo ran",
    ));
    first.close_stdin();
    first.done().expect_code(0);
    assert_eq!(waiter.line(), "");
    waiter.done().expect_code(0);
}

#[test]
fn failed_command_is_repeated_only_on_request() {
    let server = server();
    slot(&server, &[], "exit 3").expect_code(3);
    assert_eq!(slot(&server, &[], "echo ran").expect_code(0).stdout, "");
    let retried = slot(&server, &["--retry-failed"], "echo ran").expect_code(0);
    assert_eq!(retried.stdout, "ran\n");
}

#[test]
fn killed_run_is_repeated_unless_at_most_once() {
    let server = server();
    let options = [&SLOT[..], &["--lease", "1s"]].concat();
    let mut first = start(&mut run_script(&server, &options, "echo runs; read end"));
    first.until("runs");
    first.signal(Signal::SIGKILL);
    first.done();
    eventually("the lease is over", LIMIT, || is_free(&server));
    let once = slot(&server, &["--at-most-once", "-v"], "echo ran").expect_code(0);
    assert_eq!(once.expect_on_stderr("never ended").stdout, "");
    assert_eq!(
        slot(&server, &[], "echo ran").expect_code(0).stdout,
        "ran\n"
    );
}

#[test]
fn other_slots_under_the_name_are_refused() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    done(&mut run_script(&server, &["--slot", "1d"], "echo ran"))
        .expect_code(78)
        .expect_on_stderr("use the same --slot");
    done(&mut run_script(&server, &["--once", "monday"], "echo ran")).expect_code(78);
    slot(&server, &["--limit", "2"], "true").expect_code(2);
}

#[test]
fn id_runs_once() {
    let server = server();
    let run = |id: &str| {
        let options = ["--once", id, "--keep", "1h"];
        done(&mut run_script(&server, &options, "echo ran"))
            .expect_code(0)
            .stdout
    };
    assert_eq!(run("monday"), "ran\n");
    assert_eq!(run("monday"), "");
    assert_eq!(run("tuesday"), "ran\n");
}

#[test]
fn job_is_told_which_slot_it_is_for() {
    let server = server();
    let script = "echo $LEASEHOLD_SLOT $LEASEHOLD_MISSED $LEASEHOLD_ONCE";
    let told = slot(&server, &[], script).expect_code(0).stdout;
    let (slot, missed) = told.trim().split_once(' ').expect("two words");
    assert!(slot.ends_with("T00:00:00Z"), "{told}");
    assert_eq!(missed, "0");
    let id = ["--once", "monday"];
    let told = done(&mut run_script(
        &server,
        &[&id[..], &["--again"]].concat(),
        script,
    ));
    assert_eq!(told.expect_code(0).stdout, "monday\n");
    // The variables of an outer leasehold are about another lock.
    let inner = done(
        run_script(&server, &["--fenced"], script)
            .env("LEASEHOLD_SLOT", "outer")
            .env("LEASEHOLD_ONCE", "outer"),
    );
    assert_eq!(inner.expect_code(0).stdout, "\n");
}

#[test]
fn missed_slots_are_reported_without_being_asked() {
    let server = server();
    let record = "leasehold:{job}:slot";
    slot(&server, &[], "true").expect_code(0);
    // The last turn was three slots ago.
    let newest = server.command(&["HGET", record, "slot"]).expect("a reply");
    let newest: u64 = newest.as_text().expect("a text").parse().expect("a number");
    let earlier = (newest - 3).to_string();
    server
        .command(&["HSET", record, "slot", &earlier])
        .expect("a reply");
    let late = slot(&server, &[], "echo $LEASEHOLD_MISSED").expect_code(0);
    assert_eq!(late.stdout, "2\n");
    late.expect_on_stderr("2 slots were missed before this one");
    slot(&server, &["--json", "--again"], "true")
        .expect_code(0)
        .expect_on_stderr(r#""missed":2"#);
}

#[test]
fn done_job_runs_again_on_request() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    let again = slot(&server, &["--again"], "echo ran").expect_code(0);
    assert_eq!(again.stdout, "ran\n");
    let other = ["--slot", "1d"];
    done(&mut run_script(&server, &other, "echo ran"))
        .expect_code(78)
        .expect_on_stderr("have --slot 365d")
        .expect_on_stderr("--again");
    let changed = done(&mut run_script(
        &server,
        &[&other[..], &["--again"]].concat(),
        "echo ran",
    ));
    assert_eq!(changed.expect_code(0).stdout, "ran\n");
    // Its nearest slot may not have begun yet.
    done(&mut run_script(&server, &other, "echo ran")).expect_code(0);
}

/// With `--wait`, a repeated job begins when the other one has ended, also with other slots.
#[test]
fn repeated_job_waits_for_the_one_that_runs() {
    let server = server();
    for (slot, at_begin, code) in [
        (&SLOT[..], "0", 0),
        (&SLOT[..], "failed", 3),
        (&["--slot", "1d"], "changed", 0),
    ] {
        server
            .command(&["DEL", "leasehold:{job}:slot"])
            .expect("a reply");
        let script = format!("echo runs; read end; exit {code}");
        let mut first = start(&mut run_script(&server, &SLOT[..], &script));
        first.until("runs");
        let again = [slot, &["--again", "--json"]].concat();
        let refused = done(&mut run_script(&server, &again, "echo ran"));
        let refused = refused.expect_code(0);
        assert_eq!(refused.expect_on_stderr("running_elsewhere").stdout, "");
        let waits = [&again[..], &["--wait", "1s", "-E", "9"]].concat();
        let gives_up = done(&mut run_script(&server, &waits, "echo ran"));
        assert_eq!(gives_up.expect_code(9).stdout, "", "{at_begin}");
        let waits = [&again[..], &["--wait", "60s"]].concat();
        let mut waiter = start(&mut run_script(&server, &waits, "echo ran"));
        eventually("the wait is reported", LIMIT, || {
            waiter.has_told(r#""event":"waiting""#)
        });
        first.close_stdin();
        first.done().expect_code(code);
        assert_eq!(waiter.line(), "ran", "{at_begin}");
        waiter.done().expect_code(0);
        let next = done(&mut run_script(&server, slot, "echo ran"));
        let next = next.expect_code(0);
        // Once: the next run without `--again` finds the job done. After a change of the slots, the
        // nearest slot may not have begun yet.
        if slot == &SLOT[..] {
            assert_eq!(next.stdout, "", "{at_begin}");
        }
    }
}

/// Each run with `--again` and `--wait` runs the job, one after the other.
#[test]
fn repeated_jobs_run_one_after_the_other() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join("inside");
    let job = format!(
        "mkdir {0} && sleep 0.1 && rmdir {0} && echo ran",
        inside.display()
    );
    std::thread::scope(|hosts| {
        for _ in 0..4 {
            hosts.spawn(|| {
                let ran = slot(&server, &["--again", "--wait", "60s"], &job).expect_code(0);
                assert_eq!(ran.stdout, "ran\n");
            });
        }
    });
}

#[test]
fn command_that_is_not_found_leaves_the_slot_to_other_hosts() {
    let server = server();
    let mut missing = leasehold_at(&server);
    missing.arg("run").args(&SLOT[..]);
    missing.args(["job", "--", "/no/such/command"]);
    done(&mut missing).expect_code(127);
    assert_eq!(
        slot(&server, &[], "echo ran").expect_code(0).stdout,
        "ran\n"
    );
}

#[test]
fn fenced_turn_without_a_token_leaves_the_slot_open() {
    let server = server();
    let token = "redisson_lock_token:{job}";
    server
        .command(&["SET", token, "9007199254740991"])
        .expect("a reply");
    slot(&server, &["--fenced"], "echo ran").expect_code(65);
    server.command(&["DEL", token]).expect("a reply");
    let next = slot(&server, &["--fenced"], "echo ran").expect_code(0);
    assert_eq!(next.stdout, "ran\n");
}

/// A start halfway between two slots may run the job twice.
#[test]
fn start_that_is_far_from_its_slot_is_reported() {
    let server = server();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.expect("after 1970").as_secs();
    let day = 24 * 3600;
    for (hours_off, is_far) in [(0, false), (9, true)] {
        let offset = (now + day - hours_off * 3600) % day;
        let offset = format!("{}s", offset.max(1));
        let options = ["--slot", "1d", "--offset", &offset];
        server
            .command(&["DEL", "leasehold:{job}:slot"])
            .expect("a reply");
        let told = done(&mut run_script(&server, &options, "true"))
            .expect_code(0)
            .stderr;
        assert_eq!(told.contains("--offset"), is_far, "{offset}: {told}");
    }
}

#[test]
fn wait_for_a_turn_is_reported() {
    let server = server();
    let mut first = start(&mut run_script(
        &server,
        &SLOT[..],
        "echo runs; read end; true",
    ));
    first.until("runs");
    let options = [&SLOT[..], &["--json", "--wait", "60s"]].concat();
    let waiter = start(&mut run_script(&server, &options, "echo ran"));
    let waits = || waiter.has_told(r#""event":"waiting""#);
    eventually("the wait is reported", LIMIT, waits);
    first.close_stdin();
    first.done().expect_code(0);
    waiter
        .done()
        .expect_code(0)
        .expect_on_stderr("done_already");
}

#[test]
fn plain_holder_is_not_reported_as_a_turn() {
    let server = server();
    let mut plain = start(&mut run_script(&server, &[], "echo runs; read end; true"));
    plain.until("runs");
    slot(&server, &[], "echo ran")
        .expect_code(0)
        .expect_on_stderr("its holder has no turn");
    plain.close_stdin();
    plain.done().expect_code(0);
}

/// Three hosts whose clocks differ start the same line by cron. `LEASEHOLD_SLOTS` is the number of
/// slots.
#[test]
fn each_slot_runs_once_on_hosts_that_start_it_by_cron() {
    let period = Duration::from_secs(2);
    let slots =
        std::env::var("LEASEHOLD_SLOTS").map_or(4, |slots| slots.parse().expect("a number"));
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ran");
    let job = format!(
        "echo $LEASEHOLD_SLOT $LEASEHOLD_MISSED >>{}",
        file.display()
    );
    std::thread::scope(|hosts| {
        for late_ms in [0, 300, 600] {
            let (server, job) = (&server, &job);
            hosts.spawn(move || {
                for _ in 0..slots {
                    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                    let past = since.expect("after 1970").as_millis() % period.as_millis();
                    let past = Duration::from_millis(u64::try_from(past).expect("it is small"));
                    std::thread::sleep(period - past + Duration::from_millis(late_ms));
                    done(&mut run_script(server, &["--slot", "2s"], job)).expect_code(0);
                }
            });
        }
    });
    let ran = std::fs::read_to_string(file).expect("the job ran");
    let mut slots = Vec::new();
    let mut missed = 0;
    for line in ran.lines() {
        let (slot, before) = line.split_once(' ').expect("two words");
        slots.push(humantime::parse_rfc3339(slot).expect("a time"));
        missed += before.parse::<u128>().expect("a number");
    }
    assert!(slots.is_sorted_by(|one, next| one < next), "{ran}");
    let all = slots[slots.len() - 1]
        .duration_since(slots[0])
        .expect("it is later");
    // A busy machine may miss a slot, and then says so.
    let ran = slots.len() as u128;
    assert_eq!(ran + missed, all.as_millis() / period.as_millis() + 1);
}

const RECORD: &str = "leasehold:{job}:slot";

fn newest(server: &RedisServer) -> u64 {
    let newest = server.command(&["HGET", RECORD, "slot"]).expect("a reply");
    newest.as_text().expect("a text").parse().expect("a number")
}

#[test]
fn next_run_reports_a_job_that_never_ended() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    // As if the host had died: the lock is free, and the end was not recorded.
    let dies = || {
        server
            .command(&["HSET", RECORD, "state", "running"])
            .expect("a reply");
    };
    dies();
    let next = slot(&server, &["--json"], "echo ran").expect_code(0);
    assert_eq!(next.stdout, "ran\n");
    assert!(!next.stderr.contains(r#""died":null"#), "{next}");
    slot(&server, &["--json", "--again"], "true")
        .expect_code(0)
        .expect_on_stderr(r#""died":null"#);
    dies();
    slot(&server, &[], "true")
        .expect_code(0)
        .expect_on_stderr("never ended");
}

#[test]
fn slot_of_a_clock_that_was_ahead_is_reported_until_a_run_by_hand() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    let now = newest(&server);
    for slots_ahead in [1, 2, 1 << 40] {
        let later = (now + slots_ahead).to_string();
        server
            .command(&["HSET", RECORD, "slot", &later])
            .expect("a reply");
        let skipped = slot(&server, &[], "echo ran").expect_code(0);
        assert_eq!(skipped.stdout, "");
        skipped.expect_on_stderr("the server's clock was ahead");
        show(&server).expect_code(0);
    }
    let again = slot(&server, &["--again"], "echo ran").expect_code(0);
    assert_eq!(again.stdout, "ran\n");
    assert!(newest(&server) <= now);
    let silent = slot(&server, &[], "true").expect_code(0);
    assert!(!silent.stderr.contains("ahead"), "{silent}");
}

/// The server answers only when the next slot is nearest.
#[test]
fn run_during_an_outage_keeps_the_slot_of_its_start() {
    let server = server();
    // Start in the second quarter of a slot, so that half of the slot is soon over.
    let now_ms = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.expect("after 1970").as_millis()
    };
    let since_slot = || now_ms() % 8000;
    while !(1000..1500).contains(&since_slot()) {
        sleep(Duration::from_millis(20));
    }
    let slot_ms = now_ms() - since_slot();
    server.kill().expect("the server runs");
    let options = ["--slot", "8s", "--json"];
    let run = start(&mut run_script(&server, &options, "true"));
    while since_slot() < 4500 && now_ms() < slot_ms + 8000 {
        sleep(Duration::from_millis(20));
    }
    server.restart().expect("the server starts");
    run.done()
        .expect_code(0)
        .expect_on_stderr(&format!(r#""slot_ms":{slot_ms}"#));
}

#[test]
fn run_by_hand_is_told_who_runs() {
    let server = server();
    let mut first = start(&mut run_script(
        &server,
        &SLOT[..],
        "echo runs; read end; true",
    ));
    first.until("runs");
    slot(&server, &["--again"], "echo ran")
        .expect_code(0)
        .expect_on_stderr("runs on ");
    first.close_stdin();
    first.done().expect_code(0);
}

#[test]
fn lock_of_another_kind_has_no_other_slots() {
    let server = server();
    slot(&server, &[], "true").expect_code(0);
    let mut reader = start(&mut run_script(
        &server,
        &["--read"],
        "echo reads; read end",
    ));
    reader.until("reads");
    for more in [&[][..], &["--again"]] {
        slot(&server, more, "echo ran")
            .expect_code(65)
            .expect_on_stderr("show job");
    }
    reader.close_stdin();
    reader.done();
}

#[test]
fn offset_is_suggested_for_a_job_that_starts_far_from_its_slot() {
    let server = server();
    // The slot before began half a year ago, and the next one begins in half a year.
    let far = ["--slot", "365d", "--offset", &offset(182)];
    let told = done(&mut run_script(&server, &far, "true")).expect_code(0);
    let (_, offset) = told.stderr.split_once("use --offset ").expect("advice");
    let offset = offset.trim();
    let options = ["--slot", "365d", "--again", "--offset", offset];
    done(&mut run_script(&server, &options, "true")).expect_code(0);
    let near = ["--slot", "365d", "--offset", offset];
    let told = done(&mut run_script(&server, &near, "true")).expect_code(0);
    assert_eq!(told.stderr, "");
}

#[test]
fn options_of_other_turns_are_refused() {
    let server = server();
    for options in [
        ["--slot", "1h", "--keep", "1h"],
        ["--once", "a", "--offset", "1h"],
    ] {
        done(&mut run_script(&server, &options, "echo ran"))
            .expect_code(2)
            .expect_on_stderr("cannot be used with");
    }
    let zero = ["--slot", "365d", "--offset", "0s"];
    done(&mut run_script(&server, &zero, "true")).expect_code(0);
}

/// No other run does the job of this id, so the scheduler has to start it again.
#[test]
fn job_of_another_id_is_busy() {
    let server = server();
    let mut first = run_script(&server, &["--once", "a"], "echo runs; read end; true");
    let mut first = start(&mut first);
    first.until("runs");
    for refused in [&["--once", "b"][..], &["--once", "b", "--no-wait"]] {
        let refused = done(&mut run_script(&server, refused, "echo ran")).expect_code(75);
        assert_eq!(refused.stdout, "");
        refused.expect_on_stderr("is not free");
    }
    let same = done(&mut run_script(&server, &["--once", "a"], "echo ran")).expect_code(0);
    assert_eq!(same.stdout, "");
    first.close_stdin();
    first.done().expect_code(0);
    let second = done(&mut run_script(&server, &["--once", "b"], "echo ran")).expect_code(0);
    assert_eq!(second.stdout, "ran\n");
}

/// Starts a run of a slot behind a proxy.
fn run_behind(proxy: &Proxy, options: &[&str]) -> Running {
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", proxy.url());
    run.arg("run").args(&SLOT[..]).args(options);
    start(run.args(["job", "--", "echo", "ran"]))
}

/// The server has drawn the token, but its answer is lost.
#[test]
fn fenced_turn_survives_a_lost_token() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let lost = proxy.cut_after_next(b"fenced.draw\r\n");
    let run = run_behind(&proxy, &["--fenced"]);
    assert_eq!(run.done().expect_code(0).stdout, "ran\n");
    assert!(lost.fired());
}

/// The server has granted the turn, but the run can't learn this.
#[test]
fn grant_that_the_run_did_not_learn_of_is_not_denied() {
    let server = server();
    let proxy = Proxy::to(server.port());
    proxy.strike_next(b"slot.begin\r\n", Strike::HoldReply);
    let run = run_behind(&proxy, &["--outage-timeout", "3s"]);
    eventually("the server has granted the turn", LIMIT, || {
        !is_free(&server)
    });
    proxy.refuse(true);
    proxy.cut();
    let gives_up = run.done().expect_code(69);
    assert_eq!(gives_up.stdout, "");
    gives_up.expect_on_stderr("may have run");
}
