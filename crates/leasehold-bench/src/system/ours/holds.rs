//! Many locks that one client holds.

use std::time::Duration;

use leasehold::{Client, LockGuard};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::task::Done;
use crate::{Result, heap, usage};

/// Number of tasks that acquire and release at the same time.
const HANDS: usize = 64;
const LEASE: Duration = Duration::from_secs(30);
/// The pause between two readings of all guards.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Holds(Mutex<Vec<LockGuard>>);

impl Holds {
    pub(super) async fn acquire(&self, client: &Client, name: &str, locks: usize) -> Result<Done> {
        // A client's first call allocates memory that must not be part of the figures.
        client.lock(name).acquire().await?.release().await?;
        let rss = usage::rss()?;
        heap::count();
        let mut hands = JoinSet::new();
        for hand in 0..HANDS {
            let (client, name) = (client.clone(), name.to_owned());
            hands.spawn(async move {
                let mut guards = Vec::with_capacity(locks.div_ceil(HANDS));
                for n in (hand..locks).step_by(HANDS) {
                    guards.push(client.lock(format!("{name}:{n}")).acquire().await?);
                }
                Ok::<_, leasehold::Error>(guards)
            });
        }
        let mut all = Vec::with_capacity(locks);
        while let Some(guards) = hands.join_next().await {
            all.extend(guards??);
        }
        *self.0.lock().await = all;
        Ok(Done {
            heap: heap::counted().bytes,
            rss: usage::rss()?.cast_signed() - rss.cast_signed(),
            ..Done::default()
        })
    }

    /// Returns the least validity that any guard had, and the CPU time that the readings took.
    pub(super) async fn watch(&self, run: Duration) -> Result<Done> {
        let (start, guards) = (Instant::now(), self.0.lock().await);
        let (mut least, mut looking) = (f64::MAX, Duration::ZERO);
        loop {
            let began = usage::cpu_of_this_thread();
            let now = Instant::now();
            let left = guards.iter().map(LockGuard::valid_until).min();
            let left = left.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
            least = least.min(100.0 * left.as_secs_f64() / LEASE.as_secs_f64());
            looking += usage::cpu_of_this_thread() - began;
            let rest = run.saturating_sub(start.elapsed());
            if rest.is_zero() {
                break;
            }
            sleep(rest.min(LOOK_EVERY)).await;
        }
        if guards.iter().any(|guard| !guard.is_held()) {
            return Err("a lock was lost".into());
        }
        Ok(Done {
            least_validity: Some(least),
            looking_ns: crate::system::pairs::nanos(looking),
            ..Done::default()
        })
    }

    pub(super) async fn release(&self) -> Result<Done> {
        let mut guards = std::mem::take(&mut *self.0.lock().await);
        let part = guards.len().div_ceil(HANDS).max(1);
        let mut hands = JoinSet::new();
        while !guards.is_empty() {
            let part = guards.split_off(guards.len().saturating_sub(part));
            hands.spawn(async move {
                for guard in part {
                    guard.release().await?;
                }
                Ok::<_, leasehold::Error>(())
            });
        }
        while let Some(part) = hands.join_next().await {
            part??;
        }
        Ok(Done::default())
    }
}
