//! The steps of the semaphore whose permits have leases: how each is sent, and its twin on the
//! embedded keyspace. `expirable.lua` describes each step.

use std::sync::Arc;
use std::time::Duration;

use super::PermitId;
use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, SharedLua, Step, Value, step};
use crate::config::wire_ms;
use crate::hold::{AcquireReply, HoldSteps, SwapSteps, WaitingClient};
use crate::key::Key;
use crate::local::Marked;
use crate::loss::LossReason;
use crate::primitives::semaphore::steps as semaphore;
use crate::primitives::twin::{
    ASKING, Freed, IDEMPOTENCY, NOW_MS, NUMBER_AT, PUBLISH_FREE, clients_before, earlier_reply,
    forced_note, list, note, number_at, publish_free, to_int,
};

static LUA: LuaFile = LuaFile::new(include_str!("expirable.lua"));

pub(crate) static LEASES: SharedLua = SharedLua::new(&LUA, "leases", &[&NOW_MS, &NUMBER_AT]);
static RECLAIM: SharedLua = SharedLua::new(&LUA, "reclaim", &[&PUBLISH_FREE]);

/// The expiry that Redisson notes for a permit whose lease never ends.
pub(crate) const NEVER: i64 = 922_337_203_685_477;
/// The largest number of permits that are taken back at once.
const CHUNK: usize = 1000;

step! {
    ACQUIRE: Acquire = expirable.acquire, grants: true,
    keys: [permits, timeout, asking],
    args: [ids, lease_ms: u64, channel, client, notified: bool],
    uses: [LEASES, RECLAIM, ASKING],
}

impl Acquire<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        // All permits of one request are granted at once, so the first id shows whether the request
        // has run before.
        if keyspace.zscore(self.timeout, &self.ids[..16])?.is_some() {
            let free = number_at(keyspace, self.permits)?;
            return Ok(Value::Int(free.unwrap_or(0)));
        }
        let now = now_ms(keyspace);
        let keys = [self.permits, self.timeout, self.asking];
        reclaim(keyspace, keys, self.channel, now)?;
        let free = number_at(keyspace, self.permits)?;
        let (exists, free) = (free.is_some(), free.unwrap_or(0));
        let wanted = self.ids.len() / 16;
        if free < i64::try_from(wanted).unwrap_or(i64::MAX) {
            let next = keyspace
                .zrange(self.timeout)?
                .first()
                .map(|(_, ends)| *ends);
            let ttl = next.filter(|ends| *ends < NEVER);
            let ttl = ttl.map_or(-1, |ends| (ends - now).max(0));
            let held = lease_fingerprint(keyspace, self.timeout)?;
            let before = match self.client.is_empty() {
                true => -1,
                false => clients_before(keyspace, self.asking, self.client, self.notified),
            };
            return Ok(list(&[free, ttl, exists.into(), held, before]));
        }
        let free = keyspace.incr_by(self.permits, -i64::try_from(wanted).unwrap_or(i64::MAX))?;
        // A lease that ends must not look like a lease that never ends.
        let ends = now.saturating_add(to_int(self.lease_ms)).min(NEVER - 1);
        for id in self.ids.chunks(16) {
            keyspace.zadd(self.timeout, id, ends)?;
        }
        // The set must not outlive a semaphore that has an expiry: a new semaphore of the same name
        // would find leases of the old one.
        if let Ok(ttl @ 1..) = u64::try_from(keyspace.pttl(self.permits)) {
            keyspace.pexpire(self.timeout, ttl);
        }
        if !self.client.is_empty() {
            let _ = keyspace.lrem(self.asking, self.client);
        }
        Ok(Value::Int(free))
    }
}

step! {
    EXCHANGE: Exchange = expirable.exchange, grants: true,
    for_holders: true,
    keys: [permits, timeout],
    args: [ids, next, lease_ms: u64],
    uses: [LEASES],
}

