//! `leasehold doctor`, against servers with one defect each.

use std::time::Duration;

use leasehold_testkit::server::Builder;
use leasehold_testkit::{ClockShim, Cluster, RedisServer, Reply, Sentinels, eventually};
use serde_json::Value;

use crate::support::{Done, LIMIT, done, leasehold};

/// Returns the builder of a server without a defect.
fn sound() -> Builder {
    RedisServer::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
}

fn doctor(url: &str, options: &[&str]) -> Done {
    let mut command = leasehold();
    done(
        command
            .env("LEASEHOLD_URL", url)
            .arg("doctor")
            .args(options),
    )
}

fn json(url: &str, code: i32) -> Value {
    let said = doctor(url, &["--json"]).expect_code(code);
    let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
    each_finding_is_whole(&report);
    report
}

/// Asserts that each finding names its server, the advice, and the sentence of the page that does
/// not hold.
#[track_caller]
fn each_finding_is_whole(report: &Value) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guarantees.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for finding in report["findings"].as_array().expect("a list") {
        for field in ["address", "says", "do"] {
            let text = finding[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "no {field}: {finding:#}");
        }
        match finding["breaks"].as_str() {
            Some(breaks) => assert!(page.contains(breaks), "not in the page: {finding:#}"),
            None => assert_eq!(finding["severity"], "note", "{finding:#}"),
        }
        let address = finding["address"].as_str().expect("a text");
        assert!(address.starts_with("redis"), "{finding:#}");
    }
}

/// Returns the subject and the severity of each finding.
fn found(report: &Value) -> Vec<(String, String)> {
    let findings = report["findings"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    findings
        .map(|one| (text(&one["about"]), text(&one["severity"])))
        .collect()
}

/// Asserts that the doctor finds only this, and exits with the code of its severity.
#[track_caller]
fn expect(url: &str, about: &str, severity: &str) -> Value {
    let code = match severity {
        "note" => 0,
        "warning" => 1,
        _ => 2,
    };
    let report = json(url, code);
    let expected = vec![(about.to_owned(), severity.to_owned())];
    assert_eq!(found(&report), expected, "{report:#}");
    report
}

fn with(settings: &[(&str, &str)]) -> RedisServer {
    let settings = settings.iter();
    let builder = settings.fold(sound(), |builder, (name, value)| builder.arg(name, value));
    builder.start().expect("redis-server starts")
}

#[test]
fn sound_server_has_no_findings_and_keeps_no_trace() {
    let server = with(&[]);
    let report = json(&server.url(), 0);
    assert_eq!(found(&report), [], "{report:#}");
    assert_eq!(report["topology"], "a single server");
    let said = doctor(&server.url(), &[]).expect_code(0);
    assert!(
        said.stdout.contains("promise  one holder at a time"),
        "{said}"
    );
    assert!(
        said.stdout.contains("nothing that endangers locks"),
        "{said}"
    );
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}

#[test]
fn server_that_removes_locks_is_unsafe() {
    let server = with(&[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-lru")]);
    let report = expect(&server.url(), "eviction", "unsafe");
    let finding = &report["findings"][0];
    assert_eq!(
        finding["breaks"],
        "For one name, the intervals of two holders do not overlap."
    );
    // Without a memory limit, the server evicts nothing.
    let server = with(&[("maxmemory-policy", "allkeys-lru")]);
    assert_eq!(found(&json(&server.url(), 0)), []);
}

#[test]
fn memory_near_its_limit_is_a_warning() {
    let server = with(&[]);
    let info = server.command(&["INFO", "memory"]).expect("it runs");
    let info = info.as_text().expect("a text").to_owned();
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.expect("it says so").parse().expect("a number");
    let limit = (used + used / 50).to_string();
    server
        .command(&["CONFIG", "SET", "maxmemory", &limit])
        .expect("it runs");
    let report = json(&server.url(), 1);
    let findings = found(&report);
    assert!(
        findings.contains(&("memory".into(), "warning".into())),
        "{report:#}"
    );
}

#[test]
fn server_without_a_disk_is_a_warning() {
    let server = RedisServer::start().expect("redis-server starts");
    expect(&server.url(), "persistence", "warning");
}

#[test]
fn disk_that_is_behind_is_told() {
    let server = with(&[("appendfsync", "everysec")]);
    expect(&server.url(), "fsync", "note");
    let server = with(&[("appendfsync", "no")]);
    expect(&server.url(), "fsync", "warning");
}

#[test]
fn replica_is_unsafe() {
    let master = with(&[]);
    let server = with(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]);
    eventually("it replicates", LIMIT, || {
        let info = server.command(&["INFO", "replication"]).expect("it runs");
        info.as_text()
            .is_some_and(|info| info.contains("master_link_status:up"))
    });
    let report = json(&server.url(), 2);
    assert_eq!(
        found(&report)[0],
        ("role".into(), "unsafe".into()),
        "{report:#}"
    );
}

#[test]
fn single_url_of_a_server_with_replicas_is_a_warning() {
    let master = with(&[]);
    let _replica = with(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]);
    eventually("it is in step", LIMIT, || {
        let info = master.command(&["INFO", "replication"]).expect("it runs");
        let info = info.as_text().unwrap_or_default().to_owned();
        info.contains("state=online") && !info.contains("offset=0,")
    });
    expect(&master.url(), "topology", "warning");
}

#[test]
fn replica_that_lags_is_a_warning() {
    let master = with(&[]);
    let replica = with(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]);
    eventually("it is connected", LIMIT, || {
        let info = master.command(&["INFO", "replication"]).expect("it runs");
        info.as_text()
            .is_some_and(|info| info.contains("state=online"))
    });
    replica.pause().expect("it is ours");
    eventually("it says nothing for a while", LIMIT, || {
        let info = master.command(&["INFO", "replication"]).expect("it runs");
        let info = info.as_text().unwrap_or_default().to_owned();
        let words = info.lines().flat_map(|line| line.split(','));
        let lag = words.filter_map(|word| word.strip_prefix("lag=")).next();
        lag.is_some_and(|lag| lag.parse::<u32>().is_ok_and(|lag| lag > 4))
    });
    let report = json(&master.url(), 1);
    let findings = found(&report);
    assert!(
        findings.contains(&("lag".into(), "warning".into())),
        "{report:#}"
    );
}

