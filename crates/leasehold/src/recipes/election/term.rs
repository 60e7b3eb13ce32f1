//! The guard of an election: one term of one leader.

use std::ops::Deref;
use std::sync::Arc;

use super::Pause;
use crate::error::Result;
use crate::primitives::fenced::FencedGuard;
use crate::primitives::lock::LockGuard;

/// A term: the time during which one candidate leads. `Election::stand` returns it.
///
/// The term ends when it is resigned or dropped, or when the leadership is lost. The client renews
/// its lease in the background until then. All methods of [`LockGuard`] work on a term:
/// [`lost`](LockGuard::lost) resolves when the leadership is lost, before another candidate can
/// lead, and [`protect`](LockGuard::protect) runs work until that happens.
///
/// **Pass [`token`](Self::token) with each write.** A leader that was suspended does not know yet
/// that another candidate leads. Asking the server does not help: the answer may be out of date
/// before the write arrives. So there is no `is_leader`. But a database can refuse every token that
/// is lower than the greatest one it has seen, and so refuses the former leader.
#[must_use = "the term ends as soon as it is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct Term {
    guard: FencedGuard,
    /// This field is dropped after the guard.
    pause: PauseAtEnd,
}

/// Begins the pause of the candidate when its term ends.
#[derive(Debug)]
struct PauseAtEnd(Arc<Pause>);

impl Drop for PauseAtEnd {
    fn drop(&mut self) {
        self.0.begin();
    }
}

impl Term {
    pub(super) fn new(guard: FencedGuard, pause: Arc<Pause>) -> Self {
        Self {
            guard,
            pause: PauseAtEnd(pause),
        }
    }

    /// Returns the fencing token of this term. It is greater than the token of every earlier term
    /// of this name, even after the server has lost its data.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// Ends the term, and reports whether this candidate led until then. The entry of the leader is
    /// removed in the same request. The candidate and its clones wait for one
    /// [`poll_interval`](super::Election::poll_interval) before they try again, so that another
    /// candidate can lead.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if another candidate may have led in the
    /// meantime. `Unavailable` or `OutcomeUnknown` if no server answered. In that case the client
    /// sends the request again in the background, and the term ends at most one lease after its
    /// last renewal.
    ///
    /// # Cancel safety
    ///
    /// Once `resign` has been called, the term ends even if the future is dropped.
    pub async fn resign(self) -> Result<()> {
        let Self { guard, pause } = self;
        let resigned = guard.release().await;
        drop(pause);
        resigned
    }
}

impl From<Term> for LockGuard {
    fn from(term: Term) -> Self {
        term.guard.into()
    }
}

impl AsRef<LockGuard> for Term {
    fn as_ref(&self) -> &LockGuard {
        &self.guard
    }
}

impl Deref for Term {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}
