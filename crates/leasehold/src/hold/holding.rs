//! One hold under a grant: what its guards want, and what they have received.

use std::sync::atomic::{AtomicU64, Ordering};

use super::GuardExit;
use super::claims::Claims;
use super::progress::ProgressWatch;
use crate::clock::{Clock, Moment};
use crate::config::Terms;
use crate::observe::MaybeSpan;

/// Returns a number that no other hold of this process has.
pub(crate) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The state of one hold under a grant. Each new holder of the grant begins another.
pub(super) struct Holding {
    pub(super) number: u64,
    /// The time at which the hold began. For the first hold of a grant, the time at which the
    /// granted request was sent.
    pub(super) since: Moment,
    /// The claims of its guards.
    pub(super) claims: Claims,
    /// The progress of the work. Boxed, because few holds depend on progress.
    pub(super) progress: Option<Box<ProgressWatch>>,
    /// The fencing token of the hold.
    pub(super) token: Option<u64>,
    /// The token to which this hold's lock was raised because it is one of several locks.
    pub(super) raised_to: Option<u64>,
    /// Whether the last guard has left: no guard can join any more.
    pub(super) guards_gone: bool,
    /// Whether the guard wants the hold for itself, so that no other guard can share it any more.
    pub(super) closed: bool,
    /// The span of the hold.
    pub(super) span: MaybeSpan,
}

impl Holding {
    pub(super) fn new(terms: Terms, clock: Clock, now: Moment) -> Self {
        let watch = || Box::new(ProgressWatch::new(clock, now));
        Self {
            number: next_number(),
            since: now,
            claims: Claims::new(terms, now),
            progress: terms.progress_within.map(|_| watch()),
            token: None,
            raised_to: None,
            guards_gone: false,
            closed: false,
            span: MaybeSpan::default(),
        }
    }

    /// Returns the progress of the work, which counts from `now` if no guard has asked for it yet.
    pub(super) fn watch_progress(&mut self, clock: Clock, now: Moment) -> &mut ProgressWatch {
        let new = || Box::new(ProgressWatch::new(clock, now));
        self.progress.get_or_insert_with(new)
    }

    /// Notes that the work begins or has made progress at `now`.
    pub(super) fn report_progress(&self, now: Moment) {
        if let Some(watch) = &self.progress {
            watch.report_at(now);
        }
    }

    /// Notes that the last guard has left.
    pub(super) fn last_guard_left(&mut self) -> GuardExit {
        self.guards_gone = true;
        // A forgotten guard relies on the hold until its lease ends.
        match self.claims.any_forgotten() {
            true => GuardExit::LeftToLease,
            false => GuardExit::Last,
        }
    }
}
