//! The read-write lock: many readers or one writer, over all processes.

mod guard;
mod holds;
mod kind;
pub(crate) mod steps;

use std::sync::Arc;
use std::time::Duration;

use super::lock::Lock;
use crate::acknowledgement::Acknowledgement;
use crate::config::WaitStrategy;
use crate::context::Context;
use crate::error::Result;
use crate::owner::Owner;
pub use guard::{NotUpgraded, ReadGuard, WriteGuard};
pub(super) use holds::release;
use kind::Common;
pub use kind::{Read, Write};

/// A read-write lock with a name: many readers or one writer, over all processes that use the same
/// server. Shared with Redisson's `RReadWriteLock` of the same name.
///
/// [`read`](Self::read) and [`write`](Self::write) acquire a side. [`read_lock`](Self::read_lock)
/// and [`write_lock`](Self::write_lock) return a side as a [`Lock`], with all that a `Lock` offers:
/// leases, owners, inspection, forced unlock. The promise of `Lock` applies to each write hold
/// against all other holds, and to each read hold against write holds. Each read hold has a lease
/// of its own: when it ends, the other read holds stay.
///
/// **Re-entrance.** An [`Owner`] can enter again a side that it holds, and an owner of the write
/// side can also take the read side. An owner that holds only the read side can't wait for the
/// write side, because it would wait for itself. That is an error; use [`ReadGuard::try_upgrade`]
/// instead. Without an owner nothing is re-entrant, not even reading: a task that takes the read
/// side twice can deadlock with a writer that waits for its first read.
///
/// **Who goes first.** A waiting writer keeps *new* readers of this library out, so that a stream
/// of readers can't starve it ([`prefer_writers`](Self::prefer_writers)). Redisson's readers know
/// nothing of this and enter anyway. Inside one process, waiters are served in the order of their
/// arrival, except that a reader stays behind a writer for a second at most. Adjacent readers in
/// line enter together, unless a writer of another process waits. In that case one reader enters
/// after each write.
///
/// **Readers together.** Readers of one client share one hold on the server if they arrive within
/// 10 ms, have the same terms, and have no owner, no fixed lease and no maximum hold time. Each has
/// its own guard, number, release and loss, but [`holder_id`](crate::LockGuard::holder_id) and
/// [`inspect`](Lock::inspect) show them as one.
///
/// **Beside Redisson.** The watchdog of a Java reader can cut the lease of all holds to its own
/// timeout. So each hold of this library is confirmed three times within that timeout. This
/// includes a hold with a fixed lease, until that lease ends: see
/// [`redisson_watchdog`](Self::redisson_watchdog).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let lock = client.rw_lock("prices");
///
/// let (one, two) = (lock.read().await?, lock.read().await?); // beside each other
/// assert!(lock.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
///
/// let writing = lock.write().await?;
/// assert!(lock.try_read().await?.is_none());
/// let reading = writing.downgrade().await?; // with no writer in between
/// reading.release().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RReadWriteLock")]
#[doc(alias = "getReadWriteLock")]
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock<Read>,
    write: Lock<Write>,
}

impl RwLock {
    pub(crate) fn named(context: &Arc<Context>, name: &str) -> Self {
        let common = Common::default();
        Self {
            // Two locks of one name. Both sides publish on the same channel, because a release of
            // one side may let in waiters of the other.
            read: Lock::named(Arc::clone(context), name, Read::new(common)),
            write: Lock::named(Arc::clone(context), name, Write::new(common)),
        }
    }

    /// Returns the read side as a lock of its own, with the settings made so far.
    #[doc(alias = "readLock")]
    #[must_use]
    pub fn read_lock(&self) -> Lock<Read> {
        self.read.clone()
    }

    /// Returns the write side as a lock of its own, with the settings made so far.
    #[doc(alias = "writeLock")]
    #[must_use]
    pub fn write_lock(&self) -> Lock<Write> {
        self.write.clone()
    }

    /// Returns the name as it was given; empty if it is not a valid name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

/// Settings of both sides. They mean what they mean for [`Lock`]. Each changes this handle only.
impl RwLock {
    fn each(
        self,
        read: impl FnOnce(Lock<Read>) -> Lock<Read>,
        write: impl FnOnce(Lock<Write>) -> Lock<Write>,
    ) -> Self {
        Self {
            read: read(self.read),
            write: write(self.write),
        }
    }

    /// Sets the lease of renewed holds: see [`Lock::lease`].
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.each(|lock| lock.lease(lease), |lock| lock.lease(lease))
    }

