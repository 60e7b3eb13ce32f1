//! `leasehold ls`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::thread;
use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::support::{BINARY, done, leasehold_at, run_script, server, start};
use crate::terminal::on_terminal;

const UUID: &str = "5400c6ee-9efb-4d7c-afeb-d3cddd05968d";

fn names(server: &RedisServer, words: &[&str]) -> Vec<String> {
    let listed = done(leasehold_at(server).arg("ls").arg("--json").args(words)).expect_code(0);
    let name = |line: &str| -> String {
        let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
        json["name"].as_str().expect("a name").to_owned()
    };
    let mut names: Vec<_> = listed.stdout.lines().map(name).collect();
    names.sort();
    names
}

#[test]
fn names_are_listed_by_pattern_and_kind() {
    let server = server();
    let hold = format!("{UUID}:1");
    let writes = format!("{UUID}:1:write");
    let ends = format!("f:{UUID}:1:expire_time");
    for command in [
        &["HSET", "a:lock", &hold, "1"][..],
        &["HSET", "b:lock", &hold, "1"],
        &["HSET", "a:rw", "mode", "write", &writes, "1"],
        &["HSET", "a:group", "f", &hold, &ends, "9000000000000"],
        &["SET", "a:count", "3"],
        &[
            "ZADD",
            "{a:permits}:timeout",
            "9000000000000",
            "0123456789abcdef",
        ],
        &["SET", "leasehold:{a:latch}:opened", "1"],
        &["RPUSH", "redisson_lock_queue:{a:line}", &hold],
        // These keys belong to these names, or to other programs.
        &["SET", "redisson_lock_token:{a:lock}", "7"],
        &["SET", &format!("{{a:rw}}:{UUID}:1:rwlock_timeout:1"), "1"],
        &[
            "ZADD",
            "redisson_lock_timeout:{a:line}",
            "9000000000000",
            &hold,
        ],
        &["HSET", "a:user", "name", "ann"],
        &["HSET", "a:visits", "page:1", "5"],
        &["SET", "a:text", "some text"],
        &["RPUSH", "a:queue", "x"],
    ] {
        server.command(command).expect("the server runs");
    }
    let all = [
        "a:count",
        "a:group",
        "a:latch",
        "a:line",
        "a:lock",
        "a:permits",
        "a:rw",
        "b:lock",
    ];
    assert_eq!(names(&server, &[]), all);
    assert_eq!(names(&server, &["a:*"]), all[..7]);
    assert_eq!(
        names(&server, &["?:l[aeio]*"]),
        ["a:latch", "a:line", "a:lock", "b:lock"]
    );
    for (kind, wanted) in [
        ("lock", &["a:line", "a:lock", "b:lock"][..]),
        ("rw", &["a:rw"]),
        ("group", &["a:group"]),
        ("permits", &["a:permits"]),
        ("count", &["a:count"]),
        ("latch", &["a:latch"]),
    ] {
        assert_eq!(names(&server, &["--kind", kind]), wanted, "{kind}");
        // The filter and the JSON use the same words.
        let listed = ["ls", "--json", "--kind", kind];
        let listed = done(leasehold_at(&server).args(listed)).expect_code(0);
        for line in listed.stdout.lines() {
            let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
            // The second case is a fair lock without a holder, but with waiters.
            assert!(json["kind"] == kind || json["kind"] == "none", "{json}");
        }
    }
    let table = done(leasehold_at(&server).args(["ls", "a:lock"])).expect_code(0);
    let mut lines = table.stdout.lines();
    assert!(
        lines.next().is_some_and(|head| head.starts_with("NAME")),
        "{table}"
    );
    assert!(
        lines.next().is_some_and(|line| line.ends_with(&hold)),
        "{table}"
    );
    done(leasehold_at(&server).args(["ls", "nothing"]))
        .expect_code(0)
        .expect_on_stderr("no name");
    done(leasehold_at(&server).args(["ls", "a["]))
        .expect_code(2)
        .expect_on_stderr("has a [ without its ]");
}

#[test]
fn what_the_command_itself_holds_is_listed() {
    let server = server();
    let kinds = [
        &[][..],
        &["--fair"],
        &["--read"],
        &["--limit", "2"],
        &["--fenced"],
    ];
    for options in kinds {
        let mut held = start(&mut run_script(&server, options, "echo held; read end"));
        held.until("held");
        assert_eq!(names(&server, &[]), ["job"], "{options:?}");
        held.done();
        server.command(&["FLUSHALL"]).expect("the server runs");
    }
}

#[test]
fn many_keys_are_walked_page_by_page() {
    let server = server();
    for block in 0..20 {
        let mut command = vec!["MSET".to_owned()];
        for number in 0..1000 {
            command.extend([format!("other:{block}:{number}"), "a text".to_owned()]);
        }
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        server.command(&command).expect("the server runs");
    }
    let hold = format!("{UUID}:1");
    let wanted: Vec<_> = (100..180).map(|number| format!("job:{number}")).collect();
    for name in &wanted {
        server
            .command(&["HSET", name, &hold, "1"])
            .expect("the server runs");
    }
    assert_eq!(names(&server, &[]), wanted);
    let calls = server
        .command(&["INFO", "commandstats"])
        .expect("the server runs");
    let calls = calls.as_text().expect("text");
    assert!(calls.contains("cmdstat_scan:"), "{calls}");
    assert!(!calls.contains("cmdstat_keys:"), "{calls}");
}

