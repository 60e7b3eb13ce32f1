//! Renewal that depends on progress: a hold whose work has stalled is not renewed. The watchdog
//! refuses the renewal (`hold/state.rs`); this file has the functions that the holder's work calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::LastReport;
use crate::primitives::expirable::ExpirablePermit;
use crate::primitives::lock::LockGuard;

/// A handle with which the tasks and threads of some work report progress under a guard. The handle
/// does not keep the lock. After the lock is released or lost, a report changes nothing. After a
/// downgrade or an upgrade, the handle also reports for the new guard.
#[derive(Clone)]
pub struct Progress {
    /// One place for each lock that the guard holds.
    places: Arc<[Arc<LastReport>]>,
}

impl Progress {
    /// Reports that the work has made progress. Reads the clock and stores the time: it sends no
    /// request, does not wait and takes no lock. See [`LockGuard::progress`].
    pub fn report(&self) {
        self.places.iter().for_each(|place| place.report());
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

impl LockGuard {
    /// Reports that the work under the lock has made progress. Sends no request, does not wait and
    /// takes no lock, so work may call it for each of its steps. Has no effect if the guard was
    /// acquired without [`progress_within`](crate::Lock::progress_within).
    ///
    /// If the time limit has passed, a report before [`valid_until`](Self::valid_until) starts the
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
        self.for_each_report(|place| place.report());
    }

    /// Returns a handle that reports progress for this guard, for the tasks of its work.
    #[must_use]
    pub fn progress_handle(&self) -> Progress {
        let mut places = Vec::new();
        self.for_each_report(|place| places.push(Arc::clone(place)));
        Progress {
            places: places.into(),
        }
    }

    /// Resolves with the time since the last report when the work has not reported progress [within
    /// its time limit](crate::Lock::progress_within). At that moment the lock is still held, until
    /// [`valid_until`](Self::valid_until). Never resolves without that setting, or once the lock
    /// was released or lost for another reason.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn stalled(&self) -> impl Future<Output = Duration> + Send + use<> {
        self.stalls()
    }
}

impl ExpirablePermit {
    /// Reports that the work under the permits has made progress. See [`LockGuard::progress`].
    pub fn progress(&self) {
        if let Some(place) = self.share().reports() {
            place.report();
        }
    }

    /// Returns a handle that reports progress for these permits, for the tasks of their work.
    #[must_use]
    pub fn progress_handle(&self) -> Progress {
        Progress {
            places: self.share().reports().cloned().into_iter().collect(),
        }
    }

    /// Resolves when the work has not reported progress within its time limit. See
    /// [`LockGuard::stalled`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn stalled(&self) -> impl Future<Output = Duration> + Send + use<> {
        self.share().stalled()
    }
}
