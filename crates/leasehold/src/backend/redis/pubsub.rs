//! Subscriptions: one connection for messages, opened when the first waiter needs it. When it
//! was lost, a new one subscribes to everything again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Msg, RedisError};
use tokio::task::unconstrained;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::node::Node;
use super::pause::{LASTING, Pause};
use crate::backend::channels::Channels;

/// How long a subscription outlives its last listener, for the next waiter of a busy name.
const LINGER: Duration = Duration::from_millis(500);
/// How often the server is asked whether a silent connection is still up.
const PING_EVERY: Duration = Duration::from_secs(10);
/// How many messages in a row are delivered before anything else has its turn.
const MOST_AT_ONCE: usize = 4096;
/// Channels in one SUBSCRIBE.
const CHUNK: usize = 128;

/// Keeps the subscriptions equal to the channels that have listeners. Never returns.
pub(crate) async fn run(node: Arc<Node>, channels: WakesAll) {
    let (channels, connector) = (&channels.0, &node.connector);
    let mut pause = Pause::new();
    loop {
        while channels.is_empty() {
            channels.changed().await;
        }
        // A notice from before this connection: it goes to where calls go now anyway.
        let _ = node.moved.notified().now_or_never();
        let asked = Arc::new(AtomicUsize::new(0));
        match connector.open_pubsub(Arc::clone(&asked)).await {
            Ok(pubsub) => {
                let since = Instant::now();
                let limit = connector.reply_timeout;
                let mut session = Session::new(pubsub, channels, asked, limit);
                let end = tokio::select! {
                    end = session.run() => end,
                    () = node.moved.notified() => "the server was started again, or calls go to another one now".into(),
                };
                // A connection that did not last is followed by a longer pause: a server that
                // ends each one at once must not be connected to all the time.
                if since.elapsed() > LASTING {
                    pause.reset();
                }
                // Nobody misses it while nobody listens.
                if !channels.is_empty() {
                    tracing::warn!(
                        address = %node.address(), cause = %end,
                        "the connection for wake-ups is lost; waiters poll until it is back"
                    );
                }
            }
            Err(failure) => tracing::debug!(
                address = %node.address(), cause = %failure.cause,
                "no connection for wake-ups"
            ),
        }
        // At once, before the pause: waiters ask again, and poll until a connection is back.
        channels.all_down();
        sleep(pause.next()).await;
        // Channels that were left while there was no connection need no subscription.
        channels.remove_idle();
    }
}

/// Dropped with the client's runtime: waiters in other runtimes ask again, and learn that it has
/// ended. Their own timers would wake them only after the poll interval.
pub(crate) struct WakesAll(pub(crate) Arc<Channels>);

impl Drop for WakesAll {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

/// The messages of one connection.
struct Messages<'a> {
    stream: PubSubStream,
    channels: &'a Arc<Channels>,
}

impl Messages<'_> {
    /// Waits for messages and wakes those for whom they are. `Err` when no more can come.
    async fn wake_next(&mut self) -> Result<(), String> {
        let message = self.stream.next().await;
        self.wake(message)?;
        // Many, whatever this task's share of the time is: the driver reads on meanwhile, and
        // the messages of a flood that are not taken from it fill the memory. Not all, or an
        // endless flood would keep new channels from being subscribed.
        for _ in 0..MOST_AT_ONCE {
            match unconstrained(self.stream.next()).now_or_never() {
                Some(message) => self.wake(message)?,
                None => break,
            }
        }
        Ok(())
    }

    fn wake(&self, message: Option<Msg>) -> Result<(), String> {
        let message = message.ok_or("the server closed it")?;
        let channel = message.get_channel_name();
        self.channels.told(channel, message.get_payload_bytes());
        Ok(())
    }

    /// Delivers the messages that have come already.
    fn wake_come(&mut self) -> Result<(), String> {
        while let Some(message) = unconstrained(self.stream.next()).now_or_never() {
            self.wake(message)?;
        }
        Ok(())
    }

    /// Delivers messages until `work` is done.
    async fn wake_during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, String> {
        // The reply to `work` may take its time, and releases are published meanwhile.
        tokio::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return Ok(output),
                woken = self.wake_next() => woken?,
            }
        }
    }
}

struct Session<'a> {
    sink: PubSubSink,
    messages: Messages<'a>,
    channels: &'a Arc<Channels>,
    /// Confirmations that are still to come.
    asked: Arc<AtomicUsize>,
    reply_timeout: Duration,
}

