//! Like `golden.rs`, for the read-write lock: the keys after each step of a recording, and the
//! remaining lease of each, compared with the state that live Redissons left there.
//!
//! These differences are intended:
//!
//! - our count on the wire is always 1, and a read hold has one key of its own;
//! - a write re-entry does not add its lease to the lock's, and a read release does not shorten it
//!   ([`OURS`]);
//! - a downgrade lets the waiting reader in, at step 16, and not at its expiry;
//! - a lease is for one hold, not for the lock object.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold::{Client, LockGuard, Owner, ReadGuard, RwLock, WriteGuard};
use leasehold_testkit::{RedisServer, RedissonVersion};

use super::golden::parse;
use crate::recording;
use crate::support::{HOUR, eventually};

const RECORDINGS: [(RedissonVersion, &str); 2] = [
    (
        RedissonVersion::V3_16_8,
        include_str!("golden/3.16.8/readwritelock.txt"),
    ),
    (
        RedissonVersion::V4_7_0,
        include_str!("golden/4.7.0/readwritelock.txt"),
    ),
];

/// The steps after which the lock has a different remaining lease here, in seconds, by the number
/// of the step.
const OURS: [(&str, f64); 6] = [
    // Redisson adds 30 s for each re-entry.
    ("11", 30.0),
    ("12", 30.0),
    // Redisson uses the lease of the previous call on the same object.
    ("18", 30.0),
    // Redisson shortens the lease to the read hold inside.
    ("26", 120.0),
    ("24", 120.0),
    ("25", 120.0),
];
/// Tolerance for the time that the recordings took between two steps, in seconds.
const TOLERANCE: f64 = 2.0;

/// Keys with their content, and their remaining lease in seconds.
type State = BTreeMap<String, (String, f64)>;

#[tokio::test]
async fn rw_lock_state_matches_redisson_recordings() {
    for (version, text) in RECORDINGS {
        let mut stage = Stage::new(version).await;
        let mut compared = 0;
        for step in steps(text) {
            let what = format!("{version}, step {}: {}", step.number, step.call);
            if !stage.play(&step).await || step.number == "16" {
                continue;
            }
            if let Some(mut theirs) = step.state {
                let ours = stage.state();
                if let Some((_, left)) = OURS.iter().find(|(number, _)| *number == step.number) {
                    for (key, (_, ttl)) in &mut theirs {
                        if key == "RW" || step.number == "18" {
                            *ttl = *left;
                        }
                    }
                }
                same_content(&ours, &theirs, &what);
                same_times(&ours, &theirs, &what);
                compared += 1;
            }
        }
        assert!(compared >= 16, "{version}: only {compared} states compared");
    }
}

fn same_content(ours: &State, theirs: &State, what: &str) {
    let content = |state: &State| -> Vec<_> {
        let keys = state.iter();
        keys.map(|(key, (content, _))| (key.clone(), content.clone()))
            .collect()
    };
    assert_eq!(content(ours), content(theirs), "{what}");
}

fn same_times(ours: &State, theirs: &State, what: &str) {
    for (key, (_, ttl)) in ours {
        let other = theirs[key].1;
        assert!(
            (ttl - other).abs() < TOLERANCE,
            "{what}: {key} {ttl} {other}"
        );
    }
}

const RENEWALS: [(RedissonVersion, &str); 2] = [
    (
        RedissonVersion::V3_16_8,
        include_str!("golden/3.16.8/readwritelock-renewal.txt"),
    ),
    (
        RedissonVersion::V4_7_0,
        include_str!("golden/4.7.0/readwritelock-renewal.txt"),
    ),
];

/// The lease of `clientw`, whose holds are renewed.
const RENEWED: Duration = Duration::from_secs(3);

/// Compares the renewed holds, and the effect of their renewals on the other holds. Redisson is not
/// a model here:
///
/// - at step 4, its renewal cuts the lock to 3 s, beside a read hold of a minute;
/// - a renewal by 3.16.8 sets the leases of all read holds to 3 s, including holds of other clients
///   and a hold that has ended, so they are not compared;
/// - 4.7.0 stops renewing a write hold when a read hold inside it has ended, so the write hold is
///   lost at step 11; 3.16.8 stops renewing a read hold when the write hold around it has ended, so
///   the read hold is lost at step 17;
/// - a thread's next hold uses the keys of its last hold, and ours has keys of its own, so the
///   remains of the hold that was broken at step 5 are not compared.
#[tokio::test]
async fn rw_renewals_match_redisson_or_keep_longer() {
    let played = RENEWALS.map(|(version, text)| renewals(version, text));
    futures_util::future::join_all(played).await;
}

