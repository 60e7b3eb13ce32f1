//! Wake-ups: which waiters of this process listen to which channel. One entry and one
//! subscription per channel, however many waiters listen. (Here and not beside the wait loop,
//! because the connection's task shares it with the waiters, and imports point down.)
//!
//! A message is a hint and nothing else. A listener sees a counter: if it has moved since the
//! listener asked, that means "ask again". Messages, confirmations of a subscription and lost
//! connections all move it, so a lost message needs no case of its own. (The subscription that
//! follows a lost connection finds out what was missed: its confirmation makes the waiter ask.)
//!
//! A release may call one client by its number, in a message right behind its `0`. The two are taken
//! together ([`Heard`]): to the client that is called they mean "ask again", to the others that
//! somebody else does. Permits that come back call each client on a channel of its own.

mod heard;
#[cfg(any(feature = "redis", feature = "testing"))]
mod section;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};

use self::heard::called_for_permits;
pub(crate) use self::heard::{Heard, Message, Transport};
#[cfg(any(feature = "redis", feature = "testing"))]
pub(crate) use self::section::Section;

use crate::process::Process;
use crate::room::Room;
use crate::sync::Mutex;

/// The channels of one backend.
#[derive(Debug)]
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// Channels live without a subscription (the embedded backend).
    always_live: bool,
    place: Place,
    /// By this number a release calls this client. Never 0 or 1, which mean something to Redisson.
    number: u64,
    /// In a child of it nobody listens.
    process: Process,
    /// Messages come by both transports, and others may hear only one of them.
    both_transports: AtomicBool,
}

/// Which node's connection brings the messages of a channel; `None` while no node is known to.
pub(crate) struct Place(Box<FindNode>);

type FindNode = dyn Fn(&str) -> Option<usize> + Send + Sync;

impl Place {
    #[cfg(feature = "redis")]
    pub(crate) fn by(place: impl Fn(&str) -> Option<usize> + Send + Sync + 'static) -> Self {
        Self(Box::new(place))
    }

    /// There is one connection, for all channels.
    fn single() -> Self {
        Self(Box::new(|_| Some(0)))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// What the connection of each node has to do.
    work: HashMap<usize, Work>,
}

impl Table {
    fn work(&mut self, node: usize) -> &mut Work {
        self.work.entry(node).or_default()
    }
}

/// The work of one connection's task, however many entries stay as they are.
#[derive(Debug, Default)]
struct Work {
    /// Entries for which no subscription was requested yet.
    fresh: Vec<Arc<str>>,
    /// Entries whose last listener has left, and those that are another connection's now.
    left: Vec<Arc<str>>,
    /// How many entries are this connection's.
    entries: usize,
    /// Notified when a channel is wanted or no longer wanted.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct Entry {
    /// Whose connection brings its messages; `None` until that is known.
    node: Option<usize>,
    signal: watch::Sender<Signal>,
    listeners: usize,
    /// It is among `left`; it may have listeners again.
    noted: bool,
    /// Of the listeners that want the subscription confirmed once more, and of those whose
    /// confirmation is on its way.
    wanted: Option<Start>,
    asked: Vec<Start>,
    /// The zeros that the channel had brought when a waiter passed one on.
    passed_on: Option<Zeros>,
}

/// The zeros that a channel had brought when a confirmation came, once it has come. They are noted
/// there and then: a listener that looked only later would count from a later confirmation.
pub(crate) type Start = Arc<OnceLock<Zeros>>;

/// How many messages `0` have come by each transport: a latch was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zeros {
    global: u64,
    sharded: u64,
}

impl Zeros {
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

    fn came_by_both(self) -> bool {
        self.global > 0 && self.sharded > 0
    }
}

impl Entry {
    /// A confirmation is requested now.
    fn ask(&mut self) {
        self.asked.extend(self.wanted.take());
    }

    /// The last confirmation that was requested has come; so have those before it.
    fn confirm(&mut self) {
        let zeros = self.signal.borrow().zeros;
        // Also those that a lost connection took along: the next confirmation is later still, so
        // no zero counts that was published before its listener came.
        for start in self.asked.drain(..) {
            // Drained, so each is set once.
            let _ = start.set(zeros);
        }
    }
}

/// What a listener sees of its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signal {
    /// Moves with everything that may mean "ask again".
    count: u64,
    /// The server has confirmed the subscription, and its connection is up.
    pub(crate) live: bool,
    /// The server refuses the channel; only polling helps.
    pub(crate) denied: bool,
    /// Messages `0` so far.
    zeros: Zeros,
    /// Releases that have called this client so far.
    pub(crate) called: u64,
    /// Clients that releases have called so far; of locks, other ones.
    pub(crate) passed: u64,
}

