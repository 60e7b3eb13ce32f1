//! The answers to calls, and the code that waits for them.

use std::{
    error::Error,
    fmt,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A value, and the time at which the call ran in the JVM, on the clock of [`monotonic_ns`].
///
/// [`monotonic_ns`]: crate::monotonic_ns
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timed<T> {
    /// The value that Redisson returned.
    pub value: T,
    /// The time just before the call.
    pub from_ns: u64,
    /// The time just after the call.
    pub until_ns: u64,
}

/// The result of a call.
pub type Answer<T> = Result<Timed<T>, RedissonError>;

/// The exception that Redisson or the driver threw.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedissonError {
    /// The name of the Java class without its package; [`RedissonError::GONE`] or
    /// [`RedissonError::NO_ANSWER`] if the driver sent no answer.
    pub class: String,
    /// The message of the exception.
    pub message: String,
}

impl RedissonError {
    /// The class of the error if the JVM has ended.
    pub const GONE: &str = "JvmGone";

    /// The class of the error if the answer did not arrive in time.
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

/// A call that was sent and may not have been answered yet.
///
/// Dropping it does not cancel the call.
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

    /// Returns whether the answer has arrived.
    pub fn is_done(&self) -> bool {
        self.slot.answer().is_some()
    }

    /// Waits at most `limit` for the answer. This method can be called again if the answer has not
    /// arrived.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw, or [`RedissonError::NO_ANSWER`].
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

/// A slot for one answer. The thread that reads answers fills it.
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
        // The first answer is kept, because it is still correct if the JVM ended immediately
        // afterwards.
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
