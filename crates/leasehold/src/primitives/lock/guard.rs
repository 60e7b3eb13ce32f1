//! The guard of a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::time::Instant;

use crate::clock::Timers;
use crate::error::{Error, Result};
use crate::guard::Share;
use crate::hold::LastReport;
use crate::key::Key;
use crate::leave::keep_for::cannot_keep;
use crate::loss::LossReason;
use crate::primitives::composite::Quorum;
use crate::primitives::fenced::draw;

/// Proof that the lock is held: the result of [`Lock::acquire`](crate::Lock::acquire) and the
/// methods like it.
///
/// [`release`](Self::release) releases the lock and reports whether it was held until then.
/// Dropping the guard also releases the lock, but in the background and without a report. If the
/// program ends soon afterwards, call [`Client::close`](crate::Client::close)`().await`, which
/// waits for the release. [`Client`](crate::Client#when-the-program-ends) describes what happens
/// without that call.
///
/// Once its lock is lost, a guard never holds the lock again.
///
/// # Three ways to lose a guard
///
/// - **It is dropped at once**, because no variable holds it. The compiler warns about the statement
///   `lock.acquire().await?;`, but not about `let _ = lock.acquire().await?;`. A name such as
///   `_guard` keeps the guard until the end of its block.
/// - **It is leaked**, for example with `std::mem::forget` or in a cycle of `Rc`s. The client then
///   renews the lock until the client is closed, unless [`max_hold`](crate::Lock::max_hold) ends
///   the hold. Use [`forget`](Self::forget) to keep a lock only for the rest of its lease.
/// - **It ends with a task or a future that owns it.** The lock is released when a task returns,
///   panics or is aborted, and when a future is dropped, for example by a timeout. Keep the guard
///   in the task that does the work. Once the guard is dropped, the lock no longer protects a task
///   that this work has spawned.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let lock = client.lock("orders:42");
///
/// let _ = lock.acquire().await?; // released at once
/// let guard = lock.acquire().await?; // so this one does not wait
///
/// let task = tokio::spawn(async move {
///     let _guard = guard; // released when this task ends
///     std::future::pending::<()>().await;
/// });
/// task.abort();
/// let guard = lock.acquire().await?;
/// guard.release().await?;
///
/// let limited = lock.clone().max_hold(Duration::from_millis(200));
/// std::mem::forget(limited.acquire().await?);
/// assert!(lock.is_locked().await?); // a leaked guard holds the lock
/// lock.acquire().await?.release().await?; // until the limit
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn f(lock: leasehold::Lock) -> leasehold::Result<()> {
/// lock.acquire().await?; // the compiler warns: the guard is dropped at once
/// # Ok(())
/// # }
/// ```
#[doc(alias = "MutexGuard")]
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    body: Body,
}

/// A share in one hold, or the guards of several locks that act as one.
enum Body {
    One(Share),
    Quorum(Quorum),
}

