//! The steps of the plain lock: how each is sent, and its twin on the embedded keyspace. `lock.lua`
//! describes each step.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{
    LuaFile, Operation, Parts, Refusal, SharedLua, Step, Value, number, step,
};
use crate::config::wire_ms;
use crate::hold::{AcquireReply, BatchRenewal, HoldSteps, WaitingClient};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::hash_kind::{self, HASH_KIND};
use crate::primitives::twin::{
    ASKING, KEPT, can_be_renewed, clients_before, forced_note, keep_for_span, lengthen,
    notify_first, to_int,
};

static LUA: LuaFile = LuaFile::new(include_str!("lock.lua"));

pub(in crate::primitives) static BREAK_HOLD: SharedLua =
    SharedLua::new(&LUA, "break_hold", &[&HASH_KIND]);
pub(crate) static GRANT: SharedLua = SharedLua::new(&LUA, "grant", &[]);
pub(crate) static RENEWED: SharedLua = SharedLua::new(&LUA, "renewed", &[]);

step! {
    // A request that arrives after its waiter has given up must not run: the lock would be held for
    // a whole lease without a holder.
    ACQUIRE: Acquire = lock.acquire, grants: true,
    while_moving: true,
    own_script: true,
    keys: [lock],
    args: [hold, lease_ms: u64],
    uses: [HASH_KIND],
}

impl Acquire<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if keyspace.hlen(self.lock)? > 0 {
            if keyspace.hexists(self.lock, self.hold)? {
                // A copy of the request that was granted. It sets no lease: the first copy did, and
                // a renewal may have lengthened that lease since.
                return Ok(Value::Nil);
            }
            plain(keyspace, self.lock)?;
            return Ok(Value::Int(keyspace.pttl(self.lock)));
        }
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.pexpire(self.lock, self.lease_ms);
        Ok(Value::Nil)
    }
}

step! {
    ACQUIRE_AND_ENLIST: AcquireAndEnlist = lock.acquire_and_enlist, grants: true,
    keys: [lock, asking],
    args: [hold, lease_ms: u64, client, notified: bool],
    uses: [HASH_KIND, GRANT, ASKING],
}

impl AcquireAndEnlist<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let acquire = Acquire {
            lock: self.lock,
            hold: self.hold,
            lease_ms: self.lease_ms,
        };
        let has_it = keyspace.hexists(self.lock, self.hold)?;
        let reply = acquire.twin(keyspace)?;
        let Value::Int(_) = reply else {
            if !has_it {
                let _ = keyspace.lrem(self.asking, self.client);
            }
            return Ok(reply);
        };
        let before = clients_before(keyspace, self.asking, self.client, self.notified);
        Ok(Value::List(vec![reply, Value::Int(before)]))
    }
}

step! {
    DELIST: Delist = lock.delist, grants: false,
    while_moving: true,
    keys: [asking],
    args: [client],
}

impl Delist<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let times = keyspace.lrem(self.asking, self.client)?;
        Ok(Value::Int(to_int(times as u64)))
    }
}

step! {
    // A release grants nothing, so it runs even if it arrives late. If it were refused as late, the
    // lock would stay held until its lease ends.
    RELEASE: Release = lock.release, grants: false,
    while_moving: true,
    own_script: true,
    keys: [lock],
    args: [hold, channel],
}

impl Release<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        // This removes only the field of this hold, whose id is never used again. So a late or
        // repeated release can't end the hold of the next holder.
        if !keyspace.hdel(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let listeners = keyspace.listeners(self.channel);
        keyspace.publish(self.channel, b"0");
        Ok(Value::Int(1 + listeners))
    }
}

step! {
    RELEASE_AND_NOTIFY: ReleaseAndNotify = lock.release_and_notify, grants: false,
    keys: [lock, asking],
    args: [hold, channel],
    uses: [ASKING],
}

impl ReleaseAndNotify<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let release = Release {
            lock: self.lock,
            hold: self.hold,
            channel: self.channel,
        };
        let reply = release.twin(keyspace)?;
        if matches!(reply, Value::Int(2..)) {
            notify_first(keyspace, self.asking, self.channel);
        }
        Ok(reply)
    }
}

