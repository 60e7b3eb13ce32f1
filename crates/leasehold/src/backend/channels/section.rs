//! The side of the connections that carry the messages. Each node has one, with the channels whose
//! messages it brings; a single server has all of them. When a channel becomes another node's, the
//! entry and its listeners stay, and only the connection changes.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use super::heard::Message;
use super::{Channels, Entry, Work};
use crate::room::Room;

/// The channels of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    channels: Arc<Channels>,
    node: usize,
    changed: Arc<Notify>,
}

impl Channels {
    /// The channels of this node's connection.
    pub(crate) fn section(self: &Arc<Self>, node: usize) -> Section {
        let changed = Arc::clone(&self.table.lock().work(node).changed);
        Section {
            channels: Arc::clone(self),
            node,
            changed,
        }
    }

    /// Nodes have got other channels: each channel goes to the connection that brings its messages
    /// now.
    #[cfg(feature = "redis")]
    pub(crate) fn place_again(&self) {
        let mut table = self.table.lock();
        let table = &mut *table;
        for (name, entry) in &mut table.entries {
            let node = (self.place.0)(name);
            if node == entry.node {
                continue;
            }
            if let Some(old) = entry.node {
                // Its connection has to end the subscription.
                table.work.entry(old).or_default().gave_up(name);
            }
            entry.down();
            entry.node = node;
            entry.noted = entry.listeners == 0;
            if let Some(new) = node {
                table
                    .work
                    .entry(new)
                    .or_default()
                    .took_over(name, entry.noted);
            }
        }
    }
}

impl Work {
    #[cfg(feature = "redis")]
    fn gave_up(&mut self, name: &Arc<str>) {
        self.entries -= 1;
        self.left.push(Arc::clone(name));
        self.changed.notify_one();
    }

    #[cfg(feature = "redis")]
    fn took_over(&mut self, name: &Arc<str>, idle: bool) {
        self.entries += 1;
        self.fresh.push(Arc::clone(name));
        if idle {
            self.left.push(Arc::clone(name));
        }
        self.changed.notify_one();
    }
}

impl Entry {
    /// No messages come any more.
    fn down(&self) {
        self.signal.send_modify(|signal| {
            signal.count += 1;
            signal.live = false;
        });
    }
}

impl Section {
    /// A message came.
    pub(crate) fn told(&self, message: Message<'_>) {
        self.channels.told(message);
    }

    /// The server knows no messages to a shard.
    #[cfg(feature = "redis")]
    pub(crate) fn hears_one_transport(&self) {
        self.channels
            .both_transports
            .store(false, Ordering::Relaxed);
    }

    /// The connection is gone: messages that were published since are lost.
    pub(crate) fn all_down(&self) {
        let mut table = self.channels.table.lock();
        let ours = |entry: &&Entry| entry.node == Some(self.node);
        table.entries.values().filter(ours).for_each(Entry::down);
        // All of them: those whose subscription was on its way as well.
        let names = table.entries.iter().filter(|(_, entry)| ours(entry));
        let names = names.map(|(name, _)| Arc::clone(name)).collect();
        table.work(self.node).fresh = names;
    }

    /// The server brings the messages of `name` no longer: they are another node's to bring, which
    /// [`place_again`](Channels::place_again) finds.
    #[cfg(feature = "redis")]
    pub(crate) fn lost(&self, name: &str) {
        let mut table = self.channels.table.lock();
        if let Some(entry) = table.entries.get_mut(name)
            && entry.node == Some(self.node)
        {
            entry.down();
            entry.node = None;
            let name = Arc::from(name);
            table.work(self.node).gave_up(&name);
        }
    }

    /// The server has answered the subscription to `name`.
    pub(crate) fn subscribed(&self, name: &str, denied: bool) {
        let mut table = self.channels.table.lock();
        // One that is another connection's by now is answered there.
        if let Some(entry) = table.entries.get_mut(name)
            && entry.node == Some(self.node)
        {
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

    /// No channel has an entry here: nobody listens, and no subscription lingers.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.channels.table.lock().work(self.node).entries == 0
    }

    /// The channels for which a subscription has to be requested; the caller does that.
    pub(crate) fn take_fresh(&self) -> Vec<Arc<str>> {
        let mut table = self.channels.table.lock();
        let mut fresh = std::mem::take(&mut table.work(self.node).fresh);
        // A channel that was forgotten before anybody subscribed it may be here twice, or have
        // no entry any more.
        fresh.sort_unstable();
        fresh.dedup();
        fresh.retain(|name| {
            let entry = table.entries.get_mut(name);
            let entry = entry.filter(|entry| entry.node == Some(self.node));
            // Noted before the request leaves: a listener that comes while it is on its way needs a
            // later confirmation.
            entry.map(Entry::ask).is_some()
        });
        fresh
    }

    /// Forgets the channels that nobody listens to. The caller ends their subscriptions, and those
    /// of channels that are another connection's now.
    pub(crate) fn remove_idle(&self) -> Vec<Arc<str>> {
        let mut table = self.channels.table.lock();
        let mut left = std::mem::take(&mut table.work(self.node).left);
        let mut removed = 0;
        left.retain(|name| {
            let entry = table.entries.get_mut(name);
            // One that is another connection's by now, or was, and is forgotten there.
            let Some(entry) = entry.filter(|entry| entry.node == Some(self.node)) else {
                return true;
            };
            // Cleared also for a channel that is wanted again: when it is left next, it has to
            // be noted anew.
            entry.noted = false;
            let is_idle = entry.listeners == 0 && table.entries.remove(name).is_some();
            removed += usize::from(is_idle);
            is_idle
        });
        table.work(self.node).entries -= removed;
        table.entries.give_back();
        left
    }

    /// Resolves when a channel is wanted or no longer wanted.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
