//! Prints the changes of all names that match a pattern, without holding them.
//!
//! ```console
//! $ cargo run -p leasehold --example watch_names                                  # in process
//! $ cargo run -p leasehold --example watch_names -- redis://127.0.0.1 'orders:*'
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use leasehold::watch::Change;
use leasehold::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let url = words.next().unwrap_or("memory://".into());
    let pattern = words.next().unwrap_or("*".into());
    let client = Client::connect(&url).await?;

    // Meanwhile, the lock is held three times. Then the example ends.
    let lock = client.lock("orders:42");
    let worker = async {
        for _ in 0..3 {
            let guard = lock.acquire().await?;
            // Longer than the pause between two listings, so that each hold is reported.
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            guard.release().await?;
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        }
        Ok(())
    };

    let second = std::time::Duration::from_secs(1);
    let mut names = client.watch_all(&pattern).rescan_every(second);
    let print = async {
        while let Some(one) = names.next().await {
            let one = one?;
            match one.change {
                Change::Held(holder) => println!("{} is held by {}", one.name, holder.id),
                Change::Freed => println!("{} is free", one.name),
                Change::Away(error) => println!("{}: {error}", one.name),
                other => println!("{}: {other:?}", one.name),
            }
        }
        Ok(())
    };
    tokio::select! {
        printed = print => printed,
        worked = worker => worked,
    }
}
