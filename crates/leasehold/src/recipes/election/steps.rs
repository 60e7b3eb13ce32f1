//! The steps of an election: how each is sent, and its twin on the embedded keyspace. The Lua file
//! beside this file describes each step.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, Step, Value, number, step};
use crate::config::{Peers, wire_ms};
use crate::hold::{AcquireReply, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::fenced::steps::{
    FencedHold, TOKEN, counter_ms, next_token, note, reply_if_held,
};
use crate::primitives::hash_kind::HASH_KIND;
use crate::primitives::lock::steps::{GRANT, LockHold, RENEWED, plain, renewed};
use crate::primitives::twin::{KEPT, NOW_MS, can_be_renewed, to_int};

static LUA: LuaFile = LuaFile::new(include_str!("election.lua"));

step! {
    LEAD: Lead = election.lead, grants: true,
    while_moving: true,
    keys: [lock, leader, counter],
    args: [hold, lease_ms: u64, counter_ms: u64, payload, terms],
    uses: [HASH_KIND, TOKEN, GRANT, NOW_MS],
}

impl Lead<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if keyspace.hexists(self.lock, self.hold)?
            && let Some(token) = token_in_entry(keyspace, self.leader, self.hold)
        {
            return Ok(granted(token));
        }
        if let Some(reply) = reply_if_held(keyspace, self.lock, self.counter, self.hold)? {
            return Ok(reply);
        }
        let token = next_token(keyspace, self.counter)?;
        note(keyspace, self.counter, token, self.counter_ms);
        let (digits, now_ms) = (token.to_string(), keyspace.now_ms().to_string());
        for (field, value) in [
            ("id", self.hold),
            ("token", digits.as_bytes()),
            ("payload", self.payload),
            ("since_ms", now_ms.as_bytes()),
        ] {
            keyspace.hset(self.leader, field.as_bytes(), value)?;
        }
        keyspace.pexpire(self.leader, self.lease_ms);
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.pexpire(self.lock, self.lease_ms);
        keyspace.publish(self.terms, digits.as_bytes());
        Ok(granted(token))
    }
}

fn granted(token: u64) -> Value {
    Value::List(vec![Value::Int(1), Value::Int(to_int(token))])
}

/// Returns the token of the leader's entry, if it is the entry of this hold.
fn token_in_entry(keyspace: &mut Keyspace, leader: &[u8], hold: &[u8]) -> Option<u64> {
    let id = keyspace.hget(leader, b"id").ok().flatten()?;
    let token = keyspace.hget(leader, b"token").ok().flatten()?;
    let is_number = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
    let token = match is_number {
        true => number(&token).unwrap_or(u64::MAX),
        false => 0,
    };
    (id == hold).then_some(token)
}

step! {
    // Like a release, this step runs even if it arrives late.
    RESIGN: Resign = election.resign, grants: false,
    while_moving: true,
    keys: [lock, leader],
    args: [hold, channel, terms],
}

impl Resign<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hdel(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        keyspace.del(self.leader);
        let listeners = keyspace.listeners(self.channel);
        keyspace.publish(self.channel, b"0");
        keyspace.publish(self.terms, b"0");
        Ok(Value::Int(1 + listeners))
    }
}

step! {
    RENEW: Renew = election.renew, grants: true,
    for_holders: true,
    renews: true,
    while_moving: true,
    keys: [lock, leader],
    args: [hold, lease_ms: u64, most_ms: u64],
    uses: [RENEWED],
}

impl Renew<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let ttl = renewed(keyspace, self.lock, self.lease_ms, self.most_ms);
        // The entry expires with its hold, so nothing remains of a killed leader.
        keyspace.pexpire(self.leader, u64::try_from(ttl).unwrap_or_default());
        Ok(Value::Int(ttl))
    }
}

step! {
    LOOK: Look = election.look, grants: false,
    while_moving: true,
    keys: [lock, leader, counter],
    args: [],
    uses: [HASH_KIND, KEPT],
}

impl Look<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if keyspace.hlen(self.lock)? == 0 {
            return Ok(Value::List(vec![Value::Int(-2)]));
        }
        let (id, _) = plain(keyspace, self.lock)?;
        if !can_be_renewed(keyspace, self.lock, &id)? {
            return Ok(Value::List(vec![Value::Int(-2)]));
        }
        let mut field = |name: &str| {
            let value = keyspace.hget(self.leader, name.as_bytes());
            value.ok().flatten().unwrap_or_default()
        };
        let texts = if field("id") == id {
            vec![field("token"), field("payload"), field("since_ms")]
        } else {
            // A counter of another type has no token.
            let last = keyspace.get(self.counter);
            vec![last.ok().flatten().unwrap_or_default()]
        };
        let ttl = Value::Int(keyspace.pttl(self.lock));
        let texts = [id].into_iter().chain(texts).map(Value::Text);
        Ok(Value::List([ttl].into_iter().chain(texts).collect()))
    }
}

