//! Acquires another lock again and again during the load, to see the effect of a burst of renewals.

use std::time::{Duration, Instant};

use leasehold::Lock;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Result;

/// A task that acquires and releases ten times a second until it is stopped.
pub(crate) struct Probe {
    stop: oneshot::Sender<()>,
    task: JoinHandle<leasehold::Result<Vec<Duration>>>,
}

impl Probe {
    pub(crate) fn start(lock: Lock) -> Self {
        const PAUSE: Duration = Duration::from_millis(100);
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut times = Vec::new();
            while stopped.try_recv().is_err() {
                let start = Instant::now();
                let guard = lock.acquire().await?;
                times.push(start.elapsed());
                guard.release().await?;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(times)
        });
        Self { stop, task }
    }

    /// Stops the probe, and returns how long each acquire took.
    pub(crate) async fn stop(self) -> Result<Vec<Duration>> {
        // If the task has ended with an error, the next line returns it.
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}
