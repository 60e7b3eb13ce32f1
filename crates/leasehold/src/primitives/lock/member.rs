//! A member of a lock that is made of several: a lock of any kind and of any client.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::kind::OneKey;
use super::{Lock, LockGuard, Ttl, steps};
use crate::backend::failure::{Cause, Outcome};
use crate::backend::step::Value;
use crate::config::Settings;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::owner::Owner;
use crate::wait::Deadline;

/// A member of a [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock): a lock of any
/// kind that has one name, of any client.
#[derive(Clone)]
pub struct Member(Arc<dyn Erased>);

/// Until when a member is waited for, by a clock that all members have in common.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Now,
    At(Instant),
    Never,
}

/// How a member is asked for: with the settings and the owner of the whole lock.
pub(super) struct Terms<'a> {
    pub(super) settings: &'a Settings,
    pub(super) owner: Option<&'a Owner>,
}

/// A member's answer to an ask.
pub(super) enum Said<T> {
    Granted(T),
    /// Somebody holds it, for this much longer if that is known.
    Busy(Option<Duration>),
}

impl<T> Said<T> {
    pub(super) fn granted(self) -> Option<T> {
        match self {
            Self::Granted(granted) => Some(granted),
            Self::Busy(_) => None,
        }
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
type Acquiring<'a> = Boxed<'a, Said<LockGuard>>;

trait Erased: fmt::Debug + Send + Sync {
    fn acquire<'a>(&'a self, terms: &'a Terms<'a>, until: Until) -> Acquiring<'a>;
    fn look(&self) -> Boxed<'_, Said<()>>;
    fn key(&self) -> Result<&Key>;
    fn kind(&self) -> String;
    fn channel(&self) -> &str;
    fn context(&self) -> &Arc<Context>;
    fn is_held_by(&self, owner: &Owner) -> bool;
}

impl<K: OneKey> Erased for Lock<K> {
    fn acquire<'a>(&'a self, terms: &'a Terms<'a>, until: Until) -> Acquiring<'a> {
        let held_for = Arc::new(OnceLock::new());
        let lock = Lock {
            settings: terms.settings.clone(),
            owner: terms.owner.map(|owner| owner.in_role(K::ROLE)),
            held_for: Some(Arc::clone(&held_for)),
            ..self.clone()
        };
        let deadline = match until {
            Until::Now => Deadline::Now,
            Until::At(instant) => Deadline::At(self.context.clock.moment_of(instant)),
            Until::Never => Deadline::Never,
        };
        Box::pin(async move {
            Ok(match K::acquire_by(&lock, deadline).await? {
                Some(guard) => Said::Granted(guard),
                None => Said::Busy(held_for.get().copied()),
            })
        })
    }

    fn look(&self) -> Boxed<'_, Said<()>> {
        Box::pin(async move {
            if !self.kind.is_exclusive() {
                return Ok(Said::Granted(()));
            }
            Ok(match self.remaining_ttl().await? {
                Ttl::Free => Said::Granted(()),
                Ttl::NoExpiry => Said::Busy(None),
                Ttl::Left(ttl) => Said::Busy(Some(ttl)),
            })
        })
    }

    fn key(&self) -> Result<&Key> {
        Lock::key(self)
    }

    fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    fn channel(&self) -> &str {
        &self.channel
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn is_held_by(&self, owner: &Owner) -> bool {
        let held = self.line_key().ok().and_then(|line_key| {
            let owner = owner.in_role(K::ROLE);
            self.context.locals.held_by(&line_key, &owner)
        });
        held.is_some_and(|held| held.hold().loss().is_none())
    }
}

impl Member {
    pub(super) async fn acquire(&self, terms: &Terms<'_>, until: Until) -> Result<Said<LockGuard>> {
        self.0.acquire(terms, until).await
    }

    /// Whether it is worth asking for this member. Changes nothing.
    pub(super) async fn look(&self) -> Result<Said<()>> {
        self.0.look().await
    }

    /// Returns the longest lease that was ever noted for this member, and notes `own` if that is
    /// longer.
    pub(super) async fn note_longest(&self, own: Duration) -> Result<Duration> {
        let (key, context) = (self.0.key()?, self.context());
        match context.backend.submit(steps::note_longest(key, own)).await {
            Ok(Value::Int(ms @ 0..)) => Ok(Duration::from_millis(ms.unsigned_abs())),
            Ok(_) => Err(context.backend.malformed().into_error(key)),
            Err(failure) => Err(failure.into_error_with(key, "it does no harm: ask again")),
        }
    }

