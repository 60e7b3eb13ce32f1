//! Owners that would wait for each other for ever.

use std::time::Duration;

use leasehold::{Client, ErrorKind, Lock, LockGuard, MultiLock, Owner};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{LEASE, place};
use crate::support::{HOUR, eventually};

/// A limit longer than any wait in these tests.
const LIMIT: Duration = Duration::from_secs(120);

/// An owner that holds one lock.
struct Holder {
    owner: Owner,
    guard: LockGuard,
}

impl Holder {
    async fn of(client: &Client, name: &str) -> Self {
        let owner = Owner::new();
        let guard = client.lock(name).owned_by(&owner).acquire().await.unwrap();
        Self { owner, guard }
    }

    fn lock(&self, client: &Client, name: &str) -> Lock {
        client.lock(name).owned_by(&self.owner).poll_interval(HOUR)
    }

    /// Starts a wait, and returns once it is in line.
    async fn waits(&self, client: &Client, name: &str) -> JoinHandle<LockGuard> {
        let (lock, before) = (self.lock(client, name), client.activity().lines);
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        eventually("it waits", async || client.activity().lines > before).await;
        waiter
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("not at once")
}

#[tokio::test]
async fn owner_that_closes_a_circle_is_told_the_names() {
    let place = place();
    let client = place.client().await;
    let one = Holder::of(&client, "a").await;
    let two = Holder::of(&client, "b").await;
    let three = Holder::of(&client, "c").await;
    let second = two.waits(&client, "a").await;
    let third = three.waits(&client, "b").await;
    let error = in_time(one.lock(&client, "c").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert_eq!(error.key(), Some("c"));
    assert_eq!(
        error.to_string(),
        "waiting for `c` would never end: it is held by an owner that waits for `b`, held by one \
         that waits for `a`, which this owner holds; acquire them in the same order everywhere, or \
         wait with a limit"
    );
    assert!(!error.is_transient());
    // A try waits for no owner, and a wait with a limit ends by itself: neither is a deadlock.
    let lock = one.lock(&client, "c");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let limit = Duration::from_millis(50);
    assert!(lock.try_acquire_for(limit).await.unwrap().is_none());
    one.guard.release().await.unwrap();
    in_time(second).await.unwrap().release().await.unwrap();
    two.guard.release().await.unwrap();
    in_time(third).await.unwrap().release().await.unwrap();
    three.guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn two_owners_of_several_locks_are_told() {
    let place = place();
    let client = place.client().await;
    let one = Holder::of(&client, "a").await;
    let owner = Owner::new();
    let both = MultiLock::new([client.lock("b"), client.lock("c")]).unwrap();
    let several = both.owned_by(&owner).acquire().await.unwrap();
    let first = one.waits(&client, "c").await;
    let error = in_time(client.lock("a").owned_by(&owner).acquire()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Deadlock);
    several.release().await.unwrap();
    in_time(first).await.unwrap().release().await.unwrap();
    one.guard.release().await.unwrap();
}

#[tokio::test]
async fn reader_and_writer_close_a_circle() {
    let place = place();
    let client = place.client().await;
    let (reader, other) = (Owner::new(), Holder::of(&client, "y").await);
    let lock = client.rw_lock("x").poll_interval(HOUR);
    let read = lock.clone().owned_by(&reader).read().await.unwrap();
    let writes = lock.owned_by(&other.owner);
    let writer = tokio::spawn(async move { writes.write().await.unwrap() });
    eventually("it waits", async || client.activity().lines == 1).await;
    let error = in_time(client.lock("y").owned_by(&reader).acquire()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Deadlock);
    read.release().await.unwrap();
    in_time(writer).await.unwrap().release().await.unwrap();
    other.guard.release().await.unwrap();
}

/// This is not a deadlock: the hold ends with its lease.
#[tokio::test]
async fn hold_that_ends_by_itself_is_waited_for() {
    let place = place();
    let client = place.client().await;
    let owner = Owner::new();
    let leased = client.lock("a").fixed_lease(LEASE).owned_by(&owner);
    let held = leased.acquire().await.unwrap();
    let other = Holder::of(&client, "b").await;
    let second = other.waits(&client, "a").await;
    let mine = client.lock("b").owned_by(&owner).poll_interval(HOUR);
    let first = tokio::spawn(async move { mine.acquire().await.unwrap() });
    in_time(second).await.unwrap().release().await.unwrap();
    other.guard.release().await.unwrap();
    in_time(first).await.unwrap().release().await.unwrap();
    assert!(!held.is_held());
}

#[tokio::test]
async fn wait_that_was_given_up_closes_no_circle() {
    let place = place();
    let client = place.client().await;
    let (one, two) = (
        Holder::of(&client, "a").await,
        Holder::of(&client, "b").await,
    );
    let gives_up = two.waits(&client, "a").await;
    gives_up.abort();
    assert!(gives_up.await.unwrap_err().is_cancelled());
    let first = one.waits(&client, "b").await;
    two.guard.release().await.unwrap();
    in_time(first).await.unwrap().release().await.unwrap();
    one.guard.release().await.unwrap();
}
