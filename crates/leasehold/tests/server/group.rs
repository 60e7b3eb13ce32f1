//! Groups of locks on a server that is out of memory or denies a command, and groups whose clients
//! are killed.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::{RedisServer, Reply};

use crate::server::permissions::client_with;
use crate::support::{HOUR, eventually};

const LEASE: Duration = Duration::from_millis(900);

#[tokio::test]
async fn full_memory_refuses_only_new_groups() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder().lease(LEASE);
    let client = builder.connect(&server.url()).await.unwrap();
    let guard = client.group_lock("g", ["a", "b"]).acquire().await.unwrap();
    let fixed = client.group_lock("h", ["a"]).fixed_lease(HOUR);
    let fixed = fixed.acquire().await.unwrap();
    let limit = |bytes| server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    limit("1").unwrap();
    // This is a separate client, because a request that shares its call with a renewal is not
    // refused.
    let other = Client::connect(&server.url()).await.unwrap();
    let error = other.group_lock("g", ["c"]).try_acquire().await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
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
    limit("0").unwrap();
}

/// The fields that dead holders left for a value do not take it from its present holder, in a group
/// of a few fields and in one of many.
#[tokio::test]
async fn removing_dead_group_fields_keeps_living_hold() {
    // The field of the value `a`.
    const FIELD: &str = "qwvAS12pR0CgRitaypEjUw";
    for dead in [3, 100] {
        let server = RedisServer::start().unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let alive = client.group_lock("g", ["a"]).lease(HOUR);
        let alive = alive.acquire().await.unwrap();
        for n in 0..dead {
            // Redisson leaves such a field, and so does a client of ours that is not allowed to
            // remove it.
            let pair = format!("{FIELD}:7e57c0de-0000-4000-8000-000000000000:{n}");
            let (end, count) = (format!("{pair}:expire_time"), format!("{pair}:lock_count"));
            let left = ["HSET", "g", &end, "1", &count, "1"];
            assert_eq!(server.command(&left).unwrap().as_int(), Some(2));
        }
        let other = client.group_lock("g", ["b"]);
        eventually("only the living are left", async || {
            other.acquire().await.unwrap().release().await.unwrap();
            server.command(&["HLEN", "g"]).unwrap().as_int() == Some(3)
        })
        .await;
        let theirs = client.group_lock("g", ["a"]);
        assert!(theirs.try_acquire().await.unwrap().is_none());
        alive.extend(HOUR * 2).await.unwrap();
        alive.release().await.unwrap();
        assert!(server.keys().is_empty());
    }
}

/// If a command is missing, a group is not left half acquired.
#[tokio::test]
async fn denied_command_leaves_no_half_made_group() {
    for denied in [
        "time", "hlen", "hgetall", "hget", "hset", "hdel", "pttl", "pexpire", "hscan", "publish",
    ] {
        let server = RedisServer::start().unwrap();
        let admin = Client::connect(&server.url()).await.unwrap();
        let rule = format!("-{denied}");
        let client = client_with(&server, &["+@all", "~*", "&*", &rule]).await;
        // A dead holder's fields must be cleaned up.
        let dead = admin
            .group_lock("g", ["a"])
            .fixed_lease(Duration::from_millis(10));
        let alive = admin.group_lock("g", ["z"]).acquire().await.unwrap();
        dead.acquire().await.unwrap().forget();
        let lock = admin.group_lock("g", ["a", "b"]);
        eventually("it is over", async || !lock.is_locked().await.unwrap()).await;
        let needed = ["time", "hlen", "hgetall", "hget", "hset", "pttl"];
        match client.group_lock("g", ["a", "b"]).acquire().await {
            Ok(guard) => {
                assert!(!needed.contains(&denied), "{denied}");
                assert!(lock.is_locked().await.unwrap(), "{denied}");
                guard.extend(HOUR).await.unwrap();
                assert_eq!(guard.release().await.is_ok(), denied != "hdel", "{denied}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Denied, "{denied}: {error}");
                assert!(!lock.is_locked().await.unwrap(), "{denied}");
            }
        }
        let ttl = server.command(&["PTTL", "g"]).unwrap();
        assert_ne!(ttl, Reply::Int(-1), "{denied}");
        alive.release().await.unwrap();
    }
}

#[tokio::test]
async fn denied_expiry_leaves_no_new_group() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~*", "&*", "-pexpire"]).await;
    let error = client
        .group_lock("g", ["a", "b"])
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(server.keys().is_empty());
}
