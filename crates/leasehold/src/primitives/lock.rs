//! The lock: one holder at a time, across all processes. [`Lock`] is the handle for every kind of
//! lock; `kind.rs` defines the differences between the kinds.

pub(crate) mod acquire;
mod guard;
mod info;
pub(crate) mod kind;
pub(crate) mod steps;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::acknowledgement::Acknowledgement;
use crate::backend::NameKind;
use crate::backend::channels::Channels;
use crate::backend::step::{Operation, Value};
use crate::config::{Settings, Terms, WaitStrategy, check_wait};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Owner;
use crate::primitives::request;
use crate::primitives::setters::{lease_setters, wait_setters};
use crate::wait::Deadline;
pub use guard::LockGuard;
pub use info::{Holder, LockInfo, Ttl};
pub use kind::{Kind, OneKey, Plain};

/// A lock with a name, shared by all processes that use the same server. Acquiring the lock waits
/// until no other task or process holds it, and returns a [`LockGuard`], which holds it.
///
/// [`acquire`](Self::acquire) waits for the lock, [`try_acquire`](Self::try_acquire) tries once to
/// get it, and [`try_acquire_for`](Self::try_acquire_for) waits for a limited time. The client
/// renews the hold in the background until the guard is released or dropped, unless the handle has
/// a [`fixed_lease`](Self::fixed_lease). Redisson's `RLock`, `getSpinLock` and
/// `getNonReentrantLock` of the same name are the same lock.
///
/// A `Lock` value is only a handle: it is cheap to make and to clone, and does not hold the lock.
/// Each handle has its own settings.
///
/// **What it promises.** A holder's interval begins when its acquire returns. The interval ends
/// when the holder calls release, or at [`valid_until`](LockGuard::valid_until) if that is earlier.
/// For one name, the intervals of two holders do not overlap, as long as
///
/// - no clock drifts by more than the configured drift within a lease,
/// - the server does not lose data,
/// - the key is not removed by force, and
/// - the holder stops at `valid_until`.
///
/// If a holder might not stop in time, only a check at the protected resource helps, for example
/// with a [fencing token](LockGuard::fencing_token).
///
/// **Waiters of one process** get the lock in the order in which they began to wait. For up to
/// 10 ms after a grant, a release hands the lock over to the next waiter of the same client. After
/// that, other processes can acquire it: see [`local_hand_over`](Self::local_hand_over).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let lock = client.lock("orders:42");
///
/// let guard = lock.acquire().await?; // waits; then renews the lock until it is released
/// assert!(lock.is_locked().await?);
/// guard.release().await?; // fails if the lock was lost
///
/// if let Some(guard) = lock.try_acquire().await? {
///     // The lock was free. Dropping the guard releases it in the background.
///     drop(guard);
/// }
/// let short = lock.fixed_lease(Duration::from_secs(10)); // never renewed
/// let guard = short.try_acquire_for(Duration::from_secs(2)).await?;
/// assert!(guard.is_some());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "Mutex")]
#[doc(alias = "RLock")]
#[doc(alias = "getLock")]
#[doc(alias = "getSpinLock")]
#[doc(alias = "getNonReentrantLock")]
#[derive(Clone)]
pub struct Lock<K = Plain> {
    context: Arc<Context>,
    /// The key of the lock's name. An invalid name is reported when the lock is used, so that
    /// making a handle can't fail. For a composite lock, the names of its members, as errors and
    /// logs show them.
    key: Result<Key>,
    /// The channel on which releases are published. Empty for a composite lock: each of its members
    /// has its own channel.
    channel: Arc<str>,
    settings: Settings,
    owner: Option<Owner>,
    member: Option<MemberState>,
    kind: K,
}

/// The state of an acquire of one member of a composite lock.
#[derive(Clone, Default)]
pub(super) struct MemberState {
    /// Receives the remaining time of the current holder's lease, if a server reports that the lock
    /// is held.
    pub(super) held_for: Arc<OnceLock<Duration>>,
    /// Whether a server has already reported, in reply to the same acquire, that the lock is held.
    pub(super) was_held: bool,
}