step! {
    RENEW: Renew = lock.renew, grants: true,
    for_holders: true,
    renews: true,
    while_moving: true,
    keys: [lock],
    args: [hold, lease_ms: u64, most_ms: u64],
    uses: [KEPT, RENEWED],
}

impl Renew<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !can_be_renewed(keyspace, self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        Ok(Value::Int(renewed(
            keyspace,
            self.lock,
            self.lease_ms,
            self.most_ms,
        )))
    }
}

/// The twin of `renewed` in `lock.lua`.
pub(crate) fn renewed(keyspace: &mut Keyspace, lock: &[u8], lease_ms: u64, most_ms: u64) -> i64 {
    // The watchdog sets `most_ms` if the hold lasts far longer than any guard requested, for
    // example after the server's clock was set back. Without it, the lock would stay held for all
    // that time if its holder died.
    if most_ms > 0 && u64::try_from(keyspace.pttl(lock)).is_ok_and(|left| left > most_ms) {
        keyspace.pexpire(lock, lease_ms);
    }
    // Never shorten the lease: requests can overtake each other on the network, and the holder
    // relies on the longest lease that was confirmed.
    lengthen(keyspace, lock, lease_ms);
    keyspace.pttl(lock)
}

step! {
    KEEP_FOR: KeepFor = lock.keep_for, grants: true,
    for_holders: true,
    while_moving: true,
    keys: [lock],
    args: [hold, span_ms: u64, channel],
    uses: [KEPT],
}

impl KeepFor<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        if keep_for_span(self.span_ms, keyspace, self.lock, self.hold)? {
            keyspace.publish(self.channel, b"0");
        }
        Ok(Value::Int(1))
    }
}

/// The renewal of many holds in one operation.
pub(crate) static RENEW_MANY: Step = Step {
    name: "lock.renew_many",
    file: &LUA,
    uses: &[&KEPT],
    parameters: &["count", "first_key", "first_arg"],
    keys: 0,
    many: true,
    while_moving: true,
    own_script: false,
    grants: true,
    for_holders: true,
    renews: true,
    twin: renew_many,
};

fn renew_many(keyspace: &mut Keyspace, parts: &Parts) -> Result<Value, Refusal> {
    let count = parts.len() / 2;
    let (locks, mut holds) = (parts.iter().take(count), parts.iter().skip(count));
    let Some(lease) = holds.next() else {
        return Err(Refusal("ERR wrong number of arguments for a step".into()));
    };
    let lease_ms: u64 = number(lease)?;
    let mut renew_alone = Vec::new();
    for (number, (lock, hold)) in (1..).zip(locks.zip(holds)) {
        let mut good = can_be_renewed(keyspace, lock, hold).unwrap_or(false);
        if good && let Ok(left) = u64::try_from(keyspace.pttl(lock)) {
            lengthen(keyspace, lock, lease_ms);
            good = left <= lease_ms + 1000;
        } else {
            good = false;
        }
        if !good {
            renew_alone.push(Value::Int(number));
        }
    }
    Ok(Value::List(renew_alone))
}

step! {
    WHY_LOST: WhyLost = lock.why_lost, grants: false,
    while_moving: true,
    keys: [lock, marker],
    args: [hold],
}

impl WhyLost<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mut fields = keyspace.hgetall(self.lock)?;
        let holder = match fields.pop() {
            Some((holder, _)) if fields.is_empty() => holder,
            _ => Vec::new(),
        };
        let note = forced_note(keyspace, self.marker, self.hold)?;
        Ok(Value::List(vec![Value::Text(holder), note]))
    }
}

step! {
    FORCE_UNLOCK: ForceUnlock = lock.force_unlock, grants: false,
    keys: [lock, marker],
    args: [channel, by],
    uses: [BREAK_HOLD],
}

impl ForceUnlock<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let broken = break_hold(keyspace, self.lock, self.marker, self.by)?;
        if broken {
            keyspace.publish(self.channel, b"0");
        }
        Ok(Value::Int(broken.into()))
    }
}

step! {
    INSPECT: Inspect = lock.inspect, grants: false,
    while_moving: true,
    keys: [lock],
    args: [],
    uses: [HASH_KIND],
}

