//! A holder that was stopped for too long, and a store that refuses its write.
//!
//! A lock can't reach into a process that is paused. When the process continues, it may be in the
//! middle of a write, although another process holds the lock by then. The store can refuse the
//! write: it remembers the greatest fencing token and refuses smaller ones.
//!
//! ```console
//! $ cargo run -p leasehold --example fenced_writes                          # in process
//! $ cargo run -p leasehold --example fenced_writes -- redis://127.0.0.1
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use leasehold::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url).await?;
    let lock = client.fenced_lock("stock:7");
    let mut store = Store::default();

    let first = lock
        .clone()
        .fixed_lease(Duration::from_millis(200))
        .acquire()
        .await?;
    println!("the first holder has token {}", first.token());
    store
        .write(first.token(), "10 left")
        .expect("the newest token");

    // Here the first holder's process is stopped until after the end of its lease.
    let second = lock.acquire().await?;
    println!("the second holder has token {}", second.token());
    store
        .write(second.token(), "9 left")
        .expect("the newest token");

    // The first holder continues, and does not yet know that it has lost the lock.
    match store.write(first.token(), "8 left, for the second time") {
        Ok(()) => println!("the late write went through: the store does not check"),
        Err(seen) => println!(
            "the late write was refused: token {} is below {seen}",
            first.token()
        ),
    }
    let told = first.release().await.expect_err("its lease is over");
    println!("and its release says so: {told}");
    println!("the store has: {}", store.value);
    second.release().await
}

/// The resource that the lock protects: a table, a file, a queue. `docs/fencing.md` shows this
/// check for SQL, Redis, HTTP and object stores.
#[derive(Default)]
struct Store {
    fence: u64,
    value: String,
}

impl Store {
    /// Checks the token and writes, in one atomic step of the store.
    fn write(&mut self, token: u64, value: &str) -> std::result::Result<(), u64> {
        if token < self.fence {
            return Err(self.fence);
        }
        self.fence = token;
        value.clone_into(&mut self.value);
        Ok(())
    }
}
