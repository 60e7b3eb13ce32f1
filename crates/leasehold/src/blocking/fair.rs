//! [`FairLock`]: forwards to the async one.

use std::time::Duration;

use super::forward::{setters, waits};
use super::lock::{Lock, Ownership, PerThread};
use crate::primitives::fair::Fair;

/// A lock that its waiters get in the order in which they came, for threads; see
/// [`leasehold::FairLock`](crate::FairLock).
pub type FairLock<O = PerThread> = Lock<O, Fair>;

impl<O: Ownership> Lock<O, Fair> {
    setters! { FairLock:
        "Sets how long a killed process is in the way" waiter_timeout(timeout: Duration);
    }
    waits! { FairLock by as_async:
        "The waiters in their order" waiters() -> Vec<String>;
    }
}
