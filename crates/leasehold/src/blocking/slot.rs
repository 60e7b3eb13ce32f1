//! Turns of a lock, which forward to the async ones.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::forward::{calls, reads};
use super::lock::{Lock, Ownership};
use super::runtime::Runtime;
use crate::error::Result;
use crate::recipes::slot::{self, TurnInfo};

/// Turns: see the async methods of the same names. The calling thread is not the owner of a turn,
/// so a turn is not re-entrant.
impl<O: Ownership> Lock<O> {
    /// Returns the turns of this lock, one per slot of `period`; see
    /// [`Lock::once_per`](crate::Lock::once_per).
    #[must_use = "a handle does nothing until it is used"]
    pub fn once_per(&self, period: Duration) -> Turns {
        Turns::new(self.as_async().once_per(period), self.runtime().clone())
    }

    /// Returns the turn of this lock for `id`; see [`Lock::once_for`](crate::Lock::once_for).
    #[must_use = "a handle does nothing until it is used"]
    pub fn once_for(&self, id: impl Into<String>) -> Turns {
        Turns::new(self.as_async().once_for(id), self.runtime().clone())
    }

    calls! { Lock by as_async:
        "Returns the turn that began last" last_turn() -> Option<TurnInfo>;
    }
}

/// The turns of a lock, for threads; see [`leasehold::slot::Turns`](crate::slot::Turns).
#[derive(Clone)]
pub struct Turns {
    inner: slot::Turns,
    runtime: Runtime,
}

impl Turns {
    fn new(inner: slot::Turns, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    fn with(mut self, change: impl FnOnce(slot::Turns) -> slot::Turns) -> Self {
        self.inner = change(self.inner);
        self
    }

    fn twin(&self) -> &slot::Turns {
        &self.inner
    }

    /// Sets the time of the first slot; see [`Turns::offset`](crate::slot::Turns::offset).
    #[must_use = "the setting is only in the returned value"]
    pub fn offset(self, offset: Duration) -> Self {
        self.with(|inner| inner.offset(offset))
    }

    /// Sets whether a failed turn may be repeated; see [`Turns::retry_failed`](crate::slot::Turns::retry_failed).
    #[must_use = "the setting is only in the returned value"]
    pub fn retry_failed(self, retry: bool) -> Self {
        self.with(|inner| inner.retry_failed(retry))
    }

    /// Sets whether the job runs although its turn has ended; see
    /// [`Turns::again`](crate::slot::Turns::again).
    #[must_use = "the setting is only in the returned value"]
    pub fn again(self, again: bool) -> Self {
        self.with(|inner| inner.again(again))
    }

    /// Sets whether a turn whose holder died stays closed; see [`Turns::at_most_once`](crate::slot::Turns::at_most_once).
    #[must_use = "the setting is only in the returned value"]
    pub fn at_most_once(self, at_most_once: bool) -> Self {
        self.with(|inner| inner.at_most_once(at_most_once))
    }

    /// Sets how long an id is remembered; see [`Turns::keep`](crate::slot::Turns::keep).
    #[must_use = "the setting is only in the returned value"]
    pub fn keep(self, keep: Duration) -> Self {
        self.with(|inner| inner.keep(keep))
    }

    /// Sets how long ago the caller first requested the turn; see
    /// [`Turns::requested_ago`](crate::slot::Turns::requested_ago).
    #[must_use = "the setting is only in the returned value"]
    pub fn requested_ago(self, age: Duration) -> Self {
        self.with(|inner| inner.requested_ago(age))
    }

    /// Sets the name by which others see this client; see [`Turns::by`](crate::slot::Turns::by).
    #[must_use = "the setting is only in the returned value"]
    pub fn by(self, name: impl Into<String>) -> Self {
        self.with(|inner| inner.by(name))
    }

    /// Requests the turn once; see [`Turns::try_begin`](crate::slot::Turns::try_begin).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn try_begin(&self) -> Result<Begin> {
        let begun = self
            .runtime
            .wait_on("Turns::try_begin", self.inner.try_begin());
        Ok(self.begun(begun?))
    }

