//! The result of an inspection: a lock's holders and its TTL.

use std::time::Duration;

use crate::backend::step::Value;

/// The holders of a lock, and the remaining time of the lease: the result of
/// [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The holders. Empty when the lock is free.
    pub holders: Vec<Holder>,
    /// The remaining time of the lease on the server.
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
        // If the length of `rest` is odd, its last chunk has one item and is not a pair. Such a
        // reply is refused: without its last holder it would look right but be wrong.
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

    /// Returns whether the lock has a holder.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// A holder, as it is stored on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id of the holder, `uuid:n`. `uuid` is the client, and `n` the hold (this library) or the
    /// thread (Redisson).
    pub id: String,
    /// The number of acquires that the holder has not released yet. Always 1 for holds of this
    /// library, which counts re-entries in the client.
    pub count: u64,
}

/// The remaining time of a lease on the server, for a lock or a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ttl {
    /// The lock is free. For a permit: its lease has ended, or it does not exist.
    Free,
    /// Held without an expiry. Redisson makes such permits. Neither library makes locks without an
    /// expiry.
    NoExpiry,
    /// Held for this duration from now, unless the hold is renewed or released.
    Left(Duration),
}

impl Ttl {
    /// Reads the server's reply: -1 without expiry, -2 without a key.
    pub(crate) fn of_key(ttl_ms: i64) -> Self {
        match u64::try_from(ttl_ms) {
            Ok(ms) => Self::Left(Duration::from_millis(ms)),
            Err(_) if ttl_ms == -1 => Self::NoExpiry,
            Err(_) => Self::Free,
        }
    }
}
