//! The steps of the latch: how each is sent, and its twin on the embedded keyspace. The
//! Lua beside this file says what each does.

use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Step, Value};
use crate::key::Key;
use crate::local::Marked;
use crate::primitives::twin::{arity, list, note, number, number_at, replied};

pub(crate) static SET: Step = Step {
    name: "latch.set",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("opened.lua"),
        include_str!("set.lua")
    ),
    keys: 4,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [latch, marker, done, opened, count, channel] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let made = number_at(keyspace, latch)?.is_none();
        note(keyspace, marker, &i64::from(made).to_string());
        if made {
            keyspace.set(latch, count);
            keyspace.del(done);
            note_opened(keyspace, opened);
            keyspace.publish(channel, b"1");
        }
        Ok(Value::Int(i64::from(made)))
    },
};

pub(crate) static COUNT_DOWN: Step = Step {
    name: "latch.count_down",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("opened.lua"),
        include_str!("count_down.lua")
    ),
    keys: 4,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [latch, marker, done, opened, by, channel] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let count = number_at(keyspace, latch)?;
        keyspace.del(done);
        let by = number::<i64>(by)?;
        let left = (count.unwrap_or(0) - by).max(0);
        note(keyspace, marker, &left.to_string());
        match count {
            Some(_) if left > 0 => {
                keyspace.incr_by(latch, -by)?;
            }
            Some(count) => {
                keyspace.del(latch);
                if count > 0 {
                    note_opened(keyspace, opened);
                    keyspace.publish(channel, b"0");
                }
            }
            None => {}
        }
        Ok(Value::Int(left))
    },
};

pub(crate) static COUNT: Step = Step {
    name: "latch.count",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("opened.lua"),
        include_str!("count.lua")
    ),
    keys: 2,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [latch, opened] = parts else {
            return Err(arity());
        };
        let count = number_at(keyspace, latch)?.unwrap_or(0).max(0);
        Ok(list(&[count, last_opened(keyspace, opened)]))
    },
};

pub(crate) static DELETE: Step = Step {
    name: "latch.delete",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("opened.lua"),
        include_str!("delete.lua")
    ),
    keys: 4,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [latch, marker, done, opened, channel] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let there = number_at(keyspace, latch)?.is_some();
        keyspace.del(done);
        note(keyspace, marker, &i64::from(there).to_string());
        if there {
            keyspace.del(latch);
            note_opened(keyspace, opened);
            keyspace.publish(channel, b"1");
        }
        Ok(Value::Int(i64::from(there)))
    },
};

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 4] = [&SET, &COUNT_DOWN, &COUNT, &DELETE];

/// When the latch was last open.
fn last_opened(keyspace: &mut Keyspace, opened: &[u8]) -> i64 {
    let last = keyspace.get(opened).ok().flatten();
    last.and_then(|text| number(&text).ok()).unwrap_or(0)
}

fn note_opened(keyspace: &mut Keyspace, opened: &[u8]) {
    const KEPT_MS: u64 = 3_600_000;
    let now = i64::try_from(keyspace.now_ms()).unwrap_or(i64::MAX);
    let last = last_opened(keyspace, opened);
    keyspace.set(opened, (now.max(last) + 1).to_string().as_bytes());
    keyspace.pexpire(opened, KEPT_MS);
}

pub(crate) fn set(key: &Key, marked: &Marked, count: u64, channel: &str) -> Operation {
    let mut parts = marked.keys(key);
    parts.extend([
        key.opened_marker().into_bytes(),
        count.to_string().into_bytes(),
        channel.into(),
    ]);
    Operation::new(&SET, parts)
}

pub(crate) fn count_down(key: &Key, marked: &Marked, by: u64, channel: &str) -> Operation {
    let mut parts = marked.keys(key);
    parts.extend([
        key.opened_marker().into_bytes(),
        by.to_string().into_bytes(),
        channel.into(),
    ]);
    Operation::new(&COUNT_DOWN, parts)
}

pub(crate) fn count(key: &Key) -> Operation {
    let parts = vec![key.as_str().into(), key.opened_marker().into_bytes()];
    Operation::new(&COUNT, parts)
}

pub(crate) fn delete(key: &Key, marked: &Marked, channel: &str) -> Operation {
    let mut parts = marked.keys(key);
    parts.extend([key.opened_marker().into_bytes(), channel.into()]);
    Operation::new(&DELETE, parts)
}
