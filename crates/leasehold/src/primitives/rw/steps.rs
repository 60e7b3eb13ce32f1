//! The steps of the read-write lock, each with its twin on the embedded keyspace. `rw.lua`
//! describes each step.

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Refusal, SharedLua, Step, Value, step};
use crate::primitives::hash_kind::{self, HASH_KIND};
use crate::primitives::twin::{
    ASKING, KEPT, NOW_MS, WAKE_ALL, can_be_renewed, clients_before, forced_note, keep_for_span,
    lengthen, list, notify_first, to_int, wake_all,
};

static LUA: LuaFile = LuaFile::new(include_str!("rw.lua"));

static RESERVATIONS: SharedLua = SharedLua::new(&LUA, "reservations", &[&NOW_MS]);
pub(crate) static REMAINING: SharedLua = SharedLua::new(&LUA, "remaining", &[]);
static TRIM_EXPIRY: SharedLua = SharedLua::new(&LUA, "trim_expiry", &[&REMAINING]);
/// The script includes `trim_expiry`, which a step runs if all holds that it has read have ended.
static LONGEST_OF_SOME: SharedLua = SharedLua::new(&LUA, "longest_of_some", &[&TRIM_EXPIRY]);

step! {
    ACQUIRE_READ: AcquireRead = rw.acquire_read, grants: true,
    while_moving: true,
    keys: [lock, timeout, writers, readers],
    args: [hold, inside, lease_ms: u64, yields: u64, waiter, reserve_ms: u64],
    uses: [HASH_KIND, RESERVATIONS],
}

impl AcquireRead<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mode = mode(keyspace, self.lock)?;
        // Both field and key must exist: a field whose own key has expired is not a hold, so the
        // hold is granted again.
        if mode.is_some()
            && keyspace.hexists(self.lock, self.hold)?
            && keyspace.exists(self.timeout)
        {
            return Ok(Value::Nil);
        }
        if mode == Some(Mode::Write) {
            if self.inside.is_empty() || !keyspace.hexists(self.lock, self.inside)? {
                reserve(keyspace, self.readers, self.waiter, self.reserve_ms);
                return Ok(Value::Int(keyspace.pttl(self.lock)));
            }
        } else if self.reserve_ms > 0 && keyspace.zrem(self.readers, self.waiter).unwrap_or(false) {
            // This reader has a reservation, so it enters before the next writer.
        } else if self.yields > 0
            && let Some(rest @ 1..) = reserved_for(keyspace, self.writers)
        {
            if mode.is_some() || self.reserve_ms == 0 {
                return Ok(Value::Int(rest));
            }
            if self.yields == 2 {
                reserve(keyspace, self.readers, self.waiter, self.reserve_ms);
            }
            return Ok(Value::Int(rest.min(50)));
        }
        keyspace.set(self.timeout, b"1");
        keyspace.pexpire(self.timeout, self.lease_ms);
        keyspace.hset(self.lock, b"mode", mode.unwrap_or(Mode::Read).name())?;
        keyspace.hset(self.lock, self.hold, b"1")?;
        // If another program has removed the lock's expiry, the lock remains without one:
        // `lengthen` would set an expiry and cut the holds that last longer than this one.
        if mode.is_none() || keyspace.pttl(self.lock) >= 0 {
            lengthen(keyspace, self.lock, self.lease_ms);
        }
        Ok(Value::Nil)
    }
}

step! {
    ACQUIRE_WRITE: AcquireWrite = rw.acquire_write, grants: true,
    keys: [lock, writers, readers, asking],
    args: [hold, lease_ms: u64, waiter, reserve_ms: u64, client, notified: bool],
    uses: [HASH_KIND, LONGEST_OF_SOME, RESERVATIONS, ASKING],
}

