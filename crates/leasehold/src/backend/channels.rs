//! Keeps track of which waiters of this process listen to which channel, and wakes them. Each
//! channel has one entry and one subscription, however many waiters listen. (This module is not
//! next to the wait loop, because the connection's task needs it, too, and a lower layer imports
//! nothing from a higher one.)
//!
//! A message is only a hint. A listener watches a counter: if the counter has moved since the
//! waiter's last request, the waiter sends the request again. Messages, confirmations of a
//! subscription and lost connections all move the counter, so a lost message is not a special case.
//! (After a lost connection, the confirmation of the next subscription makes the waiter retry, and
//! the reply shows what it missed.)
//!
//! A release publishes `0`. Right after that, it can publish the number of one client, to notify
//! that client. The two messages are joined into one ([`MessageJoiner`]). The client with that
//! number must retry. All other clients learn that another client retries. When permits are
//! returned, each notified client gets a message on a channel of its own.

mod message;
#[cfg(any(feature = "redis", feature = "testing"))]
mod node_channels;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};

use self::message::notified_for_permits;
pub(crate) use self::message::{Message, MessageJoiner, Transport};
#[cfg(any(feature = "redis", feature = "testing"))]
pub(crate) use self::node_channels::NodeChannels;

use crate::process::Process;
use crate::shrink::ShrinkIfIdle;
use crate::sync::Mutex;

/// The channels of one backend.
#[derive(Debug)]
pub(crate) struct Channels {
    table: Mutex<ChannelTable>,
    /// Whether channels are live without a subscription (the embedded backend).
    always_live: bool,
    resolver: NodeResolver,
    /// The number by which a release notifies this client. It is never 0 or 1, because Redisson's
    /// messages use these.
    number: u64,
    /// The process that created the channels. In a forked child, dropping a listener does nothing.
    process: Process,
    /// Whether this client publishes and listens by both transports, `PUBLISH` and `SPUBLISH`.
    /// Other clients may listen by only one.
    both_transports: AtomicBool,
}

/// Finds the node whose connection delivers the messages of a channel; `None` while no node is
/// known.
pub(crate) struct NodeResolver(Box<ResolveNode>);

type ResolveNode = dyn Fn(&str) -> Option<usize> + Send + Sync;

impl NodeResolver {
    #[cfg(feature = "redis")]
    pub(crate) fn new(resolve: impl Fn(&str) -> Option<usize> + Send + Sync + 'static) -> Self {
        Self(Box::new(resolve))
    }

    /// Makes the resolver for a single connection that delivers the messages of all channels.
    fn single() -> Self {
        Self(Box::new(|_| Some(0)))
    }
}

impl fmt::Debug for NodeResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeResolver")
    }
}

#[derive(Debug, Default)]
struct ChannelTable {
    entries: HashMap<Arc<str>, ChannelEntry>,
    /// The work of each node's connection.
    work: HashMap<usize, ConnectionWork>,
}

impl ChannelTable {
    fn work(&mut self, node: usize) -> &mut ConnectionWork {
        self.work.entry(node).or_default()
    }
}

/// The work of one connection's task. The task visits only entries that have changed, not all
/// entries.
#[derive(Debug, Default)]
struct ConnectionWork {
    /// Entries for which no subscription has been requested yet.
    to_subscribe: Vec<Arc<str>>,
    /// Entries that have lost their listeners or moved to another connection.
    to_unsubscribe: Vec<Arc<str>>,
    /// The number of entries that this connection has.
    entries: usize,
    /// Notified when there is work for the connection's task.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct ChannelEntry {
    /// The node whose connection delivers the channel's messages; `None` while it is unknown.
    node: Option<usize>,
    signal: watch::Sender<Signal>,
    listeners: usize,
    /// Whether the entry is in `to_unsubscribe`. It may have listeners again.
    marked_idle: bool,
    /// The baseline that the next confirmation of the subscription will set. The listeners that
    /// arrive before this confirmation is requested share it.
    wanted: Option<ZeroBaseline>,
    /// The baselines whose confirmations were requested and have not arrived.
    requested: Vec<ZeroBaseline>,
    /// The number of zeros that had arrived when a waiter last republished one.
    republished_at: Option<ZeroCounts>,
}

/// The number of messages `0` (zeros) that had arrived on a channel when its subscription was
/// confirmed; unset until the confirmation. It is recorded at that moment: a listener that read the
/// count later would miss zeros that arrived in between.
pub(crate) type ZeroBaseline = Arc<OnceLock<ZeroCounts>>;

/// The number of messages `0` that arrived by each transport. On a latch's channel, each says that
/// the latch was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroCounts {
    global: u64,
    sharded: u64,
}

impl ZeroCounts {
    fn count(&mut self, transport: Transport) {
        match transport {
            Transport::Global => self.global += 1,
            Transport::Sharded => self.sharded += 1,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            global: self.global.saturating_sub(before.global),
            sharded: self.sharded.saturating_sub(before.sharded),
        }
    }

