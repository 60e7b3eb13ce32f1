//! The majority lock, on three servers.

use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Client, ErrorKind, LossReason, RedLock};

use super::tokens::of_all;
use super::{LEASE, place};
use crate::support::{HOUR, Place, eventually};

struct Masters {
    places: Vec<Place>,
}

/// The clients of one process, one for each master.
struct Process {
    clients: Vec<Client>,
}

impl Masters {
    fn start(count: usize) -> Self {
        let mut places = vec![place()];
        while places.len() < count {
            places.push(places[0].beside());
        }
        Self { places }
    }

    async fn process(&self) -> Process {
        self.process_with(Duration::from_secs(30)).await
    }

    async fn process_with(&self, lease: Duration) -> Process {
        let mut clients = Vec::new();
        for place in &self.places {
            clients.push(place.client_with(|builder| builder.lease(lease)).await);
        }
        Process { clients }
    }

    async fn are_clean(&self, processes: &[&Process]) {
        for (n, place) in self.places.iter().enumerate() {
            let clients: Vec<_> = processes
                .iter()
                .map(|process| &process.clients[n])
                .collect();
            place.is_clean(&clients).await;
        }
    }
}

impl Process {
    /// Makes a lock that trusts the servers, although they have just been started, and that allows
    /// for a slow machine.
    fn lock(&self) -> RedLock {
        self.lock_that_distrusts()
            .distrust_restarted(false)
            .member_timeout(Duration::from_secs(10))
    }

    fn lock_that_distrusts(&self) -> RedLock {
        RedLock::new(self.clients.iter().map(|client| client.lock("x"))).unwrap()
    }
}

