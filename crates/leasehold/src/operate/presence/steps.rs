//! The steps by which clients announce themselves: how each is sent, and its twin on the embedded
//! keyspace. The Lua files beside this file describe each step.

use std::time::Duration;

use crate::backend::memory::Keyspace;
use crate::backend::step::{LuaFile, Operation, Refusal, Step, Value, step};
use crate::config::wire_ms;
use crate::key::{CLIENTS, client_key};
use crate::primitives::twin::{NOW_MS, to_int};

static LUA: LuaFile = LuaFile::new(include_str!("presence.lua"));

step! {
    ANNOUNCE: Announce = presence.announce, grants: false,
    keys: [client],
    args: [label, host, pid, version, address, age_ms: u64, holds, waits, ms: u64],
    uses: [NOW_MS],
}

impl Announce<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        keyspace.del(self.client);
        if self.ms == 0 {
            return Ok(Value::Int(1));
        }
        let (at, age_ms) = (keyspace.now_ms().to_string(), self.age_ms.to_string());
        for (field, value) in [
            (&b"label"[..], self.label),
            (b"host", self.host),
            (b"pid", self.pid),
            (b"version", self.version),
            (b"address", self.address),
            (b"age_ms", age_ms.as_bytes()),
            (b"holds", self.holds),
            (b"waits", self.waits),
            (b"at", at.as_bytes()),
        ] {
            keyspace.hset(self.client, field, value)?;
        }
        keyspace.pexpire(self.client, self.ms);
        Ok(Value::Int(1))
    }
}

step! {
    ENROL: Enrol = presence.enrol, grants: false,
    keys: [clients],
    args: [id, ms: u64],
    uses: [NOW_MS],
}

impl Enrol<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let now = to_int(keyspace.now_ms());
        for gone in keyspace.zrange_by_score(self.clients, now, usize::MAX)? {
            keyspace.zrem(self.clients, &gone)?;
        }
        if self.ms == 0 {
            keyspace.zrem(self.clients, self.id)?;
            return Ok(Value::Int(1));
        }
        keyspace.zadd(self.clients, self.id, now + to_int(self.ms))?;
        keyspace.pexpire(self.clients, self.ms);
        Ok(Value::Int(1))
    }
}

step! {
    READ: ReadClient = presence.read, grants: false,
    keys: [client],
    args: [],
    uses: [NOW_MS],
}

impl ReadClient<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let at = keyspace.hget(self.client, b"at").ok().flatten();
        let at = at.and_then(|at| std::str::from_utf8(&at).ok()?.parse::<i64>().ok());
        let Some(at) = at else {
            return Ok(Value::Int(0));
        };
        let at = at.clamp(0, 1 << 50);
        let mut reply = vec![Value::Int(to_int(keyspace.now_ms())), Value::Int(at)];
        for (field, longest) in TEXTS {
            let text = keyspace.hget(self.client, field.as_bytes())?;
            let text = text.unwrap_or_default();
            reply.push(Value::Text(text[..text.len().min(longest)].to_vec()));
        }
        Ok(Value::List(reply))
    }
}

/// Length of the longest list of holds or waits that is announced.
pub(super) const LONGEST_LIST: usize = 8192;
const TEXTS: [(&str, usize); 8] = [
    ("label", 255),
    ("host", 255),
    ("pid", 255),
    ("version", 255),
    ("address", 255),
    ("age_ms", 255),
    ("holds", LONGEST_LIST),
    ("waits", LONGEST_LIST),
];

step! {
    LIST_CLIENTS: Clients = presence.clients, grants: false,
    keys: [clients],
    args: [most: u64],
    uses: [NOW_MS],
}

impl Clients<'_> {
    fn twin(self, keyspace: &mut Keyspace) -> Result<Value, Refusal> {
        let now = to_int(keyspace.now_ms());
        let all = keyspace.zrange(self.clients).unwrap_or_default();
        let there = all.into_iter().filter(|(_, until)| *until > now);
        let some = there.take(usize::try_from(self.most).unwrap_or(usize::MAX));
        let ids = some.map(|(id, _)| Value::Text(id[..id.len().min(64)].to_vec()));
        Ok(Value::List(ids.collect()))
    }
}

pub(crate) static ALL: [&Step; 4] = [&ANNOUNCE, &ENROL, &READ, &LIST_CLIENTS];

/// A client's announcement of itself.
pub(super) struct Announcement<'a> {
    pub(super) id: &'a str,
    pub(super) label: &'a str,
    pub(super) host: &'a str,
    pub(super) address: &'a str,
    pub(super) age: Duration,
    pub(super) holds: &'a str,
    pub(super) waits: &'a str,
}

/// Announces the client. The announcement is valid for `ms`.
pub(super) fn announce(announcement: &Announcement<'_>, ms: u64) -> Operation {
    Announce {
        client: client_key(announcement.id).as_bytes(),
        label: announcement.label.as_bytes(),
        host: announcement.host.as_bytes(),
        pid: std::process::id().to_string().as_bytes(),
        version: env!("CARGO_PKG_VERSION").as_bytes(),
        address: announcement.address.as_bytes(),
        age_ms: wire_ms(announcement.age),
        holds: announcement.holds.as_bytes(),
        waits: announcement.waits.as_bytes(),
        ms,
    }
    .operation()
}

/// Withdraws the announcement of a client.
pub(super) fn withdraw(id: &str) -> Operation {
    let nothing = Announcement {
        id,
        label: "",
        host: "",
        address: "",
        age: Duration::ZERO,
        holds: "",
        waits: "",
    };
    announce(&nothing, 0)
}

pub(super) fn enrol(id: &str, ms: u64) -> Operation {
    Enrol {
        clients: CLIENTS.as_bytes(),
        id: id.as_bytes(),
        ms,
    }
    .operation()
}

pub(super) fn read(id: &str) -> Operation {
    ReadClient {
        client: client_key(id).as_bytes(),
    }
    .operation()
}

pub(super) fn clients(most: u64) -> Operation {
    Clients {
        clients: CLIENTS.as_bytes(),
        most,
    }
    .operation()
}