    fn arrived_by_both(self) -> bool {
        self.global > 0 && self.sharded > 0
    }
}

impl ChannelEntry {
    /// Notes that a confirmation is requested now.
    fn note_requested(&mut self) {
        self.requested.extend(self.wanted.take());
    }

    /// Notes that the confirmation that was requested last has arrived. All earlier ones count as
    /// arrived.
    fn note_confirmed(&mut self) {
        let zeros = self.signal.borrow().zeros;
        // Some of these confirmations may have been lost with a connection. The current
        // confirmation is later than those, so no listener counts a zero from before it began to
        // listen.
        for baseline in self.requested.drain(..) {
            // The list is drained, so each baseline is set once.
            let _ = baseline.set(zeros);
        }
    }
}

/// The state of a channel, as a listener sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signal {
    /// A counter that moves with each event that may require a retry.
    count: u64,
    /// Whether the server has confirmed the subscription, and its connection is up.
    pub(crate) live: bool,
    /// Whether the server refuses the channel, so that only polling helps.
    pub(crate) denied: bool,
    /// The number of messages `0` so far.
    zeros: ZeroCounts,
    /// The number of releases that have notified this client so far.
    pub(crate) notified: u64,
    /// The number of clients that releases have notified so far. The release of a lock counts here
    /// only if it notified another client. A return of permits adds every client that it notified.
    pub(crate) others_notified: u64,
}

impl Signal {
    /// Returns the counter that moves with each event that may require a retry.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

/// Draws a client's number. It has 15 or 16 digits: enough that no two clients draw the same, and
/// few enough to be exact in every script.
fn draw_number() -> u64 {
    const LEAST: u64 = 100_000_000_000_000;
    // The system draws the number, as it draws a client's id. A fork copies a thread's random
    // generator, so with that generator the child would draw the number of its parent's next
    // client.
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    LEAST + random % ((1 << 53) - LEAST)
}

impl Channels {
    pub(crate) fn new(always_live: bool) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            always_live,
            resolver: NodeResolver::single(),
            number: draw_number(),
            process: Process::own(),
            both_transports: AtomicBool::new(false),
        })
    }

    /// Makes the channels of several nodes.
    #[cfg(feature = "redis")]
    pub(crate) fn with_resolver(resolver: NodeResolver, both_transports: bool) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            always_live: false,
            resolver,
            number: draw_number(),
            process: Process::own(),
            both_transports: AtomicBool::new(both_transports),
        })
    }

    /// Listens to `name`. The subscription may not be confirmed yet.
    pub(crate) fn listen(self: &Arc<Self>, name: &str) -> Listener {
        let mut table = self.table.lock();
        let entries = &mut table.entries;
        if let Some((name, entry)) = entries
            .get_key_value(name)
            .map(|(name, _)| Arc::clone(name))
            .and_then(|name| entries.get_mut(&*name).map(|entry| (name, entry)))
        {
            entry.listeners += 1;
            let signal = entry.signal.subscribe();
            return self.listener(name, signal);
        }
        let name: Arc<str> = name.into();
        let (sender, signal) = watch::channel(Signal {
            live: self.always_live,
            ..Signal::default()
        });
        let node = (self.resolver.0)(&name);
        entries.insert(
            Arc::clone(&name),
            ChannelEntry {
                node,
                signal: sender,
                listeners: 1,
                marked_idle: false,
                wanted: None,
                requested: Vec::new(),
                republished_at: None,
            },
        );
        if let Some(node) = node.filter(|_| !self.always_live) {
            let work = table.work(node);
            work.entries += 1;
            work.to_subscribe.push(Arc::clone(&name));
            // The connection's task checks for new entries only when it is notified.
            work.changed.notify_one();
        }
        drop(table);
        self.listener(name, signal)
    }

    /// Listens to `name` only if a subscription is already confirmed.
    pub(crate) fn listen_if_live(self: &Arc<Self>, name: &str) -> Option<Listener> {
        // The entry may be removed between the two calls. In that case, the listener gets a new
        // entry, and the confirmation of that entry wakes it.
        self.is_live(name).then(|| self.listen(name))
    }

    /// Returns whether a subscription to `name` is confirmed.
    pub(crate) fn is_live(&self, name: &str) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(name);
        entry.is_some_and(|entry| entry.signal.borrow().live)
    }

    /// Listens to `name`, and has the subscription confirmed once more. A message that arrives
    /// after this confirmation was published after this call. A message of an older subscription
    /// may have been published long before. Latches use this, because for them a message is more
    /// than a hint: Redisson keeps no trace of an opened latch, and once the latch is set again,
    /// only the message shows that it was open.
    pub(crate) fn listen_from_now(self: &Arc<Self>, name: &str) -> Listener {
        let mut listener = self.listen(name);
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(name) else {
            return listener;
        };
        // All listeners that arrive before the next request share this baseline. One confirmation
        // sets it for all of them.
        let baseline = Arc::clone(entry.wanted.get_or_insert_default());
        listener.baseline = Some(baseline);
        if self.always_live {
            // In the embedded backend, no message is ever on its way.
            entry.note_requested();
            entry.note_confirmed();
        } else if let Some(node) = entry.node {
            let work = table.work(node);
            work.to_subscribe.push(Arc::clone(&listener.name));
            work.changed.notify_one();
        }
        drop(table);
        listener
    }

    fn listener(self: &Arc<Self>, name: Arc<str>, signal: watch::Receiver<Signal>) -> Listener {
        Listener {
            channels: Arc::clone(self),
            name,
            signal,
            baseline: None,
        }
    }

    /// Handles a message that has arrived.
    pub(crate) fn on_message(&self, message: Message<'_>) {
        if let Some(entry) = self.table.lock().entries.get(message.channel) {
            entry.signal.send_modify(|signal| {
                if message.payload == b"0" {
                    signal.zeros.count(message.transport);
                }
                match message.notified {
                    Some(number) if number != self.number => signal.others_notified += 1,
                    None if notified_for_permits(message.payload) > 0 => {
                        signal.others_notified += notified_for_permits(message.payload);
                    }
                    notified => {
                        signal.count += 1;
                        signal.notified += u64::from(notified.is_some());
                    }
                }
            });
        }
    }

    /// Returns whether a waiter that found a latch open must publish the zero once more, for
    /// clients that listen by only one of the transports. If several waiters of this process call
    /// this, only the first one must publish it.
    pub(crate) fn should_republish(&self, name: &str, baseline: &ZeroBaseline) -> bool {
        if !self.both_transports.load(Ordering::Relaxed) {
            return false;
        }
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(name) else {
            return false;
        };
        let now = entry.signal.borrow().zeros;
        let before = baseline.get().copied().unwrap_or(now);
        let is_needed = !now.since(before).arrived_by_both() && entry.republished_at != Some(now);
        if is_needed {
            entry.republished_at = Some(now);
        }
        is_needed
    }

    /// Returns the number by which a release notifies this client.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Makes the waiters that listen to `name` retry.
    pub(crate) fn wake(&self, name: &str) {
        self.on_message(Message::new(name, b"", Transport::Global));
    }

    /// Makes the waiters of all channels retry.
    pub(crate) fn wake_all(&self) {
        for entry in self.table.lock().entries.values() {
            entry.signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// Counts the channels with an entry, for checks that no entry leaks. Channels on which only
    /// this client is notified don't count.
    pub(crate) fn len(&self) -> usize {
        let table = self.table.lock();
        let names = table.entries.keys();
        names.filter(|name| !self.is_own(name)).count()
    }

    /// Returns whether only this client is notified on this channel.
    fn is_own(&self, name: &str) -> bool {
        let channel = name.strip_suffix(&self.number.to_string());
        channel.is_some_and(|channel| channel.ends_with(':'))
    }
}

/// One waiter's interest in a channel. The interest ends when the listener is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    channels: Arc<Channels>,
    name: Arc<str>,
    signal: watch::Receiver<Signal>,
    /// The baseline that is set by the confirmation that this listener has requested, if any.
    baseline: Option<ZeroBaseline>,
}

