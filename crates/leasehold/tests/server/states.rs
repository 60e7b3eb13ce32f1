//! Servers that run but can't serve: loading, read-only, full, unable to save, busy.

use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Client, ClientBuilder, Error, ErrorKind, LossReason};
use leasehold_testkit::proxy::Strike;
use leasehold_testkit::{Proxy, RedisServer, Reply};
use tokio::task::JoinHandle;

use crate::server::scene::RELEASE;
use crate::server::warnings::Warnings;
use crate::support::{HOUR, eventually};

/// A lease long enough for a renewal on a busy machine.
const LEASE: Duration = Duration::from_secs(2);

fn builder() -> ClientBuilder {
    Client::builder().lease(LEASE)
}

fn set(server: &RedisServer, name: &str, value: &str) {
    let reply = server.command(&["CONFIG", "SET", name, value]).unwrap();
    assert_eq!(reply, Reply::Text("OK".into()), "{name} {value}");
}

/// Asserts that this is a temporary error, with the server's own code.
fn assert_not_now(error: &Error, code: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains(code) && text.contains("`x`"), "{text}");
}

/// Starts a waiter for `x` that releases it at once.
fn waiter(client: &Client) -> JoinHandle<()> {
    let lock = client.lock("x");
    tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
}

/// Returns a server that loads its data for some seconds after a restart. While it loads, it
/// answers after every 2 MB, which is the size of ten of its keys.
pub(crate) fn slow_to_load() -> RedisServer {
    let server = RedisServer::builder()
        .arg("rdbcompression", "no")
        .arg("key-load-delay", "40000")
        .start()
        .unwrap();
    let fill = "for i = 1, 100 do redis.call('SET', i, string.rep('x', 200000)) end";
    server.command(&["EVAL", fill, "0"]).unwrap();
    assert_eq!(server.command(&["SAVE"]).unwrap(), Reply::Text("OK".into()));
    server
}

/// Makes the server load faster. Servers before 7 do not accept settings while they load, and need
/// some seconds more.
pub(crate) fn hurry(server: &RedisServer) {
    let command = ["CONFIG", "SET", "key-load-delay", "0"];
    server.command(&command).unwrap();
}

#[tokio::test]
async fn a_server_that_loads_is_waited_for() {
    let server = Arc::new(slow_to_load());
    let client = builder().connect(&server.url()).await.unwrap();
    let again = Arc::clone(&server);
    let restart = tokio::task::spawn_blocking(move || again.restart().unwrap());
    let mut told = None;
    eventually("it says that it loads", async || {
        told = client.lock("x").try_acquire().await.err();
        told.as_ref()
            .is_some_and(|error| error.to_string().contains("LOADING"))
    })
    .await;
    assert_not_now(&told.unwrap(), "LOADING");
    // The client has reached the server while it loads, and need not wait for the whole load.
    hurry(&server);
    let early = Client::connect(&server.url()).await.unwrap();
    let (one, two) = (waiter(&client), waiter(&early));
    one.await.unwrap();
    two.await.unwrap();
    restart.await.unwrap();
}

