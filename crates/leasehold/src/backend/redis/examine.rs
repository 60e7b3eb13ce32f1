//! The examination of servers: queries that show whether locks are safe there.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use ::redis::{FromRedisValue, RedisError, Value};

use super::Redis;
use super::messages::{Frame, write_command};
use super::reply_text;
use super::server::Server;
use crate::backend::channels::Transport;
use crate::backend::facts::ServerFacts;
use crate::backend::failure::{Failure, Outcome};
use crate::clock::Moment;
use crate::text::Shown;

/// The settings that matter to locks.
const SETTINGS: [&str; 8] = [
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "timeout",
];
/// Commands that not every server has, each with a request that tests for it.
const COMMANDS: [(&str, &[&str]); 3] = [
    ("WAIT", &["WAIT", "0", "1"]),
    ("WAITAOF", &["WAITAOF", "0", "0", "1"]),
    ("SPUBLISH", &["PUBSUB", "SHARDNUMSUB"]),
];
/// The number of readings of the clock, and the time between two of them.
const CLOCK_READINGS: usize = 5;
const CLOCK_READ_EVERY: Duration = Duration::from_millis(50);

impl Redis {
    /// Examines each server that has keys. `channel` is a channel that a waiter would listen to.
    pub(crate) async fn examine(&self, channel: &str) -> Result<Vec<ServerFacts>, Failure> {
        let mut all = Vec::new();
        match self {
            Self::Single { server, .. } => all.push(examine_server(server, channel).await?),
            Self::Cluster { cluster, .. } => {
                for server in cluster.servers().await? {
                    all.push(examine_server(&server, channel).await?);
                }
            }
        }
        Ok(all)
    }
}

async fn examine_server(server: &Server, channel: &str) -> Result<ServerFacts, Failure> {
    let connection = connection(server).await?;
    let mut facts = ServerFacts {
        address: (*server.node.address()).to_owned(),
        ..ServerFacts::default()
    };
    let examiner = Examiner { server, connection };
    match examiner.query::<String>(&["INFO"]).await? {
        Ok(info) => facts.info = fields(&info),
        Err(said) => drop(facts.refused.insert("INFO".into(), said)),
    }
    for setting in SETTINGS {
        let command = ["CONFIG", "GET", setting];
        match examiner.query::<HashMap<String, String>>(&command).await? {
            Ok(values) => facts.settings.extend(values),
            Err(said) => drop(facts.refused.insert("CONFIG".into(), said)),
        }
    }
    for (name, command) in COMMANDS {
        match examiner.query::<Value>(command).await? {
            Ok(_) => drop(facts.commands.insert(name.into(), true)),
            Err(said) if is_unknown(&said) => drop(facts.commands.insert(name.into(), false)),
            Err(said) => drop(facts.refused.insert(name.into(), said)),
        }
    }
    examiner.read_clock(&mut facts).await?;
    if let Some(said) = refuses_channel(server, channel).await {
        facts.refused.insert("SUBSCRIBE".into(), said);
    }
    Ok(facts)
}

