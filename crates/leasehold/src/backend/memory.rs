//! The embedded backend: a keyspace, expiry and channels in this process, without I/O. It knows
//! keys and types, but not the primitives.

#[cfg(feature = "testing")]
mod faults;
pub(crate) mod keyspace;
mod links;
#[cfg(feature = "testing")]
mod machine;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::channels::{Channels, Message, MessageJoiner, Transport};
use super::failure::Failure;
use super::step::{Operation, Value};
use crate::clock::{Clock, Moment};
use crate::sync::{Mutex, MutexGuard};
#[cfg(feature = "testing")]
pub use faults::Checkpoint;
pub(crate) use keyspace::Keyspace;
use links::Links;
#[cfg(feature = "testing")]
pub use machine::Machine;

/// The address of an embedded keyspace.
pub(crate) const ADDRESS: &str = "memory://";

/// A keyspace in memory, which the clients of one process share as they would share a server.
///
/// All clients that [`client`](Self::client) returns see the same locks. Leases are measured with
/// tokio's clock, so a test that pauses this clock decides when they end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let server = leasehold::Embedded::new();
/// let (ours, theirs) = (server.client(), server.client());
/// let guard = ours.lock("orders:42").acquire().await?;
/// assert!(theirs.lock("orders:42").try_acquire().await?.is_none());
/// guard.release().await?;
/// assert!(theirs.lock("orders:42").try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Embedded {
    memory: Memory,
}

impl Embedded {
    /// Creates an empty keyspace.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: Memory::on(Clock::runtime()),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory.clone()
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

/// The embedded backend. Clones share the keyspace.
#[derive(Clone)]
pub(crate) struct Memory {
    keyspace: Arc<Mutex<Keyspace>>,
    channels: Arc<Channels>,
    /// The clients that reach the keyspace through a network.
    links: Links,
    clock: Clock,
    /// The server's time minus the clock's time. It is large, so that a test can set the server's
    /// clock back.
    offset_ms: Arc<AtomicI64>,
    /// The time of the last restart; `None` before the first one, because the first start loses
    /// nothing.
    started: Arc<Mutex<Option<Moment>>>,
    /// The number of this keyspace in this process.
    number: u64,
}

impl Memory {
    fn on(clock: Clock) -> Self {
        const START_MS: i64 = 1_000_000_000_000;
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (channels, links) = (Channels::new(true), Links::default());
        let audience = {
            let (channels, links) = (Arc::clone(&channels), links.clone());
            Box::new(move |channel: &str| {
                // Clients without a network share these channels, so only two cases are known: no
                // client listens, or several may.
                let shared = if channels.is_live(channel) { 2 } else { 0 };
                links.subscribed(channel).saturating_add(shared)
            })
        };
        Self {
            keyspace: Arc::new(Mutex::new(Keyspace::with_audience(audience))),
            channels,
            links,
            clock,
            offset_ms: Arc::new(AtomicI64::new(START_MS)),
            started: Arc::default(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn run(&self, operation: &Operation) -> Result<Value, Failure> {
        let mut keyspace = self.keyspace_at_now();
        keyspace.sweep();
        let reply = (operation.step.twin)(&mut keyspace, &operation.parts);
        let published = std::mem::take(&mut keyspace.published);
        // Publish only after unlocking: the test's closure that decides about a message may use
        // this keyspace.
        drop(keyspace);
        let mut joiner = MessageJoiner::default();
        for (channel, message) in published {
            // The bytes are checked for UTF-8 once. They are copied only if they are not UTF-8,
            // which is rare.
            let channel = String::from_utf8(channel);
            let channel = channel
                .unwrap_or_else(|other| String::from_utf8_lossy(other.as_bytes()).into_owned());
            let deliver = |message: Message<'_>| self.publish(message);
            joiner.message(channel, &message, Transport::Global, deliver);
        }
        joiner.end(|message| self.publish(message));
        reply.map_err(|refusal| Failure::from_reply(&refusal.0, &ADDRESS.into()).of(operation.step))
    }

    fn publish(&self, message: Message<'_>) {
        self.channels.on_message(message);
        self.links.publish(message);
    }

    fn keyspace(&self) -> MutexGuard<'_, Keyspace> {
        self.keyspace.lock()
    }

    /// Locks the keyspace and sets it to the server's current time.
    fn keyspace_at_now(&self) -> MutexGuard<'_, Keyspace> {
        let now_ms = i64::try_from(self.clock.now().as_millis()).unwrap_or(i64::MAX);
        let mut keyspace = self.keyspace();
        keyspace.now_ms = u64::try_from(now_ms.saturating_add(self.offset_ms())).unwrap_or(0);
        keyspace
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.channels
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::SeqCst)
    }

    pub(crate) fn server(&self) -> String {
        // All keyspaces have the same address, so the number distinguishes them: two keyspaces are
        // two servers of a `RedLock`.
        format!("{ADDRESS}#{}", self.number)
    }

    pub(crate) fn started(&self) -> Option<Moment> {
        *self.started.lock()
    }

    /// Returns the keys that have not expired, for tests.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keyspace = self.keyspace_at_now();
        keyspace.drop_expired();
        let mut keys: Vec<_> = keyspace
            .entries
            .keys()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        keys.sort();
        keys
    }
}
