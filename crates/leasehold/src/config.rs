//! Settings: defaults, ranges, checks.

use std::time::Duration;

use crate::acknowledgement::Acknowledgement;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// The default lease: how long a hold lasts on the server without renewal (Redisson's
/// `lockWatchdogTimeout`).
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The longest lease of a `RedLock`, unless the clients have agreed on another one.
pub(crate) const DEFAULT_LONGEST_LEASE: Duration = DEFAULT_LEASE;
/// The maximum for the longest lease: a year. A restarted server has no vote until the longest
/// lease has passed.
const MAX_LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause between two requests from a waiter that has not been notified.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause between two requests from a subscribed waiter that has not been notified. With
/// thousands of names and a waiter for each, shorter pauses would keep client and server busy while
/// nothing happens.
const LONGEST_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The time for which a wait continues while no server answers: one default lease, after which
/// every earlier hold has expired. The setting has no range: any duration is allowed
/// (`Lock::outage_timeout` in `setters.rs`).
pub(crate) const DEFAULT_OUTAGE_TIMEOUT: Duration = DEFAULT_LEASE;

/// The time for which a process may hand a grant over from waiter to waiter, counted from the
/// grant. A longer time would hardly make hand-overs faster, and other processes wait until the
/// time has passed.
pub(crate) const DEFAULT_SLICE: Duration = Duration::from_millis(10);

/// The shortest allowed limit for progress reports. The watchdog checks after half of the limit.
const MIN_PROGRESS_WITHIN: Duration = Duration::from_millis(10);
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(10);
const MIN_RENEWED_LEASE: Duration = Duration::from_millis(100);
/// The longest duration: numbers beyond 2^53 are not exact in Lua.
pub(crate) const MAX_SPAN: Duration = Duration::from_millis(1 << 53);

/// The way in which a waiter learns that it should request the lock again: the setting of
/// [`Lock::wait_strategy`](crate::Lock::wait_strategy).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// A subscription (the default): the waiter sleeps until the server publishes a release. In
    /// case the message is lost, the waiter also requests the lock when the holder's lease ends,
    /// and after each [`poll_interval`](crate::Lock::poll_interval).
    PubSub,
    /// No subscription: the waiter requests the lock again after a pause, and the pauses grow, as
    /// in Redisson's spin lock. Use this for very short holds, or if the server does not allow the
    /// user to subscribe. In one process, only the first waiter for a name sends requests to the
    /// server, so its pauses delay all others. So don't use different strategies for one name.
    Backoff(Backoff),
}

/// The pauses between the requests that a waiter without a subscription sends. The first pause is
/// [`first`](Self::first). Each further pause is a multiple of the previous one with a small random
/// change, and never longer than [`cap`](Self::cap).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub(crate) first: Duration,
    pub(crate) factor: u32,
    pub(crate) cap: Duration,
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(3600);

    /// Returns Redisson's exponential back-off: 1 ms, doubled each time, at most 128 ms.
    #[must_use]
    pub fn exponential() -> Self {
        Self {
            first: Duration::from_millis(1),
            factor: 2,
            cap: Duration::from_millis(128),
        }
    }

    /// Returns a back-off with the same pause each time. A pause of less than 1 ms counts as 1 ms,
    /// and more than an hour counts as an hour. This is Redisson's constant back-off, whose default
    /// is 64 ms.
    #[must_use]
    pub fn constant(pause: Duration) -> Self {
        // A pause out of range is not an error, because making a handle can't fail. With a pause of
        // zero, a waiter would poll at full speed.
        let pause = pause.clamp(Duration::from_millis(1), Self::LONGEST);
        Self {
            first: pause,
            factor: 1,
            cap: pause,
        }
    }

    /// Sets the first pause. Less than 1 ms counts as 1 ms, and more than an hour counts as an
    /// hour. If the [`cap`](Self::cap) is shorter than this pause, the cap is raised to this pause.
    #[must_use = "the setting is only in the returned value"]
    pub fn first(mut self, pause: Duration) -> Self {
        self.first = pause.clamp(Duration::from_millis(1), Self::LONGEST);
        // If the caller sets this after `cap`, the cap must rise, too: otherwise the second pause
        // would be shorter than the first.
        self.cap = self.cap.max(self.first);
        self
    }

    /// Sets the longest pause. A value shorter than the [first](Self::first) pause is raised to
    /// that pause, and more than an hour counts as an hour.
    #[must_use = "the setting is only in the returned value"]
    pub fn cap(mut self, pause: Duration) -> Self {
        self.cap = pause.min(Self::LONGEST).max(self.first);
        self
    }
}

