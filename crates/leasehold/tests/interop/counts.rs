//! The state in Redis after each step on semaphores and latches, compared with the state that live
//! Redissons left there. The same calls are made here with our own API. These differences are
//! intended and not compared:
//!
//! - adding and draining keep the expiry of a semaphore, where Redisson drops it;
//! - a permit without a lease has one here and is renewed; for Redisson it never ends;
//! - ids are 16 bytes in Redis, as 4.7.0 writes them and 3.16.8 does not;
//! - a permit that is released after its lease has ended is reported as such, as by 4.7.0.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use leasehold::inspect::Ttl;
use leasehold::{Client, CountDownLatch, ExpirableSemaphore, PermitId, Semaphore};
use leasehold_testkit::RedisServer;

use crate::recording;
use crate::sides::SOON;
use crate::support::{HOUR, eventually};

const RECORDINGS: [(&str, &str, usize); 6] = [
    (
        "semaphore 3.16.8",
        include_str!("golden/3.16.8/semaphore.txt"),
        11,
    ),
    (
        "semaphore 4.7.0",
        include_str!("golden/4.7.0/semaphore.txt"),
        11,
    ),
    (
        "latch 3.16.8",
        include_str!("golden/3.16.8/countdownlatch.txt"),
        7,
    ),
    (
        "latch 4.7.0",
        include_str!("golden/4.7.0/countdownlatch.txt"),
        7,
    ),
    (
        "leases 3.16.8",
        include_str!("golden/3.16.8/permitexpirablesemaphore.txt"),
        9,
    ),
    (
        "leases 4.7.0",
        include_str!("golden/4.7.0/permitexpirablesemaphore.txt"),
        14,
    ),
];

#[tokio::test]
async fn semaphore_and_latch_state_matches_redisson_recordings() {
    for (what, text, least) in RECORDINGS {
        let mut stage = Stage::new().await;
        let mut compared = 0;
        for step in steps(text) {
            let what = format!("{what}, step {}", step.call);
            let before = since_epoch();
            stage.play(&step).await;
            if let Some(state) = &step.state {
                // The lease that this step has set began at some time between these two.
                let states = || [before, since_epoch()].map(|now| stage.state(now));
                if !stage.waiters.is_empty() {
                    let seen = async || is_between(state, &states());
                    eventually("the step lets a waiter go on", seen).await;
                }
                let states = states();
                assert!(is_between(state, &states), "{what}: {state:?}, {states:?}");
                compared += 1;
            }
        }
        assert!(compared >= least, "{what}: only {compared} states compared");
        for waiter in stage.waiters {
            let done = tokio::time::timeout(SOON, waiter).await;
            done.expect("each waiter is let go on").unwrap();
        }
    }
}

/// Keys with their values: a number, or the leases in tenths of a second, 0 for keys without a
/// lease.
type State = BTreeMap<String, Vec<i64>>;

type Step = recording::Step<State>;

fn steps(text: &str) -> Vec<Step> {
    recording::steps(text, " returned ", read_state)
}

/// Reads `S string "3" ttl none` and `{P}:timeout zset {<P1 raw>: now+1.4s} ttl none`.
fn read_state(text: &str, state: &mut State) {
    if let Some((key, rest)) = text.split_once(" string \"") {
        let number = rest.split('"').next().unwrap().parse().unwrap();
        state.insert(key.into(), vec![number]);
    } else if let Some((key, rest)) = text.split_once(" zset {") {
        let members = rest.split("} ttl").next().unwrap().split(", ");
        let mut leases: Vec<_> = members
            .map(|member| {
                let (_, end) = member.rsplit_once(": ").unwrap();
                match end.strip_prefix("now+") {
                    Some(left) => rounded(left.trim_end_matches('s').parse().unwrap()),
                    None => 0,
                }
            })
            .collect();
        leases.sort_unstable();
        state.insert(key.into(), leases);
    }
}

/// Rounds seconds up, because a recording reads the state some time after the call, and so does
/// this test.
fn rounded(seconds: f64) -> i64 {
    seconds.ceil() as i64
}

fn since_epoch() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

/// Whether the state has the same keys as both times, and each number is between the two.
fn is_between(state: &State, [before, after]: &[State; 2]) -> bool {
    state.len() == before.len()
        && state.iter().all(|(key, numbers)| {
            let (Some(most), Some(least)) = (before.get(key), after.get(key)) else {
                return false;
            };
            numbers.len() == most.len()
                && numbers.len() == least.len()
                && (0..numbers.len()).all(|at| (least[at]..=most[at]).contains(&numbers[at]))
        })
}

struct Stage {
    server: RedisServer,
    client: Client,
    permits: HashMap<String, PermitId>,
    /// Permits that are held, so that they are renewed.
    held: Vec<leasehold::ExpirablePermit>,
    waiters: Vec<tokio::task::JoinHandle<()>>,
}

