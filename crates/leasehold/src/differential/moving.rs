//! Runs each step while its slot moves: some of its keys are on one node and the rest on another.
//! Either the step runs correctly, or it waits and has changed nothing. When the slot is complete
//! again, the step has done the same as its twin.
//!
//! `LEASEHOLD_MOVING_CASES` is the number of states that are tried for each step.
//! `LEASEHOLD_MOVING_SEED` repeats the states of another run.

use leasehold_testkit::Cluster;

use super::*;
use crate::backend::redis::QueuedReply;

/// The longest time for a step that need not wait. A slot stays open for much longer.
const AT_ONCE: Duration = Duration::from_millis(20);

struct Stage {
    cluster: Cluster,
    redis: Redis,
    runtime: tokio::runtime::Runtime,
    seed: u64,
    random: fastrand::Rng,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::start(2, 0);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let endpoint = Endpoint {
            url: cluster.url(),
            label: String::new(),
            credentials: None,
            credentials_every: Duration::from_secs(10),
            addresses: crate::address_map::AddressMap::default(),
            connect_timeout: Duration::from_secs(5),
            // A step that waits for its slot does not give up.
            reply_timeout: Duration::from_secs(30),
            peers: crate::config::Peers::All,
            declare_keys: false,
            failover_guard: None,
            #[cfg(feature = "tls")]
            tls: crate::tls::TlsSettings::default(),
        };
        let all = crate::recipes::steps();
        let connected = Redis::connect(endpoint, &all, Clock::Boot);
        Self {
            redis: runtime.block_on(connected).unwrap(),
            cluster,
            runtime,
            seed,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns a sample of this step for the first key, with a random hold and variant.
    fn sample(&mut self, step: usize) -> (usize, usize, usize, usize) {
        let (hold, variant) = (self.random.usize(..HOLDS.len()), self.random.usize(..8));
        (step, 0, hold, variant)
    }

    /// Returns random earlier actions on the key.
    fn past(&mut self, suite: &Suite) -> Vec<Action> {
        let steps: Vec<_> = (0..suite.steps.len())
            .filter(|step| !suite.steps[*step].many && suite.steps[*step].keys > 0)
            .collect();
        let count = self.random.usize(1..7);
        let action = |stage: &mut Self| match stage.random.u8(..12) {
            0 => Action::Foreign(stage.random.usize(..suite.foreign.len()), 0),
            _ => {
                let step = steps[stage.random.usize(..steps.len())];
                Action::Run(vec![stage.sample(step)])
            }
        };
        (0..count).map(|_| action(self)).collect()
    }

    /// Returns the combined state of both nodes.
    fn state(&self) -> DatabaseState {
        let of = |node: &RedisServer| state_by(&|commands| node.asking(commands).unwrap());
        self.cluster.nodes().iter().flat_map(of).collect()
    }

    fn replied(&self, reply: &mut QueuedReply, within: Duration) -> Option<Result<Value, Failure>> {
        let wait = async { tokio::time::timeout(within, reply).await.ok() };
        self.runtime.block_on(wait)
    }

    /// Sends the step while some keys have moved, after random earlier actions. Returns whether it
    /// had to wait.
    fn try_one(&mut self, suite: &Suite, step: usize) -> bool {
        let (past, sample) = (self.past(suite), self.sample(step));
        let mut random = self.random.fork();
        self.try_case(suite, &past, sample, &mut |_| random.bool())
    }

    /// Runs the actions of `past`, then the sample while the keys that `moves` selects have moved.
    /// Returns whether the sample had to wait.
    fn try_case(
        &self,
        suite: &Suite,
        past: &[Action],
        sample: (usize, usize, usize, usize),
        moves: &mut dyn FnMut(&str) -> bool,
    ) -> bool {
        for node in self.cluster.nodes() {
            node.command(&["FLUSHALL"]).unwrap();
        }
        let step = sample.0;
        let slot = self.cluster.slot_of(KEYS[0]);
        let from = self.cluster.owner(slot);
        let to = 1 - from;
        let mut keyspace = Keyspace::default();
        for action in past {
            keyspace.set_now(now_ms());
            suite.on_keyspace(&mut keyspace, action);
            let server = &self.cluster.nodes()[from];
            let done = suite.on_server(server, &self.redis, action);
            self.runtime.block_on(done);
        }
        let before = self.state();
        assert_eq!(keyspace_state(&mut keyspace), before, "{past:?}");
        self.cluster.open(slot, to);
        let mut moved = Vec::new();
        for key in self.cluster.keys_in(from, slot) {
            if moves(&key) {
                self.cluster.move_key(from, to, &key);
                moved.push(key);
            }
        }
        let operation = suite.operation(sample);
        let name = operation.step.name;
        let seed = self.seed;
        let case = format!("{name} {sample:?} after {past:?}, moved: {moved:?}, seed {seed}");
        let mut reply = self.redis.submit(operation);
        let mut at_once = self.replied(&mut reply, AT_ONCE);
        if at_once.is_none() {
            // If the step has changed anything, it must have run completely, and its reply must
            // arrive, perhaps late on a busy machine. A step that ran in part would wait for its
            // slot, and have no reply.
            if self.state() != before {
                at_once = self.replied(&mut reply, Duration::from_secs(20));
                assert!(at_once.is_some(), "it waits: {case}");
            }
        }
        // The twin uses the clock, so it runs only after the step has run.
        let mut twin = || {
            keyspace.set_now(now_ms());
            suite.on_keyspace(&mut keyspace, &Action::Run(vec![sample]))
        };
        let early = at_once.is_some().then(&mut twin);
        self.finish(slot, from, to);
        let waited = at_once.is_none();
        let theirs = at_once.or_else(|| self.replied(&mut reply, Duration::from_secs(20)));
        let theirs = theirs.unwrap_or_else(|| panic!("no reply: {case}"));
        let ours = early.unwrap_or_else(twin);
        let theirs = match theirs {
            Ok(reply) => shown_reply(suite.steps[step], &reply),
            Err(failure) => shown_failure(&failure),
        };
        let ours = ours.iter().map(|reply| without_listeners(name, reply));
        let ours: Vec<_> = ours.collect();
        let theirs = without_listeners(name, &theirs);
        assert_eq!(ours, [theirs], "the reply of {case}");
        assert_eq!(keyspace_state(&mut keyspace), self.state(), "after {case}");
        waited
    }

    fn finish(&self, slot: u16, from: usize, to: usize) {
        loop {
            let keys = self.cluster.keys_in(from, slot);
            if keys.is_empty() {
                break;
            }
            for key in keys {
                self.cluster.move_key(from, to, &key);
            }
        }
        self.cluster.assign(slot, to);
    }
}

/// Returns a reply without the number of listeners, which a cluster does not know.
fn without_listeners(step: &str, reply: &str) -> String {
    match (step, reply.split_once(',')) {
        ("semaphore.add", Some((counted, _))) => counted.to_owned(),
        _ => reply.to_owned(),
    }
}

#[test]
fn steps_are_whole_while_their_slot_moves() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let cases = variable("LEASEHOLD_MOVING_CASES").unwrap_or(8);
    let seed = variable("LEASEHOLD_MOVING_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut stage = Stage::new(seed);
    let (mut at_once, mut waited) = (0, 0);
    for suite in &SUITES {
        for step in 0..suite.steps.len() {
            // Two kinds of steps are skipped: steps with keys in many slots, which report for each
            // key whether it exists, and steps without keys.
            if suite.steps[step].many || suite.steps[step].keys == 0 {
                continue;
            }
            for _ in 0..cases {
                match stage.try_one(suite, step) {
                    true => waited += 1,
                    false => at_once += 1,
                }
            }
        }
    }
    assert!(
        at_once > 0 && waited > 0,
        "{at_once} at once, {waited} later"
    );
}

/// Checks the undo of an acquire that was given up after it ran. The undo removes the marker of the
/// acquire and writes another one, which an open slot refuses.
#[test]
fn undo_gives_permits_back_while_its_slot_moves() {
    const PERMITS: usize = 5;
    let stage = Stage::new(0);
    let suite = &semaphore::SUITE;
    let step = |name: &str| {
        let named = suite.steps.iter().position(|step| step.name == name);
        named.expect("a step")
    };
    // The variant is the number of permits.
    let set = Action::Run(vec![(step("semaphore.set"), 0, 0, PERMITS)]);
    // In these two steps, the variant selects the marker. All permits are taken.
    let acquire = Action::Run(vec![(step("semaphore.acquire"), 0, 0, 2)]);
    // Another client waits, so every key of the undo exists. If one of its keys were missing in an
    // open slot, the server itself would refuse the step.
    let wait = Action::Run(vec![(step("semaphore.acquire"), 0, 1, 6)]);
    let undo = (step("semaphore.undo"), 0, 0, 2);
    for moved in [[false, false], [true, false], [false, true], [true, true]] {
        let [count, markers] = moved;
        let mut moves = |key: &str| if key == KEYS[0] { count } else { markers };
        let past = [set.clone(), acquire.clone(), wait.clone()];
        let waited = stage.try_case(suite, &past, undo, &mut moves);
        assert!(waited, "it ran in an open slot: {moved:?}");
        let owner = stage.cluster.node_of(KEYS[0]);
        let free = owner.command(&["GET", KEYS[0]]).unwrap();
        assert_eq!(free.as_text(), Some(PERMITS.to_string().as_str()));
    }
}
