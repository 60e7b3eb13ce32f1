//! Watches over a network that loses messages and requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::watch::{Change, Watch};
use tokio::task::JoinSet;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

async fn next(watch: &mut Watch) -> Change {
    let change = tokio::time::timeout(60 * SECOND, watch.next()).await;
    change.expect("in time").expect("it goes on").unwrap()
}

async fn until(watch: &mut Watch, is_it: impl Fn(&Change) -> bool) -> Change {
    loop {
        let change = next(watch).await;
        if is_it(&change) {
            return change;
        }
    }
}

fn is_held(change: &Change) -> bool {
    matches!(change, Change::Held(_))
}

fn is_free(change: &Change) -> bool {
    matches!(change, Change::Freed)
}

#[tokio::test(start_paused = true)]
async fn lost_message_costs_a_poll_interval() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    network.on_message(|_| None);
    let guard = server.client().lock("x").acquire().await.unwrap();
    let mut watch = ours.watch("x");
    until(&mut watch, is_held).await;
    sleep(300 * MS).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    until(&mut watch, is_free).await;
    assert!(start.elapsed() <= SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn state_that_lasts_a_poll_interval_is_reported() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    network.on_message(|_| None);
    network.on_request(takes(20 * MS));
    let mut watch = ours.watch("x");
    until(&mut watch, is_free).await;
    let other = server.client();
    let reads = tokio::spawn(async move {
        let mut held = 0;
        while held < 10 {
            held += usize::from(is_held(&next(&mut watch).await));
        }
    });
    for _ in 0..10 {
        let guard = other.lock("x").acquire().await.unwrap();
        // This is the interval, plus the time for which the request travels.
        sleep(SECOND + 40 * MS).await;
        guard.release().await.unwrap();
        sleep(SECOND + 40 * MS).await;
    }
    tokio::time::timeout(SECOND, reads).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn outage_is_reported_once_and_then_its_result() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    let guard = server.client().lock("x").acquire().await.unwrap();
    let mut watch = ours.watch("x");
    until(&mut watch, is_held).await;
    for _ in 0..2 {
        network.refuse(true);
        network.cut();
        let away = next(&mut watch).await;
        assert!(
            matches!(&away, Change::Away(error) if error.is_transient()),
            "{away:?}"
        );
        let quiet = tokio::time::timeout(10 * SECOND, watch.next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
        network.refuse(false);
        let back = next(&mut watch).await;
        assert!(matches!(back, Change::Back), "{back:?}");
        // Nothing has changed meanwhile.
        let quiet = tokio::time::timeout(3 * SECOND, watch.next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
    }
    network.refuse(true);
    network.cut();
    assert!(matches!(next(&mut watch).await, Change::Away(_)));
    guard.release().await.unwrap();
    network.refuse(false);
    assert!(matches!(next(&mut watch).await, Change::Back));
    assert!(matches!(next(&mut watch).await, Change::Released(_)));
    assert!(matches!(next(&mut watch).await, Change::Freed));
}

#[tokio::test(start_paused = true)]
async fn watch_without_a_server_begins_when_it_answers() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    network.refuse(true);
    network.cut();
    let (mut watch, mut all) = (ours.watch("x"), ours.watch_all("*"));
    assert!(matches!(next(&mut watch).await, Change::Away(_)));
    let away = all.next().await.unwrap().unwrap();
    assert!(matches!(away.change, Change::Away(_)), "{away:?}");
    assert_eq!(away.name, "*");
    assert!(watch.state().is_none());
    network.refuse(false);
    assert!(matches!(next(&mut watch).await, Change::Back));
    assert!(matches!(next(&mut watch).await, Change::Freed));
    let back = all.next().await.unwrap().unwrap();
    assert!(matches!(back.change, Change::Back), "{back:?}");
}

#[tokio::test(start_paused = true)]
async fn thousand_watches_share_requests_and_a_subscription() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    let subscribed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&subscribed);
    network.on_request(takes(5 * MS));
    network.on_subscription(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        5 * MS
    });
    let guard = server.client().lock("x").acquire().await.unwrap();
    let mut watches = JoinSet::new();
    for _ in 0..1000 {
        let mut watch = ours.watch("x").poll_interval(3600 * SECOND);
        watches.spawn(async move {
            until(&mut watch, is_held).await;
            until(&mut watch, is_free).await;
        });
    }
    sleep(SECOND).await;
    assert!(network.requests() < 10, "{}", network.requests());
    assert_eq!(subscribed.load(Ordering::SeqCst), 1);
    guard.release().await.unwrap();
    while let Some(done) = watches.join_next().await {
        done.unwrap();
    }
    assert!(network.requests() < 20, "{}", network.requests());
    let left = async || ours.activity().channels == 0;
    support::eventually("they have unsubscribed", left).await;
}

#[tokio::test(start_paused = true)]
async fn flood_of_messages_is_no_flood_of_requests() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    let busy = server.client().lock("x");
    let guard = busy.acquire().await.unwrap();
    let mut watch = ours.watch("x");
    until(&mut watch, is_held).await;
    guard.release().await.unwrap();
    let reads = tokio::spawn(async move { while watch.next().await.is_some() {} });
    sleep(SECOND).await;
    let before = network.requests();
    for _ in 0..1000 {
        busy.acquire().await.unwrap().release().await.unwrap();
        sleep(MS).await;
    }
    let asked = network.requests() - before;
    assert!((10..=30).contains(&asked), "{asked} requests");
    reads.abort();
}

#[tokio::test(start_paused = true)]
async fn many_names_are_asked_about_less_often() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    let holder = server.client();
    let mut guards = Vec::new();
    for n in 0..1005 {
        guards.push(holder.lock(format!("job:{n}")).acquire().await.unwrap());
    }
    let mut all = ours.watch_all("job:*").rescan_every(3600 * SECOND);
    for _ in 0..1000 {
        all.next().await.unwrap().unwrap();
    }
    eventually_left_out(&mut all, 5).await;
    let before = network.requests();
    let quiet = tokio::time::timeout(10 * SECOND, all.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let asked = network.requests() - before;
    // With one request a second for each name, there would be 10,000 requests.
    assert!((1000..=7000).contains(&asked), "{asked} requests");
}

async fn eventually_left_out(all: &mut leasehold::watch::WatchAll, count: u64) {
    for _ in 0..100 {
        let _ = tokio::time::timeout(10 * MS, all.next()).await;
        if all.left_out() == count {
            return;
        }
    }
    panic!("{} are left out", all.left_out());
}