impl AcquireWrite<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mut mode = mode(keyspace, self.lock)?;
        let mut wait = keyspace.pttl(self.lock);
        // With more than 64 fields, a release rarely lowers the expiry of the lock, so the expiry
        // may belong to a reader that has released it. If the other readers are dead, this writer
        // would wait although there is no live hold.
        if mode == Some(Mode::Read) && wait > 0 && keyspace.hlen(self.lock)? > 64 {
            wait = longest_of_some(keyspace, self.lock)?;
            if wait == 0 {
                mode = mode.filter(|_| matches!(trim_expiry(keyspace, self.lock), Ok(false)));
                wait = keyspace.pttl(self.lock);
            }
        }
        let client = Some(self.client).filter(|client| !client.is_empty());
        let reserved = reserved_for(keyspace, self.readers).unwrap_or(0);
        if mode.is_none() && reserved > 0 {
            wait = reserved;
        } else if mode.is_none() {
            keyspace.hset(self.lock, b"mode", b"write")?;
            keyspace.hset(self.lock, self.hold, b"1")?;
            keyspace.pexpire(self.lock, self.lease_ms);
            if self.reserve_ms > 0 {
                // A key of another type is not changed, because the reservation is only a courtesy.
                let _ = keyspace.zrem(self.writers, self.waiter);
            }
            if let Some(client) = client {
                let _ = keyspace.lrem(self.asking, client);
            }
            return Ok(Value::Nil);
        }
        if keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Nil);
        }
        reserve(keyspace, self.writers, self.waiter, self.reserve_ms);
        let before = client.map_or(-1, |client| {
            clients_before(keyspace, self.asking, client, self.notified)
        });
        Ok(list(&[wait, before]))
    }
}

step! {
    WITHDRAW: Withdraw = rw.withdraw, grants: false,
    keys: [reservations],
    args: [waiter, channel],
    uses: [WAKE_ALL],
}

impl Withdraw<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let gone = keyspace.zrem(self.reservations, self.waiter)?;
        if gone && !keyspace.exists(self.reservations) {
            wake_all(keyspace, self.channel);
        }
        Ok(Value::Int(gone.into()))
    }
}

step! {
    RELEASE_READ: ReleaseRead = rw.release_read, grants: false,
    keys: [lock, timeout, asking],
    args: [hold, channel],
    uses: [LONGEST_OF_SOME, ASKING],
}

impl ReleaseRead<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let existed = keyspace.hdel(self.lock, self.hold)?;
        // Delete the key even if the field no longer exists, for example after a forced unlock:
        // otherwise the key would remain until its lease ends.
        let held = keyspace.del(self.timeout);
        if !existed {
            return Ok(Value::Int(0));
        }
        let writes = keyspace.hget(self.lock, b"mode")?.as_deref() == Some(b"write");
        let fields = keyspace.hlen(self.lock)?;
        // Put off the check of all readers, because otherwise each of many readers that release at
        // the same time would check all the others. The lock then expires later than necessary,
        // which does no harm while one of the readers is alive.
        let put_off = fields > 64
            && !sweeps_all(keyspace, self.hold, fields)
            && longest_of_some(keyspace, self.lock)? > 0;
        // If a write hold exists beside the read holds, the lock keeps the expiry of the write
        // hold. Even in this case, Redisson sets it to the expiry of the longest read hold, and so
        // cuts the writer's lease.
        if fields == 1 || !(writes || put_off) {
            let is_free = trim_expiry(keyspace, self.lock)?;
            if is_free {
                keyspace.publish(self.channel, b"0");
                if keyspace.listeners(self.channel) > 0 {
                    notify_first(keyspace, self.asking, self.channel);
                }
            }
        }
        Ok(Value::Int(held.into()))
    }
}

step! {
    RELEASE_WRITE: ReleaseWrite = rw.release_write, grants: false,
    keys: [lock, asking],
    args: [hold, channel],
    uses: [TRIM_EXPIRY, WAKE_ALL, ASKING],
}

impl ReleaseWrite<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hdel(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        if keyspace.hlen(self.lock)? > 1 {
            keyspace.hset(self.lock, b"mode", b"read")?;
        }
        let is_free = trim_expiry(keyspace, self.lock)?;
        // Wake the waiters even if read holds of the owner remain, because other readers may now
        // enter beside them. Redisson publishes nothing in this case, and its own readers wait for
        // the expiry.
        let receivers = wake_all(keyspace, self.channel);
        if is_free && receivers > 0 {
            notify_first(keyspace, self.asking, self.channel);
        }
        Ok(Value::Int(1 + receivers))
    }
}

