//! The steps of the semaphore whose permits have leases: how each is sent, and its twin on
//! the embedded keyspace. The Lua beside this file says what each does.

use std::sync::Arc;
use std::time::Duration;

use super::PermitId;
use crate::backend::memory::Keyspace;
use crate::backend::step::{Operation, Refusal, Step, Value};
use crate::hold::{Asked, HoldSteps};
use crate::key::Key;
use crate::local::Marked;
use crate::loss::LossReason;
use crate::primitives::twin::{arity, list, ms, note, number, number_at, replied, tell};

/// The end that Redisson notes for a permit that never ends.
const NEVER: i64 = 922_337_203_685_477;
/// How many permits are taken back at once.
const CHUNK: usize = 1000;

macro_rules! step {
    ($name:literal, $file:literal, $keys:literal, $args:literal, $grants:literal, $twin:expr) => {
        Step {
            name: $name,
            lua: concat!(
                include_str!("../idempotency.lua"),
                include_str!("../publish_free.lua"),
                include_str!("leases.lua"),
                include_str!($file)
            ),
            keys: $keys,
            args: $args,
            grants: $grants,
            twin: $twin,
        }
    };
}

pub(crate) static ACQUIRE: Step = step!(
    "expirable.acquire",
    "acquire.lua",
    2,
    3,
    true,
    |keyspace, parts| {
        let [permits, timeout, ids, lease_ms, channel] = parts else {
            return Err(arity());
        };
        shape(keyspace, permits, timeout)?;
        if keyspace.zscore(timeout, &ids[..16])?.is_some() {
            return Ok(Value::Nil);
        }
        let now = now_ms(keyspace);
        reclaim(keyspace, permits, timeout, channel, now)?;
        let free = number_at(keyspace, permits)?;
        let (there, free) = (free.is_some(), free.unwrap_or(0));
        let wanted = ids.len() / 16;
        if free < i64::try_from(wanted).unwrap_or(i64::MAX) {
            let next = keyspace.zrange(timeout)?.first().map(|(_, ends)| *ends);
            let ttl = next.filter(|ends| *ends < NEVER);
            let ttl = ttl.map_or(-1, |ends| (ends - now).max(0));
            return Ok(list(&[free, ttl, there.into(), held(keyspace, timeout)?]));
        }
        keyspace.incr_by(permits, -i64::try_from(wanted).unwrap_or(i64::MAX))?;
        let ends = (now.saturating_add(number(lease_ms)?)).min(NEVER - 1);
        for id in ids.chunks(16) {
            keyspace.zadd(timeout, id, ends)?;
        }
        if let Ok(ttl @ 1..) = u64::try_from(keyspace.pttl(permits)) {
            keyspace.pexpire(timeout, ttl);
        }
        Ok(Value::Nil)
    }
);

pub(crate) static RENEW: Step = step!(
    "expirable.renew",
    "renew.lua",
    2,
    3,
    true,
    |keyspace, parts| {
        let [_, timeout, ids, lease_ms, most_ms] = parts else {
            return Err(arity());
        };
        let now = now_ms(keyspace);
        let (lease, most) = (number(lease_ms)?, number(most_ms)?);
        let (mut renewed, mut least) = (Vec::new(), NEVER);
        for id in ids.chunks(16) {
            let Some((member, mut ends)) =
                find(keyspace, timeout, id)?.filter(|(_, ends)| *ends > now)
            else {
                return Ok(Value::Int(0));
            };
            if ends < now.saturating_add(lease) || (most > 0 && ends > now.saturating_add(most)) {
                ends = now.saturating_add(lease).min(NEVER - 1);
            }
            least = least.min(ends);
            renewed.push((member, ends));
        }
        for (member, ends) in renewed {
            keyspace.zadd(timeout, &member, ends)?;
        }
        Ok(Value::Int(least - now))
    }
);

pub(crate) static RELEASE: Step = step!(
    "expirable.release",
    "release.lua",
    2,
    3,
    false,
    |keyspace, parts| {
        let [permits, timeout, ids, all, channel] = parts else {
            return Err(arity());
        };
        shape(keyspace, permits, timeout)?;
        let now = now_ms(keyspace);
        let (mut held, mut members) = (true, Vec::new());
        for id in ids.chunks(16) {
            match find(keyspace, timeout, id)? {
                Some((member, ends)) => {
                    held &= ends > now;
                    members.push(member);
                }
                None => held = false,
            }
        }
        if members.is_empty() || (!held && all == b"1") {
            return Ok(Value::Int(0));
        }
        let mut removed = 0;
        for member in members {
            removed += i64::from(keyspace.zrem(timeout, &member)?);
        }
        let free = keyspace.incr_by(permits, removed)?;
        tell(keyspace, channel, free, removed + 8);
        Ok(Value::Int(i64::from(held)))
    }
);

