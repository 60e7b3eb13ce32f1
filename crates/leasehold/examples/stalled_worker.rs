//! A worker that hangs loses its lock, although its process lives, and another worker continues.
//!
//! ```console
//! $ cargo run -p leasehold --example stalled_worker                          # in process
//! $ cargo run -p leasehold --example stalled_worker -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::time::Duration;

use leasehold::{Client, Progress, Result};

/// The longest time between two reports of a worker that does not hang.
const STALLED_AFTER: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let builder = Client::builder().lease(Duration::from_secs(1));
    let client = builder.connect(&url).await?;
    // The first worker hangs at the second row.
    for hangs_at in [Some(2), None] {
        let lock = client.lock("import").progress_within(STALLED_AFTER);
        let guard = lock.acquire().await?;
        let rows = import(guard.progress_handle(), hangs_at);
        match guard.protect(rows).await {
            Ok(()) => {
                guard.release().await?;
                println!("all rows are imported");
            }
            // The lock is free already, so another worker can continue.
            Err(error) => println!("the worker was ended: {error}"),
        }
    }
    Ok(())
}

async fn import(progress: Progress, hangs_at: Option<u32>) {
    for row in 1..=3 {
        if hangs_at == Some(row) {
            std::future::pending::<()>().await;
        }
        println!("row {row}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        progress.report();
    }
}
