//! Proof that a lock is held.

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

/// Proof that the lock is held: [`Lock::acquire`](crate::Lock::acquire) and its relatives return
/// it.
///
/// [`release`](Self::release) gives the lock back and says whether it was held until then. Dropping
/// the guard releases the lock, too, but in the background and without a report. If the program
/// ends soon after, call [`Client::close`](crate::Client::close)`().await`, which waits for the
/// release; [`Client`](crate::Client#when-the-program-ends) says what happens without that call.
///
/// A guard whose lock was lost is never valid again.
///
/// A guard that is not bound to a name would be dropped at once, and the lock released:
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

    /// The share in its hold, if the guard is made of one hold.
    pub(in crate::primitives) fn one(&self) -> Option<&Share> {
        match &self.body {
            Body::One(share) => Some(share),
            Body::Quorum(_) => None,
        }
    }

    /// Gives each member its maximum hold time, counted from now.
    pub(in crate::primitives) fn limit(&self, limit: Duration) {
        if let Body::Quorum(quorum) = &self.body {
            quorum.limit(limit);
        }
    }

    /// The guards of the members: of all members of a [`MultiLock`](crate::MultiLock), or of those
    /// that make up the majority of a [`RedLock`](crate::RedLock). Empty for other locks.
    ///
    /// They are those that the acquire was given. If a server of a `RedLock` is restarted and takes
    /// part again, its guard here is lost and stays so.
    pub fn members(&self) -> &[Self] {
        match &self.body {
            Body::One(_) => &[],
            Body::Quorum(quorum) => &quorum.guards,
        }
    }

    /// The share of a guard whose kind of lock has one name.
    pub(in crate::primitives) fn share(&self) -> &Share {
        self.one().expect("a lock of one name has one hold")
    }

    /// As [`share`](Self::share).
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
    /// it may have overlapped with another holder. `Unavailable` or `OutcomeUnknown` when no server
    /// answered. In that case the release is tried again in the background, and the lock is free
    /// one lease after its last renewal at the latest. `OutcomeUnknown` also when a first request was
    /// not answered and a second one does not find the hold: either the first one has released it, or
    /// it was lost before that. And when the lock went to the next holder of the process, and its lease
    /// ran out there before the server was heard.
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

    /// Resolves with the reason when the lock is lost. If the server says so, that is at the next
    /// renewal. Without any word from the server, it is at [`valid_until`](Self::valid_until) at
    /// the latest.
    ///
    /// Leases go on while the machine sleeps, and timers do not. A hold whose time was over during a
    /// sleep of the machine is found within 200 ms of its end; work that asks
    /// [`is_held`](Self::is_held) knows at once.
    ///
    /// The future does not borrow the guard and can be moved into another task. It never resolves
    /// once the lock has been given back in time.
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

    /// Why the lock is lost; `None` while it is held.
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
    /// The cancel safety of `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // The loss comes first: work under a lost lock must not go on for one step more.
            biased;
            reason = self.lost() => Err(Error::lost(self.key(), reason)),
            output = work => Ok(output),
        }
    }

    /// Whether the lock is held, by what this process knows and what its clock says. Makes no call
    /// to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Until when the lock is held for sure: the instant before the last confirmed request was
    /// sent, plus the lease, less the drift. Renewal moves it on, up to the end of the [maximum
    /// hold time](crate::Lock::max_hold). The guards of an [`Owner`](crate::Owner) share it: when a
    /// guard that asked for more goes, it moves back to what the other guards asked for.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        match &self.body {
            Body::One(share) => share.context().clock.to_instant(share.valid_until()),
            Body::Quorum(quorum) => quorum.members.valid_until(),
        }
    }

    /// The timers of its client; of several clients, the first one's.
    #[cfg_attr(not(feature = "blocking"), expect(dead_code))]
    pub(crate) fn timers(&self) -> &Timers {
        match &self.body {
            Body::One(share) => &share.context().timers,
            Body::Quorum(quorum) => quorum.members.timers(),
        }
    }

    /// When the last confirmed request was sent.
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

    /// The failure of renewal since the last confirmation: it becomes the loss at
    /// [`valid_until`](Self::valid_until) unless a renewal gets through. `None` while renewals are
    /// answered within a twentieth of the lease. For a holder that needs time to stop its work.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        match &self.body {
            Body::One(share) => share.hold().renewal_failure(),
            Body::Quorum(quorum) => quorum.members.renewal_failure(),
        }
    }

    /// How many guards share this hold: 1, or more after a re-entry with an
    /// [`Owner`](crate::Owner).
    #[doc(alias = "getHoldCount")]
    #[must_use]
    pub fn hold_count(&self) -> usize {
        match &self.body {
            Body::One(share) => share.hold().guards(),
            Body::Quorum(quorum) => quorum.members.guards(),
        }
    }

    /// Extends the lock to at least `lease` from now. Never shortens it. When this guard goes and other
    /// guards of the hold stay, they are promised their own leases again. The server has the longer one
    /// until the last guard releases the lock, and still has it if that guard is
    /// [forgotten](Self::forget) or its process dies.
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
            // In a box: most guards are of one lock, and their futures need not be as large as
            // those of several.
            Body::Quorum(quorum) => Box::pin(quorum.extend(lease)).await,
        }
    }

    /// Leaves the lock to its lease: it is no longer renewed or released, and ends by itself. For a
    /// job that must not run again too soon. Its lease is the longest that any guard of the hold has
    /// [extended](Self::extend) it to. Other guards of the same [`Owner`](crate::Owner) keep
    /// the lock; when the last of them goes, the lock is left to its lease.
    pub fn forget(self) {
        match self.body {
            Body::One(share) => share.forget(),
            Body::Quorum(quorum) => quorum.forget(),
        }
    }

    /// Keeps the lock for `span` from now, and leaves it to that: it is no longer renewed or
    /// released, and ends by itself. Unlike [`forget`](Self::forget) this sets the lease, and unlike
    /// [`extend`](Self::extend) it makes a longer lease shorter. For a job that must not run again
    /// too soon: the program may end at once, and nothing has to live until the span is over.
    ///
    /// `span` is 10 ms or more. It counts from when the server gets the request, so a request that
    /// the network delays, or delivers a second time, ends the lock that much later. A renewal that
    /// arrives later changes nothing. Those who wait for the lock, in Rust or Java, are woken when the
    /// span is shorter than what was left, and learn when it ends. A Java waiter in the line of a fair
    /// lock may sleep on until the end that it was told when it joined.
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
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was no longer held. `Misuse` when
    /// the span is too short, or longer than a [failover
    /// guard](crate::ClientBuilder::failover_guard); for a lock that is not one key which one holder
    /// has: the read side of a read-write lock, a [`GroupLock`](crate::GroupLock), a
    /// [`MultiLock`](crate::MultiLock) and a [`RedLock`](crate::RedLock); and while other guards of
    /// an [`Owner`](crate::Owner) share the hold, or have left it to its lease; and for a
    /// write lock inside which its owner reads. After these errors this guard is gone, as if it were
    /// dropped: unless other guards have the lock, it is given back in the background, or stays for
    /// its lease if one of them has [forgotten](Self::forget) it. `Unavailable` or `OutcomeUnknown`
    /// when no server answered: the lock ends after its old lease or after the span.
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

    /// How long its acquire took. A re-entry has its own. Of several locks that act as one, the
    /// longest time that one of them took; zero for a read hold that was a write hold.
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

    /// The number of this hold, which no other hold of this process has. The [history
    /// checker](crate::testing::history) identifies holds by it.
    #[must_use]
    pub fn number(&self) -> u64 {
        match &self.body {
            Body::One(share) => share.number(),
            Body::Quorum(quorum) => quorum.members.number,
        }
    }

    /// The id of this hold in Redis, `uuid:n`, as [`Lock::inspect`](crate::Lock::inspect) shows it.
    /// For several locks that act as one, the id of the first.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        match &self.body {
            Body::One(share) => share.hold().steps.wire_id(),
            Body::Quorum(quorum) => quorum.members.holder_id(),
        }
    }

    /// The fencing token of this hold, for a resource that refuses a late holder: a number that
    /// rises from hold to hold of a name, whichever kind of lock draws it. See
    /// [`FencedLock`](crate::FencedLock), whose guards have one from the start. The first call
    /// draws the token from the server. From then on it is the same for all guards of this hold,
    /// and [`token`](Self::token) returns it.
    ///
    /// A [`MultiLock`](crate::MultiLock) and a [`RedLock`](crate::RedLock) have one number for all
    /// members. It is greater than every number drawn before for any of them, and the next number
    /// drawn for any of them is greater still. For a `RedLock` its majority ensures this. Drawing
    /// such a number takes a second round trip.
    ///
    /// All holders that share the resource have to use a token. A hold that draws none leaves no
    /// trace in the numbers.
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
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock is no longer held: then no token
    /// is returned, not even one that was drawn before. `Misuse` for locks that several holders can
    /// have at a time: the read side of a read-write lock and a [`GroupLock`](crate::GroupLock), by
    /// itself or as a member. `WrongKind` when the counter's key holds something else.
    /// `Unavailable` or `OutcomeUnknown` when no server answered; the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind. A number that was drawn, but whose answer was not
    /// heard, is given to nobody.
    #[doc(alias = "lockAndGetToken")]
    pub async fn fencing_token(&self) -> Result<u64> {
        match &self.body {
            Body::One(share) => draw::token_of(share).await,
            Body::Quorum(quorum) => Box::pin(quorum.fencing_token()).await,
        }
    }

    /// The fencing token of this hold, if it is known: for a [`FencedLock`](crate::FencedLock) from
    /// the start, for other locks once [`fencing_token`](Self::fencing_token) has drawn it. It is
    /// never the token of another hold, whatever has become of this one.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match &self.body {
            Body::One(share) => share.hold().token(),
            Body::Quorum(quorum) => quorum.members.token(),
        }
    }

    /// The name of the lock.
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