impl Exchange<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        if keyspace.zscore(self.timeout, &self.next[..16])?.is_some() {
            return Ok(Value::Int(1));
        }
        // If more permits are in use than exist, these permits must be given back and not passed
        // on.
        if number_at(keyspace, self.permits)?.is_some_and(|free| free < 0) {
            return Ok(Value::Int(0));
        }
        let now = now_ms(keyspace);
        let mut members = Vec::new();
        for id in self.ids.chunks(16) {
            match find(keyspace, self.timeout, id)? {
                Some((member, ends)) if ends > now => members.push(member),
                _ => return Ok(Value::Int(0)),
            }
        }
        let ends = now.saturating_add(to_int(self.lease_ms)).min(NEVER - 1);
        for id in self.next.chunks(16) {
            keyspace.zadd(self.timeout, id, ends)?;
        }
        for member in members {
            keyspace.zrem(self.timeout, &member)?;
        }
        Ok(Value::Int(1))
    }
}

step! {
    RENEW: Renew = expirable.renew, grants: true,
    for_holders: true,
    renews: true,
    keys: [permits, timeout],
    args: [ids, lease_ms: u64, most_ms: u64],
    uses: [LEASES],
}

impl Renew<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let now = now_ms(keyspace);
        let (lease, most) = (to_int(self.lease_ms), to_int(self.most_ms));
        let (mut renewed, mut least) = (Vec::new(), NEVER);
        // Find all ends before setting one: if the lease of one permit has expired, none of the
        // others is renewed.
        for id in self.ids.chunks(16) {
            let Some((member, mut ends)) =
                find(keyspace, self.timeout, id)?.filter(|(_, ends)| *ends > now)
            else {
                return Ok(Value::Int(0));
            };
            // A request that was overtaken by one for a longer lease must not shorten that lease.
            if ends < now.saturating_add(lease) || (most > 0 && ends > now.saturating_add(most)) {
                ends = now.saturating_add(lease).min(NEVER - 1);
            }
            least = least.min(ends);
            renewed.push((member, ends));
        }
        for (member, ends) in renewed {
            keyspace.zadd(self.timeout, &member, ends)?;
        }
        Ok(Value::Int(least - now))
    }
}

step! {
    WHY_LOST: WhyLost = expirable.why_lost, grants: false,
    while_moving: true,
    keys: [marker],
    args: [holds],
}

impl WhyLost<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        for hold in self.holds.split(|byte| *byte == b' ') {
            if let note @ Value::Text(_) = forced_note(keyspace, self.marker, hold)? {
                return Ok(Value::List(vec![note]));
            }
        }
        Ok(Value::Int(0))
    }
}

step! {
    RELEASE: Release = expirable.release, grants: false,
    keys: [permits, timeout, asking],
    args: [ids, all: bool, channel],
    uses: [LEASES, RECLAIM],
}

impl Release<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        let now = now_ms(keyspace);
        let (mut held, mut members) = (true, Vec::new());
        for id in self.ids.chunks(16) {
            match find(keyspace, self.timeout, id)? {
                Some((member, ends)) => {
                    held &= ends > now;
                    members.push(member);
                }
                None => held = false,
            }
        }
        // Unless `all` is set, the permits that exist are given back although the reply is 0, as in
        // Redisson since 3.17: a permit with an expired lease stays in the set until a client
        // removes it.
        if members.is_empty() || (!held && self.all) {
            return Ok(Value::Int(0));
        }
        let mut removed = 0;
        for member in members {
            removed += i64::from(keyspace.zrem(self.timeout, &member)?);
        }
        let free = keyspace.incr_by(self.permits, removed)?;
        let receivers = publish_free(
            keyspace,
            returned_permits((self.asking, self.channel), free, removed),
        )
        .max(0);
        Ok(Value::Int(i64::from(held) * (1 + receivers)))
    }
}

step! {
    UPDATE: Update = expirable.update, grants: true,
    for_holders: true,
    keys: [permits, timeout, asking],
    args: [id, lease_ms: u64, channel],
    uses: [LEASES, RECLAIM],
}

