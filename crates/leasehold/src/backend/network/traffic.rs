//! The traffic on its way, in order of arrival, and the requests that wait for a reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::OperationResult;
use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::clock::Moment;

/// Something that arrives at one of the two ends.
pub(super) enum TrafficEvent {
    /// A request reaches the server. `reply` is the number of the waiting request and the delay of
    /// the reply; `None` if no client receives the reply.
    Request {
        reply: Option<(u64, Duration)>,
        operation: Operation,
        route: Route,
        not_after_ms: i64,
    },
    /// A reply reaches the client.
    Reply { id: u64, reply: OperationResult },
    /// A subscription reaches the server.
    Subscribe(Arc<str>),
    /// The end of a subscription reaches the server.
    Unsubscribe(Arc<str>),
    /// The confirmation of a subscription reaches the client.
    Confirm(Arc<str>),
    /// A message reaches the client.
    Message(Arc<str>, Vec<u8>, Option<u64>),
}

/// Everything on its way, in order of arrival. On each connection, everything sent in one direction
/// arrives in order.
#[derive(Default)]
pub(super) struct Traffic {
    queue: BTreeMap<(Moment, u64), TrafficEvent>,
    count: u64,
    calls: LatestArrivals,
    acknowledged_calls: LatestArrivals,
    messages: LatestArrivals,
}

/// The latest arrival on one connection, in each direction.
#[derive(Default)]
struct LatestArrivals {
    up: Moment,
    down: Moment,
    /// The arrival time of the reply that the next call must wait for.
    blocked_until: Moment,
}

impl Traffic {
    /// Returns the arrival time of a call: `at`, but not before the arrival of calls sent earlier.
    pub(super) fn call_arrival(&mut self, route: Route, at: Moment) -> Moment {
        let latest = self.latest(route);
        latest.up = latest.up.max(at);
        latest.up
    }

    /// Delays a route while the server waits for the confirmations of a call, whose reply arrives
    /// at `until`. As on the connection to a server, the next call is sent after that reply. Calls
    /// that are already on their way count as part of that call.
    pub(super) fn block_until(&mut self, route: Route, until: Moment) {
        let latest = self.latest(route);
        latest.blocked_until = latest.blocked_until.max(until);
    }

    /// Returns the departure time of a call that is ready at `now`.
    pub(super) fn call_departure(&mut self, route: Route, now: Moment) -> Moment {
        self.latest(route).blocked_until.max(now)
    }

    pub(super) fn reply(&mut self, route: Route, at: Moment, event: TrafficEvent) {
        let latest = self.latest(route);
        latest.down = latest.down.max(at);
        let at = latest.down;
        self.schedule(at, event);
    }

    fn latest(&mut self, route: Route) -> &mut LatestArrivals {
        match route {
            Route::Plain => &mut self.calls,
            Route::SameConnection | Route::Confirmed(_) => &mut self.acknowledged_calls,
        }
    }

    pub(super) fn subscription(&mut self, at: Moment, event: TrafficEvent) {
        self.messages.up = self.messages.up.max(at);
        self.schedule(self.messages.up, event);
    }

    pub(super) fn message(&mut self, at: Moment, event: TrafficEvent) {
        self.messages.down = self.messages.down.max(at);
        self.schedule(self.messages.down, event);
    }

    pub(super) fn schedule(&mut self, at: Moment, event: TrafficEvent) {
        self.count += 1;
        // The count keeps events of one moment in the order in which they were sent. On a paused
        // clock most events have the same moment.
        self.queue.insert((at, self.count), event);
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Option<TrafficEvent> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Drops the connections for calls and everything on them. With `late`, their requests still
    /// arrive at that time, but no client receives the replies.
    pub(super) fn cut_calls(&mut self, late: Option<Moment>) {
        (self.calls, self.acknowledged_calls) = Default::default();
        for (key, event) in std::mem::take(&mut self.queue) {
            match (event, late) {
                // Requests without a reply remain: copies, requests from before an earlier cut, and
                // requests whose reply is lost anyway. No waiter on this connection expects their
                // replies.
                (TrafficEvent::Reply { .. }, _)
                | (TrafficEvent::Request { reply: Some(_), .. }, None) => {}
                (
                    TrafficEvent::Request {
                        reply: Some(_),
                        operation,
                        route,
                        not_after_ms,
                    },
                    Some(late),
                ) => {
                    let event = TrafficEvent::Request {
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
        self.messages = LatestArrivals::default();
        self.queue.retain(|_, event| {
            matches!(
                event,
                TrafficEvent::Request { .. } | TrafficEvent::Reply { .. }
            )
        });
    }
}

/// The requests that wait for a reply, and their deadlines.
#[derive(Default)]
pub(super) struct PendingRequests {
    waiting: BTreeMap<u64, oneshot::Sender<OperationResult>>,
    limits: BTreeSet<(Moment, u64)>,
    count: u64,
}

impl PendingRequests {
    pub(super) fn add(&mut self, sender: oneshot::Sender<OperationResult>, limit: Moment) -> u64 {
        self.count += 1;
        self.waiting.insert(self.count, sender);
        self.limits.insert((limit, self.count));
        self.count
    }

    pub(super) fn take(&mut self, id: u64) -> Option<oneshot::Sender<OperationResult>> {
        let sender = self.waiting.remove(&id);
        // The deadline of an answered request would wake the carrier for nothing.
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

    pub(super) fn take_overdue(&mut self, now: Moment) -> Vec<oneshot::Sender<OperationResult>> {
        let mut overdue = Vec::new();
        while let Some((limit, id)) = self.limits.first().copied()
            && limit <= now
        {
            self.limits.pop_first();
            overdue.extend(self.waiting.remove(&id));
        }
        overdue
    }

    /// Takes all waiting requests, in the order in which they were sent.
    pub(super) fn take_all(&mut self) -> Vec<oneshot::Sender<OperationResult>> {
        self.limits.clear();
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
