//! The lock: one holder at a time, over all processes. [`Lock`] is the handle of every kind of
//! lock; `kind.rs` has what differs between the kinds.

pub(in crate::primitives) mod ask;
pub(crate) mod group;
mod guard;
mod info;
pub(crate) mod kind;
pub(crate) mod steps;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::acknowledgement::Acknowledgement;
use crate::backend::NameOf;
use crate::backend::channels::Channels;
use crate::backend::step::{Operation, Value};
use crate::config::{Settings, Terms, WaitStrategy, check_wait};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::owner::Owner;
use crate::primitives::request;
use crate::primitives::setters::{lease_setters, wait_setters};
use crate::wait::Deadline;
pub use group::{FieldNames, Group, GroupLock};
pub use guard::LockGuard;
pub use info::{Holder, LockInfo, Ttl};
pub use kind::{Kind, OneKey, Plain};

/// A lock by name. Acquiring it waits until nobody else holds it, over all processes that use the
/// same server, and gives a [`LockGuard`].
///
/// [`acquire`](Self::acquire) waits for the lock, [`try_acquire`](Self::try_acquire) asks for it
/// once, and [`try_acquire_for`](Self::try_acquire_for) waits for a limited time. The hold is
/// renewed in the background until the guard is released or dropped, unless
/// [`fixed_lease`](Self::fixed_lease) says otherwise. The lock is shared with Redisson's `RLock`,
/// `getSpinLock` and `getNonReentrantLock` of the same name.
///
/// A handle is cheap to make and to clone, and holds nothing by itself. Each handle has its own
/// settings.
///
/// **What it promises.** The interval of a holder begins when its acquire returns. It ends when its
/// release is called, or at [`valid_until`](LockGuard::valid_until) if that comes first. For one
/// name, the intervals of two holders do not overlap, as long as
///
/// - no clock drifts by more than the configured drift within a lease,
/// - the server loses no data,
/// - nobody removes the key by force, and
/// - the holder stops at `valid_until`.
///
/// Where a holder can't be trusted to stop, only a check at the protected resource helps.
///
/// **Waiters of one process** get the lock in the order they came. A release hands it over to the
/// next of them for up to 10 ms before other processes have their turn:
/// [`local_hand_over`](Self::local_hand_over).
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
/// let guard = lock.acquire().await?; // waits; renewed until it is released
/// assert!(lock.is_locked().await?);
/// guard.release().await?; // an error if the lock had been lost
///
/// if let Some(guard) = lock.try_acquire().await? {
///     // now or not at all; dropping the guard releases it in the background
///     drop(guard);
/// }
/// let short = lock.fixed_lease(Duration::from_secs(10)); // a fixed lease, not renewed
/// let guard = short.try_acquire_for(Duration::from_secs(2)).await?;
/// assert!(guard.is_some());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RLock")]
#[doc(alias = "getLock")]
#[doc(alias = "getSpinLock")]
#[doc(alias = "getNonReentrantLock")]
#[derive(Clone)]
pub struct Lock<K = Plain> {
    context: Arc<Context>,
    /// A name is checked when it is used, so that making a handle can't fail. For several locks
    /// their names, as messages show them.
    key: Result<Key>,
    /// Where releases are published. Empty for several locks, each of which has its own.
    channel: Arc<str>,
    settings: Settings,
    owner: Option<Owner>,
    member: Option<Member>,
    kind: K,
}

/// How a lock is asked for that is one of several.
#[derive(Clone, Default)]
pub(super) struct Member {
    /// Where to note how much of its lease the holder in the way has left.
    pub(super) held_for: Arc<OnceLock<Duration>>,
    /// A server has said before, to the same acquire, that it is held.
    pub(super) was_held: bool,
}

