//! The acquire that the flags ask for: a lock of some kind, several locks, or a permit.

mod holding;
mod in_the_way;
mod wait;
mod wanted;

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::Client;

pub(super) use holding::{Holding, as_ms};
pub(super) use in_the_way::next_holder;
pub(super) use wait::{Waited, Waiting};

/// The longest time for a clean-up after a signal, or after a failed release.
pub(super) const TIDY_LIMIT: Duration = Duration::from_secs(3);

/// Waits until nothing is left to release and the clients have closed, for a limited time.
pub(super) async fn tidy(clients: &[Client]) {
    let close = join_all(clients.iter().map(Client::close));
    // After a time-out, the end of the lease does the rest.
    let _ = tokio::time::timeout(TIDY_LIMIT, close).await;
}
