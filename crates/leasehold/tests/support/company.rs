//! A company of tasks. Each task uses one feature under a name of its own, before, during and after
//! a fault, and checks what the docs promise for every fault. `docs/pairs.md` names these tasks.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::inspect::Found;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::slot::{Begin, TurnState};
use leasehold::testing::history::Recorder;
use leasehold::watch::{Change, Watch};
use leasehold::{
    AnyLock, Client, ClientBuilder, Embedded, ErrorKind, LockGuard, LossReason, MultiLock, Owner,
    ReadGuard, RedLock, WriteGuard, blocking,
};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use super::eventually;

/// A limit that only ends a hopeless wait.
const LONGEST: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_millis(5);
/// The number of holds that are renewed together.
const MANY: usize = 50;

/// The clients for all tasks, and their settings.
#[derive(Clone)]
pub(crate) struct Company {
    pub(crate) ours: Client,
    pub(crate) theirs: Client,
    /// The settings of each lock.
    pub(crate) set: fn(AnyLock) -> AnyLock,
    /// Two servers in addition to the clients' server. A `RedLock` needs the clients' server and
    /// one of these, or both of these.
    pub(crate) beside: [Embedded; 2],
    /// The client that the threads use, if there are threads.
    pub(crate) threads: Option<blocking::Client>,
    /// Whether the clients announce themselves, as clients of a real server do.
    pub(crate) is_announced: bool,
    /// The longest lease that any task sets.
    pub(crate) long: Duration,
}

/// The names that our client holds during the fault.
pub(crate) const OUR_NAMES: [&str; 18] = [
    "plain",
    "fenced",
    "fair",
    "write",
    "group",
    "leased",
    "handed over",
    "read",
    "run",
    "owned",
    "backed off",
    "two of several",
    "majority",
    "many 7",
    "tokens",
    "one of a circle",
    "turn",
    "watched",
];

/// Waits until the tasks have left no keys except for those that expire or count tokens.
pub(crate) async fn leaves_nothing(keys: impl Fn() -> Vec<String>) {
    eventually("nothing is left", async || {
        let mut keys = keys().into_iter();
        keys.all(|key| ends_by_itself(&key))
    })
    .await;
}

/// Returns whether a company may leave this key, because the key expires or counts tokens.
pub(crate) fn ends_by_itself(key: &str) -> bool {
    key.contains("_token:") || key.starts_with("leasehold:")
}

/// Returns whether the key may remain after the runtime of a settled company has ended: counts that
/// a client has set are permanent, but all holds and waits end.
pub(crate) fn stays_at_the_end(key: &str) -> bool {
    ends_by_itself(key) || key == "permits" || key.contains("leased") || key == "latch"
}

/// The part of the company that a task uses.
#[derive(Clone)]
struct Scene {
    company: Company,
    recorder: Recorder,
    /// The two stages: the fault begins, and the fault has ended.
    stages: Arc<[Barrier; 2]>,
}

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! parts {
    ($($part:ident),+ $(,)?) => {
        const PARTS: &[(&str, fn(Scene) -> Part)] =
            &[$((stringify!($part), |scene| Box::pin($part(scene)))),+];
    };
}

parts![
    plain,
    fenced,
    fair,
    write,
    group,
    semaphore,
    latch,
    hand_over,
    shared_readers,
    both_sides,
    exchange,
    fair_run,
    owner,
    extension,
    maximum,
    progress,
    forgotten,
    forced,
    unpolled,
    cancelled,
    back_off,
    several,
    majority,
    grouped_renewals,
    tokens,
    circle,
    told,
    threads,
    turn,
    watched,
];

impl Company {
    pub(crate) fn new(ours: &Client, theirs: &Client) -> Self {
        Self {
            ours: ours.clone(),
            theirs: theirs.clone(),
            set: |lock| lock,
            beside: [Embedded::new(), Embedded::new()],
            threads: None,
            is_announced: false,
            long: HOUR,
        }
    }

    /// Connects two clients to a real server.
    pub(crate) async fn connect(builder: &ClientBuilder, url: &str) -> Self {
        let ours = builder.connect(url).await.unwrap();
        let theirs = builder.connect(url).await.unwrap();
        Self {
            is_announced: true,
            ..Self::new(&ours, &theirs)
        }
    }

