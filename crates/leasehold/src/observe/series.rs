//! The metrics: their names, units and labels. `docs/metrics.md` lists them for users, and a test
//! compares the two.
//!
//! Install the recorder before a client is first used: the client gets its metric handles only
//! once, so that acquires need not look them up.

use std::sync::{Arc, OnceLock};
use std::time::Duration;
#[cfg(feature = "redis")]
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use super::user::Panics;
use super::{End, ObservedKind, labels};
use crate::loss::LossReason;
use crate::pattern;

const KINDS: usize = 7;
/// The results of an acquire, as label values.
const RESULTS: [&str; 13] = [
    "granted",
    "entered",
    "busy",
    "cancelled",
    "unavailable",
    "outcome_unknown",
    "denied",
    "wrong_kind",
    "not_found",
    "misuse",
    "deadlock",
    "lost",
    "other",
];
/// The reasons for a loss, as label values.
const REASONS: [&str; 9] = [
    "expired",
    "taken",
    "deleted",
    "forced",
    "renewal_failed",
    "member",
    "closed",
    "max_hold",
    "stalled",
];

/// The panics of the recorder.
static PANICS: Panics = Panics::of("the recorder of `metrics`");

type Labels = Vec<(&'static str, String)>;

/// The metrics of a client's names, by kind and by the first pattern that a name matches.
#[derive(Debug)]
pub(super) struct SeriesTable {
    groups: Vec<(String, [OnceLock<Arc<Series>>; KINDS])>,
    others: [OnceLock<Arc<Series>>; KINDS],
}

impl Default for SeriesTable {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl SeriesTable {
    pub(super) fn new(patterns: &[String]) -> Self {
        let groups = patterns.iter();
        Self {
            groups: groups
                .map(|pattern| (pattern.clone(), Default::default()))
                .collect(),
            others: Default::default(),
        }
    }

    pub(super) fn series(&self, kind: ObservedKind, name: &str) -> Arc<Series> {
        let fits =
            |(pattern, _): &&(String, _)| pattern::matches(pattern.as_bytes(), name.as_bytes());
        let (group, kinds) = match self.groups.iter().find(fits) {
            Some((pattern, kinds)) => (Some(pattern.as_str()), kinds),
            None if self.groups.is_empty() => (None, &self.others),
            None => (Some("other"), &self.others),
        };
        Arc::clone(kinds[kind as usize].get_or_init(|| {
            let mut labels = vec![("kind", kind.label().to_owned())];
            labels.extend(group.map(|group| ("name", group.to_owned())));
            Arc::new(Series::new(&labels))
        }))
    }
}

/// The metrics of the names with the same labels.
pub(super) struct Series {
    ends: [Counter; RESULTS.len()],
    wait_time: Histogram,
    hold_time: Histogram,
    losses: [Counter; REASONS.len()],
    renewed: Counter,
    renewal_failed: Counter,
    margin: Histogram,
    held: Gauge,
    waiting: Gauge,
    hand_overs: Counter,
}

impl std::fmt::Debug for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Series").finish_non_exhaustive()
    }
}

impl Series {
    fn new(labels: &Labels) -> Self {
        PANICS
            .catch(|| Self::registered(labels))
            .unwrap_or_else(Self::noop)
    }

    fn registered(labels: &Labels) -> Self {
        describe();
        let with = |name: &'static str, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        Self {
            ends: RESULTS.map(|result| counter!("leasehold.acquires", &with("result", result))),
            wait_time: histogram!("leasehold.acquire.duration", labels),
            hold_time: histogram!("leasehold.hold.duration", labels),
            losses: REASONS.map(|reason| counter!("leasehold.losses", &with("reason", reason))),
            renewed: counter!("leasehold.renewals", &with("result", "confirmed")),
            renewal_failed: counter!("leasehold.renewals", &with("result", "failed")),
            margin: histogram!("leasehold.renewal.margin", labels),
            held: gauge!("leasehold.held", labels),
            waiting: gauge!("leasehold.waiting", labels),
            hand_overs: counter!("leasehold.hand_overs", labels),
        }
    }

    /// Returns metrics without effect, for a recorder that panics.
    fn noop() -> Self {
        Self {
            ends: std::array::from_fn(|_| Counter::noop()),
            wait_time: Histogram::noop(),
            hold_time: Histogram::noop(),
            losses: std::array::from_fn(|_| Counter::noop()),
            renewed: Counter::noop(),
            renewal_failed: Counter::noop(),
            margin: Histogram::noop(),
            held: Gauge::noop(),
            waiting: Gauge::noop(),
            hand_overs: Counter::noop(),
        }
    }

    pub(super) fn hold_began(&self) {
        PANICS.catch(|| self.held.increment(1.0));
    }

    pub(super) fn hold_ended(&self, held: Duration) {
        PANICS.catch(|| self.held.decrement(1.0));
        PANICS.catch(|| self.hold_time.record(held.as_secs_f64()));
    }

    pub(super) fn renewed(&self, remaining: Duration, lease: Duration) {
        PANICS.catch(|| self.renewed.increment(1));
        let part = remaining.as_secs_f64() / lease.as_secs_f64().max(f64::MIN_POSITIVE);
        PANICS.catch(|| self.margin.record(part.min(1.0)));
    }

    pub(super) fn renewal_failed(&self) {
        PANICS.catch(|| self.renewal_failed.increment(1));
    }

    pub(super) fn handed_over(&self) {
        PANICS.catch(|| self.hand_overs.increment(1));
    }

    /// Counts one more waiter until the result is dropped.
    pub(super) fn count_waiting(&self) -> GaugeGuard<'_> {
        PANICS.catch(|| self.waiting.increment(1.0));
        GaugeGuard(&self.waiting)
    }

    pub(super) fn acquired(&self, end: End, waited: Duration) {
        if matches!(end, End::Got(_)) {
            PANICS.catch(|| self.wait_time.record(waited.as_secs_f64()));
        }
        count(&self.ends, &RESULTS, labels::result(end));
    }

    pub(super) fn lost(&self, reason: &LossReason) {
        count(&self.losses, &REASONS, labels::reason(reason));
    }
}

