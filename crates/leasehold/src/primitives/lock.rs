//! The lock: one holder at a time, over all processes.

pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::step::{Cause, Failure, Operation, Outcome, Value};
use crate::cleanup::Undo;
use crate::config::{Settings, Terms, WaitStrategy, check_wait};
use crate::context::Context;
use crate::error::Result;
use crate::guard::{Held, Share};
use crate::key::Key;
use crate::lease::Hold;
use crate::loss::LossReason;
use crate::owner::{Entry, Owner};
use crate::wait::{Answer, Ask, Deadline, Wait};
use steps::LockHold;

/// A lock by name: one holder at a time, over all processes that use the same
/// server. Shared with Redisson's `RLock`, `getSpinLock` and
/// `getNonReentrantLock` of the same name.
///
/// A handle is cheap to make and to clone and holds nothing by itself; its
/// settings are its own. [`acquire`](Self::acquire) and its relatives give a
/// [`LockGuard`].
///
/// **What it promises.** For one name, the intervals from the return of an acquire
/// to the call of the release, or to [`valid_until`](LockGuard::valid_until) if
/// that comes first, of two holders do not overlap, as long as no clock drifts by
/// more than the configured drift within a lease, the server loses no data, nobody
/// removes the key by force, and the holder stops at `valid_until`. Where a holder
/// can't be trusted to stop, only a check at the protected resource helps.
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
/// let short = lock.lease(Duration::from_secs(10)); // a fixed lease, not renewed
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
pub struct Lock {
    context: Arc<Context>,
    /// A name is checked when it is used, so that making a handle can't fail.
    key: Result<Key>,
    channel: Arc<str>,
    settings: Settings,
    owner: Option<Owner>,
}

/// Settings. Each changes this handle only; what is acquired already keeps its terms.
impl Lock {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let key = Key::parse(name);
        let channel = key.as_ref().map_or_else(|_| "".into(), Key::lock_channel);
        Self {
            settings: context.settings(),
            context,
            key,
            channel: channel.into(),
            owner: None,
        }
    }

    /// Sets a fixed lease: how long a hold lasts. It is not renewed, and ends by
    /// itself if it is not released.
    ///
    /// At least 10 ms (100 ms when renewed), at most 2^53 ms. Without this call the
    /// lease is the client's (30 s) and is renewed.
    #[doc(alias = "leaseTime")]
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self.settings.renewed = false;
        self
    }

    /// Sets whether a hold is renewed in the background until it is released. On
    /// by default; [`lease`](Self::lease) turns it off, so that a renewed hold with
    /// a lease of its own is `lock.lease(secs(5)).renewed(true)`.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use]
    pub fn renewed(mut self, renewed: bool) -> Self {
        self.settings.renewed = renewed;
        self
    }

    /// Sets how often a hold is renewed, and turns renewal on. A third of the lease
    /// by default, at least 1 ms, at most half the lease. A renewal comes up to a fifth
    /// of that earlier, so that many holds are not renewed in one burst.
    #[must_use]
    pub fn renew_every(mut self, period: Duration) -> Self {
        self.settings.renew_every = Some(period);
        self.settings.renewed = true;
        self
    }

    /// Sets how long a hold may last in all, renewed or not. When that time is over
    /// the holder is told ([`LossReason::MaxHold`]) and the lock is released. With an
    /// [`Owner`] it counts for the guard that asked for it, and while that lives. No
    /// limit by default; at least 1 ms.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.settings.max_hold = Some(limit);
        self
    }

    /// Sets how a waiter learns that it may ask again. [`WaitStrategy::PubSub`] by
    /// default.
    #[must_use]
    pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
        self.settings.strategy = strategy;
        self
    }

    /// Sets how often a waiter asks although nothing has woken it: what a lost
    /// message costs at most. 1 s by default, at least 1 ms.
    #[must_use]
    pub fn poll_cap(mut self, cap: Duration) -> Self {
        self.settings.poll_cap = cap;
        self
    }

    /// Sets how long a wait goes on while no server answers, before it ends with
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable). 30 s by default.
    #[must_use]
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.settings.outage_limit = limit;
        self
    }

    /// Acquires as `owner`, who can enter again while it holds the lock. See
    /// [`Owner`].
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

