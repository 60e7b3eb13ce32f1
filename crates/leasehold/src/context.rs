//! The state that all primitives of a client share.

mod recipe_state;
pub(crate) mod shared_keys;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::acknowledgement::Acknowledgement;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::step::Operation;
use crate::backend::{Backend, NameKind};
use crate::clock::{Clock, Timers};
use crate::config::{self, Peers, Settings, Terms};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::cleanup::Cleanup;
use crate::hold::live_holds::LiveHolds;
use crate::hold::watchdog::Watchdog;
use crate::hold::{Grant, QueueSteps, SafetyMargin};
use crate::key::Key;
use crate::local::LocalRecords;
use crate::observe::Observer;
use crate::process::Process;
use crate::sync::Mutex;
use recipe_state::RecipeState;
use shared_keys::SharedKeys;

/// The time for which a closing client waits for the reply to its goodbye. If the goodbye is lost,
/// the client's announcement expires a little later.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// The state shared by a client, its primitives and its guards. The connection and the watchdog
/// live as long as one of them does.
pub(crate) struct Context {
    pub(crate) backend: Backend,
    pub(crate) clock: Clock,
    pub(crate) timers: Timers,
    pub(crate) margin: SafetyMargin,
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) watchdog: Watchdog,
    pub(crate) locals: Arc<LocalRecords>,
    pub(crate) live_holds: Arc<LiveHolds>,
    pub(crate) shared_keys: SharedKeys,
    pub(crate) recipe_state: RecipeState,
    pub(crate) observer: Observer,
    pub(crate) client_id: String,
    /// The client's label. Operators see it, and so do holders whose locks this client ends by
    /// force.
    pub(crate) label: String,
    pub(crate) peers: Peers,
    /// The prefix of each name.
    pub(crate) prefix: String,
    /// The time without grants after a failover. No lease may be longer than this time.
    failover_guard: Option<Duration>,
    default_lease: Duration,
    /// The servers that must confirm the holds of this client's locks.
    acknowledged: Acknowledgement,
    process: Process,
    holds: AtomicU64,
    closed: AtomicBool,
    /// The operations that remove the client's announcement from the server.
    goodbye: Mutex<Vec<Operation>>,
}

/// The settings for a client's names: the clients that share them, their prefix, their observer,
/// and the client's label.
pub(crate) struct Naming {
    pub(crate) peers: Peers,
    pub(crate) prefix: String,
    pub(crate) failover_guard: Option<Duration>,
    pub(crate) observer: Observer,
    pub(crate) label: String,
}

impl Context {
    pub(crate) fn new(
        backend: Backend,
        clock: Clock,
        margin: SafetyMargin,
        naming: Naming,
        (default_lease, acknowledged): (Duration, Acknowledgement),
        runtime: &Handle,
    ) -> Arc<Self> {
        let timers = Timers::new(clock, runtime.clone());
        let cleanup = Cleanup::new(backend.clone(), timers.clone(), runtime.clone());
        let watchdog = Watchdog::start(
            backend.clone(),
            Arc::clone(&cleanup),
            timers.clone(),
            runtime,
        );
        Arc::new(Self {
            watchdog,
            cleanup,
            backend,
            clock,
            timers,
            margin,
            locals: LocalRecords::new(clock, runtime.clone()),
            live_holds: Arc::default(),
            shared_keys: SharedKeys::default(),
            recipe_state: RecipeState::default(),
            // Each client needs its own id, even within one process, because each client counts its
            // holds from 1.
            client_id: uuid::Uuid::new_v4().to_string(),
            default_lease,
            acknowledged,
            peers: naming.peers,
            prefix: naming.prefix,
            failover_guard: naming.failover_guard,
            observer: naming.observer,
            label: naming.label,
            process: Process::own(),
            holds: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            goodbye: Mutex::default(),
        })
    }

    /// Returns a wire id for one hold, in Redisson's form. An id is never reused, not even after an
    /// unknown outcome: a late or duplicated request could otherwise merge with the next hold and
    /// admit two holders.
    pub(crate) fn fresh_wire_id(&self) -> String {
        // Relaxed is enough: the number must be unique, and no other data depends on it.
        let n = self.holds.fetch_add(1, Ordering::Relaxed);
        // Use the exact capacity, because an id is made for each acquire, and stored with its hold.
        let digits = n.checked_ilog10().unwrap_or(0) as usize + 1;
        let mut id = String::with_capacity(self.client_id.len() + 1 + digits);
        id.push_str(&self.client_id);
        // Writing to a string never fails.
        let _ = write!(id, ":{n}");
        id
    }

