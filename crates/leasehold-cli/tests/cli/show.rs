//! `leasehold show`.

use leasehold_testkit::{RedisServer, eventually};

use crate::support::{LIMIT, done, leasehold_at, run_script, server, start};

#[test]
fn free_lock_is_said_to_be_free() {
    let server = server();
    let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(shown.stdout, "`job` is free\n");
    let shown = done(leasehold_at(&server).args(["show", "job", "--json"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let free = serde_json::json!({
        "name": "job", "kind": "none", "held": false, "holders": [], "ttl_ms": null,
        "mode": null, "waiting": null, "last_token": null
    });
    assert_eq!(json, free);
}

#[test]
fn show_prints_holder_count_and_ttl() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let fields = server.command(&["HKEYS", "job"]).expect("the server runs");
    let id = fields.as_array().expect("fields")[0]
        .as_text()
        .expect("text");

    let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert!(shown.stdout.starts_with("`job` is held\n"), "{shown}");
    assert!(shown.stdout.contains(&format!("holder  {id}\n")), "{shown}");
    assert!(shown.stdout.contains("count   1\n"), "{shown}");
    assert!(shown.stdout.contains("TTL     2"), "{shown}");
    assert!(shown.stdout.contains("waits   not known"), "{shown}");

    let shown = done(leasehold_at(&server).args(["show", "--json", "job"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(json["holders"][0]["id"], id);
    assert_eq!(json["holders"][0]["count"], 1);
    assert_eq!(json["waiting"], serde_json::Value::Null);
    let ttl_ms = json["ttl_ms"].as_u64().expect("a number");
    assert!((1..=30_000).contains(&ttl_ms), "{ttl_ms}");
    holder.done();
}

#[test]
fn sides_of_a_read_write_lock_are_shown() {
    let server = server();
    for (option, mode, holders) in [("--read", "read", 2), ("--write", "write", 1)] {
        let run = |_| start(&mut run_script(&server, &[option], "echo held; read end"));
        let mut held: Vec<_> = (0..holders).map(run).collect();
        held.iter_mut().for_each(|run| run.until("held"));
        let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
        assert!(
            shown
                .stdout
                .starts_with(&format!("`job` is held to {mode}\n")),
            "{shown}"
        );
        assert_eq!(shown.stdout.matches("holder").count(), holders, "{shown}");
        for mut run in held {
            run.close_stdin();
            run.done();
        }
    }
    let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(shown.stdout, "`job` is free\n");
}

#[test]
fn show_lists_the_fair_queue() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &["--fair"], "echo held; read end"));
    holder.until("held");
    let waiter = start(&mut run_script(&server, &["--fair"], "true"));
    let mut shown = String::new();
    eventually("it waits", LIMIT, || {
        let show = done(leasehold_at(&server).args(["show", "--json", "job"])).expect_code(0);
        shown = show.stdout;
        !shown.contains(r#""waiting":null"#)
    });
    let json: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let queue = server.command(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
    let first = queue.expect("the server runs");
    assert_eq!(json["waiting"][0].as_str(), first.as_text());
    holder.close_stdin();
    holder.done();
    waiter.done().expect_code(0);
}

/// What `show` says of `job`, as text and as JSON.
fn shown(server: &RedisServer) -> (String, serde_json::Value) {
    let text = done(leasehold_at(server).args(["show", "job"])).expect_code(0);
    let json = done(leasehold_at(server).args(["show", "job", "--json"])).expect_code(0);
    for shown in [&text, &json] {
        assert_eq!(shown.stderr, "", "{shown}");
    }
    let json = serde_json::from_str(&json.stdout).expect("JSON");
    (text.stdout, json)
}

#[test]
fn each_kind_is_recognised() {
    let uuid = "5400c6ee-9efb-4d7c-afeb-d3cddd05968d:7";
    let ends = format!("qwvAS12pR0CgRitaypEjUw:{uuid}:expire_time");
    let group = [
        "HSET",
        "job",
        "qwvAS12pR0CgRitaypEjUw",
        uuid,
        &ends,
        "9000000000000",
    ];
    let java_permit = [
        "ZADD",
        "{job}:timeout",
        "922337203685477",
        "0123456789abcdef",
    ];
    let reader = format!("{{job}}:{uuid}:rwlock_timeout:1");
    for (commands, kind, says) in [
        (
            &[&["SET", "job", "3"][..]][..],
            "semaphore_or_latch",
            "3 free permits",
        ),
        (
            &[&["SET", "job", "-1"]],
            "semaphore_or_latch",
            "-1 free permits",
        ),
        (
            &[
                &["SET", "job", "3"],
                &["SET", "leasehold:{job}:opened", "1"],
            ],
            "latch",
            "3 to count",
        ),
        (
            &[&["SET", "job", "1"], &java_permit],
            "semaphore_with_leases",
            "1 of 2 permits",
        ),
        (
            &[&java_permit],
            "semaphore_with_leases",
            "was removed while 1 permits",
        ),
        (&[&group], "group", "held are 1 values"),
        (
            &[&["HSET", "job", uuid, "2"]],
            "lock",
            "does not end by itself",
        ),
        (
            &[&["HSET", "job", "mode", "read", uuid, "1"]],
            "read_write_lock",
            "is free",
        ),
        (
            &[
                &["HSET", "job", "mode", "read", uuid, "1"],
                &["SET", &reader, "1"],
            ],
            "read_write_lock",
            "held to read",
        ),
        (
            &[&[
                "HSET",
                "job",
                "mode",
                "write",
                &format!("{uuid}:write"),
                "1",
            ]],
            "read_write_lock",
            "held to write",
        ),
    ] {
        let server = server();
        for command in commands {
            server.command(command).expect("the server runs");
        }
        let (text, json) = shown(&server);
        assert!(text.contains(says), "{commands:?}: {text}");
        assert_eq!(json["kind"], kind, "{commands:?}: {json}");
        assert_eq!(json["waiting"], serde_json::Value::Null, "{json}");
    }
}

#[test]
fn show_omits_only_our_dead_waiters() {
    let server = server();
    let queue = [
        "RPUSH",
        "redisson_lock_queue:{job}",
        "dead:1",
        "java:2",
        "live:3",
    ];
    let waiters = [
        "ZADD",
        "leasehold:{job}:waiters",
        "1",
        "dead:1",
        "9000000000000",
        "live:3",
    ];
    for command in [&["HSET", "job", "holder:1", "1"][..], &queue, &waiters] {
        server.command(command).expect("the server runs");
    }
    let (text, json) = shown(&server);
    assert!(
        text.ends_with("  waits   java:2\n  waits   live:3\n"),
        "{text}"
    );
    assert_eq!(json["waiting"], serde_json::json!(["java:2", "live:3"]));
}

#[test]
fn redisson_permit_without_lease_never_expires() {
    let server = server();
    let permit = [
        "ZADD",
        "{job}:timeout",
        "922337203685477",
        "0123456789abcdef",
    ];
    for command in [&["SET", "job", "1"][..], &permit] {
        server.command(command).expect("the server runs");
    }
    let (text, json) = shown(&server);
    let lines = "permit  30313233343536373839616263646566\n  TTL     none: it does not end";
    assert!(text.contains(lines), "{text}");
    assert_eq!(
        json["permits"]["leases"][0]["ttl_ms"],
        serde_json::Value::Null
    );
    assert_eq!(json["held"], true);
}

#[test]
fn a_limit_is_shown_with_those_who_run() {
    let server = server();
    let options = ["--limit", "2"];
    let mut holder = start(&mut run_script(&server, &options, "echo runs; read end"));
    holder.until("runs");
    let (text, json) = shown(&server);
    assert!(
        text.contains("in use are 1 of 2 permits\n  permit  "),
        "{text}"
    );
    assert_eq!(json["permits"]["free"], 1);
    assert_eq!(json["permits"]["held"], 1);
    let left_ms = json["permits"]["leases"][0]["ttl_ms"].as_u64();
    assert!((1..=30_000).contains(&left_ms.expect("a number")), "{json}");
    holder.done();
    // Nobody runs: the key is alike to that of a latch, and stays.
    let (_, json) = shown(&server);
    assert_eq!(json["kind"], "semaphore_or_latch");
    assert_eq!(json["count"], 2);
}

#[test]
fn unknown_key_error_gives_no_removal_advice() {
    for command in [
        &["SET", "job", "x"][..],
        &["SET", "job", "123456789012345"],
        &["RPUSH", "job", "x"],
        &["HSET", "job", "visits", "5"],
        &["HSET", "job", "mode", "read", "colour", "red"],
        &["HSET", "job", "name", "ann", "age", "7"],
    ] {
        let server = server();
        server.command(command).expect("the server runs");
        for words in [&["show", "job"][..], &["show", "job", "--json"]] {
            let shown = done(leasehold_at(&server).args(words))
                .expect_code(1)
                .expect_on_stderr("`job` at redis://127.0.0.1:")
                .expect_on_stderr("find out whose it is");
            assert!(!shown.stderr.contains("remove"), "{command:?}: {shown}");
            let json = shown.stdout.contains(r#""kind":"unknown""#);
            assert_eq!(json, words.len() == 3, "{command:?}: {shown}");
        }
        // Also who can't have the lock for it is not told to.
        let run = done(&mut run_script(&server, &["--no-wait", "--fair"], "true"));
        assert!(!run.stderr.contains("remove"), "{command:?}: {run}");
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let server = server();
    let name = "a\u{1b}[2Jb";
    let theirs = ["HSET", name, "evil\u{1b}]0;x\u{7}:1", "1"];
    server.command(&theirs).expect("the server runs");
    let shown = done(leasehold_at(&server).args(["show", name])).expect_code(0);
    assert!(!shown.stdout.contains('\u{1b}'), "{shown}");
    assert!(shown.stdout.contains(r"`a\u{1b}[2Jb` is held"), "{shown}");
}
