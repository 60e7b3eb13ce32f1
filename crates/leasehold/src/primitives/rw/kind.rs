//! The two sides of a read-write lock, and how each is acquired.

use std::sync::Arc;
use std::time::Duration;

use super::super::lock::kind::{Acquire, Named};
use super::super::lock::{Kind, Lock, LockGuard, acquire};
use super::guard::{ReadGuard, WriteGuard};
use super::holds::{self, ReadHold, ReadOptions, RwWaiter, Side, WriteHold, WriteIntent, Yield};
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::clock::Moment;
use crate::config::Terms;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, HoldSteps};
use crate::key::Key;
use crate::local::line::LineMode;
use crate::local::reentry::Held;
use crate::observe;
use crate::owner::{Owner, Role};
use crate::wait::{Deadline, LATE_POLL_FACTOR};

/// The time for which a waiter's reservation keeps other clients out, and the longest time between
/// two renewals of the reservation.
pub(super) const RESERVED_FOR: Duration = Duration::from_secs(5);
// This is less than half of `RESERVED_FOR`: if an answer is late, there is still time for one more
// request.
const RESERVE_EVERY: Duration = Duration::from_secs(2);
// A writer that is far back in the list of waiting clients sends requests less often, but must keep
// its reservation.
const _: () =
    assert!(RESERVE_EVERY.as_millis() * (LATE_POLL_FACTOR as u128) < RESERVED_FOR.as_millis());
/// The time for which a waiting reader lets writers go first, one after the other.
const YIELDS_FOR: Duration = Duration::from_secs(1);
/// The time for which a reader that has waited for `YIELDS_FOR` still leaves a free lock to
/// writers.
const YIELDS_FREE_LOCK_FOR: Duration = Duration::from_millis(400);

/// The settings of both sides of a [`RwLock`](crate::RwLock).
#[derive(Clone, Copy, Debug)]
pub(super) struct RwSettings {
    pub(super) prefer_writers: bool,
    /// The shortest watchdog timeout of the Redisson clients that share the lock.
    pub(super) watchdog: Duration,
}

impl Default for RwSettings {
    fn default() -> Self {
        Self {
            prefer_writers: true,
            // Redisson's default.
            watchdog: Duration::from_secs(30),
        }
    }
}

impl RwSettings {
    /// Returns the terms of a hold. A Java reader's watchdog sets the expiry of the lock to its own
    /// timeout, and before Redisson 4.4 also the expiry of every read hold. So if a hold has a
    /// longer lease, this lease is set on the server again three times within that timeout, even if
    /// it is fixed.
    fn terms(self, terms: Terms) -> Terms {
        // The period must not be zero, whatever the caller set: a period of zero would keep the
        // watchdog busy all the time.
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
    pub(super) common: RwSettings,
    /// The write hold of the same owner, inside which this reader reads.
    inside: Option<Hold>,
    /// The end of `YIELDS_FOR`, and the waiter that makes a reservation after it.
    yields_until: Option<(Moment, Arc<RwWaiter>)>,
}

impl Read {
    pub(super) fn new(common: RwSettings) -> Self {
        Self {
            common,
            inside: None,
            yields_until: None,
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
        // A reader inside its owner's write hold makes no reservation and does not wait in line:
        // all waiters in the line wait for this write hold.
        if let Some(write) = held(context, key, lock.reentering_owner(), Role::Writer) {
            kind.inside = Some(write.hold().clone());
            return acquire::acquire_by(&lock.with_kind(kind), deadline).await;
        }
        if matches!(deadline, Deadline::Now) || !kind.common.prefer_writers {
            return acquire::acquire_by(lock, deadline).await;
        }
        let reservation = Reservation::new(lock, key.waiting_readers());
        let yields_until = context.clock.now() + YIELDS_FOR;
        kind.yields_until = Some((yields_until, Arc::clone(&reservation.waiter)));
        let mut waiting = lock.with_kind(kind);
        waiting.ask_at_least_every(YIELDS_FOR);
        reservation
            .until_granted(acquire::acquire_by(&waiting, deadline))
            .await
    }
}

impl Named for Read {
    const OBSERVED: observe::ObservedKind = observe::ObservedKind::Read;
    fn channel(&self, key: &Key) -> String {
        key.rw_channel()
    }

    fn is_shared(lock: &Lock<Self>) -> bool {
        lock.kind().inside.is_none()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let kind = lock.kind();
        let inside = kind.inside.as_ref().map(|write| &write.steps);
        // The first read hold gets the number of the write hold, because a thread of Redisson has
        // one number for both. Later read holds don't get it: an id belongs to one hold.
        let id = inside.and_then(|write| write.take_read_id()).unwrap_or(id);
        let now = lock.context().clock.now();
        // Decide this here, for each request: every request is for a new hold, and `YIELDS_FOR`
        // ends between two requests.
        let done_yielding = kind.yields_until.as_ref().filter(|(at, _)| now >= *at);
        let has_yielded_enough = |waiter: &RwWaiter| {
            let since = waiter.yielding_since(now);
            since.is_some_and(|since| now >= since + YIELDS_FREE_LOCK_FOR)
        };
        let yields = match done_yielding {
            _ if !kind.common.prefer_writers => Yield::No,
            // After `YIELDS_FOR`, a reader first leaves a free lock to the writer that waited for
            // it. If writers are quicker for `YIELDS_FREE_LOCK_FOR`, the reader then reserves a
            // free lock, too. Time in which other readers had the lock does not count.
            Some((_, waiter)) if has_yielded_enough(waiter) => Yield::Last,
            _ => Yield::Yes,
        };
        let options = ReadOptions {
            inside: inside.map(|write| write.wire_id().to_owned()),
            yields,
            waiter: done_yielding.map(|(_, waiter)| Arc::clone(waiter)),
        };
        Box::new(ReadHold::new(key.clone(), lock.channel(), id, options))
    }

