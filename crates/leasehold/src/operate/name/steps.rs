//! The steps that inspect a name, list all names, and note the end of a hold by force: how each is
//! sent, and its twin on the embedded keyspace. The Lua files beside this file describe each step.

use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, Step, Value, step};
use crate::config::wire_ms;
use crate::key::Key;
use crate::primitives::hash_kind::{self, HASH_KIND};
use crate::primitives::rw::steps::{REMAINING, remaining_ms};
use crate::primitives::twin::{NOW_MS, lengthen, list, to_int};

static LUA: LuaFile = LuaFile::new(include_str!("name.lua"));

step! {
    INSPECT: Inspect = name.inspect, grants: false,
    keys: [name, leases, queue, waiters, writers, readers, tokens, opened],
    args: [most: u64, locks, sides, frees, opens],
    uses: [REMAINING, NOW_MS, HASH_KIND],
}

impl Inspect<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let most = usize::try_from(self.most).unwrap_or(usize::MAX);
        let kind = keyspace.kind(self.name);
        let is_hash = kind == "hash";
        let mode = match is_hash {
            true => keyspace.hget(self.name, b"mode")?,
            false => None,
        };
        let fields = match is_hash {
            true => holds_of(keyspace, self.name, mode.is_some(), most)?,
            false => Vec::new(),
        };
        let kind_of_lock = match is_hash {
            true => hash_kind::kind_of_hash(&keyspace.hgetall(self.name)?).unwrap_or_default(),
            false => "",
        };
        let size = match is_hash {
            true => keyspace.hlen(self.name)?,
            false => 0,
        };
        let permits = scored(keyspace, self.leases)?;
        let (over, live) = permits.split_at(ended(&permits, keyspace.now_ms()));
        let line = match keyspace.kind(self.queue) {
            "list" => keyspace.lrange(self.queue)?,
            _ => Vec::new(),
        };
        let channels = [self.locks, self.sides, self.frees, self.opens];
        let listening = channels.map(|channel| keyspace.listeners(channel));
        Ok(Value::List(vec![
            Value::Text(kind.into()),
            Value::Int(keyspace.pttl(self.name)),
            Value::Int(to_int(keyspace.now_ms())),
            short_text(keyspace, self.name)?,
            Value::Text(kind_of_lock.into()),
            Value::Int(to_int(size as u64)),
            Value::List(fields),
            Value::Int(to_int(permits.len() as u64)),
            Value::Int(to_int(over.len() as u64)),
            Value::List(live.iter().take(most).map(permit).collect()),
            Value::Int(to_int(line.len() as u64)),
            line_of(keyspace, &line, self.waiters, most)?,
            reserving_waiters(keyspace, self.writers, most)?,
            reserving_waiters(keyspace, self.readers, most)?,
            short_text(keyspace, self.tokens)?,
            Value::Int(keyspace.exists(self.opened).into()),
            list(&listening),
        ]))
    }
}

step! {
    LIST: List = name.list, grants: false,
    keys: [],
    args: [cursor: u64, pattern, count: u64],
}

impl List<'_> {
    /// Returns all keys as one page, because they are already in this process's memory.
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let (total, all) = (keyspace.len(), keyspace.scan(self.pattern));
        let (mut keys, mut long) = (Vec::new(), 0);
        for key in all {
            let kind = keyspace.kind(&key);
            if kind == "string" && keyspace.get(&key)?.is_some_and(|text| text.len() > 20) {
                continue;
            }
            if key.len() > LONGEST_NAME {
                long += 1;
                continue;
            }
            keys.push(Value::List(vec![
                Value::Text(key),
                Value::Text(kind.into()),
            ]));
        }
        let total = Value::Int(to_int(total as u64));
        Ok(Value::List(vec![
            Value::Text(b"0".to_vec()),
            total,
            Value::List(keys),
            Value::Int(0),
            Value::Int(long),
        ]))
    }
}

step! {
    NOTE_FORCED: NoteForced = name.note_forced, grants: false,
    keys: [marker],
    args: [hold, by, ms: u64],
}

impl NoteForced<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        // A marker of another type is not changed, because the note is only a courtesy.
        if !keyspace.hlen(self.marker).is_ok_and(|size| size < 4096) {
            return Ok(Value::Int(0));
        }
        keyspace.hset(self.marker, self.hold, self.by)?;
        lengthen(keyspace, self.marker, self.ms);
        Ok(Value::Int(1))
    }
}

pub(crate) static ALL: [&Step; 3] = [&INSPECT, &LIST, &NOTE_FORCED];

/// Inspects a name. The reply has at most `most` holds, permits and waiters.
pub(crate) fn inspect(key: &Key, most: usize) -> Operation {
    Inspect {
        name: key.as_str().as_bytes(),
        leases: key.timeout_key().as_bytes(),
        queue: key.fair_queue().as_bytes(),
        waiters: key.fair_waiters().as_bytes(),
        writers: key.waiting_writers().as_bytes(),
        readers: key.waiting_readers().as_bytes(),
        tokens: key.token_counter().as_bytes(),
        opened: key.opened_marker().as_bytes(),
        most: most as u64,
        locks: key.lock_channel().as_bytes(),
        sides: key.rw_channel().as_bytes(),
        frees: key.semaphore_channel().as_bytes(),
        opens: key.latch_channel().as_bytes(),
    }
    .operation()
}

