//! What the server says about a lock.

use std::time::Duration;

use crate::backend::step::Value;

/// Who holds a lock, and for how long: the answer of [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The holders; empty when the lock is free.
    pub holders: Vec<Holder>,
    /// How much of the lease is left on the server.
    pub ttl: Ttl,
}

impl LockInfo {
    /// Reads the reply of a kind's `inspect`.
    pub(super) fn read(items: &[Value]) -> Option<Self> {
        let (Value::Int(ttl_ms), rest) = items.split_first()? else {
            return None;
        };
        let ttl = Ttl::of_key(*ttl_ms);
        let mut holders = Vec::new();
        // The last chunk of an odd reply has one item and is no pair. Such a reply is refused,
        // because without its last holder it would be wrong and look right.
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

    /// Whether anybody holds the lock.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// A holder, as Redis has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `uuid:n`: the client, and the hold (here) or the thread (Redisson).
    pub id: String,
    /// How often it has entered. Always 1 for holds of this library, which counts re-entries in the
    /// client.
    pub count: u64,
}

/// How much of a lease is left on the server, for a lock or a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock. For a permit: its lease is over, or there is no such permit.
    Free,
    /// Held, without an end. Redisson makes such permits; a lock without an end was made by
    /// something else.
    NoExpiry,
    /// Held for this long, unless it is renewed or released.
    Left(Duration),
}

impl Ttl {
    /// From the server's reply: -1 without expiry, -2 without key.
    pub(in crate::primitives) fn of_key(ttl_ms: i64) -> Self {
        match u64::try_from(ttl_ms) {
            Ok(ms) => Self::Left(Duration::from_millis(ms)),
            Err(_) if ttl_ms == -1 => Self::NoExpiry,
            Err(_) => Self::Free,
        }
    }
}