    /// Adds threads with a client of their own.
    pub(crate) async fn with_threads(self, builder: &ClientBuilder, url: &str) -> Self {
        let (builder, url) = (builder.clone(), url.to_owned());
        let connect = move || blocking::Client::connect_with(&builder, &url).unwrap();
        Self {
            threads: Some(spawn_blocking(connect).await.unwrap()),
            ..self
        }
    }

    /// Waits until the server answers each client again.
    pub(crate) async fn is_answered(&self) {
        let threads = self.threads.as_ref().map(blocking::Client::as_async);
        for client in [&self.ours, &self.theirs].into_iter().chain(threads) {
            while client.inspect("anything").await.is_err() {
                sleep(MOMENT).await;
            }
        }
    }

    /// Runs all tasks through a fault, and checks their holds.
    pub(crate) async fn goes_through(self, trouble: impl AsyncFnOnce()) {
        let (scene, mut tasks) = self.clone().begins();
        let [begun, over] = &*scene.stages;
        tokio::select! {
            _ = begun.wait() => {}
            ended = tasks.join_next() => panic!("one ended before the trouble: {ended:?}"),
        }
        trouble().await;
        self.is_answered().await;
        over.wait().await;
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert_eq!(scene.recorder.report().overlaps, []);
    }

    /// Starts all tasks, and returns when each has its first hold.
    pub(crate) async fn settles(self) {
        let (scene, mut tasks) = self.begins();
        scene.stages[0].wait().await;
        tasks.detach_all();
    }

    fn begins(self) -> (Scene, JoinSet<()>) {
        let scene = Scene {
            company: self,
            recorder: Recorder::new(),
            stages: Arc::new([(); 2].map(|()| Barrier::new(PARTS.len() + 1))),
        };
        let mut tasks = JoinSet::new();
        for (name, part) in PARTS {
            let part = part(scene.clone());
            tasks.spawn(async move {
                let done = timeout(LONGEST, part).await;
                done.unwrap_or_else(|_| panic!("{name} stands still"));
            });
        }
        (scene, tasks)
    }
}

impl Scene {
    /// Makes `lock` of our client and of theirs, with the company's settings.
    fn both<L: Into<AnyLock>>(&self, lock: impl Fn(&Client) -> L) -> [AnyLock; 2] {
        let clients = [&self.company.ours, &self.company.theirs];
        clients.map(|client| (self.company.set)(lock(client).into()))
    }

    fn plain(&self, name: &str) -> [AnyLock; 2] {
        self.both(|client| client.lock(name))
    }

    /// Applies the company's settings to `lock` again. This also gives the lock another owner.
    fn anew(&self, lock: AnyLock) -> AnyLock {
        (self.company.set)(lock)
    }

    /// Waits until the fault has ended.
    async fn trouble(&self) {
        for stage in &*self.stages {
            stage.wait().await;
        }
    }

    /// Waits for the lock in a task, holds it for a moment and releases it. The history records all
    /// of this.
    fn waits(&self, lock: AnyLock) -> JoinHandle<()> {
        let recorder = self.recorder.clone();
        tokio::spawn(async move {
            let asked = recorder.ask(lock.name(), "a waiter");
            let guard = lock.acquire().await.unwrap();
            let inside = asked.acquired(&guard);
            sleep(MOMENT).await;
            inside.releasing(&guard);
            guard.release().await.unwrap();
        })
    }

    /// Holds `held` during the fault while `waiters` wait. All of them are served afterwards.
    async fn hold_before(&self, held: AnyLock, waiters: impl IntoIterator<Item = AnyLock>) {
        let asked = self.recorder.ask(held.name(), "the first");
        let guard = held.acquire().await.unwrap();
        let inside = asked.acquired(&guard);
        let waiters = waiters.into_iter().map(|lock| self.waits(self.anew(lock)));
        let waiters: Vec<_> = waiters.collect();
        self.trouble().await;
        assert_eq!(guard.loss(), None, "{}", held.name());
        inside.releasing(&guard);
        guard.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
    }
}

async fn plain(scene: Scene) {
    let [ours, theirs] = scene.plain("plain");
    scene.hold_before(ours, [theirs]).await;
}

