//! Reports what a client does: to its hooks, as metrics through the `metrics` facade, and as spans
//! for `tracing`.
//!
//! The rest of the crate reports events here, whether there is a listener or not. Without the
//! feature `metrics`, without hooks and without a subscriber, nothing is stored and nothing is
//! counted.

mod hooks;
mod labels;
#[cfg(feature = "metrics")]
mod series;
mod spans;
mod user;

use std::pin::Pin;
#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Moment, Timers};
use crate::error::{ErrorKind, Result};
use crate::key::Key;
use crate::loss::LossReason;
pub(crate) use hooks::Hooks;
pub use hooks::{Acquired, Ending, Lost, Stalling, Waiting};
#[cfg(all(feature = "metrics", feature = "redis"))]
use series::ServerSeries;
#[cfg(feature = "metrics")]
use series::{GaugeGuard, Series, SeriesTable};
pub(crate) use spans::{AcquireSpan, MaybeSpan, RenewalResult, WaitReason, log};

/// The kind of a primitive that is acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObservedKind {
    /// A plain or fenced lock.
    Lock,
    Fair,
    Read,
    Write,
    Group,
    /// Permits with leases.
    Permit,
    /// Permits without leases.
    Semaphore,
}

impl ObservedKind {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Group => "group",
            Self::Permit => "permit",
            Self::Semaphore => "semaphore",
        }
    }
}

/// The hooks and metrics of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observer {
    hooks: Hooks,
    #[cfg(feature = "metrics")]
    table: Arc<SeriesTable>,
}

impl Observer {
    /// Creates an observer. `patterns` select the names that get metrics of their own.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables))]
    pub(crate) fn new(hooks: Hooks, patterns: &[String]) -> Self {
        Self {
            hooks,
            #[cfg(feature = "metrics")]
            table: Arc::new(SeriesTable::new(patterns)),
        }
    }

    /// Returns the observer of one name.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables))]
    pub(crate) fn of(&self, kind: ObservedKind, key: &Key) -> Observed {
        Observed {
            kind,
            hooks: self.hooks.clone(),
            #[cfg(feature = "metrics")]
            series: self.table.series(kind, key.given()),
        }
    }
}

/// The observer of one name.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    kind: ObservedKind,
    hooks: Hooks,
    #[cfg(feature = "metrics")]
    series: Arc<Series>,
}

impl Observed {
    /// Notes that an acquire begins.
    pub(crate) fn begin_acquire<'a>(
        &'a self,
        key: &'a Key,
        timers: &'a Timers,
    ) -> ObservedAcquire<'a> {
        ObservedAcquire {
            observed: self,
            key,
            timers,
            begun: timers.now(),
            ended: false,
            span: AcquireSpan::begin(self.kind, key),
            #[cfg(feature = "metrics")]
            _waiting: self.series.count_waiting(),
        }
    }

    /// Notes that a hold begins.
    pub(crate) fn hold_began(&self) {
        #[cfg(feature = "metrics")]
        self.series.hold_began();
    }

    /// Notes the end of a hold that lasted for `held`.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables))]
    pub(crate) fn hold_ended(&self, held: Duration) {
        #[cfg(feature = "metrics")]
        self.series.hold_ended(held);
    }

    /// Reports that a hold is lost. Called once for each hold.
    pub(crate) fn lost(&self, key: &Key, reason: &LossReason) {
        #[cfg(feature = "metrics")]
        self.series.lost(reason);
        self.hooks.lost(self.kind, key, reason);
    }

    /// Reports that the work under a hold makes no progress.
    pub(crate) fn stalling(&self, key: &Key, since: Duration, within: Duration) {
        self.hooks.stalling(self.kind, key, since, within);
    }

    /// Returns how long before its end a maximum hold time is announced; `None` for never.
    pub(crate) fn max_hold_warning(&self) -> Option<Duration> {
        self.hooks.max_hold_warning()
    }

    /// Reports that the maximum hold time of a hold is almost over.
    pub(crate) fn ending(&self, key: &Key, left: Duration, limit: Duration) {
        self.hooks.ending(self.kind, key, left, limit);
    }

    /// Notes a confirmed renewal or extension. `remaining` is how much of the previous lease was
    /// left.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables))]
    pub(crate) fn renewed(&self, remaining: Duration, lease: Duration) {
        #[cfg(feature = "metrics")]
        self.series.renewed(remaining, lease);
    }

    /// Notes a renewal without a reply, or with a bad one.
    pub(crate) fn renewal_failed(&self) {
        #[cfg(feature = "metrics")]
        self.series.renewal_failed();
    }

    /// Notes that a hold has passed to a waiter of the process.
    pub(crate) fn handed_over(&self) {
        #[cfg(feature = "metrics")]
        self.series.handed_over();
    }
}

