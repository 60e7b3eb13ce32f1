//! A function that runs under a lock, by an attribute.
//!
//! ```console
//! $ cargo run -p leasehold --features macros --example locked_function
//! $ cargo run -p leasehold --features macros --example locked_function -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::error::Error;
use std::time::Duration;

use leasehold::{Client, locked};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Invoices {
    locks: Client,
}

impl Invoices {
    /// Pays an invoice. Only one process pays it at a time. Another one waits for 100 ms, and then
    /// returns `false`.
    #[locked("invoice:{id}", client = self.locks, wait = "100ms", busy = Ok(false))]
    async fn pay(&self, id: u64) -> Result<bool> {
        println!("pays invoice {id}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(true)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let locks = Client::connect(&url).await?;
    let invoices = Invoices { locks };
    let (one, two, other) = tokio::join!(invoices.pay(7), invoices.pay(7), invoices.pay(8));
    println!("invoice 7 was paid once: {}", [one?, two?] == [true, false]);
    println!("invoice 8 was paid meanwhile: {}", other?);
    Ok(())
}
