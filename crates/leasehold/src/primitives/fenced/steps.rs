//! The steps in which the fenced lock differs from the plain lock, and the steps that give a token
//! to a hold of another kind.

use std::time::Duration;

use super::super::hash_kind::HASH_KIND;
use super::super::lock::steps::{GRANT, LockHold, plain};
use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, SharedLua, Step, Value, number, step};
use crate::config::{Peers, wire_ms};
use crate::hold::{AcquireReply, BatchRenewal, Hold, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::twin::to_int;

static LUA: LuaFile = LuaFile::new(include_str!("fenced.lua"));

pub(crate) static TOKEN: SharedLua = SharedLua::new(&LUA, "token", &[]);

step! {
    ACQUIRE: Acquire = fenced.acquire, grants: true,
    while_moving: true,
    keys: [lock, counter],
    args: [hold, lease_ms: u64, counter_ms: u64],
    uses: [HASH_KIND, TOKEN, GRANT],
}

impl Acquire<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(reply) = reply_if_held(keyspace, self.lock, self.counter, self.hold)? {
            return Ok(reply);
        }
        // The token is stored before the hold: an unused token leaves only a gap, but a hold
        // without a token can't be fenced.
        let token = next_token(keyspace, self.counter)?;
        note(keyspace, self.counter, token, self.counter_ms);
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.pexpire(self.lock, self.lease_ms);
        // A grant is a list, and a refusal is a number. In Redisson, both replies are two numbers.
        // If the lock has no expiry, the refusal is -1 and -1, which Redisson mistakes for a grant.
        Ok(Value::List(vec![Value::Int(1), Value::Int(to_int(token))]))
    }
}

/// Returns the reply to an acquire if the lock is held: the token of this hold, or how long another
/// hold has the lock. `None` if the lock is free.
pub(crate) fn reply_if_held(
    keyspace: &mut Keyspace,
    lock: &[u8],
    counter: &[u8],
    hold: &[u8],
) -> Result<Option<Value>, Refusal> {
    if keyspace.hlen(lock)? == 0 {
        return Ok(None);
    }
    if !keyspace.hexists(lock, hold)? {
        plain(keyspace, lock)?;
        return Ok(Some(Value::Int(keyspace.pttl(lock))));
    }
    // A key of another type is an error, as in the script.
    keyspace.get(counter)?;
    // No other client draws while this hold exists, so the last token belongs to this hold. Without
    // a counter the token is 0. `read_acquire` does not accept this reply as a grant, and the undo
    // gives the hold back.
    let last = last_given(keyspace, counter).map_or(0, to_int);
    Ok(Some(Value::List(vec![Value::Int(1), Value::Int(last)])))
}

step! {
    DRAW: Draw = fenced.draw, grants: true,
    for_holders: true,
    while_moving: true,
    keys: [lock, counter],
    args: [hold, counter_ms: u64],
    uses: [TOKEN],
}

impl Draw<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let token = next_token(keyspace, self.counter)?;
        note(keyspace, self.counter, token, self.counter_ms);
        Ok(Value::Int(to_int(token)))
    }
}

step! {
    // A raise grants nothing, and is useful even if no client waits for its reply any longer.
    RAISE: Raise = fenced.raise, grants: false,
    while_moving: true,
    keys: [lock, counter],
    args: [hold, token: u64, counter_ms: u64],
    uses: [TOKEN],
}

impl Raise<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        // Never lower the counter: it may already be above this token, and no token may be given
        // twice.
        if last_given(keyspace, self.counter)? < self.token {
            note(keyspace, self.counter, self.token, self.counter_ms);
        }
        Ok(Value::Int(1))
    }
}

step! {
    LAST_TOKEN: LastToken = fenced.last_token, grants: false,
    while_moving: true,
    keys: [counter],
    args: [],
    uses: [TOKEN],
}

impl LastToken<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        Ok(Value::Int(to_int(last_given(keyspace, self.counter)?)))
    }
}

pub(crate) static ALL: [&Step; 4] = [&ACQUIRE, &DRAW, &RAISE, &LAST_TOKEN];

