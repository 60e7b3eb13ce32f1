//! The guards of members that were set again while the whole was held.

use std::ops::Deref;
use std::sync::Arc;

use super::quorum::Members;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;

/// The guards of members that were set again, by the places of the members.
#[derive(Default)]
pub(super) struct Again {
    guards: Vec<Option<Arc<LockGuard>>>,
    /// Whether the guard of the whole has been released or dropped.
    left: bool,
}

impl Again {
    pub(super) fn present<'a>(&self, place: usize, first: &'a LockGuard) -> Present<'a> {
        match self.guards.get(place) {
            Some(Some(guard)) => Present::Again(Arc::clone(guard)),
            _ => Present::First(first),
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
pub(super) enum Present<'a> {
    First(&'a LockGuard),
    Again(Arc<LockGuard>),
}

impl Deref for Present<'_> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::First(guard) => guard,
            Self::Again(guard) => guard,
        }
    }
}

/// The holder of these guards. It gives them back with the guard of the whole. After that no member
/// is set again.
pub(super) struct Returned(Arc<Members>);

impl Returned {
    pub(super) fn of(members: &Arc<Members>) -> Self {
        Self(Arc::clone(members))
    }

    /// Takes these guards out. From here on no member is set again.
    pub(super) fn take(&self) -> Vec<Option<LockGuard>> {
        let guards = {
            let mut again = self.0.again.lock();
            again.left = true;
            std::mem::take(&mut again.guards)
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

impl Drop for Returned {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl Members {
    /// Resolves when members are no longer set again: the guard has been released or dropped, or
    /// the whole is lost.
    pub(super) async fn over(self: &Arc<Self>) {
        let left = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Registered before the check, or a change between the two would be missed.
                changed.as_mut().enable();
                if self.again.lock().left {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = left => {}
            _ = Arc::clone(self).lost() => {}
        }
    }

    /// Makes the member at this place count again, with `guard`. If the whole is over already, the
    /// guard is dropped and so given back.
    pub(super) async fn adopt(&self, place: usize, guard: LockGuard) {
        if let Some((since, limit)) = self.parts[place].limit() {
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
            guard = self.take_in(place, new, token);
        }
    }

    /// Takes the guard in. Returns it if a token other than `raised_to` has been drawn meanwhile.
    fn take_in(&self, place: usize, guard: LockGuard, raised_to: Option<u64>) -> Option<LockGuard> {
        let mut again = self.again.lock();
        if self.token() != raised_to {
            return Some(guard);
        }
        // A lost whole stays lost. And no release would reach a member that is added after the
        // releases.
        if again.left || self.loss().is_some() || !guard.is_held() {
            drop(again);
            return None;
        }
        let hold = guard.share().hold().clone();
        let before = again.replace(place, guard);
        self.parts[place].replace(hold);
        drop(again);
        // After unlocking: this gives back the replaced guard, although its hold is lost already.
        drop(before);
        self.changed.notify_waiters();
        None
    }

    /// Sets the guard's token, and returns the first one that was set.
    pub(super) fn settle(&self, token: u64) -> u64 {
        // Locked, because members come back under this lock. So each of them either has been raised
        // to the token, or counts already and is raised by the caller.
        let _again = self.again.lock();
        *self.token.get_or_init(|| token)
    }
}
