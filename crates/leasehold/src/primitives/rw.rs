//! The read-write lock: many readers or one writer, across all processes.

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
pub(crate) use holds::release;
use kind::RwSettings;
pub use kind::{Read, Write};

/// A read-write lock with a name. At any time it has many readers or one writer, across all
/// processes that use the same server. Redisson's `RReadWriteLock` of the same name is the same
/// lock.
///
/// [`read`](Self::read) and [`write`](Self::write) acquire a side. [`read_lock`](Self::read_lock)
/// and [`write_lock`](Self::write_lock) return a side as a [`Lock`], with all that a `Lock` offers:
/// leases, owners, inspection, forced unlock. Under the conditions of the [promise](Lock), a write
/// hold never overlaps with another hold, and a read hold never overlaps with a write hold. Each
/// read hold has its own lease. When this lease ends, the other read holds remain.
///
/// **Re-entrance.** An [`Owner`] that holds a side can acquire that side again, and an owner of the
/// write side can also acquire the read side. An owner that holds only the read side can't wait for
/// the write side, because it would wait for itself. Such a wait fails at once with
/// [`Deadlock`](crate::ErrorKind::Deadlock): use [`ReadGuard::try_upgrade`] instead. Without an
/// owner nothing is re-entrant, not even reading. If a task acquires the read side twice, it can
/// deadlock with a writer that waits for the end of the first read.
///
/// **Order.** A waiting writer keeps *new* readers of this library out, so that a stream of readers
/// can't starve the writer ([`prefer_writers`](Self::prefer_writers)). Redisson's readers do not
/// wait for waiting writers. Inside one process, waiters acquire the lock in the order of their
/// arrival, except that a reader waits behind a waiting writer for at most a second. Readers that
/// are next to each other in this order enter at the same time. While a writer of another process
/// waits, only one reader enters after each write.
///
/// **Shared read holds.** Readers of one client share one hold on the server if they arrive within
/// 10 ms, have the same settings, and have no owner, no fixed lease and no maximum hold time. Each
/// reader has its own guard, number, release and loss, but
/// [`holder_id`](crate::LockGuard::holder_id) and [`inspect`](Lock::inspect) show them as one
/// holder.
///
/// **Together with Redisson.** The watchdog of a Java reader can cut the leases of all holds of the
/// lock to its own timeout. So this library sets the lease of each hold on the server again three
/// times within that timeout, even a fixed lease, until the lease ends: see
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
/// let (one, two) = (lock.read().await?, lock.read().await?); // at the same time
/// assert!(lock.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
///
/// let writing = lock.write().await?;
/// assert!(lock.try_read().await?.is_none());
/// let reading = writing.downgrade().await?; // no writer can enter in between
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

/// Acquiring. Each method is a short form of a method of [`Lock`], whose documentation has the
/// errors and the cancel safety.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, in the methods that these are"
)]
impl RwLock {
    /// Waits for the read side and acquires it: like [`Lock::acquire`] on the
    /// [`read_lock`](Self::read_lock).
    pub async fn read(&self) -> Result<ReadGuard> {
        self.read.acquire().await
    }

    /// Acquires the read side if there is no writer now, without waiting: see
    /// [`Lock::try_acquire`].
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.read.try_acquire().await
    }

    /// Waits at most `wait` for the read side and acquires it: see [`Lock::try_acquire_for`].
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        self.read.try_acquire_for(wait).await
    }

    /// Waits at most until `deadline` for the read side and acquires it: see
    /// [`Lock::try_acquire_until`].
    pub async fn try_read_until(
        &self,
        deadline: impl Into<tokio::time::Instant>,
    ) -> Result<Option<ReadGuard>> {
        self.read.try_acquire_until(deadline).await
    }

    /// Waits for the write side and acquires it: like [`Lock::acquire`] on the
    /// [`write_lock`](Self::write_lock).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.write.acquire().await
    }

    /// Acquires the write side if there are no readers and no writer now, without waiting: see
    /// [`Lock::try_acquire`].
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.write.try_acquire().await
    }

    /// Waits at most `wait` for the write side and acquires it: see [`Lock::try_acquire_for`].
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        self.write.try_acquire_for(wait).await
    }

    /// Waits at most until `deadline` for the write side and acquires it: see
    /// [`Lock::try_acquire_until`].
    pub async fn try_write_until(
        &self,
        deadline: impl Into<tokio::time::Instant>,
    ) -> Result<Option<WriteGuard>> {
        self.write.try_acquire_until(deadline).await
    }
}

impl RwLock {
    pub(crate) fn named(context: &Arc<Context>, name: &str) -> Self {
        let common = RwSettings::default();
        Self {
            // The sides are two locks with one name. Both publish on the same channel, because a
            // release of one side may let in waiters of the other.
            read: Lock::named(Arc::clone(context), name, Read::new(common)),
            write: Lock::named(Arc::clone(context), name, Write::new(common)),
        }
    }

    /// Returns the read side as a [`Lock`], with the current settings of this handle.
    #[doc(alias = "readLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn read_lock(&self) -> Lock<Read> {
        self.read.clone()
    }

    /// Returns the write side as a [`Lock`], with the current settings of this handle.
    #[doc(alias = "writeLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn write_lock(&self) -> Lock<Write> {
        self.write.clone()
    }

    /// Returns the name that this handle was given. Empty if that name is not valid.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

