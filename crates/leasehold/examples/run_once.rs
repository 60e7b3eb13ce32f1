//! A job that all machines start at the same minute and that runs on one of them.
//!
//! The lock is not given back after the job, but left to its lease. So a machine whose clock is
//! late does not run the job again.
//!
//! ```console
//! $ cargo run -p leasehold --example run_once                          # in process
//! $ cargo run -p leasehold --example run_once -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::{Client, Result};

/// A lease that is longer than the difference between the machines' clocks, and shorter than the
/// job's period.
const NOT_AGAIN_WITHIN: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url).await?;
    let machines = (1..=4).map(|machine| tokio::spawn(minute_has_come(client.clone(), machine)));
    for machine in machines.collect::<Vec<_>>() {
        machine.await.expect("no machine panics")?;
    }
    if let Ttl::Left(left) = client.lock("nightly").remaining_ttl().await? {
        println!("nobody runs it again for {left:.0?}");
    }
    Ok(())
}

async fn minute_has_come(client: Client, machine: u32) -> Result<()> {
    // The lock is renewed while the job runs, however long that takes.
    let lock = client.lock("nightly").lease(NOT_AGAIN_WITHIN);
    let Some(guard) = lock.try_acquire().await? else {
        println!("machine {machine}: another one has it");
        return Ok(());
    };
    guard.protect(job(machine)).await?;
    // Restarts the lease. After `forget`, the lock is no longer renewed or released.
    guard.extend(NOT_AGAIN_WITHIN).await?;
    guard.forget();
    Ok(())
}

async fn job(machine: u32) {
    println!("machine {machine}: runs the job");
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!("machine {machine}: has done the job");
}