/// The limit of the tokens. Lua's numbers are not exact above 2^53.
const LIMIT: u64 = (1 << 53) - 1;

/// The twin of `last_given` in `fenced.lua`.
pub(crate) fn last_given(keyspace: &mut Keyspace, counter: &[u8]) -> Result<u64, Refusal> {
    let text = keyspace.get(counter).map_err(|_| not_a_counter(counter))?;
    let Some(text) = text else {
        return Ok(0);
    };
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits
        .then(|| number(&text).unwrap_or(u64::MAX))
        .ok_or_else(|| not_a_counter(counter))
}

pub(crate) fn next_token(keyspace: &mut Keyspace, counter: &[u8]) -> Result<u64, Refusal> {
    let last = last_given(keyspace, counter)?;
    if last >= LIMIT {
        return Err(not_a_counter(counter));
    }
    // The time keeps tokens rising when the counter was lost. The time alone is not enough: two
    // tokens within its resolution would be equal.
    Ok((last + 1).max(keyspace.now_ms() * 1000))
}

pub(crate) fn note(keyspace: &mut Keyspace, counter: &[u8], token: u64, counter_ms: u64) {
    keyspace.set(counter, token.to_string().as_bytes());
    if counter_ms > 0 {
        keyspace.pexpire(counter, counter_ms);
    }
}

fn not_a_counter(counter: &[u8]) -> Refusal {
    Refusal(format!(
        "WRONGKIND a lock whose fencing counter ({}) is not a number below 2^53",
        String::from_utf8_lossy(counter)
    ))
}

/// The time for which a counter that only Rust uses outlives its last use. When the counter no
/// longer exists, tokens continue from the server's time.
const COUNTER_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Returns how long the counter outlives its last use by a hold with this lease. The result is 0,
/// which means forever, if Java clients may draw tokens from the counter.
pub(crate) fn counter_ms(peers: Peers, lease: Duration) -> u64 {
    wire_ms(match peers {
        Peers::RustOnly => COUNTER_LIFE.max(lease * 2),
        Peers::All | Peers::Redisson3 | Peers::Redisson4 => Duration::ZERO,
    })
}

/// Builds the request that draws a token for a hold, if the hold still exists.
pub(super) fn draw(hold: &Hold, peers: Peers) -> Operation {
    Draw {
        lock: hold.key.as_str().as_bytes(),
        counter: hold.key.token_counter().as_bytes(),
        hold: hold.steps.wire_id().as_bytes(),
        counter_ms: counter_ms(peers, hold.terms().lease),
    }
    .operation()
}

/// Builds the request that makes every later token greater than `token`, if the hold still exists.
pub(super) fn raise(hold: &Hold, token: u64, peers: Peers) -> Operation {
    Raise {
        lock: hold.key.as_str().as_bytes(),
        counter: hold.key.token_counter().as_bytes(),
        hold: hold.steps.wire_id().as_bytes(),
        token,
        counter_ms: counter_ms(peers, hold.terms().lease),
    }
    .operation()
}

/// The operations on one hold of a fenced lock. They are the operations of a plain lock, except for
/// the acquire.
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
        Acquire {
            lock: self.hold.lock(),
            counter: self.counter.as_bytes(),
            hold: self.hold.wire_id().as_bytes(),
            lease_ms: wire_ms(lease),
            counter_ms: counter_ms(self.peers, lease),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        match reply {
            Value::Int(ttl_ms) => Some(AcquireReply::Busy {
                ttl_ms,
                before: None,
            }),
            Value::List(items) => match items[..] {
                [Value::Int(1), Value::Int(token @ 1..)] => Some(AcquireReply::Granted {
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

    fn keep_for(&self, span: Duration) -> Option<Operation> {
        self.hold.keep_for(span)
    }

    fn batch_renewal(&self) -> Option<BatchRenewal<'_>> {
        self.hold.batch_renewal()
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
    LastToken {
        counter: key.token_counter().as_bytes(),
    }
    .operation()
}
