//! The steps of the plain lock: how each is sent, and its twin on the embedded
//! keyspace. The Lua beside this file says what each does.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Refusal, Step, Value};
use crate::hold::{Asked, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::twin::{arity, lengthen, ms, number};

pub(crate) static ACQUIRE: Step = Step {
    name: "lock.acquire",
    lua: concat!(include_str!("shape.lua"), include_str!("acquire.lua")),
    keys: 1,
    args: 2,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, hold, lease_ms] = parts else {
            return Err(arity());
        };
        if keyspace.hlen(lock)? > 0 {
            if keyspace.hexists(lock, hold)? {
                return Ok(Value::Nil);
            }
            plain(keyspace, lock)?;
            return Ok(Value::Int(keyspace.pttl(lock)));
        }
        keyspace.hset(lock, hold, b"1")?;
        keyspace.pexpire(lock, number(lease_ms)?);
        Ok(Value::Nil)
    },
};

pub(crate) static RELEASE: Step = Step {
    name: "lock.release",
    lua: include_str!("release.lua"),
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
        keyspace.publish(channel, b"0");
        Ok(Value::Int(1))
    },
};

pub(crate) static RENEW: Step = Step {
    name: "lock.renew",
    lua: include_str!("renew.lua"),
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
        let (lease_ms, most_ms) = (number(lease_ms)?, number(most_ms)?);
        if most_ms > 0 && u64::try_from(keyspace.pttl(lock)).is_ok_and(|left| left > most_ms) {
            keyspace.pexpire(lock, lease_ms);
        }
        lengthen(keyspace, lock, lease_ms);
        Ok(Value::Int(keyspace.pttl(lock)))
    },
};

pub(crate) static WHY_LOST: Step = Step {
    name: "lock.why_lost",
    lua: include_str!("why_lost.lua"),
    keys: 2,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, marker, hold] = parts else {
            return Err(arity());
        };
        let mut fields = keyspace.hgetall(lock)?;
        let holder = match fields.pop() {
            Some((holder, _)) if fields.is_empty() => holder,
            _ => Vec::new(),
        };
        let forced = i64::from(keyspace.hexists(marker, hold)?);
        Ok(Value::List(vec![Value::Text(holder), Value::Int(forced)]))
    },
};

pub(crate) static FORCE_UNLOCK: Step = Step {
    name: "lock.force_unlock",
    lua: concat!(
        include_str!("shape.lua"),
        include_str!("break_hold.lua"),
        include_str!("force_unlock.lua")
    ),
    keys: 2,
    args: 1,
    grants: false,
    twin: |keyspace, parts| {
        let [lock, marker, channel] = parts else {
            return Err(arity());
        };
        let broken = break_hold(keyspace, lock, marker)?;
        if broken {
            keyspace.publish(channel, b"0");
        }
        Ok(Value::Int(broken.into()))
    },
};

pub(crate) static INSPECT: Step = Step {
    name: "lock.inspect",
    lua: concat!(include_str!("shape.lua"), include_str!("inspect.lua")),
    keys: 1,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [lock] = parts else {
            return Err(arity());
        };
        if keyspace.hlen(lock)? == 0 {
            return Ok(Value::List(vec![Value::Int(-2)]));
        }
        let (holder, count) = plain(keyspace, lock)?;
        Ok(Value::List(vec![
            Value::Int(keyspace.pttl(lock)),
            Value::Text(holder),
            Value::Text(count),
        ]))
    },
};

pub(crate) static NOTE_LONGEST: Step = Step {
    name: "lock.note_longest",
    lua: include_str!("note_longest.lua"),
    keys: 1,
    args: 1,
    // It is noted for no holder, and keeps nobody out.
    grants: false,
    twin: |keyspace, parts| {
        let [longest, own_ms] = parts else {
            return Err(arity());
        };
        let noted = keyspace.get(longest).unwrap_or_else(|_| Some(Vec::new()));
        let noted = noted.unwrap_or_else(|| b"0".to_vec());
        let noted_ms = number::<u64>(&noted).ok().filter(|ms| *ms < 1 << 53);
        let (Some(noted_ms), true) = (noted_ms, noted.iter().all(u8::is_ascii_digit)) else {
            return Err(Refusal(format!(
                "WRONGKIND a note of the longest lease ({}) that is not a number of ms",
                String::from_utf8_lossy(longest)
            )));
        };
        let own: u64 = number(own_ms)?;
        if own > noted_ms {
            keyspace.set(longest, own_ms);
        }
        Ok(Value::Int(
            i64::try_from(own.max(noted_ms)).unwrap_or(i64::MAX),
        ))
    },
};

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 7] = [
    &ACQUIRE,
    &RELEASE,
    &RENEW,
    &WHY_LOST,
    &FORCE_UNLOCK,
    &INSPECT,
    &NOTE_LONGEST,
];

