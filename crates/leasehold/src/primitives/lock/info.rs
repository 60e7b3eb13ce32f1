//! What the server says about a lock.

use std::time::Duration;

use crate::backend::step::Value;

/// Who holds a lock, and for how long: what [`Lock::inspect`](crate::Lock::inspect) gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Who holds it; empty when it is free.
    pub holders: Vec<Holder>,
    /// What is left of the lease on the server.
    pub ttl: Ttl,
}

impl LockInfo {
    /// The reply of a kind's `inspect`.
    pub(super) fn read(items: &[Value]) -> Option<Self> {
        let (Value::Int(ttl_ms), rest) = items.split_first()? else {
            return None;
        };
        let ttl = Ttl::of_key(*ttl_ms);
        let mut holders = Vec::new();
        for pair in rest.chunks(2) {
            let [Value::Text(id), Value::Text(count)] = pair else {
                return None;
            };
            holders.push(Holder {
                id: String::from_utf8_lossy(id).into_owned(),
                count: String::from_utf8_lossy(count).parse().ok()?,
            });
        }
        Some(Self { holders, ttl })
    }

    /// Whether anybody holds it.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// A holder, as it stands in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `uuid:n`: the client, and the hold (here) or the thread (Redisson).
    pub id: String,
    /// How often it has entered. Always 1 for holds of this library, which counts
    /// re-entries in the client.
    pub count: u64,
}

/// What is left of a lease on the server, of a lock or of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock; of a permit: its lease is over, or there is no such permit.
    Free,
    /// Held, and without an end. Redisson makes such permits; locks that have none were made
    /// by something else.
    NoExpiry,
    /// Held for this long, unless it is renewed or released.
    Left(Duration),
}

impl Ttl {
    /// As the server says it: -1 without expiry, -2 without key.
    pub(in crate::primitives) fn of_key(ttl_ms: i64) -> Self {
        match u64::try_from(ttl_ms) {
            Ok(ms) => Self::Left(Duration::from_millis(ms)),
            Err(_) if ttl_ms == -1 => Self::NoExpiry,
            Err(_) => Self::Free,
        }
    }
}
