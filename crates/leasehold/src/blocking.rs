//! The blocking facade: the same locks for threads.
//!
//! One thread per client owns the runtime, so leases are renewed while the caller computes. Each
//! method here forwards to the async method of the same name, whose documentation has the details.
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
//! When the drop of a guard returns, its lock has been released. This is also true when `main` ends
//! early, and for a guard in a `thread_local`. Inside a tokio runtime a drop must not wait. There,
//! call [`Client::close`] before the program ends, from outside of async tasks.
//!
//! # Panics
//!
//! A method that waits would block the executor of an async task. If it is called inside an async
//! task, it panics, and the message names the async method to use instead. Inside
//! `tokio::task::spawn_blocking` these methods work.

mod any;
mod client;
mod expirable;
mod fair;
mod fenced;
mod forward;
mod latch;
mod listing;
mod lock;
mod members;
mod runtime;
mod rw;
mod semaphore;

pub use any::AnyLock;
pub use client::Client;
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
pub use fair::FairLock;
pub use fenced::FencedLock;
pub use latch::CountDownLatch;
pub use listing::Listing;
pub use lock::{Explicit, Lock, LockGuard, Ownership, PerThread};
pub use members::{GroupLock, MultiLock, RedLock};
pub use rw::{NotUpgraded, RwLock};
pub use semaphore::{Semaphore, SemaphorePermit};
