//! An embedded keyspace behind a network that loses, doubles and delays requests: tests that users
//! could write too, and cases that simulated histories have found.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

#[path = "network/acknowledged.rs"]
mod acknowledged;
#[path = "network/asleep.rs"]
mod asleep;
#[path = "network/calls.rs"]
mod calls;
#[path = "network/company.rs"]
mod company;
#[path = "network/exchange.rs"]
mod exchange;
#[path = "network/hand_over.rs"]
mod hand_over;
#[path = "network/herds.rs"]
mod herds;
#[path = "network/keeping.rs"]
mod keeping;
#[path = "network/limits.rs"]
mod limits;
#[path = "network/majority.rs"]
mod majority;
#[path = "network/min_hold.rs"]
mod min_hold;
#[path = "network/pairs.rs"]
mod pairs;
#[path = "network/permits.rs"]
mod permits;
#[path = "network/progress.rs"]
mod progress;
#[path = "network/queue.rs"]
mod queue;
#[path = "network/readers.rs"]
mod readers;
#[path = "network/rejoin.rs"]
mod rejoin;
#[path = "network/renewals.rs"]
mod renewals;
#[path = "network/restarts.rs"]
mod restarts;
#[path = "network/slots.rs"]
mod slots;
#[path = "network/stalls.rs"]
mod stalls;
#[path = "network/tickets.rs"]
mod tickets;
#[path = "network/unpolled.rs"]
mod unpolled;
#[path = "network/watch.rs"]
mod watch;
#[path = "network/writers.rs"]
mod writers;

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::testing::history::Recorder;
use leasehold::testing::{Fate, Network, Request, Step};
use leasehold::{Client, Embedded, ErrorKind, LossReason, MultiLock, RedLock};
use tokio::time::{Instant, sleep};

use crate::support::acquire_and_release;

const MS: Duration = Duration::from_millis(1);

fn over_network(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder().reply_timeout(400 * MS).lease(1000 * MS);
    server.client_over_network(&builder).unwrap()
}

fn takes(time: Duration) -> impl FnMut(&Request<'_>) -> Fate + Send + 'static {
    move |_| Fate::delivered(time, time)
}

#[tokio::test(start_paused = true)]
async fn a_request_and_its_reply_take_their_time() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(30 * MS));
    let start = Instant::now();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(start.elapsed(), 60 * MS);
    assert!(guard.valid_until() < start + 1000 * MS, "from the reply");
    assert_eq!(network.requests(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_comes_over_the_network() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    network.on_message(|_| Some(20 * MS));
    let guard = server.client().lock("x").acquire().await.unwrap();
    let lock = ours.lock("x").poll_interval(3600 * 1000 * MS);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(500 * MS).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(start.elapsed(), 20 * MS);
}

/// A message may have been lost with the old connection.
#[tokio::test(start_paused = true)]
async fn new_connection_for_messages_makes_the_waiter_ask_often_again() {
    let server = Embedded::new();
    let (ours, network) = over_network(&server);
    let asks = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asks);
    network.on_request(move |request| {
        if request.name == "x" {
            noted.lock().unwrap().push(Instant::now());
        }
        Fate::default()
    });
    network.on_subscription(|_| 50 * MS);
    let holder = server.client().lock("x").lease(3600 * 1000 * MS);
    let _guard = holder.acquire().await.unwrap();
    let lock = ours.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(20_500 * MS).await;
    let asked_before = asks.lock().unwrap().len();
    let start = Instant::now();
    network.cut_messages();
    sleep(10_000 * MS).await;
    waiter.abort();
    let asks = asks.lock().unwrap().split_off(asked_before);
    let after = asks.iter().map(|at| (*at - start).as_millis());
    let after: Vec<_> = after.collect();
    // The waiter asks when the connection is lost, when the server has confirmed the new
    // subscription, and then after 1, 2 and 4 s more.
    assert_eq!(after, [0, 50, 1050, 3050, 7050]);
}

