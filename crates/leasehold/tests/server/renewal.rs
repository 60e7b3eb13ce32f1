//! What a holder hears of renewals.

use std::time::Duration;

use leasehold::{Client, LossReason};
use leasehold_testkit::RedisServer;

use crate::support::eventually;

#[tokio::test]
async fn holder_sees_failed_renewal_before_loss() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder()
        .lease(Duration::from_secs(3))
        .connect(&server.url())
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.renewal_failure(), None);
    server.kill().unwrap();
    eventually("a renewal has failed", async || {
        matches!(
            guard.renewal_failure(),
            Some(LossReason::RenewalFailed { cause, .. }) if cause.contains("127.0.0.1")
        )
    })
    .await;
    assert_eq!(guard.loss(), None);
    server.restart().unwrap();
    // It comes back empty, and says so.
    assert_eq!(guard.lost().await, LossReason::Deleted);
}
