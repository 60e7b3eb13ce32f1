//! The steps of the read-write lock, each with its twin on the embedded keyspace. The
//! Lua beside this file says what each does.

use crate::backend::memory::Keyspace;
use crate::backend::step::{Refusal, Step, Value};
use crate::primitives::twin::{arity, lengthen, number, wake_all};

/// The text of a step, behind the shared files that it needs.
macro_rules! lua {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) static ACQUIRE_READ: Step = Step {
    name: "rw.acquire_read",
    lua: lua!("shape.lua", "marks.lua", "acquire_read.lua"),
    keys: 4,
    args: 6,
    grants: true,
    twin: |keyspace, parts| {
        let [
            lock,
            timeout,
            writers,
            readers,
            hold,
            within,
            lease_ms,
            polite,
            waiter,
            mark_ms,
        ] = parts
        else {
            return Err(arity());
        };
        let mark_ms = number(mark_ms)?;
        let mode = mode(keyspace, lock)?;
        if mode.is_some() && keyspace.hexists(lock, hold)? && keyspace.exists(timeout) {
            return Ok(Value::Nil);
        }
        if mode == Some(Mode::Write) {
            if within.is_empty() || !keyspace.hexists(lock, within)? {
                mark(keyspace, readers, waiter, mark_ms);
                return Ok(Value::Int(keyspace.pttl(lock)));
            }
        } else if mark_ms > 0 && keyspace.zrem(readers, waiter).unwrap_or(false) {
            // This reader's turn comes before the next writer's.
        } else if polite != b"0"
            && let Some(rest @ 1..) = marked_for(keyspace, writers)
        {
            if mode.is_some() || mark_ms == 0 {
                return Ok(Value::Int(rest));
            }
            if polite == b"2" {
                mark(keyspace, readers, waiter, mark_ms);
            }
            return Ok(Value::Int(rest.min(50)));
        }
        let lease_ms = number(lease_ms)?;
        keyspace.set(timeout, b"1");
        keyspace.pexpire(timeout, lease_ms);
        keyspace.hset(lock, b"mode", mode.unwrap_or(Mode::Read).name())?;
        keyspace.hset(lock, hold, b"1")?;
        if mode.is_none() || keyspace.pttl(lock) >= 0 {
            lengthen(keyspace, lock, lease_ms);
        }
        Ok(Value::Nil)
    },
};

pub(crate) static ACQUIRE_WRITE: Step = Step {
    name: "rw.acquire_write",
    lua: lua!(
        "shape.lua",
        "remaining.lua",
        "trim_expiry.lua",
        "longest_of_some.lua",
        "marks.lua",
        "acquire_write.lua"
    ),
    keys: 3,
    args: 4,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, writers, readers, hold, lease_ms, waiter, mark_ms] = parts else {
            return Err(arity());
        };
        let mark_ms = number(mark_ms)?;
        let mut mode = mode(keyspace, lock)?;
        let mut wait = keyspace.pttl(lock);
        if mode == Some(Mode::Read) && wait > 0 && keyspace.hlen(lock)? > 64 {
            wait = longest_of_some(keyspace, lock)?;
            if wait == 0 {
                mode = mode.filter(|_| matches!(settle(keyspace, lock), Ok(false)));
                wait = keyspace.pttl(lock);
            }
        }
        let turn = marked_for(keyspace, readers).unwrap_or(0);
        if mode.is_none() && turn > 0 {
            wait = turn;
        } else if mode.is_none() {
            keyspace.hset(lock, b"mode", b"write")?;
            keyspace.hset(lock, hold, b"1")?;
            keyspace.pexpire(lock, number(lease_ms)?);
            if mark_ms > 0 {
                // A key of another type is left alone, because the mark is only a courtesy.
                let _ = keyspace.zrem(writers, waiter);
            }
            return Ok(Value::Nil);
        }
        if keyspace.hexists(lock, hold)? {
            return Ok(Value::Nil);
        }
        mark(keyspace, writers, waiter, mark_ms);
        Ok(Value::Int(wait))
    },
};

pub(crate) static WITHDRAW: Step = Step {
    name: "rw.withdraw",
    lua: lua!("../wake_all.lua", "withdraw.lua"),
    keys: 1,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [marks, waiter, channel] = parts else {
            return Err(arity());
        };
        let gone = keyspace.zrem(marks, waiter)?;
        if gone && !keyspace.exists(marks) {
            wake_all(keyspace, channel);
        }
        Ok(Value::Int(gone.into()))
    },
};

