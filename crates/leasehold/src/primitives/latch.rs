//! The latch: it opens for all waiters at once when it has been counted down.

pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::NameKind;
use crate::backend::channels::{Listener, ZeroBaseline};
use crate::backend::failure::Failure;
use crate::backend::step::Value;
use crate::config::{Settings, WaitStrategy, check_wait};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::local::line::LineMode;
use crate::primitives::setters::wait_setters;
use crate::primitives::{request, shared_keys};
use crate::sync::Mutex;
use crate::wait::{Answer, Ask, Deadline, Wait};

/// The largest count. Redisson counts with 63 bits, but a script is exact only for numbers of up to
/// 14 digits.
const MOST: u64 = 10_000_000_000_000;

/// A latch with a name. It is set to a count, tasks in any process count it down, and when the
/// count is zero every waiter continues. Redisson's `RCountDownLatch` of the same name is the same
/// latch.
///
/// This value is only a handle: it is cheap to make and to clone, and has its own settings. A latch
/// is open if it was never set, or if its count has reached zero. Only an open latch can be set to
/// a new count.
///
/// **The promise.** When the count reaches zero, every waiter continues, even if the latch is set
/// again immediately, and even if the message about it is lost.
///
/// There is one exception: if Redisson clients count the latch down to zero and set it again before
/// a waiter of this library sends its next request, only Redisson's message shows that the latch
/// was open. The waiter receives messages only after the server has confirmed its subscription, a
/// round trip or two after the start of the wait, and only while its connection is up. A waiter
/// that does not subscribe misses every message: see [`wait_strategy`](Self::wait_strategy).
///
/// A count-down counts once, even if the network delivers it several times. A latch has no owner
/// and no lease. If a process is killed before it counts down, the waiters wait until the latch is
/// [deleted](Self::delete). So wait with a time limit: see [`wait_for`](Self::wait_for).
///
/// Leasehold has no condition variable. Most uses of a condition variable are covered by a latch,
/// or by reading the data under the lock.
///
/// In a Redis Cluster, the name of a latch can't contain a brace: in the name of the channel,
/// Redisson puts braces around the latch's name, so the key and the channel would be in different
/// slots.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let ready = client.count_down_latch("import:ready");
/// ready.try_set_count(2).await?;
///
/// let workers = async {
///     ready.count_down().await?;
///     ready.count_down().await
/// };
/// let (opened, left) = tokio::join!(ready.wait(), workers);
/// opened?;
/// assert_eq!(left?, 0);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RCountDownLatch")]
#[doc(alias = "getCountDownLatch")]
#[doc(alias = "Condvar")]
#[doc(alias = "newCondition")]
#[derive(Clone)]
pub struct CountDownLatch {
    context: Arc<Context>,
    /// The key of the latch's name. An invalid name is reported when the handle is used, so that
    /// making a handle can't fail.
    key: Result<Key>,
    channel: Arc<str>,
    settings: Settings,
}

/// Waiting.
impl CountDownLatch {
    /// Waits until the latch is open, without a time limit. Returns at once if the latch is already
    /// open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server has answered for the
    /// [`outage_timeout`](Self::outage_timeout), `WrongKind` if the name is in use as something
    /// else, `Denied` if the server refuses the request, `Misuse` for a bad name or setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and leaves nothing behind.
    #[doc(alias = "await")]
    pub async fn wait(&self) -> Result<()> {
        // Without a deadline a wait ends only when the latch is open, or with an error.
        while !self.wait_by(Deadline::Never).await? {}
        Ok(())
    }

    /// Waits until the latch is open, but at most for `wait`. Returns `false` if the latch did not
    /// open within this time. `wait` must be more than zero and at most 2^53 ms.
    ///
    /// # Errors
    ///
    /// Same as [`wait`](Self::wait). `Unavailable` also if the server has not answered any request
    /// within `wait`. `Misuse` for a `wait` out of its range.
    ///
    /// # Cancel safety
    ///
    /// Same as [`wait`](Self::wait).
    #[doc(alias = "await")]
    pub async fn wait_for(&self, wait: Duration) -> Result<bool> {
        // `check_wait` would advise `try_acquire`, which a latch does not have.
        if wait.is_zero() {
            let key = self.key()?;
            let message =
                format!("a wait of zero for `{key}`; call count() to ask without waiting");
            return Err(Error::new(ErrorKind::Misuse, message).with_key(key));
        }
        check_wait(wait, self.key()?)?;
        let deadline = self.context.clock.now() + wait;
        self.wait_by(Deadline::At(deadline)).await
    }

