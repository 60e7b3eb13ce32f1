//! Tickets over a network that loses, doubles and delays requests.

use leasehold::ticket::Ticket;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn over_network(server: &Embedded) -> (Client, Network) {
    let builder = Client::builder()
        .reply_timeout(400 * MS)
        .lease(10_000 * MS)
        .presence(false);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    (client, network)
}

/// Returns a ticket of the fenced lock `x`, and its token.
async fn ticket(client: &Client) -> (Ticket, u64) {
    let guard = client.fenced_lock("x").acquire().await.unwrap();
    let token = guard.token();
    (guard.into_ticket(MINUTE).await.unwrap(), token)
}

/// Lets the first request for `step` meet this fate.
fn first(network: &Network, step: Step, fate: impl Fn() -> Fate + Send + 'static) {
    let mut seen = false;
    network.on_request(move |asked| match asked.step == step && !seen {
        true => {
            seen = true;
            fate()
        }
        false => Fate::delivered(MS, MS),
    });
}

/// Waits until the lock is free. The wait is shorter than the leases in these tests.
async fn is_soon_free(server: &Embedded) {
    let lock = server.client().lock("x");
    let free = lock.try_acquire_for(5000 * MS).await.unwrap();
    free.expect("it is free").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn resume_whose_reply_was_lost_is_found() {
    for kind in 0..2 {
        let server = Embedded::new();
        let (client, network) = over_network(&server);
        let (ticket, token) = ticket(&client).await;
        first(&network, Step::TicketTake, move || {
            let fate = Fate::delivered(MS, MS);
            match kind {
                0 => fate.reply_lost(),
                _ => fate.request_lost(),
            }
        });
        let guard = client.resume(&ticket).await.unwrap();
        assert!(guard.token() > Some(token));
        let info = server.client().lock("x").inspect().await.unwrap();
        let ids: Vec<_> = info.holders.iter().map(|holder| &*holder.id).collect();
        assert_eq!(ids, [guard.holder_id()]);
        guard.release().await.unwrap();
        is_soon_free(&server).await;
    }
}

#[tokio::test(start_paused = true)]
async fn second_copy_of_a_resume_changes_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (ticket, _) = ticket(&client).await;
    first(&network, Step::TicketTake, || {
        Fate::delivered(MS, MS).duplicated_after(300 * MS)
    });
    let guard = client.resume(&ticket).await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    let next = server.client().fenced_lock("x").acquire().await.unwrap();
    sleep(1000 * MS).await;
    assert!(next.is_held() && Some(next.token()) > token);
    next.extend(MINUTE).await.unwrap();
    next.release().await.unwrap();
}

/// A copy of the request grants the hold again, and this hold has no holder.
#[tokio::test(start_paused = true)]
async fn late_copy_of_the_acquire_revives_no_ticket() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    first(&network, Step::FencedAcquire, || {
        Fate::delivered(MS, MS).duplicated_after(300 * MS)
    });
    let (ticket, _) = ticket(&client).await;
    client
        .resume(&ticket)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    sleep(1000 * MS).await;
    let lock = server.client().lock("x");
    assert!(lock.is_locked().await.unwrap(), "the copy grants nothing");
    let again = client.resume(&ticket).await.unwrap_err();
    assert!(
        matches!(again.loss(), Some(LossReason::Taken { .. })),
        "{again}"
    );
}

/// The copy takes permits again that have no holder, until their lease ends.
#[tokio::test(start_paused = true)]
async fn late_copy_of_an_acquire_of_permits_revives_no_ticket() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let semaphore = client.expirable_semaphore("x");
    semaphore.try_set_permits(2).await.unwrap();
    first(&network, Step::ExpirableAcquire, || {
        Fate::delivered(MS, MS).duplicated_after(300 * MS)
    });
    let permit = semaphore.acquire().await.unwrap();
    let ticket = permit.into_ticket(MINUTE).await.unwrap();
    let permit = semaphore.resume(&ticket).await.unwrap();
    permit.release().await.unwrap();
    sleep(1000 * MS).await;
    let free = semaphore.available_permits().await.unwrap();
    assert_eq!(free, 1, "the copy takes a permit");
    let again = semaphore.resume(&ticket).await.unwrap_err();
    assert!(
        matches!(again.loss(), Some(LossReason::Taken { .. })),
        "{again}"
    );
}