#[test]
fn missing_replicas_that_are_wanted_are_a_warning() {
    let server = with(&[("min-replicas-to-write", "1")]);
    let report = json(&server.url(), 1);
    let findings = found(&report);
    for about in ["min-replicas", "writes"] {
        let expected = (about.to_owned(), "warning".to_owned());
        assert!(findings.contains(&expected), "{report:#}");
    }
}

#[test]
fn replicas_that_are_wanted_and_there_are_a_note() {
    let sentinels = Sentinels::of(
        &sound().arg("min-replicas-to-write", "1"),
        &RedisServer::builder(),
        1,
    );
    let report = json(&sentinels.url(), 0);
    let note = ("min-replicas".to_owned(), "note".to_owned());
    assert!(found(&report).contains(&note), "{report:#}");
}

/// Before Redis 7.2, a client can wait for replicas, but not for their disks.
#[test]
fn replicas_whose_disks_can_not_be_waited_for_are_a_note() {
    let sentinels = Sentinels::of(&sound(), &RedisServer::builder(), 1);
    let known = sentinels.servers()[0].command(&["COMMAND", "INFO", "waitaof"]);
    let known = known.expect("it runs");
    let knows = known.as_array().is_some_and(|known| known != [Reply::Nil]);
    let report = json(&sentinels.url(), 0);
    let note = ("acknowledgements".to_owned(), "note".to_owned());
    assert_eq!(found(&report).contains(&note), !knows, "{report:#}");
    // One server has no replicas to wait for.
    let report = json(&with(&[]).url(), 0);
    assert!(!found(&report).contains(&note), "{report:#}");
}

#[test]
fn clock_that_is_off_is_a_warning() {
    let clock = ClockShim::new().expect("a C compiler");
    let server = sound().clock(&clock).start().expect("redis-server starts");
    clock.step_ahead(Duration::from_secs(60));
    let report = expect(&server.url(), "clock", "warning");
    let says = report["findings"][0]["says"].as_str().expect("a text");
    assert!(says.contains("ahead of this machine's"), "{says}");
}

