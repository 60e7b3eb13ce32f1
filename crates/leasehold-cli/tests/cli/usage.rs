//! Wrong usage, and passwords.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use leasehold_testkit::RedisServer;

use crate::support::{done, leasehold, leasehold_at, server};

#[test]
fn wrong_usage_gives_2_and_the_right_command() {
    let server = server();
    for (words, says) in [
        (
            &["run", "job", "ls", "-la"][..],
            "leasehold run job -- ls -la",
        ),
        (&["run", "job", "ls"], "leasehold run job -- ls"),
        (
            &["run", "--wait", "5s", "job", "ls"],
            "leasehold run --wait 5s job -- ls",
        ),
        (&["run", "job"], "leasehold run job -- CMD"),
        (&["run", "job", "--"], "leasehold run job -- CMD"),
        (&["run", "--", "ls", "-l"], "leasehold run NAME -- ls -l"),
        (&["run", "", "--", "true"], "name is empty"),
        (
            &["run", "--wait", "0s", "job", "--", "true"],
            "--no-wait (-n)",
        ),
        (&["run", "--grace", "0", "job", "--", "true"], "zero"),
        (&["run", "--wait", "-1s", "job", "--", "true"], "negative"),
        (&["run", "--wait", "5x", "job", "--", "true"], "5s or 500ms"),
        (
            &["run", "--redlock", "redis://a", "job", "--", "true"],
            "a majority takes three or more",
        ),
        (
            &["hold", "--redlock", "redis://a", "job"],
            "a majority takes three or more",
        ),
        (
            &[
                "run",
                "--min-hold",
                "5",
                "--limit",
                "2",
                "job",
                "--",
                "true",
            ],
            "with --limit there are several keys",
        ),
        (
            &["run", "--min-hold", "5", "-s", "job", "--", "true"],
            "with --read there are several keys",
        ),
        (
            &["run", "--min-hold", "5", "--also", "b", "job", "--", "true"],
            "with --also there are several keys",
        ),
        (
            &[
                "run",
                "--min-hold",
                "2m",
                "--failover-guard",
                "60",
                "job",
                "--",
                "true",
            ],
            "make the guard as long",
        ),
        (&["run", "--wait", "9999y", "job", "--", "true"], "a year"),
        (&["run", "--lease", "1ms", "job", "--", "true"], "100 ms"),
        (&["run", "--grace", "0s", "job", "--", "true"], "zero"),
        (
            &["run", "--grace", "16s", "job", "--", "true"],
            "write --grace 15s or --lease 32s",
        ),
        (
            &["run", "--no-wait", "--wait", "1s", "job", "--", "true"],
            "--no-wait",
        ),
        (
            &["run", "--conflict-exit-code", "256", "job", "--", "true"],
            "256",
        ),
        (&["-q", "-v", "show", "job"], "--quiet"),
        (&["set-limit", "job"], "N"),
        (&["set-limit", "job", "1000001"], "1000001"),
        (&["show"], "NAME"),
        (&["demo", "--workers", "1"], "--workers"),
        (&["demo", "--stock", "0"], "--stock"),
        (&["demo", "--pause", "1h"], "10s"),
        (&["demo", "--kill", "--no-lock"], "--no-lock"),
    ] {
        let done = done(leasehold_at(&server).args(words));
        assert_eq!(done.code(), 2, "{words:?}: {done}");
        assert!(done.stderr.contains(says), "{words:?}: {done}");
        assert!(done.stderr.starts_with("leasehold: "), "{words:?}: {done}");
        assert_eq!(done.stdout, "", "{words:?}");
    }
}

