//! [`Watch`] and [`WatchAll`]: the changes of names, for threads.

use std::time::Duration;

use super::client::Client;
use super::runtime::Runtime;
use crate::error::Result;
use crate::operate::name::NameInfo;
use crate::recipes::watch::{self, Change, NamedChange};

impl Client {
    /// Returns an iterator over the changes of a name; see
    /// [`Client::watch`](crate::Client::watch).
    pub fn watch(&self, name: impl AsRef<str>) -> Watch {
        Watch {
            inner: self.as_async().watch(name),
            runtime: self.runtime().clone(),
        }
    }

    /// Returns an iterator over the changes of all names that match `pattern`; see
    /// [`Client::watch_all`](crate::Client::watch_all).
    pub fn watch_all(&self, pattern: impl AsRef<str>) -> WatchAll {
        WatchAll {
            inner: self.as_async().watch_all(pattern),
            runtime: self.runtime().clone(),
        }
    }
}

/// An iterator over the changes of a name; see [`Watch`](crate::watch::Watch). Its `next` waits for
/// a change. After [`Client::close`] it returns `None`.
#[derive(Debug)]
#[must_use = "no request is sent until the watch is read"]
pub struct Watch {
    inner: watch::Watch,
    runtime: Runtime,
}

impl Watch {
    /// Sets how often the client asks the server while no message arrives; see
    /// [`Watch::poll_interval`](crate::watch::Watch::poll_interval).
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.inner = self.inner.poll_interval(interval);
        self
    }

    /// Also looks up the clients of holders and waiters; see
    /// [`Watch::with_clients`](crate::watch::Watch::with_clients).
    pub fn with_clients(mut self) -> Self {
        self.inner = self.inner.with_clients();
        self
    }

    /// Returns the last state of the name; see [`Watch::state`](crate::watch::Watch::state).
    #[must_use]
    pub fn state(&self) -> Option<NameInfo> {
        self.inner.state()
    }
}

impl Iterator for Watch {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        // An `Interrupt` ends this wait, and the next call continues at the same place.
        let next = async { self.inner.next().await.transpose() };
        self.runtime.wait_on("watch::Watch::next", next).transpose()
    }
}

/// An iterator over the changes of several names; see [`WatchAll`](crate::watch::WatchAll). Its
/// `next` waits for a change. After [`Client::close`] it returns `None`.
#[derive(Debug)]
#[must_use = "no request is sent until it is read"]
pub struct WatchAll {
    inner: watch::WatchAll,
    runtime: Runtime,
}

impl WatchAll {
    /// Sets the pause between two listings; see
    /// [`WatchAll::rescan_every`](crate::watch::WatchAll::rescan_every).
    pub fn rescan_every(mut self, pause: Duration) -> Self {
        self.inner = self.inner.rescan_every(pause);
        self
    }

    /// Returns how many names the last listing has found beyond the first 1000; see
    /// [`WatchAll::left_out`](crate::watch::WatchAll::left_out).
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.inner.left_out()
    }
}

impl Iterator for WatchAll {
    type Item = Result<NamedChange>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = async { self.inner.next().await.transpose() };
        let next = self.runtime.wait_on("watch::WatchAll::next", next);
        next.transpose()
    }
}