    /// Returns the key for a name of this client, with the client's prefix.
    pub(crate) fn key(&self, name: &str, of: NameKind) -> Result<Key> {
        let key = Key::prefixed(&self.prefix, name)?;
        self.backend.check_name(&key, of)?;
        Ok(key)
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings::new(self.default_lease)
    }

    /// Checks a lease against the client's failover guard.
    pub(crate) fn check_lease(&self, lease: Duration, key: &Key) -> Result<()> {
        match self.failover_guard.filter(|span| lease > *span) {
            None => Ok(()),
            Some(span) => Err(config::outlasts_guard(
                &format!("a lease of {lease:?} for `{key}`"),
                span,
            )
            .with_key(key)),
        }
    }

    /// Returns the settings of a lock. Permits and latches are never acknowledged by replicas.
    pub(crate) fn lock_settings(&self) -> Settings {
        Settings {
            acknowledged: self.acknowledged,
            ..self.settings()
        }
    }

    /// Checks that the confirmations arrive before the client stops waiting for the reply.
    pub(crate) fn check_acknowledged(&self, terms: Terms, key: &Key) -> Result<()> {
        let has_server = !self.backend.is_in_process();
        let reply_timeout = has_server.then(|| self.backend.reply_timeout());
        terms.acknowledged.check(key, reply_timeout)
    }

    pub(crate) fn close(&self) {
        // An acquire that has just passed `check_open` can still be granted. `LiveHolds::insert`
        // then stops the renewal of its hold.
        self.closed.store(true, Ordering::SeqCst);
        for hold in self.live_holds.close() {
            // Schedule the hold again: it is no longer renewed, but its maximum hold time still
            // ends it.
            self.watchdog.remove(&hold);
            self.watchdog.watch(&hold);
            self.leave_queue(&hold);
        }
        // Wake all waiters. A waiter for locks of several clients can no longer get the lock of
        // this client, and learns this when it sends its next request.
        self.backend.channels().wake_all();
    }

    /// Removes the waiters to which this hold was handed over from the queue on the server. Call
    /// this for a hold that is left to expire: no release will remove these waiters, and they would
    /// delay all later ones.
    pub(crate) fn leave_queue(&self, hold: &Grant) {
        let queued = hold.steps.queue_steps();
        if let Some(leave) = queued.and_then(QueueSteps::leave_queue) {
            self.cleanup.send(leave, hold.undo_route());
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Announces the client on the server. `goodbye` removes the announcement. `None` if the client
    /// is closed.
    pub(crate) fn announce<T>(
        &self,
        goodbye: Vec<Operation>,
        send: impl FnOnce(&Backend) -> T,
    ) -> Option<T> {
        // The announcement is sent under this lock, so that nothing is announced after the goodbye.
        let mut stored = self.goodbye.lock();
        if self.is_closed() || self.is_forked() {
            return None;
        }
        *stored = goodbye;
        Some(send(&self.backend))
    }

    /// Removes the client's announcement. [`Client::close`](crate::Client::close) waits for this
    /// until [`GOODBYE_WITHIN`] has passed.
    pub(crate) fn say_goodbye(&self) {
        if self.is_forked() {
            // The parent still exists.
            return;
        }
        let goodbye = std::mem::take(&mut *self.goodbye.lock());
        if goodbye.is_empty() {
            return;
        }
        let submit = |operation| self.backend.submit(operation);
        let replies: Vec<_> = goodbye.into_iter().map(submit).collect();
        self.cleanup.spawn(async move {
            let _ = tokio::time::timeout(GOODBYE_WITHIN, join_all(replies)).await;
        });
    }

    /// Returns the process that the client belongs to.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Returns whether this process is a fork of the client's process. In a fork every call fails
    /// and drops do nothing: the holds belong to the parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    pub(crate) fn check_process(&self, key: &Key) -> Result<()> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Failure::forked(self.backend.address()).into_error(key)),
        }
    }

    pub(crate) fn check_open(&self, key: &Key) -> Result<()> {
        self.check_process(key)?;
        // The watchdog's task ends with the client's runtime, and not before.
        if self.watchdog.has_ended() {
            let address = self.backend.address();
            let ended = Failure::runtime_ended(Outcome::DidNotRun, address);
            return Err(ended.into_error(key));
        }
        if self.is_closed() {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "the client has been closed, so `{key}` can't be acquired; make a new client"
                ),
            )
            .with_key(key));
        }
        Ok(())
    }
}

impl Drop for Context {
    /// Removes the announcement when the last handle is dropped: the client might not have been
    /// closed.
    fn drop(&mut self) {
        self.say_goodbye();
    }
}
