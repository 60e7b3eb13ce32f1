//! A Rust process of its own: this test binary, started once more for one job.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::history::{Interval, monotonic_ns};
use leasehold::{Client, Result};

const JOB: &str = "LEASEHOLD_TEST_JOB";

/// A running child. Killed when it is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Holds `name`, renewed with `lease`, until it is killed. Returns when it has it.
    pub(crate) fn hold(url: &str, name: &str, lease: Duration) -> Self {
        let mut child = Self::start(&format!("hold {url} {name} {}", lease.as_millis()));
        let mut line = String::new();
        while !line.starts_with("held") {
            line.clear();
            let read = child.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the child ended before it held the lock");
        }
        child
    }

    /// Raises the plain counter `counter` under the lock `name` in `tasks` tasks.
    pub(crate) fn count(url: &str, name: &str, counter: &str, tasks: usize, run: Duration) -> Self {
        Self::start(&format!(
            "count {url} {name} {counter} {tasks} {}",
            run.as_millis()
        ))
    }

    fn start(job: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::a_process_of_its_own", "--nocapture"])
            .env(JOB, job)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for its end and gives back the holds it reports.
    pub(crate) fn intervals(mut self, name: &str) -> Vec<Interval> {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(self.process.wait().unwrap().success(), "{text}");
        let pid = self.process.id();
        text.lines()
            .filter_map(|line| line.strip_prefix("interval "))
            .map(|line| {
                let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
                let [hold, asked, from, until] = numbers[..] else {
                    panic!("{line}");
                };
                Interval::new(name, &format!("rust {pid} hold {hold}"), asked, from, until)
            })
            .collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test when it is run as one: the job of a child.
#[test]
fn a_process_of_its_own() {
    let Ok(job) = std::env::var(JOB) else {
        return;
    };
    let words: Vec<_> = job.split(' ').collect();
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match words[..] {
        ["hold", url, name, lease] => runtime.block_on(hold(url, name, ms(lease))),
        ["count", url, name, counter, tasks, run] => {
            runtime.block_on(count(url, name, counter, tasks.parse().unwrap(), ms(run)))
        }
        _ => panic!("no such job: {job}"),
    }
    .unwrap();
}

async fn hold(url: &str, name: &str, lease: Duration) -> Result<()> {
    let client = Client::builder().lease(lease).connect(url).await?;
    let _guard = client.lock(name).acquire().await?;
    println!("\nheld");
    std::future::pending().await
}

async fn count(url: &str, name: &str, counter: &str, tasks: usize, run: Duration) -> Result<()> {
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
    println!();
    while let Some(lines) = running.join_next().await {
        for line in lines.unwrap() {
            println!("{line}");
        }
    }
    Ok(())
}