/// Acquiring.
impl Lock {
    /// Waits for the lock, without a limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no server has
    /// answered for the [`outage_limit`](Self::outage_limit), `WrongKind` when the
    /// key holds something else, `Denied` when the server refuses, `Misuse` for a
    /// bad name or setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait and the place in this process's line.
    /// If the server had granted the lock and the answer was still on its way, the
    /// lock is released in the background; at the latest it is free one lease after
    /// the grant.
    #[doc(alias = "lock")]
    #[doc(alias = "lockInterruptibly")]
    pub async fn acquire(&self) -> Result<LockGuard> {
        loop {
            // Without a deadline there is no other end than a guard or an error.
            if let Some(guard) = self.acquire_by(Deadline::Never).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free. `Ok(None)` means that somebody holds it, or
    /// that others of this process wait for it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); a server that does not answer is an error at
    /// once, `Unavailable` or `OutcomeUnknown`, and never `Ok(None)`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.acquire_by(Deadline::Now).await
    }

    /// Waits at most `wait` for the lock. `Ok(None)` means it was still held.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). `OutcomeUnknown` when the server has not answered
    /// at all within `wait`. A wait of zero or of more than 2^53 ms is `Misuse`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryLock")]
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<LockGuard>> {
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.acquire_by(Deadline::At(deadline)).await
    }

    /// Waits until `deadline` at the latest for the lock; a deadline in the past asks
    /// once. Takes tokio's or the standard library's instant.
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
    ) -> Result<Option<LockGuard>> {
        let deadline = self.context.clock.moment_of(deadline.into());
        let deadline = if deadline <= self.context.clock.now() {
            Deadline::Now
        } else {
            Deadline::At(deadline)
        };
        self.acquire_by(deadline).await
    }

    /// Runs `work` under the lock: acquires it, runs `work` until it is done or the
    /// lock is lost, and releases it.
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
    /// As [`acquire`](Self::acquire). [`ErrorKind::Lost`](crate::ErrorKind::Lost)
    /// when the lock was lost before `work` was done; `work` has been dropped then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        let output = guard.protect(work(&guard)).await?;
        guard.release().await?;
        Ok(output)
    }

    async fn acquire_by(&self, deadline: Deadline) -> Result<Option<LockGuard>> {
        let key = self.key()?;
        let terms = self.settings.terms(key)?;
        self.context.check_open(key)?;
        let held = match &self.owner {
            None => self.ask_until(key, terms, deadline).await?,
            // In a box: every waiter would carry its state, and few have an owner.
            Some(owner) => Box::pin(self.enter_as(owner, key, terms, deadline)).await?,
        };
        Ok(held.map(|share| LockGuard { share }))
    }

    /// Looks at what the owner holds first: re-entry never queues behind a stranger.
    async fn enter_as(
        &self,
        owner: &Owner,
        key: &Key,
        terms: Terms,
        deadline: Deadline,
    ) -> Result<Option<Share>> {
        let owners = &self.context.owners;
        loop {
            match owners.enter(key, owner) {
                Entry::Ask(asking) => {
                    let share = self.ask_until(key, terms, deadline).await?;
                    if let Some(share) = &share {
                        asking.holds(share.held());
                    }
                    return Ok(share);
                }
                Entry::Joined(held) => {
                    let mut share = Share::new(Arc::clone(&self.context), held, None);
                    match share.join_on(terms).await {
                        Ok(()) => return Ok(Some(share)),
                        // Lost meanwhile: ask anew.
                        Err(_) if share.hold().loss().is_some() => {}
                        Err(error) => return Err(error),
                    }
                }
                Entry::Acquiring => tokio::select! {
                    biased;
                    () = deadline.passed(self.context.clock) => return Ok(None),
                    () = owners.settled(key, owner) => {}
                },
            }
        }
    }

    async fn ask_until(
        &self,
        key: &Key,
        terms: Terms,
        deadline: Deadline,
    ) -> Result<Option<Share>> {
        let wait = Wait {
            context: &self.context,
            key,
            channel: &self.channel,
            settings: &self.settings,
            deadline,
        };
        let asker = Asker {
            lock: self,
            key,
            terms,
        };
        let undo = wait.until_granted(&asker).await?;
        Ok(undo.map(|undo| {
            self.context.renewal.keep(undo.hold());
            let limit = undo.hold().must_end_at();
            let held = Held::new(undo, self.owner.clone());
            Share::new(Arc::clone(&self.context), held, limit)
        }))
    }

    async fn ask_as(&self, id: String, key: &Key, terms: Terms) -> Result<Answer<Undo>, Failure> {
        let context = &self.context;
        let steps = LockHold::new(key.clone(), Arc::clone(&self.channel), id);
        let operation = steps.acquire(terms.lease);
        let hold = Hold::new(
            key.clone(),
            Box::new(steps),
            terms,
            context.clock,
            context.margin,
            context.clock.now(),
        );
        // Armed before the request leaves: a future dropped while the answer is on
        // its way must not leave the lock held for a whole lease.
        let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
        let reply = context.backend.submit(operation);
        undo.watch(&reply);
        match reply.await {
            Ok(Value::Nil) => {
                undo.granted();
                if hold.granted() {
                    Ok(Answer::Granted(undo))
                } else {
                    Err(came_too_late(&context.backend))
                }
            }
            Ok(Value::Int(ttl_ms)) => {
                undo.disarm();
                let ttl = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
                Ok(Answer::Busy { ttl })
            }
            Ok(_) => Err(makes_no_sense(&context.backend)),
            Err(failure) => {
                undo.failed(failure.outcome);
                Err(failure)
            }
        }
    }
}

