//! A line of waiters for a server that is silent or unreachable. The wait of each waiter ends by
//! its own limits. A waiter reports a holder only if a server has named it.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use leasehold::testing::Network;
use leasehold::{Client, Embedded, Error, ErrorKind, RedLock, Result};
use tokio::time::Instant;

use super::{MS, over_network};

/// The longest wait of a waiter, and the longest outage that it tolerates.
#[derive(Clone, Copy)]
struct Limits {
    wait: Duration,
    outage: Duration,
}

const LONG: Duration = Duration::from_secs(60);

impl Limits {
    fn waits(wait: Duration) -> Self {
        Self { wait, outage: LONG }
    }

    fn bears(outage: Duration) -> Self {
        Self { wait: LONG, outage }
    }
}

/// A wait, which returns whether it was granted.
type Wait = fn(Client, Limits) -> BoxFuture<'static, Result<bool>>;

macro_rules! wait {
    (|$client:ident| $handle:expr, $wait:ident $(($permits:literal))?) => {
        |$client: Client, limits: Limits| {
            async move {
                let handle = $handle.outage_timeout(limits.outage);
                handle.$wait($($permits,)? limits.wait).await.map(|got| got.is_some())
            }
            .boxed()
        }
    };
}

const WAITS: [(&str, Wait); 8] = [
    ("lock", wait!(|c| c.lock("x"), try_acquire_for)),
    (
        "group",
        wait!(|c| c.group_lock("x", ["a"]), try_acquire_for),
    ),
    ("reader", wait!(|c| c.rw_lock("x"), try_read_for)),
    ("writer", wait!(|c| c.rw_lock("x"), try_write_for)),
    ("permit", wait!(|c| c.semaphore("x"), try_acquire_for)),
    (
        "permit with a lease",
        wait!(|c| c.expirable_semaphore("x"), try_acquire_for),
    ),
    ("fair lock", wait!(|c| c.fair_lock("x"), try_acquire_for)),
    (
        "majority",
        wait!(
            |c| RedLock::new([c.lock("x")])?.distrust_restarted(false),
            try_acquire_for
        ),
    ),
];

/// Returns the error of each wait, and the time after which the wait ended.
async fn in_line(client: &Client, wait: Wait, limits: &[Limits]) -> Vec<(Error, Duration)> {
    let start = Instant::now();
    join_all(limits.iter().map(|limits| async move {
        let got = wait(client.clone(), *limits).await;
        (got.expect_err("no server has answered"), start.elapsed())
    }))
    .await
}

fn is_for_want_of_an_answer(error: &Error) -> bool {
    [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown].contains(&error.kind())
}

async fn silent() -> (Embedded, Client, Network) {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.freeze(true);
    (server, client, network)
}

#[tokio::test(start_paused = true)]
async fn unanswered_wait_ends_in_an_error() {
    for (name, wait) in WAITS {
        let (server, client, network) = silent().await;
        // The last two continue after the first request was abandoned.
        let waits = [100, 50, 200, 100, 1500, 900].map(|ms| Limits::waits(ms * MS));
        let ended = in_line(&client, wait, &waits).await;
        for ((error, after), limits) in ended.iter().zip(waits) {
            assert!(is_for_want_of_an_answer(error), "{name}: {error}");
            assert_eq!(*after, limits.wait, "{name}: {error}");
        }
        network.freeze(false);
        client.close().await;
        // Permits leave markers, which expire.
        let keys = server.keys();
        assert!(
            keys.iter().all(|key| key.contains(":did:")),
            "{name}: {keys:?}"
        );
    }
}

/// The first request is on its way when the connection is cut, and further connections are refused.
#[tokio::test(start_paused = true)]
async fn outcome_stays_unknown_although_later_requests_do_not_run() {
    for (name, wait) in WAITS {
        let (_server, client, network) = silent().await;
        let waiting = tokio::spawn(wait(client.clone(), Limits::bears(20_000 * MS)));
        tokio::time::sleep(100 * MS).await;
        network.refuse(true);
        network.cut();
        let error = waiting.await.unwrap().expect_err("no server has answered");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{name}: {error}");
    }
}

