//! Distributed locks on Redis and Valkey, for async and blocking Rust, on the same
//! keys as Java's Redisson.
//!
//! See [`Client`] to start, [`Lock`] for what it promises.
#![forbid(unsafe_code)]

mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
mod cleanup;
mod client;
mod clock;
mod config;
mod context;
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
pub mod testing;
mod wait;

pub use backend::memory::Embedded;
pub use client::{Activity, Client, ClientBuilder};
pub use config::{BackOff, WaitStrategy};
pub use error::{Error, ErrorKind, Result};
pub use loss::LossReason;
pub use owner::Owner;
pub use primitives::lock::{Holder, Lock, LockGuard, LockInfo, Ttl};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
