//! The address of a master, as its sentinels report it, and the switch to another server.
//!
//! A majority of the sentinels in the URL must answer, because a client that is cut off together
//! with an old master reaches only a minority. The newest configuration among the answers counts:
//! the one with the highest epoch. The client listens to all sentinels. It trusts the first report
//! of a switch enough to end the connection to the old master at once. The next connection is
//! opened to the server that the majority names at that time.

mod master_view;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::redis::RedisError;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::master_view::{MasterView, NoReport, SentinelAnswer, SentinelReport, majority_of};
use super::address::{Address, Host};
use super::connect::Connector;
use super::messages::{Frame, Messages, write_command};
use super::reconnect_delay::{ReconnectDelay, STABLE_AFTER};
use super::reply_text;
use crate::address_map::AddressMap;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Clock;
use crate::observe::log;
use crate::text::Shown;

/// The extra time for the other sentinels once a majority has answered: one of them may have a
/// newer configuration.
const GRACE: Duration = Duration::from_millis(100);
/// The interval at which sentinels are queried, in addition to the messages that they send.
const POLL_EVERY: Duration = Duration::from_secs(10);
/// The interval at which sentinels are queried while the client does not listen to any of them.
const POLL_OFTEN: Duration = Duration::from_secs(1);
/// The interval at which the client checks whether a silent connection to a sentinel is still open.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The channel on which sentinels announce that a master has moved to another server.
const SWITCHES: &str = "+switch-master";

/// The sentinels of one master.
pub(crate) struct Sentinels {
    /// The name by which the sentinels call the master.
    name: String,
    all: Vec<Connector>,
    /// The template of the master's address: how to reach it, wherever it is.
    master: Address,
    /// The map from the master's addresses, as the sentinels announce them, to the addresses to
    /// connect to. All other fields use the mapped addresses.
    addresses: AddressMap,
    clock: Clock,
    /// The newest reports. Each connection compares them with the address of its own server: one
    /// connection may have followed a switch before another does.
    master_view: watch::Sender<MasterView>,
    /// The number of sentinels that the client listens to.
    listened_to: AtomicUsize,
    /// Notified when the client begins to listen to a sentinel, because it may have missed earlier
    /// messages of this sentinel.
    listening: Notify,
}

impl Sentinels {
    pub(crate) fn new(
        name: String,
        all: Vec<Connector>,
        master: Address,
        addresses: AddressMap,
        clock: Clock,
    ) -> Self {
        Self {
            name,
            all,
            master,
            addresses,
            clock,
            master_view: watch::Sender::default(),
            listened_to: AtomicUsize::new(0),
            listening: Notify::new(),
        }
    }

    /// Asks the sentinels where the master is.
    pub(crate) async fn find(&self) -> Result<Arc<Address>, Failure> {
        let answers = self.query_all().await;
        let (host, port) = self.judge(&answers).map_err(|cause| {
            Failure::new(Outcome::DidNotRun, cause, Arc::clone(self.master.shown()))
        })?;
        Ok(Arc::new(self.master.of_node(&host, port)))
    }

    fn judge(&self, answers: &[SentinelAnswer]) -> Result<Host, Cause> {
        let mut judged = None;
        self.master_view.send_if_modified(|master_view| {
            let before = master_view.named_master().cloned();
            judged = Some(master_view.judge(&self.name, answers, self.clock.now()));
            master_view.named_master() != before.as_ref()
        });
        judged.expect("it was judged just now")
    }

    /// Asks all sentinels at once.
    async fn query_all(&self) -> Vec<SentinelAnswer> {
        let limit = self.all.first().map(|one| one.connect_timeout / 2);
        let limit = limit.unwrap_or_default();
        let mut end = pin!(sleep(limit));
        let asked = self.all.iter().enumerate();
        let mut asked: FuturesUnordered<_> = asked
            .map(|(number, sentinel)| async move { (number, self.query_one(sentinel).await) })
            .collect();
        let late = |one: &Connector| {
            let what = format!("no answer within {limit:?}{}", one.address.plain_hint());
            let address = Arc::clone(one.address.shown());
            Err(NoReport::Failed(Failure::no_answer(
                Outcome::DidNotRun,
                what,
                address,
            )))
        };
        let mut answers: Vec<SentinelAnswer> = self.all.iter().map(late).collect();
        loop {
            tokio::select! {
                answer = asked.next() => match answer {
                    Some((number, answer)) => answers[number] = answer,
                    None => return answers,
                },
                () = &mut end => return answers,
            }
            let answered = answers.iter().filter(|answer| answer.is_ok()).count();
            if answered == majority_of(answers.len()) {
                let soon = Instant::now() + GRACE;
                let soon = soon.min(end.deadline());
                end.as_mut().reset(soon);
            }
        }
    }

