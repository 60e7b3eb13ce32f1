//! The blocking facade: the same locks for threads.
//!
//! Each client has its own thread, which runs its background tasks, so leases are renewed while the
//! calling threads compute. Each method here calls the async method of the same name, whose
//! documentation has the details.
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::blocking::Client::embedded();
//! let lock = client.lock("orders:42");
//! let guard = lock.acquire()?;
//! let again = lock.acquire()?; // the same thread can acquire it again, as in Java
//! assert_eq!(again.hold_count(), 2);
//! again.release()?;
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! With [`Lock::non_reentrant`], the second acquire fails instead.
//!
//! Dropping a guard waits until its lock has been released. This is also true if `main` ends early,
//! and for a guard in a `thread_local`. Inside a tokio runtime, a drop can't wait for the release.
//! So if guards are dropped there, call [`Client::close`] before the program ends, outside of async
//! tasks.
//!
//! A thread can't be cancelled like a future. An [`Interrupt`] ends the waits of other threads.
//!
//! # Panics
//!
//! A method that waits panics if it is called inside an async task, because it would block the
//! executor. The message names the async method to use instead. Inside
//! `tokio::task::spawn_blocking` these methods work.

// Keep `lock` before the other modules: the page of `Lock` shows methods in the order of the
// modules, and this one has the most common methods.
mod lock;

mod any;
mod client;
mod election;
mod expirable;
mod fair;
mod fenced;
mod forward;
mod interrupt;
mod latch;
mod listing;
mod members;
mod runtime;
mod rw;
mod semaphore;
pub mod slot;
mod watch;

pub use any::AnyLock;
pub use client::Client;
pub use election::{Election, Term, Terms};
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
pub use fair::FairLock;
pub use fenced::FencedLock;
pub use interrupt::Interrupt;
pub use latch::CountDownLatch;
pub use listing::Listing;
pub use lock::{Explicit, Lock, LockGuard, Ownership, PerThread};
pub use members::{GroupLock, MultiLock, RedLock};
pub use rw::{NotUpgraded, RwLock};
pub use semaphore::{Semaphore, SemaphorePermit};
pub use watch::{Watch, WatchAll};
