//! The failover guard: after the server's replication id has changed, no client is granted anything
//! for a span.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::testing::history::Report;
use leasehold::{Client, ClientBuilder, ErrorKind};
use leasehold_testkit::{RedisServer, Reply};
use tokio::time::Instant;

use crate::support::guarded::{
    Both, GUARD, builder, each_failover, guarded, is_known, is_promoted, noted, replication_id,
    tell,
};
use crate::support::{HOUR, eventually};

/// A span as long as the leases.
const SPAN: Duration = Duration::from_millis(SPAN_MS);
const SPAN_MS: u64 = 5000;
/// A duration that no test outlasts.
const LONG: Duration = Duration::from_secs(600);

async fn replica_of(master: &RedisServer) -> RedisServer {
    let settings = RedisServer::builder();
    let place = format!("127.0.0.1 {}", master.port());
    let replica = settings.arg("replicaof", &place).start().unwrap();
    eventually("it is in step", async || {
        let info = replica.command(&["INFO", "replication"]).unwrap();
        info.as_text().unwrap().contains("master_link_status:up")
    })
    .await;
    replica
}

/// Makes a master grant the lock to a client and die, and then makes its replica, which has not
/// received that grant, grant it to another client.
async fn lost_by_failover(builder: ClientBuilder) -> Report {
    let master = RedisServer::builder().arg("repl-diskless-sync-delay", "0");
    let master = master.start().unwrap();
    let replica = replica_of(&master).await;
    is_known(&master);
    eventually("it is replicated", async || noted(&replica).is_some()).await;
    let first = builder.connect(&master.url()).await.unwrap();
    tell(&replica, &["REPLICAOF", "127.0.0.1", "1"]);
    let mut both = Both::new();
    both.hold(first.lock("x"), "first").await;
    master.kill().unwrap();
    tell(&replica, &["REPLICAOF", "NO", "ONE"]);
    let second = builder.connect(&replica.url()).await.unwrap();
    both.hold_second(second.lock("x")).await
}

/// Like [`lost_by_failover`], with a server that forgets the grant because it was restarted.
async fn lost_by_restart(builder: ClientBuilder) -> Report {
    let server = RedisServer::start().unwrap();
    is_known(&server);
    let first = builder.connect(&server.url()).await.unwrap();
    let mut both = Both::new();
    both.hold(first.lock("x"), "first").await;
    server.restart().unwrap();
    let second = builder.connect(&server.url()).await.unwrap();
    both.hold_second(second.lock("x")).await
}

/// Returns a server that this client's guard has known for a long time.
async fn known() -> (RedisServer, Client) {
    let server = RedisServer::start().unwrap();
    is_known(&server);
    let client = guarded(LONG).connect(&server.url()).await.unwrap();
    (server, client)
}

fn now_ms(server: &RedisServer) -> u64 {
    let time = server.command(&["TIME"]).unwrap();
    let [seconds, micros] = time.as_array().unwrap() else {
        panic!("{time:?}");
    };
    let number = |reply: &Reply| reply.as_text().unwrap().parse::<u64>().unwrap();
    number(seconds) * 1000 + number(micros) / 1000
}

#[test]
fn grant_that_a_failover_loses_is_given_again_without_a_guard() {
    for report in each_failover(|| lost_by_failover(builder(LONG))) {
        assert_eq!(report.overlaps.len(), 1, "{report:?}");
    }
}

#[test]
fn guard_outlasts_the_grant_that_a_failover_loses() {
    for report in each_failover(|| lost_by_failover(guarded(SPAN))) {
        report.judge().unwrap();
    }
}

#[test]
fn guard_outlasts_the_grant_that_a_restart_loses() {
    for report in each_failover(|| lost_by_restart(builder(LONG))) {
        assert_eq!(report.overlaps.len(), 1, "{report:?}");
    }
    for report in each_failover(|| lost_by_restart(guarded(SPAN))) {
        report.judge().unwrap();
    }
}

