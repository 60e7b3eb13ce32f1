//! `leasehold show`.

use leasehold_testkit::eventually;

use crate::support::{LIMIT, done, leasehold_at, run_script, server, start};

#[test]
fn free_lock_is_said_to_be_free() {
    let server = server();
    let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(shown.stdout, "`job` is free\n");
    let shown = done(leasehold_at(&server).args(["show", "job", "--json"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let free = serde_json::json!({
        "name": "job", "held": false, "holders": [], "ttl_ms": null, "mode": null, "waiting": []
    });
    assert_eq!(json, free);
}

#[test]
fn held_lock_is_shown_with_holder_count_and_ttl() {
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

    let shown = done(leasehold_at(&server).args(["show", "--json", "job"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(json["holders"][0]["id"], id);
    assert_eq!(json["holders"][0]["count"], 1);
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
fn those_who_wait_for_a_fair_lock_are_shown_in_their_order() {
    let server = server();
    let mut holder = start(&mut run_script(&server, &["--fair"], "echo held; read end"));
    holder.until("held");
    let waiter = start(&mut run_script(&server, &["--fair"], "true"));
    let mut shown = String::new();
    eventually("it waits", LIMIT, || {
        let show = done(leasehold_at(&server).args(["show", "--json", "job"])).expect_code(0);
        shown = show.stdout;
        !shown.contains(r#""waiting":[]"#)
    });
    let json: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let queue = server.command(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
    let first = queue.expect("the server runs");
    assert_eq!(json["waiting"][0].as_str(), first.as_text());
    holder.close_stdin();
    holder.done();
    waiter.done().expect_code(0);
}

#[test]
fn another_kind_of_key_is_an_error() {
    let server = server();
    server
        .command(&["SET", "job", "x"])
        .expect("the server runs");
    done(leasehold_at(&server).args(["show", "job"]))
        .expect_code(1)
        .expect_on_stderr("`job`");
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
