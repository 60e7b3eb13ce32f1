//! Leader election: one of several candidates leads at a time, and observers learn which one.

mod leader;
pub(crate) mod steps;
mod term;
mod terms;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acknowledgement::Acknowledgement;
use crate::backend::retry::RetryDelays;
use crate::backend::step::Operation;
use crate::client::Client;
use crate::clock::{Moment, Timers};
use crate::config::MAX_SPAN;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::primitives::fenced::FencedGuard;
use crate::primitives::lock::kind::{Acquire, Named};
use crate::primitives::lock::steps as lock_steps;
use crate::primitives::lock::{Kind, Lock, LockGuard, acquire};
use crate::primitives::request;
use crate::process::Process;
use crate::sync::Mutex;
use crate::wait::Deadline;

pub use leader::Leader;
pub use term::Term;
pub use terms::Terms;

/// The longest payload in bytes. Every observer reads it after each change.
const LONGEST_PAYLOAD: usize = 16 * 1024;
/// The default for how often observers ask the server, and for how long a candidate waits after its
/// term.
const POLL: Duration = Duration::from_secs(1);
/// The default for the first pause between two terms of [`Election::lead_until`].
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// The longest of these pauses.
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(60);
/// If a term lasted at least this long, the pauses start again with the first one.
const STEADY: Duration = Duration::from_secs(10);

/// An election with a name, in which one candidate leads at a time. Use it for a service with
/// several replicas of which only one must work.
///
/// A candidate calls [`Election::stand`], which waits until it leads and returns a [`Term`].
/// [`lead_until`](Self::lead_until) does this again and again, and runs the work of the leader. Any
/// process can ask for the [`leader`](Self::leader) or [`observe`](Self::observe) its changes.
///
/// **What it promises.** Terms of one name do not overlap, under the conditions of a
/// [`Lock`](crate::Lock). Each term has a token that is greater than the token of every earlier
/// term. If a leader is killed or cut off, the next candidate can lead at most one lease later. A
/// leader that still runs learns of its loss before that. If it ignores the loss, only its
/// [`token`](Term::token) can stop its writes, so pass the token with every write.
///
/// An election is a [`FencedLock`](crate::FencedLock) of the same name, so a Java program can take
/// part with `getFencedLock`. The leader also has an entry with its payload, which counts only
/// while it leads. `docs/election.md` in the repository explains how to use an election.
///
/// An `Election` value is a handle for one candidate. It is cheap to clone, and its clones are the
/// same candidate. A candidate can't lead twice at the same time: its next [`Election::stand`]
/// waits for the end of its own term.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let election = client.election("scheduler").payload("http://10.0.0.7:8080");
///
/// let term = election.stand().await?; // waits until this candidate leads
/// let leader = election.leader().await?.expect("it leads");
/// assert_eq!(leader.token, Some(term.token()));
/// assert_eq!(leader.payload.as_deref(), Some("http://10.0.0.7:8080"));
/// term.resign().await?; // dropping the term also ends it
/// assert!(election.leader().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "LeaderElection")]
#[doc(alias = "LeaderLatch")]
#[doc(alias = "LeaderSelector")]
#[derive(Clone)]
pub struct Election {
    lock: Lock<Candidacy>,
    pause: Arc<Pause>,
    poll: Duration,
    outage_timeout: Duration,
    restart_delay: Duration,
}

impl Client {
    /// Returns the election called `name`. Nothing is sent. A bad name is reported when the
    /// election is used.
    #[must_use = "a handle does nothing until it is used"]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let context = Arc::clone(&self.context);
        let outage_timeout = context.settings().outage_timeout;
        let candidacy = Candidacy { payload: "".into() };
        Election {
            pause: Arc::new(Pause::new(&context)),
            lock: Lock::named(context, name.as_ref(), candidacy),
            poll: POLL,
            outage_timeout,
            restart_delay: RESTART_DELAY,
        }
    }
}

