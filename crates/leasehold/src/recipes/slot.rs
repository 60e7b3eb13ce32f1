//! Runs a job once per slot of the server's clock, or once per id, across all processes.

mod info;
mod kind;
pub(crate) mod steps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use self::info::{Seen, beginning_of, since_epoch};
use self::kind::{Answers, Granted, TurnKind, Wanted};
use crate::backend::failure::{Cause, Outcome};
use crate::backend::retry::RetryDelays;
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::config::{MAX_SPAN, check_wait, wire_ms};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::operate::presence::default_label;
use crate::primitives::lock::{Lock, LockGuard, acquire};
use crate::primitives::request;
use crate::wait::{Deadline, no_answer_in_time};
pub use info::{TurnInfo, TurnState};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The longest id of a turn, in bytes.
const LONGEST_ID: usize = 256;

/// The number of times that a call asks for the server's time, if the answers are so slow that the
/// call may have been for either of two slots.
const MOST_LOOKS: u32 = 3;

/// The longest pause between two requests while the server does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Lock {
    /// Returns the turns of this lock, one per slot of the length `period`: a job that many
    /// processes start at the same time runs in only one of them. Nothing is sent.
    ///
    /// Slots are counted from the Unix epoch (UTC) on the server's clock. A request applies to the
    /// slot that is nearest to the time at which the request runs. So the clocks of the processes
    /// may differ by up to half a period. `period` is at least 10 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::slot::Begin;
    ///
    /// let client = leasehold::Client::embedded();
    /// let nightly = client.lock("nightly").once_per(Duration::from_secs(24 * 3600));
    /// match nightly.try_begin().await? {
    ///     Begin::Run(turn) => {
    ///         // ... the job ...
    ///         turn.done().await?; // without this call, the turn has failed
    ///     }
    ///     Begin::Done(info) => println!("{} has done it", info.by),
    ///     Begin::Elsewhere(info) => println!("{} is doing it", info.by),
    /// }
    /// assert!(matches!(nightly.try_begin().await?, Begin::Done(_)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a handle does nothing until it is used"]
    pub fn once_per(&self, period: Duration) -> Turns {
        Turns::of(self, Plan::Per { period })
    }

    /// Returns the turn of this lock for `id`. Use this if the caller has an id for the run of the
    /// job, such as its scheduled time or number. Nothing is sent. The server remembers the id for
    /// a day, or for [`keep`](Turns::keep). An id has 1 to 256 bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::slot::Begin;
    ///
    /// let client = leasehold::Client::embedded();
    /// let run = client.lock("invoices").once_for("2026-11");
    /// if let Begin::Run(turn) = run.begin().await? {
    ///     turn.done().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a handle does nothing until it is used"]
    pub fn once_for(&self, id: impl Into<String>) -> Turns {
        Turns::of(self, Plan::For { id: id.into() })
    }

    /// Asks the server for the turn that began last under this name; `None` if the server knows
    /// none.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    pub async fn last_turn(&self) -> Result<Option<TurnInfo>> {
        let wanted = Turns::of(self, Plan::For { id: "-".into() }).newest()?;
        let seen = look(self, &wanted).await?;
        Ok(seen.state().map(|_| seen.info(&wanted)))
    }
}

#[derive(Clone, Debug)]
enum Plan {
    Per { period: Duration },
    For { id: String },
}

/// The turns of a lock: see [`Lock::once_per`] and [`Lock::once_for`].
#[derive(Clone, Debug)]
pub struct Turns {
    lock: Lock,
    plan: Plan,
    offset: Duration,
    keep: Duration,
    retry_failed: bool,
    again: bool,
    at_most_once: bool,
    by: Option<String>,
    age: Duration,
}

/// The answer to a request for a turn.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a caller has to handle each answer"
)]
#[must_use = "a turn that has begun fails as soon as it is dropped"]
pub enum Begin<T = Turn> {
    /// It is this caller's turn: run the job.
    Run(T),
    /// The turn has ended.
    Done(TurnInfo),
    /// Another client holds the lock, or a failover guard [holds it back](TurnState::HeldBack).
    Elsewhere(TurnInfo),
}

