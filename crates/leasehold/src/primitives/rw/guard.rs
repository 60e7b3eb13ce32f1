//! The guards of the two sides of a read-write lock, and the change from one side to the other.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::lock::kind::{Acquire, FromLockGuard};
use super::super::lock::{Lock, LockGuard};
use super::holds::{ReadHold, ReadOptions, WriteIntent};
use super::kind::{Read, RwSettings, Write};
use crate::backend::failure::{Outcome, accept_refusal};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::config::Terms;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::hold::confirm::Confirmation;
use crate::hold::watchdog::why_lost;
use crate::hold::{Asked, Grant, Undo};
use crate::local::reentry::{Held, OwnerEntry};
use crate::loss::LossReason;
use crate::observe::ObservedKind;
use crate::owner::{Owner, Role};
use crate::wait::Deadline;

/// A [`LockGuard`] of the read side.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct ReadGuard(LockGuard);

/// A [`LockGuard`] of the write side.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct WriteGuard(LockGuard);

impl WriteGuard {
    /// Turns the write hold into a read hold with the same settings, so that other readers can
    /// enter. No writer can enter in between.
    ///
    /// If the same [`Owner`] has other guards of the write side, the write hold remains until the
    /// last of them is released or dropped. Until then, the returned guard reads inside the write
    /// hold.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was no longer held. `Unavailable` or
    /// `OutcomeUnknown` if no server answered. After an error this guard holds nothing: the client
    /// releases both sides in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let lock = leasehold::Client::embedded().rw_lock("prices");
    /// let writing = lock.write().await?;
    /// // ... change the prices, and then read on without another writer in between
    /// let reading = writing.downgrade().await?;
    /// assert!(lock.try_read().await?.is_some());
    /// assert!(lock.try_write().await?.is_none());
    /// # reading.release().await
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard> {
        let mut share = self.0.into_share();
        // A lost hold must not become a read hold: the next writer may be at work already.
        // Returning drops the guard, which gives back the rest.
        share.hold().check()?;
        let context = Arc::clone(share.context());
        let key = share.hold().key.clone();
        let reader = share.owner().map(|owner| owner.in_role(Role::Reader));
        match reader
            .as_ref()
            // Enter the owner as a reader before the request is sent. Another acquire by the same
            // owner then waits for this read hold, and does not request one of its own.
            .map(|owner| context.locals.of(&key).enter(owner, share.terms()))
            .transpose()?
        {
            None if share.begin_conversion() => {
                return downgrade(share, None).await.map(read_guard);
            }
            Some(OwnerEntry::Ask(branch)) if share.begin_conversion() => {
                let read = downgrade(share, reader).await?;
                branch.granted(read.held());
                return Ok(read_guard(read));
            }
            // The owner already has a read hold. The code below joins it once more, with the terms
            // of this hold.
            Some(OwnerEntry::Joined(held, joined)) => {
                drop(Share::joined(Arc::clone(&context), held, joined));
            }
            // The hold can't be downgraded: other guards of the owner share it, or another acquire
            // by the owner is about to get the read side. So the code below acquires the read side
            // inside the write hold.
            _ => {}
        }
        // A thread of Redisson does the same: it reads inside the write hold, and then releases the
        // write hold.
        let mut read = lock_like(&share, Read::new(common(&share)))
            .acquire()
            .await?;
        read.0.share().inherit_limit(share.max_hold_limit());
        read.0.share_mut().inherit_progress(share.progress());
        // Release the write hold only after the read side is acquired: otherwise another writer
        // could enter in between.
        share.release().await?;
        Ok(read)
    }

    /// Releases the lock, and reports whether it was held until then: see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::release`].
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }

    /// Ends the guard without releasing the lock, which stays locked until its lease ends: see
    /// [`LockGuard::forget`].
    pub fn forget(self) {
        self.0.forget();
    }

    /// Ends the guard, and keeps the lock locked for `span` from now: see [`LockGuard::keep_for`].
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::keep_for`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::keep_for`].
    pub async fn keep_for(self, span: Duration) -> Result<()> {
        self.0.keep_for(span).await
    }
}

