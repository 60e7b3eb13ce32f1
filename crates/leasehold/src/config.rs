//! Settings: defaults, ranges, checks.

use std::time::Duration;

use crate::acknowledgement::Acknowledgement;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// How long a hold lasts on the server without renewal (Redisson's
/// `lockWatchdogTimeout`).
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The longest lease of a majority, where the clients have not agreed on another one.
pub(crate) const DEFAULT_LONGEST_LEASE: Duration = DEFAULT_LEASE;
/// A year: a server that was started has no vote for that long.
const MAX_LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Returns the pause between two asks of a waiter that nothing wakes.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A waiter that listens asks this often at least. Thousands of names with a waiter each would keep
/// client and server busy while nothing happens.
const LONGEST_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a wait goes on while no server answers. One default lease: by then every earlier hold
/// is over. It has no range: any span is allowed (`Lock::outage_timeout` in `setters.rs`).
pub(crate) const DEFAULT_OUTAGE_TIMEOUT: Duration = DEFAULT_LEASE;

/// How long a process keeps what its waiters hand over, from a grant of the server on. A longer time
/// would hardly be faster, and others wait for its end.
pub(crate) const DEFAULT_TURN: Duration = Duration::from_millis(10);

const MIN_LEASE: Duration = Duration::from_millis(10);
const MIN_RENEWED_LEASE: Duration = Duration::from_millis(100);
/// Beyond 2^53 a number is not exact in Lua.
pub(crate) const MAX_SPAN: Duration = Duration::from_millis(1 << 53);

/// How a waiter learns that it may ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Sleeps until a release is published (the default). The lease's end and
    /// [`poll_interval`](crate::Lock::poll_interval) are the safety net.
    PubSub,
    /// Asks again after growing pauses and subscribes to nothing, as Redisson's spin lock does. For
    /// very short holds, or where the server denies channels. In one process one waiter for a name
    /// asks for all waiters behind it, so its pace is theirs: don't mix this strategy with the
    /// other one on one name.
    Backoff(Backoff),
}

/// Growing pauses between two asks: `first`, then `factor` times the last pause with a small random
/// part, at most `cap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub(crate) first: Duration,
    pub(crate) factor: u32,
    pub(crate) cap: Duration,
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(3600);

    /// Redisson's exponential back-off: 1 ms, doubled, at most 128 ms.
    #[must_use]
    pub fn exponential() -> Self {
        Self {
            first: Duration::from_millis(1),
            factor: 2,
            cap: Duration::from_millis(128),
        }
    }

    /// The same pause each time (Redisson's constant back-off; its default is 64 ms).
    /// At least 1 ms, at most an hour.
    #[must_use]
    pub fn constant(pause: Duration) -> Self {
        // No error, because making a handle can't fail. A pause of zero would make a waiter ask at
        // full speed.
        let pause = pause.clamp(Duration::from_millis(1), Self::LONGEST);
        Self {
            first: pause,
            factor: 1,
            cap: pause,
        }
    }

    /// Sets the first pause. At least 1 ms, at most an hour.
    #[must_use]
    pub fn first(mut self, pause: Duration) -> Self {
        self.first = pause.clamp(Duration::from_millis(1), Self::LONGEST);
        // The cap rises along, for a caller who sets this after `cap`: otherwise the second pause
        // would be shorter than the first.
        self.cap = self.cap.max(self.first);
        self
    }

    /// Sets the longest pause. At least the first one, at most an hour.
    #[must_use]
    pub fn cap(mut self, pause: Duration) -> Self {
        self.cap = pause.min(Self::LONGEST).max(self.first);
        self
    }
}

/// Who shares a client's names: see [`ClientBuilder::peers`](crate::ClientBuilder::peers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peers {
    /// Clients of this library, and Redisson of any version.
    #[default]
    All,
    /// Clients of this library alone.
    RustOnly,
    /// Clients of this library, and Redisson before 3.22.0: in a cluster it hears messages to all
    /// nodes alone.
    Redisson3,
    /// Clients of this library, and Redisson from 3.22.0 on: in a cluster of Redis 7 or later it
    /// hears messages to a shard alone.
    Redisson4,
}

