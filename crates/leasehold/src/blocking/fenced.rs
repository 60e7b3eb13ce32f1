//! [`FencedLock`], which forwards to the async one.

use super::forward::{calls, reads};
use super::lock::{Lock, LockGuard, Ownership, PerThread};
use crate::primitives::fenced::{Fenced, FencedGuard};

/// A lock with fencing tokens, for threads; see
/// [`leasehold::FencedLock`](crate::FencedLock).
pub type FencedLock<O = PerThread> = Lock<O, Fenced>;

impl<O: Ownership> Lock<O, Fenced> {
    calls! { FencedLock by as_async:
        "Returns the last token that any hold has drawn" last_token() -> Option<u64>;
    }
}

impl<O: Ownership> LockGuard<O, FencedGuard> {
    reads! { FencedGuard by as_async:
        "Returns the token of this hold" token() -> u64;
    }
}