step! {
    RENEW_READ: RenewRead = rw.renew_read, grants: true,
    for_holders: true,
    renews: true,
    while_moving: true,
    keys: [lock, timeout],
    args: [hold, lease_ms: u64, most_ms: u64],
}

impl RenewRead<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mut ttl = keyspace.pttl(self.timeout);
        // Without its own key the hold has ended, also for Redisson, although its field remains for
        // as long as other clients read.
        if ttl == -2 || !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let (lease_ms, most_ms) = (to_int(self.lease_ms), to_int(self.most_ms));
        if ttl < lease_ms || (most_ms > 0 && ttl > most_ms) {
            keyspace.pexpire(self.timeout, lease_ms.unsigned_abs());
            ttl = lease_ms;
        }
        let lock_ttl = keyspace.pttl(self.lock);
        // The two fields are `mode` and this hold. With other holds, the expiry of the lock is not
        // shortened. (Redisson's readers set it to their own timeout, and cut every longer hold.)
        let alone = keyspace.hlen(self.lock)? == 2;
        let too_long = lock_ttl == -1 || (most_ms > 0 && lock_ttl > most_ms);
        if (lock_ttl >= 0 && lock_ttl < ttl) || (alone && too_long) {
            keyspace.pexpire(self.lock, ttl.unsigned_abs());
        }
        Ok(Value::Int(ttl))
    }
}

step! {
    RENEW_WRITE: RenewWrite = rw.renew_write, grants: true,
    for_holders: true,
    renews: true,
    while_moving: true,
    keys: [lock],
    args: [hold, lease_ms: u64, most_ms: u64],
    uses: [KEPT],
}

impl RenewWrite<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !can_be_renewed(keyspace, self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let (lease_ms, most_ms) = (to_int(self.lease_ms), to_int(self.most_ms));
        let ttl = keyspace.pttl(self.lock);
        // The two fields are `mode` and this hold. With more fields, the owner has a read hold
        // inside the write hold, which may last longer.
        let too_long = most_ms > 0 && ttl > most_ms && keyspace.hlen(self.lock)? == 2;
        if ttl < lease_ms || too_long {
            keyspace.pexpire(self.lock, lease_ms.unsigned_abs());
        }
        Ok(Value::Int(keyspace.pttl(self.lock)))
    }
}

step! {
    KEEP_WRITE: KeepWrite = rw.keep_write, grants: true,
    for_holders: true,
    keys: [lock],
    args: [hold, span_ms: u64, channel],
    uses: [KEPT, TRIM_EXPIRY, WAKE_ALL],
}

impl KeepWrite<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        // The field of a read hold that has ended may still exist, but does not keep any client
        // out.
        let holds = read_holds(keyspace, self.lock)?;
        let reads = |(field, left): &(Vec<u8>, i64)| field != self.hold && *left >= 0;
        if holds.iter().any(reads) {
            keyspace.hdel(self.lock, self.hold)?;
            keyspace.hset(self.lock, b"mode", b"read")?;
            trim_expiry(keyspace, self.lock)?;
            wake_all(keyspace, self.channel);
            return Ok(Value::Int(-1));
        }
        if keep_for_span(self.span_ms, keyspace, self.lock, self.hold)? {
            wake_all(keyspace, self.channel);
        }
        Ok(Value::Int(1))
    }
}

step! {
    DOWNGRADE: Downgrade = rw.downgrade, grants: true,
    for_holders: true,
    keys: [lock, timeout],
    args: [hold, read, lease_ms: u64, channel],
    uses: [TRIM_EXPIRY, WAKE_ALL],
}

impl Downgrade<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            // This is a copy of a request that has already downgraded the hold. The caller must not
            // get the answer that its lock was lost.
            let done = keyspace.hexists(self.lock, self.read)? && keyspace.exists(self.timeout);
            return Ok(Value::Int(done.into()));
        }
        lengthen(keyspace, self.lock, self.lease_ms);
        keyspace.set(self.timeout, b"1");
        keyspace.pexpire(self.timeout, self.lease_ms);
        keyspace.hset(self.lock, b"mode", b"read")?;
        keyspace.hset(self.lock, self.read, b"1")?;
        keyspace.hdel(self.lock, self.hold)?;
        trim_expiry(keyspace, self.lock)?;
        wake_all(keyspace, self.channel);
        Ok(Value::Int(1))
    }
}

