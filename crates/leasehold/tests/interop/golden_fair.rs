//! The state of a fair lock and its queue in Redis after each step, compared with the state that
//! live Redissons left there.
//!
//! The steps of the recordings are played here with our own API, and the keys are compared wherever
//! the recording shows them. Four differences are intended:
//!
//! - our count on the wire is always 1, because re-entries are counted in the client;
//! - our waiter with a limit has the same allowance as a waiter without one: 300 s;
//! - while all waiters in line are ours, only the last timeout is exact, because Redisson's next
//!   waiter reads it; the others may be later;
//! - a grant counts the timeouts from the end of the new lease, not of the previous one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold::{Client, FairLock, LockGuard};
use leasehold_testkit::{RedisServer, RedissonVersion, Reply};
use tokio::task::JoinHandle;

use crate::support::eventually;

const RECORDINGS: [(RedissonVersion, &str); 2] = [
    (
        RedissonVersion::V3_16_8,
        include_str!("golden/3.16.8/fairlock.txt"),
    ),
    (
        RedissonVersion::V4_7_0,
        include_str!("golden/4.7.0/fairlock.txt"),
    ),
];

/// The waiter that has a limit in the recording. Its timeout is later here.
const WITH_A_LIMIT: &str = "client3:t4";
/// Tolerance in seconds: a step here takes a different time than in the recording, and a new lease
/// is 30 s at most.
const NEAR_S: f64 = 6.0;

/// The keys, each with its type, its members in their order with a number of seconds (the time
/// until a waiter's timeout), and its time to live.
type State = BTreeMap<String, (String, Vec<(String, f64)>, Option<f64>)>;

#[tokio::test(flavor = "multi_thread")]
async fn fair_lock_state_matches_redisson_recordings() {
    for (version, recording) in RECORDINGS {
        let mut stage = Stage::new(version, recording).await;
        stage.play_hand_over_and_force().await;
        stage.play_expiry().await;
        assert_eq!(
            stage.recorded.next(),
            None,
            "all that was recorded is compared"
        );
    }
}

/// Returns the states of a recording, one after the other.
fn recorded(text: &str) -> Vec<State> {
    let mut states: Vec<State> = Vec::new();
    let mut fresh = true;
    for line in text.lines() {
        match line.trim().strip_prefix("= ") {
            None => fresh = true,
            Some(key) => {
                if std::mem::take(&mut fresh) {
                    states.push(State::new());
                }
                if key != "(no keys)" {
                    read_key(key, states.last_mut().unwrap());
                }
            }
        }
    }
    states
}

/// Parses `F hash {<client1>:<t1>: 2} ttl 29.3s`, and lines of the other types.
fn read_key(text: &str, state: &mut State) {
    let (content, ttl) = text.rsplit_once(" ttl ").unwrap();
    let mut words = content.splitn(3, ' ');
    let (key, kind, members) = (words.next(), words.next(), words.next());
    let seconds = |text: &str| -> f64 {
        let text = text.trim_start_matches("now+").trim_end_matches('s');
        text.parse().unwrap()
    };
    let members = members.unwrap().trim_matches(['{', '}', '[', ']']);
    let members = members.split(", ").map(|member| {
        let member = member.replace(['<', '>'], "");
        match (kind.unwrap(), member.rsplit_once(": ")) {
            ("zset", Some((name, score))) => {
                let late = if name == WITH_A_LIMIT { 300.0 } else { 0.0 };
                (name.to_owned(), seconds(score) + late)
            }
            (_, Some((name, _count))) => (name.to_owned(), 0.0),
            (_, None) => (member, 0.0),
        }
    });
    let ttl = (ttl != "none").then(|| seconds(ttl));
    let key = key.unwrap().to_owned();
    state.insert(key, (kind.unwrap().to_owned(), members.collect(), ttl));
}

struct Stage {
    version: RedissonVersion,
    recorded: std::vec::IntoIter<State>,
    compared: usize,
    server: RedisServer,
    clients: Vec<Client>,
    /// The recording's names of wire ids.
    names: HashMap<String, String>,
}

impl Stage {
    async fn new(version: RedissonVersion, recording: &str) -> Self {
        let server = crate::topology::start();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        Self {
            version,
            recorded: recorded(recording).into_iter(),
            compared: 0,
            server,
            clients,
            names: HashMap::new(),
        }
    }

    fn lock(&self, client: usize, name: &str) -> FairLock {
        self.clients[client - 1].fair_lock(name)
    }

    fn holds(&mut self, who: &str, guard: &LockGuard) {
        self.names.insert(guard.holder_id().into(), who.into());
    }

    /// Starts a task that waits. Returns once it is in line.
    async fn waits<T>(&mut self, who: &str, lock: &FairLock, task: JoinHandle<T>) -> JoinHandle<T> {
        let known = self.names.clone();
        let mut new = None;
        eventually("it stands in line", async || {
            let line = lock.waiters().await.unwrap();
            new = line.into_iter().find(|id| !known.contains_key(id));
            new.is_some()
        })
        .await;
        self.names.insert(new.unwrap(), who.into());
        task
    }

    async fn acquires(&mut self, who: &str, lock: FairLock) -> JoinHandle<LockGuard> {
        let task = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        self.waits(who, &lock, task).await
    }

    async fn gives_up(&mut self, lock: FairLock, wait: Duration) -> JoinHandle<()> {
        let task = tokio::spawn({
            let lock = lock.clone();
            async move { assert!(lock.try_acquire_for(wait).await.unwrap().is_none()) }
        });
        self.waits(WITH_A_LIMIT, &lock, task).await
    }

