//! Distributed locks and synchronizers on Redis and Valkey, for async and blocking Rust. They use
//! the same keys as Java's Redisson, so Rust and Java programs can share a lock.
//!
//! The server grants a lock for a limited time, its *lease*, and the client renews the lease in the
//! background. If the lock is lost, its holder learns of the loss and its reason before the server
//! grants the lock to another client ([`LockGuard::lost`]). If a holder is killed, its lock is free
//! after at most one lease. `docs/guarantees.md` in the repository lists the conditions of each
//! promise.
//!
//! # The first lock
//!
//! ```no_run
//! # async fn first() -> leasehold::Result<()> {
//! let client = leasehold::Client::connect("redis://127.0.0.1").await?;
//! let lock = client.lock("orders:42");
//!
//! let guard = lock.acquire().await?; // waits until the lock is free
//! // ... work that only one process at a time may do ...
//! guard.release().await?; // dropping the guard also releases the lock
//!
//! client.close().await; // waits until the locks of dropped guards are released
//! # Ok(())
//! # }
//! ```
//!
//! A guard must be kept while the work runs: see [three ways to lose a
//! guard](LockGuard#three-ways-to-lose-a-guard).
//!
//! Call [`Client::close`]`().await` before the program ends. A dropped guard releases its lock in
//! the background, and a runtime that ends cancels its background tasks.
//!
//! # Which primitive to use
//!
//! | I need | use |
//! |---|---|
//! | one holder at a time | [`Lock`], from [`Client::lock`] |
//! | one holder at a time, first come, first served | [`FairLock`] |
//! | many readers or one writer | [`RwLock`] |
//! | one holder at a time, and a number by which a database can refuse a former holder | [`FencedLock`] |
//! | several locks, all of them or none | [`MultiLock`]; for several values of one group, [`GroupLock`] |
//! | a lock that survives the loss of a server | [`RedLock`], on three or five independent servers |
//! | a lock whose kind is chosen at run time | [`AnyLock`] |
//! | at most N holders at a time | [`ExpirableSemaphore`]; [`Semaphore`] if no process is ever killed |
//! | to wait until N things are done | [`CountDownLatch`] |
//! | one of several replicas to work, and the others to know which | [`Election`] |
//!
//! The locks and semaphores have the same methods for waiting: `acquire`, `try_acquire`,
//! `try_acquire_for` and `try_acquire_until`. (An [`RwLock`] has such methods for `read` and
//! `write`.) [`blocking`] has all of these types for threads. An async lock is not re-entrant by
//! itself. A task that must be able to acquire a lock that it already holds passes an [`Owner`].
//!
//! A client belongs to the tokio runtime in which it is made: its background tasks run there. Any
//! executor can poll the client's futures. Outside that runtime, the futures use a timer thread,
//! which the process starts when it is first needed.
//!
//! # What can go wrong
//!
//! A lock that another client holds is not an error: `try_acquire`, `try_acquire_for` and
//! `try_acquire_until` return `Ok(None)`. The [kind](ErrorKind) of an [`Error`] says what the
//! caller can do. [`Unavailable`](ErrorKind::Unavailable) and
//! [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) are transient ([`Error::is_transient`]).
//! [`Lost`](ErrorKind::Lost) means *stop the protected work*, and carries a [`LossReason`]. With
//! any other kind, the call fails again until you change what the message names.
//!
//! A lock cannot stop a process that does not check it. If the work must never overlap with the
//! work of another holder, watch [`LockGuard::lost`], run the work inside [`LockGuard::protect`],
//! or pass a [fencing token](LockGuard::fencing_token) to the system that it writes to.
//!
//! # Testing
//!
//! [`Client::embedded`] and [`Embedded`] provide the same locks inside the process, without a
//! server. On tokio's paused clock, a lease of 30 s passes instantly. With the feature `testing`,
//! the module [`testing`] simulates a network that loses, delays and duplicates requests, and
//! checks whether two holds overlapped.
//!
//! # When not to use Leasehold
//!
//! - Inside one process: the locks of `tokio::sync` and `std::sync` are faster and cannot be lost.
//! - If two holders at once would be a disaster and nothing checks a fencing token. A process may
//!   be stopped for longer than its lease, and then no lock with a lease can keep other holders
//!   out.
//! - If the data is in one database that has its own locks or conditional writes.
//!
//! # Features
//!
//! - `redis` (default): servers over TCP and Unix sockets. Without this feature, only the embedded
//!   keyspace is available.
//! - `tls`: `rediss://`, with rustls.
//! - `blocking` (default): the facade for threads.
//! - `macros`: the attribute [`locked`](macro@locked), which runs a function under a lock.
//! - `metrics`: counters, histograms and gauges through the `metrics` facade (`docs/metrics.md` in
//!   the repository).
//! - `testing`: the module [`testing`], for tests of code that uses locks. A build without the
//!   feature contains none of its code.
//!
//! Warnings and spans are emitted through [`tracing`] (`docs/tracing.md` in the repository).
// `forbid`, not `deny`: a module could override `deny` for itself.
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
// This module is here and not in `tests/`, because steps and twins are private.
#[cfg(all(test, unix, feature = "redis"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod differential;
mod error;
mod guard;
mod hold;
mod key;
mod leave;
mod local;
mod loss;
mod observe;
mod operate;
mod owner;
mod pattern;
mod primitives;
mod process;
mod recipes;
mod shrink;
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
pub use primitives::group::GroupLock;
pub use primitives::guards::Guard;
pub use primitives::latch::CountDownLatch;
pub use primitives::lock::{Lock, LockGuard};
pub use primitives::rw::{NotUpgraded, ReadGuard, RwLock, WriteGuard};
pub use primitives::semaphore::{Semaphore, SemaphorePermit};
pub use recipes::election::{Election, Leader, Term, Terms};
#[cfg(feature = "macros")]
pub use recipes::locked::{Busy, locked};
pub use recipes::progress::Progress;

