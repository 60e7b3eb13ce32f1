//! The facts that servers report about themselves, to judge whether locks are safe there.

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
    /// The server's settings (`CONFIG`) that matter to locks; empty if the server refuses to show
    /// them.
    pub settings: BTreeMap<String, String>,
    /// Whether the server has certain commands that not every server has: `WAIT`, `WAITAOF` and
    /// `SPUBLISH`. A command that the server refuses to this user is missing here.
    pub commands: BTreeMap<String, bool>,
    /// The server's clock minus this machine's, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The distance that the server's clock moved against a clock that is never set, during the
    /// examination, in milliseconds. The value includes delays of the network.
    pub clock_moved_ms: Option<i64>,
    /// The time that the quickest answer took.
    pub round_trip: Option<Duration>,
    /// The questions that the server refused, each with the text of the refusal.
    pub refused: BTreeMap<String, String>,
}