    async fn query_one(&self, sentinel: &Connector) -> SentinelAnswer {
        let opened = sentinel.open(&sentinel.address).await?;
        let (connection, mut driver) = (opened.connection, opened.driver);
        let questions = async {
            let question = |word: &str| {
                let mut question = ::redis::cmd("SENTINEL");
                question.arg(word).arg(&self.name);
                question
            };
            let (master, address) = (question("MASTER"), question("GET-MASTER-ADDR-BY-NAME"));
            let mut lines = [connection.clone(), connection.clone()];
            let [one, other] = &mut lines;
            // The requests are sent in this order, so that the address is not older than the epoch.
            // (The address in the reply to `MASTER` can be older: a sentinel that leads a failover
            // shows the new epoch there some time before the new address.)
            tokio::join!(
                master.query_async::<HashMap<String, String>>(one),
                address.query_async::<Option<(String, u16)>>(other)
            )
        };
        let (master, address) = tokio::select! {
            answers = questions => answers,
            () = &mut driver => return Err(sentinel.closed_early(&sentinel.address).into()),
        };
        let refused = |error: &RedisError| self.refused(sentinel, error);
        let master = master.map_err(|error| refused(&error))?;
        let address = address.map_err(|error| refused(&error))?;
        let (host, port) = address.ok_or(NoReport::Unknown)?;
        let flags = master.get("flags").map_or("", String::as_str);
        let is_down = |flag: &str| flag == "s_down" || flag == "o_down";
        Ok(SentinelReport {
            at: self.addresses.translate(&host, port),
            epoch: (master.get("config-epoch")).map_or(0, |epoch| epoch.parse().unwrap_or(0)),
            is_down: flags.split(',').any(is_down),
        })
    }

    fn refused(&self, sentinel: &Connector, error: &RedisError) -> NoReport {
        let address = sentinel.address.shown();
        let Some(said) = reply_text(error) else {
            let outcome = Outcome::DidNotRun;
            return Failure::no_answer(outcome, error.to_string(), Arc::clone(address)).into();
        };
        if said.contains("No such master") {
            return NoReport::Unknown;
        }
        let mut failure = Failure::from_reply(&said, address);
        if let Cause::Other(said) = &mut failure.cause
            && said.contains("unknown command")
        {
            *said = format!("it is not a sentinel ({said})");
        }
        failure.into()
    }

    /// Returns where the sentinels say that the master is.
    pub(crate) fn named_master(&self) -> Option<Host> {
        self.master_view.borrow().named_master().cloned()
    }

    /// Resolves, for every caller, as soon as the sentinels name a server other than `from`.
    pub(crate) async fn master_moved_from(&self, from: Option<&Host>) {
        let is_another = |master_view: &MasterView| {
            (master_view.named_master()).is_some_and(|named| Some(named) != from)
        };
        // This can't fail: `self` has the sender.
        let _ = self.master_view.subscribe().wait_for(is_another).await;
    }

    /// Notes that a sentinel has announced that the master is at `to` from now on.
    fn switched(&self, to: Host) {
        let now = self.clock.now();
        self.master_view
            .send_if_modified(|master_view| master_view.switched(to, now));
    }

    /// Asks the sentinels at intervals, in case a message was lost. Never returns.
    async fn poll(&self) {
        loop {
            let every = match self.listened_to.load(Ordering::Relaxed) {
                0 => POLL_OFTEN,
                _ => POLL_EVERY,
            };
            let _ = timeout(every, self.listening.notified()).await;
            if let Err(failure) = self.find().await {
                log(|| {
                    tracing::debug!(
                        address = %failure.address, cause = %failure.cause,
                        "the sentinels do not say where the master is"
                    )
                });
            }
        }
    }

