//! The `RedLock`: one name on several independent servers.

mod ballot;
mod granted;
mod longest;
mod rejoin;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::ballot::{Ballot, Pacing};
use self::longest::LongestLease;
use super::member::{MemberTerms, same_server_error, sorted_members};
use super::{AnyLock, Composite as _};
use crate::config::{DEFAULT_LONGEST_LEASE, Settings, check_longest_lease};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::local::line::LineMode;
use crate::local::waits_for_itself;
use crate::owner::Owner;
use crate::primitives::lock::kind::{Acquire, Kind};
use crate::primitives::lock::{Lock, LockGuard};
use crate::wait::{Answer, Ask as _, Deadline, Wait};

/// A lock on several independent servers. It has a member lock on each server, and is held while a
/// majority of the members are held. This is the counterpart of Redisson's `RedissonRedLock`. Each
/// member is shared with the Java lock of the same name.
///
/// An acquire sends its requests to all servers at the same time, and waits for each answer for at
/// most [`member_timeout`](Self::member_timeout). So with five servers, two may be down, slow or
/// unreachable. If fewer than a majority of the servers grant the lock, the client releases these
/// grants again, and also any grants by servers that did not answer.
///
/// The guard is valid until a deadline that a majority of the servers guarantee. For one server,
/// the deadline is the instant just before the request was sent, plus the lease, minus the drift.
/// With five servers, the third latest of their deadlines counts. Each member is renewed by its own
/// client. The guard is [lost](LockGuard::lost) when the members that are still held are no longer
/// a majority.
///
/// **The promise** is the same as for [`Lock`], as long as a majority of the servers do not lose
/// data within a [longest lease](Self::longest_lease), 30 s by default. No lease of the lock can be
/// longer than that, not even after [`extend`](LockGuard::extend). A server that started less than
/// one longest lease ago may have lost its grants. Its answers do not count (it *has no vote*)
/// until those grants would have ended ([`distrust_restarted`](Self::distrust_restarted)). So no
/// client can acquire the lock in the first 30 s after all servers were started. The promise
/// requires clocks that don't jump: a server whose clock jumps forward by more than the drift ends
/// its leases early.
///
/// **Servers can be restarted one after the other** without ending a hold, even if each restarts
/// without its data. If a holder renews its lease, it acquires the lock again on a server that was
/// restarted, or replaced at its address. It does so when that server has been up for half a
/// longest lease and the lock is free there. Until then, the server's earlier grant still counts
/// for the rest of its lease, because the server has no vote for other clients.
///
/// If leases are as long as the longest lease (the default), you can restart the next server as
/// soon as the previous one is up again. If leases are shorter, first wait for half a longest
/// lease. This applies to holds that all servers have granted. For each server that was down or had
/// no vote when a hold was acquired, that hold tolerates one fewer restart.
///
/// The lock is not acquired again on a server if the lock's key was removed there, if the lock was
/// unlocked by force there, if the server denies `INFO`, or if the server is a master behind
/// sentinels or a node of a cluster. An [`Owner`] that acquires the lock again may have to wait
/// until enough servers have a vote.
///
/// A server reports in its `INFO` when it was started. **If a server does not report its start**,
/// because it denies the command to this user, or because its reply is missing or malformed when a
/// connection is opened, the server counts as started when the connection was opened. So if `INFO`
/// is denied, each process lacks that server's vote for one longest lease after the start of the
/// process and after every lost connection, and its waits take longer by this time. Grant the user
/// `+info`.
///
/// Each member must be on a different server. Two addresses of one server (`localhost` and
/// `127.0.0.1`, two ports, a port and a socket, two databases) would give that server two votes.
/// The lock detects this when both addresses are connected, and reports
/// [`Misuse`](crate::ErrorKind::Misuse). It can't detect this on a server that denies `INFO`.
///
/// For servers that may be down when the program starts, use
/// [`ClientBuilder::connect_in_background`](crate::ClientBuilder::connect_in_background). There are
/// no semaphores of this kind, because more permits could be held than exist.
///
/// ```
/// use leasehold::{Embedded, RedLock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
/// let clients = masters.each_ref().map(Embedded::client);
/// let lock = RedLock::new(clients.iter().map(|client| client.lock("orders:42")))?;
///
/// // Another client holds the lock on one master: two of three are enough.
/// let other = masters[0].client().lock("orders:42").acquire().await?;
/// let guard = lock.acquire().await?;
/// assert_eq!(guard.members().len(), 2);
/// guard.release().await?;
/// # other.release().await
/// # }
/// ```
#[doc(alias = "getRedLock")]
#[doc(alias = "RedissonRedLock")]
pub type RedLock = Lock<Majority>;

/// The kind of [`RedLock`]: a majority of several locks.
#[derive(Clone, Debug)]
pub struct Majority {
    pub(super) members: Arc<[AnyLock]>,
    member_timeout: Option<Duration>,
    distrust_restarted: bool,
    longest: Arc<LongestLease>,
}

