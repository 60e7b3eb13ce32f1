//! A waiter's view of the clients that wait for the same name. A release calls one of these
//! clients, or one for each permit, so that not all of them ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::backend::Backend;
use crate::backend::channels::Listener;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::context::Context;
use crate::hold::Caller;
use crate::sync::Mutex;

/// Returns the channel on which only this client listens. A client that waits for permits is called
/// there, because messages on the release channel are numbers of permits, which Redisson counts.
/// For a lock, no message is published there: a release only checks whether the client listens.
/// `None` for a client that no release calls. That is a client whose requests cost nothing, or a
/// client of a cluster, where a release does not know whether anything listens to a call.
pub(super) fn own_channel(context: &Context, channel: &str) -> Option<Arc<str>> {
    let backend = &context.backend;
    let is_called = backend.counts_listeners() && !backend.is_in_process();
    is_called.then(|| format!("{channel}:{}", backend.channels().number()).into())
}

/// A waiter's registration with the releases, which call clients. It ends with the waiter.
pub(super) struct Called<'a> {
    pub(super) calls: Calls,
    backend: &'a Backend,
    route: Route,
}

impl<'a> Called<'a> {
    /// `route` is the route of the waiter's own request.
    pub(super) fn new(backend: &'a Backend, route: Route) -> Self {
        Self {
            calls: Calls::new(),
            backend,
            route: route.behind(),
        }
    }

    /// Returns the identity under which the waiter asks; `None` if it would not hear a call.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.calls.caller(self.backend.channels().number())
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        // If another waiter of this client has asked meanwhile, this removes its registration, too.
        // That waiter is then not called, and asks some milliseconds late.
        if let Some(leaves) = self.calls.leaves() {
            drop(self.backend.submit_by(leaves, self.route));
        }
    }
}

/// One waiter's part in these calls. A client has one number for all its waiters, and only the
/// first of its waiters asks.
pub(super) struct Calls {
    /// Whether the waiter listens or has ever listened, so that its client may be in the list.
    listens: AtomicBool,
    /// Number of calls to this client when the waiter last asked; [`NEVER`] before that.
    called: AtomicU64,
    /// Whether the waiter asks because its client was called.
    was_called: AtomicBool,
    /// Number of clients that are called before this one; [`NOT_CALLED`] if it is not called.
    before: AtomicU32,
    /// The request that removes this client from the list, while it may be in there.
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

    /// Notes that the waiter is about to ask. One of these listeners hears calls, and any of them
    /// hears releases.
    pub(super) fn heard(&self, listeners: &[Listener]) {
        let signals = listeners.iter().map(Listener::mark);
        let live = !listeners.is_empty() && signals.clone().all(|signal| signal.live);
        let called = signals.map(|signal| signal.called).sum();
        // Never reset: a client that is in the list must be removed when it is granted the lock,
        // whether it still listens or not.
        self.listens.fetch_or(live, Ordering::Relaxed);
        let before = self.called.swap(called, Ordering::Relaxed);
        let was_called = before != NEVER && before != called;
        self.was_called.store(was_called, Ordering::Relaxed);
        self.before.store(NOT_CALLED, Ordering::Relaxed);
    }

    /// Returns the identity under which the waiter asks; `None` if it would not hear a call.
    pub(super) fn caller(&self, number: u64) -> Option<Caller> {
        let was_called = self.was_called.load(Ordering::Relaxed);
        let listens = self.listens.load(Ordering::Relaxed);
        listens.then_some(Caller { number, was_called })
    }

    /// Notes that the waiter asks to be called. `leaves` removes its client from the list again.
    pub(super) fn asks(&self, leaves: Option<Operation>) {
        *self.leaves.lock() = leaves;
    }

    /// Notes that the waiter was granted what it wants. The server has removed its client from the
    /// list.
    pub(super) fn granted(&self) {
        *self.leaves.lock() = None;
    }

    /// Takes the request that removes this client from the list, if the client may be in there. The
    /// waiter waits no longer.
    pub(super) fn leaves(&self) -> Option<Operation> {
        self.leaves.lock().take()
    }

    /// Notes the server's answer: how many clients are called before this one.
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