impl Inspect<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if keyspace.hlen(self.lock)? == 0 {
            return Ok(Value::List(vec![Value::Int(-2)]));
        }
        let (holder, count) = plain(keyspace, self.lock)?;
        Ok(Value::List(vec![
            Value::Int(keyspace.pttl(self.lock)),
            Value::Text(holder),
            Value::Text(count),
        ]))
    }
}

step! {
    // The note does not belong to a holder and does not keep any client out.
    NOTE_LONGEST: NoteLongest = lock.note_longest, grants: false,
    while_moving: true,
    keys: [longest],
    args: [own_ms: u64],
}

impl NoteLongest<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let noted = keyspace
            .get(self.longest)
            .unwrap_or_else(|_| Some(Vec::new()));
        let noted = noted.unwrap_or_else(|| b"0".to_vec());
        let noted_ms = number::<u64>(&noted).ok().filter(|ms| *ms < 1 << 53);
        let (Some(noted_ms), true) = (noted_ms, noted.iter().all(u8::is_ascii_digit)) else {
            return Err(Refusal(format!(
                "WRONGKIND a lock whose note of the longest lease ({}) is not a number of ms",
                String::from_utf8_lossy(self.longest)
            )));
        };
        if self.own_ms > noted_ms {
            keyspace.set(self.longest, self.own_ms.to_string().as_bytes());
        }
        Ok(Value::Int(to_int(self.own_ms.max(noted_ms))))
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 12] = [
    &ACQUIRE,
    &ACQUIRE_AND_ENLIST,
    &DELIST,
    &RELEASE,
    &RELEASE_AND_NOTIFY,
    &RENEW,
    &KEEP_FOR,
    &RENEW_MANY,
    &WHY_LOST,
    &FORCE_UNLOCK,
    &INSPECT,
    &NOTE_LONGEST,
];

/// Returns the field of a plain lock's hold and the value of that field, or an error that says what
/// the key is instead.
pub(crate) fn plain(keyspace: &mut Keyspace, lock: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    hash_kind::check(keyspace, lock, hash_kind::PLAIN)?;
    Ok(keyspace.hgetall(lock)?.pop().unwrap_or_default())
}

/// Ends the current hold, no matter which client has it, and notes in `marker` that `by` ended it:
/// the twin of `break_hold` in `lock.lua`.
pub(in crate::primitives) fn break_hold(
    keyspace: &mut Keyspace,
    lock: &[u8],
    marker: &[u8],
    by: &[u8],
) -> Result<bool, Refusal> {
    if keyspace.hlen(lock)? == 0 {
        return Ok(false);
    }
    let (holder, _) = plain(keyspace, lock)?;
    // Read the TTL before the key is deleted: the marker must live as long as the hold would have.
    // Until then, the holder may ask the server why it lost the lock.
    let ttl = keyspace.pttl(lock);
    keyspace.del(lock);
    // If the hold has no expiry, no marker is set: a marker without an expiry would remain forever.
    if let Ok(ttl @ 1..) = u64::try_from(ttl) {
        // A marker of another type is not changed, because the note is only a courtesy.
        if keyspace.hlen(marker).is_ok_and(|size| size < 64) {
            keyspace.hset(marker, &holder, by)?;
            lengthen(keyspace, marker, ttl);
        }
    }
    Ok(true)
}

/// The operations on one hold of a plain lock.
pub(crate) struct LockHold {
    key: Key,
    channel: Arc<str>,
    /// The id `uuid:n`, which belongs to this hold only.
    id: String,
}

impl LockHold {
    pub(crate) fn new(key: Key, channel: Arc<str>, id: String) -> Self {
        Self { key, channel, id }
    }

    pub(crate) fn lock(&self) -> &[u8] {
        self.key.as_str().as_bytes()
    }
}