#[allow(private_bounds, reason = "nothing here is public")]
impl<K: kind::Named> Lock<K> {
    pub(crate) fn named(context: Arc<Context>, name: &str, kind: K) -> Self {
        let key = context.key(name, NameOf::Other);
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

    /// The same lock, acquired in another way.
    pub(super) fn with_kind(&self, kind: K) -> Self {
        Self {
            kind,
            ..self.clone()
        }
    }

    /// The same lock, with the terms of an existing hold.
    pub(super) fn on_terms(mut self, terms: Terms) -> Self {
        self.settings.take(terms);
        self
    }

    /// Makes a waiter ask at least once every `pause`.
    pub(super) fn ask_at_least_every(&mut self, pause: Duration) {
        // Whatever the strategy is: with a longer pause the waiter's mark would end between two asks.
        self.settings.ask_every = Some(pause);
    }

    pub(super) fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }

    /// The key of the line in which this lock's waiters wait: see [`kind::Named::line_key`].
    fn line_key(&self) -> Result<Key> {
        Ok(self.kind.line_key(self.key()?))
    }
}

impl<K> Lock<K> {
    /// A lock over several others, which has no name of its own. `context` is that of the first
    /// server's client.
    pub(super) fn over_several(context: Arc<Context>, key: Key, kind: K) -> Self {
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

    /// The same lock, as a handle of another type.
    #[allow(private_bounds, reason = "nothing here is public")]
    pub(super) fn of_kind<J: kind::Acquire>(self, kind: J) -> Lock<J> {
        Lock {
            context: self.context,
            key: self.key,
            channel: self.channel,
            settings: self.settings,
            // An owner that was given to an `AnyLock` has the role of that type. The kind behind it
            // may hold the name as a reader or as a writer, and has to find its own holds.
            owner: self.owner.map(|owner| owner.in_role(J::ROLE)),
            member: self.member,
            kind,
        }
    }
}

impl<K: Clone> Lock<K> {
    /// The same lock, as several locks ask for it: with their settings and their owner.
    pub(super) fn as_member(
        &self,
        settings: &Settings,
        owner: Option<&Owner>,
        member: Member,
    ) -> Self {
        Self {
            settings: Settings {
                // Its own: how many replicas there are is a matter of its server.
                acknowledged: self.settings.acknowledged,
                ..settings.clone()
            },
            owner: owner.cloned(),
            member: Some(member),
            ..self.clone()
        }
    }
}

/// Settings. Each changes this handle only; locks that are held already keep their terms.
impl<K: Kind> Lock<K> {
    lease_setters! {
        /// With an [`Owner`], the limit belongs to the guard that asked for it and applies while
        /// that guard lives.
    }
    wait_setters! {}

    /// Acquires as `owner`. An owner that holds the lock can enter it again: see [`Owner`].
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.in_role(K::ROLE));
        self
    }
}

#[allow(private_bounds, reason = "nothing here is public")]
impl<K: kind::Named> Lock<K> {
    /// Sets who has to confirm a grant, and each renewal, before it counts: the master alone
    /// ([`Acknowledgement::master`], unless the client has another
    /// [default](crate::ClientBuilder::acknowledged_by)), or replicas as well.
    ///
    /// A grant that too few have confirmed in time is given back. A waiter then asks again, until
    /// its wait is over; [`try_acquire`](Self::try_acquire) fails with
    /// [`Unavailable`](crate::ErrorKind::Unavailable). A renewal or an
    /// [`extend`](LockGuard::extend) that too few have confirmed has failed, so
    /// [`valid_until`](LockGuard::valid_until) stays where it was, and the holder is told then at the
    /// latest. A lock that somebody else holds is held, whoever confirms that. A release needs no
    /// confirmation.
    ///
    /// Such holds have a connection of their own, on which a server waits for one request after the
    /// other. Requests that wait there travel together and are confirmed together. All clients of a
    /// name should set the same: one that does not wait for the replicas may lose its own holds, and
    /// requests of one process for a name keep their order only if they are acknowledged alike.
    ///
    /// Members of a [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) keep their own
    /// setting. A majority waits for no member longer than its
    /// [`member_timeout`](crate::RedLock::member_timeout).
    ///
    /// Semaphores and latches have no such setting: a permit without a lease that was lost with its
    /// master would be there twice, and one that was confirmed and given back without a confirmation
    /// would be missing. An embedded keyspace has no replicas and confirms everything, unless a test
    /// says by `testing::Network::confirm_by` how many do.
    ///
    /// # Errors
    ///
    /// When the lock is used: [`Misuse`](crate::ErrorKind::Misuse) for a time out of its range,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a server that does not have the command
    /// (`WAITAOF` needs Redis 7.2), or has no append-only file.
    #[must_use]
    pub fn acknowledged_by(mut self, acknowledgement: Acknowledgement) -> Self {
        self.settings.acknowledged = acknowledgement;
        self
    }