/// The other clients that share a client's names: see
/// [`ClientBuilder::peers`](crate::ClientBuilder::peers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peers {
    /// Clients of this library, and Redisson of any version.
    #[default]
    All,
    /// Only clients of this library.
    RustOnly,
    /// Clients of this library, and Redisson before 3.22.0. In a cluster, these versions of
    /// Redisson receive only messages that are published to all nodes.
    Redisson3,
    /// Clients of this library, and Redisson from 3.22.0 on. In a cluster of Redis 7 or later,
    /// these versions of Redisson receive only messages that are published to a shard.
    Redisson4,
}

/// The lease, renewal and limits of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// `None` for a fixed lease, which is never renewed.
    pub(crate) renew_every: Option<Duration>,
    /// The period of reminders, which set the remaining time of a fixed lease on the server again,
    /// if other clients could shorten it.
    pub(crate) remind_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// The time for which the lock stays locked after its grant, whatever its holder does.
    pub(crate) min_hold: Option<Duration>,
    /// The time in which the work must report progress. If this time passes without a report, the
    /// hold is no longer renewed.
    pub(crate) progress_within: Option<Duration>,
    /// The longest lease that the hold may have; `None` if no client relies on such a limit.
    pub(crate) longest_lease: Option<Duration>,
    /// The servers that must confirm the hold.
    pub(crate) acknowledged: Acknowledgement,
}

impl Terms {
    /// Returns the lease with which to acquire the hold. The server keeps a minimum hold as the
    /// expiry of the key, so that it outlasts the process.
    pub(crate) fn first_lease(&self) -> Duration {
        self.lease.max(self.min_hold.unwrap_or_default())
    }

    /// Returns whether the watchdog only sends reminders for a fixed lease.
    pub(crate) fn reasserts_fixed_lease(&self) -> bool {
        self.renew_every.is_none() && self.remind_every.is_some()
    }

    /// Returns terms that satisfy both `self` and `other`. A maximum hold time belongs to one
    /// guard, so the result has none.
    pub(crate) fn and(self, other: Self) -> Self {
        // `min` of the two options would be wrong: `None` means "never" here, but sorts before
        // every duration.
        let sooner = |one: Option<Duration>, two| one.into_iter().chain(two).min();
        Self {
            lease: self.lease.max(other.lease),
            renew_every: sooner(self.renew_every, other.renew_every),
            remind_every: sooner(self.remind_every, other.remind_every),
            max_hold: None,
            min_hold: self.min_hold.max(other.min_hold),
            progress_within: sooner(self.progress_within, other.progress_within),
            // The greater bound is right: it was stored on every member before the first hold that
            // relies on it, and every client that relies on a bound uses the greatest one stored
            // (`majority/longest.rs`).
            longest_lease: self.longest_lease.max(other.longest_lease),
            acknowledged: self.acknowledged.and(other.acknowledged),
        }
    }

    /// Returns how often the watchdog must act on the hold.
    pub(crate) fn watch_every(&self) -> Option<Duration> {
        // Use the shorter of the two periods, because a renewal also serves as a reminder. An owner
        // may have entered through two handles: one that renews, and one that only reminds, but
        // more often.
        self.renew_every.into_iter().chain(self.remind_every).min()
    }
}

