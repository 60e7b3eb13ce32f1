//! The steps of turns: how each is sent, and its twin on the embedded keyspace. The Lua file beside
//! this file describes each step.

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Refusal, SharedLua, Step, Value, step};
use crate::primitives::hash_kind::HASH_KIND;
use crate::primitives::lock::steps::{GRANT, plain};
use crate::primitives::twin::{NOW_MS, to_int};

static LUA: LuaFile = LuaFile::new(include_str!("slot.lua"));

static TURNS: SharedLua = SharedLua::new(&LUA, "turns", &[&NOW_MS]);

step! {
    BEGIN: Begin = slot.begin, grants: true,
    keys: [lock, newest, record],
    args: [hold, lease_ms: u64, period_ms: u64, offset_ms: u64, requested_ms: u64, id, repeats: u64, most_once: bool, by, keep_ms: u64],
    uses: [HASH_KIND, GRANT, TURNS],
}

impl Begin<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let held = keyspace.hlen(self.lock)? > 0;
        let seen = seen_in(keyspace, self.record)?;
        if held && keyspace.hexists(self.lock, self.hold)? {
            let number = |at: usize| to_int(whole(seen[at].as_deref()).unwrap_or(0));
            return Ok(granted(
                number(SLOT),
                number(MISSED),
                number(BEGAN),
                Vec::new(),
            ));
        }
        if held {
            plain(keyspace, self.lock)?;
        }
        let past = past_of(keyspace, self.record, seen[HOLD].as_deref())?;
        if past
            .split(|byte| *byte == b' ')
            .any(|hold| hold == self.hold)
        {
            // This is a late copy of a request that was granted: the turn of this hold has ended.
            return refusal(keyspace, 2, self.lock, seen);
        }
        let replans = self.replans(keyspace)?;
        let slot = whole(seen[SLOT].as_deref()).filter(|_| !replans);
        let mine = self.slot(slot, keyspace.now_ms());
        let is_closed = self.is_closed(slot, mine, seen[STATE].as_deref(), held);
        if is_closed || held {
            if is_closed {
                return refusal(keyspace, 3, self.lock, seen);
            }
            let holder = holder_of(keyspace, self.lock)?;
            let other = turn_of(keyspace, self.newest, &holder)?;
            return refusal(keyspace, 2, self.lock, other.unwrap_or(seen));
        }
        let before = whole(seen[MISSED].as_deref()).unwrap_or(0);
        let missed = match slot {
            Some(slot) if slot == mine => before,
            // It was recorded while the clock was ahead.
            Some(slot) if slot > mine => 0,
            // No client has begun that turn, nor the ones before it.
            Some(slot) if seen[STATE].as_deref() == Some(b"open") => mine - slot + before,
            Some(slot) => mine - slot - 1,
            None => 0,
        };
        let last = match self.newest == self.record {
            true => seen.clone(),
            false => seen_in(keyspace, self.newest)?,
        };
        keyspace.hset(self.lock, self.hold, b"1")?;
        keyspace.pexpire(self.lock, self.lease_ms);
        let is_same = whole(seen[SLOT].as_deref()) == Some(mine)
            && seen[ID].as_deref().unwrap_or_default() == self.id
            && !replans;
        let repeating = is_same || self.repeats == ANY;
        let facts = [&seen, &last];
        for (key, before) in keys(self.newest, self.record).zip(facts) {
            let past = past_of(keyspace, key, before[HOLD].as_deref())?;
            let is_running = before[STATE].as_deref() == Some(b"running");
            let is_nested = repeating && is_running && keyspace.hget(key, b"was_state")?.is_some();
            if !is_nested {
                forget_was(keyspace, key)?;
            }
            let is_kept = match before[STATE].as_deref() {
                Some(b"open") => replans,
                state => state.is_some(),
            };
            if repeating && is_kept && !is_nested {
                keep_was(keyspace, key, before)?;
            }
            self.write(keyspace, key, (mine, missed), &newest_four(past))?;
        }
        let now = to_int(keyspace.now_ms());
        let has_died = last[STATE].as_deref() == Some(b"running") && !replans;
        let died = if has_died { last } else { Vec::new() };
        Ok(granted(to_int(mine), to_int(missed), now, died))
    }

    /// Returns the slot that this request is for, if the last turn had the slot `last`.
    fn slot(&self, last: Option<u64>, now_ms: u64) -> u64 {
        let requested = self.requested_ms;
        if self.repeats != ANY {
            return nearest_slot(requested, self.period_ms, self.offset_ms);
        }
        // A job that runs again does not take the next slot, unless a turn has taken that slot, and
        // the slot has begun or begins soon. A later slot was recorded by mistake or while the clock
        // was ahead.
        let begun = slot_at(requested, self.period_ms, self.offset_ms);
        let latest = requested.max(now_ms) + self.period_ms / 4;
        let soon = slot_at(latest, self.period_ms, self.offset_ms);
        last.filter(|last| (begun..=soon).contains(last))
            .unwrap_or(begun)
    }

    /// Returns whether the name had different slots until now. Fails if the slots must not change.
    fn replans(&self, keyspace: &mut Keyspace) -> Result<bool, Refusal> {
        let period = keyspace.hget(self.newest, b"period_ms")?;
        let offset = keyspace.hget(self.newest, b"offset_ms")?;
        let Some(period) = period else {
            return Ok(false);
        };
        let is_same = period == self.period_ms.to_string().as_bytes()
            && offset.as_deref() == Some(self.offset_ms.to_string().as_bytes());
        if is_same || self.repeats == ANY {
            return Ok(!is_same);
        }
        Err(Refusal(format!(
            "WRONGKIND a lock with slots of {} ms and an offset of {} ms",
            String::from_utf8_lossy(&period),
            String::from_utf8_lossy(offset.as_deref().unwrap_or(b"0"))
        )))
    }

    fn is_closed(&self, slot: Option<u64>, mine: u64, state: Option<&[u8]>, held: bool) -> bool {
        let Some(slot) = slot else { return false };
        if self.repeats == ANY {
            return false;
        }
        if slot != mine {
            // Slot numbers only rise: setting the clock back does not open an earlier slot.
            return slot > mine;
        }
        match state {
            Some(b"done") => true,
            Some(b"failed") => self.repeats != FAILED,
            Some(b"running") => !held && self.most_once,
            _ => false,
        }
    }

    fn write(
        &self,
        keyspace: &mut Keyspace,
        key: &[u8],
        (mine, missed): (u64, u64),
        past: &[u8],
    ) -> Result<(), Refusal> {
        let text = |number: u64| number.to_string().into_bytes();
        let fields: [(&str, &[u8]); 10] = [
            ("slot", &text(mine)),
            ("state", b"running"),
            ("hold", self.hold),
            ("by", self.by),
            ("at_ms", &text(keyspace.now_ms())),
            ("missed", &text(missed)),
            ("period_ms", &text(self.period_ms)),
            ("offset_ms", &text(self.offset_ms)),
            ("id", self.id),
            ("past", past),
        ];
        for (field, value) in fields {
            keyspace.hset(key, field.as_bytes(), value)?;
        }
        keyspace.hdel(key, b"ended_ms")?;
        keyspace.hdel(key, b"rc")?;
        keyspace.pexpire(key, self.keep_ms);
        Ok(())
    }
}