pub(crate) static RELEASE_READ: Step = Step {
    name: "rw.release_read",
    lua: lua!(
        "remaining.lua",
        "trim_expiry.lua",
        "longest_of_some.lua",
        "release_read.lua"
    ),
    keys: 2,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, timeout, hold, channel] = parts else {
            return Err(arity());
        };
        let stood = keyspace.hdel(lock, hold)?;
        let held = keyspace.del(timeout);
        if !stood {
            return Ok(Value::Int(0));
        }
        let writes = keyspace.hget(lock, b"mode")?.as_deref() == Some(b"write");
        let fields = keyspace.hlen(lock)?;
        let put_off = fields > 64
            && !has_its_turn(keyspace, hold, fields)
            && longest_of_some(keyspace, lock)? > 0;
        if fields == 1 || !(writes || put_off) {
            let is_free = settle(keyspace, lock)?;
            if is_free {
                keyspace.publish(channel, b"0");
            }
        }
        Ok(Value::Int(held.into()))
    },
};

pub(crate) static RELEASE_WRITE: Step = Step {
    name: "rw.release_write",
    lua: lua!(
        "../wake_all.lua",
        "remaining.lua",
        "trim_expiry.lua",
        "release_write.lua"
    ),
    keys: 1,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, hold, channel] = parts else {
            return Err(arity());
        };
        if !keyspace.hdel(lock, hold)? {
            return Ok(Value::Int(0));
        }
        if keyspace.hlen(lock)? > 1 {
            keyspace.hset(lock, b"mode", b"read")?;
        }
        settle(keyspace, lock)?;
        wake_all(keyspace, channel);
        Ok(Value::Int(1))
    },
};

pub(crate) static RENEW_READ: Step = Step {
    name: "rw.renew_read",
    lua: include_str!("renew_read.lua"),
    keys: 2,
    args: 3,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, timeout, hold, lease_ms, most_ms] = parts else {
            return Err(arity());
        };
        let mut ttl = keyspace.pttl(timeout);
        if ttl == -2 || !keyspace.hexists(lock, hold)? {
            return Ok(Value::Int(0));
        }
        let (lease_ms, most_ms) = (whole(number(lease_ms)?), whole(number(most_ms)?));
        if ttl < lease_ms || (most_ms > 0 && ttl > most_ms) {
            keyspace.pexpire(timeout, lease_ms.unsigned_abs());
            ttl = lease_ms;
        }
        let lock_ttl = keyspace.pttl(lock);
        let alone = keyspace.hlen(lock)? == 2;
        let too_long = lock_ttl == -1 || (most_ms > 0 && lock_ttl > most_ms);
        if (lock_ttl >= 0 && lock_ttl < ttl) || (alone && too_long) {
            keyspace.pexpire(lock, ttl.unsigned_abs());
        }
        Ok(Value::Int(ttl))
    },
};

pub(crate) static RENEW_WRITE: Step = Step {
    name: "rw.renew_write",
    lua: include_str!("renew_write.lua"),
    keys: 1,
    args: 3,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, hold, lease_ms, most_ms] = parts else {
            return Err(arity());
        };
        if !keyspace.hexists(lock, hold)? {
            return Ok(Value::Int(0));
        }
        let (lease_ms, most_ms) = (whole(number(lease_ms)?), whole(number(most_ms)?));
        let ttl = keyspace.pttl(lock);
        let too_long = most_ms > 0 && ttl > most_ms && keyspace.hlen(lock)? == 2;
        if ttl < lease_ms || too_long {
            keyspace.pexpire(lock, lease_ms.unsigned_abs());
        }
        Ok(Value::Int(keyspace.pttl(lock)))
    },
};

pub(crate) static DOWNGRADE: Step = Step {
    name: "rw.downgrade",
    lua: lua!(
        "../wake_all.lua",
        "remaining.lua",
        "trim_expiry.lua",
        "downgrade.lua"
    ),
    keys: 2,
    args: 4,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, timeout, hold, read, lease_ms, channel] = parts else {
            return Err(arity());
        };
        if !keyspace.hexists(lock, hold)? {
            let done = keyspace.hexists(lock, read)? && keyspace.exists(timeout);
            return Ok(Value::Int(done.into()));
        }
        let lease_ms = number(lease_ms)?;
        lengthen(keyspace, lock, lease_ms);
        keyspace.set(timeout, b"1");
        keyspace.pexpire(timeout, lease_ms);
        keyspace.hset(lock, b"mode", b"read")?;
        keyspace.hset(lock, read, b"1")?;
        keyspace.hdel(lock, hold)?;
        settle(keyspace, lock)?;
        wake_all(keyspace, channel);
        Ok(Value::Int(1))
    },
};

