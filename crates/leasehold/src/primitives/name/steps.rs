//! The step that looks at a name: how it is sent, and its twin on the embedded keyspace. The
//! Lua beside this file says what it does.

use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Refusal, Step, Value, step};
use crate::key::Key;
use crate::primitives::rw::steps::{REMAINING, left};
use crate::primitives::twin::{NOW_MS, whole};

step! {
    LOOK: Look = name.look, grants: false,
    keys: [name, leases, queue, waiters, tokens, opened],
    args: [],
    uses: [REMAINING, NOW_MS],
}

impl Look<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        // A key of another type is a stranger's, and a look must not fail on it.
        let held = match keyspace.kind(self.leases) {
            "zset" => keyspace.zcard(self.leases)?,
            _ => 0,
        };
        Ok(Value::List(vec![
            Value::Text(keyspace.kind(self.name).into()),
            Value::Int(keyspace.pttl(self.name)),
            Value::Int(whole(keyspace.now_ms())),
            short_text(keyspace, self.name)?,
            fields_of(keyspace, self.name)?,
            Value::Int(whole(held as u64)),
            permits_of(keyspace, self.leases)?,
            line_of(keyspace, self.queue, self.waiters)?,
            short_text(keyspace, self.tokens)?,
            Value::Int(keyspace.exists(self.opened).into()),
        ]))
    }
}

pub(crate) static ALL: [&Step; 1] = [&LOOK];

pub(crate) fn look(key: &Key) -> Operation {
    Look {
        name: key.as_str().as_bytes(),
        leases: key.timeout_key().as_bytes(),
        queue: key.fair_queue().as_bytes(),
        waiters: key.fair_waiters().as_bytes(),
        tokens: key.token_counter().as_bytes(),
        opened: key.opened_marker().as_bytes(),
    }
    .operation()
}

/// The most that is shown of anything that may be long.
const MOST: usize = 1000;
/// The end that Redisson notes for a permit that never ends.
pub(super) const NEVER: i64 = 922_337_203_685_477;

fn cut(text: &[u8], most: usize) -> Value {
    Value::Text(text[..text.len().min(most)].to_vec())
}

fn short_text(keyspace: &mut Keyspace, key: &[u8]) -> Result<Value, Refusal> {
    let text = match keyspace.kind(key) {
        "string" => keyspace.get(key)?,
        _ => None,
    };
    Ok(cut(&text.unwrap_or_default(), 32))
}

fn fields_of(keyspace: &mut Keyspace, name: &[u8]) -> Result<Value, Refusal> {
    if keyspace.kind(name) != "hash" {
        return Ok(Value::List(Vec::new()));
    }
    let has_mode = keyspace.hexists(name, b"mode")?;
    let mut fields = Vec::new();
    for (field, value) in keyspace.hgetall(name)?.into_iter().take(MOST) {
        let count = std::str::from_utf8(&value).ok();
        // Without a mode the hash is no read-write lock, and the look at each field's own keys is
        // saved.
        let count = count.filter(|text| has_mode && text.bytes().all(|byte| byte.is_ascii_digit()));
        let left_ms = match count.and_then(|text| text.parse().ok()) {
            Some(count) => left(keyspace, name, &field, count),
            None => -2,
        };
        let parts = vec![cut(&field, 500), cut(&value, 500), Value::Int(left_ms)];
        fields.push(Value::List(parts));
    }
    Ok(Value::List(fields))
}

fn permits_of(keyspace: &mut Keyspace, leases: &[u8]) -> Result<Value, Refusal> {
    let permits = match keyspace.kind(leases) {
        "zset" => keyspace.zrange(leases)?,
        _ => Vec::new(),
    };
    let permits = permits.into_iter().take(MOST).map(|(id, ends)| {
        // The set may be a stranger's, with any score. Whoever reads the reply subtracts the time
        // from it.
        let ends = Value::Int(ends.clamp(0, NEVER));
        Value::List(vec![cut(&id, 500), ends])
    });
    Ok(Value::List(permits.collect()))
}

fn line_of(keyspace: &mut Keyspace, queue: &[u8], waiters: &[u8]) -> Result<Value, Refusal> {
    let line = match keyspace.kind(queue) {
        "list" => keyspace.lrange(queue)?,
        _ => Vec::new(),
    };
    let mut shown = Vec::new();
    for waiter in line.into_iter().take(MOST) {
        let alive_until = match keyspace.kind(waiters) {
            "zset" => keyspace.zscore(waiters, &waiter)?,
            _ => None,
        };
        let alive_until = Value::Int(alive_until.unwrap_or(0));
        shown.push(Value::List(vec![Value::Text(waiter), alive_until]));
    }
    Ok(Value::List(shown))
}
