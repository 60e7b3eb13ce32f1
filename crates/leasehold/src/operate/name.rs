//! The inspection of a name: its keys show its kind and its holders. This is for operators, who may
//! know a name but not its use.

mod force;
mod holders;
mod list;
mod reading;
pub(crate) mod steps;

use std::time::Duration;

use tokio::sync::oneshot;

use super::presence::{ClientCache, ClientInfo};
use crate::backend::NameKind;
use crate::backend::facts::ServerFacts;
use crate::backend::failure::{Failure, Outcome};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::primitives::lock::Ttl;
use crate::primitives::request;
use reading::Raw;

pub(crate) use force::force_release;
pub(crate) use list::list;
pub use list::{LeftOut, Listed, Listing};

/// Largest number of holds, of permits and of waiters that are shown for a name.
const MOST_SHOWN: usize = 1000;

/// The kind and the state of a name, returned by [`Client::inspect`](crate::Client::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// The kind of the name, and its holders.
    pub found: Found,
    /// The time until the key expires on the server.
    pub ttl: Ttl,
    /// Number of holds or permits that are not in `found`. The leases of some of these may have
    /// ended.
    pub more: u64,
    /// The waiters. First are the waiters that the server has stored, at most 1000: the queue of a
    /// fair lock in queue order, or the writers that wait for a read-write lock, and the readers
    /// that have waited for it for about a second.
    ///
    /// After them are the clients of this library that have announced a wait for this name
    /// ([`Wants::Any`]). A client announces a wait up to 20 s late, and announces its end within a
    /// few seconds. A client that has just acquired the name is left out. Redisson stores waiters
    /// only for fair locks, so Redisson's other waiters are missing.
    pub waiting: Vec<WaiterInfo>,
    /// Number of stored waiters that are not in `waiting`.
    pub more_waiting: u64,
    /// Number of connections that subscribe to the releases of the name, or to the opening of a
    /// latch. In each connection's process, with this library or Redisson, a task is waiting, or
    /// was waiting a moment ago. Waiters for a fair lock are not counted. `None` if the server does
    /// not report the number.
    pub listening: Option<u64>,
    /// The last fencing token that was drawn for this name.
    pub last_token: Option<u64>,
    /// Whether there may be more waiters: `true` if more than 200 clients have announced
    /// themselves, because only the announcements of the first 200 are read.
    pub more_clients: bool,
    /// Whether the server denies access to the announcements of clients. If so, only the ids of
    /// holders and waiters are known.
    pub clients_denied: bool,
    /// The location of the name in a cluster or behind sentinels; `None` on a single server.
    pub node: Option<NodeInfo>,
}

/// The server on which a name is stored, in a cluster or behind sentinels, as far as this client
/// knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// In a cluster, the slot of the name and of all its keys.
    pub slot: Option<u16>,
    /// The address of the node that has the slot, or of the master that the sentinels name, without
    /// credentials. `None` if no node has the slot.
    pub address: Option<String>,
}

/// The kind of a name, according to its keys. At most 1000 holds are included, and
/// [`NameInfo::more`] is the number of further holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// There is no key: a lock that is free, a semaphore that was never created, or a latch that
    /// was never set.
    Nothing,
    /// A plain, fair, fenced or spin lock. All of these have the same key.
    Lock(HoldInfo),
    /// A read-write lock.
    ReadWrite {
        /// The write hold.
        writer: Option<HoldInfo>,
        /// The read holds whose leases have not ended.
        readers: Vec<HoldInfo>,
    },
    /// A group, with the values that are locked and whose leases have not ended.
    Group(Vec<ValueInfo>),
    /// A semaphore whose permits have leases, with some of them in use.
    Leases {
        /// Number of free permits, including permits whose leases have ended. Negative if the total
        /// was reduced below the number of permits in use. `None` if the key with this number is
        /// missing.
        free: Option<i64>,
        /// Number of permits in use.
        held: u64,
        /// The permits in use, ordered by the end of their leases.
        permits: Vec<PermitInfo>,
    },
    /// A number: either the free permits of a semaphore, or the remaining count of a latch that
    /// Leasehold has not set, opened or deleted within the last hour. The keys of the two look the
    /// same. A semaphore whose permits have leases is also shown as a number if none of its permits
    /// is in use.
    Count(i64),
    /// A latch that Leasehold set, opened or deleted within the last hour. If `left` is zero, the
    /// latch is open.
    Latch {
        /// The remaining count.
        left: u64,
    },
    /// Another kind of key. It does not belong to a lock or a synchronizer of this library or of
    /// Redisson, or is only an auxiliary key of one.
    Unknown {
        /// A description of the key.
        what: String,
    },
}