async fn fenced(scene: Scene) {
    let [ours, theirs] = scene.both(|client| client.fenced_lock("fenced"));
    scene.hold_before(ours, [theirs]).await;
}

async fn fair(scene: Scene) {
    let [ours, theirs] = scene.both(|client| client.fair_lock("fair"));
    scene.hold_before(ours, [theirs]).await;
}

async fn write(scene: Scene) {
    let [ours, theirs] = scene.both(|client| client.rw_lock("write").write_lock());
    scene.hold_before(ours, [theirs]).await;
}

async fn group(scene: Scene) {
    let [ours, theirs] = scene.both(|client| client.group_lock("group", ["a", "b"]));
    scene.hold_before(ours, [theirs]).await;
}

async fn semaphore(scene: Scene) {
    let [ours, theirs] = [&scene.company.ours, &scene.company.theirs];
    let [ours, theirs] = [ours, theirs].map(|client| client.semaphore("permits"));
    ours.try_set_permits(1).await.unwrap();
    let permit = ours.acquire().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.acquire().await.unwrap().release().await });
    scene.trouble().await;
    permit.release().await.unwrap();
    waiter.await.unwrap().unwrap();
    assert_eq!(ours.available_permits().await.unwrap(), 1);
    ours.delete().await.unwrap();
}

async fn latch(scene: Scene) {
    let [ours, theirs] = [&scene.company.ours, &scene.company.theirs];
    let [ours, theirs] = [ours, theirs].map(|client| client.count_down_latch("latch"));
    assert!(ours.try_set_count(2).await.unwrap());
    let waiter = tokio::spawn(async move { theirs.wait().await.unwrap() });
    assert_eq!(ours.count_down().await.unwrap(), 1);
    scene.trouble().await;
    assert_eq!(ours.count_down().await.unwrap(), 0);
    waiter.await.unwrap();
}

async fn hand_over(scene: Scene) {
    let [ours, theirs] = scene.plain("handed over");
    let waiters = [ours.clone(), ours.clone(), theirs, ours.clone()];
    scene.hold_before(ours, waiters).await;
}

async fn shared_readers(scene: Scene) {
    let [ours, _] = scene.both(|client| client.rw_lock("read").read_lock());
    let [_, writer] = scene.both(|client| client.rw_lock("read").write_lock());
    let readers = tokio::try_join!(ours.acquire(), ours.acquire(), ours.acquire()).unwrap();
    let writer = scene.waits(writer);
    scene.trouble().await;
    for reader in [readers.0, readers.1, readers.2] {
        assert_eq!(reader.loss(), None);
        reader.release().await.unwrap();
    }
    writer.await.unwrap();
}

/// A writer downgrades, and upgrades again.
async fn both_sides(scene: Scene) {
    let name = "both sides";
    let lock = scene.company.ours.rw_lock(name);
    let guard = lock.write().await.unwrap().downgrade().await.unwrap();
    let [_, theirs] = scene.both(|client| client.rw_lock(name).write_lock());
    assert!(theirs.try_acquire().await.unwrap().is_none());
    scene.trouble().await;
    let guard = until_upgraded(guard).await;
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let guard = guard.downgrade().await.unwrap();
    guard.release().await.unwrap();
    scene.waits(theirs).await.unwrap();
}

/// Retries the upgrade while a failover guard refuses every writer.
async fn until_upgraded(mut guard: ReadGuard) -> WriteGuard {
    loop {
        match guard.try_upgrade().await {
            Ok(guard) => return guard,
            Err(refused) => {
                assert!(refused.error().is_none(), "{refused:?}");
                guard = refused.into_guard();
            }
        }
        sleep(MOMENT).await;
    }
}

async fn exchange(scene: Scene) {
    let [ours, theirs] = [&scene.company.ours, &scene.company.theirs];
    let [ours, theirs] = [ours, theirs].map(|client| client.expirable_semaphore("leased"));
    ours.try_set_permits(1).await.unwrap();
    let permit = ours.acquire().await.unwrap();
    let waiters = [&ours, &theirs, &ours].map(|permits| {
        let permits = permits.clone();
        tokio::spawn(async move { permits.acquire().await.unwrap().release().await.unwrap() })
    });
    let long = scene.company.long;
    assert!(ours.update_lease(permit.id(), long).await.unwrap());
    scene.trouble().await;
    assert_eq!(permit.loss(), None);
    assert!(ours.update_lease(permit.id(), long).await.unwrap());
    permit.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(ours.available_permits().await.unwrap(), 1);
    ours.delete().await.unwrap();
}

