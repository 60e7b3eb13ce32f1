//! The state in Redis after each step, compared with the state that live Redissons left there.
//!
//! The recordings have the result of each call and the keys that were in Redis afterwards. The same
//! calls are made here with our own API and the keys compared. Three intended differences are
//! normalised or left out:
//!
//! - our count on the wire is always 1, because re-entries are counted in the client;
//! - a re-entry with a shorter lease doesn't shorten the hold (key `M`);
//! - a lease of zero is refused (key `Z`, the last call).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, Lock, LockGuard, Owner};
use leasehold_testkit::{RedisServer, RedissonVersion};

use crate::recording;

const RECORDINGS: [(RedissonVersion, &str, &str); 4] = [
    (
        RedissonVersion::V3_16_8,
        "lock",
        include_str!("golden/3.16.8/lock.txt"),
    ),
    (
        RedissonVersion::V3_16_8,
        "spinlock",
        include_str!("golden/3.16.8/spinlock.txt"),
    ),
    (
        RedissonVersion::V4_7_0,
        "lock",
        include_str!("golden/4.7.0/lock.txt"),
    ),
    (
        RedissonVersion::V4_7_0,
        "spinlock",
        include_str!("golden/4.7.0/spinlock.txt"),
    ),
];

#[tokio::test]
async fn our_state_is_redissons_after_every_step() {
    for (version, file, text) in RECORDINGS {
        let mut stage = Stage::new().await;
        let mut compared = 0;
        for step in steps(text) {
            let what = format!("{version} {file}, step {}", step.call);
            if stage.play(&step).await
                && let Some(state) = &step.state
            {
                assert_eq!(&stage.state(), state, "{what}");
                compared += 1;
            }
        }
        assert!(
            compared >= 6,
            "{version} {file}: only {compared} states compared"
        );
    }
}

/// Keys with their fields and values, and their remaining lease in seconds.
type State = BTreeMap<String, (BTreeMap<String, String>, u64)>;

type Step = recording::Step<State>;

fn steps(text: &str) -> Vec<Step> {
    recording::steps(text, ".. the waiter returned", read_state)
}

/// Reads `L hash {<client1>:<t1>: 2} ttl 29.9s`.
fn read_state(text: &str, state: &mut State) {
    let (key, rest) = text.split_once(" hash {").unwrap();
    let (fields, ttl) = rest.split_once("} ttl ").unwrap();
    let fields = fields
        .split(", ")
        .map(|field| {
            let (holder, _count) = field.rsplit_once(": ").unwrap();
            // Our count is always 1.
            (holder.replace(['<', '>'], ""), "1".to_owned())
        })
        .collect();
    let seconds: f64 = ttl.trim_end_matches('s').parse().unwrap();
    state.insert(key.into(), (fields, seconds.ceil() as u64));
}

/// The actors of a recording, played by this library.
struct Stage {
    server: RedisServer,
    clients: HashMap<String, Client>,
    owners: HashMap<String, Owner>,
    guards: HashMap<(String, String), Vec<LockGuard>>,
    /// The recording's names of wire ids.
    holders: HashMap<String, String>,
    waiter: Option<(String, String, tokio::task::JoinHandle<LockGuard>)>,
    /// Keys that differ from here on, and are no longer compared.
    left_out: HashSet<String>,
}

impl Stage {
    async fn new() -> Self {
        let server = crate::topology::start();
        let mut clients = HashMap::new();
        for (name, watchdog) in [("client1", 30), ("client2", 30), ("clientw", 3)] {
            let builder = Client::builder().lease(Duration::from_secs(watchdog));
            clients.insert(
                name.to_owned(),
                builder.connect(&server.url()).await.unwrap(),
            );
        }
        Self {
            server,
            clients,
            owners: HashMap::new(),
            guards: HashMap::new(),
            holders: HashMap::new(),
            waiter: None,
            left_out: HashSet::from(["M".to_owned()]),
        }
    }