/// Returns the end that `finish` or `mark` records, and the facts of its turn.
macro_rules! end_of {
    ($step:expr) => {
        (
            End {
                newest: $step.newest,
                record: $step.record,
                hold: $step.hold,
                state: $step.state,
                rc: $step.rc,
                keep_ms: $step.keep_ms,
            },
            Restored {
                slot: $step.slot,
                plan: ($step.period_ms, $step.offset_ms),
                id: $step.id,
                by: $step.by,
                began_ms: $step.began_ms,
            },
        )
    };
}

step! {
    // Like a release, this step runs even if it arrives late.
    FINISH: Finish = slot.finish, grants: false,
    keys: [lock, newest, record],
    args: [hold, channel, state, rc, keep_ms: u64, slot: u64, period_ms: u64, offset_ms: u64, id, by, began_ms: u64],
    uses: [TURNS],
}

impl Finish<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let (end, turn) = end_of!(self);
        if keyspace.hdel(self.lock, self.hold)? {
            end.restore(keyspace, &turn)?;
            end.note(keyspace)?;
            let listeners = keyspace.listeners(self.channel);
            keyspace.publish(self.channel, b"0");
            return Ok(Value::Int(1 + listeners));
        }
        let hold = keyspace.hget(self.record, b"hold").unwrap_or_default();
        let state = keyspace.hget(self.record, b"state").unwrap_or_default();
        let was = state.filter(|_| hold.as_deref() == Some(self.hold));
        if was.as_deref() == Some(b"running") {
            let was_lost = self.state == b"done";
            let state = if was_lost { b"failed" } else { self.state };
            End { state, ..end }.note(keyspace)?;
        }
        Ok(Value::Int((was.as_deref() == Some(b"done")).into()))
    }
}

step! {
    MARK: Mark = slot.mark, grants: false,
    keys: [lock, newest, record],
    args: [hold, state, rc, keep_ms: u64, slot: u64, period_ms: u64, offset_ms: u64, id, by, began_ms: u64],
    uses: [TURNS],
}

