//! Every feature while threads of Java wait for the same names.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{Acknowledgement, Client};
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{Cluster, RedisServer, RedissonVersion, Replicas, eventually as soon};
use tokio::task::block_in_place;

use crate::javas::{JavaClient, asleep as asleep_threads};
use crate::support::HOUR;
use crate::support::asleep::asleep;
use crate::support::company::{Company, leaves_nothing, stays_at_the_end};
use crate::support::ended::at_runtime_end;

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
/// Names whose holds end during the fault.
const END_BY_THEMSELVES: [&str; 2] = ["limited", "forgotten"];
const SOON: Duration = Duration::from_secs(60);

/// Threads of Java that wait for the company's names.
struct Waiting {
    java: JavaClient,
    served: Vec<JoinHandle<()>>,
}

impl Waiting {
    /// Waits until all threads that can't be served yet sleep.
    async fn start(url: &str) -> Self {
        let java = JavaClient::new(RedissonVersion::V4_7_0, url, None);
        let (mut served, mut threads) = (Vec::new(), Vec::new());
        for (kind, names) in NAMES {
            for name in names {
                let java = java.thread(name).kind(kind);
                if !END_BY_THEMSELVES.contains(name) {
                    threads.push(java.clone());
                }
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
        let threads: Vec<_> = threads.iter().collect();
        asleep_threads(&threads).await;
        Self { java, served }
    }

    /// Waits until each thread has had its lock.
    fn all_served(self) {
        for one in self.served {
            one.join().unwrap();
        }
        drop(self.java);
    }
}

/// Brings the company through `trouble` while Java waits, and then waits until Java is served.
async fn goes_on_beside_java(company: Company, url: &str, trouble: impl AsyncFnOnce()) {
    let mut waiting = None;
    let java_waits = async || {
        waiting = Some(Waiting::start(url).await);
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
    goes_on_beside_java(company, &server.url(), async || {}).await;
    leaves_nothing(|| server.keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_confirmed_feature_goes_on_beside_java() {
    let servers = Replicas::start(1);
    let (server, url) = (servers.master(), servers.master().url());
    let builder = Client::builder().acknowledged_by(Acknowledgement::replicas(1));
    let company = Company::connect(&builder, &url).await;
    let company = company.with_threads(&builder, &url).await;
    goes_on_beside_java(company, &url, async || {}).await;
    leaves_nothing(|| server.keys()).await;
}

/// If Java misses the message of a release after a move, it asks again when the lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_follows_its_slot_beside_java() {
    let cluster = Cluster::start(3, 0);
    let builder = Client::builder().lease(Duration::from_secs(12));
    let company = Company {
        long: SOON,
        ..Company::connect(&builder, &cluster.url()).await
    };
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
    goes_on_beside_java(company, &cluster.url(), moves).await;
    leaves_nothing(|| cluster.keys()).await;
}

/// Java gets a lock whose lease ended during the sleep, and the sleeper learns of its loss when it
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
    goes_on_beside_java(company.clone(), &server.url(), sleeps).await;
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
        Waiting::start(&server.url()).await
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
