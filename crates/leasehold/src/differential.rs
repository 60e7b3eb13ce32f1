//! The twins against the scripts: random steps on the embedded keyspace and on a
//! server, replies and state compared. What differs is shrunk to the shortest
//! sequence that shows it. Each primitive has a file that says how its steps are sent.

mod expirable;
mod fair;
mod fenced;
mod group;
mod latch;
mod lock;
mod moving;
mod name;
mod presence;
mod rw;
mod semaphore;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use leasehold_testkit::{RedisServer, Reply};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::backend::failure::Failure;
use crate::backend::memory::Keyspace;
use crate::backend::redis::slots::slot_of;
use crate::backend::redis::{Endpoint, Redis};
use crate::backend::step::{Operation, Step, Value};
use crate::clock::Clock;
use crate::key::Key;

/// How the steps of one primitive are tried out.
struct Suite {
    /// Where its files are, below `primitives`.
    folder: &'static str,
    steps: &'static [&'static Step],
    /// The value of the key or argument of that name.
    argument: fn(&Sample, name: &str) -> String,
    /// What strangers do to a key: each is a command, with `KEY` for the key and `TAG` for the
    /// key in braces, that runs
    /// after the key that it writes was removed.
    foreign: &'static [&'static [&'static str]],
}

/// What a step is sent for: a key, for a hold, in one of eight variants.
struct Sample {
    step: &'static str,
    key: &'static str,
    hold: &'static str,
    variant: usize,
}

impl Sample {
    /// Some requests come twice, and some markers are taken along.
    fn marker(&self) -> String {
        self.marker_of(self.step, self.variant / 2)
    }

    fn done(&self) -> String {
        self.marker_of(self.step, self.variant % 4)
    }

    fn marker_of(&self, step: &str, number: usize) -> String {
        format!("{step}:{}:{}:{number}", self.key, self.hold)
    }

    fn has_no(&self, name: &str) -> ! {
        panic!("`{name}` of `{}` needs a value here", self.step)
    }
}

/// A text with the id of a client for each `<a>`, `<c>` and so on.
fn with_ids(text: &str) -> String {
    ["a", "c", "d", "e"]
        .iter()
        .fold(text.to_owned(), |text, client| {
            let id = format!("{}-0000-4000-8000-000000000000", client.repeat(8));
            text.replace(&format!("<{client}>"), &id)
        })
}

/// All keys of a name are in one slot, as those that the primitives make are.
fn beside(key: &str, other: &[u8]) -> Vec<u8> {
    if slot_of(other) == slot_of(key.as_bytes()) {
        return other.to_vec();
    }
    let tag = Key::parse(key).unwrap().as_tag();
    [tag.as_bytes(), b":", other].concat()
}

/// How a hold is renewed, lease and most: some for longer than they have it, others for less.
fn renewed(hold: &str) -> (&'static str, &'static str) {
    match HOLDS.iter().position(|other| *other == hold) {
        Some(0) => ("30000", "0"),
        Some(1) => ("30000", "45000"),
        _ => ("90000", "0"),
    }
}

const SUITES: [Suite; 10] = [
    lock::SUITE,
    group::SUITE,
    fenced::SUITE,
    fair::SUITE,
    rw::SUITE,
    semaphore::SUITE,
    expirable::SUITE,
    latch::SUITE,
    name::SUITE,
    presence::SUITE,
];

// Redisson makes the names beside a key in two ways, by whether it has a brace.
/// Commands that put a foreign key in the place of the list of clients that wait for permits, and odd
/// items into the list.
const NO_LIST_OF_CLIENTS: &[&str] = &["SET", "KEY:asking", "text"];
const ODD_CLIENTS: &[&str] = &[
    "RPUSH",
    "KEY:asking",
    "1234:2",
    "text",
    "5678:x",
    "9:1:1",
    ":1",
    "9012:1",
];

const KEYS: [&str; 3] = ["x", "a{b}c", "other"];
/// Of two clients.
const HOLDS: [&str; 3] = [
    "cccccccc-0000-4000-8000-000000000000:1",
    "cccccccc-0000-4000-8000-000000000000:2",
    "dddddddd-0000-4000-8000-000000000000:1",
];

/// Channels that somebody listens on: of releases, and of clients that wait. Other clients are gone.
const HEARD: [&str; 6] = [
    "channel:x",
    "channel:x:1234",
    "channel:x:3456",
    "channel:a{b}c",
    "channel:a{b}c:1234",
    "channel:a{b}c:3456",
];

/// Listens on these channels for as long as the server runs.
fn listen(server: &RedisServer) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(stream, "SUBSCRIBE {}\r\n", HEARD.join(" ")).unwrap();
    // Read all the time: a server ends a connection that is not.
    std::thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
    while server.channels().len() < HEARD.len() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A keyspace with the same listeners.