#[tokio::test(start_paused = true)]
async fn cut_connection_fails_the_pending_request() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(100 * MS));
    let lock = client.lock("x");
    let ask = tokio::spawn(async move { lock.try_acquire().await });
    sleep(150 * MS).await;
    network.cut();
    let error = ask.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    client.close().await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn holder_without_network_stops_in_time() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client.lock("x").acquire().await.unwrap();
    network.freeze(true);
    let reason = guard.lost().await;
    assert!(
        matches!(reason, LossReason::RenewalFailed { .. }),
        "{reason}"
    );
    assert!(
        server.keys().contains(&"x".into()),
        "told before it is free"
    );
    network.freeze(false);
    guard.release().await.unwrap_err();
    client.close().await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_by_the_holders_clock() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let start = Instant::now();
    let lock = client.lock("x").max_hold(500 * MS);
    let guard = lock.acquire().await.unwrap();
    // The maximum ends while a renewal is under way, and the reply to that renewal is lost.
    network.freeze(true);
    let limit = 500 * MS;
    assert_eq!(guard.lost().await, LossReason::MaxHold { limit });
    assert!(start.elapsed() <= limit + MS);
    assert!(guard.valid_until() <= start + limit);
    network.freeze(false);
    guard.release().await.unwrap_err();
    client.close().await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn lost_token_reply_can_be_retried() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let mut draws = 0;
    network.on_request(move |request| {
        draws += usize::from(request.step == Step::FencedDraw);
        match (request.step, draws) {
            (Step::FencedDraw, 1) => Fate::default().reply_lost(),
            (Step::FencedDraw, 2) => Fate::default().duplicated_after(100 * MS),
            _ => Fate::default(),
        }
    });
    let guard = client.lock("x").acquire().await.unwrap();
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert_eq!(guard.token(), None);
    let token = guard.fencing_token().await.unwrap();
    guard.release().await.unwrap();
    let next = client.lock("x").acquire().await.unwrap();
    let after = next.fencing_token().await.unwrap();
    assert!(after > token);
    // The second request arrives once more, for a hold that has ended.
    sleep(200 * MS).await;
    let last = server.client().fenced_lock("x").last_token().await.unwrap();
    assert_eq!(last, Some(after));
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn majority_token_skips_a_silent_server() {
    let servers = [Embedded::new(), Embedded::new(), Embedded::new()];
    let (clients, networks): (Vec<_>, Vec<_>) = servers.iter().map(over_network).unzip();
    for network in &networks {
        network.on_request(takes(MS));
    }
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let guard = lock.distrust_restarted(false).acquire().await.unwrap();
    assert_eq!(guard.members().len(), 3);
    networks[1].freeze(true);
    let start = Instant::now();
    guard.fencing_token().await.unwrap();
    assert!(start.elapsed() <= 4 * MS, "two round trips and no more");
    networks[1].freeze(false);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_an_error_at_once() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.refuse(true);
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    network.refuse(false);
    acquire_and_release(&client.lock("x")).await;
}

#[tokio::test(start_paused = true)]
async fn acquire_after_its_undo_leaves_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(|request| match request.step {
        Step::LockAcquire => Fate::default().request_lost().duplicated_after(200 * MS),
        _ => Fate::default(),
    });
    let lock = client.lock("x");
    let given_up = tokio::time::timeout(100 * MS, lock.acquire()).await;
    given_up.map(drop).unwrap_err();
    sleep(150 * MS).await;
    assert_eq!(server.keys(), ["x"], "granted to nobody");
    client.close().await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn duplicated_renewal_shortens_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(|request| match request.step {
        Step::LockRenew => Fate::default().duplicated_after(300 * MS),
        _ => Fate::default(),
    });
    let guard = client.lock("x").acquire().await.unwrap();
    // The first renewal has arrived; its copy is still on its way.
    sleep(400 * MS).await;
    guard.extend(60_000 * MS).await.unwrap();
    sleep(300 * MS).await;
    believes_no_longer_than(&guard, &server).await;
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn duplicated_acquire_shortens_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(|request| match request.step {
        Step::LockAcquire => Fate::default().duplicated_after(300 * MS),
        _ => Fate::default(),
    });
    let guard = client.lock("x").acquire().await.unwrap();
    guard.extend(60_000 * MS).await.unwrap();
    sleep(350 * MS).await;
    believes_no_longer_than(&guard, &server).await;
    guard.release().await.unwrap();
}

/// Asserts that the guard is valid for no longer than the server keeps the key.
async fn believes_no_longer_than(guard: &leasehold::LockGuard, server: &Embedded) {
    let ttl = server.client().lock("x").remaining_ttl().await.unwrap();
    let leasehold::inspect::Ttl::Left(left) = ttl else {
        panic!("{ttl:?}");
    };
    assert!(
        guard.valid_until() <= Instant::now() + left,
        "valid for {:?}, and the server has {left:?}",
        guard.valid_until() - Instant::now()
    );
}

