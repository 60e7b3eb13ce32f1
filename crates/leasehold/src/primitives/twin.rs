//! What the twins of the steps on the embedded keyspace have in common, and how arguments are
//! written for script and twin alike. The Lua of the second half is `idempotency.lua`.

use std::str::FromStr;
use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{Refusal, Value};
use crate::config::wire_ms;

pub(super) fn ms(span: Duration) -> Vec<u8> {
    wire_ms(span).to_string().into_bytes()
}

/// Extends the life of a key to at least `ms` from now.
pub(super) fn lengthen(keyspace: &mut Keyspace, key: &[u8], ms: u64) {
    if u64::try_from(keyspace.pttl(key)).is_ok_and(|left| left >= ms) {
        return;
    }
    keyspace.pexpire(key, ms);
}

/// Reads a number. For other texts it gives the error that Redis gives.
pub(super) fn number<T: FromStr>(text: &[u8]) -> Result<T, Refusal> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal("ERR value is not an integer or out of range".into()))
}

pub(super) fn arity() -> Refusal {
    Refusal("ERR wrong number of arguments for a step".into())
}

/// How long a marker lives.
pub(super) const MARKER_MS: u64 = 60_000;

/// The reply that is noted at a marker, if there is one.
pub(super) fn replied(keyspace: &mut Keyspace, marker: &[u8]) -> Result<Option<i64>, Refusal> {
    keyspace.get(marker)?.map(|text| number(&text)).transpose()
}

pub(super) fn note(keyspace: &mut Keyspace, marker: &[u8], reply: &str) {
    keyspace.set(marker, reply.as_bytes());
    keyspace.pexpire(marker, MARKER_MS);
}

/// The number at `key`: `None` when there is no key, an error when the key is something else.
pub(super) fn number_at(keyspace: &mut Keyspace, key: &[u8]) -> Result<Option<i64>, Refusal> {
    let Ok(text) = keyspace.get(key) else {
        return Err(Refusal(format!("WRONGKIND a {}", keyspace.kind(key))));
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let digits = text.strip_prefix(b"-").unwrap_or(&text);
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
    for _ in 1..more.min(64) {
        keyspace.publish(channel, b"0");
    }
    keyspace.listeners(channel)
}

/// Says that the number of listeners is not known.
pub(super) const NOBODY_KNOWS: i64 = -1;

/// The twin of `wake_all.lua`.
pub(super) fn wake_all(keyspace: &mut Keyspace, channel: &[u8]) {
    keyspace.publish(channel, b"1");
    keyspace.publish(channel, b"0");
}

pub(super) fn list(numbers: &[i64]) -> Value {
    Value::List(numbers.iter().copied().map(Value::Int).collect())
}