/// Leading.
impl Election {
    /// Waits until this candidate leads, without a time limit. The client renews the lease of the
    /// term in the background until the term is resigned or dropped.
    ///
    /// If a term of this candidate has just ended, the call first waits for the rest of one
    /// [`poll_interval`](Self::poll_interval), so that another candidate can lead.
    ///
    /// # Errors
    ///
    /// Same as [`Lock::acquire`](crate::Lock::acquire), and `Misuse` for a payload of more than 16
    /// KiB.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lock::acquire`](crate::Lock::acquire).
    pub async fn stand(&self) -> Result<Term> {
        self.check_candidate()?;
        self.pause.sleep(self.poll).await;
        let guard = self.lock.acquire().await?;
        Ok(Term::new(guard, Arc::clone(&self.pause)))
    }

    /// Leads if there is no leader now. `Ok(None)` means that there is one, or that other
    /// candidates of this client already wait. The call does not wait after an earlier term.
    ///
    /// # Errors
    ///
    /// Same as [`Election::stand`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`Election::stand`].
    pub async fn try_stand(&self) -> Result<Option<Term>> {
        self.check_candidate()?;
        let guard = self.lock.try_acquire().await?;
        Ok(guard.map(|guard| Term::new(guard, Arc::clone(&self.pause))))
    }

    /// Waits until this candidate leads, runs `work` while it leads, and starts over, until
    /// `shutdown` resolves.
    ///
    /// If the term is lost, `work` is dropped, as in [`LockGuard::protect`]. If `work` ends by
    /// itself, the term is resigned. In both cases, the candidate pauses before it tries again: 1 s
    /// at first ([`restart_delay`](Self::restart_delay)), and twice as long after each term that
    /// lasted less than 10 s, up to 60 s. After an outage, it tries again after the first pause.
    ///
    /// When `shutdown` resolves, `work` is dropped and the term is resigned. If the work needs time
    /// to finish, let the work itself watch for the shutdown, and let `shutdown` resolve when the
    /// work is done.
    ///
    /// If you spawn the future, let `work` be a closure that returns a future without borrows, such
    /// as `move |term: &Term| job(term.token(), state.clone())`. The compiler can't yet check that the
    /// future of an `async` closure with captured variables can be sent to another thread.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let election = client.election("scheduler");
    /// let (stop, stopped) = tokio::sync::oneshot::channel();
    /// let mut stop = Some(stop);
    /// election
    ///     .lead_until(stopped, async |term| {
    ///         println!("I lead, with the token {}", term.token());
    ///         stop.take().map(|stop| stop.send(()));
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`Election::stand`], except for [transient](Error::is_transient) errors, after
    /// which the candidate tries again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and ends the term.
    pub async fn lead_until(
        &self,
        shutdown: impl Future,
        mut work: impl AsyncFnMut(&Term),
    ) -> Result<()> {
        let mut shutdown = pin!(shutdown);
        let timers = &self.context().timers;
        let delays = || RetryDelays::from(self.restart_delay).up_to(LONGEST_RESTART_DELAY);
        let mut pauses = delays();
        loop {
            let stood = tokio::select! {
                biased;
                _ = &mut shutdown => return Ok(()),
                term = self.stand() => term,
            };
            let pause = match stood {
                Ok(term) => {
                    let began = timers.now();
                    let is_shutdown = tokio::select! {
                        biased;
                        _ = &mut shutdown => true,
                        // A loss needs no report: the work was dropped, and the candidate tries
                        // again.
                        _ = term.protect(work(&term)) => false,
                    };
                    // A release that fails is sent again in the background.
                    let _ = term.resign().await;
                    if is_shutdown {
                        return Ok(());
                    }
                    if timers.now() >= began + STEADY {
                        pauses = delays();
                    }
                    pauses.next_delay()
                }
                // The wait has already lasted for a whole outage timeout.
                Err(error) if error.is_transient() => delays().next_delay(),
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                _ = &mut shutdown => return Ok(()),
                () = timers.sleep(pause) => {}
            }
        }
    }

    /// Checks the requirements of a candidate that the lock does not check.
    fn check_candidate(&self) -> Result<()> {
        self.check()?;
        let length = self.lock.kind().payload.len();
        if length <= LONGEST_PAYLOAD {
            return Ok(());
        }
        let key = self.key()?;
        let message = format!(
            "the payload for `{key}` is {length} bytes long, the limit is {LONGEST_PAYLOAD}; \
             publish an address instead"
        );
        Err(Error::new(ErrorKind::Misuse, message).with_key(key))
    }
}