#[allow(private_bounds, reason = "nothing here is public")]
impl<K: kind::Named> Lock<K> {
    pub(crate) fn named(context: Arc<Context>, name: &str, kind: K) -> Self {
        let key = context.key(name, NameKind::Other);
        let channel = key
            .as_ref()
            .map_or_else(|_| String::new(), |key| kind.channel(key));
        Self {
            settings: context.lock_settings(),
            context,
            key,
            channel: channel.into(),
            owner: None,
            member: None,
            kind,
        }
    }

    /// Returns the same lock with another `kind`.
    pub(super) fn with_kind(&self, kind: K) -> Self {
        Self {
            kind,
            ..self.clone()
        }
    }

    /// Returns the same lock with the terms of an existing hold.
    pub(super) fn on_terms(mut self, terms: Terms) -> Self {
        self.settings.take(terms);
        self
    }

    /// Makes a waiter ask the server at least once every `pause`.
    pub(super) fn ask_at_least_every(&mut self, pause: Duration) {
        // This applies to every wait strategy: after a longer pause, the waiter's reservation would
        // expire.
        self.settings.ask_every = Some(pause);
    }

    pub(crate) fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }

    /// Returns the key of the line in which this lock's waiters wait: see
    /// [`kind::Named::line_key`].
    fn line_key(&self) -> Result<Key> {
        Ok(self.kind.line_key(self.key()?))
    }
}

impl<K> Lock<K> {
    /// Creates a composite lock, which has no name of its own. `context` belongs to the client of
    /// the first server.
    pub(super) fn composite(context: Arc<Context>, key: Key, kind: K) -> Self {
        Self {
            settings: context.settings(),
            context,
            key: Ok(key),
            channel: "".into(),
            owner: None,
            member: None,
            kind,
        }
    }

    /// Returns the same lock as a handle of another type.
    #[allow(private_bounds, reason = "nothing here is public")]
    pub(crate) fn of_kind<J: kind::Acquire>(self, kind: J) -> Lock<J> {
        Lock {
            context: self.context,
            key: self.key,
            channel: self.channel,
            settings: self.settings,
            // An owner that was given to an `AnyLock` has the role of that type. The kind inside
            // the `AnyLock` may hold the name as a reader or as a writer, and finds its holds only
            // in the role `J::ROLE`.
            owner: self.owner.map(|owner| owner.in_role(J::ROLE)),
            member: self.member,
            kind,
        }
    }
}

impl<K: Clone> Lock<K> {
    /// Returns the same lock with a new identity of its owner, which is used for a single acquire.
    /// `None` if the owner re-enters, or already has such an identity.
    fn for_one_acquire(&self) -> Option<Self> {
        let owner = self.owner().filter(|_| self.settings.non_reentrant)?;
        Some(Self {
            owner: Some(owner.for_one_acquire()?),
            ..self.clone()
        })
    }

    /// Returns the same lock as a member of a composite lock that has these `settings` and this
    /// `owner`.
    pub(super) fn as_member(
        &self,
        settings: &Settings,
        owner: Option<&Owner>,
        member: MemberState,
    ) -> Self {
        Self {
            settings: Settings {
                // The member keeps its own setting, because the number of replicas depends on its
                // server.
                acknowledged: self.settings.acknowledged,
                ..settings.clone()
            },
            owner: owner.cloned(),
            member: Some(member),
            ..self.clone()
        }
    }
}