    /// The result of `asking`, if it comes within `limit`.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let said = tokio::time::timeout(limit, asking).await;
        said.unwrap_or_else(|_| {
            let cause = Cause::NoAnswer(format!("no answer within {limit:?}"));
            let backend = &self.context().backend;
            let failure = backend.failure(Outcome::MayHaveRun, cause);
            Err(failure.into_error(self.0.key()?))
        })
    }

    /// Whether two members of the same server are the same lock.
    pub(super) fn has_the_key_of(&self, other: &Self) -> bool {
        let database = |member: &Self| Some(member.context().backend.run_id()?.1);
        self.name() == other.name() && database(self) == database(other)
    }

    /// What tells its server from all others, in full.
    pub(super) fn server(&self) -> String {
        self.context().backend.server()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.0.context()
    }

    pub(super) fn channel(&self) -> &str {
        self.0.channel()
    }

    /// Whether `owner` holds this member, by what this process knows.
    pub(super) fn is_held_by(&self, owner: &Owner) -> bool {
        self.0.is_held_by(owner)
    }

    /// The name of the lock; empty if it is not a valid name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.key().map_or("", Key::as_str)
    }

    /// The address of its server, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        self.context().backend.address()
    }

    /// How messages name it.
    pub(super) fn shown(&self) -> String {
        let name = crate::text::Shown(self.name());
        format!("`{name}` at {}", self.address())
    }

    /// Which lock it is: its server, and its name there.
    pub(super) fn place(&self) -> Result<(String, Key)> {
        Ok((self.context().backend.server(), self.0.key()?.clone()))
    }
}

/// The members in the one order that is the same in every process, each of them once, and the
/// name of the whole lock.
pub(super) fn in_order(members: Vec<Member>, what: &str) -> Result<(Vec<Member>, Key)> {
    let mut placed = Vec::with_capacity(members.len());
    for member in members {
        placed.push((member.place()?, member));
    }
    placed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut sorted: Vec<((String, Key), Member)> = Vec::with_capacity(placed.len());
    for (place, member) in placed {
        match sorted.last() {
            Some((last, same)) if *last == place => {
                if same.0.kind() != member.0.kind() {
                    return Err(misuse(format!(
                        "a {what} has {} twice, as two kinds of lock that exclude each other; \
                         leave one out",
                        member.shown()
                    )));
                }
            }
            _ => sorted.push((place, member)),
        }
    }
    let mut names = Vec::new();
    for ((_, key), _) in &sorted {
        if !names.contains(&key) {
            names.push(key);
        }
    }
    if names.is_empty() {
        return Err(misuse(format!("a {what} of nothing; give it members")));
    }
    let key = Key::joined(&names);
    Ok((sorted.into_iter().map(|(_, member)| member).collect(), key))
}

/// An error if two of these members are on one server that was given by two addresses, and
/// `matter` says that this is wrong for the two. A server that does not say which one it is goes
/// unnoticed.
pub(super) fn one_server(
    members: &[Member],
    matter: impl Fn(&Member, &Member) -> bool,
) -> Option<Error> {
    let known: Vec<_> = members
        .iter()
        .filter_map(|member| Some((member, member.context().backend.run_id()?.0)))
        .collect();
    for (n, (one, run_id)) in known.iter().enumerate() {
        for (other, same) in &known[n + 1..] {
            if run_id == same && one.server() != other.server() && matter(one, other) {
                return Some(misuse(format!(
                    "{} and {} are the same server by two addresses; leave one of them out",
                    one.shown(),
                    other.shown()
                )));
            }
        }
    }
    None
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}

impl<K: OneKey> From<Lock<K>> for Member {
    fn from(lock: Lock<K>) -> Self {
        Self(Arc::new(lock))
    }
}

impl<K: OneKey> From<&Lock<K>> for Member {
    fn from(lock: &Lock<K>) -> Self {
        lock.clone().into()
    }
}

impl From<&Member> for Member {
    fn from(member: &Member) -> Self {
        member.clone()
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
