//! The steps of the group lock: how each is sent, and its twin on the embedded keyspace.
//! `group.lua` describes each step.

use std::sync::Arc;
use std::time::Duration;

use super::Values;
use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, SharedLua, Step, Value, number, step};
use crate::config::wire_ms;
use crate::hold::{AcquireReply, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::hash_kind::{self, HASH_KIND};
use crate::primitives::twin::{NOW_MS, WAKE_ALL, forced_note, lengthen, wake_all};

static LUA: LuaFile = LuaFile::new(include_str!("group.lua"));

static SHAPE: SharedLua = SharedLua::new(&LUA, "shape", &[&NOW_MS]);
static TRIM_EXPIRY: SharedLua = SharedLua::new(&LUA, "trim_expiry", &[&SHAPE]);

step! {
    ACQUIRE: Acquire = group.acquire, grants: true,
    while_moving: true,
    keys: [group],
    args: [hold, lease_ms: u64, fields],
    uses: [SHAPE, HASH_KIND],
}

impl Acquire<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let (size, lease_ms) = (keyspace.hlen(self.group)?, self.lease_ms);
        hash_kind::check(keyspace, self.group, hash_kind::GROUP)?;
        let (now, mut busy_ms, mut dead) = (keyspace.now_ms(), 0, Vec::new());
        for f in split(self.fields) {
            let Some(holder) = keyspace.hget(self.group, f)? else {
                continue;
            };
            // An earlier copy of this request took all the values. A value that was lost after that
            // is not taken again: a hold that has lost a part is lost.
            if holder == *self.hold {
                return Ok(Value::Nil);
            }
            match ends_at(keyspace, self.group, f, &holder)? {
                // At least 1: a value is held through the millisecond in which its lease ends, and
                // 0 would count as free below.
                Some(ends) if ends >= now => busy_ms = busy_ms.max(ends - now).max(1),
                _ => dead.push((f, holder)),
            }
        }
        if busy_ms > 0 {
            return Ok(int(busy_ms));
        }
        for f in split(self.fields) {
            keyspace.hset(self.group, f, self.hold)?;
            // The end of the lease, on the server's clock. Redisson's clients use their own clocks
            // for this time, so for a Java client with a wrong clock, our leases end too early or
            // too late.
            let ends = (now + lease_ms).to_string();
            keyspace.hset(
                self.group,
                &beside(f, self.hold, EXPIRE_TIME),
                ends.as_bytes(),
            )?;
            keyspace.hset(self.group, &beside(f, self.hold, LOCK_COUNT), b"1")?;
        }
        // If another program has removed the key's expiry, the key stays without one: `lengthen`
        // would set an expiry and cut the holds that last longer than this one.
        if size == 0 {
            keyspace.pexpire(self.group, life_ms(lease_ms));
        } else if keyspace.pttl(self.group) >= 0 {
            lengthen(keyspace, self.group, life_ms(lease_ms));
        }
        for (f, holder) in dead {
            remove(keyspace, self.group, f, &holder)?;
        }
        if size > SWEPT {
            sweep(keyspace, self.group, now)?;
        }
        Ok(Value::Nil)
    }
}

step! {
    RELEASE: Release = group.release, grants: false,
    keys: [group],
    args: [hold, channel, fields],
    uses: [TRIM_EXPIRY, WAKE_ALL],
}

impl Release<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let (mut lost, mut had) = (Vec::new(), false);
        for f in split(self.fields) {
            if keyspace.hget(self.group, f)?.as_deref() == Some(self.hold) {
                keyspace.hdel(self.group, f)?;
                had = true;
            } else {
                lost.push(Value::Text(f.to_vec()));
            }
            // Remove these fields even if another client has the value now: the end and the count
            // carry this hold's id, and would remain for as long as the group is in use.
            remove(keyspace, self.group, f, self.hold)?;
        }
        if !had {
            return Ok(Value::Int(0));
        }
        trim_expiry(keyspace, self.group)?;
        wake_all(keyspace, self.channel);
        Ok(match lost.is_empty() {
            true => Value::Int(1),
            false => Value::List(lost),
        })
    }
}

