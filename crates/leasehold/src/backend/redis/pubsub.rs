//! Subscriptions: each node has one connection for messages, which is opened when the first waiter
//! needs it. After a lost connection, a new one subscribes to all channels again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::messages::{Frame, Messages, write_command};
use super::node::Node;
use super::pause::{LASTING, Pause};
use super::server_info::connection_name;
use super::slots::slot_of;
use crate::backend::channels::{Channels, Heard, Message, Section, Transport};
use crate::observe::log;
use crate::text::Shown;

/// The time for which a subscription outlives its last listener, for the next waiter of a busy
/// name.
const LINGER: Duration = Duration::from_millis(500);
/// The time between two checks whether a silent connection is still up.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The number of channels in one SUBSCRIBE.
const CHUNK: usize = 128;
/// The pause before a server that accepts no subscriptions is asked again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// The number of connections in a row that count as a refusal if each ended before any subscription
/// was confirmed. Some proxies end the connection at a command that they do not know.
const MOST_IN_VAIN: u32 = 4;

/// Keeps the subscriptions of a node equal to the set of its channels with listeners. Never
/// returns.
pub(crate) async fn run(
    node: Arc<Node>,
    section: Section,
    transports: &'static [Transport],
    _wakes_all: WakesAll,
) {
    let mut pause = Pause::new();
    let name = connection_name(&node.label);
    let mut in_vain = 0;
    // The number of the server whose refusal has been logged.
    let mut told = None;
    loop {
        while section.is_empty() {
            section.changed().await;
        }
        // Read before the connection is opened: if calls switch to another server meanwhile, the
        // connection is opened again.
        let number = node.connector.present_number();
        match node.connector.open_messages(name.as_deref()).await {
            Ok(messages) => {
                let since = Instant::now();
                let mut session = Session::new(&node, &section, transports, messages);
                let end = tokio::select! {
                    end = session.run() => end,
                    () = node.connector.leads_to_another(number) => "the server was restarted, or calls go to another server now".into(),
                };
                // A longer pause follows a connection that did not last: if a server ends each
                // connection at once, the client must not connect all the time.
                if since.elapsed() > LASTING {
                    pause.reset();
                }
                in_vain = match session.standing {
                    Standing::Asked => in_vain + 1,
                    Standing::Idle | Standing::Confirmed | Standing::Refused => 0,
                };
                let is_same = node.connector.present_number() == number;
                let refuses = session.standing == Standing::Refused || in_vain == MOST_IN_VAIN;
                if is_same && refuses {
                    in_vain = 0;
                    if told.replace(number) != Some(number) {
                        log(|| {
                            tracing::warn!(
                                address = %node.address(), error = %Shown(&end),
                                "the server accepts no subscriptions; waiters poll, and the client tries again every minute"
                            )
                        });
                    }
                    poll_meanwhile(&node, &section, number).await;
                    continue;
                }
                // Without listeners, no waiter misses the connection.
                if !section.is_empty() {
                    log(|| {
                        tracing::warn!(
                            address = %node.address(), cause = %end,
                            "the connection for wake-ups is lost; waiters poll until it is back"
                        )
                    });
                }
            }
            Err(failure) => log(|| {
                tracing::debug!(
                    address = %node.address(), cause = %failure.cause,
                    "no connection for wake-ups"
                )
            }),
        }
        // Done before the pause, so that waiters ask again now and poll until a connection is back.
        section.all_down();
        node.slots_may_have_moved();
        tokio::select! {
            () = sleep(pause.next()) => {}
            // Calls use another server now, and that server may answer.
            () = node.connector.leads_to_another(number) => {}
        }
        // Channels that were left while there was no connection need no subscription.
        section.remove_idle();
    }
}

/// Lets all waiters poll while the server accepts no subscriptions. Returns when it is time to ask
/// again: after a while, or when calls use another server.
async fn poll_meanwhile(node: &Node, section: &Section, number: u64) {
    let until = Instant::now() + REFUSED_FOR;
    section.all_down();
    loop {
        for name in section.take_fresh() {
            section.subscribed(&name, true);
        }
        section.remove_idle();
        tokio::select! {
            () = section.changed() => {}
            () = sleep_until(until) => break,
            () = node.connector.leads_to_another(number) => break,
        }
    }
    // All channels are subscribed to again.
    section.all_down();
}

/// Returns whether this error means that the server accepts no subscriptions to any channel.
fn is_for_good(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    let of_proxies = ["unsupported command", "not supported", "is not allowed"];
    said.contains("unknown command") || of_proxies.iter().any(|words| said.contains(words))
}

/// Wakes all waiters when it is dropped with the client's runtime: waiters in other runtimes ask
/// again, and learn that the client's runtime has ended. Their own timers would wake them only
/// after the poll interval.
pub(crate) struct WakesAll(pub(crate) Arc<Channels>);

