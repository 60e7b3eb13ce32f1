//! What is on its way: events in order of time, and who waits for a reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Reply;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::clock::Moment;

/// Something that arrives somewhere.
pub(super) enum Event {
    /// At the server. Its reply goes to this number after so long; `None` where
    /// nobody hears it.
    Request {
        reply: Option<(u64, Duration)>,
        operation: Operation,
        route: Route,
        not_after_ms: i64,
    },
    /// At the client.
    Reply { id: u64, reply: Reply },
    /// At the server.
    Subscribe(Arc<str>),
    /// At the server.
    Unsubscribe(Arc<str>),
    /// At the client.
    Confirm(Arc<str>),
    /// At the client.
    Message(Arc<str>, Vec<u8>, Option<u64>),
}

/// Everything that is on its way, in order of arrival. Each direction of each
/// connection keeps its order.
#[derive(Default)]
pub(super) struct Events {
    queue: BTreeMap<(Moment, u64), Event>,
    count: u64,
    calls: Line,
    acknowledged_calls: Line,
    messages: Line,
}

/// When the last that was sent on a connection arrives, in each direction.
#[derive(Default)]
struct Line {
    up: Moment,
    down: Moment,
    /// When the reply comes behind which the next call leaves.
    held_up: Moment,
}

impl Events {
    /// When a call that is on its way until `at` arrives: behind those before it.
    pub(super) fn call_arrives(&mut self, route: Route, at: Moment) -> Moment {
        let line = self.line(route);
        line.up = line.up.max(at);
        line.up
    }

    /// The server waits for confirmations of a call, whose reply comes then. As on the connection to a
    /// server the next call leaves behind that; what is under way already counts as part of this one.
    pub(super) fn hold_up(&mut self, route: Route, until: Moment) {
        let line = self.line(route);
        line.held_up = line.held_up.max(until);
    }

    /// When a call leaves that could do so now.
    pub(super) fn call_leaves(&mut self, route: Route, now: Moment) -> Moment {
        self.line(route).held_up.max(now)
    }

    pub(super) fn reply(&mut self, route: Route, at: Moment, event: Event) {
        let line = self.line(route);
        line.down = line.down.max(at);
        let at = line.down;
        self.out_of_line(at, event);
    }

    fn line(&mut self, route: Route) -> &mut Line {
        match route {
            Route::Plain => &mut self.calls,
            Route::Behind | Route::Confirmed(_) => &mut self.acknowledged_calls,
        }
    }

    pub(super) fn subscription(&mut self, at: Moment, event: Event) {
        self.messages.up = self.messages.up.max(at);
        self.out_of_line(self.messages.up, event);
    }

    pub(super) fn message(&mut self, at: Moment, event: Event) {
        self.messages.down = self.messages.down.max(at);
        self.out_of_line(self.messages.down, event);
    }

    pub(super) fn out_of_line(&mut self, at: Moment, event: Event) {
        self.count += 1;
        // The count keeps events of one moment in the order in which they were sent. On a paused
        // clock most have the same moment.
        self.queue.insert((at, self.count), event);
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Option<Event> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// The connections for calls are gone, with what was on them; or their requests still
    /// arrive, at `late`, and nobody hears the replies.
    pub(super) fn cut_calls(&mut self, late: Option<Moment>) {
        (self.calls, self.acknowledged_calls) = Default::default();
        for (key, event) in std::mem::take(&mut self.queue) {
            match (event, late) {
                // Requests without a reply stay: copies, those of an earlier cut, and those whose
                // reply is lost anyway. Nobody on this connection waits for them.
                (Event::Reply { .. }, _) | (Event::Request { reply: Some(_), .. }, None) => {}
                (
                    Event::Request {
                        reply: Some(_),
                        operation,
                        route,
                        not_after_ms,
                    },
                    Some(late),
                ) => {
                    let event = Event::Request {
                        reply: None,
                        operation,
                        route,
                        not_after_ms,
                    };
                    self.queue.insert((key.0.max(late), key.1), event);
                }
                (event, _) => {
                    self.queue.insert(key, event);
                }
            }
        }
    }

    pub(super) fn cut_messages(&mut self) {
        self.messages = Line::default();
        self.queue
            .retain(|_, event| matches!(event, Event::Request { .. } | Event::Reply { .. }));
    }
}

/// Who waits for a reply, and until when.
#[derive(Default)]
pub(super) struct Pending {
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    limits: BTreeSet<(Moment, u64)>,
    count: u64,
}

impl Pending {
    pub(super) fn add(&mut self, sender: oneshot::Sender<Reply>, limit: Moment) -> u64 {
        self.count += 1;
        self.waiting.insert(self.count, sender);
        self.limits.insert((limit, self.count));
        self.count
    }

    pub(super) fn take(&mut self, id: u64) -> Option<oneshot::Sender<Reply>> {
        let sender = self.waiting.remove(&id);
        // A limit whose reply has come would wake the carrier for nothing.
        while let Some((_, id)) = self.limits.first()
            && !self.waiting.contains_key(id)
        {
            self.limits.pop_first();
        }
        sender
    }

    pub(super) fn next_limit(&self) -> Option<Moment> {
        self.limits.first().map(|(limit, _)| *limit)
    }

    pub(super) fn take_overdue(&mut self, now: Moment) -> Vec<oneshot::Sender<Reply>> {
        let mut overdue = Vec::new();
        while let Some((limit, id)) = self.limits.first().copied()
            && limit <= now
        {
            self.limits.pop_first();
            overdue.extend(self.waiting.remove(&id));
        }
        overdue
    }

    /// Everybody, in the order of asking.
    pub(super) fn take_all(&mut self) -> Vec<oneshot::Sender<Reply>> {
        self.limits.clear();
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