step! {
    UPGRADE: Upgrade = rw.upgrade, grants: true,
    keys: [lock],
    args: [hold, read, lease_ms: u64],
    uses: [HASH_KIND, REMAINING],
}

impl Upgrade<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mode = mode(keyspace, self.lock)?;
        if mode == Some(Mode::Write) && keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Nil);
        }
        let alive = read_holds(keyspace, self.lock)?
            .into_iter()
            .filter(|(_, left)| *left >= 0)
            .map(|(field, _)| field);
        // This read hold must be the only live one. Dead readers do not count, and a caller whose
        // own read hold has ended has nothing to upgrade.
        if mode != Some(Mode::Read) || !alive.eq([self.read]) {
            let ttl = keyspace.pttl(self.lock);
            // If the lock no longer exists, the reply is 0: a negative number would mean a lock
            // without expiry.
            return Ok(Value::Int(if ttl == -2 { 0 } else { ttl }));
        }
        for (field, _) in keyspace.hgetall(self.lock)? {
            if field != b"mode" && field != self.read {
                keyspace.hdel(self.lock, &field)?;
            }
        }
        lengthen(keyspace, self.lock, self.lease_ms);
        keyspace.hset(self.lock, b"mode", b"write")?;
        keyspace.hset(self.lock, self.hold, b"1")?;
        Ok(Value::Nil)
    }
}

step! {
    WHY_LOST: WhyLost = rw.why_lost, grants: false,
    while_moving: true,
    keys: [lock, marker],
    args: [hold],
}

impl WhyLost<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mut holder = Vec::new();
        if keyspace.hget(self.lock, b"mode")?.as_deref() == Some(b"write")
            && keyspace.hlen(self.lock)? < 64
        {
            let mut fields = keyspace.hgetall(self.lock)?.into_iter();
            if let Some((writer, _)) =
                fields.rfind(|(field, _)| writes(field) && field != self.hold)
            {
                holder = writer;
            }
        }
        let note = forced_note(keyspace, self.marker, self.hold)?;
        Ok(Value::List(vec![Value::Text(holder), note]))
    }
}

step! {
    FORCE_UNLOCK: ForceUnlock = rw.force_unlock, grants: false,
    keys: [lock, marker],
    args: [side, channel, by],
    uses: [HASH_KIND, WAKE_ALL],
}

impl ForceUnlock<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if mode(keyspace, self.lock)?.is_none_or(|mode| mode.name() != self.side) {
            return Ok(Value::Int(0));
        }
        let holders = keyspace.hgetall(self.lock)?;
        let ttl = keyspace.pttl(self.lock);
        keyspace.del(self.lock);
        if let (Ok(ttl @ 1..), Ok(size)) = (u64::try_from(ttl), keyspace.hlen(self.marker)) {
            let room = 4096_usize.saturating_sub(size);
            for (holder, _) in holders.iter().take(room) {
                if holder != b"mode" {
                    keyspace.hset(self.marker, holder, self.by)?;
                }
            }
            if room > 0 {
                lengthen(keyspace, self.marker, ttl);
            }
        }
        if self.side == b"write" {
            wake_all(keyspace, self.channel);
        } else {
            keyspace.publish(self.channel, b"0");
        }
        Ok(Value::Int(1))
    }
}

step! {
    INSPECT: Inspect = rw.inspect, grants: false,
    keys: [lock],
    args: [side],
    uses: [HASH_KIND, REMAINING],
}

