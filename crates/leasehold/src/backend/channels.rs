//! Wake-ups: who in this process listens to which channel. One entry and one
//! subscription per channel, however many listen.
//!
//! A message is a hint and nothing else. What travels to a listener is a counter:
//! one that has moved since the listener asked means "ask again". Messages,
//! confirmations and lost connections all move it, so that no waiter needs a case
//! of its own for a message that was lost on the way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

/// The channels of one backend.
#[derive(Debug)]
pub(crate) struct Channels {
    entries: Mutex<HashMap<Arc<str>, Entry>>,
    /// Told when a channel is wanted or no longer wanted.
    changed: Notify,
    /// Channels live without a subscription (the embedded backend).
    always_live: bool,
}

#[derive(Debug)]
struct Entry {
    signal: watch::Sender<Signal>,
    listeners: usize,
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
}

impl Channels {
    pub(crate) fn new(always_live: bool) -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            changed: Notify::new(),
            always_live,
        })
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        // No code that can panic runs under this lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to `name`; the subscription may still be on its way.
    pub(crate) fn listen(self: &Arc<Self>, name: &str) -> Listener {
        let mut entries = self.entries();
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
            },
        );
        drop(entries);
        self.changed.notify_one();
        self.listener(name, signal)
    }

    /// Listens to `name` only if a subscription is already confirmed.
    pub(crate) fn listen_if_live(self: &Arc<Self>, name: &str) -> Option<Listener> {
        let live = self
            .entries()
            .get(name)
            .is_some_and(|entry| entry.signal.borrow().live);
        live.then(|| self.listen(name))
    }

    fn listener(self: &Arc<Self>, name: Arc<str>, signal: watch::Receiver<Signal>) -> Listener {
        Listener {
            channels: Arc::clone(self),
            name,
            signal,
        }
    }

    /// A message came on `name`.
    pub(crate) fn wake(&self, name: &str) {
        if let Some(entry) = self.entries().get(name) {
            entry.signal.send_modify(|signal| signal.count += 1);
        }
    }

    /// Nothing listens here any more: for "nothing is left behind" checks.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }
}

impl Channels {
    /// The connection that carries the messages is gone: whatever came since is lost.
    pub(crate) fn all_down(&self) {
        for entry in self.entries().values() {
            entry.signal.send_modify(|signal| {
                signal.count += 1;
                signal.live = false;
            });
        }
    }

    /// The server has answered the subscription to `name`.
    pub(crate) fn subscribed(&self, name: &str, denied: bool) {
        if let Some(entry) = self.entries().get(name) {
            entry.signal.send_modify(|signal| {
                signal.count += 1;
                signal.live = !denied;
                signal.denied = denied;
            });
        }
    }

    /// All channels somebody listens to, or has listened to until just now.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.entries().keys().cloned().collect()
    }

    /// Forgets the channels that nobody listens to.
    pub(crate) fn remove_idle(&self) -> Vec<Arc<str>> {
        let mut idle = Vec::new();
        self.entries().retain(|name, entry| {
            if entry.listeners == 0 {
                idle.push(Arc::clone(name));
            }
            entry.listeners > 0
        });
        idle
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
}

impl Listener {
    /// What the channel looks like now. Taken before the request whose answer
    /// will be trusted.
    pub(crate) fn mark(&self) -> Signal {
        *self.signal.borrow()
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
        let mut entries = self.channels.entries();
        if let Some(entry) = entries.get_mut(&self.name) {
            entry.listeners -= 1;
            if entry.listeners > 0 {
                return;
            }
            if self.channels.always_live {
                entries.remove(&self.name);
            } else {
                self.channels.changed.notify_one();
            }
        }
    }
}
