//! The clients that reach a keyspace through a network. Without the feature `testing` there are
//! none.

#[cfg(feature = "testing")]
use std::sync::{Arc, Weak};

#[cfg(feature = "testing")]
use crate::backend::network::Link;
#[cfg(feature = "testing")]
use crate::sync::Mutex;

use crate::backend::channels::Message;

#[derive(Clone, Default)]
pub(super) struct Links {
    #[cfg(feature = "testing")]
    links: Arc<Mutex<Vec<Weak<Link>>>>,
}

#[cfg(feature = "testing")]
impl Links {
    /// Adds `link` to the links that receive messages, for as long as it lives.
    pub(super) fn attach(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        // The link owns the keyspace, so a strong reference here would keep both alive forever.
        links.push(Arc::downgrade(link));
    }

    pub(super) fn alive(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock();
        // The links are collected so that the lock is released: the test's closure that decides
        // about a message may cut all links.
        links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Counts the links that have subscribed to `channel`.
    pub(super) fn subscribed(&self, channel: &str) -> i64 {
        let links = self.alive().into_iter();
        let subscribed = links.filter(|link| link.is_subscribed(channel)).count();
        i64::try_from(subscribed).unwrap_or(i64::MAX)
    }

    pub(super) fn publish(&self, message: Message<'_>) {
        for link in self.alive() {
            link.publish(message);
        }
    }
}

#[cfg(not(feature = "testing"))]
#[expect(clippy::unused_self, reason = "as where there are links")]
impl Links {
    pub(super) fn subscribed(&self, _channel: &str) -> i64 {
        0
    }

    pub(super) fn publish(&self, _message: Message<'_>) {}
}
