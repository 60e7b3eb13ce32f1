//! Permits that are released at the same time while other tasks of the process wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{join_all, poll_immediate};
use leasehold::testing::{Fate, Network, Step};
use leasehold::{Client, Embedded, ErrorKind, Result, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use super::faults::{MS, SECOND, fates, strike};

struct Scene {
    server: Embedded,
    client: Client,
    network: Network,
    semaphore: Semaphore,
    number: u32,
    /// The permits in use, each in a guard of its own.
    permits: Vec<SemaphorePermit>,
    /// A waiter for all permits.
    waiter: JoinHandle<Result<SemaphorePermit>>,
}

async fn scene() -> Scene {
    scene_of(8).await
}

/// Makes a semaphore whose permits are all in use, and a waiter of the same process for all of
/// them.
async fn scene_of(number: u32) -> Scene {
    let server = Embedded::new();
    let (client, network) = server.client_over_network(&Client::builder()).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    let semaphore = client.semaphore("x");
    semaphore.try_set_permits(number).await.unwrap();
    let mut all = semaphore.acquire_many(number).await.unwrap();
    let mut permits: Vec<_> = (1..number).filter_map(|_| all.split(1)).collect();
    permits.push(all);
    let waits = semaphore.clone();
    let waiter = tokio::spawn(async move { waits.acquire_many(number).await });
    tokio::time::sleep(SECOND / 2).await;
    Scene {
        server,
        client,
        network,
        semaphore,
        number,
        permits,
        waiter,
    }
}

impl Scene {
    /// Applies `fate` to the first request that adds permits. Returns the counter of these
    /// requests.
    fn strike(&self, fate: Fate) -> Arc<AtomicUsize> {
        strike(&self.network, Step::SemaphoreAdd, 0, fate)
    }

    /// Asserts that the waiter is served, and that finally all permits are free.
    async fn all_come_back(self, what: &str) {
        let served = self.waiter.await.unwrap().unwrap();
        tokio::time::sleep(30 * SECOND).await;
        let witness = self.server.client().semaphore("x");
        let free = witness.available_permits().await.unwrap();
        assert_eq!(free, 0, "{what}: the waiter has them all");
        served.release().await.unwrap();
        self.client.close().await;
        tokio::time::sleep(30 * SECOND).await;
        let free = witness.available_permits().await.unwrap();
        assert_eq!(free, i64::from(self.number), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn simultaneous_releases_share_one_request() {
    let mut scene = scene().await;
    let requests = scene.strike(Fate::delivered(MS, MS));
    let released = scene.permits.split_off(3);
    drop(std::mem::take(&mut scene.permits));
    for released in join_all(released.into_iter().map(SemaphorePermit::release)).await {
        released.unwrap();
    }
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    scene.all_come_back("nothing happens").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_64_releases_and_no_more() {
    let mut scene = scene_of(200).await;
    let requests = scene.strike(Fate::delivered(MS, MS));
    drop(std::mem::take(&mut scene.permits));
    scene.all_come_back("200 at once").await;
    // One more request is for the waiter's permits.
    assert_eq!(requests.load(Ordering::SeqCst), 4 + 1);
}

#[tokio::test(start_paused = true)]
async fn shared_release_request_counts_once_after_faults() {
    for (what, fate) in fates() {
        let mut scene = scene().await;
        let requests = scene.strike(fate);
        let mut permits = std::mem::take(&mut scene.permits);
        let released = permits.split_off(4);
        for given_up in permits.split_off(2) {
            // The release is polled only once, and then dropped.
            assert!(poll_immediate(given_up.release()).await.is_none());
        }
        // The other releases are sent as a request of their own, while the first request is under
        // way.
        let behind = permits.pop();
        drop(permits);
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        drop(behind);
        for released in join_all(released.into_iter().map(SemaphorePermit::release)).await {
            assert!(released.is_ok(), "{what}: it is sent again: {released:?}");
        }
        assert!(requests.load(Ordering::SeqCst) >= 2, "{what}");
        scene.all_come_back(what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_to_each() {
    let mut scene = scene().await;
    let permits = std::mem::take(&mut scene.permits);
    assert!(scene.server.remove("x"));
    let other = scene.server.client().lock("x");
    let _in_the_way = other.try_acquire().await.unwrap().unwrap();
    for released in join_all(permits.into_iter().map(SemaphorePermit::release)).await {
        assert_eq!(released.unwrap_err().kind(), ErrorKind::WrongKind);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_behind_a_drop_finds_its_permits() {
    let mut scene = scene().await;
    let semaphore = scene.semaphore.clone();
    drop(scene.permits.pop());
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
    drop(scene.permits.pop());
    assert_eq!(semaphore.drain().await.unwrap(), 2);
    drop(scene.permits.pop());
    assert!(!semaphore.try_set_permits(7).await.unwrap());
    semaphore.release(2).await.unwrap();
    drop(std::mem::take(&mut scene.permits));
    scene.all_come_back("drained and released").await;
}

#[tokio::test(start_paused = true)]
async fn whoever_tries_behind_a_drop_gets_its_permit() {
    let mut scene = scene().await;
    scene.waiter.abort();
    assert!(scene.waiter.await.is_err());
    let mut waiter = Box::pin(scene.semaphore.acquire_many(scene.number));
    let waits = tokio::time::timeout(SECOND, &mut waiter).await;
    assert!(waits.is_err());
    drop(scene.permits.pop());
    // No task waits any more, and the permit has not been sent yet.
    drop(waiter);
    assert!(scene.semaphore.try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn unpolled_release_delays_no_other() {
    let mut scene = scene().await;
    let requests = scene.strike(Fate::delivered(MS, MS));
    let first = scene.permits.pop().unwrap();
    let mut left_alone = Box::pin(first.release());
    assert!(poll_immediate(&mut left_alone).await.is_none());
    let permits = std::mem::take(&mut scene.permits);
    for released in join_all(permits.into_iter().map(SemaphorePermit::release)).await {
        released.unwrap();
    }
    assert_eq!(
        requests.load(Ordering::SeqCst),
        1,
        "they went with the first"
    );
    scene.all_come_back("left alone").await;
    left_alone.await.unwrap();
}

#[test]
fn release_fails_after_its_runtime_ends() {
    let theirs = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = Embedded::new();
    let (client, permit) = theirs.block_on(async {
        let (client, _network) = server.client_over_network(&Client::builder()).unwrap();
        let semaphore = client.semaphore("x");
        semaphore.try_set_permits(1).await.unwrap();
        let permit = semaphore.acquire().await.unwrap();
        (client, permit)
    });
    let ours = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let waits = client.semaphore("x");
    // The waiter wants more permits than are released, so the permit is not handed over to it.
    let mut waiter = Box::pin(waits.acquire_many(2));
    ours.block_on(async {
        while client.activity().channels == 0 {
            assert!(poll_immediate(&mut waiter).await.is_none());
            tokio::time::sleep(MS).await;
        }
    });
    drop(theirs);
    let released = ours.block_on(permit.release());
    assert_eq!(released.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}