/// Acquiring.
impl<K: Kind> Lock<K> {
    /// Waits until the lock is free, without a time limit, and acquires it. The returned guard
    /// holds the lock until it is released or dropped. Meanwhile, the client renews the lease in
    /// the background, unless the handle has a [`fixed_lease`](Self::fixed_lease).
    /// [`try_acquire_for`](Self::try_acquire_for) waits for a limited time.
    ///
    /// Await the future or spawn it: for each name, only the first waiter of this process sends
    /// requests to the server, so a waiter that is not polled delays all later waiters. If a waiter
    /// is woken but not polled within a tenth of a second, the waiters behind it are served first.
    /// The waiter keeps its place and continues when it is polled again. If the server has granted
    /// the lock to that waiter in the meantime, the waiter holds the lock although it is not
    /// polled.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server has answered for
    ///   the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have
    ///   run anyway.
    /// - `WrongKind` if the name is in use as something else, or if the lock has had no expiry for
    ///   12 s.
    /// - `Denied` if the server refuses the credentials, or the client's user lacks a permission.
    /// - `Misuse` for a bad name or setting, or a client that was closed.
    /// - `Deadlock` if this handle's [`Owner`](crate::Owner) would wait forever.
    /// - `Unsupported` if the server can't confirm a hold as
    ///   [`acknowledged_by`](Self::acknowledged_by) requires.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and gives up the place among the waiters of this process.
    /// If the server has granted the lock and its answer has not arrived yet, the client releases
    /// the lock in the background. The lock is free no later than one lease after that grant.
    #[doc(alias = "lock")]
    #[doc(alias = "lockInterruptibly")]
    pub async fn acquire(&self) -> Result<K::Guard> {
        loop {
            // A wait without a deadline ends only with a guard or an error.
            if let Some(guard) = self.acquire_by(Deadline::Never).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free now. The call sends one request, and does not wait for a
    /// holder to release the lock. `Ok(None)` means that the lock is held, or that other tasks of
    /// this process already wait for it and the server answers their requests.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server does not answer within the client's [reply
    /// timeout](crate::ClientBuilder::reply_timeout), the call fails with `Unavailable` or
    /// `OutcomeUnknown`, and never returns `Ok(None)`. If the lock has no expiry, the call fails
    /// with `WrongKind` at once.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire(&self) -> Result<Option<K::Guard>> {
        self.acquire_by(Deadline::Now).await
    }

    /// Waits until the lock is free, but at most for `wait`, and acquires it. `Ok(None)` means that
    /// the lock was still held after `wait`, which must be more than zero and at most 2^53 ms.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). If the server has not answered any request within
    /// `wait`, the call fails with `OutcomeUnknown`, or with `Unavailable` if no request was sent.
    /// `Misuse` for a `wait` out of its range.
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<K::Guard>> {
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(Deadline::At(deadline)).await
    }

    /// Waits until the lock is free, but at most until `deadline`, and acquires it. `Ok(None)`
    /// means that the lock was still held at that time. If the deadline has already passed, the
    /// call tries once, like [`try_acquire`](Self::try_acquire). `deadline` is an `Instant` of
    /// tokio or of the standard library.
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire_until(
        &self,
        deadline: impl Into<Instant>,
    ) -> Result<Option<K::Guard>> {
        let deadline = Deadline::at_instant(deadline.into(), self.context.clock);
        self.acquire_by(deadline).await
    }

    /// Acquires the lock, runs `work` until it is done or the lock is lost, and releases the lock.
    /// Returns the output of `work`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::embedded();
    /// let total = client.lock("orders:42").run(async |_guard| 40 + 2).await?;
    /// assert_eq!(total, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`acquire`](Self::acquire). [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock
    /// was lost before its release. If `work` was not done yet, it was dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&K::Guard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        let output = guard.as_ref().protect(work(&guard)).await?;
        // The release can still find that the lock was lost. In that case the caller must not get
        // the output, because the lock did not protect the work until its end.
        guard.into().release().await?;
        Ok(output)
    }

    async fn acquire_by(&self, deadline: Deadline) -> Result<Option<K::Guard>> {
        let guard = K::acquire_by(self, deadline).await?;
        Ok(guard.map(<K::Guard as kind::FromLockGuard>::from_lock_guard))
    }
}

/// Settings. Each setter changes only this handle. Existing holds keep their settings.
impl<K: Kind> Lock<K> {
    lease_setters! {
        /// If an [`Owner`] has several guards, the limit counts from the acquire of the guard that
        /// has the limit, and applies while that guard exists.
    }
    wait_setters! {}

