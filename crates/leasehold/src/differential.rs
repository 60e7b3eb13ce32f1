//! The test that compares the twins (the Rust counterparts of the scripts) with the scripts: it
//! runs random steps on the embedded keyspace and on a server, and compares the replies and the
//! state. When it finds a difference, it looks for the shortest sequence of steps that shows it.
//! Each primitive has a file that defines how its steps are sent.

mod election;
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
mod slot;
mod ticket;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
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

/// The test setup for the steps of one primitive.
struct Suite {
    /// The folder of its primitive, below `primitives`.
    folder: &'static str,
    steps: &'static [&'static Step],
    /// The value of the key or argument with this name.
    argument: fn(&Sample, name: &str) -> String,
    /// Commands of other programs on a key. `KEY` is replaced with the key, and `TAG` with the key
    /// in braces. Each command runs after the key that it writes was removed.
    foreign: &'static [&'static [&'static str]],
}

/// The parameters of a step: a key, a hold, and one of eight variants.
struct Sample {
    step: &'static str,
    key: &'static str,
    hold: &'static str,
    variant: usize,
}

impl Sample {
    /// Returns the marker that identifies the request. Two variants share a marker, so some
    /// requests are repeated. In some cases, `done` is the marker of an earlier request.
    fn marker(&self) -> String {
        self.marker_of(self.step, self.variant / 2)
    }

    /// Returns the label of a client that ends a hold by force. Earlier versions store `1` in place
    /// of the label.
    fn label(&self) -> &'static str {
        ["on call", "1"][self.variant % 2]
    }

    fn done(&self) -> String {
        self.marker_of(self.step, self.variant % 4)
    }

    fn marker_of(&self, step: &str, number: usize) -> String {
        format!("{step}:{}:{}:{number}", self.key, self.hold)
    }

    fn unknown_argument(&self, name: &str) -> ! {
        panic!("`{name}` of `{}` needs a value here", self.step)
    }
}

/// Replaces `<a>`, `<c>` and so on with the id of a client.
fn with_ids(text: &str) -> String {
    ["a", "c", "d", "e"]
        .iter()
        .fold(text.to_owned(), |text, client| {
            let id = format!("{}-0000-4000-8000-000000000000", client.repeat(8));
            text.replace(&format!("<{client}>"), &id)
        })
}

/// Returns an additional key for a name. It is in the slot of the name, like the additional keys of
/// the primitives.
fn beside(key: &str, other: &[u8]) -> Vec<u8> {
    if slot_of(other) == slot_of(key.as_bytes()) {
        return other.to_vec();
    }
    let tag = Key::parse(key).unwrap().as_tag();
    [tag.as_bytes(), b":", other].concat()
}

/// Returns the lease of a renewal, and the remaining time above which the renewal shortens the hold
/// (0 for never). Some holds get a longer lease than they have, others a shorter one.
fn renewed(hold: &str) -> (&'static str, &'static str) {
    match HOLDS.iter().position(|other| *other == hold) {
        Some(0) => ("30000", "0"),
        Some(1) => ("30000", "45000"),
        _ => ("90000", "0"),
    }
}

const SUITES: [Suite; 13] = [
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
    slot::SUITE,
    ticket::SUITE,
    election::SUITE,
];

/// A command that replaces the list of waiting clients with a string.
const CLIENTS_OF_WRONG_TYPE: &[&str] = &["SET", "KEY:asking", "text"];
/// A command that adds malformed items to that list.
const MALFORMED_CLIENTS: &[&str] = &[
    "RPUSH",
    "KEY:asking",
    "1234:2",
    "text",
    "5678:x",
    "9:1:1",
    ":1",
    "9012:1",
];

// Redisson builds additional keys in two ways, depending on whether the name has a brace.
const KEYS: [&str; 3] = ["x", "a{b}c", "other"];
/// The holds of two clients.
const HOLDS: [&str; 3] = [
    "cccccccc-0000-4000-8000-000000000000:1",
    "cccccccc-0000-4000-8000-000000000000:2",
    "dddddddd-0000-4000-8000-000000000000:1",
];

/// The channels that have a listener: the channels for releases, and the channels of two waiting
/// clients. All other clients count as killed.
const HEARD_CHANNELS: [&str; 6] = [
    "channel:x",
    "channel:x:1234",
    "channel:x:3456",
    "channel:a{b}c",
    "channel:a{b}c:1234",
    "channel:a{b}c:3456",
];

/// Listens on the channels of `HEARD_CHANNELS` for as long as the server runs.
fn listen(server: &RedisServer) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(stream, "SUBSCRIBE {}\r\n", HEARD_CHANNELS.join(" ")).unwrap();
    // A server closes a connection whose messages are not read.
    std::thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
    while server.channels().len() < HEARD_CHANNELS.len() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a keyspace whose channels have the same listeners as on the server.
