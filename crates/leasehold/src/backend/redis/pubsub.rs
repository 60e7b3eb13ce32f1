//! Subscriptions: each node has one connection for messages, which is opened when the first waiter
//! needs it. After a lost connection, a new one subscribes to all channels again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::messages::{Frame, Messages, write_command};
use super::node::Node;
use super::reconnect_delay::{ReconnectDelay, STABLE_AFTER};
use super::server_info::connection_name;
use super::slots::slot_of;
use crate::backend::channels::{Channels, Message, MessageJoiner, NodeChannels, Transport};
use crate::observe::log;
use crate::text::Shown;

/// The time for which a subscription outlives its last listener, for the next waiter of a busy
/// name.
const LINGER: Duration = Duration::from_millis(500);
/// The time between two checks whether a silent connection is still up.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The number of channels in one SUBSCRIBE.
const CHUNK: usize = 128;
/// The delay before the next attempt to subscribe on a server that accepts no subscriptions.
const REFUSAL_PAUSE: Duration = Duration::from_secs(60);
/// The number of connections in a row that count as a refusal if each ended before any subscription
/// was confirmed. Some proxies end the connection when they receive a command that they do not
/// know.
const MAX_UNCONFIRMED: u32 = 4;

/// Keeps the subscriptions of a node equal to the set of its channels with listeners. Never
/// returns.
pub(crate) async fn run(
    node: Arc<Node>,
    node_channels: NodeChannels,
    transports: &'static [Transport],
    _wake_all_on_drop: WakeAllOnDrop,
) {
    let mut pause = ReconnectDelay::new();
    let name = connection_name(&node.label);
    let mut unconfirmed = 0;
    // The number of the server whose refusal has been logged.
    let mut logged = None;
    loop {
        while node_channels.is_empty() {
            node_channels.changed().await;
        }
        // Read the number before the connection is opened: if calls switch to another server
        // meanwhile, the connection is opened again.
        let number = node.connector.current_number();
        match node.connector.open_messages(name.as_deref()).await {
            Ok(messages) => {
                let since = Instant::now();
                let mut session = Session::new(&node, &node_channels, transports, messages);
                let end = tokio::select! {
                    end = session.run() => end,
                    () = node.connector.moved_from(number) => "the server was restarted, or calls go to another server now".into(),
                };
                // A connection that did not last is followed by a longer delay: if a server ends
                // each connection at once, the client must not reconnect all the time.
                if since.elapsed() > STABLE_AFTER {
                    pause.reset();
                }
                unconfirmed = match session.subscription_state {
                    SubscriptionState::Requested => unconfirmed + 1,
                    SubscriptionState::Idle
                    | SubscriptionState::Confirmed
                    | SubscriptionState::Refused => 0,
                };
                let is_same = node.connector.current_number() == number;
                let refuses = session.subscription_state == SubscriptionState::Refused
                    || unconfirmed == MAX_UNCONFIRMED;
                if is_same && refuses {
                    unconfirmed = 0;
                    if logged.replace(number) != Some(number) {
                        warn_refused(&node, &end);
                    }
                    poll_meanwhile(&node, &node_channels, number).await;
                    continue;
                }
                // Without listeners, no waiter misses the connection.
                if !node_channels.is_empty() {
                    warn_lost(&node, &end);
                }
            }
            Err(failure) => log(|| {
                tracing::debug!(
                    address = %node.address(), cause = %failure.cause,
                    "no connection for wake-ups"
                )
            }),
        }
        // Mark the channels as down before the delay, so that waiters retry now and poll until a
        // connection is back.
        node_channels.all_down();
        node.slots_may_have_moved();
        tokio::select! {
            () = sleep(pause.next()) => {}
            // Calls use another server now, and that server may answer.
            () = node.connector.moved_from(number) => {}
        }
        // Channels that lost their last listener while there was no connection don't need a
        // subscription.
        node_channels.remove_idle();
    }
}

fn warn_refused(node: &Node, end: &str) {
    log(|| {
        tracing::warn!(
            address = %node.address(), error = %Shown(end),
            "the server accepts no subscriptions; waiters poll, and the client tries again every minute"
        );
    });
}

fn warn_lost(node: &Node, end: &str) {
    log(|| {
        tracing::warn!(
            address = %node.address(), cause = %end,
            "the connection for wake-ups is lost; waiters poll until it is back"
        );
    });
}