    /// Sets the owner of the holds that this handle acquires. An owner that already holds the lock
    /// can acquire it again at once: see [`Owner`].
    #[must_use = "the setting is only in the returned value"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.in_role(K::ROLE));
        self
    }

    /// Prevents an owner from re-entering its own hold. A second acquire by the same owner is then
    /// treated like an acquire by another owner: a try gets nothing, and a wait with a time limit
    /// ends at that limit. A wait without a limit fails at once with
    /// [`Deadlock`](crate::ErrorKind::Deadlock), if the hold would not end by itself.
    ///
    /// This also applies if the owner holds the lock through this handle, and acquires it again
    /// through another handle. On the server, each hold is one holder with its own id, as always.
    /// Several read holds of an owner are independent of each other.
    ///
    /// Without an [`Owner`], an async lock never re-enters, and this setting changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # use leasehold::{Client, ErrorKind, Owner};
    /// # let client = Client::embedded();
    /// let lock = client.lock("orders:42").owned_by(&Owner::new()).non_reentrant();
    /// let guard = lock.acquire().await?;
    /// assert!(lock.try_acquire().await?.is_none());
    /// let error = lock.acquire().await.unwrap_err(); // does not wait for itself
    /// assert_eq!(error.kind(), ErrorKind::Deadlock);
    /// # guard.release().await
    /// # }
    /// ```
    #[doc(alias = "getNonReentrantLock")]
    #[doc(alias = "getNonReentrantFairLock")]
    #[must_use = "the setting is only in the returned value"]
    pub fn non_reentrant(mut self) -> Self {
        self.settings.non_reentrant = true;
        self
    }
}

#[allow(private_bounds, reason = "nothing here is public")]
impl<K: kind::Named> Lock<K> {
    /// Sets which servers must confirm each grant and each renewal before it counts: the master
    /// alone, or also replicas. The default is [`Acknowledgement::master`], unless the client has
    /// another [default](crate::ClientBuilder::acknowledged_by).
    ///
    /// If too few replicas confirm a grant in time, the client releases the lock. A waiter then
    /// requests the lock again until its wait ends, and [`try_acquire`](Self::try_acquire) fails
    /// with [`Unavailable`](crate::ErrorKind::Unavailable). A renewal or an
    /// [`extend`](LockGuard::extend) fails if too few replicas confirm it:
    /// [`valid_until`](LockGuard::valid_until) does not move, and the holder learns of the loss at
    /// that time at the latest, unless a later renewal succeeds. An answer that another client
    /// holds the lock needs no confirmation, and neither does a release.
    ///
    /// Requests that replicas must confirm use a separate connection. On that connection, the
    /// server waits for the confirmation of one request before it runs the next. So requests that
    /// arrive in the meantime are sent in one batch afterwards, and one wait confirms all of them.
    /// All clients of a name should use the same setting: a client that does not wait for replicas
    /// may lose its own holds. Within one process, requests for one name keep their order only if
    /// all of them have the same setting.
    ///
    /// The members of a [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) keep their
    /// own setting. A `RedLock` waits for each member for at most its
    /// [`member_timeout`](crate::RedLock::member_timeout).
    ///
    /// Semaphores and latches have no such setting. After a failover, a permit without a lease can
    /// be granted a second time if the promoted replica had not received its grant. If the replica
    /// had received the grant but not the release, the permit is missing. An embedded keyspace has
    /// no replicas and confirms everything, unless a test sets the number of replicas with
    /// `testing::Network::confirm_by`.
    ///
    /// # Errors
    ///
    /// The setter does not fail. Acquiring the lock fails with [`Misuse`](crate::ErrorKind::Misuse)
    /// if the time limit is out of its range. It fails with
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the server lacks the command (`WAITAOF`
    /// needs Redis 7.2) or the append-only file that the setting needs.
    #[must_use = "the setting is only in the returned value"]
    pub fn acknowledged_by(mut self, acknowledgement: Acknowledgement) -> Self {
        self.settings.acknowledged = acknowledgement;
        self
    }

    /// Sets the minimum time for which the lock stays locked after it was acquired, at least 10 ms.
    /// With a minimum of a few seconds, a job that takes only a second does not run again on a
    /// machine whose clock is a few seconds late. By default there is no minimum.
    ///
    /// The server keeps this time as the expiry of the lock's key. So the minimum also applies if
    /// the process is killed, the guard is dropped, or no server can be reached. If the last guard
    /// is released or dropped before the end of this time, the lock stays locked for the rest of
    /// it, as with [`keep_for`](crate::LockGuard::keep_for). If the lock is lost or unlocked by
    /// force, the minimum no longer applies. [`waive_min_hold`](crate::LockGuard::waive_min_hold)
    /// cancels it.
    ///
    /// If an [`Owner`] has several guards, the time counts from the acquire of each guard that has
    /// this setting, and the latest end applies. A re-entry that fails has no minimum. The minimum
    /// ends when the hold is resumed from a [ticket](crate::ticket), or becomes a read hold
    /// ([`downgrade`](crate::WriteGuard::downgrade)). A hold with a minimum time is not [handed
    /// over](Self::local_hand_over).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::embedded();
    /// let sweep = client.lock("sweep").min_hold(Duration::from_secs(60));
    /// if let Some(guard) = sweep.try_acquire().await? {
    ///     // ... a quick job ...
    ///     guard.release().await?;
    /// }
    /// assert!(sweep.try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The setter does not fail. Acquiring the lock fails with [`Misuse`](crate::ErrorKind::Misuse)
    /// if the time is out of its range, longer than the [`fixed_lease`](Self::fixed_lease), the
    /// [`max_hold`](Self::max_hold) or the client's [failover
    /// guard](crate::ClientBuilder::failover_guard), or if several clients can hold a lock of this
    /// kind. [Turns](Self::once_per) can't have it, because a slot already keeps others away.
    #[must_use = "the setting is only in the returned value"]
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.settings.min_hold = Some(least);
        self
    }

