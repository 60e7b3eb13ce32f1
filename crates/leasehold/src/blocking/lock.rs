//! [`Lock`] and its guard: forwards to the async ones.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::runtime::Runtime;
use super::setters::{lease_setters, wait_setters};
use crate::error::Result;
use crate::loss::LossReason;
use crate::owner::Owner;
use crate::primitives::lock::{Kind, LockInfo, OneKey, Plain, Ttl};

/// Whom the holds of a [`Lock`] belong to: [`PerThread`] or [`Explicit`].
pub trait Ownership: sealed::Sealed {}

/// Holds belong to the thread that acquires them, which may acquire again. Their
/// guards stay on that thread.
///
/// ```compile_fail,E0277
/// let client = leasehold::blocking::Client::embedded();
/// let guard = client.lock("x").acquire().unwrap();
/// std::thread::spawn(move || drop(guard)); // would be released by another owner
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct PerThread(PhantomData<*const ()>);

/// Holds belong to an [`Owner`] that is passed along. Their guards may be sent.
///
/// ```
/// let client = leasehold::blocking::Client::embedded();
/// let owner = client.owner();
/// let guard = client.lock("x").owned_by(&owner).acquire().unwrap();
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Explicit;

impl Ownership for PerThread {}
impl Ownership for Explicit {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::PerThread {}
    impl Sealed for super::Explicit {}
}

thread_local! {
    static THREAD: Owner = Owner::new();
}

/// What the calling thread holds by.
pub(super) fn this_thread() -> Owner {
    THREAD.with(Clone::clone)
}

/// A lock for threads; see [`leasehold::Lock`](crate::Lock).
///
/// Re-entrant per thread. [`owned_by`](Self::owned_by) ties re-entrance to an
/// [`Owner`] instead, and its guards can be sent to other threads.
pub struct Lock<O: Ownership = PerThread, K = Plain> {
    inner: crate::Lock<K>,
    /// `None`: whichever thread acquires.
    owner: Option<Owner>,
    runtime: Runtime,
    ownership: PhantomData<fn() -> O>,
}

impl<K: Kind> Lock<PerThread, K> {
    pub(crate) fn per_thread(inner: crate::Lock<K>, runtime: Runtime) -> Self {
        Self {
            inner,
            owner: None,
            runtime,
            ownership: PhantomData,
        }
    }

    /// Acquires as `owner`; see [`Lock::owned_by`](crate::Lock::owned_by).
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Lock<Explicit, K> {
        Lock {
            inner: self.inner.clone(),
            owner: Some(owner.clone()),
            runtime: self.runtime.clone(),
            ownership: PhantomData,
        }
    }
}

impl<K: OneKey> Lock<PerThread, K> {
    /// Whether the calling thread holds the lock; see
    /// [`Lock::is_held_by`](crate::Lock::is_held_by).
    ///
    /// # Errors
    ///
    /// As its async twin.
    #[doc(alias = "isHeldByCurrentThread")]
    pub fn is_held_by_current_thread(&self) -> Result<bool> {
        self.is_held_by(&this_thread())
    }
}

impl<O: Ownership, K> Lock<O, K> {
    /// The async lock, for what is there only.
    pub(super) fn as_async(&self) -> &crate::Lock<K> {
        &self.inner
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// Settings; see the async twins.
impl<O: Ownership, K: Kind> Lock<O, K> {
    pub(super) fn with(mut self, change: impl FnOnce(crate::Lock<K>) -> crate::Lock<K>) -> Self {
        self.inner = change(self.inner);
        self
    }

    lease_setters! { Lock }
    wait_setters! { Lock }
}

/// Acquiring; errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl<O: Ownership, K: Kind> Lock<O, K> {
    /// Waits for the lock; see [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<LockGuard<O, K::Guard>> {
        let lock = self.owned();
        self.block_on("Lock::acquire", lock.acquire())
            .map(|guard| self.guard(guard))
    }