async fn renewals(version: RedissonVersion, text: &str) {
    let mut stage = Stage::new(version).await;
    let (mut compared, mut last) = (0, State::new());
    for step in steps(text) {
        let what = format!("{version}, step {}: {}", step.number, step.call);
        if !stage.play(&step).await {
            tokio::time::sleep(later(&step.call)).await;
        }
        let mut ours = stage.state();
        if step.number == "5" {
            stage.holders.retain(|_, who| !who.starts_with("clientw"));
            stage.owners.clear();
            ours = stage.state();
        }
        // The recording shows no state after a step that changed only times.
        let lost = ["11", "17"].contains(&step.number.as_str());
        let unchanged = lost || step.state.is_none();
        let known = step.state.unwrap_or_else(|| last.clone());
        let before = std::mem::replace(&mut last, known.clone());
        let mut theirs = if lost { before } else { known };
        let compares = |key: &String| match key.as_str() {
            "RV" => true,
            _ if key.contains("clientw") => !["5", "6", "7"].contains(&step.number.as_str()),
            _ => key.contains("client2") && version == RedissonVersion::V4_7_0,
        };
        if step.number == "4"
            && let Some((_, ttl)) = theirs.get_mut("RV")
        {
            *ttl = 58.4;
        }
        ours.retain(|key, _| compares(key));
        theirs.retain(|key, _| compares(key));
        same_content(&ours, &theirs, &what);
        if !unchanged {
            same_times(&ours, &theirs, &what);
        }
        compared += 1;
    }
    assert_eq!(compared, 18, "{version}");
}