#[test]
fn progress_of_a_long_walk_is_told_at_a_terminal() {
    const KEYS: &str = "20000";
    /// Twice the time before progress is shown.
    const BUSY: Duration = Duration::from_secs(4);
    let server = server();
    let fill = "for n = 1, ARGV[1] do redis.call('SET', n, 'a text') end";
    server
        .command(&["EVAL", fill, "0", KEYS])
        .expect("the server runs");
    // The names are not written to the terminal.
    let line = format!("exec {BINARY} ls > /dev/null");
    let seen = format!(" of {KEYS} keys");
    let (shown, code) = thread::scope(|scope| {
        // The server is busy with other work, and the listing needs dozens of requests, one after
        // the other.
        scope.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < BUSY {
                let busy = "for n = 1, 5000000 do end";
                server
                    .command(&["EVAL", busy, "0"])
                    .expect("the server runs");
            }
        });
        on_terminal(&server, &["sh", "-c", &line], &[(&seen, "")])
    });
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains(&seen), "{shown}");
    assert!(shown.contains("no name at"), "{shown}");
}

#[test]
fn denied_walk_is_told_with_the_permission() {
    let server = server();
    let user = [
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-scan",
    ];
    server.command(&user).expect("the server runs");
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let mut ls = leasehold_at(&server);
    ls.env("LEASEHOLD_URL", url).arg("ls");
    done(&mut ls).expect_code(77).expect_on_stderr("+scan");
}

#[test]
fn names_of_others_keys_are_left_out_for_a_user_who_may_not_look() {
    let server = server();
    let hold = format!("{UUID}:1");
    for name in ["ours:1", "theirs:1"] {
        server
            .command(&["HSET", name, &hold, "1"])
            .expect("the server runs");
    }
    let rules = "~ours:1 ~redisson_*:{ours:1}* ~{ours:1}:* ~leasehold:{ours:1}:*";
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">pw", "&*", "+@all"];
    user.extend(rules.split(' '));
    server.command(&user).expect("the server runs");
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let mut ls = leasehold_at(&server);
    ls.env("LEASEHOLD_URL", url).args(["ls", "--json"]);
    let listed = done(&mut ls).expect_code(0);
    assert_eq!(listed.stdout.lines().count(), 1, "{listed}");
    assert!(listed.stdout.contains("ours:1"), "{listed}");
    listed.expect_on_stderr("left out: 1 key that your user is not allowed to read");
    // If no key can be examined, an empty list would wrongly say that nothing is held.
    let pattern = "theirs:*";
    for words in [
        &["ls", pattern][..],
        &["ls", "--json", pattern],
        &["ls", "--kind", "rw", pattern],
    ] {
        let mut ls = leasehold_at(&server);
        ls.env(
            "LEASEHOLD_URL",
            format!("redis://app:pw@127.0.0.1:{}", server.port()),
        );
        let listed = done(ls.args(words)).expect_code(77);
        assert_eq!(listed.stdout, "", "{listed}");
        listed.expect_on_stderr("is not allowed to read the 1 key");
    }
}

#[test]
fn names_that_are_left_out_are_counted() {
    let server = server();
    let (hold, long) = (format!("{UUID}:1"), "x".repeat(1001));
    for name in ["a:lock", &long] {
        let command = ["HSET", name, &hold, "1"];
        server.command(&command).expect("the server runs");
    }
    let odd = "redis.call('HSET', '\\255\\254', ARGV[1], '1')";
    server
        .command(&["EVAL", odd, "0", &hold])
        .expect("the server runs");
    let ls = |words: &[&str]| done(leasehold_at(&server).arg("ls").args(words)).expect_code(0);
    for words in [&[][..], &["--json"]] {
        let listed = ls(words);
        assert!(listed.stdout.contains("a:lock"), "{listed}");
        let listed = listed.expect_on_stderr(
            "left out: 1 name longer than 1000 bytes, 1 name that is not UTF-8\n",
        );
        listed.expect_on_stderr(
            r#"printf '%s\n' 'HGETALL "\xff\xfe"' | redis-cli; to free it, use DEL"#,
        );
    }
    for words in [&["show"][..], &["release", "--yes"], &["watch"]] {
        let mut look = leasehold_at(&server);
        look.args(words).arg(OsStr::from_bytes(b"it's\xff"));
        done(&mut look)
            .expect_code(2)
            .expect_on_stderr(r#"'HGETALL "it\x27s\xff"' | redis-cli"#);
    }
    // Names of another kind are counted.
    ls(&["--kind", "latch", "a:*"])
        .expect_on_stderr("matches `a:*` and the kind; 1 name is of other kinds;");
    ls(&["nothing"]).expect_on_stderr("matches `nothing`;");
}
