//! A lock that passes from one process to another without a gap. The first process prepares an order
//! and writes a ticket into a queue; the second one takes over the lock with the ticket.
//!
//! ```console
//! $ cargo run -p leasehold --example hand_over                          # in process
//! $ cargo run -p leasehold --example hand_over -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::time::Duration;

use leasehold::ticket::Ticket;
use leasehold::{Client, Embedded, Result};
use tokio::sync::mpsc;

/// The time that the second process has until it must take over the lock.
const SOON: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    // Two clients represent two processes.
    let [first, second] = match std::env::args().nth(1) {
        Some(url) => [Client::connect(&url).await?, Client::connect(&url).await?],
        None => {
            let server = Embedded::new();
            [server.client(), server.client()]
        }
    };
    let (queue, received) = mpsc::channel(1);
    let packed = tokio::spawn(pack(second, received));
    take_order(&first, &queue).await?;
    packed.await.expect("it does not panic")
}

async fn take_order(client: &Client, queue: &mpsc::Sender<String>) -> Result<()> {
    let guard = client.lock("order:42").acquire().await?;
    println!("the order is taken under {}", guard.holder_id());
    // From now on, this process can no longer release or lose the lock.
    let ticket = guard.into_ticket(SOON).await?;
    let is_free = client.lock("order:42").try_acquire().await?.is_some();
    println!("another process gets in now: {is_free}");
    // If the receiver has ended, the lock is free after `SOON`.
    let _ = queue.send(ticket.to_string()).await;
    Ok(())
}

async fn pack(client: Client, mut received: mpsc::Receiver<String>) -> Result<()> {
    let Some(text) = received.recv().await else {
        return Ok(());
    };
    let ticket: Ticket = text.parse()?;
    // Only one process can use a ticket.
    let guard = client.lock("order:42").resume(&ticket).await?;
    println!("the order is packed under {}", guard.holder_id());
    guard.release().await
}
