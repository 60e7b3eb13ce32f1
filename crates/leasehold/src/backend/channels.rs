//! Wake-ups: which waiters of this process listen to which channel. One entry and one
//! subscription per channel, however many waiters listen. (Here and not beside the wait loop,
//! because the connection's task shares it with the waiters, and imports point down.)
//!
//! A message is a hint and nothing else. A listener sees a counter: if it has moved since the
//! listener asked, that means "ask again". Messages, confirmations of a subscription and lost
//! connections all move it, so a lost message needs no case of its own. (The subscription that
//! follows a lost connection finds out what was missed: its confirmation makes the waiter ask.)

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};

use crate::room::Room;
use crate::sync::Mutex;

/// The channels of one backend.
#[derive(Debug)]
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// Notified when a channel is wanted or no longer wanted.
    changed: Notify,
    /// Channels live without a subscription (the embedded backend).
    always_live: bool,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// Entries for which no subscription was requested yet, and entries whose last listener has
    /// left: the work of the connection's task, however many entries stay as they are.
    fresh: Vec<Arc<str>>,
    left: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    signal: watch::Sender<Signal>,
    listeners: usize,
    /// It is among `left`; it may have listeners again.
    noted: bool,
    /// Of the listeners that want the subscription confirmed once more, and of those whose
    /// confirmation is on its way.
    wanted: Option<Start>,
    asked: Vec<Start>,
}

/// How many zeros a channel had brought when a confirmation came, once it has come. It is noted
/// there and then: a listener that looked only later would count from a later confirmation.
type Start = Arc<OnceLock<u64>>;

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
    /// Messages `0` so far: a latch was opened.
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
        // Behind the entry: the connection's task looks when it is notified, and a notice before
        // the entry would find nothing to subscribe.
        self.changed.notify_one();
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

    /// Makes the listeners of `name` ask again.
    pub(crate) fn wake(&self, name: &str) {
        self.told(name, b"");
    }

    /// Makes all listeners ask again.
    pub(crate) fn wake_all(&self) {
        for entry in self.table.lock().entries.values() {
            entry.signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// How many channels have an entry: for checks that nothing is left behind.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().entries.len()
    }
}

/// For the connection that carries the messages.
#[cfg(any(feature = "redis", feature = "testing"))]
impl Channels {
    /// The connection for messages is gone: messages that were published since are lost.
    pub(crate) fn all_down(&self) {
        let mut table = self.table.lock();
        // All of them: those whose subscription was on its way as well.
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
            // Before the listeners are woken, which look at their zeros then.
            entry.confirm();
            entry.signal.send_if_modified(|signal| {
                // It moves the counter: a release between a waiter's ask and the subscription
                // was heard by nobody, so the waiter asks again. A confirmation of what was
                // confirmed before (`listen_from_now`) is no news to the others.
                let news = signal.live == denied || signal.denied != denied;
                signal.count += u64::from(news);
                signal.live = !denied;
                signal.denied = denied;
                news
            });
        }
    }

    /// No channel has an entry: nobody listens, and no subscription lingers.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().entries.is_empty()
    }

    /// The channels for which a subscription has to be requested; the caller does that.
    pub(crate) fn take_fresh(&self) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let mut fresh = std::mem::take(&mut table.fresh);
        // A channel that was forgotten before anybody subscribed it may be here twice, or have
        // no entry any more.
        fresh.sort_unstable();
        fresh.dedup();
        fresh.retain(|name| {
            let entry = table.entries.get_mut(name);
            // Noted before the request leaves: a listener that comes while it is on its way needs a
            // later confirmation.
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
            // Cleared also for a channel that is wanted again: when it is left next, it has to
            // be noted anew.
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

    /// Messages `0` that were published after it began to listen.
    pub(crate) fn zeros(&self) -> u64 {
        let before = self.start.as_ref().and_then(|start| start.get());
        // Until its confirmation has come, every zero may be from before this listener.
        before.map_or(0, |before| self.mark().zeros.saturating_sub(*before))
    }

    /// Resolves when the channel has moved since `mark`.
    pub(crate) async fn moved_since(&mut self, mark: Signal) {
        // It can't fail: the sender lives in the entry, and the entry as long as this listener.
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
            // Left for the connection's task, which forgets it after a while: the next waiter of
            // a busy name finds the subscription in place.
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
    fn channel_with_a_new_listener_is_kept() {
        let channels = Channels::new(false);
        drop((channels.listen("a"), channels.listen("b")));
        let _again = channels.listen("b");
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        assert_eq!(channels.len(), 1);
        assert!(channels.remove_idle().is_empty());
    }

    #[test]
    fn channel_idle_again_is_removed() {
        let channels = Channels::new(false);
        drop(channels.listen("a"));
        let again = channels.listen("a");
        assert!(channels.remove_idle().is_empty());
        drop(again);
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        assert!(channels.is_empty());
    }

    #[test]
    fn removed_channel_is_resubscribed_once() {
        let channels = Channels::new(false);
        drop(channels.listen("a"));
        assert_eq!(names(&channels.remove_idle()), ["a"]);
        let _again = channels.listen("a");
        // Noted twice by now: before it was forgotten, and when it came back.
        assert_eq!(names(&channels.take_fresh()), ["a"]);
        drop(channels.listen("b"));
        assert_eq!(names(&channels.remove_idle()), ["b"]);
        // A subscription to it would have no listener, and nobody would end it.
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
    fn confirmation_after_reconnect_covers_earlier_listeners() {
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
    fn lost_connection_resubscribes_every_channel() {
        let channels = Channels::new(false);
        let _listeners = (channels.listen("a"), channels.listen("b"));
        channels.take_fresh();
        let _new = channels.listen("c");
        channels.all_down();
        assert_eq!(names(&channels.take_fresh()), ["a", "b", "c"]);
    }
}