impl ReadGuard {
    /// Turns the read hold into a write hold with the same settings, if there are no other readers
    /// now. The call does not wait, because two readers that waited for each other would wait
    /// forever. An upgrade takes precedence over waiting writers. If the server refuses the
    /// upgrade, one more request finds out whether the read hold still exists.
    ///
    /// # Errors
    ///
    /// [`NotUpgraded`], which contains this guard. Either there are other readers, or
    /// [`NotUpgraded::error`] returns the reason.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let lock = leasehold::Client::embedded().rw_lock("prices");
    /// let reading = lock.read().await?;
    /// match reading.try_upgrade().await {
    ///     Ok(writing) => writing.release().await?,
    ///     Err(not_now) => not_now.into_guard().release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded> {
        let upgraded = self.upgrade().await;
        self.upgraded(upgraded)
    }

    /// Requests the write hold. `None` if there are other readers. Dropping the future leaves the
    /// read hold as it was, because the undo of the request gives only the write hold back.
    pub(crate) async fn upgrade(&self) -> Result<Option<WriteGuard>> {
        let share = self.0.share();
        share.hold().check()?;
        // Several readers of this process may share the hold, which is a single reader for the
        // server. From now on, no other reader can join the hold.
        if share.owner().is_none() && !share.hold().close_to_others() {
            return Ok(None);
        }
        let read = share.hold().steps.wire_id().into();
        let mut kind = Write::new(common(share));
        kind.intent = WriteIntent::Upgrade { read };
        let lock = lock_like(share, kind);
        if let Some(mut write) = Write::acquire_by(&lock, Deadline::Now).await? {
            write.share().inherit_limit(share.max_hold_limit());
            write.share_mut().inherit_progress(share.progress());
            return Ok(Some(WriteGuard(write)));
        }
        // There are other readers, or this read hold is lost. The holder learns of a loss now, not
        // at the next renewal.
        match share.confirm().await {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(None),
        }
    }

    /// Returns the guard of the write hold if the upgrade succeeded. Otherwise returns this guard:
    /// whether the request ran or not, the read hold is as it was.
    pub(crate) fn upgraded(
        self,
        upgraded: Result<Option<WriteGuard>>,
    ) -> Result<WriteGuard, NotUpgraded> {
        match upgraded {
            // The read hold is inside the write hold, and is given back in the background.
            Ok(Some(write)) => Ok(write),
            Ok(None) => Err(NotUpgraded::new(self, None)),
            Err(error) => Err(NotUpgraded::new(self, Some(error))),
        }
    }

    /// Releases the lock, and reports whether it was held until then: see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::release`].
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }

    /// Ends the guard without releasing the lock, which stays locked until its lease ends: see
    /// [`LockGuard::forget`].
    pub fn forget(self) {
        self.0.forget();
    }
}

/// The error of [`ReadGuard::try_upgrade`]. It contains the guard of the read side, which was not
/// upgraded.
#[derive(Debug)]
#[must_use = "the read side is released as soon as this is dropped"]
pub struct NotUpgraded {
    guard: ReadGuard,
    error: Option<Error>,
}

impl NotUpgraded {
    fn new(guard: ReadGuard, error: Option<Error>) -> Self {
        Self { guard, error }
    }

    /// Returns the guard, which still holds the read side.
    pub fn into_guard(self) -> ReadGuard {
        self.guard
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn into_parts(self) -> (ReadGuard, Option<Error>) {
        (self.guard, self.error)
    }

    /// Returns the error that prevented the upgrade. `None` if other readers prevented it. Also
    /// `None` while a [failover guard](crate::ClientBuilder::failover_guard) grants nothing,
    /// because the server may have forgotten other readers.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}

impl fmt::Display for NotUpgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.guard.0.share().hold().key;
        match &self.error {
            Some(error) => write!(f, "the read lock `{key}` was not upgraded: {error}"),
            None => write!(
                f,
                "the read lock `{key}` was not upgraded, because there are or may be other readers; \
                 release it and acquire the write lock"
            ),
        }
    }
}

