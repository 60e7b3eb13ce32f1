//! Operations that begin at the same time are sent in a few calls.

use futures_util::future::try_join_all;
use leasehold::{Client, LockGuard};
use leasehold_testkit::RedisServer;

const LOCKS: usize = 500;

#[tokio::test]
async fn five_hundred_acquires_at_once_need_four_calls_at_most() {
    let server = RedisServer::start().unwrap();
    // On a busy machine, the client would also announce that it waits.
    let builder = Client::builder().presence(false);
    let client = builder.connect(&server.url()).await.unwrap();
    // After this, the server has the scripts.
    let first = client.lock("first").acquire().await.unwrap();
    first.release().await.unwrap();
    let locks: Vec<_> = (0..LOCKS)
        .map(|number| client.lock(format!("orders:{number}")))
        .collect();
    let before = server.scripts();
    let acquires = locks.iter().map(|lock| lock.acquire());
    let guards = try_join_all(acquires).await.unwrap();
    let calls = server.scripts() - before;
    assert!((1..=4).contains(&calls), "{calls} calls to acquire");
    let before = server.scripts();
    let releases = guards.into_iter().map(LockGuard::release);
    try_join_all(releases).await.unwrap();
    let calls = server.scripts() - before;
    assert!((1..=4).contains(&calls), "{calls} calls to release");
}