    /// Compares the state with the next recorded one.
    fn compare(&mut self) {
        let theirs = self.recorded.next().expect("one more was recorded");
        self.compared += 1;
        let ours = self.state();
        let what = format!(
            "{}, state {}: {ours:?}, {theirs:?}",
            self.version, self.compared
        );
        assert!(ours.keys().eq(theirs.keys()), "{what}");
        for ((kind, members, ttl), (their_kind, their_members, their_ttl)) in
            ours.values().zip(theirs.values())
        {
            assert_eq!(kind, their_kind, "{what}");
            assert_eq!(ttl.is_some(), their_ttl.is_some(), "{what}");
            assert_eq!(members.len(), their_members.len(), "{what}");
            for (place, (ours, theirs)) in members.iter().zip(their_members).enumerate() {
                assert_eq!(ours.0, theirs.0, "{what}");
                assert!(ours.1 > theirs.1 - NEAR_S, "{what}");
                let is_last = place + 1 == members.len();
                assert!(!is_last || ours.1 < theirs.1 + NEAR_S, "{what}");
            }
            let apart = ttl.unwrap_or(0.0) - their_ttl.unwrap_or(0.0);
            assert!(apart.abs() < NEAR_S, "{what}");
        }
    }

    fn state(&self) -> State {
        let ask = |command: &[&str]| self.server.command(command).unwrap();
        let texts = |reply: Reply| -> Vec<String> {
            let items = reply.as_array().unwrap().iter();
            items.map(|item| item.as_text().unwrap().into()).collect()
        };
        let time = texts(ask(&["TIME"]));
        let now_s = time[0].parse::<f64>().unwrap() + time[1].parse::<f64>().unwrap() / 1e6;
        let keys = self.server.keys().into_iter();
        keys.filter(|key| !key.starts_with("leasehold:"))
            .map(|key| {
                let kind = ask(&["TYPE", &key]).as_text().unwrap().to_owned();
                let raw = match kind.as_str() {
                    "hash" => texts(ask(&["HGETALL", &key])),
                    "list" => texts(ask(&["LRANGE", &key, "0", "-1"])),
                    _ => texts(ask(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])),
                };
                let members = match kind.as_str() {
                    "list" => raw.iter().map(|id| (self.names[id].clone(), 0.0)).collect(),
                    _ => raw
                        .chunks(2)
                        .map(|pair| {
                            let number: f64 = pair[1].parse().unwrap();
                            let number = match kind.as_str() {
                                "zset" => number / 1000.0 - now_s,
                                _ => 0.0,
                            };
                            (self.names[&pair[0]].clone(), number)
                        })
                        .collect(),
                };
                let ttl_ms = ask(&["PTTL", &key]).as_int().unwrap();
                let ttl = (ttl_ms >= 0).then(|| ttl_ms as f64 / 1000.0);
                (key, (kind, members, ttl))
            })
            .collect()
    }

    /// Plays steps 1 to 14.
    async fn play_hand_over_and_force(&mut self) {
        let owner = leasehold::Owner::new();
        let first = self.lock(1, "F").owned_by(&owner);
        let outer = first.acquire().await.unwrap();
        self.holds("client1:t1", &outer);
        self.compare();
        let inner = first.acquire().await.unwrap();
        self.compare();
        assert!(self.lock(2, "F").try_acquire().await.unwrap().is_none());
        let second = self.acquires("client2:t2", self.lock(2, "F")).await;
        self.compare();
        let third = self.acquires("client3:t3", self.lock(3, "F")).await;
        self.compare();
        let lock = self.lock(3, "F").fixed_lease(Duration::from_secs(60));
        let fourth = self.gives_up(lock, Duration::from_millis(2500)).await;
        self.compare();
        fourth.await.unwrap();
        self.left(2).await;
        self.compare();
        let fourth = self
            .gives_up(self.lock(3, "F"), Duration::from_secs(3))
            .await;
        self.compare();
        inner.release().await.unwrap();
        self.compare();
        outer.release().await.unwrap();
        let second = second.await.unwrap();
        self.compare();
        fourth.await.unwrap();
        self.left(1).await;
        self.compare();
        assert!(self.lock(2, "F").force_unlock().await.unwrap());
        let third = third.await.unwrap();
        self.compare();
        assert!(second.release().await.is_err());
        third.release().await.unwrap();
        self.compare();
        assert!(!self.lock(2, "F").force_unlock().await.unwrap());
    }

    /// Waits until the line has this length: a waiter that gives up leaves it in the background.
    async fn left(&self, waiters: usize) {
        let lock = self.lock(1, "F");
        eventually("it has left the line", async || {
            lock.waiters().await.unwrap().len() == waiters
        })
        .await;
    }

    /// Plays steps 15 to 18.
    async fn play_expiry(&mut self) {
        let lock = self.lock(1, "G").fixed_lease(Duration::from_millis(700));
        let guard = lock.acquire().await.unwrap();
        self.holds("client1:t1", &guard);
        self.compare();
        guard.forget();
        let lock = self.lock(2, "G").fixed_lease(Duration::from_millis(1000));
        let waiter = self.acquires("client2:t2", lock).await;
        self.compare();
        let guard = waiter.await.unwrap();
        self.compare();
        guard.release().await.unwrap();
        self.compare();
    }
}