impl Stage {
    async fn new() -> Self {
        let server = crate::topology::start();
        Self {
            client: Client::connect(&server.url()).await.unwrap(),
            server,
            permits: HashMap::new(),
            held: Vec::new(),
            waiters: Vec::new(),
        }
    }

    async fn play(&mut self, step: &Step) {
        let (_, call) = step.call.split_once(' ').unwrap();
        let (kind, rest) = call.split_once(':').unwrap();
        let (name, rest) = rest.split_once('.').unwrap();
        let (method, arguments) = rest.trim_end_matches(')').split_once('(').unwrap();
        let arguments: Vec<_> = arguments.split(", ").filter(|a| !a.is_empty()).collect();
        let expected = step.answer.trim_start_matches("ok ");
        match kind {
            "sem" => self.semaphore(name, method, &arguments, expected).await,
            "latch" => self.latch(name, method, &arguments, expected).await,
            _ => self.expirable(name, method, &arguments, expected).await,
        }
    }

    async fn semaphore(&mut self, name: &str, method: &str, arguments: &[&str], expected: &str) {
        let semaphore: Semaphore = self.client.semaphore(name).poll_interval(HOUR);
        let n = arguments.first().and_then(|n| n.parse::<i32>().ok());
        let permits = n.unwrap_or(1).unsigned_abs();
        match (method, arguments) {
            ("acquire", _) if expected == "(waiting)" => {
                self.waiters.push(tokio::spawn(async move {
                    semaphore.acquire_many(permits).await.unwrap().forget();
                }));
                self.waits().await;
            }
            // The call is for one permit: `(600, MILLISECONDS)` or `(1, dur:600)`.
            ("tryAcquire", [_, _]) => {
                let wait = Duration::from_millis(600);
                let got = semaphore.try_acquire_for(wait).await.unwrap();
                assert!(got.is_none());
            }
            ("acquire", _) => semaphore.acquire_many(permits).await.unwrap().forget(),
            ("tryAcquire", _) => {
                let got = semaphore.try_acquire_many(permits).await.unwrap();
                assert_eq!(got.is_some().to_string(), expected);
            }
            ("trySetPermits", [_]) => {
                let made = semaphore.try_set_permits(permits).await.unwrap();
                assert_eq!(made.to_string(), expected);
            }
            ("trySetPermits", _) => {
                let life = Duration::from_secs(5);
                assert!(semaphore.try_set_permits_for(permits, life).await.unwrap());
                let left = self.server.command(&["PTTL", name]).unwrap();
                assert!((4000..=5000).contains(&left.as_int().unwrap()));
            }
            ("release", _) => semaphore.release(permits).await.unwrap(),
            ("releaseIfExists", _) => {
                let released = semaphore.release_if_exists(permits).await.unwrap();
                assert_eq!(released.to_string(), expected);
            }
            ("availablePermits", _) => {
                let free = semaphore.available_permits().await.unwrap();
                assert_eq!(free.to_string(), expected);
            }
            ("drainPermits", _) => {
                assert_eq!(semaphore.drain().await.unwrap().to_string(), expected);
            }
            ("addPermits", _) => semaphore.add_permits(n.unwrap()).await.unwrap(),
            ("expire", _) => {
                self.server.command(&["PEXPIRE", name, "60000"]).unwrap();
            }
            ("delete", _) => {
                assert_eq!(semaphore.delete().await.unwrap().to_string(), expected);
            }
            _ => panic!("a call that is not known here: {method}{arguments:?}"),
        }
    }

    async fn latch(&mut self, name: &str, method: &str, arguments: &[&str], expected: &str) {
        let latch: CountDownLatch = self.client.count_down_latch(name).poll_interval(HOUR);
        match (method, arguments) {
            ("await", _) if expected == "(waiting)" => {
                let wait = async move { latch.wait().await.unwrap() };
                self.waiters.push(tokio::spawn(wait));
                self.waits().await;
            }
            ("await", []) => latch.wait().await.unwrap(),
            ("trySetCount", [count]) => {
                let set = latch.try_set_count(count.parse().unwrap()).await.unwrap();
                assert_eq!(set.to_string(), expected);
            }
            ("countDown", _) => {
                latch.count_down().await.unwrap();
            }
            ("getCount", _) => {
                assert_eq!(latch.count().await.unwrap().to_string(), expected);
            }
            ("delete", _) => {
                assert_eq!(latch.delete().await.unwrap().to_string(), expected);
            }
            _ => panic!("a call that is not known here: {method}{arguments:?}"),
        }
    }

