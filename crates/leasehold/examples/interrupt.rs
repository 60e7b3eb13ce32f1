//! A thread that ends the waits of other threads, for example at shutdown.
//!
//! ```console
//! $ cargo run -p leasehold --example interrupt                          # in process
//! $ cargo run -p leasehold --example interrupt -- redis://127.0.0.1
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::thread;
use std::time::Duration;

use leasehold::Result;
use leasehold::blocking::{Client, Interrupt};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url)?;
    let guard = client.lock("stock").acquire()?;
    let shutdown = Interrupt::new();
    thread::scope(|threads| {
        for number in 1..=3 {
            let (lock, shutdown) = (client.lock("stock"), shutdown.clone());
            threads.spawn(move || match shutdown.scope(|| lock.acquire()) {
                Ok(_guard) => println!("thread {number} has the lock"),
                Err(error) => println!("thread {number} no longer waits: {:?}", error.kind()),
            });
        }
        thread::sleep(Duration::from_millis(100));
        // This also ends a wait that begins later.
        shutdown.interrupt();
    });
    guard.release()
}
