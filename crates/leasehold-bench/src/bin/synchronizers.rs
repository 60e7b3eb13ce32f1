//! Semaphore and latch beside live Redissons, alternating in one run against one server:
//! 64 tasks or threads on a semaphore of 8, and a thousand that wait for one latch. Only the
//! ratios count.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::time::{Duration, Instant};

use comfy_table::Table;
use leasehold::Client;
use leasehold_testkit::redisson::RedissonThread;
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TASKS: usize = 64;
const PERMITS: u32 = 8;
const WAITERS: usize = 1000;
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() -> Result<()> {
    let run = match std::env::args().nth(1) {
        Some(ms) => Duration::from_millis(ms.parse()?),
        None => Duration::from_millis(2000),
    };
    let server = RedisServer::start()?;
    let client = Client::connect(&server.url()).await?;
    let redissons: Vec<_> = RedissonVersion::ALL
        .into_iter()
        .map(|version| Redisson::start(version, &server.url()))
        .collect();
    let mut threads = Vec::new();
    for redisson in &redissons {
        redisson.client("bench", None)?;
        threads.push((redisson.version(), redisson.thread("bench", "main")));
    }
    let mut table = Table::new();
    table.set_header(["what", "leasehold", "Redisson", "", "ratio"]);
    // Once unmeasured, so that nobody pays for warming up.
    pairs(&client, run / 4).await?;
    for (_, java) in &threads {
        java_pairs(java, run / 4)?;
    }
    for (version, java) in &threads {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(java_pairs(java, run)?);
            ours.push(pairs(&client, run).await?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        table.add_row([
            format!("{TASKS} on a semaphore of {PERMITS}, pairs/s"),
            format!("{ours:.0}"),
            version.to_string(),
            format!("{theirs:.0}"),
            format!("{:.1}", ours / theirs),
        ]);
    }
    for (version, java) in &threads {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(java_opening(java)?);
            ours.push(opening(&client).await?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        table.add_row([
            format!("{WAITERS} wait for a latch, ms until all go on"),
            format!("{ours:.2}"),
            version.to_string(),
            format!("{theirs:.2}"),
            format!("{:.1}", theirs / ours),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Acquires and releases per second.
async fn pairs(client: &Client, run: Duration) -> Result<f64> {
    let semaphore = client.semaphore("ours");
    semaphore.try_set_permits(PERMITS).await?;
    let (start, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for _ in 0..TASKS {
        let semaphore = semaphore.clone();
        tasks.spawn(async move {
            let mut pairs = 0_u32;
            while start.elapsed() < run {
                semaphore.acquire().await?.release().await?;
                pairs += 1;
            }
            Ok::<_, leasehold::Error>(pairs)
        });
    }
    let mut pairs = 0;
    while let Some(done) = tasks.join_next().await {
        pairs += done??;
    }
    Ok(f64::from(pairs) / start.elapsed().as_secs_f64())
}

fn java_pairs(java: &RedissonThread, run: Duration) -> Result<f64> {
    let call = |op: &str, request: Value| java.start_call::<Value>(op, request);
    let limit = run + Duration::from_secs(60);
    call(
        "semaphore_set",
        json!({"name": "theirs", "permits": PERMITS}),
    )
    .wait(limit)?;
    let rate =
        json!({"name": "theirs", "threads": TASKS, "run_ms": u64::try_from(run.as_millis())?});
    let done = call("semaphore_rate", rate).wait(limit)?;
    let took = Duration::from_nanos(done.until_ns - done.from_ns);
    Ok(done.value.as_f64().ok_or("a number")? / took.as_secs_f64())
}

/// Milliseconds from the last count-down until the last waiter goes on.
async fn opening(client: &Client) -> Result<f64> {
    let latch = client.count_down_latch("ours:latch");
    latch.try_set_count(1).await?;
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let latch = latch.clone();
        waiters.spawn(async move { latch.wait().await });
    }
    while client.activity().channels == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = Instant::now();
    latch.count_down().await?;
    while let Some(done) = waiters.join_next().await {
        done??;
    }
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}

fn java_opening(java: &RedissonThread) -> Result<f64> {
    let request = json!({"name": "theirs:latch", "threads": WAITERS, "rounds": 1});
    let done = java.start_call::<Vec<u64>>("latch_rate", request);
    let times = done.wait(Duration::from_secs(120))?.value;
    let ns = times.first().ok_or("one round")?;
    Ok(Duration::from_nanos(*ns).as_secs_f64() * 1000.0)
}
