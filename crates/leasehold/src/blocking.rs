//! The same locks for threads.
//!
//! One thread per client owns the runtime, so leases are renewed while the caller
//! computes. A method here is a forward to its async twin; the twin's docs say what
//! it promises.
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::blocking::Client::embedded();
//! let lock = client.lock("orders:42");
//! let guard = lock.acquire()?;
//! let again = lock.acquire()?; // re-entrant per thread, as in Java
//! assert_eq!(again.hold_count(), 2);
//! again.release()?;
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! A guard that is dropped has given its lock back when the drop returns, also at the early
//! end of `main` and in a `thread_local`. Inside a tokio runtime a drop must not wait: there
//! [`Client::close`] before the program ends, from outside of async tasks, sees to it.
//!
//! # Panics
//!
//! Called inside an async task, every method that waits panics and names the async
//! one: it would block the executor. Inside `tokio::task::spawn_blocking` they work.

mod client;
mod expirable;
mod fair;
mod fenced;
mod forward;
mod latch;
mod lock;
mod members;
mod runtime;
mod rw;
mod semaphore;

pub use client::Client;
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
pub use fair::FairLock;
pub use fenced::FencedLock;
pub use latch::CountDownLatch;
pub use lock::{Explicit, Lock, LockGuard, Ownership, PerThread};
pub use members::{GroupLock, Member, MultiLock, RedLock};
pub use rw::{NotUpgraded, RwLock};
pub use semaphore::{Semaphore, SemaphorePermit};