    /// Requests the turn, and waits while another client has it; see
    /// [`Turns::begin`](crate::slot::Turns::begin).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn begin(&self) -> Result<Begin> {
        let begun = self.runtime.wait_on("Turns::begin", self.inner.begin());
        Ok(self.begun(begun?))
    }

    /// Requests the turn, and waits at most for `wait`; see
    /// [`Turns::begin_for`](crate::slot::Turns::begin_for).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn begin_for(&self, wait: Duration) -> Result<Begin> {
        let begin = self.inner.begin_for(wait);
        let begun = self.runtime.wait_on("Turns::begin_for", begin);
        Ok(self.begun(begun?))
    }

    fn begun(&self, begun: slot::Begin) -> Begin {
        begun.map(|turn| Turn {
            inner: Some(turn),
            runtime: self.runtime.clone(),
        })
    }

    reads! { Lock:
        "Returns the name of the lock" name() -> &str;
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The answer to a request for a turn; see [`leasehold::slot::Begin`](crate::slot::Begin).
pub type Begin = slot::Begin<Turn>;

/// A turn that this caller has, for threads; see [`leasehold::slot::Turn`](crate::slot::Turn). It
/// may be sent to another thread.
#[must_use = "the turn has failed as soon as it is dropped"]
#[clippy::has_significant_drop]
pub struct Turn {
    /// `None` only after the turn has ended.
    inner: Option<slot::Turn>,
    runtime: Runtime,
}

impl Turn {
    /// Returns the time of the slot; see [`Turn::slot`](crate::slot::Turn::slot).
    #[must_use]
    pub fn slot(&self) -> Option<SystemTime> {
        self.as_async().slot()
    }

    /// Returns the time at which the turn began; see [`Turn::began`](crate::slot::Turn::began).
    #[must_use]
    pub fn began(&self) -> SystemTime {
        self.as_async().began()
    }

    /// Returns the turn before this one, if it never ended; see
    /// [`Turn::died`](crate::slot::Turn::died).
    #[must_use]
    pub fn died(&self) -> Option<TurnInfo> {
        self.as_async().died()
    }

    /// Returns how many slots were missed; see [`Turn::missed`](crate::slot::Turn::missed).
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.as_async().missed()
    }

    /// Returns whether the lock is held; see [`LockGuard::is_held`](crate::LockGuard::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.as_async().is_held()
    }

    /// Notes that the job is done; see [`Turn::done`](crate::slot::Turn::done).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn done(self) -> Result<()> {
        self.end("Turn::done", slot::Turn::done)
    }

    /// Notes that the job has failed; see [`Turn::failed`](crate::slot::Turn::failed).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn failed(self) -> Result<()> {
        self.end("Turn::failed", slot::Turn::failed)
    }

    /// Ends the turn of a command with this exit code; see
    /// [`Turn::exited`](crate::slot::Turn::exited).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn exited(self, code: i32) -> Result<()> {
        self.end("Turn::exited", |turn| turn.exited(code))
    }

    /// Sets whether the job has begun; see [`Turn::set_begun`](crate::slot::Turn::set_begun).
    pub fn set_begun(&self, begun: bool) {
        self.as_async().set_begun(begun);
    }

    /// Gives the turn back as not begun; see [`Turn::decline`](crate::slot::Turn::decline).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn decline(self) -> Result<()> {
        self.end("Turn::decline", slot::Turn::decline)
    }

    fn end<F>(mut self, name: &str, end: impl FnOnce(slot::Turn) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        match self.inner.take() {
            Some(turn) => self.runtime.finish(name, end(turn)),
            // Can't happen: each method that takes the turn out has consumed `self`.
            None => Ok(()),
        }
    }

    /// Returns the async turn, for its methods and the methods of its guard.
    pub fn as_async(&self) -> &slot::Turn {
        self.inner.as_ref().expect("only the end takes the turn")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turn) = self.inner.take() {
            self.runtime.release_dropped(turn, slot::Turn::failed);
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
