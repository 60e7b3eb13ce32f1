//! Everybody who uses one lock: clients of each Redisson that takes part, and ours. A
//! check that is written for them holds for every primitive and every cast.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold::{BackOff, Client, Kind, Lock, LockGuard, MultiLock, RedLock, WaitStrategy};
use leasehold_testkit::redisson::{LockKind, Pending, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{HOUR, eventually};
use crate::topology;

/// Long before a lease of 30 s ends.
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// The exclusive primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Plain,
    Spin,
    Fenced,
    Fair,
    Write,
    Multi,
    Red,
    Group,
}

impl What {
    pub(crate) const ALL: [Self; 8] = [
        Self::Plain,
        Self::Spin,
        Self::Fenced,
        Self::Fair,
        Self::Write,
        Self::Multi,
        Self::Red,
        Self::Group,
    ];

    /// As it is shown for debugging.
    pub(crate) fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|what| format!("{what:?}") == name).unwrap()
    }

    /// 3.16.8 has no fenced lock; its plain one has the same key.
    pub(crate) fn java(self, version: RedissonVersion) -> LockKind {
        match self {
            Self::Fenced if version == RedissonVersion::V3_16_8 => LockKind::Plain,
            Self::Plain => LockKind::Plain,
            Self::Spin => LockKind::Spin,
            Self::Fenced => LockKind::Fenced,
            Self::Fair => LockKind::Fair,
            Self::Write => LockKind::Write,
            Self::Multi => LockKind::Multi,
            Self::Red => LockKind::Red,
            Self::Group => LockKind::Group,
        }
    }

    /// What Java calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Multi => "a,b",
            Self::Red => "a,b,c",
            Self::Group => "G/a,b",
            _ => "x",
        }
    }

    /// Where its holds stand.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Multi => &["a", "b"],
            Self::Red => &["a", "b", "c"],
            Self::Group => &["G"],
            _ => &["x"],
        }
    }

    /// Ours, which asks once an hour: only a message or the end of a lease makes it.
    pub(crate) fn ours(self, client: &Client) -> Box<dyn AnyLock> {
        let members = |names: &[&str]| -> Vec<_> {
            let one = |name: &&str| client.lock(name).poll_cap(HOUR);
            names.iter().map(one).collect()
        };
        match self {
            Self::Plain => Box::new(client.lock("x").poll_cap(HOUR)),
            // A spin unlock of Redisson publishes nothing.
            Self::Spin => {
                let back_off = WaitStrategy::BackOff(BackOff::exponential());
                Box::new(client.lock("x").wait_strategy(back_off))
            }
            Self::Fenced => Box::new(client.fenced_lock("x").poll_cap(HOUR)),
            Self::Fair => Box::new(client.fair_lock("x").poll_cap(HOUR)),
            Self::Write => Box::new(client.rw_lock("x").poll_cap(HOUR).write_lock()),
            Self::Multi => Box::new(MultiLock::new(members(self.keys())).unwrap().poll_cap(HOUR)),
            Self::Red => {
                let lock = RedLock::new(members(self.keys())).unwrap();
                // The server has just been started. That a lease has ended it sees by its polls.
                let lock = lock.distrust_restarted(false);
                Box::new(lock.poll_cap(Duration::from_secs(2)))
            }
            Self::Group => Box::new(client.group_lock("G", ["a", "b"]).poll_cap(HOUR)),
        }
    }

    async fn force_unlock(self, client: &Client) {
        let done = match self {
            Self::Plain | Self::Spin => client.lock("x").force_unlock().await,
            Self::Fenced => client.fenced_lock("x").force_unlock().await,
            Self::Fair => client.fair_lock("x").force_unlock().await,
            Self::Write => client.rw_lock("x").write_lock().force_unlock().await,
            Self::Group => client.group_lock("G", ["a", "b"]).force_unlock().await,
            Self::Multi | Self::Red => panic!("its members are forced one by one"),
        };
        assert!(done.unwrap());
    }
}

/// A lock of ours of whatever kind.
pub(crate) trait AnyLock: Send + Sync {
    /// Without a limit it waits for ever; with none left it asks once.
    fn acquire(&self, limit: Option<Duration>) -> BoxFuture<'static, Option<LockGuard>>;

    /// With a lease that nobody renews.
    fn acquire_leased(&self, lease: Duration) -> BoxFuture<'static, LockGuard>;
}

