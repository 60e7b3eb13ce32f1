//! What a name is, recognised by its keys. For operators, who know the name but not what it is used
//! for.

mod force;
mod list;
mod reading;
pub(crate) mod steps;
mod who;

use std::time::Duration;

use tokio::sync::oneshot;

use super::lock::Ttl;
use super::presence::{Book, ClientInfo};
use super::request;
use crate::backend::NameOf;
use crate::backend::facts::ServerFacts;
use crate::backend::failure::{Failure, Outcome};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use reading::Raw;

pub(crate) use force::force_release;
pub(crate) use list::list;
pub use list::{LeftOut, Listed, Listing};

/// How many holds, permits and waiters of a name are shown.
const MOST_SHOWN: usize = 1000;

/// What a name is: the answer of [`Client::inspect`](crate::Client::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// What kind it is, and who has it.
    pub found: Found,
    /// How long the key has left on the server.
    pub ttl: Ttl,
    /// How many holds or permits there are beside those that are shown. Some of these may be over.
    pub more: u64,
    /// The first 1000 waiters that the server knows by name: those in the line of a fair lock, in
    /// their order, the writers that wait for a read-write lock, and the readers that have waited
    /// for it for long. Then the clients of this library that say that somebody in them waits, for a
    /// name of any kind ([`Wants::Any`]); they say so up to 20 s late, and that the wait has ended
    /// within some seconds. A client that has just got the name is not among them. No key says which of
    /// Redisson's wait for anything else than a fair lock.
    pub waiting: Vec<WaiterInfo>,
    /// How many waiters in line there are beside those that are shown.
    pub more_waiting: u64,
    /// How many connections listen for a release, or for a latch to open. Each belongs to a process,
    /// ours or Redisson's, in which at least one waits, or waited until just now. Waiters of a fair
    /// lock are not among them. `None` where the server does not say.
    pub listening: Option<u64>,
    /// The last fencing token that a hold of this name was given.
    pub last_token: Option<u64>,
    /// Whether there are more clients than were asked what they wait for, so that there may be more
    /// waiters. The first 200 are asked.
    pub more_clients: bool,
    /// Whether the server lets us read who the clients are. If not, holders and waiters are known by
    /// their ids alone.
    pub clients_denied: bool,
    /// Where it is in a cluster, or behind sentinels; `None` on a single server.
    pub node: Option<NodeInfo>,
}

/// Which of several servers has a name, as far as this client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// In a cluster the slot of the name and of all its keys.
    pub slot: Option<u16>,
    /// The address of the node that has the slot, or of the master that the sentinels name, without
    /// credentials. `None` if no node has the slot.
    pub address: Option<String>,
}

/// What a key is, as far as keys can tell. Of a large key the first 1000 holds are shown:
/// [`NameInfo::more`] says how many there are beside them.
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
    /// Whose it is. `None` for one of Redisson's, and of a client that does not say who it is.
    pub client: Option<ClientInfo>,
    /// How long its holder has had it, at least; known as far as its client says so.
    pub held_for: Option<Duration>,
    /// The number of its client's guards that share it: readers of one process, or an owner's re-entries.
    /// Known as far as its client says so.
    pub guards: Option<u32>,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// `uuid:n`: the client, and the hold that it is to become (here) or the thread (Redisson). The
    /// client alone for [`Wants::Any`].
    pub id: String,
    /// What for.
    pub wants: Wants,
    /// Who it is. `None` for one of Redisson's, and of a client that does not say who it is.
    pub client: Option<ClientInfo>,
    /// How long it has waited, at least; known as far as its client says so. Of several waiters of
    /// one client it is known for the first one in a line.
    pub waited_for: Option<Duration>,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wants {
    /// A fair lock.
    Lock,
    /// The read side of a read-write lock.
    ToRead,
    /// Its write side.
    ToWrite,
    /// Whatever the name is: its client says that somebody in it waits, and no more.
    Any,
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
    /// Whose it is. `None` for one of Redisson's, and of a client that does not say who it is.
    pub client: Option<ClientInfo>,
    /// How long its holder has had it, at least. Of permits that were acquired together it is known
    /// of the first.
    pub held_for: Option<Duration>,
}

/// Asks the servers about themselves.
pub(crate) async fn examine(context: &Context, name: &str) -> Result<Vec<ServerFacts>> {
    let key = context.key(name, NameOf::Other)?;
    context.check_process(&key)?;
    let (backend, channel) = (context.backend.clone(), key.lock_channel());
    let (sender, facts) = oneshot::channel();
    // A task, because it opens connections: whoever polls this may have no runtime.
    context.cleanup.carry(async move {
        // If this fails, nobody wants to know any more.
        let _ = sender.send(backend.examine(&channel).await);
    });
    let ended = |_| Failure::runtime_ended(Outcome::DidNotRun, context.backend.address());
    let facts = facts.await.map_err(ended).and_then(|facts| facts);
    facts.map_err(Failure::into_error_of_listing)
}

/// Asks the server what `name` is.
pub(crate) async fn inspect(context: &Context, name: &str) -> Result<NameInfo> {
    let key = context.key(name, NameOf::Other)?;
    let mut seen = look(context, &key, MOST_SHOWN).await?;
    who::tell(context, &Book::default(), key.as_str(), &mut seen).await;
    let location = context.backend.location(&key);
    seen.node = location.map(|(slot, address)| NodeInfo {
        slot,
        address: address.map(|address| (*address).to_owned()),
    });
    Ok(seen)
}

/// The same, with at most so many of anything.
async fn look(context: &Context, key: &Key, most: usize) -> Result<NameInfo> {
    let reply = request::query(context, key, steps::look(key, most)).await?;
    let raw = Raw::read(&reply).ok_or_else(|| request::malformed(context, key))?;
    Ok(raw.recognise())
}