impl Inspect<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let mode = mode(keyspace, self.lock)?;
        let mut reply = vec![Value::Int(keyspace.pttl(self.lock))];
        // A lock in write mode is read for both sides, because a writer may also have read holds
        // inside its write hold.
        if mode.is_some_and(|mode| mode == Mode::Write || mode.name() == self.side) {
            for (field, count) in keyspace.hgetall(self.lock)? {
                let Some(holds) = hold_count(&field, &count) else {
                    continue;
                };
                let shown = match (writes(&field), self.side) {
                    (true, b"write") => true,
                    (false, b"read") => remaining_ms(keyspace, self.lock, &field, holds) >= 0,
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
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 13] = [
    &ACQUIRE_READ,
    &ACQUIRE_WRITE,
    &RELEASE_READ,
    &RELEASE_WRITE,
    &RENEW_READ,
    &RENEW_WRITE,
    &KEEP_WRITE,
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

/// Returns the mode of a lock, `None` when it is free, or an error that says what the key is
/// instead.
fn mode(keyspace: &mut Keyspace, lock: &[u8]) -> Result<Option<Mode>, Refusal> {
    hash_kind::check(keyspace, lock, hash_kind::READ_WRITE)?;
    Ok(match keyspace.hget(lock, b"mode")?.as_deref() {
        Some(b"read") => Some(Mode::Read),
        Some(_) => Some(Mode::Write),
        None => None,
    })
}

fn writes(field: &[u8]) -> bool {
    // `:write` need not be at the end: inside a transaction, Redisson appends the id of the
    // transaction.
    field.windows(6).any(|part| part == b":write")
}

/// Returns Redisson's count for the hold in this field; `None` if the field is not a hold.
fn hold_count(field: &[u8], value: &[u8]) -> Option<u64> {
    let count = std::str::from_utf8(value).ok()?.parse().ok()?;
    (field != b"mode").then_some(count)
}

/// Returns the field of each hold, with the remaining time that it has as a read hold.
fn read_holds(keyspace: &mut Keyspace, lock: &[u8]) -> Result<Vec<(Vec<u8>, i64)>, Refusal> {
    let mut holds = Vec::new();
    for (field, value) in keyspace.hgetall(lock)? {
        if let Some(count) = hold_count(&field, &value) {
            let left = remaining_ms(keyspace, lock, &field, count);
            holds.push((field, left));
        }
    }
    Ok(holds)
}

/// The twin of `remaining_ms` in `rw.lua`.
pub(crate) fn remaining_ms(keyspace: &mut Keyspace, lock: &[u8], field: &[u8], count: u64) -> i64 {
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

/// The twin of `trim_expiry` in `rw.lua`.
fn trim_expiry(keyspace: &mut Keyspace, lock: &[u8]) -> Result<bool, Refusal> {
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

/// Returns whether this release checks all read holds. About 64 of every `fields` releases do so.
fn sweeps_all(keyspace: &Keyspace, hold: &[u8], fields: usize) -> bool {
    let number = hold.rsplit(|letter| !letter.is_ascii_digit()).next();
    let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    // The script uses the microseconds of the server's time. So it selects different releases from
    // this twin, but about the same number of them.
    let sample = keyspace.now_ms().wrapping_add(number.unwrap_or(0));
    sample % fields as u64 <= 63
}

/// The twin of `longest_of_some` in `rw.lua`. It reads all holds, because that is cheap here.
fn longest_of_some(keyspace: &mut Keyspace, lock: &[u8]) -> Result<i64, Refusal> {
    let holds = read_holds(keyspace, lock)?;
    Ok(holds
        .iter()
        .map(|(_, left)| *left)
        .max()
        .unwrap_or(0)
        .max(0))
}

/// Makes or extends the reservation of a waiter: the twin of `reserve` in `rw.lua`. A key
/// of another type is not changed, because the reservation is only a courtesy.
fn reserve(keyspace: &mut Keyspace, reservations: &[u8], waiter: &[u8], reserve_ms: u64) {
    if reserve_ms == 0 {
        return;
    }
    let now = to_int(keyspace.now_ms());
    let Ok(dead) = keyspace.zrange_by_score(reservations, now, usize::MAX) else {
        return;
    };
    for dead in dead {
        let _ = keyspace.zrem(reservations, &dead);
    }
    if keyspace
        .zadd(reservations, waiter, now + to_int(reserve_ms))
        .is_ok()
    {
        keyspace.pexpire(reservations, reserve_ms);
    }
}

/// Returns for how many ms the reservations keep other clients out: the twin of `reserved_for` in
/// `rw.lua`.
fn reserved_for(keyspace: &mut Keyspace, reservations: &[u8]) -> Option<i64> {
    let reservations = keyspace.zrange(reservations).ok()?;
    let (_, until) = reservations.last()?;
    Some(until - to_int(keyspace.now_ms()))
}
