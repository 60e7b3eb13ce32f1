//! Every feature while threads of Java wait for the same names.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{Acknowledgement, Client};
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{Cluster, RedisServer, RedissonVersion, Replicas, eventually as soon};
use tokio::task::block_in_place;

use crate::javas::JavaClient;
use crate::support::asleep::asleep;
use crate::support::company::{Company, leaves_nothing, stays_at_the_end};
use crate::support::ended::at_runtime_end;
use crate::support::{HOUR, eventually};

const NAMES: [(LockKind, &[&str]); 4] = [
    (
        LockKind::Plain,
        &[
            "plain",
            "handed over",
            "owned",
            "extended",
            "limited",
            "forgotten",
            "forced",
            "unpolled",
            "cancelled",
            "backed off",
            "told",
            "threads",
            "one of several",
            "many 7",
            "tokens",
        ],
    ),
    (LockKind::Fair, &["fair", "run", "two of several"]),
    (LockKind::Fenced, &["fenced"]),
    (
        LockKind::Write,
        &["write", "read", "both sides", "three of several"],
    ),
];
const SOON: Duration = Duration::from_secs(60);

/// Threads of Java that wait for the company's names.
struct Waiting {
    java: JavaClient,
    served: Vec<JoinHandle<()>>,
}

impl Waiting {
    /// Returns when the threads have asked at this site. `channels` counts the channels there.
    async fn start(url: &str, channels: impl Fn() -> usize) -> Self {
        let java = JavaClient::new(RedissonVersion::V4_7_0, url, None);
        let mut served = Vec::new();
        for (kind, names) in NAMES {
            for name in names {
                let java = java.thread(name).kind(kind);
                let waits = java.start_lock(name);
                let serve = move || {
                    waits
                        .wait(SOON)
                        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    java.unlock(name).unwrap();
                };
                served.push(thread::spawn(serve));
            }
        }
        // A Java thread that waits for a held lock listens.
        eventually("they wait", async || channels() >= NAMES.len()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        Self { java, served }
    }

    /// Returns when each thread has had its lock.
    fn all_served(self) {
        for one in self.served {
            one.join().unwrap();
        }
        drop(self.java);
    }
}

/// Brings the company through `trouble` while Java waits, and has Java served after it.
async fn goes_on_beside_java(
    company: Company,
    url: &str,
    channels: impl Fn() -> usize,
    trouble: impl AsyncFnOnce(),
) {
    let mut waiting = None;
    let java_waits = async || {
        waiting = Some(Waiting::start(url, channels).await);
        trouble().await;
    };
    company.goes_through(java_waits).await;
    waiting.unwrap().all_served();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_goes_on_beside_java() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder();
    let company = Company::connect(&builder, &server.url()).await;
    let company = company.with_threads(&builder, &server.url()).await;
    goes_on_beside_java(
        company,
        &server.url(),
        || server.channels().len(),
        async || {},
    )
    .await;
    leaves_nothing(|| server.keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_confirmed_feature_goes_on_beside_java() {
    let servers = Replicas::start(1);
    let (server, url) = (servers.master(), servers.master().url());
    let builder = Client::builder().acknowledged_by(Acknowledgement::replicas(1));
    let company = Company::connect(&builder, &url).await;
    let company = company.with_threads(&builder, &url).await;
    goes_on_beside_java(company, &url, || server.channels().len(), async || {}).await;
    leaves_nothing(|| server.keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_follows_its_slot_beside_java() {
    let cluster = Cluster::start(3, 0);
    let builder = Client::builder().lease(2 * SOON);
    let company = Company::connect(&builder, &cluster.url()).await;
    let company = company.with_threads(&builder, &cluster.url()).await;
    let moves = async || {
        block_in_place(|| {
            for key in cluster.keys() {
                let slot = cluster.slot_of(&key);
                if !cluster.keys_in(cluster.owner(slot), slot).is_empty() {
                    cluster.migrate(slot, (cluster.owner(slot) + 1) % 3);
                }
            }
        });
    };
    let channels = || cluster.channels().len();
    goes_on_beside_java(company, &cluster.url(), channels, moves).await;
    leaves_nothing(|| cluster.keys()).await;
}

/// Java gets a lock whose lease has ended in the sleep, and the sleeper knows of its loss when it
/// wakes. Its other holds have longer leases.
#[tokio::test]
async fn every_feature_sleeps_beside_java() {
    let server = RedisServer::start().unwrap();
    let company = Company::connect(&Client::builder().lease(SOON), &server.url()).await;
    let lock = company.ours.lock("short");
    let sleeps = async || {
        let short = lock.fixed_lease(Duration::from_secs(2));
        let guard = short.acquire().await.unwrap();
        let java = JavaClient::new(RedissonVersion::V4_7_0, &server.url(), None);
        let thread = java.thread("short");
        asleep(|| thread.lock("short").unwrap());
        assert!(guard.loss().is_some(), "Java has it");
        guard.release().await.unwrap_err();
        assert!(
            lock_is_held(&company).await,
            "nothing of Java's is released"
        );
        thread.unlock("short").unwrap();
    };
    let channels = || server.channels().len();
    goes_on_beside_java(company.clone(), &server.url(), channels, sleeps).await;
    leaves_nothing(|| server.keys()).await;
}

async fn lock_is_held(company: &Company) -> bool {
    company.theirs.lock("short").is_locked().await.unwrap()
}

/// Java gets each lock of the company when the runtime ends: the leases are longer than Java waits.
#[test]
fn runtime_end_wakes_java() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let company = Company::connect(&Client::builder().lease(HOUR), &server.url()).await;
        company.settles().await;
        Waiting::start(&server.url(), || server.channels().len()).await
    };
    let check = |waiting: Waiting| {
        waiting.all_served();
        soon("nothing is left", SOON, || {
            server.keys().iter().all(|key| stays_at_the_end(key))
        });
    };
    let again = || drop(server.command(&["FLUSHALL"]).unwrap());
    at_runtime_end(work, check, again);
}