fn heard_keyspace() -> Keyspace {
    Keyspace::heard_by(Box::new(|channel| HEARD.contains(&channel).into()))
}

/// Something that is done to both.
#[derive(Clone, Debug)]
enum Action {
    /// Step, key, hold, variant. Several at once travel as one call.
    Run(Vec<(usize, usize, usize, usize)>),
    Foreign(usize, usize),
    /// All leases end.
    Expire,
}

fn action(suite: &'static Suite) -> impl Strategy<Value = Action> {
    let operation = (
        0..suite.steps.len(),
        0..KEYS.len(),
        0..HOLDS.len(),
        0..8usize,
    );
    prop_oneof![
        // Strangers and ends of leases remove what there is: with more of them the steps would
        // mostly find nothing.
        8 => prop::collection::vec(operation, 1..6).prop_map(Action::Run),
        1 => (0..suite.foreign.len(), 0..KEYS.len()).prop_map(|(what, key)| Action::Foreign(what, key)),
        1 => Just(Action::Expire),
    ]
}

impl Suite {
    fn operation(&self, (step, key, hold, variant): (usize, usize, usize, usize)) -> Operation {
        let step = self.steps[step];
        let sample = Sample {
            step: step.name,
            key: KEYS[key],
            hold: HOLDS[hold],
            variant,
        };
        let value = |name: &&str| with_ids(&(self.argument)(&sample, name)).into_bytes();
        if step.many {
            let next = |texts: [&'static str; 3], first: usize| -> Vec<Vec<u8>> {
                let texts = (first..first + variant).map(|at| texts[at % 3]);
                texts.map(|text| text.as_bytes().to_vec()).collect()
            };
            let lease = vec![value(&"lease_ms")];
            return Operation::new(step, [next(KEYS, key), lease, next(HOLDS, hold)].concat());
        }
        let mut parts: Vec<_> = step.parameters.iter().map(value).collect();
        for part in &mut parts[..step.keys] {
            *part = beside(KEYS[key], part);
        }
        Operation::new(step, parts)
    }

    fn foreign(&self, what: usize, key: usize) -> Vec<String> {
        let parts = self.foreign[what].iter();
        let (key, tag) = (KEYS[key], Key::parse(KEYS[key]).unwrap().as_tag());
        let filled = |part: &&str| with_ids(&part.replace("KEY", key).replace("TAG", &tag));
        let mut parts: Vec<_> = parts.map(filled).collect();
        let name = beside(key, parts[1].as_bytes());
        parts[1] = String::from_utf8(name).unwrap();
        parts
    }

    fn on_keyspace(&self, keyspace: &mut Keyspace, action: &Action) -> Vec<String> {
        match action {
            Action::Run(operations) => operations
                .iter()
                .map(|operation| {
                    let operation = self.operation(*operation);
                    match (operation.step.twin)(keyspace, &operation.parts) {
                        Ok(reply) => shown_reply(operation.step, &reply),
                        Err(refusal) => {
                            let failure = Failure::from_reply(&refusal.0, &"memory://".into());
                            shown_failure(&failure.of(operation.step))
                        }
                    }
                })
                .collect(),
            Action::Foreign(what, key) => {
                let command = self.foreign(*what, *key);
                // As on the server: most commands fail on a key of another type. The key is the
                // second word of each.
                keyspace.del(command[1].as_bytes());
                write(keyspace, &command);
                Vec::new()
            }
            Action::Expire => {
                keyspace.expire_all();
                Vec::new()
            }
        }
    }

    async fn on_server(&self, server: &RedisServer, redis: &Redis, action: &Action) -> Vec<String> {
        let command = |parts: &[&str]| server.command(parts).unwrap();
        match action {
            Action::Run(operations) => {
                // Submitted before the first one is awaited. Awaited one by one, each would be alone in
                // its call. A renewal leaves before what waits, so it is submitted behind that.
                let mut shown_replies = Vec::new();
                let renews = |sample: &_| self.operation(*sample).step.renews;
                for together in operations.chunk_by(|_, next| !renews(next)) {
                    let together = together.iter().map(|sample| self.operation(*sample));
                    let replies: Vec<_> = together
                        .map(|operation| (operation.step, redis.submit(operation)))
                        .collect();
                    for (step, reply) in replies {
                        shown_replies.push(match reply.await {
                            Ok(reply) => shown_reply(step, &reply),
                            Err(failure) => shown_failure(&failure),
                        });
                    }
                }
                shown_replies
            }
            Action::Foreign(what, key) => {
                let foreign = self.foreign(*what, *key);
                command(&["DEL", &foreign[1]]);
                command(&foreign.iter().map(String::as_str).collect::<Vec<_>>());
                Vec::new()
            }
            Action::Expire => {
                for key in server.keys() {
                    // A key without an expiry stays: so it does on the keyspace.
                    if command(&["PTTL", &key]).as_int().unwrap() >= 0 {
                        command(&["PEXPIRE", &key, "0"]);
                    }
                }
                Vec::new()
            }
        }
    }
}

