//! The embedded backend: a keyspace, expiry and channels in this process, with no
//! I/O. It knows keys and types, and no primitive.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::channels::Channels;
use super::network::Link;
use super::step::{Failure, Operation, Refusal, Value};
use crate::clock::Clock;

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

/// The backend itself.
#[derive(Clone)]
pub(crate) struct Memory {
    keyspace: Arc<Mutex<Keyspace>>,
    channels: Arc<Channels>,
    /// The clients that sit behind a network.
    links: Arc<Mutex<Vec<Weak<Link>>>>,
    clock: Clock,
    /// Server time minus the clock. Far enough from zero that it can be stepped
    /// back.
    offset_ms: Arc<AtomicI64>,
}

impl Memory {
    fn new() -> Self {
        const START_MS: i64 = 1_000_000_000_000;
        Self {
            keyspace: Arc::default(),
            channels: Channels::new(true),
            links: Arc::default(),
            clock: Clock::runtime(),
            offset_ms: Arc::new(AtomicI64::new(START_MS)),
        }
    }

    pub(crate) fn run(&self, operation: &Operation) -> Result<Value, Failure> {
        let mut keyspace = self.at_now();
        keyspace.sweep();
        let reply = (operation.step.twin)(&mut keyspace, &operation.parts);
        let published = std::mem::take(&mut keyspace.published);
        drop(keyspace);
        for channel in published {
            self.publish(&String::from_utf8_lossy(&channel));
        }
        reply.map_err(|refusal| Failure::from_reply(&refusal.0, &ADDRESS.into()))
    }

    fn publish(&self, channel: &str) {
        self.channels.wake(channel);
        for link in self.links() {
            link.publish(channel);
        }
    }

    fn keyspace(&self) -> MutexGuard<'_, Keyspace> {
        self.keyspace.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Messages go to `link` as well, for as long as it lives.
    pub(crate) fn attach(&self, link: &Arc<Link>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter_map(Weak::upgrade).collect()
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

/// Keys with their values and expiry: what a step's twin works on. Method names
/// and rules are the server's own commands.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    entries: HashMap<Vec<u8>, Stored>,
    published: Vec<Vec<u8>>,
    now_ms: u64,
    steps_since_sweep: u32,
}

#[derive(Clone, Debug)]
struct Stored {
    content: Content,
    expires_at_ms: Option<u64>,
}

/// A hash.
type Fields = BTreeMap<Vec<u8>, Vec<u8>>;
/// A field with its value.
type Field = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug)]
enum Content {
    Hash(Fields),
    #[cfg_attr(not(test), expect(dead_code))]
    Text(Vec<u8>),
}

impl Keyspace {
    fn live(&mut self, key: &[u8]) -> Option<&mut Stored> {
        let now_ms = self.now_ms;
        // The server's own rule: a key lives through the millisecond it ends in.
        let over = |stored: &Stored| stored.expires_at_ms.is_some_and(|at| now_ms > at);
        if self.entries.get(key).is_some_and(over) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Fields>, Refusal> {
        match self.live(key) {
            None => Ok(None),
            Some(Stored {
                content: Content::Hash(fields),
                ..
            }) => Ok(Some(fields)),
            Some(_) => Err(Refusal::wrong_type()),
        }
    }

    pub(crate) fn hlen(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        Ok(self.hash(key)?.map_or(0, |fields| fields.len()))
    }

    pub(crate) fn hexists(&mut self, key: &[u8], field: &[u8]) -> Result<bool, Refusal> {
        Ok(self
            .hash(key)?
            .is_some_and(|fields| fields.contains_key(field)))
    }

    pub(crate) fn hgetall(&mut self, key: &[u8]) -> Result<Vec<Field>, Refusal> {
        Ok(self.hash(key)?.map_or_else(Vec::new, |fields| {
            fields
                .iter()
                .map(|(field, value)| (field.clone(), value.clone()))
                .collect()
        }))
    }

    pub(crate) fn hset(&mut self, key: &[u8], field: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if self.live(key).is_none() {
            self.entries.insert(
                key.to_vec(),
                Stored {
                    content: Content::Hash(BTreeMap::new()),
                    expires_at_ms: None,
                },
            );
        }
        if let Some(fields) = self.hash(key)? {
            fields.insert(field.to_vec(), value.to_vec());
        }
        Ok(())
    }

    /// The hash goes with its last field.
    pub(crate) fn hdel(&mut self, key: &[u8], field: &[u8]) -> Result<bool, Refusal> {
        let Some(fields) = self.hash(key)? else {
            return Ok(false);
        };
        let removed = fields.remove(field).is_some();
        if fields.is_empty() {
            self.entries.remove(key);
        }
        Ok(removed)
    }

    pub(crate) fn del(&mut self, key: &[u8]) -> bool {
        self.live(key).is_some() && self.entries.remove(key).is_some()
    }

    pub(crate) fn pexpire(&mut self, key: &[u8], ms: u64) {
        let at = self.now_ms.saturating_add(ms);
        if let Some(stored) = self.live(key) {
            stored.expires_at_ms = Some(at);
        }
    }

    /// Milliseconds left; -1 without expiry, -2 without key.
    pub(crate) fn pttl(&mut self, key: &[u8]) -> i64 {
        let now_ms = self.now_ms;
        match self.live(key) {
            None => -2,
            Some(stored) => stored.expires_at_ms.map_or(-1, |at| {
                i64::try_from(at.saturating_sub(now_ms)).unwrap_or(i64::MAX)
            }),
        }
    }

    pub(crate) fn publish(&mut self, channel: &[u8]) {
        self.published.push(channel.to_vec());
    }

    /// Expired keys go when they are looked at; those nobody looks at go here.
    fn sweep(&mut self) {
        const STEPS: u32 = 4096;
        self.steps_since_sweep += 1;
        if self.steps_since_sweep >= STEPS.max(self.entries.len() as u32) {
            self.steps_since_sweep = 0;
            self.drop_expired();
        }
    }

    fn drop_expired(&mut self) {
        let now_ms = self.now_ms;
        self.entries
            .retain(|_, stored| stored.expires_at_ms.is_none_or(|at| now_ms <= at));
    }
}

#[cfg(test)]
impl Keyspace {
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.live(key)? {
            Stored {
                content: Content::Text(text),
                ..
            } => Some(text.clone()),
            _ => None,
        }
    }

    /// Sets a plain text without expiry, as a stranger would.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        let stored = Stored {
            content: Content::Text(value.to_vec()),
            expires_at_ms: None,
        };
        self.entries.insert(key.to_vec(), stored);
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
    }
}
