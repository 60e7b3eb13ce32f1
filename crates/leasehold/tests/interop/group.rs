//! Groups beside Java's `getMultiLock(group, values)`: exclusion value by value, wake-ups, and the
//! state in Redis after each step of a recording.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use leasehold::{Client, LockGuard, Owner};
use leasehold_testkit::proxy::Strike;
use leasehold_testkit::redisson::{LockKind, RedissonThread};
use leasehold_testkit::{Proxy, RedisServer, Redisson};

use super::VERSION;
use crate::javas::asleep;
use crate::support::{HOUR, eventually};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(400);

struct Place {
    server: RedisServer,
    redisson: Redisson,
    java: RedissonThread,
    rust: Client,
}

async fn place() -> Place {
    let server = crate::topology::start();
    let redisson = Redisson::start(VERSION, &server.url());
    redisson.client("c", None).unwrap();
    Place {
        java: redisson.thread("c", "t").kind(LockKind::Group),
        rust: Client::connect(&server.url()).await.unwrap(),
        server,
        redisson,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_exclude_java_value_by_value() {
    let Place {
        server, java, rust, ..
    } = &place().await;
    java.lock("G/a,b").unwrap();
    for values in [vec!["b", "c"], vec!["a"], vec!["a", "b"]] {
        let lock = rust.group_lock("G", values);
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert!(lock.try_acquire_for(SHORT).await.unwrap().is_none());
    }
    let ours = rust.group_lock("G", ["c", "d"]).acquire().await.unwrap();
    assert!(!java.try_lock("G/d,e").unwrap().value);
    assert!(!java.try_lock_wait("G/d,e", SHORT, None).unwrap().value);
    assert!(java.try_lock("G/e").unwrap().value);
    java.unlock("G/a,b").unwrap();
    java.unlock("G/e").unwrap();
    let error = java.unlock("G/c,d").unwrap_err();
    assert!(error.class.contains("IllegalMonitorState"), "{error:?}");
    ours.release().await.unwrap();
    crate::topology::is_empty(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_both_sides_wake_each_other() {
    let Place {
        server, java, rust, ..
    } = &place().await;
    java.lock("G/a,b").unwrap();
    let lock = rust.group_lock("G", ["b", "c"]).poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    // After this time, the subscription is confirmed, and the waiter has asked once more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    java.unlock("G/a,b").unwrap();
    let guard = tokio::time::timeout(SOON, waiter).await.expect("woken");
    let guard = guard.unwrap();
    eventually("nobody listens", async || server.channels().is_empty()).await;
    let waiting = java.start_lock("G/a,b");
    asleep(&[java]).await;
    guard.release().await.unwrap();
    waiting.wait(SOON).expect("woken");
    java.unlock("G/a,b").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn group_release_wakes_matching_java_waiter() {
    let Place { redisson, rust, .. } = &place().await;
    let a = rust.group_lock("G", ["a"]).acquire().await.unwrap();
    let b = rust.group_lock("G", ["b"]).acquire().await.unwrap();
    let threads = ["ta", "tb"].map(|name| redisson.thread("c", name).kind(LockKind::Group));
    let wait_a = threads[0].start_lock("G/a");
    let wait_b = threads[1].start_lock("G/b");
    asleep(&[&threads[0], &threads[1]]).await;
    b.release().await.unwrap();
    wait_b
        .wait(Duration::from_secs(10))
        .expect("woken, long before any lease ends");
    assert!(!wait_a.is_done());
    a.release().await.unwrap();
    wait_a.wait(SOON).expect("woken");
}

/// The reply to the refused thread arrives after the message that the values are free.
#[tokio::test(flavor = "multi_thread")]
async fn our_release_wakes_just_refused_java_thread() {
    let Place {
        server,
        redisson,
        rust,
        ..
    } = &place().await;
    let proxy = Proxy::to(server.port());
    redisson.client_at("slow", &proxy.url(), None).unwrap();
    let threads = ["sleeps", "refused"].map(|name| redisson.thread("slow", name));
    let [sleeps, refused] = threads.map(|java| java.kind(LockKind::Group));
    // After these calls, the server knows the thread's script.
    sleeps.lock("G/a").unwrap();
    sleeps.unlock("G/a").unwrap();
    let guard = rust.group_lock("G", ["a", "b"]).acquire().await.unwrap();
    let sleeping = sleeps.start_lock("G/a");
    asleep(&[&sleeps]).await;
    let answer = proxy.strike_after(1, b"\r\n30000\r\n", Strike::HoldReply);
    let waiting = refused.start_lock("G/b");
    eventually("it is refused", async || answer.fired()).await;
    guard.release().await.unwrap();
    sleeping.wait(SOON).expect("woken by the message");
    proxy.let_go(&answer);
    waiting.wait(SOON).expect("woken by what is kept for it");
    sleeps.unlock("G/a").unwrap();
    refused.unlock("G/b").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_group_unlock_is_seen_across_sides() {
    let Place { java, rust, .. } = &place().await;
    java.lock("G/a,b").unwrap();
    let both = rust.group_lock("G", ["a", "b"]);
    assert!(both.force_unlock().await.unwrap());
    assert!(java.unlock("G/a,b").is_err());
    let guard = both.acquire().await.unwrap();
    // Java reports `false` for two values although it unlocks them.
    java.force_unlock("G/a,b").unwrap();
    assert!(guard.release().await.is_err());
}

/// The fields of each key. Times are in seconds from now.
type State = BTreeMap<String, BTreeMap<String, String>>;

/// The recording's names of the fields.
const FIELDS: [(&str, &str); 4] = [
    ("<f:a>", "qwvAS12pR0CgRitaypEjUw"),
    ("<f:b>", "Q5CdP+xmkHdTGWYr64Lw6A"),
    ("<f:c>", "b/ERpQOx2r8GXiGBU6d0Hg"),
    ("<f:d>", "cCV/U3K/CnVMICY6x8GOAQ"),
];

#[tokio::test]
async fn our_state_is_redissons_after_every_step() {
    let text = include_str!("golden/4.7.0/fastermultilock.txt");
    let mut stage = Stage::new().await;
    let (mut compared, mut state, mut call) = (0, None::<State>, None::<String>);
    for line in text.lines().chain(["99. end"]) {
        let numbered = line
            .split_once(". ")
            .filter(|(n, _)| n.parse::<u32>().is_ok());
        if let Some((_, next)) = numbered {
            if let Some(call) = call.replace(next.to_owned())
                && let Some((call, answer)) = call.split_once(" -> ")
            {
                stage.play(call, answer).await;
                if let Some(state) = state.take() {
                    stage.compare(&state, call).await;
                    compared += 1;
                }
            }
            // From here on, the recording shows defects of Redisson.
            if next.contains("lockAsync") {
                break;
            }
        } else if let Some(shown) = line.trim().strip_prefix("= ") {
            let state = state.get_or_insert_default();
            if let Some((key, rest)) = shown.split_once(" hash {") {
                let fields = rest.split_once("} ttl").unwrap().0.split(", ");
                let fields = fields.map(|field| {
                    let (name, value) = field.rsplit_once(": ").unwrap();
                    (name.to_owned(), seconds(name, value, 0))
                });
                state.insert(key.into(), fields.collect());
            }
        }
    }
    assert!(compared >= 7, "{compared}");
}

/// Normalises a value: a time to seconds from now, a count to ours. Other values are not changed.
fn seconds(name: &str, value: &str, now_ms: i64) -> String {
    if name.ends_with(":expire_time") {
        let left = match value.strip_prefix("now+") {
            Some(left) => left.trim_end_matches('s').parse::<f64>().unwrap(),
            None => (value.parse::<i64>().unwrap() - now_ms) as f64 / 1000.0,
        };
        return format!("about {} s", (left / 10.0).ceil() * 10.0);
    }
    if name.ends_with(":lock_count") {
        return "1".into();
    }
    value.to_owned()
}

struct Stage {
    server: RedisServer,
    clients: HashMap<String, (Client, Owner)>,
    guards: HashMap<String, Vec<LockGuard>>,
    holders: Vec<(String, String)>,
    waiter: Option<(String, tokio::task::JoinHandle<LockGuard>)>,
}

impl Stage {
    async fn new() -> Self {
        let server = crate::topology::start();
        let mut clients = HashMap::new();
        for name in ["client1", "client2", "client3"] {
            let client = Client::connect(&server.url()).await.unwrap();
            let owner = leasehold::Owner::new();
            clients.insert(name.to_owned(), (client, owner));
        }
        Self {
            server,
            clients,
            guards: HashMap::new(),
            holders: Vec::new(),
            waiter: None,
        }
    }

    /// Plays `client1.t1 fmulti:G:a,b.lock()`.
    async fn play(&mut self, call: &str, answer: &str) {
        let (who, rest) = call.split_once(' ').unwrap();
        let (object, method) = rest.rsplit_once('.').unwrap();
        let object = object.strip_prefix("fmulti:").unwrap();
        let (group, values) = object.split_once(':').unwrap();
        let (name, _) = who.split_once('.').unwrap();
        let (client, owner) = &self.clients[name];
        let lock = client.group_lock(group, values.split(',')).owned_by(owner);
        let hold = format!("{who} {object}");
        let held = self.guards.entry(hold.clone()).or_default();
        let ok = !answer.starts_with("err");
        match method.split_once('(').unwrap() {
            ("lock", "2000, MILLISECONDS)") => {
                let lock = lock.fixed_lease(Duration::from_secs(2)).poll_interval(HOUR);
                let task = tokio::spawn(async move { lock.acquire().await.unwrap() });
                self.waiter = Some((hold, task));
                let client = client.clone();
                eventually("it waits", async || client.activity().lines == 1).await;
                return;
            }
            ("lock", _) => held.push(lock.acquire().await.unwrap()),
            ("tryLock", _) => {
                let guard = lock.try_acquire().await.unwrap();
                assert_eq!(guard.is_some(), answer.starts_with("ok true"), "{call}");
                held.extend(guard);
            }
            ("unlock", _) => {
                let released = match held.pop() {
                    Some(guard) => guard.release().await.is_ok(),
                    None => false,
                };
                assert_eq!(released, ok, "{call}");
            }
            ("forceUnlock", _) => {
                // Java reports `false` when it unlocks two values, and fails if none are locked.
                assert_eq!(lock.force_unlock().await.unwrap(), ok, "{call}");
                self.server
                    .command(&["DEL", "leasehold:{G}:forced"])
                    .unwrap();
                held.clear();
            }
            ("isHeldByCurrentThread", _) => {}
            other => panic!("{other:?} is new here"),
        }
        self.note(who, &hold);
        self.let_the_waiter_in(method).await;
    }

    /// Lets the waiter in, after the last unlock of the values that it waits for.
    async fn let_the_waiter_in(&mut self, method: &str) {
        let free = self.guards.values().map(Vec::len).sum::<usize>() == 0;
        if !(method.starts_with("unlock") && free) {
            return;
        }
        if let Some((hold, task)) = self.waiter.take() {
            let guard = tokio::time::timeout(SOON, task)
                .await
                .expect("woken")
                .unwrap();
            self.guards.entry(hold.clone()).or_default().push(guard);
            let who = hold.split(' ').next().unwrap().to_owned();
            self.note(&who, &hold);
        }
    }

    fn note(&mut self, who: &str, hold: &str) {
        let (client, thread) = who.split_once('.').unwrap();
        for guard in self.guards.get(hold).into_iter().flatten() {
            let shown = format!("<{client}>:<{thread}>");
            self.holders.push((guard.holder_id().to_owned(), shown));
        }
    }

    async fn compare(&self, theirs: &State, call: &str) {
        let now_ms = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let now_ms = i64::try_from(now_ms.as_millis()).unwrap();
        let named = |text: &str| {
            let names = self
                .holders
                .iter()
                .map(|(id, who)| (who.as_str(), id.as_str()));
            FIELDS
                .into_iter()
                .chain(names)
                .fold(text.to_owned(), |text, (shown, real)| {
                    text.replace(real, shown)
                })
        };
        let mut ours = State::new();
        for key in self.server.keys() {
            let reply = self.server.command(&["HGETALL", &key]).unwrap();
            let flat: Vec<_> = reply
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item.as_text().unwrap().to_owned())
                .collect();
            let fields = flat.chunks(2).map(|pair| {
                let name = named(&pair[0]);
                let value = seconds(&name, &named(&pair[1]), now_ms);
                (name, value)
            });
            ours.insert(key, fields.collect());
        }
        assert_eq!(&ours, theirs, "after {call}");
    }
}
