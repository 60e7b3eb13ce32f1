//! Faults that a test causes in an embedded keyspace.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::keyspace::Stored;
use super::{Embedded, Memory};
use crate::backend::network::Link;

/// Faults of a server, for tests.
impl Embedded {
    /// Removes every key without notifying any client, as `FLUSHALL` does.
    pub fn clear(&self) {
        self.memory.keyspace().entries.clear();
    }

    /// Removes one key, as `DEL` does. Returns `true` if the key existed.
    pub fn remove(&self, key: &str) -> bool {
        self.memory.keyspace_at_now().del(key.as_bytes())
    }

    /// Returns the time until a key expires, in milliseconds, as `PTTL` does: -1 if the key has no
    /// expiry, -2 if there is no such key.
    #[must_use]
    pub fn ttl_ms(&self, key: &str) -> i64 {
        self.memory.keyspace_at_now().pttl(key.as_bytes())
    }

    /// Returns a copy of the current keys and values, for [`roll_back`](Self::roll_back).
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            entries: self.memory.keyspace().entries.clone(),
        }
    }

    /// Undoes every write since `checkpoint`, as a failover to a replica that lagged does. Leases
    /// still end at the times at which they would have ended.
    pub fn roll_back(&self, checkpoint: &Checkpoint) {
        self.memory.keyspace().entries = checkpoint.entries.clone();
    }

    /// Starts to record the ids of holds that end, for [`ids_used_again`](Self::ids_used_again).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let server = leasehold::Embedded::new();
    /// server.note_ids();
    /// let lock = server.client().lock("orders:42");
    /// for _ in 0..2 {
    ///     lock.acquire().await?.release().await?;
    /// }
    /// assert!(server.ids_used_again().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn note_ids(&self) {
        self.memory.keyspace().removed.get_or_insert_default();
    }

    /// Returns the ids that were granted again after their hold had ended, each with the name of
    /// its lock. A client uses an id for only one hold, so the list is empty unless a request
    /// arrives late or twice. Without a call of [`note_ids`](Self::note_ids), the list is always
    /// empty.
    #[must_use]
    pub fn ids_used_again(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let keyspace = self.memory.keyspace();
        let rewritten = keyspace.removed.iter().flat_map(|noted| &noted.rewritten);
        rewritten.map(|(key, id)| (text(key), text(id))).collect()
    }

    /// Restarts the server without its data: all keys are lost, and all connections are closed.
    /// When the clients reconnect, they learn the server's new start time, which shows that it was
    /// restarted.
    pub fn restart(&self) {
        *self.memory.started.lock() = Some(self.memory.clock.now());
        self.clear();
        // Cut the connections last: a cut connection is open again at once, and must report the new
        // start time and find no keys.
        self.cut_all();
    }

    /// Closes the connections of all clients that have a [`Network`](crate::testing::Network).
    pub fn cut_all(&self) {
        for link in self.memory.links.alive() {
            link.cut(None);
        }
    }

    /// Sets the server's clock ahead by `by`, so that keys expire earlier by this duration.
    pub fn step_clock_ahead(&self, by: Duration) {
        self.step_clock(millis(by));
    }

    /// Sets the server's clock back by `by`, so that keys expire later by this duration.
    pub fn step_clock_back(&self, by: Duration) {
        self.step_clock(-millis(by));
    }

    fn step_clock(&self, by_ms: i64) {
        self.memory.offset_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The content of an [`Embedded`] keyspace at one moment: see [`Embedded::checkpoint`].
#[derive(Clone)]
pub struct Checkpoint {
    entries: HashMap<Vec<u8>, Stored>,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").finish_non_exhaustive()
    }
}

impl Memory {
    /// Adds `link` to the links that receive messages, for as long as it lives.
    pub(crate) fn attach(&self, link: &Arc<Link>) {
        self.links.attach(link);
    }
}
