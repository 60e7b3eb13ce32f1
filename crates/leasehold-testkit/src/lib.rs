//! Servers, faulty connections and child processes for the tests.
//!
//! Everything here is for tests. Code that can't continue panics with a message that says why, and
//! every child process is killed when its handle is dropped. This crate does not use the
//! `leasehold` crate, so tests read Redis with code that can't contain the mistakes of `leasehold`.

mod clock;
pub mod clock_shim;
pub mod cluster;
pub mod database;
pub mod fake;
pub mod fork_shim;
mod frames;
mod heard;
pub mod hosts;
mod port;
pub mod process;
pub mod proxy;
pub mod redisson;
pub mod replicas;
pub mod reply;
pub mod sentinels;
pub mod server;
mod shim;
mod tls;
mod wait;

pub use clock::monotonic_ns;
pub use clock_shim::ClockShim;
pub use cluster::Cluster;
pub use database::Database;
pub use fake::FakeServer;
pub use fork_shim::{ForkShim, fork};
pub use heard::Heard;
pub use hosts::Hosts;
pub use proxy::{Proxy, Strike};
pub use redisson::{LockKind, Redisson, RedissonVersion};
pub use replicas::Replicas;
pub use reply::Reply;
pub use sentinels::Sentinels;
pub use server::RedisServer;
pub use wait::eventually;
