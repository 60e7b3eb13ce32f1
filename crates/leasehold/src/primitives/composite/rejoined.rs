//! The guards of members that rejoined while the lock was held (`majority/rejoin.rs`).

use std::ops::Deref;
use std::sync::Arc;

use super::quorum::Members;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;

/// The guards of members that have rejoined, by the index of the member.
#[derive(Default)]
pub(super) struct RejoinedGuards {
    guards: Vec<Option<Arc<LockGuard>>>,
    /// Whether the composite guard has been released or dropped.
    is_over: bool,
}

impl RejoinedGuards {
    pub(super) fn current<'a>(&self, place: usize, first: &'a LockGuard) -> CurrentGuard<'a> {
        match self.guards.get(place) {
            Some(Some(guard)) => CurrentGuard::Rejoined(Arc::clone(guard)),
            _ => CurrentGuard::First(first),
        }
    }

    fn replace(&mut self, place: usize, guard: LockGuard) -> Option<Arc<LockGuard>> {
        if self.guards.len() <= place {
            self.guards.resize_with(place + 1, || None);
        }
        self.guards[place].replace(Arc::new(guard))
    }
}

/// The current guard of a member: its first guard, or its guard from the last rejoin.
pub(super) enum CurrentGuard<'a> {
    First(&'a LockGuard),
    Rejoined(Arc<LockGuard>),
}

impl Deref for CurrentGuard<'_> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::First(guard) => guard,
            Self::Rejoined(guard) => guard,
        }
    }
}

/// The part of the composite guard that owns the guards of rejoined members. When it is dropped,
/// those guards are given back, and no member rejoins any more.
pub(super) struct Rejoined(Arc<Members>);

impl Rejoined {
    pub(super) fn of(members: &Arc<Members>) -> Self {
        Self(Arc::clone(members))
    }

    /// Takes the guards out. After this call no member rejoins.
    pub(super) fn take(&self) -> Vec<Option<LockGuard>> {
        let guards = {
            let mut rejoined = self.0.rejoined.lock();
            rejoined.is_over = true;
            std::mem::take(&mut rejoined.guards)
        };
        self.0.changed.notify_waiters();
        // These are the last references: other code reaches these guards only by borrowing the
        // composite guard, which no longer exists.
        let guards = guards.into_iter();
        guards
            .map(|guard| guard.and_then(Arc::into_inner))
            .collect()
    }
}

impl Drop for Rejoined {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl Members {
    /// Resolves when members no longer rejoin: the guard has been released or dropped, or the hold
    /// is lost.
    pub(super) async fn ended(self: &Arc<Self>) {
        let released = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Register before the check, or a change between the two would be missed.
                changed.as_mut().enable();
                if self.rejoined.lock().is_over {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = released => {}
            _ = Arc::clone(self).lost() => {}
        }
    }

    /// Makes `guard` the current guard of the member at index `place`. If the hold has already
    /// ended, `guard` is dropped, which gives it back.
    pub(super) async fn adopt(&self, place: usize, mut guard: LockGuard) {
        if let Some((since, limit)) = self.holds[place].limit() {
            guard.share().limit(limit, since);
        }
        guard
            .share_mut()
            .inherit_progress(self.holds[place].progress().cloned());
        let mut guard = Some(guard);
        while let Some(new) = guard.take() {
            let token = self.token();
            // The server has forgotten its counter. The next holder's token must be greater than
            // this hold's token, even if this is the only server that both holds have in common.
            if let Some(token) = token
                && draw::raise(new.share(), token).await.is_err()
            {
                return;
            }
            guard = self.replace_guard(place, new, token);
        }
    }

    /// Stores the guard as the current one. If the token of the hold is no longer `raised_to`,
    /// returns the guard instead: the caller must first raise the server's counter of tokens to the
    /// new token.
    fn replace_guard(
        &self,
        place: usize,
        guard: LockGuard,
        raised_to: Option<u64>,
    ) -> Option<LockGuard> {
        // Check for a loss before locking: the check may report a loss to the user's hook, and the
        // hook may need this mutex.
        let is_lost = self.loss().is_some() || !guard.is_held();
        let mut rejoined = self.rejoined.lock();
        if self.token() != raised_to {
            return Some(guard);
        }
        // A lost hold stays lost, and a guard that is stored after the release would never be
        // released.
        if rejoined.is_over || is_lost {
            drop(rejoined);
            return None;
        }
        let hold = guard.share().hold().clone();
        let before = rejoined.replace(place, guard);
        self.holds[place].replace(hold);
        drop(rejoined);
        // Do this after unlocking: the drop gives back the replaced guard, although its hold is
        // already lost.
        drop(before);
        self.changed.notify_waiters();
        None
    }

    /// Sets the token of the hold unless it already has one, and returns the hold's token.
    pub(super) fn set_token_once(&self, token: u64) -> u64 {
        // Lock the mutex, because members rejoin under it. So each member either is raised to the
        // token before it rejoins, or is already current and the caller raises it.
        let _rejoined = self.rejoined.lock();
        *self.token.get_or_init(|| token)
    }
}
