//! The read-write lock in a history: readers, writers, and holders that upgrade or downgrade.

use std::time::Duration;

use leasehold::inspect::LockInfo;
use leasehold::{Client, LockGuard, Result, RwLock};

use super::{Wanted, Wish};
use crate::scenario::{Ask, Turn};

/// The way in which a turn uses the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
    /// Writes, then downgrades.
    Downgrade,
    /// Reads, then upgrades.
    Upgrade,
}

impl Way {
    pub(super) fn ends_as_reader(self) -> bool {
        matches!(self, Self::Read | Self::Downgrade)
    }
}

pub(super) fn way(turn: &Turn) -> Way {
    // One time limit can't apply to two steps. Also, an owner that has downgraded would re-enter as
    // a reader.
    let simple = turn.reenters || !matches!(turn.ask, Ask::Acquire);
    match turn.way % 8 {
        6 if !simple => Way::Downgrade,
        7 if !simple => Way::Upgrade,
        0..4 | 6 => Way::Read,
        _ => Way::Write,
    }
}

pub(crate) struct OneWay {
    lock: RwLock,
    way: Way,
    /// The minimum hold time of a turn that only writes.
    least: Option<Duration>,
}

pub(super) fn lock(client: &Client, wish: &Wish<'_>, name: &str) -> Wanted {
    let lock = client.rw_lock(name).poll_interval(wish.poll_interval);
    let mut lock = lock.acknowledged_by(wish.acknowledgement());
    if let Some(owner) = wish.owner {
        lock = lock.owned_by(owner);
    }
    if let Some(limit_ms) = wish.turn.max_hold_ms {
        lock = lock.max_hold(Duration::from_millis(limit_ms));
    }
    if let Some(lease_ms) = wish.turn.fixed_lease_ms {
        lock = lock.fixed_lease(Duration::from_millis(lease_ms));
    }
    if wish.turn.way >= 192 {
        lock = lock.prefer_writers(false);
    }
    let way = way(wish.turn);
    let least = wish.turn.least_ms.map(Duration::from_millis);
    Wanted::OneWay(OneWay { lock, way, least })
}

impl OneWay {
    pub(super) async fn ask(&self, ask: Ask) -> Result<Option<LockGuard>> {
        match self.way {
            Way::Read => self.read(ask).await,
            Way::Write => self.write(ask).await,
            Way::Downgrade => self.downgrade().await,
            Way::Upgrade => self.upgrade().await,
        }
    }

    async fn read(&self, ask: Ask) -> Result<Option<LockGuard>> {
        let guard = match ask {
            Ask::Acquire => self.lock.read().await.map(Some)?,
            Ask::Try => self.lock.try_read().await?,
            Ask::For(ms) => self.lock.try_read_for(Duration::from_millis(ms)).await?,
        };
        Ok(guard.map(Into::into))
    }

    async fn write(&self, ask: Ask) -> Result<Option<LockGuard>> {
        let mut lock = self.lock.write_lock();
        if let Some(least) = self.least {
            lock = lock.min_hold(least);
        }
        let guard = match ask {
            Ask::Acquire => lock.acquire().await.map(Some)?,
            Ask::Try => lock.try_acquire().await?,
            Ask::For(ms) => lock.try_acquire_for(Duration::from_millis(ms)).await?,
        };
        Ok(guard.map(Into::into))
    }

    /// Acquires as a writer, then downgrades. If the downgrade fails because of a fault, acquires
    /// again as a reader, because the lock can still be acquired.
    async fn downgrade(&self) -> Result<Option<LockGuard>> {
        match self.lock.write().await?.downgrade().await {
            Ok(guard) => Ok(Some(guard.into())),
            Err(_) => self.read(Ask::Acquire).await,
        }
    }

    async fn upgrade(&self) -> Result<Option<LockGuard>> {
        match self.lock.read().await?.try_upgrade().await {
            Ok(guard) => Ok(Some(guard.into())),
            Err(refused) => {
                drop(refused.into_guard());
                self.write(Ask::Acquire).await
            }
        }
    }
}

/// Returns the state of the side (read or write) to which the hold belongs.
pub(super) async fn inspect(operator: &Client, holder_id: &str, name: &str) -> Result<LockInfo> {
    let lock = operator.rw_lock(name);
    if holder_id.ends_with(":write") {
        lock.write_lock().inspect().await
    } else {
        lock.read_lock().inspect().await
    }
}

pub(super) async fn force_unlock(operator: &Client, name: &str) {
    let lock = operator.rw_lock(name);
    let _ = lock.read_lock().force_unlock().await;
    let _ = lock.write_lock().force_unlock().await;
}
