//! Clients of a cluster whose runtime has ended.

use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::Cluster;

use crate::support::HOUR;
use crate::support::ended::current_thread;

const SOON: Duration = Duration::from_secs(20);

/// An operation whose node is not known waits in the queue of its slot. A task in the client's
/// runtime drains that queue.
#[test]
fn operation_for_an_unknown_node_fails_after_the_runtime_ends() {
    let cluster = Cluster::start(2, 0);
    let runtime = current_thread();
    let client = {
        let _inside = runtime.enter();
        let builder = Client::builder().lease(HOUR);
        builder.connect_in_background(&cluster.url()).unwrap()
    };
    // No task of the client ever begins, so no node sends the map.
    drop(runtime);
    current_thread().block_on(async {
        let lock = client.lock("x").outage_timeout(HOUR);
        let asks = tokio::time::timeout(SOON, lock.is_locked()).await;
        let error = asks.expect("it does not hang").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("runtime has ended"), "{error}");
        let asks = tokio::time::timeout(SOON, lock.acquire()).await;
        let error = asks.expect("it does not hang").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    });
}