/// What one acquire asks for.
struct Asker<'a> {
    lock: &'a Lock,
    key: &'a Key,
    terms: Terms,
}

impl Ask for Asker<'_> {
    type Grant = Undo;

    async fn ask(&self) -> Result<Answer<Undo>, Failure> {
        // The first late one teaches us the server's time.
        const TRIES: u32 = 3;
        let mut tries = 0;
        loop {
            tries += 1;
            // A hold of its own each time, that no other request can be taken for.
            let id = self.lock.context.fresh_wire_id();
            match self.lock.ask_as(id, self.key, self.terms).await {
                Err(failure) if failure.cause == Cause::Late && tries < TRIES => {}
                result => return result,
            }
        }
    }
}

/// Questions and force.
impl Lock {
    /// Whether anybody holds the lock now. By the time the answer is here it may
    /// have changed.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect().await?.is_locked())
    }

    /// Whether `owner` holds the lock, by the server's word. No call is made if this
    /// client knows of no hold of that owner.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        let Some(held) = self.context.owners.held(self.key()?, owner) else {
            return Ok(false);
        };
        let info = self.inspect().await?;
        let id = held.hold().steps.wire_id();
        Ok(info.holders.iter().any(|holder| holder.id == id))
    }

    /// What is left of the present hold's lease on the server.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// A question; nothing is left behind.
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
    /// A question; nothing is left behind.
    #[doc(alias = "getHoldCount")]
    pub async fn inspect(&self) -> Result<LockInfo> {
        let key = self.key()?;
        match self.command(key, steps::inspect(key)).await? {
            Value::List(items) => read_info(&items),
            _ => None,
        }
        .ok_or_else(|| makes_no_sense(&self.context.backend).into_error(key))
    }

    /// Ends whoever's hold there is. `true` if there was one.
    ///
    /// For operators: the holder is told ([`LossReason::Forced`]) at its next
    /// renewal, up to a third of its lease later, and **works on until then beside
    /// whoever comes next**. Redisson's own holders are not told at all.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect). A key that is not a plain lock is left alone.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it may happen whether the future is dropped or not.
    #[doc(alias = "forceUnlock")]
    #[doc(alias = "delete")]
    pub async fn force_unlock(&self) -> Result<bool> {
        let key = self.key()?;
        let operation = steps::force_unlock(key, &self.channel);
        Ok(self.command(key, operation).await? == Value::Int(1))
    }

    async fn command(&self, key: &Key, operation: Operation) -> Result<Value> {
        self.context
            .backend
            .submit(operation)
            .await
            .map_err(|failure| failure.into_error(key))
    }

    fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    /// The name, as it was given; empty if it could not be one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", Key::as_str)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("settings", &self.settings)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

fn read_info(items: &[Value]) -> Option<LockInfo> {
    let (Value::Int(ttl_ms), rest) = items.split_first()? else {
        return None;
    };
    let ttl = match u64::try_from(*ttl_ms) {
        Ok(ms) => Ttl::Left(Duration::from_millis(ms)),
        Err(_) if *ttl_ms == -1 => Ttl::NoExpiry,
        Err(_) => Ttl::Free,
    };
    let mut holders = Vec::new();
    for pair in rest.chunks(2) {
        let [Value::Text(id), Value::Text(count)] = pair else {
            return None;
        };
        holders.push(Holder {
            id: String::from_utf8_lossy(id).into_owned(),
            count: String::from_utf8_lossy(count).parse().ok()?,
        });
    }
    Some(LockInfo { holders, ttl })
}

fn makes_no_sense(backend: &Backend) -> Failure {
    let what = "the reply makes no sense";
    backend.failure(Outcome::MayHaveRun, Cause::Other(what.into()))
}

