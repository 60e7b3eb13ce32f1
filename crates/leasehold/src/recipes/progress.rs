//! Renewal that depends on progress: a hold whose work has stalled is not renewed. The watchdog
//! refuses the renewal (`hold/state.rs`); this file has what the holder's work calls.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;

use crate::clock::Timers;
use crate::primitives::expirable::ExpirablePermit;
use crate::primitives::lock::{CurrentHolds, LockGuard};

/// A handle with which the tasks of some work report progress under a guard. It does not keep the
/// lock. After the guard has ended or lost its hold, a report changes nothing.
#[derive(Clone)]
pub struct Progress {
    holds: CurrentHolds,
}

impl Progress {
    /// Reports that the work has made progress. See [`LockGuard::progress`].
    pub fn report(&self) {
        self.holds.for_each(|hold| hold.report_progress());
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

/// Resolves when the first of the holds has stalled.
fn stalled(holds: &CurrentHolds, timers: &Timers) -> impl Future<Output = Duration> + Send + use<> {
    let mut each = Vec::new();
    holds.for_each(|hold| {
        let (hold, timers) = (hold.clone(), timers.clone());
        each.push(async move { hold.stalled(&timers).await }.boxed());
    });
    select_all(each).map(|(since, ..)| since)
}

impl LockGuard {
    /// Reports that the work under the lock has made progress. Sends no request and never waits, so
    /// work may call it for each of its steps. Without
    /// [`progress_within`](crate::Lock::progress_within), it has no effect.
    ///
    /// A report between the end of that time and [`valid_until`](Self::valid_until) starts the
    /// renewals again. After the lock is lost, a report changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::embedded();
    /// let import = client.lock("import").progress_within(Duration::from_secs(60));
    /// let guard = import.acquire().await?;
    /// let work = async {
    ///     for _row in 0..1000 {
    ///         guard.progress();
    ///     }
    /// };
    /// guard.protect(work).await?;
    /// guard.release().await
    /// # }
    /// ```
    pub fn progress(&self) {
        self.progress_handle().report();
    }

    /// Returns a handle that reports progress for this guard, for the tasks of its work.
    #[must_use]
    pub fn progress_handle(&self) -> Progress {
        Progress {
            holds: self.current_holds(),
        }
    }

    /// Resolves when the work has not reported progress in
    /// [time](crate::Lock::progress_within), with the time since the last report. The lock is still
    /// held then, until [`valid_until`](Self::valid_until). Never resolves without that setting, or
    /// once the lock was released or lost for another reason.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn stalled(&self) -> impl Future<Output = Duration> + Send + use<> {
        stalled(&self.current_holds(), self.timers())
    }
}

impl ExpirablePermit {
    /// Reports that the work under the permits has made progress. See [`LockGuard::progress`].
    pub fn progress(&self) {
        self.progress_handle().report();
    }

    /// Returns a handle that reports progress for these permits, for the tasks of their work.
    #[must_use]
    pub fn progress_handle(&self) -> Progress {
        Progress {
            holds: self.current_holds(),
        }
    }

    /// Resolves when the work has not reported progress in time. See [`LockGuard::stalled`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn stalled(&self) -> impl Future<Output = Duration> + Send + use<> {
        stalled(&self.current_holds(), self.timers())
    }
}
