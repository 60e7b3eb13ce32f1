//! A server with a replica, which Redisson waits for.

use super::*;
use leasehold_testkit::{Proxy, Reply, Strike};

/// A server and its replica, with a Java client that knows the replica.
struct Pair {
    server: RedisServer,
    replica: RedisServer,
    proxy: Proxy,
    _java: JavaClient,
    java: RedissonThread,
}

impl Pair {
    async fn new(mut settings: Value) -> Self {
        let [server, replica] = [topology::start(), topology::start()];
        let port = server.port().to_string();
        replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
        eventually("the replica follows", async || {
            let info = server.command(&["INFO", "replication"]).unwrap();
            info.as_text().unwrap().contains("state=online")
        })
        .await;
        settings["replica"] = replica.url().into();
        let proxy = Proxy::to(server.port());
        let java = JavaClient::with(VERSION, &proxy.url(), settings);
        Self {
            server,
            replica,
            proxy,
            java: java.thread("t"),
            _java: java,
        }
    }

    fn exists(&self, key: &str) -> bool {
        let reply = self.server.command(&["EXISTS", key]).unwrap();
        reply.as_int() == Some(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_replica_makes_new_java_add_permits() {
    let pair = Pair::new(json!({"retry_attempts": 0})).await;
    let mut settings = json!({"replica": pair.replica.url()});
    if !IS_OLD {
        settings["check_replicas"] = false.into();
    }
    let unchecked = JavaClient::with(VERSION, &pair.server.url(), settings);
    pair.replica.pause().unwrap();
    let tries = |java: &RedissonThread| {
        pair.server.command(&["SET", "x", "0"]).unwrap();
        let request = json!({"permits": 1, "wait_ms": 0});
        let tried = start(java, "semaphore_try", request).wait(SOON);
        let permits = pair.server.command(&["GET", "x"]).unwrap();
        (tried, permits.as_text().unwrap().parse::<i64>().unwrap())
    };
    let (tried, permits) = tries(&pair.java);
    assert_eq!(tried.is_ok(), IS_OLD);
    assert_eq!(permits == 0, IS_OLD, "{permits} of none");
    // Without Redisson's check of the replicas, this does not happen.
    let (tried, permits) = tries(&unchecked.thread("t"));
    assert_eq!(tried.unwrap().value, false);
    assert_eq!(permits, 0);
    pair.replica.resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_replica_makes_java_lock_fail() {
    let pair = Pair::new(json!({"retry_attempts": 0})).await;
    pair.replica.pause().unwrap();
    let wait = Duration::from_secs(1);
    let taken = pair.java.try_lock_wait("x", wait, Some(LONG));
    assert!(!taken.is_ok_and(|taken| taken.value));
    assert_eq!(pair.exists("x"), IS_OLD);
    pair.replica.resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replicated_java_locks_twice_after_lost_reply() {
    let pair = Pair::new(json!({"timeout_ms": 1500})).await;
    // After this call the server knows its script.
    pair.java.lock_lease("x", LONG).unwrap();
    let fault = pair.proxy.strike_next(b"lost", Strike::CutAfter);
    let taken = pair.java.start_lock_lease("lost", LONG).wait(SOON * 2);
    assert!(fault.fired());
    let holders = pair.server.command(&["HVALS", "lost"]).unwrap();
    taken.expect("it knows of one");
    let counts: Vec<_> = holders.as_array().unwrap().iter().collect();
    assert_eq!(counts, [&Reply::Text("2".into())]);
    pair.java.unlock("lost").unwrap();
    assert!(pair.exists("lost"), "for the rest of its lease");
}
