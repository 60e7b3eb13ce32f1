//! Tasks that use one lock all the time.

use std::time::Duration;

use leasehold::kind::Kind;
use leasehold::testing::history::Recorder;
use leasehold::{Lock, LockGuard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Tasks that acquire a lock, hold it for a moment and release it, again and again. Each wait and
/// each hold is recorded, for the history checker.
pub(crate) struct Busy<'a, K> {
    pub(crate) lock: Lock<K>,
    /// The name of the tasks in the history. Each adds its number.
    pub(crate) who: &'a str,
    pub(crate) tasks: usize,
    /// The time in which a task begins to acquire the lock again.
    pub(crate) lasts: Duration,
    /// Returns how long a task holds the lock, by its number.
    pub(crate) holds_for: fn(usize) -> Duration,
    /// Whether holders share the lock, as readers do.
    pub(crate) is_shared: bool,
}

impl<K: Kind + Clone + Send + Sync + 'static> Busy<'_, K> {
    /// Starts the tasks. Each returns how many holds it had.
    pub(crate) fn start(&self, recorder: &Recorder) -> Vec<JoinHandle<usize>> {
        let end = Instant::now() + self.lasts;
        let task = |n| {
            let (lock, recorder) = (self.lock.clone(), recorder.clone());
            let who = format!("{} {n}", self.who);
            let (span, is_shared) = ((self.holds_for)(n), self.is_shared);
            async move {
                let mut held = 0;
                while Instant::now() < end {
                    let asked = match is_shared {
                        true => recorder.ask(lock.name(), &who).sharing(),
                        false => recorder.ask(lock.name(), &who),
                    };
                    let guard: LockGuard = lock.acquire().await.unwrap().into();
                    let inside = asked.acquired(&guard);
                    sleep(span).await;
                    inside.releasing(&guard);
                    guard.release().await.unwrap();
                    held += 1;
                }
                held
            }
        };
        (0..self.tasks).map(|n| tokio::spawn(task(n))).collect()
    }
}