/// Returns the connection for calls, as soon as it is open.
async fn connection(server: &Server) -> Result<MultiplexedConnection, Failure> {
    let clock = server.node.clock;
    let until = clock.now() + server.node.reply_timeout();
    loop {
        if let Some(connection) = server.lane.connection() {
            return Ok(connection);
        }
        if clock.now() >= until {
            let what = "there is no connection to it";
            return Err(Failure::no_answer(
                Outcome::DidNotRun,
                what,
                server.node.address(),
            ));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The examined server, and the connection for the queries.
struct Examiner<'a> {
    server: &'a Server,
    connection: MultiplexedConnection,
}

impl Examiner<'_> {
    /// Sends one query. The inner `Err` is the server's error text if it refuses to answer.
    async fn query<T: FromRedisValue>(&self, words: &[&str]) -> Result<Result<T, String>, Failure> {
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let answer: Result<T, RedisError> = command.query_async(&mut self.connection.clone()).await;
        match answer {
            Ok(answer) => Ok(Ok(answer)),
            Err(error) => match reply_text(&error) {
                Some(said) => Ok(Err(Shown(&said).to_string())),
                None => Err(Failure::no_answer(
                    Outcome::DidNotRun,
                    error.to_string(),
                    self.server.node.address(),
                )),
            },
        }
    }

    async fn read_clock(&self, facts: &mut ServerFacts) -> Result<(), Failure> {
        let clock = self.server.node.clock;
        let mut offsets = Offsets::default();
        for reading in 0..CLOCK_READINGS {
            if reading > 0 {
                tokio::time::sleep(CLOCK_READ_EVERY).await;
            }
            let before = clock.now();
            let (seconds, micros) = match self.query::<(i64, i64)>(&["TIME"]).await? {
                Ok(time) => time,
                Err(said) => {
                    facts.refused.insert("TIME".into(), said);
                    return Ok(());
                }
            };
            let after = clock.now();
            let took = after.saturating_sub(before);
            let server_ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
            offsets.add(server_ms, before, after);
            if facts.round_trip.is_none_or(|best| took < best) {
                let half = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
                facts.clock_offset_ms = wall_clock_ms().map(|now| server_ms + half - now);
                facts.round_trip = Some(took);
            }
        }
        facts.clock_moved_ms = Some(offsets.moved());
        Ok(())
    }
}

/// The range of offsets between the server's clock and this client's clock that is consistent with
/// all replies so far, in milliseconds. Within one reply, the server may have read its clock at any
/// moment between the request and the reply.
#[derive(Default)]
struct Offsets(Option<(i64, i64)>);

impl Offsets {
    fn add(&mut self, server_ms: i64, before: Moment, after: Moment) {
        let offset = |ours: Moment| {
            let ours = i64::try_from(ours.as_millis()).unwrap_or(i64::MAX);
            server_ms.saturating_sub(ours)
        };
        let (least, most) = (offset(after), offset(before));
        let so_far = self.0.get_or_insert((least, most));
        *so_far = (so_far.0.max(least), so_far.1.min(most));
    }

    /// Returns the smallest jump of the server's clock that explains the replies so far.
    fn moved(&self) -> i64 {
        let (least, most) = self.0.unwrap_or_default();
        least.saturating_sub(most).max(0)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "whether the two wall clocks agree is the question"
)]
fn wall_clock_ms() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

fn is_unknown(said: &str) -> bool {
    // An older server answers a newer subcommand with `unknown subcommand`.
    said.to_lowercase().contains("unknown") || said.contains("wrong number of arguments")
}

fn fields(info: &str) -> BTreeMap<String, String> {
    let lines = info
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'));
    lines
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the server's text if it denies a subscription.
async fn refuses_channel(server: &Server, channel: &str) -> Option<String> {
    let connector = &server.node.connector;
    let mut messages = match connector.open_messages(None).await {
        Ok(messages) => messages,
        Err(failure) => return Some(failure.cause.to_string()),
    };
    let mut command = Vec::new();
    write_command(&mut command, "SUBSCRIBE", [channel]);
    let answered = tokio::time::timeout(server.node.reply_timeout(), async {
        messages.send(&command).await.ok()?;
        messages.frame().await.ok()
    });
    match answered.await.ok().flatten() {
        Some(Frame::Subscribed(Transport::Global, _)) => None,
        Some(Frame::Refused(said)) => Some(said),
        _ => Some("no answer".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reply_is_no_moved_clock() {
        const fn ms(ms: u64) -> Moment {
            Moment::from_millis(ms)
        }
        let mut offsets = Offsets::default();
        offsets.add(5_000, ms(1_000), ms(1_001));
        // First a reply was slow, then a request.
        offsets.add(5_101, ms(1_100), ms(1_900));
        offsets.add(6_800, ms(2_000), ms(2_801));
        assert_eq!(offsets.moved(), 0);
        offsets.add(7_400, ms(3_000), ms(3_001));
        assert_eq!(offsets.moved(), 399);
    }
}