/// The terms on which a hold is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// `None`: a fixed lease, never renewed.
    pub(crate) renew_every: Option<Duration>,
    /// How often the server is reminded of what is left of a fixed lease, where other clients could
    /// cut that short.
    pub(crate) remind_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// The longest lease that the hold may have; `None` where nobody relies on such a limit.
    pub(crate) longest_lease: Option<Duration>,
    /// Who has to confirm it.
    pub(crate) acknowledged: Acknowledgement,
}

impl Terms {
    /// Whether the watchdog only reminds the server of the lease.
    pub(crate) fn reasserts_fixed_lease(&self) -> bool {
        self.renew_every.is_none() && self.remind_every.is_some()
    }

    /// Terms that are good enough for both. A maximum hold time belongs to one guard alone.
    pub(crate) fn and(self, other: Self) -> Self {
        // Not `min` of the two options: in their order `None`, which means never here, comes before
        // every duration.
        let sooner = |one: Option<Duration>, two| one.into_iter().chain(two).min();
        Self {
            lease: self.lease.max(other.lease),
            renew_every: sooner(self.renew_every, other.renew_every),
            remind_every: sooner(self.remind_every, other.remind_every),
            max_hold: None,
            // The greater bound: it was noted on every member before the first hold by it, and all
            // who count on a bound go by the greatest note (`majority/longest.rs`).
            longest_lease: self.longest_lease.max(other.longest_lease),
            acknowledged: self.acknowledged.and(other.acknowledged),
        }
    }

    /// How often the watchdog has to act on the hold.
    pub(crate) fn watch_every(&self) -> Option<Duration> {
        // A renewal reminds the server as well. The sooner of the two: an owner may have entered
        // through two handles, one that renews and one that only reminds, but more often.
        self.renew_every.into_iter().chain(self.remind_every).min()
    }
}

/// The settings of a handle. Values are checked when they are used, so that making a handle can't
/// fail.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The client's lease, for holds without a setting of their own.
    pub(crate) default_lease: Duration,
    /// The lease of renewed holds.
    pub(crate) lease: Option<Duration>,
    /// The lease of holds that are not renewed. With it, `lease` and `renew_every` must not be set.
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) longest_lease: Option<Duration>,
    pub(crate) strategy: WaitStrategy,
    /// `None`: the default, which grows while a waiter listens and nothing wakes it.
    pub(crate) poll_interval: Option<Duration>,
    /// How often a waiter asks at least, whatever its strategy is: what it leaves on the server while
    /// it waits ends otherwise.
    pub(crate) ask_every: Option<Duration>,
    pub(crate) outage_timeout: Duration,
    /// For how long the process keeps a lock that its waiters hand over; zero for never.
    pub(crate) local_hand_over: Duration,
    /// Who has to confirm a hold.
    pub(crate) acknowledged: Acknowledgement,
}

impl Settings {
    pub(crate) fn new(default_lease: Duration) -> Self {
        Self {
            default_lease,
            lease: None,
            fixed_lease: None,
            renew_every: None,
            max_hold: None,
            longest_lease: None,
            strategy: WaitStrategy::PubSub,
            poll_interval: None,
            ask_every: None,
            outage_timeout: DEFAULT_OUTAGE_TIMEOUT,
            local_hand_over: DEFAULT_TURN,
            acknowledged: Acknowledgement::master(),
        }
    }

    /// Checks the settings that only a wait uses.
    pub(crate) fn check_waiting(&self, key: &Key) -> Result<()> {
        check_span(
            "poll interval",
            self.poll_interval(),
            Duration::from_millis(1),
            "",
            key,
        )
    }