pub(crate) static UPGRADE: Step = Step {
    name: "rw.upgrade",
    lua: lua!("shape.lua", "remaining.lua", "upgrade.lua"),
    keys: 1,
    args: 3,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, hold, read, lease_ms] = parts else {
            return Err(arity());
        };
        let mode = mode(keyspace, lock)?;
        if mode == Some(Mode::Write) && keyspace.hexists(lock, hold)? {
            return Ok(Value::Nil);
        }
        let alive = read_holds(keyspace, lock)?
            .into_iter()
            .filter(|(_, left)| *left >= 0)
            .map(|(field, _)| field);
        if mode != Some(Mode::Read) || !alive.eq([read.clone()]) {
            return Ok(Value::Int(keyspace.pttl(lock)));
        }
        for (field, _) in keyspace.hgetall(lock)? {
            if field != b"mode" && field != *read {
                keyspace.hdel(lock, &field)?;
            }
        }
        lengthen(keyspace, lock, number(lease_ms)?);
        keyspace.hset(lock, b"mode", b"write")?;
        keyspace.hset(lock, hold, b"1")?;
        Ok(Value::Nil)
    },
};

pub(crate) static WHY_LOST: Step = Step {
    name: "rw.why_lost",
    lua: include_str!("why_lost.lua"),
    keys: 2,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, marker, hold] = parts else {
            return Err(arity());
        };
        let mut holder = Vec::new();
        if keyspace.hget(lock, b"mode")?.as_deref() == Some(b"write") && keyspace.hlen(lock)? < 64 {
            let mut fields = keyspace.hgetall(lock)?.into_iter();
            if let Some((writer, _)) = fields.rfind(|(field, _)| writes(field) && field != hold) {
                holder = writer;
            }
        }
        let forced = i64::from(keyspace.hexists(marker, hold)?);
        Ok(Value::List(vec![Value::Text(holder), Value::Int(forced)]))
    },
};

pub(crate) static FORCE_UNLOCK: Step = Step {
    name: "rw.force_unlock",
    lua: lua!("../wake_all.lua", "shape.lua", "force_unlock.lua"),
    keys: 2,
    args: 2,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, marker, side, channel] = parts else {
            return Err(arity());
        };
        if mode(keyspace, lock)?.is_none_or(|mode| mode.name() != &side[..]) {
            return Ok(Value::Int(0));
        }
        let holders = keyspace.hgetall(lock)?;
        let ttl = keyspace.pttl(lock);
        keyspace.del(lock);
        if let (Ok(ttl @ 1..), Ok(size)) = (u64::try_from(ttl), keyspace.hlen(marker)) {
            let room = 4096_usize.saturating_sub(size);
            for (holder, _) in holders.iter().take(room) {
                if holder != b"mode" {
                    keyspace.hset(marker, holder, b"1")?;
                }
            }
            if room > 0 {
                lengthen(keyspace, marker, ttl);
            }
        }
        if side == b"write" {
            wake_all(keyspace, channel);
        } else {
            keyspace.publish(channel, b"0");
        }
        Ok(Value::Int(1))
    },
};

pub(crate) static INSPECT: Step = Step {
    name: "rw.inspect",
    lua: lua!("shape.lua", "remaining.lua", "inspect.lua"),
    keys: 1,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, side] = parts else {
            return Err(arity());
        };
        let mode = mode(keyspace, lock)?;
        let mut reply = vec![Value::Int(keyspace.pttl(lock))];
        if mode.is_some_and(|mode| mode == Mode::Write || mode.name() == &side[..]) {
            for (field, count) in keyspace.hgetall(lock)? {
                let Some(holds) = hold_count(&field, &count) else {
                    continue;
                };
                let shown = match (writes(&field), &side[..]) {
                    (true, b"write") => true,
                    (false, b"read") => left(keyspace, lock, &field, holds) >= 0,
                    _ => false,
                };
                if shown {
                    reply.extend([Value::Text(field), Value::Text(count)]);
                }
            }
        }
        if reply.len() == 1 {
            reply = vec![Value::Int(-2)];
        }
        Ok(Value::List(reply))
    },
};

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 12] = [
    &ACQUIRE_READ,
    &ACQUIRE_WRITE,
    &RELEASE_READ,
    &RELEASE_WRITE,
    &RENEW_READ,
    &RENEW_WRITE,
    &WITHDRAW,
    &DOWNGRADE,
    &UPGRADE,
    &WHY_LOST,
    &FORCE_UNLOCK,
    &INSPECT,
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

impl Mode {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Read => b"read",
            Self::Write => b"write",
        }
    }
}

