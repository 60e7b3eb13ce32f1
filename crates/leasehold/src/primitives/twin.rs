//! What steps of several primitives share: Lua, and its twin on the embedded keyspace.

use crate::backend::memory::Keyspace;
use crate::backend::step::{Refusal, Shared, Value, number};

pub(super) static IDEMPOTENCY: Shared = Shared::new(include_str!("idempotency.lua"), &[]);
pub(super) static NOW_MS: Shared = Shared::new(include_str!("now_ms.lua"), &[]);
pub(super) static NUMBER_AT: Shared = Shared::new(include_str!("number_at.lua"), &[]);
pub(super) static PUBLISH_FREE: Shared = Shared::new(include_str!("publish_free.lua"), &[]);
pub(super) static WAKE_ALL: Shared = Shared::new(include_str!("wake_all.lua"), &[]);

/// Extends the life of a key to at least `ms` from now.
pub(super) fn lengthen(keyspace: &mut Keyspace, key: &[u8], ms: u64) {
    // An earlier request can arrive behind one that asked for more. A key without an expiry, -1, is
    // no `u64`: an operator may have made it persistent, and it gets an end again.
    if u64::try_from(keyspace.pttl(key)).is_ok_and(|left| left >= ms) {
        return;
    }
    keyspace.pexpire(key, ms);
}

/// Lets a key end in `ms` from now. `true` when that is sooner than before: whoever waits for its end
/// was told a later one.
pub(super) fn shorten(keyspace: &mut Keyspace, key: &[u8], ms: u64) -> bool {
    let ttl = keyspace.pttl(key);
    keyspace.pexpire(key, ms);
    ttl < 0 || ttl > whole(ms)
}

/// How long a marker lives.
// As long as in `idempotency.lua`. `local/idempotency.rs` relies on it: a request that is sent
// again behind the end of its marker counts twice.
pub(super) const MARKER_MS: u64 = 60_000;

/// The reply that is noted at a marker, if there is one.
pub(super) fn replied(keyspace: &mut Keyspace, marker: &[u8]) -> Result<Option<i64>, Refusal> {
    keyspace.get(marker)?.map(|text| number(&text)).transpose()
}

pub(super) fn note(keyspace: &mut Keyspace, marker: &[u8], reply: &str) {
    keyspace.set(marker, reply.as_bytes());
    keyspace.pexpire(marker, MARKER_MS);
}

/// The number at `key`: `None` when there is no key, an error when the key is something else. The
/// twin of `number_at.lua`.
pub(super) fn number_at(keyspace: &mut Keyspace, key: &[u8]) -> Result<Option<i64>, Refusal> {
    let Ok(text) = keyspace.get(key) else {
        return Err(Refusal(format!("WRONGKIND a {}", keyspace.kind(key))));
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let digits = text.strip_prefix(b"-").unwrap_or(&text);
    // As `number_at.lua`: Lua does not write longer numbers out exactly.
    let counts = text.len() <= 14 && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !counts {
        return Err(Refusal("WRONGKIND a text that is not a count".into()));
    }
    number(&text).map(Some)
}

/// The twin of `publish_free.lua`.
pub(super) fn tell(keyspace: &mut Keyspace, channel: &[u8], free: i64, more: i64) -> i64 {
    if free <= 0 {
        return NOBODY_KNOWS;
    }
    keyspace.publish(channel, free.to_string().as_bytes());
    if keyspace.listeners(channel) == 0 {
        return 0;
    }
    // Each message wakes one of Redisson's asynchronous waiters, whatever it says: so there is one
    // for each permit, within reason.
    for _ in 1..more.min(64) {
        keyspace.publish(channel, b"0");
    }
    keyspace.listeners(channel)
}

/// Says that the number of listeners is not known.
pub(super) const NOBODY_KNOWS: i64 = -1;

/// The twin of `wake_all.lua`.
pub(super) fn wake_all(keyspace: &mut Keyspace, channel: &[u8]) -> i64 {
    let told = keyspace.listeners(channel);
    keyspace.publish(channel, b"1");
    keyspace.publish(channel, b"0");
    keyspace.publish(channel, b"0");
    told
}

/// A number of ms, or another that is not negative, as Redis counts.
pub(super) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn list(numbers: &[i64]) -> Value {
    Value::List(numbers.iter().copied().map(Value::Int).collect())
}
