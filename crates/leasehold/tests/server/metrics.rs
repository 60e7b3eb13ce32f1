//! Each metric of `docs/metrics.md` counts what the page says.

use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Proxy, RedisServer};
use metrics_util::MetricKind;
use metrics_util::debugging::DebuggingRecorder;

use crate::support::metrics::documented;
use crate::support::told::{Told, is};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn every_metric_counts_what_the_page_says() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut told = Told::new(&recorder);
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let builder = Client::builder().lease(Duration::from_secs(20));
    let client = builder.connect(&proxy.url()).await.unwrap();

    let guard = client.lock("x").acquire().await.unwrap();
    assert!(is(told.number("leasehold.held kind=lock"), 1.0));
    let lock = client.lock("x");
    let mut waiter = Box::pin(lock.acquire());
    assert!((&mut waiter).now_or_never().is_none());
    assert!(is(told.number("leasehold.waiting kind=lock"), 1.0));
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.extend(HOUR / 60).await.unwrap();
    // The hold was renewed just now, so it is handed over to the waiter.
    let (released, next) = tokio::join!(guard.release(), &mut waiter);
    released.unwrap();
    let next = next.unwrap();
    eventually("the first guard's hold has ended", async || {
        is(told.number("leasehold.held kind=lock"), 1.0)
    })
    .await;
    assert!(is(told.number("leasehold.waiting kind=lock"), 0.0));

    client.lock("x").force_unlock().await.unwrap();
    assert_eq!(next.extend(HOUR).await.unwrap_err().kind(), ErrorKind::Lost);
    drop(next);
    let lost = "leasehold.losses kind=lock reason=forced";
    assert!(is(told.number(lost), 1.0), "{:?}", told.numbers);

    let dropped = client.lock("y");
    assert!(dropped.acquire().now_or_never().is_none());
    let result = |word: &str| format!("leasehold.acquires kind=lock result={word}");
    for (word, wanted) in [("granted", 2.0), ("busy", 1.0), ("cancelled", 1.0)] {
        let number = told.number(&result(word));
        assert!(is(number, wanted), "{word}: {number}");
    }
    assert_eq!(told.times("leasehold.acquire.duration kind=lock").len(), 2);
    assert_eq!(told.times("leasehold.hold.duration kind=lock").len(), 2);
    assert!(told.number("leasehold.renewals kind=lock result=confirmed") >= 1.0);
    let margins = told.times("leasehold.renewal.margin kind=lock");
    assert!(
        !margins.is_empty() && margins.iter().all(|part| (0.0..=1.0).contains(part)),
        "{margins:?}"
    );

    assert!(told.number("leasehold.server.calls") >= 3.0);
    assert!(
        told.times("leasehold.server.call.operations")
            .iter()
            .all(|n| *n >= 1.0)
    );
    let skew = told.number("leasehold.server.clock.skew");
    assert!(skew.abs() < 60.0, "{skew}");
    proxy.cut();
    eventually("the connection is opened again", async || {
        told.number("leasehold.server.reconnects") >= 1.0
    })
    .await;

    told.look();
    for metric in documented() {
        let kind = match &*metric.kind {
            "counter" => MetricKind::Counter,
            "gauge" => MetricKind::Gauge,
            _ => MetricKind::Histogram,
        };
        assert_eq!(told.kinds.get(&metric.name), Some(&kind), "{}", metric.name);
    }
    assert_eq!(told.kinds.len(), documented().len(), "{:?}", told.kinds);
}

#[tokio::test]
async fn hold_that_is_handed_over_is_counted() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut told = Told::new(&recorder);
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    // A hand-over needs a confirmation that is at most 5 ms old. On a busy machine it may be older.
    eventually("a hold is handed over", async || {
        let one = async || client.lock("x").acquire().await.unwrap().release().await;
        let (first, second, third) = tokio::join!(one(), one(), one());
        first.and(second).and(third).unwrap();
        told.number("leasehold.hand_overs kind=lock") >= 1.0
    })
    .await;
}

#[tokio::test]
async fn names_are_told_apart_by_the_patterns_of_the_user() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut told = Told::new(&recorder);
    let builder = Client::builder().metric_names(["orders:*", "*:4?"]);
    let client = builder.embedded(&leasehold::Embedded::new()).unwrap();
    for name in ["orders:42", "users:42", "users:1", "orders:1"] {
        drop(client.lock(name).acquire().await.unwrap());
        drop(client.fair_lock(name).acquire().await.unwrap());
    }
    for kind in ["lock", "fair"] {
        for (name, wanted) in [("orders:*", 2.0), ("*:4?", 1.0), ("other", 1.0)] {
            let series = format!("leasehold.acquires kind={kind} name={name} result=granted");
            assert!(is(told.number(&series), wanted), "{series}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_that_failed_is_counted_and_its_loss_told_once() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut told = Told::new(&recorder);
    let keyspace = leasehold::Embedded::new();
    let (client, network) = keyspace.client_over_network(&Client::builder()).unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    network.refuse(true);
    guard.lost().await;
    drop(guard);
    eventually("the loss is told", async || {
        told.number("leasehold.losses kind=lock reason=renewal_failed") >= 1.0
    })
    .await;
    assert!(told.number("leasehold.renewals kind=lock result=failed") >= 1.0);
    let losses = told.number("leasehold.losses kind=lock reason=renewal_failed");
    assert!(is(losses, 1.0), "{losses}");
}