    /// Sets for how long this process keeps the lock while its own waiters want it, counted from a
    /// grant of the server. Until then a release hands the lock over to the next waiter of the same
    /// client, without a request in between. Then the lock goes back to the server, and the client
    /// lets other processes ask first, for 2 ms or now and then for 16 ms. 10 ms by default; zero
    /// turns it off. Any span is allowed, but once a second the lock is released on the server, where
    /// the next holder gets it under a new id.
    ///
    /// So it is with a plain lock and the write side of a read-write lock. On the read side, readers
    /// that come within this span share one hold. A [`FairLock`](crate::FairLock) is handed along its
    /// waiters in the server's order, while they all belong to one client; the
    /// span only says for how long the next of them waits for the holder of its own process before it
    /// asks the server. Other kinds are not handed over.
    ///
    /// A hold is handed over if the server has confirmed it in the last 5 ms (and in the last
    /// twentieth of the lease), if holder and waiter have the same lease and renew it, and if
    /// neither has an [`Owner`], a [`max_hold`](Self::max_hold) or a fencing token. So it is not
    /// handed over where a server answers later than that. Members of a
    /// [`MultiLock`](crate::MultiLock) or [`RedLock`](crate::RedLock) take no part.
    ///
    /// The next holder relies on that last confirmation. After a forced unlock, or when the server
    /// has lost its data, a waiter can be handed a lock that was lost up to 5 ms before. The next
    /// request, which leaves at once, tells it so.
    ///
    /// [`release`](LockGuard::release) resolves when the server has answered a request that left
    /// behind the release, as it does without this.
    #[must_use]
    pub fn local_hand_over(mut self, turn: Duration) -> Self {
        self.settings.local_hand_over = turn;
        self
    }
}

/// Acquiring.
impl<K: Kind> Lock<K> {
    /// Waits for the lock, without a time limit.
    ///
    /// Of the waiters of this process for one name, the first one asks the server. So keep polling
    /// the future, or spawn it. A waiter that was woken but is not polled within a tenth of a
    /// second is passed over by the waiters behind it. It keeps its place, and goes on when it is
    /// polled again. If the server has granted it the lock in the meantime, it holds the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has answered for
    /// the [`outage_timeout`](Self::outage_timeout), or `OutcomeUnknown` if a request may have run
    /// all the same; `WrongKind` when the key holds something else; `Denied` when the server
    /// refuses; `Misuse` for a bad name or setting; `Deadlock` when this lock's
    /// [`Owner`](crate::Owner) would wait for ever.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line. If the server
    /// has granted the lock and the answer is still on its way, the lock is released in the
    /// background; at the latest it is free one lease after the grant.
    #[doc(alias = "lock")]
    #[doc(alias = "lockInterruptibly")]
    pub async fn acquire(&self) -> Result<K::Guard> {
        loop {
            // Without a deadline a wait ends only with a guard or an error.
            if let Some(guard) = self.acquire_by(Deadline::Never).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free. `Ok(None)` means that somebody holds it, or that other
    /// waiters of this process come first and the server answers them.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). If the server does not answer, that is an error at once,
    /// `Unavailable` or `OutcomeUnknown`, and never `Ok(None)`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire(&self) -> Result<Option<K::Guard>> {
        self.acquire_by(Deadline::Now).await
    }

    /// Waits at most `wait` for the lock. `Ok(None)` means that the lock was still held.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). `OutcomeUnknown` when the server has given no answer at all
    /// within `wait`. A wait of zero or of more than 2^53 ms is `Misuse`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<K::Guard>> {
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(Deadline::At(deadline)).await
    }