impl<'a> Session<'a> {
    fn new(
        pubsub: PubSub,
        channels: &'a Arc<Channels>,
        asked: Arc<AtomicUsize>,
        reply_timeout: Duration,
    ) -> Self {
        let (sink, stream) = pubsub.split();
        Self {
            sink,
            messages: Messages { stream, channels },
            channels,
            asked,
            reply_timeout,
        }
    }

    /// Runs until the connection is lost, and says why.
    async fn run(&mut self) -> String {
        let mut ping = interval(PING_EVERY);
        // After a busy time one ping tells enough. An interval would make up for each that was
        // missed.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Its first tick is due at once, when the connection has just shown that it is up.
        ping.reset();
        loop {
            // Before any notice: nobody notifies a new connection of the channels that the one
            // before it had.
            if let Err(error) = self.subscribe_fresh().await {
                return error;
            }
            let result = tokio::select! {
                woken = self.messages.wake_next() => woken,
                () = self.channels.changed() => self.after_a_change().await,
                _ = ping.tick() => self.ping().await,
            };
            if let Err(error) = result {
                return error;
            }
        }
    }

    async fn subscribe_fresh(&mut self) -> Result<(), String> {
        for chunk in self.channels.take_fresh().chunks(CHUNK) {
            let names: Vec<&str> = chunk.iter().map(|name| &**name).collect();
            match self.subscribe(&names).await? {
                Ok(()) => (chunk.iter()).for_each(|name| self.channels.subscribed(name, false)),
                // The server refuses the whole command because of one channel in it.
                Err(_) if chunk.len() > 1 => {
                    for name in chunk {
                        match self.subscribe(&[name]).await? {
                            Ok(()) => self.channels.subscribed(name, false),
                            Err(error) => self.denied(name, &error),
                        }
                    }
                }
                Err(error) => self.denied(&chunk[0], &error),
            }
        }
        Ok(())
    }

    /// The outer error is a lost connection, the inner one a refusal.
    async fn subscribe(&mut self, names: &[&str]) -> Result<Result<(), RedisError>, String> {
        // Before the request leaves: the check of incoming bytes (`wire.rs`) ends the connection
        // at a confirmation that nobody has asked for.
        self.asked.fetch_add(names.len(), Ordering::SeqCst);
        let subscribe = timeout(self.reply_timeout, self.sink.subscribe(names));
        match self.messages.wake_during(subscribe).await? {
            Ok(Ok(())) => {
                // Messages that came before the confirmation are counted before it: a latch must
                // not open by a zero from before its waiter listened.
                self.messages.wake_come()?;
                Ok(Ok(()))
            }
            Ok(Err(error)) if error.code() == Some("NOPERM") => Ok(Err(error)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("a subscription was not confirmed in time".into()),
        }
    }

    fn denied(&self, name: &Arc<str>, error: &RedisError) {
        tracing::warn!(
            channel = %name, %error,
            "the server denies this channel; its waiters poll"
        );
        self.channels.subscribed(name, true);
    }

    /// A channel is wanted or no longer wanted. New channels are subscribed at once; idle ones
    /// go after a while, during which messages are delivered and new channels subscribed.
    async fn after_a_change(&mut self) -> Result<(), String> {
        self.subscribe_fresh().await?;
        let linger = sleep(LINGER);
        tokio::pin!(linger);
        loop {
            tokio::select! {
                () = &mut linger => break,
                () = self.channels.changed() => self.subscribe_fresh().await?,
                woken = self.messages.wake_next() => woken?,
            }
        }
        let idle = self.channels.remove_idle();
        for chunk in idle.chunks(CHUNK) {
            let names: Vec<&str> = chunk.iter().map(|name| &**name).collect();
            self.asked.fetch_add(names.len(), Ordering::SeqCst);
            let unsubscribe = timeout(self.reply_timeout, self.sink.unsubscribe(&names[..]));
            match self.messages.wake_during(unsubscribe).await? {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => return Err("an unsubscription was not confirmed in time".into()),
            }
        }
        Ok(())
    }

    /// A connection cut without a word would otherwise look like silence.
    async fn ping(&mut self) -> Result<(), String> {
        let ping = timeout(self.reply_timeout, self.sink.ping::<redis::Value>());
        match self.messages.wake_during(ping).await? {
            // An error as well: a server that denies the command answers.
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it no longer answers".into()),
        }
    }
}
