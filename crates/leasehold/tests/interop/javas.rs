//! Clients of Redisson: most in processes that all tests share, some in a process that can be
//! killed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_testkit::redisson::RedissonThread;
use leasehold_testkit::{Redisson, RedissonVersion};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::what::What;

/// A client of Redisson's, which is closed when this is dropped.
pub(crate) struct JavaClient {
    redisson: &'static Redisson,
    name: String,
}

impl JavaClient {
    pub(crate) fn new(version: RedissonVersion, url: &str, watchdog: Option<Duration>) -> Self {
        let watchdog_ms = watchdog.map(|watchdog| watchdog.as_millis() as u64);
        Self::with(version, url, json!({ "watchdog_ms": watchdog_ms }))
    }

    /// Connects a client with these settings of the driver.
    pub(crate) fn with(version: RedissonVersion, url: &str, settings: Value) -> Self {
        static CLIENTS: AtomicU32 = AtomicU32::new(0);
        let redisson = jvm(version);
        let name = format!("c{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        redisson.client_with(&name, url, settings).unwrap();
        Self { redisson, name }
    }

    pub(crate) fn thread(&self, name: &str) -> RedissonThread {
        self.redisson.thread(&self.name, name)
    }
}

impl Drop for JavaClient {
    fn drop(&mut self) {
        // If the test fails, the result does not matter.
        let _ = self.redisson.close_client(&self.name);
    }
}
/// Returns the process that all tests of a version share, because starting one takes longer than
/// most tests. It ends with this process, which closes its input.
fn jvm(version: RedissonVersion) -> &'static Redisson {
    static JVMS: [OnceLock<Redisson>; 2] = [const { OnceLock::new() }; 2];
    let at = RedissonVersion::ALL.iter().position(|one| *one == version);
    // The URL does not matter: each client names the address that it connects to.
    JVMS[at.unwrap()].get_or_init(|| Redisson::start(version, "redis://127.0.0.1:1"))
}

/// Waits until each of these Java threads sleeps: a "wake all" message only wakes threads that
/// sleep.
pub(crate) async fn asleep(threads: &[&RedissonThread]) {
    eventually("Java's waiters sleep", async || {
        threads.iter().all(|thread| thread.sleeps())
    })
    .await;
}

/// Starts a process of its own, which can be killed, with a thread that holds the lock.
pub(crate) fn java_that_holds(
    version: RedissonVersion,
    what: What,
    url: &str,
    watchdog: Duration,
) -> Redisson {
    let redisson = Redisson::start(version, url);
    redisson.client("c", Some(watchdog)).unwrap();
    let thread = redisson.thread("c", "t").kind(what.java(version));
    thread.lock(what.name()).unwrap();
    redisson
}