    /// Returns the pause between two asks of a waiter that nothing wakes.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.poll_interval.unwrap_or(DEFAULT_POLL_INTERVAL)
    }

    /// Returns the pause of a waiter that listens, after `quiet` sleeps that nothing has ended.
    pub(crate) fn poll_interval_after(&self, quiet: u32) -> Duration {
        // An interval that was set is a promise: no lost message costs more than that.
        self.poll_interval.unwrap_or_else(|| {
            let grown = DEFAULT_POLL_INTERVAL.saturating_mul(1 << quiet.min(16));
            grown.min(LONGEST_POLL_INTERVAL)
        })
    }

    /// How long a hold lasts if nothing renews it.
    pub(crate) fn lease(&self) -> Duration {
        self.fixed_lease
            .or(self.lease)
            .unwrap_or(self.default_lease)
    }

    /// Takes over the terms of an existing hold.
    pub(crate) fn take(&mut self, terms: Terms) {
        let lease = Some(terms.lease);
        // One of them is cleared, not only the other one set: `check_fixed` refuses a handle that
        // has both.
        (self.lease, self.fixed_lease) = match terms.renew_every {
            Some(_) => (lease, None),
            None => (None, lease),
        };
        self.renew_every = terms.renew_every;
        self.max_hold = terms.max_hold;
        self.longest_lease = terms.longest_lease;
        self.acknowledged = terms.acknowledged;
    }

    /// The terms of a new hold, after a check of every value.
    pub(crate) fn terms(&self, key: &Key) -> Result<Terms> {
        let lease = self.lease();
        let renew_every = match self.fixed_lease {
            Some(_) => {
                self.check_fixed(key)?;
                check_span("lease", lease, MIN_LEASE, "", key)?;
                None
            }
            None => {
                check_span("lease", lease, MIN_RENEWED_LEASE, " for a renewed one", key)?;
                Some(self.renewal_period(lease, key)?)
            }
        };
        check_longest(lease, self.longest_lease, key)?;
        let least = Duration::from_millis(1);
        if let Some(span) = self.max_hold {
            check_span("maximum hold", span, least, "", key)?;
        }
        // Checked for all, although `try_acquire` does not wait: so the first call finds a wrong
        // setting, and not the first one that is contended.
        check_span("poll interval", self.poll_interval(), least, "", key)?;
        Ok(Terms {
            lease,
            renew_every,
            // No setting of a handle: the read-write lock adds it, where the watchdog of a Java
            // reader can shorten a hold.
            remind_every: None,
            max_hold: self.max_hold,
            longest_lease: self.longest_lease,
            acknowledged: self.acknowledged,
        })
    }

    /// Refuses a setting that only a renewed hold can keep, on a handle with a fixed lease.
    fn check_fixed(&self, key: &Key) -> Result<()> {
        let (what, span) = match (self.lease, self.renew_every) {
            (Some(lease), _) => ("a lease that is renewed", lease),
            (None, Some(period)) => ("a renewal period", period),
            (None, None) => return Ok(()),
        };
        let fixed = self.lease();
        Err(misuse(
            key,
            format!(
                "the handle for `{key}` has both a fixed lease of {fixed:?}, which is never renewed, \
                 and {what} of {span:?}; set one of them"
            ),
        ))
    }

    fn renewal_period(&self, lease: Duration, key: &Key) -> Result<Duration> {
        let Some(period) = self.renew_every else {
            // As Redisson's watchdog does it. If this renewal fails, two thirds of the lease are
            // left for others.
            return Ok(lease / 3);
        };
        check_span("renewal period", period, Duration::from_millis(1), "", key)?;
        if period > lease / 2 {
            return Err(misuse(
                key,
                format!(
                    "a renewal period of {period:?} for `{key}` is over half of the lease of {lease:?}; \
                     one missed renewal would lose the lock: renew more often or set a longer lease"
                ),
            ));
        }
        Ok(period)
    }
}

/// Checks a lease that is asked for after the acquire.
pub(crate) fn check_lease(lease: Duration, key: &Key) -> Result<()> {
    check_span("lease", lease, MIN_LEASE, "", key)
}

/// Checks a lease against the longest one that others rely on.
pub(crate) fn check_longest(lease: Duration, longest: Option<Duration>, key: &Key) -> Result<()> {
    // The bound itself is allowed: by default it is as long as the default lease.
    match longest.filter(|longest| lease > *longest) {
        None => Ok(()),
        Some(longest) => Err(misuse(
            key,
            format!(
                "a lease of {lease:?} for `{key}` is over the longest lease of its majority, {longest:?}; \
                 set a shorter lease, or a longer `longest_lease` on the lock"
            ),
        )),
    }
}

