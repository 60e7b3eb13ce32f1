//! `leasehold show`.

use leasehold_testkit::{Cluster, RedisServer, Sentinels, eventually};

use crate::support::{LIMIT, done, leasehold, leasehold_at, run_script, server, start};

#[test]
fn free_lock_is_said_to_be_free() {
    let server = server();
    let shown = done(leasehold_at(&server).args(["show", "job"])).expect_code(0);
    assert_eq!(shown.stdout, "`job` is free\n");
    let shown = done(leasehold_at(&server).args(["show", "job", "--json"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let free = serde_json::json!({
        "name": "job", "kind": "none", "held": false, "holders": [], "ttl_ms": null,
        "mode": null, "more": 0, "waiting": [], "more_waiting": 0, "more_clients": false, "listening": 0,
        "last_token": null, "clients_denied": false
    });
    assert_eq!(json, free);
}

#[test]
fn show_names_the_node_of_a_cluster() {
    let cluster = Cluster::start(2, 0);
    let at_cluster = || {
        let mut command = leasehold();
        command.env("LEASEHOLD_URL", cluster.url());
        command
    };
    let (slot, port) = (cluster.slot_of("job"), cluster.node_of("job").port());
    let shown = done(at_cluster().args(["show", "job"])).expect_code(0);
    let node = format!("node    redis://127.0.0.1:{port} has the name's slot, {slot}\n");
    assert!(shown.stdout.contains(&node), "{shown}");
    let shown = done(at_cluster().args(["show", "job", "--json"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(json["slot"], slot);
    assert_eq!(json["node"], format!("redis://127.0.0.1:{port}"));
    let run = done(at_cluster().args(["run", "job", "--", "true"]));
    run.expect_code(0);
}

#[test]
fn show_names_the_master_of_sentinels() {
    let sentinels = Sentinels::start(0);
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", sentinels.url());
    let shown = done(command.args(["show", "job"])).expect_code(0);
    let port = sentinels.master_server().port();
    let node = format!("node    redis://127.0.0.1:{port} is the master\n");
    assert!(shown.stdout.contains(&node), "{shown}");
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
    assert!(shown.stdout.contains("waiting none"), "{shown}");

    let shown = done(leasehold_at(&server).args(["show", "--json", "job"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(json["holders"][0]["id"], id);
    assert_eq!(json["holders"][0]["count"], 1);
    assert_eq!(json["waiting"], serde_json::json!([]));
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
        !shown.contains(r#""waiting":[]"#)
    });
    let json: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let queue = server.command(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
    let first = queue.expect("the server runs");
    assert_eq!(json["waiting"][0]["id"].as_str(), first.as_text());
    holder.close_stdin();
    holder.done();
    waiter.done().expect_code(0);
}

/// Returns the output of `show` for `job`, as text and as JSON.
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
        (&[&["SET", "job", "3"][..]][..], "count", "3 free permits"),
        (&[&["SET", "job", "-1"]], "count", "-1 free permits"),
        (
            &[
                &["SET", "job", "3"],
                &["SET", "leasehold:{job}:opened", "1"],
            ],
            "latch",
            "remaining count of 3",
        ),
        (
            &[&["SET", "job", "1"], &java_permit],
            "permits",
            "1 of 2 permits",
        ),
        (&[&java_permit], "permits", "was removed while 1 permits"),
        (&[&group], "group", "a group lock: 1 value held"),
        (
            &[&["HSET", "job", uuid, "2"]],
            "lock",
            "does not end by itself",
        ),
        (
            &[&["HSET", "job", "mode", "read", uuid, "1"]],
            "rw",
            "is free",
        ),
        (
            &[
                &["HSET", "job", "mode", "read", uuid, "1"],
                &["SET", &reader, "1"],
            ],
            "rw",
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
            "rw",
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
        assert_eq!(json["waiting"], serde_json::json!([]), "{json}");
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
    for command in [
        &["HSET", "job", "7e57c0de-0000-4000-8000-000000000000:1", "1"][..],
        &queue,
        &waiters,
    ] {
        server.command(command).expect("the server runs");
    }
    let (text, json) = shown(&server);
    assert!(
        text.contains("  waits   java:2\n  waits   live:3\n"),
        "{text}"
    );
    let waiting = serde_json::json!([
        { "id": "java:2", "wants": "lock", "client": null, "waited_for_ms": null },
        { "id": "live:3", "wants": "lock", "client": null, "waited_for_ms": null },
    ]);
    assert_eq!(json["waiting"], waiting);
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
        text.contains("a semaphore with leases: 1 of 2 permits in use\n  permit  "),
        "{text}"
    );
    assert_eq!(json["permits"]["free"], 1);
    assert_eq!(json["permits"]["held"], 1);
    let left_ms = json["permits"]["leases"][0]["ttl_ms"].as_u64();
    assert!((1..=30_000).contains(&left_ms.expect("a number")), "{json}");
    holder.done();
    // No command runs. The key remains, and looks like the key of a latch.
    let (_, json) = shown(&server);
    assert_eq!(json["kind"], "count");
    assert_eq!(json["count"], 2);
}

#[test]
fn unknown_key_error_gives_no_removal_advice() {
    for command in [
        &["SET", "job", "x"][..],
        &["SET", "job", "123456789012345"],
        &["RPUSH", "job", "x"],
        &["HSET", "job", "visits", "5"],
        &["HSET", "job", "page:1", "5"],
        &["HSET", "job", "mode", "read", "colour", "red"],
        &["HSET", "job", "name", "ann", "age", "7"],
    ] {
        let server = server();
        server.command(command).expect("the server runs");
        for words in [&["show", "job"][..], &["show", "job", "--json"]] {
            let shown = done(leasehold_at(&server).args(words))
                .expect_code(65)
                .expect_on_stderr("`job` at redis://127.0.0.1:")
                .expect_on_stderr("find out which program uses it");
            assert!(!shown.stderr.contains("remove"), "{command:?}: {shown}");
            let json = shown.stdout.contains(r#""kind":"unknown""#);
            assert_eq!(json, words.len() == 3, "{command:?}: {shown}");
        }
        // If a run can't get the lock because of this key, it gets no such advice either.
        let run = done(&mut run_script(&server, &["--no-wait", "--fair"], "true"));
        let run = run.expect_code(65);
        assert!(!run.stderr.contains("remove"), "{command:?}: {run}");
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let server = server();
    let name = "a\u{1b}[2Jb";
    let evil = "7e57c0de-0000-4000-8000-000000000000:\u{1b}]0;x\u{7}:1";
    let theirs = ["HSET", name, evil, "1"];
    server.command(&theirs).expect("the server runs");
    let shown = done(leasehold_at(&server).args(["show", name])).expect_code(0);
    assert!(!shown.stdout.contains('\u{1b}'), "{shown}");
    assert!(shown.stdout.contains(r"`a\u{1b}[2Jb` is held"), "{shown}");
}

/// Each process holds one name and waits for the other's name.
#[test]
fn circle_over_processes_is_told() {
    let server = server();
    let show = |words: &[&str]| {
        let mut show = leasehold_at(&server);
        done(show.args(["show", "--blocked-by"]).args(words))
            .expect_code(0)
            .stdout
    };
    assert_eq!(show(&["a"]), "no client holds `a`\n");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.url();
    let client = || leasehold::Client::connect(&url);
    let crosswise = async {
        let (one, two) = (client().await?, client().await?);
        let (a, b) = (
            one.lock("a").acquire().await?,
            two.lock("b").acquire().await?,
        );
        let (to_a, to_b) = (two.lock("a"), one.lock("b"));
        tokio::spawn(async move { to_a.acquire().await });
        tokio::spawn(async move { to_b.acquire().await });
        Ok::<_, leasehold::Error>((a, b))
    };
    let held = runtime.block_on(crosswise).expect("both are free");
    eventually("it is told", LIMIT, || {
        let json: serde_json::Value = serde_json::from_str(&show(&["--json", "a"])).expect("JSON");
        json["circle"] == true
    });
    let told = show(&["a"]);
    let first = format!("`a`, held by {}, ", held.0.holder_id());
    assert!(told.starts_with(&first), "{told}");
    let second = format!(
        "\n  whose client waits for `b`, held by {}, ",
        held.1.holder_id()
    );
    assert!(told.contains(&second), "{told}");
    let third = "\n    whose client waits for `a`: see above\ncircle: `a` -> `b` -> `a` (";
    assert!(told.contains(third), "{told}");
    let json: serde_json::Value = serde_json::from_str(&show(&["--json", "a"])).expect("JSON");
    assert_eq!(json["circles"], serde_json::json!([["a", "b"]]), "{json}");
    assert_eq!(json["cut"], false, "{json}");
}

/// Each of three clients holds some names, and waits for all names of the other clients, with a
/// task for each name.
#[test]
fn names_that_many_wait_for_are_told_once() {
    const NAMES: usize = 6;
    let server = server();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.url();
    let clients = ["a", "b", "c"];
    let crowd = async {
        let mut held = Vec::new();
        let mut made = Vec::new();
        for letter in clients {
            let client = leasehold::Client::connect(&url).await?;
            for number in 0..NAMES {
                held.push(client.lock(format!("{letter}{number}")).acquire().await?);
            }
            made.push((letter, client));
        }
        for (own, client) in &made {
            for letter in clients.into_iter().filter(|letter| letter != own) {
                for number in 0..NAMES {
                    let lock = client.lock(format!("{letter}{number}"));
                    tokio::spawn(async move { lock.acquire().await });
                }
            }
        }
        Ok::<_, leasehold::Error>((held, made))
    };
    let crowd = runtime.block_on(crowd).expect("all are free");
    let show = |words: &[&str]| {
        let mut show = leasehold_at(&server);
        done(show.args(["show", "--blocked-by", "a0"]).args(words))
            .expect_code(0)
            .stdout
    };
    let all = clients.len() * NAMES;
    let mut told = String::new();
    eventually("all names are told", LIMIT, || {
        told = show(&[]);
        told.matches(", held by ").count() == all
    });
    // Each of these clients has several waits, and one of them may end.
    assert!(!told.contains("circle"), "{told}");
    let json: serde_json::Value = serde_json::from_str(&show(&["--json"])).expect("JSON");
    let links = json["chain"].as_array().expect("a list");
    let holders = links.iter().filter(|link| link["see_above"] == false);
    assert_eq!(holders.count(), all, "{json}");
    assert_eq!(
        (&json["circle"], &json["cut"]),
        (&false.into(), &false.into())
    );
    drop(crowd);
}

#[test]
fn clients_that_were_not_asked_are_told() {
    let server = server();
    let enter =
        "for n = 1, ARGV[1] do redis.call('ZADD', 'leasehold:clients', '9000000000000', n) end";
    for (clients, more) in [("200", false), ("201", true)] {
        let command = ["EVAL", enter, "0", clients];
        server.command(&command).expect("the server runs");
        let (text, json) = shown(&server);
        assert_eq!(json["more_clients"], more, "{json}");
        assert_eq!(
            text.contains("perhaps more: only 200 of the clients"),
            more,
            "{text}"
        );
    }
}

#[test]
fn wait_of_a_command_ends_with_it() {
    let server = server();
    let waiting = || shown(&server).1["waiting"].as_array().map(Vec::len);
    let mut holder = start(&mut run_script(&server, &[], "echo held; read end"));
    holder.until("held");
    let mut waiter = start(&mut run_script(&server, &[], "echo held; read end"));
    eventually("it is told", LIMIT, || waiting() == Some(1));
    holder.close_stdin();
    holder.done();
    waiter.until("held");
    // The former waiter is the holder now, and no waiter is shown.
    assert_eq!(waiting(), Some(0));
    waiter.close_stdin();
    waiter.done();
    let (text, json) = shown(&server);
    assert_eq!(
        (text.as_str(), json["waiting"].as_array().map(Vec::len)),
        ("`job` is free\n", Some(0))
    );
    // Neither client has left an announcement behind.
    let keys = server.keys();
    assert!(
        !keys.iter().any(|key| key.starts_with("leasehold:client")),
        "{keys:?}"
    );
}

#[test]
fn exit_code_says_whether_it_is_held() {
    let server = server();
    let show = ["show", "--exit-code", "job"];
    done(leasehold_at(&server).args(show)).expect_code(1);
    server
        .command(&["HSET", "job", "7e57c0de-0000-4000-8000-000000000000:1", "1"])
        .expect("the server runs");
    done(leasehold_at(&server).args(show)).expect_code(0);
    // First the semaphore has a free permit, then none.
    for (free, code) in [("1", 1), ("0", 0)] {
        server
            .command(&["SET", "job", free])
            .expect("the server runs");
        done(leasehold_at(&server).args(show)).expect_code(code);
    }
}

#[test]
fn large_hashes_are_shown_in_part() {
    let server = server();
    let uuid = "5400c6ee-9efb-4d7c-afeb-d3cddd05968d";
    let mut group = vec!["HSET".to_owned(), "job".to_owned()];
    let mut readers = vec!["HSET".to_owned(), "read".to_owned()];
    for number in 0..1200 {
        let hold = format!("{uuid}:{number}");
        group.extend([format!("v{number}"), hold.clone()]);
        group.extend([
            format!("v{number}:{hold}:expire_time"),
            "9000000000000".to_owned(),
        ]);
        group.extend([format!("v{number}:{hold}:lock_count"), "1".to_owned()]);
        readers.extend([hold, "1".to_owned()]);
    }
    readers.extend(["mode".to_owned(), "read".to_owned()]);
    for command in [group, readers] {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        server.command(&command).expect("the server runs");
    }
    let (text, json) = shown(&server);
    assert!(text.contains("  more    200 are not shown\n"), "{text}");
    assert_eq!(
        (&json["kind"], &json["more"]),
        (&"group".into(), &200.into())
    );
    let read = done(leasehold_at(&server).args(["show", "--json", "read"])).expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&read.stdout).expect("JSON");
    // The keys of these readers do not exist, so their holds have ended.
    assert_eq!(
        (&json["kind"], &json["held"]),
        (&"rw".into(), &false.into())
    );
}

#[test]
fn listeners_that_are_not_told_are_not_known() {
    let server = server();
    let user = [
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-pubsub",
    ];
    server.command(&user).expect("the server runs");
    server
        .command(&["HSET", "job", "7e57c0de-0000-4000-8000-000000000000:1", "1"])
        .expect("the server runs");
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let mut show = leasehold_at(&server);
    show.env("LEASEHOLD_URL", url).args(["show", "job"]);
    let shown = done(&mut show).expect_code(0);
    assert!(shown.stdout.contains("waiting not known"), "{shown}");
}

#[test]
fn clients_say_who_holds_and_who_waits() {
    let server = server();
    let labelled = |label: &str| {
        let mut run = run_script(&server, &["--label", label], "echo held; read end");
        start(&mut run)
    };
    let mut holder = labelled("nightly billing");
    holder.until("held");
    let waiter = labelled("the next");
    let mut json = serde_json::Value::Null;
    eventually("both are known", LIMIT, || {
        json = shown(&server).1;
        json["waiting"][0]["waited_for_ms"].is_u64() && json["holders"][0]["held_for_ms"].is_u64()
    });
    let client = &json["holders"][0]["client"];
    assert_eq!(client["label"], "nightly billing", "{json}");
    assert_eq!(client["pid"], holder.pid().to_string(), "{json}");
    assert_eq!(json["waiting"][0]["client"]["label"], "the next", "{json}");
    let (text, _) = shown(&server);
    let told = format!(
        "client  nightly billing on {}, process {}, from 127.0.0.1:",
        client["host"].as_str().expect("a name"),
        holder.pid()
    );
    assert!(text.contains(&told), "{text}");
    assert!(text.contains("  held    for at least "), "{text}");
    let listed = |words: &[&str]| {
        done(leasehold_at(&server).arg("ls").args(words))
            .expect_code(0)
            .stdout
    };
    assert!(listed(&[]).contains("nightly billing on"));
    eventually("it is older", LIMIT, || {
        listed(&["--older-than", "1s"]).contains("job")
    });
    let none = done(leasehold_at(&server).args(["ls", "--older-than", "1h"])).expect_code(0);
    assert_eq!(none.stdout, "");
    assert!(
        none.stderr
            .contains("1 name is not known to be held for longer than 1h"),
        "{none}"
    );
    let released = done(leasehold_at(&server).args(["release", "-y", "job"])).expect_code(0);
    assert!(
        released.stdout.contains("(nightly billing on"),
        "{released}"
    );
    drop((holder, waiter));
}
