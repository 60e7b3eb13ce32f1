//! The failover guard behind sentinels: a hold that the replica did not receive has ended when the
//! next client gets the lock.

use std::time::Duration;

use leasehold::ClientBuilder;
use leasehold::testing::history::Report;
use leasehold_testkit::Sentinels;

use super::failovers::{cut_off, leads_to};
use crate::support::eventually;
use crate::support::guarded::{Both, builder, each_failover, guarded, is_known, noted};

/// A span longer than the sentinels need to replace a master. With a shorter one, a lost hold would
/// end before any other client could get the lock.
const SPAN: Duration = Duration::from_secs(12);
const LONG: Duration = Duration::from_secs(600);

/// Makes a master grant the lock to a client and die, and then makes the promoted replica, which
/// has not received that grant, grant it to another client.
async fn lost(builder: ClientBuilder) -> Report {
    let sentinels = Sentinels::start(1);
    let [old, new] = sentinels.servers() else {
        panic!("a master and a replica");
    };
    is_known(old);
    eventually("it is replicated", async || noted(new).is_some()).await;
    let connect = async || builder.connect(&sentinels.url()).await.unwrap();
    let (first, second) = (connect().await, connect().await);
    cut_off(new, old);
    let mut both = Both::new();
    both.hold(first.lock("x"), "first").await;
    old.kill().unwrap();
    let report = both.hold_second(second.lock("x")).await;
    leads_to(&second, new).await;
    report
}

#[test]
fn lost_grant_is_given_again_without_a_guard() {
    for report in each_failover(|| lost(builder(LONG))) {
        assert_eq!(report.overlaps.len(), 1, "{report:?}");
    }
}

#[test]
fn guard_outlasts_a_lost_grant() {
    for report in each_failover(|| lost(guarded(SPAN))) {
        report.judge().unwrap();
    }
}

/// If the replica has received the hold, it lasts through the span.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_that_was_replicated_goes_on_during_the_span() {
    let sentinels = Sentinels::start(1);
    is_known(&sentinels.servers()[0]);
    let client = guarded(LONG).connect(&sentinels.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let before = guard.valid_until();
    let new = &sentinels.servers()[sentinels.fail_over()];
    leads_to(&client, new).await;
    assert!(client.lock("y").try_acquire().await.unwrap().is_none());
    eventually("it is renewed", async || {
        guard.valid_until() > before + Duration::from_millis(100)
    })
    .await;
    guard.release().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
}
