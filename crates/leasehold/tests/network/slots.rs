//! Turns over a network that loses and delays requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::slot::{Begin, Turns};

use super::*;

fn over_network(server: &Embedded) -> (Turns, Network) {
    over_network_with(server, MINUTE)
}

fn over_network_with(server: &Embedded, period: Duration) -> (Turns, Network) {
    let builder = Client::builder().reply_timeout(400 * MS).presence(false);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    let lock = client.lock("x").outage_timeout(HOUR);
    (lock.once_per(period), network)
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn wait_for_a_turn_ends_in_time_without_an_answer() {
    let server = Embedded::new();
    let (turns, network) = over_network(&server);
    for patience in [50 * MS, 900 * MS] {
        network.freeze(true);
        let start = Instant::now();
        let error = turns.begin_for(patience).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(
            start.elapsed() <= patience + 2 * MS,
            "{:?}",
            start.elapsed()
        );
        network.freeze(false);
    }
    assert!(matches!(turns.begin().await.unwrap(), Begin::Run(_)));
}

/// The second request of the wait is not answered before the wait ends.
#[tokio::test(start_paused = true)]
async fn wait_that_got_one_answer_reports_the_holder() {
    let server = Embedded::new();
    let theirs = server.client().lock("x").once_per(MINUTE);
    let Begin::Run(turn) = theirs.begin().await.unwrap() else {
        panic!("the slot is open");
    };
    let (turns, network) = over_network(&server);
    network.on_request(|_| Fate::delivered(10 * MS, 10 * MS));
    let begun = turns.begin_for(25 * MS).await.unwrap();
    let Begin::Elsewhere(info) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(info.hold, turn.holder_id());
    turn.done().await.unwrap();
}

/// The server answers when the next slot is nearest.
#[tokio::test(start_paused = true)]
async fn outage_does_not_move_a_wait_to_the_next_slot() {
    let server = Embedded::new();
    let (turns, network) = over_network(&server);
    let Begin::Run(first) = turns.begin().await.unwrap() else {
        panic!("the slot is open");
    };
    let slot = first.slot().unwrap();
    // Until the slot begins.
    sleep(slot.duration_since(first.began()).unwrap()).await;
    first.failed().await.unwrap();
    let repeated = turns.clone().retry_failed(true);
    for (slot, patience) in [(slot, None), (slot + MINUTE, Some(MINUTE))] {
        network.freeze(true);
        let waits = async {
            match patience {
                None => repeated.begin().await,
                Some(wait) => repeated.begin_for(wait).await,
            }
        };
        let heals = async {
            sleep(MINUTE * 3 / 4).await;
            network.freeze(false);
        };
        let (begun, ()) = tokio::join!(waits, heals);
        let Begin::Run(turn) = begun.unwrap() else {
            panic!("the slot is open");
        };
        assert_eq!(turn.slot(), Some(slot));
        turn.failed().await.unwrap();
        sleep(MINUTE / 4).await;
    }
}

/// A suspended server carries out a request late, when the next slot is nearest.
#[tokio::test(start_paused = true)]
async fn request_that_runs_late_is_for_the_slot_of_the_call() {
    const PERIOD: Duration = Duration::from_millis(600);
    for late in [Step::SlotLook, Step::SlotBegin] {
        for wait in [None, Some(PERIOD)] {
            let server = Embedded::new();
            let (turns, network) = over_network_with(&server, PERIOD);
            let Begin::Run(first) = turns.begin().await.unwrap() else {
                panic!("the slot is open");
            };
            // Until the next slot has begun.
            let next = first.slot().unwrap() + PERIOD;
            sleep(next.duration_since(first.began()).unwrap()).await;
            first.done().await.unwrap();
            let mut is_first = true;
            network.on_request(move |asked| {
                let is_late = asked.step == late && std::mem::take(&mut is_first);
                Fate::delivered(if is_late { 350 * MS } else { MS }, MS)
            });
            let begun = match wait {
                None => turns.try_begin().await,
                Some(wait) => turns.begin_for(wait).await,
            };
            let Begin::Run(turn) = begun.unwrap() else {
                panic!("the slot is open");
            };
            assert_eq!(turn.slot(), Some(next), "{late:?} {wait:?}");
            assert!(turn.began() > next + 300 * MS, "it ran late");
        }
    }
}

/// The wait ends while the client still asks for the server's time.
#[tokio::test(start_paused = true)]
async fn short_wait_does_not_take_an_old_turn_for_its_own() {
    const PERIOD: Duration = Duration::from_millis(600);
    let server = Embedded::new();
    let (turns, network) = over_network_with(&server, PERIOD);
    let Begin::Run(first) = turns.begin().await.unwrap() else {
        panic!("the slot is open");
    };
    // Until shortly before the middle of a later slot.
    let later = first.slot().unwrap() + PERIOD * 5 + 250 * MS;
    sleep(later.duration_since(first.began()).unwrap()).await;
    first.done().await.unwrap();
    let looks = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&looks);
    network.on_request(move |asked| {
        if asked.step == Step::SlotLook {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Fate::delivered(200 * MS, MS)
    });
    let begun = turns.begin_for(300 * MS).await.unwrap();
    assert!(matches!(begun, Begin::Elsewhere(_)), "{begun:?}");
    assert_eq!(looks.load(Ordering::SeqCst), 2);
}

/// Begins a turn with `wait`. The first grant is lost, and its lease ends before the client has
/// given it back, 10 s after the first request.
async fn begin_after_a_lost_grant(wait: Duration) -> leasehold::Result<Begin> {
    let server = Embedded::new();
    let builder = Client::builder().reply_timeout(400 * MS).presence(false);
    let builder = builder.lease(6 * SECOND);
    let (client, network) = server.client_over_network(&builder).unwrap();
    let (start, begun) = (Instant::now(), AtomicUsize::new(0));
    network.on_request(move |asked| {
        let fate = Fate::delivered(MS, MS);
        match asked.step {
            Step::SlotBegin if begun.fetch_add(1, Ordering::SeqCst) == 0 => fate.reply_lost(),
            Step::SlotFinish if start.elapsed() < 10 * SECOND => fate.request_lost(),
            _ => fate,
        }
    });
    let turns = client.lock("x").once_per(HOUR).at_most_once(true);
    turns.begin_for(wait).await
}

const SECOND: Duration = Duration::from_secs(1);

/// Another client's turn would stay closed, because it has died.
#[tokio::test(start_paused = true)]
async fn wait_does_not_take_its_own_lost_grant_for_a_turn_that_died() {
    let begun = begin_after_a_lost_grant(MINUTE).await;
    assert!(matches!(begun, Ok(Begin::Run(_))), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn wait_that_ends_with_its_own_lost_grant_has_an_unknown_outcome() {
    // The grant holds the lock, and has expired.
    for wait in [3 * SECOND, 8 * SECOND] {
        let begun = begin_after_a_lost_grant(wait).await;
        let error = begun.expect_err("no other client had the lock");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{wait:?}: {error}");
    }
}