impl Mark<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let (end, turn) = end_of!(self);
        end.restore(keyspace, &turn)?;
        end.note(keyspace)?;
        Ok(Value::Int(1))
    }
}

step! {
    LOOK: Look = slot.look, grants: false,
    keys: [lock, newest, record],
    args: [],
    uses: [TURNS],
}

impl Look<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let seen = seen_in(keyspace, self.record)?;
        let holder = holder_of(keyspace, self.lock)?;
        let other = match seen[SLOT] {
            Some(_) => None,
            None => turn_of(keyspace, self.newest, &holder)?,
        };
        refusal(keyspace, 0, self.lock, other.unwrap_or(seen))
    }
}

pub(crate) static ALL: [&Step; 4] = [&BEGIN, &FINISH, &MARK, &LOOK];

/// The fields of a record that replies contain, in this order.
const FIELDS: [&str; 11] = [
    "slot",
    "state",
    "hold",
    "by",
    "at_ms",
    "ended_ms",
    "rc",
    "missed",
    "id",
    "period_ms",
    "offset_ms",
];
/// The stored facts about a turn, in the order of `FIELDS`.
type Record = Vec<Option<Vec<u8>>>;

const SLOT: usize = 0;
const STATE: usize = 1;
const HOLD: usize = 2;
const BEGAN: usize = 4;
const MISSED: usize = 7;
const ID: usize = 8;

/// The values of `repeats`: failed turns may run again in their slot, or any turn that is not
/// running may.
pub(super) const FAILED: u64 = 1;
pub(super) const ANY: u64 = 2;

/// The records that a turn writes.
fn keys<'a>(newest: &'a [u8], record: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let second = (newest != record).then_some(newest);
    std::iter::once(record).chain(second)
}

fn seen_in(keyspace: &mut Keyspace, record: &[u8]) -> Result<Record, Refusal> {
    let fields = FIELDS.iter();
    fields
        .map(|field| keyspace.hget(record, field.as_bytes()))
        .collect()
}

/// The twin of `turn_of` in `slot.lua`.
fn turn_of(keyspace: &mut Keyspace, newest: &[u8], hold: &[u8]) -> Result<Option<Record>, Refusal> {
    if hold.is_empty() || keyspace.hget(newest, b"hold")?.as_deref() != Some(hold) {
        return Ok(None);
    }
    seen_in(keyspace, newest).map(Some)
}

/// The twin of `whole` in `slot.lua`.
fn whole(text: Option<&[u8]>) -> Option<u64> {
    let text = text?;
    let is_whole = (1..16).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_whole
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())
        .flatten()
}

/// The twin of `slot_at` in `slot.lua`.
fn slot_at(ms: u64, period_ms: u64, offset_ms: u64) -> u64 {
    ms.saturating_sub(offset_ms)
        .checked_div(period_ms)
        .unwrap_or(0)
}

/// The twin of `nearest_slot` in `slot.lua`.
pub(super) fn nearest_slot(ms: u64, period_ms: u64, offset_ms: u64) -> u64 {
    slot_at(ms + period_ms / 2, period_ms, offset_ms)
}

fn granted(slot: i64, missed: i64, began_ms: i64, died: Record) -> Value {
    let mut items = [1, slot, missed, began_ms].map(Value::Int).to_vec();
    items.extend(died.into_iter().map(text));
    Value::List(items)
}

fn text(field: Option<Vec<u8>>) -> Value {
    field.map_or(Value::Nil, Value::Text)
}

/// The twin of `holder_of` in `slot.lua`.
fn holder_of(keyspace: &mut Keyspace, lock: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut fields = keyspace.hgetall(lock)?;
    Ok(match fields.pop() {
        Some((holder, _)) if fields.is_empty() => holder,
        _ => Vec::new(),
    })
}

/// Returns a reply that grants nothing.
fn refusal(
    keyspace: &mut Keyspace,
    code: i64,
    lock: &[u8],
    seen: Record,
) -> Result<Value, Refusal> {
    let mut items = vec![
        Value::Int(code),
        Value::Int(to_int(keyspace.now_ms())),
        Value::Int(keyspace.pttl(lock)),
        Value::Text(holder_of(keyspace, lock)?),
    ];
    items.extend(seen.into_iter().map(text));
    Ok(Value::List(items))
}

/// The name of the field in which a turn that repeats another one keeps this field of that turn.
fn was_field(field: &str) -> String {
    format!("was_{field}")
}

fn forget_was(keyspace: &mut Keyspace, key: &[u8]) -> Result<(), Refusal> {
    for field in FIELDS {
        keyspace.hdel(key, was_field(field).as_bytes())?;
    }
    keyspace.hdel(key, b"was_ttl_ms")?;
    Ok(())
}

