//! A holder's view of its renewals.

use std::time::Duration;

use leasehold::{Client, LockGuard, LossReason};
use leasehold_testkit::proxy::Strike;
use leasehold_testkit::{RedisServer, Reply};

use super::permissions::client_with;
use super::scene::{replay, struck, through_proxy};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn a_denied_name_costs_no_other_its_renewal() {
    let server = RedisServer::start().unwrap();
    let client = client_with(&server, &["+@all", "~*", "&*"]).await;
    let lease = Duration::from_secs(6);
    let mut guards = Vec::new();
    for number in 0..20 {
        let name = format!("{}{number}", if number == 7 { "b" } else { "a" });
        let lock = client.lock(&name).lease(lease);
        let lock = lock.renew_every(lease / 12);
        guards.push(lock.acquire().await.unwrap());
    }
    let rules = ["ACL", "SETUSER", "app", "resetkeys", "~a*", "~{a*"];
    assert_eq!(server.command(&rules).unwrap(), Reply::Text("OK".into()));
    // The client's thread sleeps until all renewals are due, so they share a call.
    std::thread::sleep(lease / 12);
    eventually("one is denied", async || {
        let failure = guards[7].renewal_failure();
        failure.is_some_and(|failure| failure.to_string().contains("NOPERM"))
    })
    .await;
    let failed = guards.iter().filter_map(LockGuard::renewal_failure);
    assert_eq!(failed.count(), 1);
    let ends: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    eventually("the others are renewed", async || {
        let moved = guards.iter().zip(&ends);
        moved
            .filter(|(guard, end)| guard.valid_until() > **end)
            .count()
            == 19
    })
    .await;
    // The two clocks are not read at the same instant, so an end differs a little between two
    // readings.
    let difference = guards[7].valid_until().saturating_duration_since(ends[7]);
    assert!(difference < Duration::from_millis(1), "{difference:?}");
}

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
    // The server restarts without data, and the client notices.
    assert_eq!(guard.lost().await, LossReason::Deleted);
}

#[tokio::test]
async fn a_late_copy_of_a_request_for_many_shortens_no_extension() {
    let (server, proxy, client, _beside) = through_proxy().await;
    let lease = Duration::from_secs(6);
    let mut guards = Vec::new();
    for number in 0..20 {
        let lock = client.lock(number.to_string()).lease(lease);
        let lock = lock.renew_every(lease / 12);
        guards.push(lock.acquire().await.unwrap());
    }
    let fault = proxy.strike_next(b"\r\nlock.renew_many\r\n", Strike::Double);
    // The client's thread sleeps until all renewals are due, so they share a call.
    std::thread::sleep(lease / 12);
    struck(&fault).await;
    for guard in &guards {
        guard.extend(HOUR).await.unwrap();
    }
    replay(&server, &fault.request());
    for guard in &guards {
        let left = server.command(&["PTTL", guard.name()]).unwrap();
        assert!(left.as_int().unwrap() > 3_000_000, "cut short: {left:?}");
    }
}
