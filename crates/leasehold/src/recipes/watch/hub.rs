//! The task that watches a name for all watches of a client. It has one subscription and one
//! request in flight, even if there are many watches of the name.
//!
//! The task keeps only the last state. A watch compares it with the state that it has reported
//! last, so a watch that is not read needs no memory for changes that happen meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::{Notify, watch};

use super::change::same_parties;
use super::channels::{channels_of, is_counted_at, soonest_end};
use crate::backend::channels::{Listener, Signal};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::operate::name::{self, NameInfo};
use crate::operate::presence::ClientCache;
use crate::sync::Mutex;

/// The shortest pause between two requests. Anyone can publish messages, and a busy lock has many
/// releases, so not every message leads to a request.
const SPACING: Duration = Duration::from_millis(50);
/// The pause after a failed request. A lost connection fails requests at once.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// The delay after an expiry before the task asks the server, which reports whole milliseconds.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// The time for which clients that were looked up are remembered, while the holders stay the same.
const CLIENTS_EVERY: Duration = Duration::from_secs(5);
/// The time within which the client of a new holder or waiter announces itself.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(3);

/// A watched name, and how it is watched. Watches with the same target share a task.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) key: Key,
    pub(super) every: Duration,
    pub(super) with_clients: bool,
}

/// The last news of a task.
#[derive(Clone, Default)]
pub(super) struct Report {
    /// The number of the last watch that began before the request was sent.
    pub(super) covers: u64,
    pub(super) news: News,
}

#[derive(Clone, Default)]
pub(super) enum News {
    /// No reply has arrived yet.
    #[default]
    Nothing,
    State(Arc<NameInfo>),
    /// The server does not answer.
    Away(Error),
    /// The watch has ended with this error.
    Failed(Error),
    /// The client was closed.
    Closed,
}

/// The hubs of a client.
#[derive(Default)]
pub(super) struct Hubs(Mutex<HashMap<Target, Weak<Hub>>>);

/// The link between the watches of a name and their task. The task ends when the last watch has
/// dropped its hub and its receiver.
pub(super) struct Hub {
    target: Target,
    hubs: Arc<Hubs>,
    shared: Arc<Shared>,
    reports: watch::Receiver<Report>,
    /// The task. The first watch takes it out and starts it.
    task: Mutex<Option<HubTask>>,
}

/// The messages from the watches to the task.
#[derive(Default)]
struct Shared {
    /// Number of watches that have begun.
    begun: AtomicU64,
    /// Notified when a watch begins.
    changed: Notify,
}

/// A watch's part of a hub.
pub(super) struct Membership {
    /// Keeps the task running.
    _hub: Arc<Hub>,
    pub(super) reports: watch::Receiver<Report>,
    /// The number of the watch: see [`Report::covers`].
    pub(super) number: u64,
}

impl Hub {
    /// Begins to watch a name. Starts the task if no other watch has the same target.
    pub(super) fn join(context: &Arc<Context>, target: Target) -> Membership {
        let hubs = context.recipe_state.of::<Hubs>();
        let hub = hubs.of(context, target);
        let number = hub.shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let task = hub.task.lock().take();
        match task {
            // Don't spawn the task under the table's lock: a runtime that has ended drops the task
            // at once.
            Some(task) => context.cleanup.spawn_detached(task.run()),
            // The task runs already, and its last report may be older than this watch.
            None => hub.shared.changed.notify_one(),
        }
        Membership {
            reports: hub.reports.clone(),
            number,
            _hub: hub,
        }
    }
}