pub(crate) static UPDATE: Step = step!(
    "expirable.update",
    "update.lua",
    2,
    3,
    true,
    |keyspace, parts| {
        let [permits, timeout, id, lease_ms, channel] = parts else {
            return Err(arity());
        };
        shape(keyspace, permits, timeout)?;
        let now = now_ms(keyspace);
        reclaim(keyspace, permits, timeout, channel, now)?;
        match find(keyspace, timeout, id)? {
            Some((member, ends)) if ends > now => {
                let ends = now.saturating_add(number(lease_ms)?).min(NEVER - 1);
                keyspace.zadd(timeout, &member, ends)?;
                Ok(Value::Int(1))
            }
            _ => Ok(Value::Int(0)),
        }
    }
);

pub(crate) static LEFT: Step = step!(
    "expirable.left",
    "left.lua",
    2,
    1,
    false,
    |keyspace, parts| {
        let [permits, timeout, id] = parts else {
            return Err(arity());
        };
        shape(keyspace, permits, timeout)?;
        let now = now_ms(keyspace);
        let left = match find(keyspace, timeout, id)? {
            Some((_, NEVER..)) => -1,
            Some((_, ends)) if ends > now => ends - now,
            _ => -2,
        };
        Ok(Value::Int(left))
    }
);

pub(crate) static COUNTS: Step = step!(
    "expirable.counts",
    "counts.lua",
    2,
    1,
    false,
    |keyspace, parts| {
        let [permits, timeout, channel] = parts else {
            return Err(arity());
        };
        shape(keyspace, permits, timeout)?;
        let now = now_ms(keyspace);
        reclaim(keyspace, permits, timeout, channel, now)?;
        let leases = keyspace.zrange(timeout)?;
        let ended = leases.iter().filter(|(_, ends)| *ends <= now).count();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let free = number_at(keyspace, permits)?;
        let there = i64::from(free.is_some());
        let free = free.unwrap_or(0) + count(ended);
        Ok(list(&[free, count(leases.len() - ended), there]))
    }
);

pub(crate) static SET: Step = step!(
    "expirable.set",
    "set.lua",
    4,
    2,
    false,
    |keyspace, parts| {
        let [permits, timeout, marker, done, total, channel] = parts else {
            return Err(arity());
        };
        if replied(keyspace, marker)?.is_some() {
            return Ok(Value::Int(1));
        }
        shape(keyspace, permits, timeout)?;
        note(keyspace, marker, "1");
        let total: i64 = number(total)?;
        let free = number_at(keyspace, permits)?.unwrap_or(0);
        let more = total - free - i64::try_from(keyspace.zcard(timeout)?).unwrap_or(i64::MAX);
        keyspace.del(done);
        if more != 0 || !keyspace.exists(permits) {
            let free = keyspace.incr_by(permits, more)?;
            tell(keyspace, channel, free, free);
        }
        Ok(Value::Int(1))
    }
);

pub(crate) static DELETE: Step = step!(
    "expirable.delete",
    "delete.lua",
    4,
    0,
    false,
    |keyspace, parts| {
        let [permits, timeout, marker, done] = parts else {
            return Err(arity());
        };
        if let Some(before) = replied(keyspace, marker)? {
            return Ok(Value::Int(before));
        }
        shape(keyspace, permits, timeout)?;
        keyspace.del(done);
        let there = keyspace.exists(permits) || keyspace.exists(timeout);
        note(keyspace, marker, &i64::from(there).to_string());
        keyspace.del(permits);
        keyspace.del(timeout);
        Ok(Value::Int(i64::from(there)))
    }
);

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 8] = [
    &ACQUIRE, &RENEW, &RELEASE, &UPDATE, &LEFT, &COUNTS, &SET, &DELETE,
];

fn now_ms(keyspace: &Keyspace) -> i64 {
    i64::try_from(keyspace.now_ms()).unwrap_or(i64::MAX)
}

fn shape(keyspace: &mut Keyspace, permits: &[u8], timeout: &[u8]) -> Result<(), Refusal> {
    number_at(keyspace, permits)?;
    if keyspace.zcard(timeout).is_err() {
        return Err(Refusal(format!(
            "WRONGKIND a {} where the leases of permits should be",
            keyspace.kind(timeout)
        )));
    }
    Ok(())
}

fn reclaim(
    keyspace: &mut Keyspace,
    permits: &[u8],
    timeout: &[u8],
    channel: &[u8],
    now: i64,
) -> Result<(), Refusal> {
    let ended = keyspace.zrange_by_score(timeout, now, CHUNK)?;
    if ended.is_empty() {
        return Ok(());
    }
    for member in &ended {
        keyspace.zrem(timeout, member)?;
    }
    let removed = i64::try_from(ended.len()).unwrap_or(i64::MAX);
    let free = keyspace.incr_by(permits, removed)?;
    tell(keyspace, channel, free, removed + 8);
    Ok(())
}

