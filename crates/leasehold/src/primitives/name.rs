//! What a name is, recognised by its keys. For operators, who know the name but not what it is used
//! for.

pub(crate) mod steps;

use std::collections::BTreeMap;
use std::time::Duration;

use super::lock::Ttl;
use super::request;
use crate::backend::step::Value;
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;

/// What a name is: the answer of [`Client::inspect`](crate::Client::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// What kind it is, and who has it.
    pub found: Found,
    /// How long the key has left on the server.
    pub ttl: Ttl,
    /// The first 1000 waiters for a fair lock, in their order. `None` when nobody waits in line: no
    /// key says who waits for anything else.
    pub waiting: Option<Vec<String>>,
    /// The last fencing token that a hold of this name was given.
    pub last_token: Option<u64>,
}

/// What a key is, as far as keys can tell. Of a large key the first 1000 holds are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// There is no key: a lock that is free, a semaphore that nobody has made, or a latch
    /// that nobody has set.
    Nothing,
    /// A lock: plain, fair, fenced or spin lock, which all have the same key.
    Lock(HoldInfo),
    /// A read-write lock.
    ReadWrite {
        /// The write hold.
        writer: Option<HoldInfo>,
        /// The read holds whose leases are not over.
        readers: Vec<HoldInfo>,
    },
    /// A group of locks: the values that are held and whose leases are not over.
    Group(Vec<ValueInfo>),
    /// A semaphore whose permits have leases, with some of them in use.
    Leases {
        /// How many permits are free, including those whose leases are over. Negative when permits
        /// were taken away while they were in use. `None` when the key with their number is gone.
        free: Option<i64>,
        /// How many permits are in use.
        held: u64,
        /// The permits in use, ordered by the end of their leases.
        permits: Vec<PermitInfo>,
    },
    /// A count: the free permits of a semaphore (of one with leases, when no permit is in use), or
    /// what is left to count of a latch that Redisson has set. The keys of the two are alike.
    Count(i64),
    /// A latch. Zero means that it is open, and was set or opened within the last hour.
    Latch {
        /// What is left to count down.
        left: u64,
    },
    /// Something else: not a key of this library or of Redisson's locks and synchronizers, or a key
    /// that exists beside one of theirs.
    Unknown {
        /// What it is, in words.
        what: String,
    },
}

/// One hold of a lock, as Redis has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// `uuid:n`: the client, and the hold (here) or the thread (Redisson).
    pub id: String,
    /// How often its holder has entered. Always 1 for holds of this library, which counts
    /// re-entries in the client.
    pub count: u64,
    /// How much is left of its lease.
    pub ttl: Ttl,
}

/// A value of a group that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueInfo {
    /// Its field: a hash of the value, which can't be turned back into the value.
    pub field: String,
    /// The hold.
    pub hold: HoldInfo,
}

/// A permit that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitInfo {
    /// Its id, as [`PermitId`](crate::PermitId) writes and reads it.
    pub id: String,
    /// How much is left of its lease.
    pub ttl: Ttl,
}

/// Asks the server what `name` is.
pub(crate) async fn inspect(context: &Context, name: &str) -> Result<NameInfo> {
    let key = Key::parse(name)?;
    let reply = request::query(context, &key, steps::look(&key)).await?;
    let raw = Raw::read(&reply).ok_or_else(|| request::malformed(context, &key))?;
    Ok(raw.recognise())
}

/// The reply of the step.
struct Raw {
    kind: String,
    ttl: Ttl,
    now_ms: i64,
    text: String,
    fields: Vec<Field>,
    held: i64,
    permits: Vec<(Vec<u8>, i64)>,
    waiting: Vec<(Vec<u8>, i64)>,
    token: String,
    opened: bool,
}

/// A field of a hash. If it is a read hold, with the time that this has left.
struct Field {
    name: String,
    value: String,
    left_ms: i64,
}

impl Raw {
    fn read(reply: &Value) -> Option<Self> {
        let Value::List(items) = reply else {
            return None;
        };
        let [
            Value::Text(kind),
            Value::Int(ttl_ms),
            Value::Int(now_ms),
            Value::Text(text),
            Value::List(fields),
            Value::Int(held),
            Value::List(permits),
            Value::List(waiting),
            Value::Text(token),
            Value::Int(opened),
        ] = &items[..]
        else {
            return None;
        };
        Some(Self {
            kind: lossy(kind),
            ttl: Ttl::of_key(*ttl_ms),
            now_ms: *now_ms,
            text: lossy(text),
            fields: fields.iter().map(Field::read).collect::<Option<_>>()?,
            held: *held,
            permits: permits.iter().map(timed).collect::<Option<_>>()?,
            waiting: waiting.iter().map(timed).collect::<Option<_>>()?,
            token: lossy(token),
            opened: *opened == 1,
        })
    }

    fn recognise(self) -> NameInfo {
        NameInfo {
            found: self.found(),
            ttl: self.ttl,
            waiting: self.line(),
            last_token: self.token.parse().ok(),
        }
    }

    fn found(&self) -> Found {
        match self.kind.as_str() {
            // The number was removed by hand. The permits are in use all the same.
            "none" if self.held > 0 => self.leases(None),
            "none" if self.opened => Found::Latch { left: 0 },
            "none" => Found::Nothing,
            "string" => match whole(&self.text) {
                // Before the note of an opening, which outlives its latch: leases are never those
                // of a latch.
                Some(free) if self.held > 0 => self.leases(Some(free)),
                Some(left) if self.opened => Found::Latch {
                    left: u64::try_from(left).unwrap_or(0),
                },
                Some(count) => Found::Count(count),
                None => unknown("a text that is not a count"),
            },
            "hash" => self
                .lock()
                .unwrap_or_else(|| unknown("a hash whose fields are not those of a lock")),
            kind => unknown(&format!("a {kind}")),
        }
    }

