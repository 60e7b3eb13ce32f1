//! The steps of the semaphore: how each is sent, and its twin on the embedded keyspace.
//! `semaphore.lua` describes each step.

use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, Step, Value, number, step};
use crate::config::wire_ms;
use crate::hold::WaitingClient;
use crate::key::Key;
use crate::local::Marked;
use crate::primitives::twin::{
    ASKING, Freed, IDEMPOTENCY, MARKER_MS, NUMBER_AT, PUBLISH_FREE, UNKNOWN_RECEIVERS,
    clients_before, earlier_reply, list, note, notify_waiting, number_at, publish_free,
};

static LUA: LuaFile = LuaFile::new(include_str!("semaphore.lua"));

step! {
    ACQUIRE: Acquire = semaphore.acquire, grants: true,
    keys: [semaphore, marker, done, released, asking],
    args: [sizes, client, notified: bool],
    uses: [IDEMPOTENCY, NUMBER_AT, ASKING],
}

impl Acquire<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = keyspace.get(self.marker)? {
            // The note that an undo leaves has no numbers: a request that arrives after its undo is
            // granted nothing.
            let (grants, _, left) = read_marker(&before).unwrap_or_default();
            return Ok(acquired((grants, left, true), None, -1));
        }
        let free = number_at(keyspace, self.semaphore)?;
        let (exists, free) = (free.is_some(), free.unwrap_or(0));
        let (mut grants, mut taken) = (0, 0);
        for size in self.sizes.split(|byte| *byte == b' ') {
            let size = number::<i64>(size)?;
            // If this waiter wants too many permits, the waiters after it get none either:
            // otherwise waiters that want one permit could forever overtake a waiter that wants
            // many.
            if taken + size > free {
                break;
            }
            (grants, taken) = (grants + 1, taken + size);
        }
        note(
            keyspace,
            self.marker,
            &format!("{grants} {taken} {}", free - taken),
        );
        // The script removes its marker again if the server refuses this command because of an ACL.
        // The twin does not know ACLs, and `number_at` has checked that the number is short enough.
        if taken > 0 {
            keyspace.incr_by(self.semaphore, -taken)?;
        }
        keyspace.del(self.done);
        let last = match grants {
            0 => keyspace.get(self.released).ok().flatten(),
            _ => None,
        };
        let mut before = -1;
        if !self.client.is_empty() {
            if grants == 0 {
                before = clients_before(keyspace, self.asking, self.client, self.notified);
            } else {
                let _ = keyspace.lrem(self.asking, self.client);
            }
        }
        Ok(acquired((grants, free - taken, exists), last, before))
    }
}

step! {
    DELIST: Delist = semaphore.delist, grants: false,
    keys: [semaphore, asking],
    args: [client, channel],
    uses: [NUMBER_AT, PUBLISH_FREE],
}

impl Delist<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let times = keyspace.lrem(self.asking, self.client)?;
        let free = number_at(keyspace, self.semaphore)?.unwrap_or(0);
        if times == 0 {
            let freed = Freed::new((self.asking, self.channel), free, 1);
            notify_waiting(keyspace, freed);
        }
        Ok(Value::Int(i64::try_from(times).unwrap_or(i64::MAX)))
    }
}

step! {
    UNDO: Undo = semaphore.undo, grants: false,
    keys: [semaphore, marker, asking],
    args: [channel],
    uses: [IDEMPOTENCY, NUMBER_AT, PUBLISH_FREE],
}

impl Undo<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let before = keyspace.get(self.marker)?;
        if before.as_deref() == Some(b"undone") {
            return Ok(Value::Int(0));
        }
        let before = before.and_then(|text| read_marker(&text));
        let (_, mut taken, _) = before.unwrap_or_default();
        // The script writes the marker first, because it must succeed when the server is out of
        // memory. Here no write is ever refused, so the order makes no difference.
        match number_at(keyspace, self.semaphore)? {
            Some(_) if taken > 0 => {
                let free = keyspace.incr_by(self.semaphore, taken)?;
                let freed = Freed::new((self.asking, self.channel), free, taken);
                publish_free(keyspace, freed);
            }
            // A semaphore that was deleted after the acquire is not created again.
            _ => taken = 0,
        }
        note(keyspace, self.marker, "undone");
        Ok(Value::Int(taken))
    }
}

step! {
    ADD: Add = semaphore.add, grants: false,
    keys: [semaphore, marker, done, released, asking],
    args: [permits: i64, if_exists: bool, channel],
    uses: [IDEMPOTENCY, NUMBER_AT, PUBLISH_FREE],
}

impl Add<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(list(&[before, UNKNOWN_RECEIVERS]));
        }
        let exists = number_at(keyspace, self.semaphore)?.is_some();
        keyspace.del(self.done);
        let reply = i64::from(exists || !self.if_exists);
        note(keyspace, self.marker, &reply.to_string());
        if reply == 0 {
            return Ok(list(&[0, UNKNOWN_RECEIVERS]));
        }
        let free = keyspace.incr_by(self.semaphore, self.permits)?;
        // Taking permits away is not a release, and `released` shows waiters which request last
        // gave permits back.
        if self.permits > 0 {
            keyspace.set(self.released, self.marker);
            keyspace.pexpire(self.released, MARKER_MS);
        }
        let freed = Freed::new((self.asking, self.channel), free, self.permits);
        Ok(list(&[1, publish_free(keyspace, freed)]))
    }
}

