//! The channels as a connection sees them. Each node has one connection for messages, and a
//! [`NodeChannels`] with the channels whose messages arrive there. A single server has all
//! channels. When a channel moves to another node, the entry and its listeners remain, and only the
//! connection changes.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use super::message::Message;
use super::{ChannelEntry, Channels, ConnectionWork};
use crate::shrink::ShrinkIfIdle;

/// The channels of one connection.
#[derive(Clone, Debug)]
pub(crate) struct NodeChannels {
    channels: Arc<Channels>,
    node: usize,
    changed: Arc<Notify>,
}

impl Channels {
    /// Returns the channels of this node's connection.
    pub(crate) fn node_channels(self: &Arc<Self>, node: usize) -> NodeChannels {
        let changed = Arc::clone(&self.table.lock().work(node).changed);
        NodeChannels {
            channels: Arc::clone(self),
            node,
            changed,
        }
    }

    /// Assigns each channel to the connection that delivers its messages. Call this when slots have
    /// moved between nodes.
    #[cfg(feature = "redis")]
    pub(crate) fn reassign_nodes(&self) {
        let mut table = self.table.lock();
        let table = &mut *table;
        for (name, entry) in &mut table.entries {
            let node = (self.resolver.0)(name);
            if node == entry.node {
                continue;
            }
            if let Some(old) = entry.node {
                // The old node's connection must end the subscription.
                table.work.entry(old).or_default().remove_channel(name);
            }
            entry.mark_down();
            entry.node = node;
            entry.marked_idle = entry.listeners == 0;
            if let Some(new) = node {
                table
                    .work
                    .entry(new)
                    .or_default()
                    .add_channel(name, entry.marked_idle);
            }
        }
    }
}

impl ConnectionWork {
    #[cfg(feature = "redis")]
    fn remove_channel(&mut self, name: &Arc<str>) {
        self.entries -= 1;
        self.to_unsubscribe.push(Arc::clone(name));
        self.changed.notify_one();
    }

    #[cfg(feature = "redis")]
    fn add_channel(&mut self, name: &Arc<str>, idle: bool) {
        self.entries += 1;
        self.to_subscribe.push(Arc::clone(name));
        if idle {
            self.to_unsubscribe.push(Arc::clone(name));
        }
        self.changed.notify_one();
    }
}

impl ChannelEntry {
    /// Notes that messages no longer arrive.
    fn mark_down(&self) {
        self.signal.send_modify(|signal| {
            signal.count += 1;
            signal.live = false;
        });
    }
}

impl NodeChannels {
    /// Handles a message that has arrived.
    pub(crate) fn on_message(&self, message: Message<'_>) {
        self.channels.on_message(message);
    }

    /// Returns whether only this client is notified on this channel.
    #[cfg(feature = "redis")]
    pub(crate) fn is_own(&self, name: &str) -> bool {
        self.channels.is_own(name)
    }

    /// Notes that the server does not support sharded messages.
    #[cfg(feature = "redis")]
    pub(crate) fn use_single_transport(&self) {
        self.channels
            .both_transports
            .store(false, Ordering::Relaxed);
    }

    /// Notes that the connection is lost. Until the channels are subscribed to again, their
    /// messages are lost, too.
    pub(crate) fn all_down(&self) {
        let mut table = self.channels.table.lock();
        let ours = |entry: &&ChannelEntry| entry.node == Some(self.node);
        table
            .entries
            .values()
            .filter(ours)
            .for_each(ChannelEntry::mark_down);
        // All channels must be subscribed to again, even those whose subscription was not confirmed
        // yet.
        let names = table.entries.iter().filter(|(_, entry)| ours(entry));
        let names = names.map(|(name, _)| Arc::clone(name)).collect();
        table.work(self.node).to_subscribe = names;
    }

    /// Notes that the server no longer delivers the messages of `name`.
    /// [`reassign_nodes`](Channels::reassign_nodes) later finds the node that delivers them
    /// instead.
    #[cfg(feature = "redis")]
    pub(crate) fn lost(&self, name: &str) {
        let mut table = self.channels.table.lock();
        if let Some(entry) = table.entries.get_mut(name)
            && entry.node == Some(self.node)
        {
            entry.mark_down();
            entry.node = None;
            let name = Arc::from(name);
            table.work(self.node).remove_channel(&name);
        }
    }

    /// Notes the server's answer to the subscription to `name`.
    pub(crate) fn subscribed(&self, name: &str, denied: bool) {
        let mut table = self.channels.table.lock();
        // If the channel has moved to another connection, only the answer on that connection
        // counts.
        if let Some(entry) = table.entries.get_mut(name)
            && entry.node == Some(self.node)
        {
            // Set the baselines before the listeners wake, because they compare their zeros as soon
            // as they wake.
            entry.note_confirmed();
            entry.signal.send_if_modified(|signal| {
                // A waiter may have missed a release between its request and the subscription. The
                // counter moves, so the waiter retries. If the subscription was already confirmed
                // (`listen_from_now`), the confirmation is nothing new to the other listeners.
                let news = signal.live == denied || signal.denied != denied;
                signal.count += u64::from(news);
                signal.live = !denied;
                signal.denied = denied;
                news
            });
        }
    }

    /// Returns whether this connection has no entries at all: neither listeners nor subscriptions
    /// remain.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.channels.table.lock().work(self.node).entries == 0
    }

    /// Takes the channels whose subscription must be requested. The caller requests it.
    pub(crate) fn take_to_subscribe(&self) -> Vec<Arc<str>> {
        let mut table = self.channels.table.lock();
        let mut fresh = std::mem::take(&mut table.work(self.node).to_subscribe);
        // A channel that was removed before it was subscribed to may be here twice, or may no
        // longer have an entry.
        fresh.sort_unstable();
        fresh.dedup();
        fresh.retain(|name| {
            let entry = table.entries.get_mut(name);
            let entry = entry.filter(|entry| entry.node == Some(self.node));
            // The request is noted before it is sent: a listener that arrives while the request is
            // on its way needs a later confirmation.
            entry.map(ChannelEntry::note_requested).is_some()
        });
        fresh
    }

    /// Removes the channels without listeners. The caller ends the subscriptions of the returned
    /// channels. These include channels that have moved to another connection.
    pub(crate) fn remove_idle(&self) -> Vec<Arc<str>> {
        let mut table = self.channels.table.lock();
        let mut ended = std::mem::take(&mut table.work(self.node).to_unsubscribe);
        let mut removed = 0;
        ended.retain(|name| {
            let entry = table.entries.get_mut(name);
            // If it is not ours, the channel has moved to another connection, which may already
            // have removed it.
            let Some(entry) = entry.filter(|entry| entry.node == Some(self.node)) else {
                return true;
            };
            // The flag is cleared even for a channel that has listeners again, so that the channel
            // is noted again when the last of them is dropped.
            entry.marked_idle = false;
            let is_idle = entry.listeners == 0 && table.entries.remove(name).is_some();
            removed += usize::from(is_idle);
            is_idle
        });
        table.work(self.node).entries -= removed;
        table.entries.shrink_if_idle();
        ended
    }

    /// Resolves when there is work for the connection's task.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
