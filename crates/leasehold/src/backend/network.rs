//! The network between one client and an embedded keyspace, for tests of network faults. The steps
//! are the same as on a server, but requests, replies and wake-ups can be delayed, lost or
//! duplicated.
//!
//! Like a client of a server, the simulated client has one connection for calls, one for
//! acknowledged calls and one for messages. Everything sent on one connection arrives in order. One
//! task delivers everything, so with a paused clock the same faults give the same history.

mod step;
mod traffic;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

pub use self::step::Step;
use self::traffic::{PendingRequests, Traffic, TrafficEvent};
use super::about::{About, Uptime};
use super::channels::{Channels, Message, NodeChannels, Transport};
use super::failure::{Cause, Failure, Outcome};
use super::memory::{ADDRESS, Memory};
use super::route::Route;
use super::step::{Operation, Value};
use crate::acknowledgement::Acknowledgement;
use crate::clock::{Clock, Moment, Timers};
use crate::sync::{Mutex, MutexGuard};

/// A request on its way to the server: the argument of the closure in [`Network::on_request`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The change or the query that the request sends.
    pub step: Step,
    /// The first key that the request touches: the name of the primitive.
    pub name: &'a str,
}

/// The fate of a request and its reply: delivered, delayed, lost or duplicated. By default, the
/// network delivers the request and the reply immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    request: Duration,
    reply: Duration,
    lost: LostPart,
    again: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LostPart {
    #[default]
    Nothing,
    Request,
    Reply,
}

impl Fate {
    /// Delivers the request and the reply, each after its delay.
    #[must_use]
    pub fn delivered(request: Duration, reply: Duration) -> Self {
        Self {
            request,
            reply,
            ..Self::default()
        }
    }

    /// Loses the request: the server never sees it.
    #[must_use = "the setting is only in the returned value"]
    pub fn request_lost(self) -> Self {
        Self {
            lost: LostPart::Request,
            ..self
        }
    }

    /// Loses the reply: the server carries out the request, but the client receives no reply.
    #[must_use = "the setting is only in the returned value"]
    pub fn reply_lost(self) -> Self {
        Self {
            lost: LostPart::Reply,
            ..self
        }
    }

    /// Delivers the request a second time, `pause` after the first time. Requests that are sent in
    /// between may arrive before this copy.
    #[must_use = "the setting is only in the returned value"]
    pub fn duplicated_after(self, pause: Duration) -> Self {
        Self {
            again: Some(pause),
            ..self
        }
    }
}

type OnRequest = Box<dyn FnMut(&Request<'_>) -> Fate + Send>;
type OnMessage = Box<dyn FnMut(&str) -> Option<Duration> + Send>;
type OnSubscription = Box<dyn FnMut(&str) -> Duration + Send>;

/// The simulated network between one client and an [`Embedded`](crate::Embedded) keyspace, created
/// by [`client_over_network`](crate::Embedded::client_over_network). At first it delivers
/// everything immediately.
///
/// ```
/// use leasehold::testing::{Fate, Step};
/// use leasehold::{Client, Embedded, ErrorKind};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> leasehold::Result<()> {
/// let server = Embedded::new();
/// let (client, network) = server.client_over_network(&Client::builder())?;
/// network.on_request(|request| match request.step {
///     Step::LockAcquire => Fate::default().reply_lost(),
///     _ => Fate::default(),
/// });
/// let error = client.lock("orders:42").try_acquire().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
/// client.close().await; // waits for the release of the lock that was granted
/// assert!(server.keys().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Network {
    link: Arc<Link>,
}

