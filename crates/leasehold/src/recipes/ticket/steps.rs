//! The steps of tickets: how each is sent, and its twin on the embedded keyspace. The Lua file
//! beside this file describes each step.

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Refusal, SharedLua, Step, Value, step};
use crate::primitives::expirable::steps::{self as expirable, LEASES};
use crate::primitives::fenced::steps::{self as fenced, TOKEN};
use crate::primitives::hash_kind::{self, HASH_KIND};
use crate::primitives::twin::{WAKE_ALL, number_at, to_int, wake_all};

static LUA: LuaFile = LuaFile::new(include_str!("ticket.lua"));

static LINE: SharedLua = SharedLua::new(&LUA, "line", &[]);
static TAKEN: SharedLua = SharedLua::new(&LUA, "taken", &[]);

/// The time for which the notes about tickets that were resumed are kept.
const NOTED_MS: u64 = 3_600_000;

step! {
    TAKE: Take = ticket.take, grants: true,
    for_holders: true,
    keys: [lock, counter, marker, taken, queue],
    args: [old, hold, lease_ms: u64, channel, fenced: bool, counter_ms: u64, writes: bool],
    uses: [HASH_KIND, TOKEN, WAKE_ALL, TAKEN, LINE],
}

impl Take<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let kind = match self.writes {
            true => hash_kind::READ_WRITE,
            false => hash_kind::PLAIN,
        };
        hash_kind::check(keyspace, self.lock, kind)?;
        if keyspace.hexists(self.lock, self.hold)? {
            if !self.fenced {
                return Ok(replaced(0));
            }
            // A key of another type is an error, as in the script.
            keyspace.get(self.counter)?;
            let last = fenced::last_given(keyspace, self.counter).unwrap_or(0);
            return Ok(replaced(last));
        }
        // A late copy of the old hold's acquire can grant the old hold again after the ticket was
        // used.
        let is_used = !taken_by(keyspace, self.taken, self.old).is_empty();
        if is_used || !keyspace.hexists(self.lock, self.old)? {
            let used = (self.taken, self.old);
            return Ok(gone(keyspace, self.lock, self.marker, used));
        }
        let token = match self.fenced {
            true => fenced::next_token(keyspace, self.counter)?,
            false => 0,
        };
        let ttl = keyspace.pttl(self.lock);
        let span = span_of_all(keyspace, self.lock, self.lease_ms)?;
        keyspace.pexpire(self.lock, span);
        if self.fenced {
            fenced::note(keyspace, self.counter, token, self.counter_ms);
        }
        // This runs under the keyspace's mutex, so no client sees a free lock.
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.hdel(self.lock, self.old)?;
        note_taken(keyspace, self.taken, self.old, self.hold);
        if ends_earlier(ttl, span) {
            if self.queue == self.lock {
                wake_all(keyspace, self.channel);
            } else {
                wake_line(keyspace, self.queue, self.channel);
            }
        }
        Ok(replaced(token))
    }
}

/// The twin of `wake_line` in `ticket.lua`.
fn wake_line(keyspace: &mut Keyspace, queue: &[u8], channel: &[u8]) {
    let waiters = keyspace.lrange(queue).unwrap_or_default();
    for waiter in waiters.into_iter().take(64) {
        keyspace.publish(&[channel, b":", &waiter].concat(), b"0");
    }
}

step! {
    TAKE_READ: TakeRead = ticket.take_read, grants: true,
    for_holders: true,
    keys: [lock, old_timeout, timeout, marker, taken],
    args: [old, hold, lease_ms: u64, channel],
    uses: [HASH_KIND, WAKE_ALL, TAKEN],
}

impl TakeRead<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        hash_kind::check(keyspace, self.lock, hash_kind::READ_WRITE)?;
        if keyspace.hexists(self.lock, self.hold)? && keyspace.exists(self.timeout) {
            return Ok(replaced(0));
        }
        let is_there = keyspace.hexists(self.lock, self.old)? && keyspace.exists(self.old_timeout);
        if !is_there || !taken_by(keyspace, self.taken, self.old).is_empty() {
            let used = (self.taken, self.old);
            return Ok(gone(keyspace, self.lock, self.marker, used));
        }
        let ttl = keyspace.pttl(self.lock);
        let span = span_of_all(keyspace, self.lock, self.lease_ms)?;
        keyspace.pexpire(self.lock, span);
        keyspace.set(self.timeout, b"1");
        keyspace.pexpire(self.timeout, self.lease_ms);
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.hdel(self.lock, self.old)?;
        keyspace.del(self.old_timeout);
        note_taken(keyspace, self.taken, self.old, self.hold);
        if ends_earlier(ttl, span) {
            wake_all(keyspace, self.channel);
        }
        Ok(replaced(0))
    }
}

