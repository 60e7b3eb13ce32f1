//! A lock of any kind, for code that chooses the kind at run time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join_all;

use super::lock::kind::Acquire;
use super::lock::{Kind, Lock, LockGuard, LockInfo, OneKey};
use crate::backend::step::Operation;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::local::reentry::Held;
use crate::owner::Owner;
use crate::wait::Deadline;

/// A lock of any kind, for code that chooses the kind at run time or keeps locks of several kinds
/// in one place. `into()` turns every [`Lock`] into an `AnyLock`: a plain, fair, fenced or group
/// lock, a side of an [`RwLock`](crate::RwLock), a [`MultiLock`](crate::MultiLock) or a
/// [`RedLock`](crate::RedLock).
///
/// The conversion keeps the lock's settings, owner and guarantees. An acquire works as before, with
/// the same errors and the same cancel safety. The settings that all kinds have can still be
/// changed afterwards. Change settings that only one kind has before you call `into()`. The guard
/// is a [`LockGuard`]. For a fenced lock, the guard has its [`token`](LockGuard::token) from the
/// start.
///
/// Each acquire costs one allocation more than the acquire of a lock whose type names its kind.
/// Code that is generic over the [`Kind`](crate::kind::Kind) avoids this cost.
///
/// The members of a [`MultiLock`](crate::MultiLock) and of a [`RedLock`](crate::RedLock) are
/// `AnyLock`s.
///
/// ```
/// use leasehold::{AnyLock, Client, MultiLock};
///
/// fn lock(client: &Client, kind: &str) -> leasehold::Result<AnyLock> {
///     Ok(match kind {
///         "fair" => client.fair_lock("orders:42").into(),
///         "write" => client.rw_lock("orders:42").write_lock().into(),
///         "both" => MultiLock::new([client.lock("orders:42"), client.lock("orders:43")])?.into(),
///         _ => client.lock("orders:42").into(),
///     })
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let lock = lock(&Client::embedded(), "fair")?;
/// let guard = lock.acquire().await?;
/// assert!(lock.is_locked().await?);
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type AnyLock = Lock<Any>;

/// A kind that is known only at run time: see [`AnyLock`].
#[derive(Clone)]
pub struct Any(pub(super) AnyKind);

/// The kind of an [`AnyLock`], without its type.
#[derive(Clone)]
pub(super) enum AnyKind {
    /// A lock whose state has one name on one server.
    One(Arc<dyn OneName>),
    /// A lock that is made of other locks.
    Composite(Arc<dyn Composite>),
}

pub(super) type AcquireFuture = Pin<Box<dyn Future<Output = Result<Option<LockGuard>>> + Send>>;

/// Acquires a lock whose type does not name its kind.
pub(super) trait Erased: fmt::Debug + Send + Sync {
    fn acquire(&self, lock: &AnyLock, deadline: Deadline) -> AcquireFuture;
}

/// The operations that all locks with one name have in common.
pub(super) trait OneName: Erased {
    /// Asks the server for the lock's holders.
    fn inspect_operation(&self, key: &Key) -> Operation;

    /// Returns whether a hold keeps all other owners out.
    fn excludes_others(&self) -> bool;

    /// Returns the holds of `owner`, even lost ones, as far as this process knows.
    fn held_by(&self, context: &Context, key: &Key, owner: &Owner) -> Vec<Arc<Held>>;
}

/// The operations that all locks made of several members have in common.
pub(super) trait Composite: Erased {
    fn members(&self) -> &[AnyLock];

    /// Returns the number of members that must be held.
    fn quorum(&self) -> usize;

    /// Returns whether clients distrust a server that has just restarted: its vote does not count
    /// until the longest lease has passed.
    fn distrusts_restarted(&self) -> bool;

    /// Returns whether `owner` holds enough members, as far as this process knows.
    fn is_held_by(&self, owner: &Owner) -> bool {
        let members = self.members().iter();
        let distrusts_restarted = self.distrusts_restarted();
        let held = members.filter(|member| member.counts_for(owner, distrusts_restarted));
        held.count() >= self.quorum()
    }
}

impl<K: OneKey> Erased for K {
    fn acquire(&self, lock: &AnyLock, deadline: Deadline) -> AcquireFuture {
        let lock = lock.clone().of_kind(self.clone());
        // A trait object needs one future type for all kinds: this box is the allocation that
        // `AnyLock` costs.
        Box::pin(async move { K::acquire_by(&lock, deadline).await })
    }
}

impl<K: OneKey> OneName for K {
    fn inspect_operation(&self, key: &Key) -> Operation {
        self.inspect(key)
    }

    fn excludes_others(&self) -> bool {
        self.is_exclusive()
    }

    fn held_by(&self, context: &Context, key: &Key, owner: &Owner) -> Vec<Arc<Held>> {
        // Holds are recorded under the role of their owner, so an owner that reads is not found as
        // the exclusive holder of a lock.
        let owner = owner.in_role(K::ROLE);
        context.locals.all_held_by(&self.line_key(key), &owner)
    }
}

impl Kind for Any {
    type Guard = LockGuard;
}