/// A number made from the ids of permits in use.
fn held(keyspace: &mut Keyspace, timeout: &[u8]) -> Result<i64, Refusal> {
    let first = |id: &[u8]| {
        let bytes = id.iter().copied().chain(std::iter::repeat(0)).take(6);
        bytes.fold(0, |first, byte| first * 256 + i64::from(byte))
    };
    let leases = keyspace.zrange(timeout)?;
    Ok(leases.iter().take(32).map(|(id, _)| first(id)).sum())
}

/// The member of the set that is this permit, and its end. Redisson 3.16.8 writes the id as text.
fn find(
    keyspace: &mut Keyspace,
    timeout: &[u8],
    id: &[u8],
) -> Result<Option<(Vec<u8>, i64)>, Refusal> {
    if let Some(ends) = keyspace.zscore(timeout, id)? {
        return Ok(Some((id.to_vec(), ends)));
    }
    let text: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let ends = keyspace.zscore(timeout, text.as_bytes())?;
    Ok(ends.map(|ends| (text.into_bytes(), ends)))
}

/// The keys and the channel of one semaphore, and the operations on its permits.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) key: Key,
    pub(crate) channel: Arc<str>,
}

impl Names {
    fn keys(&self) -> Vec<Vec<u8>> {
        let timeout = self.key.timeout_key().into_bytes();
        vec![self.key.as_str().into(), timeout]
    }

    fn operation(&self, step: &'static Step, arguments: Vec<Vec<u8>>) -> Operation {
        let mut parts = self.keys();
        parts.extend(arguments);
        Operation::new(step, parts)
    }

    fn channel(&self) -> Vec<u8> {
        self.channel.as_bytes().into()
    }

    pub(crate) fn release(&self, ids: &[PermitId], all: bool) -> Operation {
        let all = vec![if all { b'1' } else { b'0' }];
        self.operation(&RELEASE, vec![in_a_row(ids), all, self.channel()])
    }

    pub(crate) fn update(&self, id: PermitId, lease: Duration) -> Operation {
        let arguments = vec![in_a_row(&[id]), ms(lease), self.channel()];
        self.operation(&UPDATE, arguments)
    }

    pub(crate) fn left(&self, id: PermitId) -> Operation {
        self.operation(&LEFT, vec![in_a_row(&[id])])
    }

    pub(crate) fn counts(&self) -> Operation {
        self.operation(&COUNTS, vec![self.channel()])
    }

    pub(crate) fn set(&self, marked: &Marked, total: u32) -> Operation {
        let mut arguments = marked.both().to_vec();
        arguments.extend([total.to_string().into_bytes(), self.channel()]);
        self.operation(&SET, arguments)
    }

    pub(crate) fn delete(&self, marked: &Marked) -> Operation {
        self.operation(&DELETE, marked.both().to_vec())
    }
}

fn in_a_row(ids: &[PermitId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.bytes()).collect()
}

/// The operations on the permits that were acquired together.
pub(crate) struct Permits {
    names: Names,
    pub(crate) ids: Arc<[PermitId]>,
    /// The first id, in the form that Redisson's users write.
    first: String,
}

impl Permits {
    pub(crate) fn new(names: Names, ids: Arc<[PermitId]>) -> Self {
        let first = ids.first().map(PermitId::to_string).unwrap_or_default();
        Self { names, ids, first }
    }
}

impl HoldSteps for Permits {
    fn acquire(&self, lease: Duration) -> Operation {
        let arguments = vec![in_a_row(&self.ids), ms(lease), self.names.channel()];
        self.names.operation(&ACQUIRE, arguments)
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        match reply {
            Value::Nil => Some(Asked::Granted { token: None }),
            Value::List(items) => match items[..] {
                [Value::Int(_), Value::Int(ttl_ms), _, _] => Some(Asked::Busy { ttl_ms }),
                _ => None,
            },
            _ => None,
        }
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        let most = ms(most.unwrap_or_default());
        let arguments = vec![in_a_row(&self.ids), ms(lease), most];
        self.names.operation(&RENEW, arguments)
    }

    fn release(&self) -> Operation {
        self.names.release(&self.ids, false)
    }

    fn why_lost(&self) -> Operation {
        self.names.left(self.ids[0])
    }

    fn wire_id(&self) -> &str {
        &self.first
    }

    /// Nothing says who took a permit back before its time.
    fn read_why_lost(&self, _reply: Value) -> Option<LossReason> {
        None
    }
}