    /// Acquires it if it is free; see [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<LockGuard<O, K::Guard>>> {
        let lock = self.owned();
        self.maybe(self.block_on("Lock::try_acquire", lock.try_acquire()))
    }

    /// Waits at most `wait`; see
    /// [`Lock::try_acquire_for`](crate::Lock::try_acquire_for).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<LockGuard<O, K::Guard>>> {
        let lock = self.owned();
        self.maybe(self.block_on("Lock::try_acquire_for", lock.try_acquire_for(wait)))
    }

    /// Waits until `deadline`; see
    /// [`Lock::try_acquire_until`](crate::Lock::try_acquire_until).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<LockGuard<O, K::Guard>>> {
        let lock = self.owned();
        self.maybe(self.block_on("Lock::try_acquire_until", lock.try_acquire_until(deadline)))
    }

    /// Runs `work` under the lock; see [`Lock::run`](crate::Lock::run). A thread
    /// can't be cancelled: when the lock is lost `work` goes on, and the loss is the
    /// result; `work` can ask the guard.
    pub fn run<T>(&self, work: impl FnOnce(&LockGuard<O, K::Guard>) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let output = work(&guard);
        guard.release()?;
        Ok(output)
    }

    fn owned(&self) -> crate::Lock<K> {
        match &self.owner {
            Some(owner) => self.inner.clone().owned_by(owner),
            None => THREAD.with(|thread| self.inner.clone().owned_by(thread)),
        }
    }

    #[track_caller]
    pub(super) fn block_on<F: Future>(&self, twin: &str, future: F) -> F::Output {
        self.runtime.block_on(twin, future)
    }

    fn maybe(&self, result: Result<Option<K::Guard>>) -> Result<Option<LockGuard<O, K::Guard>>> {
        Ok(result?.map(|guard| self.guard(guard)))
    }

    fn guard(&self, inner: K::Guard) -> LockGuard<O, K::Guard> {
        LockGuard::of(inner, self.runtime.clone())
    }
}

/// Questions and force; errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl<O: Ownership, K: OneKey> Lock<O, K> {
    /// Whether anybody holds it; see [`Lock::is_locked`](crate::Lock::is_locked).
    pub fn is_locked(&self) -> Result<bool> {
        self.block_on("Lock::is_locked", self.inner.is_locked())
    }

    /// Whether `owner` holds it; see [`Lock::is_held_by`](crate::Lock::is_held_by).
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        self.block_on("Lock::is_held_by", self.inner.is_held_by(owner))
    }

    /// What is left of the lease; see
    /// [`Lock::remaining_ttl`](crate::Lock::remaining_ttl).
    pub fn remaining_ttl(&self) -> Result<Ttl> {
        self.block_on("Lock::remaining_ttl", self.inner.remaining_ttl())
    }

    /// Who holds it; see [`Lock::inspect`](crate::Lock::inspect).
    pub fn inspect(&self) -> Result<LockInfo> {
        self.block_on("Lock::inspect", self.inner.inspect())
    }

    /// Ends whoever's hold there is; see
    /// [`Lock::force_unlock`](crate::Lock::force_unlock).
    pub fn force_unlock(&self) -> Result<bool> {
        self.block_on("Lock::force_unlock", self.inner.force_unlock())
    }
}

impl<O: Ownership, K: Clone> Clone for Lock<O, K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            owner: self.owner.clone(),
            runtime: self.runtime.clone(),
            ownership: PhantomData,
        }
    }
}

impl<O: Ownership, K: fmt::Debug> fmt::Debug for Lock<O, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Proof that the lock is held; see [`leasehold::LockGuard`](crate::LockGuard).
///
/// Dropping it releases the lock before the drop returns, or after the client's
/// reply limit in the background; inside a tokio runtime always in the background.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard<O: Ownership = PerThread, G: Into<crate::LockGuard> = crate::LockGuard> {
    /// `None` only once it has been given up.
    inner: Option<G>,
    runtime: Runtime,
    ownership: PhantomData<O>,
}