/// An acquire in progress. If it is dropped before it has ended, it was cancelled.
pub(crate) struct ObservedAcquire<'a> {
    observed: &'a Observed,
    key: &'a Key,
    timers: &'a Timers,
    begun: Moment,
    ended: bool,
    span: AcquireSpan,
    #[cfg(feature = "metrics")]
    _waiting: GaugeGuard<'a>,
}

/// The way in which a granted acquire obtained its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The acquire has its own hold.
    Granted,
    /// The acquire has joined a hold of its process.
    Joined,
}

impl ObservedAcquire<'_> {
    /// Waits for the end of the acquire, and calls the hook if the acquire waits for too long.
    pub(crate) async fn watch<T>(&self, mut acquire: Pin<&mut impl Future<Output = T>>) -> T {
        if let Some(longest) = self.observed.hooks.longest_wait() {
            tokio::select! {
                biased;
                result = &mut acquire => return result,
                () = self.timers.sleep_until(self.begun + longest) => {
                    let Observed { hooks, kind, .. } = self.observed;
                    hooks.report_long_wait(*kind, self.key, self.waited());
                }
            }
        }
        acquire.await
    }

    fn waited(&self) -> Duration {
        self.timers.now().saturating_sub(self.begun)
    }

    /// Returns the span of the acquire.
    pub(crate) fn span(&self) -> &AcquireSpan {
        &self.span
    }

    /// Returns the observer of the name that is acquired.
    pub(crate) fn observed(&self) -> &Observed {
        self.observed
    }

    /// Notes how the acquire has ended. `entry` returns how it obtained its hold.
    pub(crate) fn ended<T>(
        mut self,
        result: &Result<Option<T>>,
        entry: impl FnOnce(&T) -> Entry,
    ) -> Ended {
        self.ended = true;
        let waited = self.waited();
        let end = match result {
            Ok(Some(got)) => {
                let Observed { hooks, kind, .. } = self.observed;
                hooks.acquired(*kind, self.key, waited);
                End::Got(entry(got))
            }
            Ok(None) => End::Busy,
            Err(error) => End::Failed(error.kind()),
        };
        let span = self.note(end, waited);
        Ended { waited, span }
    }

    /// Records the end of the acquire. Returns its span, if there is a subscriber.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables))]
    fn note(&mut self, end: End, waited: Duration) -> MaybeSpan {
        #[cfg(feature = "metrics")]
        self.observed.series.acquired(end, waited);
        self.span.ended(end)
    }
}

impl Drop for ObservedAcquire<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.note(End::Cancelled, self.waited());
        }
    }
}

/// An acquire that has ended.
pub(crate) struct Ended {
    /// The duration of the acquire.
    pub(crate) waited: Duration,
    span: MaybeSpan,
}

/// The ways in which an acquire can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Got(Entry),
    Busy,
    Cancelled,
    Failed(ErrorKind),
}

/// The observer of one server.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct ServerObserved {
    #[cfg(feature = "metrics")]
    series: ServerSeries,
}

#[cfg(feature = "redis")]
#[cfg_attr(
    not(feature = "metrics"),
    expect(unused_variables, clippy::unused_self)
)]
impl ServerObserved {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            series: ServerSeries::new(address),
        }
    }

    /// Counts a call and its operations.
    pub(crate) fn count_call(&self, operations: usize) {
        #[cfg(feature = "metrics")]
        self.series.count_call(operations);
    }

    /// Counts a connection that was lost and is opened again.
    pub(crate) fn count_reconnect(&self) {
        #[cfg(feature = "metrics")]
        self.series.count_reconnect();
    }

    /// Counts a redirect: a node has named another node of its cluster, which has the slot or is
    /// about to get it.
    pub(crate) fn count_redirect(&self) {
        #[cfg(feature = "metrics")]
        self.series.count_redirect();
    }

    /// Notes the server's time, in ms since 1970, as reported just now.
    pub(crate) fn record_server_time(&self, server_ms: i64) {
        #[cfg(feature = "metrics")]
        self.series.record_server_time(server_ms);
    }
}
