//! The master behind sentinels is replaced while clients of both Redissons and of this library hold
//! and wait.

use leasehold_testkit::RedissonVersion;

use crate::checks::holds_and_waiters_outlive_a_failover;
use crate::what::What;

#[tokio::test(flavor = "multi_thread")]
async fn plain_holds_and_waiters_outlive_a_failover() {
    holds_and_waiters_outlive_a_failover(&RedissonVersion::ALL, What::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fair_holds_and_waiters_outlive_a_failover() {
    holds_and_waiters_outlive_a_failover(&RedissonVersion::ALL, What::Fair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn write_holds_and_waiters_outlive_a_failover() {
    holds_and_waiters_outlive_a_failover(&RedissonVersion::ALL, What::Write).await;
}
