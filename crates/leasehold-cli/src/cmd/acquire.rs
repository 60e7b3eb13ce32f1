//! The acquire that the flags describe: of a lock of some kind, of several locks, or of a permit.

mod holding;
mod in_the_way;
mod ticket;
mod turn;
mod wait;
mod wanted;

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::Client;
use tokio::time::Instant;

use crate::duration;
use crate::output::Shown;
use crate::signals::Signals;

pub(super) use holding::{Holding, VARIABLES, as_ms, unix_ms, utc};
pub(super) use in_the_way::{KEPT, next_holder};
pub(super) use ticket::{invalid as invalid_ticket, ticket_of};
pub(super) use turn::{as_json as turn_as_json, told as told_turn};
pub(super) use wait::{Waited, Waiting};
pub(super) use wanted::HoldLimits;

/// The longest time for a clean-up after a signal, or after a failed release.
pub(super) const TIDY_LIMIT: Duration = Duration::from_secs(3);

/// Waits for a limited time until the clients have released everything and are closed.
pub(super) async fn tidy(clients: &[Client]) {
    let close = join_all(clients.iter().map(Client::close));
    // After a timeout, the lock is free at the end of its lease.
    let _ = tokio::time::timeout(TIDY_LIMIT, close).await;
}

/// Waits for the end of this work. The first signal limits the wait to [`TIDY_LIMIT`]; a second
/// signal ends the wait ([`in_a_hurry`]). Signals that arrived before the call do not count: they
/// may have ended the command.
pub(super) async fn unless_hurried<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Option<T> {
    signals.forget();
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return Some(done),
        _ = signals.next() => {}
    }
    in_a_hurry(work, signals).await
}

/// Waits for the end of this work, at most for [`TIDY_LIMIT`]. A signal ends the wait.
async fn in_a_hurry<T>(work: impl Future<Output = T>, signals: &mut Signals) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        _ = signals.next() => None,
        () = tokio::time::sleep(TIDY_LIMIT) => None,
    }
}

/// The reason why a lock was not released, if [`unless_hurried`] gave up.
pub(super) const HURRIED: &str = "a signal has ended the wait for the server's answer";

/// Returns a message about a hold that may last for the rest of its lease. `rest` is the time for
/// which the server should keep the hold after the command.
pub(super) fn not_released(
    name: &str,
    why: &str,
    rest: Option<Duration>,
    valid_until: Instant,
) -> String {
    let name = Shown(name);
    let left = valid_until.saturating_duration_since(Instant::now());
    let left = duration::soon(Duration::from_secs(left.as_secs()));
    match rest {
        None => format!(
            "the release of `{name}` is not confirmed: {why}; the lock is free when its lease ends, {left} at the latest"
        ),
        Some(rest) => format!(
            "the server has not confirmed that it keeps `{name}` for another {}: {why}; if the server does not keep it, the lock is free when its lease ends, {left}",
            duration::shown(rest)
        ),
    }
}