/// A stranger's command.
fn write(keyspace: &mut Keyspace, command: &[String]) {
    let parts: Vec<_> = command.iter().map(|part| part.as_bytes()).collect();
    match &parts[..] {
        [b"SET", key, value] => keyspace.set(key, value),
        [b"HSET", key, pairs @ ..] => {
            for pair in pairs.chunks(2) {
                keyspace.hset(key, pair[0], pair[1]).unwrap();
            }
        }
        [b"RPUSH", key, items @ ..] => {
            for item in items {
                keyspace.rpush(key, item).unwrap();
            }
        }
        [b"ZADD", key, score, member] => {
            let score = std::str::from_utf8(score).unwrap().parse().unwrap();
            keyspace.zadd(key, member, score).unwrap();
        }
        _ => panic!("`{}` is new here", command.join(" ")),
    }
}

/// A step's reply without what differs by right: the order of the holders, who are the fields of a
/// hash, and the time left beyond tens of seconds.
fn shown_reply(step: &Step, reply: &Value) -> String {
    let Value::List(items) = reply else {
        return shown(reply);
    };
    if step.name != "rw.inspect" {
        return shown(reply);
    }
    let (ttl, holders) = items.split_first().expect("the time left comes first");
    let holders = holders.chunks(2);
    let mut holders: Vec<_> = holders
        .map(|hold| hold.iter().map(shown).collect::<Vec<_>>())
        .collect();
    holders.sort();
    format!("[{}, {holders:?}]", shown(ttl))
}

/// A value without the time left beyond tens of seconds.
fn shown(reply: &Value) -> String {
    match reply {
        Value::Int(number) => shown_number(*number),
        Value::Nil => "nil".into(),
        Value::Text(text) => shown_word(&String::from_utf8_lossy(text)),
        Value::List(items) => {
            let mut items: Vec<_> = items.iter().map(shown).collect();
            // The fields of a hash are in no order.
            if items.iter().all(|item| item.starts_with('[')) {
                items.sort();
            }
            format!("{items:?}")
        }
    }
}

/// A time left is the same within some seconds, and so is a time of the clock.
fn shown_number(number: i64) -> String {
    let now_ms = i64::try_from(now_ms()).unwrap();
    match number {
        // A count or an answer, which has to be exact: but for 0, no lease of the samples is that
        // short.
        ..=1000 => number.to_string(),
        // The two are asked one after the other, on a machine that may be busy. Leases are of thirty
        // seconds and more, and what is shorter is much shorter.
        1001..=9000 => "some s".into(),
        9001..=100_000_000_000 => format!("{}0 s", (number + 5000) / 10_000),
        // A stranger's time far ahead, or what is left until then.
        2_000_000_000_000..20_000_000_000_000 => "far".into(),
        // A fencing token: the time in microseconds, or somewhat more.
        _ if (number / 1000 - now_ms).abs() < 10_000_000_000 => "a token".into(),
        _ if (number - now_ms).abs() < 10_000_000_000 => {
            format!("now and {}0 s", (number - now_ms + 5000).div_euclid(10_000))
        }
        _ => number.to_string(),
    }
}

fn shown_word(word: &str) -> String {
    word.parse().map_or_else(|_| word.to_owned(), shown_number)
}

fn shown_failure(failure: &Failure) -> String {
    format!("{:?}", failure.cause)
}

#[allow(clippy::disallowed_methods, reason = "the server runs on this machine")]
fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Per key its type, its content and how long it lives.
type State = BTreeMap<String, (String, Vec<String>, String)>;

fn state(kind: &str, mut content: Vec<String>, ttl_ms: i64) -> (String, Vec<String>, String) {
    for item in &mut content {
        // Field and value, or member and score: either may be a time.
        let words: Vec<_> = item.split(' ').map(shown_word).collect();
        *item = words.join(" ");
    }
    // Of times that were taken within a millisecond either may be the first.
    if kind == "hash" || kind == "zset" {
        content.sort();
    }
    (kind.to_owned(), content, shown_number(ttl_ms))
}

fn keyspace_state(keyspace: &mut Keyspace) -> State {
    let dump = keyspace.dump().into_iter();
    dump.map(|(key, (kind, content, ttl_ms))| (key, state(kind, content, ttl_ms)))
        .collect()
}

fn server_state(server: &RedisServer) -> State {
    state_by(server, &|parts| server.command(parts).unwrap())
}

