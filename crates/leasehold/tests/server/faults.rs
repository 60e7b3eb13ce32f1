//! Lost requests, lost replies, lost connections, and a server that stops or restarts without its
//! data.

use std::task::Poll;
use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Client, ErrorKind, LossReason};
use leasehold_testkit::{Proxy, RedisServer};

use super::scene::{LEASE, builder, steady, struck, through_proxy};
use crate::support::{HOUR, acquire_and_release, eventually};

#[tokio::test]
async fn acquire_with_lost_reply_leaves_no_lock() {
    let (server, proxy, ours, _) = through_proxy().await;
    let fault = proxy.cut_after_next(b"lock.acquire");
    let error = ours.lock("x").try_acquire().await.unwrap_err();
    // The client may notice the closed connection before the proxy has recorded the fault.
    struck(&fault).await;
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("`x`"), "{error}");
    // This is long before its lease of 30 s ends.
    eventually("it is undone", async || server.keys().is_empty()).await;
    // A wait survives the fault.
    let fault = proxy.cut_after_next(b"lock.acquire");
    let guard = ours.lock("x").acquire().await.unwrap();
    struck(&fault).await;
    guard.release().await.unwrap();
    eventually("nothing is left", async || server.keys().is_empty()).await;
}

#[tokio::test]
async fn acquire_with_lost_request_is_sent_again() {
    let (server, proxy, ours, _) = through_proxy().await;
    let fault = proxy.cut_before_next(b"lock.acquire");
    let guard = ours.lock("x").acquire().await.unwrap();
    struck(&fault).await;
    guard.release().await.unwrap();
    assert!(server.keys().is_empty());
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_happens_once() {
    let (server, proxy, ours, beside) = through_proxy().await;
    let guard = ours.lock("x").acquire().await.unwrap();
    let fault = proxy.cut_after_next(b"lock.release");
    let successor = tokio::spawn(async move { beside.lock("x").acquire().await.unwrap() });
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    struck(&fault).await;
    let successor = successor.await.unwrap();
    assert_eq!(server.keys(), ["x"]);
    successor
        .release()
        .await
        .expect("nobody took it from the successor");
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_loses_nothing() {
    let (_server, proxy, ours, _) = through_proxy().await;
    let guard = steady(&ours).acquire().await.unwrap();
    let fault = proxy.cut_after_next(b"lock.renew");
    struck(&fault).await;
    let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_counts_from_before_its_request_left() {
    let (_server, proxy, _, _) = through_proxy().await;
    let patient = builder().reply_timeout(HOUR);
    let ours = patient.connect(&proxy.url()).await.unwrap();
    proxy.hold(true);
    let lease = LEASE * 8;
    let lock = ours.lock("x").fixed_lease(lease);
    let acquire = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // The network is slow, not the server: the reply arrives late.
    tokio::time::sleep(LEASE / 3).await;
    let answered = tokio::time::Instant::now();
    proxy.hold(false);
    let guard = acquire.await.unwrap();
    // The deadline is earlier by more than the allowance for clock drift.
    assert!(
        guard.valid_until() + lease / 50 < answered + lease,
        "it counts from the reply"
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn delayed_request_of_dropped_acquire_takes_nothing() {
    let (server, proxy, ours, _) = through_proxy().await;
    proxy.hold(true);
    let lock = ours.lock("x");
    let dropped = tokio::time::timeout(Duration::from_millis(50), lock.acquire()).await;
    assert!(dropped.is_err());
    // This is longer than the reply timeout: the server must notice that the request arrives too
    // late.
    tokio::time::sleep(Duration::from_millis(700)).await;
    proxy.hold(false);
    eventually("the held requests have run", async || {
        server.calls("hdel") > 0
    })
    .await;
    assert_eq!(server.calls("hset"), 0, "it granted a lock for nobody");
    assert!(server.keys().is_empty());
}

#[tokio::test]
async fn late_request_is_asked_again() {
    // For the client, it looks as if its own clock were slow: the first reply says "too late", and
    // the next request uses the server's time.
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = Client::builder()
        .reply_timeout(Duration::from_millis(150))
        .connect(&proxy.url())
        .await
        .unwrap();
    proxy.hold(true);
    let lock = ours.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.hold(false);
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_connections_are_cut_is_served() {
    let (_server, proxy, ours, beside) = through_proxy().await;
    let guard = beside.lock("x").acquire().await.unwrap();
    let lock = ours.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || ours.activity().channels == 1).await;
    let before = proxy.connections();
    proxy.refuse(true);
    proxy.cut();
    // The message does not reach any client.
    guard.release().await.unwrap();
    proxy.refuse(false);
    waiter.await.unwrap().release().await.unwrap();
    assert!(proxy.connections() > before);
}

#[tokio::test]
async fn connection_lost_after_handshake_is_reopened() {
    let (_server, proxy, ours, _) = through_proxy().await;
    for _ in 0..3 {
        // Every new connection loads the script first.
        let fault = proxy.cut_before_next(b"LOAD");
        proxy.cut();
        struck(&fault).await;
    }
    let guard = ours.lock("x").acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn waiter_polls_after_silent_key_removal() {
    let (server, _proxy, ours, _) = through_proxy().await;
    let lock = ours.lock("x").poll_interval(Duration::from_millis(100));
    let guard = lock.acquire().await.unwrap();
    let holder = guard.holder_id().to_owned();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    eventually("it listens", async || ours.activity().channels == 1).await;
    // The hold disappears without a message.
    server.command(&["HDEL", "x", &holder]).unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn server_restart_tells_holder_and_serves_waiter() {
    let (server, _proxy, ours, beside) = through_proxy().await;
    let _ = ours;
    let ours = builder()
        .lease(LEASE * 4)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = ours.lock("x").acquire().await.unwrap();
    let lock = beside.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it listens", async || beside.activity().channels == 1).await;
    server.restart().unwrap();
    let next = waiter.await.unwrap();
    let reason = guard.lost().await;
    // The holder sends a request as soon as its server is back. That request may be faster than the
    // waiter's.
    let is_true = match &reason {
        LossReason::Taken { by } => by == next.holder_id(),
        reason => matches!(reason, LossReason::Deleted),
    };
    assert!(is_true, "{reason:?}");
    next.release().await.unwrap();
}

#[tokio::test]
async fn flushed_key_is_reported_as_deleted() {
    let server = RedisServer::start().unwrap();
    let client = builder()
        .lease(LEASE * 4)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    server.command(&["FLUSHALL"]).unwrap();
    assert_eq!(guard.lost().await, LossReason::Deleted);
    drop(guard);
    // The next hold is renewed again as usual.
    let lock = client.lock("x").lease(LEASE * 3);
    let guard = lock.acquire().await.unwrap();
    let lost = tokio::time::timeout(LEASE * 5, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn frozen_server_costs_hold_before_successor_enters() {
    let (server, _proxy, _, beside) = through_proxy().await;
    let ours = builder()
        .lease(LEASE * 2)
        .connect(&server.url())
        .await
        .unwrap();
    let recorder = Recorder::new();
    recorder.expect_fault("frozen");
    let asked = recorder.ask("x", "ours");
    let guard = ours.lock("x").acquire().await.unwrap();
    let inside = asked.acquired(&guard);
    let waiter = tokio::spawn({
        let recorder = recorder.clone();
        async move {
            let asked = recorder.ask("x", "theirs");
            let guard = beside.lock("x").acquire().await.unwrap();
            asked.acquired(&guard).releasing(&guard);
            guard.release().await.unwrap();
        }
    });
    eventually("a renewal", async || {
        guard.valid_until() > tokio::time::Instant::now() + LEASE / 2
    })
    .await;
    server.pause().unwrap();
    recorder.fault_happened("frozen");
    let reason = guard.lost().await;
    assert!(
        matches!(reason, LossReason::RenewalFailed { .. }),
        "{reason:?}"
    );
    inside.releasing(&guard);
    assert!(guard.release().await.is_err());
    server.resume().unwrap();
    waiter.await.unwrap();
    recorder.report().judge().unwrap();
}

#[tokio::test]
async fn unreachable_server_is_an_error_not_none() {
    let (server, _proxy, _, beside) = through_proxy().await;
    let (other, lock) = (beside.lock("y").acquire().await.unwrap(), beside.lock("x"));
    server.kill().unwrap();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
        ),
        "{error}"
    );
    let wait = Duration::from_millis(300);
    let error = lock.try_acquire_for(wait).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = lock.outage_timeout(wait).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("`x`"), "{error}");
    let error = other.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn wait_survives_server_restart_without_scripts() {
    let (server, _proxy, _, beside) = through_proxy().await;
    acquire_and_release(&beside.lock("x")).await;
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    acquire_and_release(&beside.lock("x")).await;
    server.kill().unwrap();
    let lock = beside.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::task::yield_now().await;
    server.restart().unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn clients_stay_exclusive_while_connections_are_cut() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let recorder = Recorder::new();
    recorder.expect_fault("cut");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..3 {
        let client = builder().lease(LEASE).connect(&proxy.url()).await.unwrap();
        for task in 0..3 {
            let (client, recorder) = (client.clone(), recorder.clone());
            tasks.spawn(async move {
                let lock = client.lock("hot").poll_interval(LEASE);
                for _ in 0..15 {
                    let asked = recorder.ask("hot", &format!("client {number} task {task}"));
                    let guard = lock.acquire().await.unwrap();
                    let inside = asked.acquired(&guard);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    inside.releasing(&guard);
                    let _ = guard.release().await;
                }
            });
        }
    }
    let cuts = async {
        loop {
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.cut();
            recorder.fault_happened("cut");
        }
    };
    let work = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    tokio::select! { () = work => {}, () = cuts => {} }
    let report = recorder.report();
    assert_eq!(report.holds, 3 * 3 * 15);
    report.judge().unwrap();
}

#[tokio::test]
async fn local_waiters_report_an_outage_together() {
    let (server, _proxy, _, beside) = through_proxy().await;
    let limit = Duration::from_millis(800);
    server.kill().unwrap();
    let started = tokio::time::Instant::now();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = beside.lock("x").outage_timeout(limit);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    while let Some(ended) = waiters.join_next().await {
        let error = ended.unwrap().unwrap_err();
        // The first request may have been sent before the client noticed the end of the connection.
        let kinds = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
    // If they were sent one after the other, they would take eight times the limit.
    assert!(started.elapsed() < limit * 5, "{:?}", started.elapsed());
}

#[tokio::test]
async fn timed_wait_ends_despite_silent_server() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder()
        .reply_timeout(Duration::from_secs(1))
        .connect(&server.url())
        .await
        .unwrap();
    server.pause().unwrap();
    let wait = Duration::from_millis(100);
    let error = client.lock("x").try_acquire_for(wait).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    server.resume().unwrap();
    eventually("what it left is undone", async || {
        client.activity().releases == 0 && server.keys().is_empty()
    })
    .await;
}

#[tokio::test]
async fn retried_short_extend_keeps_longer_lease() {
    let server = RedisServer::start().unwrap();
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pw", "+@all", "~app:*", "&*",
    ];
    server.command(&rules).unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let client = Client::connect(&url).await.unwrap();
    for round in 0..5 {
        let guard = client
            .lock("app:x")
            .fixed_lease(LEASE * 8)
            .acquire()
            .await
            .unwrap();
        // The user has no permission for these keys, so the call that they share with the short one
        // is split, and its operations are sent again one by one. Each round uses new keys, because
        // operations on keys that were denied before are sent alone.
        let locks: Vec<_> = (0..200)
            .map(|number| client.lock(format!("denied:{round}:{number}")))
            .collect();
        let mut tries: Vec<_> = locks
            .iter()
            .map(|lock| Some(Box::pin(lock.try_acquire())))
            .collect();
        let denied = std::future::poll_fn(|context| {
            for attempt in &mut tries {
                if let Some(future) = attempt
                    && let Poll::Ready(result) = future.as_mut().poll(context)
                {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
                    *attempt = None;
                }
            }
            match tries.iter().all(Option::is_none) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        // The first request keeps the connection busy, so that the others are collected into one
        // call.
        let busy = client.lock("app:y");
        let long = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            guard.extend(Duration::from_secs(60)).await
        };
        let short = guard.extend(Duration::from_secs(2));
        let (_, (), short, long) = tokio::join!(busy.inspect(), denied, short, long);
        short.unwrap();
        long.unwrap();
        let left = server.command(&["PTTL", "app:x"]).unwrap();
        let left = left.as_int().unwrap();
        assert!(left > 50_000, "round {round}: {left} ms left of a minute");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_renewal_counts_from_before_its_request_left() {
    let (_server, proxy, _, _) = through_proxy().await;
    let patient = builder().reply_timeout(HOUR);
    let ours = patient.connect(&proxy.url()).await.unwrap();
    let lease = LEASE * 8;
    let guard = ours.lock("x").fixed_lease(lease).acquire().await.unwrap();
    proxy.hold(true);
    let extend = guard.extend(lease);
    let network = async {
        tokio::time::sleep(LEASE / 3).await;
        let answered = tokio::time::Instant::now();
        proxy.hold(false);
        answered
    };
    let (extended, answered) = tokio::join!(extend, network);
    extended.unwrap();
    assert!(
        guard.valid_until() + lease / 50 < answered + lease,
        "it counts from the reply"
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn late_extend_reply_revives_no_lost_hold() {
    let (_server, proxy, ours, _) = through_proxy().await;
    let lease = Duration::from_millis(200);
    let guard = ours.lock("x").fixed_lease(lease).acquire().await.unwrap();
    proxy.hold(true);
    // The request is sent while the hold is valid, and the reply arrives after the hold has ended.
    let extend = guard.extend(Duration::from_secs(60));
    let network = async {
        guard.lost().await;
        proxy.hold(false);
    };
    let (extended, ()) = tokio::join!(extend, network);
    assert!(extended.is_err() || !guard.is_held());
    assert!(!guard.is_held(), "lost is final");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn release_before_subscription_wakes_waiter() {
    let (_server, proxy, ours, beside) = through_proxy().await;
    let guard = beside.lock("x").acquire().await.unwrap();
    // The connection for messages can be reopened only long after the release. The connection for
    // calls stays open.
    proxy.refuse(true);
    let lock = ours.lock("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("it wants to listen", async || ours.activity().channels == 1).await;
    let refused = proxy.connections();
    eventually("it was refused", async || proxy.connections() > refused + 1).await;
    guard.release().await.unwrap();
    proxy.refuse(false);
    let guard = tokio::time::timeout(Duration::from_secs(10), waiter).await;
    guard
        .expect("asked again when it could listen")
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[test]
fn a_runtime_that_stops_with_guards_alive_stops() {
    let server = RedisServer::start().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let url = server.url();
    std::thread::spawn(move || {
        for multi in [false, true] {
            let runtime = if multi {
                tokio::runtime::Builder::new_multi_thread()
                    .enable_all()
                    .build()
            } else {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
            }
            .unwrap();
            let guards = runtime.block_on(async {
                let client = Client::builder().lease(LEASE).connect(&url).await.unwrap();
                let mut guards = Vec::new();
                for number in 0..6 {
                    let name = format!("{multi} {number}");
                    guards.push(client.lock(&name).acquire().await.unwrap());
                }
                // Some guards are dropped while the runtime stops, some after it has stopped.
                guards.truncate(3);
                guards
            });
            drop(runtime);
            drop(guards);
        }
        sender.send(()).unwrap();
    });
    receiver
        .recv_timeout(Duration::from_secs(20))
        .expect("no deadlock");
}
