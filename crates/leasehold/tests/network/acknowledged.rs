//! Holds that replicas acknowledge. The tests set how many replicas do so.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use leasehold::{Acknowledgement, Error, Lock, LockGuard, Owner};

use super::*;

/// The longest wait for the acknowledgements.
const WITHIN: Duration = Duration::from_millis(100);

fn by(replicas: u8) -> Acknowledgement {
    Acknowledgement::replicas(replicas).within(WITHIN)
}

fn lock(client: &Client, replicas: u8) -> Lock {
    client.lock("x").acknowledged_by(by(replicas))
}

/// Records the steps of the requests that are sent from now on. Each request takes a millisecond.
fn noted(network: &Network) -> Arc<Mutex<Vec<Step>>> {
    let sent = Arc::<Mutex<Vec<Step>>>::default();
    let ours = Arc::clone(&sent);
    network.on_request(move |request| {
        ours.lock().unwrap().push(request.step);
        Fate::delivered(MS, Duration::ZERO)
    });
    sent
}

fn too_few(error: &Error, said: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let expected =
        format!("accepted at memory:// for `x`, but {said} within 100 ms; it was released");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[tokio::test(start_paused = true)]
async fn all_that_are_wanted_confirm_at_first() {
    let server = Embedded::new();
    let (client, _network) = over_network(&server);
    let start = Instant::now();
    for lock in [
        lock(&client, u8::MAX),
        lock(&client, 3).acknowledged_by(by(3).on_disk()),
        lock(&server.client(), u8::MAX),
    ] {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn grant_that_too_few_confirm_is_given_back() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (other, _) = over_network(&server);
    let sent = noted(&network);
    network.confirm_by(1);
    let disk = lock(&client, 2).acknowledged_by(by(2).on_disk());
    let said = [
        "only 1 of 2 replicas confirmed it",
        "only 1 of 2 replicas had it on their disks",
    ];
    for (two, said) in [lock(&client, 2), disk].into_iter().zip(said) {
        let start = Instant::now();
        let asks = tokio::spawn(async move { two.try_acquire().await });
        sleep(WITHIN / 2).await;
        // Another client can't get the lock during this time.
        assert!(other.lock("x").try_acquire().await.unwrap().is_none());
        too_few(&asks.await.unwrap().unwrap_err(), said);
        assert_eq!(start.elapsed(), MS + WITHIN);
        let guard = other.lock("x").acquire().await.unwrap();
        assert!(
            start.elapsed() <= 3 * MS + WITHIN,
            "its undo leaves at once"
        );
        guard.release().await.unwrap();
        // One release is enough, because the reply to the grant had arrived.
        sleep(Duration::from_secs(1)).await;
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        assert_eq!(sent, [Step::LockAcquire, Step::LockRelease]);
        assert_eq!(server.keys(), [""; 0]);
    }
    let one = lock(&client, 1).try_acquire().await.unwrap();
    one.expect("one has confirmed it").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_goes_on_when_the_replicas_are_back() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(MS));
    network.confirm_by(0);
    let one = lock(&client, 1);
    let error = one.try_acquire_for(5 * WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let before = network.requests();
    let waits = tokio::spawn(async move { one.acquire().await.unwrap() });
    sleep(20 * WITHIN).await;
    assert!(!waits.is_finished());
    assert!(network.requests() > before + 4, "it asks again and again");
    network.confirm_by(1);
    let start = Instant::now();
    let guard = waits.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(guard.is_held());
    guard.release().await.unwrap();
    client.close().await;
    assert_eq!(server.keys(), [""; 0]);
}

/// Asserts that the deadline does not move, and that the holder learns of the loss at the deadline,
/// before another client can get the lock.
async fn told_in_time(server: &Embedded, guard: &LockGuard) {
    let until = guard.valid_until();
    let reason = guard.lost().await;
    let why = "only 0 of 1 replicas confirmed it within 100 ms";
    assert!(
        matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.ends_with(why)),
        "{reason}"
    );
    assert_eq!(guard.valid_until(), until, "the promise has moved");
    assert!(Instant::now() <= until + MS, "told late");
    assert!(server.keys().contains(&guard.name().to_owned()));
}

/// Each hold is first renewed on its own, and then with other holds in one request.
#[tokio::test(start_paused = true)]
async fn renewal_that_too_few_confirm_is_told_at_the_deadline() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(MS));
    for together in [1, 5] {
        network.confirm_by(1);
        let mut guards = Vec::new();
        for number in 0..together {
            let lock = client.lock(number.to_string()).acknowledged_by(by(1));
            guards.push(lock.acquire().await.unwrap());
        }
        let granted = guards[0].valid_until();
        sleep(1500 * MS).await;
        assert!(guards[0].valid_until() > granted, "it is renewed");
        network.confirm_by(0);
        let error = guards[0].extend(5000 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let said =
            "only 0 of 1 replicas confirmed it within 100 ms; the hold is valid as long as before";
        assert!(error.to_string().contains(said), "{error}");
        join_all(guards.iter().map(|guard| told_in_time(&server, guard))).await;
        drop(guards);
        sleep(1000 * MS).await;
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_outlives_replicas_that_are_away_for_less_than_its_lease() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = lock(&client, 1).acquire().await.unwrap();
    for _ in 0..5 {
        network.confirm_by(0);
        sleep(500 * MS).await;
        network.confirm_by(1);
        sleep(500 * MS).await;
    }
    guard.release().await.unwrap();
}

/// The lock is held by another client. That is the result, whether or not replicas confirm it.
#[tokio::test(start_paused = true)]
async fn held_lock_is_held_whatever_the_replicas_say() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let theirs = server.client().lock("x").acquire().await.unwrap();
    let sent = noted(&network);
    network.confirm_by(0);
    let one = lock(&client, 1);
    assert!(one.try_acquire().await.unwrap().is_none());
    assert!(one.try_acquire_for(5 * WITHIN).await.unwrap().is_none());
    sleep(WITHIN).await;
    let sent = sent.lock().unwrap().clone();
    assert!(!sent.contains(&Step::LockRelease), "{sent:?}");
    theirs.release().await.unwrap();
}

