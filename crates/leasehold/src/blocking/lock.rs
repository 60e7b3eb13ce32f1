//! [`Lock`] and its guard, which forward to the async ones.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::forward::{calls, lease_setters, limited, reads, setters, wait_setters, waits};
use super::runtime::Runtime;
use crate::acknowledgement::Acknowledgement;
use crate::error::Result;
use crate::loss::LossReason;
use crate::owner::Owner;
use crate::primitives::lock::{Kind, LockInfo, OneKey, Plain, Ttl};
use crate::recipes::ticket::Ticket;

/// The owner of the holds of a [`Lock`]: [`PerThread`] or [`Explicit`].
pub trait Ownership: sealed::Sealed {}

/// Holds belong to the thread that acquires them. This thread can acquire the lock again, and the
/// guards can't be sent to other threads.
///
/// ```compile_fail,E0277
/// let client = leasehold::blocking::Client::embedded();
/// let guard = client.lock("x").acquire().unwrap();
/// std::thread::spawn(move || drop(guard)); // another thread is another owner
/// ```
#[derive(Debug)]
#[non_exhaustive]
// A raw pointer is neither `Send` nor `Sync`, so a guard with it can't leave its thread.
pub struct PerThread(PhantomData<*const ()>);

/// Holds belong to the [`Owner`] that you pass to [`owned_by`](Lock::owned_by). Their guards can be
/// sent to other threads.
///
/// ```
/// let client = leasehold::blocking::Client::embedded();
/// let owner = leasehold::Owner::new();
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
    // The system's thread id would be wrong, because a later thread may get the same id: that
    // thread would then hold the locks whose guards this thread leaked.
    static THREAD: Owner = Owner::new();
}

/// Returns the owner of the calling thread's holds.
pub(super) fn this_thread() -> Owner {
    THREAD.with(Clone::clone)
}

/// A lock for threads; see [`leasehold::Lock`](crate::Lock).
///
/// A thread that holds the lock can acquire it again. With [`owned_by`](Self::owned_by), an
/// [`Owner`] that holds the lock can do so instead, on any thread, and guards can be sent to other
/// threads. With [`non_reentrant`](Self::non_reentrant), neither the thread nor the owner can
/// acquire the lock again, and an acquire that would wait for its own thread fails:
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::Client::embedded();
/// let lock = client.fair_lock("orders:42").non_reentrant();
/// let guard = lock.acquire()?;
/// let error = lock.acquire().unwrap_err();
/// assert_eq!(error.kind(), leasehold::ErrorKind::Deadlock);
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "Mutex")]
#[doc(alias = "ReentrantLock")]
#[doc(alias = "RLock")]
pub struct Lock<O: Ownership = PerThread, K = Plain> {
    inner: crate::Lock<K>,
    /// `None` if the acquiring thread is the owner.
    owner: Option<Owner>,
    runtime: Runtime,
    // `fn() -> O` and not `O`: handles can be sent to other threads, guards can't.
    ownership: PhantomData<fn() -> O>,
}

/// Acquiring.
impl<O: Ownership, K: Kind> Lock<O, K> {
    waits! { Lock:
        "Waits for the lock" acquire() -> LockGuard<O, K::Guard> => wrap;
        "Acquires the lock if it is free" try_acquire() -> Option<LockGuard<O, K::Guard>> => wrap_some;
        "Waits at most `wait` for the lock" try_acquire_for(wait: Duration) -> Option<LockGuard<O, K::Guard>> => wrap_some;
        "Waits for the lock, but at most until `deadline`" try_acquire_until(deadline: Instant) -> Option<LockGuard<O, K::Guard>> => wrap_some;
    }

    /// Runs `work` under the lock; see [`Lock::run`](crate::Lock::run). Returns the output of
    /// `work`. A thread can't be cancelled: if the lock is lost, `work` continues, and afterwards
    /// the call returns the loss as an error. `work` can check the guard.
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn run<T>(&self, work: impl FnOnce(&LockGuard<O, K::Guard>) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let output = work(&guard);
        // Don't leave the release to the drop, which could not report to the caller that the lock
        // was lost.
        guard.release()?;
        Ok(output)
    }

    /// Returns the async lock, with the owner of this handle or of the calling thread.
    fn twin(&self) -> crate::Lock<K> {
        // Determine the owner at each call, and not when the handle was made: clones of the handle
        // may be used on any thread.
        match &self.owner {
            Some(owner) => self.inner.clone().owned_by(owner),
            None => THREAD.with(|thread| self.inner.clone().owned_by(thread)),
        }
    }

