//! The spans: their names, attributes and links. `docs/tracing.md` lists them for users, and a test
//! compares the two.
//!
//! Unless a subscriber records it, a span costs one check of the maximum level: nothing is
//! formatted and nothing is allocated.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::field::{Empty, Value};
use tracing::{Span, debug_span, span};

use super::user::Panics;
use super::{End, Ended, Entry, Observed, ObservedKind, labels};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::LossReason;

/// The panics of the subscriber.
static PANICS: Panics = Panics::of("the subscriber of `tracing`");

/// Logs an event. A subscriber that panics must not end the task that logs.
pub(crate) fn log(event: impl FnOnce()) {
    let _ = PANICS.catch(event);
}

/// A span that a subscriber records, or nothing.
// Shared, because cloning the span itself would call the subscriber while a grant is locked.
#[derive(Clone, Debug, Default)]
pub(crate) struct MaybeSpan(Option<Arc<RecordedSpan>>);

/// A span whose drop catches a panic of the subscriber.
#[derive(Debug)]
struct RecordedSpan(Span);

impl Drop for RecordedSpan {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        PANICS.catch(|| drop(span));
    }
}

impl MaybeSpan {
    fn of(span: impl FnOnce() -> Span) -> Self {
        let span = PANICS.catch(span).filter(|span| !span.is_disabled());
        Self(span.map(|span| Arc::new(RecordedSpan(span))))
    }

    /// Links this span to the span that led to it.
    fn follows(&self, other: &Self) {
        if let (Some(span), Some(other)) = (&self.0, &other.0) {
            PANICS.catch(|| {
                span.0.follows_from(other.0.id());
            });
        }
    }

    fn record(&self, attribute: &str, value: impl Value) {
        if let Some(span) = &self.0 {
            PANICS.catch(|| {
                span.0.record(attribute, value);
            });
        }
    }

    fn id(&self) -> Option<span::Id> {
        self.0.as_ref()?.0.id()
    }

    /// Replaces this span, and returns the old one.
    pub(crate) fn replace(&mut self, other: Self) -> Self {
        std::mem::replace(self, other)
    }
}

/// The reason why an acquire is not granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The server reports that other clients hold the lock, or that too few permits are free.
    Held,
    /// Other waiters of the process were there first, and one of them asks the server.
    InLine,
    /// No server answers.
    NoAnswer,
}

/// The span of an acquire, and the counts of its wait; empty without a subscriber.
#[derive(Debug)]
pub(crate) struct AcquireSpan(Option<Box<WaitCounts>>);

#[derive(Debug)]
struct WaitCounts {
    span: MaybeSpan,
    asks: AtomicU32,
    wake_ups: AtomicU32,
    /// The first reason to wait.
    wait_reason: OnceLock<WaitReason>,
    handed_over: AtomicBool,
}