/// The acquire is dropped while the server waits for the replicas.
#[tokio::test(start_paused = true)]
async fn dropped_acquire_is_undone_behind_its_confirmations() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(MS));
    network.confirm_by(0);
    let one = lock(&client, 1);
    let asks = tokio::spawn(async move { one.try_acquire().await });
    sleep(WITHIN / 2).await;
    asks.abort();
    sleep(MS * 10).await;
    assert_eq!(server.keys(), ["x"], "the connection is held up");
    // Another connection is opened for this request.
    let start = Instant::now();
    let plain = client.lock("y").acquire().await.unwrap();
    plain.release().await.unwrap();
    assert_eq!(start.elapsed(), 4 * MS);
    sleep(WITHIN / 2).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// The hold exists, but has fewer confirmations than the guard that re-enters it wants.
#[tokio::test(start_paused = true)]
async fn re_entry_that_wants_more_confirmations_has_to_get_them() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.confirm_by(0);
    let owner = Owner::new();
    let guard = client.lock("x").owned_by(&owner).acquire().await.unwrap();
    let one = lock(&client, 1).owned_by(&owner);
    let error = one.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    network.confirm_by(1);
    let again = one.acquire().await.unwrap();
    again.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_downgrade_of_a_removed_lock_leaves_no_key() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let writing = client.rw_lock("x").acknowledged_by(by(1));
    let writing = writing.write().await.unwrap();
    network.confirm_by(0);
    let turns = tokio::spawn(writing.downgrade());
    sleep(WITHIN / 2).await;
    let [lock, timeout] = &server.keys()[..] else {
        panic!("the lock and the key of the read hold: {:?}", server.keys());
    };
    assert!(timeout.contains("rwlock_timeout"), "{lock}, {timeout}");

    // The retried request finds no write hold.
    assert!(server.remove("x"));
    let error = turns.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    // This is long before the lease ends.
    sleep(MS).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// Holds that do not need a confirmation are renewed at the same time. Their renewals do not
/// confirm the other holds.
#[tokio::test(start_paused = true)]
async fn renewals_with_and_without_confirmations_are_told_apart() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    noted(&network);
    let (mut plain, mut confirmed) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let lock = client.lock(number.to_string()).renew_every(300 * MS);
        match number % 2 {
            0 => plain.push(lock.acquire().await.unwrap()),
            _ => confirmed.push(lock.acknowledged_by(by(1)).acquire().await.unwrap()),
        }
    }
    network.confirm_by(0);
    sleep(3000 * MS).await;
    for guard in &plain {
        assert_eq!(guard.loss(), None, "`{}`", guard.name());
    }
    for guard in &confirmed {
        let loss = guard.loss();
        let told = matches!(&loss, Some(LossReason::RenewalFailed { .. }));
        assert!(told, "`{}`: {loss:?}", guard.name());
    }
}