#[test]
fn name_of_another_kind_gives_65_in_every_sub_command() {
    let server = server();
    for foreign in [
        &["RPUSH", "job", "x"][..],
        &["HSET", "job", "a", "1"],
        &["SET", "job", "text"],
    ] {
        server.command(&["FLUSHALL"]).expect("the server runs");
        server.command(foreign).expect("the server runs");
        for words in [
            &["run", "job", "--", "true"][..],
            &["run", "--fair", "job", "--", "true"],
            &["run", "--read", "job", "--", "true"],
            &["run", "--limit", "2", "job", "--", "true"],
            &["hold", "job"],
            &["hold", "--limit", "2", "job"],
            &["show", "job"],
            &["release", "--yes", "job"],
            &["set-limit", "job", "2"],
            &["latch", "set", "job", "2"],
            &["latch", "down", "job"],
            &["latch", "wait", "job"],
            &["latch", "wait", "--must-exist", "job"],
        ] {
            let done = done(leasehold_at(&server).args(words));
            assert_eq!(done.code(), 65, "{foreign:?} {words:?}: {done}");
            assert!(done.stderr.contains("`job`"), "{words:?}: {done}");
            assert_eq!(done.stdout, "", "{words:?}");
        }
        // A watch reports the kind of the name, and does not fail.
        let watched = ["watch", "--for", "100ms", "job"];
        let watched = done(leasehold_at(&server).args(watched)).expect_code(0);
        assert!(watched.stdout.contains("  is a "), "{watched}");
        assert_eq!(server.keys(), ["job"]);
    }
}

#[test]
fn invalid_lock_name_exits_with_2() {
    let server = server();
    let mut run = leasehold_at(&server);
    run.args(["run"])
        .arg(OsStr::from_bytes(b"a\xffb"))
        .args(["--", "true"]);
    done(&mut run).expect_code(2).expect_on_stderr("not UTF-8");
    let mut run = leasehold_at(&server);
    run.args(["run", &"x".repeat(65 * 1024), "--", "true"]);
    let done = done(&mut run)
        .expect_code(2)
        .expect_on_stderr("the limit is 65536");
    assert!(done.stderr.len() < 1000);
}

#[test]
fn no_password_is_printed_in_any_case() {
    let password = "s3cret-of-ours";
    let server = RedisServer::builder()
        .password(password)
        .start()
        .expect("redis-server starts");
    let right = server.url();
    let wrong = right.replace(password, "s3cret-but-wrong");
    let gone = format!("redis://:{password}@127.0.0.1:1");
    let odd = format!("nonsense://:{password}@127.0.0.1:1");
    let bad_port = format!("redis://:{password}@127.0.0.1:99999");
    for (url, code) in [
        (&right, 0),
        (&wrong, 77),
        (&gone, 69),
        (&odd, 2),
        (&bad_port, 2),
    ] {
        let with_flag = ["--redis", url, "-vvv", "run", "-n", "job", "--", "true"];
        let by_flag = done(leasehold().args(with_flag)).expect_code(code);
        let mut run = leasehold();
        run.env("LEASEHOLD_URL", url).env("RUST_LOG", "trace");
        let by_environment = done(run.args(["run", "-n", "job", "--", "true"])).expect_code(code);
        let mut run = leasehold();
        run.env("REDIS_URL", url);
        let help = done(run.args(["run", "--help"])).expect_code(0);
        for done in [by_flag, by_environment, help] {
            assert!(!done.stdout.contains("s3cret"), "{done}");
            assert!(!done.stderr.contains("s3cret"), "{done}");
        }
    }
}