impl<K: Kind> AnyLock for Lock<K> {
    fn acquire(&self, limit: Option<Duration>) -> BoxFuture<'static, Option<LockGuard>> {
        let lock = self.clone();
        Box::pin(async move {
            let guard = match limit {
                None => Some(lock.acquire().await.unwrap()),
                Some(Duration::ZERO) => lock.try_acquire().await.unwrap(),
                Some(limit) => lock.try_acquire_for(limit).await.unwrap(),
            };
            guard.map(Into::into)
        })
    }

    fn acquire_leased(&self, lease: Duration) -> BoxFuture<'static, LockGuard> {
        let lock = self.clone().lease(lease);
        Box::pin(async move { lock.acquire().await.unwrap().into() })
    }
}

/// A server and everybody at it: Redisson in these versions, then ours.
pub(crate) struct Scene {
    pub(crate) what: What,
    pub(crate) server: RedisServer,
    pub(crate) sides: Vec<Side>,
}

impl Scene {
    pub(crate) async fn new(cast: &[RedissonVersion], what: What) -> Self {
        Self::with_watchdog(cast, what, None).await
    }

    pub(crate) async fn with_watchdog(
        cast: &[RedissonVersion],
        what: What,
        watchdog: Option<Duration>,
    ) -> Self {
        let server = topology::start();
        let mut sides: Vec<_> = cast
            .iter()
            .map(|version| Side::java(*version, what, &server.url(), watchdog))
            .collect();
        sides.push(Side::rust(what, &server.url(), watchdog).await);
        Self {
            what,
            server,
            sides,
        }
    }

    /// Makes a side wait; returns when it does: it has asked once, listens, and has asked
    /// once more.
    pub(crate) async fn waits(&mut self, side: usize, limit: Option<Duration>) -> Waiting {
        let (before, queued) = (scripts(&self.server), self.queue().await);
        let waiting = self.sides[side].start_lock(limit);
        let in_line = async || self.what != What::Fair || self.queue().await > queued;
        let asked = || scripts(&self.server).saturating_sub(before);
        eventually(&format!("{} waits", self.sides[side].who), async || {
            asked() >= self.sides[side].asks() && self.sides[side].listens() && in_line().await
        })
        .await;
        assert!(!waiting.is_done(), "{} got it", self.sides[side].who);
        waiting
    }

    /// How many stand before the fair lock.
    pub(crate) async fn queue(&self) -> usize {
        let key = "redisson_lock_queue:{x}";
        let length = self.server.command(&["LLEN", key]).unwrap();
        usize::try_from(length.as_int().unwrap()).unwrap()
    }

    /// Lets all who wait in, one after the other; says in which order they came.
    pub(crate) async fn serve(&mut self, mut waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let next = async || waiting.iter().any(|(_, waiting)| waiting.is_done());
            let woken = tokio::time::timeout(SOON, eventually("one is served", next)).await;
            let who = |list: &[(usize, Waiting)]| -> Vec<_> {
                list.iter()
                    .map(|(side, _)| self.sides[*side].who.clone())
                    .collect()
            };
            assert!(
                woken.is_ok(),
                "after {order:?} nobody of {:?}",
                who(&waiting)
            );
            let at = waiting.iter().position(|(_, waiting)| waiting.is_done());
            let (side, done) = waiting.remove(at.unwrap());
            self.sides[side].got(done).await;
            let both = waiting.iter().find(|(_, waiting)| waiting.is_done());
            assert!(both.is_none(), "two hold it at once");
            assert!(self.sides[side].unlock().await);
            order.push(side);
        }
        order
    }

    /// No hold is left.
    pub(crate) async fn is_free(&self) {
        let is_free = async || {
            let keys = self.server.keys();
            !keys
                .iter()
                .any(|key| self.what.keys().contains(&key.as_str()))
        };
        eventually("it is free", is_free).await;
    }

    pub(crate) async fn all_but_ours_wait(&mut self) -> Vec<(usize, Waiting)> {
        let mut waiting = Vec::new();
        for side in 0..self.sides.len() - 1 {
            waiting.push((side, self.waits(side, None).await));
        }
        waiting
    }

    /// One more of ours in line, behind all others. A head of Redisson's in a fair queue that
    /// nobody calls may sleep for ever (3.16.8), and a bare end of a lease calls nobody; ours
    /// call it.
    pub(crate) async fn ours_behind(&mut self) -> Option<Waiting> {
        match self.what {
            What::Fair => {
                let ours = self.sides.len() - 1;
                Some(self.waits(ours, None).await)
            }
            _ => None,
        }
    }

    /// All but this one.
    pub(crate) fn others(&self, side: usize) -> Vec<usize> {
        (0..self.sides.len())
            .filter(|other| *other != side)
            .collect()
    }
}