pub(crate) static ALL: [&Step; 4] = [&LEAD, &RESIGN, &RENEW, &LOOK];

/// Returns the key of the entry that describes the leader: a key of our own.
fn leader_entry(key: &Key) -> String {
    format!("leasehold:{}:leader", key.as_tag())
}

/// Returns the channel on which each change of the leader is published: a channel of our own.
pub(super) fn terms_channel(key: &Key) -> String {
    format!("leasehold:{}:terms", key.as_tag())
}

/// Requests the current leader.
pub(super) fn look(key: &Key) -> Operation {
    Look {
        lock: key.as_str().as_bytes(),
        leader: leader_entry(key).as_bytes(),
        counter: key.token_counter().as_bytes(),
    }
    .operation()
}

/// The operations on the hold of one candidate. They are the operations of a fenced lock, but each
/// of them also changes the leader's entry.
pub(super) struct CandidateHold {
    hold: FencedHold,
    key: Key,
    leader: String,
    channel: Arc<str>,
    payload: Arc<str>,
    peers: Peers,
}

impl CandidateHold {
    pub(super) fn new(
        key: &Key,
        channel: Arc<str>,
        id: String,
        payload: Arc<str>,
        peers: Peers,
    ) -> Self {
        let hold = LockHold::new(key.clone(), Arc::clone(&channel), id);
        Self {
            hold: FencedHold::new(hold, key, peers),
            key: key.clone(),
            leader: leader_entry(key),
            channel,
            payload,
            peers,
        }
    }

    fn lock(&self) -> &[u8] {
        self.key.as_str().as_bytes()
    }
}

// This hold has no batch renewal: the batch renewal of plain locks would let the entry expire. And
// it is never kept or handed over: each term has its own token and its own entry.
impl HoldSteps for CandidateHold {
    fn acquire(&self, lease: Duration) -> Operation {
        Lead {
            lock: self.lock(),
            leader: self.leader.as_bytes(),
            counter: self.key.token_counter().as_bytes(),
            hold: self.wire_id().as_bytes(),
            lease_ms: wire_ms(lease),
            counter_ms: counter_ms(self.peers, lease),
            payload: self.payload.as_bytes(),
            terms: terms_channel(&self.key).as_bytes(),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        self.hold.read_acquire(reply)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        Renew {
            lock: self.lock(),
            leader: self.leader.as_bytes(),
            hold: self.wire_id().as_bytes(),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
        }
        .operation()
    }

    fn release(&self) -> Operation {
        Resign {
            lock: self.lock(),
            leader: self.leader.as_bytes(),
            hold: self.wire_id().as_bytes(),
            channel: self.channel.as_bytes(),
            terms: terms_channel(&self.key).as_bytes(),
        }
        .operation()
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

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] = b"cccccccc-0000-4000-8000-000000000000:1";
    const TWO: &[u8] = b"dddddddd-0000-4000-8000-000000000000:1";

    fn lead(keyspace: &mut Keyspace, hold: &[u8]) -> Value {
        let request = Lead {
            lock: b"x",
            leader: b"leader",
            counter: b"counter",
            hold,
            lease_ms: 60_000,
            counter_ms: 0,
            payload: b"",
            terms: b"terms",
        };
        request.twin(keyspace).expect("no refusal")
    }

    #[test]
    fn repeated_request_has_the_token_of_its_entry() {
        let mut keyspace = Keyspace::default();
        let granted = lead(&mut keyspace, ONE);
        // Another program may change the counter, and a server may evict it.
        keyspace.set(b"counter", b"9000000000000000");
        assert_eq!(lead(&mut keyspace, ONE), granted);
        keyspace.del(b"counter");
        assert_eq!(lead(&mut keyspace, ONE), granted);
        assert!(matches!(lead(&mut keyspace, TWO), Value::Int(1..)));
        // Without the entry, the counter has the last token.
        keyspace.set(b"counter", b"7");
        keyspace.del(b"leader");
        assert_eq!(lead(&mut keyspace, ONE), super::granted(7));
    }
}