/// The waiters get the lock in the order in which they asked.
async fn fair_run(scene: Scene) {
    // Their places outlast the fault.
    let [ours, theirs] = scene.both(|client| client.fair_lock("run").waiter_timeout(HOUR));
    let guard = ours.acquire().await.unwrap();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (number, lock) in [&ours, &ours, &theirs, &ours].into_iter().enumerate() {
        let (lock, told) = (scene.anew(lock.clone()), told.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            told.send(number).unwrap();
            guard.release().await.unwrap();
        }));
        let client = &scene.company.theirs;
        while client.inspect("run").await.unwrap().waiting.len() <= number {
            sleep(MOMENT).await;
        }
    }
    scene.trouble().await;
    assert_eq!(guard.loss(), None);
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    drop(told);
    let mut order = Vec::new();
    while let Some(number) = heard.recv().await {
        order.push(number);
    }
    assert_eq!(order, [0, 1, 2, 3]);
}

async fn owner(scene: Scene) {
    let [ours, theirs] = scene.plain("owned");
    let owner = Owner::new();
    let owned = ours.clone().owned_by(&owner);
    let outer = owned.acquire().await.unwrap();
    let inner = owned.acquire().await.unwrap();
    let waiters = [scene.waits(theirs), scene.waits(scene.anew(ours))];
    scene.trouble().await;
    let last = owned.acquire().await.unwrap();
    assert!(owned.is_held_by(&owner));
    for guard in [inner, outer, last] {
        assert_eq!(guard.loss(), None);
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

async fn extension(scene: Scene) {
    let [ours, theirs] = scene.plain("extended");
    let long = scene.company.long;
    let guard = ours.fixed_lease(long / 2).acquire().await.unwrap();
    guard.extend(long).await.unwrap();
    scene.trouble().await;
    let before = Instant::now();
    guard.extend(long).await.unwrap();
    assert!(guard.valid_until() > before + long / 2);
    guard.release().await.unwrap();
    scene.waits(theirs).await.unwrap();
}

async fn maximum(scene: Scene) {
    let [ours, theirs] = scene.plain("limited");
    let limit = Duration::from_millis(300);
    let guard = ours.max_hold(limit).acquire().await.unwrap();
    let waiter = scene.waits(theirs);
    scene.trouble().await;
    assert_eq!(guard.lost().await, LossReason::MaxHold { limit });
    waiter.await.unwrap();
}

async fn progress(scene: Scene) {
    let [ours, theirs] = scene.plain("stalling");
    let (lease, within) = (Duration::from_millis(600), Duration::from_millis(300));
    let stalling = ours.lease(lease).progress_within(within);
    let guard = stalling.acquire().await.unwrap();
    let waiter = scene.waits(theirs);
    scene.trouble().await;
    // During a fault, a renewal may fail before it is refused.
    guard.lost().await;
    waiter.await.unwrap();
}

async fn forgotten(scene: Scene) {
    let [ours, theirs] = scene.plain("forgotten");
    let lease = Duration::from_millis(500);
    let guard = ours.fixed_lease(lease).acquire().await.unwrap();
    guard.forget();
    let waiter = scene.waits(theirs);
    scene.trouble().await;
    waiter.await.unwrap();
}

async fn forced(scene: Scene) {
    let name = "forced";
    let [ours, _] = scene.plain(name);
    let guard = ours.acquire().await.unwrap();
    scene.trouble().await;
    let forced = scene.company.theirs.lock(name).force_unlock().await;
    assert!(forced.unwrap());
    let reason = guard.lost().await;
    let told = matches!(reason, LossReason::Forced { .. } | LossReason::Deleted);
    assert!(told, "{reason}");
    let released = guard.release().await.unwrap_err();
    assert_eq!(released.kind(), ErrorKind::Lost);
}

/// An unpolled waiter does not delay other waiters, and gets the lock when it is polled again.
async fn unpolled(scene: Scene) {
    let [ours, theirs] = scene.plain("unpolled");
    let guard = theirs.acquire().await.unwrap();
    let mut first = pin!(ours.acquire());
    for _ in 0..5 {
        assert!(first.as_mut().now_or_never().is_none());
        sleep(MOMENT).await;
    }
    let second = scene.waits(scene.anew(ours.clone()));
    scene.trouble().await;
    guard.release().await.unwrap();
    second.await.unwrap();
    let first = first.await.unwrap();
    assert_eq!(first.loss(), None);
    first.release().await.unwrap();
}

/// Acquires that were abandoned leave nothing behind.
async fn cancelled(scene: Scene) {
    let [ours, theirs] = scene.plain("cancelled");
    let guard = theirs.acquire().await.unwrap();
    let waiters = [(); 3].map(|()| scene.waits(scene.anew(ours.clone())));
    let mut trouble = pin!(scene.trouble());
    loop {
        tokio::select! {
            biased;
            () = &mut trouble => break,
            // This acquires a name that is sometimes free, and is then dropped.
            _ = timeout(MOMENT, theirs_of(&scene)) => {}
        }
        sleep(MOMENT).await;
    }
    for waiter in waiters {
        waiter.abort();
    }
    guard.release().await.unwrap();
    for name in ["cancelled", "dropped"] {
        let [ours, _] = scene.plain(name);
        scene.waits(ours).await.unwrap();
    }
}

async fn theirs_of(scene: &Scene) -> leasehold::Result<LockGuard> {
    let [ours, _] = scene.plain("dropped");
    let guard = ours.acquire().await?;
    sleep(2 * MOMENT).await;
    Ok(guard)
}

async fn back_off(scene: Scene) {
    let [ours, theirs] = scene.plain("backed off");
    let strategy = WaitStrategy::Backoff(Backoff::constant(2 * MOMENT));
    let theirs = theirs.wait_strategy(strategy);
    scene.hold_before(ours, [theirs.clone(), theirs]).await;
}

async fn several(scene: Scene) {
    let [ours, theirs] = scene.both(|client| {
        let members: [AnyLock; 3] = [
            client.lock("one of several").into(),
            client.fair_lock("two of several").into(),
            client.rw_lock("three of several").write_lock().into(),
        ];
        MultiLock::new(members).unwrap()
    });
    scene.hold_before(ours, [theirs]).await;
}

async fn majority(scene: Scene) {
    let beside = scene.company.beside.each_ref().map(Embedded::client);
    let [ours, theirs] = scene.both(|client| {
        let members = [client, &beside[0], &beside[1]];
        let members = members.map(|client| client.lock("majority"));
        RedLock::new(members).unwrap().distrust_restarted(false)
    });
    scene.hold_before(ours, [theirs]).await;
}

async fn grouped_renewals(scene: Scene) {
    let mut guards = Vec::new();
    for number in 0..MANY {
        let [ours, _] = scene.plain(&format!("many {number}"));
        guards.push(ours.acquire().await.unwrap());
    }
    scene.trouble().await;
    let before: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    for (guard, before) in guards.iter().zip(before) {
        while guard.valid_until() <= before {
            assert_eq!(guard.loss(), None);
            sleep(MOMENT).await;
        }
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

async fn tokens(scene: Scene) {
    let (ours, theirs) = (&scene.company.ours, &scene.company.theirs);
    let (fenced, plain) = (ours.fenced_lock("tokens"), theirs.lock("tokens"));
    let guard = fenced.acquire().await.unwrap();
    let first = guard.token();
    scene.trouble().await;
    guard.release().await.unwrap();
    let guard = plain.acquire().await.unwrap();
    let second = guard.fencing_token().await.unwrap();
    assert!(second > first, "{second} behind {first}");
    guard.release().await.unwrap();
    let guard = fenced.acquire().await.unwrap();
    assert!(guard.token() > second);
    guard.release().await.unwrap();
}

/// Two owners wait for each other. The one that completes the cycle gets an error.
async fn circle(scene: Scene) {
    // A hold with a maximum does not complete a cycle.
    let names = ["one of a circle", "other of a circle"];
    let [one, other] = names.map(|name| AnyLock::from(scene.company.ours.lock(name)));
    let owners = [Owner::new(), Owner::new()];
    let first = one.clone().owned_by(&owners[0]).acquire().await.unwrap();
    let second = other.clone().owned_by(&owners[1]).acquire().await.unwrap();
    let waiter = scene.waits(other.owned_by(&owners[0]));
    scene.trouble().await;
    let closes = one.owned_by(&owners[1]).acquire().await.unwrap_err();
    assert_eq!(closes.kind(), ErrorKind::Deadlock);
    second.release().await.unwrap();
    waiter.await.unwrap();
    first.release().await.unwrap();
}

/// A client waits for the turn that another client has, and learns that the turn is done.
async fn turn(scene: Scene) {
    let [ours, theirs] = [&scene.company.ours, &scene.company.theirs];
    let [ours, theirs] = [ours, theirs].map(|client| client.lock("turn").once_for("today"));
    let Begin::Run(turn) = ours.begin().await.unwrap() else {
        panic!("no client has asked before");
    };
    let hold = turn.holder_id().to_owned();
    let waiter = tokio::spawn(async move { theirs.begin().await.unwrap() });
    scene.trouble().await;
    assert_eq!(turn.loss(), None);
    turn.done().await.unwrap();
    match waiter.await.unwrap() {
        Begin::Done(info) => assert_eq!((info.hold, info.state), (hold, TurnState::Done)),
        other => panic!("{other:?}"),
    }
}

/// A client that neither holds the lock nor waits for it sees the hold and its end.
async fn watched(scene: Scene) {
    let [ours, _] = scene.plain("watched");
    let guard = ours.acquire().await.unwrap();
    let mut watch = scene.company.theirs.watch("watched");
    until_seen(
        &mut watch,
        |change| matches!(change, Change::Held(party) if party.id == guard.holder_id()),
    )
    .await;
    scene.trouble().await;
    guard.release().await.unwrap();
    until_seen(&mut watch, |change| matches!(change, Change::Freed)).await;
}

/// Reads the watch until it reports this change. During a fault, a request may fail.
async fn until_seen(watch: &mut Watch, wanted: impl Fn(&Change) -> bool) {
    loop {
        match watch.next().await.expect("it does not end") {
            Ok(change) if wanted(&change) => return,
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::Misuse, "{error}"),
        }
    }
}

/// An operator sees the holder and the waiter, before the fault and after it.
async fn told(scene: Scene) {
    let [ours, theirs] = scene.plain("told");
    if !scene.company.is_announced {
        return scene.hold_before(ours, [theirs]).await;
    }
    let guard = ours.acquire().await.unwrap();
    let waiter = scene.waits(theirs);
    until_known(&scene).await;
    scene.trouble().await;
    until_known(&scene).await;
    guard.release().await.unwrap();
    waiter.await.unwrap();
}

/// Waits until an operator sees the holder and the waiter.
async fn until_known(scene: &Scene) {
    let (holder, waiter) = (scene.company.ours.id(), scene.company.theirs.id());
    loop {
        let seen = scene.company.theirs.inspect("told").await;
        if let Ok(seen) = seen
            && let Found::Lock(hold) = &seen.found
            && hold
                .client
                .as_ref()
                .is_some_and(|client| client.id == holder)
            && seen.waiting.iter().any(|one| one.id == waiter)
        {
            return;
        }
        sleep(MOMENT).await;
    }
}

/// A thread holds the lock, and another thread waits for it.
async fn threads(scene: Scene) {
    let Some(client) = scene.company.threads.clone() else {
        let [ours, theirs] = scene.plain("threads");
        return scene.hold_before(ours, [theirs]).await;
    };
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (go_on, over) = mpsc::channel::<()>();
    let holder = client.clone();
    let holder = spawn_blocking(move || {
        let guard = holder.lock("threads").acquire().unwrap();
        held.send(()).unwrap();
        let _ = over.recv();
        assert!(guard.is_held());
        guard.release().unwrap();
    });
    is_held.await.unwrap();
    let waiter = spawn_blocking(move || client.lock("threads").acquire()?.release());
    scene.trouble().await;
    drop(go_on);
    holder.await.unwrap();
    waiter.await.unwrap().unwrap();
}
