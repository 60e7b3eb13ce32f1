//! Counts the memory allocations for a pair of acquire and release. Times differ from run to run,
//! but these counts do not. So this test finds regressions that the floors miss on a busy machine.

use leasehold::{Client, Lock, Owner};
use leasehold_bench::heap::{self, Counted};
use leasehold_testkit::RedisServer;

#[global_allocator]
static HEAP: Counted = Counted;

const PAIRS: u32 = 1000;

async fn blocks_a_pair(lock: &Lock) -> f64 {
    // The first pairs make tables that are never freed.
    for _ in 0..10 {
        pair(lock).await;
    }
    heap::count();
    for _ in 0..PAIRS {
        pair(lock).await;
    }
    heap::counted().blocks as f64 / f64::from(PAIRS)
}

async fn pair(lock: &Lock) {
    let guard = lock.acquire().await.expect("nobody else wants it");
    guard.release().await.expect("it is held");
}

/// This file has only one test, because the blocks of another test would be counted too.
#[tokio::test]
async fn pairs_ask_for_few_blocks() {
    let client = Client::embedded();
    let blocks = blocks_a_pair(&client.lock("orders")).await;
    assert!(blocks < 18.5, "{blocks} blocks a pair, embedded");

    let owned = client.lock("orders").owned_by(&Owner::new());
    let outer = owned.acquire().await.expect("nobody else wants it");
    let blocks = blocks_a_pair(&owned).await;
    assert!(blocks < 0.5, "{blocks} blocks a re-entry");
    outer.release().await.expect("it is held");

    let server = RedisServer::start().expect("a server starts");
    let client = Client::connect(&server.url()).await.expect("it is there");
    let blocks = blocks_a_pair(&client.lock("orders")).await;
    assert!(blocks < 35.5, "{blocks} blocks a pair, with a server");
}
