//! Workers that start when all of them are ready, and a coordinator that continues when all are
//! done. It uses two latches, over all processes.
//!
//! `cargo run -p leasehold --example start_together` runs on a keyspace of its own. With an address
//! (`… -- redis://127.0.0.1`) it runs on a server.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use leasehold::Client;
use tokio::time::Instant;

const WORKERS: u64 = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::connect(url.as_deref().unwrap_or("memory://")).await?;
    // Each run has a name of its own. Otherwise a latch that a killed run left behind would be
    // counted down twice.
    let run = format!("import:{}", std::process::id());
    let ready = client.count_down_latch(format!("{run}:ready"));
    let done = client.count_down_latch(format!("{run}:done"));
    ready.try_set_count(WORKERS).await?;
    done.try_set_count(WORKERS).await?;

    let begun = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        let (ready, done) = (ready.clone(), done.clone());
        workers.spawn(async move {
            tokio::time::sleep(Duration::from_millis(20 * number)).await;
            println!("worker {number} is ready");
            ready.count_down().await?;
            ready.wait().await?;
            println!("worker {number} begins after {:?}", begun.elapsed());
            done.count_down().await
        });
    }
    // A worker can be killed, so the wait has a limit.
    if done.wait_for(Duration::from_secs(10)).await? {
        println!("all {WORKERS} workers are done");
    } else {
        println!("{} workers are missing", done.count().await?);
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}