impl Network {
    /// Sets the closure that decides what happens to each request from now on. The closure may use
    /// this network, for example to cut it, but must not call `on_request`.
    pub fn on_request(&self, fate: impl FnMut(&Request<'_>) -> Fate + Send + 'static) {
        *self.link.on_request.lock() = Box::new(fate);
    }

    /// Sets the closure that decides how long each message to a subscriber takes. Its argument is
    /// the channel. If it returns `None`, the message is lost.
    pub fn on_message(&self, fate: impl FnMut(&str) -> Option<Duration> + Send + 'static) {
        *self.link.on_message.lock() = Box::new(fate);
    }

    /// Sets the closure that decides how long each subscription takes to reach the server. Its
    /// argument is the channel.
    pub fn on_subscription(&self, takes: impl FnMut(&str) -> Duration + Send + 'static) {
        *self.link.on_subscription.lock() = Box::new(takes);
    }

    /// Closes the connections. All requests, replies and messages on their way are lost, and
    /// callers that wait for a reply learn that the outcome is unknown. The client connects again
    /// immediately.
    pub fn cut(&self) {
        self.link.cut(None);
    }

    /// Like [`cut`](Self::cut), but requests that are on their way still reach the server,
    /// `arrive_after` from now. Requests that are sent in the meantime may arrive earlier.
    pub fn cut_while_requests_travel(&self, arrive_after: Duration) {
        self.link.cut(Some(arrive_after));
    }

    /// Closes only the connection on which the client receives messages.
    pub fn cut_messages(&self) {
        self.link.cut_messages();
    }

    /// With `true`, stops all traffic in both directions without notifying either side, as if a
    /// network dropped all packets. With `false`, delivers everything that was stopped.
    pub fn freeze(&self, frozen: bool) {
        self.link.state().frozen = frozen;
        self.link.changed.notify_one();
    }

    /// With `true`, closes the connections and refuses new connections, until this method is called
    /// with `false`.
    pub fn refuse(&self, refused: bool) {
        self.link.state().refused = refused;
        if refused {
            self.link.cut(None);
        } else {
            self.link.connected();
        }
        self.link.changed.notify_one();
    }

    /// With `true`, the client does not learn from new connections when the server was started, as
    /// if the server denied `INFO` or answered too late.
    pub fn hide_start(&self, hidden: bool) {
        self.link.state().start_hidden = hidden;
    }

    /// Sets how many replicas confirm the writes of this client from now on, for locks with
    /// [`acknowledged_by`](crate::Lock::acknowledged_by). At first the number is [`u8::MAX`], which
    /// is enough for any setting.
    ///
    /// If fewer replicas confirm than the lock requires, the reply arrives only when the time for
    /// the confirmations has passed. Until then, this client does not send other requests for locks
    /// with this setting. A reply that the lock is held arrives just as late, but is still valid.
    /// With [`on_disk`](crate::Acknowledgement::on_disk), the server and these replicas count as
    /// having the write on their disks.
    ///
    /// ```
    /// use leasehold::{Acknowledgement, Client, Embedded, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> leasehold::Result<()> {
    /// let (client, network) = Embedded::new().client_over_network(&Client::builder())?;
    /// let lock = client.lock("orders:42").acknowledged_by(Acknowledgement::replicas(2));
    /// network.confirm_by(1);
    /// let error = lock.try_acquire().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable); // the client has released it
    /// network.confirm_by(2);
    /// lock.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn confirm_by(&self, replicas: u8) {
        self.link.state().confirmed_by = replicas;
    }

    /// Returns how many requests the client has sent so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.link.state().requests
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// The client's side of the network: its backend.
pub(crate) struct NetworkBackend {
    link: Arc<Link>,
    carrier: JoinHandle<()>,
}

impl NetworkBackend {
    pub(crate) fn new(memory: &Memory, reply_timeout: Duration) -> Self {
        let channels = Channels::new(false);
        let link = Arc::new(Link {
            memory: memory.clone(),
            node_channels: channels.node_channels(0),
            channels,
            clock: memory.clock(),
            reply_timeout,
            on_request: Mutex::new(Box::new(|_| Fate::default())),
            on_message: Mutex::new(Box::new(|_| Some(Duration::ZERO))),
            on_subscription: Mutex::new(Box::new(|_| Duration::ZERO)),
            about: About::default(),
            state: Mutex::new(NetworkState::new(memory.offset_ms())),
            changed: Notify::new(),
        });
        link.connected();
        memory.attach(&link);
        let timers = Timers::new(link.clock, Handle::current());
        let carrier = Handle::current().spawn(carry(LinkDropGuard(Arc::clone(&link)), timers));
        Self { link, carrier }
    }

    pub(crate) fn network(&self) -> Network {
        Network {
            link: Arc::clone(&self.link),
        }
    }

    pub(crate) fn submit(
        &self,
        operation: Operation,
        route: Route,
    ) -> oneshot::Receiver<OperationResult> {
        self.link.submit(operation, route)
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.link.channels
    }

    pub(crate) fn clock(&self) -> Clock {
        self.link.clock
    }

    pub(crate) fn server(&self) -> String {
        self.link.memory.server()
    }

    pub(crate) fn started(&self) -> Option<Moment> {
        self.link.about.started()
    }