/// One hold of a lock, as stored in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// The id, `uuid:n`. `uuid` is the client, and `n` the hold (this library) or the thread
    /// (Redisson).
    pub id: String,
    /// Number of acquires that the holder has not released yet. Always 1 for holds of this library,
    /// which counts re-entries in the client.
    pub count: u64,
    /// The remaining time of the lease.
    pub ttl: Ttl,
    /// Whether the holder has ended its guard with [`keep_for`](crate::LockGuard::keep_for). If so,
    /// no client renews the hold, and it ends after `ttl`.
    pub kept: bool,
    /// The client of the hold. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which the hold has lasted. `None` if its client does not announce it.
    pub held_for: Option<Duration>,
    /// Number of guards that share the hold: readers of one process, or guards of one owner. `None`
    /// if the client does not announce it.
    pub guards: Option<u32>,
}

/// One waiter for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The id, `uuid:n`. `uuid` is the client, and `n` the hold that the waiter would get (this
    /// library) or the thread (Redisson). For [`Wants::Any`], the id is only the `uuid`.
    pub id: String,
    /// The kind of lock, or the side of a lock, for which the waiter waits.
    pub wants: Wants,
    /// The client of the waiter. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which the waiter has waited so far. `None` if its client does not announce it.
    /// If one client has several waiters in a queue, only the first of them has this time.
    pub waited_for: Option<Duration>,
}

/// The kind of lock, or the side of a lock, for which a waiter waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wants {
    /// A fair lock.
    Lock,
    /// The read side of a read-write lock.
    ToRead,
    /// The write side of a read-write lock.
    ToWrite,
    /// The kind is unknown: the client announces only that one of its tasks waits for the name.
    Any,
}

/// A value of a group that is locked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueInfo {
    /// The name of the value on the server. It is a hash, which can't be turned back into the
    /// value.
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
    /// The remaining time of the lease.
    pub ttl: Ttl,
    /// The client of the permit. `None` for Redisson's clients, and for a client that does not
    /// announce itself.
    pub client: Option<ClientInfo>,
    /// The time for which the permit has been held. `None` if the client does not announce it. Of
    /// several permits from one acquire, only the first has this time.
    pub held_for: Option<Duration>,
}

/// Asks the servers about themselves.
pub(crate) async fn examine(context: &Context, name: &str) -> Result<Vec<ServerFacts>> {
    let key = context.key(name, NameKind::Other)?;
    context.check_process(&key)?;
    let (backend, channel) = (context.backend.clone(), key.lock_channel());
    let (sender, facts) = oneshot::channel();
    // Use a task of the client, because this opens connections, and the caller may have no runtime.
    context.cleanup.spawn_detached(async move {
        // This fails if the caller has stopped waiting for the result.
        let _ = sender.send(backend.examine(&channel).await);
    });
    let ended = |_| Failure::runtime_ended(Outcome::DidNotRun, context.backend.address());
    let facts = facts.await.map_err(ended).and_then(|facts| facts);
    facts.map_err(Failure::into_error_of_listing)
}

/// Asks the server what `name` is, and which clients hold it or wait for it.
pub(crate) async fn inspect(context: &Context, name: &str) -> Result<NameInfo> {
    let key = context.key(name, NameKind::Other)?;
    inspect_with(context, &key, &ClientCache::default()).await
}

/// Like [`inspect`], and looks up only the clients that `cache` does not have yet.
pub(crate) async fn inspect_with(
    context: &Context,
    key: &Key,
    cache: &ClientCache,
) -> Result<NameInfo> {
    let mut seen = peek_at(context, key).await?;
    holders::add_clients(context, cache, key.as_str(), &mut seen).await;
    Ok(seen)
}

/// Asks the server what `name` is, with one request.
pub(crate) async fn peek(context: &Context, name: &str) -> Result<NameInfo> {
    let key = context.key(name, NameKind::Other)?;
    peek_at(context, &key).await
}

/// Like [`peek`], for a name whose key is known.
pub(crate) async fn peek_at(context: &Context, key: &Key) -> Result<NameInfo> {
    let mut seen = query(context, key, MOST_SHOWN).await?;
    let location = context.backend.location(key);
    seen.node = location.map(|(slot, address)| NodeInfo {
        slot,
        address: address.map(|address| (*address).to_owned()),
    });
    Ok(seen)
}

/// Like `inspect`, with at most `most` holds, permits and waiters, and without the clients.
async fn query(context: &Context, key: &Key, most: usize) -> Result<NameInfo> {
    let reply = request::query(context, key, steps::inspect(key, most)).await?;
    let raw = Raw::read(&reply).ok_or_else(|| request::malformed(context, key))?;
    Ok(raw.recognise())
}