#[tokio::test]
async fn server_is_guarded_when_it_gets_a_replica_or_has_lost_it_for_long() {
    let server = RedisServer::builder().arg("repl-diskless-sync-delay", "0");
    let server = server.start().unwrap();
    is_known(&server);
    let client = guarded(LONG).connect(&server.url()).await.unwrap();
    let guard = client.lock("x").try_acquire().await.unwrap();
    guard.unwrap().release().await.unwrap();
    let replica = replica_of(&server).await;
    assert!(client.lock("y").try_acquire().await.unwrap().is_none());
    assert_eq!(noted(&server).unwrap().0, replication_id(&server));
    // The id also changes when the server has had no replica for a long time.
    is_known(&server);
    tell(&server, &["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    drop(replica);
    eventually("it has another id", async || {
        noted(&server).unwrap().0 != replication_id(&server)
    })
    .await;
    assert!(client.lock("y").try_acquire().await.unwrap().is_none());
}

/// No lock or permit of any kind is granted, whether the request is alone in its call or shares the
/// call with others.
#[tokio::test]
async fn nobody_is_granted_anything_during_the_span() {
    let (server, client) = known().await;
    let semaphore = client.semaphore("permits");
    semaphore.try_set_permits(3).await.unwrap();
    let leases = client.expirable_semaphore("leases");
    leases.set_permits(3).await.unwrap();
    let rw = client.rw_lock("rw");
    is_promoted(&server);
    for _ in 0..2 {
        assert!(client.lock("x").try_acquire().await.unwrap().is_none());
        let (plain, fair) = (client.lock("y"), client.fair_lock("fair"));
        let (fenced, group) = (
            client.fenced_lock("fenced"),
            client.group_lock("g", ["a", "b"]),
        );
        let (plain, fair, fenced, group) = tokio::join!(
            plain.try_acquire(),
            fair.try_acquire(),
            fenced.try_acquire(),
            group.try_acquire(),
        );
        for granted in [plain, fair, group] {
            assert!(granted.unwrap().is_none());
        }
        assert!(fenced.unwrap().is_none());
        assert!(rw.try_read().await.unwrap().is_none());
        assert!(rw.try_write().await.unwrap().is_none());
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        assert!(leases.try_acquire().await.unwrap().is_none());
    }
    let error = semaphore.drain().await.unwrap_err().to_string();
    assert!(error.starts_with("nothing is granted at "), "{error}");
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    assert_eq!(leases.available_permits().await.unwrap(), 3);
    let mut left = server.keys();
    left.retain(|key| !key.contains(":did:"));
    assert_eq!(left, [GUARD, "leases", "permits"], "nothing but numbers");
}

/// A reader that the server has forgotten may still read, but is not upgraded.
#[tokio::test]
async fn reader_is_not_upgraded_during_the_span() {
    let (server, client) = known().await;
    let reading = client.rw_lock("x").read().await.unwrap();
    is_promoted(&server);
    let not_upgraded = reading.try_upgrade().await.unwrap_err();
    assert!(not_upgraded.error().is_none(), "{not_upgraded}");
    not_upgraded.into_guard().release().await.unwrap();
    assert_eq!(server.keys(), [GUARD]);
}

#[tokio::test]
async fn holders_go_on_during_the_span() {
    let (server, client) = known().await;
    let steady = client.lock("x").renew_every(Duration::from_millis(100));
    let (renewed, plain) = (steady.acquire().await.unwrap(), client.lock("y"));
    let others = [
        plain.acquire().await.unwrap(),
        client.fair_lock("fair").acquire().await.unwrap(),
        client.group_lock("g", ["a", "b"]).acquire().await.unwrap(),
    ];
    let writing = client.rw_lock("rw").write().await.unwrap();
    let leases = client.expirable_semaphore("leases");
    leases.set_permits(1).await.unwrap();
    let permit = leases.acquire().await.unwrap();
    is_promoted(&server);
    assert!(client.lock("z").try_acquire().await.unwrap().is_none());
    let before = Instant::now() + LONG;
    eventually("it is renewed", async || {
        // Because of the margin for drift, the holder's deadline is before the end of the lease.
        renewed.valid_until() > before - LONG / 50
    })
    .await;
    let moved = renewed.valid_until();
    eventually("again", async || renewed.valid_until() > moved).await;
    for guard in &others {
        guard.extend(LONG).await.unwrap();
    }
    others[0].fencing_token().await.unwrap();
    permit.extend(LONG).await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    reading.release().await.unwrap();
    permit.release().await.unwrap();
    for guard in others.into_iter().chain([renewed]) {
        guard.release().await.unwrap();
    }
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn waiter_is_served_when_the_span_is_over() {
    let server = RedisServer::start().unwrap();
    let client = guarded(SPAN).connect(&server.url()).await.unwrap();
    let semaphore = client.semaphore("permits").poll_interval(HOUR);
    semaphore.try_set_permits(1).await.unwrap();
    let waiting = async {
        let all = (client.lock("x"), client.fair_lock("fair"));
        let (one, two) = (all.0.poll_interval(HOUR), all.1.poll_interval(HOUR));
        let (one, two, three) = tokio::join!(one.acquire(), two.acquire(), semaphore.acquire());
        let at = now_ms(&server);
        (one.unwrap(), two.unwrap(), three.unwrap(), at)
    };
    // This is far longer than the span, and far shorter than the poll interval.
    let served = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let (one, two, three, at) = served.expect("they are served");
    let (id, since) = noted(&server).unwrap();
    assert_eq!(id, replication_id(&server));
    assert!(at >= since + SPAN_MS);
    one.release().await.unwrap();
    two.release().await.unwrap();
    three.release().await.unwrap();
}

#[tokio::test]
async fn all_clients_of_a_database_have_one_guard() {
    let server = RedisServer::start().unwrap();
    let first = guarded(SPAN).connect(&server.url()).await.unwrap();
    let others = guarded(SPAN).prefix("b:");
    assert!(first.lock("x").try_acquire().await.unwrap().is_none());
    let seen = noted(&server).unwrap();
    let second = others.connect(&server.url()).await.unwrap();
    assert!(second.lock("x").try_acquire().await.unwrap().is_none());
    assert_eq!(noted(&server).unwrap(), seen, "noted once");
    let (one, two) = (first.lock("x"), second.lock("x"));
    let (one, two) = tokio::join!(one.acquire(), two.acquire());
    // A client that connects after the span does not wait.
    let third = others.prefix("c:").connect(&server.url()).await.unwrap();
    let three = third.lock("x").try_acquire().await.unwrap().unwrap();
    assert_eq!(noted(&server).unwrap(), seen, "noted once");
    assert_eq!(server.keys(), ["b:x", "c:x", GUARD, "x"]);
    let mut listed = first.list("*");
    while let Some(name) = listed.next().await {
        assert_ne!(name.unwrap().name, GUARD);
    }
    for guard in [one.unwrap(), two.unwrap(), three] {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn guards_differ_where_nobody_shares_a_name() {
    let server = RedisServer::start().unwrap();
    let at = now_ms(&server) - SPAN_MS;
    let seen = (replication_id(&server), at);
    tell(&server, &["SET", GUARD, &format!("{} {at}", seen.0)]);
    let client = guarded(SPAN).connect(&server.url()).await.unwrap();
    let guard = client.lock("x").try_acquire().await.unwrap().unwrap();
    let patient = builder(SPAN).failover_guard(LONG).prefix("d:");
    let patient = patient.connect(&server.url()).await.unwrap();
    assert!(patient.lock("x").try_acquire().await.unwrap().is_none());
    // Another database may have belonged to another server before.
    let url = format!("{}/1", server.url());
    let elsewhere = guarded(SPAN).connect(&url).await.unwrap();
    assert!(elsewhere.lock("x").try_acquire().await.unwrap().is_none());
    assert_eq!(noted(&server).unwrap(), seen);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn guard_begins_anew_when_the_clock_is_set_back() {
    let (server, client) = known().await;
    let later = now_ms(&server) + 3_600_000;
    let noted_later = format!("{} {later}", replication_id(&server));
    tell(&server, &["SET", GUARD, &noted_later]);
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    assert!(noted(&server).unwrap().1 <= now_ms(&server));
}

#[tokio::test]
async fn server_is_asked_for_its_id_once_a_call_and_for_grants_alone() {
    let (server, client) = known().await;
    // Reading both counts sends INFO three times. The number of INFO calls is read after the first
    // of these three.
    let asked = || (server.calls("info"), server.scripts());
    let guard = client.lock("x").acquire().await.unwrap();
    let before = asked();
    for _ in 0..10 {
        guard.extend(LONG).await.unwrap();
    }
    guard.release().await.unwrap();
    assert_eq!(asked().0 - before.0, 3, "nobody asked for a hold");
    let before = asked();
    let names: Vec<_> = (0..200).map(|number| format!("many{number}")).collect();
    let locks: Vec<_> = names.iter().map(|name| client.lock(name)).collect();
    let tries = locks.iter().map(leasehold::Lock::try_acquire);
    for granted in futures_util::future::join_all(tries).await {
        assert!(granted.unwrap().is_some());
    }
    let after = asked();
    let (looks, calls) = (after.0 - before.0 - 3, after.1 - before.1);
    assert!(calls < 100, "they travel together: {calls}");
    assert!(
        (1..=calls).contains(&looks),
        "{looks} looks in {calls} calls"
    );
}

/// The release of a fair lock grants it to the next waiter of the same client. After a failover, a
/// retry of that release could grant a lock that another client has already acquired.
#[tokio::test]
async fn release_of_a_fair_lock_grants_nothing_during_the_span() {
    let (server, client) = known().await;
    let lock = client.fair_lock("x");
    let guard = lock.acquire().await.unwrap();
    let next = lock.clone();
    let waiter = tokio::spawn(async move { next.acquire().await.unwrap() });
    eventually("it stands in line", async || {
        lock.waiters().await.unwrap().len() == 1
    })
    .await;
    is_promoted(&server);
    guard.release().await.unwrap();
    assert_eq!(server.command(&["EXISTS", "x"]).unwrap(), Reply::Int(0));
    is_known(&server);
    waiter.await.unwrap().release().await.unwrap();
}

/// The waiters after the first keep their places with one request. The request does not grant the
/// lock, so the failover guard does not stop it.
#[tokio::test]
async fn waiters_that_keep_their_places_together_are_served_in_order_after_the_span() {
    const WAITERS: usize = 8;
    let server = RedisServer::start().unwrap();
    is_known(&server);
    // Each waiter sends a request again when the holder's lease may have ended, which happens often
    // during the span.
    let client = builder(SPAN / 5).failover_guard(SPAN);
    let client = client.connect(&server.url()).await.unwrap();
    let lock = client.fair_lock("x");
    let first = lock.acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let (queue, served) = (lock.clone(), Arc::clone(&served));
        waiters.push(tokio::spawn(async move {
            let guard = queue.acquire().await.unwrap();
            served.lock().unwrap().push(number);
            guard
        }));
        eventually("it is in line", async || {
            lock.waiters().await.unwrap().len() == number + 1
        })
        .await;
    }
    is_promoted(&server);
    first.release().await.unwrap();
    let mut released = Vec::new();
    for waiter in waiters {
        let guard = waiter.await.unwrap();
        released.push(now_ms(&server));
        guard.release().await.unwrap();
    }
    let (id, since) = noted(&server).unwrap();
    assert_eq!(id, replication_id(&server));
    assert!(released[0] >= since + SPAN_MS, "{released:?}, {since}");
    let served = std::mem::take(&mut *served.lock().unwrap());
    assert_eq!(served, Vec::from_iter(0..WAITERS));
    let mut left = server.keys();
    left.retain(|key| !key.contains(":did:"));
    assert_eq!(left, [GUARD]);
}

#[tokio::test]
async fn server_that_denies_what_the_guard_needs_grants_nothing() {
    let server = RedisServer::start().unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    for (rules, works) in [
        (&["+@all", "-info", "~*", "&*"][..], false),
        (&["+@all", "~x", "~*{x}*", "&*"], false),
        (&["+@all", "~x", "~*{x}*", "~leasehold:guard", "&*"], true),
    ] {
        let mut user = vec!["ACL", "SETUSER", "app", "reset", "on", ">pw"];
        user.extend(rules);
        tell(&server, &user);
        let client = guarded(LONG).connect(&url).await.unwrap();
        let said = client.lock("x").try_acquire().await;
        if works {
            assert!(said.unwrap().is_none());
            continue;
        }
        let error = said.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        for part in ["failover guard", "~leasehold:guard", "+info"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(server.keys().is_empty());
    }
}

#[tokio::test]
async fn guard_that_can_not_be_noted_keeps_no_holder_from_releasing() {
    let (server, client) = known().await;
    let guards = [
        client.lock("x").acquire().await.unwrap(),
        client.fair_lock("y").acquire().await.unwrap(),
    ];
    server.command(&["DEL", GUARD]).unwrap();
    tell(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let error = client.lock("z").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for guard in guards {
        guard.extend(LONG).await.unwrap();
        guard.release().await.unwrap();
    }
    assert!(server.keys().is_empty());
}

#[tokio::test]
async fn guard_that_can_not_keep_its_promise_is_refused() {
    let misuse = |builder: ClientBuilder, part: &str| {
        let error = builder.embedded(&leasehold::Embedded::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    misuse(Client::builder().failover_guard(LONG), "Peers::RustOnly");
    misuse(builder(LONG).failover_guard(SPAN), "longer failover guard");
    misuse(guarded(HOUR * 24 * 366), "maximum");
    let cluster = guarded(SPAN).connect("redis-cluster://127.0.0.1:1").await;
    let error = cluster.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("one server"), "{error}");
}

#[tokio::test]
async fn lease_that_outlasts_the_guard_is_refused() {
    // An embedded keyspace has no failover, but tests on it find what a server would refuse.
    let client = guarded(SPAN).embedded(&leasehold::Embedded::new()).unwrap();
    let is_refused = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        let text = error.to_string();
        assert!(text.contains("failover guard"), "{text}");
    };
    let lock = client.lock("x");
    is_refused(lock.clone().lease(LONG).acquire().await.unwrap_err());
    is_refused(lock.clone().fixed_lease(LONG).acquire().await.unwrap_err());
    let permits = client.expirable_semaphore("permits");
    permits.set_permits(1).await.unwrap();
    is_refused(permits.clone().lease(LONG).acquire().await.unwrap_err());
    let permit = permits.acquire().await.unwrap();
    is_refused(permit.extend(LONG).await.unwrap_err());
    let longer = permits.update_lease(permit.ids()[0], LONG);
    is_refused(longer.await.unwrap_err());
    let guard = lock.acquire().await.unwrap();
    is_refused(guard.extend(LONG).await.unwrap_err());
    guard.extend(SPAN).await.unwrap();
    guard.release().await.unwrap();
}