fn heard_keyspace() -> Keyspace {
    Keyspace::with_audience(Box::new(|channel| HEARD_CHANNELS.contains(&channel).into()))
}

/// An action on both the keyspace and the server.
#[derive(Clone, Debug)]
enum Action {
    /// Operations, each with its step, key, hold and variant. They are sent as one call.
    Run(Vec<(usize, usize, usize, usize)>),
    Foreign(usize, usize),
    /// The end of all leases.
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
        // Other programs and expired leases remove state: if they were more frequent, the steps
        // would mostly find nothing.
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
                // Remove the key first, as on the server: most commands fail on a key of another
                // type. The key is the second word of each command.
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
                // Submit all of these operations before awaiting the first reply: otherwise each
                // operation would be alone in its call. A renewal overtakes queued operations, so
                // submit it only after their replies.
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
                    // A key without an expiry remains, as it does in the keyspace.
                    if command(&["PTTL", &key]).as_int().unwrap() >= 0 {
                        command(&["PEXPIRE", &key, "0"]);
                    }
                }
                Vec::new()
            }
        }
    }
}

/// Runs a command of another program.
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

/// Returns a step's reply without the parts that may differ: the order of the holders, which are
/// the fields of a hash, and the exact remaining time.
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

/// Returns a value with its times rounded to tens of seconds.
fn shown(reply: &Value) -> String {
    match reply {
        Value::Int(number) => shown_number(*number),
        Value::Nil => "nil".into(),
        Value::Text(text) => shown_word(&String::from_utf8_lossy(text)),
        Value::List(items) => {
            let mut items: Vec<_> = items.iter().map(shown).collect();
            // The fields of a hash have no order.
            if items.iter().all(|item| item.starts_with('[')) {
                items.sort();
            }
            format!("{items:?}")
        }
    }
}

