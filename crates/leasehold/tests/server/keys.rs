//! Keys that hold something else: an error that names the key, the value untouched.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::{Client, ErrorKind};
use leasehold_testkit::{RedisServer, Reply};

#[tokio::test]
async fn wrong_type_key_is_refused_unchanged() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let holder = "7e57c0de-0000-4000-8000-000000000000:1";
    for make in [
        &["SET", "x", "value"][..],
        &["RPUSH", "x", "element"],
        &["HSET", "x", "name", "Ann"],
        &["HSET", "x", holder, "1.5"],
        &["HSET", "x", holder, "1", "more", "2"],
        &["HSET", "x", "mode", "read", holder, "1"],
    ] {
        server.command(make).unwrap();
        server.command(&["PEXPIRE", "x", "100000"]).unwrap();
        let before = server.command(&["DUMP", "x"]).unwrap();
        let lock = client.lock("x");
        let errors = [
            lock.try_acquire().await.map(drop).unwrap_err(),
            lock.acquire().await.map(drop).unwrap_err(),
            lock.try_acquire_for(Duration::from_secs(9))
                .await
                .map(drop)
                .unwrap_err(),
            lock.force_unlock().await.map(drop).unwrap_err(),
            lock.inspect().await.map(drop).unwrap_err(),
            lock.is_locked().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongKind, "{make:?}: {error}");
            assert!(error.to_string().contains("`x`"), "{error}");
        }
        assert_eq!(server.command(&["DUMP", "x"]).unwrap(), before, "{make:?}");
        server.command(&["DEL", "x"]).unwrap();
    }
}

#[tokio::test]
async fn key_without_expiry_fails_timed_acquire() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let holder = "7e57c0de-0000-4000-8000-000000000000:1";
    server.command(&["HSET", "x", holder, "1"]).unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(50));
    for error in [
        lock.try_acquire().await.map(drop).unwrap_err(),
        lock.try_acquire_for(Duration::from_secs(5))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        assert!(error.to_string().contains("no expiry"), "{error}");
    }
    assert_eq!(lock.remaining_ttl().await.unwrap(), Ttl::NoExpiry);
    server.command(&["DEL", "x"]).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn renewal_restores_expiry_of_persisted_key() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder().lease(Duration::from_millis(300));
    let client = builder.connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(server.command(&["PERSIST", "x"]).unwrap(), Reply::Int(1));
    crate::support::eventually("it expires again", async || {
        server.command(&["PTTL", "x"]).unwrap().as_int().unwrap() > 0
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_stands_in_redis_is_redissons_own_form() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let owner = leasehold::Owner::new();
    let lock = client.lock("x").owned_by(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    assert_eq!(server.keys(), ["x"]);
    let hash = server.command(&["HGETALL", "x"]).unwrap();
    let fields: Vec<_> = hash
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f.as_text().unwrap())
        .collect();
    assert_eq!(fields, [outer.holder_id(), "1"]);
    let (uuid, n) = fields[0].rsplit_once(':').unwrap();
    assert_eq!((uuid, uuid.len()), (client.id(), 36));
    assert!(n.parse::<u64>().unwrap() > 0);
    drop((outer, inner));
}