    /// Sets how long the waiters of one client may hand the lock over to each other, counted from
    /// the server's grant. During this time, the next waiter of the same client gets the lock as
    /// soon as the holder releases it, without a request to the server. After this time, the next
    /// release is sent to the server. Then the client waits 2 ms, occasionally 16 ms, before it
    /// requests the lock again, so that other processes can acquire it.
    ///
    /// The default is 10 ms. Zero turns hand-over off. Any duration is allowed, but once a second
    /// the lock is released on the server, and the next holder acquires it there under a new id.
    ///
    /// This applies to a plain lock and to the write side of a read-write lock. On the read side,
    /// readers that arrive within this time share one hold. A [`FairLock`](crate::FairLock) is
    /// handed over without this limit, for as long as the next waiter in the server's queue belongs
    /// to the same client. For a fair lock, the setting only limits how long that next waiter waits
    /// for the holder in its own process before it sends a request to the server. Other kinds are
    /// not handed over.
    ///
    /// A hold is handed over only if
    ///
    /// - the server has granted or renewed it within the last 5 ms and within the last twentieth of
    ///   the lease,
    /// - holder and waiter have the same lease and renew it, and
    /// - neither has an [`Owner`], a [`max_hold`](Self::max_hold) or a fencing token.
    ///
    /// So no hold is handed over if the server's answers take longer than 5 ms. Members of a
    /// [`MultiLock`](crate::MultiLock) or [`RedLock`](crate::RedLock) are never handed over.
    ///
    /// The next holder relies on the server's last answer. After a forced unlock, or when the
    /// server has lost its data, a waiter may get a lock that was lost up to 5 ms earlier. The new
    /// holder learns of the loss from the next request, which the client sends at once.
    ///
    /// A hand-over does not make [`release`](LockGuard::release) return earlier: the call always
    /// waits for the server's answer to a request that was sent after the call.
    #[must_use = "the setting is only in the returned value"]
    pub fn local_hand_over(mut self, slice: Duration) -> Self {
        self.settings.local_hand_over = slice;
        self
    }
}

