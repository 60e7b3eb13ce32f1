//! The exclusive primitives that the checks apply to: Java's name for each, and ours.

use std::time::Duration;

use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{AnyLock, Client, MultiLock, RedLock};
use leasehold_testkit::RedissonVersion;
use leasehold_testkit::redisson::LockKind;

use crate::support::HOUR;

/// The exclusive primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Plain,
    Spin,
    Fenced,
    Fair,
    Write,
    Multi,
    Red,
    Group,
}

impl What {
    pub(crate) const ALL: [Self; 8] = [
        Self::Plain,
        Self::Spin,
        Self::Fenced,
        Self::Fair,
        Self::Write,
        Self::Multi,
        Self::Red,
        Self::Group,
    ];

    /// Finds the primitive by its `Debug` name.
    pub(crate) fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|what| format!("{what:?}") == name).unwrap()
    }

    /// Returns Java's kind of lock. 3.16.8 has no fenced lock; its plain lock has the same key.
    pub(crate) fn java(self, version: RedissonVersion) -> LockKind {
        match self {
            Self::Fenced if version == RedissonVersion::V3_16_8 => LockKind::Plain,
            Self::Plain => LockKind::Plain,
            Self::Spin => LockKind::Spin,
            Self::Fenced => LockKind::Fenced,
            Self::Fair => LockKind::Fair,
            Self::Write => LockKind::Write,
            Self::Multi => LockKind::Multi,
            Self::Red => LockKind::Red,
            Self::Group => LockKind::Group,
        }
    }

    /// Returns Java's name of the lock.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Multi => "a,b",
            Self::Red => "a,b,c",
            Self::Group => "G/a,b",
            _ => "x",
        }
    }

    /// Returns the keys of its holds.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Multi => &["a", "b"],
            Self::Red => &["a", "b", "c"],
            Self::Group => &["G"],
            _ => &["x"],
        }
    }

    /// Makes our lock. It polls once an hour, so only a message or the end of a lease makes it ask
    /// earlier.
    pub(crate) fn ours(self, client: &Client) -> AnyLock {
        let members = || self.keys().iter().map(|name| client.lock(name));
        let lock: AnyLock = match self {
            // A spin unlock of Redisson publishes nothing.
            Self::Spin => {
                let back_off = WaitStrategy::Backoff(Backoff::exponential());
                return client.lock("x").wait_strategy(back_off).into();
            }
            Self::Plain => client.lock("x").into(),
            Self::Fenced => client.fenced_lock("x").into(),
            Self::Fair => client.fair_lock("x").into(),
            Self::Write => client.rw_lock("x").write_lock().into(),
            Self::Multi => MultiLock::new(members()).unwrap().into(),
            Self::Red => {
                let lock = RedLock::new(members()).unwrap();
                // The server has just been started.
                let lock = lock.member_timeout(Duration::from_secs(5));
                lock.distrust_restarted(false).into()
            }
            Self::Group => client.group_lock("G", ["a", "b"]).into(),
        };
        lock.poll_interval(HOUR)
    }

    pub(crate) async fn force_unlock(self, client: &Client) {
        let done = match self {
            Self::Plain | Self::Spin => client.lock("x").force_unlock().await,
            Self::Fenced => client.fenced_lock("x").force_unlock().await,
            Self::Fair => client.fair_lock("x").force_unlock().await,
            Self::Write => client.rw_lock("x").write_lock().force_unlock().await,
            Self::Group => client.group_lock("G", ["a", "b"]).force_unlock().await,
            Self::Multi | Self::Red => panic!("its members are forced one by one"),
        };
        assert!(done.unwrap());
    }
}
