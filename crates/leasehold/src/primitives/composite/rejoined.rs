//! The guards of members that were set again while the whole was held.

use std::ops::Deref;
use std::sync::Arc;

use super::quorum::Members;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;

/// The guards of members that were set again, by the places of the members.
#[derive(Default)]
pub(super) struct RejoinedGuards {
    guards: Vec<Option<Arc<LockGuard>>>,
    /// Whether the guard of the whole has been released or dropped.
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

/// The guard of a member that counts.
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

/// The holder of these guards. It gives them back with the guard of the whole. After that no member
/// is set again.
pub(super) struct Rejoined(Arc<Members>);

impl Rejoined {
    pub(super) fn of(members: &Arc<Members>) -> Self {
        Self(Arc::clone(members))
    }

    /// Takes these guards out. From here on no member is set again.
    pub(super) fn take(&self) -> Vec<Option<LockGuard>> {
        let guards = {
            let mut rejoined = self.0.rejoined.lock();
            rejoined.is_over = true;
            std::mem::take(&mut rejoined.guards)
        };
        self.0.changed.notify_waiters();
        // These are the last references: other code reaches these guards only by borrowing the
        // guard of the whole, and that has ended.
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
    /// Resolves when members are no longer set again: the guard has been released or dropped, or
    /// the whole is lost.
    pub(super) async fn ended(self: &Arc<Self>) {
        let released = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Registered before the check, or a change between the two would be missed.
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

    /// Makes the member at this place count again, with `guard`. If the whole is over already, the
    /// guard is dropped and so given back.
    pub(super) async fn adopt(&self, place: usize, guard: LockGuard) {
        if let Some((since, limit)) = self.holds[place].limit() {
            guard.share().limit(limit, since);
        }
        let mut guard = Some(guard);
        while let Some(new) = guard.take() {
            let token = self.token();
            // The server has forgotten its counter. The next holder's token must be above this
            // one's, even if this is the only server that both have in common.
            if let Some(token) = token
                && draw::raise(new.share(), token).await.is_err()
            {
                return;
            }
            guard = self.replace_guard(place, new, token);
        }
    }

    /// Takes the guard in. Returns it if a token other than `raised_to` has been drawn meanwhile.
    fn replace_guard(
        &self,
        place: usize,
        guard: LockGuard,
        raised_to: Option<u64>,
    ) -> Option<LockGuard> {
        let mut rejoined = self.rejoined.lock();
        if self.token() != raised_to {
            return Some(guard);
        }
        // A lost whole stays lost. And no release would reach a member that is added after the
        // releases.
        if rejoined.is_over || self.loss().is_some() || !guard.is_held() {
            drop(rejoined);
            return None;
        }
        let hold = guard.share().hold().clone();
        let before = rejoined.replace(place, guard);
        self.holds[place].replace(hold);
        drop(rejoined);
        // After unlocking: this gives back the replaced guard, although its hold is lost already.
        drop(before);
        self.changed.notify_waiters();
        None
    }

    /// Sets the guard's token, and returns the first one that was set.
    pub(super) fn set_token_once(&self, token: u64) -> u64 {
        // Locked, because members come back under this lock. So each of them either has been raised
        // to the token, or counts already and is raised by the caller.
        let _rejoined = self.rejoined.lock();
        *self.token.get_or_init(|| token)
    }
}
