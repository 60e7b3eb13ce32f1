//! The test setup for the steps of the plain lock.

use super::{Sample, Suite};
use crate::primitives::lock::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "lock",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY:forced", "<c>:1", "on call"],
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read"],
        // Neither hash is a lock, although each contains one of our holds: in the first, the hold's
        // count is not an integer, and the second has an extra field.
        &["HSET", "KEY", "<c>:1", "1.5"],
        &["HSET", "KEY", "<c>:1", "1", "name", "Ann"],
        &["SET", "KEY:longest", "40000"],
        &["SET", "KEY:longest", "-1"],
        // 2^53, which Lua cannot tell from the next number, and 2^53 - 1, which it can.
        &["SET", "KEY:longest", "9007199254740992"],
        &["SET", "KEY:longest", "9007199254740991"],
        &["SET", "KEY:longest", ""],
        &["HSET", "KEY:longest", "a", "b"],
        &["SET", "KEY:asking", "text"],
        &["RPUSH", "KEY:asking", "text", "1234:1"],
        &["RPUSH", "KEY:asking", "1234", "5678:x", "9012:1", "12"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    match (to.step, name) {
        (_, "lock") => key.into(),
        (_, "hold") => hold.into(),
        (_, "by") => to.label().into(),
        (_, "marker") => format!("{key}:forced"),
        (_, "channel") => format!("channel:{key}"),
        (_, "asking") => format!("{key}:asking"),
        (_, "client") => ["1234:1", "5678:1", "9012", "3456:1"][to.variant / 2].into(),
        (_, "notified") => (to.variant % 2).to_string(),
        ("lock.renew", "lease_ms") => super::renewed(hold).0.into(),
        (_, "span_ms") => ["20000", "120000"][to.variant % 2].into(),
        (_, "lease_ms") => "60000".into(),
        (_, "most_ms") => super::renewed(hold).1.into(),
        (_, "longest") => format!("{key}:longest"),
        (_, "own_ms") => ["0", "30000", "60000", "9007199254740991"][to.variant / 2].into(),
        _ => to.unknown_argument(name),
    }
}