impl Update<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        let now = now_ms(keyspace);
        let keys = [self.permits, self.timeout, self.asking];
        reclaim(keyspace, keys, self.channel, now)?;
        match find(keyspace, self.timeout, self.id)? {
            Some((member, ends)) if ends > now => {
                let ends = now.saturating_add(to_int(self.lease_ms)).min(NEVER - 1);
                keyspace.zadd(self.timeout, &member, ends)?;
                Ok(Value::Int(1))
            }
            _ => Ok(Value::Int(0)),
        }
    }
}

step! {
    REMAINING: Remaining = expirable.remaining, grants: false,
    keys: [permits, timeout],
    args: [id],
    uses: [LEASES],
}

impl Remaining<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        let now = now_ms(keyspace);
        let left = match find(keyspace, self.timeout, self.id)? {
            Some((_, NEVER..)) => -1,
            Some((_, ends)) if ends > now => ends - now,
            _ => -2,
        };
        Ok(Value::Int(left))
    }
}

step! {
    COUNTS: Counts = expirable.counts, grants: false,
    keys: [permits, timeout, asking],
    args: [channel],
    uses: [LEASES, RECLAIM],
}

impl Counts<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        check_types(keyspace, self.permits, self.timeout)?;
        let now = now_ms(keyspace);
        let keys = [self.permits, self.timeout, self.asking];
        reclaim(keyspace, keys, self.channel, now)?;
        let leases = keyspace.zrange(self.timeout)?;
        let ended = leases.iter().filter(|(_, ends)| *ends <= now).count();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let free = number_at(keyspace, self.permits)?;
        let exists = i64::from(free.is_some());
        let free = free.unwrap_or(0) + count(ended);
        Ok(list(&[free, count(leases.len() - ended), exists]))
    }
}

step! {
    SET: Set = expirable.set, grants: false,
    keys: [permits, timeout, marker, done, asking],
    args: [total: u64, channel],
    uses: [LEASES, IDEMPOTENCY, PUBLISH_FREE],
}

impl Set<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if earlier_reply(keyspace, self.marker)?.is_some() {
            return Ok(Value::Int(1));
        }
        check_types(keyspace, self.permits, self.timeout)?;
        note(keyspace, self.marker, "1");
        let total = to_int(self.total);
        let free = number_at(keyspace, self.permits)?.unwrap_or(0);
        // Permits in use count even if the number of free permits was removed: their holders still
        // have them, and each holder gives its permit back.
        let more = total - free - i64::try_from(keyspace.zcard(self.timeout)?).unwrap_or(i64::MAX);
        keyspace.del(self.done);
        if more != 0 || !keyspace.exists(self.permits) {
            // Change the number by the difference: setting it would drop the expiry that the
            // semaphore may have.
            let free = keyspace.incr_by(self.permits, more)?;
            let freed = Freed::new((self.asking, self.channel), free, free);
            publish_free(keyspace, freed);
        }
        Ok(Value::Int(1))
    }
}

step! {
    DELETE: Delete = expirable.delete, grants: false,
    keys: [permits, timeout, marker, done],
    args: [],
    uses: [LEASES, IDEMPOTENCY],
}

impl Delete<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        check_types(keyspace, self.permits, self.timeout)?;
        keyspace.del(self.done);
        let exists = keyspace.exists(self.permits) || keyspace.exists(self.timeout);
        note(keyspace, self.marker, &i64::from(exists).to_string());
        keyspace.del(self.permits);
        keyspace.del(self.timeout);
        Ok(Value::Int(i64::from(exists)))
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 10] = [
    &ACQUIRE, &EXCHANGE, &RENEW, &WHY_LOST, &RELEASE, &UPDATE, &REMAINING, &COUNTS, &SET, &DELETE,
];

fn now_ms(keyspace: &Keyspace) -> i64 {
    to_int(keyspace.now_ms())
}

