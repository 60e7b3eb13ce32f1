//! What servers say of themselves, for those who judge whether locks are safe there.

use std::collections::BTreeMap;
use std::time::Duration;

/// What one server says of itself: see [`Client::examine`](crate::Client::examine).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerFacts {
    /// Its address, without credentials.
    pub address: String,
    /// Its answer to `INFO`, by field; empty if it refuses.
    pub info: BTreeMap<String, String>,
    /// Those of its settings (`CONFIG`) that matter to locks; empty if it refuses.
    pub settings: BTreeMap<String, String>,
    /// Commands that not every server has, and whether it has them: `WAIT`, `WAITAOF`, and
    /// `SPUBLISH`. One that it refuses to this user is not among them.
    pub commands: BTreeMap<String, bool>,
    /// Its clock minus this machine's, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// By how much its clock has moved against one that nobody sets, while it was looked at, in
    /// milliseconds. What the network adds is in it.
    pub clock_moved_ms: Option<i64>,
    /// How long the quickest answer took.
    pub round_trip: Option<Duration>,
    /// What it refused to tell, and its words.
    pub refused: BTreeMap<String, String>,
}
