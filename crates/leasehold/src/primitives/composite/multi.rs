//! The multi-lock: several locks, all of them or none.

use std::sync::Arc;

use futures_util::future::join_all;

use super::member::{MemberTerms, same_server_error, sorted_members};
use super::quorum::Quorum;
use super::{AnyLock, Composite as _};
use crate::backend::failure::{Failure, Outcome};
use crate::config::Settings;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::guard::RenewForWait;
use crate::key::Key;
use crate::owner::Owner;
use crate::primitives::lock::kind::{Acquire, Kind};
use crate::primitives::lock::{Lock, LockGuard};
use crate::wait::{Deadline, no_answer_in_time};

/// Several locks that are acquired as one: all of them, or none. This is the counterpart of
/// Redisson's `getMultiLock(locks...)`. Each member is shared with the Java lock of the same name.
///
/// The members can be of any kind that has one name, and can belong to different clients and
/// servers. The settings of this handle (lease, renewal, waiting, owner) apply to all members and
/// override their own settings. The members are acquired in a fixed order, by the address of their
/// server and then by name, so that two multi-locks can't deadlock. All processes must use the same
/// address for a server, so that they agree on this order. A member that is given twice counts
/// once.
///
/// While an acquire waits for a member, it holds and renews only the members before that one in
/// this order. When the acquire has got the last member, all members are valid for a full lease
/// from that moment.
///
/// The guard is valid until the earliest of its members' deadlines. It is [lost](LockGuard::lost)
/// as soon as one member is lost. [`LockGuard::members`] returns the guards of the members in the
/// order in which these are acquired.
///
/// ```
/// use leasehold::MultiLock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let both = MultiLock::new([client.lock("ann"), client.lock("bob")])?;
/// let guard = both.acquire().await?;
/// assert!(client.lock("bob").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getMultiLock")]
#[doc(alias = "RedissonMultiLock")]
pub type MultiLock = Lock<Multi>;

/// The kind of [`MultiLock`]: several locks, all of them or none.
#[derive(Clone, Debug)]
pub struct Multi {
    pub(super) members: Arc<[AnyLock]>,
}

impl Lock<Multi> {
    /// Creates a lock on all of these members. No request is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) if there are no members, if a name is bad,
    /// if a member is itself made of several locks, or if one name is given as two kinds of lock,
    /// because these would wait for each other. An acquire also fails with `Misuse` if one lock is
    /// given under two addresses of its server.
    pub fn new<M: Into<AnyLock>>(members: impl IntoIterator<Item = M>) -> Result<Self> {
        let members = members.into_iter().map(Into::into).collect();
        let (members, key) = sorted_members(members, "multi-lock")?;
        // The first member exists: `sorted_members` refuses a lock without members.
        let context = Arc::clone(members[0].context());
        let members = members.into();
        Ok(Self::composite(context, key, Multi { members }))
    }

    /// Returns the members, in the order in which they are acquired.
    #[must_use]
    pub fn members(&self) -> &[AnyLock] {
        &self.kind().members
    }

    /// Returns whether `owner` holds every member, as far as this process knows. Sends no request.
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    #[must_use]
    pub fn is_held_by(&self, owner: &Owner) -> bool {
        self.kind().is_held_by(owner)
    }
}

impl Multi {
    /// Returns the number of members that must be held: all of them.
    pub(super) fn quorum(&self) -> usize {
        self.members.len()
    }

    /// Returns `false`: a member that its server has forgotten is lost.
    #[expect(clippy::unused_self, reason = "a majority's goes by its setting")]
    pub(super) fn distrusts_restarted(&self) -> bool {
        false
    }
}

impl Kind for Multi {
    type Guard = LockGuard;
}