/// Somebody who can hold it.
pub(crate) struct Side {
    pub(crate) who: String,
    what: What,
    body: Body,
}

#[allow(clippy::large_enum_variant, reason = "there are three per test")]
enum Body {
    Java {
        _client: JavaClient,
        thread: RedissonThread,
        other_thread: RedissonThread,
    },
    Rust {
        client: Client,
        lock: Box<dyn AnyLock>,
        guard: Option<LockGuard>,
    },
}

impl Side {
    fn java(version: RedissonVersion, what: What, url: &str, watchdog: Option<Duration>) -> Self {
        let client = JavaClient::new(version, url, watchdog);
        let thread = |name| client.thread(name).kind(what.java(version));
        Self {
            who: format!("Redisson {version}"),
            what,
            body: Body::Java {
                thread: thread("t"),
                other_thread: thread("other"),
                _client: client,
            },
        }
    }

    async fn rust(what: What, url: &str, watchdog: Option<Duration>) -> Self {
        let mut builder = Client::builder();
        if let Some(watchdog) = watchdog {
            builder = builder.lease(watchdog);
        }
        let client = builder.connect(url).await.unwrap();
        Self {
            who: "ours".into(),
            what,
            body: Body::Rust {
                lock: what.ours(&client),
                client,
                guard: None,
            },
        }
    }

    /// How often it asks at least before it sleeps: Java once more when it listens, which is
    /// not to be seen; ours may listen already.
    fn asks(&self) -> u64 {
        match &self.body {
            Body::Java { .. } => 2,
            Body::Rust { .. } => 1,
        }
    }

    fn listens(&self) -> bool {
        match &self.body {
            Body::Rust { client, .. } => self.what == What::Spin || client.activity().channels > 0,
            Body::Java { .. } => true,
        }
    }

    pub(crate) async fn lock(&mut self) {
        let waiting = self.start_lock(None);
        self.got(waiting).await;
    }

    pub(crate) async fn lock_leased(&mut self, lease: Duration) {
        match &mut self.body {
            Body::Java { thread, .. } => {
                thread.lock_lease(self.what.name(), lease).unwrap();
            }
            Body::Rust { lock, guard, .. } => *guard = Some(lock.acquire_leased(lease).await),
        }
    }

    /// Asks once, or for so long.
    pub(crate) async fn try_lock(&mut self, limit: Duration) -> bool {
        let name = self.what.name();
        match &mut self.body {
            Body::Java { thread, .. } if limit.is_zero() => thread.try_lock(name).unwrap().value,
            Body::Java { thread, .. } => thread.try_lock_wait(name, limit, None).unwrap().value,
            Body::Rust { lock, guard, .. } => {
                *guard = lock.acquire(Some(limit)).await;
                guard.is_some()
            }
        }
    }

    fn start_lock(&self, limit: Option<Duration>) -> Waiting {
        let name = self.what.name();
        match (&self.body, limit) {
            (Body::Java { thread, .. }, None) => Waiting::Java(thread.start_lock(name)),
            (Body::Java { thread, .. }, Some(limit)) => {
                Waiting::JavaFor(thread.start_try_lock_wait(name, limit, None))
            }
            (Body::Rust { lock, .. }, limit) => Waiting::Rust(tokio::spawn(lock.acquire(limit))),
        }
    }

    /// Takes what it waited for.
    pub(crate) async fn got(&mut self, waiting: Waiting) {
        match (waiting, &mut self.body) {
            (Waiting::Java(pending), _) => {
                pending.wait(SOON).expect("in time");
            }
            (Waiting::JavaFor(pending), _) => {
                assert!(pending.wait(SOON).expect("in time").value, "refused");
            }
            (Waiting::Rust(task), Body::Rust { guard, .. }) => {
                let given = tokio::time::timeout(SOON, task).await.expect("in time");
                *guard = Some(given.unwrap().expect("not refused"));
            }
            _ => unreachable!("somebody else's"),
        }
    }

