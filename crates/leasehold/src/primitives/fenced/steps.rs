//! The steps of the fenced lock that differ from the plain one's, and those by which a hold
//! of another kind gets a token.

use std::time::Duration;

use super::super::lock::steps::{LockHold, plain};
use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Refusal, Step, Value};
use crate::config::Peers;
use crate::hold::{Asked, Hold, HoldSteps};
use crate::key::Key;
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
            // A key of another type is an error, as in the script.
            keyspace.get(counter)?;
            let last = last_given(keyspace, counter).map_or(0, whole);
            return Ok(Value::List(vec![Value::Int(1), Value::Int(last)]));
        }
        let token = next_token(keyspace, counter)?;
        note(keyspace, counter, token, number(counter_ms)?);
        keyspace.hset(lock, hold, b"1")?;
        keyspace.pexpire(lock, number(lease_ms)?);
        Ok(Value::List(vec![Value::Int(1), Value::Int(whole(token))]))
    },
};

pub(crate) static DRAW: Step = Step {
    name: "fenced.draw",
    lua: concat!(include_str!("token.lua"), include_str!("draw.lua")),
    keys: 2,
    args: 2,
    grants: true,
    twin: |keyspace, parts| {
        let [lock, counter, hold, counter_ms] = parts else {
            return Err(arity());
        };
        if !keyspace.hexists(lock, hold)? {
            return Ok(Value::Int(0));
        }
        let token = next_token(keyspace, counter)?;
        note(keyspace, counter, token, number(counter_ms)?);
        Ok(Value::Int(whole(token)))
    },
};

pub(crate) static RAISE: Step = Step {
    name: "fenced.raise",
    lua: concat!(include_str!("token.lua"), include_str!("raise.lua")),
    keys: 2,
    args: 3,
    // It grants nothing, and does good even when nobody waits for it any more.
    grants: false,
    twin: |keyspace, parts| {
        let [lock, counter, hold, token, counter_ms] = parts else {
            return Err(arity());
        };
        if !keyspace.hexists(lock, hold)? {
            return Ok(Value::Int(0));
        }
        let token = number(token)?;
        if last_given(keyspace, counter)? < token {
            note(keyspace, counter, token, number(counter_ms)?);
        }
        Ok(Value::Int(1))
    },
};

pub(crate) static LAST_TOKEN: Step = Step {
    name: "fenced.last_token",
    lua: concat!(include_str!("token.lua"), include_str!("last_token.lua")),
    keys: 1,
    args: 0,
    grants: false,
    twin: |keyspace, parts| {
        let [counter] = parts else {
            return Err(arity());
        };
        Ok(Value::Int(whole(last_given(keyspace, counter)?)))
    },
};

pub(crate) static ALL: [&Step; 4] = [&ACQUIRE, &DRAW, &RAISE, &LAST_TOKEN];

/// Beyond 2^53 a number is not exact in Lua.
const LIMIT: u64 = (1 << 53) - 1;

/// The twin of `token.lua`.
fn last_given(keyspace: &mut Keyspace, counter: &[u8]) -> Result<u64, Refusal> {
    let text = keyspace.get(counter).map_err(|_| not_a_counter(counter))?;
    let Some(text) = text else {
        return Ok(0);
    };
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits
        .then(|| number(&text).unwrap_or(u64::MAX))
        .ok_or_else(|| not_a_counter(counter))
}

fn next_token(keyspace: &mut Keyspace, counter: &[u8]) -> Result<u64, Refusal> {
    let last = last_given(keyspace, counter)?;
    if last >= LIMIT {
        return Err(not_a_counter(counter));
    }
    Ok((last + 1).max(keyspace.now_ms() * 1000))
}

fn note(keyspace: &mut Keyspace, counter: &[u8], token: u64, counter_ms: u64) {
    keyspace.set(counter, token.to_string().as_bytes());
    if counter_ms > 0 {
        keyspace.pexpire(counter, counter_ms);
    }
}

fn not_a_counter(counter: &[u8]) -> Refusal {
    Refusal(format!(
        "WRONGKIND a fencing counter ({}) that is not a number below 2^53",
        String::from_utf8_lossy(counter)
    ))
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// How long a counter that only Rust uses outlives its last use. When it is gone,
/// tokens go on from the server's time.
const COUNTER_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How long the counter outlives its last use, by a hold with this lease. Forever, where Java may
/// count on from it.
fn counter_ms(peers: Peers, lease: Duration) -> Vec<u8> {
    ms(match peers {
        Peers::RustOnly => COUNTER_LIFE.max(lease * 2),
        Peers::All => Duration::ZERO,
    })
}

/// Draws a token for a hold, if that is still there.
pub(super) fn draw(hold: &Hold, peers: Peers) -> Operation {
    let mut parts = counter_of(hold);
    parts.push(counter_ms(peers, hold.terms().lease));
    Operation::new(&DRAW, parts)
}

/// Makes every later token greater than this one, if the hold is still there.
pub(super) fn raise(hold: &Hold, token: u64, peers: Peers) -> Operation {
    let mut parts = counter_of(hold);
    parts.push(token.to_string().into_bytes());
    parts.push(counter_ms(peers, hold.terms().lease));
    Operation::new(&RAISE, parts)
}

/// The lock, its counter, and the hold's field in the lock.
fn counter_of(hold: &Hold) -> Vec<Vec<u8>> {
    vec![
        hold.key.as_str().into(),
        hold.key.token_counter().into_bytes(),
        hold.steps.wire_id().into(),
    ]
}

/// The operations on one hold of a fenced lock: those of a plain one, except for how it is
/// acquired.
pub(crate) struct FencedHold {
    hold: LockHold,
    counter: String,
    peers: Peers,
}

impl FencedHold {
    pub(crate) fn new(hold: LockHold, key: &Key, peers: Peers) -> Self {
        Self {
            hold,
            counter: key.token_counter(),
            peers,
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
            counter_ms(self.peers, lease),
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