/// Settings of both sides, with the same meaning as for [`Lock`]. Each setter changes only this
/// handle.
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
    #[must_use = "the setting is only in the returned value"]
    pub fn lease(self, lease: Duration) -> Self {
        self.each(|lock| lock.lease(lease), |lock| lock.lease(lease))
    }

    /// Sets a fixed lease: see [`Lock::fixed_lease`].
    #[doc(alias = "leaseTime")]
    #[must_use = "the setting is only in the returned value"]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.each(
            |lock| lock.fixed_lease(lease),
            |lock| lock.fixed_lease(lease),
        )
    }

    /// Sets how often holds are renewed: see [`Lock::renew_every`].
    #[must_use = "the setting is only in the returned value"]
    pub fn renew_every(self, period: Duration) -> Self {
        self.each(
            |lock| lock.renew_every(period),
            |lock| lock.renew_every(period),
        )
    }

    /// Sets how long a hold may last in total: see [`Lock::max_hold`]. A downgrade or an upgrade
    /// does not restart this time.
    #[must_use = "the setting is only in the returned value"]
    pub fn max_hold(self, limit: Duration) -> Self {
        self.each(|lock| lock.max_hold(limit), |lock| lock.max_hold(limit))
    }

    /// Sets the time in which the holder's work must report progress: see
    /// [`Lock::progress_within`]. A downgrade or an upgrade does not restart this time.
    #[must_use = "the setting is only in the returned value"]
    pub fn progress_within(self, within: Duration) -> Self {
        self.each(
            |lock| lock.progress_within(within),
            |lock| lock.progress_within(within),
        )
    }

    /// Sets how a waiter learns that it should request the lock again: see [`Lock::wait_strategy`].
    #[must_use = "the setting is only in the returned value"]
    pub fn wait_strategy(self, strategy: WaitStrategy) -> Self {
        let same = strategy.clone();
        self.each(
            |lock| lock.wait_strategy(strategy),
            |lock| lock.wait_strategy(same),
        )
    }

    /// Sets how long the readers of this process share a hold, and how long its writers hand their
    /// hold over to each other. Zero turns both off: see [`Lock::local_hand_over`].
    #[must_use = "the setting is only in the returned value"]
    pub fn local_hand_over(self, slice: Duration) -> Self {
        self.each(
            |lock| lock.local_hand_over(slice),
            |lock| lock.local_hand_over(slice),
        )
    }

    /// Sets how often a waiter sends a request while no message wakes it: see
    /// [`Lock::poll_interval`]. If the handle [prefers writers](Self::prefer_writers), a writer
    /// sends one at least every 2 s and a reader at least every second, with any
    /// [strategy](Self::wait_strategy).
    #[must_use = "the setting is only in the returned value"]
    pub fn poll_interval(self, cap: Duration) -> Self {
        self.each(
            |lock| lock.poll_interval(cap),
            |lock| lock.poll_interval(cap),
        )
    }

    /// Sets how long a wait continues while no server answers: see [`Lock::outage_timeout`].
    #[must_use = "the setting is only in the returned value"]
    pub fn outage_timeout(self, limit: Duration) -> Self {
        self.each(
            |lock| lock.outage_timeout(limit),
            |lock| lock.outage_timeout(limit),
        )
    }

    /// Sets which servers must confirm a hold of either side: see [`Lock::acknowledged_by`].
    #[must_use = "the setting is only in the returned value"]
    pub fn acknowledged_by(self, acknowledgement: Acknowledgement) -> Self {
        self.each(
            |lock| lock.acknowledged_by(acknowledgement),
            |lock| lock.acknowledged_by(acknowledgement),
        )
    }

    /// Sets the owner of the holds of both sides: see [`Owner`].
    #[must_use = "the setting is only in the returned value"]
    pub fn owned_by(self, owner: &Owner) -> Self {
        self.each(|lock| lock.owned_by(owner), |lock| lock.owned_by(owner))
    }

    /// Prevents an owner from re-entering its own hold, on either side: see
    /// [`Lock::non_reentrant`]. In particular, an owner that writes can't read inside its write
    /// hold.
    #[must_use = "the setting is only in the returned value"]
    pub fn non_reentrant(self) -> Self {
        self.each(Lock::non_reentrant, Lock::non_reentrant)
    }

    /// Sets whether a waiting writer of this handle keeps new readers out, and whether readers of
    /// this handle stay out while a writer waits. `true` by default.
    ///
    /// This works only between clients of this library. A waiting writer makes a reservation on the
    /// server, which expires 5 s after the writer's last request. So a killed process does not keep
    /// readers out for longer. A reader whose owner holds the write side ignores reservations, and
    /// so does a re-entry.
    ///
    /// If one writer follows another, a waiting reader lets writers go first for about a second.
    /// After that, the reader makes its own reservation while another client writes or is about to
    /// write, and enters before the next writer.
    ///
    /// With `false`, readers enter as Redisson's readers do, and a writer may wait for as long as
    /// reads overlap.
    #[must_use = "the setting is only in the returned value"]
    pub fn prefer_writers(self, preferred: bool) -> Self {
        self.change(|common| common.prefer_writers = preferred)
    }

    /// Sets the shortest `lockWatchdogTimeout` of the Redisson clients that share this lock. 30 s
    /// by default, as in Redisson. Less than 3 ms counts as 3 ms. The renewals of such a client can
    /// cut all leases of the lock to this timeout. So this library sets the lease of each hold on
    /// the server again at least once in each third of this time.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use = "the setting is only in the returned value"]
    pub fn redisson_watchdog(self, timeout: Duration) -> Self {
        self.change(|common| common.watchdog = timeout)
    }

    fn change(self, change: impl Fn(&mut RwSettings)) -> Self {
        let (mut read, mut write) = (self.read.kind().clone(), self.write.kind().clone());
        // Change both sides: a writer makes a reservation that readers check, and the watchdog of a
        // Java reader cuts the leases of both sides.
        change(&mut read.common);
        change(&mut write.common);
        self.each(|lock| lock.with_kind(read), |lock| lock.with_kind(write))
    }
}
