//! Locks for threads, without a runtime and without async.
//!
//! ```console
//! $ cargo run -p leasehold --example blocking                          # in process
//! $ cargo run -p leasehold --example blocking -- redis://127.0.0.1
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::thread;
use std::time::Duration;

use leasehold::Result;
use leasehold::blocking::{Client, Lock};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url)?;
    thread::scope(|scope| {
        for number in 1..=3 {
            let lock = client.lock("till");
            scope.spawn(move || count_the_till(number, &lock));
        }
    });

    let guard = client.lock("till").acquire()?;
    // Another thread can't acquire the lock, but this thread can: holds belong to threads.
    let other = thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let got_in = client.lock("till").try_acquire();
            got_in.map(|guard| guard.is_some())
        });
        asked.join().expect("no thread panics")
    })?;
    println!("another thread gets in: {other}");
    let again = client.lock("till").acquire()?;
    println!("this one has it {} times", again.hold_count());
    again.release()?;
    guard.release()
}

fn count_the_till(number: u32, lock: &Lock) {
    let counted = lock.run(|guard| {
        println!(
            "thread {number} counts the till as {}",
            guard.as_async().holder_id()
        );
        thread::sleep(Duration::from_millis(50));
    });
    if let Err(error) = counted {
        println!("thread {number}: {error}");
    }
}
