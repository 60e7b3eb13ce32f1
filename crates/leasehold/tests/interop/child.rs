//! Rust processes beside the Java ones.

use std::time::{Duration, Instant};

use leasehold::history::{Interval, monotonic_ns};
use leasehold::{Client, Result};

use crate::support::child::{Child, job};

const TEST: &str = "child::a_process_of_its_own";

/// Holds `name`, renewed with `lease`, until it is killed. Returns when it has it.
pub(crate) fn hold(url: &str, name: &str, lease: Duration) -> Child {
    let child = Child::start(TEST, &format!("hold {url} {name} {}", lease.as_millis()));
    child.wait_for("held");
    child
}

/// Raises the plain counter `counter` under the lock `name` in `tasks` tasks.
pub(crate) fn count(url: &str, name: &str, counter: &str, tasks: usize, run: Duration) -> Child {
    let run = run.as_millis();
    Child::start(TEST, &format!("count {url} {name} {counter} {tasks} {run}"))
}

/// Waits for the end of a child that counts, and gives back the holds it reports.
pub(crate) fn intervals(child: Child, name: &str) -> Vec<Interval> {
    let pid = child.id();
    let lines = child.finished();
    let holds = lines
        .iter()
        .filter_map(|line| line.strip_prefix("interval "));
    holds
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            let [hold, asked, from, until] = numbers[..] else {
                panic!("{line}");
            };
            Interval::new(name, &format!("rust {pid} hold {hold}"), asked, from, until)
        })
        .collect()
}

/// Not a test when it is run as one: the job of a child.
#[test]
fn a_process_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match words[..] {
        ["hold", url, name, lease] => runtime.block_on(hold_on(url, name, ms(lease))),
        ["count", url, name, counter, tasks, run] => runtime.block_on(count_on(
            url,
            name,
            counter,
            tasks.parse().unwrap(),
            ms(run),
        )),
        _ => panic!("no such job: {job:?}"),
    }
    .unwrap();
}

async fn hold_on(url: &str, name: &str, lease: Duration) -> Result<()> {
    let client = Client::builder().lease(lease).connect(url).await?;
    let _guard = client.lock(name).acquire().await?;
    println!("held");
    std::future::pending().await
}

async fn count_on(url: &str, name: &str, counter: &str, tasks: usize, run: Duration) -> Result<()> {
    let client = Client::connect(url).await?;
    let redis = redis::Client::open(url).unwrap();
    let redis = redis.get_multiplexed_async_connection().await.unwrap();
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let lock = client.lock(name);
        let (mut redis, counter) = (redis.clone(), counter.to_owned());
        running.spawn(async move {
            let mut lines = Vec::new();
            while start.elapsed() < run {
                let asked = monotonic_ns();
                let guard = lock.acquire().await.unwrap();
                let from = monotonic_ns();
                let get = redis::cmd("GET").arg(&counter).to_owned();
                let count: Option<u64> = get.query_async(&mut redis).await.unwrap();
                tokio::task::yield_now().await;
                let mut set = redis::cmd("SET");
                set.arg(&counter).arg(count.unwrap_or(0) + 1);
                set.query_async::<()>(&mut redis).await.unwrap();
                let until = monotonic_ns();
                lines.push(format!(
                    "interval {} {asked} {from} {until}",
                    guard.number()
                ));
                guard.release().await.unwrap();
            }
            lines
        });
    }
    while let Some(lines) = running.join_next().await {
        for line in lines.unwrap() {
            println!("{line}");
        }
    }
    Ok(())
}
