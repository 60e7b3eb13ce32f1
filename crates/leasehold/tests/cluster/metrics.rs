//! The metrics of the nodes of a cluster.

use leasehold::Client;
use leasehold_testkit::Cluster;
use metrics_util::debugging::DebuggingRecorder;

use crate::support::eventually;
use crate::support::told::{Told, is};

const REDIRECTS: &str = "leasehold.server.redirects";
const MOVES: usize = 20;

#[tokio::test]
async fn answers_that_name_another_node_are_counted() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut told = Told::new(&recorder);
    let cluster = Cluster::start(2, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let pair = async || {
        let guard = client.lock("x").acquire().await.unwrap();
        guard.release().await.unwrap();
    };
    pair().await;
    assert!(is(told.number(REDIRECTS), 0.0));

    let slot = cluster.slot_of("x");
    let other = || 1 - cluster.owner(slot);
    cluster.open(slot, other());
    pair().await;
    // The lock has no key in the open slot, so its owner says `ASK`.
    let asked = told.number(REDIRECTS);
    assert!(asked >= 1.0, "{:?}", told.numbers);

    cluster.assign(slot, other());
    // A client that learns of a move before it sends a request does not get a `MOVED` reply.
    for _ in 0..MOVES {
        cluster.migrate(slot, other());
        pair().await;
        if told.number(REDIRECTS) > asked {
            break;
        }
    }
    assert!(told.number(REDIRECTS) > asked, "{:?}", told.numbers);

    eventually("the client knows where the slot is", async || {
        let before = told.number(REDIRECTS);
        pair().await;
        is(told.number(REDIRECTS), before)
    })
    .await;
}