/// Lets all waiters poll while the server accepts no subscriptions. Returns when it is time for
/// another attempt: after a while, or when calls use another server.
async fn poll_meanwhile(node: &Node, node_channels: &NodeChannels, number: u64) {
    let until = Instant::now() + REFUSAL_PAUSE;
    node_channels.all_down();
    loop {
        for name in node_channels.take_to_subscribe() {
            node_channels.subscribed(&name, true);
        }
        node_channels.remove_idle();
        tokio::select! {
            () = node_channels.changed() => {}
            () = sleep_until(until) => break,
            () = node.connector.moved_from(number) => break,
        }
    }
    // Schedules a new subscription of all channels.
    node_channels.all_down();
}

/// Returns whether this error means that the server accepts no subscriptions to any channel.
fn refuses_all_channels(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    let of_proxies = ["unsupported command", "not supported", "is not allowed"];
    said.contains("unknown command") || of_proxies.iter().any(|words| said.contains(words))
}

/// Wakes all waiters when it is dropped with the client's runtime: waiters in other runtimes retry,
/// and learn that the client's runtime has ended. Their own timers would wake them only after the
/// poll interval.
pub(crate) struct WakeAllOnDrop(pub(crate) Arc<Channels>);

impl Drop for WakeAllOnDrop {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

/// One connection and the requests on it.
struct Session<'a> {
    node: &'a Node,
    node_channels: &'a NodeChannels,
    transports: &'static [Transport],
    messages: Messages,
    /// Requests without an answer, oldest first: a server answers in order.
    in_flight: VecDeque<SentRequest>,
    /// Channels whose subscriptions are not all answered yet.
    pending: HashMap<Arc<str>, PendingChannel>,
    /// Joins a release's message and the notification after it.
    joiner: MessageJoiner,
    /// Commands that have not been sent yet.
    commands: Vec<u8>,
    subscription_state: SubscriptionState,
    /// Whether the server does not support sharded channels.
    only_global: bool,
    /// The time at which the subscriptions without listeners end.
    idle_at: Option<Instant>,
}

/// The state of a connection's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionState {
    /// No subscription was requested.
    Idle,
    Requested,
    Confirmed,
    /// The server accepts no subscriptions at all.
    Refused,
}

struct SentRequest {
    request: RequestKind,
    /// The channels without an answer.
    names: Vec<Arc<str>>,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Subscribe(Transport),
    Unsubscribe(Transport),
    Ping,
}

impl RequestKind {
    fn command(self) -> &'static str {
        match self {
            Self::Subscribe(Transport::Global) => "SUBSCRIBE",
            Self::Subscribe(Transport::Sharded) => "SSUBSCRIBE",
            Self::Unsubscribe(Transport::Global) => "UNSUBSCRIBE",
            Self::Unsubscribe(Transport::Sharded) => "SUNSUBSCRIBE",
            Self::Ping => "PING",
        }
    }

    fn unanswered(self) -> &'static str {
        match self {
            Self::Subscribe(_) => "a subscription was not confirmed in time",
            Self::Unsubscribe(_) => "an unsubscription was not confirmed in time",
            Self::Ping => "it no longer answers",
        }
    }
}

/// The events that a session waits for.
enum SessionEvent {
    Read(Result<(), String>),
    Changed,
    Idle,
    Unanswered,
    Ping,
}

#[derive(Default)]
struct PendingChannel {
    answers_remaining: usize,
    denied: bool,
}

impl<'a> Session<'a> {
    fn new(
        node: &'a Node,
        node_channels: &'a NodeChannels,
        transports: &'static [Transport],
        messages: Messages,
    ) -> Self {
        Self {
            node,
            node_channels,
            transports,
            messages,
            in_flight: VecDeque::new(),
            pending: HashMap::new(),
            joiner: MessageJoiner::default(),
            commands: Vec::new(),
            subscription_state: SubscriptionState::Idle,
            only_global: false,
            idle_at: None,
        }
    }

