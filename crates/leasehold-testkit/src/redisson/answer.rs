//! What comes back from a call, and waiting for it.

use std::{
    error::Error,
    fmt,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A value, and when the call ran in the JVM, on the clock of [`monotonic_ns`].
///
/// [`monotonic_ns`]: crate::monotonic_ns
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timed<T> {
    /// What Redisson returned.
    pub value: T,
    /// Just before the call.
    pub from_ns: u64,
    /// Just after it.
    pub until_ns: u64,
}

/// What a call comes to.
pub type Answer<T> = Result<Timed<T>, RedissonError>;

/// What Redisson, or the driver, threw.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedissonError {
    /// The name of the Java class without its package; [`RedissonError::GONE`] or
    /// [`RedissonError::NO_ANSWER`] when the driver said nothing.
    pub class: String,
    /// Its message.
    pub message: String,
}

impl RedissonError {
    /// The class of the error when the JVM has ended.
    pub const GONE: &str = "JvmGone";

    /// The class of the error when the answer did not come in time.
    pub const NO_ANSWER: &str = "NoAnswer";

    pub(super) fn new(class: &str, message: impl Into<String>) -> Self {
        Self {
            class: class.to_owned(),
            message: message.into(),
        }
    }
}

impl fmt::Display for RedissonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

impl Error for RedissonError {}

/// A call that was sent and may not have come back yet.
///
/// Dropping it does not take the call back.
#[must_use = "the call may still be running, or may have failed"]
pub struct Pending<T> {
    slot: Arc<Slot>,
    value: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Pending<T> {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self {
            slot,
            value: PhantomData,
        }
    }

    /// Whether the answer is there.
    pub fn is_done(&self) -> bool {
        self.slot.answer().is_some()
    }

    /// Waits at most `limit` for the answer. It can be asked again.
    ///
    /// # Errors
    ///
    /// What Redisson threw, or [`RedissonError::NO_ANSWER`].
    pub fn wait(&self, limit: Duration) -> Answer<T> {
        let answer = self.slot.wait(limit).unwrap_or_else(|| {
            let message = format!("no answer to `{}` within {limit:?}", self.slot.request);
            Err(RedissonError::new(RedissonError::NO_ANSWER, message))
        })?;
        let value = serde_json::from_value(answer.value).map_err(|error| {
            let message = format!("answer to `{}`: {error}", self.slot.request);
            RedissonError::new("BadAnswer", message)
        })?;
        Ok(Timed {
            value,
            from_ns: answer.from_ns,
            until_ns: answer.until_ns,
        })
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("request", &self.slot.request)
            .field("answer", &*self.slot.answer())
            .finish()
    }
}

/// Where the thread that reads answers leaves one.
pub(super) struct Slot {
    /// The request, for messages.
    request: String,
    answer: Mutex<Option<Answer<Value>>>,
    filled: Condvar,
}

impl Slot {
    pub(super) fn new(request: String) -> Self {
        Self {
            request,
            answer: Mutex::new(None),
            filled: Condvar::new(),
        }
    }

    pub(super) fn fill(&self, answer: Answer<Value>) {
        // The first stays: it is the true one if the JVM ended right after it.
        self.answer().get_or_insert(answer);
        self.filled.notify_all();
    }

    fn wait(&self, limit: Duration) -> Option<Answer<Value>> {
        let (answer, _) = self
            .filled
            .wait_timeout_while(self.answer(), limit, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        answer.clone()
    }

    fn answer(&self) -> MutexGuard<'_, Option<Answer<Value>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
