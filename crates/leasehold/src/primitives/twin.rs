//! Code that the steps of several primitives share: their Lua, and its twin on the embedded
//! keyspace.

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Refusal, SharedLua, Value, number};

pub(super) static LUA: LuaFile = LuaFile::new(include_str!("common.lua"));

pub(super) static ASKING: SharedLua = SharedLua::new(&LUA, "asking", &[]);
pub(super) static IDEMPOTENCY: SharedLua = SharedLua::new(&LUA, "idempotency", &[]);
pub(crate) static KEPT: SharedLua = SharedLua::new(&LUA, "kept", &[]);
pub(crate) static NOW_MS: SharedLua = SharedLua::new(&LUA, "now_ms", &[]);
pub(super) static NUMBER_AT: SharedLua = SharedLua::new(&LUA, "number_at", &[]);
pub(super) static PUBLISH_FREE: SharedLua = SharedLua::new(&LUA, "publish_free", &[]);
pub(crate) static WAKE_ALL: SharedLua = SharedLua::new(&LUA, "wake_all", &[]);

/// Extends the life of a key to at least `ms` from now.
pub(crate) fn lengthen(keyspace: &mut Keyspace, key: &[u8], ms: u64) {
    // Never shorten the life: an earlier request can arrive after one that asked for more. A key
    // without an expiry, which an operator may have made persistent, gets an expiry again: its TTL
    // is -1, and so not a `u64`.
    if u64::try_from(keyspace.pttl(key)).is_ok_and(|left| left >= ms) {
        return;
    }
    keyspace.pexpire(key, ms);
}

/// The value in the field of a hold whose end is fixed: see `common.lua`.
const KEPT_VALUE: &[u8] = b"01";

/// The twin of `can_be_renewed` in `common.lua`.
pub(crate) fn can_be_renewed(
    keyspace: &mut Keyspace,
    lock: &[u8],
    hold: &[u8],
) -> Result<bool, Refusal> {
    let count = keyspace.hget(lock, hold)?;
    Ok(count.is_some_and(|count| count != KEPT_VALUE))
}

/// The twin of `keep_for_span` in `common.lua`.
pub(super) fn keep_for_span(
    span_ms: u64,
    keyspace: &mut Keyspace,
    lock: &[u8],
    hold: &[u8],
) -> Result<bool, Refusal> {
    let ttl = keyspace.pttl(lock);
    keyspace.pexpire(lock, span_ms);
    keyspace.hset(lock, hold, KEPT_VALUE)?;
    Ok(ttl < 0 || ttl > to_int(span_ms))
}

/// Returns the note for the holder of a hold that was ended by force, or 0 if there is none.
pub(crate) fn forced_note(
    keyspace: &mut Keyspace,
    marker: &[u8],
    hold: &[u8],
) -> Result<Value, Refusal> {
    let note = keyspace.hget(marker, hold)?;
    Ok(note.map_or(Value::Int(0), Value::Text))
}

/// The lifetime of a marker.
// The same lifetime as in `idempotency` of `common.lua`. `local/idempotency.rs` relies on it: a
// request that is repeated after its marker has expired runs twice.
pub(super) const MARKER_MS: u64 = 60_000;

/// Returns the reply stored under a marker, if the marker exists.
pub(super) fn earlier_reply(
    keyspace: &mut Keyspace,
    marker: &[u8],
) -> Result<Option<i64>, Refusal> {
    keyspace.get(marker)?.map(|text| number(&text)).transpose()
}

pub(super) fn note(keyspace: &mut Keyspace, marker: &[u8], reply: &str) {
    keyspace.set(marker, reply.as_bytes());
    keyspace.pexpire(marker, MARKER_MS);
}

/// Returns the number at `key`: `None` if the key does not exist, an error if it is not a number.
/// The twin of `number_at` in `common.lua`.
pub(crate) fn number_at(keyspace: &mut Keyspace, key: &[u8]) -> Result<Option<i64>, Refusal> {
    let Ok(text) = keyspace.get(key) else {
        return Err(Refusal(format!("WRONGKIND a {}", keyspace.kind(key))));
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let digits = text.strip_prefix(b"-").unwrap_or(&text);
    // As in `number_at` of `common.lua`: Lua does not convert longer numbers back to a string
    // exactly.
    let counts = text.len() <= 14 && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !counts {
        return Err(Refusal("WRONGKIND a text that is not a count".into()));
    }
    number(&text).map(Some)
}

/// Permits that have become free, with the list and the channel of the clients that wait for them.
#[derive(Clone, Copy)]
pub(super) struct Freed<'a> {
    pub(super) asking: &'a [u8],
    pub(super) channel: &'a [u8],
    /// The number of permits that are now free.
    pub(super) free: i64,
    /// The number of permits that have just become free.
    pub(super) more: i64,
    /// The number of additional messages for Redisson's waiters.
    pub(super) extra: i64,
}

impl<'a> Freed<'a> {
    /// Describes a change that has freed `more` permits, so that `free` permits are now free.
    pub(super) fn new((asking, channel): (&'a [u8], &'a [u8]), free: i64, more: i64) -> Self {
        Self {
            asking,
            channel,
            free,
            more,
            extra: 0,
        }
    }
}

