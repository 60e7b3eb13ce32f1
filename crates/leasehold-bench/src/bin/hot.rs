//! One name that many tasks want: how many hold it a second, what that costs, and how even it is.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().collect();
    let tasks: usize = args.get(1).map_or(64, |n| n.parse().unwrap());
    let remote: usize = args.get(2).map_or(0, |n| n.parse().unwrap());
    let off = args.get(3).is_some_and(|x| x == "off");
    let server = RedisServer::start()?;
    let client = leasehold::Client::connect(&server.url()).await?;
    let other = leasehold::Client::connect(&server.url()).await?;
    let inside = Arc::new(AtomicBool::new(false));
    let mut all = Vec::new();
    let end = Instant::now() + Duration::from_secs(3);
    for n in 0..tasks + remote {
        let lock = if n < tasks { &client } else { &other }.lock("hot");
        let lock = if off {
            lock.local_hand_over(Duration::ZERO)
        } else {
            lock
        };
        let (inside, pairs, longest) = (
            Arc::clone(&inside),
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicU64::new(0)),
        );
        all.push((Arc::clone(&pairs), Arc::clone(&longest)));
        tokio::spawn(async move {
            while Instant::now() < end {
                let began = Instant::now();
                let guard = lock.acquire().await.expect("acquire");
                longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
                inside.store(false, Ordering::SeqCst);
                guard.release().await.expect("release");
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let before =
        format!("{:?}", server.command(&["INFO", "commandstats"])?).replace("\\r\\n", "\n");
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    let after = format!("{:?}", server.command(&["INFO", "commandstats"])?).replace("\\r\\n", "\n");
    let calls = |text: &str| -> (u64, u64) {
        let mut sum = 0;
        let mut ev = 0;
        for line in text.lines().filter(|l| l.starts_with("cmdstat_")) {
            let c: u64 = line
                .split("calls=")
                .nth(1)
                .and_then(|r| r.split(',').next())
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            sum += c;
            if line.contains("evalsha") {
                ev += c
            }
        }
        (sum, ev)
    };
    let done: Vec<u64> = all.iter().map(|(p, _)| p.load(Ordering::Relaxed)).collect();
    let sum: u64 = done.iter().sum();
    let longest = all[..tasks]
        .iter()
        .map(|(_, l)| l.load(Ordering::Relaxed))
        .max();
    let (a, b) = (calls(&after), calls(&before));
    println!(
        "{tasks}+{remote} off={off}: {:.0}/s, commands/pair {:.2}, evalsha/pair {:.3}, tasks {:?}..{:?}, longest {longest:?} us, remote {:?}",
        sum as f64 / 3.0,
        (a.0 - b.0) as f64 / sum as f64,
        (a.1 - b.1) as f64 / sum as f64,
        done[..tasks].iter().min(),
        done[..tasks].iter().max(),
        all[tasks..]
            .iter()
            .map(|(p, l)| (p.load(Ordering::Relaxed), l.load(Ordering::Relaxed)))
            .collect::<Vec<_>>()
    );
    Ok(())
}