    /// Waits until the latch is open, but at most until `deadline`. Returns `false` if the latch
    /// did not open before `deadline`. If the deadline has already passed, the call asks the server
    /// once. `deadline` is an `Instant` of tokio or of the standard library.
    ///
    /// # Errors
    ///
    /// Same as [`wait`](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Same as [`wait`](Self::wait).
    pub async fn wait_until(&self, deadline: impl Into<Instant>) -> Result<bool> {
        let deadline = Deadline::at_instant(deadline.into(), self.context.clock);
        self.wait_by(deadline).await
    }

    async fn wait_by(&self, deadline: Deadline) -> Result<bool> {
        let key = self.key()?;
        self.settings.check_waiting(key)?;
        self.context.check_open(key)?;
        shared_keys::check(&self.context, key);
        let waiter = LatchWait {
            latch: self,
            key,
            seen: Mutex::default(),
        };
        let wait = Wait {
            context: &self.context,
            key,
            line_key: key,
            channels: &[(self.context.backend.channels(), &self.channel)],
            settings: &self.settings,
            deadline,
            // An open latch lets every waiter in, so no waiter has to queue behind another.
            line: LineMode::SingleFlight,
            place: None,
            was_held: false,
            span: None,
        };
        let is_open = wait.until_granted(&waiter).await?.is_some();
        if is_open {
            waiter.republish();
        }
        Ok(is_open)
    }
}

/// Counting.
impl CountDownLatch {
    /// Sets an open latch to a count from 1 to 10^13. If the latch is not open, its count is not
    /// changed and the result is `false`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered and nothing
    /// was changed. `OutcomeUnknown` if the count may have been changed. `WrongKind` if the name is
    /// in use as something else. `Denied` if the server refuses the request. `Misuse` for a bad
    /// name, for a count of zero (a latch that was never set is open) or for a count over 10^13.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the request may take effect even if the future is dropped.
    #[doc(alias = "trySetCount")]
    pub async fn try_set_count(&self, count: u64) -> Result<bool> {
        let key = self.key()?;
        self.check_steps("a count of", count, key)?;
        let make = |marked: &_| steps::set(key, marked, count, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    /// Counts down by one and returns the remaining count. At zero the latch opens. A latch that is
    /// open stays open.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    #[doc(alias = "countDown")]
    pub async fn count_down(&self) -> Result<u64> {
        self.count_down_by(1).await
    }

    /// Counts down by `steps` in one request, but not below zero, and returns the remaining count.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    pub async fn count_down_by(&self, steps: u64) -> Result<u64> {
        let key = self.key()?;
        self.check_steps("counting down by", steps, key)?;
        let make = |marked: &_| steps::count_down(key, marked, steps, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        let left = request::integer(&self.context, key, &reply)?;
        u64::try_from(left).map_err(|_| request::malformed(&self.context, key))
    }

    /// Returns the remaining count. 0 if the latch is open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answered, `WrongKind`
    /// if the name is in use as something else, `Denied` if the server refuses the request,
    /// `Misuse` for a bad name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    #[doc(alias = "getCount")]
    pub async fn count(&self) -> Result<u64> {
        let key = self.key()?;
        let reply = request::query(&self.context, key, steps::count(key)).await?;
        let seen = read(&reply).ok_or_else(|| request::malformed(&self.context, key))?;
        Ok(seen.count)
    }

    /// Removes the latch, which opens it. Returns `false` if it was already open. Waiters of this
    /// library continue. Redisson's waiters still wait, as they do when Redisson deletes a latch:
    /// until their time limit, or until the latch is set and counted down again.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    pub async fn delete(&self) -> Result<bool> {
        let key = self.key()?;
        let make = |marked: &_| steps::delete(key, marked, &self.channel);
        let reply = request::idempotent(&self.context, key, make).await?;
        Ok(request::integer(&self.context, key, &reply)? == 1)
    }

    fn check_steps(&self, what: &str, steps: u64, key: &Key) -> Result<()> {
        let message = match steps {
            1..=MOST => return Ok(()),
            0 => format!("{what} zero for `{key}`; a latch that is not set is open"),
            _ => format!("{what} {steps} for `{key}` is over the maximum of {MOST}; use fewer"),
        };
        Err(Error::new(ErrorKind::Misuse, message).with_key(key))
    }

    fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    /// Returns the name that this handle was given. Empty if that name is not valid.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", Key::given)
    }
}