/// The request arrives after its caller has dropped the future.
#[tokio::test(start_paused = true)]
async fn dropped_resume_gives_the_hold_back() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (ticket, _) = ticket(&client).await;
    first(&network, Step::TicketTake, || {
        Fate::delivered(200 * MS, 200 * MS)
    });
    let resume = client.resume(&ticket);
    let dropped = tokio::time::timeout(50 * MS, resume).await;
    assert!(dropped.is_err());
    is_soon_free(&server).await;
    let late = server.client().resume(&ticket).await.unwrap_err();
    assert!(
        matches!(late.loss(), Some(LossReason::Taken { .. })),
        "{late}"
    );
}

#[tokio::test(start_paused = true)]
async fn resume_without_an_answer_leaves_nothing() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (ticket, _) = ticket(&client).await;
    network.on_request(|asked| {
        let fate = Fate::delivered(MS, MS);
        match asked.step {
            Step::TicketTake => fate.reply_lost(),
            _ => fate,
        }
    });
    let error = client.resume(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    is_soon_free(&server).await;
}

/// The grant is older than its lease when its reply arrives, so no guard may rely on it.
#[tokio::test(start_paused = true)]
async fn resume_that_is_older_than_its_lease_is_given_back() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let (ticket, _) = ticket(&client).await;
    first(&network, Step::TicketTake, || Fate::delivered(MS, 300 * MS));
    let short = client.lock("x").fixed_lease(100 * MS);
    let error = short.resume(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    is_soon_free(&server).await;
}

#[tokio::test(start_paused = true)]
async fn ticket_whose_reply_was_lost_is_valid() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client.lock("x").acquire().await.unwrap();
    first(&network, Step::LockKeepFor, || {
        Fate::delivered(MS, MS).reply_lost()
    });
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    let guard = server.client().resume(&ticket).await.unwrap();
    guard.release().await.unwrap();
}

