//! Many tasks that wait for one latch or lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Lock};
use leasehold_testkit::monotonic_ns;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::delays::Delays;
use crate::task::Done;
use crate::{Result, heap, usage};

/// Measures how long it takes until each task that waits for a latch continues.
pub(super) async fn latch(client: &Client, name: &str, tasks: usize) -> Result<Done> {
    let latch = client.count_down_latch(name);
    latch.try_set_count(1).await?;
    let mut waiters = JoinSet::new();
    for _ in 0..tasks {
        let latch = latch.clone();
        waiters.spawn(async move {
            latch.wait().await?;
            Ok::<_, leasehold::Error>(monotonic_ns())
        });
    }
    while client.activity().channels == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    // This gives the tasks the same time that Redisson's threads get to send their requests and to
    // subscribe before they sleep.
    sleep(Duration::from_millis(500)).await;
    let start = monotonic_ns();
    latch.count_down().await?;
    let mut delays = Delays::default();
    while let Some(end) = waiters.join_next().await {
        delays.add(end??.saturating_sub(start));
    }
    Ok(Done {
        pairs: vec![tasks as u64],
        took_ns: monotonic_ns() - start,
        delays,
        ..Done::default()
    })
}

/// Measures the cost of many waiters for one lock, and the time from one grant to the next.
pub(super) async fn line(client: &Client, lock: &Lock, tasks: usize) -> Result<Done> {
    let holder = lock.acquire().await?;
    let asked = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    let rss = usage::rss()?;
    heap::count();
    for _ in 0..tasks {
        let (lock, asked) = (lock.clone(), Arc::clone(&asked));
        waiters.spawn(async move {
            // The acquire joins the line before this task yields for the first time.
            asked.fetch_add(1, Ordering::SeqCst);
            let guard = lock.acquire().await?;
            let granted = monotonic_ns();
            guard.release().await?;
            Ok::<_, leasehold::Error>(granted)
        });
    }
    while asked.load(Ordering::SeqCst) < tasks || client.activity().channels == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let heap = heap::counted().bytes;
    let rss = usage::rss()?.cast_signed() - rss.cast_signed();
    let start = Instant::now();
    holder.release().await?;
    let mut grants = Vec::with_capacity(tasks);
    while let Some(granted) = waiters.join_next().await {
        grants.push(granted??);
    }
    let took = start.elapsed();
    grants.sort_unstable();
    let mut delays = Delays::default();
    for two in grants.windows(2) {
        delays.add(two[1] - two[0]);
    }
    Ok(Done {
        pairs: vec![tasks as u64],
        took_ns: crate::system::pairs::nanos(took),
        delays,
        heap,
        rss,
        ..Done::default()
    })
}