    fn wrap(&self, guard: Result<K::Guard>) -> Result<LockGuard<O, K::Guard>> {
        guard.map(|guard| self.guard(guard))
    }

    fn wrap_some(&self, guard: Result<Option<K::Guard>>) -> Result<Option<LockGuard<O, K::Guard>>> {
        Ok(guard?.map(|guard| self.guard(guard)))
    }

    fn guard(&self, inner: K::Guard) -> LockGuard<O, K::Guard> {
        LockGuard::of(inner, self.runtime.clone())
    }
}

/// Settings: see the async methods of the same names.
impl<O: Ownership, K: Kind> Lock<O, K> {
    pub(super) fn with(mut self, change: impl FnOnce(crate::Lock<K>) -> crate::Lock<K>) -> Self {
        self.inner = change(self.inner);
        self
    }

    lease_setters! { Lock }
    wait_setters! { Lock }
    setters! { Lock:
        "Prevents a thread, or an owner, from re-entering its own hold" non_reentrant();
    }
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

    /// Returns a handle that acquires as `owner`; see [`Lock::owned_by`](crate::Lock::owned_by).
    #[must_use = "a handle does nothing until it is used"]
    pub fn owned_by(&self, owner: &Owner) -> Lock<Explicit, K> {
        Lock {
            inner: self.inner.clone(),
            owner: Some(owner.clone()),
            runtime: self.runtime.clone(),
            ownership: PhantomData,
        }
    }
}

/// Settings of locks with one name: see the async methods of the same names.
impl<O: Ownership, K: OneKey> Lock<O, K> {
    setters! { Lock:
        "Sets which servers must confirm a hold" acknowledged_by(acknowledgement: Acknowledgement);
        "Sets the minimum time for which the lock stays locked" min_hold(least: Duration);
    }
}

/// Inspecting the lock, and ending a hold by force.
impl<O: Ownership, K: OneKey> Lock<O, K> {
    calls! { Lock by as_async:
        "Returns whether any client holds the lock" is_locked() -> bool;
        "Returns whether `owner` holds the lock" is_held_by(owner: &Owner) -> bool;
        "Returns how much of the lease is left" remaining_ttl() -> Ttl;
        "Returns the lock's holders" inspect() -> LockInfo;
        "Ends all holds of the lock, no matter which clients have them" force_unlock() -> bool;
        "Takes over a ticket's hold" resume(ticket: &Ticket) -> LockGuard<Explicit, K::Guard> => wrap_resumed;
    }

    /// A resumed hold does not belong to a thread: the guard can move to any thread.
    fn wrap_resumed(&self, guard: Result<K::Guard>) -> Result<LockGuard<Explicit, K::Guard>> {
        guard.map(|guard| LockGuard::of(guard, self.runtime.clone()))
    }
}

impl<K: OneKey> Lock<PerThread, K> {
    /// Returns whether the calling thread holds the lock; see
    /// [`Lock::is_held_by`](crate::Lock::is_held_by).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    #[doc(alias = "isHeldByCurrentThread")]
    pub fn is_held_by_current_thread(&self) -> Result<bool> {
        self.is_held_by(&this_thread())
    }
}

impl<O: Ownership, K> Lock<O, K> {
    /// Returns the async lock, for methods that only read it.
    pub(super) fn as_async(&self) -> &crate::Lock<K> {
        &self.inner
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the same lock as a handle of another type.
    pub(super) fn of_kind<J>(
        self,
        convert: impl FnOnce(crate::Lock<K>) -> crate::Lock<J>,
    ) -> Lock<O, J> {
        Lock {
            inner: convert(self.inner),
            owner: self.owner,
            runtime: self.runtime,
            ownership: PhantomData,
        }
    }

    reads! { Lock by as_async:
        "Returns the lock's name as it was given" name() -> &str;
    }
}

// Written by hand: a derive would require `O: Clone`, but no `Ownership` is `Clone`.
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
/// Dropping the guard waits until the lock is released. If the server does not answer within the
/// client's reply timeout, the release continues in the background. Inside a tokio runtime, a drop
/// does not wait, and the lock is released in the background.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[doc(alias = "MutexGuard")]
#[clippy::has_significant_drop]
pub struct LockGuard<O: Ownership = PerThread, G: Into<crate::LockGuard> = crate::LockGuard> {
    /// `None` only after the guard has been given up.
    inner: Option<G>,
    runtime: Runtime,
    ownership: PhantomData<O>,
}

impl<O: Ownership, G: AsRef<crate::LockGuard> + Into<crate::LockGuard>> LockGuard<O, G> {
    /// Releases the lock; see [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    #[doc(alias = "unlock")]
    pub fn release(mut self) -> Result<()> {
        // Take the guard out, so that the drop of `self` does not release it a second time.
        match self.inner.take() {
            Some(guard) => {
                let release = guard.into().release();
                self.runtime.finish("LockGuard::release", release)
            }
            // Can't happen: any method that takes the guard out has consumed `self`.
            None => Ok(()),
        }
    }

