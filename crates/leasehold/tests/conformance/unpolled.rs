//! Futures that are polled for a while and then never again, as by a loop around `select!`. They
//! must not keep other waiters from what they wait for.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use leasehold::{Client, MultiLock, RedLock, RwLock};
use tokio::time::timeout;

use super::cancel::drop_after;
use super::{lock_of, place};
use crate::support::{HOUR, eventually};

const SOON: Duration = Duration::from_secs(20);
/// A poll interval that wakes a waiter a few times before it is no longer polled.
const POLL: Duration = Duration::from_millis(20);

/// A guard of any kind, which is released when it is dropped.
type Guard = Box<dyn Send>;

/// An acquire of something that only one waiter can hold at a time.
type Acquire = fn(Client) -> BoxFuture<'static, Guard>;

fn guard<G: Send + 'static>(acquired: leasehold::Result<G>) -> Guard {
    Box::new(acquired.unwrap())
}

fn rw(client: &Client) -> RwLock {
    client.rw_lock("x").poll_interval(POLL)
}

fn lock(client: Client) -> BoxFuture<'static, Guard> {
    async move { guard(lock_of(&client, "x").poll_interval(POLL).acquire().await) }.boxed()
}

fn read(client: Client) -> BoxFuture<'static, Guard> {
    async move { guard(rw(&client).read().await) }.boxed()
}

fn write(client: Client) -> BoxFuture<'static, Guard> {
    async move { guard(rw(&client).write().await) }.boxed()
}

fn write_without_preference(client: Client) -> BoxFuture<'static, Guard> {
    async move { guard(rw(&client).prefer_writers(false).write().await) }.boxed()
}

fn permit(client: Client) -> BoxFuture<'static, Guard> {
    async move {
        let semaphore = client.semaphore("s").poll_interval(POLL);
        semaphore.try_set_permits(1).await.unwrap();
        guard(semaphore.acquire().await)
    }
    .boxed()
}

fn permit_with_lease(client: Client) -> BoxFuture<'static, Guard> {
    async move {
        let semaphore = client.expirable_semaphore("e").poll_interval(POLL);
        semaphore.try_set_permits(1).await.unwrap();
        guard(semaphore.acquire().await)
    }
    .boxed()
}

fn group(client: Client) -> BoxFuture<'static, Guard> {
    async move {
        guard(
            client
                .group_lock("g", ["a", "b"])
                .poll_interval(POLL)
                .acquire()
                .await,
        )
    }
    .boxed()
}

fn several(client: Client) -> BoxFuture<'static, Guard> {
    async move {
        let both = MultiLock::new([client.lock("y"), client.lock("z")]).unwrap();
        guard(both.poll_interval(POLL).acquire().await)
    }
    .boxed()
}

fn majority(client: Client) -> BoxFuture<'static, Guard> {
    async move {
        let lock = RedLock::new([client.lock("x")]).unwrap();
        let lock = lock.distrust_restarted(false);
        guard(lock.poll_interval(POLL).acquire().await)
    }
    .boxed()
}

/// Waits until all earlier requests about any of the names have run, on each node of a cluster that
/// has one of the names.
async fn all_has_run(client: &Client) {
    for name in ["x", "y", "z", "g", "s", "e", "l"] {
        let beside = client.lock(format!("{{{name}}}:nobody's"));
        beside.is_locked().await.unwrap();
    }
}

/// Another client holds the lock. A waiter of this client is in line and no longer polled, and
/// another waiter follows it. When the lock is free, the second waiter must get it.
async fn the_next_in_line_gets_it(cases: &[(&str, Acquire, Acquire, Acquire)]) {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for (name, held, unpolled, next) in cases {
        for polls in 1..=5 {
            let held = held(theirs.clone()).await;
            let mut unpolled = unpolled(ours.clone());
            let polled = drop_after(polls, unpolled.as_mut()).await;
            assert!(polled.is_none(), "{name}: it is held");
            all_has_run(&ours).await;
            let next = tokio::spawn(next(ours.clone()));
            tokio::task::yield_now().await;
            drop(held);
            let guard = timeout(SOON, next).await;
            let guard = guard.unwrap_or_else(|_| panic!("{name}: held up after {polls} polls"));
            drop(guard.unwrap());
            // The unpolled waiter has kept its place, and continues when it is polled again.
            let guard = timeout(SOON, unpolled).await;
            drop(guard.unwrap_or_else(|_| panic!("{name}: left behind after {polls} polls")));
        }
        place.is_clean_but_for(&["s", "e"], &[&ours, &theirs]).await;
    }
}

