//! Fencing tokens from a server that loses its data.

use leasehold::{Client, FencedLock};
use leasehold_testkit::{ClockShim, RedisServer};

use crate::support::HOUR;

async fn next_token(lock: &FencedLock) -> u64 {
    let guard = lock.acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

fn forget(server: &RedisServer) {
    let said = server.command(&["FLUSHALL"]).unwrap();
    assert_eq!(said.as_text(), Some("OK"));
}

#[tokio::test]
async fn tokens_rise_over_restarts_and_flushes() {
    let clock = ClockShim::new().unwrap();
    let server = RedisServer::builder().clock(&clock).start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fenced_lock("x");
    let mut last = next_token(&lock).await;
    for round in 0..6 {
        match round % 3 {
            0 => server.restart().unwrap(),
            1 => forget(&server),
            _ => clock.step_ahead(HOUR),
        }
        let next = next_token(&lock).await;
        assert!(next > last, "{next} after {last}, round {round}");
        last = next;
    }
    // The counter still exists, so the clock does not matter.
    clock.step_back(HOUR);
    let next = next_token(&lock).await;
    assert!(next > last, "{next} after {last}");
    // If the counter and the clock's time are both lost, nothing shows how high the tokens were.
    forget(&server);
    assert!(next_token(&lock).await < next);
}
