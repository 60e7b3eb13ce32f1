//! One leader at a time. The holder of the lock leads until it steps down, dies, or learns that it
//! has lost the lock.
//!
//! ```console
//! $ cargo run -p leasehold --example leader_election                          # in process
//! $ cargo run -p leasehold --example leader_election -- redis://127.0.0.1    # start it twice
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::time::Duration;

use leasehold::{Client, LockGuard, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    // Another candidate takes over one second after a leader has died, not sooner.
    let builder = Client::builder().lease(Duration::from_secs(1));
    let client = builder.connect(&url).await?;
    let candidates = ["anna", "ben", "carl"].map(|name| tokio::spawn(stand(client.clone(), name)));
    for candidate in candidates {
        candidate.await.expect("no candidate panics")?;
    }
    Ok(())
}

/// Waits until it is the leader, and leads once.
async fn stand(client: Client, name: &str) -> Result<()> {
    let guard = client.lock("leader").acquire().await?;
    println!("{name} leads");
    // The work is dropped at once when the lock is lost, because there may be another leader by
    // then.
    match guard.protect(lead(name, &guard)).await {
        Ok(()) => {
            println!("{name} steps down");
            guard.release().await
        }
        Err(error) => {
            println!("{name} leads no more: {error}");
            Ok(())
        }
    }
}

async fn lead(name: &str, guard: &LockGuard) {
    for round in 1..=3 {
        println!("{name} does round {round} as {}", guard.holder_id());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
