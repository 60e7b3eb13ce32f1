//! Turns, elections and tickets beside a Java client that uses the lock of the same name.

use leasehold::Client;
use leasehold_testkit::RedisServer;
use leasehold_testkit::redisson::RedissonThread;

use super::VERSION;
use crate::javas::JavaClient;
use crate::support::eventually;
use crate::what::What;

mod elections;
mod tickets;
mod turns;

struct Place {
    java: RedissonThread,
    other_java: RedissonThread,
    rust: Client,
    /// Closed before the server ends.
    _client: JavaClient,
    server: RedisServer,
}

impl Place {
    async fn new() -> Self {
        let server = crate::topology::start();
        let client = JavaClient::new(VERSION, &server.url(), None);
        Self {
            java: client.thread("t"),
            other_java: client.thread("other"),
            rust: Client::connect(&server.url()).await.unwrap(),
            _client: client,
            server,
        }
    }

    async fn another_rust(&self) -> Client {
        Client::connect(&self.server.url()).await.unwrap()
    }

    /// Waits until a client listens for the release of this lock.
    async fn is_listened_to(&self, name: &str) {
        eventually("it listens", async || {
            let channels = self.server.channels();
            channels.iter().any(|channel| channel.contains(name))
        })
        .await;
    }

    /// Returns the id of the only holder of this plain lock.
    async fn holder(&self, name: &str) -> String {
        let info = self.rust.lock(name).inspect().await.unwrap();
        assert_eq!(info.holders.len(), 1);
        info.holders[0].id.clone()
    }
}

/// Returns Java's threads, whose names refer to a lock of this kind.
fn threads(place: &Place, what: What) -> [RedissonThread; 2] {
    let kind = what.java(VERSION);
    [place.java.kind(kind), place.other_java.kind(kind)]
}

/// Checks that Java does not get this lock, whether or not it waits, and can't unlock it.
fn is_refused(java: &RedissonThread, name: &str, case: &str) {
    assert!(!java.try_lock(name).unwrap().value, "{case}");
    let wait = std::time::Duration::from_millis(150);
    assert!(
        !java.try_lock_wait(name, wait, None).unwrap().value,
        "{case}"
    );
    assert!(java.is_locked(name).unwrap().value, "{case}");
    let error = java.unlock(name).unwrap_err();
    assert!(error.class.contains("IllegalMonitorState"), "{error:?}");
}