/// The one field of a plain lock, or an error that says what the key is instead: the twin of
/// `shape.lua`.
pub(in crate::primitives) fn plain(
    keyspace: &mut Keyspace,
    lock: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let fields = keyspace.hgetall(lock)?;
    if let [(holder, count)] = &fields[..]
        && !count.is_empty()
        && count.iter().all(u8::is_ascii_digit)
    {
        return Ok((holder.clone(), count.clone()));
    }
    if fields.iter().any(|(field, _)| field == b"mode") {
        return Err(Refusal("WRONGKIND a read-write lock".into()));
    }
    Err(Refusal(format!(
        "WRONGKIND a hash that is not a lock ({} fields)",
        fields.len()
    )))
}

/// Ends the current hold, whoever has it, and notes that: the twin of `break_hold.lua`.
pub(in crate::primitives) fn break_hold(
    keyspace: &mut Keyspace,
    lock: &[u8],
    marker: &[u8],
) -> Result<bool, Refusal> {
    if keyspace.hlen(lock)? == 0 {
        return Ok(false);
    }
    let (holder, _) = plain(keyspace, lock)?;
    let ttl = keyspace.pttl(lock);
    keyspace.del(lock);
    if let Ok(ttl @ 1..) = u64::try_from(ttl) {
        // A marker of another type is left alone, because the note is only a courtesy.
        if keyspace.hlen(marker).is_ok_and(|size| size < 64) {
            keyspace.hset(marker, &holder, b"1")?;
            lengthen(keyspace, marker, ttl);
        }
    }
    Ok(true)
}

/// The operations on one hold of a plain lock.
pub(crate) struct LockHold {
    key: Key,
    channel: Arc<str>,
    /// `uuid:n`, which is the id of this hold alone.
    id: String,
}

impl LockHold {
    pub(crate) fn new(key: Key, channel: Arc<str>, id: String) -> Self {
        Self { key, channel, id }
    }

    pub(in crate::primitives) fn lock(&self) -> Vec<u8> {
        self.key.as_str().into()
    }
}

impl HoldSteps for LockHold {
    fn acquire(&self, lease: Duration) -> Operation {
        Operation::new(
            &ACQUIRE,
            vec![self.lock(), self.id.clone().into_bytes(), ms(lease)],
        )
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        match reply {
            Value::Nil => Some(Asked::Granted { token: None }),
            Value::Int(ttl_ms) => Some(Asked::Busy { ttl_ms }),
            _ => None,
        }
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        Operation::new(
            &RENEW,
            vec![
                self.lock(),
                self.id.clone().into_bytes(),
                ms(lease),
                ms(most.unwrap_or_default()),
            ],
        )
    }

    fn release(&self) -> Operation {
        Operation::new(
            &RELEASE,
            vec![
                self.lock(),
                self.id.clone().into_bytes(),
                self.channel.as_bytes().into(),
            ],
        )
    }

    fn why_lost(&self) -> Operation {
        Operation::new(
            &WHY_LOST,
            vec![
                self.lock(),
                self.key.forced_marker().into_bytes(),
                self.id.clone().into_bytes(),
            ],
        )
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        let Value::List(items) = reply else {
            return None;
        };
        match &items[..] {
            [_, Value::Int(1)] => Some(LossReason::Forced),
            [Value::Text(holder), _] if !holder.is_empty() => Some(LossReason::Taken {
                by: String::from_utf8_lossy(holder).into_owned(),
            }),
            _ => None,
        }
    }

    fn wire_id(&self) -> &str {
        &self.id
    }
}

pub(crate) fn force_unlock(key: &Key, channel: &str) -> Operation {
    Operation::new(
        &FORCE_UNLOCK,
        vec![
            key.as_str().into(),
            key.forced_marker().into_bytes(),
            channel.into(),
        ],
    )
}

/// Asks for the longest lease that was ever noted for a majority that has this lock, and notes
/// `own` if it is longer.
pub(in crate::primitives) fn note_longest(key: &Key, own: Duration) -> Operation {
    Operation::new(
        &NOTE_LONGEST,
        vec![key.longest_lease().into_bytes(), ms(own)],
    )
}

pub(crate) fn inspect(key: &Key) -> Operation {
    Operation::new(&INSPECT, vec![key.as_str().into()])
}