pub(crate) fn check_types(
    keyspace: &mut Keyspace,
    permits: &[u8],
    timeout: &[u8],
) -> Result<(), Refusal> {
    number_at(keyspace, permits)?;
    if keyspace.zcard(timeout).is_err() {
        return Err(Refusal(format!(
            "WRONGKIND a semaphore whose leases are a {}",
            keyspace.kind(timeout)
        )));
    }
    Ok(())
}

fn reclaim(
    keyspace: &mut Keyspace,
    [permits, timeout, asking]: [&[u8]; 3],
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
    publish_free(keyspace, returned_permits((asking, channel), free, removed));
    Ok(())
}

/// Describes `more` permits that were given back. `reclaim` in `expirable.lua` explains which of
/// Redisson's waiters need the eight additional messages.
fn returned_permits<'a>(keys: (&'a [u8], &'a [u8]), free: i64, more: i64) -> Freed<'a> {
    Freed {
        extra: 8,
        ..Freed::new(keys, free, more)
    }
}

/// Returns a number made from the ids of permits in use.
fn lease_fingerprint(keyspace: &mut Keyspace, timeout: &[u8]) -> Result<i64, Refusal> {
    let first = |id: &[u8]| {
        let bytes = id.iter().copied().chain(std::iter::repeat(0)).take(6);
        bytes.fold(0, |first, byte| first * 256 + i64::from(byte))
    };
    let leases = keyspace.zrange(timeout)?;
    // 32 numbers of 48 bits stay below 2^53, up to which Lua is exact. The script must produce the
    // same sum.
    Ok(leases.iter().take(32).map(|(id, _)| first(id)).sum())
}