impl Lock<Majority> {
    /// Creates a lock on a majority of these members. Usually these are locks of the same name, one
    /// on each server. A member that is given twice counts once. No request is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) if there are no members, if a name is bad,
    /// if a member is itself made of several locks, or if one name on one server is given as two
    /// kinds of lock. An acquire also fails with `Misuse` if two members are on the same server
    /// under different addresses.
    pub fn new<M: Into<AnyLock>>(members: impl IntoIterator<Item = M>) -> Result<Self> {
        let members = members.into_iter().map(Into::into).collect();
        let (members, key) = sorted_members(members, "lock of a majority")?;
        let context = Arc::clone(members[0].context());
        let kind = Majority {
            longest: LongestLease::new(DEFAULT_LONGEST_LEASE, members.len()).into(),
            members: members.into(),
            member_timeout: None,
            distrust_restarted: true,
        };
        Ok(Self::composite(context, key, kind))
    }

    /// Sets how long a call waits for the answer of each server: at least 1 ms. A value of more
    /// than a third of the lease is reduced to a third of the lease. The default is a twentieth of
    /// the lease, but at most 500 ms.
    #[must_use = "the setting is only in the returned value"]
    pub fn member_timeout(mut self, limit: Duration) -> Self {
        self.kind_mut().member_timeout = Some(limit);
        self
    }

    /// Sets the longest lease that any hold of the lock may have: 30 s by default, at least 10 ms,
    /// at most 365 days. An acquire or an [`extend`](LockGuard::extend) with a longer lease fails
    /// with [`Misuse`](crate::ErrorKind::Misuse). A server has no vote for this time after its
    /// start.
    ///
    /// **All clients that share the lock should set the same value.** In case they do not, a handle
    /// with a longest lease of more than 30 s stores its value on every member before its first
    /// hold. Until the handle has reached every member once, acquiring fails with
    /// [`Unavailable`](crate::ErrorKind::Unavailable). Make such a handle once and clone it,
    /// because each new handle must reach all members again. Every client that acquires the lock
    /// reads the values stored on a majority of the members, and applies the greatest. The value is
    /// in a key that remains forever, one for each name on each server. Each acquire writes the key
    /// again on a server where it is missing.
    ///
    /// The stored values are lost if a majority of the servers lose their data, one after the
    /// other, while no client with the longer setting acquires the lock. If the settings differ, a
    /// hold with the longer setting may then overlap with a hold of another client.
    ///
    /// If a majority of the servers are restarted during a wait, the wait continues until they have
    /// a vote again. This is not an outage, so [`outage_timeout`](Self::outage_timeout) does not
    /// end the wait. At its deadline, the wait fails with
    /// [`Unavailable`](crate::ErrorKind::Unavailable), because the servers can't say whether the
    /// lock is held. It fails with `OutcomeUnknown` instead if a request may have run on another
    /// server.
    ///
    /// With a longest lease *shorter* than 30 s, servers have a vote sooner after a start. Such a
    /// setting is not stored on the servers, and is safe only if no client that shares the lock has
    /// a longer setting or the default.
    #[must_use = "the setting is only in the returned value"]
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        let members = self.members().len();
        // This needs a new value, because a member that has noted the old setting has not noted
        // this one.
        self.kind_mut().longest = LongestLease::new(longest, members).into();
        self
    }

    /// Sets whether clients distrust restarted servers. With `true` (the default), a server has no
    /// vote while it may have forgotten grants: if it started less than one [longest
    /// lease](Self::longest_lease) ago, or does not report when it started. All clients that share
    /// the lock can set `false` if each server writes every change to its disk before it answers
    /// (`appendfsync always`). With `false`, leases can be longer than the longest lease.
    #[must_use = "the setting is only in the returned value"]
    pub fn distrust_restarted(mut self, distrust: bool) -> Self {
        self.kind_mut().distrust_restarted = distrust;
        self
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> &[AnyLock] {
        &self.kind().members
    }

    /// Returns whether `owner` holds a majority of the members, as far as this process knows. Sends
    /// no request.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        self.kind().is_held_by(owner)
    }
}

impl Majority {
    /// Returns an error if the members whose clients are still open are not a majority.
    fn closed(&self, key: &Key) -> Option<Error> {
        let members = self.members.iter();
        let mut closed = members.filter_map(|member| member.context().check_open(key).err());
        // A majority is still possible if this number of clients is closed, but not if one more is.
        closed.nth(self.members.len() - self.quorum())
    }

    pub(super) fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    pub(super) fn distrusts_restarted(&self) -> bool {
        self.distrust_restarted
    }

    fn limit(&self, lease: Duration) -> Duration {
        const LONGEST: Duration = Duration::from_millis(500);
        const SHORTEST: Duration = Duration::from_millis(1);
        match self.member_timeout {
            Some(limit) => limit.min(lease / 3).max(SHORTEST),
            None => (lease / 20).min(LONGEST).max(SHORTEST),
        }
    }