fn state_by(server: &RedisServer, ask: &dyn Fn(&[&str]) -> Reply) -> State {
    let list = |parts: &[&str]| -> Vec<String> {
        let reply = ask(parts);
        let items = reply.as_array().unwrap().iter();
        items
            .map(|item| item.as_text().unwrap().to_owned())
            .collect()
    };
    let pairs = |parts: &[&str]| -> Vec<String> {
        let flat = list(parts);
        flat.chunks(2).map(|pair| pair.join(" ")).collect()
    };
    let state_of = |name: &str| {
        let kind = ask(&["TYPE", name]).as_text().unwrap().to_owned();
        let content = match kind.as_str() {
            "hash" => pairs(&["HGETALL", name]),
            "list" => list(&["LRANGE", name, "0", "-1"]),
            "zset" => pairs(&["ZRANGE", name, "0", "-1", "WITHSCORES"]),
            // A key may go while it is looked at.
            _ => vec![ask(&["GET", name]).as_text().unwrap_or("").to_owned()],
        };
        state(&kind, content, ask(&["PTTL", name]).as_int().unwrap())
    };
    let names = server.keys().into_iter();
    names.map(|name| (name.clone(), state_of(&name))).collect()
}

#[test]
fn twins_and_scripts_agree() {
    let server = RedisServer::start().unwrap();
    listen(&server);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let endpoint = Endpoint {
        url: server.url(),
        label: String::new(),
        credentials: None,
        credentials_every: Duration::from_secs(10),
        addresses: crate::address_map::AddressMap::default(),
        connect_timeout: Duration::from_secs(5),
        reply_timeout: Duration::from_secs(5),
        peers: crate::config::Peers::All,
        declare_keys: false,
        failover_guard: None,
        #[cfg(feature = "tls")]
        tls: crate::tls::TlsSettings::default(),
    };
    let all = crate::primitives::steps();
    let redis = runtime
        .block_on(Redis::connect(endpoint, &all, Clock::Boot))
        .unwrap();
    for suite in &SUITES {
        let mut runner = TestRunner::new(Config {
            cases: 200,
            failure_persistence: None,
            ..Config::default()
        });
        let actions = prop::collection::vec(action(suite), 1..25);
        let result = runner.run(&actions, |actions| {
            // For each sequence, also those of the shrinking: what an earlier one left would make a
            // short one fail for no reason of its own.
            server.command(&["FLUSHALL"]).unwrap();
            let mut keyspace = heard_keyspace();
            for action in &actions {
                // The machine's clock, which the server has as well. Steps write times into values,
                // and those are compared.
                keyspace.set_now(now_ms());
                let ours = suite.on_keyspace(&mut keyspace, action);
                let theirs = runtime.block_on(suite.on_server(&server, &redis, action));
                prop_assert_eq!(ours, theirs, "{}: replies of {:?}", suite.folder, action);
                // After each action and not at the end, where a later step may have covered the
                // difference.
                prop_assert_eq!(
                    keyspace_state(&mut keyspace),
                    server_state(&server),
                    "{}: state after {:?}",
                    suite.folder,
                    action
                );
            }
            Ok(())
        });
        result.unwrap();
    }
}

#[test]
fn step_headers_document_every_parameter() {
    for step in crate::primitives::steps() {
        let function = crate::backend::redis::script::function_name(step);
        let signature = step
            .lua
            .lines()
            .find_map(|line| line.strip_prefix(&format!("local function {function}(")))
            .unwrap_or_else(|| panic!("{}: no function `{function}`", step.name));
        let parameters: Vec<_> = signature.trim_end_matches(')').split(", ").collect();
        // In order, too: the call sends them without their names.
        assert_eq!(parameters, step.parameters, "{}", step.name);
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
fn every_step_is_tried_out_here() {
    let tried = SUITES.iter().flat_map(|suite| suite.steps);
    let tried: Vec<_> = tried.map(|step| step.name).collect();
    for step in crate::primitives::steps() {
        assert!(tried.contains(&step.name), "{} is in no suite", step.name);
    }
}

#[test]
fn every_file_is_a_step_of_its_own() {
    for suite in &SUITES {
        // No compiler sees a Lua file that no step includes. It would look as if it were in use.
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/primitives/");
        let mut files: Vec<_> = std::fs::read_dir(format!("{folder}{}", suite.folder))
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "lua"))
            // A file that several steps share has no reply of its own.
            .filter(|path| {
                std::fs::read_to_string(path)
                    .unwrap()
                    .contains("-- Returns ")
            })
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let mut steps: Vec<_> = suite
            .steps
            .iter()
            .map(|step| format!("{}.lua", step.name.rsplit('.').next().unwrap()))
            .collect();
        steps.sort();
        assert_eq!(files, steps);
    }
}