step! {
    RENEW: Renew = group.renew, grants: true,
    for_holders: true,
    renews: true,
    while_moving: true,
    keys: [group],
    args: [hold, lease_ms: u64, most_ms: u64, fields],
    uses: [SHAPE],
}

impl Renew<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let (now, mut ends) = (keyspace.now_ms(), Vec::new());
        // All values are checked before any is renewed: a hold that has lost one value is lost, and
        // must not keep other clients from its remaining values.
        for f in split(self.fields) {
            if keyspace.hget(self.group, f)?.as_deref() != Some(self.hold) {
                return Ok(Value::Int(0));
            }
            match ends_at(keyspace, self.group, f, self.hold)? {
                // A value whose lease has expired counts as lost even if no client has taken it.
                // The holder's own deadline was earlier, and a loss is final.
                Some(at) if at >= now => ends.push((f, at)),
                _ => return Ok(Value::Int(0)),
            }
        }
        let (lease_ms, most_ms) = (self.lease_ms, self.most_ms);
        if keyspace.pttl(self.group) >= 0 {
            lengthen(keyspace, self.group, life_ms(lease_ms));
        }
        let (wanted, mut left) = (now + lease_ms, 0);
        for (f, mut at) in ends {
            if at < wanted || (most_ms > 0 && at - now > most_ms) {
                let text = wanted.to_string();
                keyspace.hset(
                    self.group,
                    &beside(f, self.hold, EXPIRE_TIME),
                    text.as_bytes(),
                )?;
                at = wanted;
            }
            // At least 1, because a reply of 0 means that the hold is lost.
            left = left.max(at - now).max(1);
        }
        Ok(int(left))
    }
}

step! {
    WHY_LOST: WhyLost = group.why_lost, grants: false,
    keys: [group, marker],
    args: [hold, fields],
    uses: [SHAPE],
}

impl WhyLost<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mut reply = vec![forced_note(keyspace, self.marker, self.hold)?];
        for f in split(self.fields) {
            let live = live_holder(keyspace, self.group, f)?;
            let holder = live.map(|(holder, _)| holder);
            if holder.as_deref() != Some(self.hold) {
                reply.push(Value::Text(f.to_vec()));
                reply.push(Value::Text(holder.unwrap_or_default()));
            }
        }
        Ok(Value::List(reply))
    }
}

step! {
    FORCE_UNLOCK: ForceUnlock = group.force_unlock, grants: false,
    keys: [group, marker],
    args: [channel, fields, by],
    uses: [HASH_KIND, TRIM_EXPIRY, WAKE_ALL],
}

impl ForceUnlock<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let size = keyspace.hlen(self.group)?;
        if size == 0 {
            return Ok(Value::Int(0));
        }
        hash_kind::check(keyspace, self.group, hash_kind::GROUP)?;
        let (now, mut ended) = (keyspace.now_ms(), 0);
        for f in split(self.fields) {
            let Some(holder) = keyspace.hget(self.group, f)? else {
                continue;
            };
            let ends = ends_at(keyspace, self.group, f, &holder)?.unwrap_or(0);
            keyspace.hdel(self.group, f)?;
            remove(keyspace, self.group, f, &holder)?;
            // The fields of a dead holder are removed, too. But its hold had already ended by
            // itself, so no marker may say that it was ended by force.
            let Some(left) = ends.checked_sub(now) else {
                continue;
            };
            ended = 1;
            // A marker of another type is not changed, because the note is only a courtesy.
            if keyspace.hlen(self.marker).is_ok_and(|size| size < 64) {
                keyspace.hset(self.marker, &holder, self.by)?;
                lengthen(keyspace, self.marker, left.max(1));
            }
        }
        trim_expiry(keyspace, self.group)?;
        wake_all(keyspace, self.channel);
        Ok(Value::Int(ended))
    }
}

step! {
    INSPECT: Inspect = group.inspect, grants: false,
    while_moving: true,
    keys: [group],
    args: [fields],
    uses: [SHAPE, HASH_KIND],
}

