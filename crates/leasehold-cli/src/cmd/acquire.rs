//! Acquiring what the flags ask for: a lock of some kind, several, or a permit.

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

/// How long the program stays after a signal, or after a release that failed, to
/// leave nothing behind.
pub(super) const TIDY_LIMIT: Duration = Duration::from_secs(3);

/// Waits until nothing is left to release, and the clients have said goodbye, within reason.
pub(super) async fn tidy(clients: &[Client]) {
    let close = join_all(clients.iter().map(Client::close));
    // Over time: the lease does what is left.
    let _ = tokio::time::timeout(TIDY_LIMIT, close).await;
}
