//! The fenced lock: a plain lock whose holds carry a rising number.

pub(in crate::primitives) mod draw;
pub(crate) mod steps;

use std::ops::Deref;
use std::time::Duration;

use super::lock::kind::{Acquire, FromLockGuard, Named};
use super::lock::steps::{self as lock_steps, LockHold};
use super::lock::{Kind, Lock, LockGuard, acquire};
use crate::backend::step::Operation;
use crate::error::Result;
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::primitives::request;
use crate::wait::Deadline;
use steps::FencedHold;

/// A lock whose holds carry a *fencing token*: a number that rises from hold to hold.
///
/// A holder may have lost the lock without knowing it, because its process was suspended or its
/// request was delayed. The lock alone can't stop such a holder. So pass the token to the protected
/// resource with each change, and let the resource refuse a token that is lower than the greatest
/// token it has seen. `docs/fencing.md` in the repository has such checks for databases, Redis,
/// HTTP services and object stores.
///
/// A fenced lock and the plain [`Lock`] of the same name are one lock, so they exclude each other.
/// But an acquire of the plain lock does not draw a token. The guard of a plain lock or of another
/// kind can draw a token later ([`LockGuard::fencing_token`]). Redisson's `RLock` has no tokens.
/// This library and Redisson's `RFencedLock` use the same counter, so the tokens of the two rise
/// together.
///
/// Tokens are whole numbers from 1 to 2^53 - 1. Each token is greater than the previous one, and at
/// least as great as the server's time in microseconds. So tokens rise even after the server has
/// lost the counter. (But the first token that *Java* draws after such a loss is 1.) All guards of
/// an [`Owner`](crate::Owner) have the token of their hold.
///
/// The counter stays on the server forever, as in Redisson. If the client's peers are
/// [`RustOnly`](crate::settings::Peers::RustOnly), the counter is removed a day after its last use.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let lock = client.fenced_lock("orders:42");
/// let first = lock.acquire().await?;
/// let token = first.token(); // pass it with every change
/// first.release().await?;
/// assert!(lock.acquire().await?.token() > token);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RFencedLock")]
#[doc(alias = "getFencedLock")]
pub type FencedLock = Lock<Fenced>;

/// The kind of [`FencedLock`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Fenced;

impl Kind for Fenced {
    type Guard = FencedGuard;
}

impl Acquire for Fenced {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        loop {
            let Some(guard) = acquire::acquire_by(lock, deadline).await? else {
                return Ok(None);
            };
            if guard.token().is_some() {
                return Ok(Some(guard));
            }
            // This is a re-entry into a hold that was acquired without a token.
            match draw::token_of(guard.share()).await {
                Ok(_) => return Ok(Some(guard)),
                // The hold was lost in the meantime, so this acquire requests the lock again.
                Err(_) if !guard.is_held() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Named for Fenced {
    const CAN_BE_KEPT: bool = true;

    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        // The hash is the same as for a plain lock, so that the two kinds exclude each other under
        // one name.
        let hold = LockHold::new(key.clone(), lock.channel(), id);
        Box::new(FencedHold::new(hold, key, lock.context().peers))
    }

    fn inspect(&self, key: &Key) -> Operation {
        lock_steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        lock_steps::force_unlock(key, channel, by)
    }
}

impl FencedLock {
    /// Returns the last token that any hold has drawn. `None` if no token was drawn, or the counter
    /// no longer exists. For the token of one hold, see [`FencedGuard::token`].
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    #[doc(alias = "getToken")]
    pub async fn last_token(&self) -> Result<Option<u64>> {
        let key = self.key()?;
        let reply = request::query(self.context(), key, steps::last_token_of(key)).await?;
        let last = request::integer(self.context(), key, &reply)?;
        Ok(u64::try_from(last).ok().filter(|token| *token > 0))
    }
}

/// A [`LockGuard`] with a fencing token.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct FencedGuard {
    guard: LockGuard,
    token: u64,
}

impl FencedGuard {
    /// Returns the token of this hold, which is greater than the token of every earlier hold. The
    /// token never belongs to another hold, even after this hold is lost.
    #[doc(alias = "lockAndGetToken")]
    #[doc(alias = "tryLockAndGetToken")]
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
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
        self.guard.release().await
    }

    /// Ends the guard without releasing the lock, which stays locked until its lease ends: see
    /// [`LockGuard::forget`].
    pub fn forget(self) {
        self.guard.forget();
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
        self.guard.keep_for(span).await
    }
}

impl FromLockGuard for FencedGuard {
    fn from_lock_guard(guard: LockGuard) -> Self {
        // The grant contained the token, or the re-entry has drawn it.
        let token = guard.token().unwrap_or_default();
        Self { guard, token }
    }
}

impl From<FencedGuard> for LockGuard {
    fn from(fenced: FencedGuard) -> Self {
        fenced.guard
    }
}

impl AsRef<LockGuard> for FencedGuard {
    fn as_ref(&self) -> &LockGuard {
        &self.guard
    }
}

impl Deref for FencedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}
