//! Wake-ups: who in this process listens to which channel. One entry and one
//! subscription per channel, however many listen.
//!
//! A message is a hint and nothing else. What travels to a listener is a counter:
//! one that has moved since the listener asked means "ask again". Messages,
//! confirmations and lost connections all move it, so that no waiter needs a case
//! of its own for a message that was lost on the way.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};

use crate::room::Room;
use crate::sync::Mutex;

/// The channels of one backend.
#[derive(Debug)]
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// Told when a channel is wanted or no longer wanted.
    changed: Notify,
    /// Channels live without a subscription (the embedded backend).
    always_live: bool,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// Entries that no subscription has been asked for, and entries whose last listener
    /// has left: what the connection's task has to do, however many stay as they are.
    fresh: Vec<Arc<str>>,
    left: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    signal: watch::Sender<Signal>,
    listeners: usize,
    /// Among those that were left; it may have listeners again.
    noted: bool,
    /// Of those who want the subscription confirmed once more, and of those whose
    /// confirmation is on its way.
    wanted: Option<Start>,
    asked: Vec<Start>,
}

/// How many zeros a channel had brought when a confirmation came, once it has. It is noted
/// there and then: whoever looks later would count from a later confirmation.
type Start = Arc<OnceLock<u64>>;

impl Entry {
    /// A confirmation is asked for now.
    fn ask(&mut self) {
        self.asked.extend(self.wanted.take());
    }

    /// The last that was asked for has come; so have those before it.
    fn confirm(&mut self) {
        let zeros = self.signal.borrow().zeros;
        for start in self.asked.drain(..) {
            // Only once: nobody else has it.
            let _ = start.set(zeros);
        }
    }
}

/// What a listener sees of its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signal {
    /// Moves with everything that may mean "ask again".
    count: u64,
    /// The server has confirmed the subscription and the connection stands.
    pub(crate) live: bool,
    /// The server refuses the channel; only polling helps.
    pub(crate) denied: bool,
    /// Messages "0" so far: a latch that was opened.
    zeros: u64,
}

impl Signal {
    /// Moves with everything that may mean "ask again".
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

impl Channels {
    pub(crate) fn new(always_live: bool) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            changed: Notify::new(),
            always_live,
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
        entries.insert(
            Arc::clone(&name),
            Entry {
                signal: sender,
                listeners: 1,
                noted: false,
                wanted: None,
                asked: Vec::new(),
            },
        );
        if !self.always_live {
            table.fresh.push(Arc::clone(&name));
        }
        drop(table);
        self.changed.notify_one();
        self.listener(name, signal)
    }

    /// Listens to `name` only if a subscription is already confirmed.
    pub(crate) fn listen_if_live(self: &Arc<Self>, name: &str) -> Option<Listener> {
        self.is_live(name).then(|| self.listen(name))
    }

    /// Whether a subscription to `name` is confirmed.
    pub(crate) fn is_live(&self, name: &str) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(name);
        entry.is_some_and(|entry| entry.signal.borrow().live)
    }

    /// Listens to `name`, and has the subscription confirmed once more. What comes after
    /// that confirmation was published after this call; a message that an older
    /// subscription brings may have been on its way for any time.
    pub(crate) fn listen_from_now(self: &Arc<Self>, name: &str) -> Listener {
        let mut listener = self.listen(name);
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(name) else {
            return listener;
        };
        let start = Arc::clone(entry.wanted.get_or_insert_default());
        listener.start = Some(start);
        if self.always_live {
            // Nothing is ever on its way.
            entry.ask();
            entry.confirm();
        } else {
            table.fresh.push(Arc::clone(&listener.name));
        }
        drop(table);
        self.changed.notify_one();
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

    /// A message came on `name`.
    pub(crate) fn told(&self, name: &str, message: &[u8]) {
        if let Some(entry) = self.table.lock().entries.get(name) {
            entry.signal.send_modify(|signal| {
                signal.count += 1;
                signal.zeros += u64::from(message == b"0");
            });
        }
    }

    /// Whoever listens to `name` asks again.
    pub(crate) fn wake(&self, name: &str) {
        self.told(name, b"");
    }

    /// Everybody has a reason to ask again.
    pub(crate) fn wake_all(&self) {
        for entry in self.table.lock().entries.values() {
            entry.signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// Nothing listens here any more: for "nothing is left behind" checks.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().entries.len()
    }
}

impl Channels {
    /// The connection that carries the messages is gone: whatever came since is lost.
    pub(crate) fn all_down(&self) {
        let mut table = self.table.lock();
        table.fresh = table.entries.keys().cloned().collect();
        for entry in table.entries.values() {
            entry.signal.send_modify(|signal| {
                signal.count += 1;
                signal.live = false;
            });
        }
    }

    /// The server has answered the subscription to `name`.
    pub(crate) fn subscribed(&self, name: &str, denied: bool) {
        if let Some(entry) = self.table.lock().entries.get_mut(name) {
            entry.confirm();
            entry.signal.send_if_modified(|signal| {
                // One that only confirms what stood already is no news to the others.
                let news = signal.live == denied || signal.denied != denied;
                signal.count += u64::from(news);
                signal.live = !denied;
                signal.denied = denied;
                news
            });
        }
    }

    /// Nobody listens to any channel, and nobody has until just now.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().entries.is_empty()
    }

    /// The channels that a subscription has to be asked for; the caller does.
    pub(crate) fn take_fresh(&self) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let mut fresh = std::mem::take(&mut table.fresh);
        // Forgotten before anybody subscribed, it may stand there twice, or for nothing.
        fresh.sort_unstable();
        fresh.dedup();
        fresh.retain(|name| {
            let entry = table.entries.get_mut(name);
            entry.map(Entry::ask).is_some()
        });
        fresh
    }

    /// Forgets the channels that nobody listens to.
    pub(crate) fn remove_idle(&self) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let mut left = std::mem::take(&mut table.left);
        left.retain(|name| {
            let Some(entry) = table.entries.get_mut(name) else {
                return false;
            };
            entry.noted = false;
            entry.listeners == 0 && table.entries.remove(name).is_some()
        });
        table.entries.give_back();
        left
    }

    /// Resolves when a channel is wanted or no longer wanted.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// One who listens to a channel. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Listener {
    channels: Arc<Channels>,
    name: Arc<str>,
    signal: watch::Receiver<Signal>,
    /// The confirmation that it has asked for, if it has.
    start: Option<Start>,
}