impl Acquire for Multi {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        let (key, members) = (lock.key()?, &lock.kind().members);
        let terms = lock.settings().terms(key)?;
        // The maximum hold time counts from the end of the acquire: the wait for members must not
        // use it up.
        let settings = Settings {
            max_hold: None,
            progress_within: None,
            ..lock.settings().clone()
        };
        let acquire = MultiAcquire {
            context: lock.context(),
            key,
            members,
            terms: MemberTerms {
                settings: &settings,
                owner: lock.owner(),
            },
            deadline,
        };
        // Boxed, because it would enlarge every future that acquires a lock of any kind.
        let Some(guards) = Box::pin(acquire.all_held()).await? else {
            return Ok(None);
        };
        let held = members.iter().zip(guards).collect();
        let mut guard = LockGuard::of_quorum(Quorum::new(key, held, lock.kind().quorum(), false));
        if let Some(limit) = terms.max_hold {
            guard.limit(limit);
        }
        if let Some(within) = terms.progress_within {
            guard.want_progress(within);
        }
        Ok(Some(guard))
    }
}

/// Returns whether the client of any member was ever connected to its server.
fn may_have_asked(members: &[AnyLock]) -> bool {
    let mut members = members.iter();
    members.any(|one| one.context().backend.was_connected() || may_have_asked(one.members()))
}

/// One acquire of all members.
struct MultiAcquire<'a> {
    context: &'a Context,
    key: &'a Key,
    members: &'a [AnyLock],
    terms: MemberTerms<'a>,
    deadline: Deadline,
}

/// A member that is held, and renewed, during the wait for other members.
struct HeldMember {
    /// This field is dropped before the guard: when the guard is dropped, only the hold's other
    /// guards decide about the hold's terms.
    _renewal: Option<RenewForWait>,
    guard: LockGuard,
}

type MemberAnswer = Result<Option<LockGuard>>;

