//! The twins against the scripts: random steps on the embedded keyspace and on a
//! server, replies and state compared. What differs is shrunk to the shortest
//! sequence that shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_testkit::{RedisServer, Reply};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::backend::memory::Keyspace;
use crate::backend::redis::{Reach, Redis};
use crate::backend::step::{Failure, Operation, Step, Value};
use crate::clock::Clock;
use crate::primitives::lock::steps;

const KEYS: [&str; 3] = ["x", "a{b}c", "other"];
const HOLDS: [&str; 3] = ["c:1", "c:2", "d:1"];

/// Something that is done to both.
#[derive(Clone, Debug)]
enum Deed {
    Run(Vec<(usize, usize, usize)>),
    /// What strangers do to a key.
    Foreign(usize, usize),
    /// All leases end.
    Expire(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let operation = (0..steps::ALL.len(), 0..KEYS.len(), 0..HOLDS.len());
    prop_oneof![
        // Several at once travel as one call.
        8 => prop::collection::vec(operation, 1..6).prop_map(Deed::Run),
        1 => (0..4usize, 0..KEYS.len()).prop_map(|(what, key)| Deed::Foreign(what, key)),
        1 => (0..KEYS.len()).prop_map(Deed::Expire),
    ]
}

fn operation(step: &'static Step, key: &str, hold: &str) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let (marker, channel) = (format!("{key}:forced"), format!("channel:{key}"));
    let parts = match step.name {
        "lock.acquire" => vec![text(key), text(hold), text("60000")],
        // For some holds longer than they have it, for others shorter.
        "lock.renew" => {
            let (lease_ms, most_ms) = match hold {
                _ if hold == HOLDS[0] => ("30000", "0"),
                _ if hold == HOLDS[1] => ("30000", "45000"),
                _ => ("90000", "0"),
            };
            vec![text(key), text(hold), text(lease_ms), text(most_ms)]
        }
        "lock.release" => vec![text(key), text(hold), text(&channel)],
        "lock.why_lost" => vec![text(key), text(&marker), text(hold)],
        "lock.force_unlock" => vec![text(key), text(&marker), text(&channel)],
        "lock.inspect" => vec![text(key)],
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}

/// A reply without what differs by right: the time left beyond tens of seconds.
fn shown(reply: &Value) -> String {
    match reply {
        Value::Int(ms) if *ms > 1000 => format!("{}0 s", (ms + 5000) / 10_000),
        Value::Int(number) => number.to_string(),
        Value::Nil => "nil".into(),
        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Value::List(items) => format!("{:?}", items.iter().map(shown).collect::<Vec<_>>()),
    }
}

fn shown_failure(failure: &Failure) -> String {
    format!("{:?}", failure.cause)
}

fn on_keyspace(keyspace: &mut Keyspace, deed: &Deed) -> Vec<String> {
    match deed {
        Deed::Run(operations) => operations
            .iter()
            .map(|&(step, key, hold)| {
                let operation = operation(steps::ALL[step], KEYS[key], HOLDS[hold]);
                match (operation.step.twin)(keyspace, &operation.parts) {
                    Ok(reply) => shown(&reply),
                    Err(refusal) => {
                        shown_failure(&Failure::from_reply(&refusal.0, &"memory://".into()))
                    }
                }
            })
            .collect(),
        Deed::Foreign(what, key) => {
            let key = KEYS[*key].as_bytes();
            keyspace.del(key);
            match what {
                0 => keyspace.set(key, b"text"),
                1 => keyspace.hset(key, b"mode", b"read").unwrap(),
                2 => keyspace.hset(key, b"c:1", b"1.5").unwrap(),
                _ => {
                    keyspace.hset(key, b"c:1", b"1").unwrap();
                    keyspace.hset(key, b"name", b"Ann").unwrap();
                }
            }
            Vec::new()
        }
        Deed::Expire(key) => {
            keyspace.pexpire(KEYS[*key].as_bytes(), 0);
            keyspace.advance(1);
            Vec::new()
        }
    }
}

async fn on_server(server: &RedisServer, redis: &Redis, deed: &Deed) -> Vec<String> {
    let command = |parts: &[&str]| server.command(parts).unwrap();
    match deed {
        Deed::Run(operations) => {
            let replies: Vec<_> = operations
                .iter()
                .map(|&(step, key, hold)| {
                    redis.submit(operation(steps::ALL[step], KEYS[key], HOLDS[hold]))
                })
                .collect();
            let mut shown_replies = Vec::new();
            for reply in replies {
                shown_replies.push(match reply.await {
                    Ok(reply) => shown(&reply),
                    Err(failure) => shown_failure(&failure),
                });
            }
            shown_replies
        }
        Deed::Foreign(what, key) => {
            let key = KEYS[*key];
            command(&["DEL", key]);
            match what {
                0 => command(&["SET", key, "text"]),
                1 => command(&["HSET", key, "mode", "read"]),
                2 => command(&["HSET", key, "c:1", "1.5"]),
                _ => command(&["HSET", key, "c:1", "1", "name", "Ann"]),
            };
            Vec::new()
        }
        Deed::Expire(key) => {
            command(&["PEXPIRE", KEYS[*key], "0"]);
            Vec::new()
        }
    }
}

type State = BTreeMap<String, (String, bool)>;

fn keyspace_state(keyspace: &mut Keyspace) -> State {
    let names = KEYS
        .iter()
        .flat_map(|key| [(*key).to_owned(), format!("{key}:forced")]);
    names
        .filter_map(|name| {
            let key = name.as_bytes();
            let ttl = keyspace.pttl(key);
            let content = match keyspace.hgetall(key) {
                Ok(fields) => fields
                    .iter()
                    .flat_map(|(field, value)| [field, value])
                    .map(|text| String::from_utf8_lossy(text).into_owned())
                    .collect::<Vec<_>>()
                    .join(" "),
                Err(_) => String::from_utf8_lossy(&keyspace.get(key).unwrap()).into(),
            };
            (ttl != -2).then_some((name, (content, ttl > 0)))
        })
        .collect()
}

fn server_state(server: &RedisServer) -> State {
    let text = |reply: Reply| reply.as_text().unwrap_or_default().to_owned();
    let state_of = |name: &str| {
        let content = match text(server.command(&["TYPE", name]).unwrap()).as_str() {
            "hash" => {
                let hash = server.command(&["HGETALL", name]).unwrap();
                let mut pairs: Vec<_> = hash
                    .as_array()
                    .unwrap()
                    .chunks(2)
                    .map(|pair| {
                        format!(
                            "{} {}",
                            pair[0].as_text().unwrap(),
                            pair[1].as_text().unwrap()
                        )
                    })
                    .collect();
                pairs.sort();
                pairs.join(" ")
            }
            _ => text(server.command(&["GET", name]).unwrap()),
        };
        let ttl = server.command(&["PTTL", name]).unwrap().as_int().unwrap();
        (content, ttl > 0)
    };
    server
        .keys()
        .into_iter()
        .map(|name| {
            let state = state_of(&name);
            (name, state)
        })
        .collect()
}

#[test]
fn twins_and_scripts_agree() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let reach = Reach {
        url: server.url(),
        connect_limit: Duration::from_secs(5),
        reply_limit: Duration::from_secs(5),
        #[cfg(feature = "tls")]
        authorities: Vec::new(),
    };
    let all = crate::primitives::steps();
    let redis = runtime
        .block_on(Redis::connect(reach, &all, Clock::Boot))
        .unwrap();
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let deeds = prop::collection::vec(deed(), 1..25);
    let result = runner.run(&deeds, |deeds| {
        server.command(&["FLUSHALL"]).unwrap();
        let mut keyspace = Keyspace::default();
        keyspace.advance(1_000_000);
        for deed in &deeds {
            let ours = on_keyspace(&mut keyspace, deed);
            let theirs = runtime.block_on(on_server(&server, &redis, deed));
            prop_assert_eq!(ours, theirs, "replies of {:?}", deed);
            prop_assert_eq!(
                keyspace_state(&mut keyspace),
                server_state(&server),
                "state after {:?}",
                deed
            );
        }
        Ok(())
    });
    result.unwrap();
    drop(runtime.enter());
}

#[test]
fn every_header_says_what_the_step_is_sent_with() {
    for step in crate::primitives::steps() {
        // The file of the step itself comes last.
        let file = step.lua.rsplit("\n\n-- ").next().unwrap();
        let function = crate::backend::redis::script::function_name(step);
        let signature = file
            .lines()
            .find_map(|line| line.strip_prefix(&format!("local function {function}(")))
            .unwrap_or_else(|| panic!("{}: no function `{function}`", step.name));
        let parameters: Vec<_> = signature.trim_end_matches(')').split(", ").collect();
        assert_eq!(parameters.len(), step.keys + step.args, "{}", step.name);
        for parameter in parameters {
            assert!(
                step.lua
                    .lines()
                    .any(|line| line.starts_with(&format!("-- {parameter} "))),
                "{}: the header says nothing of `{parameter}`",
                step.name
            );
        }
        assert!(step.lua.contains("-- Returns "), "{}", step.name);
        assert!(
            !step.lua.contains("#!"),
            "{}: fails when out of memory",
            step.name
        );
    }
}

#[test]
fn every_file_is_a_step_of_its_own() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/primitives/lock");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".lua") && name != "shape.lua")
        .collect();
    files.sort();
    let mut steps: Vec<_> = steps::ALL
        .iter()
        .map(|step| format!("{}.lua", step.name.trim_start_matches("lock.")))
        .collect();
    steps.sort();
    assert_eq!(files, steps);
}