/// The error of a lease that could outlast a failover guard.
pub(crate) fn outlasts_guard(lease: &str, span: Duration) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!(
            "{lease} is longer than the client's failover guard of {span:?}, so that another one could get \
             the lock before it is over; set a shorter lease, or a longer failover guard on all clients"
        ),
    )
}

/// Checks a failover guard by what else the client is to do.
pub(crate) fn check_failover_guard(span: Duration, lease: Duration, peers: Peers) -> Result<()> {
    if span > MAX_LONGEST_LEASE {
        return Err(Error::new(
            ErrorKind::Misuse,
            format!(
                "a failover guard of {span:?} is over the maximum of {MAX_LONGEST_LEASE:?}; set a shorter one"
            ),
        ));
    }
    if lease > span {
        return Err(outlasts_guard(
            &format!("a client's lease of {lease:?}"),
            span,
        ));
    }
    if peers != Peers::RustOnly {
        return Err(Error::new(
            ErrorKind::Misuse,
            "Redisson knows no failover guard, and gets at once what the guard keeps back; set peers(Peers::RustOnly), \
             and share the names with no Redisson",
        ));
    }
    Ok(())
}

/// Checks the longest lease of a majority.
pub(crate) fn check_longest_lease(longest: Duration, key: &Key) -> Result<()> {
    check_span("longest lease", longest, MIN_LEASE, "", key)?;
    if longest > MAX_LONGEST_LEASE {
        return Err(misuse(
            key,
            format!(
                "a longest lease of {longest:?} for `{key}` is over the maximum of {MAX_LONGEST_LEASE:?}; set a shorter one"
            ),
        ));
    }
    Ok(())
}

/// Checks how long a key is to live.
pub(crate) fn check_life(life: Duration, key: &Key) -> Result<()> {
    check_span("life", life, Duration::from_millis(1), "", key)
}

/// Checks a number of permits or steps: Redisson counts to 2^31 - 1.
pub(crate) fn check_number(what: &str, number: u64, most: u64, key: &Key) -> Result<()> {
    if number > most {
        return Err(misuse(
            key,
            format!("{number} {what} for `{key}` are over the maximum of {most}; use fewer"),
        ));
    }
    Ok(())
}

pub(crate) fn check_wait(wait: Duration, key: &Key) -> Result<()> {
    if wait.is_zero() {
        return Err(misuse(
            key,
            format!("a wait of zero for `{key}`; call try_acquire to ask once without waiting"),
        ));
    }
    // Only for the upper bound: a zero has been answered above, with what to call instead.
    check_span("wait", wait, Duration::ZERO, "", key)
}

/// If the timeout is too short, a slow network costs a waiter its place; if it is too long, a dead
/// waiter keeps everybody waiting.
pub(crate) fn check_waiter_timeout(timeout: Duration, key: &Key) -> Result<()> {
    // `KEPT_MS` in `fair/queue.lua`, in which the key of our waiters ends when nobody asks. With a
    // longer timeout that key would go first, and the server would take our waiters for Redisson's.
    let longest = Duration::from_secs(3600);
    check_span(
        "waiter timeout",
        timeout,
        Duration::from_millis(100),
        "",
        key,
    )?;
    if timeout > longest {
        return Err(misuse(
            key,
            format!(
                "a waiter timeout of {timeout:?} for `{key}` is over the maximum of {longest:?}; set a shorter one"
            ),
        ));
    }
    Ok(())
}

fn check_span(what: &str, span: Duration, least: Duration, note: &str, key: &Key) -> Result<()> {
    if span < least {
        return Err(misuse(
            key,
            format!(
                "{what} of {span:?} for `{key}` is below the minimum of {least:?}{note}; set a longer {what}"
            ),
        ));
    }
    if span > MAX_SPAN {
        return Err(misuse(
            key,
            format!(
                "{what} of {span:?} for `{key}` is over the maximum of 2^53 ms; set a shorter {what}"
            ),
        ));
    }
    Ok(())
}

fn misuse(key: &Key, message: String) -> Error {
    Error::new(ErrorKind::Misuse, message).with_key(key)
}

/// Whole milliseconds for the wire, rounded up so that a lease is never shorter
/// on the server than the holder was told.
pub(crate) fn wire_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
