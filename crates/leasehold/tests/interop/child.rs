//! Rust processes beside the Java ones.

use std::time::{Duration, Instant};

use leasehold::kind::Kind;
use leasehold::testing::history::{Interval, monotonic_ns};
use leasehold::{Client, GroupLock, Lock, LockGuard, MultiLock, RedLock, Result, RwLock};
use leasehold_testkit::redisson::LockKind;

use crate::permits::Sort;
use crate::stress;
use crate::support::child::{Child, job};
use crate::what::What;

const TEST: &str = "child::a_process_of_its_own";

/// Starts a process that waits for `name` and holds it, renewed with `lease`, until it is killed.
/// It prints `held` when it has the lock.
pub(crate) fn wait(kind: LockKind, url: &str, name: &str, lease: Duration) -> Child {
    let lease = lease.as_millis();
    Child::start(TEST, &format!("hold {kind:?} {url} {name} {lease}"))
}

/// Like [`wait`], and returns when the process has the lock.
pub(crate) fn hold(kind: LockKind, url: &str, name: &str, lease: Duration) -> Child {
    let child = wait(kind, url, name, lease);
    child.wait_for("held");
    child
}

/// Like [`hold`], for any lock by the name that its checks have.
pub(crate) fn hold_any(what: What, url: &str, lease: Duration) -> Child {
    let lease = lease.as_millis();
    let child = Child::start(TEST, &format!("hold_any {what:?} {url} {lease}"));
    child.wait_for("held");
    child
}

/// Starts a process that has the permit and renews it until it is killed.
pub(crate) fn hold_permit(sort: Sort, url: &str, lease: Duration) -> Child {
    let lease = lease.as_millis();
    let child = Child::start(TEST, &format!("hold_permit {sort:?} {url} {lease}"));
    child.wait_for("held");
    child
}

/// Starts a process that claims numbers under the lock, as Redisson's `torment` does.
pub(crate) fn torment(what: What, url: &str, who: &str, tasks: usize, lease: Duration) -> Child {
    let lease = lease.as_millis();
    Child::start(
        TEST,
        &format!("torment {what:?} {url} {who} {tasks} {lease}"),
    )
}

/// The plan of the counting processes.
#[derive(Clone, Copy)]
pub(crate) struct Count<'a> {
    /// The URL of the server, or the URLs of several servers with commas.
    pub(crate) urls: &'a str,
    pub(crate) kind: LockKind,
    pub(crate) name: &'a str,
    pub(crate) counter: &'a str,
    pub(crate) clients: usize,
    pub(crate) run: Duration,
}

/// Starts a process that increments the plain counter under the lock, in `clients` clients. With
/// [`LockKind::Write`], they also read the counter under the read side.
pub(crate) fn count(plan: Count<'_>) -> Child {
    let Count {
        urls,
        kind,
        name,
        counter,
        clients,
        run,
    } = plan;
    let run = run.as_millis();
    Child::start(
        TEST,
        &format!("count {kind:?} {urls} {name} {counter} {clients} {run}"),
    )
}

/// Waits for the end of a child that counts, and returns the holds that it reports.
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

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_process_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match words[..] {
        ["hold", kind, url, name, lease] => runtime.block_on(async {
            let builder = Client::builder().lease(ms(lease));
            let client = builder.connect(url).await.unwrap();
            match kind {
                "Plain" => hold_on(client.lock(name)).await,
                "Fair" => hold_on(client.fair_lock(name)).await,
                "Read" => hold_on(client.rw_lock(name).read_lock()).await,
                "Write" => hold_on(client.rw_lock(name).write_lock()).await,
                _ => panic!("no process has a lock of kind {kind} yet"),
            }
        }),
        ["torment", what, url, who, tasks, lease] => runtime.block_on(async {
            let client = Client::builder().lease(ms(lease)).connect(url).await?;
            let (what, tasks) = (What::named(what), tasks.parse().unwrap());
            stress::claim(&client, what, url, who, tasks).await;
            Ok(())
        }),
        ["hold_permit", sort, url, lease] => runtime.block_on(async {
            let client = Client::builder().lease(ms(lease)).connect(url).await?;
            let _held = Sort::named(sort).take(client, None).await.unwrap();
            println!("held");
            std::future::pending().await
        }),
        ["hold_any", what, url, lease] => runtime.block_on(async {
            let client = Client::builder().lease(ms(lease)).connect(url).await?;
            let _guard = What::named(what).ours(&client).acquire().await.unwrap();
            println!("held");
            std::future::pending().await
        }),
        ["count", kind, urls, name, counter, clients, run] => runtime.block_on(async {
            let crew = Crew::connect(urls, counter, clients.parse().unwrap()).await;
            let (start, run) = (Instant::now(), ms(run));
            match kind {
                "Plain" => crew.count(run, |to| to[0].lock(name)).await,
                "Fair" => crew.count(run, |to| to[0].fair_lock(name)).await,
                "Fenced" => crew.count(run, |to| to[0].fenced_lock(name)).await,
                "Multi" => crew.count(run, |to| several(&to[0], name)).await,
                "Group" => crew.count(run, |to| group(&to[0], name)).await,
                "Red" => crew.count(run, |to| majority(to, name)).await,
                "Write" => {
                    let work = |to: &[Client], counter| {
                        count_and_look(to[0].rw_lock(name), counter, start, run)
                    };
                    crew.each(work).await;
                }
                _ => panic!("no process has a lock of kind {kind} yet"),
            }
            Ok(())
        }),
        _ => panic!("no such job: {job:?}"),
    }
    .unwrap();
}

