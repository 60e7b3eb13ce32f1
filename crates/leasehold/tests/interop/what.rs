//! The exclusive primitives that the checks hold for: what Java calls each, and ours.

use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold::kind::Kind;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, Lock, LockGuard, MultiLock, RedLock};
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

    /// As it is shown for debugging.
    pub(crate) fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|what| format!("{what:?}") == name).unwrap()
    }

    /// 3.16.8 has no fenced lock; its plain one has the same key.
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

    /// What Java calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Multi => "a,b",
            Self::Red => "a,b,c",
            Self::Group => "G/a,b",
            _ => "x",
        }
    }

    /// Where its holds stand.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Multi => &["a", "b"],
            Self::Red => &["a", "b", "c"],
            Self::Group => &["G"],
            _ => &["x"],
        }
    }

    /// Ours, which asks once an hour: only a message or the end of a lease makes it.
    pub(crate) fn ours(self, client: &Client) -> Box<dyn AnyLock> {
        let members = |names: &[&str]| -> Vec<_> {
            let one = |name: &&str| client.lock(name).poll_interval(HOUR);
            names.iter().map(one).collect()
        };
        match self {
            Self::Plain => Box::new(client.lock("x").poll_interval(HOUR)),
            // A spin unlock of Redisson publishes nothing.
            Self::Spin => {
                let back_off = WaitStrategy::Backoff(Backoff::exponential());
                Box::new(client.lock("x").wait_strategy(back_off))
            }
            Self::Fenced => Box::new(client.fenced_lock("x").poll_interval(HOUR)),
            Self::Fair => Box::new(client.fair_lock("x").poll_interval(HOUR)),
            Self::Write => Box::new(client.rw_lock("x").poll_interval(HOUR).write_lock()),
            Self::Multi => Box::new(
                MultiLock::new(members(self.keys()))
                    .unwrap()
                    .poll_interval(HOUR),
            ),
            Self::Red => {
                let lock = RedLock::new(members(self.keys())).unwrap();
                // The server has just been started.
                Box::new(lock.distrust_restarted(false).poll_interval(HOUR))
            }
            Self::Group => Box::new(client.group_lock("G", ["a", "b"]).poll_interval(HOUR)),
        }
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

/// A lock of ours of whatever kind.
pub(crate) trait AnyLock: Send + Sync {
    /// Without a limit it waits for ever; with none left it asks once.
    fn acquire(&self, limit: Option<Duration>) -> BoxFuture<'static, Option<LockGuard>>;

    /// With a lease that nobody renews.
    fn acquire_leased(&self, lease: Duration) -> BoxFuture<'static, LockGuard>;
}

impl<K: Kind> AnyLock for Lock<K> {
    fn acquire(&self, limit: Option<Duration>) -> BoxFuture<'static, Option<LockGuard>> {
        let lock = self.clone();
        Box::pin(async move {
            let guard = match limit {
                None => Some(lock.acquire().await.unwrap()),
                Some(Duration::ZERO) => lock.try_acquire().await.unwrap(),
                Some(limit) => lock.try_acquire_for(limit).await.unwrap(),
            };
            guard.map(Into::into)
        })
    }

    fn acquire_leased(&self, lease: Duration) -> BoxFuture<'static, LockGuard> {
        let lock = self.clone().fixed_lease(lease);
        Box::pin(async move { lock.acquire().await.unwrap().into() })
    }
}