    /// Listens to one sentinel. Never returns.
    async fn listen(&self, sentinel: &Connector) {
        let mut pause = ReconnectDelay::new();
        loop {
            let since = Instant::now();
            let end = match sentinel.open_messages(None).await {
                Ok(messages) => self.read_messages(messages, sentinel).await,
                Err(failure) => failure.cause.to_string(),
            };
            log(|| {
                tracing::debug!(
                    sentinel = %sentinel.address.shown(), cause = %Shown(&end),
                    "can't listen to a sentinel; trying again"
                )
            });
            if since.elapsed() > STABLE_AFTER {
                pause.reset();
            }
            sleep(pause.next()).await;
        }
    }

    /// Follows all sentinels. Never returns.
    pub(crate) async fn follow(&self) {
        let all = self.all.iter().map(|sentinel| self.listen(sentinel));
        tokio::join!(join_all(all), self.poll());
    }

    /// Handles the messages of a sentinel until the connection is lost. Returns the reason for the
    /// loss.
    async fn read_messages(&self, mut messages: Messages, sentinel: &Connector) -> String {
        let mut command = Vec::new();
        write_command(&mut command, "SUBSCRIBE", [SWITCHES]);
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        let mut listened_to = None;
        // The subscription is the first request that the sentinel must answer.
        let mut unanswered = true;
        loop {
            if !command.is_empty() {
                let sent = timeout(sentinel.reply_timeout, messages.send(&command));
                match sent.await {
                    Ok(Ok(())) => command.clear(),
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return "it no longer takes requests".into(),
                }
            }
            let frame = tokio::select! {
                frame = messages.frame() => frame,
                _ = ping.tick() => {
                    if std::mem::replace(&mut unanswered, true) {
                        return "it no longer answers".into();
                    }
                    write_command(&mut command, "PING", []);
                    continue;
                }
            };
            unanswered = false;
            match frame {
                Ok(Frame::Subscribed(..)) => {
                    listened_to = Some(ListenGuard::new(&self.listened_to));
                    self.listening.notify_one();
                }
                Ok(Frame::Message { payload, .. }) => {
                    if let Some((host, port)) = master_view::read_switch(&payload, &self.name) {
                        self.switched(self.addresses.translate(&host, port));
                    }
                }
                Ok(Frame::Status | Frame::Unsubscribed(..)) => {}
                // A ping that was denied has been answered, too.
                Ok(Frame::Refused(_)) if listened_to.is_some() => {}
                Ok(Frame::Refused(said)) | Err(said) => return said,
            }
        }
    }
}

/// A guard that counts a sentinel as listened to.
struct ListenGuard<'a>(&'a AtomicUsize);

impl<'a> ListenGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for ListenGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_word_of_a_switch_reaches_every_connection() {
        let master = Address::parse("redis://a").expect("it can be read");
        let sentinels = Sentinels::new(
            "m".into(),
            Vec::new(),
            master,
            AddressMap::default(),
            Clock::Boot,
        );
        let [a, b] = ["a", "b"].map(|host| (host.to_owned(), 6379));
        let said = |at: &Host, epoch| {
            let said = SentinelReport {
                at: at.clone(),
                epoch,
                is_down: false,
            };
            [Ok(said)]
        };
        let has_moved = |from: &Host| {
            sentinels
                .master_moved_from(Some(from))
                .now_or_never()
                .is_some()
        };
        assert_eq!(sentinels.judge(&said(&a, 1)), Ok(a.clone()));
        let [mut one, mut other] = [0; 2].map(|_| Box::pin(sentinels.master_moved_from(Some(&a))));
        assert_eq!((&mut one).now_or_never(), None);
        assert_eq!((&mut other).now_or_never(), None);
        sentinels.switched(b.clone());
        assert_eq!(one.now_or_never(), Some(()));
        // The switch of one connection changes nothing for the other.
        assert_eq!(sentinels.judge(&said(&b, 2)), Ok(b.clone()));
        assert_eq!(other.now_or_never(), Some(()));
        assert!(has_moved(&a), "also one that asks only now");
        assert!(!has_moved(&b), "this one leads there");
    }
}