#[tokio::test]
async fn held_majority_excludes_others_until_released() {
    let masters = Masters::start(3);
    let (ours, theirs) = (masters.process().await, masters.process().await);
    let guard = ours.lock().acquire().await.unwrap();
    assert_eq!(guard.name(), "x");
    assert!(theirs.lock().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    drop(theirs.lock().try_acquire().await.unwrap().unwrap());
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn only_a_majority_is_granted() {
    let masters = Masters::start(3);
    let (ours, theirs) = (masters.process().await, masters.process().await);
    for n in 0..3 {
        let one = theirs.clients[n].lock("x").acquire().await.unwrap();
        let guard = ours.lock().try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.members().len(), 2);
        guard.release().await.unwrap();
        let more = &theirs.clients[(n + 1) % 3];
        let more = more.lock("x").acquire().await.unwrap();
        assert!(ours.lock().try_acquire().await.unwrap().is_none());
        // The grant of the third server is undone.
        let third = &masters.places[(n + 2) % 3];
        eventually("it is free", async || third.keys().is_empty()).await;
        let short = LEASE;
        let waited = ours.lock().try_acquire_for(short).await.unwrap();
        assert!(waited.is_none());
        one.release().await.unwrap();
        more.release().await.unwrap();
    }
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn one_members_release_wakes_a_majority_waiter() {
    let masters = Masters::start(3);
    let (ours, theirs) = (masters.process().await, masters.process().await);
    let guard = ours.lock().acquire().await.unwrap();
    let wait = |lock: RedLock| tokio::spawn(async move { lock.acquire().await.unwrap() });
    let listens = async || {
        let mut clients = theirs.clients.iter();
        clients.all(|client| client.activity().channels == 1)
    };
    let waiter = wait(theirs.lock().poll_interval(HOUR));
    eventually("it listens", listens).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    guard.release().await.unwrap();

    let mut taken = Vec::new();
    for client in &ours.clients[..2] {
        taken.push(client.lock("x").acquire().await.unwrap());
    }
    let waiter = wait(theirs.lock().poll_interval(HOUR));
    eventually("it listens", listens).await;
    taken.pop().unwrap().release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    taken.pop().unwrap().release().await.unwrap();
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn waiters_get_an_expired_majority_without_message() {
    is_free_when_leases_end(&[2, 1, 3600]).await;
}

#[tokio::test]
async fn two_masters_are_free_after_both_leases() {
    // One refusal is enough, and says nothing about the other server.
    is_free_when_leases_end(&[2, 1]).await;
}

async fn is_free_when_leases_end(leases: &[u32]) {
    let masters = Masters::start(leases.len());
    let (ours, theirs) = (masters.process().await, masters.process().await);
    for (client, leases) in ours.clients.iter().zip(leases) {
        let lock = client.lock("x").fixed_lease(LEASE * *leases);
        lock.acquire().await.unwrap().forget();
    }
    let lock = theirs.lock().poll_interval(HOUR);
    let guard = lock.try_acquire_for(LEASE * 20).await.unwrap();
    assert_eq!(guard.expect("it was free").members().len(), 2);
    if let Some(last) = masters.places.get(2) {
        last.remove("x");
    }
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn it_is_renewed_and_lives_on_a_majority() {
    let masters = Masters::start(3);
    let ours = masters.process_with(LEASE).await;
    let theirs = masters.process().await;
    let guard = of_all(&ours.lock()).await;
    masters.places[1].remove("x");
    let lost = tokio::time::timeout(LEASE * 4, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(theirs.lock().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn it_is_lost_with_the_majority() {
    let masters = Masters::start(3);
    let ours = masters.process_with(LEASE).await;
    let guard = ours.lock().acquire().await.unwrap();
    masters.places[0].remove("x");
    masters.places[2].remove("x");
    let reason = guard.lost().await;
    assert!(matches!(reason, LossReason::Member { .. }), "{reason:?}");
    assert!(!guard.is_held());
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss(), Some(&reason));
    masters.are_clean(&[&ours]).await;
}

#[tokio::test]
async fn deadline_is_met_by_a_majority() {
    let masters = Masters::start(3);
    let ours = masters.process().await;
    let guard = ours.lock().fixed_lease(LEASE * 10).acquire().await.unwrap();
    let mut deadlines: Vec<_> = guard
        .members()
        .iter()
        .map(leasehold::LockGuard::valid_until)
        .collect();
    deadlines.sort();
    let second_best = deadlines[deadlines.len() - 2];
    let apart = second_best.max(guard.valid_until()) - second_best.min(guard.valid_until());
    assert!(apart < Duration::from_millis(1), "{apart:?}");
    guard.members()[0].extend(HOUR).await.unwrap();
    assert!(
        guard.valid_until() < tokio::time::Instant::now() + HOUR / 2,
        "one is no majority"
    );
    guard.extend(HOUR).await.unwrap();
    assert!(guard.valid_until() > tokio::time::Instant::now() + HOUR / 2);
    guard.release().await.unwrap();
    masters.are_clean(&[&ours]).await;
}

#[tokio::test]
async fn contenders_share_it_without_overlapping() {
    let masters = Masters::start(3);
    let processes = [
        masters.process().await,
        masters.process().await,
        masters.process().await,
    ];
    let recorder = Recorder::new();
    let worker = async |n: usize| {
        let lock = processes[n % 3].lock();
        for _ in 0..6 {
            let asked = recorder.ask("x", &n.to_string());
            let guard = lock.acquire().await.unwrap();
            let inside = asked.acquired(&guard);
            tokio::task::yield_now().await;
            inside.releasing(&guard);
            guard.release().await.unwrap();
        }
    };
    futures_util::future::join_all((0..6).map(worker)).await;
    recorder.report().judge().unwrap();
    assert_eq!(recorder.report().holds, 36);
    masters
        .are_clean(&[&processes[0], &processes[1], &processes[2]])
        .await;
}

#[tokio::test]
async fn an_owner_enters_again() {
    let masters = Masters::start(3);
    let (ours, theirs) = (masters.process().await, masters.process().await);
    // The re-entry also works without one of the masters.
    let other = theirs.clients[1].lock("x").acquire().await.unwrap();
    let owner = leasehold::Owner::new();
    let lock = ours.lock().owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    assert!(lock.is_held_by(&owner));
    let waiter = tokio::spawn({
        let lock = ours.lock();
        async move { lock.acquire().await.unwrap() }
    });
    eventually("a stranger waits", async || {
        let mut clients = ours.clients.iter();
        clients.any(|client| client.activity().lines == 1)
    })
    .await;
    let inner = lock.acquire().await.unwrap();
    assert_eq!(inner.hold_count(), 2);
    outer.release().await.unwrap();
    assert!(!waiter.is_finished());
    inner.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    masters.are_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn wrong_kind_error_names_each_server() {
    let masters = Masters::start(3);
    let ours = masters.process().await;
    let mut groups = Vec::new();
    for client in &ours.clients[1..] {
        groups.push(client.group_lock("x", ["v"]).acquire().await.unwrap());
    }
    let error = ours.lock().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    for place in &masters.places[1..] {
        let Some(server) = place.server_of("x") else {
            continue;
        };
        let port = server.port().to_string();
        let address = if server.port() > 0 {
            &port
        } else {
            "redis+unix"
        };
        assert!(error.to_string().contains(address), "{error}");
    }
    drop(groups);
    masters.are_clean(&[&ours]).await;
}

#[tokio::test]
async fn closing_the_clients_ends_a_majority_wait() {
    let masters = Masters::start(3);
    let (ours, theirs) = (masters.process().await, masters.process().await);
    let held = theirs.lock().acquire().await.unwrap();
    let lock = ours.lock().poll_interval(HOUR);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let listens = |client: &Client| client.activity().channels == 1;
    eventually("it waits", async || ours.clients.iter().all(listens)).await;
    for client in &ours.clients[..2] {
        client.close().await;
    }
    let told = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    let error = told.expect("without a message").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    held.release().await.unwrap();
    masters.are_clean(&[&ours, &theirs]).await;
}
