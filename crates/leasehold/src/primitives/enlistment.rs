//! A waiter's part in the server's list of waiting clients. A release notifies one client of this
//! list, or one for each permit, so that not all of them send a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::backend::Backend;
use crate::backend::channels::Listener;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::context::Context;
use crate::hold::WaitingClient;
use crate::sync::Mutex;

/// Returns the channel to which only this client subscribes. A client that waits for permits is
/// notified there, because Redisson reads every message on the release channel as a number of
/// permits. For a lock, no message is published there: a release only checks whether the client is
/// subscribed. `None` for a client that is never notified: a client whose requests cost nothing, or
/// a client of a cluster, where a release does not know whether any client receives its message.
pub(super) fn own_channel(context: &Context, channel: &str) -> Option<Arc<str>> {
    let backend = &context.backend;
    let can_be_notified = backend.counts_listeners() && !backend.is_in_process();
    can_be_notified.then(|| format!("{channel}:{}", backend.channels().number()).into())
}

/// The enlistment of one waiter's client. It ends with the waiter.
pub(super) struct Enlistment<'a> {
    pub(super) state: EnlistmentState,
    backend: &'a Backend,
    route: Route,
}

impl<'a> Enlistment<'a> {
    /// Creates the enlistment of a waiter that sends its own requests over `route`.
    pub(super) fn new(backend: &'a Backend, route: Route) -> Self {
        Self {
            state: EnlistmentState::new(),
            backend,
            route: route.same_connection(),
        }
    }

    /// Returns the client to enlist with the waiter's request; `None` if no notification would
    /// reach it.
    pub(super) fn caller(&self) -> Option<WaitingClient> {
        self.state.caller(self.backend.channels().number())
    }
}

impl Drop for Enlistment<'_> {
    fn drop(&mut self) {
        // If another waiter of this client has sent a request in the meantime, this also removes
        // that waiter's enlistment. That waiter is then not notified, and sends its next request
        // some milliseconds late.
        if let Some(delist) = self.state.take_delist() {
            drop(self.backend.submit_by(delist, self.route));
        }
    }
}

/// The state of one waiter's enlistment. A client has one number for all its waiters, and only the
/// first of its waiters sends requests.
pub(super) struct EnlistmentState {
    /// Whether the waiter is or was subscribed, so that its client may be in the list.
    listens: AtomicBool,
    /// The number of notifications that this client had received at the waiter's last request;
    /// [`NEVER`] before the first request.
    notified: AtomicU64,
    /// Whether the waiter sends a request because its client was notified.
    was_notified: AtomicBool,
    /// The number of clients that are notified before this one; [`NOT_ENLISTED`] if this one is not
    /// in the list.
    before: AtomicU32,
    /// The request that removes this client from the list, while the client may be in the list.
    delist: Mutex<Option<Operation>>,
}

const NOT_ENLISTED: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

impl EnlistmentState {
    pub(super) const fn new() -> Self {
        Self {
            listens: AtomicBool::new(false),
            notified: AtomicU64::new(NEVER),
            was_notified: AtomicBool::new(false),
            before: AtomicU32::new(NOT_ENLISTED),
            delist: Mutex::new(None),
        }
    }

    /// Notes that the waiter is about to send a request, and what its listeners have received so
    /// far.
    pub(super) fn heard(&self, listeners: &[Listener]) {
        let signals = listeners.iter().map(Listener::signal);
        let live = !listeners.is_empty() && signals.clone().all(|signal| signal.live);
        let notified = signals.map(|signal| signal.notified).sum();
        // Never reset this: a client that is in the list must be removed when it is granted the
        // lock, even if it is no longer subscribed.
        self.listens.fetch_or(live, Ordering::Relaxed);
        let before = self.notified.swap(notified, Ordering::Relaxed);
        let was_notified = before != NEVER && before != notified;
        self.was_notified.store(was_notified, Ordering::Relaxed);
        self.before.store(NOT_ENLISTED, Ordering::Relaxed);
    }

    /// Returns the client to enlist with the waiter's request; `None` if no notification would
    /// reach it.
    pub(super) fn caller(&self, number: u64) -> Option<WaitingClient> {
        let was_notified = self.was_notified.load(Ordering::Relaxed);
        let listens = self.listens.load(Ordering::Relaxed);
        listens.then_some(WaitingClient {
            number,
            was_notified,
        })
    }

    /// Notes that the waiter's request enlists its client. `delist` removes the client from the
    /// list.
    pub(super) fn enlist(&self, delist: Option<Operation>) {
        *self.delist.lock() = delist;
    }

    /// Notes that the waiter was granted what it wants. The server has removed its client from the
    /// list.
    pub(super) fn granted(&self) {
        *self.delist.lock() = None;
    }

    /// Takes the request that removes this client from the list, if the client may be in the list.
    pub(super) fn take_delist(&self) -> Option<Operation> {
        self.delist.lock().take()
    }

    /// Notes the server's answer: how many clients are notified before this one.
    pub(super) fn answered(&self, before: Option<u32>) {
        let before = before.unwrap_or(NOT_ENLISTED);
        self.before.store(before, Ordering::Relaxed);
    }

    pub(super) fn before(&self) -> Option<u32> {
        let before = self.before.load(Ordering::Relaxed);
        (before != NOT_ENLISTED).then_some(before)
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
            channels.on_message(Message {
                notified: Some(number),
                ..Message::new("c", b"0", Transport::Global)
            });
        };
        call(own);
        let state = EnlistmentState::new();
        assert!(state.caller(own).is_none(), "it does not listen yet");
        let asks = || {
            state.heard(std::slice::from_ref(&listener));
            state.caller(own).expect("it listens").was_notified
        };
        assert!(!asks(), "another waiter was called");
        call(own);
        assert!(asks());
        assert!(!asks(), "it has asked behind that call");
        call(own - 1);
        assert!(!asks());
    }
}