    /// A hash that is a lock of some kind.
    fn lock(&self) -> Option<Found> {
        let mode = self.fields.iter().find(|field| field.name == "mode");
        match (mode, &self.fields[..]) {
            (Some(mode), _) => self.read_write(&mode.value),
            // A value of a group never stands alone: its end and its count are beside it.
            (None, [field]) => Some(Found::Lock(field.hold(self.ttl)?)),
            (None, _) => self.group(),
        }
    }

    fn read_write(&self, mode: &str) -> Option<Found> {
        if !matches!(mode, "read" | "write") {
            return None;
        }
        let (mut writer, mut readers) = (None, Vec::new());
        for field in self.fields.iter().filter(|field| field.name != "mode") {
            if field.name.contains(":write") {
                writer = Some(field.hold(self.ttl)?);
            } else {
                let hold = field.hold(Ttl::of_key(field.left_ms))?;
                // The field of a read hold that is over remains until the next release.
                if field.left_ms >= 0 || field.left_ms == -1 {
                    readers.push(hold);
                }
            }
        }
        Some(Found::ReadWrite { writer, readers })
    }

    fn group(&self) -> Option<Found> {
        const BESIDE: [&str; 2] = [":expire_time", ":lock_count"];
        let is_beside = |name: &str| BESIDE.iter().any(|suffix| name.ends_with(suffix));
        let all = self.fields.iter();
        // By their names, because HSCAN brings the fields of a value in any order.
        let all: BTreeMap<_, _> = all.map(|field| (&*field.name, &*field.value)).collect();
        if !all.keys().any(|name| is_beside(name)) {
            return None;
        }
        let mut values = Vec::new();
        for (field, holder) in all.iter().filter(|(name, _)| !is_beside(name)) {
            let of_hold = |what: &str| all.get(&*format!("{field}:{holder}{what}"));
            let ends_ms: i64 = of_hold(":expire_time")?.parse().ok()?;
            let left_ms = ends_ms.saturating_sub(self.now_ms);
            let count = of_hold(":lock_count").and_then(|count| count.parse().ok());
            if left_ms >= 0 {
                values.push(ValueInfo {
                    field: (*field).to_owned(),
                    hold: HoldInfo {
                        id: (*holder).to_owned(),
                        count: count.unwrap_or(1),
                        ttl: Ttl::of_key(left_ms),
                    },
                });
            }
        }
        Some(Found::Group(values))
    }

    fn leases(&self, free: Option<i64>) -> Found {
        let (over, permits): (Vec<_>, Vec<_>) = self
            .permits
            .iter()
            .partition(|(_, ends_ms)| *ends_ms <= self.now_ms);
        let over = i64::try_from(over.len()).unwrap_or(i64::MAX);
        let left = |ends_ms: i64| match u64::try_from(ends_ms - self.now_ms) {
            Ok(ms) if ends_ms < steps::NEVER => Ttl::Left(Duration::from_millis(ms)),
            _ => Ttl::NoExpiry,
        };
        let permits = permits.iter().map(|(id, ends_ms)| PermitInfo {
            id: permit_id(id),
            ttl: left(*ends_ms),
        });
        Found::Leases {
            // The next ask takes back permits whose leases are over.
            free: free.map(|free| free.saturating_add(over)),
            held: u64::try_from(self.held.saturating_sub(over)).unwrap_or(0),
            permits: permits.collect(),
        }
    }

    /// The waiters in line, without ours that are gone but not taken out yet.
    fn line(&self) -> Option<Vec<String>> {
        // 0 stands for a waiter of Redisson's: no key of ours says until when it is alive.
        let waits = |(_, until_ms): &&(Vec<u8>, i64)| *until_ms == 0 || *until_ms > self.now_ms;
        let alive = self.waiting.iter().filter(waits);
        (!self.waiting.is_empty()).then(|| alive.map(|(id, _)| lossy(id)).collect())
    }
}

impl Field {
    fn read(item: &Value) -> Option<Self> {
        match item {
            Value::List(parts) => match &parts[..] {
                [Value::Text(name), Value::Text(value), Value::Int(left_ms)] => Some(Self {
                    name: lossy(name),
                    value: lossy(value),
                    left_ms: *left_ms,
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// The hold in this field: the client and a number, and how often its holder has entered.
    fn hold(&self, ttl: Ttl) -> Option<HoldInfo> {
        let count = self.value.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.then(|| self.value.parse().ok())??;
        // A holder is `uuid:n`, ours and Redisson's: a counter of somebody else's is no hold.
        self.name.contains(':').then(|| HoldInfo {
            id: self.name.clone(),
            count,
            ttl,
        })
    }
}

fn unknown(what: &str) -> Found {
    Found::Unknown {
        what: what.to_owned(),
    }
}

fn lossy(bytes: &[u8]) -> String {
    // A stranger's key may have any bytes, and a look at it must not fail.
    String::from_utf8_lossy(bytes).into_owned()
}

fn timed(item: &Value) -> Option<(Vec<u8>, i64)> {
    match item {
        Value::List(parts) => match &parts[..] {
            [Value::Text(id), Value::Int(ms)] => Some((id.clone(), *ms)),
            _ => None,
        },
        _ => None,
    }
}

/// A count as the steps of semaphores and latches read one.
fn whole(text: &str) -> Option<i64> {
    // `parse` takes a plus sign, and the scripts do not.
    (text.len() <= 14 && !text.starts_with('+'))
        .then(|| text.parse().ok())
        .flatten()
}

/// Redisson before 3.17 writes the id as text.
fn permit_id(id: &[u8]) -> String {
    match id.len() {
        16 => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => lossy(id),
    }
}
