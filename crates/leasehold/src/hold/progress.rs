//! The progress of the work under a hold: a hold whose work has stalled is not renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// The time of the last report of progress. The guards and handles that report share it with the
/// hold, so a report does not need a lock, which a signal handler or a forked child could find
/// locked.
#[derive(Debug)]
pub(crate) struct LastReport {
    clock: Clock,
    nanos: AtomicU64,
}

impl LastReport {
    fn new(clock: Clock, now: Moment) -> Arc<Self> {
        Arc::new(Self {
            clock,
            nanos: AtomicU64::new(now.as_nanos()),
        })
    }

    /// Notes that the work makes progress now.
    pub(crate) fn report(&self) {
        self.report_at(self.clock.now());
    }

    fn report_at(&self, now: Moment) {
        // The later report counts, whichever thread stores first.
        self.nanos.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the time of the last report.
    pub(super) fn at(&self) -> Moment {
        Moment::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

/// The part of a hold's state that concerns progress.
pub(super) struct ProgressWatch {
    /// The reports of its guards. A guard that was downgraded or upgraded brings its earlier
    /// reports with it.
    reports: Vec<Arc<LastReport>>,
    /// The time of the last report when the latest warning was given.
    warned_of: Option<Moment>,
    /// The time of the last check.
    checked_at: Moment,
    /// The time at which the next renewal is due.
    pub(super) renewal_due: Moment,
    /// The time of the last report when a renewal was refused. Cleared when a renewal is allowed or
    /// confirmed.
    pub(super) vetoed_of: Option<Moment>,
}

/// A hold whose work has made no progress for half of the permitted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stalling {
    pub(super) since: Duration,
    pub(super) within: Duration,
}

impl ProgressWatch {
    /// Returns the watch of work that begins at `now`.
    pub(super) fn new(clock: Clock, now: Moment) -> Self {
        Self {
            reports: vec![LastReport::new(clock, now)],
            warned_of: None,
            checked_at: now,
            renewal_due: Moment::default(),
            vetoed_of: None,
        }
    }

    /// Returns where new guards of the hold report.
    pub(super) fn own(&self) -> &Arc<LastReport> {
        &self.reports[0]
    }

    /// Lets the reports of earlier work count for this hold, too.
    pub(super) fn add(&mut self, earlier: Arc<LastReport>) {
        if !self.reports.iter().any(|one| Arc::ptr_eq(one, &earlier)) {
            self.reports.push(earlier);
        }
    }

    pub(super) fn report_at(&self, now: Moment) {
        self.own().report_at(now);
    }

    /// Returns the time of the last report.
    pub(super) fn last(&self) -> Moment {
        let each = self.reports.iter().map(|one| one.at());
        each.max().unwrap_or_default()
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self, within: Duration) -> Moment {
        let last = self.last();
        // A report does not wake the watchdog. After a warning, the checks continue, so that the
        // next stall is noticed in time.
        let from = match self.warned_of == Some(last) {
            true => self.checked_at,
            false => last,
        };
        from + within / 2
    }

    /// Returns the stall if the work has made no progress for half of the permitted time. Returns
    /// each stall only once.
    pub(super) fn check(&mut self, within: Duration, now: Moment) -> Option<Stalling> {
        if now < self.next_check(within) {
            return None;
        }
        let last = self.last();
        self.checked_at = now;
        let is_new = self.warned_of.replace(last) != Some(last);
        is_new.then(|| Stalling {
            since: now.saturating_sub(last),
            within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_warning_is_given_once_for_each_stall() {
        let start = Moment::from_millis(1000);
        let within = SECOND * 10;
        let mut watch = ProgressWatch::new(Clock::Boot, start);
        assert_eq!(watch.next_check(within), start + SECOND * 5);
        assert_eq!(watch.check(within, start + SECOND * 4), None);
        let warning = watch.check(within, start + SECOND * 5);
        let since = SECOND * 5;
        assert_eq!(warning, Some(Stalling { since, within }));
        assert_eq!(watch.next_check(within), start + SECOND * 10);
        assert_eq!(watch.check(within, start + SECOND * 10), None);
        watch.report_at(start + SECOND * 11);
        // This report of another thread is earlier, but stored later.
        watch.report_at(start + SECOND * 9);
        assert_eq!(watch.next_check(within), start + SECOND * 16);
        assert!(watch.check(within, start + SECOND * 16).is_some());
    }

    #[test]
    fn the_report_of_any_guard_counts() {
        let start = Moment::from_millis(1000);
        let mut watch = ProgressWatch::new(Clock::Boot, start);
        let earlier = LastReport::new(Clock::Boot, start);
        watch.add(Arc::clone(&earlier));
        watch.add(Arc::clone(&earlier));
        earlier.report_at(start + SECOND);
        assert_eq!(watch.last(), start + SECOND);
        watch.report_at(start + SECOND * 2);
        assert_eq!(watch.last(), start + SECOND * 2);
        assert_eq!(watch.reports.len(), 2);
    }
}
