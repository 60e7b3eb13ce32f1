//! Holds that are due at the same time are renewed in one request.

use std::sync::{Arc, Mutex};

use leasehold::LockGuard;
use leasehold::inspect::Ttl;

use super::*;

const HOLDS: usize = 300;

/// Returns `HOLDS` holds of a client whose server answers after two milliseconds, and the steps of
/// the requests that are sent from now on.
async fn many(server: &Embedded) -> (Vec<LockGuard>, Network, Arc<Mutex<Vec<Step>>>) {
    let (client, network) = over_network(server);
    network.on_request(takes(MS));
    let locks: Vec<_> = (0..HOLDS).map(|n| client.lock(n.to_string())).collect();
    let guards = futures_util::future::join_all(locks.iter().map(|lock| lock.acquire())).await;
    let sent = Arc::<Mutex<Vec<Step>>>::default();
    let noted = Arc::clone(&sent);
    network.on_request(move |request| {
        noted.lock().unwrap().push(request.step);
        Fate::delivered(MS, MS)
    });
    let guards = guards.into_iter().collect::<Result<_, _>>();
    (guards.unwrap(), network, sent)
}

fn count(sent: &Mutex<Vec<Step>>, step: Step) -> usize {
    let sent = sent.lock().unwrap();
    sent.iter().filter(|one| **one == step).count()
}

#[tokio::test(start_paused = true)]
async fn many_holds_are_renewed_by_few_requests() {
    let server = Embedded::new();
    let (guards, _network, sent) = many(&server).await;
    sleep(3000 * MS).await;
    assert!(guards.iter().all(LockGuard::is_held));
    let (together, alone) = (
        count(&sent, Step::LockRenewMany),
        count(&sent, Step::LockRenew),
    );
    // Each hold is renewed at least three times in three leases.
    assert!(together + alone < HOLDS, "{together} and {alone}");
    assert!(together > alone, "{together} and {alone}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_for_many_is_sent_again() {
    let server = Embedded::new();
    let (guards, network, _) = many(&server).await;
    let mut lost = 0;
    network.on_request(move |request| match request.step {
        Step::LockRenewMany if lost < 3 => {
            lost += 1;
            Fate::default().request_lost()
        }
        _ => Fate::delivered(MS, MS),
    });
    sleep(3000 * MS).await;
    assert!(guards.iter().all(LockGuard::is_held));
}

#[tokio::test(start_paused = true)]
async fn what_is_odd_among_many_is_renewed_alone() {
    let server = Embedded::new();
    let (guards, _network, sent) = many(&server).await;
    assert!(server.client().lock("7").force_unlock().await.unwrap());
    assert_eq!(guards[7].lost().await, crate::support::forced());
    assert!(count(&sent, Step::LockRenew) >= 1);
    sleep(2000 * MS).await;
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    assert_eq!(held, HOLDS - 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_request_for_many_shortens_no_extension() {
    let server = Embedded::new();
    let (guards, network, sent) = many(&server).await;
    let noted = Arc::clone(&sent);
    network.on_request(move |request| {
        noted.lock().unwrap().push(request.step);
        match request.step {
            Step::LockRenewMany => Fate::delivered(MS, MS).duplicated_after(100 * MS),
            _ => Fate::delivered(MS, MS),
        }
    });
    while count(&sent, Step::LockRenewMany) < 2 {
        sleep(MS).await;
    }
    // Each hold gets a longer lease than any earlier request for several holds has requested.
    let long = 60_000 * MS;
    let extended = guards.iter().map(|guard| guard.extend(long));
    for result in futures_util::future::join_all(extended).await {
        result.unwrap();
    }
    let ends: Vec<_> = guards.iter().map(LockGuard::valid_until).collect();
    let renewed = count(&sent, Step::LockRenewMany);
    // The duplicates arrive, and none of the holds is due for a renewal yet.
    sleep(200 * MS).await;
    network.freeze(true);
    let other = server.client();
    for (guard, end) in guards.iter().zip(ends) {
        let left = other.lock(guard.name()).remaining_ttl().await.unwrap();
        let Ttl::Left(left) = left else {
            panic!("`{}`: {left:?}", guard.name());
        };
        assert!(Instant::now() + left > end, "`{}`: {left:?}", guard.name());
    }
    assert_eq!(count(&sent, Step::LockRenewMany), renewed, "none is due");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_for_its_span_over_lost_and_doubled_requests() {
    for fate in [
        Fate::delivered(MS, MS).reply_lost(),
        Fate::delivered(MS, MS).request_lost(),
        Fate::delivered(MS, MS).duplicated_after(20 * MS),
    ] {
        let server = Embedded::new();
        let (client, network) = over_network(&server);
        let guard = client.lock("x").acquire().await.unwrap();
        // The fate of the first `keep_for` request.
        let mut fates = vec![fate];
        network.on_request(move |_| fates.pop().unwrap_or(Fate::delivered(MS, MS)));
        let kept = Instant::now();
        guard.keep_for(600 * MS).await.unwrap();
        assert_eq!(client.activity().renewed_holds, 0);
        let asked_for = kept.elapsed();
        let next = client.lock("x").acquire().await.unwrap();
        // The loss of a request is noticed after the reply timeout, and the time counts from the
        // retry.
        let most = 600 * MS + asked_for + 100 * MS;
        assert!(
            kept.elapsed() >= 600 * MS && kept.elapsed() <= most,
            "{:?}",
            kept.elapsed()
        );
        next.release().await.unwrap();
    }
}

/// Each hold is renewed for its own lease. If it were renewed for less than its holder believes, it
/// would be lost unnoticed.
#[tokio::test(start_paused = true)]
async fn holds_with_leases_of_their_own_are_each_renewed_for_theirs() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    network.on_request(takes(MS));
    let mut guards = Vec::new();
    for number in 0..60 {
        // The leases are too similar for a hold to be renewed in a request of its own.
        let lease = [1000, 1400, 1900][number % 3] * MS;
        // All holds are due at the same time.
        let lock = client.lock(number.to_string()).lease(lease);
        guards.push(lock.renew_every(300 * MS).acquire().await.unwrap());
    }
    let other = server.client();
    for _ in 0..20 {
        sleep(1000 * MS).await;
        for guard in &guards {
            assert_eq!(guard.loss(), None, "`{}`", guard.name());
            let until = guard.valid_until();
            let left = other.lock(guard.name()).remaining_ttl().await.unwrap();
            let Ttl::Left(left) = left else {
                panic!("`{}` is not there: {left:?}", guard.name());
            };
            assert!(
                Instant::now() + left > until,
                "`{}`: {left:?}",
                guard.name()
            );
        }
    }
}