/// Parses `(1.3 s later: one renewal by clientw)`. A renewal without a time took a second.
fn later(call: &str) -> Duration {
    let seconds = call.trim_start_matches('(').split_once(" s later");
    let seconds = seconds.and_then(|(seconds, _)| seconds.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

type Step = recording::Step<State>;

fn steps(text: &str) -> Vec<Step> {
    recording::steps(text, " returned ok null after", read_state)
}

/// Reads `RW hash {<client1>:<t1>: 2, mode: read} ttl 29.9s`, and keys of read holds.
fn read_state(text: &str, state: &mut State) {
    let text = text.replace(['<', '>'], "");
    let (rest, ttl) = text.rsplit_once(" ttl ").unwrap();
    let ttl = ttl.trim_end_matches('s').parse().unwrap();
    match rest.split_once(" hash ") {
        Some((key, fields)) => {
            let fields = fields.trim_start_matches('{').trim_end_matches('}');
            let fields = fields.split(", ").map(|field| {
                let (name, value) = field.rsplit_once(": ").unwrap();
                (name.to_owned(), value.to_owned())
            });
            state.insert(key.into(), (shown(fields), ttl));
        }
        None => {
            let (key, value) = rest.split_once(" string ").unwrap();
            // Re-entries are counted in the client.
            if key.ends_with(":1") {
                state.insert(key.into(), (value.replace('"', ""), ttl));
            }
        }
    }
}

fn shown(fields: impl Iterator<Item = (String, String)>) -> String {
    let mut fields: Vec<_> = fields
        .map(|(name, value)| match &*name {
            "mode" => format!("mode: {value}"),
            _ => format!("{name}: 1"),
        })
        .collect();
    fields.sort();
    fields.join(", ")
}

enum Guard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Guard {
    fn lock(&self) -> &LockGuard {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}

/// The actors of a recording, played by this library.
struct Stage {
    version: RedissonVersion,
    server: RedisServer,
    clients: HashMap<String, Client>,
    owners: HashMap<String, Owner>,
    guards: HashMap<(String, String), Vec<Guard>>,
    /// The recording's names of wire ids.
    holders: BTreeMap<String, String>,
    waiter: Option<(String, String, tokio::task::JoinHandle<Guard>)>,
}

impl Stage {
    async fn new(version: RedissonVersion) -> Self {
        let server = crate::topology::start();
        let mut clients = HashMap::new();
        for name in ["client1", "client2", "client3"] {
            let client = Client::connect(&server.url()).await.unwrap();
            clients.insert(name.to_owned(), client);
        }
        let renewed = Client::builder().lease(RENEWED);
        let renewed = renewed.connect(&server.url()).await.unwrap();
        clients.insert("clientw".to_owned(), renewed);
        Self {
            version,
            server,
            clients,
            owners: HashMap::new(),
            guards: HashMap::new(),
            holders: BTreeMap::new(),
            waiter: None,
        }
    }

    /// Makes the call of a step. Returns `false` if the step is not a call.
    async fn play(&mut self, step: &Step) -> bool {
        let Some((who, object, method, arguments)) = parse(&step.call) else {
            return false;
        };
        let (side, name) = object.split_once(':').unwrap();
        let writes = side == "write";
        let lock = self.lock(&who, name, &arguments);
        let id = (who.clone(), side.to_owned());
        let guards = self.guards.entry(id.clone()).or_default();
        let answer = step.answer.trim_start_matches("ok ");
        match method.as_str() {
            "lock" if step.answer == "(waiting)" => {
                let task = tokio::spawn(async move { acquire(&lock, writes).await });
                self.waiter = Some((who.clone(), side.to_owned(), task));
                let client = &self.clients[who.split('.').next().unwrap()];
                eventually("it waits", async || client.activity().channels == 1).await;
            }
            "lock" => guards.push(acquire(&lock, writes).await),
            "tryLock" => {
                let got = lock.try_write().await.unwrap();
                assert_eq!(got.is_some().to_string(), answer, "{}", step.call);
            }
            "unlock" => match guards.pop() {
                Some(Guard::Read(guard)) => guard.release().await.unwrap(),
                Some(Guard::Write(guard)) => guard.release().await.unwrap(),
                // The lock is free, which 3.16.8 does not report.
                None => {}
            },
            "forceUnlock" => {
                let forced = match writes {
                    true => lock.write_lock().force_unlock().await.unwrap(),
                    false => lock.read_lock().force_unlock().await.unwrap(),
                };
                assert_eq!(forced.to_string(), answer);
                // The guards are forgotten, because Redisson's holders do not learn of the loss.
                for guard in self.guards.drain().flat_map(|(_, guards)| guards) {
                    match guard {
                        Guard::Read(guard) => guard.forget(),
                        Guard::Write(guard) => guard.forget(),
                    }
                }
            }
            "isLocked" => {
                let locked = match writes {
                    true => lock.write_lock().is_locked().await.unwrap(),
                    false => lock.read_lock().is_locked().await.unwrap(),
                };
                // The older version does not count a reader inside a write hold.
                if self.version == RedissonVersion::V4_7_0 {
                    assert_eq!(locked.to_string(), answer, "{}", step.call);
                }
            }
            "getHoldCount" => {
                let count = guards.last().map_or(0, |guard| guard.lock().hold_count());
                assert_eq!(count.to_string(), answer);
            }
            _ => panic!("a call that is not known here: {}", step.call),
        }
        if step.waiter_returned {
            let (who, side, task) = self.waiter.take().expect("somebody waits");
            let guard = task.await.unwrap();
            self.guards.entry((who, side)).or_default().push(guard);
        }
        true
    }

    fn lock(&mut self, who: &str, name: &str, arguments: &str) -> RwLock {
        let owner = self.owners.entry(who.into()).or_insert_with(Owner::new);
        let client = &self.clients[who.split('.').next().unwrap()];
        let lock = client.rw_lock(name).owned_by(owner);
        let lock = lock.prefer_writers(false).poll_interval(HOUR);
        match arguments.split(", ").next().unwrap().parse() {
            Ok(ms) => lock.fixed_lease(Duration::from_millis(ms)),
            Err(_) => lock,
        }
    }

    /// Returns the state in Redis, with the holders by their names in the recording. Keys of this
    /// library, which Redisson never reads, are left out.
    fn state(&mut self) -> State {
        for ((who, _), guards) in &self.guards {
            for guard in guards {
                let id = guard.lock().holder_id().trim_end_matches(":write");
                self.holders.insert(id.into(), who.replace('.', ":"));
            }
        }
        let keys = self.server.keys().into_iter();
        keys.filter(|key| !key.starts_with("leasehold:"))
            .map(|key| {
                let ttl = self.server.command(&["PTTL", &key]).unwrap();
                let content = if !key.contains(":rwlock_timeout:") {
                    let hash = self.server.command(&["HGETALL", &key]).unwrap();
                    let text = |at: &leasehold_testkit::Reply| at.as_text().unwrap().to_owned();
                    let pairs = hash.as_array().unwrap().chunks(2);
                    shown(pairs.map(|pair| (self.named(&text(&pair[0])), text(&pair[1]))))
                } else {
                    let value = self.server.command(&["GET", &key]).unwrap();
                    value.as_text().unwrap().to_owned()
                };
                let seconds = ttl.as_int().unwrap() as f64 / 1000.0;
                (self.named(&key), (content, seconds))
            })
            .collect()
    }

    /// Replaces our ids in the text with the names of the recording.
    fn named(&self, text: &str) -> String {
        // Longer ids are replaced first, because `uuid:1` is the beginning of `uuid:12`.
        let ids = self.holders.iter().rev();
        ids.fold(text.to_owned(), |text, (id, who)| text.replace(id, who))
    }
}

async fn acquire(lock: &RwLock, writes: bool) -> Guard {
    if writes {
        Guard::Write(lock.write().await.unwrap())
    } else {
        Guard::Read(lock.read().await.unwrap())
    }
}