/// A copy of a renewal that arrives late does not keep the lock locked after the end of the ticket.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_lengthen_a_ticket() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client.lock("x").acquire().await.unwrap();
    let (sent, mut renewed) = tokio::sync::mpsc::unbounded_channel();
    network.on_request(move |asked| {
        let is_renewal = matches!(asked.step, Step::LockRenew | Step::LockRenewMany);
        match is_renewal && sent.send(()).is_ok() {
            true => Fate::delivered(MS, MS).duplicated_after(300 * MS),
            false => Fate::delivered(MS, MS),
        }
    });
    renewed.recv().await.unwrap();
    drop(renewed);
    sleep(10 * MS).await;
    let ticket = guard.into_ticket(500 * MS).await.unwrap();
    sleep(600 * MS).await;
    let free = server.client().lock("x").try_acquire().await.unwrap();
    free.expect("its lease is over").release().await.unwrap();
    assert!(client.resume(&ticket).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn ticket_without_an_answer_leaves_nothing() {
    for drops in [false, true] {
        let server = Embedded::new();
        let (client, network) = over_network(&server);
        let guard = client.lock("x").acquire().await.unwrap();
        network.on_request(|asked| {
            let fate = Fate::delivered(MS, MS);
            match asked.step {
                Step::LockKeepFor => fate.reply_lost(),
                _ => fate,
            }
        });
        let lost = guard.lost();
        let handing = guard.into_ticket(MINUTE);
        match drops {
            true => assert!(tokio::time::timeout(100 * MS, handing).await.is_err()),
            false => {
                let error = handing.await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
            }
        }
        is_soon_free(&server).await;
        let told = tokio::time::timeout(1000 * MS, lost).await;
        assert!(told.is_err(), "it was given back, not lost: {told:?}");
    }
}

/// The future of `lost` is polled for the first time while the request is under way.
#[tokio::test(start_paused = true)]
async fn watcher_that_comes_late_learns_of_the_ticket() {
    let server = Embedded::new();
    let (client, network) = over_network(&server);
    let guard = client.lock("x").acquire().await.unwrap();
    network.on_request(|_| Fate::delivered(100 * MS, 100 * MS));
    let lost = guard.lost();
    let watcher = async {
        sleep(150 * MS).await;
        lost.await
    };
    let watcher = tokio::time::timeout(MINUTE, watcher);
    let (ticket, told) = tokio::join!(guard.into_ticket(MINUTE), watcher);
    assert_eq!(told, Ok(LossReason::HandedOver));
    drop(ticket.unwrap());
}

/// Readers of one process share a hold, and a ticket would take it from all of them.
#[tokio::test(start_paused = true)]
async fn hold_that_readers_share_becomes_no_ticket() {
    let server = Embedded::new();
    let (client, _network) = over_network(&server);
    let lock = client.rw_lock("x");
    let (one, other) = tokio::join!(lock.read(), lock.read());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.holder_id(), other.holder_id(), "they share it");
    let error = one.into_ticket(MINUTE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.to_string().contains("other readers"), "{error}");
    other.extend(MINUTE).await.unwrap();
    // The last reader no longer shares the hold.
    let ticket = other.into_ticket(MINUTE).await.unwrap();
    let guard = client.resume(&ticket).await.unwrap();
    assert!(
        server
            .client()
            .rw_lock("x")
            .try_write()
            .await
            .unwrap()
            .is_none()
    );
    guard.release().await.unwrap();
    is_soon_free(&server).await;
}

/// A ticket with a short lease ends without the other reader's hold, and another ticket is passed
/// on while that reader still reads.
#[tokio::test(start_paused = true)]
async fn ticket_of_a_reader_leaves_other_readers_alone() {
    let server = Embedded::new();
    let (client, _network) = over_network(&server);
    let lock = server.client().rw_lock("x");
    let other = lock.read_lock().fixed_lease(MINUTE * 2);
    let other = other.acquire().await.unwrap();
    let guard = client.rw_lock("x").read().await.unwrap();
    let ended = guard.into_ticket(100 * MS).await.unwrap();
    sleep(200 * MS).await;
    let error = client.resume(&ended).await.unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Expired), "{error}");
    let guard = client.rw_lock("x").read().await.unwrap();
    let ticket = guard.into_ticket(MINUTE).await.unwrap();
    let short = client.rw_lock("x").read_lock().fixed_lease(100 * MS);
    short.resume(&ticket).await.unwrap().forget();
    sleep(1000 * MS).await;
    assert!(lock.try_write().await.unwrap().is_none());
    other.release().await.unwrap();
    is_soon_free(&server).await;
}

/// The waiters of a fair lock listen to channels of their own.
#[tokio::test(start_paused = true)]
async fn a_fair_waiter_learns_the_end_of_a_resumed_ticket() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = Embedded::new();
    let (client, _network) = over_network(&server);
    let (theirs, _network) = over_network(&server);
    let guard = client.fair_lock("x").acquire().await.unwrap();
    let ticket = guard.into_ticket(HOUR).await.unwrap();
    let fair = theirs
        .fair_lock("x")
        .waiter_timeout(HOUR)
        .poll_interval(HOUR);
    let waiter = tokio::spawn(async move { fair.acquire().await.unwrap() });
    sleep(500 * MS).await;
    let begun = Instant::now();
    let lease = 1000 * MS;
    let short = client.fair_lock("x").fixed_lease(lease);
    short.resume(&ticket).await.unwrap().forget();
    waiter.await.unwrap().release().await.unwrap();
    let waited = begun.elapsed();
    assert!(
        waited >= lease - MS && waited < lease + 500 * MS,
        "{waited:?}"
    );
}