/// The mode of a lock, `None` when it is free, or an error that says what the key is instead: the
/// twin of `shape.lua`.
fn mode(keyspace: &mut Keyspace, lock: &[u8]) -> Result<Option<Mode>, Refusal> {
    let mode = keyspace.hget(lock, b"mode")?;
    match mode.as_deref() {
        Some(b"read") => return Ok(Some(Mode::Read)),
        Some(b"write") => return Ok(Some(Mode::Write)),
        _ => {}
    }
    let fields = keyspace.hgetall(lock)?;
    match &fields[..] {
        [] => Ok(None),
        [(_, count)]
            if mode.is_none() && !count.is_empty() && count.iter().all(u8::is_ascii_digit) =>
        {
            Err(Refusal("WRONGKIND a plain lock".into()))
        }
        _ => Err(Refusal(format!(
            "WRONGKIND a hash that is not a lock ({} fields)",
            fields.len()
        ))),
    }
}

fn writes(field: &[u8]) -> bool {
    field.windows(6).any(|part| part == b":write")
}

/// How often Redisson counts the hold of this field; `None` if the field is no hold.
fn hold_count(field: &[u8], value: &[u8]) -> Option<u64> {
    let count = std::str::from_utf8(value).ok()?.parse().ok()?;
    (field != b"mode").then_some(count)
}

/// Each hold's field, with the time that it has left as a read hold.
fn read_holds(keyspace: &mut Keyspace, lock: &[u8]) -> Result<Vec<(Vec<u8>, i64)>, Refusal> {
    let mut holds = Vec::new();
    for (field, value) in keyspace.hgetall(lock)? {
        if let Some(count) = hold_count(&field, &value) {
            let left = left(keyspace, lock, &field, count);
            holds.push((field, left));
        }
    }
    Ok(holds)
}

/// The twin of `remaining.lua`.
pub(in crate::primitives) fn left(
    keyspace: &mut Keyspace,
    lock: &[u8],
    field: &[u8],
    count: u64,
) -> i64 {
    let stem = if lock.contains(&b'{') {
        lock.to_vec()
    } else {
        [b"{", lock, b"}"].concat()
    };
    let mut longest = -2;
    for n in 1..=count.min(1000) {
        let number = n.to_string();
        let key = [
            &stem,
            b":".as_slice(),
            field,
            b":rwlock_timeout:",
            number.as_bytes(),
        ]
        .concat();
        let ttl = match keyspace.pttl(&key) {
            -1 => keyspace.pttl(lock),
            ttl => ttl,
        };
        longest = longest.max(ttl);
    }
    longest
}

/// The twin of `trim_expiry.lua`.
fn settle(keyspace: &mut Keyspace, lock: &[u8]) -> Result<bool, Refusal> {
    let holds = read_holds(keyspace, lock)?;
    for (field, _) in holds.iter().filter(|(_, left)| *left < 0) {
        keyspace.hdel(lock, field)?;
    }
    match holds.iter().map(|(_, left)| *left).max() {
        Some(longest @ 1..) => {
            keyspace.pexpire(lock, longest.unsigned_abs());
            Ok(false)
        }
        _ => {
            keyspace.del(lock);
            Ok(true)
        }
    }
}

/// Whether this is the one release among many that goes through all read holds.
fn has_its_turn(keyspace: &Keyspace, hold: &[u8], fields: usize) -> bool {
    let number = hold.rsplit(|letter| !letter.is_ascii_digit()).next();
    let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let turn = keyspace.now_ms().wrapping_add(number.unwrap_or(0));
    turn % fields as u64 <= 63
}

/// The twin of `longest_of_some.lua`. It looks at all holds, because here that costs little.
fn longest_of_some(keyspace: &mut Keyspace, lock: &[u8]) -> Result<i64, Refusal> {
    let holds = read_holds(keyspace, lock)?;
    Ok(holds
        .iter()
        .map(|(_, left)| *left)
        .max()
        .unwrap_or(0)
        .max(0))
}

/// Notes that somebody waits: the twin of `marks.lua`. A key of another type is left alone, because
/// the mark is only a courtesy.
fn mark(keyspace: &mut Keyspace, marks: &[u8], waiter: &[u8], mark_ms: u64) {
    if mark_ms == 0 {
        return;
    }
    let now = whole(keyspace.now_ms());
    let Ok(dead) = keyspace.zrange_by_score(marks, now, usize::MAX) else {
        return;
    };
    for dead in dead {
        let _ = keyspace.zrem(marks, &dead);
    }
    if keyspace.zadd(marks, waiter, now + whole(mark_ms)).is_ok() {
        keyspace.pexpire(marks, mark_ms);
    }
}

/// How long the marks keep others out: the twin of `marks.lua`.
fn marked_for(keyspace: &mut Keyspace, marks: &[u8]) -> Option<i64> {
    let marks = keyspace.zrange(marks).ok()?;
    let (_, until) = marks.last()?;
    Some(until - whole(keyspace.now_ms()))
}

fn whole(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