/// Inspecting the lock, and ending a hold by force.
impl<K: OneKey> Lock<K> {
    /// Returns whether any client holds the lock now. The answer may be out of date when it
    /// arrives.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect().await?.is_locked())
    }

    /// Returns whether `owner` holds the lock, according to the server. If this client does not
    /// know of any hold of `owner`, the result is `false`, and no request is sent.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        let (locals, owner) = (&self.context.locals, owner.in_role(K::ROLE));
        // The server does not know owners, and each hold has its own id there. Only the local
        // record knows which ids to look for.
        let held = locals.all_held_by(&self.line_key()?, &owner);
        if held.is_empty() {
            return Ok(false);
        }
        let info = self.inspect().await?;
        let is_own = |id: &str| held.iter().any(|held| held.hold().steps.wire_id() == id);
        // Compare with every holder, not only the first: a lock may have many readers, and the
        // server lists them in any order.
        Ok(info.holders.iter().any(|holder| is_own(&holder.id)))
    }

    /// Returns the remaining time of the current hold's lease on the server.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    #[doc(alias = "remainTimeToLive")]
    pub async fn remaining_ttl(&self) -> Result<Ttl> {
        Ok(self.inspect().await?.ttl)
    }

    /// Asks the server which clients hold the lock, and how much time is left of the lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered, `WrongKind`
    /// if the name is in use as something else, `Denied` if the server refuses the request,
    /// `Misuse` for a bad name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    #[doc(alias = "getHoldCount")]
    pub async fn inspect(&self) -> Result<LockInfo> {
        self.info(self.kind.inspect(self.key()?)).await
    }

    /// Ends all holds of this lock, no matter which clients have them. Returns `true` if there were
    /// any.
    ///
    /// This is for operators. A holder learns of the loss and of this client's label
    /// ([`LossReason::Forced`](crate::LossReason::Forced)) at its next renewal, up to a third of
    /// its lease later. **Until then, that holder and the next one work at the same time.** Holders
    /// that use Redisson are not notified at all.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect), and `OutcomeUnknown` if no reply arrived: the holds may
    /// or may not have been ended. A key that is not a lock of this kind is not changed.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the holds may be ended even if the future is dropped.
    #[doc(alias = "forceUnlock")]
    #[doc(alias = "delete")]
    pub async fn force_unlock(&self) -> Result<bool> {
        let key = self.key()?;
        let operation = self
            .kind
            .force_unlock(key, &self.channel, &self.context.label);
        // The request is sent only once, even if the answer is lost: a second request could end the
        // hold of a client that has acquired the lock in the meantime.
        let ended = request::change(&self.context, key, operation).await?;
        Ok(ended == Value::Int(1))
    }
}

impl<K> Lock<K> {
    pub(crate) fn kind(&self) -> &K {
        &self.kind
    }

    pub(crate) fn kind_mut(&mut self) -> &mut K {
        &mut self.kind
    }

    /// Makes each use of the handle fail with `error`. If the name is not valid, the handle keeps
    /// the error about the name.
    pub(super) fn refuse(&mut self, error: Error) {
        if self.key.is_ok() {
            self.key = Err(error);
        }
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Returns the owner, if its acquires through this handle re-enter its holds.
    pub(super) fn reentering_owner(&self) -> Option<&Owner> {
        self.owner().filter(|_| !self.settings.non_reentrant)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the channels of the client, and the name of the channel on which releases are
    /// published.
    pub(super) fn release_channel(&self) -> (&Arc<Channels>, &str) {
        (self.context.backend.channels(), &self.channel)
    }

    /// Sends `inspect`, a kind's request for the holders of the lock, and reads the reply.
    pub(super) async fn info(&self, inspect: Operation) -> Result<LockInfo> {
        let key = self.key()?;
        match request::query(&self.context, key, inspect).await? {
            Value::List(items) => LockInfo::read(&items),
            _ => None,
        }
        .ok_or_else(|| request::malformed(&self.context, key))
    }

    pub(crate) fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    /// Returns the name that this handle was given. Empty if that name is not valid.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", Key::given)
    }
}

impl<K: fmt::Debug> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("kind", &self.kind)
            .field("settings", &self.settings)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
