//! Permits without leases that are handed over within a process: a holder passes them to the next
//! waiters there.

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use super::hand_over::{at, near, others_go_on};
use super::*;

/// Makes a semaphore with `permits` permits.
async fn semaphore(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("x");
    semaphore.try_set_permits(permits).await.unwrap();
    semaphore
}

/// Returns `permits` holders of one permit each, and the same number of waiters of their process.
async fn held(
    semaphore: &Semaphore,
    permits: usize,
) -> (Vec<SemaphorePermit>, Vec<JoinHandle<SemaphorePermit>>) {
    let permits = join_all((0..permits).map(|_| semaphore.acquire())).await;
    let permits: Vec<_> = permits.into_iter().map(Result::unwrap).collect();
    let waiters = permits.iter().map(|_| {
        let semaphore = semaphore.clone();
        tokio::spawn(async move { semaphore.acquire().await.unwrap() })
    });
    let waiters = waiters.collect();
    sleep(2 * MS).await;
    (permits, waiters)
}

/// If more permits are in use than the semaphore has, the surplus must be released before a permit
/// can be handed over.
#[tokio::test(start_paused = true)]
async fn no_permit_passes_on_while_too_many_are_in_use() {
    for dropped in [false, true] {
        let server = Embedded::new();
        let (client, _network, sent) = near(&server);
        let semaphore = semaphore(&client, 4).await;
        let (mut permits, waiters) = held(&semaphore, 4).await;
        // If a permit is handed over, this process has its slice.
        drop(permits.pop());
        others_go_on().await;
        assert_eq!(sent.count(Step::SemaphoreAdd), 0);
        let mut fewer = Box::pin(semaphore.add_permits(-3));
        if dropped {
            assert!(fewer.as_mut().now_or_never().is_none());
            drop(fewer);
        } else {
            fewer.await.unwrap();
        }
        assert_eq!(waiters.iter().filter(|one| one.is_finished()).count(), 1);
        drop(permits.pop());
        drop(permits.pop());
        sleep(50 * MS).await;
        assert_eq!(waiters.iter().filter(|one| one.is_finished()).count(), 1);
        let seen = server.client().semaphore("x");
        assert_eq!(seen.available_permits().await.unwrap(), -1);
        drop(permits);
        // Two waiters already have a permit each, and one permit more than allowed is in use. The
        // other waiters get their permits one after the other.
        for waiter in waiters {
            waiter.await.unwrap().release().await.unwrap();
        }
        assert_eq!(seen.available_permits().await.unwrap(), 1);
    }
}

/// Lets four tasks of each of three clients use the only permit all the time, for 2 ms each. Among
/// the waiting clients, it is always the same one that hears of a release first. Returns how often
/// each client had the permit, and the longest wait.
async fn three_alike<P>(
    acquire: impl AsyncFn(&Client) -> P,
    release: impl AsyncFn(P),
) -> ([u32; 3], Duration) {
    let server = Embedded::new();
    let semaphore = semaphore(&server.client(), 1).await;
    let clients = [(); 3].map(|()| {
        let (client, network, _) = at(&server, MS, MS);
        // A server notifies its listeners in the order in which they subscribed.
        network.on_message(|_| Some(Duration::ZERO));
        (client, network)
    });
    let end = Instant::now() + 3000 * MS;
    let tasks = clients.iter().flat_map(|client| [client; 4]);
    let tasks = tasks.map(async |(client, _)| {
        let (mut rounds, mut longest) = (0, Duration::ZERO);
        while Instant::now() < end {
            let start = Instant::now();
            let permit = acquire(client).await;
            longest = longest.max(start.elapsed());
            sleep(2 * MS).await;
            release(permit).await;
            rounds += 1;
        }
        (rounds, longest)
    });
    let had = join_all(tasks).await;
    let rounds =
        [0, 4, 8].map(|first| had[first..first + 4].iter().map(|(rounds, _)| rounds).sum());
    let longest = had.iter().map(|(_, longest)| *longest).max();
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
    (rounds, longest.unwrap())
}

#[tokio::test(start_paused = true)]
async fn no_client_of_three_is_left_out() {
    let plain = three_alike(
        async |client| client.semaphore("x").acquire().await.unwrap(),
        async |permit| permit.release().await.unwrap(),
    );
    let leased = three_alike(
        async |client| client.expirable_semaphore("x").acquire().await.unwrap(),
        async |permit| permit.release().await.unwrap(),
    );
    for (what, (rounds, longest)) in [("plain", plain.await), ("leased", leased.await)] {
        let (least, most) = (rounds.iter().min(), rounds.iter().max());
        assert!(
            least.unwrap() * 5 >= *most.unwrap(),
            "{what}: {rounds:?}, {longest:?}"
        );
        assert!(longest <= 1000 * MS, "{what}: {rounds:?}, {longest:?}");
    }
}