    /// Runs until the connection is lost, and returns the reason.
    async fn run(&mut self) -> String {
        let mut ping = interval(PING_EVERY);
        // After a busy time one ping is enough. By default the interval would make up for every
        // missed one.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick would be due at once, but the new connection has just shown that it is up.
        ping.reset();
        loop {
            // Subscribe before waiting for a notification: a new connection is not notified of
            // channels that the connection before it had.
            self.subscribe_fresh();
            if let Err(error) = self.flush().await {
                return error;
            }
            let answer_due = self.answer_due();
            let event = tokio::select! {
                read = self.messages.read_more() => SessionEvent::Read(read),
                () = self.node_channels.changed() => SessionEvent::Changed,
                () = until(self.idle_at) => SessionEvent::Idle,
                () = until(answer_due) => SessionEvent::Unanswered,
                _ = ping.tick() => SessionEvent::Ping,
            };
            let mut result = Ok(());
            match event {
                SessionEvent::Read(read) => result = read.and_then(|()| self.handle_frames()),
                SessionEvent::Changed => self.start_to_linger(),
                SessionEvent::Idle => self.unsubscribe_idle(),
                SessionEvent::Unanswered => result = Err(self.unanswered()),
                SessionEvent::Ping => self.send_request(RequestKind::Ping, Vec::new()),
            }
            if let Err(error) = result {
                return error;
            }
        }
    }

    fn answer_due(&self) -> Option<Instant> {
        let oldest = self.in_flight.front()?;
        Some(oldest.since + self.node.reply_timeout())
    }

    fn unanswered(&self) -> String {
        let oldest = self.in_flight.front();
        oldest.map_or("", |asked| asked.request.unanswered()).into()
    }

    /// Starts the time after which subscriptions without listeners end, unless it has already
    /// started.
    fn start_to_linger(&mut self) {
        self.idle_at.get_or_insert_with(|| Instant::now() + LINGER);
    }