#[tokio::test(start_paused = true)]
async fn each_force_unlocked_holder_learns_it() {
    let server = Embedded::new();
    let (one, other) = (server.client(), server.client());
    let first = one.lock("x").acquire().await.unwrap();
    assert!(other.lock("x").force_unlock().await.unwrap());
    let second = other.lock("x").acquire().await.unwrap();
    assert!(one.lock("x").force_unlock().await.unwrap());
    assert_eq!(first.lost().await, crate::support::forced());
    assert_eq!(second.lost().await, crate::support::forced());
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_holder_times_out() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let lock = client.lock("x");
    network.on_request(takes(25 * MS));
    let behind = lock.clone();
    // The second waiter becomes the head when the first is granted. The reply to the second would
    // arrive at 100 ms.
    let (first, second) = tokio::join!(lock.acquire(), behind.try_acquire_for(60 * MS));
    assert!(second.unwrap().is_none());
    first.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn recorder_excuses_overlaps_beyond_the_promise() {
    let server = Embedded::new();
    let recorder = Recorder::new();
    let (ours, theirs) = (server.client().lock("x"), server.client().lock("x"));
    let asked = recorder.ask("x", "ours");
    let first = ours.acquire().await.unwrap();
    let inside = asked.acquired(&first);
    let asked = recorder.ask("x", "theirs");
    server.clear();
    let second = theirs.acquire().await.unwrap();
    let beside = asked.acquired(&second);
    assert_eq!(recorder.report().overlaps.len(), 1, "two holders");
    drop((inside, beside));

    let recorder = Recorder::new();
    let asked = recorder.ask("x", "ours");
    let inside = asked.acquired(&second);
    recorder.promise_ends_here();
    server.clear();
    let third = ours.acquire().await.unwrap();
    let after = recorder.ask("x", "theirs").acquired(&third);
    inside.releasing(&second);
    after.releasing(&third);
    assert!(recorder.report().overlaps.is_empty());
}

#[tokio::test(start_paused = true)]
async fn request_hook_may_cut_the_network() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (ours, mut has_cut) = (network.clone(), false);
    network.on_request(move |request| {
        if request.step == Step::LockRenew && !has_cut {
            has_cut = true;
            ours.cut();
        }
        Fate::default()
    });
    let guard = client.lock("x").acquire().await.unwrap();
    sleep(5000 * MS).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_decides_about_messages_sees_messages_only() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (told, heard) = std::sync::mpsc::channel();
    network.on_message(move |channel| {
        told.send(channel.to_owned()).unwrap();
        None
    });
    let guard = server.client().lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(200 * MS);
    assert!(lock.try_acquire_for(50 * MS).await.unwrap().is_none());
    assert!(heard.try_recv().is_err(), "nothing was released so far");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(50 * MS).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(heard.try_recv().unwrap().contains("{x}"));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_on_its_way_is_no_failure() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(20 * MS));
    let guard = client.lock("x").acquire().await.unwrap();
    for _ in 0..2000 {
        assert_eq!(guard.renewal_failure(), None);
        sleep(MS).await;
    }
    network.freeze(true);
    sleep(450 * MS).await;
    assert!(guard.renewal_failure().is_some());
}

#[tokio::test(start_paused = true)]
async fn released_reentrys_max_hold_is_dropped() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let lock = client.lock("x").owned_by(&leasehold::Owner::new());
    let outer = lock.acquire().await.unwrap();
    let short = lock.clone().max_hold(2000 * MS);
    short.acquire().await.unwrap().release().await.unwrap();
    // An acquire that fails leaves no maximum either.
    let (failing, asks) = (std::sync::Arc::new(()), short.fixed_lease(60_000 * MS));
    let watched = std::sync::Arc::downgrade(&failing);
    network.on_request(move |_| match watched.upgrade() {
        Some(_) => Fate::default().reply_lost(),
        None => Fate::default(),
    });
    asks.acquire().await.unwrap_err();
    drop(failing);
    sleep(10_000 * MS).await;
    assert_eq!(outer.loss(), None);
    let inner = lock.max_hold(2000 * MS).acquire().await.unwrap();
    assert_eq!(inner.lost().await, LossReason::MaxHold { limit: 2000 * MS });
    assert!(!outer.is_held(), "they share a hold");
}

