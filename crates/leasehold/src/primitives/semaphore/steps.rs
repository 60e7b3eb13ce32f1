//! The steps of the semaphore: how each is sent, and its twin on the embedded keyspace.
//! The Lua beside this file says what each does.

use std::time::Duration;

use crate::backend::step::{Operation, Step, Value};
use crate::config::wire_ms;
use crate::key::Key;
use crate::local::Marked;
use crate::primitives::twin::{
    MARKER_MS, NOBODY_KNOWS, arity, list, note, number, number_at, replied, tell,
};

pub(crate) static ACQUIRE: Step = Step {
    name: "semaphore.acquire",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("acquire.lua")
    ),
    keys: 4,
    args: 1,
    grants: true,
    twin: |keyspace, parts| {
        let [semaphore, marker, done, released, sizes] = parts else {
            return Err(arity());
        };
        if let Some(before) = keyspace.get(marker)? {
            let (asks, _, left) = read_marker(&before).unwrap_or_default();
            return Ok(acquired(asks, left, true, None));
        }
        let free = number_at(keyspace, semaphore)?;
        let (there, free) = (free.is_some(), free.unwrap_or(0));
        let (mut asks, mut taken) = (0, 0);
        for size in sizes.split(|byte| *byte == b' ') {
            let size = number::<i64>(size)?;
            if taken + size > free {
                break;
            }
            (asks, taken) = (asks + 1, taken + size);
        }
        note(
            keyspace,
            marker,
            &format!("{asks} {taken} {}", free - taken),
        );
        if taken > 0 {
            keyspace.incr_by(semaphore, -taken)?;
        }
        keyspace.del(done);
        let last = match asks {
            0 => keyspace.get(released).ok().flatten(),
            _ => None,
        };
        Ok(acquired(asks, free - taken, there, last))
    },
};

pub(crate) static UNDO: Step = Step {
    name: "semaphore.undo",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("../publish_free.lua"),
        include_str!("undo.lua")
    ),
    keys: 2,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [semaphore, marker, channel] = parts else {
            return Err(arity());
        };
        let before = keyspace.get(marker)?;
        if before.as_deref() == Some(b"undone") {
            return Ok(Value::Int(0));
        }
        let before = before.and_then(|text| read_marker(&text));
        let (_, mut taken, _) = before.unwrap_or_default();
        match number_at(keyspace, semaphore)? {
            Some(_) if taken > 0 => {
                let free = keyspace.incr_by(semaphore, taken)?;
                tell(keyspace, channel, free, taken);
            }
            _ => taken = 0,
        }
        note(keyspace, marker, "undone");
        Ok(Value::Int(taken))
    },
};

pub(crate) static ADD: Step = Step {
    name: "semaphore.add",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("../publish_free.lua"),
        include_str!("add.lua")
    ),
    keys: 4,
    args: 3,
    grants: false,
    twin: |keyspace, parts| {
        let [
            semaphore,
            marker,
            done,
            released,
            permits,
            if_there,
            channel,
        ] = parts
        else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(list(&[before, NOBODY_KNOWS]));
        }
        let there = number_at(keyspace, semaphore)?.is_some();
        keyspace.del(done);
        let reply = i64::from(there || if_there == b"0");
        note(keyspace, marker, &reply.to_string());
        if reply == 0 {
            return Ok(list(&[0, NOBODY_KNOWS]));
        }
        let permits = number(permits)?;
        let free = keyspace.incr_by(semaphore, permits)?;
        if permits > 0 {
            keyspace.set(released, marker);
            keyspace.pexpire(released, MARKER_MS);
        }
        Ok(list(&[1, tell(keyspace, channel, free, permits)]))
    },
};

pub(crate) static DRAIN: Step = Step {
    name: "semaphore.drain",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("drain.lua")
    ),
    keys: 3,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [semaphore, marker, done] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let free = number_at(keyspace, semaphore)?.unwrap_or(0);
        note(keyspace, marker, &free.to_string());
        if free != 0 {
            keyspace.incr_by(semaphore, -free)?;
        }
        keyspace.del(done);
        Ok(Value::Int(free))
    },
};