impl AcquireSpan {
    pub(super) fn begin(kind: ObservedKind, key: &Key) -> Self {
        let span = MaybeSpan::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.acquire",
                kind = kind.label(),
                name = key.given(),
                result = Empty,
                wait.reason = Empty,
                asks = Empty,
                wake_ups = Empty,
                granted_by = Empty,
            )
        });
        Self(span.0.is_some().then(|| {
            Box::new(WaitCounts {
                span,
                asks: AtomicU32::new(0),
                wake_ups: AtomicU32::new(0),
                wait_reason: OnceLock::new(),
                handed_over: AtomicBool::new(false),
            })
        }))
    }

    /// Counts a request of the acquire.
    pub(crate) fn count_request(&self) {
        if let Some(counted) = &self.0 {
            counted.asks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a message that has ended a sleep of the acquire.
    pub(crate) fn count_wake_up(&self) {
        if let Some(counted) = &self.0 {
            counted.wake_ups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes why the acquire is not granted at once.
    pub(crate) fn note_wait(&self, wait_reason: WaitReason) {
        if let Some(counted) = &self.0 {
            counted.wait_reason.get_or_init(|| wait_reason);
        }
    }

    /// Notes that another task of the process has handed its hold or permits to this acquire.
    pub(crate) fn note_handed_over(&self) {
        if let Some(counted) = &self.0 {
            counted.handed_over.store(true, Ordering::Relaxed);
        }
    }

    /// Notes how the acquire has ended. Returns its span, which is still open.
    pub(super) fn ended(&mut self, end: End) -> MaybeSpan {
        let Some(counted) = self.0.take() else {
            return MaybeSpan::default();
        };
        let span = counted.span;
        span.record("result", labels::result(end));
        span.record("asks", counted.asks.into_inner());
        span.record("wake_ups", counted.wake_ups.into_inner());
        match counted.wait_reason.get() {
            Some(WaitReason::Held) => span.record("wait.reason", "held"),
            Some(WaitReason::InLine) => span.record("wait.reason", "in_line"),
            Some(WaitReason::NoAnswer) => span.record("wait.reason", "no_answer"),
            None => {}
        }
        if end == End::Got(Entry::Granted) {
            let by = match counted.handed_over.into_inner() {
                true => "process",
                false => "server",
            };
            span.record("granted_by", by);
        }
        span
    }
}

impl Ended {
    /// Returns whether there is a subscriber.
    pub(crate) fn is_enabled(&self) -> bool {
        self.span.is_enabled()
    }

    /// Links the acquire to the hold of the same process that completed the acquire: the hold of
    /// the previous holder, or the hold that it has joined.
    pub(crate) fn follows(&self, hold: &MaybeSpan) {
        self.span.follows(hold);
    }

    /// Begins the span of the granted hold. `holder` is its id on the wire.
    pub(crate) fn hold_span(
        &self,
        observed: &Observed,
        key: &Key,
        holder: &str,
        token: Option<u64>,
    ) -> MaybeSpan {
        let span = MaybeSpan::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.hold",
                kind = observed.kind.label(),
                name = key.given(),
                holder,
                token,
                loss = Empty,
            )
        });
        span.follows(&self.span);
        span
    }
}

impl Observed {
    /// Begins the span of a renewal. `hold` returns the span of the hold, and is called only if
    /// there is a subscriber.
    pub(crate) fn renewal_span(&self, key: &Key, hold: impl FnOnce() -> MaybeSpan) -> MaybeSpan {
        MaybeSpan::of(|| {
            debug_span!(
                target: "leasehold",
                parent: hold().id(),
                "leasehold.renewal",
                kind = self.kind.label(),
                name = key.given(),
                result = Empty,
            )
        })
    }

    /// Begins the span of a release by a guard. `hold` returns the span of the hold, and is called
    /// only if there is a subscriber.
    pub(crate) fn release_span(&self, key: &Key, hold: impl FnOnce() -> MaybeSpan) -> MaybeSpan {
        let span = MaybeSpan::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.release",
                kind = self.kind.label(),
                name = key.given(),
                result = Empty,
            )
        });
        if span.is_enabled() {
            span.follows(&hold());
        }
        span
    }
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalResult {
    Confirmed,
    /// The server no longer has the hold.
    Lost,
    Failed,
}

impl MaybeSpan {
    /// Returns whether there is a subscriber.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Records that the hold is lost.
    pub(crate) fn lost(&self, reason: &LossReason) {
        self.record("loss", labels::reason(reason));
    }

    /// Records the result of the renewal.
    pub(crate) fn renewed(&self, result: RenewalResult) {
        let label = match result {
            RenewalResult::Confirmed => "confirmed",
            RenewalResult::Lost => "lost",
            RenewalResult::Failed => "failed",
        };
        self.record("result", label);
    }

    /// Records the result of the release. `handed_over` says whether the next waiter of the process
    /// now has the hold.
    pub(crate) fn released(&self, result: &Result<()>, handed_over: bool) {
        let label = match result.as_ref().map_err(Error::kind) {
            Ok(()) if handed_over => "handed_over",
            Ok(()) => "released",
            Err(kind) => labels::failed(kind),
        };
        self.record("result", label);
    }
}