/// Granted, but the answer took longer than the lease: the undo gives it back.
fn came_too_late(backend: &Backend) -> Failure {
    let what =
        "the lock was granted, but the answer came after its lease was over; set a longer lease";
    backend.failure(Outcome::MayHaveRun, Cause::NoAnswer(what.into()))
}

/// Proof that the lock is held: what [`Lock::acquire`] gives.
///
/// [`release`](Self::release) gives the lock back and says whether it was held
/// until then. Dropping the guard releases it too, in the background, and can
/// report nothing.
///
/// A guard that has been lost is never valid again.
///
/// One that is not bound to a name would be dropped, and the lock released, at once:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn f(lock: leasehold::Lock) -> leasehold::Result<()> {
/// lock.acquire().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    share: Share,
}

impl LockGuard {
    /// Gives the lock back. With an [`Owner`] the last of its guards does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was not held any
    /// more: what was done under it may have overlapped with another holder.
    /// `Unavailable` or `OutcomeUnknown` when no server answered; it is tried again
    /// in the background, and the lock is free one lease after its last renewal at
    /// the latest.
    ///
    /// # Cancel safety
    ///
    /// Once called, the lock is released whether the future is dropped or not.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        self.share.release().await
    }

    /// Resolves with the reason when the lock is lost: at the next renewal if the
    /// server says so, and at [`valid_until`](Self::valid_until) at the latest,
    /// without any word from the server.
    ///
    /// The future is its own and can be moved into another task. It never resolves
    /// once the lock has been given back in time.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let hold = Arc::clone(self.share.hold());
        async move { hold.lost().await }
    }

    /// Why the lock is lost; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.share.hold().loss()
    }

    /// Runs `work` until it is done or the lock is lost, whichever comes first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost); `work` has been dropped then.
    ///
    /// # Cancel safety
    ///
    /// That of `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.share.protect(work).await
    }

    /// Whether the lock is held, by what this process knows and its clock says. No
    /// call to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Until when the lock is held for sure: the instant before the last confirmed
    /// request was sent, plus the lease, less the drift. Renewal moves it on, up to the
    /// end of the [maximum hold time](Lock::max_hold).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let context = self.share.context();
        context.clock.to_instant(self.share.valid_until())
    }

    /// When the last confirmed request was sent.
    pub(crate) fn confirmed_at(&self) -> Instant {
        let context = self.share.context();
        context.clock.to_instant(self.share.hold().confirmed_at())
    }

    /// What renewing the lock has met with since its last confirmation: the loss that
    /// comes at [`valid_until`](Self::valid_until) unless a renewal gets through. `None`
    /// while renewals are answered within a twentieth of the lease. For a holder that needs time to stop its work.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        self.share.hold().renewal_failure()
    }

    /// How many guards share this hold: 1, or more after a re-entry with an
    /// [`Owner`].
    #[doc(alias = "getHoldCount")]
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.share.hold().guards()
    }

    /// Makes the lock last `lease` from now at least. Never shortens it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when it is not held any more.
    /// `Unavailable` or `OutcomeUnknown` when no server answered; the guard is good
    /// until [`valid_until`](Self::valid_until).
    ///
    /// # Cancel safety
    ///
    /// The request may be carried out without its answer being heard.
    #[doc(alias = "expire")]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.share.extend(lease).await
    }

    /// Leaves the lock to its lease: it is neither renewed nor released any more and
    /// ends by itself. For a job that must not run again too soon. Other guards of the
    /// same [`Owner`] keep it, and then it is left to its lease with the last of them.
    pub fn forget(self) {
        self.share.forget();
    }

    /// This hold's number, which no other hold of this process has: what the
    /// [history checker](crate::history) knows a hold by.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.share.hold().number
    }

    /// The id this hold has in Redis, `uuid:n`, as [`Lock::inspect`] shows it.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        self.share.hold().steps.wire_id()
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.share.hold().key.as_str()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.share.fmt(f)
    }
}

/// Who holds a lock, and for how long: what [`Lock::inspect`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Who holds it; empty when it is free.
    pub holders: Vec<Holder>,
    /// What is left of the lease on the server.
    pub ttl: Ttl,
}

impl LockInfo {
    /// Whether anybody holds it.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// A holder, as it stands in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `uuid:n`: the client, and the hold (here) or the thread (Redisson).
    pub id: String,
    /// How often it has entered. Always 1 for holds of this library, which counts
    /// re-entries in the client.
    pub count: u64,
}

/// What is left of a lease on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock.
    Free,
    /// Held, and without an end: not made by this library or by Redisson.
    NoExpiry,
    /// Held for this long, unless it is renewed or released.
    Left(Duration),
}