impl Acquire for Any {
    async fn acquire_by(lock: &AnyLock, deadline: Deadline) -> Result<Option<LockGuard>> {
        let kind: &dyn Erased = match &lock.kind().0 {
            AnyKind::One(kind) => &**kind,
            AnyKind::Composite(kind) => &**kind,
        };
        kind.acquire(lock, deadline).await
    }
}

impl AnyLock {
    /// Returns the locks that a [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) is
    /// made of. Empty for a lock that has one name.
    #[must_use]
    pub fn members(&self) -> &[Self] {
        match &self.kind().0 {
            AnyKind::One(_) => &[],
            AnyKind::Composite(kind) => kind.members(),
        }
    }

    /// Returns the address of the lock's server, without credentials. If the lock has several
    /// servers, it is the address of the first one.
    #[must_use]
    pub fn address(&self) -> &str {
        self.context().backend.address()
    }

    /// Returns whether `owner` holds the lock, as far as this process knows. For a
    /// [`MultiLock`](crate::MultiLock), the owner must hold all members, for a
    /// [`RedLock`](crate::RedLock) a majority. Sends no request.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        match &self.kind().0 {
            AnyKind::One(_) => self.counts_for(owner, false),
            AnyKind::Composite(kind) => kind.is_held_by(owner),
        }
    }

    /// Returns whether `owner` holds this member of a composite lock. With `distrusts_restarted`, a
    /// hold that the member's server has forgotten counts until that server may vote again.
    pub(super) fn counts_for(&self, owner: &Owner, distrusts_restarted: bool) -> bool {
        let now = self.context().clock.now();
        self.held_by(owner).iter().any(|held| {
            let until = held.hold().counts_until().filter(|_| distrusts_restarted);
            held.hold().loss().is_none() || until.is_some_and(|until| now < until)
        })
    }

    /// Returns whether a hold of `owner` prevents the owner itself from acquiring this member until
    /// the hold is given back. `enters` says whether the acquire would re-enter a hold.
    pub(super) fn is_closed_to(&self, owner: &Owner, enters: bool) -> bool {
        let excludes = |held: &Arc<Held>| {
            let can_enter = enters && held.owner().is_some_and(Owner::reenters);
            !can_enter && held.hold().lasts_until_release()
        };
        self.is_exclusive() && self.held_by(owner).iter().any(excludes)
    }

    fn held_by(&self, owner: &Owner) -> Vec<Arc<Held>> {
        match (&self.kind().0, self.key()) {
            (AnyKind::One(kind), Ok(key)) => kind.held_by(self.context(), key, owner),
            _ => Vec::new(),
        }
    }

    /// Returns whether any client holds the lock now. A [`MultiLock`](crate::MultiLock) or a
    /// [`RedLock`](crate::RedLock) counts as locked when too few members are free to acquire it.
    /// The answer may be out of date when it arrives.
    ///
    /// # Errors
    ///
    /// Same as [`Lock::inspect`]. For a [`MultiLock`](crate::MultiLock) or a
    /// [`RedLock`](crate::RedLock), the call fails only if the members that answered are too few to
    /// decide.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool> {
        let composite = match &self.kind().0 {
            AnyKind::One(_) => return Ok(self.inspect().await?.is_locked()),
            AnyKind::Composite(kind) => kind,
        };
        // If more members are held than the lock can spare, too few remain to acquire it.
        let spare = composite.members().len() - composite.quorum();
        let (mut locked, mut errors) = (0, Vec::new());
        for result in join_all(composite.members().iter().map(Self::inspect)).await {
            match result {
                Ok(info) => locked += usize::from(info.is_locked()),
                Err(error) => errors.push(error),
            }
        }
        // Missing answers are an error only if they could change the result.
        if locked <= spare && locked + errors.len() > spare {
            return Err(Error::of_members(self.key()?, "asking for", None, errors));
        }
        Ok(locked > spare)
    }

    /// Asks the server which clients hold the lock, and how much time is left of the lease.
    ///
    /// # Errors
    ///
    /// Same as [`Lock::inspect`]. [`ErrorKind::Misuse`] for a [`MultiLock`](crate::MultiLock) and a
    /// [`RedLock`](crate::RedLock): each of their [`members`](Self::members) has its own holders.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn inspect(&self) -> Result<LockInfo> {
        let key = self.key()?;
        match &self.kind().0 {
            AnyKind::One(kind) => self.info(kind.inspect_operation(key)).await,
            AnyKind::Composite(_) => Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "`{key}` is several locks, each with its own holders; inspect its `members()`"
                ),
            )
            .with_key(key)),
        }
    }
}

impl<K: OneKey> From<Lock<K>> for AnyLock {
    fn from(lock: Lock<K>) -> Self {
        let kind = AnyKind::One(Arc::new(lock.kind().clone()));
        lock.of_kind(Any(kind))
    }
}

impl<K: OneKey> From<&Lock<K>> for AnyLock {
    fn from(lock: &Lock<K>) -> Self {
        lock.clone().into()
    }
}

impl From<&Self> for AnyLock {
    fn from(lock: &Self) -> Self {
        lock.clone()
    }
}

impl fmt::Debug for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AnyKind::One(kind) => kind.fmt(f),
            AnyKind::Composite(kind) => kind.fmt(f),
        }
    }
}