impl Inspect<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        hash_kind::check(keyspace, self.group, hash_kind::GROUP)?;
        let (now, mut ttl, mut holders) = (keyspace.now_ms(), -2, Vec::<Value>::new());
        for f in split(self.fields) {
            let Some((holder, ends)) = live_holder(keyspace, self.group, f)? else {
                continue;
            };
            ttl = ttl.max(i64::try_from(ends - now).unwrap_or(i64::MAX));
            if !holders.contains(&Value::Text(holder.clone())) {
                let count = keyspace.hget(self.group, &beside(f, &holder, LOCK_COUNT))?;
                holders.push(Value::Text(holder));
                holders.push(Value::Text(count.unwrap_or_else(|| b"1".to_vec())));
            }
        }
        holders.insert(0, Value::Int(ttl));
        Ok(Value::List(holders))
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 6] = [
    &ACQUIRE,
    &RELEASE,
    &RENEW,
    &WHY_LOST,
    &FORCE_UNLOCK,
    &INSPECT,
];

const EXPIRE_TIME: &[u8] = b"expire_time";
const LOCK_COUNT: &[u8] = b"lock_count";
/// The number of fields above which each acquire removes the fields of dead holders. The script
/// checks a few fields each time, and its twin checks all of them.
const SWEPT: usize = 48;

fn split(fields: &[u8]) -> impl Iterator<Item = &[u8]> {
    fields
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty())
}

/// Returns the field name `f:holder:what`.
fn beside(f: &[u8], holder: &[u8], what: &[u8]) -> Vec<u8> {
    [f, holder, what].join(&b':')
}

fn ends_at(
    keyspace: &mut Keyspace,
    group: &[u8],
    f: &[u8],
    holder: &[u8],
) -> Result<Option<u64>, Refusal> {
    let text = keyspace.hget(group, &beside(f, holder, EXPIRE_TIME))?;
    Ok(text.and_then(|text| number(&text).ok()))
}

/// Returns the current holder of `f`, and the end of its lease.
fn live_holder(
    keyspace: &mut Keyspace,
    group: &[u8],
    f: &[u8],
) -> Result<Option<(Vec<u8>, u64)>, Refusal> {
    let Some(holder) = keyspace.hget(group, f)? else {
        return Ok(None);
    };
    let ends = ends_at(keyspace, group, f, &holder)?;
    let now = keyspace.now_ms();
    Ok(ends.filter(|ends| *ends >= now).map(|ends| (holder, ends)))
}

fn remove(keyspace: &mut Keyspace, group: &[u8], f: &[u8], holder: &[u8]) -> Result<(), Refusal> {
    keyspace.hdel(group, &beside(f, holder, EXPIRE_TIME))?;
    keyspace.hdel(group, &beside(f, holder, LOCK_COUNT))?;
    Ok(())
}

fn sweep(keyspace: &mut Keyspace, group: &[u8], now: u64) -> Result<(), Refusal> {
    for (field, value) in keyspace.hgetall(group)? {
        let text = String::from_utf8_lossy(&field);
        let Some((f, holder)) = text
            .strip_suffix(":expire_time")
            // Split at the first colon: a field's name is base64 and has no colon, but the id of a
            // holder has one.
            .and_then(|text| text.split_once(':'))
        else {
            continue;
        };
        if number(&value).unwrap_or(0) < now {
            if keyspace.hget(group, f.as_bytes())?.as_deref() == Some(holder.as_bytes()) {
                keyspace.hdel(group, f.as_bytes())?;
            }
            remove(keyspace, group, f.as_bytes(), holder.as_bytes())?;
        }
    }
    Ok(())
}

/// The twin of `life_ms` in `group.lua`, which gives the reason.
fn life_ms(lease_ms: u64) -> u64 {
    lease_ms + 100
}

/// The twin of `trim_expiry` in `group.lua`.
fn trim_expiry(keyspace: &mut Keyspace, group: &[u8]) -> Result<(), Refusal> {
    // Reading a large hash at each release would keep the server busy. In a large group, acquires
    // remove the fields of dead holders, and the group lives as long as the longest requested
    // lease.
    if keyspace.hlen(group)? > SWEPT {
        return Ok(());
    }
    let now = keyspace.now_ms();
    sweep(keyspace, group, now)?;
    let fields = keyspace.hgetall(group)?;
    let ends = fields
        .iter()
        .filter(|(field, _)| field.ends_with(b":expire_time"));
    let longest = ends.filter_map(|(_, at)| number::<u64>(at).ok()).max();
    let life = longest.map(|at| life_ms(at.saturating_sub(now).max(1)));
    if let Some(life) = life
        && u64::try_from(keyspace.pttl(group)).is_ok_and(|left| left > life)
    {
        keyspace.pexpire(group, life);
    }
    Ok(())
}

