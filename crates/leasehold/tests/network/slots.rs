//! Turns over a network that loses and delays requests.

use leasehold::slot::{Begin, Turns};

use super::*;

fn over_network(server: &Embedded) -> (Turns, Network) {
    let builder = Client::builder().reply_timeout(400 * MS).presence(false);
    let (client, network) = server.client_over_network(&builder).unwrap();
    network.on_request(|_| Fate::delivered(MS, MS));
    (client.lock("x").once_per(MINUTE), network)
}

const MINUTE: Duration = Duration::from_secs(60);

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