/// Observing.
impl Election {
    /// Asks the server for the current leader. `None` if no candidate leads. The answer may be out
    /// of date when it arrives. The payload of a dead leader is never returned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if no server answered, `WrongKind` if the name is in use as
    /// something else, `Denied` if the server refuses the request, `Misuse` for a bad name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the election.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(self.see().await?.describe(self.context()).await)
    }

    /// Returns the current leader and then each change. If the leader changes several times before
    /// the next state is read, only the last of these states is returned.
    ///
    /// Tokens rise from term to term, and each term is returned once. After a server has lost data,
    /// as in a failover, tokens may be smaller. A leader with a smaller token is returned after its
    /// first renewal. A Java leader that re-enters the lock is returned again. A candidate that
    /// never led is never returned. A term begins when the server grants it, even if its candidate
    /// stops waiting at that moment. A change usually arrives at once, because the server publishes
    /// it. The observer also asks the server when the lease of the leader ends, and every second
    /// ([`poll_interval`](Self::poll_interval)), so a lost message delays a change by at most a
    /// second.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let election = client.election("scheduler").payload("a");
    /// let mut terms = election.observe();
    /// assert_eq!(terms.next().await.transpose()?, Some(None));
    ///
    /// let term = election.stand().await?;
    /// let leader = terms.next().await.transpose()?.flatten().expect("one leads");
    /// assert_eq!(leader.token, Some(term.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(&self) -> Terms {
        Terms::of(self)
    }

    /// Checks the requirements of candidates and observers. A forked child must not wait: its
    /// timers and channels belong to its parent.
    fn check(&self) -> Result<()> {
        let key = self.key()?;
        self.context().check_process(key)?;
        if (Duration::from_millis(1)..=MAX_SPAN).contains(&self.poll) {
            return Ok(());
        }
        let message = format!("the poll interval for `{key}` is out of range; use 1 ms to 2^53 ms");
        Err(Error::new(ErrorKind::Misuse, message).with_key(key))
    }

    async fn see(&self) -> Result<leader::Seen> {
        let (context, key) = (self.context(), self.key()?);
        context.check_process(key)?;
        let reply = request::query(context, key, steps::look(key)).await?;
        leader::Seen::read(reply).ok_or_else(|| request::malformed(context, key))
    }
}

/// Settings. Each setter changes only this handle and its later terms.
impl Election {
    /// Sets a string that observers receive with the leader, such as the address of this replica.
    /// At most 16 KiB. Empty by default. Anyone who can read the server's data can read the
    /// payload.
    #[must_use = "the setting is only in the returned value"]
    pub fn payload(mut self, text: impl Into<Arc<str>>) -> Self {
        self.lock.kind_mut().payload = text.into();
        self
    }

