//! Subscriptions: one connection for messages, opened when the first waiter
//! needs it, and everything subscribed again after it was lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::connect::Connector;
use super::pause::Pause;
use crate::backend::channels::Channels;

/// How long a subscription outlives its last listener. The next waiter of a busy
/// name then finds it standing.
const LINGER: Duration = Duration::from_millis(500);
/// How often a silent connection is asked whether it still stands.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Channels in one SUBSCRIBE.
const CHUNK: usize = 128;

/// Keeps the subscriptions equal to what is listened to. Ends never.
pub(crate) async fn run(connector: Arc<Connector>, channels: Arc<Channels>) {
    let mut pause = Pause::new();
    loop {
        while channels.is_empty() {
            channels.changed().await;
        }
        match connector.open_pubsub().await {
            Ok(pubsub) => {
                let (sink, stream) = pubsub.split();
                let mut session = Session {
                    sink,
                    stream,
                    channels: &channels,
                    reply_limit: connector.reply_limit,
                };
                let end = session.run(&mut pause).await;
                // Nobody misses it while nobody listens.
                if !channels.is_empty() {
                    tracing::warn!(
                        address = %connector.address.shown(), cause = %end,
                        "the connection for wake-ups is lost; waiters poll until it is back"
                    );
                }
            }
            Err(failure) => tracing::debug!(
                address = %connector.address.shown(), cause = %failure.cause,
                "no connection for wake-ups"
            ),
        }
        channels.all_down();
        sleep(pause.next()).await;
        // Whoever stopped listening while there was no connection.
        channels.remove_idle();
    }
}

struct Session<'a> {
    sink: PubSubSink,
    stream: PubSubStream,
    channels: &'a Arc<Channels>,
    reply_limit: Duration,
}

impl Session<'_> {
    /// Runs until the connection is lost, and says why.
    async fn run(&mut self, pause: &mut Pause) -> String {
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        loop {
            if let Err(error) = self.subscribe_fresh().await {
                return error;
            }
            pause.reset();
            let result = tokio::select! {
                message = self.stream.next() => match message {
                    Some(message) => {
                        self.channels.wake(message.get_channel_name());
                        continue;
                    }
                    None => Err("the server closed it".into()),
                },
                () = self.channels.changed() => {
                    self.after_a_change().await
                }
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
                Ok(()) => self.confirmed(chunk, false),
                // One denied channel fails the whole command.
                Err(_) if chunk.len() > 1 => {
                    for name in chunk {
                        let denied = self.subscribe(&[name]).await?.is_err();
                        self.confirmed(std::slice::from_ref(name), denied);
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        channel = %chunk[0], %error,
                        "the server denies this channel; its waiters poll"
                    );
                    self.confirmed(chunk, true);
                }
            }
        }
        Ok(())
    }

    /// The outer error is a lost connection, the inner one a refusal.
    async fn subscribe(&mut self, names: &[&str]) -> Result<Result<(), RedisError>, String> {
        let subscribe = self.sink.subscribe(names);
        match timeout(self.reply_limit, subscribe).await {
            Ok(Ok(())) => Ok(Ok(())),
            Ok(Err(error)) if error.code() == Some("NOPERM") => Ok(Err(error)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("a subscription was not confirmed in time".into()),
        }
    }

    fn confirmed(&mut self, names: &[Arc<str>], denied: bool) {
        for name in names {
            self.channels.subscribed(name, denied);
        }
    }

    /// Something is wanted or no longer wanted. New channels are subscribed by the
    /// caller's loop at once; idle ones go after a while, and meanwhile messages
    /// and new channels are served.
    async fn after_a_change(&mut self) -> Result<(), String> {
        self.subscribe_fresh().await?;
        let linger = sleep(LINGER);
        tokio::pin!(linger);
        loop {
            tokio::select! {
                () = &mut linger => break,
                () = self.channels.changed() => self.subscribe_fresh().await?,
                message = self.stream.next() => match message {
                    Some(message) => self.channels.wake(message.get_channel_name()),
                    None => return Err("the server closed it".into()),
                },
            }
        }
        let idle = self.channels.remove_idle();
        for chunk in idle.chunks(CHUNK) {
            let names: Vec<&str> = chunk.iter().map(|name| &**name).collect();
            match timeout(self.reply_limit, self.sink.unsubscribe(&names[..])).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => return Err("an unsubscription was not confirmed in time".into()),
            }
        }
        Ok(())
    }

    /// A connection cut without a word would otherwise look like silence.
    async fn ping(&mut self) -> Result<(), String> {
        match timeout(self.reply_limit, self.sink.ping::<redis::Value>()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it no longer answers".into()),
        }
    }
}
