//! Distributed locks on Redis and Valkey, for async and blocking Rust, on the same
//! keys as Java's Redisson.
//!
//! See [`Client`] to start, [`Lock`] for what it promises. Before the program ends, call
//! [`Client::close`]`().await`: it waits until what was dropped is given back.
#![forbid(unsafe_code)]
#![allow(
    private_interfaces,
    reason = "the kinds of locks are sealed traits: nobody outside can name or call what they are made of"
)]

mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
mod cleanup;
mod client;
mod clock;
mod config;
mod context;
mod credentials;
#[cfg(all(test, feature = "redis"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod differential;
mod error;
mod guard;
pub mod history;
mod key;
mod lease;
mod loss;
mod owner;
mod primitives;
mod renewal;
mod room;
mod standing;
pub mod testing;
mod wait;

pub use backend::memory::Embedded;
pub use client::{Activity, Client, ClientBuilder, Closed};
pub use config::{BackOff, Peers, WaitStrategy};
pub use credentials::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use loss::LossReason;
pub use owner::Owner;
pub use primitives::expirable::{ExpirablePermit, ExpirableSemaphore, LeaseLeft, PermitId};
pub use primitives::fair::{Fair, FairLock};
pub use primitives::fenced::{Fenced, FencedGuard, FencedLock};
pub use primitives::latch::CountDownLatch;
pub use primitives::lock::{FieldNames, Group, GroupLock, Member, Multi, MultiLock, Red, RedLock};
pub use primitives::lock::{Holder, Kind, Lock, LockGuard, LockInfo, OneKey, Plain, Ttl};
pub use primitives::name::{Found, HoldInfo, NameInfo, PermitInfo, ValueInfo};
pub use primitives::rw::{NotUpgraded, Read, ReadGuard, RwLock, Write, WriteGuard};
pub use primitives::semaphore::{Semaphore, SemaphorePermit};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct Fencing;