impl Listener {
    /// Returns the channel's current state. A waiter reads it before it sends a request: a later
    /// change means that the reply may be stale.
    pub(crate) fn signal(&self) -> Signal {
        *self.signal.borrow()
    }

    /// Returns whether a message `0` has arrived that was published after the listener began to
    /// listen.
    pub(crate) fn zero_arrived(&self) -> bool {
        let before = self.baseline.as_ref().and_then(|baseline| baseline.get());
        // Until the listener's confirmation has arrived, every zero may be older than the listener.
        before.is_some_and(|before| self.signal().zeros != *before)
    }

    /// Returns the baseline from which the listener counts messages `0`, if it counts them.
    pub(crate) fn baseline(&self) -> Option<&ZeroBaseline> {
        self.baseline.as_ref()
    }

    /// Resolves when the counter has moved since `earlier`, or a release has notified another
    /// client.
    pub(crate) async fn changed_since(&mut self, earlier: Signal) {
        // This can't fail: the sender is in the entry, and the entry lives as long as this
        // listener.
        let _ = self
            .signal
            .wait_for(|signal| {
                signal.count != earlier.count || signal.others_notified != earlier.others_notified
            })
            .await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.channels.process.is_forked() {
            return;
        }
        let mut table = self.channels.table.lock();
        let Some(entry) = table.entries.get_mut(&self.name) else {
            return;
        };
        entry.listeners -= 1;
        if entry.listeners > 0 {
            return;
        }
        let Some(node) = entry.node.filter(|_| !self.channels.always_live) else {
            table.entries.remove(&self.name);
            table.entries.shrink_if_idle();
            return;
        };
        if !std::mem::replace(&mut entry.marked_idle, true) {
            // The connection's task ends the subscription only after a while, so that the next
            // waiter for a busy name finds it still open.
            let work = table.work(node);
            work.to_unsubscribe.push(Arc::clone(&self.name));
            work.changed.notify_one();
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests;
