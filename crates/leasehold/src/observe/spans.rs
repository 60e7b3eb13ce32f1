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
use super::{End, Ended, Kind, Observed, Way, words};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::LossReason;

/// The panics of the subscriber.
static PANICS: Panics = Panics::of("the subscriber of `tracing`");

/// Logs an event. A subscriber that panics must not end the task that logs.
pub(crate) fn log(event: impl FnOnce()) {
    let _ = PANICS.catch(event);
}

/// A span that a subscriber has taken, or nothing.
// Shared, because cloning the span itself would call the subscriber while a grant is locked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Option<Arc<Taken>>);

/// A span whose drop is reported to the subscriber.
#[derive(Debug)]
struct Taken(Span);

impl Drop for Taken {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        PANICS.catch(|| drop(span));
    }
}

impl Told {
    fn of(span: impl FnOnce() -> Span) -> Self {
        let span = PANICS.catch(span).filter(|span| !span.is_disabled());
        Self(span.map(|span| Arc::new(Taken(span))))
    }

    /// Links this span to another span, which led to it.
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
pub(crate) enum Why {
    /// The server reports that other clients hold the lock, or that too few permits are free.
    Held,
    /// Other waiters of its process wait already, and one of them asks.
    InLine,
    /// No server answers.
    NoAnswer,
}

/// The span of an acquire, and the counts of its wait; empty without a subscriber.
#[derive(Debug)]
pub(crate) struct AcquireSpan(Option<Box<Counted>>);

#[derive(Debug)]
struct Counted {
    told: Told,
    asks: AtomicU32,
    wake_ups: AtomicU32,
    /// The first reason to wait.
    why: OnceLock<Why>,
    given: AtomicBool,
}

impl AcquireSpan {
    pub(super) fn begins(kind: Kind, key: &Key) -> Self {
        let told = Told::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.acquire",
                kind = kind.word(),
                name = key.given(),
                result = Empty,
                wait.reason = Empty,
                asks = Empty,
                wake_ups = Empty,
                granted_by = Empty,
            )
        });
        Self(told.0.is_some().then(|| {
            Box::new(Counted {
                told,
                asks: AtomicU32::new(0),
                wake_ups: AtomicU32::new(0),
                why: OnceLock::new(),
                given: AtomicBool::new(false),
            })
        }))
    }

    /// Counts a request of the acquire.
    pub(crate) fn asks(&self) {
        if let Some(counted) = &self.0 {
            counted.asks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a message that has ended its sleep.
    pub(crate) fn is_woken(&self) {
        if let Some(counted) = &self.0 {
            counted.wake_ups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes why the acquire is not granted at once.
    pub(crate) fn waits(&self, why: Why) {
        if let Some(counted) = &self.0 {
            counted.why.get_or_init(|| why);
        }
    }

    /// Notes that another task of the process has handed it what it wants.
    pub(crate) fn was_given(&self) {
        if let Some(counted) = &self.0 {
            counted.given.store(true, Ordering::Relaxed);
        }
    }

    /// Notes how the acquire has ended. Returns its span, which is still open.
    pub(super) fn ended(&mut self, end: End) -> Told {
        let Some(counted) = self.0.take() else {
            return Told::default();
        };
        let told = counted.told;
        told.record("result", words::result(end));
        told.record("asks", counted.asks.into_inner());
        told.record("wake_ups", counted.wake_ups.into_inner());
        match counted.why.get() {
            Some(Why::Held) => told.record("wait.reason", "held"),
            Some(Why::InLine) => told.record("wait.reason", "in_line"),
            Some(Why::NoAnswer) => told.record("wait.reason", "no_answer"),
            None => {}
        }
        if end == End::Got(Way::Granted) {
            let by = match counted.given.into_inner() {
                true => "process",
                false => "server",
            };
            told.record("granted_by", by);
        }
        told
    }
}

impl Ended {
    /// Returns whether there is a subscriber.
    pub(crate) fn is_heard(&self) -> bool {
        self.told.is_heard()
    }

    /// Links the acquire to a hold of the same process that led to its end: the hold of the
    /// previous holder, or the hold that it has joined.
    pub(crate) fn follows(&self, hold: &Told) {
        self.told.follows(hold);
    }

    /// Begins the span of the granted hold. `holder` is its id on the wire.
    pub(crate) fn begins(
        &self,
        observed: &Observed,
        key: &Key,
        holder: &str,
        token: Option<u64>,
    ) -> Told {
        let told = Told::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.hold",
                kind = observed.kind.word(),
                name = key.given(),
                holder,
                token,
                loss = Empty,
            )
        });
        told.follows(&self.told);
        told
    }
}

impl Observed {
    /// Begins the span of a renewal. `hold` returns the span of the hold, and is called only if
    /// there is a subscriber.
    pub(crate) fn renews(&self, key: &Key, hold: impl FnOnce() -> Told) -> Told {
        Told::of(|| {
            debug_span!(
                target: "leasehold",
                parent: hold().id(),
                "leasehold.renewal",
                kind = self.kind.word(),
                name = key.given(),
                result = Empty,
            )
        })
    }

    /// Begins the span of a release by a guard. `hold` returns the span of the hold, and is called
    /// only if there is a subscriber.
    pub(crate) fn releases(&self, key: &Key, hold: impl FnOnce() -> Told) -> Told {
        let told = Told::of(|| {
            debug_span!(
                target: "leasehold",
                "leasehold.release",
                kind = self.kind.word(),
                name = key.given(),
                result = Empty,
            )
        });
        if told.is_heard() {
            told.follows(&hold());
        }
        told
    }
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Confirmed,
    /// The server no longer has the hold.
    Lost,
    Failed,
}

impl Told {
    /// Returns whether there is a subscriber.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Records that the hold is lost.
    pub(crate) fn lost(&self, reason: &LossReason) {
        self.record("loss", words::reason(reason));
    }

    /// Records the result of the renewal.
    pub(crate) fn renewed(&self, result: Renewal) {
        let word = match result {
            Renewal::Confirmed => "confirmed",
            Renewal::Lost => "lost",
            Renewal::Failed => "failed",
        };
        self.record("result", word);
    }

    /// Records the result of the release. `handed_over` says that the next waiter of the process
    /// has the hold.
    pub(crate) fn released(&self, result: &Result<()>, handed_over: bool) {
        let word = match result.as_ref().map_err(Error::kind) {
            Ok(()) if handed_over => "handed_over",
            Ok(()) => "released",
            Err(kind) => words::failed(kind),
        };
        self.record("result", word);
    }
}