async fn hold_on<K: Kind>(lock: Lock<K>) -> Result<()> {
    println!("waits");
    let _guard = lock.acquire().await?;
    println!("held");
    std::future::pending().await
}

/// Opens a plain connection with a long limit. On a busy machine, the driver's own limit of half a
/// second is too short.
pub(crate) async fn patient(redis: &redis::Client) -> redis::aio::MultiplexedConnection {
    let limit = Some(Duration::from_secs(60));
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(limit)
        .set_response_timeout(limit);
    let connecting = redis.get_multiplexed_async_connection_with_config(&config);
    connecting.await.unwrap()
}

/// A number in Redis that only a lock protects.
#[derive(Clone)]
struct Counter {
    redis: redis::aio::MultiplexedConnection,
    key: String,
}

impl Counter {
    async fn get(&mut self) -> u64 {
        let get = redis::cmd("GET").arg(&self.key).to_owned();
        let count: Option<u64> = get.query_async(&mut self.redis).await.unwrap();
        count.unwrap_or(0)
    }

    /// Increments the number in two steps. Returns the new number.
    async fn raise(&mut self) -> u64 {
        let count = self.get().await + 1;
        tokio::task::yield_now().await;
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(count);
        set.query_async::<()>(&mut self.redis).await.unwrap();
        count
    }
}

/// Makes the lock that Java's names for [`LockKind::Multi`] denote.
fn several(client: &Client, names: &str) -> MultiLock {
    MultiLock::new(names.split(',').map(|name| client.lock(name))).unwrap()
}

/// Makes the lock that Java's name for [`LockKind::Group`] denotes.
fn group(client: &Client, name: &str) -> GroupLock {
    let (group, values) = name.split_once('/').unwrap();
    client.group_lock(group, values.split(','))
}

/// Makes the lock that Java's names for [`LockKind::Red`] denote: one name for each server.
fn majority(clients: &[Client], names: &str) -> RedLock {
    let names = names.split(',').map(|name| name.split_once('/').unwrap().1);
    let locks = clients.iter().zip(names);
    let lock = RedLock::new(locks.map(|(client, name)| client.lock(name))).unwrap();
    // The servers have just been started, and are not restarted.
    lock.distrust_restarted(false)
}

/// Clients that count, each connected to all the servers.
struct Crew {
    clients: Vec<Vec<Client>>,
    counter: Counter,
}

impl Crew {
    async fn connect(urls: &str, counter: &str, clients: usize) -> Self {
        let urls: Vec<_> = urls.split(',').collect();
        let redis = redis::Client::open(urls[0]).unwrap();
        let mut crew = Self {
            clients: Vec::new(),
            counter: Counter {
                redis: patient(&redis).await,
                key: counter.into(),
            },
        };
        for _ in 0..clients {
            let mut client = Vec::new();
            for url in &urls {
                client.push(Client::connect(url).await.unwrap());
            }
            crew.clients.push(client);
        }
        crew
    }

    async fn count<K: Kind>(self, run: Duration, lock: impl Fn(&[Client]) -> Lock<K>) {
        let start = Instant::now();
        self.each(|clients, counter| count_on(lock(clients), counter, start, run))
            .await;
    }

    /// Lets each client work, and prints the lines that it reports.
    async fn each<F>(self, work: impl Fn(&[Client], Counter) -> F)
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        let mut running = tokio::task::JoinSet::new();
        for clients in self.clients {
            running.spawn(work(&clients, self.counter.clone()));
        }
        while let Some(lines) = running.join_next().await {
            for line in lines.unwrap() {
                println!("{line}");
            }
        }
    }
}

async fn count_on<K: Kind>(
    lock: Lock<K>,
    mut counter: Counter,
    start: Instant,
    run: Duration,
) -> Vec<String> {
    let mut lines = Vec::new();
    while start.elapsed() < run {
        let asked = monotonic_ns();
        let guard: LockGuard = lock.acquire().await.unwrap().into();
        let from = monotonic_ns();
        counter.raise().await;
        let until = monotonic_ns();
        lines.push(format!(
            "interval {} {asked} {from} {until}",
            guard.number()
        ));
        guard.release().await.unwrap();
    }
    lines
}

/// Increments the counter under the write side, and reads it under the read side.
async fn count_and_look(
    lock: RwLock,
    mut counter: Counter,
    start: Instant,
    run: Duration,
) -> Vec<String> {
    let mut lines = Vec::new();
    while start.elapsed() < run {
        let asked = monotonic_ns();
        let writing = lock.write().await.unwrap();
        let from = monotonic_ns();
        let count = counter.raise().await;
        let until = monotonic_ns();
        lines.push(format!(
            "interval {} {asked} {from} {until}",
            writing.number()
        ));
        let downgraded = fastrand::bool();
        let reading = match downgraded {
            true => writing.downgrade().await.unwrap(),
            false => {
                writing.release().await.unwrap();
                lock.read().await.unwrap()
            }
        };
        let first = counter.get().await;
        tokio::task::yield_now().await;
        let second = counter.get().await;
        assert_eq!(first, second, "somebody writes beside a reader");
        if downgraded {
            assert_eq!(first, count, "a writer came in at the downgrade");
        }
        reading.release().await.unwrap();
    }
    lines
}
