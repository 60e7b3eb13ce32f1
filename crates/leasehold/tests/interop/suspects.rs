//! Behaviour of Redisson that its users may not expect, seen live, and the behaviour of this
//! library in its place. `weaknesses.rs` says what each case means.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::redisson::{LockKind, Pending, RedissonThread};
use leasehold_testkit::{RedisServer, RedissonVersion};
use serde_json::{Value, json};

use super::VERSION;
use crate::javas::JavaClient;
use crate::sides::SOON;
use crate::support::eventually;
use crate::topology;

mod clocks;
mod counts;
mod fair;
mod plain;
mod renewal;
mod replicas;
mod rw;
mod whole;

const IS_OLD: bool = matches!(VERSION, RedissonVersion::V3_16_8);

/// A lease that no test outlasts, and a shorter one that is long too.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(20);
const SHORT_MS: i64 = 20_000;

pub(super) struct Place {
    pub(super) server: RedisServer,
    pub(super) java: JavaClient,
    pub(super) rust: Client,
}

pub(super) async fn place() -> Place {
    place_with(json!({})).await
}

/// Starts a place with settings of the Java client.
pub(super) async fn place_with(settings: Value) -> Place {
    place_at(topology::start(), settings).await
}

async fn place_at(server: RedisServer, settings: Value) -> Place {
    Place {
        java: JavaClient::with(VERSION, &server.url(), settings),
        rust: Client::connect(&server.url()).await.unwrap(),
        server,
    }
}

impl Place {
    pub(super) fn thread(&self, kind: LockKind) -> RedissonThread {
        self.java.thread("t").kind(kind)
    }

    pub(super) fn other(&self, name: &str, kind: LockKind) -> RedissonThread {
        self.java.thread(name).kind(kind)
    }

    /// Connects another client that Redis takes for another Java process.
    pub(super) fn stranger(&self) -> JavaClient {
        JavaClient::new(VERSION, &self.server.url(), None)
    }

    pub(super) fn text(&self, command: &[&str]) -> String {
        let reply = self.server.command(command).unwrap();
        reply.as_text().unwrap().to_owned()
    }

    pub(super) fn int(&self, command: &[&str]) -> i64 {
        let reply = self.server.command(command).unwrap();
        reply
            .as_int()
            .unwrap_or_else(|| panic!("{command:?}: {reply:?}"))
    }

    pub(super) fn ttl_ms(&self, key: &str) -> i64 {
        self.int(&["PTTL", key])
    }

    pub(super) fn exists(&self, key: &str) -> bool {
        self.int(&["EXISTS", key]) == 1
    }

    pub(super) async fn has_ended(&self, key: &str) {
        eventually(&format!("{key} has ended"), async || !self.exists(key)).await;
    }

    /// Waits for the end of `times` renewals.
    async fn is_renewed(&self, key: &str, times: usize) {
        for _ in 0..times {
            let mut last = self.ttl_ms(key);
            eventually(&format!("{key} is renewed"), async || {
                let left = self.ttl_ms(key);
                assert!(left > 0, "{key} has ended");
                std::mem::replace(&mut last, left) < left
            })
            .await;
        }
    }

    /// Makes another client hold the lock for `lease`.
    pub(super) fn stranger_holds(&self, key: &str, lease: Duration) {
        let lease_ms = lease.as_millis().to_string();
        self.int(&["HSET", key, "stranger", "1"]);
        self.int(&["PEXPIRE", key, &lease_ms]);
    }

    pub(super) fn stranger_releases(&self, key: &str) {
        self.int(&["DEL", key]);
        let channel = format!("redisson_lock__channel:{{{key}}}");
        self.int(&["PUBLISH", &channel, "0"]);
    }

    fn published(&self) -> u64 {
        self.server.calls("publish")
    }

    pub(super) async fn listen(&self, clients: usize, channel: &str) {
        eventually(&format!("{clients} listen"), async || {
            let reply = self.server.command(&["PUBSUB", "NUMSUB", channel]).unwrap();
            reply.as_array().unwrap()[1].as_int() == i64::try_from(clients).ok()
        })
        .await;
    }

    /// Counts the scripts that have run. The client sends a script twice if the server does not
    /// know it yet.
    pub(super) fn asks(&self) -> u64 {
        // The scripts are read first: a script that runs between the two reads must not count.
        let sent = self.server.scripts();
        let errors = self.text(&["INFO", "errorstats"]);
        let unknown = errors
            .lines()
            .find_map(|line| line.strip_prefix("errorstat_NOSCRIPT:count="));
        let unknown: u64 = unknown.map_or(0, |count| count.parse().unwrap());
        sent.saturating_sub(unknown)
    }

    pub(super) async fn asked(&self, before: u64, more: u64) {
        eventually("it has asked", async || self.asks() >= before + more).await;
    }
}

/// Calls the driver, on `x`.
pub(super) fn start(java: &RedissonThread, op: &str, mut request: Value) -> Pending<Value> {
    request["name"] = "x".into();
    java.start_call(op, request)
}

pub(super) fn call(java: &RedissonThread, op: &str, request: Value) -> Value {
    let answer = start(java, op, request).wait(SOON);
    answer.unwrap_or_else(|error| panic!("{op}: {error}")).value
}

/// A listener for published messages.
pub(super) struct Ear(BufReader<TcpStream>);

impl Ear {
    pub(super) fn new(place: &Place, channel: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", place.server.port())).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
            .write_all(format!("SUBSCRIBE {channel}\r\n").as_bytes())
            .unwrap();
        let mut ear = Self(BufReader::new(stream));
        // The confirmation ends with the number of channels.
        while ear.line() != ":1" {}
        ear
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(super) fn message(&mut self) -> String {
        while self.line() != "$7" || self.line() != "message" {}
        // The channel and the text follow, each after its length.
        let lines: Vec<_> = (0..4).map(|_| self.line()).collect();
        lines[3].clone()
    }
}
