//! Fencing tokens across failovers.

use leasehold::{Acknowledgement, Client, FencedLock};
use leasehold_testkit::{ClockShim, RedisServer, Sentinels};

use super::failovers::{cut_off, leads_to};
use crate::support::{HOUR, eventually};

async fn next_token(lock: &FencedLock) -> u64 {
    let guard = lock.acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

/// Returns a master and a replica, a clock that sets the master's time, and a client.
async fn scene() -> (ClockShim, Sentinels, Client) {
    let clock = ClockShim::new().unwrap();
    let servers = RedisServer::builder().clock(&clock);
    let sentinels = Sentinels::of(&servers, &RedisServer::builder(), 1);
    let client = Client::connect(&sentinels.url()).await.unwrap();
    (clock, sentinels, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_although_the_next_masters_clock_is_an_hour_behind() {
    let (clock, sentinels, client) = scene().await;
    let lock = client.fenced_lock("x");
    // The replica has the counter, so its clock does not matter.
    let lock = lock.acknowledged_by(Acknowledgement::replicas(1));
    let mut last = next_token(&lock).await;
    for _ in 0..3 {
        // A release does not wait for a replica. If the release were lost with its master, the hold
        // would end by the clock of the next master, which is an hour late.
        eventually("each server has the release", async || {
            let mut servers = sentinels.servers().iter();
            servers.all(|server| !server.keys().contains(&"x".to_owned()))
        })
        .await;
        clock.step_back(HOUR);
        let new = sentinels.kill_and_replace();
        leads_to(&client, &sentinels.servers()[new]).await;
        let next = next_token(&lock).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_replica_without_the_counter_go_by_its_clock() {
    for (is_behind, rises) in [(false, true), (true, false)] {
        let (clock, sentinels, client) = scene().await;
        let lock = client.fenced_lock("x");
        let [master, replica] = [0, 1].map(|number| &sentinels.servers()[number]);
        cut_off(replica, master);
        let last = next_token(&lock).await;
        if is_behind {
            clock.step_back(HOUR);
        }
        let new = sentinels.kill_and_replace();
        leads_to(&client, &sentinels.servers()[new]).await;
        let next = next_token(&lock).await;
        assert_eq!(next > last, rises, "{next} after {last}");
    }
}
