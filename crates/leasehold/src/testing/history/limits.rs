//! The history checker for semaphores, which finds out whether more permits were in use at once
//! than exist.
//!
//! ```
//! use leasehold::testing::history::limits::Recorder;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let semaphore = leasehold::Client::embedded().semaphore("supplier:calls");
//! semaphore.try_set_permits(2).await?;
//! let recorder = Recorder::new();
//! let worker = async |permits| -> leasehold::Result<()> {
//!     let asked = recorder.ask(permits);
//!     let permit = semaphore.acquire_many(permits).await?;
//!     let inside = asked.inside(None);
//!     tokio::task::yield_now().await; // the work
//!     inside.leaving(None);
//!     permit.release().await
//! };
//! let (a, b) = tokio::join!(worker(2), worker(1));
//! (a?, b?);
//! recorder.report(2).judge().expect("never more than two");
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::recorder::Time;
use super::sweep::{Occupancy, Point, sweep};
use crate::sync::Mutex;

/// A use of permits: from the return of the acquire to the call to `release`, or to the holder's
/// deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    permits: u32,
    asked: Point,
    from: Point,
    until: Point,
}

impl Use {
    /// Returns a use of permits. The times are nanoseconds on one clock: `asked` is when the
    /// acquire was called, `from` when it returned, and `until` when the use ended.
    #[must_use]
    pub fn new(permits: u32, asked: u64, from: u64, until: u64) -> Self {
        Self {
            permits,
            asked: (asked, 0),
            from: (from, 0),
            until: (until, 0),
        }
    }
}

/// The result of checking a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Number of permits that exist.
    pub capacity: u64,
    /// Number of times that permits were acquired.
    pub uses: usize,
    /// The largest number of permits that were in use at the same time.
    pub most: u64,
    /// Number of uses whose acquire had to wait, because too few permits were free between its call
    /// and its return.
    pub contended: usize,
}

impl Report {
    /// Checks the result. The error says what is wrong, or why the history proves nothing.
    ///
    /// # Errors
    ///
    /// Fails if more permits were in use at once than exist, or if no acquire ever had to wait.
    pub fn judge(&self) -> Result<(), String> {
        if self.most > self.capacity {
            return Err(format!(
                "{} permits of {} were in use at once, in {} uses",
                self.most, self.capacity, self.uses
            ));
        }
        if self.contended == 0 {
            return Err(format!(
                "vacuous: in {} uses no client had to wait",
                self.uses
            ));
        }
        Ok(())
    }
}

/// Checks uses that were recorded elsewhere, for example by other processes.
#[must_use]
pub fn check(uses: &[Use], capacity: u64) -> Report {
    // Each use counts as a separate holder. There is no re-entry here: a task that acquires twice
    // takes two permits.
    let occupancies = uses.iter().enumerate().map(|(holder, one)| Occupancy {
        holder,
        places: one.permits.into(),
        asked: one.asked,
        from: one.from,
        until: one.until,
    });
    let result = sweep(&occupancies.collect::<Vec<_>>(), capacity);
    Report {
        capacity,
        uses: uses.len(),
        most: result.most,
        contended: result.waited,
    }
}

/// A recorder of the permits of one process, on tokio's clock. Clones share the history.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<PermitRecorderShared>,
}

#[derive(Debug)]
struct PermitRecorderShared {
    time: Time,
    /// The uses, each with the number that it got when it began. A use that has not ended counts up
    /// to its deadline, or forever if it has none.
    uses: Mutex<BTreeMap<u64, Use>>,
}

impl Recorder {
    /// Returns a recorder with an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(PermitRecorderShared {
                time: Time::starts(),
                uses: Mutex::default(),
            }),
        }
    }

    /// Records that an acquire of `permits` permits is about to be called.
    #[must_use]
    pub fn ask(&self, permits: u32) -> Asked {
        Asked {
            shared: Arc::clone(&self.shared),
            permits,
            at: self.shared.time.point(),
        }
    }

    /// Returns the uses that have been recorded so far.
    #[must_use]
    pub fn uses(&self) -> Vec<Use> {
        self.shared.uses.lock().values().copied().collect()
    }

    /// Checks the uses so far against `capacity` permits.
    #[must_use]
    pub fn report(&self, capacity: u64) -> Report {
        check(&self.uses(), capacity)
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl PermitRecorderShared {
    fn deadline(&self, deadline: Option<Instant>) -> Point {
        // Without a lease, nothing returns the permits of a killed user.
        deadline.map_or((u64::MAX, 0), |deadline| (self.time.at(deadline), 0))
    }
}

/// An acquire that has been called and has not returned.
#[derive(Debug)]
pub struct Asked {
    shared: Arc<PermitRecorderShared>,
    permits: u32,
    at: Point,
}

impl Asked {
    /// Records that the acquire has returned permits. They are valid until `deadline`, or without a
    /// limit if `deadline` is `None`.
    #[must_use]
    pub fn inside(self, deadline: Option<Instant>) -> Inside {
        // Take the time before locking the table: a wait for that lock would shorten the use, and
        // could hide that too many permits were in use.
        let from = self.shared.time.point();
        let until = self.shared.deadline(deadline);
        self.shared.uses.lock().insert(
            from.1,
            Use {
                permits: self.permits,
                asked: self.at,
                from,
                until,
            },
        );
        Inside {
            shared: self.shared,
            number: from.1,
        }
    }
}

/// A use in progress. If this value is dropped and `leaving` was not called, the use counts until
/// the deadline of the permits.
#[derive(Debug)]
pub struct Inside {
    shared: Arc<PermitRecorderShared>,
    number: u64,
}

impl Inside {
    /// Records that the release is about to be called. `deadline` is the instant until which the
    /// permits are currently valid.
    pub fn leaving(self, deadline: Option<Instant>) {
        // Use the earlier of the two: after their deadline the permits may belong to another user,
        // and that is not a fault.
        let until = self.shared.time.point().min(self.shared.deadline(deadline));
        if let Some(one) = self.shared.uses.lock().get_mut(&self.number) {
            one.until = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_in_use_add_up() {
        let uses = [
            Use::new(2, 0, 10, 20),
            Use::new(1, 0, 15, 30),
            // This use begins as the first one ends. If the first one still counted, the maximum
            // would be four.
            Use::new(1, 20, 20, 25),
        ];
        let report = check(&uses, 3);
        assert_eq!((report.most, report.contended), (3, 0));
        assert!(report.judge().unwrap_err().starts_with("vacuous"));
        let report = check(&uses, 2);
        assert!(report.judge().unwrap_err().contains("3 permits of 2"));
    }

    #[test]
    fn waits_count_but_empty_uses_do_not() {
        let uses = [
            Use::new(2, 0, 10, 20),
            Use::new(2, 15, 20, 30),
            // The lease of this use had expired when the reply arrived. If the use counted, four
            // permits instead of two would be in use.
            Use::new(2, 0, 25, 25),
        ];
        let report = check(&uses, 2);
        assert_eq!((report.most, report.contended), (2, 1));
        assert!(report.judge().is_ok());
    }

    #[test]
    fn request_that_lost_its_room_is_contended() {
        let uses = [
            Use::new(2, 0, 10, 20),
            Use::new(1, 5, 20, 30),
            // The permits are free at 8, and another user takes them at 10. A check that looked
            // only at the moment of the request would miss that this use waited.
            Use::new(1, 8, 20, 30),
        ];
        let report = check(&uses, 2);
        assert_eq!((report.most, report.contended), (2, 2));
        assert_eq!(check(&uses, 3).contended, 0);
    }
}