impl Signal {
    /// Moves with everything that may mean "ask again".
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

/// Draws a number of 15 or 16 digits, so that no two clients have the same, and exact in every script.
fn draw_number() -> u64 {
    const LEAST: u64 = 100_000_000_000_000;
    // From the system, as the id of a client: a fork copies the generator of a thread, and the child
    // would draw the number of its parent's next client.
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    LEAST + random % ((1 << 53) - LEAST)
}

impl Channels {
    pub(crate) fn new(always_live: bool) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            always_live,
            place: Place::single(),
            number: draw_number(),
            process: Process::own(),
            both_transports: AtomicBool::new(false),
        })
    }

    /// The channels of several nodes.
    #[cfg(feature = "redis")]
    pub(crate) fn placed(place: Place, both_transports: bool) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            always_live: false,
            place,
            number: draw_number(),
            process: Process::own(),
            both_transports: AtomicBool::new(both_transports),
        })
    }

    /// Listens to `name`; the subscription may still be on its way.
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
        let node = (self.place.0)(&name);
        entries.insert(
            Arc::clone(&name),
            Entry {
                node,
                signal: sender,
                listeners: 1,
                noted: false,
                wanted: None,
                asked: Vec::new(),
                passed_on: None,
            },
        );
        if let Some(node) = node.filter(|_| !self.always_live) {
            let work = table.work(node);
            work.entries += 1;
            work.fresh.push(Arc::clone(&name));
            // Behind the entry: the connection's task looks when it is notified, and a notice
            // before the entry would find nothing to subscribe.
            work.changed.notify_one();
        }
        drop(table);
        self.listener(name, signal)
    }

    /// Listens to `name` only if a subscription is already confirmed.
    pub(crate) fn listen_if_live(self: &Arc<Self>, name: &str) -> Option<Listener> {
        // The entry may go between the two. Then this listens to a new one, whose confirmation
        // wakes the listener.
        self.is_live(name).then(|| self.listen(name))
    }

    /// Whether a subscription to `name` is confirmed.
    pub(crate) fn is_live(&self, name: &str) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(name);
        entry.is_some_and(|entry| entry.signal.borrow().live)
    }

    /// Listens to `name`, and has the subscription confirmed once more. A message that comes
    /// behind that confirmation was published after this call; one that an older subscription
    /// brings may have been on its way for any time. For a latch, where a message is more than a
    /// hint: Redisson leaves no note of a zero, and when it has also set the latch again, only
    /// the message tells that it was open.
    pub(crate) fn listen_from_now(self: &Arc<Self>, name: &str) -> Listener {
        let mut listener = self.listen(name);
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(name) else {
            return listener;
        };
        // Shared by all that come before the next request, which one confirmation answers.
        let start = Arc::clone(entry.wanted.get_or_insert_default());
        listener.start = Some(start);
        if self.always_live {
            // Nothing is ever on its way.
            entry.ask();
            entry.confirm();
        } else if let Some(node) = entry.node {
            let work = table.work(node);
            work.fresh.push(Arc::clone(&listener.name));
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
            start: None,
        }
    }

    /// A message came.
    pub(crate) fn told(&self, message: Message<'_>) {
        if let Some(entry) = self.table.lock().entries.get(message.channel) {
            entry.signal.send_modify(|signal| {
                if message.payload == b"0" {
                    signal.zeros.count(message.transport);
                }
                match message.called {
                    Some(number) if number != self.number => signal.passed += 1,
                    None if called_for_permits(message.payload) > 0 => {
                        signal.passed += called_for_permits(message.payload);
                    }
                    called => {
                        signal.count += 1;
                        signal.called += u64::from(called.is_some());
                    }
                }
            });
        }
    }

    /// Whether a waiter that has been let in by a latch should publish that once more: others may
    /// listen where nobody has published it. `true` for one waiter of this process at a time.
    pub(crate) fn passes_on(&self, name: &str, start: &Start) -> bool {
        if !self.both_transports.load(Ordering::Relaxed) {
            return false;
        }
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(name) else {
            return false;
        };
        let now = entry.signal.borrow().zeros;
        let before = start.get().copied().unwrap_or(now);
        let is_needed = !now.since(before).came_by_both() && entry.passed_on != Some(now);
        if is_needed {
            entry.passed_on = Some(now);
        }
        is_needed
    }

    /// The number by which a release calls this client.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Makes the listeners of `name` ask again.
    pub(crate) fn wake(&self, name: &str) {
        self.told(Message::new(name, b"", Transport::Global));
    }

    /// Makes all listeners ask again.
    pub(crate) fn wake_all(&self) {
        for entry in self.table.lock().entries.values() {
            entry.signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// Counts the channels with an entry, for checks that nothing is left over. The channels on which
    /// this client alone is called don't count.
    pub(crate) fn len(&self) -> usize {
        let own = format!(":{}", self.number);
        let table = self.table.lock();
        let names = table.entries.keys();
        names.filter(|name| !name.ends_with(&own)).count()
    }
}

/// One waiter's interest in a channel; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Listener {
    channels: Arc<Channels>,
    name: Arc<str>,
    signal: watch::Receiver<Signal>,
    /// The confirmation that it has requested, if it has.
    start: Option<Start>,
}

impl Listener {
    /// The channel's present state. A waiter takes it before the request whose answer it will
    /// trust.
    pub(crate) fn mark(&self) -> Signal {
        *self.signal.borrow()
    }

    /// Whether a message `0` has come that was published after it began to listen.
    pub(crate) fn heard_zero(&self) -> bool {
        let before = self.start.as_ref().and_then(|start| start.get());
        // Until its confirmation has come, every zero may be from before this listener.
        before.is_some_and(|before| self.mark().zeros != *before)
    }

    /// From where it counts messages `0`, if it does.
    pub(crate) fn start(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// Resolves when the channel has moved since `mark`, whichever client is meant.
    pub(crate) async fn moved_since(&mut self, mark: Signal) {
        // It can't fail: the sender lives in the entry, and the entry as long as this listener.
        let _ = self
            .signal
            .wait_for(|signal| signal.count != mark.count || signal.passed != mark.passed)
            .await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.channels.process.is_gone() {
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
            table.entries.give_back();
            return;
        };
        if !std::mem::replace(&mut entry.noted, true) {
            // Left for the connection's task, which forgets it after a while: the next waiter of
            // a busy name finds the subscription in place.
            let work = table.work(node);
            work.left.push(Arc::clone(&self.name));
            work.changed.notify_one();
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests;