    reads! { LockGuard:
        "Returns why the lock was lost" loss() -> Option<LossReason>;
        "Returns whether the lock is held" is_held() -> bool;
        "Returns why renewals have been failing since the last one that succeeded" renewal_failure() -> Option<LossReason>;
        "Returns how many guards share the hold" hold_count() -> usize;
        "Returns the number of this hold" number() -> u64;
        "Returns how long the acquire took" waited() -> Duration;
        "Returns the id of this hold in Redis" holder_id() -> &str;
        "Returns the name of the lock" name() -> &str;
    }
    calls! { LockGuard:
        "Extends the lease of the lock" extend(lease: Duration) -> ();
        "Returns the fencing token of this hold" fencing_token() -> u64;
    }

    /// Returns the guards of the members; see [`LockGuard::members`](crate::LockGuard::members).
    pub fn members(&self) -> &[crate::LockGuard] {
        self.twin().members()
    }

    /// Reports that the work has made progress; see
    /// [`LockGuard::progress`](crate::LockGuard::progress).
    pub fn progress(&self) {
        self.twin().progress();
    }

    /// Ends the minimum time of the hold, so that a release frees the lock at once; see
    /// [`LockGuard::waive_min_hold`](crate::LockGuard::waive_min_hold).
    pub fn waive_min_hold(&self) {
        self.twin().waive_min_hold();
    }

    reads! { LockGuard:
        "Returns a handle that reports progress" progress_handle() -> crate::Progress;
    }
    // These methods are for a thread that supervises the work of other threads.
    limited! { LockGuard:
        "Returns the time since the last report when the work has stalled" stalled_within(wait: Duration) -> Option<Duration> by stalled;
        "Returns the reason when the lock is lost" lost_within(wait: Duration) -> Option<LossReason> by lost;
    }

    /// Returns the instant until which the lock is certainly held; see
    /// [`LockGuard::valid_until`](crate::LockGuard::valid_until).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.twin().valid_until().into_std()
    }

    /// Ends the guard without releasing the lock, which is free when its lease ends; see
    /// [`LockGuard::forget`](crate::LockGuard::forget).
    pub fn forget(mut self) {
        if let Some(guard) = self.inner.take() {
            guard.into().forget();
        }
    }

    /// Ends the guard, and keeps the lock locked for `span` from now; see
    /// [`LockGuard::keep_for`](crate::LockGuard::keep_for).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn keep_for(mut self, span: Duration) -> Result<()> {
        match self.inner.take() {
            Some(guard) => {
                let keep = guard.into().keep_for(span);
                self.runtime.block_on("LockGuard::keep_for", keep)
            }
            // Can't happen: see `release`.
            None => Ok(()),
        }
    }

    /// Turns the hold into a ticket, with which another process can resume it; see
    /// [`LockGuard::into_ticket`](crate::LockGuard::into_ticket).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn into_ticket(mut self, lease: Duration) -> Result<Ticket> {
        let guard = self
            .inner
            .take()
            .expect("a guard that has been given up is gone");
        let hand_out = guard.into().into_ticket(lease);
        self.runtime.block_on("LockGuard::into_ticket", hand_out)
    }

    /// Returns the async guard, for its methods that take `&self`.
    pub fn as_async(&self) -> &G {
        self.inner
            .as_ref()
            .expect("a guard that has been given up is gone")
    }

    fn twin(&self) -> &crate::LockGuard {
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

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the guard into which `convert` turns this one, for the same thread or owner.
    pub(super) fn converted<T, E, F>(
        mut self,
        twin: &str,
        convert: impl FnOnce(G) -> F,
    ) -> Result<LockGuard<O, T>, E>
    where
        T: Into<crate::LockGuard>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self
            .inner
            .take()
            .expect("a guard that has been given up is gone");
        // If this panics inside a task, the future is dropped with the guard in it, and the lock is
        // released in the background.
        let converted = self.runtime.block_on(twin, convert(guard))?;
        Ok(LockGuard::of(converted, self.runtime.clone()))
    }
}

impl<O: Ownership, G: Into<crate::LockGuard>> Drop for LockGuard<O, G> {
    fn drop(&mut self) {
        // Release the guard here, while the field `runtime` still exists: this may be the last
        // clone of the runtime, and the thread that sends the release ends with the last clone.
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