step! {
    DRAIN: Drain = semaphore.drain, grants: true,
    keys: [semaphore, marker, done],
    args: [],
    uses: [IDEMPOTENCY, NUMBER_AT],
}

impl Drain<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let free = number_at(keyspace, self.semaphore)?.unwrap_or(0);
        note(keyspace, self.marker, &free.to_string());
        if free != 0 {
            keyspace.incr_by(self.semaphore, -free)?;
        }
        keyspace.del(self.done);
        Ok(Value::Int(free))
    }
}

step! {
    SET: Set = semaphore.set, grants: false,
    keys: [semaphore, marker, done, asking],
    args: [permits: i64, expiry_ms: u64, channel],
    uses: [IDEMPOTENCY, NUMBER_AT, PUBLISH_FREE],
}

impl Set<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let made = number_at(keyspace, self.semaphore)?.is_none();
        note(keyspace, self.marker, &i64::from(made).to_string());
        if made {
            keyspace.set(self.semaphore, self.permits.to_string().as_bytes());
            if self.expiry_ms > 0 {
                keyspace.pexpire(self.semaphore, self.expiry_ms);
            }
            keyspace.del(self.done);
            let freed = Freed::new((self.asking, self.channel), self.permits, self.permits);
            publish_free(keyspace, freed);
        }
        Ok(Value::Int(i64::from(made)))
    }
}

step! {
    AVAILABLE: Available = semaphore.available, grants: false,
    while_moving: true,
    keys: [semaphore],
    args: [],
    uses: [NUMBER_AT],
}

impl Available<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let free = number_at(keyspace, self.semaphore)?;
        Ok(list(&[free.unwrap_or(0), free.is_some().into()]))
    }
}

step! {
    DELETE: Delete = semaphore.delete, grants: false,
    keys: [semaphore, marker, done],
    args: [],
    uses: [IDEMPOTENCY, NUMBER_AT],
}

impl Delete<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        if let Some(before) = earlier_reply(keyspace, self.marker)? {
            return Ok(Value::Int(before));
        }
        let exists = number_at(keyspace, self.semaphore)?.is_some();
        keyspace.del(self.done);
        note(keyspace, self.marker, &i64::from(exists).to_string());
        keyspace.del(self.semaphore);
        Ok(Value::Int(i64::from(exists)))
    }
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 8] = [
    &ACQUIRE, &DELIST, &UNDO, &ADD, &DRAIN, &SET, &AVAILABLE, &DELETE,
];

/// Builds the reply of an acquire.
fn acquired(
    (grants, free, exists): (i64, i64, bool),
    released: Option<Vec<u8>>,
    before: i64,
) -> Value {
    let numbers = [grants, free, exists.into()].map(Value::Int);
    let released = Value::Text(released.unwrap_or_default());
    let rest = [released, Value::Int(before)];
    Value::List(numbers.into_iter().chain(rest).collect())
}

/// Reads the note of an acquire: how many waiters it granted, how many permits they got, and how
/// many remained free.
fn read_marker(text: &[u8]) -> Option<(i64, i64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// Builds a request for permits on behalf of some waiters. If `client` is given, a release may
/// notify that client.
pub(crate) fn acquire(
    key: &Key,
    marked: &Marked,
    sizes: &[u32],
    client: Option<WaitingClient>,
) -> Operation {
    let wants = sizes.first().copied().unwrap_or_default();
    // Join them into one string, because a step has a fixed number of arguments.
    let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
    Acquire {
        semaphore: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        released: key.released_marker().as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        sizes: sizes.join(" ").as_bytes(),
        client: WaitingClient::list_item_or_empty(client, wants).as_bytes(),
        notified: client.is_some_and(|client| client.was_notified),
    }
    .operation()
}

/// Builds the request that removes a client from the list of clients that wait for permits.
pub(in crate::primitives) fn delist(
    key: &Key,
    client: WaitingClient,
    permits: u32,
    channel: &str,
) -> Operation {
    Delist {
        semaphore: key.as_str().as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        client: client.list_item(permits).as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn undo(key: &Key, marker: &str, channel: &str) -> Operation {
    Undo {
        semaphore: key.as_str().as_bytes(),
        marker: marker.as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn add(
    key: &Key,
    marked: &Marked,
    permits: i64,
    only_if_exists: bool,
    channel: &str,
) -> Operation {
    Add {
        semaphore: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        released: key.released_marker().as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        permits,
        if_exists: only_if_exists,
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn drain(key: &Key, marked: &Marked) -> Operation {
    Drain {
        semaphore: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
    }
    .operation()
}

pub(crate) fn set(
    key: &Key,
    marked: &Marked,
    permits: u32,
    expiry: Option<Duration>,
    channel: &str,
) -> Operation {
    Set {
        semaphore: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        permits: permits.into(),
        expiry_ms: expiry.map_or(0, wire_ms),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(crate) fn available(key: &Key) -> Operation {
    Available {
        semaphore: key.as_str().as_bytes(),
    }
    .operation()
}

pub(crate) fn delete(key: &Key, marked: &Marked) -> Operation {
    Delete {
        semaphore: key.as_str().as_bytes(),
        marker: marked.marker.as_bytes(),
        done: marked.done.as_bytes(),
    }
    .operation()
}