impl Hubs {
    fn of(self: &Arc<Self>, context: &Arc<Context>, target: Target) -> Arc<Hub> {
        // This is declared before the guard of the table's lock, and so dropped after it. If all
        // watches have left meanwhile, this is the last reference to the hub, and dropping the hub
        // takes the lock.
        let known;
        let mut table = self.0.lock();
        known = table.get(&target).and_then(Weak::upgrade);
        // A task that has ended, for example because the server denied its request, is not shared.
        let running = |hub: &&Arc<Hub>| hub.reports.has_changed().is_ok();
        if let Some(hub) = known.as_ref().filter(running) {
            return Arc::clone(hub);
        }
        let (sender, reports) = watch::channel(Report::default());
        let shared = Arc::<Shared>::default();
        let hub = Arc::new(Hub {
            hubs: Arc::clone(self),
            reports,
            shared: Arc::clone(&shared),
            task: Mutex::new(Some(HubTask::new(context, &target, shared, sender))),
            target: target.clone(),
        });
        table.insert(target, Arc::downgrade(&hub));
        hub
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let mut table = self.hubs.0.lock();
        // Another watch may have made a new hub after the last watch of this hub was dropped.
        if table
            .get(&self.target)
            .is_some_and(|hub| hub.strong_count() == 0)
        {
            table.remove(&self.target);
        }
    }
}

struct HubTask {
    context: Arc<Context>,
    target: Target,
    shared: Arc<Shared>,
    sender: watch::Sender<Report>,
    /// The channels to which the task listens.
    listeners: Vec<(String, Listener)>,
    /// The last state.
    last: Option<Arc<NameInfo>>,
    clients: Clients,
}

/// The clients that the task has looked up.
struct Clients {
    cache: ClientCache,
    since: Moment,
    /// The time of the last change of a holder or a waiter.
    changed_at: Moment,
}

impl HubTask {
    fn new(
        context: &Arc<Context>,
        target: &Target,
        shared: Arc<Shared>,
        sender: watch::Sender<Report>,
    ) -> Self {
        let now = context.timers.now();
        Self {
            context: Arc::clone(context),
            target: target.clone(),
            shared,
            sender,
            listeners: Vec::new(),
            last: None,
            clients: Clients {
                cache: ClientCache::default(),
                since: now,
                changed_at: now,
            },
        }
    }

