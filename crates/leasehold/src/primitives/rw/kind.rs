//! The two sides of a read-write lock, and how each is acquired.

use std::sync::Arc;
use std::time::Duration;

use super::super::lock::kind::{Acquire, Named};
use super::super::lock::{Kind, Lock, LockGuard, ask};
use super::guard::{ReadGuard, WriteGuard};
use super::holds::{self, Polite, ReadAsk, ReadHold, Waiter, WriteAsk, WriteHold};
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::clock::Moment;
use crate::config::Terms;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, HoldSteps};
use crate::key::Key;
use crate::local::line::Line;
use crate::local::reentry::Held;
use crate::observe;
use crate::owner::{Owner, Role};
use crate::wait::{Deadline, LATE};

/// Time for which a waiter's mark keeps other clients out, and the longest time between two
/// renewals of the mark.
pub(super) const MARK: Duration = Duration::from_secs(5);
// Less than half of `MARK`: if an answer is late, there is still time for one more request.
const MARK_EVERY: Duration = Duration::from_secs(2);
// A writer in the list after many others asks less often, but keeps its mark.
const _: () = assert!(MARK_EVERY.as_millis() * (LATE as u128) < MARK.as_millis());
/// Time for which a waiting reader lets writers go first, one after the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which an overdue reader, after its patience, leaves a free lock to writers.
const LEAVES_FOR: Duration = Duration::from_millis(400);

/// The side of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

impl Side {
    /// Returns the `mode` of this side in the hash.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The settings of both sides of a [`RwLock`](crate::RwLock).
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) prefer_writers: bool,
    /// The shortest watchdog timeout of the Redisson clients that share the lock.
    pub(super) watchdog: Duration,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            prefer_writers: true,
            // Redisson's own default.
            watchdog: Duration::from_secs(30),
        }
    }
}

impl Common {
    /// Returns the terms of a hold. A Java reader's watchdog sets the expiry of the lock to its own
    /// timeout, and before Redisson 4.4 the expiry of every read hold too. A hold with a longer
    /// lease confirms it three times within that timeout, even if the lease is fixed.
    fn terms(self, terms: Terms) -> Terms {
        // Never zero, whatever the caller set: a period of zero would keep the watchdog busy all
        // the time.
        let period = (self.watchdog / 3).max(Duration::from_millis(1));
        Terms {
            renew_every: terms.renew_every.map(|every| every.min(period)),
            remind_every: Some(period),
            ..terms
        }
    }
}

/// The kind of lock that [`RwLock::read_lock`](crate::RwLock::read_lock) returns, which can have
/// many holders at a time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Read {
    pub(super) common: Common,
    /// The write hold of the same owner.
    within: Option<Hold>,
    /// The time at which the reader has waited long enough, and the waiter that leaves a mark then.
    patience: Option<(Moment, Arc<Waiter>)>,
}

impl Read {
    pub(super) fn new(common: Common) -> Self {
        Self {
            common,
            within: None,
            patience: None,
        }
    }
}

impl Kind for Read {
    type Guard = ReadGuard;
}

impl Acquire for Read {
    const ROLE: Role = Role::Reader;

    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        let (key, context) = (lock.key()?, lock.context());
        let mut kind = lock.kind().clone();
        // No mark and no wait in line: all waiters there wait for this owner's own write hold.
        if let Some(write) = held(context, key, lock.owner(), Role::Writer) {
            kind.within = Some(write.hold().clone());
            return ask::acquire_by(&lock.with_kind(kind), deadline).await;
        }
        if matches!(deadline, Deadline::Now) || !kind.common.prefer_writers {
            return ask::acquire_by(lock, deadline).await;
        }
        let mark = Mark::new(lock, key.waiting_readers());
        let overdue_at = context.clock.now() + PATIENCE;
        kind.patience = Some((overdue_at, Arc::clone(&mark.waiter)));
        let mut waiting = lock.with_kind(kind);
        waiting.ask_at_least_every(PATIENCE);
        mark.until_served(ask::acquire_by(&waiting, deadline)).await
    }
}

impl Named for Read {
    const OBSERVED: observe::Kind = observe::Kind::Read;
    fn channel(&self, key: &Key) -> String {
        key.rw_channel()
    }

    fn is_shared(lock: &Lock<Self>) -> bool {
        lock.kind().within.is_none()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let kind = lock.kind();
        let within = kind.within.as_ref().map(|write| &write.steps);
        // The first read hold gets the number of the write hold, because a thread of Redisson has
        // one number for both. No later read hold gets it: an id belongs to one hold.
        let id = within.and_then(|write| write.take_read_id()).unwrap_or(id);
        let now = lock.context().clock.now();
        // Decided here, at each ask: every ask makes a hold of its own, and the reader becomes
        // overdue between two asks.
        let overdue = kind.patience.as_ref().filter(|(at, _)| now >= *at);
        let has_left_it = |waiter: &Waiter| {
            let since = waiter.passed_since(now);
            since.is_some_and(|since| now >= since + LEAVES_FOR)
        };
        let polite = match overdue {
            _ if !kind.common.prefer_writers => Polite::No,
            // At first an overdue reader leaves a free lock to the writer that waited for it. If
            // writers are quicker for `LEAVES_FOR`, the reader claims its turn on a free lock too.
            // Time in which other readers had the lock before does not count.
            Some((_, waiter)) if has_left_it(waiter) => Polite::ForTheLastTime,
            _ => Polite::Yes,
        };
        let ask = ReadAsk {
            within: within.map(|write| write.wire_id().to_owned()),
            polite,
            waiter: overdue.map(|(_, waiter)| Arc::clone(waiter)),
        };
        Box::new(ReadHold::new(key.clone(), lock.channel(), id, ask))
    }