    /// Makes the call of a step. Returns `false` if the call is left out.
    async fn play(&mut self, step: &Step) -> bool {
        let Some((who, object, method, arguments)) = parse(&step.call) else {
            return false;
        };
        let (kind, name) = object.split_once(':').unwrap();
        if arguments.contains(", 0, ") {
            self.left_out.insert(name.to_owned());
        }
        if self.left_out.contains(name) {
            return false;
        }
        let who = async_owner(&who, &method, &arguments);
        let lock = self.lock(&who, kind, name);
        let numbers: Vec<i64> = arguments
            .split(", ")
            .filter_map(|argument| argument.parse().ok())
            .collect();
        let ms = |n: i64| Duration::from_millis(n.try_into().unwrap());
        let guards = self.guards.entry((who.clone(), name.into())).or_default();
        let expect_ok = step
            .answer
            .trim_start_matches("ok future:")
            .trim_start_matches("ok ");
        match (method.as_str(), &numbers[..]) {
            ("lock", []) if step.answer == "(waiting)" => {
                let lock = lock.poll_interval(Duration::from_secs(3600));
                let task = tokio::spawn(async move { lock.acquire().await.unwrap() });
                self.waiter = Some((who, name.into(), task));
                return true;
            }
            ("lock", []) | ("lockAsync", _) => guards.push(lock.acquire().await.unwrap()),
            ("lock", [lease]) => guards.push(lock.fixed_lease(ms(*lease)).acquire().await.unwrap()),
            ("tryLock", []) | ("tryLockAsync", _) => {
                let got = lock.try_acquire().await.unwrap();
                assert_eq!(got.is_some().to_string(), expect_ok, "{}", step.call);
                guards.extend(got);
            }
            ("tryLock", [wait]) => {
                let got = lock.try_acquire_for(ms(*wait)).await.unwrap();
                assert_eq!(got.is_some().to_string(), expect_ok, "{}", step.call);
                guards.extend(got);
            }
            ("tryLock", [wait, -1]) => {
                guards.extend(lock.try_acquire_for(ms(*wait)).await.unwrap());
            }
            ("tryLock", [0, lease]) => {
                guards.extend(lock.fixed_lease(ms(*lease)).try_acquire().await.unwrap());
            }
            ("unlock" | "unlockAsync", _) => {
                let released = match guards.pop() {
                    Some(guard) => guard.release().await.is_ok(),
                    None => false,
                };
                assert_eq!(released, step.answer.starts_with("ok"), "{}", step.call);
            }
            ("forceUnlock", _) => {
                let forced = lock.force_unlock().await.unwrap();
                assert_eq!(forced.to_string(), expect_ok, "{}", step.call);
            }
            ("isLocked", _) => {
                assert_eq!(lock.is_locked().await.unwrap().to_string(), expect_ok);
            }
            ("isHeldByCurrentThread", _) => {
                let held = lock.is_held_by(&self.owners[&who]).await.unwrap();
                assert_eq!(held.to_string(), expect_ok);
            }
            ("getHoldCount", _) => {
                let count = guards.last().map_or(0, LockGuard::hold_count);
                assert_eq!(count.to_string(), expect_ok);
            }
            ("remainTimeToLive", _) => {
                assert!(matches!(lock.remaining_ttl().await.unwrap(), Ttl::Left(_)));
            }
            _ => panic!("a call that is not known here: {}", step.call),
        }
        if step.waiter_returned {
            let (who, name, task) = self.waiter.take().expect("somebody waits");
            self.guards
                .entry((who, name))
                .or_default()
                .push(task.await.unwrap());
        }
        true
    }

    fn lock(&mut self, who: &str, kind: &str, name: &str) -> Lock {
        let owner = self.owners.entry(who.into()).or_insert_with(Owner::new);
        let client = &self.clients[who.split('.').next().unwrap()];
        let lock = client.lock(name).owned_by(owner);
        match kind {
            "spin" => lock.wait_strategy(WaitStrategy::Backoff(Backoff::exponential())),
            _ => lock,
        }
    }

    /// Returns the state in Redis, with the holders by their names in the recording. A key of this
    /// library, which Redisson never reads, is left out.
    fn state(&mut self) -> State {
        for ((who, _), guards) in &self.guards {
            let (client, thread) = who.split_once('.').unwrap();
            for guard in guards {
                let holder = format!("{client}:{thread}");
                self.holders.insert(guard.holder_id().into(), holder);
            }
        }
        let keys = self.server.keys().into_iter();
        keys.filter(|key| !key.starts_with("leasehold:"))
            .map(|key| {
                let hash = self.server.command(&["HGETALL", &key]).unwrap();
                let fields = hash.as_array().unwrap().chunks(2).map(|pair| {
                    let (id, count) = (pair[0].as_text().unwrap(), pair[1].as_text().unwrap());
                    (self.holders[id].clone(), count.to_owned())
                });
                let ttl = self.server.command(&["PTTL", &key]).unwrap();
                let seconds = u64::try_from(ttl.as_int().unwrap()).unwrap().div_ceil(1000);
                (key.clone(), (fields.collect(), seconds))
            })
            .collect()
    }
}

/// Returns the owner: `lockAsync(77)` acquires as thread 77 on any thread.
fn async_owner(who: &str, method: &str, arguments: &str) -> String {
    match (method.ends_with("Async"), who.split_once('.')) {
        (true, Some((client, _))) => format!("{client}.{arguments}"),
        _ => who.into(),
    }
}

/// Splits `client1.t1 lock:L.tryLock(150, MILLISECONDS)` into its parts.
pub(crate) fn parse(call: &str) -> Option<(String, String, String, String)> {
    let (who, rest) = call.split_once(' ')?;
    let (head, arguments) = rest.strip_suffix(')')?.rsplit_once('(')?;
    let (object, method) = head.rsplit_once('.')?;
    who.starts_with("client")
        .then(|| (who.into(), object.into(), method.into(), arguments.into()))
}