/// Returns a number as a string. A remaining time, or a time of the clock, is rounded.
fn shown_number(number: i64) -> String {
    let now_ms = i64::try_from(now_ms()).unwrap();
    match number {
        // A count or a reply, which must be exact. The samples contain no time this short except 0.
        ..=1000 => number.to_string(),
        // The keyspace and the server run one after the other, on a machine that may be busy. The
        // samples contain no time that is close to a boundary at which the rounded string changes.
        1001..=9000 => "some s".into(),
        9001..=100_000_000_000 => format!("{}0 s", (number + 5000) / 10_000),
        // A time far in the future that another program has written, or the remaining time until
        // that time.
        2_000_000_000_000..20_000_000_000_000 => "far".into(),
        // A fencing token: the time in microseconds, or slightly more.
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

/// The type, content and TTL of each key.
type DatabaseState = BTreeMap<String, (String, Vec<String>, String)>;

fn state(kind: &str, mut content: Vec<String>, ttl_ms: i64) -> (String, Vec<String>, String) {
    for item in &mut content {
        // An item is a field with its value, or a member with its score. Each of the two may be a
        // time.
        let words: Vec<_> = item.split(' ').map(shown_word).collect();
        *item = words.join(" ");
    }
    // Items with times from the same millisecond may be in either order.
    if kind == "hash" || kind == "zset" {
        content.sort();
    }
    (kind.to_owned(), content, shown_number(ttl_ms))
}

fn keyspace_state(keyspace: &mut Keyspace) -> DatabaseState {
    let dump = keyspace.dump().into_iter();
    dump.map(|(key, (kind, content, ttl_ms))| (key, state(kind, content, ttl_ms)))
        .collect()
}

fn server_state(server: &RedisServer) -> DatabaseState {
    state_by(&|commands| server.commands(commands).unwrap())
}

/// Returns the state that the replies to these commands show. All keys are asked about at once,
/// because connections would take most of the test's time.
fn state_by(ask: &dyn Fn(&[&[&str]]) -> Vec<Reply>) -> DatabaseState {
    let texts = |reply: &Reply| -> Vec<String> {
        let items = reply.as_array().unwrap().iter();
        items
            .map(|item| item.as_text().unwrap().to_owned())
            .collect()
    };
    let names = texts(&ask(&[&["KEYS", "*"]])[0]);
    // Without the keys in which clients announce themselves.
    let names = names.iter().map(String::as_str);
    let names = names.filter(|name| !name.starts_with("leasehold:client"));
    let names: Vec<_> = names.collect();
    let kinds: Vec<_> = names.iter().map(|name| ["TYPE", name]).collect();
    let kinds = ask(&kinds.iter().map(|ask| &ask[..]).collect::<Vec<_>>());
    let questions = names.iter().zip(&kinds).flat_map(|(name, kind)| {
        let content = match kind.as_text().unwrap() {
            "hash" => vec!["HGETALL", name],
            "list" => vec!["LRANGE", name, "0", "-1"],
            "zset" => vec!["ZRANGE", name, "0", "-1", "WITHSCORES"],
            _ => vec!["GET", name],
        };
        [content, vec!["PTTL", name]]
    });
    let questions: Vec<_> = questions.collect();
    let replies = ask(&questions.iter().map(|ask| &ask[..]).collect::<Vec<_>>());
    let states = kinds.iter().zip(replies.chunks(2)).map(|(kind, replies)| {
        let kind = kind.as_text().unwrap();
        let content = match kind {
            "hash" | "zset" => {
                let flat = texts(&replies[0]);
                flat.chunks(2).map(|pair| pair.join(" ")).collect()
            }
            "list" => texts(&replies[0]),
            // A key may expire while it is read.
            _ => vec![replies[0].as_text().unwrap_or("").to_owned()],
        };
        state(kind, content, replies[1].as_int().unwrap())
    });
    let names = names.iter().map(|name| (*name).to_owned());
    names.zip(states).collect()
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
    let all = crate::recipes::steps();
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
            // Empty the server for each sequence, also while a failing sequence is shortened:
            // leftovers of an earlier sequence could make a shorter one fail for a different
            // reason.
            server.command(&["FLUSHALL"]).unwrap();
            let mut keyspace = heard_keyspace();
            for action in &actions {
                // Use the machine's clock, like the server: steps write times into values, and
                // these values are compared.
                keyspace.set_now(now_ms());
                let ours = suite.on_keyspace(&mut keyspace, action);
                let theirs = runtime.block_on(suite.on_server(&server, &redis, action));
                prop_assert_eq!(ours, theirs, "{}: replies of {:?}", suite.folder, action);
                // Compare after each action, and not only at the end: a later step may hide the
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
    for step in crate::recipes::steps() {
        let function = crate::backend::redis::script::function_name(step);
        let signature = step
            .lua()
            .lines()
            .find_map(|line| line.strip_prefix(&format!("local function {function}(")))
            .unwrap_or_else(|| panic!("{}: no function `{function}`", step.name));
        let parameters: Vec<_> = signature.trim_end_matches(')').split(", ").collect();
        // The order must match, too: the call sends the parameters without their names.
        assert_eq!(parameters, step.parameters, "{}", step.name);
        for parameter in parameters {
            assert!(
                step.lua()
                    .lines()
                    .any(|line| line.starts_with(&format!("-- {parameter} "))),
                "{}: the header says nothing of `{parameter}`",
                step.name
            );
        }
        assert!(step.lua().contains("-- Returns "), "{}", step.name);
        assert!(
            !step.lua().contains("#!"),
            "{}: fails when out of memory",
            step.name
        );
    }
}

#[test]
fn every_step_is_tried_out_here() {
    let tried = SUITES.iter().flat_map(|suite| suite.steps);
    let tried: Vec<_> = tried.map(|step| step.name).collect();
    for step in crate::recipes::steps() {
        assert!(tried.contains(&step.name), "{} is in no suite", step.name);
    }
}

/// Returns the Lua files of a folder, and of the folders in it.
fn lua_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => lua_files(&path),
            false => Vec::from_iter(
                path.extension()
                    .is_some_and(|kind| kind == "lua")
                    .then_some(path),
            ),
        })
        .collect()
}

#[test]
fn every_lua_section_is_a_step_or_shared() {
    let steps = crate::recipes::steps();
    let mut shared = Vec::new();
    for step in &steps {
        crate::backend::redis::script::collect(step.uses, &mut shared);
    }
    let steps = steps.iter();
    let of_steps = steps.map(|step| (step.file.text, step.name.rsplit('.').next().unwrap()));
    let of_shared = shared
        .iter()
        .map(|shared| (shared.file.text, shared.section));
    let mut used: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (file, section) in of_steps.chain(of_shared) {
        used.entry(file).or_default().insert(section);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    for path in lua_files(Path::new(folder)) {
        if path.parent().unwrap().ends_with("backend/redis") {
            continue; // The scripts around the steps.
        }
        let file = std::fs::read_to_string(&path).unwrap();
        // A section that no step includes would look as if it were in use.
        let mut sections: Vec<_> = file
            .lines()
            .filter_map(|line| line.strip_prefix("-- [")?.split_once("] ---"))
            .map(|(name, _dashes)| name)
            .collect();
        sections.sort_unstable();
        let used = used.get(&*file).into_iter().flatten().copied();
        assert_eq!(sections, used.collect::<Vec<_>>(), "{}", path.display());
    }
}