/// Keeps the record of a turn that is about to be repeated.
fn keep_was(keyspace: &mut Keyspace, key: &[u8], before: &Record) -> Result<(), Refusal> {
    let ttl_ms = keyspace.pttl(key).to_string();
    keyspace.hset(key, b"was_ttl_ms", ttl_ms.as_bytes())?;
    for (field, value) in FIELDS.iter().zip(before) {
        if let Some(value) = value {
            keyspace.hset(key, was_field(field).as_bytes(), value)?;
        }
    }
    Ok(())
}

/// The twin of `past_of` in `slot.lua`.
fn past_of(
    keyspace: &mut Keyspace,
    record: &[u8],
    hold: Option<&[u8]>,
) -> Result<Vec<u8>, Refusal> {
    let past = keyspace.hget(record, b"past")?.unwrap_or_default();
    Ok(match hold {
        Some(hold) if past.is_empty() => hold.to_vec(),
        Some(hold) => [hold, &past].join(&b' '),
        None => past,
    })
}

/// Returns the first four holds of this list.
fn newest_four(mut past: Vec<u8>) -> Vec<u8> {
    let mut spaces = past.iter().enumerate().filter(|(_, byte)| **byte == b' ');
    if let Some((end, _)) = spaces.nth(3) {
        past.truncate(end);
    }
    past
}

/// The end of a turn: the twin of `record_end` in `slot.lua`.
#[derive(Clone, Copy)]
struct End<'a> {
    newest: &'a [u8],
    record: &'a [u8],
    hold: &'a [u8],
    state: &'a [u8],
    rc: &'a [u8],
    keep_ms: u64,
}

/// The facts of a turn, for a record that was lost during the job.
struct Restored<'a> {
    slot: u64,
    plan: (u64, u64),
    id: &'a [u8],
    by: &'a [u8],
    began_ms: u64,
}

impl End<'_> {
    /// Writes the records of a turn again, if they were lost or have expired during the job.
    fn restore(&self, keyspace: &mut Keyspace, turn: &Restored<'_>) -> Result<(), Refusal> {
        let text = |number: u64| number.to_string().into_bytes();
        let (period_ms, offset_ms) = turn.plan;
        let fields: [(&[u8], &[u8]); 8] = [
            (b"slot", &text(turn.slot)),
            (b"state", b"running"),
            (b"hold", self.hold),
            (b"by", turn.by),
            (b"at_ms", &text(turn.began_ms)),
            (b"period_ms", &text(period_ms)),
            (b"offset_ms", &text(offset_ms)),
            (b"id", turn.id),
        ];
        for key in keys(self.newest, self.record) {
            if keyspace.hlen(key) != Ok(0) {
                continue;
            }
            for (field, value) in fields {
                keyspace.hset(key, field, value)?;
            }
        }
        Ok(())
    }

    /// Records the end, if the records are about this turn. A turn that no client began leaves the
    /// record of the turn that it repeats.
    fn note(&self, keyspace: &mut Keyspace) -> Result<(), Refusal> {
        let now = keyspace.now_ms().to_string();
        for key in keys(self.newest, self.record) {
            if keyspace.hget(key, b"hold").unwrap_or_default().as_deref() != Some(self.hold) {
                continue;
            }
            let mut keep_ms = self.keep_ms;
            if self.state == b"open" && keyspace.hget(key, b"was_state")?.is_some() {
                let ttl_ms = keyspace.hget(key, b"was_ttl_ms")?;
                keep_ms = whole(ttl_ms.as_deref()).unwrap_or(keep_ms);
                self.put_back(keyspace, key)?;
            } else {
                keyspace.hset(key, b"state", self.state)?;
                keyspace.hset(key, b"ended_ms", now.as_bytes())?;
                keyspace.hset(key, b"rc", self.rc)?;
            }
            forget_was(keyspace, key)?;
            keyspace.pexpire(key, keep_ms);
        }
        Ok(())
    }

    /// Puts back the record that the turn has replaced.
    fn put_back(&self, keyspace: &mut Keyspace, key: &[u8]) -> Result<(), Refusal> {
        let past = keyspace.hget(key, b"past")?.unwrap_or_default();
        // The first hold of the list is the one that is put back.
        let rest = past.iter().position(|byte| *byte == b' ');
        let rest = rest.map_or(&[][..], |first| &past[first + 1..]);
        let list = match rest {
            [] => self.hold.to_vec(),
            rest => [self.hold, rest].join(&b' '),
        };
        keyspace.hset(key, b"past", &list)?;
        for field in FIELDS {
            keyspace.hdel(key, field.as_bytes())?;
            if let Some(value) = keyspace.hget(key, was_field(field).as_bytes())? {
                keyspace.hset(key, field.as_bytes(), &value)?;
            }
        }
        Ok(())
    }
}
