//! The steps of the latch: how each is sent, and its twin on the embedded keyspace. `latch.lua`
//! describes each step.

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, SharedLua, Step, Value, number, step};
use crate::key::Key;
use crate::local::Marked;
use crate::primitives::twin::{
    IDEMPOTENCY, NUMBER_AT, earlier_reply, list, note, number_at, to_int,
};

static LUA: LuaFile = LuaFile::new(include_str!("latch.lua"));

static OPENED: SharedLua = SharedLua::new(&LUA, "opened", &[]);

step! {
    SET: Set = latch.set, grants: false,
    keys: [latch, marker, done, opened],
    args: [count: u64, channel],
    uses: [IDEMPOTENCY, NUMBER_AT, OPENED],
}

impl Set<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let made = number_at(keyspace, self.latch)?.is_none();
        note(keyspace, self.marker, &i64::from(made).to_string());
        if made {
            keyspace.set(self.latch, self.count.to_string().as_bytes());
            keyspace.del(self.done);
            // The latch was open until now. If Redisson opened it, the opening has not been noted
            // yet, and a waiter that did not get the message would miss it.
            note_opened(keyspace, self.opened);
            keyspace.publish(self.channel, b"1");
        }
        Ok(Value::Int(i64::from(made)))
    }
}

step! {
    COUNT_DOWN: CountDown = latch.count_down, grants: false,
    keys: [latch, marker, done, opened],
    args: [by: u64, channel],
    uses: [IDEMPOTENCY, NUMBER_AT, OPENED],
}

impl CountDown<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let count = number_at(keyspace, self.latch)?;
        keyspace.del(self.done);
        let by = to_int(self.by);
        let left = (count.unwrap_or(0) - by).max(0);
        note(keyspace, self.marker, &left.to_string());
        match count {
            Some(_) if left > 0 => {
                keyspace.incr_by(self.latch, -by)?;
            }
            Some(count) => {
                keyspace.del(self.latch);
                // A latch with a count of zero or less was open already, so it has no waiters.
                if count > 0 {
                    note_opened(keyspace, self.opened);
                    keyspace.publish(self.channel, b"0");
                }
            }
            None => {}
        }
        Ok(Value::Int(left))
    }
}

step! {
    COUNT: Count = latch.count, grants: false,
    while_moving: true,
    keys: [latch, opened],
    args: [],
    uses: [NUMBER_AT, OPENED],
}

impl Count<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let count = number_at(keyspace, self.latch)?.unwrap_or(0).max(0);
        Ok(list(&[count, last_opened(keyspace, self.opened)]))
    }
}

step! {
    DELETE: Delete = latch.delete, grants: false,
    keys: [latch, marker, done, opened],
    args: [channel],
    uses: [IDEMPOTENCY, NUMBER_AT, OPENED],
}

impl Delete<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let exists = number_at(keyspace, self.latch)?.is_some();
        keyspace.del(self.done);
        note(keyspace, self.marker, &i64::from(exists).to_string());
        if exists {
            keyspace.del(self.latch);
            note_opened(keyspace, self.opened);
            keyspace.publish(self.channel, b"1");
        }
        Ok(Value::Int(i64::from(exists)))
    }
}

step! {
    REPUBLISH: Republish = latch.republish, grants: false,
    while_moving: true,
    keys: [latch],
    args: [channel],
    uses: [NUMBER_AT],
}

impl Republish<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let is_open = number_at(keyspace, self.latch)?.unwrap_or(0) <= 0;
        if is_open {
            keyspace.publish(self.channel, b"0");
        }
        Ok(Value::Int(i64::from(is_open)))
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 5] = [&SET, &COUNT_DOWN, &COUNT, &DELETE, &REPUBLISH];

/// Returns the time at which the latch was last open.
fn last_opened(keyspace: &mut Keyspace, opened: &[u8]) -> i64 {
    // A key of another type counts as a missing note, as in the script: it must not keep a latch
    // closed.
    let last = keyspace.get(opened).ok().flatten();
    last.and_then(|text| number(&text).ok()).unwrap_or(0)
}

fn note_opened(keyspace: &mut Keyspace, opened: &[u8]) {
    // This is far longer than a waiter sleeps between two requests by default, so a waiter that
    // missed the message finds the note.
    const OPENED_EXPIRY_MS: u64 = 3_600_000;
    let now = i64::try_from(keyspace.now_ms()).unwrap_or(i64::MAX);
    let last = last_opened(keyspace, opened);
    // The new time is later than each earlier note, even if the clock was set back, because a
    // waiter compares two notes.
    keyspace.set(opened, (now.max(last) + 1).to_string().as_bytes());
    keyspace.pexpire(opened, OPENED_EXPIRY_MS);
}

pub(crate) fn set(key: &Key, marked: &Marked, count: u64, channel: &str) -> Operation {
    Set {
        latch: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        opened: key.opened_marker().as_bytes(),
        count,
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn count_down(key: &Key, marked: &Marked, by: u64, channel: &str) -> Operation {
    CountDown {
        latch: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        opened: key.opened_marker().as_bytes(),
        by,
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn count(key: &Key) -> Operation {
    Count {
        latch: key.as_str().as_bytes(),
        opened: key.opened_marker().as_bytes(),
    }
    .operation()
}

pub(crate) fn republish(key: &Key, channel: &str) -> Operation {
    Republish {
        latch: key.as_str().as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn delete(key: &Key, marked: &Marked, channel: &str) -> Operation {
    Delete {
        latch: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        opened: key.opened_marker().as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}
