//! Members that were set again while the whole was held: their guards.

use std::ops::Deref;
use std::sync::Arc;

use super::quorum::Members;
use crate::primitives::fenced::draw;
use crate::primitives::lock::LockGuard;

/// The guards of members that were set again, by the places of the members.
#[derive(Default)]
pub(super) struct Again {
    guards: Vec<Option<Arc<LockGuard>>>,
    /// The guard of the whole has gone.
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

/// Gives those guards back with the guard of the whole. From then on no member is set again.
pub(super) struct Returned(Arc<Members>);

impl Returned {
    pub(super) fn of(members: &Arc<Members>) -> Self {
        Self(Arc::clone(members))
    }

    /// Those guards; and from here on no member is set again.
    pub(super) fn take(&self) -> Vec<Option<LockGuard>> {
        let guards = {
            let mut again = self.0.again.lock();
            again.left = true;
            std::mem::take(&mut again.guards)
        };
        self.0.changed.notify_waiters();
        // Nobody else has one: whoever uses them has borrowed the guard of the whole.
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
    /// Resolves when no member is to be set again any more: the guard has gone, or the whole is
    /// lost.
    pub(super) async fn over(self: &Arc<Self>) {
        let left = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Registered before the look, or a change between the two would be missed.
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

    /// The member at this place counts again, by this guard. It is dropped, and so given back, if
    /// the whole is over by now.
    pub(super) async fn adopt(&self, place: usize, guard: LockGuard) {
        if let Some((since, limit)) = self.parts[place].limit() {
            guard.share().limit(limit, since);
        }
        let mut guard = Some(guard);
        while let Some(new) = guard.take() {
            let token = self.token();
            // The server has forgotten its counter. The next holder's token must be above this one's,
            // even if this is the only server that the two have in common.
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
        // Lost is final, and what the releases do not reach would stay.
        if again.left || self.loss().is_some() || !guard.is_held() {
            drop(again);
            return None;
        }
        let hold = guard.share().hold().clone();
        let before = again.replace(place, guard);
        self.parts[place].replace(hold);
        drop(again);
        // Behind the lock: it is given back, although nobody has it any more.
        drop(before);
        self.changed.notify_waiters();
        None
    }

    /// The guard's token: the first one that was drawn.
    pub(super) fn settle(&self, token: u64) -> u64 {
        // Under the lock under which members come back: each of them has heard of the token, or is
        // among those that count by now.
        let _again = self.again.lock();
        *self.token.get_or_init(|| token)
    }
}