impl Drop for WakesAll {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

/// One connection and the requests on it.
struct Session<'a> {
    node: &'a Node,
    section: &'a Section,
    transports: &'static [Transport],
    messages: Messages,
    /// Requests without an answer, oldest first: a server answers in order.
    asked: VecDeque<Asked>,
    /// Channels whose subscriptions are not all answered yet.
    pending: HashMap<Arc<str>, Pending>,
    /// Messages that may belong together.
    heard: Heard,
    /// Commands that have not left yet.
    commands: Vec<u8>,
    standing: Standing,
    /// Whether the server does not know sharded channels.
    only_global: bool,
    /// The time at which channels without listeners are given up.
    idle_at: Option<Instant>,
}

/// The state of a connection's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// No subscription was requested.
    Idle,
    Asked,
    Confirmed,
    /// The server accepts no subscriptions at all.
    Refused,
}

struct Asked {
    request: Request,
    /// The channels that are not answered yet.
    names: Vec<Arc<str>>,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Subscribe(Transport),
    Unsubscribe(Transport),
    Ping,
}

impl Request {
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
enum Event {
    Read(Result<(), String>),
    Changed,
    Idle,
    Unanswered,
    Ping,
}

#[derive(Default)]
struct Pending {
    answers_left: usize,
    denied: bool,
}

impl<'a> Session<'a> {
    fn new(
        node: &'a Node,
        section: &'a Section,
        transports: &'static [Transport],
        messages: Messages,
    ) -> Self {
        Self {
            node,
            section,
            transports,
            messages,
            asked: VecDeque::new(),
            pending: HashMap::new(),
            heard: Heard::default(),
            commands: Vec::new(),
            standing: Standing::Idle,
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
            // Done before waiting for a notice: a new connection is not notified of channels that
            // the connection before it had.
            self.subscribe_fresh();
            if let Err(error) = self.flush().await {
                return error;
            }
            let answer_due = self.answer_due();
            let event = tokio::select! {
                read = self.messages.read_more() => Event::Read(read),
                () = self.section.changed() => Event::Changed,
                () = until(self.idle_at) => Event::Idle,
                () = until(answer_due) => Event::Unanswered,
                _ = ping.tick() => Event::Ping,
            };
            let mut result = Ok(());
            match event {
                Event::Read(read) => result = read.and_then(|()| self.take_all()),
                Event::Changed => self.start_to_linger(),
                Event::Idle => self.leave_idle(),
                Event::Unanswered => result = Err(self.unanswered()),
                Event::Ping => self.ask(Request::Ping, Vec::new()),
            }
            if let Err(error) = result {
                return error;
            }
        }
    }

    fn answer_due(&self) -> Option<Instant> {
        let oldest = self.asked.front()?;
        Some(oldest.since + self.node.reply_timeout())
    }

    fn unanswered(&self) -> String {
        let oldest = self.asked.front();
        oldest.map_or("", |asked| asked.request.unanswered()).into()
    }

    /// Notes that a channel was wanted or left. Channels without listeners are given up after a
    /// while.
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

    fn ask(&mut self, request: Request, names: Vec<Arc<str>>) {
        if let (Request::Subscribe(_), Standing::Idle) = (request, self.standing) {
            self.standing = Standing::Asked;
        }
        let arguments = names.iter().map(|name| &**name);
        write_command(&mut self.commands, request.command(), arguments);
        self.asked.push_back(Asked {
            request,
            names,
            since: Instant::now(),
        });
    }

    fn subscribe_fresh(&mut self) {
        let fresh = self.section.take_fresh();
        for transport in self.used_transports() {
            for name in &fresh {
                let pending = self.pending.entry(Arc::clone(name)).or_default();
                pending.answers_left += 1;
            }
            self.ask_in_groups(Request::Subscribe(*transport), *transport, &fresh);
        }
    }

    fn used_transports(&self) -> &'static [Transport] {
        match self.only_global {
            true => &[Transport::Global],
            false => self.transports,
        }
    }

    fn ask_in_groups(&mut self, request: Request, transport: Transport, names: &[Arc<str>]) {
        match transport {
            Transport::Global => {
                for group in names.chunks(CHUNK) {
                    self.ask(request, group.to_vec());
                }
            }
            // A server accepts only channels of one slot in one request.
            Transport::Sharded => {
                let mut names = names.to_vec();
                names.sort_by_key(|name| slot_of(name.as_bytes()));
                for group in names
                    .chunk_by(|one, other| slot_of(one.as_bytes()) == slot_of(other.as_bytes()))
                {
                    self.ask(request, group.to_vec());
                }
            }
        }
    }