#[tokio::test]
async fn demotion_is_reported_and_waited_out() {
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let guard = client.lock("x").fixed_lease(HOUR).acquire().await.unwrap();
    // The server becomes a replica of a master that does not answer, so it keeps its data.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let dump = || server.command(&["DUMP", "x"]).unwrap();
    let before = dump();
    let error = guard.extend(HOUR * 2).await.unwrap_err();
    assert_not_now(&error, "READONLY");
    let waiting = waiter(&client);
    eventually("it waits", async || !server.channels().is_empty()).await;
    assert_eq!(dump(), before, "not half");
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    guard.release().await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn a_replica_refuses_new_locks() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_not_now(&error, "READONLY");
    let waiting = waiter(&client);
    eventually("it waits", async || client.activity().lines == 1).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn full_memory_refuses_only_new_locks() {
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let (held, extended) = (client.lock("held"), client.lock("extended"));
    let guard = held.acquire().await.unwrap();
    let fixed = extended.fixed_lease(HOUR).acquire().await.unwrap();
    // This is a separate client, because a request that shares its call with a renewal is not
    // refused.
    let other = builder().connect(&server.url()).await.unwrap();
    set(&server, "maxmemory", "1");
    let error = other.lock("x").try_acquire().await.unwrap_err();
    assert_not_now(&error, "OOM");
    let waiting = waiter(&other);
    let first = guard.valid_until();
    eventually("it outlives its lease", async || {
        assert_eq!(guard.loss(), None, "renewed without memory");
        guard.valid_until() > first + LEASE * 2
    })
    .await;
    fixed.extend(HOUR * 2).await.unwrap();
    fixed.release().await.unwrap();
    guard.release().await.unwrap();
    assert!(server.keys().is_empty());
    assert!(!waiting.is_finished());
    set(&server, "maxmemory", "0");
    waiting.await.unwrap();
}

#[tokio::test]
async fn failing_save_leaves_nothing_half_released() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let client = builder().connect(&proxy.url()).await.unwrap();
    let guard = client
        .lock("held")
        .fixed_lease(HOUR)
        .acquire()
        .await
        .unwrap();
    let renewed = client.lock("renewed").acquire().await.unwrap();
    // There is a folder with the name of the file that the server would write.
    let dir = server.command(&["CONFIG", "GET", "dir"]).unwrap();
    let dir = dir.as_array().unwrap()[1].as_text().unwrap().to_owned();
    std::fs::create_dir(format!("{dir}/dump.rdb")).unwrap();
    set(&server, "save", "3600 1");
    server.command(&["BGSAVE"]).unwrap();
    eventually("saving fails", async || {
        let info = server.command(&["INFO", "persistence"]).unwrap();
        info.as_text().unwrap().contains("bgsave_status:err")
    })
    .await;
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_not_now(&error, "MISCONF");
    let waiting = waiter(&client);
    // This server refuses every change, so holds can't be renewed, either.
    let reason = renewed.lost().await;
    assert!(
        matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.contains("MISCONF")),
        "{reason:?}"
    );
    let dump = server.command(&["DUMP", "held"]).unwrap();
    let answer = proxy.strike_next(RELEASE, Strike::HoldReply);
    let release = tokio::spawn(guard.release());
    eventually("it is refused", async || answer.fired()).await;
    proxy.let_go(&answer);
    assert_eq!(server.command(&["DUMP", "held"]).unwrap(), dump);
    set(&server, "stop-writes-on-bgsave-error", "no");
    // Either the release has waited, or it is completed in the background.
    let _ = release.await.unwrap();
    waiting.await.unwrap();
    eventually("all is given back", async || server.keys().is_empty()).await;
}

#[tokio::test]
async fn endless_script_costs_hold_but_no_overlap() {
    let server = RedisServer::builder()
        .arg("lua-time-limit", "50")
        .start()
        .unwrap();
    let server = Arc::new(server);
    let client = builder().connect(&server.url()).await.unwrap();
    let beside = builder().connect(&server.url()).await.unwrap();
    let recorder = Recorder::new();
    recorder.expect_fault("busy");
    let asked = recorder.ask("x", "ours");
    let guard = client.lock("x").acquire().await.unwrap();
    let inside = asked.acquired(&guard);
    let theirs = recorder.clone();
    let waiting = tokio::spawn(async move {
        let asked = theirs.ask("x", "theirs");
        let guard = beside.lock("x").acquire().await.unwrap();
        asked.acquired(&guard).releasing(&guard);
        guard.release().await.unwrap();
    });
    eventually("it waits", async || !server.channels().is_empty()).await;
    let foreign = Arc::clone(&server);
    let script =
        tokio::task::spawn_blocking(move || foreign.command(&["EVAL", "while true do end", "0"]));
    let mut told = None;
    eventually("it is busy", async || {
        told = client.lock("z").try_acquire().await.err();
        told.as_ref()
            .is_some_and(|error| error.to_string().contains("BUSY"))
    })
    .await;
    assert_eq!(told.unwrap().kind(), ErrorKind::Unavailable);
    recorder.fault_happened("busy");
    let reason = guard.lost().await;
    let busy = matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.contains("BUSY"));
    assert!(busy, "{reason:?}");
    inside.releasing(&guard);
    assert!(!waiting.is_finished(), "nobody is let in meanwhile");
    server.command(&["SCRIPT", "KILL"]).unwrap();
    assert!(matches!(script.await.unwrap().unwrap(), Reply::Error(_)));
    waiting.await.unwrap();
    recorder.report().judge().unwrap();
}

#[tokio::test]
async fn evicted_lock_and_evicting_server_are_reported() {
    let server = RedisServer::builder()
        .arg("maxmemory-policy", "volatile-ttl")
        .start()
        .unwrap();
    let warnings = Warnings::listen();
    let unlimited = builder().connect(&server.url()).await.unwrap();
    let removes = "removes keys when its memory is full";
    assert_eq!(warnings.count(removes), 0, "it has no limit yet");
    let guard = unlimited.lock("x").acquire().await.unwrap();
    // The limit is below the amount of memory that the server uses. The server may evict the lock,
    // like any other key.
    set(&server, "maxmemory", "100kb");
    server.command(&["SET", "more", "1"]).unwrap();
    let reason = guard.lost().await;
    assert_eq!(reason, LossReason::Deleted);
    let _ = builder().connect(&server.url()).await.unwrap();
    assert_eq!(warnings.count(removes), 1);
    assert_eq!(warnings.count("volatile-ttl"), 1);
}