#[cfg(feature = "blocking")]
impl Begin {
    /// Replaces the turn that was begun with the result of `with`.
    pub(crate) fn map<T>(self, with: impl FnOnce(Turn) -> T) -> Begin<T> {
        match self {
            Self::Run(turn) => Begin::Run(with(turn)),
            Self::Done(info) => Begin::Done(info),
            Self::Elsewhere(info) => Begin::Elsewhere(info),
        }
    }
}

/// Settings. Each setter changes only this handle. All clients of a name should use the same
/// settings.
impl Turns {
    fn of(lock: &Lock, plan: Plan) -> Self {
        Self {
            lock: lock.clone(),
            plan,
            offset: Duration::ZERO,
            keep: DAY,
            retry_failed: false,
            again: false,
            at_most_once: false,
            by: None,
            age: Duration::ZERO,
        }
    }

    /// Sets the time of the first slot after the Unix epoch: less than the period, zero by default.
    /// It has no effect on a turn per id.
    #[must_use = "the setting is only in the returned value"]
    pub fn offset(mut self, offset: Duration) -> Self {
        self.offset = offset;
        self
    }

    /// Sets whether a failed turn may be repeated in its slot or for its id. `false` by default.
    #[must_use = "the setting is only in the returned value"]
    pub fn retry_failed(mut self, retry: bool) -> Self {
        self.retry_failed = retry;
        self
    }

    /// Sets whether the job runs although its turn has ended: the turn is done, has failed, or its
    /// holder died. `false` by default. Use this to repeat a job by hand. The job still does not
    /// run while another client holds the lock. It runs for the slot that has begun last, so the
    /// next slot stays open. If the job of the next slot runs before this one does, this one repeats
    /// it. If the server knows of a later slot, because its clock was ahead, that slot no longer
    /// counts, and slots run again.
    ///
    /// This also changes the plan of the name: if it had slots of another period or offset, or ids
    /// instead of slots, it has the plan of this handle from now on.
    #[must_use = "the setting is only in the returned value"]
    pub fn again(mut self, again: bool) -> Self {
        self.again = again;
        self
    }

    /// Sets whether a turn whose holder died stays closed. `false` by default: the next client that
    /// requests the same slot or id runs the job again. The server remembers an id only for
    /// [`keep`](Self::keep).
    #[must_use = "the setting is only in the returned value"]
    pub fn at_most_once(mut self, at_most_once: bool) -> Self {
        self.at_most_once = at_most_once;
        self
    }

    /// Sets how long the server remembers the id of a turn, counted from the start of the turn and
    /// again from its end: at least 10 ms, a day by default. Choose a time that is longer than the
    /// job: if the job takes longer and its process dies, the id runs again, even with
    /// [`at_most_once`](Self::at_most_once). This setting has no effect with slots, which the server
    /// remembers for two periods and 30 days.
    #[must_use = "the setting is only in the returned value"]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how long ago the caller requested the turn first; zero by default. Without this setting,
    /// each call requests the slot that is nearest to the call. Use it if the caller repeats a
    /// request that has failed, so that it does not request a later slot than at first.
    #[must_use = "the setting is only in the returned value"]
    pub fn requested_ago(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Sets the name by which other clients and operators see this client in [`TurnInfo::by`]. The
    /// default is `$LEASEHOLD_LABEL`, or else the program's name.
    #[must_use = "the setting is only in the returned value"]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = Some(name.into());
        self
    }
}

/// Asking for a turn.
impl Turns {
    /// Requests the turn for the current slot or for the id. Returns [`Begin::Elsewhere`] if another
    /// client holds the lock. With slots, this takes two requests or more: the first one asks for
    /// the server's time, and is repeated if its answer is slow.
    ///
    /// # Errors
    ///
    /// - Same as [`Lock::acquire`].
    /// - [`ErrorKind::WrongKind`](crate::ErrorKind::WrongKind) if the name has slots of another
    ///   period or offset, or ids instead of slots.
    /// - `Misuse` for a setting out of its range, or a lock with an [`Owner`](crate::Owner): a
    ///   re-entry would ignore the turns.
    ///
    /// # Cancel safety
    ///
    /// If the server has granted the turn and its answer has not arrived yet, dropping the future
    /// makes the client give the turn back in the background. The turn then counts as not begun,
    /// and any client can have it.
    pub async fn try_begin(&self) -> Result<Begin> {
        self.begin_by(Deadline::Now).await
    }

