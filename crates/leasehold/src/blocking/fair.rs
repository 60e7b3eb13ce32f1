//! [`FairLock`], which forwards to the async one.

use std::time::Duration;

use super::forward::{calls, setters};
use super::lock::{Lock, Ownership, PerThread};
use crate::primitives::fair::Fair;

/// A lock that its waiters acquire in the order of their requests, for threads; see
/// [`leasehold::FairLock`](crate::FairLock).
pub type FairLock<O = PerThread> = Lock<O, Fair>;

impl<O: Ownership> Lock<O, Fair> {
    setters! { FairLock:
        "Sets how long a waiter keeps its place after its last request" waiter_timeout(timeout: Duration);
    }
    calls! { FairLock by as_async:
        "Returns the waiters for the lock in queue order" waiters() -> Vec<String>;
    }
}