    /// Returns the key of the line in which this lock's waiters wait. All handles with the same
    /// members share this line; waiters for a single member have other lines.
    fn line_key(&self, key: &Key) -> Result<Key> {
        let members = self.members.iter().map(AnyLock::identity);
        Ok(key.members(members.collect::<Result<_>>()?))
    }

    /// Returns for how long a server has no vote after its start; `None` if it has a vote at once.
    fn distrust(&self) -> Option<&Arc<LongestLease>> {
        self.distrust_restarted.then_some(&self.longest)
    }

    /// Returns these settings. If restarted servers are distrusted, the result also limits every
    /// lease to the longest lease, because the distrust ends after that time.
    fn bounded(&self, settings: &Settings, key: &Key) -> Result<Settings> {
        let longest_lease = self.distrust().map(|longest| longest.own());
        if let Some(longest) = longest_lease {
            check_longest_lease(longest, key)?;
        }
        Ok(Settings {
            longest_lease,
            ..settings.clone()
        })
    }

    /// Returns an error that does not depend on the servers' answers: too few clients are open, or
    /// a server is given twice.
    fn hopeless(&self, key: &Key) -> Option<Error> {
        let doubled = || same_server_error(&self.members, |_| ());
        self.closed(key).or_else(doubled)
    }

    /// Returns whether the holds of the lock's own owner leave too few members for a majority until
    /// the owner gives them back.
    fn waits_for_itself(&self, lock: &Lock<Self>) -> bool {
        let enters = lock.reentering_owner().is_some();
        lock.owner().is_some_and(|owner| {
            let members = self.members.iter();
            let open = members.filter(|member| !member.is_closed_to(owner, enters));
            open.count() < self.quorum()
        })
    }
}

impl Kind for Majority {
    type Guard = LockGuard;
}

impl Acquire for Majority {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        let (key, kind) = (lock.key()?, lock.kind());
        let bounded = kind.bounded(lock.settings(), key)?;
        let terms = bounded.terms(key)?;
        if let Some(error) = kind.hopeless(key) {
            return Err(error);
        }
        if matches!(deadline, Deadline::Never) && kind.waits_for_itself(lock) {
            return Err(waits_for_itself(key));
        }
        // The maximum hold time and the time for progress count from the grant of the whole lock,
        // not from the grant of a member.
        let settings = Settings {
            max_hold: None,
            progress_within: None,
            ..bounded
        };
        let ballot = Ballot {
            key,
            members: &kind.members,
            quorum: kind.quorum(),
            terms: MemberTerms {
                settings: &settings,
                owner: lock.owner(),
            },
            limit: kind.limit(terms.lease),
            longest: kind.distrust(),
            waits: !matches!(deadline, Deadline::Now),
            split_votes: 0.into(),
            pacing: Pacing::default(),
            timers: &lock.context().timers,
            misuse: OnceLock::new(),
        };
        // Boxed, because it would enlarge every future that acquires a lock of any kind.
        let mut guard = Box::pin(enter_or_wait(lock, &ballot, deadline)).await?;
        if let (Some(guard), Some(limit)) = (&guard, terms.max_hold) {
            guard.limit(limit);
        }
        if let (Some(guard), Some(within)) = (&mut guard, terms.progress_within) {
            guard.want_progress(within);
        }
        Ok(guard)
    }
}

/// Runs ballots until a majority of the servers has granted the lock, or the deadline has passed.
async fn enter_or_wait(
    lock: &Lock<Majority>,
    ballot: &Ballot<'_>,
    deadline: Deadline,
) -> Result<Option<LockGuard>> {
    let (key, kind) = (lock.key()?, lock.kind());
    // An owner that already holds the lock never queues behind another waiter, because that waiter
    // may be waiting for this owner. One held member is enough for this: the others may be about to
    // rejoin.
    let enters_again = lock.reentering_owner().is_some_and(|owner| {
        let mut members = kind.members.iter();
        members.any(|member| member.counts_for(owner, kind.distrusts_restarted()))
    });
    // Any other answer is ignored here: the wait below runs another ballot, and reports its answer.
    if enters_again && let Ok(Answer::Granted(guard)) = ballot.ask().await {
        return Ok(Some(guard));
    }
    let channels: Vec<_> = kind.members.iter().map(AnyLock::release_channel).collect();
    let wait = Wait {
        context: lock.context(),
        key,
        line_key: &kind.line_key(key)?,
        channels: &channels,
        line: match enters_again {
            true => LineMode::Bypass,
            false => LineMode::HeadAsks,
        },
        settings: ballot.terms.settings,
        deadline,
        place: None,
        was_held: false,
        span: None,
    };
    let granted = wait.until_granted(ballot).await;
    // The wait reports the servers' last answers. A misuse takes precedence, because waiting does
    // not help.
    let misuse = || kind.hopeless(key).or_else(|| ballot.misuse.get().cloned());
    granted.map_err(|error| misuse().unwrap_or(error))
}