    fn inspect(&self, key: &Key) -> Operation {
        holds::inspect(key, Side::Read)
    }

    fn force_unlock(&self, key: &Key, channel: &str) -> Operation {
        holds::force_unlock(key, Side::Read, channel)
    }

    fn terms(&self, terms: Terms) -> Terms {
        self.common.terms(terms)
    }

    fn line(lock: &Lock<Self>) -> Line {
        match lock.kind().within {
            // All waiters in that line wait for this owner.
            Some(_) => Line::Alone,
            None => Line::Together { patience: PATIENCE },
        }
    }
}

/// The kind of lock that [`RwLock::write_lock`](crate::RwLock::write_lock) returns, which has one
/// holder at a time, and no readers at the same time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    pub(super) common: Common,
    pub(super) ask: WriteAsk,
}

impl Write {
    pub(super) fn new(common: Common) -> Self {
        Self {
            common,
            ask: WriteAsk::Once,
        }
    }
}

impl Kind for Write {
    type Guard = WriteGuard;
}

impl Acquire for Write {
    const ROLE: Role = Role::Writer;

    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        let kind = lock.kind();
        // Before the check of the owner's read hold: a try does not wait, so it can't wait for
        // itself. The server answers it that the lock is held.
        if matches!(deadline, Deadline::Now) {
            return ask::acquire_by(lock, deadline).await;
        }
        let (key, context) = (lock.key()?, lock.context());
        let has = |role| held(context, key, lock.owner(), role).is_some();
        if has(Role::Reader) && !has(Role::Writer) {
            return Err(waits_for_itself(key));
        }
        if !kind.common.prefer_writers {
            return ask::acquire_by(lock, deadline).await;
        }
        let mark = Mark::new(lock, key.waiting_writers());
        let mut waiting = lock.with_kind(Self {
            common: kind.common,
            ask: WriteAsk::Waiting(Arc::clone(&mark.waiter)),
        });
        waiting.ask_at_least_every(MARK_EVERY);
        mark.until_served(ask::acquire_by(&waiting, deadline)).await
    }
}

impl Named for Write {
    const OBSERVED: observe::Kind = observe::Kind::Write;
    const TAKES_TURNS: bool = true;

    fn channel(&self, key: &Key) -> String {
        key.rw_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let ask = lock.kind().ask.clone();
        Box::new(WriteHold::new(key.clone(), lock.channel(), &id, ask))
    }

    fn inspect(&self, key: &Key) -> Operation {
        holds::inspect(key, Side::Write)
    }

    fn force_unlock(&self, key: &Key, channel: &str) -> Operation {
        holds::force_unlock(key, Side::Write, channel)
    }

    fn terms(&self, terms: Terms) -> Terms {
        self.common.terms(terms)
    }

    fn line(lock: &Lock<Self>) -> Line {
        match lock.kind().ask {
            // An upgrade does not wait in line: the writers in line wait for this reader.
            WriteAsk::Upgrade { .. } => Line::Alone,
            _ if lock.kind().common.prefer_writers => Line::Exclusive,
            _ => Line::OneAsks,
        }
    }
}

/// The mark that a waiter may have left. It is withdrawn when the wait ends without a grant, no
/// matter how it ends.
struct Mark<'a, K: Named> {
    lock: &'a Lock<K>,
    /// The key of the set of marks.
    marks: String,
    waiter: Arc<Waiter>,
}

impl<'a, K: Named> Mark<'a, K> {
    fn new(lock: &'a Lock<K>, marks: String) -> Self {
        let waiter = Waiter::new(lock.context().fresh_wire_id(), MARK);
        Self {
            lock,
            marks,
            waiter,
        }
    }

    async fn until_served(
        self,
        wait: impl Future<Output = Result<Option<LockGuard>>>,
    ) -> Result<Option<LockGuard>> {
        // In all other cases, an error, a refusal or a dropped future, `self` is dropped with its
        // mark still noted, which withdraws the mark.
        let guard = wait.await?;
        // The server removes the mark with the grant. A waiter that shares or took over another
        // waiter's hold was granted nothing.
        let served = |guard: &LockGuard| guard.share().was_asked_for();
        if guard.as_ref().is_some_and(served) {
            self.waiter.served();
        }
        Ok(guard)
    }
}

impl<K: Named> Drop for Mark<'_, K> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.marked() {
            let withdraw = holds::withdraw(&self.marks, waiter, &self.lock.channel());
            // No code waits for the answer, because a drop can't. If the request is lost, the mark
            // ends by itself after `MARK`.
            let route = Route::of(self.lock.settings().acknowledged).behind();
            self.lock.context().cleanup.send(withdraw, route);
        }
    }
}

/// Returns the hold of an owner in a role, unless it is lost.
pub(super) fn held(
    context: &Context,
    key: &Key,
    owner: Option<&Owner>,
    role: Role,
) -> Option<Arc<Held>> {
    let held = context.locals.held_by(key, &owner?.in_role(role))?;
    // A lost hold protects nothing: a read inside it would run beside another writer.
    held.hold().loss().is_none().then_some(held)
}

fn waits_for_itself(key: &Key) -> Error {
    Error::new(
        ErrorKind::Deadlock,
        format!(
            "this owner holds the read lock of `{key}`, so it would wait for itself; release the read \
             lock first, or upgrade its guard with try_upgrade"
        ),
    )
    .with_key(key)
}