impl std::error::Error for NotUpgraded {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// Downgrades a write hold, after `begin_conversion`. After an error both holds are released.
async fn downgrade(write: Share, reader: Option<Owner>) -> Result<Share> {
    let context = Arc::clone(write.context());
    let key = write.hold().key.clone();
    // A read hold can't have a minimum time.
    let terms = Terms {
        min_hold: None,
        ..write.terms()
    };
    let written = &write.hold().steps;
    let id = written
        .take_read_id()
        .unwrap_or_else(|| context.fresh_wire_id());
    let read = ReadHold::new(
        key.clone(),
        key.rw_channel().into(),
        id,
        ReadOptions::default(),
    );
    let operation = read.downgrade(written.wire_id(), terms.lease);
    let (clock, margin) = (context.clock, context.margin);
    let hold = Grant::new(
        key.clone(),
        Box::new(read),
        terms,
        clock,
        margin,
        Asked {
            lease: terms.lease,
            at: clock.now(),
        },
        context.observer.of(ObservedKind::Read, &key),
    );
    // The undo of the write hold stays armed, too: until the answer arrives, the server may have
    // either hold.
    let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
    // The answer to the downgrade also confirms the releases of earlier holders in this process, to
    // which the write hold belonged before.
    let mark = write.hold().mark_end();
    match send_until_answered(&context, &mut undo, operation).await? {
        DowngradeReply::Done => write.hold().deliver(mark, &Confirmation::Held),
        DowngradeReply::NotHeld { may_have_run } => {
            let reason = loss_reason(&context, &write).await;
            if may_have_run {
                // If the earlier request has downgraded the hold, the hold was still valid at that
                // time, and both holds have been lost since then.
                write.hold().deliver(mark, &Confirmation::Unknown);
            }
            return Err(write.hold().was_lost(mark, reason));
        }
    }
    undo.granted();
    if !hold.granted(None) {
        return Err(Error::lost(&key, LossReason::Expired));
    }
    context.watchdog.watch(&hold);
    let (limit, progress) = (write.max_hold_limit(), write.progress());
    write.finish_conversion();
    let reader = reader.map(|owner| (context.locals.of(&key), owner));
    let held = Held::new(&context.live_holds, undo, reader, None);
    let mut read = Share::new(context, held);
    read.inherit_limit(limit);
    read.inherit_progress(progress);
    Ok(read)
}

/// The server's answer to a downgrade.
enum DowngradeReply {
    Done,
    /// The write hold no longer exists. An earlier request may have run.
    NotHeld {
        may_have_run: bool,
    },
}

/// Sends the downgrade until it is answered, but not after the reply timeout.
async fn send_until_answered(
    context: &Context,
    undo: &mut Undo,
    operation: Operation,
) -> Result<DowngradeReply> {
    let (clock, key) = (context.clock, undo.hold().key.clone());
    let route = undo.hold().route();
    let end = clock.now() + context.backend.reply_timeout();
    // The request can be sent again: a repeated request changes nothing.
    let may_have_run = AtomicBool::new(false);
    let should_retry = |failed: FailedAttempt<'_>| {
        let should_retry = failed.failure.may_heal() && clock.now() < end;
        if should_retry && failed.failure.outcome == Outcome::MayHaveRun {
            may_have_run.store(true, Ordering::Relaxed);
        }
        should_retry
    };
    let mut send = || {
        let reply = context.backend.submit_by(operation.clone(), route);
        if !may_have_run.load(Ordering::Relaxed) {
            // After a request that may have run, a later request is not watched: if the later one
            // were never sent, the undo would find nothing to give back.
            undo.watch(&reply);
        }
        reply
    };
    let first = (send(), clock.now());
    let pauses = RetryDelays::from(Duration::from_millis(10));
    let reply = until_answered(&context.timers, first, pauses, send, should_retry).await;
    match accept_refusal(reply, |reply| *reply == Value::Int(1)) {
        Ok(Value::Int(1)) => Ok(DowngradeReply::Done),
        Ok(Value::Int(_)) => {
            let may_have_run = may_have_run.load(Ordering::Relaxed);
            // An earlier request may have downgraded the hold before another client removed the
            // lock. In that case the read hold's own key still exists, and its release removes that
            // key.
            if !may_have_run {
                undo.disarm();
            }
            Ok(DowngradeReply::NotHeld { may_have_run })
        }
        Ok(_) => Err(context.backend.malformed().into_error(&key)),
        Err(failure) => {
            if !may_have_run.load(Ordering::Relaxed) {
                undo.failed(failure.outcome);
            }
            Err(failure.into_error(&key))
        }
    }
}

async fn loss_reason(context: &Context, write: &Share) -> LossReason {
    why_lost(&context.backend, write.hold(), &context.timers).await
}

fn read_guard(share: Share) -> ReadGuard {
    ReadGuard(LockGuard::new(share))
}

/// Creates a lock with the name, the owner and the terms of a guard.
fn lock_like<K: super::super::lock::kind::Named + super::super::lock::Kind>(
    share: &Share,
    kind: K,
) -> Lock<K> {
    let hold = share.hold();
    let lock = Lock::named(Arc::clone(share.context()), hold.key.given(), kind);
    let lock = lock.on_terms(share.terms());
    match share.owner() {
        Some(owner) => lock.owned_by(owner),
        None => lock,
    }
}

/// Returns the settings of both sides, as far as they follow from an existing hold.
fn common(share: &Share) -> RwSettings {
    let reminded = share
        .hold()
        .terms()
        .remind_every
        .unwrap_or(RwSettings::default().watchdog / 3);
    RwSettings {
        // This is the inverse of `RwSettings::terms`, which divides by 3.
        watchdog: reminded * 3,
        ..RwSettings::default()
    }
}

macro_rules! is_a_lock_guard {
    ($guard:ident) => {
        impl FromLockGuard for $guard {
            fn from_lock_guard(guard: LockGuard) -> Self {
                Self(guard)
            }
        }

        impl From<$guard> for LockGuard {
            fn from(guard: $guard) -> Self {
                guard.0
            }
        }

        impl AsRef<LockGuard> for $guard {
            fn as_ref(&self) -> &LockGuard {
                &self.0
            }
        }

        impl Deref for $guard {
            type Target = LockGuard;

            fn deref(&self) -> &LockGuard {
                &self.0
            }
        }
    };
}

is_a_lock_guard!(ReadGuard);
is_a_lock_guard!(WriteGuard);
