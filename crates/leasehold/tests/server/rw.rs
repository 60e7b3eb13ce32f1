//! The read-write lock on a server that is out of memory or denies a command, and the work that
//! thousands of readers cause.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::RedisServer;

use crate::server::permissions::client_with;
use crate::support::eventually;

/// A lease long enough for a renewal on a busy machine.
const LEASE: Duration = Duration::from_secs(3);

fn memory(server: &RedisServer, limit: &str) {
    server
        .command(&["CONFIG", "SET", "maxmemory", limit])
        .unwrap();
}

#[tokio::test]
async fn without_memory_holds_are_renewed_turned_and_released() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder().lease(LEASE);
    let client = builder.connect(&server.url()).await.unwrap();
    let reading = client.rw_lock("read").read().await.unwrap();
    let beside = client.rw_lock("read").read().await.unwrap();
    let writing = client.rw_lock("written").write().await.unwrap();
    let turning = client.rw_lock("turned").write().await.unwrap();
    let owner = leasehold::Owner::new();
    let inside = client.rw_lock("inside").owned_by(&owner);
    let (outer, inner) = (inside.write().await.unwrap(), inside.read().await.unwrap());
    // This is a separate client, because a request that shares its call with a renewal is not
    // refused.
    let other = Client::connect(&server.url()).await.unwrap();
    memory(&server, "1");
    let error = other.rw_lock("x").try_read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = other.rw_lock("x").try_write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let first = (reading.valid_until(), writing.valid_until());
    eventually("they outlive their lease", async || {
        assert!(reading.is_held() && writing.is_held() && inner.is_held());
        reading.valid_until() > first.0 + LEASE * 2 && writing.valid_until() > first.1 + LEASE * 2
    })
    .await;
    turning.downgrade().await.unwrap().release().await.unwrap();
    outer.release().await.unwrap();
    inner.release().await.unwrap();
    beside.release().await.unwrap();
    reading.release().await.unwrap();
    writing.release().await.unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn denied_command_leaves_no_key_without_expiry() {
    for denied in ["hset", "set", "pexpire", "zadd", "zrem", "time", "hget"] {
        let server = RedisServer::start().unwrap();
        let admin = Client::connect(&server.url()).await.unwrap();
        let rule = format!("-{denied}");
        let client = client_with(&server, &["+@all", "~*", "&*", &rule]).await;
        let lock = client.rw_lock("x");
        for held in [false, true] {
            let guard = match held {
                true => Some(admin.rw_lock("x").read().await.unwrap()),
                false => None,
            };
            let read = lock.try_read().await;
            let write = lock.try_write_for(Duration::from_secs(1)).await;
            let errors = [read.as_ref().err(), write.as_ref().err()];
            for error in errors.into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Denied, "{denied}: {error}");
            }
            for key in server.keys() {
                let ttl = server.command(&["PTTL", &key]).unwrap();
                assert_ne!(ttl.as_int().unwrap(), -1, "{key} without {denied}");
            }
            drop((read, write, guard));
            server.command(&["FLUSHALL"]).unwrap();
        }
    }
}

/// Each release by Redisson checks all read holds. When thousands of readers release at the same
/// time, that keeps the server busy for several seconds.
#[tokio::test]
async fn mass_read_release_keeps_server_responsive() {
    const READERS: u64 = 2000;
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.rw_lock("x");
    let reads = (0..READERS).map(|_| lock.read());
    let readers = futures_util::future::try_join_all(reads).await.unwrap();
    let looks = || server.calls("pttl");
    let before = looks();
    let releases = readers.into_iter().map(leasehold::ReadGuard::release);
    futures_util::future::try_join_all(releases).await.unwrap();
    let each = (looks() - before) / READERS;
    println!("{each} looks at a read hold for each release");
    // If each release checked all remaining holds, it would check a thousand holds on average.
    assert!(each < 300, "{each}");
    assert_eq!(server.keys(), Vec::<String>::new());
}

/// Counts the entries of a key.
fn count(server: &RedisServer, command: &str, key: &str) -> i64 {
    server.command(&[command, key]).unwrap().as_int().unwrap()
}

#[tokio::test]
async fn fields_of_dead_readers_go() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.rw_lock("x");
    // With a shorter lease, a grant might arrive too late. It would be given back, and that release
    // would clean up.
    let short = lock.clone().fixed_lease(Duration::from_millis(800));
    let die = async |readers: i64| {
        for _ in 0..readers {
            short.read().await.unwrap().forget();
        }
        eventually("their leases are over", async || {
            server.keys().len() <= 2 && count(&server, "HLEN", "x") > readers
        })
        .await;
    };
    let always = lock.read().await.unwrap();
    let fields = || count(&server, "HLEN", "x");
    // The next release removes the dead fields. If there are many, one of the next releases removes
    // them.
    die(3).await;
    lock.read().await.unwrap().release().await.unwrap();
    assert_eq!(fields(), 2, "`mode` and the one that reads");
    die(100).await;
    eventually("one release goes through all", async || {
        lock.read().await.unwrap().release().await.unwrap();
        fields() == 2
    })
    .await;
    always.release().await.unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn marks_of_departed_writers_are_removed() {
    const MARKS: &str = "leasehold:{x}:writers";
    let server = RedisServer::start().unwrap();
    let ours = Client::connect(&server.url()).await.unwrap();
    let theirs = Client::connect(&server.url()).await.unwrap();
    let reading = ours.rw_lock("x").read().await.unwrap();
    let marks = |number| {
        let server = &server;
        eventually("so many are marked", async move || {
            count(server, "ZCARD", MARKS) == number
        })
    };
    // The first writer is no longer polled, and is not dropped.
    let lock = ours.rw_lock("x");
    let mut killed = Box::pin(async move { lock.write().await });
    let polled = tokio::time::timeout(Duration::from_millis(500), &mut killed).await;
    assert!(polled.is_err());
    std::mem::forget(killed);
    let lock = theirs.rw_lock("x");
    let gives_up = tokio::spawn(async move { lock.write().await.map(drop) });
    marks(2).await;
    // The living writer renews its own reservation.
    marks(1).await;
    gives_up.abort();
    marks(0).await;
    assert!(server.keys().iter().all(|key| key != MARKS));
    reading.release().await.unwrap();
}