    /// Sets a fixed lease: see [`Lock::fixed_lease`].
    #[doc(alias = "leaseTime")]
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.each(
            |lock| lock.fixed_lease(lease),
            |lock| lock.fixed_lease(lease),
        )
    }

    /// Sets how often holds are renewed: see [`Lock::renew_every`].
    #[must_use]
    pub fn renew_every(self, period: Duration) -> Self {
        self.each(
            |lock| lock.renew_every(period),
            |lock| lock.renew_every(period),
        )
    }

    /// Sets how long a hold may last in total: see [`Lock::max_hold`]. The time runs on when a
    /// holder changes sides.
    #[must_use]
    pub fn max_hold(self, limit: Duration) -> Self {
        self.each(|lock| lock.max_hold(limit), |lock| lock.max_hold(limit))
    }

    /// Sets how a waiter learns that it may ask again: see [`Lock::wait_strategy`].
    #[must_use]
    pub fn wait_strategy(self, strategy: WaitStrategy) -> Self {
        let same = strategy.clone();
        self.each(
            |lock| lock.wait_strategy(strategy),
            |lock| lock.wait_strategy(same),
        )
    }

    /// Sets how long the readers of this process share a hold, and how long its writers hand their
    /// hold over to each other. Zero turns both off: see [`Lock::local_hand_over`].
    #[must_use]
    pub fn local_hand_over(self, turn: Duration) -> Self {
        self.each(
            |lock| lock.local_hand_over(turn),
            |lock| lock.local_hand_over(turn),
        )
    }

    /// Sets how often a waiter asks when nothing wakes it: see [`Lock::poll_interval`]. While the
    /// handle [prefers writers](Self::prefer_writers), a writer asks at least every 2 s and a
    /// reader at least every second. This includes waiters that [back off](Self::wait_strategy).
    #[must_use]
    pub fn poll_interval(self, cap: Duration) -> Self {
        self.each(
            |lock| lock.poll_interval(cap),
            |lock| lock.poll_interval(cap),
        )
    }

    /// Sets how long a wait continues while no server answers: see [`Lock::outage_timeout`].
    #[must_use]
    pub fn outage_timeout(self, limit: Duration) -> Self {
        self.each(
            |lock| lock.outage_timeout(limit),
            |lock| lock.outage_timeout(limit),
        )
    }

    /// Sets which servers must confirm a hold of either side: see [`Lock::acknowledged_by`].
    #[must_use]
    pub fn acknowledged_by(self, acknowledgement: Acknowledgement) -> Self {
        self.each(
            |lock| lock.acknowledged_by(acknowledgement),
            |lock| lock.acknowledged_by(acknowledgement),
        )
    }

    /// Acquires both sides as `owner`: see [`Owner`].
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        self.each(|lock| lock.owned_by(owner), |lock| lock.owned_by(owner))
    }

    /// Sets whether a waiting writer keeps new readers out, and whether this handle's readers stay
    /// out while a writer waits. On by default.
    ///
    /// This works between clients of this library. A waiting writer leaves a mark that ends 5 s
    /// after the writer's last request. So the mark of a killed process keeps readers out no longer
    /// than that. Readers inside a write hold of their owner don't wait for a mark, and neither do
    /// re-entries.
    ///
    /// When one write follows another, a waiting reader lets writers pass for about a second. After
    /// that, the reader leaves a mark of its own while another client writes or is about to write,
    /// and enters before the next writer.
    ///
    /// When the setting is off, readers enter and leave as Redisson's readers do, and a writer may
    /// wait for as long as reads overlap.
    #[must_use]
    pub fn prefer_writers(self, preferred: bool) -> Self {
        self.change(|common| common.prefer_writers = preferred)
    }

    /// Sets the shortest `lockWatchdogTimeout` of the Redisson clients that share this lock. 30 s
    /// by default, as in Redisson; less than 3 ms counts as 3 ms. Holds are confirmed at least once
    /// in each third of this time, because the renewals of such a client can cut all leases of the
    /// lock to its timeout.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use]
    pub fn redisson_watchdog(self, timeout: Duration) -> Self {
        self.change(|common| common.watchdog = timeout)
    }

    fn change(self, change: impl Fn(&mut Common)) -> Self {
        let (mut read, mut write) = (self.read.kind().clone(), self.write.kind().clone());
        // Change both sides: a writer leaves its mark and the readers look for it, and the watchdog
        // of a Java reader cuts holds of either side.
        change(&mut read.common);
        change(&mut write.common);
        self.each(|lock| lock.with_kind(read), |lock| lock.with_kind(write))
    }
}

/// Acquiring. Each method is a short form of a method of [`Lock`], which documents what it
/// promises.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, in the methods that these are"
)]
impl RwLock {
    /// Waits for the read side: [`Lock::acquire`] of [`read_lock`](Self::read_lock).
    pub async fn read(&self) -> Result<ReadGuard> {
        self.read.acquire().await
    }

    /// Acquires the read side if there is no writer: [`Lock::try_acquire`].
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.read.try_acquire().await
    }

    /// Waits at most `wait` for the read side: [`Lock::try_acquire_for`].
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        self.read.try_acquire_for(wait).await
    }

    /// Waits until `deadline` for the read side: [`Lock::try_acquire_until`].
    pub async fn try_read_until(
        &self,
        deadline: impl Into<tokio::time::Instant>,
    ) -> Result<Option<ReadGuard>> {
        self.read.try_acquire_until(deadline).await
    }

    /// Waits for the write side: [`Lock::acquire`] of [`write_lock`](Self::write_lock).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.write.acquire().await
    }

    /// Acquires the write side if there are no readers and no writer: [`Lock::try_acquire`].
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.write.try_acquire().await
    }

    /// Waits at most `wait` for the write side: [`Lock::try_acquire_for`].
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        self.write.try_acquire_for(wait).await
    }

    /// Waits until `deadline` for the write side: [`Lock::try_acquire_until`].
    pub async fn try_write_until(
        &self,
        deadline: impl Into<tokio::time::Instant>,
    ) -> Result<Option<WriteGuard>> {
        self.write.try_acquire_until(deadline).await
    }
}