    fn leave_idle(&mut self) {
        self.idle_at = None;
        let idle = self.section.remove_idle();
        for transport in self.used_transports() {
            self.ask_in_groups(Request::Unsubscribe(*transport), *transport, &idle);
        }
    }

    /// Handles the frames that have arrived, in order: a message before a confirmation was
    /// published before it. Otherwise a zero from before its waiter listened would let the waiter
    /// through a latch.
    fn take_all(&mut self) -> Result<(), String> {
        while let Some(frame) = self.messages.next_frame()? {
            self.take(frame)?;
        }
        self.heard.end(|message| self.section.told(message));
        Ok(())
    }

    fn take(&mut self, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Message {
                transport,
                channel,
                payload,
            } => {
                let tell = |message: Message<'_>| self.section.told(message);
                self.heard.message(channel, &payload, transport, tell);
                Ok(())
            }
            Frame::Subscribed(transport, channel) => {
                // Done before the channel is confirmed: earlier messages were published before the
                // confirmation.
                self.heard.end(|message| self.section.told(message));
                let name = self.answered(Request::Subscribe(transport), &channel);
                let name = name.ok_or("an unexpected confirmation")?;
                self.standing = Standing::Confirmed;
                self.confirmed(&name, false);
                Ok(())
            }
            Frame::Unsubscribed(transport, channel) => {
                if self
                    .answered(Request::Unsubscribe(transport), &channel)
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
            Frame::Fine => match self.asked.pop_front() {
                Some(asked) if asked.request == Request::Ping => Ok(()),
                _ => Err("an unexpected answer".into()),
            },
            Frame::Refused(said) => self.refused(said),
        }
    }

    /// Takes the channel from the oldest request, if this is an answer to that request.
    fn answered(&mut self, request: Request, channel: &str) -> Option<Arc<str>> {
        let oldest = self.asked.front_mut()?;
        let at = (oldest.names.iter()).position(|name| &**name == channel);
        let name = oldest
            .names
            .swap_remove(at.filter(|_| oldest.request == request)?);
        if oldest.names.is_empty() {
            self.asked.pop_front();
        }
        Some(name)
    }

    fn confirmed(&mut self, name: &Arc<str>, denied: bool) {
        let Some(pending) = self.pending.get_mut(name) else {
            return;
        };
        pending.answers_left -= 1;
        pending.denied |= denied;
        if pending.answers_left == 0 {
            let denied = pending.denied;
            self.pending.remove(name);
            self.section.subscribed(name, denied);
        }
    }

    /// Handles an error reply to the oldest request.
    fn refused(&mut self, said: String) -> Result<(), String> {
        let Some(Asked { request, names, .. }) = self.asked.pop_front() else {
            return Err(said);
        };
        let transport = match request {
            // A server that denies the command has answered, too.
            Request::Ping => return Ok(()),
            // Another node has the slot, and the subscription ended when the slot moved.
            Request::Unsubscribe(Transport::Sharded) => return Ok(()),
            Request::Unsubscribe(Transport::Global) => return Err(said),
            Request::Subscribe(transport) => transport,
        };
        let code = said.split(' ').next().unwrap_or("");
        match code {
            // The server refuses the whole request because of one channel in it.
            "NOPERM" if names.len() > 1 => {
                for name in names {
                    self.ask(request, vec![name]);
                }
            }
            "NOPERM" => {
                // The server accepts other channels.
                self.standing = Standing::Confirmed;
                names.iter().for_each(|name| self.denied(name, &said));
            }
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" if transport == Transport::Sharded => {
                names.iter().for_each(|name| self.lost(name));
            }
            _ if transport == Transport::Sharded && said.contains("unknown command") => {
                self.only_global = true;
                self.section.hears_one_transport();
                match self.transports.contains(&Transport::Global) {
                    true => names.iter().for_each(|name| self.confirmed(name, false)),
                    false => self.ask_in_groups(
                        Request::Subscribe(Transport::Global),
                        Transport::Global,
                        &names,
                    ),
                }
            }
            _ => {
                if is_for_good(&said) {
                    self.standing = Standing::Refused;
                }
                return Err(said);
            }
        }
        Ok(())
    }

    fn denied(&mut self, name: &Arc<str>, error: &str) {
        // A channel of this client alone is denied together with the channel of all clients, which
        // is enough for one warning.
        if !self.section.is_own(name) {
            log(|| {
                tracing::warn!(
                    channel = %name, %error,
                    "the server denies this channel; its waiters poll"
                )
            });
        }
        self.confirmed(name, true);
    }

    /// Gives up a channel whose messages the server does not bring, or no longer brings.
    fn lost(&mut self, name: &str) {
        self.pending.remove(name);
        self.section.lost(name);
        self.node.slots_may_have_moved();
    }
}

/// Resolves at this time; never if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