/// The settings of a handle. Values are checked when they are used, so that making a handle can't
/// fail.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The client's lease, for holds without their own setting.
    pub(crate) default_lease: Duration,
    /// The lease of renewed holds.
    pub(crate) lease: Option<Duration>,
    /// The lease of holds that are not renewed. If it is set, `lease` and `renew_every` must not be
    /// set.
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) longest_lease: Option<Duration>,
    pub(crate) strategy: WaitStrategy,
    /// `None` for the default, which grows while a waiter is subscribed and not notified.
    pub(crate) poll_interval: Option<Duration>,
    /// The longest time between two requests from a waiter, with any strategy. With longer pauses,
    /// its entry on the server would expire while it waits.
    pub(crate) ask_every: Option<Duration>,
    pub(crate) outage_timeout: Duration,
    /// The time for which the process may hand a lock over from waiter to waiter; zero for never.
    pub(crate) local_hand_over: Duration,
    /// The servers that must confirm a hold.
    pub(crate) acknowledged: Acknowledgement,
    /// Whether an owner can't re-enter its own hold.
    pub(crate) non_reentrant: bool,
}

impl Settings {
    pub(crate) fn new(default_lease: Duration) -> Self {
        Self {
            default_lease,
            lease: None,
            fixed_lease: None,
            renew_every: None,
            max_hold: None,
            min_hold: None,
            progress_within: None,
            longest_lease: None,
            strategy: WaitStrategy::PubSub,
            poll_interval: None,
            ask_every: None,
            outage_timeout: DEFAULT_OUTAGE_TIMEOUT,
            local_hand_over: DEFAULT_SLICE,
            acknowledged: Acknowledgement::master(),
            non_reentrant: false,
        }
    }

    /// Checks the settings that are used only while waiting.
    pub(crate) fn check_waiting(&self, key: &Key) -> Result<()> {
        check_span(
            "poll interval",
            self.poll_interval(),
            Duration::from_millis(1),
            "",
            key,
        )
    }