/// Settings. Each setter changes only this handle.
impl CountDownLatch {
    pub(crate) fn new(context: Arc<Context>, name: &str) -> Self {
        let key = context.key(name, NameKind::Latch);
        let channel = key
            .as_ref()
            .map_or_else(|_| String::new(), Key::latch_channel);
        Self {
            settings: context.settings(),
            context,
            key,
            channel: channel.into(),
        }
    }

    wait_setters! {
        /// With an interval of more than an hour, a waiter that did not receive the message might
        /// not notice that the latch opened, if the latch was set again at once.
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch")
            .field("name", &self.name())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// One waiter.
struct LatchWait<'a> {
    latch: &'a CountDownLatch,
    key: &'a Key,
    seen: Mutex<SeenOpenings>,
}

#[derive(Clone, Default)]
struct SeenOpenings {
    /// The time at which the latch was last open, according to the first answer that reported it as
    /// closed. Any later opening is one that this waiter waited for.
    since: Option<i64>,
    /// The number of signals that the channel had delivered before the last request.
    signals: Option<u64>,
    /// Whether a message has reported that the latch opened, since this waiter subscribed.
    opened: bool,
    /// The position from which the waiter counts the messages that report an opening.
    start: Option<ZeroBaseline>,
}

impl Ask for LatchWait<'_> {
    type Grant = ();

    async fn ask(&self) -> Result<Answer<()>, Failure> {
        let seen = self.seen.lock().clone();
        // Check this before sending a request: the latch may already have been set again, and the
        // server would report it as closed.
        if seen.opened {
            return Ok(Answer::Granted(()));
        }
        let context = &self.latch.context;
        let operation = steps::count(self.key);
        let local = context.locals.of(self.key);
        // Share the answer only with waiters that have seen the same number of signals: a request
        // that was sent before the last signal may have run before the latch opened.
        let asked = local.flight.ask(&context.backend, seen.signals, operation);
        let reply = asked.await?;
        let now = read(&reply).ok_or_else(|| context.backend.malformed())?;
        if now.count == 0 || seen.since.is_some_and(|since| now.opened_at > since) {
            return Ok(Answer::Granted(()));
        }
        // The comparison above is between the times of two openings, never between two clocks: the
        // clock of the next server may be slow.
        self.seen.lock().since.get_or_insert(now.opened_at);
        Ok(Answer::Later {
            // A latch has no lease whose end could be waited for.
            within: None,
            fingerprint: (i64::try_from(now.count).unwrap_or(i64::MAX), Vec::new()),
        })
    }

    fn before_ask(&self, listeners: &[Listener]) {
        let [listener] = listeners else { return };
        let mut seen = self.seen.lock();
        seen.signals = Some(listener.signal().count());
        seen.opened |= listener.zero_arrived();
        seen.start = listener.baseline().cloned();
    }
}

impl LatchWait<'_> {
    /// Publishes the opening once more, for waiters that did not receive it. In a cluster,
    /// Redisson's versions publish by different transports, so the waiters of one version miss the
    /// opening of a latch that another version has counted to zero. The answer is not awaited: this
    /// waiter may already continue, and without the message the others are not worse off than
    /// before.
    fn republish(&self) {
        let context = &self.latch.context;
        let start = self.seen.lock().start.take();
        // `None` for a waiter that never subscribed, because its first request found the latch
        // open.
        let needed = start.is_some_and(|start| {
            let channels = context.backend.channels();
            channels.should_republish(&self.latch.channel, &start)
        });
        if needed {
            let operation = steps::republish(self.key, &self.latch.channel);
            drop(context.backend.submit(operation));
        }
    }
}

/// A latch's state, as the server reports it.
struct LatchState {
    count: u64,
    opened_at: i64,
}

fn read(reply: &Value) -> Option<LatchState> {
    let Value::List(items) = reply else {
        return None;
    };
    let [Value::Int(count), Value::Int(opened_at)] = items[..] else {
        return None;
    };
    Some(LatchState {
        count: u64::try_from(count).ok()?,
        opened_at,
    })
}