/// Requests a page of the walk over all keys that match `pattern`.
pub(super) fn page(cursor: u64, pattern: &str, count: u64) -> Operation {
    List {
        cursor,
        pattern: pattern.as_bytes(),
        count,
    }
    .operation()
}

/// Notes that a client with the label `by` is about to end a hold by force. The remaining lease of
/// the hold is `left`.
pub(super) fn note_forced(key: &Key, hold: &str, by: &str, left: Duration) -> Operation {
    NoteForced {
        marker: key.forced_marker().as_bytes(),
        hold: hold.as_bytes(),
        by: by.as_bytes(),
        ms: wire_ms(left),
    }
    .operation()
}

/// Length to which a field, a member or an entry is cut.
const LONGEST: usize = 128;
/// Length of the longest name that is listed.
const LONGEST_NAME: usize = 1000;
/// The expiry that Redisson notes for a permit that never ends.
pub(super) const NEVER: i64 = 922_337_203_685_477;

type ScoredMembers = Vec<(Vec<u8>, i64)>;

fn cut(text: &[u8]) -> Value {
    Value::Text(text[..text.len().min(LONGEST)].to_vec())
}

fn short_text(keyspace: &mut Keyspace, key: &[u8]) -> Result<Value, Refusal> {
    let text = match keyspace.kind(key) {
        "string" => keyspace.get(key)?,
        _ => None,
    };
    let text = text.unwrap_or_default();
    Ok(Value::Text(text[..text.len().min(32)].to_vec()))
}

fn holds_of(
    keyspace: &mut Keyspace,
    name: &[u8],
    has_mode: bool,
    most: usize,
) -> Result<Vec<Value>, Refusal> {
    let is_beside = |field: &[u8]| {
        let of_group = field.ends_with(b":expire_time") || field.ends_with(b":lock_count");
        of_group && !has_mode
    };
    let all = keyspace.hgetall(name)?.into_iter();
    let holds = all.filter(|(field, _)| field != b"mode" && !is_beside(field));
    let mut shown = Vec::new();
    for (field, value) in holds.take(most) {
        shown.push(hold_of(keyspace, name, has_mode, &field, &value)?);
    }
    Ok(shown)
}

fn hold_of(
    keyspace: &mut Keyspace,
    name: &[u8],
    has_mode: bool,
    field: &[u8],
    value: &[u8],
) -> Result<Value, Refusal> {
    let count = std::str::from_utf8(value).ok();
    let count = count.filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let (mut ends, mut stored_count) = (None, None);
    if !has_mode && count.is_none() && value.len() <= LONGEST {
        let stem = [field, b":", value].concat();
        ends = keyspace.hget(name, &[&stem[..], b":expire_time"].concat())?;
        stored_count = keyspace.hget(name, &[&stem[..], b":lock_count"].concat())?;
    }
    // Without a mode the hash is not a read-write lock, so there is no need to read the keys of
    // each field.
    let count = count
        .filter(|_| has_mode)
        .and_then(|text| text.parse().ok());
    let left_ms = count.map_or(-2, |count| remaining_ms(keyspace, name, field, count));
    Ok(Value::List(vec![
        cut(field),
        cut(value),
        Value::Int(left_ms),
        cut(&ends.unwrap_or_default()),
        cut(&stored_count.unwrap_or_default()),
    ]))
}

/// Returns the members of a sorted set. A key of another type belongs to another program, and must
/// not make the inspection fail.
fn scored(keyspace: &mut Keyspace, key: &[u8]) -> Result<ScoredMembers, Refusal> {
    match keyspace.kind(key) {
        "zset" => keyspace.zrange(key),
        _ => Ok(Vec::new()),
    }
}

/// Returns how many members have ended.
fn ended(set: &ScoredMembers, now_ms: u64) -> usize {
    set.partition_point(|(_, ends)| *ends <= to_int(now_ms))
}

fn permit((id, ends): &(Vec<u8>, i64)) -> Value {
    // The set may belong to another program, with any score. The score is capped, because the
    // reader of the reply subtracts the current time from it.
    Value::List(vec![cut(id), Value::Int((*ends).min(NEVER))])
}

fn line_of(
    keyspace: &mut Keyspace,
    line: &[Vec<u8>],
    waiters: &[u8],
    most: usize,
) -> Result<Value, Refusal> {
    let mut shown = Vec::new();
    for waiter in line.iter().take(most) {
        let alive_until = match keyspace.kind(waiters) {
            "zset" => keyspace.zscore(waiters, waiter)?,
            _ => None,
        };
        let alive_until = Value::Int(alive_until.unwrap_or(0).min(NEVER));
        shown.push(Value::List(vec![cut(waiter), alive_until]));
    }
    Ok(Value::List(shown))
}

fn reserving_waiters(
    keyspace: &mut Keyspace,
    reservations: &[u8],
    most: usize,
) -> Result<Value, Refusal> {
    let reservations = scored(keyspace, reservations)?;
    let live = reservations[ended(&reservations, keyspace.now_ms())..]
        .iter()
        .take(most);
    Ok(Value::List(live.map(|(waiter, _)| cut(waiter)).collect()))
}