pub(crate) static SET: Step = Step {
    name: "semaphore.set",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("../publish_free.lua"),
        include_str!("set.lua")
    ),
    keys: 3,
    args: 3,
    grants: false,
    twin: |keyspace, parts| {
        let [semaphore, marker, done, permits, expiry_ms, channel] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let made = number_at(keyspace, semaphore)?.is_none();
        note(keyspace, marker, &i64::from(made).to_string());
        if made {
            keyspace.set(semaphore, permits);
            if let Ok(ms @ 1..) = u64::try_from(number::<i64>(expiry_ms)?) {
                keyspace.pexpire(semaphore, ms);
            }
            keyspace.del(done);
            tell(keyspace, channel, number(permits)?, number(permits)?);
        }
        Ok(Value::Int(i64::from(made)))
    },
};

pub(crate) static AVAILABLE: Step = Step {
    name: "semaphore.available",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("available.lua")
    ),
    keys: 1,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [semaphore] = parts else {
            return Err(arity());
        };
        let free = number_at(keyspace, semaphore)?;
        Ok(list(&[free.unwrap_or(0), free.is_some().into()]))
    },
};

pub(crate) static DELETE: Step = Step {
    name: "semaphore.delete",
    lua: concat!(
        include_str!("../idempotency.lua"),
        include_str!("delete.lua")
    ),
    keys: 3,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [semaphore, marker, done] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        let there = number_at(keyspace, semaphore)?.is_some();
        keyspace.del(done);
        note(keyspace, marker, &i64::from(there).to_string());
        keyspace.del(semaphore);
        Ok(Value::Int(i64::from(there)))
    },
};

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 7] = [&ACQUIRE, &UNDO, &ADD, &DRAIN, &SET, &AVAILABLE, &DELETE];

/// The reply of an acquire.
fn acquired(asks: i64, free: i64, there: bool, released: Option<Vec<u8>>) -> Value {
    let numbers = [asks, free, there.into()].map(Value::Int);
    let released = Value::Text(released.unwrap_or_default());
    Value::List(numbers.into_iter().chain([released]).collect())
}

/// The note of an acquire: how many asks it granted, how many permits those were, and how many
/// permits were left.
fn read_marker(text: &[u8]) -> Option<(i64, i64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

pub(crate) fn acquire(key: &Key, marked: &Marked, sizes: &[u32]) -> Operation {
    let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
    let mut parts = marked.keys(key);
    parts.push(key.released_marker().into_bytes());
    parts.push(sizes.join(" ").into_bytes());
    Operation::new(&ACQUIRE, parts)
}

pub(crate) fn undo(key: &Key, marker: &str, channel: &str) -> Operation {
    let parts = vec![key.as_str().into(), marker.into(), channel.into()];
    Operation::new(&UNDO, parts)
}

pub(crate) fn add(
    key: &Key,
    marked: &Marked,
    permits: i64,
    only_if_there: bool,
    channel: &str,
) -> Operation {
    let mut parts = marked.keys(key);
    parts.extend([
        key.released_marker().into_bytes(),
        permits.to_string().into_bytes(),
        vec![if only_if_there { b'1' } else { b'0' }],
        channel.into(),
    ]);
    Operation::new(&ADD, parts)
}

pub(crate) fn drain(key: &Key, marked: &Marked) -> Operation {
    Operation::new(&DRAIN, marked.keys(key))
}

pub(crate) fn set(
    key: &Key,
    marked: &Marked,
    permits: u32,
    expiry: Option<Duration>,
    channel: &str,
) -> Operation {
    let mut parts = marked.keys(key);
    parts.extend([
        permits.to_string().into_bytes(),
        expiry.map_or(0, wire_ms).to_string().into_bytes(),
        channel.into(),
    ]);
    Operation::new(&SET, parts)
}

pub(crate) fn available(key: &Key) -> Operation {
    Operation::new(&AVAILABLE, vec![key.as_str().into()])
}

pub(crate) fn delete(key: &Key, marked: &Marked) -> Operation {
    Operation::new(&DELETE, marked.keys(key))
}