    /// Sets the lease of a term: how long the term outlives a leader that is killed or cut off. See
    /// [`Lock::lease`](crate::Lock::lease) for its range. The default is the client's lease (30 s).
    #[must_use = "the setting is only in the returned value"]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|lock| lock.lease(lease))
    }

    /// Sets the time between two renewals of a term: see
    /// [`Lock::renew_every`](crate::Lock::renew_every).
    #[must_use = "the setting is only in the returned value"]
    pub fn renew_every(self, period: Duration) -> Self {
        self.with(|lock| lock.renew_every(period))
    }

    /// Sets the time in which the leader's work must report progress. If it does not, the term is
    /// no longer renewed: see [`Lock::progress_within`](crate::Lock::progress_within).
    #[must_use = "the setting is only in the returned value"]
    pub fn progress_within(self, within: Duration) -> Self {
        self.with(|lock| lock.progress_within(within))
    }

    /// Sets which servers must confirm a term: see
    /// [`Lock::acknowledged_by`](crate::Lock::acknowledged_by).
    #[must_use = "the setting is only in the returned value"]
    pub fn acknowledged_by(self, acknowledgement: Acknowledgement) -> Self {
        self.with(|lock| lock.acknowledged_by(acknowledgement))
    }

    /// Sets how often candidates and observers ask the server while no message wakes them, and how
    /// long a candidate waits after its own term. At least 1 ms. By default, observers ask every
    /// second, and candidates as described at [`Lock::poll_interval`](crate::Lock::poll_interval).
    #[must_use = "the setting is only in the returned value"]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self.with(|lock| lock.poll_interval(interval))
    }

    /// Sets how long a candidate or an observer waits while no server answers: see
    /// [`Lock::outage_timeout`](crate::Lock::outage_timeout).
    #[must_use = "the setting is only in the returned value"]
    pub fn outage_timeout(mut self, timeout: Duration) -> Self {
        self.outage_timeout = timeout;
        self.with(|lock| lock.outage_timeout(timeout))
    }

    /// Sets the first pause of [`lead_until`](Self::lead_until) between two terms: 1 s by default,
    /// at most 60 s. A longer pause counts as 60 s.
    #[must_use = "the setting is only in the returned value"]
    pub fn restart_delay(mut self, delay: Duration) -> Self {
        self.restart_delay = delay.min(LONGEST_RESTART_DELAY);
        self
    }

    fn with(mut self, change: impl FnOnce(Lock<Candidacy>) -> Lock<Candidacy>) -> Self {
        self.lock = change(self.lock);
        self
    }

    /// Returns the name that was given. Empty if that name is not valid.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    fn key(&self) -> Result<&Key> {
        self.lock.key()
    }

    fn context(&self) -> &Arc<Context> {
        self.lock.context()
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name())
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

/// The pause of a candidate after its term.
struct Pause {
    timers: Timers,
    process: Process,
    begun: Mutex<Option<Moment>>,
}

impl Pause {
    fn new(context: &Context) -> Self {
        Self {
            timers: context.timers.clone(),
            process: Process::own(),
            begun: Mutex::default(),
        }
    }

    fn begin(&self) {
        // A forked child has no pause.
        if let Some(mut begun) = self.process.lock(&self.begun) {
            *begun = Some(self.timers.now());
        }
    }

    /// Sleeps for the rest of the pause.
    async fn sleep(&self, pause: Duration) {
        let begun = *self.begun.lock();
        if let Some(begun) = begun {
            self.timers.sleep_until(begun + pause).await;
        }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").finish_non_exhaustive()
    }
}

/// The kind of lock that an election uses: a fenced lock with an entry for its holder. It can't be
/// re-entered, because an election has no setting for an owner. It is not handed over, because each
/// term needs its own token.
#[derive(Clone, Debug)]
pub(crate) struct Candidacy {
    payload: Arc<str>,
}

impl Kind for Candidacy {
    type Guard = FencedGuard;
}

impl Acquire for Candidacy {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        acquire::acquire_by(lock, deadline).await
    }
}

impl Named for Candidacy {
    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        Box::new(steps::CandidateHold::new(
            key,
            lock.channel(),
            id,
            Arc::clone(&lock.kind().payload),
            lock.context().peers,
        ))
    }

    fn inspect(&self, key: &Key) -> Operation {
        lock_steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        lock_steps::force_unlock(key, channel, by)
    }
}
