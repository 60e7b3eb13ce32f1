//! The guard of a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::time::Instant;

use crate::clock::Timers;
use crate::error::{Error, Result};
use crate::guard::{Share, not_kept};
use crate::key::Key;
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
/// Once its lock is lost, a guard is never valid again.
///
/// A guard that is not bound to a name would be dropped at once, which releases the lock:
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
    body: Body,
}

/// A share in one hold, or the guards of several locks that act as one.
enum Body {
    One(Share),
    Quorum(Quorum),
}

impl LockGuard {
    pub(in crate::primitives) fn new(share: Share) -> Self {
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
    pub(in crate::primitives) fn one(&self) -> Option<&Share> {
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

    /// Returns the guards of the members: of all members of a [`MultiLock`](crate::MultiLock), or
    /// of the members in the majority of a [`RedLock`](crate::RedLock). Empty for other locks.
    ///
    /// These are the guards that the acquire got. If a server of a `RedLock` restarts and takes
    /// part again, its guard here is lost and stays lost.
    pub fn members(&self) -> &[Self] {
        match &self.body {
            Body::One(_) => &[],
            Body::Quorum(quorum) => &quorum.guards,
        }
    }

    /// Returns the share of a guard whose kind of lock has one name.
    pub(in crate::primitives) fn share(&self) -> &Share {
        self.one().expect("a lock of one name has one hold")
    }

    /// Like [`share`](Self::share), by value.
    pub(in crate::primitives) fn into_share(self) -> Share {
        match self.body {
            Body::One(share) => share,
            Body::Quorum(_) => unreachable!("a lock of one name has one hold"),
        }
    }

    /// Gives the lock back. If an [`Owner`](crate::Owner) has several guards, the last of them
    /// gives it back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was no longer held: the work under
    /// it may have overlapped with another holder.
    ///
    /// `Unavailable` or `OutcomeUnknown` when no server answered. In that case the release is tried
    /// again in the background, and the lock is free one lease after its last renewal at the
    /// latest.
    ///
    /// `OutcomeUnknown` also in two other cases. In the first, one request was not answered, and
    /// the next one did not find the hold: either the first request released the lock, or the lock
    /// was lost before. In the second, the lock was handed over to the next holder of the process,
    /// and its lease ran out there before the server answered.
    ///
    /// # Cancel safety
    ///
    /// Once this has been called, the lock is released even if the future is dropped.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        match self.body {
            Body::One(share) => share.release().await,
            Body::Quorum(quorum) => quorum.release().await,
        }
    }

    /// Resolves with the reason when the lock is lost. If the server reports the loss, this happens
    /// at the next renewal. If the server does not answer, it happens at
    /// [`valid_until`](Self::valid_until) at the latest.
    ///
    /// Leases run on while the machine sleeps, but timers do not. If a lease ends while the machine
    /// sleeps, the loss is noticed within 200 ms after the machine wakes up. Work that calls
    /// [`is_held`](Self::is_held) learns of it at once.
    ///
    /// The future does not borrow the guard and can be moved into another task. It never resolves
    /// if the lock is released in time.
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