    pub(crate) fn replaced_since(&self, sent: Moment) -> Option<Moment> {
        self.link.about.replaced_since(sent)
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.link.reply_timeout
    }
}

impl Drop for NetworkBackend {
    fn drop(&mut self) {
        self.carrier.abort();
        self.link.cut(None);
    }
}

type OperationResult = Result<Value, Failure>;

/// The state that the client, the test and the carrier (the task that delivers the traffic) share.
pub(crate) struct Link {
    memory: Memory,
    channels: Arc<Channels>,
    /// The channels as the connection sees them.
    node_channels: NodeChannels,
    clock: Clock,
    reply_timeout: Duration,
    /// Each closure has its own lock, because it may use the network.
    on_request: Mutex<OnRequest>,
    on_message: Mutex<OnMessage>,
    on_subscription: Mutex<OnSubscription>,
    /// The facts that the server reported when the current connection was opened.
    about: About,
    state: Mutex<NetworkState>,
    /// Notified when there is something new to deliver.
    changed: Notify,
}

struct NetworkState {
    /// Whether the carrier's runtime has ended.
    ended: bool,
    frozen: bool,
    refused: bool,
    start_hidden: bool,
    /// The number of replicas that confirm a write.
    confirmed_by: u8,
    requests: u64,
    traffic: Traffic,
    pending: PendingRequests,
    /// The number of replies in a row that did not arrive.
    missed_replies: u32,
    /// The server's time minus our clock's time, as the client last learned it.
    offset_ms: i64,
    /// The channels for which the server has a subscription.
    at_server: HashSet<Arc<str>>,
    /// The number of subscriptions that are not confirmed yet. Until they are confirmed, the client
    /// does not begin or end other subscriptions, because one confirmation could be mistaken for
    /// another. A connection to a server has the same rule.
    unconfirmed: usize,
    /// The time at which the subscriptions without listeners end.
    linger_until: Option<Moment>,
}

impl NetworkState {
    fn new(offset_ms: i64) -> Self {
        Self {
            ended: false,
            frozen: false,
            refused: false,
            start_hidden: false,
            confirmed_by: u8::MAX,
            requests: 0,
            traffic: Traffic::default(),
            pending: PendingRequests::default(),
            missed_replies: 0,
            offset_ms,
            at_server: HashSet::new(),
            unconfirmed: 0,
            linger_until: None,
        }
    }

    /// Turns the reply to an operation into an error if it has too few confirmations. Also returns
    /// how long the server waits for the confirmations.
    fn confirm(&self, route: Route, reply: OperationResult) -> (OperationResult, Duration) {
        let too_few = |wanted: Acknowledgement| {
            let why = wanted.too_few(self.confirmed_by.into(), true)?;
            Some((why, Duration::from_millis(wanted.limit_ms().into())))
        };
        match route.wanted().and_then(too_few) {
            None => (reply, Duration::ZERO),
            Some((why, waited)) => {
                let reply = route.confirmed(reply, Some(&why), || ADDRESS.into());
                (reply, waited)
            }
        }
    }
}

/// The number of missing replies in a row after which the connection is closed, as with a server.
const MAX_MISSED_REPLIES: u32 = 2;
/// The time for which a subscription outlives its last listener, as with a server.
const LINGER: Duration = Duration::from_millis(500);

impl Link {
    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock()
    }

