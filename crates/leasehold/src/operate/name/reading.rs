//! The reply to the inspection of a name, and the kind that the reply shows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::steps::NEVER;
use super::{Found, HoldInfo, NameInfo, PermitInfo, ValueInfo, WaiterInfo, Wants};
use crate::backend::step::Value;
use crate::primitives::hash_kind;
use crate::primitives::lock::Ttl;

/// The value of a hold whose end is fixed, as in `common.lua`.
const KEPT: &str = "01";

/// The reply of the step.
pub(super) struct Raw {
    kind: String,
    ttl: Ttl,
    now_ms: i64,
    text: String,
    /// The kind of lock, if the key is a hash.
    hash_kind: String,
    size: u64,
    fields: Vec<NameField>,
    held: i64,
    over: i64,
    permits: Vec<(Vec<u8>, i64)>,
    length: u64,
    line: Vec<(Vec<u8>, i64)>,
    writers: Vec<String>,
    readers: Vec<String>,
    token: String,
    opened: bool,
    listening: [i64; 4],
}

/// A field of a hash.
struct NameField {
    name: String,
    value: String,
    /// The remaining time, if the field is a read hold.
    remaining_ms: i64,
    /// If the field is a value of a group: the expiry time that is stored next to the field.
    ends: String,
    /// If the field is a value of a group: the count that is stored next to the field.
    stored_count: String,
}

impl Raw {
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let mut items = items(reply)?.iter();
        let raw = Self {
            kind: text(items.next()?)?,
            ttl: Ttl::of_key(number(items.next()?)?),
            now_ms: number(items.next()?)?,
            text: text(items.next()?)?,
            hash_kind: text(items.next()?)?,
            size: count(items.next()?)?,
            fields: each(items.next()?, NameField::read)?,
            held: number(items.next()?)?,
            over: number(items.next()?)?,
            permits: each(items.next()?, timed)?,
            length: count(items.next()?)?,
            line: each(items.next()?, timed)?,
            writers: each(items.next()?, text)?,
            readers: each(items.next()?, text)?,
            token: text(items.next()?)?,
            opened: number(items.next()?)? == 1,
            listening: each(items.next()?, number)?.try_into().ok()?,
        };
        items.next().is_none().then_some(raw)
    }

    pub(super) fn recognise(self) -> NameInfo {
        let found = self.found();
        let more = match &found {
            // The field with the mode is not a hold.
            Found::ReadWrite { .. } => self.size.saturating_sub(self.fields.len() as u64 + 1),
            // Each value has three fields.
            Found::Group(_) => (self.size / 3).saturating_sub(self.fields.len() as u64),
            Found::Leases { held, permits, .. } => held.saturating_sub(permits.len() as u64),
            _ => 0,
        };
        NameInfo {
            listening: self.listening_for(&found),
            found,
            ttl: self.ttl,
            more,
            waiting: self.waiting(),
            more_waiting: self.length.saturating_sub(self.line.len() as u64),
            last_token: self.token.parse().ok(),
            more_clients: false,
            clients_denied: false,
            node: None,
        }
    }

    fn found(&self) -> Found {
        match self.kind.as_str() {
            // The number of free permits was removed by hand, but the permits are still in use.
            "none" if self.held > 0 => self.leases(None),
            "none" if self.opened => Found::Latch { left: 0 },
            "none" => Found::Nothing,
            "string" => match parse_count(&self.text) {
                // Check `held` before `opened`: the key that records that a latch was opened
                // outlives the latch, so a semaphore may have it, too. A latch never has leases.
                Some(free) if self.held > 0 => self.leases(Some(free)),
                Some(left) if self.opened => Found::Latch {
                    left: u64::try_from(left).unwrap_or(0),
                },
                Some(count) => Found::Count(count),
                None => unknown("a plain string"),
            },
            "hash" => self
                .lock()
                .unwrap_or_else(|| unknown(hash_kind::NOT_A_LOCK)),
            kind => unknown(&format!("a {kind}")),
        }
    }

    /// Returns the lock that this hash represents, if it is a lock of any kind.
    fn lock(&self) -> Option<Found> {
        match &*self.hash_kind {
            hash_kind::PLAIN => Some(Found::Lock(self.fields.first()?.hold(self.ttl)?)),
            hash_kind::READ_WRITE => Some(self.read_write()),
            hash_kind::GROUP => Some(self.group()),
            _ => None,
        }
    }

    fn read_write(&self) -> Found {
        let (mut writer, mut readers) = (None, Vec::new());
        for field in &self.fields {
            if field.name.contains(":write") {
                writer = field.hold(self.ttl);
            } else if field.remaining_ms >= 0 || field.remaining_ms == -1 {
                // The field of a read hold that has ended remains until the next release.
                readers.extend(field.hold(Ttl::of_key(field.remaining_ms)));
            }
        }
        Found::ReadWrite { writer, readers }
    }

    fn group(&self) -> Found {
        // Sorted by name, because HSCAN returns the fields in any order.
        let all = self.fields.iter().map(|field| (&field.name, field));
        let all: BTreeMap<_, _> = all.collect();
        let values = all.into_values().filter_map(|field| {
            // A value without an expiry time has no holder: other clients can acquire it.
            let ends_ms: i64 = field.ends.parse().ok()?;
            let remaining_ms = ends_ms.saturating_sub(self.now_ms);
            (remaining_ms >= 0).then(|| ValueInfo {
                field: field.name.clone(),
                hold: HoldInfo {
                    id: field.value.clone(),
                    count: field.stored_count.parse().unwrap_or(1),
                    ttl: Ttl::of_key(remaining_ms),
                    kept: false,
                    client: None,
                    held_for: None,
                    guards: None,
                },
            })
        });
        Found::Group(values.collect())
    }

    fn leases(&self, free: Option<i64>) -> Found {
        let left = |ends_ms: i64| match u64::try_from(ends_ms - self.now_ms) {
            Ok(ms) if ends_ms < NEVER => Ttl::Left(Duration::from_millis(ms)),
            _ => Ttl::NoExpiry,
        };
        let permits = self.permits.iter().map(|(id, ends_ms)| PermitInfo {
            id: permit_id(id),
            ttl: left(*ends_ms),
            client: None,
            held_for: None,
        });
        Found::Leases {
            // The next request takes back permits whose leases have ended.
            free: free.map(|free| free.saturating_add(self.over)),
            held: u64::try_from(self.held.saturating_sub(self.over)).unwrap_or(0),
            permits: permits.collect(),
        }
    }

    /// Returns the waiters, except waiters of this library in line that have expired but were not
    /// removed yet.
    fn waiting(&self) -> Vec<WaiterInfo> {
        // 0 means a waiter of Redisson, because no key of ours says how long that waiter counts as
        // alive.
        let waits = |(_, until_ms): &&(Vec<u8>, i64)| *until_ms == 0 || *until_ms > self.now_ms;
        let in_line = self.line.iter().filter(waits);
        let in_line = in_line.map(|(id, _)| (lossy(id), Wants::Lock));
        let writers = self.writers.iter().map(|id| (id.clone(), Wants::ToWrite));
        let readers = self.readers.iter().map(|id| (id.clone(), Wants::ToRead));
        let all = in_line.chain(writers).chain(readers);
        let all = all.map(|(id, wants)| WaiterInfo {
            id,
            wants,
            client: None,
            waited_for: None,
        });
        all.collect()
    }

    /// Returns how many connections subscribe to the channels of this kind.
    fn listening_for(&self, found: &Found) -> Option<u64> {
        let [locks, sides, frees, opens] = self.listening;
        let both = |one: i64, other: i64| (one >= 0 && other >= 0).then_some(one + other);
        let listening = match found {
            Found::Lock(_) | Found::Group(_) => Some(locks),
            Found::ReadWrite { .. } => Some(sides),
            Found::Leases { .. } => Some(frees),
            Found::Latch { .. } => Some(opens),
            Found::Count(_) => both(frees, opens),
            // The kind is unknown, because some kinds have no key while they are free.
            Found::Nothing => both(locks, sides)
                .zip(both(frees, opens))
                .map(|(a, b)| a + b),
            Found::Unknown { .. } => None,
        };
        listening.and_then(|count| u64::try_from(count).ok())
    }
}