step! {
    TAKE_PERMITS: TakePermits = ticket.take_permits, grants: true,
    for_holders: true,
    keys: [permits, timeout, taken],
    args: [ids, next, lease_ms: u64, old, hold],
    uses: [LEASES, TAKEN],
}

impl TakePermits<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        number_at(keyspace, self.permits)?;
        expirable::check_types(keyspace, self.permits, self.timeout)?;
        if keyspace.zscore(self.timeout, &self.next[..16])?.is_some() {
            return Ok(replaced(0));
        }
        // A late copy of the old permits' acquire can grant them again after the ticket was used.
        let by = taken_by(keyspace, self.taken, self.old);
        if !by.is_empty() {
            return Ok(not_there(None, by, Vec::new()));
        }
        let now = to_int(keyspace.now_ms());
        let mut members = Vec::new();
        for id in self.ids.chunks(16) {
            match expirable::find(keyspace, self.timeout, id)? {
                Some((member, ends)) if ends > now => members.push(member),
                _ => return Ok(not_there(None, Vec::new(), Vec::new())),
            }
        }
        let ends = now.saturating_add(to_int(self.lease_ms));
        for id in self.next.chunks(16) {
            keyspace.zadd(self.timeout, id, ends.min(expirable::NEVER - 1))?;
        }
        for member in members {
            keyspace.zrem(self.timeout, &member)?;
        }
        note_taken(keyspace, self.taken, self.old, self.hold);
        Ok(replaced(0))
    }
}

step! {
    LOOK: Look = ticket.look, grants: false,
    keys: [lock, marker, taken],
    args: [old],
    uses: [TAKEN],
}

impl Look<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        Ok(gone(
            keyspace,
            self.lock,
            self.marker,
            (self.taken, self.old),
        ))
    }
}

pub(crate) static ALL: [&Step; 4] = [&TAKE, &TAKE_READ, &TAKE_PERMITS, &LOOK];

fn replaced(token: u64) -> Value {
    Value::List(vec![Value::Int(1), Value::Int(to_int(token))])
}

fn not_there(note: Option<Vec<u8>>, by: Vec<u8>, holder: Vec<u8>) -> Value {
    let texts = [Value::Text(by), Value::Text(holder)];
    let mut items = vec![Value::Int(0), note.map_or(Value::Int(0), Value::Text)];
    items.extend(texts);
    Value::List(items)
}

/// Returns how long the hash must last for a hold with this lease and for the other holds in the
/// hash.
fn span_of_all(keyspace: &mut Keyspace, lock: &[u8], lease_ms: u64) -> Result<u64, Refusal> {
    let ttl = u64::try_from(keyspace.pttl(lock)).unwrap_or(0);
    Ok(match keyspace.hlen(lock)? {
        3.. => lease_ms.max(ttl),
        _ => lease_ms,
    })
}

fn ends_earlier(ttl: i64, span: u64) -> bool {
    ttl < 0 || ttl > to_int(span)
}

/// The twin of `note_taken` in `ticket.lua`.
fn note_taken(keyspace: &mut Keyspace, taken: &[u8], old: &[u8], hold: &[u8]) {
    match keyspace.hlen(taken) {
        Err(_) => return,
        Ok(64..) => drop(keyspace.del(taken)),
        Ok(_) => {}
    }
    if keyspace.hset(taken, old, hold).is_ok() {
        keyspace.pexpire(taken, NOTED_MS);
    }
}

/// The twin of `taken_by` in `ticket.lua`.
fn taken_by(keyspace: &mut Keyspace, taken: &[u8], old: &[u8]) -> Vec<u8> {
    let by = keyspace.hget(taken, old);
    by.ok().flatten().unwrap_or_default()
}

/// The twin of `gone` in `ticket.lua`.
fn gone(
    keyspace: &mut Keyspace,
    lock: &[u8],
    marker: &[u8],
    (taken, old): (&[u8], &[u8]),
) -> Value {
    let by = taken_by(keyspace, taken, old);
    // Permits have no hash.
    let fields = keyspace.hgetall(lock).unwrap_or_default();
    let is_small = by.is_empty() && fields.len() < 64;
    let is_only = fields.len() == 1;
    let writes = |field: &[u8]| field.windows(6).any(|part| part == b":write");
    let holder = fields
        .into_iter()
        .map(|(field, _)| field)
        .rfind(|field| is_small && (is_only || writes(field)));
    let note = keyspace.hget(marker, old).ok().flatten();
    not_there(note, by, holder.unwrap_or_default())
}