    async fn run(self) {
        let sender = self.sender.clone();
        tokio::select! {
            biased;
            // The last watch was dropped.
            () = sender.closed() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        loop {
            let covers = self.shared.begun.load(Ordering::SeqCst);
            let mut marks = self.marks();
            let asked_at = self.context.timers.now();
            let answer = self.look(&marks).await;
            let news = match &answer {
                _ if self.context.is_closed() => News::Closed,
                Ok(info) => News::State(Arc::clone(info)),
                Err(error) if error.is_transient() => News::Away(error.clone()),
                Err(error) => News::Failed(error.clone()),
            };
            let is_over = matches!(news, News::Closed | News::Failed(_));
            self.sender.send_replace(Report { covers, news });
            if is_over {
                return;
            }
            let pause = match &answer {
                Ok(info) if self.listen(info) => {
                    marks.clear();
                    // A release may have been published before the task subscribed. If the channel
                    // is not live yet, its confirmation wakes the task.
                    match self.marks().iter().any(|mark| mark.live) {
                        true => Duration::ZERO,
                        false => self.pause(info),
                    }
                }
                Ok(info) => self.pause(info),
                Err(_) => AFTER_FAILURE,
            };
            self.sleep(&marks, asked_at, pause).await;
        }
    }

    /// Asks the server once.
    async fn look(&mut self, marks: &[Signal]) -> Result<Arc<NameInfo>> {
        let (context, key) = (&self.context, &self.target.key);
        let mut info = if self.target.with_clients {
            let now = context.timers.now();
            self.clients.forget_if_old(now, self.target.every);
            name::inspect_with(context, key, &self.clients.cache).await?
        } else {
            name::peek_at(context, key).await?
        };
        self.leave_out_own_connection(&mut info, marks);
        let last = self.last.as_deref();
        if last.is_none_or(|last| !same_parties(last, &info)) {
            self.clients.changed_at = self.context.timers.now();
        }
        let info = Arc::new(info);
        self.last = Some(Arc::clone(&info));
        Ok(info)
    }

    /// Subtracts the connection of this client from the number of subscribed connections.
    fn leave_out_own_connection(&self, info: &mut NameInfo, marks: &[Signal]) {
        let counted = self.listeners.iter().zip(marks);
        let counted = counted
            .filter(|((channel, _), _)| is_counted_at(&self.target.key, &info.found, channel));
        let marks: Vec<_> = counted.map(|(_, mark)| mark).collect();
        // While a subscription is being sent, the server may or may not have counted it. All
        // clients of an embedded keyspace share one count.
        let is_known = marks.iter().all(|mark| mark.live || mark.denied)
            && (marks.is_empty() || !self.context.backend.is_in_process());
        let own = marks.iter().filter(|mark| mark.live).count() as u64;
        info.listening = match is_known {
            true => info.listening.map(|all| all.saturating_sub(own)),
            false => self.last.as_ref().and_then(|last| last.listening),
        };
    }

    fn marks(&self) -> Vec<Signal> {
        let listeners = self.listeners.iter();
        listeners.map(|(_, listener)| listener.signal()).collect()
    }

    /// Listens to the channels on which changes of this kind are published. Returns `true` if the
    /// task has just begun to listen.
    fn listen(&mut self, info: &NameInfo) -> bool {
        // A name without a key may be of any kind. Keep the channels, because the name is likely to
        // be of the same kind again.
        let Some(wanted) = channels_of(&self.target.key, &info.found) else {
            return false;
        };
        let listened = self.listeners.iter().map(|(channel, _)| channel);
        if listened.eq(&wanted) {
            return false;
        }
        let channels = self.context.backend.channels();
        let listeners = wanted.into_iter().map(|channel| {
            let listener = channels.listen(&channel);
            (channel, listener)
        });
        self.listeners = listeners.collect();
        true
    }

    /// Returns how long the task sleeps if nothing wakes it.
    fn pause(&self, info: &NameInfo) -> Duration {
        let end = soonest_end(info).map(|left| left + AFTER_EXPIRY);
        end.map_or(self.target.every, |end| end.min(self.target.every))
    }

    /// Sleeps for `pause` after `asked_at`, or until a message or a new watch wakes the task.
    async fn sleep(&mut self, marks: &[Signal], asked_at: Moment, pause: Duration) {
        let timers = &self.context.timers;
        let spacing = SPACING.min(self.target.every);
        let until = asked_at + pause.max(spacing);
        // A channel without a mark had received nothing yet at the time of the last request.
        let marks = marks
            .iter()
            .copied()
            .chain(std::iter::repeat(Signal::default()));
        let listeners = self.listeners.iter_mut().zip(marks);
        let moved = listeners.map(|((_, one), mark)| Box::pin(one.changed_since(mark)));
        let moved: Vec<_> = moved.collect();
        let heard = async {
            match moved.is_empty() {
                true => std::future::pending().await,
                false => drop(select_all(moved).await),
            }
        };
        let woken = async {
            tokio::select! {
                () = heard => {}
                () = self.shared.changed.notified() => {}
            }
            timers.sleep_until(asked_at + spacing).await;
        };
        tokio::select! {
            () = woken => {}
            () = timers.sleep_until(until) => {}
        }
    }
}

impl Clients {
    /// Forgets the clients after some time, and sooner if a client may have announced itself in the
    /// meantime.
    fn forget_if_old(&mut self, now: Moment, every: Duration) {
        let is_settled = now.saturating_sub(self.changed_at) > ANNOUNCED_WITHIN;
        let limit = match is_settled {
            true => CLIENTS_EVERY,
            false => every,
        };
        if now.saturating_sub(self.since) >= limit {
            self.cache = ClientCache::default();
            self.since = now;
        }
    }
}