    async fn flush(&mut self) -> Result<(), String> {
        if self.commands.is_empty() {
            return Ok(());
        }
        let commands = std::mem::take(&mut self.commands);
        let sent = timeout(self.node.reply_timeout(), self.messages.send(&commands));
        match sent.await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err("it no longer takes requests".into()),
        }
    }

    fn send_request(&mut self, request: RequestKind, names: Vec<Arc<str>>) {
        if let (RequestKind::Subscribe(_), SubscriptionState::Idle) =
            (request, self.subscription_state)
        {
            self.subscription_state = SubscriptionState::Requested;
        }
        let arguments = names.iter().map(|name| &**name);
        write_command(&mut self.commands, request.command(), arguments);
        self.in_flight.push_back(SentRequest {
            request,
            names,
            since: Instant::now(),
        });
    }

    fn subscribe_fresh(&mut self) {
        let fresh = self.node_channels.take_to_subscribe();
        for transport in self.used_transports() {
            for name in &fresh {
                let pending = self.pending.entry(Arc::clone(name)).or_default();
                pending.answers_remaining += 1;
            }
            self.request_in_groups(RequestKind::Subscribe(*transport), *transport, &fresh);
        }
    }

    fn used_transports(&self) -> &'static [Transport] {
        match self.only_global {
            true => &[Transport::Global],
            false => self.transports,
        }
    }

    fn request_in_groups(
        &mut self,
        request: RequestKind,
        transport: Transport,
        names: &[Arc<str>],
    ) {
        match transport {
            Transport::Global => {
                for group in names.chunks(CHUNK) {
                    self.send_request(request, group.to_vec());
                }
            }
            // A server accepts only channels of one slot in one request.
            Transport::Sharded => {
                let mut names = names.to_vec();
                names.sort_by_key(|name| slot_of(name.as_bytes()));
                for group in names
                    .chunk_by(|one, other| slot_of(one.as_bytes()) == slot_of(other.as_bytes()))
                {
                    self.send_request(request, group.to_vec());
                }
            }
        }
    }

    fn unsubscribe_idle(&mut self) {
        self.idle_at = None;
        let idle = self.node_channels.remove_idle();
        for transport in self.used_transports() {
            self.request_in_groups(RequestKind::Unsubscribe(*transport), *transport, &idle);
        }
    }

    /// Handles the frames in their order of arrival, so that a message that arrived before a
    /// confirmation is handled before it. Otherwise a zero that was published before a waiter began
    /// to listen could let the waiter through a latch.
    fn handle_frames(&mut self) -> Result<(), String> {
        while let Some(frame) = self.messages.next_frame()? {
            self.handle_frame(frame)?;
        }
        self.joiner
            .end(|message| self.node_channels.on_message(message));
        Ok(())
    }

    fn handle_frame(&mut self, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Message {
                transport,
                channel,
                payload,
            } => {
                let deliver = |message: Message<'_>| self.node_channels.on_message(message);
                self.joiner.message(channel, &payload, transport, deliver);
                Ok(())
            }
            Frame::Subscribed(transport, channel) => {
                // Deliver the messages so far before the channel is confirmed: they were published
                // before the confirmation.
                self.joiner
                    .end(|message| self.node_channels.on_message(message));
                let name = self.answered(RequestKind::Subscribe(transport), &channel);
                let name = name.ok_or("an unexpected confirmation")?;
                self.subscription_state = SubscriptionState::Confirmed;
                self.confirmed(&name, false);
                Ok(())
            }
            Frame::Unsubscribed(transport, channel) => {
                if self
                    .answered(RequestKind::Unsubscribe(transport), &channel)
                    .is_some()
                {
                    return Ok(());
                }
                // Another node has the slot from now on.
                if transport == Transport::Sharded && self.node.is_of_a_cluster() {
                    self.lost(&channel);
                    return Ok(());
                }
                Err("an unexpected confirmation".into())
            }
            Frame::Status => match self.in_flight.pop_front() {
                Some(asked) if asked.request == RequestKind::Ping => Ok(()),
                _ => Err("an unexpected answer".into()),
            },
            Frame::Refused(said) => self.refused(said),
        }
    }

    /// Takes the channel from the oldest request, if this is an answer to that request.
    fn answered(&mut self, request: RequestKind, channel: &str) -> Option<Arc<str>> {
        let oldest = self.in_flight.front_mut()?;
        let at = (oldest.names.iter()).position(|name| &**name == channel);
        let name = oldest
            .names
            .swap_remove(at.filter(|_| oldest.request == request)?);
        if oldest.names.is_empty() {
            self.in_flight.pop_front();
        }
        Some(name)
    }

    fn confirmed(&mut self, name: &Arc<str>, denied: bool) {
        let Some(pending) = self.pending.get_mut(name) else {
            return;
        };
        pending.answers_remaining -= 1;
        pending.denied |= denied;
        if pending.answers_remaining == 0 {
            let denied = pending.denied;
            self.pending.remove(name);
            self.node_channels.subscribed(name, denied);
        }
    }

    /// Handles an error reply to the oldest request.
    fn refused(&mut self, said: String) -> Result<(), String> {
        let Some(SentRequest { request, names, .. }) = self.in_flight.pop_front() else {
            return Err(said);
        };
        let transport = match request {
            // A server that denies the ping has also answered.
            RequestKind::Ping => return Ok(()),
            // Another node has the slot, and the subscription ended when the slot moved.
            RequestKind::Unsubscribe(Transport::Sharded) => return Ok(()),
            RequestKind::Unsubscribe(Transport::Global) => return Err(said),
            RequestKind::Subscribe(transport) => transport,
        };
        let code = said.split(' ').next().unwrap_or("");
        match code {
            // The server refuses the entire request because of one channel in it.
            "NOPERM" if names.len() > 1 => {
                for name in names {
                    self.send_request(request, vec![name]);
                }
            }
            "NOPERM" => {
                // The server accepts other channels.
                self.subscription_state = SubscriptionState::Confirmed;
                names.iter().for_each(|name| self.denied(name, &said));
            }
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" if transport == Transport::Sharded => {
                names.iter().for_each(|name| self.lost(name));
            }
            _ if transport == Transport::Sharded && said.contains("unknown command") => {
                self.only_global = true;
                self.node_channels.use_single_transport();
                match self.transports.contains(&Transport::Global) {
                    true => names.iter().for_each(|name| self.confirmed(name, false)),
                    false => self.request_in_groups(
                        RequestKind::Subscribe(Transport::Global),
                        Transport::Global,
                        &names,
                    ),
                }
            }
            _ => {
                if refuses_all_channels(&said) {
                    self.subscription_state = SubscriptionState::Refused;
                }
                return Err(said);
            }
        }
        Ok(())
    }

    fn denied(&mut self, name: &Arc<str>, error: &str) {
        // This client's own channel is denied together with the shared channel, so one warning is
        // enough.
        if !self.node_channels.is_own(name) {
            log(|| {
                tracing::warn!(
                    channel = %name, %error,
                    "the server denies this channel; its waiters poll"
                )
            });
        }
        self.confirmed(name, true);
    }

    /// Removes a channel from this connection, because the server does not deliver its messages, or
    /// no longer delivers them.
    fn lost(&mut self, name: &str) {
        self.pending.remove(name);
        self.node_channels.lost(name);
        self.node.slots_may_have_moved();
    }
}

/// Resolves at this time, or never if it is `None`.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
