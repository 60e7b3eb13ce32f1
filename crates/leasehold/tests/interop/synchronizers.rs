//! The rows of semaphores and latches: counts, exclusion, expiry, and each side woken by the other.
//! Our clients poll once an hour and Redisson's never, so only a message can have woken them.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::{Client, PermitId};
use leasehold_testkit::redisson::{Pending, RedissonThread};
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
use serde_json::{Value, json};

use super::VERSION;
use crate::support::{HOUR, eventually};

/// A limit that ends long before any poll, lease or limit in these tests.
const SOON: Duration = Duration::from_secs(15);

struct Place {
    server: RedisServer,
    _redisson: Redisson,
    java: RedissonThread,
    waiter: RedissonThread,
    rust: Client,
}

async fn place() -> Place {
    let server = crate::topology::start();
    let redisson = Redisson::start(VERSION, &server.url());
    redisson.client("c", None).unwrap();
    Place {
        java: redisson.thread("c", "t"),
        waiter: redisson.thread("c", "waiter"),
        rust: Client::connect(&server.url()).await.unwrap(),
        _redisson: redisson,
        server,
    }
}

/// Starts a call on `x`.
fn start(java: &RedissonThread, op: &str, mut request: Value) -> Pending<Value> {
    request["name"] = "x".into();
    java.start_call(op, request)
}

fn call(java: &RedissonThread, op: &str, request: Value) -> Value {
    let answer = start(java, op, request).wait(Duration::from_secs(60));
    answer.unwrap_or_else(|error| panic!("{op}: {error}")).value
}