impl LockGuard {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            body: Body::One(share),
        }
    }

    pub(in crate::primitives) fn of_quorum(quorum: Quorum) -> Self {
        Self {
            body: Body::Quorum(quorum),
        }
    }

    /// Returns the share in a hold, if the guard is made of one hold.
    pub(crate) fn one(&self) -> Option<&Share> {
        match &self.body {
            Body::One(share) => Some(share),
            Body::Quorum(_) => None,
        }
    }

    /// Sets the maximum hold time of each member, counted from now.
    pub(in crate::primitives) fn limit(&self, limit: Duration) {
        if let Body::Quorum(quorum) = &self.body {
            quorum.limit(limit);
        }
    }

    /// Makes each member's hold depend on reports of progress from now on.
    pub(in crate::primitives) fn want_progress(&mut self, within: Duration) {
        if let Body::Quorum(quorum) = &mut self.body {
            quorum.want_progress(within);
        }
    }

    /// Calls `each` for each place where the guard reports progress. Locks no mutex.
    pub(crate) fn for_each_report(&self, mut each: impl FnMut(&Arc<LastReport>)) {
        match &self.body {
            Body::One(share) => share.reports().into_iter().for_each(each),
            Body::Quorum(quorum) => quorum.members.reports().for_each(&mut each),
        }
    }

    /// Resolves when the work has stalled, with the time since the last report of progress.
    pub(crate) fn stalls(&self) -> impl Future<Output = Duration> + Send + use<> {
        match &self.body {
            Body::One(share) => Either::Left(share.stalled()),
            Body::Quorum(quorum) => Either::Right(Arc::clone(&quorum.members).stalled()),
        }
    }

    /// Returns the share of a guard for a lock that has one name.
    pub(crate) fn share(&self) -> &Share {
        self.one().expect("a lock of one name has one hold")
    }

    /// Like [`share`](Self::share), but returns a mutable reference.
    pub(in crate::primitives) fn share_mut(&mut self) -> &mut Share {
        match &mut self.body {
            Body::One(share) => share,
            Body::Quorum(_) => unreachable!("a lock of one name has one hold"),
        }
    }

    /// Like [`share`](Self::share), but consumes the guard.
    pub(crate) fn into_share(self) -> Share {
        match self.body {
            Body::One(share) => share,
            Body::Quorum(_) => unreachable!("a lock of one name has one hold"),
        }
    }

    /// Releases the lock, and reports whether it was held until then. If an [`Owner`](crate::Owner)
    /// has several guards, only the last of them releases the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was no longer held: the work under
    /// it may have overlapped with the work of another holder.
    ///
    /// `Unavailable` or `OutcomeUnknown` if no server answered. In that case the client sends the
    /// release again in the background, and the lock is free no later than one lease after its last
    /// renewal.
    ///
    /// `OutcomeUnknown` also in two other cases:
    /// - The first request was not answered, and the next one did not find the hold. Either the
    ///   first request released the lock, or the lock had been lost before.
    /// - The lock was [handed over](crate::Lock::local_hand_over) to the next holder in this
    ///   process, and the lease ended there before the server answered.
    ///
    /// # Cancel safety
    ///
    /// Once `release` has been called, the lock is released even if the future is dropped.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        match self.body {
            Body::One(share) => share.release().await,
            Body::Quorum(quorum) => quorum.release().await,
        }
    }

    /// Resolves with the reason when the lock is lost. If the server answers, its reply to the next
    /// renewal reports the loss. If no server answers, the future resolves no later than
    /// [`valid_until`](Self::valid_until).
    ///
    /// Leases continue to run while the machine sleeps, but timers do not. If the lease ends while
    /// the machine sleeps, the future resolves within 200 ms after the machine wakes up.
    /// [`is_held`](Self::is_held) reports the loss at once.
    ///
    /// The future does not borrow the guard and can be moved into another task. If the lock is
    /// released before it is lost, the future never resolves.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        match &self.body {
            Body::One(share) => Either::Left(share.lost()),
            Body::Quorum(quorum) => Either::Right(Arc::clone(&quorum.members).lost()),
        }
    }

    /// Returns why the lock was lost; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        match &self.body {
            Body::One(share) => share.hold().report_loss(),
            Body::Quorum(quorum) => {
                quorum.members.report_losses();
                quorum.members.loss()
            }
        }
    }

    /// Runs `work` until it is done or the lock is lost, whichever comes first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock is lost. In that case `work` has
    /// been dropped.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // Check for a loss first: work under a lost lock must not run one step more.
            biased;
            reason = self.lost() => Err(Error::lost(self.key(), reason)),
            output = work => Ok(output),
        }
    }

    /// Returns whether the lock is held, as far as this process and its clock know. Sends no
    /// request to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns the instant until which the lock is certainly held. This is the time just before the
    /// last confirmed request was sent, plus the lease, minus the
    /// [drift](crate::ClientBuilder::drift_fraction) and 2 ms. Each renewal moves this instant
    /// forward, up to the end of the [maximum hold time](crate::Lock::max_hold).
    ///
    /// The instant is the same for all guards of an [`Owner`](crate::Owner) that share the hold.
    /// When the guard with the longest lease is released or dropped, the instant moves back to the
    /// end of the longest remaining lease.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        match &self.body {
            Body::One(share) => share.context().clock.to_instant(share.valid_until()),
            Body::Quorum(quorum) => quorum.members.valid_until(),
        }
    }

    /// Returns the timers of the client. If the guard's members have several clients, these are the
    /// timers of the first one.
    #[cfg_attr(not(feature = "blocking"), expect(dead_code))]
    pub(crate) fn timers(&self) -> &Timers {
        match &self.body {
            Body::One(share) => &share.context().timers,
            Body::Quorum(quorum) => quorum.members.timers(),
        }
    }

    /// Returns the time at which the last confirmed request was sent.
    #[cfg(feature = "testing")]
    pub(crate) fn confirmed_at(&self) -> Instant {
        match &self.body {
            Body::One(share) => {
                let confirmed_at = share.hold().confirmed_at();
                share.context().clock.to_instant(confirmed_at)
            }
            Body::Quorum(quorum) => quorum.members.confirmed_at(),
        }
    }

    /// Returns why renewals have been failing since the last one that succeeded. Unless a renewal
    /// succeeds before [`valid_until`](Self::valid_until), the lock is lost at that time for this
    /// reason. `None` while the server answers each renewal within a twentieth of the lease. Use
    /// this if the holder needs time to stop its work.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        match &self.body {
            Body::One(share) => share.hold().renewal_failure(),
            Body::Quorum(quorum) => quorum.members.renewal_failure(),
        }
    }

    /// Returns the number of guards that share this hold: 1, or more if an [`Owner`](crate::Owner)
    /// has acquired the lock again.
    #[doc(alias = "getHoldCount")]
    #[must_use]
    pub fn hold_count(&self) -> usize {
        match &self.body {
            Body::One(share) => share.hold().guards(),
            Body::Quorum(quorum) => quorum.members.guards(),
        }
    }

    /// Extends the lease, so that it ends `lease` from now or later. The call never shortens the
    /// lease. `lease` is at least 10 ms and at most 2^53 ms.
    ///
    /// If other guards of an [`Owner`](crate::Owner) share the hold, the longer lease counts only
    /// until this guard is released or dropped. Then the leases of the other guards apply again.
    /// The server keeps the longer lease until the last guard releases the lock. If the last guard
    /// is [forgotten](Self::forget) or its process dies, the lock stays locked until the longer
    /// lease ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock is no longer held. `Misuse` for a
    /// `lease` out of its range. `Unavailable` or `OutcomeUnknown` if no server answered: the lock
    /// is still held until [`valid_until`](Self::valid_until).
    ///
    /// # Cancel safety
    ///
    /// The server may carry out the request even if the future is dropped before the answer.
    #[doc(alias = "expire")]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        match &self.body {
            Body::One(share) => share.extend(lease).await,
            // Boxed: most guards are for one lock, and their futures need not be as large as those
            // for several locks.
            Body::Quorum(quorum) => Box::pin(quorum.extend(lease)).await,
        }
    }

    /// Ends the guard without releasing the lock. The client no longer renews the lock, so it is
    /// free when its lease ends. Use this for a job that must not run again too soon.
    ///
    /// The lease may be longer than usual, because any guard of the hold may have
    /// [extended](Self::extend) it. Other guards of the same [`Owner`](crate::Owner) still hold and
    /// renew the lock. When the last of them is released or dropped, the lock is not released
    /// either, but stays locked until its lease ends.
    pub fn forget(self) {
        match self.body {
            Body::One(share) => share.forget(),
            Body::Quorum(quorum) => quorum.forget(),
        }
    }

    /// Ends the guard, and keeps the lock locked for `span` from now. The client no longer renews
    /// or releases the lock, so it is free when `span` has passed. Unlike [`forget`](Self::forget),
    /// this sets the lease. Unlike [`extend`](Self::extend), it also shortens a longer lease. Use
    /// this for a job that must not run again too soon: the program may end at once, before `span`
    /// has passed.
    ///
    /// `span` is at least 10 ms, and begins when the server receives the request. If the network
    /// delays the request, or a second copy of it, the lock stays locked longer by this delay. A
    /// renewal that arrives afterwards changes nothing. If the hold now ends earlier than before,
    /// the waiters in Rust and Java are woken and learn the new end. A Java waiter in the queue of
    /// a fair lock may sleep until the end that it learned when it joined the queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let lock = leasehold::Client::embedded().lock("report");
    /// let guard = lock.acquire().await?;
    /// // ... send the report, and let no other process send it for a minute
    /// guard.keep_for(Duration::from_secs(60)).await?;
    /// assert!(lock.try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was no longer held.
    ///
    /// `Misuse`:
    ///
    /// - if `span` is too short, or longer than the client's [failover
    ///   guard](crate::ClientBuilder::failover_guard),
    /// - for a lock that is not a single key with a single holder: the read side of a read-write
    ///   lock, a [`GroupLock`](crate::GroupLock), a [`MultiLock`](crate::MultiLock) or a
    ///   [`RedLock`](crate::RedLock),
    /// - if other guards of an [`Owner`](crate::Owner) share the hold, or have been
    ///   [forgotten](Self::forget), and
    /// - for the write side of a read-write lock, if its owner also holds the read side.
    ///
    /// After these errors the guard no longer exists. If it was the only guard of the hold, the
    /// client releases the lock in the background. If another guard was forgotten, the lock stays
    /// locked until its lease ends.
    ///
    /// `Unavailable` or `OutcomeUnknown` if no server answered: the lock becomes free at the end of
    /// its old lease, or after `span`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the answer arrives, the lock becomes free at the end of its
    /// old lease, or after `span`.
    pub async fn keep_for(self, span: Duration) -> Result<()> {
        match self.body {
            Body::One(share) => share.keep_for(span).await,
            Body::Quorum(quorum) => Err(cannot_keep(&quorum.members.key, "it is several locks")),
        }
    }

    /// Ends the [minimum time](crate::Lock::min_hold) of the hold, so that a release frees the lock
    /// at once. Call this if the job did not begin. Nothing is sent.
    pub fn waive_min_hold(&self) {
        if let Body::One(share) = &self.body {
            share.hold().end_min_hold();
        }
    }

    /// Returns how long the acquire of this guard took. For a [`MultiLock`](crate::MultiLock) or a
    /// [`RedLock`](crate::RedLock), this is the time that the slowest member took. Zero for a guard
    /// that a [downgrade](crate::WriteGuard::downgrade) has returned.
    #[must_use]
    pub fn waited(&self) -> Duration {
        match &self.body {
            Body::One(share) => share.waited(),
            Body::Quorum(quorum) => {
                let members = quorum.guards.iter().map(Self::waited);
                members.max().unwrap_or_default()
            }
        }
    }

    /// Returns the number of this hold, which is unique in this process. The [history
    /// checker](crate::testing::history) identifies holds by it.
    #[must_use]
    pub fn number(&self) -> u64 {
        match &self.body {
            Body::One(share) => share.number(),
            Body::Quorum(quorum) => quorum.members.number,
        }
    }

    /// Returns the id of this hold on the server, `uuid:n`, as
    /// [`Lock::inspect`](crate::Lock::inspect) shows it. For a [`MultiLock`](crate::MultiLock) or a
    /// [`RedLock`](crate::RedLock), this is the id of the first member.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        match &self.body {
            Body::One(share) => share.hold().steps.wire_id(),
            Body::Quorum(quorum) => quorum.members.holder_id(),
        }
    }

    /// Returns the fencing token of this hold: a number that is greater than every token drawn
    /// before for the same name, with any kind of lock. A resource that remembers the greatest
    /// token can refuse a former holder, whose token is lower. The guards of a
    /// [`FencedLock`](crate::FencedLock) have a token from the start. For other locks, the first
    /// call draws the token from the server. From then on all guards of this hold have this token,
    /// and [`token`](Self::token) returns it.
    ///
    /// A [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) has one token for all
    /// members. This token is greater than every token drawn before for any of them, and the next
    /// token drawn for any of them is greater still. A `RedLock` ensures this through the majority
    /// of its members. Drawing such a token takes a second round trip.
    ///
    /// All holders that use the resource must pass a token. A hold for which no token is drawn does
    /// not raise the counter.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::MultiLock;
    ///
    /// let client = leasehold::Client::embedded();
    /// let both = MultiLock::new([client.lock("ann"), client.lock("bob")])?;
    /// let guard = both.acquire().await?;
    /// let token = guard.fencing_token().await?; // pass it with every change
    /// guard.release().await?;
    /// let guard = client.fair_lock("bob").acquire().await?;
    /// assert!(guard.fencing_token().await? > token);
    /// # guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock is no longer held, even if the token
    /// was drawn before. `Misuse` for locks that can have several holders at a time: the read side
    /// of a read-write lock and a [`GroupLock`](crate::GroupLock), even as members of other locks.
    /// `WrongKind` if the key of the counter holds something else. `Unavailable` or
    /// `OutcomeUnknown` if no server answered: the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock. If the server drew a token and its answer was
    /// lost, no hold gets that token.
    #[doc(alias = "lockAndGetToken")]
    pub async fn fencing_token(&self) -> Result<u64> {
        match &self.body {
            Body::One(share) => draw::token_of(share).await,
            Body::Quorum(quorum) => Box::pin(quorum.fencing_token()).await,
        }
    }

    /// Returns the fencing token of this hold if it has one, without a request. The guard of a
    /// [`FencedLock`](crate::FencedLock) has a token from the start. The guard of another lock has
    /// one once [`fencing_token`](Self::fencing_token) has drawn it. The token never belongs to
    /// another hold, even after this hold is lost.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match &self.body {
            Body::One(share) => share.hold().token(),
            Body::Quorum(quorum) => quorum.members.token(),
        }
    }

    /// Returns the guards of all members of a [`MultiLock`](crate::MultiLock), or of the acquired
    /// members of a [`RedLock`](crate::RedLock). Empty for other locks.
    ///
    /// These are the guards that the acquire obtained. If a server of a `RedLock` restarts and the
    /// holder acquires the lock on that server once more, this list still has the lost guard of
    /// that server.
    pub fn members(&self) -> &[Self] {
        match &self.body {
            Body::One(_) => &[],
            Body::Quorum(quorum) => &quorum.guards,
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key().given()
    }

    fn key(&self) -> &Key {
        match &self.body {
            Body::One(share) => &share.hold().key,
            Body::Quorum(quorum) => &quorum.members.key,
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            Body::One(share) => share.fmt(f),
            Body::Quorum(quorum) => quorum.fmt(f),
        }
    }
}

impl AsRef<LockGuard> for LockGuard {
    fn as_ref(&self) -> &LockGuard {
        self
    }
}
