//! A client of Redisson's or of this library that can hold a lock: to a check, both look the same.

use std::time::Duration;

use leasehold::{AnyLock, Client, LockGuard};
use leasehold_testkit::RedissonVersion;
use leasehold_testkit::redisson::{Pending, RedissonThread};
use tokio::task::JoinHandle;

use crate::javas::JavaClient;
use crate::what::What;

/// A limit that ends long before a lease of 30 s.
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// A client that can hold the lock.
pub(crate) struct Side {
    pub(crate) who: String,
    what: What,
    body: Body,
}

#[allow(clippy::large_enum_variant, reason = "there are three per test")]
enum Body {
    Java {
        _client: JavaClient,
        thread: RedissonThread,
        other_thread: RedissonThread,
    },
    Rust {
        client: Client,
        lock: AnyLock,
        guard: Option<LockGuard>,
    },
}

/// Acquires the lock. Without a limit it waits for ever; with a limit of zero it asks once.
async fn acquire(lock: &AnyLock, limit: Option<Duration>) -> Option<LockGuard> {
    match limit {
        None => Some(lock.acquire().await.unwrap()),
        Some(Duration::ZERO) => lock.try_acquire().await.unwrap(),
        Some(limit) => lock.try_acquire_for(limit).await.unwrap(),
    }
}

impl Side {
    pub(crate) fn java(
        version: RedissonVersion,
        what: What,
        url: &str,
        watchdog: Option<Duration>,
    ) -> Self {
        let client = JavaClient::new(version, url, watchdog);
        let thread = |name| client.thread(name).kind(what.java(version));
        Self {
            who: format!("Redisson {version}"),
            what,
            body: Body::Java {
                thread: thread("t"),
                other_thread: thread("other"),
                _client: client,
            },
        }
    }

    pub(crate) async fn rust(what: What, url: &str, watchdog: Option<Duration>) -> Self {
        let mut builder = Client::builder();
        if let Some(watchdog) = watchdog {
            builder = builder.lease(watchdog);
        }
        let client = builder.connect(url).await.unwrap();
        Self {
            who: "ours".into(),
            what,
            body: Body::Rust {
                lock: what.ours(&client),
                client,
                guard: None,
            },
        }
    }

    /// Returns how often the side asks at least before it sleeps. Java asks once more when its
    /// subscription is confirmed; our client may already be listening.
    pub(crate) fn asks(&self) -> u64 {
        match &self.body {
            Body::Java { .. } => 2,
            Body::Rust { .. } => 1,
        }
    }

    /// Returns a Redisson side's thread that is not waiting.
    pub(crate) fn free_thread(&self) -> Option<RedissonThread> {
        match &self.body {
            Body::Java { other_thread, .. } => Some(other_thread.clone()),
            Body::Rust { .. } => None,
        }
    }

    /// Returns the client of a side of this library.
    pub(crate) fn client(&self) -> Option<&Client> {
        match &self.body {
            Body::Java { .. } => None,
            Body::Rust { client, .. } => Some(client),
        }
    }

    pub(crate) fn is_java(&self) -> bool {
        matches!(self.body, Body::Java { .. })
    }

    /// Whether a message would wake the side.
    pub(crate) fn sleeps(&self) -> bool {
        match &self.body {
            _ if self.what == What::Spin => true,
            Body::Rust { client, .. } => client.activity().channels > 0,
            // The lock tries one member after the other, and sleeps at each for a while.
            Body::Java { .. } if matches!(self.what, What::Multi | What::Red) => true,
            Body::Java { thread, .. } => thread.sleeps(),
        }
    }

    pub(crate) async fn lock(&mut self) {
        let waiting = self.start_lock(None);
        self.got(waiting).await;
    }

    pub(crate) async fn lock_leased(&mut self, lease: Duration) {
        match &mut self.body {
            Body::Java { thread, .. } => {
                thread.lock_lease(self.what.name(), lease).unwrap();
            }
            Body::Rust { lock, guard, .. } => {
                let leased = lock.clone().fixed_lease(lease);
                *guard = Some(leased.acquire().await.unwrap());
            }
        }
    }

    /// Asks once, or waits for `limit`.
    pub(crate) async fn try_lock(&mut self, limit: Duration) -> bool {
        let name = self.what.name();
        match &mut self.body {
            Body::Java { thread, .. } if limit.is_zero() => thread.try_lock(name).unwrap().value,
            Body::Java { thread, .. } => thread.try_lock_wait(name, limit, None).unwrap().value,
            Body::Rust { lock, guard, .. } => {
                *guard = acquire(lock, Some(limit)).await;
                guard.is_some()
            }
        }
    }

    pub(crate) fn start_lock(&self, limit: Option<Duration>) -> Waiting {
        let name = self.what.name();
        match (&self.body, limit) {
            (Body::Java { thread, .. }, None) => Waiting::Java(thread.start_lock(name)),
            (Body::Java { thread, .. }, Some(limit)) => {
                Waiting::JavaFor(thread.start_try_lock_wait(name, limit, None))
            }
            (Body::Rust { lock, .. }, limit) => {
                let lock = lock.clone();
                Waiting::Rust(tokio::spawn(async move { acquire(&lock, limit).await }))
            }
        }
    }

    /// Takes the lock that the side waited for.
    pub(crate) async fn got(&mut self, waiting: Waiting) {
        match (waiting, &mut self.body) {
            (Waiting::Java(pending), _) => {
                pending.wait(SOON).expect("in time");
            }
            (Waiting::JavaFor(pending), _) => {
                assert!(pending.wait(SOON).expect("in time").value, "refused");
            }
            (Waiting::Rust(task), Body::Rust { guard, .. }) => {
                let given = tokio::time::timeout(SOON, task).await.expect("in time");
                *guard = Some(given.unwrap().expect("not refused"));
            }
            _ => unreachable!("somebody else's"),
        }
    }

    /// Releases the lock. Returns whether the side still held it.
    pub(crate) async fn unlock(&mut self) -> bool {
        match &mut self.body {
            Body::Java { thread, .. } => match thread.unlock(self.what.name()) {
                Ok(_) => true,
                Err(error) => {
                    // The error of a multi-lock wraps this one.
                    let said = error.to_string();
                    assert!(said.contains("IllegalMonitorState"), "{said}");
                    false
                }
            },
            Body::Rust { guard, .. } => guard.take().unwrap().release().await.is_ok(),
        }
    }

    /// Takes the lock away from its holder.
    pub(crate) async fn force_unlock(&self) {
        match &self.body {
            // The result of Java's call is wrong for a group of two.
            Body::Java { other_thread, .. } => {
                other_thread.force_unlock(self.what.name()).unwrap();
            }
            Body::Rust { client, .. } => self.what.force_unlock(client).await,
        }
    }
}
pub(crate) enum Waiting {
    Java(Pending<()>),
    JavaFor(Pending<bool>),
    Rust(JoinHandle<Option<LockGuard>>),
}

impl Waiting {
    /// Returns whether a wait with a limit was granted.
    pub(crate) async fn granted(self) -> bool {
        match self {
            Self::Java(_) => unreachable!("it has no limit"),
            Self::JavaFor(pending) => pending.wait(SOON).unwrap().value,
            Self::Rust(task) => task.await.unwrap().is_some(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Java(pending) => pending.is_done(),
            Self::JavaFor(pending) => pending.is_done(),
            Self::Rust(task) => task.is_finished(),
        }
    }
}
