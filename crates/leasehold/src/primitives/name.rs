//! The kind of a name, recognised by its keys. For operators, who know a name but not what it is
//! used for.

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

/// Number of holds, permits and waiters of a name that are shown.
const MOST_SHOWN: usize = 1000;

/// The kind and the state of a name, returned by [`Client::inspect`](crate::Client::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// The kind of the name, and its holders.
    pub found: Found,
    /// The time until the key expires on the server.
    pub ttl: Ttl,
    /// Number of holds or permits that are not shown. Some of these may be over.
    pub more: u64,
    /// The first 1000 waiters that the server knows by name. These are the waiters in the line of a
    /// fair lock, in their order, the writers that wait for a read-write lock, and the readers that
    /// have waited for it for long.
    ///
    /// After them are the clients of this library that announce a wait for a name of any kind
    /// ([`Wants::Any`]). A client announces a wait up to 20 s late, and announces its end within
    /// some seconds. A client that has just acquired the name is left out. Waiters of Redisson have
    /// keys only for fair locks, so its other waiters are missing.
    pub waiting: Vec<WaiterInfo>,
    /// Number of waiters in line that are not shown.
    pub more_waiting: u64,
    /// Number of connections that listen for a release, or for a latch to open. Each belongs to a
    /// process, ours or Redisson's, in which at least one task waits, or waited until just now.
    /// Waiters of a fair lock are not counted. `None` if the server does not report it.
    pub listening: Option<u64>,
    /// The last fencing token that a hold of this name was given.
    pub last_token: Option<u64>,
    /// Whether there may be more waiters, because only the first 200 clients are asked what they
    /// wait for, and there are more.
    pub more_clients: bool,
    /// Whether the server denies reading the clients' announcements. If so, holders and waiters are
    /// known only by their ids.
    pub clients_denied: bool,
    /// The location of the name in a cluster or behind sentinels; `None` on a single server.
    pub node: Option<NodeInfo>,
}

/// The server that has a name, out of several, as far as this client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The slot of the name and of all its keys, in a cluster.
    pub slot: Option<u16>,
    /// The address of the node that has the slot, or of the master that the sentinels name, without
    /// credentials. `None` if no node has the slot.
    pub address: Option<String>,
}

/// The kind of a name, as far as its keys show it. For a large key, only the first 1000 holds are
/// shown, and [`NameInfo::more`] is the number of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// No key: a lock that is free, a semaphore that was never made, or a latch that was never set.
    Nothing,
    /// A plain, fair, fenced or spin lock. All of these have the same key.
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
        /// Number of free permits, including permits whose leases are over. Negative when permits
        /// were taken away while they were in use. `None` when the key with their number is
        /// missing.
        free: Option<i64>,
        /// Number of permits in use.
        held: u64,
        /// The permits in use, ordered by the end of their leases.
        permits: Vec<PermitInfo>,
    },
    /// A count: either the free permits of a semaphore, or the count that is left of a latch that
    /// Redisson has set. The keys of the two are alike. A semaphore with leases is shown as a count
    /// when none of its permits is in use.
    Count(i64),
    /// A latch. Zero means that it is open, and was set or opened within the last hour.
    Latch {
        /// The count that is left.
        left: u64,
    },
    /// Another kind of key: not a key of this library or of Redisson's locks and synchronizers, or
    /// an auxiliary key of one of them.
    Unknown {
        /// A description of the key.
        what: String,
    },
}

/// One hold of a lock, as stored in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// The id, `uuid:n`: the client, and the hold (of this library) or the thread (of Redisson).
    pub id: String,
    /// Number of times that the holder has entered. Always 1 for holds of this library, which
    /// counts re-entries in the client.
    pub count: u64,
    /// The time left of the lease.
    pub ttl: Ttl,
    /// Whether the hold was left to a span ([`keep_for`](crate::LockGuard::keep_for)). No client
    /// renews it, and it ends with its `ttl`.
    pub kept: bool,
    /// The client of the hold. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which the holder has had it, at least. Known if its client announces it.
    pub held_for: Option<Duration>,
    /// Number of its client's guards that share the hold: readers of one process, or re-entries of
    /// an owner. Known if its client announces it.
    pub guards: Option<u32>,
}

/// One waiter for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The id, `uuid:n`: the client, and the hold that the waiter wants to become (in this library)
    /// or the thread (in Redisson). For [`Wants::Any`], only the client.
    pub id: String,
    /// The kind of lock, or side of a lock, that it waits for.
    pub wants: Wants,
    /// The client of the waiter. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which it has waited, at least. Known if its client announces it. If one client
    /// has several waiters in a line, it is known only for the first of them.
    pub waited_for: Option<Duration>,
}

/// The target of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wants {
    /// A fair lock.
    Lock,
    /// The read side of a read-write lock.
    ToRead,
    /// The write side of a read-write lock.
    ToWrite,
    /// Any kind of name: the client announces only that one of its tasks waits for it.
    Any,
}

/// A value of a group that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueInfo {
    /// The field of the value: a hash of the value, which can't be turned back into the value.
    pub field: String,
    /// The hold on the value.
    pub hold: HoldInfo,
}

/// A permit that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitInfo {
    /// The id of the permit, as [`PermitId`](crate::PermitId) writes and reads it.
    pub id: String,
    /// The time left of the lease.
    pub ttl: Ttl,
    /// The client of the permit. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which the holder has had it, at least. For permits that were acquired together,
    /// it is known only for the first.
    pub held_for: Option<Duration>,
}

/// Asks the servers about themselves.
pub(crate) async fn examine(context: &Context, name: &str) -> Result<Vec<ServerFacts>> {
    let key = context.key(name, NameOf::Other)?;
    context.check_process(&key)?;
    let (backend, channel) = (context.backend.clone(), key.lock_channel());
    let (sender, facts) = oneshot::channel();
    // A task, because it opens connections, and the task that polls this future may have no
    // runtime.
    context.cleanup.carry(async move {
        // If this fails, the caller has stopped waiting for the result.
        let _ = sender.send(backend.examine(&channel).await);
    });
    let ended = |_| Failure::runtime_ended(Outcome::DidNotRun, context.backend.address());
    let facts = facts.await.map_err(ended).and_then(|facts| facts);
    facts.map_err(Failure::into_error_of_listing)
}

/// Asks the server what `name` is, and which clients hold it or wait for it.
pub(crate) async fn inspect(context: &Context, name: &str) -> Result<NameInfo> {
    let key = context.key(name, NameOf::Other)?;
    let mut seen = peek_at(context, &key).await?;
    who::tell(context, &Book::default(), key.as_str(), &mut seen).await;
    Ok(seen)
}

/// Asks the server what `name` is, with one request.
pub(crate) async fn peek(context: &Context, name: &str) -> Result<NameInfo> {
    let key = context.key(name, NameOf::Other)?;
    peek_at(context, &key).await
}

async fn peek_at(context: &Context, key: &Key) -> Result<NameInfo> {
    let mut seen = look(context, key, MOST_SHOWN).await?;
    let location = context.backend.location(key);
    seen.node = location.map(|(slot, address)| NodeInfo {
        slot,
        address: address.map(|address| (*address).to_owned()),
    });
    Ok(seen)
}

/// Like `inspect`, with at most `most` holds, permits and waiters, and without the clients.
async fn look(context: &Context, key: &Key, most: usize) -> Result<NameInfo> {
    let reply = request::query(context, key, steps::look(key, most)).await?;
    let raw = Raw::read(&reply).ok_or_else(|| request::malformed(context, key))?;
    Ok(raw.recognise())
}