    /// Whether it still had it.
    pub(crate) async fn unlock(&mut self) -> bool {
        match &mut self.body {
            Body::Java { thread, .. } => match thread.unlock(self.what.name()) {
                Ok(_) => true,
                Err(error) => {
                    // That of a multi-lock hides it in another one.
                    let said = error.to_string();
                    assert!(said.contains("IllegalMonitorState"), "{said}");
                    false
                }
            },
            Body::Rust { guard, .. } => guard.take().unwrap().release().await.is_ok(),
        }
    }

    /// Takes it away from whoever holds it.
    pub(crate) async fn force_unlock(&self) {
        match &self.body {
            // Its value is wrong for a group of two.
            Body::Java { other_thread, .. } => {
                other_thread.force_unlock(self.what.name()).unwrap();
            }
            Body::Rust { client, .. } => self.what.force_unlock(client).await,
        }
    }
}

/// A client of Redisson's; it is closed when this is dropped.
pub(crate) struct JavaClient {
    redisson: &'static Redisson,
    name: String,
}

impl JavaClient {
    pub(crate) fn new(version: RedissonVersion, url: &str, watchdog: Option<Duration>) -> Self {
        let watchdog_ms = watchdog.map(|watchdog| watchdog.as_millis() as u64);
        Self::with(version, url, json!({ "watchdog_ms": watchdog_ms }))
    }

    /// With settings of the driver's.
    pub(crate) fn with(version: RedissonVersion, url: &str, settings: Value) -> Self {
        static CLIENTS: AtomicU32 = AtomicU32::new(0);
        let redisson = jvm(version);
        let name = format!("c{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        redisson.client_with(&name, url, settings).unwrap();
        Self { redisson, name }
    }

    pub(crate) fn thread(&self, name: &str) -> RedissonThread {
        self.redisson.thread(&self.name, name)
    }
}

impl Drop for JavaClient {
    fn drop(&mut self) {
        // A test that fails has other troubles.
        let _ = self.redisson.close_client(&self.name);
    }
}

pub(crate) enum Waiting {
    Java(Pending<()>),
    JavaFor(Pending<bool>),
    Rust(JoinHandle<Option<LockGuard>>),
}

impl Waiting {
    /// What came of a wait with a limit.
    pub(crate) async fn granted(self) -> bool {
        match self {
            Self::Java(_) => unreachable!("it has no limit"),
            Self::JavaFor(pending) => pending.wait(SOON).unwrap().value,
            Self::Rust(task) => task.await.unwrap().is_some(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Java(pending) => pending.is_done(),
            Self::JavaFor(pending) => pending.is_done(),
            Self::Rust(task) => task.is_finished(),
        }
    }
}

/// One for all tests of a version: to start one takes longer than most of them. It ends
/// with this process, which closes its input.
fn jvm(version: RedissonVersion) -> &'static Redisson {
    static JVMS: [OnceLock<Redisson>; 2] = [const { OnceLock::new() }; 2];
    let at = RedissonVersion::ALL.iter().position(|one| *one == version);
    // Its clients say where they connect.
    JVMS[at.unwrap()].get_or_init(|| Redisson::start(version, "redis://127.0.0.1:1"))
}

/// A process of its own, which can be killed, and a thread that has the lock there.
pub(crate) fn java_that_holds(
    version: RedissonVersion,
    what: What,
    url: &str,
    watchdog: Duration,
) -> Redisson {
    let redisson = Redisson::start(version, url);
    redisson.client("c", Some(watchdog)).unwrap();
    let thread = redisson.thread("c", "t").kind(what.java(version));
    thread.lock(what.name()).unwrap();
    redisson
}

/// How many scripts a server has run.
pub(crate) fn scripts(server: &RedisServer) -> u64 {
    calls(server, "cmdstat_eval")
}

/// How many commands it has run whose line of statistics starts so.
pub(crate) fn calls(server: &RedisServer, line: &str) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap();
    let lines = info.as_text().unwrap().lines();
    lines
        .filter(|there| there.starts_with(line))
        .map(|there| -> u64 {
            let calls = there.split_once("calls=").unwrap().1;
            calls.split(',').next().unwrap().parse().unwrap()
        })
        .sum()
}