/// An answer ends the doubt about an earlier request. So only the requests of the last outage count.
#[tokio::test(start_paused = true)]
async fn outcome_is_known_after_an_answer() {
    let (server, client, network) = silent().await;
    let held = server.client().lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(WAITS[0].1(client, Limits::bears(20_000 * MS)));
    tokio::time::sleep(100 * MS).await;
    network.freeze(false);
    network.cut();
    tokio::time::sleep(5000 * MS).await;
    network.refuse(true);
    network.cut();
    let error = waiting.await.unwrap().expect_err("the lock is held");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_without_request_fails_as_unavailable() {
    let (_server, client, _network) = silent().await;
    let waits = [100 * MS, 50 * MS].map(Limits::waits);
    let ended = in_line(&client, WAITS[0].1, &waits).await;
    let kinds: Vec<_> = ended.iter().map(|(error, _)| error.kind()).collect();
    assert_eq!(kinds, [ErrorKind::OutcomeUnknown, ErrorKind::Unavailable]);
}

#[tokio::test(start_paused = true)]
async fn each_waiter_has_its_own_outage_timeout() {
    for (name, wait) in WAITS {
        for refuses in [false, true] {
            let (_server, client, network) = silent().await;
            network.refuse(refuses);
            let limits = [5000, 1000, 3000, 2000].map(|ms| Limits::bears(ms * MS));
            let ended = in_line(&client, wait, &limits).await;
            for ((error, after), limits) in ended.iter().zip(limits) {
                assert!(is_for_want_of_an_answer(error), "{name}: {error}");
                assert_eq!(*after, limits.outage, "{name}: {error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_waiters_outage_starts_on_arrival() {
    let (_server, client, _network) = silent().await;
    let wait = WAITS[0].1;
    let first = wait(client.clone(), Limits::bears(10_000 * MS));
    let first = tokio::spawn(first);
    tokio::time::sleep(5000 * MS).await;
    let ended = in_line(&client, wait, &[Limits::bears(2000 * MS)]).await;
    assert_eq!(ended[0].1, 2000 * MS);
    assert!(!first.is_finished());
    first.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn answer_ends_every_waiters_outage() {
    let (server, client, network) = silent().await;
    let held = server.client().lock("x").acquire().await.unwrap();
    let wait = WAITS[0].1;
    let waiters: Vec<_> = (0..3)
        .map(|_| tokio::spawn(wait(client.clone(), Limits::bears(2000 * MS))))
        .collect();
    // Each of the two outages is shorter than the waiters tolerate, but both together are longer.
    for _ in 0..2 {
        tokio::time::sleep(1500 * MS).await;
        network.freeze(false);
        tokio::time::sleep(1500 * MS).await;
        network.freeze(true);
    }
    network.freeze(false);
    held.release().await.unwrap();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap(), "it gets the lock");
    }
}

#[tokio::test(start_paused = true)]
async fn try_behind_unanswered_waiters_fails() {
    for (name, wait) in WAITS {
        let (_server, client, _network) = silent().await;
        let waiter = tokio::spawn(wait(client.clone(), Limits::waits(LONG)));
        tokio::task::yield_now().await;
        let error = match name {
            "reader" | "writer" => client.rw_lock("x").try_write().await.map(drop),
            "permit" => client.semaphore("x").try_acquire().await.map(drop),
            _ => client.lock("x").try_acquire().await.map(drop),
        };
        let error = error.expect_err(name);
        assert!(is_for_want_of_an_answer(&error), "{name}: {error}");
        waiter.abort();
    }
}

/// No waiter is polled after its first poll.
#[tokio::test(start_paused = true)]
async fn many_unpolled_waiters_delay_like_one() {
    let server = Embedded::new();
    let client = server.client();
    let held = server.client().lock("x").acquire().await.unwrap();
    let wait = |client: &Client| WAITS[0].1(client.clone(), Limits::waits(LONG));
    let mut unpolled: Vec<_> = (0..300).map(|_| wait(&client)).collect();
    for wait in &mut unpolled {
        assert!(wait.now_or_never().is_none());
    }
    let next = tokio::spawn(wait(&client));
    tokio::task::yield_now().await;
    let start = Instant::now();
    held.release().await.unwrap();
    assert!(next.await.unwrap().unwrap());
    assert!(start.elapsed() <= 500 * MS, "{:?}", start.elapsed());
}
