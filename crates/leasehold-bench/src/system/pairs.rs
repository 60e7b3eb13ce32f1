//! Tasks that acquire and release for a while.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Result;
use crate::delays::Delays;
use crate::task::Done;

/// Something that one task acquires and releases.
pub(super) trait Pair: Send + 'static {
    /// Acquires and releases once. `turn` is the number of this pair among the task's pairs.
    fn pair(&mut self, turn: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Runs this number of tasks for this time, and lets each task complete its last pair.
pub(super) async fn run<P: Pair>(
    tasks: usize,
    run_ms: u64,
    mut make: impl FnMut(usize) -> P,
) -> Result<Done> {
    let (start, run) = (Instant::now(), Duration::from_millis(run_ms));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        running.spawn(work(make(task), start, run));
    }
    let mut done = Done::default();
    while let Some(ended) = running.join_next().await {
        let (pairs, delays) = ended??;
        done.pairs.push(pairs);
        done.delays.add_all(&delays);
    }
    done.took_ns = nanos(start.elapsed());
    Ok(done)
}

async fn work<P: Pair>(mut pair: P, start: Instant, run: Duration) -> Result<(u64, Delays)> {
    let (mut pairs, mut delays) = (0, Delays::default());
    // The clock is read only once for each pair, because the shortest pairs take less time than two
    // readings of the clock.
    let mut before = start.elapsed();
    while before < run {
        pair.pair(pairs).await?;
        let now = start.elapsed();
        delays.add(nanos(now - before));
        before = now;
        pairs += 1;
    }
    Ok((pairs, delays))
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