impl HoldSteps for LockHold {
    fn acquire(&self, lease: Duration) -> Operation {
        Acquire {
            lock: self.lock(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
        }
        .operation()
    }

    fn acquire_and_enlist(&self, lease: Duration, client: WaitingClient) -> Option<Operation> {
        let (asking, waits) = (self.key.waiting_clients(), client.list_item(1));
        let acquire = AcquireAndEnlist {
            lock: self.lock(),
            asking: asking.as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            client: waits.as_bytes(),
            notified: client.was_notified,
        };
        Some(acquire.operation())
    }

    fn delist(&self, client: WaitingClient) -> Option<Operation> {
        Some(delist(&self.key, client))
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        read_acquire_reply(&reply)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        Renew {
            lock: self.lock(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
        }
        .operation()
    }

    fn keep_for(&self, span: Duration) -> Option<Operation> {
        let keep = KeepFor {
            lock: self.lock(),
            hold: self.id.as_bytes(),
            span_ms: wire_ms(span),
            channel: self.channel.as_bytes(),
        };
        Some(keep.operation())
    }

    fn batch_renewal(&self) -> Option<BatchRenewal<'_>> {
        Some(BatchRenewal {
            step: &RENEW_MANY,
            key: self.lock(),
            hold: self.id.as_bytes(),
        })
    }

    fn release(&self) -> Operation {
        release(&self.key, &self.id, &self.channel)
    }

    fn release_and_notify(&self) -> Option<Operation> {
        let asking = self.key.waiting_clients();
        let release = ReleaseAndNotify {
            lock: self.lock(),
            asking: asking.as_bytes(),
            hold: self.id.as_bytes(),
            channel: self.channel.as_bytes(),
        };
        Some(release.operation())
    }

    fn counted_channel(&self) -> Option<&str> {
        Some(&self.channel)
    }

    fn why_lost(&self) -> Operation {
        WhyLost {
            lock: self.lock(),
            marker: self.key.forced_marker().as_bytes(),
            hold: self.id.as_bytes(),
        }
        .operation()
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        let Value::List(items) = reply else {
            return None;
        };
        match &items[..] {
            // The forced end takes precedence: the next holder has the lock only because of it, and
            // is not the reason for the loss.
            [_, Value::Text(note)] => Some(LossReason::forced(note)),
            // A hash that another program has put there has no holder.
            [Value::Text(holder), _] if hash_kind::is_id(holder) => Some(LossReason::Taken {
                by: String::from_utf8_lossy(holder).into_owned(),
            }),
            _ => None,
        }
    }

    fn wire_id(&self) -> &str {
        &self.id
    }
}

/// Reads the reply to an acquire of a lock, or of a side of a read-write lock.
pub(in crate::primitives) fn read_acquire_reply(reply: &Value) -> Option<AcquireReply> {
    match reply {
        Value::Nil => Some(AcquireReply::Granted { token: None }),
        Value::Int(ttl_ms) => Some(AcquireReply::Busy {
            ttl_ms: *ttl_ms,
            before: None,
        }),
        Value::List(items) => match items[..] {
            [Value::Int(ttl_ms), Value::Int(before)] => Some(AcquireReply::Busy {
                ttl_ms,
                before: u32::try_from(before).ok(),
            }),
            _ => None,
        },
        Value::Text(_) => None,
    }
}

/// Builds the request that removes a client from the list of clients to notify of a release.
pub(in crate::primitives) fn delist(key: &Key, client: WaitingClient) -> Operation {
    Delist {
        asking: key.waiting_clients().as_bytes(),
        client: client.list_item(1).as_bytes(),
    }
    .operation()
}

/// Builds the request that ends the hold with the id `hold`.
pub(crate) fn release(key: &Key, hold: &str, channel: &str) -> Operation {
    Release {
        lock: key.as_str().as_bytes(),
        hold: hold.as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn force_unlock(key: &Key, channel: &str, by: &str) -> Operation {
    ForceUnlock {
        lock: key.as_str().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        channel: channel.as_bytes(),
        by: by.as_bytes(),
    }
    .operation()
}

/// Returns the operation that reads the longest lease ever noted by clients that hold this lock as
/// part of a `RedLock`. It notes `own` if that is longer.
pub(in crate::primitives) fn note_longest(key: &Key, own: Duration) -> Operation {
    NoteLongest {
        longest: key.longest_lease().as_bytes(),
        own_ms: wire_ms(own),
    }
    .operation()
}

pub(crate) fn inspect(key: &Key) -> Operation {
    Inspect {
        lock: key.as_str().as_bytes(),
    }
    .operation()
}
