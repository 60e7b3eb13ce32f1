//! Every feature while threads of Java wait for the same names.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::redisson::LockKind;
use leasehold_testkit::{RedisServer, RedissonVersion};
use tokio::task::spawn_blocking;

use crate::javas::JavaClient;
use crate::support::company::Company;
use crate::support::eventually;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_goes_on_beside_java() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder();
    let ours = builder.connect(&server.url()).await.unwrap();
    let theirs = builder.connect(&server.url()).await.unwrap();
    let company = Company::new(&ours, &theirs);
    let company = company.with_threads(&builder, &server.url()).await;
    let java = JavaClient::new(RedissonVersion::V4_7_0, &server.url(), None);
    let mut served = Vec::new();
    let java_waits = async || {
        for (kind, names) in NAMES {
            for name in names {
                let thread = java.thread(name).kind(kind);
                let waits = thread.start_lock(name);
                let serve = move || {
                    waits
                        .wait(SOON)
                        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    thread.unlock(name).unwrap();
                };
                served.push(spawn_blocking(serve));
            }
        }
        // A Java thread that waits for a held lock listens.
        eventually("they wait", async || server.channels().len() >= NAMES.len()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    company.goes_through(java_waits).await;
    for one in served {
        one.await.unwrap();
    }
    eventually("nothing is left", async || {
        let mut keys = server.keys().into_iter();
        keys.all(|key| key.contains("_token:") || key.starts_with("leasehold:"))
    })
    .await;
}
