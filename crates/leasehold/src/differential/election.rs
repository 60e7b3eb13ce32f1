//! The test setup for the steps of an election.

use super::{Sample, Suite, renewed};
use crate::recipes::election::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "election",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY", "mode", "read"],
        &["SET", "KEY", "text"],
        &["SET", "KEY:token", "7"],
        &["SET", "KEY:token", "1e3"],
        &["HSET", "KEY:token", "a", "b"],
        &["SET", "KEY:leader", "text"],
        &["HSET", "KEY:leader", "id", "stranger"],
        &["HSET", "KEY:leader", "id", "<c>:1", "token", "7"],
        &["HSET", "KEY:leader", "id", "<c>:1", "token", "1e3"],
        // The hold of a Java client, which leaves no entry.
        &["HSET", "KEY", "<e>:40", "1"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    let (lease_ms, most_ms) = renewed(hold);
    match (to.step, name) {
        (_, "lock") => key.into(),
        (_, "leader") => format!("{key}:leader"),
        (_, "counter") => format!("{key}:token"),
        (_, "hold") => hold.into(),
        ("election.renew", "lease_ms") => lease_ms.into(),
        (_, "lease_ms") => "60000".into(),
        (_, "most_ms") => most_ms.into(),
        (_, "counter_ms") => ["0", "900000"][to.variant % 2].into(),
        (_, "payload") => ["", "http://10.0.0.7:8080", "two words"][to.variant % 3].into(),
        (_, "channel") => format!("channel:{key}"),
        (_, "terms") => format!("terms:{key}"),
        _ => to.unknown_argument(name),
    }
}
