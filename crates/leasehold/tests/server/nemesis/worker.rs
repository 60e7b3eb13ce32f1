//! A process that the nemesis disturbs. Its tasks acquire a few locks in every possible way, and
//! increment a plain counter while they hold a lock.

use std::time::Duration;

use leasehold::inspect::Activity;
use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, Error, ErrorKind, LockGuard};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{COUNTER, NAMES, STOP};
use crate::server::scene::{LEASE, builder};
use crate::support::eventually;

/// The time for a count, which must end while the lock is still held.
const ENOUGH: Duration = Duration::from_millis(150);

/// Works until it finds [`STOP`] at the resource. `url` leads to the locks, through all faults;
/// `resource` is a server that the nemesis does not touch.
pub(crate) async fn work(url: &str, resource: &str, tasks: usize, seed: u64) {
    let client = connect(url).await;
    let patient = redis::AsyncConnectionConfig::new()
        // The nemesis may stop this process for any length of time.
        .set_response_timeout(Some(Duration::from_secs(60)));
    let resource = redis::Client::open(resource).unwrap();
    let resource = resource
        .get_multiplexed_async_connection_with_config(&patient)
        .await
        .unwrap();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        running.spawn(hammer(Task {
            client: client.clone(),
            resource: resource.clone(),
            random: fastrand::Rng::with_seed(seed + task as u64),
        }));
    }
    running.join_all().await;
    client.close().await;
    eventually("nothing is under way", async || {
        client.activity() == Activity::default()
    })
    .await;
}

/// Tries to connect until it succeeds, because the test is not about connecting.
async fn connect(url: &str) -> Client {
    loop {
        if let Ok(client) = builder().lease(LEASE).connect(url).await {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Task {
    client: Client,
    resource: MultiplexedConnection,
    random: fastrand::Rng,
}

async fn hammer(mut task: Task) {
    while !task.is_over().await {
        let name = NAMES[task.random.usize(..NAMES.len())];
        let asked = monotonic_ns();
        match task.ask(name).await {
            Ok(Some(guard)) => task.hold(name, asked, guard).await,
            Ok(None) => {}
            Err(error) => expect_trouble(&error),
        }
    }
}

/// Accepts an error that says that no server answered. Any other error ends this process.
fn expect_trouble(error: &Error) {
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Lost
        ),
        "{error}"
    );
}

impl Task {
    async fn is_over(&mut self) -> bool {
        let mut exists = redis::cmd("EXISTS");
        exists.arg(STOP);
        exists.query_async(&mut self.resource).await.unwrap()
    }

    fn ms(&mut self, at_most: u64) -> Duration {
        Duration::from_millis(self.random.u64(1..=at_most))
    }

    async fn ask(&mut self, name: &str) -> leasehold::Result<Option<LockGuard>> {
        // Each lost message delays a wait until its next poll. With long poll intervals, the tasks
        // would sleep most of the time.
        let mut lock = self.client.lock(name).poll_interval(LEASE / 6);
        if self.random.u8(..5) == 0 {
            lock = lock.fixed_lease(LEASE / 2);
        }
        match self.random.u8(..10) {
            0 => lock.try_acquire().await,
            1 | 2 => lock.try_acquire_for(self.ms(300)).await,
            // The acquire is abandoned from outside.
            3 => tokio::time::timeout(self.ms(20), lock.acquire())
                .await
                .ok()
                .transpose(),
            _ => lock.acquire().await.map(Some),
        }
    }

    /// Holds the lock for a moment. Each line is written at once, because this process may be
    /// killed at any time.
    async fn hold(&mut self, name: &str, asked: u64, guard: LockGuard) {
        let (number, from, deadline) = (guard.number(), monotonic_ns(), deadline_ns(&guard));
        let counts = deadline.saturating_sub(from) > ENOUGH.as_nanos() as u64;
        println!("in {number} {name} {asked} {from} {deadline} {counts}");
        if counts {
            self.count(name).await;
            let overdue = monotonic_ns() >= deadline_ns(&guard);
            println!("counted {number} {name} {overdue}");
        }
        match self.random.u8(..40) {
            // This is longer than the hold would last without renewal.
            0 => tokio::time::sleep(LEASE + LEASE / 2).await,
            1..4 => tokio::time::sleep(self.ms(30)).await,
            _ => {}
        }
        println!("out {number} {}", monotonic_ns().min(deadline_ns(&guard)));
        if self.random.u8(..5) == 0 {
            drop(guard);
        } else if let Err(error) = guard.release().await {
            expect_trouble(&error);
        }
    }

    /// Reads and writes the counter, with time in between for another task to do the same.
    async fn count(&mut self, name: &str) {
        let counter = format!("{COUNTER}{name}");
        let mut get = redis::cmd("GET");
        get.arg(&counter);
        let count: Option<u64> = get.query_async(&mut self.resource).await.unwrap();
        tokio::task::yield_now().await;
        let mut set = redis::cmd("SET");
        set.arg(&counter).arg(count.unwrap_or(0) + 1);
        set.query_async::<()>(&mut self.resource).await.unwrap();
    }
}

/// Returns the holder's deadline on the clock that all processes share. The deadline may have
/// passed.
fn deadline_ns(guard: &LockGuard) -> u64 {
    // The order matters: if the process is stopped between the two readings, the result is too
    // early, never too late.
    let (now_ns, now) = (monotonic_ns(), Instant::now());
    let valid_until = guard.valid_until();
    let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap();
    now_ns + ns(valid_until.saturating_duration_since(now))
        - ns(now.saturating_duration_since(valid_until))
}