/// Returns the set's member for this permit, and the end of its lease. Redisson 3.16.8 writes the
/// id in hex.
pub(crate) fn find(
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
pub(crate) struct ExpirableNames {
    pub(crate) key: Key,
    pub(crate) channel: Arc<str>,
    /// The channel on which a release notifies this client; `None` if no release can notify it.
    pub(crate) own_channel: Option<Arc<str>>,
}

impl ExpirableNames {
    pub(crate) fn release(&self, ids: &[PermitId], all: bool) -> Operation {
        Release {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            asking: self.key.waiting_clients().as_bytes(),
            ids: &concat_ids(ids),
            all,
            channel: self.channel.as_bytes(),
        }
        .operation()
    }

    pub(crate) fn update(&self, id: PermitId, lease: Duration) -> Operation {
        Update {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            asking: self.key.waiting_clients().as_bytes(),
            id: &concat_ids(&[id]),
            lease_ms: wire_ms(lease),
            channel: self.channel.as_bytes(),
        }
        .operation()
    }

    pub(crate) fn remaining(&self, id: PermitId) -> Operation {
        Remaining {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            id: &concat_ids(&[id]),
        }
        .operation()
    }

    pub(crate) fn counts(&self) -> Operation {
        Counts {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            asking: self.key.waiting_clients().as_bytes(),
            channel: self.channel.as_bytes(),
        }
        .operation()
    }

    pub(crate) fn set(&self, marked: &Marked, total: u32) -> Operation {
        Set {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            marker: marked.marker.as_bytes(),
            done: marked.done.as_bytes(),
            asking: self.key.waiting_clients().as_bytes(),
            total: total.into(),
            channel: self.channel.as_bytes(),
        }
        .operation()
    }

    pub(crate) fn delete(&self, marked: &Marked) -> Operation {
        Delete {
            permits: self.key.as_str().as_bytes(),
            timeout: self.key.timeout_key().as_bytes(),
            marker: marked.marker.as_bytes(),
            done: marked.done.as_bytes(),
        }
        .operation()
    }
}

pub(crate) fn concat_ids(ids: &[PermitId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.bytes()).collect()
}

/// The operations on the permits of one acquire.
pub(crate) struct PermitHold {
    names: ExpirableNames,
    pub(crate) ids: Arc<[PermitId]>,
    /// The first id in hex, as Redisson writes it.
    first: String,
}

impl PermitHold {
    /// Creates the steps for `permits` permits, with ids that no other permits have.
    pub(crate) fn fresh(names: ExpirableNames, client: &str, permits: u32) -> Self {
        let ids = (0..permits).map(|_| PermitId::fresh(client));
        Self::new(names, ids.collect())
    }

    pub(crate) fn new(names: ExpirableNames, ids: Arc<[PermitId]>) -> Self {
        let first = ids.first().map(PermitId::to_string).unwrap_or_default();
        Self { names, ids, first }
    }

    /// Builds the acquire of these permits. If `client` is given, a release may notify that client.
    fn acquire_with(&self, lease: Duration, client: Option<WaitingClient>) -> Operation {
        Acquire {
            permits: self.names.key.as_str().as_bytes(),
            timeout: self.names.key.timeout_key().as_bytes(),
            asking: self.names.key.waiting_clients().as_bytes(),
            ids: &concat_ids(&self.ids),
            lease_ms: wire_ms(lease),
            channel: self.names.channel.as_bytes(),
            client: WaitingClient::list_item_or_empty(client, self.permits()).as_bytes(),
            notified: client.is_some_and(|client| client.was_notified),
        }
        .operation()
    }
}

impl HoldSteps for PermitHold {
    fn acquire(&self, lease: Duration) -> Operation {
        self.acquire_with(lease, None)
    }

    fn acquire_and_enlist(&self, lease: Duration, client: WaitingClient) -> Option<Operation> {
        Some(self.acquire_with(lease, Some(client)))
    }

    fn delist(&self, client: WaitingClient) -> Option<Operation> {
        let ExpirableNames { key, channel, .. } = &self.names;
        Some(semaphore::delist(key, client, self.permits(), channel))
    }

    fn swap_steps(&self) -> Option<&dyn SwapSteps> {
        Some(self)
    }

    fn counted_channel(&self) -> Option<&str> {
        Some(&self.names.channel)
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        match reply {
            Value::Int(_) => Some(AcquireReply::Granted { token: None }),
            Value::List(items) => match items[..] {
                [Value::Int(_), Value::Int(ttl_ms), _, _, Value::Int(before)] => {
                    Some(AcquireReply::Busy {
                        ttl_ms,
                        before: u32::try_from(before).ok(),
                    })
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        Renew {
            permits: self.names.key.as_str().as_bytes(),
            timeout: self.names.key.timeout_key().as_bytes(),
            ids: &concat_ids(&self.ids),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
        }
        .operation()
    }

    fn release(&self) -> Operation {
        // Release all permits that still exist: if one lease has ended, the other permits must not
        // stay in use until their leases end.
        self.names.release(&self.ids, false)
    }

    fn why_lost(&self) -> Operation {
        let holds: Vec<_> = self.ids.iter().map(PermitId::to_string).collect();
        WhyLost {
            marker: self.names.key.forced_marker().as_bytes(),
            holds: holds.join(" ").as_bytes(),
        }
        .operation()
    }

    fn wire_id(&self) -> &str {
        &self.first
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        let Value::List(items) = reply else {
            return None;
        };
        match &items[..] {
            [Value::Text(note)] => Some(LossReason::forced(note)),
            _ => None,
        }
    }
}

impl SwapSteps for PermitHold {
    fn permits(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }

    fn swap(&self, lease: Duration) -> (Box<dyn HoldSteps>, Operation) {
        let ids = self.ids.iter().map(|id| id.renewed());
        let next = Self::new(self.names.clone(), ids.collect());
        let operation = Exchange {
            permits: self.names.key.as_str().as_bytes(),
            timeout: self.names.key.timeout_key().as_bytes(),
            ids: &concat_ids(&self.ids),
            next: &concat_ids(&next.ids),
            lease_ms: wire_ms(lease),
        }
        .operation();
        (Box::new(next), operation)
    }
}