    /// Returns the pause between two requests from a waiter that has not been notified.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.poll_interval.unwrap_or(DEFAULT_POLL_INTERVAL)
    }

    /// Returns the pause of a subscribed waiter after `quiet` pauses in a row that no message has
    /// ended.
    pub(crate) fn poll_interval_after(&self, quiet: u32) -> Duration {
        // An interval that the user has set is a promise: a lost message never delays the waiter by
        // more than that.
        self.poll_interval.unwrap_or_else(|| {
            let grown = DEFAULT_POLL_INTERVAL.saturating_mul(1 << quiet.min(16));
            grown.min(LONGEST_POLL_INTERVAL)
        })
    }

    /// Returns how long a hold lasts without renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.fixed_lease
            .or(self.lease)
            .unwrap_or(self.default_lease)
    }

    /// Copies the terms of an existing hold into these settings.
    pub(crate) fn take(&mut self, terms: Terms) {
        let lease = Some(terms.lease);
        // One of `lease` and `fixed_lease` is cleared, because `check_fixed` refuses a handle that
        // has both.
        (self.lease, self.fixed_lease) = match terms.renew_every {
            Some(_) => (lease, None),
            None => (None, lease),
        };
        self.renew_every = terms.renew_every;
        self.max_hold = terms.max_hold;
        // The minimum hold belongs to the existing hold, and ends with it.
        self.min_hold = None;
        self.progress_within = terms.progress_within;
        self.longest_lease = terms.longest_lease;
        self.acknowledged = terms.acknowledged;
    }

    /// Checks every value and returns the terms of a new hold.
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
        if let Some(span) = self.min_hold {
            check_span("minimum hold", span, MIN_LEASE, "", key)?;
            self.check_min_hold(span, key)?;
        }
        if let Some(span) = self.progress_within {
            check_span("time for progress", span, MIN_PROGRESS_WITHIN, "", key)?;
        }
        // Check the poll interval even for `try_acquire`, which does not wait. So the first call
        // reports a wrong setting, and not only the first contended call.
        check_span("poll interval", self.poll_interval(), least, "", key)?;
        Ok(Terms {
            lease,
            renew_every,
            // A handle has no such setting: the read-write lock adds the reminders if the watchdog
            // of a Java reader can shorten a hold.
            remind_every: None,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            progress_within: self.progress_within,
            longest_lease: self.longest_lease,
            acknowledged: self.acknowledged,
        })
    }

    /// Refuses a setting that requires renewal on a handle with a fixed lease.
    fn check_fixed(&self, key: &Key) -> Result<()> {
        let (what, span) = match (self.lease, self.renew_every, self.progress_within) {
            (Some(lease), ..) => ("a lease that is renewed", lease),
            (None, Some(period), _) => ("a renewal period", period),
            (None, None, Some(within)) => ("renewals that need progress within a time", within),
            (None, None, None) => return Ok(()),
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

    /// Refuses a minimum hold that is longer than the longest time for which the hold may last.
    fn check_min_hold(&self, least: Duration, key: &Key) -> Result<()> {
        let limits = [
            ("fixed lease", self.fixed_lease),
            ("maximum hold", self.max_hold),
        ];
        for (what, limit) in limits {
            if let Some(limit) = limit.filter(|limit| *limit < least) {
                return Err(misuse(
                    key,
                    format!(
                        "the minimum hold of {least:?} for `{key}` is longer than the {what} of \
                         {limit:?}; set a shorter minimum"
                    ),
                ));
            }
        }
        Ok(())
    }

    fn renewal_period(&self, lease: Duration, key: &Key) -> Result<Duration> {
        let Some(period) = self.renew_every else {
            // The same period as in Redisson's watchdog. If a renewal fails, two thirds of the
            // lease remain for further attempts.
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

/// Checks a lease that is requested after the acquire.
pub(crate) fn check_lease(lease: Duration, key: &Key) -> Result<()> {
    check_span("lease", lease, MIN_LEASE, "", key)
}

/// Checks a lease against the longest lease that other clients rely on.
pub(crate) fn check_longest(lease: Duration, longest: Option<Duration>, key: &Key) -> Result<()> {
    // A lease equal to the bound is allowed: by default the bound is as long as the default lease.
    match longest.filter(|longest| lease > *longest) {
        None => Ok(()),
        Some(longest) => Err(misuse(
            key,
            format!(
                "a lease of {lease:?} for `{key}` is over the longest lease of its `RedLock`, {longest:?}; \
                 set a shorter lease, or a longer `longest_lease` on the lock"
            ),
        )),
    }
}

/// Returns the error for a lease that could outlast a failover guard.
pub(crate) fn outlasts_guard(lease: &str, span: Duration) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!(
            "{lease} is longer than the client's failover guard of {span:?}, so another client could get \
             the lock before the lease ends; set a shorter lease, or a longer failover guard on all clients"
        ),
    )
}

/// Checks a failover guard against the other settings of the client.
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
            "Redisson has no failover guard, and would acquire a lock that the guard holds back; set peers(Peers::RustOnly), \
             and don't share the names with Redisson",
        ));
    }
    Ok(())
}

/// Checks the longest lease of a `RedLock`.
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

/// Checks the time to live of a key.
pub(crate) fn check_life(life: Duration, key: &Key) -> Result<()> {
    check_span("life", life, Duration::from_millis(1), "", key)
}

/// Checks a number of permits or steps. Redisson counts to 2^31 - 1.
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
    // This only checks the upper bound: the test above has already refused zero, and named the
    // method to use instead.
    check_span("wait", wait, Duration::ZERO, "", key)
}

/// Checks the waiter timeout. If it is too short, a slow network costs a waiter its place. If it is
/// too long, a dead waiter delays all other waiters.
pub(crate) fn check_waiter_timeout(timeout: Duration, key: &Key) -> Result<()> {
    // Equals `IDLE_EXPIRY_MS` in `fair.lua`, after which the key of our waiters expires if no
    // waiter sends a request. With a longer timeout that key would expire before a waiter's time,
    // and the server would take our waiters for Redisson's.
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

/// Returns whole milliseconds for the wire, rounded up: the lease on the server is never shorter
/// than the lease that the holder assumes.
pub(crate) fn wire_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