impl NameField {
    fn read(item: &Value) -> Option<Self> {
        match items(item)? {
            [name, value, remaining_ms, ends, stored_count] => Some(Self {
                name: text(name)?,
                value: text(value)?,
                remaining_ms: number(remaining_ms)?,
                ends: text(ends)?,
                stored_count: text(stored_count)?,
            }),
            _ => None,
        }
    }

    /// Returns the hold in this field. The field's name is its id, and the value is its count.
    fn hold(&self, ttl: Ttl) -> Option<HoldInfo> {
        let count = self.value.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.then(|| self.value.parse().ok())??;
        // In a large hash, only some fields were checked before.
        hash_kind::is_id(self.name.as_bytes()).then(|| HoldInfo {
            id: self.name.clone(),
            count,
            ttl,
            kept: self.value == KEPT,
            client: None,
            held_for: None,
            guards: None,
        })
    }
}

fn unknown(what: &str) -> Found {
    Found::Unknown {
        what: what.to_owned(),
    }
}

fn lossy(bytes: &[u8]) -> String {
    // Another program's key may have any bytes, and must not make the inspection fail.
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::List(items) => Some(items),
        _ => None,
    }
}

pub(super) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

fn count(value: &Value) -> Option<u64> {
    u64::try_from(number(value)?).ok()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(lossy(text)),
        _ => None,
    }
}

fn each<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    items(value)?.iter().map(read).collect()
}

fn timed(item: &Value) -> Option<(Vec<u8>, i64)> {
    match items(item)? {
        [Value::Text(id), Value::Int(ms)] => Some((id.clone(), *ms)),
        _ => None,
    }
}

/// Parses a count in the same way as the steps of semaphores and latches.
fn parse_count(text: &str) -> Option<i64> {
    // `parse` accepts a plus sign, but the scripts do not.
    (text.len() <= 14 && !text.starts_with('+'))
        .then(|| text.parse().ok())
        .flatten()
}

/// Returns a permit's id in hex. Redisson before 3.17 stores it in hex.
fn permit_id(id: &[u8]) -> String {
    match id.len() {
        16 => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => lossy(id),
    }
}
