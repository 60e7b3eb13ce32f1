//! A job that several machines start at the same time, and that runs on one of them. It runs once per
//! slot of the server's clock, so a machine whose clock is late does not run it again.
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

use leasehold::slot::Begin;
use leasehold::{Client, Result};

/// The period of the job. The clocks of the machines may differ by up to half of it.
const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url).await?;
    let machines = (1..=4).map(|machine| tokio::spawn(nightly(client.clone(), machine)));
    for machine in machines.collect::<Vec<_>>() {
        machine.await.expect("no machine panics")?;
    }
    if let Some(last) = client.lock("nightly").last_turn().await? {
        println!("machine {} ran last: {:?}", last.by, last.state);
    }
    Ok(())
}

async fn nightly(client: Client, machine: u32) -> Result<()> {
    let turns = client
        .lock("nightly")
        .once_per(DAY)
        .by(format!("{machine}"));
    // Waits while another machine runs the job, and would run it if that machine died.
    match turns.begin().await? {
        Begin::Run(turn) => {
            turn.protect(job(machine)).await?;
            // Without this, the job has failed.
            turn.done().await?;
        }
        Begin::Done(info) => println!("machine {machine}: machine {} has done it", info.by),
        Begin::Elsewhere(info) => println!("machine {machine}: it runs on {}", info.by),
    }
    Ok(())
}

async fn job(machine: u32) {
    println!("machine {machine}: runs the job");
    tokio::time::sleep(Duration::from_millis(200)).await;
}