    /// Requests the turn, and waits while another client holds the lock. Returns [`Begin::Done`]
    /// when that client has done the job, and [`Begin::Run`] if it died. `begin` keeps waiting for
    /// the slot that was nearest when it was called, even if a later slot starts meanwhile, or the
    /// server answers only then.
    ///
    /// # Errors
    ///
    /// Same as [`try_begin`](Self::try_begin).
    ///
    /// # Cancel safety
    ///
    /// Same as [`try_begin`](Self::try_begin).
    pub async fn begin(&self) -> Result<Begin> {
        self.begin_by(Deadline::Never).await
    }

    /// Like [`begin`](Self::begin), but waits at most for `wait`, which must be more than zero and
    /// at most 2^53 ms. Returns [`Begin::Elsewhere`] if another client still holds the lock.
    ///
    /// # Errors
    ///
    /// Same as [`try_begin`](Self::try_begin).
    ///
    /// # Cancel safety
    ///
    /// Same as [`try_begin`](Self::try_begin).
    pub async fn begin_for(&self, wait: Duration) -> Result<Begin> {
        check_wait(wait, self.lock.key()?)?;
        let deadline = self.lock.context().clock.now() + wait;
        self.begin_by(Deadline::At(deadline)).await
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    async fn begin_by(&self, deadline: Deadline) -> Result<Begin> {
        if self.lock.owner().is_some() {
            return Err(misuse(
                self.lock.key()?,
                "a turn can't be re-entered; make the turns of a lock without an owner",
            ));
        }
        // A closed client still answers queries.
        self.lock.context().check_open(self.lock.key()?)?;
        let wanted = Arc::new(self.wanted()?);
        let answers = Arc::new(Answers::default());
        let lock = self.lock.clone().of_kind(TurnKind {
            wanted: Arc::clone(&wanted),
            answers: Arc::clone(&answers),
        });
        let asking = async {
            self.learn_time(deadline, &wanted, &answers).await?;
            self.ask(&lock, deadline, &wanted, &answers).await
        };
        if matches!(deadline, Deadline::Now) {
            return asking.await;
        }
        tokio::select! {
            biased;
            begun = self.in_time(asking, deadline, &wanted, &answers) => begun,
            info = answers.until_over(&wanted) => Ok(Begin::Done(info)),
            error = self.give_back_unclaimed(&wanted, &answers) => Err(error),
        }
    }

    /// Gives back each grant of this call whose answer was lost and whose lease has ended. A release
    /// in the background gives up at the end of the lease, and the turn would then count as begun.
    /// Returns only if the server refuses this.
    async fn give_back_unclaimed(&self, wanted: &Wanted, answers: &Answers) -> Error {
        loop {
            let hold = answers.unclaimed().await;
            let key = match self.lock.key() {
                Ok(key) => key,
                Err(error) => return error,
            };
            let give_back = wanted.give_back(key, &self.lock.channel(), &hold);
            // If no server answers, the next answer to the wait is about the same hold.
            if let Err(failure) = self.lock.context().backend.submit(give_back).await
                && !failure.may_heal()
            {
                return failure.into_error(key);
            }
        }
    }

    /// Asks the server for its time, and computes the time of this call on the server's clock. The
    /// request for the turn contains that time. So it is still for the slot of the call if it runs
    /// much later, for example because the server was suspended.
    async fn learn_time(
        &self,
        deadline: Deadline,
        wanted: &Wanted,
        answers: &Answers,
    ) -> Result<()> {
        // A turn per id needs no time, but a wait that ends early reports the holder.
        if wanted.period.is_zero() && matches!(deadline, Deadline::Now) {
            return Ok(());
        }
        let context = self.lock.context();
        let (called, patience) = (context.clock.now(), self.lock.settings().outage_timeout);
        let mut pauses = RetryDelays::from(Duration::from_millis(10)).up_to(LONGEST_PAUSE);
        let (mut quickest, mut answered) = (Duration::MAX, 0);
        while answered < MOST_LOOKS {
            let sent = context.clock.now();
            match look(&self.lock, wanted).await {
                Ok(seen) => {
                    let received = context.clock.now();
                    // The server has read its clock between these two times.
                    let [latest, earliest] = [sent, received].map(|read| {
                        let age = read.saturating_sub(called).saturating_add(self.age);
                        seen.now_ms.saturating_sub(wire_ms(age))
                    });
                    let is_certain = wanted.slot_at(earliest) == wanted.slot_at(latest);
                    let took = received.saturating_sub(sent);
                    if is_certain || took < quickest {
                        wanted.requested_ms.store(latest, Ordering::SeqCst);
                        quickest = took;
                    }
                    answers.looked(&seen);
                    if is_certain {
                        break;
                    }
                    answered += 1;
                }
                // Like the wait for the lock, this continues during an outage.
                Err(error) if error.is_transient() && !matches!(deadline, Deadline::Now) => {
                    if context.clock.now() >= called + patience {
                        return Err(error);
                    }
                    context.timers.sleep(pauses.next_delay()).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the result until the deadline, and then returns the last answer. A request to a
    /// server that does not answer can take longer than the caller's wait.
    async fn in_time(
        &self,
        asking: impl Future<Output = Result<Begin>>,
        deadline: Deadline,
        wanted: &Wanted,
        answers: &Answers,
    ) -> Result<Begin> {
        let context = self.lock.context();
        tokio::select! {
            biased;
            begun = asking => begun,
            () = deadline.passed(&context.timers) => match answers.last() {
                Some(seen) => self.refused(&seen, wanted, answers),
                None => Err(no_answer_in_time(context).into_error(self.lock.key()?)),
            },
        }
    }

    /// Requests the turn until the deadline.
    async fn ask(
        &self,
        lock: &Lock<TurnKind>,
        deadline: Deadline,
        wanted: &Arc<Wanted>,
        answers: &Answers,
    ) -> Result<Begin> {
        if let Some(guard) = acquire::acquire_by(lock, deadline).await? {
            return Ok(Begin::Run(Turn::new(guard, self, wanted, answers)));
        }
        if let Some(info) = answers.over(wanted) {
            return Ok(Begin::Done(info));
        }
        let seen = match answers.busy() {
            Some(seen) => seen,
            // Either nothing was sent, because other tasks of this process wait for the lock, or a
            // failover guard has refused the request.
            None => look(&self.lock, wanted).await?,
        };
        answers.looked(&seen);
        self.refused(&seen, wanted, answers)
    }

    /// Returns the answer for a caller that has not got the lock. Fails if the last request was
    /// refused because of an earlier one whose grant the client has not learned of in time.
    fn refused(&self, seen: &Seen, wanted: &Wanted, answers: &Answers) -> Result<Begin> {
        if answers.is_about_own_grant() {
            let cause = Cause::NoAnswer("the answer to an earlier request was lost".into());
            let failure = self
                .lock
                .context()
                .backend
                .failure(Outcome::MayHaveRun, cause);
            return Err(failure.into_error(self.lock.key()?));
        }
        let is_over = match seen.state() {
            Some(TurnState::Done) => true,
            Some(TurnState::Failed) => !self.retry_failed,
            Some(TurnState::Died) => self.at_most_once && seen.is_free(),
            _ => false,
        };
        if is_over && !self.again && seen.code == 0 && seen.record.slot >= Some(wanted.slot()) {
            return Ok(Begin::Done(seen.info(wanted)));
        }
        Ok(Begin::Elsewhere(match seen.is_free() {
            true => seen.held_back(),
            false => seen.info(wanted),
        }))
    }

    /// Checks the settings, and returns the turn that they describe.
    fn wanted(&self) -> Result<Wanted> {
        let key = self.lock.key()?;
        let newest = format!("leasehold:{}:slot", key.as_tag());
        let (record, period, offset, id, keep) = match &self.plan {
            Plan::Per { period } => {
                check_slots(key, *period, self.offset)?;
                let keep = period
                    .saturating_mul(2)
                    .saturating_add(30 * DAY)
                    .min(MAX_SPAN);
                (newest.clone(), *period, self.offset, "", keep)
            }
            Plan::For { id } => {
                check_id(key, id, self.keep)?;
                let record = format!("leasehold:{}:once:{id}", key.as_tag());
                (record, Duration::ZERO, Duration::ZERO, &**id, self.keep)
            }
        };
        Ok(Wanted {
            newest,
            record,
            period,
            offset,
            id: id.to_owned(),
            retry_failed: self.retry_failed,
            again: self.again,
            at_most_once: self.at_most_once,
            by: self.by.clone().unwrap_or_else(default_label),
            keep,
            requested_ms: AtomicU64::new(0),
        })
    }

    /// Returns the turn that began last, whatever its plan.
    fn newest(&self) -> Result<Wanted> {
        let wanted = self.wanted()?;
        Ok(Wanted {
            record: wanted.newest.clone(),
            ..wanted
        })
    }
}

async fn look(lock: &Lock, wanted: &Wanted) -> Result<Seen> {
    let (context, key) = (lock.context(), lock.key()?);
    let reply = request::query(context, key, wanted.look(key)).await?;
    match reply {
        Value::List(items) => Seen::read(&items),
        _ => None,
    }
    .ok_or_else(|| request::malformed(context, key))
}

/// The shortest slot, and the shortest time for which an id is kept.
const SHORTEST: Duration = Duration::from_millis(10);

fn check_slots(key: &Key, period: Duration, offset: Duration) -> Result<()> {
    let longest = MAX_SPAN / 1024;
    let whole = |span: Duration| span.subsec_nanos().is_multiple_of(1_000_000);
    if !(SHORTEST..=longest).contains(&period) || !whole(period) {
        return Err(misuse(
            key,
            &format!("slots of {period:?} are not possible; use 10 ms or more, in whole ms"),
        ));
    }
    if offset >= period || !whole(offset) {
        return Err(misuse(
            key,
            &format!(
                "an offset of {offset:?} is not possible with slots of {period:?}; use less than \
                 the period, in whole ms"
            ),
        ));
    }
    Ok(())
}

fn check_id(key: &Key, id: &str, keep: Duration) -> Result<()> {
    if id.is_empty() || id.len() > LONGEST_ID {
        let what = format!(
            "an id has 1 to {LONGEST_ID} bytes, and this one has {}",
            id.len()
        );
        return Err(misuse(key, &what));
    }
    if !(SHORTEST..=MAX_SPAN).contains(&keep) {
        let what = format!("an id can't be kept for {keep:?}; keep it for 10 ms or more");
        return Err(misuse(key, &what));
    }
    Ok(())
}

fn misuse(key: &Key, what: &str) -> Error {
    Error::new(ErrorKind::Misuse, format!("`{key}`: {what}")).with_key(key)
}

/// A turn that this caller has. It holds the lock, and dereferences to its [`LockGuard`].
///
/// Call [`done`](Self::done) when the job is done. If the turn is dropped without this call, or the
/// lock is lost, the turn has failed. If the job needs preparation that may be cancelled, see
/// [`set_begun`](Self::set_begun).
#[must_use = "the turn has failed as soon as it is dropped"]
#[clippy::has_significant_drop]
pub struct Turn {
    guard: LockGuard,
    lock: Lock,
    wanted: Arc<Wanted>,
    granted: Granted,
}

impl Turn {
    fn new(guard: LockGuard, turns: &Turns, wanted: &Arc<Wanted>, answers: &Answers) -> Self {
        // The guard was made from a grant, so there is one.
        let granted = answers.granted().unwrap_or_else(|| Granted {
            slot: 0,
            missed: 0,
            began_ms: 0,
            died: None,
            ending: Arc::default(),
        });
        granted.ending.begun();
        Self {
            guard,
            lock: turns.lock.clone(),
            wanted: Arc::clone(wanted),
            granted,
        }
    }

    /// Returns the time of the slot; `None` for a turn per id.
    #[must_use]
    pub fn slot(&self) -> Option<SystemTime> {
        beginning_of(self.granted.slot, self.wanted.plan())
    }

    /// Returns the time at which the server granted the turn, on the server's clock. A request
    /// applies to the nearest slot, so this time is up to half a period before or after
    /// [`slot`](Self::slot).
    #[must_use]
    pub fn began(&self) -> SystemTime {
        since_epoch(self.granted.began_ms)
    }

    /// Returns how many slots were missed: slots between the last turn that began and this one.
    /// Zero for a turn per id, and if the server does not know of an earlier turn.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.granted.missed
    }

    /// Returns the turn that began before this one under the same name, if it never ended: its client
    /// died, or could not reach the server.
    #[must_use]
    pub fn died(&self) -> Option<TurnInfo> {
        let died = self.granted.died.as_ref();
        died.map(|record| record.info(TurnState::Died, &self.wanted))
    }

    /// Records that the job is done, and releases the lock in the same request. If [replicas must
    /// confirm](Lock::acknowledged_by) the hold, they first confirm this record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before this call: the turn
    /// has failed, and the job may run again. `Unavailable` or `OutcomeUnknown` if the server's
    /// answer or the confirmation did not arrive: the job may run again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client sends the record and the release in the background.
    pub async fn done(self) -> Result<()> {
        self.end(true, None).await
    }

    /// Records that the job has failed, and releases the lock in the same request. Unlike a drop,
    /// it waits for the server's answer.
    ///
    /// # Errors
    ///
    /// Same as [`done`](Self::done).
    ///
    /// # Cancel safety
    ///
    /// Same as [`done`](Self::done).
    pub async fn failed(self) -> Result<()> {
        self.end(false, None).await
    }

    /// Ends the turn of a command with this exit code: the turn is done if the code is 0, and has
    /// failed otherwise. Operators see the code.
    ///
    /// # Errors
    ///
    /// Same as [`done`](Self::done).
    ///
    /// # Cancel safety
    ///
    /// Same as [`done`](Self::done).
    pub async fn exited(self, code: i32) -> Result<()> {
        self.end(code == 0, Some(code)).await
    }

    /// Sets whether the job has begun; `true` by default. If the turn is dropped before the job has
    /// begun, it counts as not begun, as after [`decline`](Self::decline). If it is dropped later,
    /// it has failed.
    pub fn set_begun(&self, begun: bool) {
        match begun {
            true => self.granted.ending.begun(),
            false => self.granted.ending.declined(),
        }
    }

    /// Gives the turn back because the job can't run here, and releases the lock. The turn counts as
    /// not begun, so any client can have it.
    ///
    /// # Errors
    ///
    /// Same as [`done`](Self::done).
    ///
    /// # Cancel safety
    ///
    /// Same as [`done`](Self::done).
    pub async fn decline(self) -> Result<()> {
        self.granted.ending.declined();
        self.guard.release().await
    }

    async fn end(self, is_done: bool, code: Option<i32>) -> Result<()> {
        let is_held = self.guard.is_held();
        self.granted.ending.ends(is_done && is_held, code);
        let acknowledged = self.lock.settings().acknowledged;
        if is_held && acknowledged.is_needed() {
            // A release does not wait for replicas, but this request does.
            let key = self.lock.key()?;
            let ending = &self.granted.ending;
            let turn = (self.granted.slot, self.granted.began_ms);
            let mark = self.wanted.mark(key, self.guard.holder_id(), ending, turn);
            let backend = &self.lock.context().backend;
            let marked = backend.submit_by(mark, Route::of(acknowledged)).await;
            if let Err(failure) = marked {
                let recorded = "the turn has ended on this server, but a failover may forget it";
                return Err(failure.into_error_with(key, recorded));
            }
        }
        self.guard.release().await
    }
}

impl Deref for Turn {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl AsRef<LockGuard> for Turn {
    fn as_ref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("guard", &self.guard)
            .field("slot", &self.granted.slot)
            .field("missed", &self.granted.missed)
            .finish_non_exhaustive()
    }
}