impl MultiAcquire<'_> {
    /// Acquires all members or none. At the end, checks that each of them is still held.
    async fn all_held(&self) -> Result<Option<Vec<LockGuard>>> {
        loop {
            let Some(guards) = self.all().await? else {
                return Ok(None);
            };
            // One member may be lost before another one is granted.
            if guards.iter().all(LockGuard::is_held) {
                return Ok(Some(guards));
            }
            if matches!(self.deadline, Deadline::Now) {
                let late = self.context.backend.granted_too_late();
                return Err(late.into_error(self.key));
            }
        }
    }

    /// Acquires all members, or none.
    async fn all(&self) -> Result<Option<Vec<LockGuard>>> {
        let Some(answers) = self.in_time(self.try_all(self.members)).await else {
            // The requests have already been dropped. Each of them undoes any grant that its server
            // made or may still make.
            return Err(self.no_answer_in_time().into_error(self.key));
        };
        // The servers have now identified themselves. A lock that is given twice would wait for
        // itself.
        if let Some(error) = same_server_error(self.members, AnyLock::name_on_server) {
            return Err(error);
        }
        if matches!(self.deadline, Deadline::Now) {
            return self.all_or_none(answers);
        }
        if answers.iter().all(|answer| matches!(answer, Ok(Some(_)))) {
            return Ok(answers.into_iter().filter_map(Result::ok).collect());
        }
        self.one_by_one(answers).await
    }

    fn no_answer_in_time(&self) -> Failure {
        let mut failure = no_answer_in_time(self.context);
        // The failure only considers the first member's client, but the client of another member
        // may have sent a request.
        if may_have_asked(self.members) {
            failure.outcome = Outcome::MayHaveRun;
        }
        failure
    }

    /// Tries to acquire all of these members at the same time. Requests to one server are sent as
    /// one call.
    async fn try_all(&self, members: &[AnyLock]) -> Vec<MemberAnswer> {
        join_all(
            members
                .iter()
                .map(|member| self.acquire(member, Deadline::Now, false)),
        )
        .await
    }

    async fn acquire(&self, member: &AnyLock, deadline: Deadline, was_held: bool) -> MemberAnswer {
        let reply = member
            .acquire_as_member(&self.terms, deadline, was_held)
            .await?;
        Ok(reply.granted())
    }

    /// Returns the output of `work`; `None` if the deadline passes first.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let too_late = async {
            match self.deadline {
                // An acquire that does not wait has no time limit: each server answers or fails.
                Deadline::Now => std::future::pending().await,
                deadline => deadline.passed(&self.context.timers).await,
            }
        };
        tokio::select! {
            biased;
            output = work => Some(output),
            () = too_late => None,
        }
    }

    /// Returns all guards or none. If one is missing, the others are dropped, which gives them
    /// back.
    fn all_or_none(&self, answers: Vec<MemberAnswer>) -> Result<Option<Vec<LockGuard>>> {
        let (mut held, mut errors, mut busy) = (Vec::new(), Vec::new(), false);
        for answer in answers {
            match answer {
                Ok(Some(guard)) => held.push(guard),
                Ok(None) => busy = true,
                Err(error) => errors.push(error),
            }
        }
        // If one member is held, it does not matter that another server does not answer: the lock
        // can't be acquired now.
        if errors.iter().any(|error| !error.is_transient()) || (!busy && !errors.is_empty()) {
            return Err(match errors.len() {
                1 => errors.remove(0),
                _ => Error::of_members(self.key, "acquiring", None, errors),
            });
        }
        Ok((!busy).then_some(held))
    }

    /// Finds the first member that was not granted. Keeps the members before it, gives back the
    /// members after it, and waits for this member. Then tries the rest again. So a client never
    /// waits for a member while it holds a later one.
    async fn one_by_one(&self, mut answers: Vec<MemberAnswer>) -> Result<Option<Vec<LockGuard>>> {
        let mut held = Vec::with_capacity(self.members.len());
        loop {
            let mut was_busy = false;
            for answer in answers {
                match answer {
                    Ok(Some(guard)) => held.push(HeldMember::new(guard)),
                    Err(error) if !error.is_transient() => return Err(error),
                    // The remaining guards are dropped with the loop.
                    answer => {
                        was_busy = answer.is_ok();
                        break;
                    }
                }
            }
            if let Some(member) = self.members.get(held.len()) {
                let deadline = self.deadline_for(member);
                match self.acquire(member, deadline, was_busy).await? {
                    Some(guard) => held.push(HeldMember::new(guard)),
                    None => return Ok(None),
                }
            }
            // If the deadline passes from here on, the result is `None`, because another owner
            // holds or held a member.
            if held.len() == self.members.len() {
                match self.in_time(self.confirmed(&held)).await {
                    Some(true) => {}
                    // A member can't be extended. Waiting for it while members after it are held
                    // would break the order, so all members are given back.
                    Some(false) => held.clear(),
                    None => return Ok(None),
                }
            }
            if held.len() == self.members.len() {
                return Ok(Some(held.into_iter().map(|member| member.guard).collect()));
            }
            if self.deadline.has_passed(self.context.clock) {
                return Ok(None);
            }
            let rest = self.try_all(&self.members[held.len()..]);
            match self.in_time(rest).await {
                Some(next) => answers = next,
                None => return Ok(None),
            }
        }
    }

    /// Extends each member to a full lease from now, because some of them have been held for a long
    /// time. Returns whether all extensions succeeded.
    async fn confirmed(&self, held: &[HeldMember]) -> bool {
        let lease = self.terms.settings.lease();
        let extensions = held
            .iter()
            .map(|member| Box::pin(member.guard.extend(lease)));
        join_all(extensions).await.iter().all(Result::is_ok)
    }

    /// Returns the deadline on the clock of the member's client.
    fn deadline_for(&self, member: &AnyLock) -> Deadline {
        match self.deadline {
            Deadline::At(moment) => {
                // Convert through an `Instant`: a moment on one client's clock means nothing on
                // another's.
                let instant = self.context.clock.to_instant(moment);
                Deadline::At(member.context().clock.moment_of(instant))
            }
            now_or_never => now_or_never,
        }
    }
}

impl HeldMember {
    fn new(guard: LockGuard) -> Self {
        // The hold is renewed even if its lease is fixed, because the wait for the other members
        // can be longer.
        let renewal = guard.one().map(|share| share.renew_for_wait());
        Self {
            guard,
            _renewal: renewal,
        }
    }
}
