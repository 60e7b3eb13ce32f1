//! What a lock that is made of several does with each of its members.

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
use crate::primitives::lock::{LockGuard, Member, Ttl, steps};
use crate::text::Shown;
use crate::wait::Deadline;

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

impl AnyLock {
    /// Asks for this member. `deadline` is one of its own client's clock. `was_held`: a server has
    /// said so to the same acquire.
    pub(super) async fn ask(
        &self,
        terms: &Terms<'_>,
        deadline: Deadline,
        was_held: bool,
    ) -> Result<Said<LockGuard>> {
        // A try says of a member that is held no more than that. How long its holder has left comes
        // by this cell: a ballot sleeps until a majority can be free.
        let member = Member {
            was_held,
            ..Member::default()
        };
        let held_for = Arc::clone(&member.held_for);
        let lock = self.as_member(terms.settings, terms.owner, member);
        Ok(match Any::acquire_by(&lock, deadline).await? {
            Some(guard) => Said::Granted(guard),
            None => Said::Busy(held_for.get().copied()),
        })
    }

    /// Whether it is worth asking for this member. Changes nothing.
    pub(super) async fn look(&self) -> Result<Said<()>> {
        if !self.is_exclusive() {
            // A hold of such a kind need not be in the way: readers let each other in. Only the ask
            // can tell.
            return Ok(Said::Granted(()));
        }
        Ok(match self.inspect().await?.ttl {
            Ttl::Free => Said::Granted(()),
            Ttl::NoExpiry => Said::Busy(None),
            Ttl::Left(ttl) => Said::Busy(Some(ttl)),
        })
    }

    fn is_exclusive(&self) -> bool {
        match &self.kind().0 {
            AnyKind::One(kind) => kind.excludes(),
            AnyKind::Several(_) => false,
        }
    }

    /// Its kind, with the settings that only this kind has.
    fn kind_in_full(&self) -> String {
        // As a text, because the kinds behind one trait object can't be compared with each other.
        format!("{:?}", self.kind())
    }

    /// Returns the longest lease that was ever noted for this member, and notes `own` if that is
    /// longer.
    pub(super) async fn note_longest(&self, own: Duration) -> Result<Duration> {
        let (key, context) = (self.key()?, self.context());
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
        let said = self.context().timers.timeout(limit, asking).await;
        said.unwrap_or_else(|| {
            // The time-out has dropped the ask, whose undo gives back what the server may have
            // granted.
            let cause = Cause::NoAnswer(format!("no answer within {limit:?}"));
            let backend = &self.context().backend;
            let failure = backend.failure(Outcome::MayHaveRun, cause);
            Err(failure.into_error(self.key()?))
        })
    }

    /// Which lock of its server it is. The same name in another database is another lock.
    pub(super) fn on_its_server(&self) -> (&str, Option<i64>) {
        let database = self
            .context()
            .backend
            .run_id()
            .map(|(_, database)| database);
        (self.name(), database)
    }

    /// What tells its server from all others, in full.
    pub(super) fn server(&self) -> String {
        self.context().backend.server()
    }

    /// How messages name it.
    pub(super) fn shown(&self) -> String {
        let name = Shown(self.name());
        format!("`{name}` at {}", self.address())
    }

    /// Which lock it is: its server, and its name there.
    pub(super) fn place(&self) -> Result<(String, Key)> {
        Ok((self.server(), self.key()?.clone()))
    }
}

/// The members in the one order that is the same in every process that calls the servers by the
/// same addresses, each of them once, and the
/// name of the whole lock.
pub(super) fn in_order(members: Vec<AnyLock>, what: &str) -> Result<(Vec<AnyLock>, Key)> {
    let mut placed = Vec::with_capacity(members.len());
    for member in members {
        if !member.members().is_empty() {
            return Err(misuse(format!(
                "a {what} can't have `{}` as one member, which are several locks; give it each of them",
                Shown(member.name())
            )));
        }
        placed.push((member.place()?, member));
    }
    // By what is the same in every process, and not by the order in which the caller gave them: two
    // processes that take members in different orders can wait for each other for ever.
    placed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut sorted: Vec<((String, Key), AnyLock)> = Vec::with_capacity(placed.len());
    for (place, member) in placed {
        match sorted.last() {
            Some((last, same)) if *last == place => {
                if same.kind_in_full() != member.kind_in_full() {
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
        return Err(misuse(format!("a {what} of nothing; give it members")));
    }
    let key = Key::joined(&names);
    Ok((sorted.into_iter().map(|(_, member)| member).collect(), key))
}

/// An error if two of these members are on one server that was given by two addresses, and `lock`
/// says the same of both: what must not be there twice. A server that does not say which one it is
/// goes unnoticed.
pub(super) fn one_server<'a, L: Eq + Hash>(
    members: &'a [AnyLock],
    lock: impl Fn(&'a AnyLock) -> L,
) -> Option<Error> {
    // By one look each: there may be a thousand members.
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
            // With one address for both the caller knows that it is one server.
            Entry::Occupied(place) if place.get().1 == address => {}
            Entry::Occupied(place) => {
                return Some(misuse(format!(
                    "{} and {} are the same server by two addresses; leave one of them out",
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
