//! A prefix of this library beside a `NameMapper` of Redisson's that adds the same prefix.

use leasehold::inspect::Found;
use leasehold::{Client, PermitId};
use leasehold_testkit::redisson::{Pending, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
use serde_json::{Value, json};

use crate::sides::SOON;
use crate::support::{HOUR, eventually};
use crate::what::What;

const PREFIX: &str = "app:";

struct Place {
    server: RedisServer,
    _redisson: Redisson,
    version: RedissonVersion,
    java: RedissonThread,
    ours: Client,
    /// A client without a prefix, for which tests write every name in full.
    plain: Client,
}

async fn place(version: RedissonVersion) -> Place {
    let server = crate::topology::start();
    let redisson = Redisson::start(version, &server.url());
    let settings = json!({ "prefix": PREFIX });
    redisson.client_with("c", &server.url(), settings).unwrap();
    let builder = Client::builder().prefix(PREFIX);
    Place {
        java: redisson.thread("c", "t"),
        ours: builder.connect(&server.url()).await.unwrap(),
        plain: Client::connect(&server.url()).await.unwrap(),
        _redisson: redisson,
        version,
        server,
    }
}

fn start(java: &RedissonThread, op: &str, name: &str, mut request: Value) -> Pending<Value> {
    request["name"] = name.into();
    java.start_call(op, request)
}

fn call(java: &RedissonThread, op: &str, name: &str, request: Value) -> Value {
    let answer = start(java, op, name, request).wait(SOON);
    answer.unwrap_or_else(|error| panic!("{op}: {error}")).value
}

impl Place {
    /// Waits until a client listens on this channel, which no other name of these tests has.
    async fn listens(&self, channel: &str) {
        eventually("somebody listens", async || {
            let channels = self.server.channels();
            channels.iter().any(|there| there.starts_with(channel))
        })
        .await;
    }

    /// Each side in turn holds a lock, refuses it to the other side, and wakes the other side.
    async fn passes_to_and_fro(&self, what: What, channel: &str) {
        let java = self.java.kind(what.java(self.version));
        let lock = what.ours(&self.ours);
        java.lock(what.name()).unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none(), "{what:?}");
        let name = format!("{PREFIX}{}", what.keys()[0]);
        let seen = self.plain.inspect(&name).await.unwrap();
        assert_ne!(seen.found, Found::Nothing, "{what:?}");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        self.listens(channel).await;
        java.unlock(what.name()).unwrap();
        let given = tokio::time::timeout(SOON, waiter).await;
        let guard = given.expect("woken by Java's message").unwrap();
        assert!(!java.try_lock(what.name()).unwrap().value, "{what:?}");
        let waiting = java.start_lock(what.name());
        eventually("Java waits", async || java.sleeps()).await;
        guard.release().await.unwrap();
        waiting.wait(SOON).expect("woken by our message");
        java.unlock(what.name()).unwrap();
    }

    async fn permits_pass_to_and_fro(&self) {
        let semaphore = self.ours.semaphore("count").poll_interval(HOUR);
        let one = || json!({"permits": 1});
        assert_eq!(call(&self.java, "semaphore_set", "count", one()), true);
        call(&self.java, "semaphore_acquire", "count", one());
        let ours = semaphore.clone();
        let waiter = tokio::spawn(async move { ours.acquire().await.unwrap() });
        self.listens("redisson_sc:{app:count}").await;
        call(&self.java, "semaphore_release", "count", one());
        let permit = tokio::time::timeout(SOON, waiter).await.expect("woken");
        let waiting = start(&self.java, "semaphore_acquire", "count", one());
        eventually("Java waits", async || self.java.sleeps()).await;
        permit.unwrap().release().await.unwrap();
        waiting.wait(SOON).expect("woken by our message");
        assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    }

    async fn latch_opens_for_both(&self) {
        let latch = self.ours.count_down_latch("gate").poll_interval(HOUR);
        let two = json!({"count": 2});
        assert_eq!(call(&self.java, "latch_set", "gate", two), true);
        let ours = latch.clone();
        let waiter = tokio::spawn(async move { ours.wait().await.unwrap() });
        self.listens("redisson_countdownlatch__channel__{app:gate}")
            .await;
        assert_eq!(latch.count_down().await.unwrap(), 1);
        call(&self.java, "latch_down", "gate", json!({}));
        tokio::time::timeout(SOON, waiter)
            .await
            .expect("woken")
            .unwrap();
    }

    async fn leased_permit_of_java_is_ours_by_id(&self) {
        let seats = self.ours.expirable_semaphore("seats").poll_interval(HOUR);
        assert!(seats.try_set_permits(1).await.unwrap());
        let lease = json!({"lease_ms": 3_600_000});
        let id = call(&self.java, "expirable_acquire_lease", "seats", lease);
        assert!(seats.try_acquire().await.unwrap().is_none());
        let id: PermitId = id.as_str().unwrap().parse().unwrap();
        let waiting = start(&self.java, "expirable_acquire", "seats", json!({}));
        eventually("Java waits", async || self.java.sleeps()).await;
        assert!(seats.release(id).await.unwrap());
        waiting.wait(SOON).expect("woken by our message");
    }

    /// Asserts that neither side has a key or a channel outside the prefix.
    fn is_all_behind_the_prefix(&self) {
        let named = self.server.keys().into_iter().chain(self.server.channels());
        for name in named.filter(|name| !name.starts_with("leasehold:client")) {
            assert!(name.contains(PREFIX), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefix_is_that_of_a_name_mapper() {
    let place = place(RedissonVersion::V4_7_0).await;
    let lock = "redisson_lock__channel:{app:x}";
    for what in [What::Plain, What::Fenced, What::Fair] {
        place.passes_to_and_fro(what, lock).await;
    }
    place
        .passes_to_and_fro(What::Write, "redisson_rwlock:{app:x}")
        .await;
    place
        .passes_to_and_fro(What::Group, "redisson_lock__channel:{app:G}")
        .await;
    place.permits_pass_to_and_fro().await;
    place.latch_opens_for_both().await;
    place.leased_permit_of_java_is_ours_by_id().await;
    place.is_all_behind_the_prefix();
}

/// The oldest version's mapper maps these names as this library does.
#[tokio::test(flavor = "multi_thread")]
async fn prefix_is_that_of_an_old_name_mapper() {
    let place = place(RedissonVersion::V3_16_8).await;
    let lock = "redisson_lock__channel:{app:x}";
    place.passes_to_and_fro(What::Plain, lock).await;
    place.permits_pass_to_and_fro().await;
    place.latch_opens_for_both().await;
    place.is_all_behind_the_prefix();
}
