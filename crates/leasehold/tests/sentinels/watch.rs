//! A watch follows the master.

use std::time::Duration;

use leasehold::watch::{Change, Watch};
use leasehold::{Acknowledgement, Client};
use leasehold_testkit::{RedisServer, Sentinels};

async fn until(watch: &mut Watch, is_it: fn(&Change) -> bool) {
    let found = async { while !is_it(&watch.next().await.expect("it goes on").unwrap()) {} };
    let limit = Duration::from_secs(120);
    tokio::time::timeout(limit, found).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_continues_with_the_next_master() {
    let servers = RedisServer::builder();
    let sentinels = Sentinels::of(&servers, &RedisServer::builder(), 1);
    let client = Client::connect(&sentinels.url()).await.unwrap();
    let other = Client::connect(&sentinels.url()).await.unwrap();
    let lock = client.lock("x").lease(Duration::from_secs(600));
    let lock = lock.acknowledged_by(Acknowledgement::replicas(1));
    let guard = lock.acquire().await.unwrap();
    let mut watch = other.watch("x");
    until(&mut watch, |change| matches!(change, Change::Held(_))).await;
    sentinels.kill_and_replace();
    // The hold has outlasted the failover, so its end is the next change of the state.
    guard.release().await.unwrap();
    until(&mut watch, |change| matches!(change, Change::Freed)).await;
}