impl Listener {
    /// What the channel looks like now. Taken before the request whose answer
    /// will be trusted.
    pub(crate) fn mark(&self) -> Signal {
        *self.signal.borrow()
    }

    /// Messages "0" that were published after it began to listen.
    pub(crate) fn zeros(&self) -> u64 {
        let before = self.start.as_ref().and_then(|start| start.get());
        before.map_or(0, |before| self.mark().zeros.saturating_sub(*before))
    }

    /// Resolves when the channel has moved since `mark`.
    pub(crate) async fn moved_since(&mut self, mark: Signal) {
        // The sender lives in the entry, and the entry as long as this listener.
        let _ = self
            .signal
            .wait_for(|signal| signal.count != mark.count)
            .await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut table = self.channels.table.lock();
        let Some(entry) = table.entries.get_mut(&self.name) else {
            return;
        };
        entry.listeners -= 1;
        if entry.listeners > 0 {
            return;
        }
        if self.channels.always_live {
            table.entries.remove(&self.name);
            table.entries.give_back();
        } else if !std::mem::replace(&mut entry.noted, true) {
            table.left.push(Arc::clone(&self.name));
            self.channels.changed.notify_one();
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    fn names(taken: &[Arc<str>]) -> Vec<&str> {
        taken.iter().map(|name| &**name).collect()
    }

    #[test]
    fn only_what_is_new_has_to_be_subscribed() {
        let channels = Channels::new(false);
        let _first = (channels.listen("b"), channels.listen("a"));
        assert_eq!(names(&channels.take_fresh()), ["a", "b"]);
        let _second = (channels.listen("b"), channels.listen("c"));
        assert_eq!(names(&channels.take_fresh()), ["c"]);
        assert!(channels.take_fresh().is_empty());
    }

    #[test]
    fn channel_that_is_wanted_again_in_time_is_kept() {
        let channels = Channels::new(false);
        drop((channels.listen("a"), channels.listen("b")));
        let _again = channels.listen("b");
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        assert_eq!(channels.len(), 1);
        assert!(channels.remove_idle().is_empty());
    }

    #[test]
    fn channel_that_is_left_a_second_time_is_forgotten() {
        let channels = Channels::new(false);
        drop(channels.listen("a"));
        let again = channels.listen("a");
        assert!(channels.remove_idle().is_empty());
        drop(again);
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        assert!(channels.is_empty());
    }

    #[test]
    fn forgotten_channel_that_is_wanted_again_is_subscribed_once() {
        let channels = Channels::new(false);
        drop(channels.listen("a"));
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        let _again = channels.listen("a");
        assert_eq!(names(&channels.take_fresh()), ["a"]);
        drop(channels.listen("b"));
        assert_eq!(names(&channels.remove_idle()), ["b"]);
        assert!(channels.take_fresh().is_empty());
    }

    #[test]
    fn zeros_count_from_the_listeners_own_confirmation() {
        let channels = Channels::new(false);
        let zero = || channels.told("a", b"0");
        let confirm = || {
            channels.take_fresh();
            channels.subscribed("a", false);
        };
        let first = channels.listen_from_now("a");
        zero();
        confirm();
        zero();
        // It has not looked at its channel since then.
        let second = channels.listen_from_now("a");
        confirm();
        assert_eq!((first.zeros(), second.zeros()), (1, 0));
        zero();
        assert_eq!((first.zeros(), second.zeros()), (2, 1));
    }

    #[test]
    fn a_confirmation_that_a_lost_connection_took_along_is_that_of_the_next() {
        let channels = Channels::new(false);
        let first = channels.listen_from_now("a");
        channels.take_fresh();
        channels.all_down();
        let second = channels.listen_from_now("a");
        channels.told("a", b"0");
        channels.take_fresh();
        channels.subscribed("a", false);
        assert_eq!((first.zeros(), second.zeros()), (0, 0));
        channels.told("a", b"0");
        assert_eq!((first.zeros(), second.zeros()), (1, 1));
    }

    #[test]
    fn after_a_lost_connection_all_have_to_be_subscribed_again() {
        let channels = Channels::new(false);
        let _listeners = (channels.listen("a"), channels.listen("b"));
        channels.take_fresh();
        let _new = channels.listen("c");
        channels.all_down();
        assert_eq!(names(&channels.take_fresh()), ["a", "b", "c"]);
    }
}
