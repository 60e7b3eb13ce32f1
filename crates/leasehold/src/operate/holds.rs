//! The list of a client's holds, as the client itself knows them.

use tokio::time::Instant;

use crate::context::Context;
use crate::loss::LossReason;

/// A hold of this client: one entry of [`Client::holds`](crate::Client::holds).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldInfo {
    /// The name of the lock or semaphore.
    pub name: String,
    /// The kind of the hold: `lock` (plain or fenced), `fair`, `read`, `write`, `group` or
    /// `permit`.
    pub kind: &'static str,
    /// The id of the hold on the server. For several permits from one acquire, it is the id of the
    /// first.
    pub id: String,
    /// The number of the hold, as [`LockGuard::number`](crate::LockGuard::number) returns it.
    pub number: u64,
    /// The instant at which the client sent the request that acquired the hold, or at which another
    /// holder of this process handed the hold over.
    pub since: Instant,
    /// The instant at which the hold is lost, unless it is renewed earlier.
    pub valid_until: Instant,
    /// Number of renewals of the hold that the server has confirmed.
    pub renewals: u32,
    /// Number of guards that share the hold: the guards of an owner, or readers of this client.
    pub guards: usize,
    /// The reason for the loss; `None` while the hold is valid.
    pub loss: Option<LossReason>,
}

/// Returns all holds of a client, the oldest first.
pub(crate) fn of(context: &Context) -> Vec<HeldInfo> {
    let mut holds = context.live_holds.all();
    // Read each start only once, because a hand-over can change it while the sort runs.
    holds.sort_by_cached_key(|hold| hold.since());
    let holds = holds.into_iter().map(|hold| {
        let (renewals, guards) = hold.counts();
        HeldInfo {
            name: hold.key.given().to_owned(),
            kind: kind(hold.steps.release().step.name),
            id: hold.steps.wire_id().to_owned(),
            number: hold.hold_number(),
            since: context.clock.to_instant(hold.since()),
            valid_until: context.clock.to_instant(hold.valid_until()),
            renewals,
            guards,
            loss: hold.loss(),
        }
    });
    holds.collect()
}

/// Returns the kind of a hold by its release step, because each kind has its own.
fn kind(release: &str) -> &'static str {
    match release {
        "fair.release" => "fair",
        "rw.release_read" => "read",
        "rw.release_write" => "write",
        "group.release" => "group",
        "expirable.release" => "permit",
        _ => "lock",
    }
}