/// The twin of `notify_waiting` in `common.lua`.
pub(super) fn notify_waiting(keyspace: &mut Keyspace, freed: Freed<'_>) -> usize {
    let waiting = keyspace.lrange(freed.asking).unwrap_or_default();
    let (mut free, mut notified) = (freed.free, 0);
    for client in &waiting {
        if notified >= freed.more || free <= 0 {
            break;
        }
        let Some((own, wants)) = wanted(client).filter(|(_, wants)| *wants <= free) else {
            continue;
        };
        keyspace.lrem_first(freed.asking, client);
        let channel = [freed.channel, b":", own].concat();
        keyspace.publish(&channel, own);
        if keyspace.listeners(&channel) > 0 {
            (notified, free) = (notified + 1, free - wants);
        }
    }
    usize::try_from(notified)
        .unwrap_or(0)
        .max(usize::from(!waiting.is_empty()))
}

/// Returns the number of a waiting client, and how many permits it wants.
fn wanted(client: &[u8]) -> Option<(&[u8], i64)> {
    let (own, wants) = client.split_at_checked(client.iter().position(|byte| *byte == b':')?)?;
    let wants = wants.strip_prefix(b":")?;
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    (digits(own) && digits(wants)).then(|| Some((own, number(wants).ok()?)))?
}

/// The twin of `publish_free` in `common.lua`.
pub(super) fn publish_free(keyspace: &mut Keyspace, freed: Freed<'_>) -> i64 {
    let Freed {
        channel,
        free,
        more,
        ..
    } = freed;
    if free <= 0 {
        return UNKNOWN_RECEIVERS;
    }
    let calls = Freed {
        more: more.min(64),
        ..freed
    };
    let zeros = "0".repeat(notify_waiting(keyspace, calls));
    keyspace.publish(channel, format!("{zeros}{free}").as_bytes());
    if keyspace.listeners(channel) == 0 {
        return 0;
    }
    // Each message wakes one of Redisson's asynchronous waiters, whatever number it contains. So
    // there is one message for each permit, up to 64.
    for _ in 1..(more + freed.extra).min(64) {
        keyspace.publish(channel, b"0");
    }
    keyspace.listeners(channel)
}

/// The result if it is unknown how many connections got a message.
pub(super) const UNKNOWN_RECEIVERS: i64 = -1;

/// The twin of `wake_all` in `common.lua`.
pub(crate) fn wake_all(keyspace: &mut Keyspace, channel: &[u8]) -> i64 {
    let receivers = keyspace.listeners(channel);
    keyspace.publish(channel, b"1");
    keyspace.publish(channel, b"0");
    keyspace.publish(channel, b"0");
    receivers
}

/// The lifetime of a list of waiting clients after the last request.
const LIST_EXPIRY_MS: u64 = 12_000;
/// The largest number of clients in a list.
const MOST_CLIENTS: usize = 1000;

/// Returns how many clients are notified before this one; -1 if this client is not in the list. The
/// twin of `clients_before` in `common.lua`.
pub(super) fn clients_before(
    keyspace: &mut Keyspace,
    asking: &[u8],
    client: &[u8],
    notified: bool,
) -> i64 {
    let Ok(Some(before)) = enlist(keyspace, asking, client, notified) else {
        return NOT_LISTED;
    };
    keyspace.pexpire(asking, LIST_EXPIRY_MS);
    before
}

/// The place of a client that is not in the list.
const NOT_LISTED: i64 = -1;

fn enlist(
    keyspace: &mut Keyspace,
    asking: &[u8],
    client: &[u8],
    notified: bool,
) -> Result<Option<i64>, Refusal> {
    let others = keyspace.lrange(asking)?;
    if let Some(before) = others.iter().position(|other| other == client) {
        return Ok(Some(to_int(before as u64)));
    }
    let is_foreign = others
        .first()
        .is_some_and(|first| client_of(first).is_none());
    if others.len() >= MOST_CLIENTS || is_foreign {
        return Ok(None);
    }
    if notified {
        keyspace.lpush(asking, client)?;
        return Ok(Some(0));
    }
    keyspace.rpush(asking, client)?;
    Ok(Some(to_int(others.len() as u64)))
}

/// Returns the number of a client and the rest of its item; `None` if the item is not one of ours.
/// The twin of `client_of` in `common.lua`.
fn client_of(item: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = item.split_at(digits(item));
    let wants = rest.strip_prefix(b":").unwrap_or(rest);
    (number.len() > 2 && digits(wants) == wants.len()).then_some((number, rest))
}

/// Notifies the first client that is still subscribed. The twin of `notify_first` in `common.lua`.
pub(super) fn notify_first(keyspace: &mut Keyspace, asking: &[u8], channel: &[u8]) {
    while let Ok(Some(first)) = keyspace.lfirst(asking) {
        let Some((number, listens)) = client_of(&first) else {
            return;
        };
        let _ = keyspace.lpop(asking);
        let own = [channel, b":", number].concat();
        if listens.is_empty() || keyspace.listeners(&own) > 0 {
            keyspace.publish(channel, number);
            return;
        }
    }
}

/// Converts a number to the signed integer type of replies. A number that is too large becomes the
/// largest integer.
pub(crate) fn to_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn list(numbers: &[i64]) -> Value {
    Value::List(numbers.iter().copied().map(Value::Int).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_clients_that_die_one_after_the_other_stays_short() {
        let mut keyspace = Keyspace::default();
        let places = (0..10_000).map(|number| {
            let client = format!("{}:1", 1_000_000 + number);
            clients_before(&mut keyspace, b"asking", client.as_bytes(), false)
        });
        let places: Vec<_> = places.collect();
        assert_eq!(places[..1000], (0..1000).collect::<Vec<_>>());
        assert!(places[1000..].iter().all(|place| *place == NOT_LISTED));
        assert_eq!(keyspace.llen(b"asking").unwrap(), MOST_CLIENTS);
        // A client that is in the list keeps its place.
        assert_eq!(
            clients_before(&mut keyspace, b"asking", b"1000999:1", false),
            999
        );
    }
}