fn int(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The operations on one hold of some values of a group.
pub(crate) struct GroupHold {
    group: Key,
    channel: Arc<str>,
    values: Arc<Values>,
    /// The id `uuid:n`, which belongs to this hold only.
    id: String,
}

impl GroupHold {
    pub(crate) fn new(group: Key, channel: Arc<str>, values: Arc<Values>, id: String) -> Self {
        Self {
            group,
            channel,
            values,
            id,
        }
    }

    /// Returns the reason for the loss of one value, given its field.
    fn lost(&self, field: &[u8], reason: LossReason) -> LossReason {
        let value = self.values.value_of(field);
        LossReason::Member {
            member: format!("the value `{}`", crate::text::Shown(value)),
            reason: Box::new(reason),
        }
    }
}

impl HoldSteps for GroupHold {
    fn acquire(&self, lease: Duration) -> Operation {
        Acquire {
            group: self.group.as_str().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            fields: self.values.fields.as_bytes(),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        match reply {
            Value::Nil => Some(AcquireReply::Granted { token: None }),
            Value::Int(ttl_ms) => Some(AcquireReply::Busy {
                ttl_ms,
                before: None,
            }),
            _ => None,
        }
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        Renew {
            group: self.group.as_str().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
            fields: self.values.fields.as_bytes(),
        }
        .operation()
    }

    fn release(&self) -> Operation {
        release(&self.group, &self.id, &self.values.fields, &self.channel)
    }

    fn read_release(&self, reply: &Value) -> Option<LossReason> {
        match reply {
            Value::List(lost) => match &lost[..] {
                [Value::Text(field), ..] => Some(self.lost(field, LossReason::Deleted)),
                _ => None,
            },
            _ => None,
        }
    }

    fn why_lost(&self) -> Operation {
        WhyLost {
            group: self.group.as_str().as_bytes(),
            marker: self.group.forced_marker().as_bytes(),
            hold: self.id.as_bytes(),
            fields: self.values.fields.as_bytes(),
        }
        .operation()
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        let Value::List(items) = reply else {
            return None;
        };
        let (note, gone) = items.split_first()?;
        if let Value::Text(note) = note {
            return Some(LossReason::forced(note));
        }
        let gone = gone.chunks(2).filter_map(|pair| match pair {
            [Value::Text(field), Value::Text(holder)] => Some((field, holder)),
            _ => None,
        });
        // Prefer a value that another client has taken: it tells the holder more than a value that
        // no longer exists.
        let (field, holder) = gone.max_by_key(|(_, holder)| !holder.is_empty())?;
        let reason = match holder.is_empty() {
            true => LossReason::Deleted,
            false => LossReason::Taken {
                by: String::from_utf8_lossy(holder).into_owned(),
            },
        };
        Some(self.lost(field, reason))
    }

    fn wire_id(&self) -> &str {
        &self.id
    }

    fn unfenced(&self) -> Option<&'static str> {
        Some(
            "several clients can hold its values at a time; acquire a MultiLock with a lock for each value",
        )
    }
}

/// Builds the request that ends a hold of these values.
pub(crate) fn release(group: &Key, hold: &str, fields: &str, channel: &str) -> Operation {
    Release {
        group: group.as_str().as_bytes(),
        hold: hold.as_bytes(),
        channel: channel.as_bytes(),
        fields: fields.as_bytes(),
    }
    .operation()
}

pub(crate) fn force_unlock(group: &Key, channel: &str, values: &Values, by: &str) -> Operation {
    ForceUnlock {
        group: group.as_str().as_bytes(),
        marker: group.forced_marker().as_bytes(),
        channel: channel.as_bytes(),
        fields: values.fields.as_bytes(),
        by: by.as_bytes(),
    }
    .operation()
}

pub(crate) fn inspect(group: &Key, values: &Values) -> Operation {
    Inspect {
        group: group.as_str().as_bytes(),
        fields: values.fields.as_bytes(),
    }
    .operation()
}
