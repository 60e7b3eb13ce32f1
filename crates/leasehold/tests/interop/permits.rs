//! All clients of one semaphore, or of one latch: clients of each Redisson that takes part, and of
//! this library. The checks apply to any cast of clients.

use std::time::Duration;

use leasehold::{Client, ExpirablePermit, SemaphorePermit};
use leasehold_testkit::redisson::RedissonThread;
use leasehold_testkit::{Redisson, RedissonVersion};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::between::{Between, POLL};
use crate::child;
use crate::javas::JavaClient;
use crate::sides::SOON;
use crate::support::{HOUR, eventually};
use crate::topology::Site;

const SHORT: Duration = Duration::from_millis(400);
const LEASE: Duration = Duration::from_millis(1500);

/// Permits that are only counted, or permits with ids and leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Counted,
    Leased,
}

impl Sort {
    pub(crate) fn named(name: &str) -> Self {
        let mut all = [Self::Counted, Self::Leased].into_iter();
        all.find(|sort| format!("{sort:?}") == name).unwrap()
    }

    async fn take_and_give_back(self, client: &Client) {
        match self {
            Self::Counted => {
                let semaphore = client.semaphore("x").poll_interval(POLL);
                semaphore.acquire().await.unwrap().release().await.unwrap();
            }
            Self::Leased => {
                let semaphore = client.expirable_semaphore("x").poll_interval(POLL);
                semaphore.acquire().await.unwrap().release().await.unwrap();
            }
        }
    }

    /// Takes a permit with a client of this library that only messages wake. Without a limit, this
    /// waits.
    pub(crate) async fn take(self, client: Client, limit: Option<Duration>) -> Option<Held> {
        let limit = limit.unwrap_or(SOON * 2);
        match self {
            Self::Counted => {
                let semaphore = client.semaphore("x").poll_interval(HOUR);
                let taken = match limit {
                    Duration::ZERO => semaphore.try_acquire().await,
                    limit => semaphore.try_acquire_for(limit).await,
                };
                taken.unwrap().map(Held::Counted)
            }
            Self::Leased => {
                let semaphore = client.expirable_semaphore("x").poll_interval(HOUR);
                let taken = match limit {
                    Duration::ZERO => semaphore.try_acquire().await,
                    limit => semaphore.try_acquire_for(limit).await,
                };
                taken.unwrap().map(Held::Leased)
            }
        }
    }
}

pub(crate) enum Held {
    Counted(SemaphorePermit),
    Leased(ExpirablePermit),
    /// A permit of Java's, with its id if it has one.
    Javas(Value),
}

enum Body {
    Java(RedissonThread),
    Rust(Client),
}

struct Scene {
    sort: Sort,
    site: Site,
    sides: Vec<Body>,
    /// Another client of this library, if Redisson's versions need it to hear each other.
    between: Option<Client>,
    _clients: Vec<JavaClient>,
}

impl Scene {
    /// Makes a scene with one permit.
    async fn new(cast: &[RedissonVersion], sort: Sort) -> Self {
        let site = Site::start_whole();
        let clients: Vec<_> = cast
            .iter()
            .map(|version| JavaClient::new(*version, &site.url(), None))
            .collect();
        let ours = Client::connect(&site.url()).await.unwrap();
        let threads: Vec<_> = clients.iter().map(|client| client.thread("t")).collect();
        site.fails_over(&ours, &threads).await;
        let is_set = match sort {
            Sort::Counted => ours.semaphore("x").try_set_permits(1).await,
            Sort::Leased => ours.expirable_semaphore("x").try_set_permits(1).await,
        };
        assert!(is_set.unwrap());
        Self {
            sort,
            sides: (threads.into_iter())
                .map(Body::Java)
                .chain([Body::Rust(ours)])
                .collect(),
            between: Between::client(&site, cast).await,
            site,
            _clients: clients,
        }
    }

    fn take(&self, side: usize, limit: Option<Duration>) -> JoinHandle<Option<Held>> {
        let thread = match &self.sides[side] {
            Body::Rust(client) => return tokio::spawn(self.sort.take(client.clone(), limit)),
            Body::Java(thread) => thread.clone(),
        };
        let (op, request) = match (self.sort, limit) {
            (Sort::Counted, None) => ("semaphore_acquire", json!({"permits": 1})),
            (Sort::Counted, Some(limit)) => {
                let wait = limit.as_millis() as u64;
                ("semaphore_try", json!({"permits": 1, "wait_ms": wait}))
            }
            (Sort::Leased, None) => ("expirable_acquire", json!({})),
            (Sort::Leased, Some(limit)) => {
                let wait = limit.as_millis() as u64;
                (
                    "expirable_try",
                    json!({"wait_ms": wait, "lease_ms": 60_000}),
                )
            }
        };
        let answer = call(&thread, op, request);
        tokio::spawn(async move {
            let value = answer.await.unwrap();
            let refused = value == false || (op == "expirable_try" && value.is_null());
            (!refused).then_some(Held::Javas(value))
        })
    }

