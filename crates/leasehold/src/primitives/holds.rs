//! What a client holds, as it knows itself.

use tokio::time::Instant;

use crate::context::Context;
use crate::loss::LossReason;

/// A hold of this client: one entry of [`Client::holds`](crate::Client::holds).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldInfo {
    /// The name of what is held.
    pub name: String,
    /// What kind it is: `lock` (plain or fenced), `fair`, `read`, `write`, `group` or `permit`.
    pub kind: &'static str,
    /// Its id on the server; of permits that were acquired together, the first one's.
    pub id: String,
    /// The number of the hold, as [`LockGuard::number`](crate::LockGuard::number) has it.
    pub number: u64,
    /// When it began, at the latest: when the request left to which it was granted, or when it was
    /// handed over by another waiter of the process.
    pub since: Instant,
    /// The holder's deadline, unless it is renewed until then.
    pub valid_until: Instant,
    /// How often the server has renewed it.
    pub renewals: u32,
    /// How many guards have it: re-entries of an owner, or readers that share it.
    pub guards: usize,
    /// Why it is lost; `None` while it is held.
    pub loss: Option<LossReason>,
}

/// The oldest first.
pub(crate) fn of(context: &Context) -> Vec<HeldInfo> {
    let mut holds = context.standing.all();
    // Each looked at once: a hand-over changes it meanwhile.
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

/// By the step that gives it back, which each kind has of its own.
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