    /// Returns why the lock is lost; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        match &self.body {
            Body::One(share) => share.hold().tell_loss(),
            Body::Quorum(quorum) => {
                quorum.members.tell_losses();
                quorum.members.loss()
            }
        }
    }

    /// Runs `work` until it is done or the lock is lost, whichever comes first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock is lost; in that case `work` has
    /// been dropped.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // The loss is checked first: work under a lost lock must not run one step more.
            biased;
            reason = self.lost() => Err(Error::lost(self.key(), reason)),
            output = work => Ok(output),
        }
    }

    /// Returns whether the lock is held, by the knowledge and the clock of this process. Sends no
    /// request to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns the instant until which the lock is certainly held: the time just before the last
    /// confirmed request was sent, plus the lease, minus the drift and 2 ms. Each renewal moves it forward,
    /// up to the end of the [maximum hold time](crate::Lock::max_hold). All guards of an
    /// [`Owner`](crate::Owner) share it. When a guard that asked for more is released or dropped,
    /// it moves back to what the other guards asked for.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        match &self.body {
            Body::One(share) => share.context().clock.to_instant(share.valid_until()),
            Body::Quorum(quorum) => quorum.members.valid_until(),
        }
    }

    /// Returns the timers of the client; for several clients, the first client's.
    #[cfg_attr(not(feature = "blocking"), expect(dead_code))]
    pub(crate) fn timers(&self) -> &Timers {
        match &self.body {
            Body::One(share) => &share.context().timers,
            Body::Quorum(quorum) => quorum.members.timers(),
        }
    }

    /// Returns when the last confirmed request was sent.
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

    /// Returns the failure of renewal since the last confirmation. It becomes the loss at
    /// [`valid_until`](Self::valid_until) unless a renewal succeeds. `None` while renewals are
    /// answered within a twentieth of the lease. For a holder that needs time to stop its work.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        match &self.body {
            Body::One(share) => share.hold().renewal_failure(),
            Body::Quorum(quorum) => quorum.members.renewal_failure(),
        }
    }

    /// Returns the number of guards that share this hold: 1, or more after a re-entry with an
    /// [`Owner`](crate::Owner).
    #[doc(alias = "getHoldCount")]
    #[must_use]
    pub fn hold_count(&self) -> usize {
        match &self.body {
            Body::One(share) => share.hold().guards(),
            Body::Quorum(quorum) => quorum.members.guards(),
        }
    }

    /// Extends the lock to at least `lease` from now. Never shortens it. When this guard is
    /// released or dropped and other guards of the hold remain, their own leases apply again. The
    /// server keeps the longer lease until the last guard releases the lock. It also keeps it if
    /// that guard is [forgotten](Self::forget) or its process dies.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock is no longer held. `Unavailable`
    /// or `OutcomeUnknown` when no server answered; the guard stays valid until
    /// [`valid_until`](Self::valid_until).
    ///
    /// # Cancel safety
    ///
    /// The server may carry out the request even if the future is dropped before the answer.
    #[doc(alias = "expire")]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        match &self.body {
            Body::One(share) => share.extend(lease).await,
            // Boxed: most guards are of one lock, and their futures need not be as large as the
            // futures of several locks.
            Body::Quorum(quorum) => Box::pin(quorum.extend(lease)).await,
        }
    }

    /// Leaves the lock to its lease: it is no longer renewed or released, and ends by itself. For a
    /// job that must not run again too soon. The lease is the longest to which any guard of the
    /// hold has [extended](Self::extend) the lock. Other guards of the same [`Owner`](crate::Owner)
    /// keep the lock. When the last of them is released or dropped, the lock is left to its lease.
    pub fn forget(self) {
        match self.body {
            Body::One(share) => share.forget(),
            Body::Quorum(quorum) => quorum.forget(),
        }
    }

    /// Keeps the lock for `span` from now. It is no longer renewed or released, and ends by itself.
    /// Unlike [`forget`](Self::forget), this sets the lease. Unlike [`extend`](Self::extend), it
    /// also shortens a longer lease. For a job that must not run again too soon: the program may
    /// end at once, and need not run until the span is over.
    ///
    /// `span` is at least 10 ms. It begins when the server gets the request. If the network delays
    /// the request or delivers it a second time, the lock ends later by as much. A renewal that
    /// arrives later changes nothing. If the span is shorter than the rest of the lease, waiters in
    /// Rust and Java are woken and learn the new end. A Java waiter in the line of a fair lock may
    /// sleep on until the end that it learned when it joined.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let lock = leasehold::Client::embedded().lock("report");
    /// let guard = lock.acquire().await?;
    /// // ... send the report, and let nobody send it again for a minute
    /// guard.keep_for(Duration::from_secs(60)).await?;
    /// assert!(lock.try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was no longer held.
    ///
    /// `Misuse`
    ///
    /// - when the span is too short, or longer than a [failover
    ///   guard](crate::ClientBuilder::failover_guard),
    /// - for a lock that is not one key with one holder: the read side of a read-write lock, a
    ///   [`GroupLock`](crate::GroupLock), a [`MultiLock`](crate::MultiLock) or a
    ///   [`RedLock`](crate::RedLock),
    /// - while other guards of an [`Owner`](crate::Owner) share the hold, or have left it to its
    ///   lease, and
    /// - for a write lock if its owner also holds the read side.
    ///
    /// After these errors the guard has been dropped. If no other guard has the lock, it is given
    /// back in the background. If another guard has [forgotten](Self::forget) it, it stays for its
    /// lease.
    ///
    /// `Unavailable` or `OutcomeUnknown` when no server answered: the lock ends after its old lease
    /// or after the span.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the answer, the lock ends after its old lease or after the
    /// span.
    pub async fn keep_for(self, span: Duration) -> Result<()> {
        match self.body {
            Body::One(share) => share.keep_for(span).await,
            Body::Quorum(quorum) => Err(not_kept(&quorum.members.key, "it is several locks")),
        }
    }

    /// Returns how long the acquire took. A re-entry has a time of its own. For several locks that
    /// act as one, this is the longest time of a member. Zero for a read hold that was a write
    /// hold.
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

    /// Returns the id of this hold in Redis, `uuid:n`, as [`Lock::inspect`](crate::Lock::inspect)
    /// shows it. For several locks that act as one, the id of the first.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        match &self.body {
            Body::One(share) => share.hold().steps.wire_id(),
            Body::Quorum(quorum) => quorum.members.holder_id(),
        }
    }

    /// Returns the fencing token of this hold, for a resource that refuses a late holder. Tokens of
    /// a name rise from hold to hold, whichever kind of lock draws them. See
    /// [`FencedLock`](crate::FencedLock), whose guards have a token from the start. For other
    /// locks, the first call draws the token from the server. From then on all guards of this hold
    /// have this token, and [`token`](Self::token) returns it.
    ///
    /// A [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) has one token for all
    /// members. It is greater than every token drawn before for any of them, and the next token
    /// drawn for any of them is greater still. For a `RedLock` its majority ensures this. Drawing
    /// such a token takes a second round trip.
    ///
    /// All holders that share the resource must use a token. A hold that draws none leaves no trace
    /// in the numbers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::MultiLock;
    ///
    /// let client = leasehold::Client::embedded();
    /// let both = MultiLock::new([client.lock("ann"), client.lock("bob")])?;
    /// let guard = both.acquire().await?;
    /// let token = guard.fencing_token().await?; // goes with every change to either
    /// guard.release().await?;
    /// let guard = client.fair_lock("bob").acquire().await?;
    /// assert!(guard.fencing_token().await? > token);
    /// # guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock is no longer held. Then no token
    /// is returned, not even one that was drawn before. `Misuse` for locks that several holders can
    /// have at a time: the read side of a read-write lock and a [`GroupLock`](crate::GroupLock), by
    /// itself or as a member. `WrongKind` when the counter's key holds something else.
    /// `Unavailable` or `OutcomeUnknown` when no server answered; the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock. If a token was drawn but the answer was lost,
    /// no hold gets that token.
    #[doc(alias = "lockAndGetToken")]
    pub async fn fencing_token(&self) -> Result<u64> {
        match &self.body {
            Body::One(share) => draw::token_of(share).await,
            Body::Quorum(quorum) => Box::pin(quorum.fencing_token()).await,
        }
    }

    /// Returns the fencing token of this hold, if it is known. A [`FencedLock`](crate::FencedLock)
    /// knows it from the start, other locks once [`fencing_token`](Self::fencing_token) has drawn
    /// it. It is never the token of another hold, even after this hold is lost.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match &self.body {
            Body::One(share) => share.hold().token(),
            Body::Quorum(quorum) => quorum.members.token(),
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
