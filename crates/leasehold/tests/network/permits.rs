//! Permits without leases that stay in a process: a holder gives them to the next waiters there.

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use super::hand_over::{near, others_go_on};
use super::*;

/// A semaphore with so many permits.
async fn semaphore(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("x");
    semaphore.try_set_permits(permits).await.unwrap();
    semaphore
}

/// So many holders of one permit each, and as many waiters of their process behind them.
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

/// Those that are in use count first.
#[tokio::test(start_paused = true)]
async fn no_permit_passes_on_while_too_many_are_in_use() {
    for dropped in [false, true] {
        let server = Embedded::new();
        let (client, _network, sent) = near(&server);
        let semaphore = semaphore(&client, 4).await;
        let (mut permits, waiters) = held(&semaphore, 4).await;
        // One that passes on shows that it is this process's turn.
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
        // Two have one by now, and one is too many. The others have theirs one after the other.
        for waiter in waiters {
            waiter.await.unwrap().release().await.unwrap();
        }
        assert_eq!(seen.available_permits().await.unwrap(), 1);
    }
}
