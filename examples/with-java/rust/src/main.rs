//! Sells a stock that it shares with a Java service. It sells one item each time it has the lock.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::error::Error;
use std::time::{Duration, SystemTime};

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, name] = &arguments[..] else {
        return Err("usage: with-java URL NAME".into());
    };
    let client = leasehold::Client::connect(url).await?;
    let lock = client.lock(format!("{name}:lock"));
    let server = redis::Client::open(&**url)?;
    let mut redis = server.get_multiplexed_async_connection().await?;
    both_are_there(&mut redis, name).await?;
    loop {
        let guard = lock.acquire().await?;
        // Drop the sale at once if the lock is lost, because the Java service may have it then.
        let more = guard.protect(sell_one(&mut redis, name)).await??;
        guard.release().await?;
        if !more {
            return Ok(());
        }
        sleep(Duration::from_millis(3)).await; // the other work of a service
    }
}

async fn sell_one(redis: &mut MultiplexedConnection, name: &str) -> Result<bool, Box<dyn Error>> {
    let from = now_ms()?;
    let left: u32 = redis.get(name).await?;
    if left == 0 {
        return Ok(false);
    }
    // The sale takes long enough for the other service to read the same number.
    sleep(Duration::from_millis(10)).await;
    let () = redis.set(name, left - 1).await?;
    println!("{from} {} rust {left}", now_ms()?);
    Ok(true)
}

async fn both_are_there(
    redis: &mut MultiplexedConnection,
    name: &str,
) -> Result<(), Box<dyn Error>> {
    let ready = format!("{name}:ready");
    // Only the Rust service sets the stock, before it reports that it is ready.
    let () = redis.set(name, 60).await?;
    let mut there: u32 = redis.incr(&ready, 1).await?;
    while there < 2 {
        sleep(Duration::from_millis(5)).await;
        there = redis.get(&ready).await?;
    }
    for key in [name.to_owned(), ready] {
        // The keys expire, so that the demonstration leaves nothing on your server.
        let () = redis.expire(key, 600).await?;
    }
    Ok(())
}

fn now_ms() -> Result<u128, Box<dyn Error>> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(since.as_millis())
}