    /// Waits for the lock until `deadline` at the latest. A deadline in the past asks once. Takes
    /// an instant of tokio or of the standard library.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_until(
        &self,
        deadline: impl Into<Instant>,
    ) -> Result<Option<K::Guard>> {
        let deadline = Deadline::at_instant(deadline.into(), self.context.clock);
        self.acquire_by(deadline).await
    }

    /// Acquires the lock, runs `work` until it is done or the lock is lost, and releases the lock.
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
    /// As [`acquire`](Self::acquire). [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was
    /// lost before `work` was done; in that case `work` has been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&K::Guard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        let output = guard.as_ref().protect(work(&guard)).await?;
        // The release can still find that the lock was lost. Then the caller must not get the
        // output as if the work had been under the lock until its end.
        guard.into().release().await?;
        Ok(output)
    }

    async fn acquire_by(&self, deadline: Deadline) -> Result<Option<K::Guard>> {
        let guard = K::acquire_by(self, deadline).await?;
        Ok(guard.map(<K::Guard as kind::Made>::made))
    }
}

/// Inspecting the lock, and ending a hold by force.
impl<K: OneKey> Lock<K> {
    /// Whether anybody holds the lock now. The answer may be out of date when it arrives.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect().await?.is_locked())
    }

    /// Whether the server says that `owner` holds the lock. Makes no call if this client knows of
    /// no hold of that owner.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        let (locals, owner) = (&self.context.locals, owner.in_role(K::ROLE));
        // Nothing of an owner goes over the wire, and each hold has an id of its own there. So the
        // server can't be asked for an owner: only the local record knows which id to look for.
        let Some(held) = locals.held_by(&self.line_key()?, &owner) else {
            return Ok(false);
        };
        let info = self.inspect().await?;
        let id = held.hold().steps.wire_id();
        // Any of them, not the first: a lock may have many readers, and the server lists them in an
        // order of its own.
        Ok(info.holders.iter().any(|holder| holder.id == id))
    }

    /// How much is left, on the server, of the current hold's lease.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "remainTimeToLive")]
    pub async fn remaining_ttl(&self) -> Result<Ttl> {
        Ok(self.inspect().await?.ttl)
    }

    /// Who holds the lock, and for how long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server
    /// answered, `WrongKind` when the key holds something else, `Denied` when the
    /// server refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "getHoldCount")]
    pub async fn inspect(&self) -> Result<LockInfo> {
        self.info(self.kind.inspect(self.key()?)).await
    }

    /// Ends all holds of this lock, whoever has them. `true` if there were any.
    ///
    /// For operators. The holder learns of it ([`LossReason::Forced`](crate::LossReason::Forced))
    /// at its next renewal, up to a third of its lease later. **Until then it works on beside the
    /// next holder.** Redisson's own holders are not told at all.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect), and `OutcomeUnknown` when the hold may have been ended. A key
    /// that is not a lock of this kind is left alone.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the hold may be ended even if the future is dropped.
    #[doc(alias = "forceUnlock")]
    #[doc(alias = "delete")]
    pub async fn force_unlock(&self) -> Result<bool> {
        let key = self.key()?;
        let operation = self.kind.force_unlock(key, &self.channel);
        // Sent once, even if the answer is lost: a second request could end the hold of whoever has
        // acquired the lock since.
        let ended = request::change(&self.context, key, operation).await?;
        Ok(ended == Value::Int(1))
    }
}

impl<K> Lock<K> {
    pub(super) fn kind(&self) -> &K {
        &self.kind
    }

    pub(super) fn kind_mut(&mut self) -> &mut K {
        &mut self.kind
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where its releases are published.
    pub(super) fn listens(&self) -> (&Arc<Channels>, &str) {
        (self.context.backend.channels(), &self.channel)
    }

    /// What the server says to `inspect`, a kind's request for who holds the lock.
    pub(super) async fn info(&self, inspect: Operation) -> Result<LockInfo> {
        let key = self.key()?;
        match request::query(&self.context, key, inspect).await? {
            Value::List(items) => LockInfo::read(&items),
            _ => None,
        }
        .ok_or_else(|| request::malformed(&self.context, key))
    }

    pub(super) fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    /// The name as it was given; empty if it is not a valid name.
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
