//! The facts that servers report about themselves. They show whether locks are safe on these
//! servers.

use std::collections::BTreeMap;
use std::time::Duration;

/// The facts that one server reports about itself: see [`Client::examine`](crate::Client::examine).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerFacts {
    /// The server's address, without credentials.
    pub address: String,
    /// The server's answer to `INFO`, by field; empty if the server refuses it.
    pub info: BTreeMap<String, String>,
    /// The server's settings (`CONFIG`) that matter for locks; empty if the server refuses to show
    /// them.
    pub settings: BTreeMap<String, String>,
    /// Whether the server has the commands `WAIT`, `WAITAOF` and `SPUBLISH`. A command that the
    /// user is not allowed to run is not in this map.
    pub commands: BTreeMap<String, bool>,
    /// The time of the server's clock minus the time of this machine's clock, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The smallest jump of the server's clock, forward or back, that explains its answers during
    /// the examination, in milliseconds. The measurement uses a clock of this machine that is never
    /// set. The value is 0 if the server's answers show no jump.
    pub clock_moved_ms: Option<i64>,
    /// The time that the fastest answer took.
    pub round_trip: Option<Duration>,
    /// The queries that the server refused, each with the text of the refusal.
    pub refused: BTreeMap<String, String>,
}
