//! The latch: at zero every waiter continues, none continues earlier, and none misses it.

use std::time::Duration;

use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, CountDownLatch, ErrorKind};

use super::{LEASE, place};
use crate::support::{HOUR, all_refuse_a_hash, drop_after, eventually};

async fn latch(client: &Client, count: u64) -> CountDownLatch {
    let latch = client.count_down_latch("x").poll_interval(HOUR);
    assert!(latch.try_set_count(count).await.unwrap());
    latch
}

async fn soon<T>(task: tokio::task::JoinHandle<T>) -> T {
    let woken = tokio::time::timeout(Duration::from_secs(20), task).await;
    woken.expect("woken").unwrap()
}

async fn waits(client: &Client) {
    eventually("somebody waits", async || client.activity().channels == 1).await;
}

#[tokio::test]
async fn unset_latch_is_open() {
    let place = place();
    let client = place.client().await;
    let latch = client.count_down_latch("x");
    latch.wait().await.unwrap();
    assert!(latch.wait_for(HOUR).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert_eq!(latch.count().await.unwrap(), 0);
    assert!(!latch.delete().await.unwrap());
    place.is_clean_but_for(&[], &[&client]).await;
}

#[tokio::test]
async fn latch_counts_down_to_zero_only() {
    let place = place();
    let client = place.client().await;
    let latch = latch(&client, 4).await;
    assert!(!latch.try_set_count(9).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 3);
    assert_eq!(latch.count_down_by(2).await.unwrap(), 1);
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(!latch.wait_for(LEASE / 2).await.unwrap());
    let past = tokio::time::Instant::now();
    assert!(!latch.wait_until(past).await.unwrap(), "asks once");
    assert_eq!(latch.count_down_by(7).await.unwrap(), 0);
    latch.wait().await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(latch.try_set_count(1).await.unwrap(), "it can be set again");
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(latch.delete().await.unwrap());
    place.is_clean_but_for(&[], &[&client]).await;
}

#[tokio::test]
async fn only_zero_wakes_the_latch_waiters() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let latch = latch(&clients[0], 2).await;
    let waiters: Vec<_> = (0..20)
        .map(|n| {
            let latch = clients[n % 2].count_down_latch("x").poll_interval(HOUR);
            tokio::spawn(async move { latch.wait().await.unwrap() })
        })
        .collect();
    waits(&clients[0]).await;
    waits(&clients[1]).await;
    latch.count_down().await.unwrap();
    assert!(!latch.wait_for(LEASE / 2).await.unwrap());
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    latch.count_down().await.unwrap();
    for waiter in waiters {
        soon(waiter).await;
    }
    place
        .is_clean_but_for(&[], &[&clients[0], &clients[1]])
        .await;
}

#[tokio::test]
async fn latch_set_again_still_releases_waiters() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let latch = latch(&ours, 1).await;
    for strategy in [
        WaitStrategy::PubSub,
        // Without messages, the stored note that the latch was opened is enough.
        WaitStrategy::Backoff(Backoff::constant(Duration::from_millis(40))),
    ] {
        let other = theirs
            .count_down_latch("x")
            .poll_interval(HOUR)
            .wait_strategy(strategy.clone());
        let waiter = tokio::spawn(async move { other.wait().await.unwrap() });
        eventually("it waits", async || theirs.activity().lines == 1).await;
        if strategy == WaitStrategy::PubSub {
            waits(&theirs).await;
        }
        // The first request of the waiter has been answered by then.
        assert!(
            !theirs
                .count_down_latch("x")
                .wait_for(LEASE / 2)
                .await
                .unwrap()
        );
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert!(latch.try_set_count(1).await.unwrap());
        soon(waiter).await;
        assert!(
            !latch.wait_for(LEASE / 2).await.unwrap(),
            "closed for others"
        );
    }
}

#[tokio::test]
async fn deleting_it_lets_those_who_wait_go_on() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let latch = latch(&ours, 5).await;
    let other = theirs.count_down_latch("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { other.wait().await.unwrap() });
    waits(&theirs).await;
    assert!(latch.delete().await.unwrap());
    soon(waiter).await;
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn dropped_latch_wait_leaves_nothing() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let latch = latch(&client, 1).await;
    for polls in 0..1000 {
        let wait = drop_after(polls, latch.wait());
        let open = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if client.activity().channels > 0 {
                    break;
                }
            }
            other.count_down_latch("x").count_down().await.unwrap();
        };
        let (done, ()) = tokio::join!(wait, open);
        place.is_clean_but_for(&[], &[&client]).await;
        if done.is_some() {
            return assert!(polls >= 3, "a wait has more await points than {polls}");
        }
        latch.try_set_count(1).await.unwrap();
    }
    panic!("it never ended");
}

#[tokio::test]
async fn latch_rejects_a_foreign_key() {
    let place = place();
    let client = place.client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let latch = client.count_down_latch("x");
    let errors = [
        latch.wait().await.unwrap_err(),
        latch.try_set_count(1).await.map(drop).unwrap_err(),
        latch.count_down().await.map(drop).unwrap_err(),
        latch.count().await.map(drop).unwrap_err(),
        latch.delete().await.map(drop).unwrap_err(),
    ];
    all_refuse_a_hash(errors);
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn invalid_latch_requests_are_refused_unsent() {
    let place = place();
    let client = place.client().await;
    for result in [
        client.count_down_latch("").wait().await,
        client
            .count_down_latch("x")
            .try_set_count(0)
            .await
            .map(drop),
        client
            .count_down_latch("x")
            .try_set_count(u64::MAX)
            .await
            .map(drop),
        client
            .count_down_latch("x")
            .count_down_by(0)
            .await
            .map(drop),
        client
            .count_down_latch("x")
            .wait_for(Duration::ZERO)
            .await
            .map(drop),
        client
            .count_down_latch("x")
            .poll_interval(Duration::ZERO)
            .wait()
            .await,
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Misuse);
    }
    place.is_clean(&[&client]).await;
}
