//! What a waiter knows of the clients that wait for the same name: a release calls one of them, or one
//! for each permit, so that not all of them ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::backend::Backend;
use crate::backend::channels::Listener;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::context::Context;
use crate::hold::Caller;
use crate::sync::Mutex;

/// The channel on which only this client listens. A client that waits for permits is called there,
/// because their common channel has numbers of permits, which Redisson counts. For a lock nothing is
/// published there: a release looks whether the client listens. `None` for a client that is not
/// called: one whose requests cost nothing, and one of a cluster, where a release does not know
/// whether anybody hears a call.
pub(super) fn own_channel(context: &Context, channel: &str) -> Option<Arc<str>> {
    let backend = &context.backend;
    let is_called = backend.counts_listeners() && !backend.is_in_process();
    is_called.then(|| format!("{channel}:{}", backend.channels().number()).into())
}

/// A waiter's part in the calls of clients. It ends with the waiter.
pub(super) struct Called<'a> {
    pub(super) calls: Calls,
    backend: &'a Backend,
    route: Route,
}

impl<'a> Called<'a> {
    /// `route`: that of what the waiter asks for.
    pub(super) fn new(backend: &'a Backend, route: Route) -> Self {
        Self {
            calls: Calls::new(),
            backend,
            route: route.behind(),
        }
    }

    /// As whom it asks; `None` for one that would hear no call.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.calls.caller(self.backend.channels().number())
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        // Another waiter of the client may have asked meanwhile. Then that one is not called, and
        // asks some milliseconds late.
        if let Some(leaves) = self.calls.leaves() {
            drop(self.backend.submit_by(leaves, self.route));
        }
    }
}

/// One waiter's part in that. Its client has one number for all its waiters: only the first of them
/// asks.
pub(super) struct Calls {
    /// It listens, or has done so: its client may be in the list of those to call.
    listens: AtomicBool,
    /// How often its client had been called when it asked last; [`NEVER`] before that.
    called: AtomicU64,
    /// It was called, and asks therefore.
    was_called: AtomicBool,
    /// How many clients are called before its own; [`NOT_CALLED`] if it is not called.
    before: AtomicU32,
    /// The request that takes its client out of the list of those to call, while it may be there.
    leaves: Mutex<Option<Operation>>,
}

const NOT_CALLED: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

impl Calls {
    pub(super) const fn new() -> Self {
        Self {
            listens: AtomicBool::new(false),
            called: AtomicU64::new(NEVER),
            was_called: AtomicBool::new(false),
            before: AtomicU32::new(NOT_CALLED),
            leaves: Mutex::new(None),
        }
    }

    /// It is about to ask. It hears of calls by one of these listeners, and of releases by any.
    pub(super) fn heard(&self, listeners: &[Listener]) {
        let signals = listeners.iter().map(Listener::mark);
        let live = !listeners.is_empty() && signals.clone().all(|signal| signal.live);
        let called = signals.map(|signal| signal.called).sum();
        // Once and for all: a client that is in the list has to be taken out when it is granted the
        // lock, whether it listens then or not.
        self.listens.fetch_or(live, Ordering::Relaxed);
        let before = self.called.swap(called, Ordering::Relaxed);
        let was_called = before != NEVER && before != called;
        self.was_called.store(was_called, Ordering::Relaxed);
        self.before.store(NOT_CALLED, Ordering::Relaxed);
    }

    /// As whom it asks; `None` for one that would hear no call.
    pub(super) fn caller(&self, number: u64) -> Option<Caller> {
        let was_called = self.was_called.load(Ordering::Relaxed);
        let listens = self.listens.load(Ordering::Relaxed);
        listens.then_some(Caller { number, was_called })
    }

    /// It asks so that its client is called. This takes the client out of the list again.
    pub(super) fn asks(&self, leaves: Option<Operation>) {
        *self.leaves.lock() = leaves;
    }

    /// It was granted what it wants, and is not in the list any more.
    pub(super) fn granted(&self) {
        *self.leaves.lock() = None;
    }

    /// It waits no longer: the request by which its client leaves the list, if it may be there.
    pub(super) fn leaves(&self) -> Option<Operation> {
        self.leaves.lock().take()
    }

    /// The server has said how many are called before its client.
    pub(super) fn answered(&self, before: Option<u32>) {
        let before = before.unwrap_or(NOT_CALLED);
        self.before.store(before, Ordering::Relaxed);
    }

    pub(super) fn before(&self) -> Option<u32> {
        let before = self.before.load(Ordering::Relaxed);
        (before != NOT_CALLED).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::channels::{Channels, Message, Transport};

    #[test]
    fn client_that_was_called_in_vain_says_so() {
        let channels = Channels::new(true);
        let (listener, own) = (channels.listen("c"), channels.number());
        let call = |number| {
            channels.told(Message {
                called: Some(number),
                ..Message::new("c", b"0", Transport::Global)
            });
        };
        call(own);
        let calls = Calls::new();
        assert!(calls.caller(own).is_none(), "it does not listen yet");
        let asks = || {
            calls.heard(std::slice::from_ref(&listener));
            calls.caller(own).expect("it listens").was_called
        };
        assert!(!asks(), "another waiter was called");
        call(own);
        assert!(asks());
        assert!(!asks(), "it has asked behind that call");
        call(own - 1);
        assert!(!asks());
    }
}