    fn inspect(&self, key: &Key) -> Operation {
        holds::inspect(key, Side::Read)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        holds::force_unlock(key, Side::Read, channel, by)
    }

    fn terms(&self, terms: Terms) -> Terms {
        self.common.terms(terms)
    }

    fn line(lock: &Lock<Self>) -> LineMode {
        match lock.kind().inside {
            // All waiters in that line wait for this owner.
            Some(_) => LineMode::Bypass,
            None => LineMode::Reader {
                yields_for: YIELDS_FOR,
            },
        }
    }
}

/// The kind of lock that [`RwLock::write_lock`](crate::RwLock::write_lock) returns, which has one
/// holder at a time, and no readers at the same time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    pub(super) common: RwSettings,
    pub(super) intent: WriteIntent,
}

impl Write {
    pub(super) fn new(common: RwSettings) -> Self {
        Self {
            common,
            intent: WriteIntent::Once,
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
        // Do this before the check of the owner's read hold: a try does not wait, so it can't wait
        // for itself. The server answers that the lock is held.
        if matches!(deadline, Deadline::Now) {
            return acquire::acquire_by(lock, deadline).await;
        }
        let (key, context) = (lock.key()?, lock.context());
        let has = |role| held(context, key, lock.reentering_owner(), role).is_some();
        if has(Role::Reader) && !has(Role::Writer) {
            return Err(waits_for_itself(key));
        }
        if !kind.common.prefer_writers {
            return acquire::acquire_by(lock, deadline).await;
        }
        let reservation = Reservation::new(lock, key.waiting_writers());
        let mut waiting = lock.with_kind(Self {
            common: kind.common,
            intent: WriteIntent::Waiting(Arc::clone(&reservation.waiter)),
        });
        waiting.ask_at_least_every(RESERVE_EVERY);
        reservation
            .until_granted(acquire::acquire_by(&waiting, deadline))
            .await
    }
}

impl Named for Write {
    const OBSERVED: observe::ObservedKind = observe::ObservedKind::Write;
    const HAS_SLICE: bool = true;
    const CAN_BE_KEPT: bool = true;

    fn channel(&self, key: &Key) -> String {
        key.rw_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let intent = lock.kind().intent.clone();
        Box::new(WriteHold::new(key.clone(), lock.channel(), &id, intent))
    }

    fn inspect(&self, key: &Key) -> Operation {
        holds::inspect(key, Side::Write)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        holds::force_unlock(key, Side::Write, channel, by)
    }

    fn terms(&self, terms: Terms) -> Terms {
        self.common.terms(terms)
    }

    fn line(lock: &Lock<Self>) -> LineMode {
        match lock.kind().intent {
            // An upgrade does not wait in line: the writers in line wait for this reader.
            WriteIntent::Upgrade { .. } => LineMode::Bypass,
            _ if lock.kind().common.prefer_writers => LineMode::Writer,
            _ => LineMode::HeadAsks,
        }
    }
}

/// The reservation that a waiter may have made on the server. It is withdrawn when the wait ends
/// without a grant, no matter how it ends.
struct Reservation<'a, K: Named> {
    lock: &'a Lock<K>,
    /// The key of the set of reservations.
    reservations: String,
    waiter: Arc<RwWaiter>,
}

impl<'a, K: Named> Reservation<'a, K> {
    fn new(lock: &'a Lock<K>, reservations: String) -> Self {
        let waiter = RwWaiter::new(lock.context().fresh_wire_id(), RESERVED_FOR);
        Self {
            lock,
            reservations,
            waiter,
        }
    }

    async fn until_granted(
        self,
        wait: impl Future<Output = Result<Option<LockGuard>>>,
    ) -> Result<Option<LockGuard>> {
        // After an error, a refusal or a dropped future, `granted` is not called, and dropping
        // `self` withdraws the reservation.
        let guard = wait.await?;
        // The server removes the reservation of a waiter to which it grants the lock. A waiter that
        // shares or took over another waiter's hold was not itself granted the lock.
        let granted = |guard: &LockGuard| guard.share().has_own_grant();
        if guard.as_ref().is_some_and(granted) {
            self.waiter.granted();
        }
        Ok(guard)
    }
}

impl<K: Named> Drop for Reservation<'_, K> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.reserved() {
            let withdraw = holds::withdraw(&self.reservations, waiter, &self.lock.channel());
            // The answer is not awaited, because a drop can't wait. If the request is lost, the
            // reservation expires after `RESERVED_FOR`.
            let route = Route::of(self.lock.settings().acknowledged).same_connection();
            self.lock.context().cleanup.send(withdraw, route);
        }
    }
}

/// Returns the hold that the owner has in this role and can re-enter, unless the hold is lost.
pub(super) fn held(
    context: &Context,
    key: &Key,
    owner: Option<&Owner>,
    role: Role,
) -> Option<Arc<Held>> {
    let held = context.locals.held_by(key, &owner?.in_role(role))?;
    // A lost hold protects nothing: a read inside it could overlap with another writer.
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