    async fn gives_back(&self, side: usize, held: Held) {
        match (held, &self.sides[side]) {
            (Held::Counted(permit), _) => permit.release().await.unwrap(),
            (Held::Leased(permit), _) => permit.release().await.unwrap(),
            (Held::Javas(_), Body::Java(thread)) if self.sort == Sort::Counted => {
                let answer = call(thread, "semaphore_release", json!({"permits": 1}));
                answer.await.unwrap();
            }
            (Held::Javas(id), Body::Java(thread)) => {
                let answer = call(thread, "expirable_release", json!({"permit": id}));
                assert_eq!(answer.await.unwrap(), true);
            }
            _ => unreachable!("somebody else's"),
        }
    }

    /// Makes a side wait. Returns after the side has asked, listened and asked again.
    async fn waits(&self, side: usize) -> JoinHandle<Option<Held>> {
        let before = self.site.scripts();
        let task = self.take(side, None);
        let asked = || self.site.scripts().saturating_sub(before);
        eventually(&format!("side {side} waits"), async || {
            match &self.sides[side] {
                Body::Java(_) => asked() >= 2,
                // A test can't see whether Java listens.
                Body::Rust(client) => asked() >= 1 && client.activity().channels > 0,
            }
        })
        .await;
        assert!(!task.is_finished());
        task
    }

    async fn all_wait(&self) -> Vec<(usize, JoinHandle<Option<Held>>)> {
        let mut waiting = Vec::new();
        for side in 0..self.sides.len() {
            waiting.push((side, self.waits(side).await));
        }
        waiting
    }

    /// Starts another waiter of this library, which notifies the waiters that did not hear a
    /// release.
    fn passes_on(&self) -> Option<Between> {
        let (sort, client) = (self.sort, self.between.as_ref()?);
        Some(Between::start(client, move |client| async move {
            sort.take_and_give_back(&client).await;
        }))
    }

    /// Lets all waiters take the permit and release it.
    async fn serve(&self, mut waiting: Vec<(usize, JoinHandle<Option<Held>>)>) {
        let between = self.passes_on();
        while !waiting.is_empty() {
            let next = async || waiting.iter().any(|(_, task)| task.is_finished());
            let served = tokio::time::timeout(SOON, eventually("one is served", next)).await;
            assert!(served.is_ok(), "{} of them wait", waiting.len());
            let at = waiting.iter().position(|(_, task)| task.is_finished());
            let (side, task) = waiting.remove(at.unwrap());
            let others = waiting.iter().any(|(_, task)| task.is_finished());
            assert!(!others, "two have the only permit");
            self.gives_back(side, task.await.unwrap().unwrap()).await;
        }
        if let Some(between) = between {
            between.leaves().await;
        }
    }

    fn others(&self, side: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.sides.len()).filter(move |other| *other != side)
    }
}

/// Makes a call on `x`, which blocks its own thread.
fn call(thread: &RedissonThread, op: &str, mut request: Value) -> JoinHandle<Value> {
    request["name"] = "x".into();
    let pending = thread.start_call::<Value>(op, request);
    tokio::task::spawn_blocking(move || pending.wait(SOON * 2).unwrap().value)
}

pub(crate) async fn exhausted_semaphore_refuses_within_wait_limit(
    cast: &[RedissonVersion],
    sort: Sort,
) {
    let scene = Scene::new(cast, sort).await;
    for holder in 0..scene.sides.len() {
        let held = scene.take(holder, Some(Duration::ZERO)).await.unwrap();
        for other in scene.others(holder) {
            for limit in [Duration::ZERO, SHORT] {
                let taken = scene.take(other, Some(limit)).await.unwrap();
                assert!(taken.is_none(), "{other} beside {holder}");
            }
        }
        scene.gives_back(holder, held.unwrap()).await;
    }
}

pub(crate) async fn all_waiters_are_woken_in_turn(cast: &[RedissonVersion], sort: Sort) {
    let scene = Scene::new(cast, sort).await;
    for holder in 0..scene.sides.len() {
        let held = scene.take(holder, Some(Duration::ZERO)).await.unwrap();
        let mut waiting = Vec::new();
        for other in scene.others(holder) {
            waiting.push((other, scene.waits(other).await));
        }
        scene.gives_back(holder, held.unwrap()).await;
        scene.serve(waiting).await;
    }
}