#[tokio::test(start_paused = true)]
async fn extended_hold_is_still_renewed() {
    let server = Embedded::new();
    let guard = server.client().lock("x").acquire().await.unwrap();
    sleep(3000 * MS).await;
    guard.extend(40_000 * MS).await.unwrap();
    sleep(600_000 * MS).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn extension_answered_late_is_lost() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client
        .lock("x")
        .fixed_lease(200 * MS)
        .acquire()
        .await
        .unwrap();
    network.on_request(takes(150 * MS));
    let error = guard.extend(60_000 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn old_subscription_confirms_no_new_one() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    // The first subscription arrives long after its listener has ended.
    let mut times = [600 * MS, 300 * MS].into_iter();
    network.on_subscription(move |_| times.next().unwrap_or_default());
    let held = server.client().lock("x").fixed_lease(3600 * 1000 * MS);
    let held = held.acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(3600 * 1000 * MS);
    assert!(lock.try_acquire_for(50 * MS).await.unwrap().is_none());
    sleep(510 * MS).await;
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(140 * MS).await;
    held.release().await.unwrap();
    let served = tokio::time::timeout(2000 * MS, waiter).await;
    let guard = served.expect("the release was heard of").unwrap();
    guard.release().await.unwrap();
}

/// Returns two clients, one near the server and one far from it.
fn near_and_far(server: &Embedded) -> (Client, Client) {
    let client = |distance| {
        let (client, network) = server.client_over_network(&Client::builder()).unwrap();
        network.on_request(takes(distance));
        network.on_message(move |_| Some(distance));
        client
    };
    (client(MS), client(10 * MS))
}

#[tokio::test(start_paused = true)]
async fn overdue_reader_first_yields_to_writers() {
    let server = Embedded::new();
    let (near, far) = near_and_far(&server);
    let reading = server.client().rw_lock("x").read().await.unwrap();
    let lock = far.rw_lock("x");
    let writer = tokio::spawn(async move { lock.write().await.unwrap() });
    sleep(100 * MS).await;
    let lock = near.rw_lock("x");
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    sleep(1500 * MS).await;
    reading.release().await.unwrap();
    let writing = tokio::time::timeout(1000 * MS, writer).await;
    let writing = writing.expect("nobody keeps it out").unwrap();
    assert!(!reader.is_finished());
    writing.release().await.unwrap();
    reader.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overdue_reader_takes_an_idle_lock() {
    let server = Embedded::new();
    let (near, _) = near_and_far(&server);
    let reading = server.client().rw_lock("x").read().await.unwrap();
    // The writer sets its reservation and never asks again, so the lock is free while the
    // reservation lasts.
    let (gone, network) = over_network(&server);
    let lock = gone.rw_lock("x");
    let writer = tokio::spawn(async move { lock.write().await });
    sleep(100 * MS).await;
    network.on_request(|_| Fate::default().request_lost());
    let lock = near.rw_lock("x");
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    sleep(1500 * MS).await;
    let start = Instant::now();
    reading.release().await.unwrap();
    let reading = reader.await.unwrap();
    let idle = start.elapsed();
    assert!(idle > 40 * MS, "a quick writer goes first: {idle:?}");
    assert!(idle < 600 * MS, "{idle:?}");
    reading.release().await.unwrap();
    writer.abort();
}

#[tokio::test(start_paused = true)]
async fn far_writers_never_starve_near_readers() {
    let server = Embedded::new();
    let (near, far) = near_and_far(&server);
    let lock = far.rw_lock("x");
    // A process that hands its hold over lets other processes acquire it now and then. A process
    // that does not hand over never does.
    for lock in [lock.clone(), lock.local_hand_over(Duration::ZERO)] {
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let lock = lock.clone();
            writers.spawn(async move {
                loop {
                    let guard = lock.write().await.unwrap();
                    sleep(10 * MS).await;
                    guard.release().await.unwrap();
                }
            });
        }
        for _ in 0..20 {
            let read = near.rw_lock("x").try_read_for(4000 * MS).await.unwrap();
            read.expect("its turn comes").release().await.unwrap();
        }
        writers.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn late_multi_confirmation_ends_on_time() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(|request| match request.step {
        Step::LockRenew => Fate::delivered(300 * MS, Duration::ZERO),
        _ => Fate::default(),
    });
    let held = server.client().lock("x").acquire().await.unwrap();
    let both = MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    let start = Instant::now();
    let waiter = tokio::spawn(async move { both.try_acquire_for(100 * MS).await });
    sleep(50 * MS).await;
    held.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_none());
    assert_eq!(start.elapsed(), 100 * MS);
    client.close().await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn refused_multi_lock_times_out_cleanly() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(20 * MS));
    let held = server.client().lock("x").acquire().await.unwrap();
    let both = MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    assert!(both.try_acquire_for(60 * MS).await.unwrap().is_none());
    // A lock whose requests were never answered does not know whether it was held.
    let error = both.try_acquire_for(30 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn majority_of_closed_clients_is_misuse() {
    let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
    let clients = masters.each_ref().map(Embedded::client);
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    clients[0].close().await;
    let guard = lock.acquire().await.unwrap();
    guard.release().await.unwrap();
    clients[1].close().await;
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}

#[tokio::test(start_paused = true)]
async fn max_hold_releases_after_an_outage() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let lock = client.lock("x").fixed_lease(3600 * 1000 * MS);
    let guard = lock.max_hold(500 * MS).acquire().await.unwrap();
    network.refuse(true);
    network.cut();
    guard.lost().await;
    sleep(2000 * MS).await;
    network.refuse(false);
    // The client that held the lock releases it: its holder has learned of the loss, but keeps its
    // guard.
    let beside = server.client().lock("x");
    let next = beside.try_acquire_for(5000 * MS).await.unwrap();
    next.expect("freed").release().await.unwrap();
    guard.release().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn majority_is_reentered_near_max_hold() {
    let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
    let clients = masters.each_ref().map(Embedded::client);
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let owner = leasehold::Owner::new();
    let lock = lock.owned_by(&owner).max_hold(500 * MS);
    let outer = lock.acquire().await.unwrap();
    let start = Instant::now();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(inner.hold_count(), 2);
    outer.release().await.unwrap();
    inner.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_majority_reentry_counts_own_members() {
    let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
    let clients = masters.each_ref().map(Embedded::client);
    let lock = RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let owner = leasehold::Owner::new();
    let lock = lock.owned_by(&owner).poll_interval(3600 * 1000 * MS);
    let third = masters[2].client().lock("x").acquire().await.unwrap();
    let outer = lock.acquire().await.unwrap();
    // The first member's client is closed, so it can't be re-entered, and another client holds the
    // third member.
    clients[0].close().await;
    let inner = tokio::spawn(async move { lock.acquire().await });
    sleep(100 * MS).await;
    assert!(!inner.is_finished());
    third.release().await.unwrap();
    let inner = inner.await.unwrap().unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hold_granted_during_close_is_unrenewed() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(|_| Fate::delivered(10 * MS, 200 * MS));
    let lock = client.lock("x");
    let asks = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(100 * MS).await;
    assert_eq!(client.close().await.holds_left, 0, "nobody has it yet");
    let guard = asks.await.unwrap();
    let told = tokio::time::timeout(4000 * MS, guard.lost()).await;
    assert_eq!(told, Ok(LossReason::Closed));
    sleep(100 * MS).await;
    assert!(server.keys().is_empty());
}

#[test]
fn ended_runtime_is_reported_as_misuse() {
    let (one, other) = [(); 2].map(|()| runtime()).into();
    let server = Embedded::new();
    let (ended, waits) = one.block_on(async {
        let (client, network) = over_network(&server);
        let ended = [client.clone(), server.client()];
        // No server answers before the runtime ends.
        network.freeze(true);
        let question = client.lock("x");
        let mut asks = Box::pin(async move { question.is_locked().await });
        let unanswered = tokio::time::timeout(MS, &mut asks).await;
        assert!(unanswered.is_err());
        (ended, asks)
    });
    drop(one);
    other.block_on(async {
        let told = |error: leasehold::Error| {
            assert_eq!(error.kind(), ErrorKind::Misuse);
            assert!(error.to_string().contains("runtime has ended"), "{error}");
        };
        told(waits.await.unwrap_err());
        for client in &ended {
            told(client.lock("x").acquire().await.unwrap_err());
        }
        told(ended[0].lock("x").is_locked().await.unwrap_err());
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn duplicated_lease_cut_shortens_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client.lock("x").acquire().await.unwrap();
    network.on_request(|request| match request.step {
        Step::LockRenew => Fate::default().duplicated_after(100 * MS),
        _ => Fate::default(),
    });
    server.step_clock_back(3600 * 1000 * MS);
    while server.ttl_ms("x") > 2000 {
        sleep(MS).await;
    }
    // Now the guard's lease is the one that was asked for. The holder extends it. Then a duplicate
    // arrives of the request that had shortened it.
    guard.extend(3000 * MS).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < 200 * MS {
        let left = guard.valid_until() - Instant::now();
        let kept = u64::try_from(server.ttl_ms("x")).unwrap();
        assert!(
            Duration::from_millis(kept) >= left,
            "{kept} ms for {left:?}"
        );
        sleep(MS).await;
    }
    guard.release().await.unwrap();
}