#[test]
fn url_in_the_wrong_place_is_not_repeated() {
    for words in [
        &["show", "job", "redis://:s3cret@h"][..],
        &["run", "job", "redis://:s3cret@h"],
        &["run", "--redis=redis://:s3cret@h", "job", "ls"],
        &["run", "--wait=redis://:s3cret@h", "job", "--", "ls"],
        &["run", "--redis-url=redis://:s3cret@h", "job", "--", "ls"],
        &["redis://:s3cret@h"],
        &["show", "job", "user:s3cret@h"],
    ] {
        let done = done(leasehold().args(words));
        assert_eq!(done.code(), 2, "{words:?}: {done}");
        assert!(!done.stderr.contains("s3cret"), "{words:?}: {done}");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for words in [
        &["--help"][..],
        &["run", "--help"],
        &["demo", "-h"],
        &["--version"],
    ] {
        let done = done(leasehold().args(words)).expect_code(0);
        assert_ne!(done.stdout, "", "{words:?}");
        assert!(!done.stdout.contains("demo-worker"), "{done}");
        assert!(!done.stdout.contains("misplaced"), "{done}");
    }
}

/// Returns the names of the sub-commands, as `--help` lists them.
fn sub_commands() -> Vec<String> {
    let help = done(leasehold().arg("-h")).expect_code(0).stdout;
    let (_, list) = help.split_once("Commands:\n").expect("a list");
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn short_help_fits_a_screen() {
    for name in sub_commands() {
        let help = done(leasehold().env("COLUMNS", "80").args([&name, "-h"])).expect_code(0);
        let most = if name == "run" { 45 } else { 25 };
        assert!(help.stdout.lines().count() <= most, "{help}");
        let (_, options) = help.stdout.split_once("Options:\n").expect("options");
        for line in options.lines().take_while(|line| !line.is_empty()) {
            let begins = line.trim_start();
            assert!(begins.starts_with('-'), "{name}: one line each: {line}");
        }
    }
}

#[test]
fn examples_fit_a_narrow_terminal() {
    for name in sub_commands() {
        let help = done(leasehold().args([&name, "--help"])).expect_code(0);
        let examples = help
            .stdout
            .split_once("Example")
            .map_or("", |(_, rest)| rest);
        for line in examples.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.len() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn help_has_topics() {
    let codes = done(leasehold().args(["help", "exit-codes"])).expect_code(0);
    assert!(codes.stdout.contains("  75 "), "{codes}");
    let environment = done(leasehold().args(["help", "env"])).expect_code(0);
    assert!(environment.stdout.contains("LEASEHOLD_PASSWORD_FILE"));
    let run = done(leasehold().args(["help", "run"])).expect_code(0);
    assert!(run.stdout.contains("--max-run"), "{run}");
}

#[test]
fn invalid_and_unsupported_urls_exit_differently() {
    for url in ["nonsense", "redis://h/x", "redis-sentinel://h"] {
        done(leasehold().args(["--redis", url, "show", "job"])).expect_code(2);
    }
    let server = server();
    let cluster = server.url().replace("redis://", "redis-cluster://");
    done(leasehold().args(["--redis", &cluster, "show", "job"])).expect_code(1);
    done(leasehold_at(&server).args(["--redis", "", "show", "job"])).expect_code(2);
}

#[test]
fn memory_url_is_refused_for_shared_locks() {
    for words in [
        &["run", "job", "--", "echo", "ran"][..],
        &["run", "--limit", "2", "job", "--", "echo", "ran"],
        &["show", "job"],
        &["set-limit", "job", "2"],
        &["latch", "wait", "job"],
        &["latch", "set", "job", "1"],
        &["latch", "down", "job"],
    ] {
        for (variable, url) in [
            ("LEASEHOLD_URL", "memory://"),
            ("REDIS_URL", "memory://"),
            ("REDIS_URL", " memory:// "),
        ] {
            let done = done(leasehold().env(variable, url).args(words));
            assert_eq!(done.code(), 2, "{words:?}: {done}");
            let says = format!("${variable} is memory://");
            assert!(done.stderr.contains(&says), "{words:?}: {done}");
            assert_eq!(done.stdout, "", "{words:?}");
        }
        done(leasehold().args(["--redis", "memory://"]).args(words))
            .expect_code(2)
            .expect_on_stderr("--redis is memory://");
    }
    let majority = ["run", "--redlock", "memory://", "job", "--", "true"];
    done(leasehold().args(majority))
        .expect_code(2)
        .expect_on_stderr("--redlock is memory://");
    // A majority ignores the environment.
    let servers = [server(), server()];
    let mut run = leasehold();
    run.env("REDIS_URL", "memory://")
        .args(["run", "--lease", "1s", "--redlock", &servers[0].url()])
        .args(["--redlock", &servers[1].url()])
        // The servers have no vote for their first 30 s.
        .args(["--outage-timeout", "60s", "job", "--", "true"]);
    done(&mut run).expect_code(0);
}
