//! The channels and the expiry times that tell a watch when to ask the server.

use std::time::Duration;

use crate::key::Key;
use crate::operate::name::{Found, NameInfo};
use crate::primitives::lock::Ttl;

/// Returns the channels on which changes of a name of this kind are published. `None` if the kind
/// is not known.
pub(super) fn channels_of(key: &Key, found: &Found) -> Option<Vec<String>> {
    match found {
        Found::Lock(_) | Found::Group(_) => Some(vec![key.lock_channel()]),
        Found::ReadWrite { .. } => Some(vec![key.rw_channel()]),
        Found::Leases { .. } => Some(vec![key.semaphore_channel()]),
        Found::Latch { .. } => Some(vec![key.latch_channel()]),
        // The name may be a semaphore or a latch.
        Found::Count(_) => Some(vec![key.semaphore_channel(), key.latch_channel()]),
        Found::Nothing | Found::Unknown { .. } => None,
    }
}

/// Returns whether [`NameInfo::listening`] counts the connections of this channel.
pub(super) fn is_counted_at(key: &Key, found: &Found, channel: &str) -> bool {
    match found {
        // The connections of all four channels are counted.
        Found::Nothing => true,
        found => {
            let channels = channels_of(key, found).unwrap_or_default();
            channels.iter().any(|one| one == channel)
        }
    }
}

/// Returns the time until the first hold or permit ends by itself, or the key expires.
pub(super) fn soonest_end(info: &NameInfo) -> Option<Duration> {
    let holds: Vec<Ttl> = match &info.found {
        Found::Lock(hold) => vec![hold.ttl],
        Found::ReadWrite { writer, readers } => {
            writer.iter().chain(readers).map(|hold| hold.ttl).collect()
        }
        Found::Group(values) => values.iter().map(|value| value.hold.ttl).collect(),
        Found::Leases { permits, .. } => permits.iter().map(|permit| permit.ttl).collect(),
        _ => Vec::new(),
    };
    let left = |ttl: Ttl| match ttl {
        Ttl::Left(left) => Some(left),
        _ => None,
    };
    holds.into_iter().chain([info.ttl]).filter_map(left).min()
}