#[test]
fn clock_that_is_set_is_unsafe() {
    let clock = ClockShim::new().expect("a C compiler");
    let server = sound().clock(&clock).start().expect("redis-server starts");
    let url = server.url();
    let report = std::thread::scope(|scope| {
        let looks = scope.spawn(|| json(&url, 2));
        while !looks.is_finished() {
            clock.step_ahead(Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        looks.join().expect("it ends")
    });
    assert_eq!(found(&report)[0].0, "clock-step", "{report:#}");
}

#[test]
fn connections_that_are_cut_when_silent_are_a_warning() {
    let server = with(&[("timeout", "5")]);
    expect(&server.url(), "timeout", "warning");
    let server = with(&[("timeout", "300")]);
    assert_eq!(found(&json(&server.url(), 0)), []);
}

#[test]
fn missing_rule_is_named() {
    let rules = "~* &* +@all -evalsha -eval";
    let server = sound().user("app", "pw").rules(rules).start();
    let server = server.expect("redis-server starts");
    let report = expect(&server.url(), "acl", "warning");
    let says = report["findings"][0]["says"].as_str().expect("a text");
    assert!(says.contains("evalsha"), "{says}");

    let rules = "~orders* ~{orders* ~redisson_*{orders* ~leasehold:* &* +@all";
    let server = sound().user("app", "pw").rules(rules).start();
    let server = server.expect("redis-server starts");
    let report = json(&server.url(), 1);
    assert!(
        report.to_string().contains("~leasehold-doctor"),
        "{report:#}"
    );
    doctor(&server.url(), &["--name", "orders"]).expect_code(0);
}

#[test]
fn denied_channel_is_a_warning() {
    let rules = "~* resetchannels +@all";
    let server = sound().user("app", "pw").rules(rules).start();
    let server = server.expect("redis-server starts");
    let report = json(&server.url(), 1);
    let findings = found(&report);
    assert!(
        findings.contains(&("channels".into(), "warning".into())),
        "{report:#}"
    );
}

#[test]
fn what_is_denied_is_told_and_not_a_failure() {
    let rules = "~* &* +@all -config -info";
    let server = sound().user("app", "pw").rules(rules).start();
    let server = server.expect("redis-server starts");
    let report = expect(&server.url(), "not-looked-at", "note");
    let says = report["findings"][0]["says"].as_str().expect("a text");
    assert!(
        says.starts_with("doctor could not read CONFIG, INFO"),
        "{says}"
    );
}

#[test]
fn cluster_without_replicas_is_one_warning_with_each_master() {
    let cluster = Cluster::of(&sound(), 2, 0);
    let report = json(&cluster.url(), 1);
    assert_eq!(report["topology"], "a master of a cluster");
    assert_eq!(report["servers"].as_array().expect("a list").len(), 2);
    let findings = report["findings"].as_array().expect("a list").iter();
    let alone: Vec<_> = findings
        .filter(|finding| finding["about"] == "replicas")
        .collect();
    let [alone] = alone[..] else {
        panic!("{report:#}");
    };
    let addresses = alone["addresses"].as_array().expect("a list");
    assert_eq!(addresses.len(), 2, "{report:#}");
    let told = doctor(&cluster.url(), &[]).expect_code(1).stdout;
    let line = told
        .lines()
        .find(|line| line.contains("no replica is connected"));
    let line = line.expect("it is told");
    for address in addresses {
        assert!(line.contains(address.as_str().expect("a text")), "{told}");
    }
}

#[test]
fn denied_rule_of_a_cluster_is_named() {
    let settings = sound().user("app", "pw");
    let cluster = Cluster::of(&settings.rules("~* &* +@all -evalsha -eval"), 2, 0);
    let report = json(&cluster.url(), 1);
    let finding = (report["findings"].as_array().expect("a list").iter())
        .find(|finding| finding["about"] == "acl");
    let says = finding.map(|finding| finding["says"].to_string());
    assert!(
        says.is_some_and(|says| says.contains("evalsha")),
        "{report:#}"
    );
}

#[test]
fn replica_that_lags_in_a_cluster_is_a_warning() {
    let cluster = Cluster::of(&sound(), 1, 1);
    cluster.nodes()[1].pause().expect("it is ours");
    eventually("it says nothing for a while", LIMIT, || {
        let lag = ("lag".to_owned(), "warning".to_owned());
        let said = doctor(&cluster.url(), &["--json"]);
        let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
        each_finding_is_whole(&report);
        found(&report).contains(&lag)
    });
}

#[test]
fn sentinels_are_judged_by_their_master() {
    let sentinels = Sentinels::of(&sound(), &RedisServer::builder(), 1);
    let report = json(&sentinels.url(), 0);
    assert_eq!(report["topology"], "a master behind sentinels");
    let port = sentinels.master_server().port();
    let at = format!("redis://127.0.0.1:{port}");
    assert_eq!(report["servers"][0]["address"], at);
    sentinels.servers()[1].kill().expect("it is ours");
    eventually("its master has noticed", LIMIT, || {
        let info = sentinels.servers()[0].command(&["INFO", "replication"]);
        let info = info.expect("it runs");
        info.as_text()
            .is_some_and(|info| info.contains("connected_slaves:0"))
    });
    let report = json(&sentinels.url(), 1);
    let findings = found(&report);
    assert!(
        findings.contains(&("replicas".into(), "warning".into())),
        "{report:#}"
    );
}

#[test]
fn unreachable_server_is_no_finding() {
    doctor("redis://127.0.0.1:1", &[]).expect_code(69);
    doctor("memory://", &[]).expect_code(2);
}