    async fn expirable(&mut self, name: &str, method: &str, arguments: &[&str], expected: &str) {
        let semaphore: ExpirableSemaphore =
            self.client.expirable_semaphore(name).poll_interval(HOUR);
        let n = arguments.first().and_then(|n| n.parse::<i32>().ok());
        let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
        let ids: Vec<PermitId> = arguments
            .iter()
            .flat_map(|argument| argument.trim_start_matches("list:").split(','))
            .filter_map(|label| self.permits.get(label).copied())
            .collect();
        match (method, arguments) {
            ("acquire" | "tryAcquire", [lease, _]) => {
                let permit = semaphore.fixed_lease(ms(lease)).acquire().await.unwrap();
                self.permits.insert(expected.into(), permit.id());
                permit.forget();
            }
            ("tryAcquire", []) => {
                assert!(semaphore.try_acquire().await.unwrap().is_none());
            }
            ("acquire", _) => {
                let permits = semaphore.acquire_many(n.unwrap_or(1).unsigned_abs());
                let permits = permits.await.unwrap();
                let labels = expected.trim_matches(['[', ']']).split(", ");
                self.permits
                    .extend(labels.map(String::from).zip(permits.ids().iter().copied()));
                self.held.push(permits);
            }
            ("updateLeaseTime", [_, lease, _]) => {
                let updated = semaphore.update_lease(ids[0], ms(lease)).await.unwrap();
                assert_eq!(updated.to_string(), expected);
            }
            ("release" | "tryRelease", [_]) if ids.len() == 1 => {
                let over = async || semaphore.remaining_ttl(ids[0]).await.unwrap() == Ttl::Free;
                let ends = self.permits.get("<P4 hex>") == Some(&ids[0]);
                if ends {
                    eventually("its lease is over", over).await;
                }
                let released = semaphore.release(ids[0]).await.unwrap();
                let ok = expected == "null" || (expected == "true" && !ends);
                assert_eq!(released, ok, "{method}");
            }
            ("release", _) => assert!(semaphore.release_many(&ids).await.unwrap()),
            ("trySetPermits", _) => {
                let made = semaphore.try_set_permits(n.unwrap().unsigned_abs());
                assert_eq!(made.await.unwrap().to_string(), expected);
            }
            ("setPermits", _) => semaphore
                .set_permits(n.unwrap().unsigned_abs())
                .await
                .unwrap(),
            ("addPermits", _) => semaphore.add_permits(n.unwrap()).await.unwrap(),
            ("availablePermits", _) => {
                let free = semaphore.available_permits().await.unwrap();
                assert_eq!(free.to_string(), expected);
            }
            ("getPermits", _) => {
                assert_eq!(semaphore.permits().await.unwrap().to_string(), expected);
            }
            ("acquiredPermits", _) => {
                let held = semaphore.acquired_permits().await.unwrap();
                assert_eq!(held.to_string(), expected);
            }
            ("getLeaseTime", _) => match ids.first() {
                Some(id) => assert!(matches!(
                    semaphore.remaining_ttl(*id).await.unwrap(),
                    Ttl::Left(_)
                )),
                None => {
                    let nobody = "0".repeat(32).parse().unwrap();
                    let left = semaphore.remaining_ttl(nobody).await.unwrap();
                    assert_eq!(left, Ttl::Free);
                }
            },
            ("delete", _) => {
                assert_eq!(semaphore.delete().await.unwrap().to_string(), expected);
            }
            _ => panic!("a call that is not known here: {method}{arguments:?}"),
        }
    }

    async fn waits(&self) {
        eventually("it waits", async || self.client.activity().channels == 1).await;
    }

    /// Returns the state in Redis, with the leases as at `now`. Keys of this library, which
    /// Redisson never reads, are left out.
    fn state(&self, now: f64) -> State {
        let ask = |parts: &[&str]| self.server.command(parts).unwrap();
        let keys = self.server.keys().into_iter();
        keys.filter(|key| !key.starts_with("leasehold:"))
            .map(|key| {
                if !key.ends_with(":timeout") {
                    let number = ask(&["GET", &key]).as_text().unwrap().parse().unwrap();
                    return (key, vec![number]);
                }
                let total = ask(&["ZCARD", &key]).as_int().unwrap();
                // Ids are not text, so only the ends are read, in their order.
                let ends = (0..total).map(|at| {
                    let at = at.to_string();
                    let script =
                        "return redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1], 'WITHSCORES')[2]";
                    let end = ask(&["EVAL", script, "1", &key, &at]);
                    let end: f64 = end.as_text().unwrap().parse().unwrap();
                    let left = end / 1000.0 - now;
                    if left > 20.0 { 0 } else { rounded(left) }
                });
                let mut leases: Vec<_> = ends.collect();
                leases.sort_unstable();
                (key, leases)
            })
            .collect()
    }
}
