//! Distributed locks and synchronizers on Redis and Valkey, for async and blocking Rust, on
//! the same keys as Java's Redisson.
//!
//! A lock is held on a server for a *lease*, which the client renews in the background. The
//! holder learns that its lock is lost, and why, before the server gives the lock to anybody
//! else ([`LockGuard::lost`]; `docs/guarantees.md` in the repository names the conditions of
//! each promise). A holder that is killed keeps others out for one lease at most.
//!
//! # The first lock
//!
//! ```no_run
//! # async fn first() -> leasehold::Result<()> {
//! let client = leasehold::Client::connect("redis://127.0.0.1").await?;
//! let lock = client.lock("orders:42");
//!
//! let guard = lock.acquire().await?; // waits until the lock is free
//! // ... the work that one process at a time may do ...
//! guard.release().await?; // dropping the guard releases the lock, too
//!
//! client.close().await; // waits until everything that was dropped is released
//! # Ok(())
//! # }
//! ```
//!
//! Before the program ends, call [`Client::close`]`().await`: a guard that is dropped releases
//! its lock in the background, and a runtime that ends takes its background tasks with it.
//!
//! # Which kind
//!
//! | I need | take |
//! |---|---|
//! | one at a time | [`Lock`], from [`Client::lock`] |
//! | the same, first come, first served | [`FairLock`] |
//! | many readers or one writer | [`RwLock`] |
//! | a number that rises with each holder, so that a database can refuse an old one | [`FencedLock`] |
//! | several locks, all or none of them | [`MultiLock`]; several values of one group: [`GroupLock`] |
//! | a lock that outlives the loss of a server | [`RedLock`], on three or five independent servers |
//! | one of these, chosen at run time | [`AnyLock`] |
//! | at most N at a time | [`ExpirableSemaphore`]; [`Semaphore`] where no process is ever killed |
//! | to wait until N things are done | [`CountDownLatch`] |
//!
//! Each of them waits in the same ways (`acquire`, `try_acquire`, `try_acquire_for`,
//! `try_acquire_until`), and [`blocking`] has all of them for threads. An acquire is anonymous:
//! a task that must be able to acquire what it already holds passes an [`Owner`] along.
//!
//! A client belongs to the tokio runtime in which it is made, and its tasks run there. Its futures
//! can be polled by any executor: outside of that runtime they sleep by a thread of the process, which is
//! started when the first one does.
//!
//! # What can go wrong
//!
//! *Somebody else holds it* is no error: `try_acquire` and the acquires with a limit return
//! `Ok(None)`. An [`Error`] says by its [kind](ErrorKind) what the caller can do:
//! [`Unavailable`](ErrorKind::Unavailable) and [`OutcomeUnknown`](ErrorKind::OutcomeUnknown)
//! pass ([`Error::is_transient`]); [`Lost`](ErrorKind::Lost) means *stop the protected work*,
//! and carries a [`LossReason`]; the others say what to change.
//!
//! A lock cannot stop a process that does not look. Work that must never run twice at the same
//! time watches [`LockGuard::lost`], runs inside [`LockGuard::protect`], or hands a
//! [fencing token](LockGuard::fencing_token) to whatever it writes to.
//!
//! # Testing
//!
//! [`Client::embedded`] and [`Embedded`] are the same locks inside the process, without a
//! server: on tokio's paused clock a lease of 30 s passes in no time. With the feature `testing`
//! the module [`testing`] puts a network between clients and keyspace that loses, delays and
//! doubles requests, and judges whether two holds overlapped.
//!
//! # When not to use it
//!
//! - Inside one process: `tokio::sync` and `std::sync` are faster and cannot be lost.
//! - Where two holders at once would be a disaster and nothing checks a fencing token: no lock
//!   with a lease can promise that against a process that was stopped for longer than its lease.
//! - Where the data live in one database that has locks or conditional writes of its own.
//!
//! # Features
//!
//! - `redis` (default): servers over TCP and unix sockets. Without it there is only the
//!   embedded keyspace.
//! - `tls`: `rediss://`, with rustls.
//! - `blocking` (default): the facade for threads.
//! - `metrics`: counters, times and gauges through the facade `metrics` (`docs/metrics.md` in the
//!   repository).
//! - `testing`: the module [`testing`], for tests of code that locks. Nothing of it is in a
//!   build without the feature.
//!
//! Warnings and spans go through [`tracing`] (`docs/tracing.md` in the repository).
// Not `deny`, which a module could lift for itself.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acknowledgement;
mod address_map;
mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
mod config;
mod context;
mod credentials;
// Here and not in `tests/`: steps and twins are private.
#[cfg(all(test, feature = "redis"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod differential;
mod error;
mod exchange;
mod guard;
mod hold;
mod key;
mod local;
mod loss;
mod observe;
mod owner;
mod pattern;
mod primitives;
mod process;
mod room;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod wait;

