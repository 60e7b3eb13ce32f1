//! A cache of clients, found by the ids of holds and waiters. Each client is looked up once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::OnceCell;

use super::steps;
use crate::backend::failure::Cause;
use crate::backend::step::Value;
use crate::context::Context;
use crate::sync::Mutex;
use crate::text::clean_label;

/// Largest number of clients that are looked up for their waits and their permits.
const MOST_CLIENTS: usize = 200;
/// Number of clients that are read concurrently.
const CONCURRENCY: usize = 16;
/// The most clients that are remembered.
const MOST_KNOWN: usize = 10_000;

/// A client, as it has announced itself on the server. A process can have several clients. Only
/// clients of this library announce themselves. Don't rely on an announcement: it may be a minute
/// old, or forged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The id of the client: the part before the colon in the id of a hold.
    pub id: String,
    /// The label that its user gave it: [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: String,
    /// The machine on which the client runs.
    pub host: String,
    /// The id of the client's process on that machine.
    pub pid: String,
    /// The version of the library.
    pub version: String,
    /// The client's address as the server sees it; empty if the server does not report it.
    pub address: String,
    /// The time since the client was made.
    pub age: Duration,
    /// The names for which tasks of the client wait, the longest wait first. Names that do not
    /// begin with the prefix of the inspecting client are left out.
    pub waits_for: Vec<String>,
}

/// A client, with its holds and waits.
#[derive(Debug)]
pub(crate) struct KnownClient {
    pub(crate) info: ClientInfo,
    /// The age and the number of guards of each hold, by the part of the hold's id after the
    /// client's id.
    holds: HashMap<String, (Duration, u32)>,
    waits: HashMap<String, Duration>,
}

impl KnownClient {
    /// Returns a lower bound for the time that the client has had this hold.
    pub(crate) fn has_held(&self, id: &str) -> Option<Duration> {
        self.hold(id).map(|(held_for, _)| held_for)
    }

    /// Returns the number of guards that shared this hold at the last announcement.
    pub(crate) fn guards_of(&self, id: &str) -> Option<u32> {
        self.hold(id).map(|(_, guards)| guards)
    }

    fn hold(&self, id: &str) -> Option<(Duration, u32)> {
        let own = id.strip_prefix(&self.info.id);
        let own = own.and_then(|rest| rest.strip_prefix(':')).unwrap_or(id);
        self.holds.get(own).copied()
    }

    /// Returns a lower bound for the time that the client has waited for this name.
    pub(crate) fn has_waited(&self, name: &str) -> Option<Duration> {
        self.waits.get(name).copied()
    }
}

/// The clients that were looked up.
#[derive(Default)]
pub(crate) struct ClientCache {
    register: OnceCell<BTreeSet<String>>,
    known: Mutex<HashMap<String, Option<Arc<KnownClient>>>>,
    denied: OnceCell<()>,
}

impl ClientCache {
    /// Returns whether the server has denied a lookup.
    pub(crate) fn is_denied(&self) -> bool {
        self.denied.initialized()
    }

    /// Returns the client of a hold or waiter; `None` if the client does not announce itself.
    pub(crate) async fn client_of(&self, context: &Context, id: &str) -> Option<Arc<KnownClient>> {
        let client = id.split(':').next().filter(|client| client.len() == 36)?;
        self.client(context, client).await
    }

    /// Returns the client of a permit: the permit's id contains a part of the client's id.
    pub(crate) async fn client_of_permit(
        &self,
        context: &Context,
        id: &str,
    ) -> Option<Arc<KnownClient>> {
        let client_part = id.get(16..)?;
        let register = self.register(context).await;
        let client = register
            .iter()
            .find(|client| client.replace('-', "").get(..16) == Some(client_part))?;
        self.client(context, client).await
    }

    /// Returns whether there are more clients than [`all`](Self::all) returns.
    pub(crate) async fn has_more(&self, context: &Context) -> bool {
        self.register(context).await.len() > MOST_CLIENTS
    }

    /// Returns all clients that announce themselves, but at most `MOST_CLIENTS`.
    pub(crate) async fn all(&self, context: &Context) -> Vec<Arc<KnownClient>> {
        let register = self.register(context).await;
        let some = register.iter().take(MOST_CLIENTS).cloned();
        let known = some.map(|client| async move {
            // The id is moved in, because the stream outlives the borrow of the register's entry.
            self.client(context, &client).await
        });
        let known: Vec<_> = stream::iter(known)
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        known.into_iter().flatten().collect()
    }

    async fn register(&self, context: &Context) -> &BTreeSet<String> {
        let read = async || match self
            .ask(context, steps::clients(MOST_CLIENTS as u64 + 1))
            .await
        {
            Some(Value::List(ids)) => ids.into_iter().filter_map(text).collect(),
            _ => BTreeSet::new(),
        };
        self.register.get_or_init(read).await
    }

    async fn client(&self, context: &Context, id: &str) -> Option<Arc<KnownClient>> {
        if let Some(known) = self.known.lock().get(id) {
            return known.clone();
        }
        let reply = self.ask(context, steps::read(id)).await;
        let known = reply.and_then(|reply| read(id, reply, &context.prefix));
        let known = known.map(Arc::new);
        let mut table = self.known.lock();
        if table.len() >= MOST_KNOWN {
            table.clear();
        }
        table.insert(id.to_owned(), known.clone());
        known
    }

    /// Asks the server for a client's announcement. A failure is not reported, because everything
    /// else can still be shown.
    async fn ask(
        &self,
        context: &Context,
        question: crate::backend::step::Operation,
    ) -> Option<Value> {
        if self.is_denied() {
            return None;
        }
        match context.backend.submit(question).await {
            Ok(reply) => Some(reply),
            Err(failure) => {
                if matches!(failure.cause, Cause::Denied(_)) {
                    let _ = self.denied.set(());
                }
                None
            }
        }
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        _ => None,
    }
}

fn read(id: &str, reply: Value, prefix: &str) -> Option<KnownClient> {
    let Value::List(items) = reply else {
        return None;
    };
    let mut items = items.into_iter();
    let (Value::Int(now), Value::Int(at)) = (items.next()?, items.next()?) else {
        return None;
    };
    let since = Duration::from_millis(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
    let mut next = || text(items.next()?);
    let (label, host, pid) = (next()?, next()?, next()?);
    let (version, address, age_ms) = (next()?, next()?, next()?);
    let (holds, waits) = (next()?, next()?);
    let ago = |ms: &str| Some(since.saturating_add(Duration::from_millis(ms.parse().ok()?)));
    let hold = |word: &str| {
        let (id, rest) = word.rsplit_once(':')?;
        // With one guard, the entry has no count.
        let (ms, guards) = rest.split_once('*').unwrap_or((rest, "1"));
        Some((id.to_owned(), (ago(ms)?, guards.parse().ok()?)))
    };
    let wait = |line: &str| {
        let (ms, name) = line.split_once(' ')?;
        Some((name.to_owned(), ago(ms)?))
    };
    // The names are in the order of the announcement, the longest wait first.
    let named = |line: &str| wait(line)?.0.strip_prefix(prefix).map(str::to_owned);
    Some(KnownClient {
        info: ClientInfo {
            waits_for: waits.lines().filter_map(named).collect(),
            id: id.to_owned(),
            label: clean_label(&label),
            host,
            pid,
            version,
            address,
            age: ago(&age_ms)?,
        },
        holds: holds.split_whitespace().filter_map(hold).collect(),
        waits: waits.lines().filter_map(wait).collect(),
    })
}
