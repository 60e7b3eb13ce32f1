//! The steps of the fenced lock that differ from the plain one's.

use std::time::Duration;

use super::super::lock::steps::{LockHold, plain};
use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Refusal, Step, Value};
use crate::key::Key;
use crate::lease::{Asked, HoldSteps};
use crate::loss::LossReason;
use crate::primitives::twin::{arity, ms, number};

pub(crate) static ACQUIRE: Step = Step {
    name: "fenced.acquire",
    lua: concat!(
        include_str!("../lock/shape.lua"),
        include_str!("token.lua"),
        include_str!("acquire.lua")
    ),
    keys: 2,
    args: 3,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, counter, hold, lease_ms, counter_ms] = parts else {
            return Err(arity());
        };
        if keyspace.hlen(lock)? > 0 {
            if !keyspace.hexists(lock, hold)? {
                plain(keyspace, lock)?;
                return Ok(Value::Int(keyspace.pttl(lock)));
            }
            // Of another type: an error, as in the script.
            keyspace.get(counter)?;
            let last = last_token(keyspace, counter).map_or(0, whole);
            return Ok(Value::List(vec![Value::Int(1), Value::Int(last)]));
        }
        let token = next_token(keyspace, counter, number(counter_ms)?)?;
        keyspace.hset(lock, hold, b"1")?;
        keyspace.pexpire(lock, number(lease_ms)?);
        Ok(Value::List(vec![Value::Int(1), Value::Int(whole(token))]))
    },
};

pub(crate) static LAST_TOKEN: Step = Step {
    name: "fenced.last_token",
    lua: include_str!("last_token.lua"),
    keys: 1,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [counter] = parts else {
            return Err(arity());
        };
        Ok(Value::Int(whole(last_token(keyspace, counter)?)))
    },
};

pub(crate) static ALL: [&Step; 2] = [&ACQUIRE, &LAST_TOKEN];

/// Beyond 2^53 a number is not exact in Lua.
const LIMIT: u64 = (1 << 53) - 1;

fn last_token(keyspace: &mut Keyspace, counter: &[u8]) -> Result<u64, Refusal> {
    let Some(text) = keyspace.get(counter)? else {
        return Ok(0);
    };
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits
        .then(|| number(&text).unwrap_or(u64::MAX))
        .ok_or_else(not_a_counter)
}

/// `token.lua`, and what follows it in `acquire.lua`.
fn next_token(keyspace: &mut Keyspace, counter: &[u8], counter_ms: u64) -> Result<u64, Refusal> {
    let last = last_token(keyspace, counter)?;
    if last >= LIMIT {
        return Err(not_a_counter());
    }
    let token = (last + 1).max(keyspace.now_ms() * 1000);
    keyspace.set(counter, token.to_string().as_bytes());
    if counter_ms > 0 {
        keyspace.pexpire(counter, counter_ms);
    }
    Ok(token)
}

fn not_a_counter() -> Refusal {
    Refusal("WRONGKIND a fencing counter that is not a number below 2^53".into())
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The operations on one hold of a fenced lock: those of a plain one, but for how it
/// is acquired.
pub(crate) struct FencedHold {
    hold: LockHold,
    counter: String,
    /// How long the counter outlives its last use; `None` for ever.
    counter_life: Option<Duration>,
}

impl FencedHold {
    pub(crate) fn new(hold: LockHold, key: &Key, counter_life: Option<Duration>) -> Self {
        Self {
            hold,
            counter: key.token_counter(),
            counter_life,
        }
    }
}

impl HoldSteps for FencedHold {
    fn acquire(&self, lease: Duration) -> Operation {
        let parts = vec![
            self.hold.lock(),
            self.counter.clone().into_bytes(),
            self.hold.wire_id().into(),
            ms(lease),
            ms(self
                .counter_life
                .map_or(Duration::ZERO, |life| life.max(lease * 2))),
        ];
        Operation::new(&ACQUIRE, parts)
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        match reply {
            Value::Int(ttl_ms) => Some(Asked::Busy { ttl_ms }),
            Value::List(items) => match items[..] {
                [Value::Int(1), Value::Int(token @ 1..)] => Some(Asked::Granted {
                    token: Some(token.unsigned_abs()),
                }),
                _ => None,
            },
            _ => None,
        }
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        self.hold.renew(lease, most)
    }

    fn release(&self) -> Operation {
        self.hold.release()
    }

    fn why_lost(&self) -> Operation {
        self.hold.why_lost()
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        self.hold.read_why_lost(reply)
    }

    fn wire_id(&self) -> &str {
        self.hold.wire_id()
    }
}

pub(crate) fn last_token_of(key: &Key) -> Operation {
    Operation::new(&LAST_TOKEN, vec![key.token_counter().into_bytes()])
}
