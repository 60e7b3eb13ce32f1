//! Ten calls to a supplier that allows three at a time, counted over all processes.
//!
//! `cargo run -p leasehold --example limit_concurrency` runs on a keyspace of its own. With an
//! address (`… -- redis://127.0.0.1`) it runs on a server, together with other processes.
//!
//! The permits have leases. If a process is killed, its permits become free again by themselves.
#![allow(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Client;

const AT_A_TIME: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::connect(url.as_deref().unwrap_or("memory://")).await?;
    let calls = client.expirable_semaphore("supplier:calls");
    // The first process makes the semaphore. For the others, this does nothing.
    calls.try_set_permits(AT_A_TIME).await?;

    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (calls, now, most) = (calls.clone(), Arc::clone(&now), Arc::clone(&most));
        tasks.spawn(async move {
            let permit = calls.acquire().await?;
            let running = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(running, Ordering::SeqCst);
            println!("call {number} runs, {running} at a time");
            // The call ends early if the permit is lost.
            permit
                .protect(tokio::time::sleep(Duration::from_millis(50)))
                .await?;
            now.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    println!("never more than {} at a time", most.load(Ordering::SeqCst));
    client.close().await;
    Ok(())
}