    fn submit(&self, operation: Operation, route: Route) -> oneshot::Receiver<OperationResult> {
        let (sender, receiver) = oneshot::channel();
        let now = self.clock.now();
        // The fate is decided before the state is locked: the closure may cut this network, which
        // locks the state.
        let fate = self.on_request.lock()(&Request {
            step: Step::of(operation.step.name).expect("every step has its name"),
            name: &String::from_utf8_lossy(operation.parts.first()),
        });
        let mut state = self.state();
        if state.ended {
            let ended = Failure::runtime_ended(Outcome::DidNotRun, ADDRESS);
            let _ = sender.send(Err(ended));
            return receiver;
        }
        if state.refused {
            let refused = no_answer("connection refused", Outcome::DidNotRun);
            let _ = sender.send(Err(refused));
            return receiver;
        }
        state.requests += 1;
        let departs = state.traffic.call_departure(route, now);
        let id = state.pending.add(sender, departs + self.reply_timeout);
        let estimate = clock_ms(departs).saturating_add(state.offset_ms);
        let limit = i64::try_from(self.reply_timeout.as_millis()).unwrap_or(i64::MAX);
        let request = |reply| TrafficEvent::Request {
            reply,
            operation: operation.clone(),
            route,
            not_after_ms: estimate.saturating_add(limit),
        };
        let arrives = state.traffic.call_arrival(route, departs + fate.request);
        let reply = (fate.lost != LostPart::Reply).then_some((id, fate.reply));
        if fate.lost != LostPart::Request {
            state.traffic.schedule(arrives, request(reply));
        }
        if let Some(pause) = fate.again {
            state.traffic.schedule(arrives + pause, request(None));
        }
        drop(state);
        self.changed.notify_one();
        receiver
    }

    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        self.state().at_server.contains(channel)
    }

    /// Publishes a message of the server on `channel`.
    pub(crate) fn publish(&self, message: Message<'_>) {
        let (channel, notified) = (message.channel, message.notified);
        // The subscription is checked when the message is published, not when it arrives: a server
        // does not keep messages for later subscribers.
        if !self.is_subscribed(channel) {
            return;
        }
        if let Some(delay) = self.on_message.lock()(channel) {
            let at = self.clock.now() + delay;
            let event = TrafficEvent::Message(channel.into(), message.payload.into(), notified);
            self.state().traffic.message(at, event);
            self.changed.notify_one();
        }
    }

    pub(crate) fn cut(&self, requests_arrive_after: Option<Duration>) {
        let mut state = self.state();
        let late = requests_arrive_after.map(|after| self.clock.now() + after);
        state.traffic.cut_calls(late);
        state.missed_replies = 0;
        // A new connection asks the server for its time.
        state.offset_ms = self.memory.offset_ms();
        let waiting = state.pending.take_all();
        let opened_again = !state.refused;
        drop(state);
        // Reconnect before the waiters get their failures: they retry at once, and a `RedLock`
        // compares the new reply with the start time that this connection has reported.
        if opened_again {
            self.connected();
        }
        for sender in waiting {
            let lost = no_answer("the connection was lost", Outcome::MayHaveRun);
            let _ = sender.send(Err(lost));
        }
        self.cut_messages();
    }

    /// Notes what the server reports on a new connection.
    fn connected(&self) {
        let now = self.clock.now();
        let reported = !self.state().start_hidden;
        let started = self.memory.started();
        // A server that was never restarted counts as infinitely old.
        let uptime = started.map_or(Duration::MAX, |started| now.saturating_sub(started));
        let uptime = Uptime {
            least: uptime,
            most: uptime,
        };
        // The id of the server's current start.
        let run_id = format!("{started:?}");
        self.about.connected(
            now,
            reported.then_some(uptime),
            reported.then_some(&*run_id),
        );
    }

    fn cut_messages(&self) {
        let mut state = self.state();
        state.traffic.cut_messages();
        state.at_server.clear();
        state.unconfirmed = 0;
        drop(state);
        self.node_channels.all_down();
        self.changed.notify_one();
    }

    /// Delivers everything that is due. Returns the time of the next event.
    fn carry_due(&self) -> Option<Moment> {
        self.subscribe_wanted();
        let now = self.clock.now();
        while let Some(event) = self.next_due(now) {
            self.arrive(event);
        }
        self.end_overdue(now);
        // Request the subscriptions that waited for a confirmation.
        self.subscribe_wanted();
        let state = self.state();
        let carried = (!state.frozen).then(|| state.traffic.next()).flatten();
        let idle = state.linger_until.filter(|_| state.unconfirmed == 0);
        [carried, state.pending.next_limit(), idle]
            .into_iter()
            .flatten()
            .min()
    }

    fn next_due(&self, now: Moment) -> Option<TrafficEvent> {
        let mut state = self.state();
        if state.frozen {
            return None;
        }
        state.traffic.take_due(now)
    }

    fn arrive(&self, event: TrafficEvent) {
        match event {
            TrafficEvent::Request {
                reply,
                operation,
                route,
                not_after_ms,
            } => self.run(reply, &operation, route, not_after_ms),
            TrafficEvent::Reply { id, reply } => {
                let mut state = self.state();
                state.missed_replies = 0;
                if let Err(Failure {
                    cause: Cause::Late, ..
                }) = reply
                {
                    state.offset_ms = self.memory.offset_ms();
                }
                let waiting = state.pending.take(id);
                drop(state);
                // Sending fails if the waiter has given up. In that case, it has already arranged
                // the undo.
                let _ = waiting.map(|sender| sender.send(reply));
            }
            TrafficEvent::Subscribe(channel) => {
                let mut state = self.state();
                state.at_server.insert(Arc::clone(&channel));
                let at = self.clock.now();
                state.traffic.message(at, TrafficEvent::Confirm(channel));
            }
            TrafficEvent::Unsubscribe(channel) => {
                self.state().at_server.remove(&channel);
            }
            TrafficEvent::Confirm(channel) => {
                self.state().unconfirmed -= 1;
                self.node_channels.subscribed(&channel, false);
            }
            TrafficEvent::Message(channel, message, notified) => {
                let message = Message::new(&channel, &message, Transport::Global);
                self.node_channels.on_message(Message {
                    notified,
                    ..message
                });
            }
        }
    }

    fn run(
        &self,
        reply: Option<(u64, Duration)>,
        operation: &Operation,
        route: Route,
        not_after_ms: i64,
    ) {
        let now = self.clock.now();
        let server_now_ms = clock_ms(now).saturating_add(self.memory.offset_ms());
        // This is the check that `call.lua` does. A step that releases something runs however late
        // it arrives.
        let result = if operation.step.grants && server_now_ms > not_after_ms {
            Err(Failure::new(Outcome::DidNotRun, Cause::Late, ADDRESS))
        } else {
            self.memory.run(operation)
        };
        if let Some((id, delay)) = reply {
            let mut state = self.state();
            let (result, waited) = state.confirm(route, result);
            let at = now + waited + delay;
            if !waited.is_zero() {
                state.traffic.block_until(route, at);
            }
            let event = TrafficEvent::Reply { id, reply: result };
            state.traffic.reply(route, at, event);
        }
    }

    /// Fails the requests whose replies did not arrive in time.
    fn end_overdue(&self, now: Moment) {
        let overdue = self.state().pending.take_overdue(now);
        for sender in overdue {
            let what = format!("no reply within {:?}", self.reply_timeout);
            let _ = sender.send(Err(no_answer(&what, Outcome::MayHaveRun)));
            let mut state = self.state();
            state.missed_replies += 1;
            if state.missed_replies == MAX_MISSED_REPLIES {
                drop(state);
                // Requests on their way still arrive: the kernel sends the rest of the bytes even
                // when the client has closed the connection.
                self.cut(Some(Duration::ZERO));
            }
        }
    }

    /// Keeps the subscriptions equal to the channels that have listeners.
    fn subscribe_wanted(&self) {
        let now = self.clock.now();
        let mut state = self.state();
        if state.unconfirmed > 0 {
            return;
        }
        if state.linger_until.is_some_and(|until| now >= until) {
            state.linger_until = None;
            for channel in self.node_channels.remove_idle() {
                let event = TrafficEvent::Unsubscribe(channel);
                state.traffic.subscription(now, event);
            }
        }
        if state.refused {
            return;
        }
        drop(state);
        for channel in self.node_channels.take_to_subscribe() {
            let takes = self.on_subscription.lock()(&channel);
            let event = TrafficEvent::Subscribe(channel);
            let mut state = self.state();
            state.unconfirmed += 1;
            state.traffic.subscription(now + takes, event);
        }
    }

    fn start_to_linger(&self) {
        let until = self.clock.now() + LINGER;
        self.state().linger_until.get_or_insert(until);
    }
}

/// Ends the link when the task that delivers the traffic is dropped with its runtime.
struct LinkDropGuard(Arc<Link>);

impl Drop for LinkDropGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        // `submit` holds the same lock when it adds a request. So every later request sees that the
        // runtime has ended, and its caller does not wait forever.
        state.ended = true;
        let waiting = state.pending.take_all();
        drop(state);
        for sender in waiting {
            let _ = sender.send(Err(Failure::runtime_ended(Outcome::MayHaveRun, ADDRESS)));
        }
        self.0.channels.wake_all();
    }
}

/// Delivers requests, replies and messages for as long as the client lives.
async fn carry(link: LinkDropGuard, timers: Timers) {
    let link = &link.0;
    loop {
        let next = link.carry_due();
        let due = async {
            match next {
                Some(next) => timers.sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The order is fixed: with a random order, the same seed would not give the same
            // history.
            biased;
            () = link.node_channels.changed() => link.start_to_linger(),
            () = link.changed.notified() => {}
            () = due => {}
        }
    }
}

fn clock_ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_millis()).unwrap_or(i64::MAX)
}

fn no_answer(what: &str, outcome: Outcome) -> Failure {
    Failure::no_answer(outcome, what, ADDRESS)
}