#[tokio::test]
async fn a_lock_goes_to_the_next_in_line() {
    let (one, values) = (("lock", lock as Acquire), ("group", group as Acquire));
    let cases = [one, values].map(|(name, kind)| (name, kind, kind, kind));
    the_next_in_line_gets_it(&cases).await;
}

#[tokio::test]
async fn several_locks_go_to_the_next_in_line() {
    let (all, most) = (
        ("several", several as Acquire),
        ("most", majority as Acquire),
    );
    let cases = [all, most].map(|(name, kind)| (name, kind, kind, kind));
    the_next_in_line_gets_it(&cases).await;
}

#[tokio::test]
async fn readers_and_writers_pass_over_each_other() {
    let polite = write_without_preference;
    the_next_in_line_gets_it(&[
        ("writers", write, write, write),
        ("a scout and a reader", write, read, read),
        ("a writer behind a reader", write, read, write),
        ("a reader behind a writer", write, write, read),
        ("writers without preference", read, polite, polite),
    ])
    .await;
}

#[tokio::test]
async fn permits_go_to_the_next_in_line() {
    let (plain, leased) = (permit as Acquire, permit_with_lease as Acquire);
    let cases = [("permits", plain), ("permits with leases", leased)];
    let cases = cases.map(|(name, kind)| (name, kind, kind, kind));
    the_next_in_line_gets_it(&cases).await;
}

/// The waiter becomes the head when it is no longer polled.
#[tokio::test]
async fn unpolled_waiter_loses_its_turn() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let held = lock(theirs.clone()).await;
    let mut head = lock(ours.clone());
    let mut unpolled = lock(ours.clone());
    assert!((&mut head).now_or_never().is_none());
    assert!((&mut unpolled).now_or_never().is_none());
    all_has_run(&ours).await;
    let next = tokio::spawn(lock(ours.clone()));
    tokio::task::yield_now().await;
    drop(head);
    drop(held);
    let guard = timeout(SOON, next).await;
    drop(guard.expect("it is free").unwrap());
    drop(unpolled);
    place.is_clean(&[&ours, &theirs]).await;
}

/// No other waiter was in line when the unpolled waiter was woken.
#[tokio::test]
async fn unpolled_waiter_woken_earlier_is_skipped() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let held = lock(theirs.clone()).await;
    let mut unpolled = lock(ours.clone());
    assert!(drop_after(4, unpolled.as_mut()).await.is_none());
    all_has_run(&ours).await;
    drop(held);
    eventually("it is free", async || {
        !lock_of(&theirs, "x").is_locked().await.unwrap()
    })
    .await;
    // This is longer than the waiter sleeps.
    tokio::time::sleep(5 * POLL).await;
    let guard = timeout(SOON, lock(ours.clone())).await;
    drop(guard.expect("it is free"));
    drop(unpolled);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn unpolled_waiter_blocks_no_try() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let held = lock(theirs.clone()).await;
    let mut unpolled = lock(ours.clone());
    assert!(drop_after(4, unpolled.as_mut()).await.is_none());
    all_has_run(&ours).await;
    drop(held);
    eventually("it is there for who tries", async || {
        lock_of(&ours, "x").try_acquire().await.unwrap().is_some()
    })
    .await;
    drop(unpolled);
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn unpolled_latch_waiter_delays_no_other() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for polls in 1..=4 {
        let opens = theirs.count_down_latch("l");
        assert!(opens.try_set_count(1).await.unwrap());
        let latch = ours.count_down_latch("l").poll_interval(POLL);
        let mut unpolled = std::pin::pin!(latch.wait());
        assert!(drop_after(polls, unpolled.as_mut()).await.is_none());
        let next = ours.count_down_latch("l").poll_interval(HOUR);
        let next = tokio::spawn(async move { next.wait().await });
        tokio::task::yield_now().await;
        opens.count_down().await.unwrap();
        let opened = timeout(SOON, next).await;
        opened.expect("it is open").unwrap().unwrap();
        timeout(SOON, unpolled).await.expect("for it, too").unwrap();
    }
    place.is_clean_but_for(&[], &[&ours, &theirs]).await;
}