impl Place {
    async fn listens(&self, channel: &str) {
        eventually("somebody listens", async || {
            self.server.channels().contains(&channel.to_owned())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_counted_alike_and_exclude_both_sides() {
    let Place { java, rust, .. } = &place().await;
    let semaphore = rust.semaphore("x");
    assert_eq!(call(java, "semaphore_set", json!({"permits": 3})), true);
    assert!(!semaphore.try_set_permits(9).await.unwrap());
    call(java, "semaphore_acquire", json!({"permits": 2}));
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    let one = semaphore.try_acquire().await.unwrap().unwrap();
    let refused = json!({"permits": 1, "wait_ms": 100});
    assert_eq!(call(java, "semaphore_try", refused.clone()), false);
    one.release().await.unwrap();
    assert_eq!(call(java, "semaphore_try", refused), true);
    semaphore.add_permits(4).await.unwrap();
    assert_eq!(call(java, "semaphore_available", json!({})), 4);
    assert_eq!(call(java, "semaphore_drain", json!({})), 4);
    semaphore.add_permits(-2).await.unwrap();
    assert_eq!(call(java, "semaphore_available", json!({})), -2);
    call(java, "semaphore_add", json!({"permits": 7}));
    assert_eq!(semaphore.drain().await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_ours_wakes_a_java_waiter() {
    let place = place().await;
    let semaphore = place.rust.semaphore("x");
    semaphore.try_set_permits(2).await.unwrap();
    let mut held = semaphore.acquire_many(2).await.unwrap();
    let waiter = start(&place.waiter, "semaphore_acquire", json!({"permits": 2}));
    place.listens("redisson_sc:{x}").await;
    // The first change is negative, and the second adds too few permits. Neither must harm the
    // waiter's listener.
    semaphore.add_permits(-3).await.unwrap();
    semaphore.add_permits(3).await.unwrap();
    held.split(1).unwrap().release().await.unwrap();
    drop(held);
    waiter.wait(SOON).expect("woken by our message");
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_permit_wakes_java_waiter() {
    let place = place().await;
    let semaphore = place.rust.semaphore("x");
    semaphore.try_set_permits(1).await.unwrap();
    let held = semaphore.acquire().await.unwrap();
    let waiter = start(&place.waiter, "semaphore_acquire", json!({"permits": 1}));
    place.listens("redisson_sc:{x}").await;
    drop(held);
    waiter.wait(SOON).expect("woken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_java_wakes_our_waiter() {
    let place = place().await;
    call(&place.java, "semaphore_set", json!({"permits": 3}));
    call(&place.java, "semaphore_acquire", json!({"permits": 3}));
    let semaphore = place.rust.semaphore("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { semaphore.acquire_many(2).await.unwrap() });
    place.listens("redisson_sc:{x}").await;
    call(&place.java, "semaphore_release", json!({"permits": 1}));
    call(&place.java, "semaphore_release", json!({"permits": 1}));
    let permit = tokio::time::timeout(SOON, waiter).await.expect("woken");
    assert_eq!(permit.unwrap().permits(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn java_thread_gets_turn_beside_busy_tasks() {
    let Place { java, rust, .. } = &place().await;
    let semaphore = rust.semaphore("x");
    semaphore.try_set_permits(8).await.unwrap();
    for _ in 0..64 {
        let semaphore = semaphore.clone();
        tokio::spawn(async move {
            loop {
                let permit = semaphore.acquire().await.unwrap();
                permit.release().await.unwrap();
            }
        });
    }
    for round in 0..50 {
        // Java has little time between two holds of ours: on a busy machine it often misses the
        // free permit.
        let patient = json!({"permits": 1, "wait_ms": 50_000});
        let got = call(java, "semaphore_try", patient);
        assert_eq!(got, true, "not served in round {round}");
        call(java, "semaphore_release", json!({"permits": 1}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_permits_exclude_and_expire_across_sides() {
    let Place { java, rust, .. } = &place().await;
    let semaphore = rust.expirable_semaphore("x").poll_interval(HOUR);
    assert_eq!(call(java, "expirable_set", json!({"permits": 2})), true);
    let lease = json!({"lease_ms": 5000});
    let theirs: PermitId = call(java, "expirable_acquire_lease", lease)
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(matches!(
        semaphore.remaining_ttl(theirs).await.unwrap(),
        Ttl::Left(left) if left <= Duration::from_millis(5000)
    ));
    let ours = semaphore.clone().fixed_lease(Duration::from_millis(5000));
    ours.try_acquire().await.unwrap().unwrap().forget();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(call(java, "expirable_available", json!({})), 0);
    // The lease of both permits ends. Each side gets one.
    let never = json!({"wait_ms": 15_000, "lease_ms": 60_000});
    let waiter = start(java, "expirable_try", never);
    let permit = semaphore.try_acquire_for(SOON).await.unwrap();
    assert!(waiter.wait(SOON).unwrap().value.is_string());
    assert_eq!(semaphore.acquired_permits().await.unwrap(), 2);
    permit.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_permits_without_lease_work_by_id() {
    let Place { java, rust, .. } = &place().await;
    let semaphore = rust.expirable_semaphore("x");
    call(java, "expirable_set", json!({"permits": 2}));
    let id = call(java, "expirable_acquire", json!({}));
    let id: PermitId = id.as_str().unwrap().parse().unwrap();
    assert_eq!(semaphore.remaining_ttl(id).await.unwrap(), Ttl::NoExpiry);
    assert!(semaphore.update_lease(id, HOUR).await.unwrap());
    assert!(matches!(
        semaphore.remaining_ttl(id).await.unwrap(),
        Ttl::Left(_)
    ));
    assert!(semaphore.release(id).await.unwrap());
    assert!(!semaphore.release(id).await.unwrap(), "once");
    assert_eq!(call(java, "expirable_available", json!({})), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_java_releases_our_permits_by_id() {
    let Place { java, rust, .. } = &place().await;
    let semaphore = rust.expirable_semaphore("x");
    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let id = permit.id().to_string();
    let update = json!({"permit": &id, "lease_ms": 60_000});
    // 3.16.8 writes the id as text, and knows no other format.
    let knows = VERSION != RedissonVersion::V3_16_8;
    assert_eq!(call(java, "expirable_update", update), knows);
    assert_eq!(
        call(java, "expirable_release", json!({"permit": &id})),
        knows
    );
    assert_eq!(permit.release().await.is_ok(), !knows);
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_with_leases_wake_both_ways() {
    let place = place().await;
    let semaphore = place.rust.expirable_semaphore("x").poll_interval(HOUR);
    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let waiter = start(&place.waiter, "expirable_acquire", json!({}));
    place.listens("redisson_sc:{x}").await;
    permit.release().await.unwrap();
    let id = waiter.wait(SOON).expect("woken by our message").value;
    let ours = semaphore.clone();
    let waiter = tokio::spawn(async move { ours.acquire().await.unwrap() });
    eventually("we wait", async || place.rust.activity().channels == 1).await;
    place.listens("redisson_sc:{x}").await;
    assert_eq!(
        call(&place.java, "expirable_release", json!({"permit": id})),
        true
    );
    let permit = tokio::time::timeout(SOON, waiter).await.expect("woken");
    permit.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn latch_counts_and_wakes_across_sides() {
    let place = place().await;
    let latch = place.rust.count_down_latch("x").poll_interval(HOUR);
    assert!(latch.try_set_count(2).await.unwrap());
    assert_eq!(call(&place.java, "latch_set", json!({"count": 5})), false);
    let theirs = start(&place.waiter, "latch_await", json!({}));
    let ours = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await.unwrap() }
    });
    eventually("we wait", async || place.rust.activity().channels == 1).await;
    eventually("both listen", async || {
        let channel = "redisson_countdownlatch__channel__{x}";
        let told = place
            .server
            .command(&["PUBSUB", "NUMSUB", channel])
            .unwrap();
        told.as_array().unwrap()[1].as_int().unwrap() == 2
    })
    .await;
    call(&place.java, "latch_down", json!({}));
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(!ours.is_finished() && !theirs.is_done());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    theirs.wait(SOON).expect("woken by our message");
    tokio::time::timeout(SOON, ours)
        .await
        .expect("woken")
        .unwrap();
    assert_eq!(call(&place.java, "latch_count", json!({})), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn latch_waiters_see_javas_reset_after_zero() {
    let place = place().await;
    call(&place.java, "latch_set", json!({"count": 1}));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let latch = place.rust.count_down_latch("x").poll_interval(HOUR);
            tokio::spawn(async move { latch.wait().await.unwrap() })
        })
        .collect();
    eventually("we wait", async || place.rust.activity().lines == 1).await;
    place.listens("redisson_countdownlatch__channel__{x}").await;
    // This wait follows the waiters' own subscription: from now on each of them listens.
    let later = place.rust.count_down_latch("x");
    assert!(!later.wait_for(Duration::from_millis(300)).await.unwrap());
    for _ in 0..2 {
        call(&place.java, "latch_down", json!({}));
        assert_eq!(call(&place.java, "latch_set", json!({"count": 1})), true);
    }
    for waiter in waiters {
        tokio::time::timeout(SOON, waiter)
            .await
            .expect("opened")
            .unwrap();
    }
    assert_eq!(later.count().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn java_latch_deletion_wakes_our_waiter() {
    let place = place().await;
    call(&place.java, "latch_set", json!({"count": 3}));
    let latch = place.rust.count_down_latch("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { latch.wait().await.unwrap() });
    place.listens("redisson_countdownlatch__channel__{x}").await;
    eventually("we wait", async || place.rust.activity().channels == 1).await;
    assert_eq!(call(&place.java, "latch_delete", json!({})), true);
    tokio::time::timeout(SOON, waiter)
        .await
        .expect("woken")
        .unwrap();
}