/// A permit with a lease returns by itself. A permit that is only counted must be returned by
/// another client.
pub(crate) async fn the_permit_of_a_killed_process(cast: &[RedissonVersion], sort: Sort) {
    let scene = Scene::new(cast, sort).await;
    let url = scene.site.url();
    for version in cast {
        let victim = Redisson::start(*version, &url);
        victim.client("c", None).unwrap();
        let (op, request) = match sort {
            Sort::Counted => ("semaphore_acquire", json!({"permits": 1})),
            Sort::Leased => ("expirable_acquire_lease", json!({"lease_ms": 4000})),
        };
        call(&victim.thread("c", "t"), op, request).await.unwrap();
        let waiting = scene.all_wait().await;
        victim.kill();
        scene.give_back_for_the_dead().await;
        scene.serve(waiting).await;
    }
    let mut victim = child::hold_permit(sort, &url, LEASE);
    let waiting = scene.all_wait().await;
    victim.kill();
    scene.give_back_for_the_dead().await;
    scene.serve(waiting).await;
}

impl Scene {
    async fn give_back_for_the_dead(&self) {
        let Some(Body::Rust(client)) = self.sides.last() else {
            unreachable!("ours is the last");
        };
        if self.sort == Sort::Counted {
            let semaphore = client.semaphore("x");
            assert_eq!(semaphore.available_permits().await.unwrap(), 0);
            semaphore.add_permits(1).await.unwrap();
        }
    }
}

/// This library renews permits; Redisson does not.
pub(crate) async fn renewed_permit_stays_refused_to_java(cast: &[RedissonVersion]) {
    let scene = Scene::new(cast, Sort::Leased).await;
    let url = scene.site.url();
    let client = Client::builder().lease(LEASE).connect(&url).await.unwrap();
    let permit = client.expirable_semaphore("x").acquire().await.unwrap();
    let end = || {
        // The id is not text.
        let script = "return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]";
        let end = scene
            .site
            .server_of("x")
            .command(&["EVAL", script, "1", "{x}:timeout"])
            .unwrap();
        end.as_text().unwrap().to_owned()
    };
    let (mut last, mut renewals) = (end(), 0);
    eventually("it is renewed five times", async || {
        let now = end();
        renewals += u32::from(now != last);
        last = now;
        renewals > 5
    })
    .await;
    for other in 0..cast.len() {
        let taken = scene.take(other, Some(Duration::ZERO)).await.unwrap();
        assert!(taken.is_none());
    }
    permit.release().await.unwrap();
}

pub(crate) async fn last_count_down_wakes_latch_waiters_everywhere(cast: &[RedissonVersion]) {
    let site = Site::start();
    let clients: Vec<_> = cast
        .iter()
        .map(|version| JavaClient::new(*version, &site.url(), None))
        .collect();
    let ours = Client::connect(&site.url()).await.unwrap();
    let latch = ours.count_down_latch("x").poll_interval(HOUR);
    for last in 0..=cast.len() {
        assert!(latch.try_set_count(2).await.unwrap());
        let mut waiting = Vec::new();
        for client in &clients {
            // Redisson reads a latch with `GET`.
            let before = site.scripts() + site.calls("get");
            let thread = client.thread("waiter");
            waiting.push(call(&thread, "latch_await", json!({})));
            let asked = async || site.scripts() + site.calls("get") >= before + 2;
            eventually("it waits", asked).await;
        }
        let task = latch.clone();
        let before = site.scripts();
        let we_wait = tokio::spawn(async move { task.wait().await.unwrap() });
        // The waiter has asked once when it began, and once when its subscription was confirmed.
        eventually("we wait", async || site.scripts() >= before + 2).await;
        latch.count_down().await.unwrap();
        assert!(!we_wait.is_finished() && waiting.iter().all(|task| !task.is_finished()));
        match clients.get(last) {
            Some(client) => {
                let down = call(&client.thread("t"), "latch_down", json!({}));
                down.await.unwrap();
            }
            None => {
                latch.count_down().await.unwrap();
            }
        }
        let woken = tokio::time::timeout(SOON, we_wait).await;
        woken.expect("woken").unwrap();
        let all = futures_util::future::join_all(waiting);
        for done in tokio::time::timeout(SOON, all).await.expect("woken") {
            done.unwrap();
        }
    }
}