/// The kinds of a [`Lock`], for code that is generic over them. If the kind is known only at run
/// time, use an [`AnyLock`].
///
/// ```
/// use leasehold::kind::Kind;
/// use leasehold::{Lock, LockGuard, Result};
///
/// /// Works with every kind of lock: plain, fair, fenced, a side of an `RwLock`, several locks.
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
    pub use crate::primitives::group::{FieldNames, Group};
    pub use crate::primitives::lock::{Kind, OneKey, Plain};
    pub use crate::primitives::rw::{Read, Write};
}

/// The types that describe what is stored under a name, and what a client is doing.
///
/// [`Client::inspect`] recognises every kind of lock and synchronizer, including those that
/// Redisson created. [`Lock::inspect`] returns the holder of one lock.
pub mod inspect {
    pub use crate::backend::facts::ServerFacts;
    pub use crate::client::Activity;
    pub use crate::operate::holds::HeldInfo;
    pub use crate::operate::name::{
        Found, HoldInfo, LeftOut, Listed, Listing, NameInfo, NodeInfo, PermitInfo, ValueInfo,
        WaiterInfo, Wants,
    };
    pub use crate::operate::presence::ClientInfo;
    pub use crate::primitives::lock::{Holder, LockInfo, Ttl};
}

/// The types that report the changes of names: see [`Client::watch`].
pub mod watch {
    pub use crate::recipes::watch::{Change, NamedChange, Party, Watch, WatchAll};
}

/// The types for jobs that run once per time slot, or once per id: see [`Lock::once_per`] and
/// [`Lock::once_for`].
pub mod slot {
    pub use crate::recipes::slot::{Begin, Turn, TurnInfo, TurnState, Turns};
}

/// Holds that pass from one process to another: see [`LockGuard::into_ticket`] and
/// [`Client::resume`].
pub mod ticket {
    pub use crate::recipes::ticket::{Ticket, TicketKind};
}

/// The types that a client passes to its hooks: see [`ClientBuilder::on_acquired`].
pub mod hooks {
    pub use crate::observe::{Acquired, Ending, Lost, Stalling, Waiting};
}

/// Checks that refuse writes by late holders: SQL statements for databases, scripts for Redis, and
/// checks for HTTP services and object stores. This module sends nothing itself: it returns
/// statements, scripts and decisions, so it works with any driver.
///
/// A fencing token rises from hold to hold: see [`FencedGuard::token`] and
/// [`LockGuard::fencing_token`]. A resource that remembers the greatest token, its *fence*, can
/// refuse a holder that has lost its lock and does not know it yet. Equal tokens are accepted,
/// because a holder may write several times.
pub mod fence {
    pub use crate::recipes::fence::{
        Dialect, Fences, LIMIT, Sql, Stale, bind, http, object, redis, verdict,
    };
}

/// The types of some settings of a [`ClientBuilder`], and of handles such as [`Lock`].
pub mod settings {
    pub use crate::config::{Backoff, Peers, WaitStrategy};
    pub use crate::credentials::Credentials;
    #[cfg(feature = "tls")]
    pub use crate::tls::Identity;
}

/// Compiles and runs the example of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CratePage;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the examples of the first page of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start.md")]
struct StartPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/choose.md")]
struct Choose;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides.md")]
struct Guides;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/watch.md")]
struct WatchPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/election.md")]
struct ElectionPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-redisson.md")]
struct FromRedisson;

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../../../docs/locked.md")]
struct Locked;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct Fencing;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/slots.md")]
struct SlotsPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/tickets.md")]
struct TicketsPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/progress.md")]
struct ProgressPage;
