//! The embedded backend: a keyspace, expiry and channels in this process, with no
//! I/O. It knows keys and types, and no primitive.

pub(crate) mod keyspace;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::channels::Channels;
use super::network::Link;
use super::step::{Failure, Operation, Value};
use crate::clock::{Clock, Moment};
use crate::sync::{Mutex, MutexGuard};
pub(crate) use keyspace::Keyspace;
use keyspace::Stored;

/// The address of an embedded keyspace.
pub(crate) const ADDRESS: &str = "memory://";

/// A keyspace in memory that the clients of one process share, as they would
/// share a server.
///
/// Every client made from it by [`client`](Self::client) sees the same locks. Its
/// leases run on tokio's clock, so that a test with a paused clock decides when
/// they end.
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
    /// Makes an empty keyspace.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: Memory::new(),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory.clone()
    }
}

/// What goes wrong with a server, for tests.
impl Embedded {
    /// Removes every key, as `FLUSHALL` does: silently.
    pub fn clear(&self) {
        self.memory.keyspace().entries.clear();
    }

    /// Removes one key, as `DEL` does. `true` if it was there.
    pub fn remove(&self, key: &str) -> bool {
        self.memory.at_now().del(key.as_bytes())
    }

    /// Milliseconds left of a key, as `PTTL` says: -1 without expiry, -2 without key.
    #[must_use]
    pub fn ttl_ms(&self, key: &str) -> i64 {
        self.memory.at_now().pttl(key.as_bytes())
    }

    /// The keys and values as they are now, to [roll back](Self::roll_back) to.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            entries: self.memory.keyspace().entries.clone(),
        }
    }

    /// Loses every write since `checkpoint`, as a failover to a replica that was
    /// behind does. Leases go on to end when they would have.
    pub fn roll_back(&self, checkpoint: &Checkpoint) {
        self.memory.keyspace().entries = checkpoint.entries.clone();
    }

    /// Restarts the server without its data: the keys are gone, the connections cut, and
    /// its clients learn when it started.
    pub fn restart(&self) {
        self.memory.start_anew();
        self.clear();
        self.cut_all();
    }

    /// Cuts the connections of all clients that have a
    /// [`Network`](crate::testing::Network).
    pub fn cut_all(&self) {
        for link in self.memory.links() {
            link.cut(None);
        }
    }

    /// Sets the server's clock ahead: keys expire that much earlier.
    pub fn step_clock_ahead(&self, by: Duration) {
        self.memory.step_clock(millis(by));
    }

    /// Sets the server's clock back: keys live that much longer.
    pub fn step_clock_back(&self, by: Duration) {
        self.memory.step_clock(-millis(by));
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// What an [`Embedded`] keyspace held: see [`Embedded::checkpoint`].
#[derive(Clone)]
pub struct Checkpoint {
    entries: HashMap<Vec<u8>, Stored>,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").finish_non_exhaustive()
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

type Links = Arc<Mutex<Vec<Weak<Link>>>>;

fn alive(links: &Links) -> Vec<Arc<Link>> {
    let links = links.lock();
    links.iter().filter_map(Weak::upgrade).collect()
}

/// The backend itself.
#[derive(Clone)]
pub(crate) struct Memory {
    keyspace: Arc<Mutex<Keyspace>>,
    channels: Arc<Channels>,
    /// The clients that sit behind a network.
    links: Links,
    clock: Clock,
    /// Server time minus the clock. Far enough from zero that it can be stepped
    /// back.
    offset_ms: Arc<AtomicI64>,
    /// When it was restarted last; nothing is forgotten by a start from nothing.
    started: Arc<Mutex<Option<Moment>>>,
    /// Which keyspace of this process it is.
    number: u64,
}

impl Memory {
    fn new() -> Self {
        const START_MS: i64 = 1_000_000_000_000;
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (channels, links) = (Channels::new(true), Links::default());
        let audience = {
            let (channels, links) = (Arc::clone(&channels), Arc::clone(&links));
            Box::new(move |channel: &str| {
                let linked = alive(&links).into_iter();
                let linked = linked.filter(|link| link.is_subscribed(channel)).count();
                // Those without a network share theirs: nobody listens, or more than one may.
                let shared = if channels.is_live(channel) { 2 } else { 0 };
                i64::try_from(linked)
                    .unwrap_or(i64::MAX)
                    .saturating_add(shared)
            })
        };
        Self {
            keyspace: Arc::new(Mutex::new(Keyspace::heard_by(audience))),
            channels,
            links,
            clock: Clock::runtime(),
            offset_ms: Arc::new(AtomicI64::new(START_MS)),
            started: Arc::default(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn run(&self, operation: &Operation) -> Result<Value, Failure> {
        let mut keyspace = self.at_now();
        keyspace.sweep();
        let reply = (operation.step.twin)(&mut keyspace, &operation.parts);
        let published = std::mem::take(&mut keyspace.published);
        drop(keyspace);
        for (channel, message) in published {
            self.publish(&String::from_utf8_lossy(&channel), &message);
        }
        reply.map_err(|refusal| Failure::from_reply(&refusal.0, &ADDRESS.into()).of(operation.step))
    }

    fn publish(&self, channel: &str, message: &[u8]) {
        self.channels.told(channel, message);
        for link in self.links() {
            link.publish(channel, message);
        }
    }

    fn keyspace(&self) -> MutexGuard<'_, Keyspace> {
        self.keyspace.lock()
    }

    /// The keyspace, with the server's present time.
    fn at_now(&self) -> MutexGuard<'_, Keyspace> {
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

    fn step_clock(&self, by_ms: i64) {
        self.offset_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    pub(crate) fn server(&self) -> String {
        format!("{ADDRESS}#{}", self.number)
    }

    pub(crate) fn started(&self) -> Option<Moment> {
        *self.started.lock()
    }

    fn start_anew(&self) {
        let now = self.clock.now();
        *self.started.lock() = Some(now);
    }

    /// Messages go to `link` as well, for as long as it lives.
    pub(crate) fn attach(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    fn links(&self) -> Vec<Arc<Link>> {
        alive(&self.links)
    }

    /// The keys that have not expired, for tests.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keyspace = self.at_now();
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