fn count(counters: &[Counter], labels: &[&str], label: &str) {
    let place = labels.iter().position(|other| *other == label);
    if let Some(counter) = place.and_then(|place| counters.get(place)) {
        PANICS.catch(|| counter.increment(1));
    }
}

/// A gauge that is decremented when this value is dropped.
pub(super) struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        PANICS.catch(|| self.0.decrement(1.0));
    }
}

/// The metrics of one server.
#[cfg(feature = "redis")]
pub(super) struct ServerSeries {
    calls: Counter,
    operations: Histogram,
    reconnects: Counter,
    redirects: Counter,
    skew: Gauge,
}

#[cfg(feature = "redis")]
impl std::fmt::Debug for ServerSeries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerSeries").finish_non_exhaustive()
    }
}

#[cfg(feature = "redis")]
impl ServerSeries {
    pub(super) fn new(address: &str) -> Self {
        let registered = PANICS.catch(|| Self::registered(address));
        registered.unwrap_or_else(|| Self {
            calls: Counter::noop(),
            operations: Histogram::noop(),
            reconnects: Counter::noop(),
            redirects: Counter::noop(),
            skew: Gauge::noop(),
        })
    }

    fn registered(address: &str) -> Self {
        describe();
        let labels: &Labels = &vec![("server.address", address.to_owned())];
        Self {
            calls: counter!("leasehold.server.calls", labels),
            operations: histogram!("leasehold.server.call.operations", labels),
            reconnects: counter!("leasehold.server.reconnects", labels),
            redirects: counter!("leasehold.server.redirects", labels),
            skew: gauge!("leasehold.server.clock.skew", labels),
        }
    }

    pub(super) fn count_call(&self, operations: usize) {
        PANICS.catch(|| self.calls.increment(1));
        // A call has at most `MAX_OPERATIONS` operations (256).
        let operations = f64::from(u32::try_from(operations).unwrap_or(u32::MAX));
        PANICS.catch(|| self.operations.record(operations));
    }

    pub(super) fn count_reconnect(&self) {
        PANICS.catch(|| self.reconnects.increment(1));
    }

    pub(super) fn count_redirect(&self) {
        PANICS.catch(|| self.redirects.increment(1));
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no promise depends on it: it is compared with the server's for people to look at"
    )]
    pub(super) fn record_server_time(&self, server_ms: i64) {
        let ours = SystemTime::now().duration_since(UNIX_EPOCH);
        let server = Duration::from_millis(u64::try_from(server_ms).unwrap_or(0));
        let skew = server.as_secs_f64() - ours.unwrap_or_default().as_secs_f64();
        PANICS.catch(|| self.skew.set(skew));
    }
}

/// Describes the metrics and their units to the recorder.
fn describe() {
    let count = Unit::Count;
    describe_counter!("leasehold.acquires", count, "Acquires that have ended");
    describe_histogram!(
        "leasehold.acquire.duration",
        Unit::Seconds,
        "Time from an acquire to its grant"
    );
    describe_histogram!(
        "leasehold.hold.duration",
        Unit::Seconds,
        "Time from a grant until its release or loss"
    );
    describe_counter!("leasehold.losses", count, "Holds that were lost");
    describe_counter!("leasehold.renewals", count, "Renewals of holds");
    describe_histogram!(
        "leasehold.renewal.margin",
        "Part of the lease that was left when a renewal was confirmed, 0 to 1"
    );
    describe_gauge!("leasehold.held", count, "Holds now");
    describe_gauge!("leasehold.waiting", count, "Acquires under way now");
    describe_counter!(
        "leasehold.hand_overs",
        count,
        "Holds that passed to a waiter of the same process"
    );
    describe_counter!("leasehold.server.calls", count, "Calls to the server");
    describe_histogram!(
        "leasehold.server.call.operations",
        count,
        "Operations in one call"
    );
    describe_counter!(
        "leasehold.server.reconnects",
        count,
        "Connections that were lost and are opened again"
    );
    describe_counter!(
        "leasehold.server.redirects",
        count,
        "Answers that named another node of the cluster"
    );
    describe_gauge!(
        "leasehold.server.clock.skew",
        Unit::Seconds,
        "Clock of the server less the clock of this machine, when they were compared last"
    );
}