/// Errors are those of the async twins.
#[allow(
    clippy::missing_errors_doc,
    reason = "said once, on the impl and in each twin"
)]
impl<O: Ownership, G: AsRef<crate::LockGuard> + Into<crate::LockGuard>> LockGuard<O, G> {
    /// Gives the lock back; see [`LockGuard::release`](crate::LockGuard::release).
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(guard) => {
                let release = guard.into().release();
                self.runtime.finish("LockGuard::release", release)
            }
            None => Ok(()),
        }
    }

    /// Why the lock is lost; see [`LockGuard::loss`](crate::LockGuard::loss).
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.inner().loss()
    }

    /// Waits at most `wait` for the lock to be lost; see
    /// [`LockGuard::lost`](crate::LockGuard::lost). For a thread that watches over
    /// the work of others.
    #[must_use]
    pub fn lost_within(&self, wait: Duration) -> Option<LossReason> {
        let lost = self.inner().lost();
        self.runtime.block_on("LockGuard::lost", async {
            tokio::time::timeout(wait, lost).await.ok()
        })
    }

    /// Whether the lock is held; see [`LockGuard::is_held`](crate::LockGuard::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner().is_held()
    }

    /// Until when; see [`LockGuard::valid_until`](crate::LockGuard::valid_until).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.inner().valid_until().into_std()
    }

    /// What renewing has met with; see
    /// [`LockGuard::renewal_failure`](crate::LockGuard::renewal_failure).
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        self.inner().renewal_failure()
    }

    /// How many guards share the hold; see
    /// [`LockGuard::hold_count`](crate::LockGuard::hold_count).
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.inner().hold_count()
    }

    /// Makes the lock last longer; see [`LockGuard::extend`](crate::LockGuard::extend).
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.runtime
            .block_on("LockGuard::extend", self.inner().extend(lease))
    }

    /// This hold's fencing token; see
    /// [`LockGuard::fencing_token`](crate::LockGuard::fencing_token).
    pub fn fencing_token(&self) -> Result<u64> {
        self.runtime
            .block_on("LockGuard::fencing_token", self.inner().fencing_token())
    }

    /// Leaves the lock to its lease; see
    /// [`LockGuard::forget`](crate::LockGuard::forget).
    pub fn forget(mut self) {
        if let Some(guard) = self.inner.take() {
            guard.into().forget();
        }
    }

    /// This hold's number; see [`LockGuard::number`](crate::LockGuard::number).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.inner().number()
    }

    /// The async guard, for what reads it only.
    pub fn as_async(&self) -> &G {
        self.inner
            .as_ref()
            .expect("a guard that has been given up is gone")
    }

    fn inner(&self) -> &crate::LockGuard {
        self.as_async().as_ref()
    }
}

impl<O: Ownership, G: Into<crate::LockGuard>> LockGuard<O, G> {
    pub(super) fn of(inner: G, runtime: Runtime) -> Self {
        Self {
            inner: Some(inner),
            runtime,
            ownership: PhantomData,
        }
    }

    pub(super) fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// What becomes of it, as a guard of the same thread or owner.
    pub(super) fn turned<T, E, F>(
        mut self,
        twin: &str,
        turn: impl FnOnce(G) -> F,
    ) -> Result<LockGuard<O, T>, E>
    where
        T: Into<crate::LockGuard>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self
            .inner
            .take()
            .expect("a guard that has been given up is gone");
        let turned = self.runtime.block_on(twin, turn(guard))?;
        Ok(LockGuard::of(turned, self.runtime.clone()))
    }
}

impl<O: Ownership, G: Into<crate::LockGuard>> Drop for LockGuard<O, G> {
    fn drop(&mut self) {
        if let Some(guard) = self.inner.take() {
            self.runtime
                .release_dropped(guard.into(), crate::LockGuard::release);
        }
    }
}

impl<O: Ownership, G: Into<crate::LockGuard> + fmt::Debug> fmt::Debug for LockGuard<O, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
