//! The operations of a composite lock on each of its members.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::super::any::{Any, AnyKind, AnyLock};
use crate::backend::failure::{Cause, Outcome};
use crate::backend::step::Value;
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::owner::Owner;
use crate::primitives::lock::kind::Acquire as _;
use crate::primitives::lock::{LockGuard, MemberState, Ttl, steps};
use crate::text::Shown;
use crate::wait::Deadline;

/// The settings and the owner of the composite lock, with which each member is acquired.
pub(super) struct MemberTerms<'a> {
    pub(super) settings: &'a Settings,
    pub(super) owner: Option<&'a Owner>,
}

/// A member's answer to an acquire or a probe.
pub(super) enum MemberReply<T> {
    Granted(T),
    /// Another owner holds the member. The value is the remaining time, if it is known.
    Busy(Option<Duration>),
}

impl<T> MemberReply<T> {
    pub(super) fn granted(self) -> Option<T> {
        match self {
            Self::Granted(granted) => Some(granted),
            Self::Busy(_) => None,
        }
    }
}

impl AnyLock {
    /// Acquires this member. `deadline` is a moment on the clock of the member's own client.
    /// `was_held` says whether a server has already reported, in reply to the same acquire, that
    /// the member is held.
    pub(super) async fn acquire_as_member(
        &self,
        terms: &MemberTerms<'_>,
        deadline: Deadline,
        was_held: bool,
    ) -> Result<MemberReply<LockGuard>> {
        // A try reports only that a member is held. `held_for` also receives for how long, so that
        // a ballot can sleep until a majority of the members may be free.
        let member = MemberState {
            was_held,
            ..MemberState::default()
        };
        let held_for = Arc::clone(&member.held_for);
        let lock = self.as_member(terms.settings, terms.owner, member);
        Ok(match Any::acquire_by(&lock, deadline).await? {
            Some(guard) => MemberReply::Granted(guard),
            None => MemberReply::Busy(held_for.get().copied()),
        })
    }

    /// Returns whether an acquire of this member is worth a try. Changes nothing.
    pub(super) async fn probe(&self) -> Result<MemberReply<()>> {
        if !self.is_exclusive() {
            // Another hold of this kind need not prevent an acquire, because readers share the
            // lock. Only a try can find out whether it does.
            return Ok(MemberReply::Granted(()));
        }
        Ok(match self.inspect().await?.ttl {
            Ttl::Free => MemberReply::Granted(()),
            Ttl::NoExpiry => MemberReply::Busy(None),
            Ttl::Left(ttl) => MemberReply::Busy(Some(ttl)),
        })
    }

    pub(in crate::primitives) fn is_exclusive(&self) -> bool {
        match &self.kind().0 {
            AnyKind::One(kind) => kind.excludes_others(),
            AnyKind::Composite(_) => false,
        }
    }

    /// Returns the kind, with the settings that only this kind has.
    fn full_kind(&self) -> String {
        // Use a string, because the kinds inside trait objects can't be compared with each other.
        format!("{:?}", self.kind())
    }

    /// Returns the longest lease that was ever noted for this member, and notes `own` if that is
    /// longer.
    pub(super) async fn note_longest(&self, own: Duration) -> Result<Duration> {
        let (key, context) = (self.key()?, self.context());
        match context.backend.submit(steps::note_longest(key, own)).await {
            Ok(Value::Int(ms @ 0..)) => Ok(Duration::from_millis(ms.unsigned_abs())),
            Ok(_) => Err(context.backend.malformed().into_error(key)),
            Err(failure) => Err(failure.into_error_with(key, "it does no harm: try again")),
        }
    }

    /// Returns the result of `asking`, if it arrives within `limit`.
    pub(super) async fn with_timeout<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let reply = self.context().timers.timeout(limit, asking).await;
        reply.unwrap_or_else(|| {
            // The timeout has dropped the request. Its undo gives back anything that the server may
            // have granted.
            let cause = Cause::NoAnswer(format!("no answer within {limit:?}"));
            let backend = &self.context().backend;
            let failure = backend.failure(Outcome::MayHaveRun, cause);
            Err(failure.into_error(self.key()?))
        })
    }

    /// Returns the member's identity among the locks on its server. The same name in another
    /// database is a different lock.
    pub(super) fn name_on_server(&self) -> (&str, Option<i64>) {
        let database = self
            .context()
            .backend
            .run_id()
            .map(|(_, database)| database);
        (self.name(), database)
    }

    /// Returns the full identity of the member's server.
    pub(super) fn server(&self) -> String {
        self.context().backend.server()
    }

    /// Returns the member's description for errors and logs.
    pub(super) fn shown(&self) -> String {
        let name = Shown(self.name());
        format!("`{name}` at {}", self.address())
    }

    /// Returns the identity of the lock: its server, and its name there.
    pub(super) fn identity(&self) -> Result<(String, Key)> {
        Ok((self.server(), self.key()?.clone()))
    }
}

/// Returns the members in a fixed order, each of them once, and the key of the composite lock. The
/// order is the same in every process that uses the same addresses for the servers.
pub(super) fn sorted_members(members: Vec<AnyLock>, what: &str) -> Result<(Vec<AnyLock>, Key)> {
    let mut placed = Vec::with_capacity(members.len());
    for member in members {
        if !member.members().is_empty() {
            return Err(misuse(format!(
                "a {what} can't have `{}` as a member, because it is several locks; add each of them instead",
                Shown(member.name())
            )));
        }
        placed.push((member.identity()?, member));
    }
    // Sort by properties that are the same in every process, and don't use the caller's order: two
    // processes that acquire the members in different orders can wait for each other forever.
    placed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut sorted: Vec<((String, Key), AnyLock)> = Vec::with_capacity(placed.len());
    for (place, member) in placed {
        match sorted.last() {
            Some((last, same)) if *last == place => {
                if same.full_kind() != member.full_kind() {
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
    let mut seen = HashSet::new();
    let names = sorted.iter().map(|((_, key), _)| key);
    let names: Vec<_> = names.filter(|key| seen.insert(*key)).collect();
    if names.is_empty() {
        return Err(misuse(format!("a {what} has no members; give it some")));
    }
    let key = Key::joined(&names);
    Ok((sorted.into_iter().map(|(_, member)| member).collect(), key))
}

/// Returns an error if two members are on one server under two addresses, and `lock` returns the
/// same value for both. So `lock` selects what must not occur twice on a server. Servers that do
/// not identify themselves are not compared.
pub(super) fn same_server_error<'a, L: Eq + Hash>(
    members: &'a [AnyLock],
    lock: impl Fn(&'a AnyLock) -> L,
) -> Option<Error> {
    // Use one look-up for each member, because there may be a thousand.
    let mut first: HashMap<_, (&AnyLock, String)> = HashMap::with_capacity(members.len());
    for member in members {
        let Some((run_id, _)) = member.context().backend.run_id() else {
            continue;
        };
        let address = member.server();
        match first.entry((run_id, lock(member))) {
            Entry::Vacant(place) => {
                place.insert((member, address));
            }
            // If both have the same address, the caller knows that they are on one server.
            Entry::Occupied(place) if place.get().1 == address => {}
            Entry::Occupied(place) => {
                return Some(misuse(format!(
                    "{} and {} are on the same server, which has two addresses; leave one of them out",
                    place.get().0.shown(),
                    member.shown()
                )));
            }
        }
    }
    None
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}
