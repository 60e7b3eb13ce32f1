//! Keys that contain something else: the error names the key, and the value is untouched.

use std::time::Duration;

use leasehold::inspect::{Found, Ttl};
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

/// Asserts that a call on a key of another kind is refused, with an error that names the key.
fn refused<T>(call: &str, result: leasehold::Result<T>) {
    let error = result
        .err()
        .unwrap_or_else(|| panic!("{call} has an answer"));
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{call}: {text}");
    assert!(text.contains("a hash that is not a lock"), "{call}: {text}");
    assert!(!text.contains("force"), "{call}: {text}");
}

#[tokio::test]
async fn hash_of_somebody_else_is_no_lock_to_any_call() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let id = "7e57c0de-0000-4000-8000-000000000000:1";
    let beside = format!("f:{id}:expire_time");
    for fields in [
        &["visits", "7"][..],
        &["page:1", "5"],
        &["mode", "read", "size", "10"],
        &["mode", "write", "path", "a"],
        &["name", "Ann", "visits", "7"],
        &["f", id, &beside, "9000000000000", "name", "Ann"],
    ] {
        for ends in [false, true] {
            server.command(&[&["HSET", "x"], fields].concat()).unwrap();
            if ends {
                server.command(&["PEXPIRE", "x", "600000"]).unwrap();
            }
            let before = server.command(&["DUMP", "x"]).unwrap();
            let (lock, fair, fenced) = (
                client.lock("x"),
                client.fair_lock("x"),
                client.fenced_lock("x"),
            );
            let (rw, group) = (client.rw_lock("x"), client.group_lock("x", ["a", "b"]));
            refused("lock", lock.try_acquire().await);
            refused("wait", lock.acquire().await);
            refused("fair", fair.try_acquire().await);
            refused("fenced", fenced.try_acquire().await);
            refused("read", rw.try_read().await);
            refused("write", rw.try_write().await);
            refused("group", group.try_acquire().await);
            refused("force", lock.force_unlock().await);
            refused("force fair", fair.force_unlock().await);
            refused("force read", rw.read_lock().force_unlock().await);
            refused("force write", rw.write_lock().force_unlock().await);
            refused("force group", group.force_unlock().await);
            refused("inspect", lock.inspect().await);
            refused("inspect group", group.inspect().await);
            refused("inspect read", rw.read_lock().inspect().await);
            let seen = client.inspect("x").await.unwrap().found;
            assert!(
                matches!(seen, Found::Unknown { .. }),
                "{fields:?}: {seen:?}"
            );
            let error = client.force_release("x", id).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
            assert!(client.list("*").next().await.is_none(), "{fields:?}");
            assert_eq!(
                server.command(&["DUMP", "x"]).unwrap(),
                before,
                "{fields:?}"
            );
            assert_eq!(server.keys(), ["x"]);
            server.command(&["DEL", "x"]).unwrap();
        }
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

/// Returns how often scripts have searched a list of waiting clients for a client.
fn looks(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let calls = stats.as_text().unwrap().split("cmdstat_lpos:calls=").nth(1);
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn key_of_somebody_else_is_no_list_of_waiting_clients() {
    let asking = ["leasehold:{x}:asking", "leasehold:{p}:asking"];
    for make in [&["SET"][..], &["RPUSH"], &["RPUSH", "a", "b"]] {
        let server = RedisServer::start().unwrap();
        let url = server.url();
        let connect = async || Client::connect(&url).await.unwrap();
        let clients = [connect().await, connect().await, connect().await];
        let lock = clients[0].lock("x").acquire().await.unwrap();
        let permits = clients[0].semaphore("p");
        permits.try_set_permits(1).await.unwrap();
        let permit = permits.acquire().await.unwrap();
        for key in asking {
            let command = [&[make[0], key][..], &make[1..], &["text"]].concat();
            server.command(&command).unwrap();
        }
        let dump = || asking.map(|key| server.command(&["DUMP", key]).unwrap());
        let before = dump();
        let [_, second, third] = clients.clone();
        let mut waits = Vec::new();
        for client in [second, third] {
            let seen = looks(&server);
            let both = async move {
                let lock = client.lock("x").acquire().await.unwrap();
                lock.release().await.unwrap();
                let permit = client.semaphore("p").acquire().await.unwrap();
                permit.release().await.unwrap();
            };
            waits.push(tokio::spawn(both));
            crate::support::eventually("it has asked", async || looks(&server) > seen).await;
        }
        let seen = looks(&server);
        lock.release().await.unwrap();
        crate::support::eventually("both have asked", async || looks(&server) > seen + 1).await;
        permit.release().await.unwrap();
        for waits in waits {
            waits.await.unwrap();
        }
        assert_eq!(dump(), before, "{make:?}");
        for key in asking {
            let left = server.command(&["PTTL", key]).unwrap();
            assert_eq!(left, Reply::Int(-1), "{make:?}");
        }
    }
}