pub use acknowledgement::Acknowledgement;
pub use backend::memory::Embedded;
pub use client::{Client, ClientBuilder, Closed};
pub use error::{Error, ErrorKind, Result};
pub use loss::LossReason;
pub use owner::Owner;
pub use primitives::any::AnyLock;
pub use primitives::composite::{MultiLock, RedLock};
pub use primitives::expirable::{ExpirablePermit, ExpirableSemaphore, PermitId};
pub use primitives::fair::FairLock;
pub use primitives::fenced::{FencedGuard, FencedLock};
pub use primitives::guards::Guard;
pub use primitives::latch::CountDownLatch;
pub use primitives::lock::{GroupLock, Lock, LockGuard};
pub use primitives::rw::{NotUpgraded, ReadGuard, RwLock, WriteGuard};
pub use primitives::semaphore::{Semaphore, SemaphorePermit};

/// What a [`Lock`] is a lock of: for code that is generic over the kinds. Where the kind is known at
/// run time only, take an [`AnyLock`].
///
/// ```
/// use leasehold::kind::Kind;
/// use leasehold::{Lock, LockGuard, Result};
///
/// /// Runs with any kind of lock: plain, fair, fenced, the sides of an `RwLock`, several as one.
/// async fn update<K: Kind>(lock: &Lock<K>) -> Result<()> {
///     let guard: LockGuard = lock.acquire().await?.into();
///     guard.release().await
/// }
/// ```
pub mod kind {
    pub use crate::primitives::any::Any;
    pub use crate::primitives::composite::{Majority, Multi};
    pub use crate::primitives::fair::Fair;
    pub use crate::primitives::fenced::Fenced;
    pub use crate::primitives::lock::{FieldNames, Group, Kind, OneKey, Plain};
    pub use crate::primitives::rw::{Read, Write};
}

/// What stands under a name, and what a client has under way.
///
/// [`Client::inspect`] recognises every kind of lock and synchronizer, also those that Redisson
/// made; [`Lock::inspect`] tells the holder of one lock.
pub mod inspect {
    pub use crate::backend::facts::ServerFacts;
    pub use crate::client::Activity;
    pub use crate::primitives::holds::HeldInfo;
    pub use crate::primitives::lock::{Holder, LockInfo, Ttl};
    pub use crate::primitives::name::{
        Found, HoldInfo, LeftOut, Listed, Listing, NameInfo, NodeInfo, PermitInfo, ValueInfo,
        WaiterInfo, Wants,
    };
    pub use crate::primitives::presence::ClientInfo;
}

/// What the hooks of a client are called with: see [`ClientBuilder::on_acquired`].
pub mod hooks {
    pub use crate::observe::{Acquired, Lost, Waiting};
}

/// Values for the settings of a [`ClientBuilder`] and of the handles.
pub mod settings {
    pub use crate::config::{Backoff, Peers, WaitStrategy};
    pub use crate::credentials::Credentials;
    #[cfg(feature = "tls")]
    pub use crate::tls::Identity;
}

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct Fencing;
